"""Conditional kernel density estimate p~(x | c), the quotient of two kernel estimates; and kernels
at contexts alone.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.contexts import checked
from virl_tf.kde import Kde, fit_kde
from virl_tf.numerics import DENSITY, at_share, compiled, numpy_seed, sampling_seed, split_seed
from virl_tf.shapes import Array, Float64, Int64

FEWEST_NEARBY = 10  # distinct contexts, or values of one column, that tell what is between them
_NEARBY_DRAWS = 10_000
# Of the held-out bandwidth: with all of it policies of few rows follow a reward where it is a guess
# (docs/decisions-contexts.md, contexts-policy).
_NEARBY_SHARE = 0.5
_BLOCK = 64  # contexts whose weights for all kernels are held at once


class ConditionalKde(NamedTuple):
    """p~(x | c) = sum_n w_n(c) N(x; x_n, H), w_n(c) proportional to N(c; c_n, H_c).

    Attributes:
        joint: kernels at the rows [c_n, x_n].
        marginal: kernels at the c_n, of the same bandwidths.
    """

    joint: Kde
    marginal: Kde

    @property
    def bandwidth(self) -> tf.Tensor:
        """Of context and demonstration, [C + D]."""
        return self.joint.bandwidth

    def log_prob(self, rows: Any) -> tf.Tensor:
        """Log p~(x | c) of rows [c, x]: [N, C + D] -> [N]."""
        rows = tf.convert_to_tensor(rows, DENSITY)
        size = self.marginal.points.shape[1]
        return self.joint.log_prob(rows) - self.marginal.log_prob(rows[:, :size])

    def sample(self, c: Any, seed: Any = None) -> tf.Tensor:
        """A draw for each context: c [N, C] -> [N, D]. `seed` as of `Kde.sample`."""
        size = self.marginal.points.shape[1]
        c = checked("c", c, size)
        seeds = tf.random.split(sampling_seed(seed), 2)
        number = tf.shape(c)[0]
        uniform = tf.random.stateless_uniform([number], seeds[0], dtype=DENSITY)
        kernels = _compiled_choice(size)(self.marginal, c, uniform)
        points, bandwidth = self.joint.points[:, size:], self.joint.bandwidth[size:]
        noise = tf.random.stateless_normal([number, points.shape[1]], seeds[1], dtype=DENSITY)
        return tf.gather(points, kernels) + bandwidth * noise


@functools.cache
def _compiled_choice(size: int) -> Any:
    rows = tf.TensorSpec([None, size], DENSITY)
    specs = Kde(rows, tf.TensorSpec([size], DENSITY)), rows, tf.TensorSpec([None], DENSITY)
    return compiled(_choice, *specs, jit_compile=False)


def _choice(marginal: Kde, c: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """The kernel at the share uniform [N] of the weights that kernels have for c [N, C]: [N]."""
    n, size = tf.shape(c)[0], c.shape[1]
    points = marginal.points / marginal.bandwidth
    scaled = tf.pad(c / marginal.bandwidth, [[0, -n % _BLOCK], [0, 0]])
    blocks = tf.reshape(scaled, [-1, _BLOCK, size])
    shares = tf.reshape(tf.pad(uniform, [[0, -n % _BLOCK]]), [-1, _BLOCK, 1])

    def choose(block: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        x, share = block
        squares = tf.add_n([(x[:, i : i + 1] - points[:, i]) ** 2 for i in range(size)])
        least = tf.reduce_min(squares, axis=1, keepdims=True)
        return at_share(tf.exp(0.5 * (least - squares)), share)[:, 0]

    signature = tf.TensorSpec([_BLOCK], tf.int32)
    chosen = tf.map_fn(
        choose, (blocks, shares), fn_output_signature=signature, parallel_iterations=1
    )
    return tf.reshape(chosen, [-1])[:n]


def conditional_kernels(kernels: Kde, num_contexts: int) -> Kde | ConditionalKde:
    """What kernels at rows [c, x] say of x given c; the kernels themselves if C = 0."""
    if num_contexts == 0:
        return kernels
    contexts = kernels.points[:, :num_contexts], kernels.bandwidth[:num_contexts]
    return ConditionalKde(kernels, Kde(*contexts))


def contexts_nearby(
    contexts: Float64[Array, "N C"], seed: int, groups: Int64[Array, " N"] | None = None
) -> Float64[Array, "M C"]:
    """Draws of the kernel density of contexts, at least 10,000: where a policy is fitted.

    Contexts alone tell a gate nothing of what is between them, which is much in many columns, and
    it wanders there (docs/decisions-contexts.md, contexts-policy). The bandwidth is half of that
    under which held-out distinct contexts are likeliest. Columns of few values keep these, and so
    do all where fewer than `FEWEST_NEARBY` contexts differ.

    Args:
        groups: as of `fit_kde`.
    """
    rows = np.asarray(contexts)
    distinct, index = np.unique(rows, axis=0, return_index=True)
    varies = np.array([len(np.unique(column)) >= FEWEST_NEARBY for column in rows.T])
    if not varies.any():
        return tf.constant(rows, DENSITY)
    of_distinct = None if groups is None else np.asarray(groups)[index]
    bandwidth_seed = numpy_seed(seed, 0, "context bandwidth")
    of_columns = distinct[:, varies], "held_out", "relative", bandwidth_seed, of_distinct
    bandwidth = np.zeros(len(varies))
    bandwidth[varies] = _NEARBY_SHARE * fit_kde(*of_columns).bandwidth.numpy()
    kernels = Kde(tf.constant(rows, DENSITY), tf.constant(bandwidth, DENSITY))
    return kernels.sample(max(len(rows), _NEARBY_DRAWS), split_seed(seed, 0, "contexts nearby"))
