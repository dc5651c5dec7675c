"""A user's own Python functions: where a new policy may go, what draws do."""

import functools
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.validation import InputError, reason


class NamedFunction(NamedTuple):
    """A function, and what identifies it in config.yaml.

    Attributes:
        guard: makes of a function of the same file one whose errors are a line each.
    """

    function: Callable[..., Any]
    identity: str
    guard: Callable[[Callable[..., Any]], Callable[..., Any]]


def load_support(text: str) -> NamedFunction:
    """`load_function` of points [N, D] that gives [N] bool; `support` if `text` names none."""
    return load_function("--support", text, "support", "points [N, D] that gives [N] booleans")


def load_outcome(text: str) -> NamedFunction:
    """`load_function` of draws and kept-back rows; `outcome` if `text` names none."""
    kind = "draws and kept-back rows that gives {name: number}"
    return load_function("--outcome", text, "outcome", kind)


def load_world(text: str) -> NamedFunction:
    """`load_function` of a number of runs and a seed; `World` if `text` names none."""
    kind = "a number n and a seed that gives an object with positions, move and outcome"
    return load_function("--world", text, "World", kind)


def load_function(option: str, text: str, default: str, kind: str) -> NamedFunction:
    """The function that `FILE.py`, `FILE.py:name` or `module:name` names.

    The file or module is executed: it is the user's own program.

    Args:
        option: of the command line, for messages.
        text: what it was given.
        default: the name of a function that `text` does not name.
        kind: what it is a function of, for messages.

    Raises:
        InputError: no such file, module or function, or one that fails while it is read.
    """
    place, _, name = text.rpartition(":") if ":" in text else (text, "", default)
    path = Path(place)
    try:
        if path.suffix == ".py":
            module_spec = importlib.util.spec_from_file_location(f"_user_{path.stem}", path)
            assert module_spec is not None
            assert module_spec.loader is not None
            module = importlib.util.module_from_spec(module_spec)
            sys.modules[module_spec.name] = module  # dataclasses look their module up
            module_spec.loader.exec_module(module)
            identity = f"{name}, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}"
        else:
            module, identity = importlib.import_module(place), text
    except Exception as error:  # the user's program may raise anything
        what = str(error) if isinstance(error, (ImportError, OSError, SyntaxError)) else repr(error)
        raise InputError(f"{option} {text} cannot be read: {what}.") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(
            f"{option} {text}: {place} has no function {name!r}; allowed are FILE.py:name and "
            f"module:name of a function of {kind}."
        )
    guard = functools.partial(_guarded, f"{option} {text}", getattr(module, "__file__", None))
    return NamedFunction(guard(function), identity, guard)


def _guarded(named: str, file: str | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, but what it raises is an `InputError` with the line of the user's file."""

    def called(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except InputError:
            raise
        except Exception as error:  # the user's program may raise anything
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == file]
            where = f" in line {lines[-1]}" if lines else ""
            what = f"{type(error).__name__}: {reason(error)}"
            name = getattr(function, "__name__", "it")
            raise InputError(f"{named}: {name} raised {what}{where}.") from error

    return called
