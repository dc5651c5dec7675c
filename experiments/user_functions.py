"""A user's own Python functions: where a new policy may go, what draws do."""

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from virl_tf.persistence.files import plain, write_text
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError, reason
from virl_tf.yaml_files import read_yaml, to_yaml


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
    unnamed = ":" not in text or text.endswith(".py")
    place, _, name = (text, "", default) if unnamed else text.rpartition(":")
    path = Path(place)
    is_file = path.suffix == ".py"
    folder = path.parent.absolute() if is_file else Path.cwd()
    try:
        with _importable(folder):
            module = _executed(path) if is_file else importlib.import_module(place)
        file = getattr(module, "__file__", None)
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None
    except (Exception, SystemExit) as error:  # the user's program may raise anything
        what = str(error) if isinstance(error, (ImportError, OSError, SyntaxError)) else repr(error)
        raise InputError(f"{option} {text} cannot be read: {what}.") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(
            f"{option} {text}: {place} has no function {name!r}; allowed are FILE.py:name and "
            f"module:name of a function of {kind}."
        )
    guard = functools.partial(_guarded, f"{option} {text}", file, folder)
    identity = text if digest is None else f"{name}, sha256 {digest}"
    return NamedFunction(guard(function), identity, guard)


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """What is in a folder can be imported, as `python FILE.py` and `python -m` have it; the command
    `virl` has neither.
    """
    place = str(folder)
    missing = place not in sys.path
    if missing:
        sys.path.insert(0, place)
    try:
        yield
    finally:
        if missing:
            sys.path.remove(place)


def _executed(path: Path) -> ModuleType:
    """The module of a file that need not be on the path."""
    module_spec = importlib.util.spec_from_file_location(f"_user_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # dataclasses look their module up
    module_spec.loader.exec_module(module)
    return module


def _guarded(
    named: str, file: str | None, folder: Path, function: Callable[..., Any]
) -> Callable[..., Any]:
    """The function, which may import from the folder; what it raises is an `InputError` with the
    line of the user's file.
    """

    def called(*arguments: Any) -> Any:
        try:
            with _importable(folder):
                return function(*arguments)
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # the user's program may raise anything
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == file]
            where = f" in line {lines[-1]}" if lines else ""
            what = f"{type(error).__name__}: {reason(error)}"
            name = getattr(function, "__name__", "it")
            raise InputError(f"{named}: {name} raised {what}{where}.") from error

    return called


def take_corrected(out: Path, config: Mapping[str, Any], name: str, made: str) -> None:
    """Where a user's function failed behind the fits, it may be another one: these are kept.

    `config`: of the command, what identifies `out`; `name`: of the function in it; `made`: the file
    of what is measured by it.

    Raises:
        InputError: that file has rows by another function, or another process works there.
    """
    folder, now = RunFolder(out), plain(config)
    if not (out / "config.yaml").is_file():
        return
    before = folder.config
    if before == now or {**before, name: now[name]} != now:
        return
    with folder.locked():
        if (out / made).is_file():
            text = f"{out / made} has rows by another --{name}; remove it, and all is measured anew"
            raise InputError(f"{text}. The fits beside it are kept.")
        content = read_yaml(out / "config.yaml")
        write_text(out / "config.yaml", to_yaml({**content, "config": now}))
