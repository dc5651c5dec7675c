"""What demonstrations should not hold: row numbers, whole numbers, copies, constants, outliers.

None of these is an error of form, and each gives a reward that looks fine and is none: a density
is infinitely high on few distinct values, and says nothing about a column that counts the rows.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from virl_tf.validation import InputError, as_option, shortened

MOST_NAMED = 5  # columns that one line names
FEWEST_ROWS = 5  # in which a straight line is no coincidence
FEWEST_IDS = 20  # different whole numbers, among 30, that are none either
FEWEST_SORTED = 10  # rows whose order is none either: one in 10! / 2; and for outliers
MOST_DISTINCT = 100  # values of a column that is not continuous
REPEATS = 1.5  # rows to each of them
ATOM = 0.05  # share of the rows with one and the same value
COPIES = 0.05  # share of the rows that repeat another
DIGITS = 8  # significant ones, with which a column counts as rounded
FLAT, FLAT_CONTEXT = 1e-7, 1e-5  # standard deviation over the largest number; of contexts
UNEXPLAINED = 1e-3  # of a column's width that other columns do not explain
TENTH_OF_NORMAL = 0.3  # what a tenth of normal values spans, in the median
OUTLIERS = 0.01  # share of the rows that may be outliers
MOST_TURNS = 3.0  # of an angle
TURNS = {2.0 * np.pi: "2 pi", 360.0: "360"}  # and what they are called
_DITHER = "by the resolution (--dither, in Python dither=True)"
CUT = 0.02  # of a turn, within which values reach both of its ends
AT_THE_ENDS = 1.0 / 12.0  # of a turn, where angles are a third as many as elsewhere, at least
INFLATED = 10.0  # times that outliers stretch a standard deviation
NORMAL_SPREAD = 1.4826  # standard deviation of a normal column over its median distance
FEWEST_IN_TAILS = 2000  # rows that tell how heavy tails are
TAILS = (0.01, 0.02, 0.05)  # shares of the rows
HEAVY = 0.4  # one over the exponent of tails: 0.5 of Student's t of two degrees, 0.2 of five
DECADES = 2.0  # powers of ten between the lowest tenth of positive numbers and the highest


class Column(NamedTuple):
    """One column: its numbers [N], and its distinct values in order with how often each occurs."""

    name: str
    x: np.ndarray
    values: np.ndarray
    counts: np.ndarray


def examine(x: np.ndarray, names: Sequence[str] | None = None, num_contexts: int = 0) -> list[str]:
    """What is suspicious about checked demonstrations x [N, D]: a line each, with what to do.

    Continuous data of 30 rows or more gives none, nor does it when rounded to 3 digits of its
    spread, but for tails about as heavy as those of Student's t of two degrees or of a lognormal,
    and positive numbers over powers of ten.
    Rows that repeat others count from `COPIES` of all rows on, one value of a column from `ATOM`
    on, or in five rows if no other repeats, and outliers among ten rows or more.

    Args:
        names: of the D columns; None: x0, x1, ...
        num_contexts: how many of them are context, the first ones. The density is not theirs, so
            they may have few values, and count the rows: a sweep over goals does.

    Raises:
        InputError: another column counts the rows.
    """
    names = [f"x{i}" for i in range(x.shape[1])] if names is None else names
    columns = _by_column(x, names)
    own = columns[num_contexts:]
    _refuse_row_numbers(own)
    lines = [*_sorted(own, len(columns)), *_coarse(own), *_atoms(own), *_logarithmic(columns)]
    lines += [*_copies(columns), *_flat(own, FLAT), *_flat(columns[:num_contexts], FLAT_CONTEXT)]
    heavy = [_is_heavy_tailed(column) for column in columns]
    others = [column for column, is_heavy in zip(columns, heavy, strict=True) if not is_heavy]
    return [*lines, *_dependent(columns), *_heavy_tails(columns, heavy), *_outliers(others)]


def examine_angles(
    x: np.ndarray, names: Sequence[str], period: np.ndarray, num_contexts: int = 0
) -> list[str]:
    """A line for each column of x [N, D] that spans many of its turns `period` [D], 0: none; and
    for each without one that looks like an angle which needs it.

    `num_contexts`: how many of them, the first ones, are context and have no turns.
    """
    lines = []
    for i, (name, column, turn) in enumerate(zip(names, x.T, period, strict=True)):
        if turn == 0.0:
            lines += _whole_turn(name, column, i < num_contexts)
        elif np.ptp(column) > MOST_TURNS * turn:
            text = f"column {name!r}: its values span {np.ptp(column) / turn:.2g} turns of {turn:g}"
            cure = f"--periodic {as_option([name])}=360 (in Python periodic={ {name: 360} })"
            lines.append(f"{text}; if it is in degrees, say {cure}.")
    return lines


def _whole_turn(name: str, x: np.ndarray, is_context: bool) -> list[str]:
    """Of an angle that goes on behind 180 at -180: what lies there would be cut in two."""
    for turn, called in TURNS.items():
        if not _fills(x, turn):
            continue
        degrees = turn == 360.0
        option = as_option([f"{name}=360" if degrees else name])
        python = {name: 360} if degrees else [name]
        cure = f"say --periodic {option} (in Python periodic={python})"
        cure = "give its sine and cosine instead" if is_context else cure
        text = (
            f"its values, {x.min():.4g} to {x.max():.4g}, fill a turn of {called} up to both ends"
        )
        return [f"column {name!r}: {text}; if it is an angle that goes round, {cure}."]
    return []


def _fills(x: np.ndarray, turn: float) -> bool:
    """Whether values are from -180 to 180 or from 0 to 360 (the same of other turns), and are not
    rare near the ends, as those of other columns are in their tails.
    """
    low, high, slack = x.min(), x.max(), 1e-6 * turn
    starts = (start - slack for start in (-0.5 * turn, 0.0))
    within = any(start <= low and high <= start + turn + 2.0 * slack for start in starts)
    at_ends = (x <= low + AT_THE_ENDS * turn).sum(), (x >= high - AT_THE_ENDS * turn).sum()
    many = min(at_ends) >= max(2.0, AT_THE_ENDS * len(x) / 3.0)
    return bool(within and many and high - low >= (1.0 - CUT) * turn)


def refuse_row_numbers(x: np.ndarray, names: Sequence[str], contexts: Sequence[str]) -> None:
    """Raises InputError if a column of x [N, D] that is no context counts the rows."""
    _refuse_row_numbers([c for c in _by_column(x, names) if c.name not in contexts])


def _refuse_row_numbers(columns: list[Column]) -> None:
    for column in columns:
        if _counts_rows(column):
            raise InputError(f"column {column.name!r} counts the rows; {_drop([column.name])}.")


def dither(x: np.ndarray, seed: int) -> np.ndarray:
    """Spread columns whose values repeat: uniform noise as wide as their resolution.

    What was recorded as k may have been anything from k - 1/2 to k + 1/2, and has a density then.
    No further than half-way to the next value, nor half of what values are apart in the median.

    Args:
        x: demonstrations [N, D], float64.
        seed: of the noise.

    Returns:
        [N, D]; other columns, and x itself, keep their bytes.
    """
    spread = x.copy()
    columns = _by_column(x, [str(i) for i in range(x.shape[1])])
    for column in _not_of_copies([c for c in columns if _is_coarse(c) or _repeats(c)], columns):
        i = int(column.name)
        noise = np.random.default_rng([seed, i]).uniform(-0.5, 0.5, len(x))
        gaps = np.diff(column.values)
        gaps = np.minimum(gaps, np.quantile(gaps, 0.5, method="lower"))
        value = np.searchsorted(column.values, column.x, side="right") - 1
        below, above = np.append(gaps[0], gaps)[value], np.append(gaps, gaps[-1])[value]
        spread[:, i] += noise * np.where(noise < 0.0, below, above)
    return spread


def _not_of_copies(found: list[Column], columns: list[Column]) -> list[Column]:
    """Those found among the columns without another value in each of a few copied rows."""
    if not found or len(columns) == 1:
        return found
    different = len(np.unique(np.column_stack([column.x for column in columns]), axis=0))
    return [column for column in found if len(column.values) < different]


def _by_column(x: np.ndarray, names: Sequence[str]) -> list[Column]:
    return [_column(name, numbers) for name, numbers in zip(names, x.T, strict=True)]


def _column(name: str, x: np.ndarray) -> Column:
    """Values that differ by rounding errors count as one: 0.3 and 0.1 + 0.2. How wide most of them
    lie tells what such an error is: one far away, as for what is missing, does not.
    """
    values, counts = np.unique(x, return_counts=True)
    wide = np.ptp(np.quantile(values, [0.01, 0.99]))
    apart = np.concatenate([[True], np.diff(values) > 1e-9 * wide])
    starts = np.flatnonzero(apart)
    return Column(name, x, values[starts], np.add.reduceat(counts, starts))


# --- one check each -------------------------------------------------------------------------------


def _counts_rows(column: Column) -> bool:
    """Whether the rows are 0, 1, 2, ... times a step from a start; or different whole numbers in
    any order, as ids of shuffled rows of which some were left out.
    """
    x = column.x
    if len(x) < FEWEST_ROWS:
        return False
    step = (x[-1] - x[0]) / (len(x) - 1)
    if np.abs(x - x[0] - step * np.arange(len(x))).max() < 0.1 * abs(step):
        return True
    unique = len(x) >= FEWEST_IDS and len(column.values) == len(x)
    dense = column.values[-1] - column.values[0] < 1.5 * len(x)
    return unique and bool(dense) and bool((x == np.rint(x)).all())


def _sorted(columns: list[Column], number: int) -> list[str]:
    """Time stamps, and ids with gaps; the only one of a number of columns may have been sorted by
    hand.
    """
    if number == 1 or len(columns[0].x) < FEWEST_SORTED:
        return []
    steps = [np.diff(column.x) for column in columns]
    found = _chosen(columns, [(step >= 0.0).all() or (step <= 0.0).all() for step in steps])
    if not found:
        return []
    text = "sorted, as time stamps and numbers of trajectories are; if it is one"
    return [f"{_columns(found)}: {text}, {_drop(found)}."]


def _coarse(columns: list[Column]) -> list[str]:
    coarse = _not_of_copies([column for column in columns if _is_coarse(column)], columns)
    if not coarse:
        return []
    names = [column.name for column in coarse]
    shown = ", ".join(str(len(column.values)) for column in coarse[:MOST_NAMED])
    text = f"{shown} distinct values in {len(coarse[0].x)} rows, on which a density has spikes"
    cure = f"spread them {_DITHER}"
    if len(names) < len(columns):
        cure = f"{_drop(names)}, or {cure}"
    return [f"{_columns(names)}: {text}; {cure}."]


def _is_coarse(column: Column) -> bool:
    """Whether few values stand in several rows each, as two always do."""
    two = len(column.values) == 2 and len(column.x) >= REPEATS * 2
    return two or (len(column.values) <= MOST_DISTINCT and _repeats(column))


def _repeats(column: Column) -> bool:
    """Whether values stand in several rows each; one that stands in many tells nothing of that."""
    others = len(column.x) - column.counts.max()
    return len(column.values) > 1 and bool(others >= REPEATS * (len(column.values) - 1))


def _atoms(columns: list[Column]) -> list[str]:
    """Sensors at rest or at their limit, and stand-ins for missing values."""
    lines = []
    alone = _with_one_value_that_repeats(columns)
    for column in columns:
        n, most = len(column.x), column.counts.max()
        enough = FEWEST_ROWS if column.name in alone else max(FEWEST_ROWS, ATOM * n)
        if not _is_coarse(column) and most >= enough:
            value = column.values[column.counts.argmax()]
            text = f"{value:.6g} in {most} of {n} rows, where a density has a spike"
            cure = f"leave these rows out, or {_drop([column.name])}"
            if _repeats(column):
                cure = f"spread all {_DITHER}, or {_drop([column.name])}"
            lines.append(f"{_columns([column.name])}: exactly {text}; {cure}.")
    return lines


def _with_one_value_that_repeats(columns: list[Column]) -> set[str]:
    """Names of columns in which, copies of rows left out, one value alone is in several rows."""
    names = set[str]()
    if max(column.counts.max() for column in columns) < FEWEST_ROWS:
        return names
    different = columns
    if len(columns) > 1:
        rows = np.column_stack([column.x for column in columns])
        different = _by_column(np.unique(rows, axis=0), [column.name for column in columns])
    for column in different:
        repeated = column.counts[column.counts > 1]
        if len(repeated) == 1 and repeated[0] >= FEWEST_ROWS:
            names.add(column.name)
    return names


def _logarithmic(columns: list[Column]) -> list[str]:
    """Positive numbers over many powers of ten: no width is right for all of them."""
    found = [column.name for column in columns if _spans_decades(column)]
    if not found:
        return []
    text = f"positive, over more than {DECADES:g} powers of ten, for which no density has one width"
    which = "it" if len(found) == 1 else "them"
    return [f"{_columns(found)}: {text}; give the logarithm of {which}."]


def _spans_decades(column: Column) -> bool:
    low, high = np.quantile(column.x, [0.1, 0.9])
    return bool((column.x > 0.0).all() and high > 10.0**DECADES * low)


def _copies(columns: list[Column]) -> list[str]:
    """More than chance gives to rounded columns: as often as with each column shuffled by itself.

    A single rounded column tells nothing about that.
    """
    x = np.column_stack([column.x for column in columns])
    share = _share_of_copies(x)
    if share < COPIES or (len(columns) == 1 and _is_rounded(x)):
        return []
    shuffled = np.random.default_rng(0).permuted(x, axis=0)
    if len(columns) > 1 and share < 3.0 * _share_of_copies(shuffled):
        return []
    text = f"{share:.0%} of the rows repeat another one, and a density has spikes on them"
    return [f"{text}; keep one of each (np.unique(x, axis=0)) unless they are independent."]


def _share_of_copies(x: np.ndarray) -> float:
    rows = np.ascontiguousarray(x + 0.0)  # -0.0 is 0.0
    size = rows.itemsize * x.shape[1]
    return 1.0 - len(set(rows.view(f"V{size}").ravel().tolist())) / len(x)


def _is_rounded(x: np.ndarray) -> bool:
    """Whether the numbers are single precision or have at most `DIGITS` significant digits."""
    with np.errstate(over="ignore"):  # larger numbers are no single precision
        single = x.astype(np.float32) == x
    size = np.abs(x[~single])
    scaled = size / 10.0 ** (np.floor(np.log10(size)) - DIGITS + 1)
    return bool(np.mean(np.abs(scaled - np.rint(scaled)) > 1e-4) < 0.01) if size.size else True


def _flat(columns: list[Column], least: float) -> list[str]:
    """Columns far from 0. In contexts squares of them are compared: experts' shares in each."""
    found = _chosen(columns, [c.x.std() < least * np.abs(c.x).max() for c in columns])
    if not found:
        return []
    text = f"varies by less than {least:g} of its size, near the rounding of numbers"
    return [f"{_columns(found)}: {text}; subtract its mean before it is stored, or {_drop(found)}."]


