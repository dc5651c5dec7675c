"""Checks of what users hand in.

Every refusal is one `InputError` that names what, where and what is allowed.
"""

import difflib
import re
import shlex
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np


class InputError(ValueError):
    """Input that cannot be used; the message says what is wrong and what is allowed."""


def reason(error: BaseException) -> str:
    """What an error says, on one line and without what it quotes at length from a file."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]} ..."


def told(value: Any) -> str:
    """A value that is not what was asked for, on one line: an array by its shape."""
    shape = getattr(value, "shape", ())
    if shape:
        return f"an array of shape {tuple(shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:80]} ..."


def shortened(names: Iterable[Any], most: int = 3) -> str:
    """'a, b, c and 5 more'."""
    texts = list(map(str, names))
    shown = ", ".join(texts[:most])
    return f"{shown} and {len(texts) - most} more" if len(texts) > most else shown


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
        near = closest(name if isinstance(name, str) else told(name), valid)
        raise InputError(f"unknown {what} {told(name)}: {near}.")
    return name


def check_integer(what: str, value: Any, low: int, high: int | None = None) -> int:
    """Return `value` as an int in [low, high], else raise `InputError`."""
    allowed = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise InputError(f"{what} must be {allowed}, got {told(value)} ({type(value).__name__}).")
    if value < low or (high is not None and value > high):
        raise InputError(f"{what} must be {allowed}, got {value}.")
    return int(value)


def check_flag(what: str, value: Any, *others: Any) -> None:
    """Raise `InputError` unless `value` is True or False, or one of `others`."""
    if not isinstance(value, (bool, np.bool_)) and not any(value is other for other in others):
        allowed = ", ".join(map(repr, (*others, True)))
        raise InputError(f"{what} must be {allowed} or False, got {told(value)}.")


def check_path(value: Any) -> Path:
    """Return `value` as a path, ~ as the home, else raise `InputError`."""
    try:
        path = Path(value).expanduser()
        if "\0" not in str(path):
            return path
    except (TypeError, RuntimeError):  # the latter of the home of a user there is not
        pass
    raise InputError(f"path must be the name of a file or folder, got {told(value)}.")


def check_positive(what: str, value: Any) -> float:
    """Return `value` as a float if it is a finite number > 0, else raise `InputError`."""
    numeric = isinstance(value, (int, float, np.integer, np.floating))
    try:
        checked = float(value) if numeric and not isinstance(value, bool) else np.nan
    except OverflowError:  # an int beyond the floats
        checked = np.inf
    if not 0.0 < checked < np.inf:
        raise InputError(f"{what} must be a finite number > 0, got {told(value)}.")
    return checked


MOST_HELD_OUT = 0.5  # of the demonstrations, from the fit


def check_share(what: str, value: Any) -> float:
    """Return `value` as a float in [0, `MOST_HELD_OUT`], else raise `InputError`."""
    numeric = isinstance(value, (int, float, np.integer, np.floating))
    if isinstance(value, bool) or not numeric or not 0.0 <= value <= MOST_HELD_OUT:
        allowed = f"a share of the rows, from 0 to {MOST_HELD_OUT:g}"
        raise InputError(f"{what} is {allowed}; got {told(value)}.")
    return float(value)


def check_seed(value: Any, name: str = "seed") -> int:
    """Return the seed as an int in [0, 2^63), else raise `InputError`."""
    return check_integer(name, value, 0, 2**63 - 1)


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


def check_demonstrations(
    demonstrations: Any, names: Sequence[str] | None = None, cure: str | None = None
) -> np.ndarray:
    """Return demonstrations, an array or a frame of pandas's kind, as float64 [N, D].

    Args:
        names: of the columns, for messages; None: those of a frame, else their numbers.
        cure: what to do about a column that does not vary; None: to drop it.

    Raises:
        InputError: not numeric, not 2-D, empty, fewer than D + 2 rows, NaN or infinite entries, a
            column that does not vary (a density with no width in one direction has no finite
            reward), or one whose variance is beyond the floats.
    """
    if is_frame(demonstrations):
        names = [str(name) for name in demonstrations.columns]
    x = _as_float64(demonstrations)
    check_two_axes(x)
    labels = [str(i) for i in range(x.shape[1])] if names is None else [repr(n) for n in names]
    _check_enough(x)
    _check_finite(x, labels)
    _check_spread(x, labels, names, cure)
    return x


def _check_enough(x: np.ndarray) -> None:
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


def _check_finite(x: np.ndarray, labels: Sequence[str]) -> None:
    finite = np.isfinite(x)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        bad = int((~finite).any(axis=1).sum())
        first = f"first: row {row}, column {labels[column]}"
        raise InputError(
            f"demonstrations hold NaN or infinities in {bad} of {len(x)} rows ({first}); "
            "allowed are finite numbers."
        )


def _check_spread(
    x: np.ndarray, labels: Sequence[str], names: Sequence[str] | None, cure: str | None
) -> None:
    """Raises InputError for columns that do not vary, or are beyond the floats."""
    # A constant column may still show a spread of a few rounding errors, so the bound is relative
    # to the values' size.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        spread = x.std(axis=0)
    largest = np.abs(x).max(axis=0)
    constant = np.flatnonzero((spread <= 1e-12 * largest) & (largest <= _MAX_MAGNITUDE))
    if constant.size:
        i, others = constant[0], [labels[j] for j in constant[1:]]
        also = f", and so are {shortened(others, 10)}" if others else ""
        excluded = "" if names is None else _exclude([names[int(j)] for j in constant])
        drop = f"Drop {'them' if also else 'it'}{excluded} or add the noise it really has."
        raise InputError(
            f"demonstrations: column {labels[i]} is constant (value {x[0, i]:.6g}){also}; "
            f"every column must vary. {cure or drop}"
        )
    extreme = np.flatnonzero(~((spread >= 1.0 / _MAX_MAGNITUDE) & (largest <= _MAX_MAGNITUDE)))
    if extreme.size:
        i = extreme[0]
        raise InputError(
            f"demonstrations: column {labels[i]} holds numbers up to {largest[i]:.3g} with a "
            f"standard deviation of {spread[i]:.3g}; allowed are numbers up to "
            f"{_MAX_MAGNITUDE:g} and standard deviations from {1.0 / _MAX_MAGNITUDE:g}. "
            "Change its unit."
        )


def check_contexts(contexts: Any, n: int, cure: str | None = None) -> np.ndarray:
    """Return the contexts of n demonstrations as float64 [N, C]; `cure`: `check_demonstrations`.

    Raises:
        InputError: another number of rows, or what demonstrations cannot hold either: no numbers,
            NaN or infinities, a column that does not vary.
    """
    try:
        found = np.shape(contexts)
    except ValueError:  # rows of different lengths
        found = (n, None)
    if len(found) != 2 or found[0] != n or found[1] is None:
        raise InputError(
            f"contexts must hold a row per demonstration, [{n}, C], got shape {found}; one number "
            "for each is [N, 1]: c[:, None]."
        )
    try:
        return check_demonstrations(contexts, cure=cure)
    except InputError as error:
        text = str(error).replace("demonstrations", "contexts").replace("[N, D]", "[N, C]")
        raise InputError(text.replace("D + 2", "C + 2").replace("D >= 1", "C >= 1")) from error


def check_policy_contexts(contexts: Any) -> np.ndarray:
    """Return the contexts that a policy is fitted for as float64 [M, C].

    Raises:
        InputError: no array [M, C], a single one, a column that does not vary, to which a policy
            cannot answer, or what demonstrations cannot hold either.
    """
    try:
        number = len(contexts)
    except TypeError:
        kind = type(contexts).__name__
        raise InputError(f"contexts must be an array [M, C], got {kind}.") from None
    if number == 1:
        raise InputError(
            "contexts are a single one, which a policy cannot answer to; fit to "
            "reward.condition(c), without contexts."
        )
    if len(getattr(contexts, "shape", (number, 1))) == 1:
        raise InputError(
            f"contexts must be an array [M, C], got shape ({number},): contexts of one column are "
            "c[:, None]; in a single one fit to reward.condition(c), without contexts."
        )
    return check_contexts(contexts, number, "Vary it a little, or fit for a single context.")


def check_no_contexts(
    option: str, named: Iterable[Any], contexts: Sequence[str], allowed: Sequence[str]
) -> None:
    """Raise InputError if a column that an `option` names is a context: these are given, and only
    what is done has turns and bounds.
    """
    for name in named:
        if name in contexts and name not in allowed:
            text = f"{option}: column {name!r} is a context; allowed are {', '.join(allowed)}"
            angle = "; of an angle give sine and cosine as contexts"
            raise InputError(f"{text}{angle if option.endswith('periodic') else ''}.")


def is_frame(value: Any) -> bool:
    """Whether a value is a table with named columns, of pandas or another package."""
    return hasattr(value, "columns") and hasattr(value, "dtypes")


def with_nan(value: Any) -> Any:
    """`value`, but what a masked array or a frame of pandas is missing is NaN."""
    if np.ma.isMaskedArray(value):
        return np.ma.filled(value.astype(np.float64), np.nan)
    if is_frame(value) and hasattr(value, "astype"):
        return value.astype(np.float64)
    return value


def _as_float64(demonstrations: Any) -> np.ndarray:
    """As float64 of any shape. Raises InputError unless they are real numbers."""
    if isinstance(demonstrations, (str, Path)):
        raise InputError(
            f"demonstrations must be a numeric array [N, D], got {told(str(demonstrations))}; read "
            "the file first, e.g. with pandas.read_csv or np.load."
        )
    if is_frame(demonstrations):
        _check_names(demonstrations.columns)
        check_number_columns("demonstrations", _columns_without_numbers(demonstrations))
    try:
        x = np.asarray(with_nan(demonstrations))
        if x.dtype.kind not in "biuf":
            raise TypeError(f"dtype {x.dtype}")
        return x.astype(np.float64)
    except (TypeError, ValueError) as error:
        ragged = "rows of different lengths; of trajectories virl_tf.fit_encoding makes rows"
        got = ragged if "inhomogeneous" in str(error) else reason(error)
        raise InputError(f"demonstrations must be a numeric array [N, D], got {got}.") from error


def check_two_axes(x: np.ndarray, where: str = "") -> None:
    """Raise InputError unless x is [N, D]; the message says how trajectories become rows."""
    if x.ndim == 2:
        return
    cure = "one column of numbers is [N, 1]: x[:, None]"
    if x.ndim > 2:
        flat = "flatten trajectories [N, T, D] to [N, T * D], x.reshape(len(x), -1)"
        encode = "encode them: virl_tf.fit_encoding, or --trajectories on the command line"
        cure = f"a row per demonstration is needed: {flat}, or {encode}"
    got = f"got {x.ndim}-D with shape {x.shape}" + (f" ({cure})" if x.ndim else "")
    raise InputError(f"{where}demonstrations must be 2-D [N, D], {got}.")


def _check_names(columns: Any) -> None:
    """Raises InputError if two columns have one name, by which bounds and angles are given."""
    names = [str(name) for name in columns]
    repeated = [name for i, name in enumerate(names) if name in names[:i]]
    if repeated:
        raise InputError(f"demonstrations: two columns are called {repeated[0]!r}; rename one.")


def _columns_without_numbers(frame: Any) -> dict[str, str]:
    """{column: what it holds, "" for numbers} of a frame."""
    held = {}
    for name, dtype in zip(frame.columns, frame.dtypes, strict=True):
        values = np.asarray(frame[name]).ravel()
        number = re.match(r"u?int\d|float|double|bool", str(dtype).lower()) or (
            str(dtype) == "object" and all(isinstance(value, Real | None) for value in values)
        )
        example = f", for example {str(values[0])!r:.40}" if len(values) else ""
        text = str(dtype).lower() in ("object", "str", "string") or "char" in str(dtype)
        what = "text" if text else f"{dtype}, not real numbers"
        held[str(name)] = "" if number else what + example
    return held


def of_numbers(frame: Any) -> bool:
    """Whether all columns of a frame hold real numbers."""
    return not any(_columns_without_numbers(frame).values())


def check_number_columns(where: str, held: Mapping[str, str]) -> None:
    """Raise InputError that lists the columns if any holds something else than numbers.

    `held`: {column: what it holds, "" for numbers}.
    """
    wrong = [name for name, what in held.items() if what]
    if not wrong:
        return
    numbers = [name for name, what in held.items() if not what]
    text = f"{where}: column {wrong[0]!r} holds {held[wrong[0]]}"
    if not numbers:
        raise InputError(f"{text}; no column holds numbers{_decimal_commas(held.values())}.")
    raise InputError(
        f"{text}; without numbers: {shortened(wrong, 10)}; with numbers: {shortened(numbers, 10)}; "
        f"drop the former{_exclude(wrong)}, or mend their rows."
    )


def _exclude(names: Sequence[str]) -> str:
    """The option that leaves columns out, for the end of a sentence."""
    return f" (--exclude {as_option(names) if len(names) <= 10 else 'A,B,...'})"


def as_option(names: Iterable[str]) -> str:
    """Names with commas between them, as a shell passes them to an option, whose reader knows the
    quotes of .csv files: those of names that hold a comma themselves.
    """
    quoted = ('"{}"'.format(n.replace('"', '""')) if "," in n or n[:1] == '"' else n for n in names)
    return shlex.quote(",".join(quoted))


def _decimal_commas(held: Iterable[str]) -> str:
    """What to do about texts like '1,5', of which one may stand in what columns hold."""
    if not any(re.search(r"'-?\d*,\d+\b", what) for what in held):
        return ""
    read = "pandas.read_csv(FILE, sep=';', decimal=',')"
    return f"; they seem to have decimal commas: write points ({read})"
