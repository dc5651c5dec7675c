"""Where a new policy may go, as a user's own Python function."""

import hashlib
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.validation import InputError


class NamedSupport(NamedTuple):
    """A function [N, D] -> [N] bool, and what identifies it in config.yaml."""

    function: Callable[[Any], Any]
    identity: str


def load_support(text: str) -> NamedSupport:
    """The function that `FILE.py`, `FILE.py:name` or `module:name` names; name: `support` if none.

    The file or module is executed: it is the user's own program.

    Raises:
        InputError: no such file, module or function, or one that fails while it is read.
    """
    place, _, name = text.rpartition(":") if ":" in text else (text, "", "support")
    path = Path(place)
    try:
        if path.suffix == ".py":
            module_spec = importlib.util.spec_from_file_location(path.stem, path)
            assert module_spec is not None
            assert module_spec.loader is not None
            module = importlib.util.module_from_spec(module_spec)
            module_spec.loader.exec_module(module)
            identity = f"{name}, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"
        else:
            module, identity = importlib.import_module(place), text
    except (ImportError, OSError, SyntaxError) as error:
        raise InputError(f"--support {text} cannot be read: {error}.") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(
            f"--support {text}: {place} has no function {name!r}; allowed are FILE.py:name and "
            "module:name of a function of points [N, D] that gives [N] booleans."
        )
    return NamedSupport(function, identity)
