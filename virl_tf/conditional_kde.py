"""Conditional kernel density estimate p~(x | c), the quotient of two kernel estimates."""

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from virl_tf.contexts import checked
from virl_tf.kde import Kde
from virl_tf.numerics import DENSITY, at_share, compiled, sampling_seed

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
