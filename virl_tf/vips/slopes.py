"""Gradients of a target: taken, and whether they say all of it.

A surrogate of gradients needs a tenth of the draws that one of values needs, but sees no jump: to
it a penalty of 100 inside an obstacle is no penalty.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from virl_tf.numerics import DENSITY, in_blocks
from virl_tf.shapes import Array, Float64
from virl_tf.validation import InputError

# Of the segments between points of the start along which jumps are looked for: how many, the
# intervals of each, and how often the one with the largest jump is halved; 1e-8 of it are left.
SEGMENTS, INTERVALS, HALVINGS = 32, 32, 22

# A step of a smooth function over so little is about its slope's; of a jump nearly all is left.
JUMP = 0.1


def values_and_slopes(
    function: Callable[[tf.Tensor], tf.Tensor], x: Float64[Array, "N D"], most: int
) -> tuple[Float64[Array, " N"], Float64[Array, "N D"]]:
    """`function` [N, D] -> [N] and its gradient, at most so many rows at once.

    Raises InputError if it has no gradient.
    """

    def both(rows: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(rows)
            values = tf.reshape(tf.cast(function(rows), DENSITY), [rows.shape[0], 1])
        try:
            slopes = tape.gradient(values, rows)
        except LookupError:  # of some operation
            slopes = None
        if slopes is None:
            raise InputError("log_prob has no gradient; leave out gradients=True.")
        return tf.concat([values, slopes], axis=1)

    found = in_blocks(both, x, most, columns=1 + x.shape[1])
    return found[:, 0], found[:, 1:]


def slopes_say_all(function: Callable[[tf.Tensor], tf.Tensor], x: Float64[Array, "N D"]) -> bool:
    """Whether `function` is finite at x, has a finite gradient there, and jumps nowhere between
    some of these points.
    """
    try:
        values, slopes = values_and_slopes(function, x, len(x))
    except (ValueError, TypeError):  # no gradient
        return False
    if not (np.isfinite(values).all() and np.isfinite(slopes).all()):
        return False
    with np.errstate(invalid="ignore"):  # a step from -inf to -inf
        return len(x) < 2 or not _jumps(function, x)


def check_slopes(function: Callable[[tf.Tensor], tf.Tensor], x: Float64[Array, "N D"]) -> None:
    """Raises InputError for values at x without a slope: components would stay where they are."""
    values, slopes = values_and_slopes(function, x, len(x))
    if (np.isfinite(values) & ~np.isfinite(slopes).all(axis=1)).any():
        raise InputError(
            "log_prob has no finite gradient at some draws of the start where it has a value (a "
            "tf.where beside what overflows?); leave out gradients=True."
        )


def _jumps(function: Callable[[tf.Tensor], tf.Tensor], x: Float64[Array, "N D"]) -> bool:
    """Whether a step stays as it is when the interval with the largest one is halved again and
    again.
    """
    number = min(SEGMENTS, len(x) // 2)
    first, last = x[:number], x[number : 2 * number]

    def at(shares: np.ndarray) -> np.ndarray:
        """Values at these shares of the way from first to last: [P, A] -> [P, A]."""
        points = first[:, None] + shares[..., None] * (last - first)[:, None]
        values = function(tf.reshape(points, [-1, x.shape[1]]))
        return np.reshape(np.asarray(values, np.float64), shares.shape)

    nodes = np.tile(np.linspace(0.0, 1.0, INTERVALS + 1), (number, 1))
    steps = np.abs(np.diff(at(nodes), axis=1))
    rows, largest = np.arange(number), steps.argmax(axis=1)
    low, high = nodes[rows, largest], nodes[rows, largest + 1]
    before = steps[rows, largest]
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        values = at(np.stack([low, middle, high], axis=1))
        left = np.abs(values[:, 1] - values[:, 0]) >= np.abs(values[:, 2] - values[:, 1])
        low, high = np.where(left, low, middle), np.where(left, middle, high)
    ends = at(np.stack([low, high], axis=1))
    after = np.abs(ends[:, 1] - ends[:, 0])
    return bool((~np.isfinite(after) | (after > JUMP * before + 1e-9)).any())
