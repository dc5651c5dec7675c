"""Gaussian kernel density estimate p~(x) of the demonstrations (paragraph "Kernel Density
Estimation" of the paper).
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.numerics import (
    DENSITY,
    LOG_2PI,
    check_room_to_compile,
    compiled,
    sampling_seed,
)
from virl_tf.shapes import Array, Float64, Int64
from virl_tf.splitting import folds
from virl_tf.validation import InputError

# Squared distances of 1e12 squared bandwidths are exact to 1e-4 nats.
_MAX_WIDTHS = 1e6
_FOLDS, _MOST_HELD_OUT = 5, 2000  # of the cross-validation: folds, points of all of them
_BLOCK = 64  # points at once; 16 to 256 take the same time (measured)
# Up to so many columns squared distances are summed column by column, which XLA fuses with all that
# follows. Measured, ns per pair of point and kernel, by columns and by one product: D = 2 2.9 and
# 4.5, D = 6 3.6 and 4.0, D = 10 5.3 and 4.5.
_MAX_SUMMED_COLUMNS = 6


class Kde(NamedTuple):
    """p~(x) = 1/N sum_n N(x; points_n, diag(bandwidth^2)), a `Density`."""

    points: Float64[Array, "N D"]
    bandwidth: Float64[Array, " D"]  # the kernel's standard deviation per column, in data units

    def log_prob(self, x: tf.Tensor) -> tf.Tensor:
        """Log p~(x): [M, D] -> [M], in blocks."""
        _check_room(*self.points.shape)
        return _compiled_log_prob(self.points.shape[1])(self, tf.convert_to_tensor(x, DENSITY))

    def sample(self, n: int, seed: Any = None) -> tf.Tensor:
        """Draws [n, D]. `seed`: an integer, int32 [2], or None: another one each time."""
        seeds = tf.random.split(sampling_seed(seed), 2)
        rows = tf.random.stateless_uniform([n], seeds[0], 0, self.points.shape[0], tf.int32)
        noise = tf.random.stateless_normal([n, self.points.shape[1]], seeds[1], dtype=DENSITY)
        return tf.gather(self.points, rows) + self.bandwidth * noise


@functools.cache
def _check_room(n: int | None, d: int) -> None:
    """InputError where there is no room for the kernels' program: XLA compiles one per number of
    kernels, about eleven memory maps that stay.
    """
    check_room_to_compile()


@functools.cache
def _compiled_log_prob(d: int) -> Any:
    """The function behind `Kde.log_prob` in D dimensions, whatever the numbers of kernels and
    points.
    """
    rows = tf.TensorSpec([None, d], DENSITY)
    return compiled(_log_prob, Kde(rows, tf.TensorSpec([d], DENSITY)), rows, jit_compile=False)


def _log_prob(kde: Kde, x: tf.Tensor) -> tf.Tensor:
    # Centred and scaled before anything is subtracted: that keeps the cancellation in the distances
    # harmless.
    centre = tf.reduce_mean(kde.points, axis=0)
    points, x = (kde.points - centre) / kde.bandwidth, (x - centre) / kde.bandwidth
    m = tf.shape(x)[0]
    blocks = tf.reshape(tf.pad(x, [[0, -m % _BLOCK], [0, 0]]), [-1, _BLOCK, x.shape[1]])
    sums = tf.map_fn(lambda block: _log_kernel_sums(points, block), blocks, parallel_iterations=1)
    log_constant = tf.math.log(tf.cast(tf.shape(points)[0], DENSITY)) + tf.reduce_sum(
        tf.math.log(kde.bandwidth) + 0.5 * LOG_2PI
    )
    return tf.reshape(sums, [-1])[:m] - log_constant


@tf.function(autograph=False, jit_compile=True)
def _log_kernel_sums(points: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Log sum_n exp(-|x - points_n|^2 / 2): [N, D], [B, D] -> [B]; with few columns XLA fuses it
    and holds no matrix.
    """
    squares = _squared_distances(points, x)
    least = tf.stop_gradient(tf.reduce_min(squares, axis=1, keepdims=True))
    return tf.math.log(tf.reduce_sum(tf.exp(0.5 * (least - squares)), axis=1)) - 0.5 * least[:, 0]