def _dependent(columns: list[Column]) -> list[str]:
    """Columns that follow from those before them; a density has no width across them."""
    n, d = len(columns[0].x), len(columns)
    if n < 2 * d:
        return []
    z = np.column_stack([(c.x - c.x.mean()) / c.x.std() for c in columns])
    left = np.abs(np.diag(np.linalg.qr(z, mode="r"))) / np.sqrt(n)  # of each standard deviation
    found = _chosen(columns, left <= UNEXPLAINED * np.array([_width(column) for column in z.T]))
    if not found:
        return []
    text = "a straight line of the columns before it, so a density has no width across"
    return [f"{_columns(found)}: {text}; {_drop(found)}."]


def _width(z: np.ndarray) -> float:
    """What a tenth of the values spans in the median, against that of a normal column [N] of
    standard deviation 1; 1 for few distinct values.

    Not the standard deviation: clusters far apart, or an outlier, are near a line of two columns
    that is none within a cluster.
    """
    ordered = np.sort(z)
    lag = max(1, len(z) // 10)
    return float(np.median(ordered[lag:] - ordered[:-lag])) / TENTH_OF_NORMAL or 1.0


def _is_heavy_tailed(column: Column) -> bool:
    """Whether its tails are a power of the distance: of Gaussians, which are all there is far from
    the data, few rows then take all width (docs/decisions.md, tails). Not where `_logarithmic`
    tells it.
    """
    enough = len(column.x) >= FEWEST_IN_TAILS
    return enough and not _spans_decades(column) and _tail_index(column.x) > HEAVY


def _tail_index(x: np.ndarray) -> float:
    """One over the exponent of both tails together: the least that the farthest rows tell (Hill
    1975), so many of them or others, and those behind them. A mode or glitches far away are a heavy
    tail by some of these alone.
    """
    distance = np.sort(np.abs(x - np.median(x)))[::-1]
    if distance[len(x) // 2] == 0.0:  # more than half of the rows are one value
        return 0.0
    numbers = [int(share * len(x)) for share in TAILS]
    by_farthest = [np.log(distance[:k] / distance[k]).mean() for k in numbers]
    few, many = numbers[0], numbers[-1]
    behind = np.log(distance[few] / distance[many]) / np.log(many / few)
    return float(min(*by_farthest, behind))


def _heavy_tails(columns: list[Column], heavy: list[bool]) -> list[str]:
    lines = []
    for column in itertools.compress(columns, heavy):
        positive = (column.x > 0.0).all()
        by_logarithm = positive and _tail_index(np.log(column.x)) <= HEAVY
        cure = "its logarithm" if by_logarithm else _arcsinh(column.x)
        text = "heavy tails, for which no density has one width"
        lines.append(f"column {column.name!r}: {text}; give {cure}.")
    return lines


def _arcsinh(x: np.ndarray) -> str:
    """Of column [N] in units of its spread, with its middle to a hundredth of that."""
    middle = np.median(x)
    spread = NORMAL_SPREAD * np.median(np.abs(x - middle))
    middle = round(float(middle), int(2 - np.floor(np.log10(spread))))
    return (
        f"np.arcsinh((x {'-' if middle >= 0.0 else '+'} {abs(middle):.15g}) / {spread:.3g}) of it"
    )


def _outliers(columns: list[Column]) -> list[str]:
    """Few rows that decide a column's scale: all others shrink to a point beside them."""
    lines: list[str] = []
    for column in columns:
        x = column.x
        if len(x) < FEWEST_SORTED:
            continue
        distance = np.abs(x - np.median(x))
        few = max(1, int(OUTLIERS * len(x)))
        spread = x[np.argpartition(distance, -few)[:-few]].std()
        if 0.0 < INFLATED * spread < x.std():
            row = distance.argmax()
            text = f"{x[row]:.6g} in row {row} is {distance[row] / spread:.2g} standard deviations"
            cure = "leave such rows out, or take a logarithm"
            lines.append(f"column {column.name!r}: {text} of the other rows away; {cure}.")
    return lines


# --- words ----------------------------------------------------------------------------------------


def _chosen(columns: list[Column], marks: Any) -> list[str]:
    return [column.name for column, mark in zip(columns, marks, strict=True) if mark]


def _columns(names: list[str]) -> str:
    shown = shortened(map(repr, names), MOST_NAMED)
    return f"column{'s' if len(names) > 1 else ''} {shown}"


def _drop(names: list[str]) -> str:
    which = "it" if len(names) == 1 else "them"
    return f"drop {which} (--exclude {as_option(names)})"
