"""The state of a run <-> one file, restored into a template."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.irl import State
from virl_tf.persistence.files import load_arrays, save_arrays
from virl_tf.validation import InputError

FORMAT = 3  # a file of another format is refused


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
    if arrays.pop("format", np.array(-1)).tolist() != FORMAT:
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
