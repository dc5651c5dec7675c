"""Where demonstrations can lie: bounds of columns, and columns that are angles."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.numerics import DENSITY, as_tensor
from virl_tf.shapes import Array, Bool, Float64
from virl_tf.validation import InputError, check_choice, check_no_contexts, check_positive, told


class Domain(NamedTuple):
    """A box, some of whose sides may be one turn of an angle. Without columns: everywhere.

    Attributes:
        lower, upper: the box, -inf and inf where there is no bound. An angle's turn is cut where
            the demonstrations have their largest gap, so that no mode of theirs is split.
        period: a whole turn, 0 for what is no angle.
    """

    lower: Float64[Array, " D"]
    upper: Float64[Array, " D"]
    period: Float64[Array, " D"]

    @property
    def everywhere(self) -> bool:
        """Whether there are neither bounds nor angles."""
        return self.lower.shape[0] == 0

    def wrap(self, x: Any) -> Any:
        """Angles as those of the turn inside the box: [..., D] -> [..., D], float64; without a box
        x itself. Of a reward with contexts the box is that of rows [c, x].

        Raises InputError for another last axis.
        """
        if self.everywhere:
            return x
        x = tf.cast(as_tensor(x), DENSITY)
        width = self.lower.shape[0]
        if x.shape.rank is not None and not x.shape[-1:].is_compatible_with([width]):
            raise InputError(
                f"x must have shape [..., {width}], got {tuple(x.shape)}; with contexts give rows "
                "np.hstack([c, x])."
            )
        is_angle = self.period > 0.0
        # Not used where it is no angle; a gradient must not divide by 0 there either.
        turn = tf.where(is_angle, self.period, tf.ones_like(self.period))
        low = tf.where(is_angle, self.lower, tf.zeros_like(self.lower))
        return tf.where(is_angle, low + tf.math.floormod(x - low, turn), x)

    def behind(self, num_contexts: int) -> "Domain":
        """That of rows [c, x] with this one's x: a context is whatever it is."""
        if self.everywhere or num_contexts == 0:
            return self
        free = np.full(num_contexts, np.inf)
        fills = -free, free, np.zeros(num_contexts)
        return Domain(*(tf.concat(pair, 0) for pair in zip(fills, self, strict=True)))

    def in_context(self, num_contexts: int) -> "Domain":
        """That of x, of one of rows [c, x]: what `behind` was made of."""
        return Domain(*(side[num_contexts:] for side in self))

    def contains(self, x: Float64[Array, "N D"]) -> Bool[Array, " N"]:
        """Whether points are in the box."""
        return tf.reduce_all((x >= self.lower) & (x <= self.upper), axis=-1)

    def bounded(
        self, x: Float64[Array, "N D"], values: Float64[Array, " N"]
    ) -> Float64[Array, " N"]:
        """`values`, and -inf at points outside of the box or infinitely far away.

        Not where x is NaN: what is not known is not outside.
        """
        outside = tf.math.is_inf(x)
        if not self.everywhere:
            outside |= (x < self.lower) | (x > self.upper)
        lowest = tf.constant(-np.inf, DENSITY)
        return tf.where(tf.reduce_any(outside, axis=-1), lowest, values)


EVERYWHERE = Domain(*(np.zeros(0) for _ in Domain._fields))


def make_domain(
    x: np.ndarray,
    names: Sequence[str],
    periodic: Sequence[Any] | Mapping[Any, float] | None = None,
    support: tuple[Any, Any] | None = None,
    contexts: Sequence[str] = (),
) -> Domain:
    """The domain of demonstrations x [N, D].

    Args:
        names: of the columns.
        periodic: columns (names or numbers) that are angles in radians, or {column: whole turn}.
        support: (lower, upper), each a number for all columns, [D] numbers, {column: number} or
            None.
        contexts: what columns beside these are called, which have neither.

    Raises:
        InputError: no such column, no such number, or demonstrations outside of the bounds.
    """
    if periodic is None and support is None:
        return EVERYWHERE
    lower, upper = _bounds(support, names, contexts)
    _check_inside(x, lower, upper, names)
    period = np.zeros(len(names))
    if not isinstance(periodic, Mapping):
        periodic = dict.fromkeys(_sequence(periodic), 2.0 * np.pi)
    check_no_contexts("periodic", periodic, contexts, names)
    for column, turn in periodic.items():
        i = column_index(column, names)
        if period[i]:
            raise InputError(f"periodic: column {names[i]!r} is given twice.")
        if np.isfinite([lower[i], upper[i]]).any():
            raise InputError(
                f"column {names[i]!r} is periodic; it cannot have bounds, too. Give those of the "
                "other columns by name: support=({column: number}, None)."
            )
        period[i] = check_positive(f"the period of column {names[i]!r}", turn)
        lower[i] = _cut(x[:, i], period[i])
        upper[i] = lower[i] + period[i]
    if np.isinf([lower, upper]).all():
        return EVERYWHERE
    return Domain(*(tf.constant(array, DENSITY) for array in (lower, upper, period)))


