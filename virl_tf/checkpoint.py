"""Arrays <-> disk: atomically, restored into a template, never executing anything from a file."""

import contextlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from virl_tf.irl import State
from virl_tf.mixture import Mixture, check_mixture
from virl_tf.validation import InputError, check_unpacked_size

# What reading a damaged .npz file raises. RuntimeError: its header asks for a password or an
# unknown compression; MemoryError: for an impossible shape; TypeError: it is an .npy file.
_WRONG_CONTENT = (ValueError, TypeError, EOFError, KeyError, AttributeError, RuntimeError)
_DAMAGED = (OSError, *_WRONG_CONTENT, MemoryError, zipfile.BadZipFile, zlib.error)
FORMAT = 3  # of State files; a file of another format is refused


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


def save_state(path: Path, state: State) -> None:
    """Write a `State`."""
    leaves = {f"array_{i:03d}": leaf for i, leaf in enumerate(tf.nest.flatten(state))}
    save_arrays(path, {"format": FORMAT, **leaves})


def load_state(path: Path, template: State) -> State:
    """Read a `State` into the structure, shapes and dtypes of `template`.

    Raises:
        InputError: the file is damaged, of another format, or of a run with other shapes.
    """
    arrays = load_arrays(path)
    if not np.array_equal(arrays.pop("format", np.array(-1)), FORMAT):
        raise InputError(f"{path} is not a checkpoint of format {FORMAT}.")
    wanted = tf.nest.flatten(template)
    found = [arrays[name] for name in sorted(arrays)]
    kinds = [(np.shape(a), np.asarray(a).dtype) for a in wanted]
    if [(np.shape(a), a.dtype) for a in found] != kinds:
        raise InputError(
            f"{path} belongs to a run with other shapes (method, components or network)."
        )
    leaves = [_like(old, new) for old, new in zip(wanted, found, strict=True)]
    return tf.nest.pack_sequence_as(template, leaves)


def _like(template: Any, array: np.ndarray) -> Any:
    if isinstance(template, int):
        return int(array)
    if tf.is_tensor(template):
        return tf.constant(array, template.dtype)
    return array.astype(template.dtype)


def save_policy(path: Path, policy: Mixture) -> None:
    """Write a mixture as `policy.npz`: log_weights [K], means [K, D], scale_trils [K, D, D]."""
    save_arrays(path, policy._asdict())


def load_policy(path: Path | str) -> Mixture:
    """Read a mixture written by `save_policy`. Raises InputError if the file is not one."""
    arrays = load_arrays(Path(path))
    if set(arrays) != set(Mixture._fields):
        wanted = sorted(Mixture._fields)
        raise InputError(
            f"{path} is not a policy: it holds {sorted(arrays)}, a policy holds {wanted}."
        )
    return check_mixture(f"{path} is not a policy", [arrays[name] for name in Mixture._fields])
