"""A reward <-> `reward.keras`, reading arrays only: nothing that a file describes is built."""

import io
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from virl_tf.conditional import field_shapes
from virl_tf.domain import EVERYWHERE
from virl_tf.mixture import Mixture, empty_mixture
from virl_tf.network_stack import stack_shapes
from virl_tf.persistence.files import PARTIAL, read_members, write_atomically
from virl_tf.persistence.hdf5 import array_within, within
from virl_tf.reward import CONDITIONAL_DTYPES, DTYPES, Reward, dtypes_of, from_named_arrays
from virl_tf.validation import InputError, check_path, reason

_MEMBERS = {"metadata.json", "config.json", "model.weights.h5"}
_CLASSES = {"Functional", "InputLayer", "CumulativeReward", "DTypePolicy", "__keras_tensor__", ""}
# What files without bounds and angles do not hold.
_EVERYWHERE = {f"domain.{name}": array for name, array in EVERYWHERE._asdict().items()}
# Files of version 0.1 name no arrays; they hold the first 13, 14 or 18 of these.
_UNNAMED = 13, 14, 18
# What JSON and HDF5 raise for content of another structure; RecursionError is a RuntimeError.
_DAMAGED = (
    *(ValueError, TypeError, OSError, LookupError, AttributeError, RuntimeError),
    *(OverflowError, MemoryError),
)


def load_reward(path: Path | str) -> Reward:
    """The reward in a `.keras` file of `Reward.as_keras().save(path)`, or in a run's folder.

    Only the arrays are used: Keras, which would build whatever the file describes, is not asked.

    Raises:
        InputError: no such file, not a Keras file, or one that holds something else.
    """
    path = check_path(path)
    if path.is_dir():
        path = path / "reward.keras"
    if not path.is_file():
        raise InputError(f"no reward file {path}.")
    try:
        members = read_members(path)
        description = _description(members)
        arrays = _read_arrays(members["model.weights.h5"], _names(description))
        _check_arrays(arrays)
    except _DAMAGED as error:
        raise InputError(f"{path} is not a reward saved by virl_tf: {reason(error)}") from error
    return from_named_arrays(arrays)


def _description(members: dict[str, bytes]) -> dict[str, Any]:
    """config.json. Raises ValueError unless members and Keras classes are those of
    `Reward.as_keras`.
    """
    classes = set()

    def noted(item: dict[str, Any]) -> dict[str, Any]:
        classes.add(str(item.get("class_name", "")))
        return item

    description = json.loads(members.get("config.json", b"{}"), object_hook=noted)
    if set(members) != _MEMBERS or classes != _CLASSES:
        described = sorted(classes)[:9]
        raise ValueError(f"it holds {list(members)[:9]} and describes {described}")
    return description


def _names(description: dict[str, Any]) -> list[str] | None:
    """The arrays' names in the order they are stored; None: a file of version 0.1."""
    (layer,) = (
        layer for layer in description["config"]["layers"] if layer["name"] == "cumulative_reward"
    )
    arrays = layer["config"].get("arrays")
    return None if arrays is None else list(arrays)


def _read_arrays(content: bytes, names: list[str] | None) -> dict[str, np.ndarray]:
    """{name: array} of a Keras weights file; what a file of version 0.1 lacks is put in."""
    with h5py.File(io.BytesIO(content), "r") as weights:
        group = "layers/cumulative_reward/vars"
        stored = len(within(weights, group))
        old = names is None and stored in _UNNAMED
        names = list(DTYPES)[:stored] if old else names
        if names is None or len(names) != stored:
            raise ValueError(f"it holds {stored} arrays")
        arrays = {
            name: _read_array(weights, f"{group}/{i}", len(content)) for i, name in enumerate(names)
        }
    absent = _absent(len(arrays["features.shift"])) if old else _EVERYWHERE
    return {**absent, **arrays}


def _absent(dim: int) -> dict[str, np.ndarray]:
    """What files of version 0.1 need not hold: features, and the mixture of a pooled reward."""
    mixture = empty_mixture(dim)._asdict()
    return {
        "features.frequencies": np.zeros((dim, 0), np.float32),
        **_EVERYWHERE,
        **{f"mixture.{name}": np.asarray(array) for name, array in mixture.items()},
        "mixture_exponent": np.zeros(()),
    }


