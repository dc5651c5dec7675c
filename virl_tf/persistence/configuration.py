"""What identifies a run, and with what it was made."""

import contextlib
import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

from virl_tf.hparams import runs_published
from virl_tf.version import SAME_NUMBERS, VERSION

_PACKAGES = ("tensorflow", "tensorflow-probability", "keras", "numpy", "scikit-learn")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version(), "virl_tf": VERSION}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def numerics(made_by: Mapping[str, str], preset: object) -> dict[str, str]:
    """Of `versions()`, what the numbers of a preset depend on, by which results may be mixed.

    Not Python's; and of this package's not the third number, where the preset runs published
    hyperparameters (version.py).
    """
    found = {name: version for name, version in made_by.items() if name != "python"}
    if "virl_tf" in found and runs_published(preset):
        first_two = found["virl_tf"].rpartition(".")[0]
        found["virl_tf"] = SAME_NUMBERS.get(first_two, first_two)
    return found


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """'key: old -> new' for every leaf in which two nested mappings differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found: list[str] = []
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{name}.{key}" if name else str(key)
            found += differences(old.get(key), new.get(key), inner)
        return found
    return [] if old == new else [f"{name}: {old!r} there, {new!r} now"]
