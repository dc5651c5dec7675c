"""Demonstrated trajectories as they are recorded, and on one grid of phases.

The phase of a sample goes from 0 at an episode's start to 1 at its end: the share of the time that
has passed, or of the path's length. On T equal phases episodes of any lengths are one array
[N, T, D]; in between they are straight.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64

from virl_tf.validation import InputError, is_frame, of_numbers, reason, shortened, with_nan

FEWEST_STEPS = 3  # start, end, and something between them
MOST_NAMED = 5  # episodes that an error names
BLOCK = 1000  # episodes that are in memory at once


class Episodes(NamedTuple):
    """Checked trajectories: finite numbers of one width, moving, none of them twice.

    Attributes:
        values: [N, T, D], which may be mapped from a file, or N arrays [T_i, D]; real numbers.
        times: N arrays [T_i] that increase; None: equal steps.
        names: [N], for messages.
        columns: [D].
    """

    values: np.ndarray | list[np.ndarray]
    times: list[np.ndarray] | None
    names: Sequence[str]
    columns: tuple[str, ...]

    def take(self, rows: Sequence[int] | np.ndarray) -> "Episodes":
        """Some of them."""
        if isinstance(self.values, np.ndarray):
            values: Any = self.values[rows]
        else:
            values = [self.values[i] for i in rows]
        times = None if self.times is None else [self.times[i] for i in rows]
        return Episodes(values, times, [self.names[i] for i in rows], self.columns)

    def blocks(self) -> Iterator["Episodes"]:
        """All of them, `BLOCK` at a time."""
        for start in range(0, len(self.values), BLOCK):
            yield self.take(np.arange(start, min(start + BLOCK, len(self.values))))

    @property
    def lengths(self) -> np.ndarray:
        """[N], samples of each."""
        if isinstance(self.values, np.ndarray):
            return np.full(len(self.values), self.values.shape[1])
        return np.array([len(values) for values in self.values])

    @property
    def durations(self) -> np.ndarray:
        """[N], in the unit of the times; of equal steps, in steps."""
        if self.times is None:
            return self.lengths - 1.0
        return np.array([times[-1] - times[0] for times in self.times], np.float64)


# --- checks ---------------------------------------------------------------------------------------


def check_episodes(
    trajectories: Any,
    times: Any = None,
    *,
    names: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    to_fit: bool = True,
) -> Episodes:
    """Trajectories that can be encoded.

    Args:
        trajectories: real numbers [N, T, D], or N arrays [T_i, D] of any lengths; `Episodes` are
            returned as they are.
        times: N sequences [T_i], or [T] for all; None: equal steps.
        names: [N], for messages; None: their numbers.
        columns: [D]; None: those of frames, else x0, x1, ...
        to_fit: something is fitted to them, which needs two, and none that repeats another.

    Raises:
        InputError: not such numbers, too few episodes, or times that do not increase; and episodes,
            by their names, of another width, too short, with NaN or infinities, that do not move,
            or that repeat another.
    """
    if isinstance(trajectories, Episodes):
        if times is not None or names is not None or columns is not None:
            raise InputError("Episodes have times, names and columns of their own; leave them out.")
        return trajectories
    if isinstance(trajectories, Iterable) and not hasattr(trajectories, "shape"):
        trajectories = list(trajectories)  # what can be read once only is asked for its names, too
    values = _as_values(trajectories, names)
    if len(values) < (2 if to_fit else 1):
        fewest = "two are" if to_fit else "one is"
        raise InputError(f"{len(values)} trajectories; at least {fewest} needed.")
    labels = names if names is not None else [str(i) for i in range(len(values))]
    if len(labels) != len(values):
        raise InputError(f"names: {len(labels)} for {len(values)} trajectories.")
    _check_shapes(values, labels)
    width = values[0].shape[1]
    found = names_of_frames(trajectories) if columns is None else tuple(columns)
    found = numbered(width) if found is None else found
    if len(found) != width:
        raise InputError(f"columns: {len(found)} names for trajectories of {width} columns.")
    episodes = Episodes(values, _as_times(times, values, labels), labels, found)
    _check_numbers(episodes, to_fit)
    return episodes


def numbered(width: int) -> tuple[str, ...]:
    """What columns without names are called."""
    return tuple(f"x{i}" for i in range(width))


def check_columns(found: tuple[str, ...], wanted: tuple[str, ...]) -> None:
    """Raises InputError for another number of columns, other names or another order; the numbers
    that unnamed ones are called by are no names.
    """
    numbers = numbered(len(wanted))
    # What is found with these in another order has names that happen to be so.
    unnamed = found == numbers or (wanted == numbers and set(found) != set(numbers))
    if len(found) != len(wanted) or (found != wanted and not unnamed):
        raise InputError(
            f"trajectories with the columns {', '.join(found)}; expected are {', '.join(wanted)}, "
            "in this order."
        )


def names_of_frames(trajectories: Any) -> tuple[str, ...] | None:
    """[D], of a list of data frames; None: of anything else. Raises InputError if they differ."""
    if not isinstance(trajectories, list | tuple) or isinstance(trajectories, Episodes):
        return None
    found = [tuple(map(str, one.columns)) for one in trajectories if is_frame(one)]
    if not found or len(found) < len(trajectories):
        return None
    other = next((i for i, names in enumerate(found) if names != found[0]), None)
    if other is not None:
        shown, first = (", ".join(found[i]) for i in (other, 0))
        raise InputError(f"episode {other} has the columns {shown}, where episode 0 has {first}.")
    return found[0]


def _as_values(trajectories: Any, names: Sequence[str] | None) -> np.ndarray | list[np.ndarray]:
    """As an array [N, T, D] or a list of arrays; the shapes of the latter are not checked yet."""
    if hasattr(trajectories, "shape") or not isinstance(trajectories, Iterable):
        values = np.asanyarray(_unmasked(trajectories))
        if values.ndim != 3 or values.dtype.kind not in "biuf":
            one = ""
            if values.ndim == 2:
                one = "; one trajectory [T, D] is [x], one number per step is x[..., None]"
            raise InputError(
                "trajectories must be real numbers [N, T, D] or a list of arrays [T_i, D], got "
                f"{values.dtype} {list(values.shape)}{one}."
            )
        return values
    return [_as_array(values, i, names) for i, values in enumerate(trajectories)]


def _unmasked(values: Any) -> Any:
    """What a masked array is missing is NaN, which is refused; it is none of its numbers."""
    return with_nan(values) if np.ma.isMaskedArray(values) else values


def _as_array(values: Any, i: int, names: Sequence[str] | None) -> np.ndarray:
    name = names[i] if names is not None and i < len(names) else i
    try:
        array = np.asarray(_unmasked(values))
        # Columns of yes and no beside numbers, or of numbers that may be missing.
        if array.dtype == object and is_frame(values) and of_numbers(values):
            array = np.asarray(with_nan(values))
        if array.ndim == 2 and array.dtype.kind in "biuf":
            return array
        got = f"{array.dtype} {list(array.shape)}"
    except ValueError:  # NumPy's, of rows of different lengths
        got = "rows of different lengths"
    raise InputError(f"episode {name} must be real numbers [T, D], got {got}.")


def _check_shapes(values: np.ndarray | list[np.ndarray], names: Sequence[str]) -> None:
    shapes = [array.shape for array in values] if isinstance(values, list) else [values.shape[1:]]
    width = shapes[0][1]
    if not width:
        raise InputError(f"episode {names[0]} has no columns.")
    other = [name for name, shape in zip(names, shapes, strict=False) if shape[1] != width]
    if other:
        found = shapes[list(names).index(other[0])][1]
        raise InputError(
            f"{_named(other)} of another width: {found} columns, where {names[0]} has {width}."
        )
    short = [name for name, shape in zip(names, shapes, strict=False) if shape[0] < FEWEST_STEPS]
    if short:
        steps = shapes[list(names).index(short[0])][0]
        raise InputError(
            f"{_named(short)} too short: {steps} samples; at least {FEWEST_STEPS} are needed."
        )


def _as_times(
    times: Any, values: Sequence[np.ndarray] | np.ndarray, names: Sequence[str]
) -> list[np.ndarray] | None:
    if times is None:
        return None
    try:
        clocks = list(times)  # a series' first number may have another label than 0
        if np.ndim(clocks[0]) == 0:
            clocks = [times if hasattr(times, "shape") else clocks] * len(values)
        found = [np.asarray(_unmasked(clock), np.float64) for clock in clocks]
    except (TypeError, ValueError, LookupError) as error:
        raise InputError(f"times must be numbers [T], or N sequences: {reason(error)}.") from error
    if len(found) != len(values):
        raise InputError(f"times: {len(found)} for {len(values)} trajectories.")
    for name, clock, array in zip(names, found, values, strict=True):
        if clock.shape != array.shape[:1]:
            raise InputError(
                f"episode {name} has {len(array)} samples, but times of shape {list(clock.shape)}."
            )
        if not np.isfinite(clock).all():
            step = int(np.argmin(np.isfinite(clock)))
            raise InputError(
                f"episode {name}: its times are not finite ({clock[step]} in sample {step})."
            )
        late = np.diff(clock) <= 0.0
        if late.any():
            step = int(np.argmax(late)) + 1
            text = f"episode {name}: its times do not increase (first: sample {step})"
            raise InputError(f"{text}. Sort its samples by time; keep one of each time.")
    return found


def _check_numbers(episodes: Episodes, to_fit: bool) -> None:
    """One pass over all numbers."""
    broken, still, copies = [], [], []
    first: dict[bytes, int] = {}
    where = ""
    for i, (name, raw) in enumerate(zip(episodes.names, episodes.values, strict=True)):
        values = np.ascontiguousarray(raw)
        if not np.isfinite(values).all():
            step, column = np.argwhere(~np.isfinite(values))[0]
            where = where or f"sample {step}, column {episodes.columns[column]!r}"
            broken.append(name)
            continue
        if (values == values[0]).all():
            still.append(name)
            continue
        content = values.tobytes()
        if episodes.times is not None:  # the same places at other times are another trajectory
            content += _shares(episodes.times[i]).round(6).tobytes()
        digest = hashlib.blake2b(content, digest_size=16).digest()
        if first.setdefault(digest, i) != i:
            copies.append((name, episodes.names[first[digest]]))
    if broken:
        raise InputError(
            f"{_named(broken)} not finite: NaN or an infinity (first: {where}). Leave such samples "
            "out; with times the others stay where they are."
        )
    if still:
        raise InputError(f"{_named(still)} constant: nothing moves. Leave such episodes out.")
    if copies and to_fit:
        text = f"{_named([name for name, _ in copies])} a copy (first: of {copies[0][1]})"
        raise InputError(f"{text}; a density has a spike on copies. Keep one of each.")


def _named(names: Sequence[str]) -> str:
    """'episode 3 is', 'episodes 3, 17 and 2 more are'."""
    shown = shortened(names, MOST_NAMED)
    return f"episodes {shown} are" if len(names) > 1 else f"episode {shown} is"


# --- phases ---------------------------------------------------------------------------------------


def resample(episodes: Episodes, num_steps: int, phase: str) -> Float64[np.ndarray, "N T D"]:
    """All episodes at T = `num_steps` equal phases, straight between samples.

    Args:
        phase: "time" or "length", of which the phases are shares.
    """
    grid = np.linspace(0.0, 1.0, num_steps)
    if _evenly_sampled(episodes, phase):
        values = np.asarray(episodes.values, np.float64)
        return _interpolate(values, grid)
    rows = [
        _at(grid, own, values.astype(np.float64))
        for own, values in zip(sample_phases(episodes, phase), episodes.values, strict=True)
    ]
    return np.stack(rows)


def in_equal_steps(episodes: Episodes, step: float) -> Episodes:
    """Each episode at times that are a `step` apart, and at its end, straight between samples.

    Raises InputError for one that has too few of them, or does not move at these.
    """
    whole_steps = np.ceil(episodes.durations / step - 1e-6).astype(int)
    phases = zip(whole_steps, episodes.durations, sample_phases(episodes, "time"), strict=True)
    grids = [(np.append(step * np.arange(n), end) / end, own) for n, end, own in phases]
    values = [
        _at(grid, own, np.asarray(rows, np.float64))
        for (grid, own), rows in zip(grids, episodes.values, strict=True)
    ]
    return check_episodes(values, names=episodes.names, columns=episodes.columns)


def at_samples(
    paths: Float64[np.ndarray, "N T D"], episodes: Episodes, phase: str
) -> list[np.ndarray] | np.ndarray:
    """Paths on a grid at the phases of the episodes' own samples: [N, T', D] or N of [T_i, D]."""
    if _evenly_sampled(episodes, phase):
        return _interpolate(paths, np.linspace(0.0, 1.0, episodes.values[0].shape[0]))
    grid = np.linspace(0.0, 1.0, paths.shape[1])
    phases = sample_phases(episodes, phase)
    return [_at(own, grid, path) for own, path in zip(phases, paths, strict=True)]


def sample_phases(episodes: Episodes, phase: str) -> Iterator[np.ndarray]:
    """The phase [T_i] of each sample of each episode, from 0 to 1."""
    for i, values in enumerate(episodes.values):
        if phase == "length":
            steps = np.linalg.norm(np.diff(np.asarray(values, np.float64), axis=0), axis=1)
            clock = np.concatenate([[0.0], np.cumsum(steps)])
        elif episodes.times is None:
            clock = np.arange(len(values), dtype=np.float64)
        else:
            clock = episodes.times[i]
        yield _shares(clock)


def _shares(clock: np.ndarray) -> np.ndarray:
    """From 0 at the first [T] to 1 at the last."""
    return (clock - clock[0]) / (clock[-1] - clock[0])


def _evenly_sampled(episodes: Episodes, phase: str) -> bool:
    """Whether all episodes have the same, equal phases."""
    return phase == "time" and episodes.times is None and isinstance(episodes.values, np.ndarray)


def _interpolate(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """[N, T', D] at equal phases -> [N, T, D] at those of the grid."""
    count = values.shape[1]
    if count == len(grid):
        return values
    own = np.linspace(0.0, 1.0, count)
    matrix = np.stack([np.interp(grid, own, row) for row in np.eye(count)], axis=1)  # [T, T']
    return np.einsum("st,ntd->nsd", matrix, values, optimize=True)


def _at(grid: np.ndarray, own: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values [T', D] at the phases `own` [T'] -> [T, D] at those of the grid."""
    moving = np.concatenate([[True], np.diff(own) > 0.0])  # an arc's length may stand still
    return np.stack([np.interp(grid, own[moving], x) for x in values[moving].T], axis=1)
