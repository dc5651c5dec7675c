"""The quadratic surrogate of each component's reward, for all components at once.

R(mean + L z) ~ c + b^T z - 1/2 z^T A z.
"""

import numpy as np
import tensorflow as tf

from virl_tf.numerics import DENSITY, conjugate_gradients, solve_positive_definite
from virl_tf.shapes import Array, Float64


def num_coefficients(dim: int) -> int:
    """M = 1 + D + D (D + 1) / 2."""
    return 1 + dim + dim * (dim + 1) // 2


# Up to so many dimensions the normal equations are built and solved. They take S M^2 operations and
# S M numbers per component, with M ~ D^2 / 2; conjugate gradients take S D^2 per iteration and S D
# numbers. CPU seconds of 75 components of 385 samples in D = 20: 3.2 and 0.56, of 2 of 2,583 in
# D = 40: 4.3 and 0.10.
MAX_DIRECT_DIM = 10

# Of conjugate gradients: the residual that is left, of the first one. A and b are then exact to
# 1e-5, far below the noise of the draws.
TOLERANCE, MAX_ITERATIONS = 1e-6, 300


def fit_quadratic(
    z: Float64[Array, "K S D"],
    rewards: Float64[Array, "K S"],
    ridge: Float64[Array, ""],
    weights: Float64[Array, "K S"] | None = None,
) -> tuple[Float64[Array, "K D D"], Float64[Array, "K D"]]:
    """Least squares in whitened coordinates, with rewards standardised per component.

    Whitening makes the features nearly orthogonal and standardising makes `ridge` free of units;
    the result is scaled back.

    Args:
        z: of the points x = mean + L z.
        rewards: finite.
        ridge: added to the mean squares of the features.
        weights: of the points, of mean one; None: ones.

    Returns:
        A, symmetric, and b.
    """
    weights = tf.ones_like(rewards) if weights is None else weights
    mean = tf.reduce_mean(weights * rewards, axis=-1, keepdims=True)
    scale = tf.sqrt(tf.reduce_mean(weights * (rewards - mean) ** 2, axis=-1, keepdims=True))
    standardised = tf.math.divide_no_nan(rewards - mean, scale)
    solve = _by_normal_equations if z.shape[-1] <= MAX_DIRECT_DIM else _by_conjugate_gradients
    return solve(z, standardised, scale, ridge, weights)


def fit_slopes(
    z: Float64[Array, "K S D"],
    slopes: Float64[Array, "K S D"],
    ridge: Float64[Array, ""],
    weights: Float64[Array, "K S"] | None = None,
) -> tuple[Float64[Array, "K D D"], Float64[Array, "K D"]]:
    """Least squares of the gradient, b - A z, instead of the value.

    For z ~ N(0, I) and many draws these are Stein's b = E[grad R] and A = -E[z grad R^T]; by
    regression they are exact for a quadratic, from D + 1 draws on. The D columns of A share their
    features (1, z), so one system of D + 1 unknowns is solved per component where values need one
    of D^2 / 2.

    Args:
        z: of the points x = mean + L z.
        slopes: the gradient of the reward by z; finite.
        ridge, weights: as in `fit_quadratic`.

    Returns:
        A, symmetric, and b.
    """
    num_samples = z.shape[-2]
    u = tf.concat([tf.ones_like(z[..., :1]), z], axis=-1)
    weighted = u if weights is None else weights[..., None] * u
    gram = tf.matmul(weighted, u, transpose_a=True) / num_samples
    gram += ridge * tf.eye(u.shape[-1], dtype=DENSITY)
    moment = tf.matmul(weighted, slopes, transpose_a=True) / num_samples
    theta = tf.linalg.cholesky_solve(tf.linalg.cholesky(gram), moment)  # [K, 1 + D, D]
    a = -0.5 * (theta[:, 1:] + tf.transpose(theta[:, 1:], [0, 2, 1]))
    return a, theta[:, 0]


