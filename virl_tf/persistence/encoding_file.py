"""An encoding of trajectories <-> `encoding.npz`."""

from dataclasses import fields
from pathlib import Path

import numpy as np

from virl_tf.persistence.files import load_arrays, save_arrays, writing
from virl_tf.trajectories.encoding import Encoding
from virl_tf.trajectories.options import KINDS, PHASES
from virl_tf.validation import InputError, check_path, told


def save_encoding(path: Path | str, encoding: Encoding) -> None:
    """Write an encoding: its fields as arrays, names as text.

    Args:
        path: of the file, `encoding.npz` in a run's folder.
        encoding: of `fit_encoding`.

    Raises:
        InputError: the file cannot be written, or `encoding` is none.
    """
    if not isinstance(encoding, Encoding):
        what = f"an Encoding is saved, got {told(encoding)}"
        raise InputError(f"{what}; the path comes first: save_encoding(path, encoding).")
    arrays = {field.name: np.asarray(getattr(encoding, field.name)) for field in fields(Encoding)}
    with writing(path):
        save_arrays(check_path(path), arrays)


def load_encoding(path: Path | str) -> Encoding:
    """Read an encoding written by `save_encoding`; nothing in the file is executed.

    Args:
        path: of the file.

    Raises:
        InputError: the file cannot be read, or is no encoding.
    """
    found = load_arrays(check_path(path))
    wanted = {field.name for field in fields(Encoding)}
    if set(found) != wanted:
        raise InputError(
            f"{path} is not an encoding: it holds {sorted(found)[:9]}, "
            f"an encoding holds {sorted(wanted)}."
        )
    names, codes = found["columns"], found["code_columns"]
    text = all(a.ndim == 1 and a.dtype.kind == "U" for a in (names, codes))
    maps = (len(codes), *found["offset"].shape) if codes.ndim else ()
    shapes = found["basis"].shape == found["projection"].shape == maps
    shapes &= found["offset"].shape[1:] == found["error"].shape == names.shape
    numbers = [found[name] for name in ("offset", "basis", "projection", "duration", "error")]
    whole = all(a.dtype == np.float64 and np.isfinite(a).all() for a in numbers)
    kind, phase = str(found["kind"]), str(found["phase"])
    known = kind in KINDS and phase in PHASES and found["duration"].shape == ()
    if not (text and shapes and whole and known and len(maps) == 3 and 0 not in maps):
        raise InputError(
            f"{path} is not an encoding: expected finite float64 offset [T, D], basis and "
            "projection [D', T, D], error [D], duration, and the names of kind, phase and columns."
        )
    return Encoding(
        kind=kind,
        phase=phase,
        columns=tuple(map(str, names)),
        code_columns=tuple(map(str, codes)),
        offset=found["offset"],
        basis=found["basis"],
        projection=found["projection"],
        duration=float(found["duration"]),
        error=found["error"],
    )
