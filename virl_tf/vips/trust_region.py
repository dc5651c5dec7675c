"""Updates under KL bounds (information-theoretic trust regions), for all components at once.

Both maximise E_q[R] + H(q) subject to KL(q || q_old) <= bound. With the multiplier eta >= 0 of the
bound the solution is q ~ exp((R + eta log q_old) / (1 + eta)); eta is the smallest that satisfies
the bound, found by bisection in log eta because the KL decreases in eta.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from virl_tf.numerics import DENSITY, bisect_decreasing, cholesky
from virl_tf.shapes import Array, Bool, Float64


class ComponentStep(NamedTuple):
    """New components in the whitened coordinates of the old ones.

    x = mean_old + L_old z with z ~ N(mean, tril tril^T).
    """

    mean: Float64[Array, "K D"]
    tril: Float64[Array, "K D D"]  # lower triangular
    kl: Float64[Array, " K"]  # KL(new || old)
    eta: Float64[Array, " K"]  # 0 where the bound is not active


def update_components(
    a: Float64[Array, "K D D"], b: Float64[Array, "K D"], kl_bound: Float64[Array, "..."]
) -> ComponentStep:
    """argmax_q E_q[b^T z - 1/2 z^T A z] + H(q) s.t. KL(q || N(0, I)) <= kl_bound.

    The precision is (A + eta I) / (1 + eta) and the mean (A + eta I)^{-1} b. In the eigenbasis of A
    everything is elementwise, so one decomposition serves all values of eta.

    Args:
        a: symmetric, of any signature.
        b: the slope.
        kl_bound: [] or [K], > 0.
    """
    curvature, basis = tf.linalg.eigh(a)  # [K, D], [K, D, D]
    slope = tf.linalg.matvec(basis, b, transpose_a=True)

    def solution(eta: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and precision in the eigenbasis."""
        damped = curvature + eta[:, None]
        return slope / damped, damped / (1.0 + eta[:, None])

    def kl(eta: tf.Tensor) -> tf.Tensor:
        mean, precision = solution(eta)
        terms = 1.0 / precision + mean**2 - 1.0 + tf.math.log(precision)
        return 0.5 * tf.reduce_sum(terms, axis=-1)

    # Below `least` the precision is not positive. The upper end satisfies the bound: there
    # |precision - 1| and |mean| are both below sqrt(bound) / 2 or 1/2.
    least = tf.nn.relu(-tf.reduce_min(curvature, axis=-1))
    size = tf.reduce_sum(tf.abs(curvature - 1.0), axis=-1) + tf.norm(b, axis=-1)
    most = least + 1.0 + 2.0 * size * (1.0 + tf.math.rsqrt(kl_bound))
    positive = tf.reduce_min(curvature, axis=-1) > 0.0
    eta = smallest_eta(kl, least, most, kl_bound, positive)

    mean, precision = solution(eta)
    root = basis * tf.math.rsqrt(precision)[:, None, :]  # covariance = root root^T
    tril = cholesky(tf.matmul(root, root, transpose_b=True))
    return ComponentStep(tf.linalg.matvec(basis, mean), tril, kl(eta), eta)


def update_weights(
    log_weights: Float64[Array, " K"], gains: Float64[Array, " K"], kl_bound: Float64[Array, ""]
) -> tuple[Float64[Array, " K"], Float64[Array, ""]]:
    """argmax_w sum_o w_o R(o) + H(w) s.t. KL(w || w_old) <= kl_bound.

    Args:
        log_weights: log w_old.
        gains: R(o) - log w_old(o) = E_{q(x|o)}[log p*(x) - log q(x)].
        kl_bound: > 0.

    Returns:
        log w and KL(w || w_old).
    """
    eta, kl = gate_eta(log_weights[None], gains[None], kl_bound)  # a gate without contexts
    return tf.nn.log_softmax(log_weights + gains / (1.0 + eta)), kl


def gate_eta(
    log_gate: Float64[Array, "M K"], gains: Float64[Array, "M K"], kl_bound: Float64[Array, ""]
) -> tuple[Float64[Array, ""], Float64[Array, ""]]:
    """The least eta >= 0 with E_c[KL] <= kl_bound after log_gate + gains / (1 + eta); that KL."""

    def kl(eta: tf.Tensor) -> tf.Tensor:
        new = tf.nn.log_softmax(log_gate + gains / (1.0 + eta), axis=-1)
        of_each = tf.reduce_sum(tf.math.multiply_no_nan(new - log_gate, tf.exp(new)), axis=-1)
        return tf.reduce_mean(of_each)[None]

    # KL <= spread^2 / (8 (1 + eta)^2) in each context (Hoeffding), so the upper end satisfies it.
    spread = tf.reduce_max(tf.reduce_max(gains, axis=1) - tf.reduce_min(gains, axis=1))
    most = (1.0 + spread * tf.math.rsqrt(kl_bound))[None]
    eta = smallest_eta(kl, tf.zeros([1], DENSITY), most, kl_bound, tf.constant([True]))
    return eta[0], kl(eta)[0]


def smallest_eta(
    kl: Callable[[tf.Tensor], tf.Tensor],
    least: Float64[Array, " K"],
    most: Float64[Array, " K"],
    kl_bound: Float64[Array, "..."],
    positive: Bool[Array, " K"],
) -> Float64[Array, " K"]:
    """The smallest eta in (least, most] with kl(eta) <= kl_bound.

    Exactly 0 where that holds at 0, for which eta = 0 has to be allowed (`positive`).
    """
    zero = tf.zeros_like(most)
    inactive = positive & (kl(tf.where(positive, zero, most)) <= kl_bound)
    low = tf.math.log(1e-13 * (1.0 + least))
    high = tf.math.log(most - least)
    log_excess = bisect_decreasing(lambda s: kl(least + tf.exp(s)) - kl_bound, low, high)
    return tf.where(inactive, zero, least + tf.exp(log_excess))
