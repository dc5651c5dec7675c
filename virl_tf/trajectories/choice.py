"""Which encoding: its kind, and the number of curves, by what held-out samples lose."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from virl_tf.shapes import Array, Float64
from virl_tf.trajectories.angles import wrapped_angles
from virl_tf.trajectories.bases import (
    Curves,
    components,
    held_out_error,
    held_out_errors,
    movement_primitive,
    projection,
    spline,
)
from virl_tf.trajectories.encoding import Encoding
from virl_tf.trajectories.episodes import Episodes, check_episodes, resample
from virl_tf.trajectories.options import TOLERANCE, check_options
from virl_tf.validation import InputError, check_integer

NEARLY = 1.05  # times the least error that a smaller size may have
MOST_FITTED = 1000  # episodes that the encoding is made of
FEWEST_CURVES, MOST_CURVES = 3, 40
MOST_COMPONENTS = 60
MUCH = 0.5  # of a column's standard deviation, to lose without a word
CONSTANT = 1e-12  # of a column's largest number, up to which it spans nothing but rounding
FLAT = 1e-6  # of a column's spread, below which a number of the code does not vary


class _Sample(NamedTuple):
    """What an encoding is made of.

    Attributes:
        y: some episodes on the grid.
        scale: of the columns.
        most: numbers that a code may have.
        columns, duration, phase: see `Encoding`.
    """

    y: Float64[Array, "N T D"]
    scale: Float64[Array, " D"]
    most: int
    columns: tuple[str, ...]
    duration: float
    phase: str


def fit_encoding(
    trajectories: Any,
    kind: str = "auto",
    size: int | None = None,
    *,
    times: Any = None,
    via: str | Sequence[str] = (),
    phase: str | None = None,
    num_steps: int | None = None,
    tolerance: float = TOLERANCE,
) -> Encoding:
    """The encoding of trajectories as a few numbers each.

    Time is normalised: every episode goes from phase 0 to 1, and decoded paths are at T equal
    phases. To keep how long an episode takes, make its time a column.

    Args:
        trajectories: real numbers [N, T, D], or N arrays [T_i, D] of any lengths, or `Episodes`.
        kind: "promp" (weights of a probabilistic movement primitive), "waypoints" (a spline over
            the path's length), "components" (principal components); or "auto": of the first and
            the last the one that needs fewer numbers.
        size: radial basis functions, waypoints or components; None: the fewest that lose at most
            `tolerance`, or nearly as little as any, of held-out samples (of components: episodes),
            and leave two episodes to each number.
        times: N sequences [T_i], or [T] for all, that increase; None: equal steps.
        via: "start", "goal" or both: paths of movement primitives go through these exactly, and
            they are numbers of the code. Where all episodes agree they are none, but fixed.
        phase: "time", or "length" of the path in the columns' units; None: "length" for
            waypoints, else "time".
        num_steps: T; None: that of the episodes, or the median of theirs.
        tolerance: RMS error over the standard deviation of all samples of a column.

    Warns:
        UserWarning: a column is an angle that wraps within a trajectory, or half of a column's
            standard deviation is lost.

    Raises:
        InputError: trajectories (see `check_episodes`) or arguments that cannot be used.
    """
    ends = check_options(kind, size, via, phase, tolerance)
    episodes = check_episodes(trajectories, times)
    for line in wrapped_angles(_some(episodes)):
        warnings.warn(line, stacklevel=2)
    if num_steps is None:
        num_steps = int(np.median(episodes.lengths))
    check_integer("num_steps", num_steps, 3)

    tried = [kind] if kind != "auto" else ["promp"] if ends else ["promp", "components"]
    found = [
        _encoding(_sample(episodes, name, phase, num_steps), name, size, ends, tolerance)
        for name in tried
    ]
    chosen, error = min(found, key=lambda pair: (max(pair[1], tolerance), pair[0].dim))
    if error > max(MUCH, tolerance):
        warnings.warn(
            f"{chosen.dim} numbers lose {error:.2g} of a column's standard deviation in held-out "
            "trajectories: a reward sees nothing of what is lost. Collect more of them, smooth "
            "them, or give another kind or size (--encoding, --encoding-size).",
            stacklevel=2,
        )
    return chosen


def _sample(episodes: Episodes, kind: str, phase: str | None, num_steps: int) -> _Sample:
    phase = phase or ("length" if kind == "waypoints" else "time")
    count = len(episodes.values)
    y = resample(_some(episodes), num_steps, phase)
    spread, size = y.std(axis=(0, 1)), np.abs(y).max(axis=(0, 1))
    # The spread of a constant column, such as a height of 0.1, need not be 0 exactly, and on the
    # grid its values may differ by rounding.
    varies = np.ptp(y, axis=(0, 1)) > CONSTANT * size
    scale = np.where(varies, spread, np.maximum(size, 1.0))
    duration = float(np.median(episodes.durations))
    return _Sample(y, scale, max(count // 2, 1), episodes.columns, duration, phase)


def _some(episodes: Episodes) -> Episodes:
    """At most `MOST_FITTED`, from the first to the last."""
    count = len(episodes.values)
    rows = np.unique(np.linspace(0, count - 1, min(count, MOST_FITTED)).astype(int))
    return episodes.take(rows)


def _encoding(
    sample: _Sample, kind: str, size: int | None, via: Sequence[str], tolerance: float
) -> tuple[Encoding, float]:
    """The encoding of one kind, and its relative error."""
    if kind == "components":
        return _of_components(sample, size, tolerance)
    tried: list[Curves] = []
    errors: list[np.ndarray] = []
    for number in _sizes(sample, size, via):
        steps = sample.y.shape[1]
        tried.append(
            movement_primitive(steps, number, via) if kind == "promp" else spline(steps, number)
        )
        errors.append(held_out_error(sample.y, tried[-1]))
        if _relative(errors[-1], sample) <= tolerance:
            break
    relative = [_relative(rms, sample) for rms in errors]
    chosen = _fewest(relative, tolerance)
    return _of_curves(sample, kind, tried[chosen], errors[chosen]), relative[chosen]


def _sizes(sample: _Sample, size: int | None, via: Sequence[str]) -> Sequence[int]:
    """Numbers of curves to try; with more than there are steps beside the via-points, the numbers
    of a code would depend on each other.
    """
    steps = sample.y.shape[1]
    there_are = steps - len(via)
    if size is None:
        fewest = min(FEWEST_CURVES, there_are)
        most = min(MOST_CURVES, steps // 2, sample.most // len(sample.columns))
        return range(fewest, max(most, fewest) + 1)
    if size > there_are:
        beside = f" but for {len(via)} via-points" if via else ""
        raise InputError(f"size is {size}, more than the {steps} steps of a trajectory{beside}.")
    return [size]


def _relative(rms: np.ndarray, sample: _Sample) -> float:
    """The largest error of a column, in units of its scale."""
    return float(np.max(rms / sample.scale))


def _of_curves(sample: _Sample, kind: str, curves: Curves, rms: np.ndarray) -> Encoding:
    """Each column by itself; numbers that do not vary become a part of the offset."""
    width, (num_steps, count) = len(sample.columns), curves.basis.shape
    own = projection(curves, np.arange(num_steps))
    each = np.eye(width)
    basis = np.einsum("tb,de->bdte", curves.basis, each).reshape(count * width, num_steps, width)
    back = np.einsum("bt,de->bdte", own, each).reshape(count * width, num_steps, width)
    codes = np.einsum("bt,ntd->nbd", own, sample.y, optimize=True)
    varies = (codes.std(axis=0) > FLAT * sample.scale).ravel()
    if not varies.any():
        raise InputError("all trajectories are the same path; there is nothing to learn from.")
    fixed = np.where(varies, 0.0, codes.mean(axis=0).ravel())
    names = [f"{column}_{name}" for name in curves.names for column in sample.columns]
    return Encoding(
        kind=kind,
        phase=sample.phase,
        columns=sample.columns,
        code_columns=tuple(n for n, kept in zip(names, varies, strict=True) if kept),
        offset=np.tensordot(fixed, basis, 1),
        basis=basis[varies],
        projection=back[varies],
        duration=sample.duration,
        error=rms,
    )


def _of_components(sample: _Sample, size: int | None, tolerance: float) -> tuple[Encoding, float]:
    """All columns together. A code's number of 1 is an RMS of one standard deviation."""
    count, numbers = len(sample.y), sample.y[0].size
    there_are = min(count - 1, numbers)
    most = size or min(MOST_COMPONENTS, sample.most, there_are)
    if most > there_are:
        raise InputError(
            f"size is {size}; {count} trajectories of {numbers} numbers have at most {there_are} "
            "components."
        )
    errors = held_out_errors(sample.y, most, sample.scale)
    relative = [_relative(rms, sample) for rms in errors]
    count = size or _fewest(relative, tolerance) + 1
    mean, found = components(sample.y, count, sample.scale)
    norm = np.sqrt(found[0].size)
    last = min(count, len(errors)) - 1
    encoding = Encoding(
        kind="components",
        phase=sample.phase,
        columns=sample.columns,
        code_columns=tuple(f"component_{i}" for i in range(count)),
        offset=mean,
        basis=norm * found * sample.scale,
        projection=found / sample.scale / norm,
        duration=sample.duration,
        error=errors[last],
    )
    return encoding, relative[last]


def _fewest(errors: Sequence[float], tolerance: float) -> int:
    """The number of the first error within the tolerance, or nearly as small as the least."""
    most = max(tolerance, NEARLY * min(errors))
    return next(i for i, error in enumerate(errors) if error <= most)
