"""Statistics of results: means with intervals, paired differences, what was lost."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from experiments.result_files import COLUMNS, DIVERGED, FAILED

Curve = tuple[str, str, int]  # stage, method, components

FEWEST_FOR_INTERVAL = 5  # values: of two the bootstrap's interval is just their range
CONFIDENCE = 0.95  # of an interval
DRAWS, SIGN_DRAWS = 10_000, 20_000  # of the bootstrap, and of signs where not all are gone through


def bootstrap_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % percentile bootstrap interval (low, high) of the mean of values [n]; nan for n < 5, and
    where there is no mean, as one is not finite: without it the interval would be too good.
    """
    if len(values) < FEWEST_FOR_INTERVAL or not np.isfinite(values).all():
        return float("nan"), float("nan")
    means = np.random.default_rng(0).choice(values, (DRAWS, len(values))).mean(axis=1)
    tail = 50.0 * (1.0 - CONFIDENCE)
    low, high = np.percentile(means, [tail, 100.0 - tail])
    return float(low), float(high)


def with_interval(values: np.ndarray, written: Callable[[float], str]) -> str:
    """'0.050 [0.043, 0.059]': the mean of values [n] and its interval, if there are enough."""
    low, high = bootstrap_interval(values)
    mean = written(float(values.mean()))
    return f"{mean} [{written(low)}, {written(high)}]" if np.isfinite(low) else mean


def select(results: pd.DataFrame, curve: Curve) -> pd.DataFrame:
    """The rows of a stage, method and number of components."""
    keys = ("stage", "method", "components")
    return results[np.all([results[key] == v for key, v in zip(keys, curve, strict=True)], axis=0)]


def paired(
    results: pd.DataFrame, first: Curve, second: Curve, column: str = "reported"
) -> pd.DataFrame:
    """A column of two curves on the same targets and seeds, of one preset: columns preset, modes,
    seed, first, second. Not a number: a run that was lost; what has no such value else is left out.
    """
    keys = ["preset", "modes", "seed"]

    def values(curve: Curve, name: str) -> pd.DataFrame:
        rows = select(results, curve)
        told = rows[column].notna() | (rows["status"] == DIVERGED)
        return rows.loc[told, [*keys, column]].rename(columns={column: name})

    return values(first, "first").merge(values(second, "second"), on=keys)


def differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """First - second [n], of values of which lower ones are better: infinite, against its side,
    where one is lost (not finite), and zero where both are.
    """
    lost, other_lost = ~np.isfinite(first), ~np.isfinite(second)
    with np.errstate(invalid="ignore"):
        found = np.where(lost | other_lost, 0.0, first - second)
    return np.where(lost & ~other_lost, np.inf, np.where(other_lost & ~lost, -np.inf, found))


def bounded(d: np.ndarray) -> np.ndarray:
    """`differences` with the largest finite one (1 if there is none) for infinite ones."""
    largest = float(np.abs(d[np.isfinite(d)]).max(initial=0.0)) or 1.0
    return np.clip(d, -largest, largest)


def sign_flip_test(d: np.ndarray) -> float:
    """One-sided p value of "the mean of d is below zero" under random signs; d: `differences`.

    Exact up to 2^14 sign patterns.
    With n pairs p is at least 2^-n, so fewer than 5 pairs can never be significant at 0.05. With a
    run lost on the first's side no mean is below zero; one of the other side wins, but by no more
    than the largest finite difference.
    """
    if np.isposinf(d).any():
        return 1.0
    d = bounded(d)
    signs: np.ndarray
    if len(d) <= 14:
        signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * len(d))).reshape(len(d), -1).T
    else:
        drawn = np.random.default_rng(0).choice([-1.0, 1.0], (SIGN_DRAWS, len(d)))
        signs = np.vstack([np.ones(len(d)), drawn])
    # Both sums are rounded, each in its own order; by how much depends on the size of d.
    d = d / (np.abs(d).max(initial=0.0) or 1.0)
    return float(np.mean(signs @ d <= d.sum() + 1e-9))


def lost(rows: pd.DataFrame, column: str = "reported") -> pd.Series:
    """Which runs diverged or failed, or have no finite value of a column.

    References are never lost: some are measured by another column only.
    """
    found = rows["status"].isin((DIVERGED, FAILED)) | ~np.isfinite(rows[column].astype(float))
    if "stage" in rows:
        found &= ~rows["stage"].astype(str).str.startswith("reference")
    return found


def without_value(rows: pd.DataFrame, column: str) -> int:
    """How many runs of a table are lost to a column's mean: `lost`, and without a finite value."""
    return int((lost(rows) & ~np.isfinite(rows[column].astype(float))).sum())


def with_lost(shown: str, number: int) -> str:
    """'0.05 (1 lost)': a mean, and how many runs are not in it; 'none (1 lost)' if none is."""
    return f"{shown or 'none'} ({number} lost)" if number else shown


def table(results: pd.DataFrame) -> pd.DataFrame:
    """Mean, 95 % bootstrap interval, number of seeds of `reported`, by curve and modes.

    Of the task's further columns the means only, nan where a run is lost to one.
    """
    rows = []
    extra = [name for name in results.columns if name not in COLUMNS]
    for key, group in results.groupby(["stage", "method", "components", "modes"], sort=True):
        values = group["reported"].to_numpy()
        low, high = bootstrap_interval(values)
        diverged = int((group["status"] == DIVERGED).sum())
        measured = (values.mean(), low, high, len(values), diverged)
        means = group[extra].astype(float).mean()
        means[[name for name in extra if without_value(group, name)]] = np.nan
        rows.append([*key, *measured, *means])
    names = ["stage", "method", "components", "modes", "mean", "low", "high", "seeds", "diverged"]
    return pd.DataFrame(rows, columns=[*names, *extra])


def normalised_rewards(
    at_modes: np.ndarray, at_random: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rewards at modes and at random points scaled together to [0, 1]; a constant to 0.

    For Figure 7 and its numbers.
    """
    together = np.concatenate([at_modes, at_random])
    low, width = together.min(), np.ptp(together) or 1.0
    return (at_modes - low) / width, (at_random - low) / width
