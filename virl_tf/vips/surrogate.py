"""The quadratic surrogate of each component's reward: R(mean + L z) ~ c + b^T z - 1/2 z^T A z, for
all components at once.
"""

import numpy as np
import tensorflow as tf

from virl_tf.numerics import DENSITY, solve_positive_definite


def num_coefficients(dim: int) -> int:
    """1 + D + D (D + 1) / 2."""
    return 1 + dim + dim * (dim + 1) // 2


def fit_quadratic(
    z: tf.Tensor, rewards: tf.Tensor, ridge: tf.Tensor, weights: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Least squares in whitened coordinates, with rewards standardised per component.

    Whitening makes the features nearly orthogonal and standardising makes `ridge` free of units;
    the result is scaled back.

    Args:
        z: [K, S, D] float64, x = mean + L z.
        rewards: [K, S] float64, finite.
        ridge: [] float64, added to the mean squares of the features.
        weights: [K, S] float64 of mean one; None: all one.

    Returns:
        A [K, D, D] symmetric, b [K, D].
    """
    dim, num_samples = z.shape[-1], z.shape[-2]
    rows, columns = np.tril_indices(dim)
    quadratic = tf.gather(z, rows, axis=-1) * tf.gather(z, columns, axis=-1)
    features = tf.concat([tf.ones_like(z[..., :1]), z, quadratic], axis=-1)  # [K, S, M]

    def average(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(
            values if weights is None else weights * values, axis=-1, keepdims=True
        )

    mean = average(rewards)
    scale = tf.sqrt(average((rewards - mean) ** 2))
    weighted = features if weights is None else weights[..., None] * features
    standardised = tf.math.divide_no_nan(rewards - mean, scale)
    gram = tf.matmul(weighted, features, transpose_a=True) / num_samples
    gram += ridge * tf.eye(num_coefficients(dim), dtype=DENSITY)
    moment = tf.matmul(weighted, standardised[..., None], transpose_a=True) / num_samples
    theta = solve_positive_definite(gram, moment[..., 0]) * scale

    b = theta[..., 1 : 1 + dim]
    # theta_ij z_i z_j with i >= j is -1/2 z^T A z with A_ii = -2 theta_ii and A_ij = A_ji =
    # -theta_ij.
    lower = np.zeros((len(rows), dim, dim))
    lower[np.arange(len(rows)), rows, columns] = 1.0
    symmetric = -(lower + lower.transpose(0, 2, 1)).reshape(len(rows), dim * dim)
    a = tf.reshape(tf.matmul(theta[..., 1 + dim :], tf.constant(symmetric)), [-1, dim, dim])
    return a, b
