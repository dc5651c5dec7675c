"""The quadratic surrogate of each component's reward, for all components at once.

R(mean + L z) ~ c + b^T z - 1/2 z^T A z.
"""

import numpy as np
import tensorflow as tf

from virl_tf.numerics import DENSITY, solve_positive_definite
from virl_tf.shapes import Array, Float64


def num_coefficients(dim: int) -> int:
    """M = 1 + D + D (D + 1) / 2."""
    return 1 + dim + dim * (dim + 1) // 2


def fit_quadratic(
    z: Float64[Array, "K S D"], rewards: Float64[Array, "K S"], ridge: Float64[Array, ""]
) -> tuple[Float64[Array, "K D D"], Float64[Array, "K D"]]:
    """Least squares in whitened coordinates, with rewards standardised per component.

    Whitening makes the features nearly orthogonal and standardising makes `ridge` free of units;
    the result is scaled back.

    Args:
        z: of the points x = mean + L z.
        rewards: finite.
        ridge: added to the mean squares of the features.

    Returns:
        A, symmetric, and b.
    """
    dim, num_samples = z.shape[-1], z.shape[-2]
    rows, columns = np.tril_indices(dim)
    products = tf.gather(z, rows, axis=-1) * tf.gather(z, columns, axis=-1)  # z_i z_j, i >= j
    features = tf.concat([tf.ones_like(z[..., :1]), z, products], axis=-1)  # [K, S, M]

    mean = tf.reduce_mean(rewards, axis=-1, keepdims=True)
    scale = tf.sqrt(tf.reduce_mean((rewards - mean) ** 2, axis=-1, keepdims=True))
    standardised = tf.math.divide_no_nan(rewards - mean, scale)

    gram = tf.matmul(features, features, transpose_a=True) / num_samples
    gram += ridge * tf.eye(num_coefficients(dim), dtype=DENSITY)
    moment = tf.matmul(features, standardised[..., None], transpose_a=True) / num_samples
    theta = solve_positive_definite(gram, moment[..., 0]) * scale  # [K, M]

    b = theta[..., 1 : 1 + dim]
    a = tf.matmul(theta[..., 1 + dim :], tf.constant(_curvatures(dim)))
    return tf.reshape(a, [-1, dim, dim]), b


def _curvatures(dim: int) -> np.ndarray:
    """What each coefficient theta_ij, i >= j, adds to A: [D (D + 1) / 2, D D].

    theta_ij z_i z_j = -1/2 z^T A z with A_ii = -2 theta_ii and A_ij = A_ji = -theta_ij.
    """
    rows, columns = np.tril_indices(dim)
    lower = np.zeros((len(rows), dim, dim))
    lower[np.arange(len(rows)), rows, columns] = 1.0
    return -(lower + lower.transpose(0, 2, 1)).reshape(len(rows), dim * dim)