def _by_normal_equations(
    z: Float64[Array, "K S D"],
    rewards: Float64[Array, "K S"],
    scale: Float64[Array, "K 1"],
    ridge: Float64[Array, ""],
    weights: Float64[Array, "K S"],
) -> tuple[Float64[Array, "K D D"], Float64[Array, "K D"]]:
    """A and b, of the coefficients of all products of coordinates."""
    dim, num_samples = z.shape[-1], z.shape[-2]
    rows, columns = np.tril_indices(dim)
    products = tf.gather(z, rows, axis=-1) * tf.gather(z, columns, axis=-1)  # z_i z_j, i >= j
    features = tf.concat([tf.ones_like(z[..., :1]), z, products], axis=-1)  # [K, S, M]

    weighted = weights[..., None] * features
    gram = tf.matmul(weighted, features, transpose_a=True) / num_samples
    gram += ridge * tf.eye(num_coefficients(dim), dtype=DENSITY)
    moment = tf.matmul(weighted, rewards[..., None], transpose_a=True) / num_samples
    theta = solve_positive_definite(gram, moment[..., 0]) * scale  # [K, M]

    b = theta[..., 1 : 1 + dim]
    a = tf.matmul(theta[..., 1 + dim :], tf.constant(_curvatures(dim)))
    return tf.reshape(a, [-1, dim, dim]), b


def _by_conjugate_gradients(
    z: Float64[Array, "K S D"],
    rewards: Float64[Array, "K S"],
    scale: Float64[Array, "K 1"],
    ridge: Float64[Array, ""],
    weights: Float64[Array, "K S"],
) -> tuple[Float64[Array, "K D D"], Float64[Array, "K D"]]:
    """The same A and b without a matrix of features.

    With u = (1, z) the surrogate is u^T V u, V symmetric: c = V_00, b = 2 V_0i, A = -2 V_ij. Its
    values at all draws, and the sum of their products with u u^T, are two matrix products.
    """
    num_samples = z.shape[-2]
    u = tf.concat([tf.ones_like(z[..., :1]), z], axis=-1)
    u = tf.transpose(u, [0, 2, 1])  # [K, D + 1, S], in which the products are fastest

    def moments(values: tf.Tensor) -> tf.Tensor:
        return tf.matmul((weights * values)[:, None] * u, u, transpose_b=True) / num_samples

    # A coefficient off the diagonal of V stands there twice.
    penalty = ridge * (2.0 - tf.eye(u.shape[1], dtype=DENSITY))

    def normal(v: tf.Tensor) -> tf.Tensor:
        return moments(tf.reduce_sum(tf.matmul(v, u) * u, axis=1)) + penalty * v

    v = conjugate_gradients(
        normal, moments(rewards), _inverse_of_expected, TOLERANCE, MAX_ITERATIONS
    )
    v = (v + tf.transpose(v, [0, 2, 1])) * scale[..., None]
    return -v[:, 1:, 1:], v[:, 0, 1:]


def _inverse_of_expected(moments: Float64[Array, "K U U"]) -> Float64[Array, "K U U"]:
    """The V whose moments E[u^T V u u u^T] for z ~ N(0, I) these are.

    Of V = (c, b / 2; b / 2, W) they are (c + tr W, b; b, 2 W + (c + tr W) I).
    """
    size = moments.shape[-1]
    head = tf.one_hot(0, size, dtype=DENSITY)
    total = moments[:, :1, :1]  # c + tr W
    v = 0.5 * (moments - total * tf.linalg.diag(1.0 - head))
    # The diagonal holds (c + tr W) / 2 and W, so its sum lacks half of the total.
    return v + (total - tf.linalg.trace(v)[:, None, None]) * tf.linalg.diag(head)


def _curvatures(dim: int) -> np.ndarray:
    """What each coefficient theta_ij, i >= j, adds to A: [D (D + 1) / 2, D D].

    theta_ij z_i z_j = -1/2 z^T A z with A_ii = -2 theta_ii and A_ij = A_ji = -theta_ij.
    """
    rows, columns = np.tril_indices(dim)
    lower = np.zeros((len(rows), dim, dim))
    lower[np.arange(len(rows)), rows, columns] = 1.0
    return -(lower + lower.transpose(0, 2, 1)).reshape(len(rows), dim * dim)
