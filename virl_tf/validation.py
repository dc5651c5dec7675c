"""Checks of what users hand in.

Every refusal is one `InputError` that names what, where and what is allowed.
"""

import difflib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np


class InputError(ValueError):
    """Input that cannot be used; the message says what is wrong and what is allowed."""


def reason(error: BaseException) -> str:
    """What an error says, on one line and without what it quotes at length from a file."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]} ..."


def closest(name: str, valid: Iterable[str]) -> str:
    """What to say about an unknown name: the nearest valid one, if any is near, and all of them."""
    valid = sorted(valid)
    near = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}Allowed: {', '.join(valid)}"


def check_choice(what: str, name: Any, valid: Iterable[str]) -> str:
    """Return `name` if it is one of `valid`, else raise `InputError`."""
    valid = list(valid)
    if not isinstance(name, str) or name not in valid:
        raise InputError(f"unknown {what} {name!r}: {closest(str(name), valid)}.")
    return name


def check_integer(what: str, value: Any, low: int, high: int | None = None) -> int:
    """Return `value` as an int in [low, high], else raise `InputError`."""
    allowed = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InputError(f"{what} must be {allowed}, got {value!r} ({type(value).__name__}).")
    if value < low or (high is not None and value > high):
        raise InputError(f"{what} must be {allowed}, got {value}.")
    return int(value)


def check_positive(what: str, value: Any) -> float:
    """Return `value` as a float if it is a finite number > 0, else raise `InputError`."""
    numeric = isinstance(value, (int, float, np.integer, np.floating))
    try:
        checked = float(value) if numeric and not isinstance(value, bool) else np.nan
    except OverflowError:  # an int beyond the floats
        checked = np.inf
    if not 0.0 < checked < np.inf:
        raise InputError(f"{what} must be a finite number > 0, got {value!r}.")
    return checked


def check_seed(value: Any) -> int:
    """Return the seed as an int in [0, 2^63), else raise `InputError`."""
    return check_integer("seed", value, 0, 2**63 - 1)


# Bytes to which a compressed file may unpack. Files written here are not compressed: they unpack to
# less than their own size.
MAX_UNPACKED_BYTES = 64 * 2**20


def check_unpacked_size(path: Path) -> None:
    """Refuse, before unpacking, a zip file larger inside than itself and `MAX_UNPACKED_BYTES`.

    Raises:
        InputError: a zip bomb. Also `zipfile.BadZipFile` and `OSError`: not a zip file, or one that
            cannot be read.
    """
    with zipfile.ZipFile(path) as file:
        unpacked = sum(member.file_size for member in file.infolist())
    most = max(MAX_UNPACKED_BYTES, path.stat().st_size)
    if unpacked > most:
        raise InputError(f"{path} would unpack to {unpacked} bytes; at most {most} are read")


# Of a demonstration, and of its inverse spread: their squares are still numbers.
_MAX_MAGNITUDE = 1e100


def check_demonstrations(demonstrations: Any) -> np.ndarray:
    """Return demonstrations as float64 [N, D].

    Raises:
        InputError: not numeric, not 2-D, empty, fewer than D + 2 rows, NaN or infinite entries, a
            column that does not vary (a density with no width in one direction has no finite
            reward), or one whose variance is beyond the floats.
    """
    try:
        x = np.asarray(demonstrations)
        if x.dtype == object or not (np.issubdtype(x.dtype, np.number) or x.dtype == bool):
            raise TypeError(f"dtype {x.dtype}")
        if np.issubdtype(x.dtype, np.complexfloating):
            raise TypeError(f"dtype {x.dtype}")
        x = x.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"demonstrations must be a numeric array [N, D], got {error}.") from error
    if x.ndim != 2:
        raise InputError(f"demonstrations must be 2-D [N, D], got {x.ndim}-D with shape {x.shape}.")
    if 0 in x.shape:
        raise InputError(
            f"demonstrations are empty: shape {x.shape}; "
            "allowed is [N, D] with D >= 1 and N >= D + 2."
        )
    n, d = x.shape
    if n < d + 2:
        raise InputError(
            f"demonstrations: {n} rows of dimension {d}; at least D + 2 = {d + 2} are needed."
        )
    finite = np.isfinite(x)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        bad = int((~finite).any(axis=1).sum())
        raise InputError(
            f"demonstrations hold NaN or infinities in {bad} of {n} rows "
            f"(first: row {row}, column {column}); allowed are finite numbers."
        )
    # A constant column may still show a spread of a few rounding errors, so the bound is relative
    # to the values' size.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        spread = x.std(axis=0)
    largest = np.abs(x).max(axis=0)
    constant = np.flatnonzero((spread <= 1e-12 * largest) & (largest <= _MAX_MAGNITUDE))
    if constant.size:
        raise InputError(
            f"demonstrations: column {constant[0]} is constant (value {x[0, constant[0]]:.6g}); "
            "every column must vary. Drop it or add the noise it really has."
        )
    extreme = np.flatnonzero(~((spread >= 1.0 / _MAX_MAGNITUDE) & (largest <= _MAX_MAGNITUDE)))
    if extreme.size:
        i = extreme[0]
        raise InputError(
            f"demonstrations: column {i} holds numbers up to {largest[i]:.3g} with a standard "
            f"deviation of {spread[i]:.3g}; allowed are numbers up to {_MAX_MAGNITUDE:g} and "
            f"standard deviations from {1.0 / _MAX_MAGNITUDE:g}. Change its unit."
        )
    return x
