"""Paths past obstacles whose places are the context: 2^n ways, p(x | c) in closed form."""

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.contexts import rows_of
from virl_tf.numerics import DENSITY, LOG_2PI, generator
from virl_tf.shapes import Array, Float64, Int64
from virl_tf.validation import InputError, check_integer, check_positive, check_seed

MAX_OBSTACLES = 10  # the normaliser has a term for each set of them


class Obstacles:
    """The heights x [n] at which a path passes n obstacles at the heights c [n].

        p(x | c) = N(x; 0, Sigma) prod_j (1 - g_j) / Z(c),
        g_j = exp(-(x_j - c_j)^2 / (2 width^2)),
        Sigma_ij = spread^2 exp(-(i - j)^2 / (2 smoothness^2)), a thousandth more of it if i = j.

    It vanishes at every obstacle, so each of the 2^n ways above or below is a mode, and no mixture
    of Gaussians is it. Z(c) follows from the product, multiplied out: for each set S of obstacles
    the prior's mean of prod_{j in S} g_j, a Gaussian's density at c_S, with the sign (-1)^|S|.

    Contexts are uniform in [-spread, spread]^n.
    """

    def __init__(
        self,
        num_obstacles: int,
        *,
        spread: float = 1.0,
        smoothness: float = 1.0,
        width: float = 0.3,
    ):
        """The truth.

        Args:
            num_obstacles: n, both C and D; at most `MAX_OBSTACLES`.
            spread, smoothness, width: see above.

        Raises:
            InputError: an argument out of its range.
        """
        n = check_integer("num_obstacles", num_obstacles, 1, MAX_OBSTACLES)
        self.dim = self.num_contexts = n
        self.spread = check_positive("spread", spread)
        self.width = check_positive("width", width)
        steps = np.subtract.outer(np.arange(n), np.arange(n)) / check_positive(
            "smoothness", smoothness
        )
        self.covariance = spread**2 * (np.exp(-0.5 * steps**2) + 1e-3 * np.eye(n))
        self._scale_tril = np.linalg.cholesky(self.covariance)
        sets = np.array(list(itertools.product([0.0, 1.0], repeat=n)))  # [2^n, n]
        both = sets[:, :, None] * sets[:, None, :]
        widened = both * (self.covariance + width**2 * np.eye(n))
        widened += (1.0 - sets)[:, :, None] * np.eye(n)  # what is not in the set does not matter
        sizes = sets.sum(axis=1)
        self._signs = (-1.0) ** sizes
        self._log_factors = sizes * np.log(width) - 0.5 * np.linalg.slogdet(widened)[1]
        self._precisions = both * np.linalg.inv(widened)

    @property
    def num_ways(self) -> int:
        """2^n."""
        return 2**self.dim

    def log_prob(self, x: Any, c: Any) -> tf.Tensor:
        """Log p(x | c), normalised for each c: [..., D], [..., C] -> [...], float64; -inf on an
        obstacle.
        """
        rows = rows_of(x, c, self.num_contexts, self.dim)
        c, x = rows[..., : self.dim], rows[..., self.dim :]
        return self.log_unnormalised(x, c) - self.log_normaliser(c)

    def log_unnormalised(self, x: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
        """Log p(x | c) + log Z(c)."""
        z = tf.linalg.matvec(tf.constant(np.linalg.inv(self._scale_tril)), x)
        log_det = np.log(np.diag(self._scale_tril)).sum() + 0.5 * self.dim * LOG_2PI
        log_prior = -0.5 * tf.reduce_sum(z**2, axis=-1) - log_det
        return log_prior + self._log_passed(x, c)

    def log_normaliser(self, c: Any) -> tf.Tensor:
        """Log Z(c), of the share of the prior's paths that pass: [..., C] -> [...]."""
        c = tf.convert_to_tensor(c, DENSITY)
        distances = tf.einsum("...i,sij,...j->...s", c, tf.constant(self._precisions), c)
        terms = self._signs * tf.exp(self._log_factors - 0.5 * distances)
        return tf.math.log(tf.reduce_sum(terms, axis=-1))

    def contexts(self, n: int, seed: int) -> Float64[Array, "n C"]:
        """N contexts [n, C]."""
        shape = (check_integer("n", n, 1), self.num_contexts)
        rng = generator(check_seed(seed), "contexts")
        return rng.uniform(-self.spread, self.spread, shape)

    def demonstrations(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """N contexts [n, C] and a demonstration in each [n, D], exact draws."""
        c = self.contexts(n, seed)
        return c, self.sample(c, seed)

    def sample(self, c: Float64[Array, "N C"], seed: int = 0) -> Float64[Array, "N D"]:
        """An exact draw for each context, by rejection: of the prior's, those that pass.

        Raises:
            InputError: c is something else.
        """
        c = np.asarray(c, np.float64)
        if c.ndim != 2 or c.shape[1] != self.num_contexts:
            raise InputError(f"c must have shape [N, {self.num_contexts}], got {c.shape}.")
        rng = generator(check_seed(seed), "exact samples")
        x, left = np.zeros_like(c), np.arange(len(c))
        while len(left):
            drawn = rng.standard_normal((len(left), self.dim)) @ self._scale_tril.T
            passed = np.exp(self._log_passed(drawn, c[left])) > rng.random(len(left))
            x[left[passed]] = drawn[passed]
            left = left[~passed]
        return x

    def ways(self, x: Float64[Array, "N D"], c: Float64[Array, "N C"]) -> Int64[Array, " N"]:
        """The number of the way that each path takes, from 0: bit j is 1 above obstacle j."""
        return (np.asarray(x) > np.asarray(c)) @ (1 << np.arange(self.dim))

    def _log_passed(self, x: Any, c: Any) -> Any:
        """sum_j log(1 - g_j)."""
        return tf.reduce_sum(tf.math.log(-tf.math.expm1(-0.5 * ((x - c) / self.width) ** 2)), -1)
