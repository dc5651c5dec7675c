"""Trajectories from HDF5 files: a group for each episode, or rows and where episodes end."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from virl_tf.persistence.files import DamagedFileError
from virl_tf.persistence.hdf5 import array_within, within
from virl_tf.validation import MAX_UNPACKED_BYTES, InputError, reason, shortened

import h5py
import numpy as np

OBSERVATIONS = "observations"  # what is read unless an array is chosen
ROBOMIMIC = "data"  # the group of its episodes; Minari's stand at the top
ENDS = ("terminals", "timeouts")  # D4RL's, a flag for each row
MOST_PACKED = 10  # bytes that one byte of a file may unpack to, above MAX_UNPACKED_BYTES
MOST_NAMED = 12  # arrays that an error names


class Arrays(NamedTuple):
    """Of each episode, by its name, [T_i, D], and the columns' names [D]."""

    episodes: dict[str, np.ndarray]
    columns: list[str]


def read_hdf5(path: Path, arrays: Sequence[str] | None) -> Arrays:
    """The arrays `arrays` of all episodes, side by side. What the file links to is not read.

    - robomimic: data/demo_0/obs/..., data/demo_0/actions, ...
    - Minari: episode_0/observations, ...
    - D4RL: observations, terminals and timeouts of all rows

    Args:
        arrays: paths within an episode, each [T_i] or [T_i, ...]; None: `observations`.

    Raises:
        InputError: the file is damaged, or holds no such arrays of numbers.
    """
    try:
        with h5py.File(path, "r") as file:
            most = max(MAX_UNPACKED_BYTES, MOST_PACKED * path.stat().st_size)
            return _read(file, list(arrays or [OBSERVATIONS]), most)
    except InputError:
        raise
    except (OSError, ValueError, RuntimeError, LookupError, TypeError, MemoryError) as error:
        text = "is damaged or not an HDF5 file of plain arrays"
        raise DamagedFileError(f"{path} {text}: {reason(error)}.") from error


def _read(file: h5py.File, arrays: list[str], most: int) -> Arrays:
    ends = [name for name in ENDS if _holds(file, name, h5py.Dataset)]
    if ends:
        parts = _parts(file, "it", arrays, most)
        flags = _parts(file, "it", ends, most)
        return Arrays(_cut(_side_by_side(parts), _side_by_side(flags)), _columns(parts))
    parent = within(file, ROBOMIMIC) if _holds(file, ROBOMIMIC, h5py.Group) else file
    names = [name for name in parent if _holds(parent, name, h5py.Group)]
    if not names:
        raise InputError(f"it holds no group for each episode, and no {' or '.join(ENDS)} of rows.")
    episodes = {}
    for name in names:
        parts = _parts(parent[name], f"episode {name}", arrays, most)
        episodes[name] = _side_by_side(parts)
        most -= episodes[name].nbytes
    return Arrays(episodes, _columns(parts))


def _holds(group: h5py.Group, name: str, kind: type) -> bool:
    try:
        return isinstance(within(group, name), kind)
    except ValueError:
        return False


def _parts(
    group: h5py.Group, where: str, arrays: Sequence[str], most: int
) -> dict[str, np.ndarray]:
    """{array: [T, ...]} of an episode's group, or of a file of rows.

    Args:
        where: which that is, for messages.
        most: bytes that are read.
    """
    missing = next((name for name in arrays if not _holds(group, name, h5py.Dataset)), None)
    if missing is not None:
        raise InputError(
            f"{where} has no array {missing!r}; give --array NAME,... of {_told(group)}."
        )
    found = {name: array_within(group, name) for name in arrays}
    for name, dataset in found.items():
        if dataset.dtype.kind not in "fiub" or not dataset.ndim:
            raise InputError(f"array {name!r} of {where} holds no numbers over time.")
    if sum(dataset.nbytes for dataset in found.values()) > most:
        raise InputError(f"{where} declares more bytes than are read of a file of this size.")
    lengths = {name: len(dataset) for name, dataset in found.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"arrays of {where} have different numbers of samples: {shown}.")
    return {name: dataset[()] for name, dataset in found.items()}


def _told(group: h5py.Group) -> str:
    """The arrays within a group, with their shapes."""
    found: list[str] = []

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(f"{name} {list(item.shape)}")

    group.visititems(visit)
    return shortened(found, MOST_NAMED) or "none"


def _side_by_side(parts: dict[str, np.ndarray]) -> np.ndarray:
    """[T, D], all axes but the first as one."""
    return np.concatenate([x.reshape(len(x), _width(x)) for x in parts.values()], axis=1)


def _width(x: np.ndarray) -> int:
    return math.prod(x.shape[1:])


def _columns(parts: dict[str, np.ndarray]) -> list[str]:
    """An array over time [T] is a column, one of more axes a column NAME.0, NAME.1, ... each."""
    names = []
    for name, x in parts.items():
        names += [name] if x.ndim == 1 else [f"{name}.{i}" for i in range(_width(x))]
    return names


def _cut(rows: np.ndarray, flags: np.ndarray) -> dict[str, np.ndarray]:
    """Rows [M, D] as episodes, which end at rows with one of the flags [M, F], or with the file."""
    if len(flags) != len(rows):
        raise InputError(f"it has {len(rows)} rows, but {' and '.join(ENDS)} of {len(flags)}.")
    last = np.flatnonzero(flags[:-1].any(axis=1)) + 1
    return {str(i): episode for i, episode in enumerate(np.split(rows, last))}
