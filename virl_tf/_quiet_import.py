"""TensorFlow is imported without the lines its C++ core prints while it loads.

TF 2.21 logs through absl before absl's own log level is set, so TF_CPP_MIN_LOG_LEVEL comes too late
for them. Whatever was caught is printed after all if the import fails: nothing that explains an
error is ever lost.
"""

import contextlib
import importlib.abc
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


@contextlib.contextmanager
def _caught_stderr() -> Iterator[None]:
    try:
        terminal, caught = os.dup(2), tempfile.TemporaryFile()  # noqa: SIM115 (closed below)
    except OSError:  # no stderr, as of a daemon, or nowhere to write
        yield
        return
    with caught:
        os.dup2(caught.fileno(), 2)
        try:
            yield
        except KeyboardInterrupt:
            raise
        except BaseException:
            caught.seek(0)
            os.write(terminal, caught.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


class _QuietLoader(importlib.abc.Loader):
    """A module's own loader, called with stderr caught."""

    def __init__(self, loader: importlib.abc.Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        with _caught_stderr():
            self._loader.exec_module(module)
            if module.__name__ == "tensorflow_probability":
                module.distributions  # noqa: B018 (loads lazily, and tf-keras with it)


class _QuietFinder(importlib.abc.MetaPathFinder):
    """Finds TensorFlow and TFP once, for whichever module asks for them first.

    Not TFP with TensorFlow: Keras may be what asks, and TFP wants all of Keras.
    """

    def __init__(self) -> None:
        self._noisy = {"tensorflow", "tensorflow_probability"} - set(sys.modules)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._noisy:
            return None
        self._noisy.remove(name)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _QuietLoader(spec.loader)
        return spec


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.meta_path.insert(0, _QuietFinder())
