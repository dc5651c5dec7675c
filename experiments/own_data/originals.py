"""Demonstrations of people in the files that their makers publish, as trajectories for `fit`."""

import io
import pickle
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.persistence.files import read_json, save_arrays
from virl_tf.trajectories.episodes import FEWEST_STEPS
from virl_tf.validation import InputError, check_choice, reason

import numpy as np
import pandas as pd

Paths = Iterator[tuple[str, np.ndarray]]  # name, [T, 2]
# All that an array of numbers is made of; nothing else is ever looked up for a pickle.
ARRAYS = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
ARRAYS |= {
    (f"numpy.{core}.{module}", name)
    for core in ("core", "_core")
    for module, name in [
        *(("multiarray", "_reconstruct"), ("multiarray", "scalar"), ("numeric", "_frombuffer"))
    ]
}
# What files of another form, and pickles that are damaged, end in.
_DAMAGED = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, ArithmeticError),
    *(ImportError, MemoryError, SystemError, pickle.UnpicklingError),
)
LARGEST = 2.0**53  # below, no two whole numbers are the same float
TRACK = re.compile(r"TRACK\.R(\d+)=\s*\[(\[.*?\])\s*\]", re.DOTALL)


def convert(form: str, sources: Sequence[Path], out: Path, apart: float) -> str:
    """Write the paths in `sources` to an .npz file with an array [T, 2] for each, and say so.

    Args:
        form: of `FORMS`.
        sources: files or folders, by the form.
        apart: ends that are nearer to each other, in the data's units, are left out.

    Raises:
        InputError: no such form, a source that is none of it, or no path that is long enough.
    """
    read = FORMS[check_choice("form", form, FORMS)]
    if out.suffix != ".npz":
        raise InputError(f"--out {out}: the paths go into an .npz file.")
    paths = {
        f"{i}-{name}": path
        for i, source in enumerate(sources)
        for name, path in _paths_of(source, form)
    }
    kept = {
        name: path
        for name, path in paths.items()
        # What is shorter, or stands still, is refused as a trajectory.
        if len(path) >= FEWEST_STEPS
        and (path != path[0]).any()
        and np.linalg.norm(path[-1] - path[0]) >= apart
    }
    if not kept:
        raise InputError(f"none of {len(paths)} paths has ends {apart:g} {read.unit} apart.")
    out.parent.mkdir(parents=True, exist_ok=True)
    save_arrays(out, kept)
    said = f"{len(kept)} of {len(paths)} paths, ends at least {apart:g} {read.unit} apart: {out}"
    return f"{said}\nnext: python -m experiments judge {shlex.quote(str(out))} --trajectories"


def _paths_of(source: Path, form: str) -> list[tuple[str, np.ndarray]]:
    read = FORMS[form]
    if not (source.is_dir() if read.folder else source.is_file()):
        kind = "folder" if read.folder else "file"
        raise InputError(f"no {kind} {source}; the form {form} is {read.source}.")
    try:
        paths = list(read.paths(source))
        if not paths:
            raise ValueError("it holds no path")
    except _DAMAGED as error:
        text = f"{source} is not in the form {form} ({read.source}): {reason(error)}"
        raise InputError(text) from error
    name, number = Counter(name for name, _ in paths).most_common(1)[0]
    if number > 1:  # all but the last one would be lost
        raise InputError(f"{source} holds {number} paths with the name {name!r}.")
    return paths


def of_grand_central(folder: Path) -> Paths:
    """People in a station's hall: a file of (y, x, frame) each, in pixels of the video, and the
    homography that takes pixels to metres.
    """
    files = sorted((folder / "Annotation").glob("*.txt"))
    if not files:
        raise ValueError("it holds no Annotation/*.txt")
    to_floor = np.array(read_json(folder / "H.json")["homog"], float)
    if to_floor.shape != (3, 3):
        raise ValueError("homog of H.json is not 3 x 3")
    for file in files:
        y, x, _ = np.array(file.read_text().split(), float).reshape(-1, 3).T
        floor = to_floor @ np.stack([x, y, np.ones_like(x)])
        yield file.stem, (floor[:2] / floor[2]).T


def of_columns(number: int, person: int, x: int, y: int) -> Callable[[Path], Paths]:
    """A reader of a file of so many columns of numbers, by the places of what is read."""

    def read(file: Path) -> Paths:
        rows = pd.read_csv(file, sep=r"\s+", header=None, dtype=float, na_values="?")
        if rows.shape[1] != number:
            raise ValueError(f"{rows.shape[1]} columns instead of {number}")
        # TrajNet has "?" where positions are to be predicted.
        rows = rows[[person, x, y]].dropna()
        if (rows[person].abs() >= LARGEST).any():
            raise ValueError("a person's number has more digits than are read exactly")
        for name, path in rows.groupby(person, sort=True):
            yield np.format_float_positional(name, trim="-"), path[[x, y]].to_numpy()

    return read


def of_edinburgh(file: Path) -> Paths:
    """People in a forum seen from above: lines TRACK.R1=[[x y frame];...], in pixels."""
    for found in TRACK.finditer(file.read_text()):
        rows = [row.split() for row in found[2].replace("[", "").replace("]", "").split(";")]
        yield found[1], np.array(rows, float)[:, :2]


def of_avoiding(folder: Path) -> Paths:
    """A robot's rod that people move round cylinders: where it was told to go, in metres, of a
    pickled mapping for each demonstration. Of a pickle only arrays are read; nothing in it runs.
    """
    for file in sorted(folder.glob("*.pkl")):
        state = _Arrays(io.BytesIO(file.read_bytes())).load()
        yield file.stem, np.asarray(state["robot"]["des_c_pos"], float)[:, :2]


class _Arrays(pickle.Unpickler):
    """Builds containers, numbers and NumPy's arrays, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        """As the base class, for `ARRAYS` alone."""
        if (module, name) not in ARRAYS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not loaded")
        return super().find_class(module, name)


class Form(NamedTuple):
    """How a publisher stores paths.

    Attributes:
        source: what is read, for messages and help.
        folder: whether that is a folder.
    """

    paths: Callable[[Path], Paths]
    source: str
    unit: str
    folder: bool


FORMS = {
    "grand-central": Form(of_grand_central, "OpenTraj's folder datasets/GC", "m", True),
    "obsmat": Form(of_columns(8, 1, 2, 4), "obsmat.txt of ETH and UCY", "m", False),
    "trajnet": Form(of_columns(4, 1, 2, 3), "TrajNet's .txt: frame, person, x, y", "m", False),
    "edinburgh": Form(of_edinburgh, "tracks.*.txt of the Edinburgh forum", "pixels", False),
    "avoiding": Form(of_avoiding, "D3IL's folder of avoiding/data, .pkl files", "m", True),
}