def _squared_distances(points: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """|x - points|^2: [N, D], [B, D] -> [B, N]."""
    d = x.shape[1]
    if d <= _MAX_SUMMED_COLUMNS:
        return tf.add_n([(x[:, i : i + 1] - points[:, i]) ** 2 for i in range(d)])
    norms = tf.reduce_sum(x**2, axis=1, keepdims=True) + tf.reduce_sum(points**2, axis=1)
    return norms - 2.0 * tf.matmul(x, points, transpose_b=True)


def fit_kde(
    points: np.ndarray,
    bandwidth: float | str,
    scale: str = "absolute",
    seed: int = 0,
    groups: Int64[Array, " N"] | None = None,
) -> Kde:
    """KDE of `points` [N, D].

    Args:
        bandwidth: the kernel's standard deviation, or "silverman", or "held_out" (the likelihood of
            held-out points decides).
        scale: "absolute": in data units; "relative": times each column's standard deviation.
        seed: splits the points for "held_out".
        groups: whose points "held_out" holds out together (`virl_tf.splitting`).

    Raises:
        InputError: a bandwidth so narrow, against the spread of the points, that distances are lost
            in rounding.
    """
    spread = points.std(axis=0)
    unit = spread if scale == "relative" else np.ones_like(spread)
    if bandwidth == "silverman":
        # Silverman's factor multiplies the spread by definition; as an absolute length it is the
        # paper's 0.215.
        bandwidth = silverman_factor(*points.shape)
    elif bandwidth == "held_out":
        bandwidth = held_out_bandwidth(points, unit, seed, groups)
    widths = float(bandwidth) * unit
    span = np.ptp(points, axis=0)
    narrow = np.flatnonzero(span >= _MAX_WIDTHS * widths)
    if narrow.size:
        i = narrow[0]
        raise InputError(
            f"the KDE's bandwidth in column {i} is {widths[i]:.3g}, but the demonstrations span "
            f"{span[i]:.3g} there; less than {_MAX_WIDTHS:g} bandwidths are allowed. Take a "
            "larger kde.bandwidth, or kde.bandwidth_scale: relative."
        )
    return Kde(tf.constant(points, DENSITY), tf.constant(widths, DENSITY))


def silverman_factor(n: int, d: int) -> float:
    """(n (d + 2) / 4)^(-1 / (d + 4)) (Silverman 1986); 0.215 at n = 10,000, d = 2: the value of
    Table 2.
    """
    return float((n * (d + 2) / 4.0) ** (-1.0 / (d + 4)))


def held_out_bandwidth(
    points: np.ndarray,
    unit: np.ndarray,
    seed: int,
    groups: Int64[Array, " N"] | None = None,
) -> float:
    """The bandwidth, in multiples of `unit` [D], under which held-out points are likeliest.

    Cross-validation with at most `_MOST_HELD_OUT` held-out points, among 25 values around
    Silverman's in geometric steps of 1.25: every fourth of them, then those around the best.
    """
    parts = folds(len(points), _FOLDS, seed, groups)
    splits = [
        (np.delete(points, part, axis=0), points[part[: max(1, _MOST_HELD_OUT // len(parts))]])
        for part in parts
    ]
    typical = float(np.exp(np.mean(np.log(points.std(axis=0) / unit))))
    candidates = silverman_factor(*points.shape) * typical * 1.25 ** np.arange(-18.0, 7.0)

    @functools.cache
    def score(i: int) -> float:
        width = tf.constant(candidates[i] * unit, DENSITY)
        return sum(
            float(tf.reduce_sum(Kde(tf.constant(rest, DENSITY), width).log_prob(held)))
            for rest, held in splits
        )

    best, last = max(range(0, len(candidates), 4), key=score), len(candidates) - 1
    for step in (2, 1):
        best = max((max(0, best - step), best, min(last, best + step)), key=score)
    return float(candidates[best])