def column_index(column: Any, names: Sequence[str]) -> int:
    """The number of a column that is given by its name, or else its number. Raises InputError."""
    if str(column) in names:  # of a frame a name may be a number
        return list(names).index(str(column))
    if isinstance(column, (int, np.integer)) and not isinstance(column, bool):
        if not 0 <= column < len(names):
            raise InputError(f"no column {column}: there are {len(names)}, from 0 on.")
        return int(column)
    return list(names).index(check_choice("column", column, names))


def _sequence(columns: Any) -> list[Any]:
    if columns is None:
        return []
    several = isinstance(columns, Iterable) and getattr(columns, "ndim", 1) > 0
    found = list(columns) if several and not isinstance(columns, str) else [columns]
    for column in found:
        if not isinstance(column, Hashable):
            raise InputError(f"a column is a name or a number, got {told(column)}.")
    return found


def _bounds(
    support: Any, names: Sequence[str], contexts: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """(lower, upper), [D] each."""
    if support is None:
        support = (None, None)
    if isinstance(support, np.ndarray) and support.ndim == 2:
        support = tuple(support)
    if callable(support) or not isinstance(support, (tuple, list)) or len(support) != 2:
        raise InputError(
            "support must be a pair (lower, upper) of bounds; a function of points belongs to "
            "fit_policy(..., support=), which takes the recovered reward."
        )
    support = [_by_name(side) for side in support]
    for named in support:
        check_no_contexts("support", named if isinstance(named, Mapping) else (), contexts, names)
    lower, upper = (
        _bound(side, given, fill, names)
        for side, given, fill in zip(("lower", "upper"), support, (-np.inf, np.inf), strict=True)
    )
    wrong = np.flatnonzero(~(lower < upper))
    if wrong.size:
        i = wrong[0]
        raise InputError(
            f"support: column {names[i]!r} has the bounds {lower[i]:g} and {upper[i]:g}; the lower "
            "one must be below the upper one."
        )
    return lower, upper


def _by_name(side: Any) -> Any:
    """A series of pandas's kind as a mapping: its labels are columns, as those of x.min()."""
    return dict(side.items()) if hasattr(side, "items") else side


def _bound(side: str, given: Any, fill: float, names: Sequence[str]) -> np.ndarray:
    bound = np.full(len(names), fill)
    try:
        if isinstance(given, Mapping):
            for column, value in given.items():
                bound[column_index(column, names)] = value
        elif given is not None:
            bound[:] = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"support: the {side} bounds must be a number, {len(names)} numbers (one per column) "
            f"or a mapping of columns to numbers, got {told(given)}."
        ) from error
    return bound


def _check_inside(
    x: np.ndarray, lower: np.ndarray, upper: np.ndarray, names: Sequence[str]
) -> None:
    outside = (x < lower) | (x > upper)
    if outside.any():
        row, i = np.argwhere(outside)[0]
        raise InputError(
            f"{int(outside.any(axis=1).sum())} of {len(x)} demonstrations are outside of the "
            f"bounds (first: row {row}, column {names[i]!r} = {x[row, i]:g}; allowed are "
            f"{lower[i]:g} to {upper[i]:g})."
        )


def _cut(angles: np.ndarray, period: float) -> float:
    """The middle of the largest gap between angles on their circle."""
    turned = np.sort(np.mod(angles, period))
    gaps = np.diff(np.append(turned, turned[0] + period))
    widest = int(np.argmax(gaps))
    return float(turned[widest] + 0.5 * gaps[widest] - period)
