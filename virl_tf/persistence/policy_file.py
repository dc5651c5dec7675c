"""A policy <-> `policy.npz`."""

from pathlib import Path

from virl_tf.mixture import Mixture, check_mixture
from virl_tf.persistence.files import load_arrays, save_arrays
from virl_tf.validation import InputError


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
