"""Text, JSON and arrays <-> files, atomically."""

import contextlib
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from virl_tf.validation import InputError, check_unpacked_size

# What reading a damaged .npz file raises. RuntimeError: its header asks for a password or an
# unknown compression; MemoryError: for an impossible shape; TypeError: it is an .npy file.
_WRONG_CONTENT = (ValueError, TypeError, EOFError, KeyError, AttributeError, RuntimeError)
_DAMAGED = (OSError, *_WRONG_CONTENT, MemoryError, zipfile.BadZipFile, zlib.error)


class DamagedFileError(InputError):
    """A file that is not what was written; every array carries the CRC-32 of its bytes."""


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Call `write` on a temporary file beside `path`, then rename it.

    A reader sees the old file or the new one, never a part.
    """
    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f".{path.name}-", delete=False
        ) as file:
            try:
                write(file)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
                os.chmod(file.name, 0o644)
                os.replace(file.name, path)
            except BaseException:
                # The folder may be gone or read-only: what happened first is what counts.
                with contextlib.suppress(OSError):
                    os.unlink(file.name)
                raise
    except OSError as error:
        # A full disk does not say whose write failed.
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_atomically(path, lambda file: file.write(text.encode("utf-8")))


def save_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write named arrays to an .npz file atomically. The same arrays give the same bytes."""
    plain = {name: np.asarray(array) for name, array in arrays.items()}
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **plain))


class _Arrays(dict[str, np.ndarray]):
    """The arrays of one file, which says what it lacks."""

    def __init__(self, path: Path, arrays: dict[str, np.ndarray]):
        super().__init__(arrays)
        self.path = path

    def __missing__(self, name: str) -> np.ndarray:
        held = f"holds no {name!r}, but {sorted(self)}"
        raise InputError(f"{self.path} {held}: it is another file than its name says.")


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read an .npz file; asking the result for an array that the file has not is an InputError.

    Raises:
        InputError: it is missing, damaged, a zip bomb, or holds pickled objects (which are never
            loaded).
    """
    try:
        check_unpacked_size(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise TypeError("it holds other files")
        return _Arrays(path, arrays)
    except FileNotFoundError as error:
        raise InputError(f"no file {path}.") from error
    except _DAMAGED as error:
        raise DamagedFileError(
            f"{path} is damaged or not an .npz file of plain arrays: {error}."
        ) from error


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON, atomically."""
    write_text(path, json.dumps(plain(value), indent=2) + "\n")


def plain(value: Any) -> Any:
    """Mappings, lists and Python scalars only, as YAML holds them."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
