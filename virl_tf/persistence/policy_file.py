"""A policy <-> `policy.npz`."""

from pathlib import Path
from typing import Any

from virl_tf.conditional import ConditionalMixture, Policy, check_conditional
from virl_tf.mixture import Mixture, check_mixture
from virl_tf.persistence.files import load_arrays, save_arrays
from virl_tf.validation import InputError, check_path


def save_policy(path: Path, policy: Policy) -> None:
    """Write a policy as `policy.npz`, an array for each of its fields.

    A mixture's log_weights [K], means [K, D] and scale_trils [K, D, D], or a conditional one's.
    """
    save_arrays(path, policy._asdict())


def load_policy(path: Path | str) -> Any:
    """The policy that a fit or `infer` has written.

    Args:
        path: a policy.npz, or a folder that holds one.

    Returns:
        A `Mixture`, or with contexts a `ConditionalMixture`. Nothing in the file is executed.

    Raises:
        InputError: no such file, or it is not a policy.
    """
    path = check_path(path)
    if path.is_dir():
        path = path / "policy.npz"
        if not path.is_file():
            raise InputError(f"{path.parent} holds no policy.npz; give a folder that does.")
    arrays = load_arrays(path)
    if set(arrays) == set(ConditionalMixture._fields):
        found = [arrays[name] for name in ConditionalMixture._fields]
        return check_conditional(f"{path} is not a policy", found)
    if set(arrays) != set(Mixture._fields):
        wanted = sorted(Mixture._fields)
        raise InputError(
            f"{path} is not a policy: it holds {sorted(arrays)}, a policy holds {wanted}."
        )
    return check_mixture(f"{path} is not a policy", [arrays[name] for name in Mixture._fields])