def _read_array(weights: h5py.File, name: str, most: int) -> np.ndarray:
    """One array of at most `most` bytes; HDF5 can also declare data that it does not hold."""
    dataset = array_within(weights, name)
    if dataset.nbytes > most:
        raise ValueError(f"{name} declares more bytes than the file holds")
    return dataset[()]


def _check_arrays(arrays: dict[str, np.ndarray]) -> None:
    """Raise ValueError unless names, dtypes and shapes are those of one reward, and what must be
    finite is.
    """
    dtypes = dtypes_of(arrays)
    if set(arrays) != set(dtypes):
        raise ValueError(f"its arrays are {sorted(arrays)[:20]}")
    if {name: str(array.dtype) for name, array in arrays.items()} != dtypes:
        raise ValueError("its arrays have other dtypes")
    if {name: array.shape for name, array in arrays.items()} != _shapes(arrays):
        raise ValueError("its arrays have other shapes")
    if not len(arrays["mixture.scale_trils"]) and arrays["mixture_exponent"] != 0.0:
        raise ValueError("its average is with a mixture that has no components")
    densities = [name for name in arrays if not name.startswith(("networks.", "domain."))]
    if not all(np.isfinite(arrays[name]).all() for name in densities):
        raise ValueError("its mixture, scales or frequencies are not finite")
    if not (arrays["domain.lower"] < arrays["domain.upper"]).all():
        raise ValueError("its bounds are impossible")
    if not np.isfinite(arrays["domain.period"]).all():
        raise ValueError("its periods are not finite")
    if not 0 <= arrays["networks.count"] <= len(arrays["networks.input_kernel"]):
        raise ValueError("its number of networks is impossible")


def _shapes(arrays: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """The shapes that the arrays must have, given the sizes that some of them tell."""
    d = len(arrays["features.shift"])
    t, _, h = arrays["networks.input_kernel"].shape
    layers = arrays["networks.hidden_kernels"].shape[1]
    f = arrays["features.frequencies"].shape[-1]
    return {
        **_density_shapes("base", arrays, d),
        "base_exponent": (),
        **_prefixed("networks", stack_shapes(t, d + 2 * f, layers + 1, h)),
        "networks.count": (),
        "features.shift": (d,),
        "features.scale": (d,),
        "features.frequencies": (d, f),
        **_density_shapes("mixture", arrays, d),
        "mixture_exponent": (),
        **dict.fromkeys(_EVERYWHERE, (d,) if len(arrays["domain.lower"]) else (0,)),
    }


def _density_shapes(field: str, arrays: dict[str, np.ndarray], d: int) -> dict[str, Any]:
    """Of a mixture in D dimensions, or of a conditional one whose rows have D columns."""
    k = len(arrays[f"{field}.scale_trils"])
    if dtypes_of(arrays) is not CONDITIONAL_DTYPES:
        return _prefixed(field, Mixture((k,), (k, d), (k, d, d)))
    num_contexts = arrays["base.gains"].shape[2]
    if not 0 < num_contexts < d:
        raise ValueError("its number of contexts is impossible")
    return _prefixed(field, field_shapes(k, d - num_contexts, num_contexts))


def _prefixed(field: str, record: Any) -> dict[str, Any]:
    return {f"{field}.{name}": value for name, value in record._asdict().items()}


def save_reward(path: Path, reward: Reward) -> None:
    """Write `reward.as_keras()` atomically, without Keras's dates: equal rewards, equal files."""
    with tempfile.TemporaryDirectory(PARTIAL, ".reward-", path.parent) as directory:
        dated = Path(directory) / "reward.keras"
        reward.as_keras().save(dated)
        write_atomically(path, lambda file: _without_dates(dated, file))


def _without_dates(dated: Path, file: BinaryIO) -> None:
    with zipfile.ZipFile(dated) as source, zipfile.ZipFile(file, "w") as undated:
        for name in source.namelist():
            content = source.read(name)
            if name == "metadata.json":
                content = json.dumps({**json.loads(content), "date_saved": ""}).encode()
            undated.writestr(zipfile.ZipInfo(name), content)  # of 1980
