"""Import TensorFlow without the lines its C++ core prints while it loads.

TF 2.21 logs through absl before absl's own log level is set, so TF_CPP_MIN_LOG_LEVEL comes too late
for them. Whatever was caught is printed after all if the import fails: nothing that explains an
error is ever lost.
"""

import os
import sys
import tempfile


def _import_tensorflow() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" in sys.modules:
        return
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), 2)
        try:
            import tensorflow  # noqa: F401
            import tensorflow_probability

            tensorflow_probability.distributions  # noqa: B018  (TFP loads lazily, and tf-keras with it)
        except BaseException:
            caught.seek(0)
            os.write(terminal, caught.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


_import_tensorflow()
