"""Full-covariance Gaussian mixtures: the policies q~(x) = sum_o q~(o) q~(x|o) of the paper.

Components are an axis.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from virl_tf.numerics import DENSITY, LOG_2PI, by_blocks, if_paths, real_tensor, sampling_seed
from virl_tf.shapes import Array, Bool, Float64, Int32, Int64
from virl_tf.validation import InputError, check_integer

tfd = tfp.distributions
_SHOWN_WEIGHTS = 8
MANY_COMPONENTS = 100
"""From which a density is taken by products of columns: with 580 in D = 12 a quarter of the time.
Its rounding grows with the square of (spread of the means) / (smallest width): 1e-16 times it.
"""

NUMBERS_AT_ONCE = 2**22
"""Of points and components, while a density is evaluated: 32 MiB. Memory that a process has not
touched before costs ten times what is computed in it.
"""

BACKGROUND = 0.01
"""Share of the component for rows unlike all others (`virl_tf.em.stacking`)."""


class Mixture(NamedTuple):
    """A Gaussian mixture with K components in D dimensions, float64.

    Attributes:
        log_weights: [K], log q~(o), normalised.
        means: [K, D].
        scale_trils: [K, D, D], lower Cholesky factors of the covariances.
    """

    log_weights: Float64[Array, " K"]
    means: Float64[Array, "K D"]
    scale_trils: Float64[Array, "K D D"]

    def __repr__(self) -> str:
        """Sizes and largest weights, in a line."""
        log_weights = tf.get_static_value(self.log_weights)
        if log_weights is None:
            return f"<Mixture of {self.means.shape[0]} Gaussians>"
        weights = np.sort(np.exp(log_weights))[::-1]
        more = " ..." if len(weights) > _SHOWN_WEIGHTS else ""
        shown = " ".join(f"{weight:.3f}" for weight in weights[:_SHOWN_WEIGHTS])
        return f"<Mixture of {len(weights)} Gaussians, D = {self.dim}, weights {shown}{more}>"

    @property
    def num_components(self) -> int:
        """K."""
        return int(self.means.shape[0])

    @property
    def dim(self) -> int:
        """D."""
        return int(self.means.shape[1])

    @property
    def num_contexts(self) -> int:
        """C = 0: it answers to no context, as `virl_tf.conditional.ConditionalMixture` does."""
        return 0

    @property
    def distribution(self) -> Any:
        """The same mixture as a TFP distribution."""
        return tfd.MixtureSameFamily(
            tfd.Categorical(logits=self.log_weights),
            tfd.MultivariateNormalTriL(self.means, self.scale_trils),
        )

    @property
    def covariances(self) -> tf.Tensor:
        """[K, D, D]."""
        return tf.matmul(self.scale_trils, self.scale_trils, transpose_b=True)

    def component_log_prob(self, x: tf.Tensor) -> tf.Tensor:
        """Log q~(x|o): [N, D] -> [N, K]."""
        x = tf.convert_to_tensor(x, DENSITY)
        if (self.means.shape[0] or 0) >= MANY_COMPONENTS:  # None: unknown in a graph
            return self._many_log_prob(x)
        return log_gaussians(tf.transpose(x)[None] - self.means[:, :, None], self.scale_trils)

    def _many_log_prob(self, x: tf.Tensor) -> tf.Tensor:
        """The same as quadratics of x."""
        centre = tf.reduce_mean(self.means, axis=0)  # squares of what is far from 0 would cancel
        x, means = x - centre, self.means - centre
        inverses = tf.linalg.triangular_solve(self.scale_trils, tf.eye(self.dim, dtype=DENSITY))
        precisions = tf.matmul(inverses, inverses, transpose_a=True)
        linear = tf.linalg.matvec(precisions, means)
        of_means = -0.5 * tf.reduce_sum(linear * means, axis=-1)
        constant = of_means - log_normalisers(self.scale_trils)
        return quadratics((constant, linear, precisions), x)

    def log_prob(self, x: tf.Tensor) -> tf.Tensor:
        """Log q~(x): [..., D] -> [...]. Raises InputError for another last axis."""
        return of_rows(self._log_prob, x, self.dim, self.rows_at_once)

    @property
    def rows_at_once(self) -> int:
        """Points at which the density is evaluated at once."""
        return rows_at_once(self.means.shape[0], self.dim)

    def _log_prob(self, x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_logsumexp(self.log_weights + self.component_log_prob(x), axis=-1)

    def log_responsibilities(self, x: tf.Tensor) -> tf.Tensor:
        """Log q~(o|x): [N, D] -> [N, K]."""
        return tf.nn.log_softmax(self.log_weights + self.component_log_prob(x), axis=-1)

    def sample(self, n: int, seed: Any = None) -> tf.Tensor:
        """Draws [n, D]. `seed`: an integer, int32 [2], or None: another one each time.

        Raises InputError for an n that is no whole number from 0 on.
        """
        if not tf.is_tensor(n):
            check_integer("n", n, 0)
        return self.sample_with_components(n, seed)[0]

    def sample_with_components(self, n: int, seed: Any = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws x [n, D] and the components [n] int32 they came from."""
        seeds = tf.random.split(sampling_seed(seed), 2)
        ids = tf.random.stateless_categorical(self.log_weights[None], n, seeds[0], dtype=tf.int32)
        z = tf.random.stateless_normal([n, self.dim], seeds[1], dtype=DENSITY)
        shifts = of_chosen(self.scale_trils, ids[0], z)
        return tf.gather(self.means, ids[0]) + shifts, ids[0]

    def entropy(self, n: int, seed: Any) -> tf.Tensor:
        """Monte Carlo estimate of H(q~) from n draws: []."""
        return -tf.reduce_mean(self.log_prob(self.sample(n, seed)))


def of_chosen(
    matrices: Float64[Array, "K D C"], ids: Int32[Array, " N"], vectors: Float64[Array, "N C"]
) -> Float64[Array, "N D"]:
    """The products of vectors and the matrices of these numbers, a block of them at once."""
    numbers = int(matrices.shape[1] * matrices.shape[2])

    def of_some(rows: tf.Tensor) -> tf.Tensor:
        chosen = tf.gather(matrices, tf.gather(ids, rows))
        return tf.linalg.matvec(chosen, tf.gather(vectors, rows))

    return by_blocks(of_some, tf.range(tf.shape(ids)[0]), max(1, NUMBERS_AT_ONCE // numbers))


def log_gaussians(
    centred: Float64[Array, "K D N"], scale_trils: Float64[Array, "K D D"]
) -> Float64[Array, "N K"]:
    """Log N(x; mean_o, L_o L_o^T) of `centred`, x - mean_o."""
    # K inverses and one batched matmul: several times faster than K x N triangular solves.
    unit = tf.eye(scale_trils.shape[-1], dtype=DENSITY)
    z = tf.matmul(tf.linalg.triangular_solve(scale_trils, unit), centred)
    return tf.transpose(-0.5 * tf.reduce_sum(z * z, axis=1) - log_normalisers(scale_trils)[:, None])


def log_normalisers(scale_trils: Float64[Array, "K D D"]) -> Float64[Array, " K"]:
    """Log of (2 pi)^{D/2} det(L_o L_o^T)^{1/2}."""
    log_det = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(scale_trils)), axis=-1)
    return log_det + 0.5 * scale_trils.shape[-1] * LOG_2PI


def of_rows(log_density: Any, x: Any, width: int, at_once: int, what: str = "") -> tf.Tensor:
    """A log density of rows [N, width] -> [N], in blocks, for x [..., width] -> [...].

    Raises InputError for another last axis, or what is not real; `what` is then to be done.
    """
    x = real_tensor("x", x, width)
    if x.shape.rank is None or x.shape[-1:] == [None]:  # of a graph that does not tell
        return by_blocks(log_density, x, at_once)
    if x.shape[-1:] != [width]:
        cure = if_paths(x) or what
        raise InputError(f"x must have shape [..., {width}], got {tuple(x.shape)}{cure}.")
    if x.shape.rank == 2:
        return by_blocks(log_density, x, at_once)
    flat = by_blocks(log_density, tf.reshape(x, [-1, width]), at_once)
    return tf.reshape(flat, tf.shape(x)[:-1])


def rows_at_once(k: int | None, dim: int) -> int:
    """So many that what is computed of each for K components is `NUMBERS_AT_ONCE`."""
    k = max(1, k or 1)  # None: unknown in a graph
    squares = 3 * (dim + 1) * (dim + 2) // 2  # of `quadratics`
    return max(1, NUMBERS_AT_ONCE // (max(k, squares) if k >= MANY_COMPONENTS else k * dim))


def quadratics(
    coefficients: tuple[tf.Tensor, tf.Tensor, tf.Tensor], x: Float64[Array, "N D"]
) -> Float64[Array, "N K"]:
    """u_o + v_o^T x - 1/2 x^T P_o x of u [K], v [K, D] and symmetric P [K, D, D].

    Linear in 1, the columns and their products: one matmul for all o.
    """
    constant, linear, precisions = coefficients
    d = x.shape[1]
    first, other = np.triu_indices(d)
    quadratic = tf.gather(tf.reshape(precisions, [-1, d * d]), first * d + other, axis=1)
    quadratic *= np.where(first == other, -0.5, -1.0)  # each pair is in the square twice
    one = np.eye(d)  # columns by matmul: the gradient of `gather` is slow
    terms = [tf.ones_like(x[:, :1]), x, (x @ one[:, first]) * (x @ one[:, other])]
    factors = tf.concat([constant[:, None], linear, quadratic], axis=1)
    return tf.matmul(tf.concat(terms, axis=1), factors, transpose_b=True)


def empty_mixture(dim: int) -> Mixture:
    """A mixture [D] without components, where none is used: its density is zero everywhere."""
    return Mixture(
        tf.zeros([0], DENSITY), tf.zeros([0, dim], DENSITY), tf.zeros([0, dim, dim], DENSITY)
    )


def check_mixture(what: str, arrays: Any) -> Mixture:
    """Return the fields of a `Mixture` as one, of tensors.

    Raises:
        InputError: `what`, and what a mixture is.
    """
    try:
        found = Mixture(*(np.asarray(a) for a in arrays))
        k, d = found.means.shape
        shapes = [a.shape for a in found] == [(k,), (k, d), (k, d, d)]
        if shapes and all(a.dtype == np.float64 and np.isfinite(a).all() for a in found):
            lower = (np.triu(found.scale_trils, 1) == 0.0).all()
            positive = (np.diagonal(found.scale_trils, 0, 1, 2) > 0.0).all()
            if lower and positive and abs(np.exp(found.log_weights).sum() - 1.0) < 1e-6:
                return Mixture(*(tf.constant(a, DENSITY) for a in found))
    except (TypeError, ValueError):  # not three arrays
        pass
    raise InputError(
        f"{what}: expected finite float64 log_weights [K] of sum one, means [K, D], scale_trils "
        "[K, D, D], lower triangular with positive diagonals."
    )


def gaussian(mean: np.ndarray, covariance: np.ndarray) -> Mixture:
    """One Gaussian, mean [D] and covariance [D, D], as a mixture with K = 1."""
    return from_covariances(np.zeros(1), mean[None], covariance[None])


def from_covariances(
    log_weights: np.ndarray, means: np.ndarray, covariances: np.ndarray
) -> Mixture:
    """The mixture of log_weights [K], means [K, D] and covariances [K, D, D]."""
    arrays = log_weights, means, np.linalg.cholesky(covariances)
    return Mixture(*(tf.constant(array, DENSITY) for array in arrays))


def moments(x: np.ndarray) -> Mixture:
    """The Gaussian with the mean and covariance of x [N, D]; collinear columns get a ridge of 1e-9
    of their variances.
    """
    covariance = np.atleast_2d(np.cov(x, rowvar=False))
    return gaussian(x.mean(axis=0), covariance + 1e-9 * np.diag(np.diag(covariance)))


def standard_normal_start(num_components: int, dim: int, seed: int) -> Mixture:
    """The authors' start: means ~ N(0, I), unit covariances, uniform weights."""
    means = np.random.default_rng(seed).standard_normal((num_components, dim))
    return _uniform(means, np.tile(np.eye(dim), (num_components, 1, 1)))


def samples_start(x: np.ndarray, num_components: int, seed: int) -> Mixture:
    """Means at distinct random rows of x [N, D]; each covariance is the data's, shrunk to 1/K of
    its volume.
    """
    rows = np.random.default_rng(seed).choice(len(x), num_components, replace=False)
    covariance = moments(x).covariances[0].numpy() * num_components ** (-2.0 / x.shape[1])
    return _uniform(x[rows], np.tile(covariance, (num_components, 1, 1)))


def kmeans_start(x: np.ndarray, num_components: int, seed: int) -> Mixture:
    """Means at the k-means centres of x [N, D]; covariance and weight of each component from its
    cluster.

    Clusters of few or flat points borrow from the covariance `samples_start` uses, with the weight
    of D + 1 points.
    """
    from sklearn.cluster import KMeans  # here: 0.2 s of import that most users never need
    from sklearn.exceptions import ConvergenceWarning

    z = (x - x.mean(axis=0)) / x.std(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than clusters
        labels = KMeans(num_components, n_init=3, random_state=seed).fit(z).labels_
    prior = samples_start(x, num_components, seed).covariances[0].numpy()
    counts = np.bincount(labels, minlength=num_components)
    means = np.zeros((num_components, x.shape[1]))
    covariances = np.zeros((num_components, *prior.shape))
    pseudo = x.shape[1] + 1.0
    for o in range(num_components):
        members = x[labels == o] if counts[o] else x[:1]
        means[o] = members.mean(axis=0)
        scatter = (members - means[o]).T @ (members - means[o])
        covariances[o] = (scatter + pseudo * prior) / (len(members) + pseudo)
    log_weights = np.log(np.maximum(counts, 1.0) / np.maximum(counts, 1.0).sum())
    return from_covariances(log_weights, means, covariances)


def resized(mixture: Mixture, num_components: int) -> Mixture:
    """With K components: its heaviest `distinct` ones, or all with the heaviest split in turn.

    Halves lie half a standard deviation to both sides along a component's longest axis; together
    they have its mean and covariance. Of a mixture of many modes its heaviest components are nearer
    to the best policy of K than EM with K, which lays some over several modes
    (docs/decisions-policies.md, policy-start).
    """
    mixture = in_one_width(_with_weight(mixture))
    return _halved(mixture, distinct(mixture, num_components), num_components)


def _with_weight(mixture: Mixture) -> Mixture:
    """Without components whose weight is no float above zero, as far from a context."""
    heavy = np.flatnonzero(np.exp(mixture.log_weights.numpy()) > 0.0)
    if len(heavy) == mixture.num_components:
        return mixture
    return Mixture(*(tf.gather(array, heavy) for array in mixture))


def without_light(mixture: Mixture, least: float) -> Mixture:
    """Components below `least` / K in weight are given up for halves of the heaviest, as in
    `resized`; the mixture itself if there are none.
    """
    k = mixture.num_components
    heavy = np.flatnonzero(np.exp(mixture.log_weights.numpy()) >= least / k)
    return mixture if len(heavy) == k else _halved(mixture, heavy, k)


def _halved(mixture: Mixture, order: Int64[Array, " M"], num_components: int) -> Mixture:
    """These components, of which the heaviest is split in turn until there are K."""
    log_weights = mixture.log_weights.numpy()
    weights = list(np.exp(log_weights[order] - log_weights.max()))
    means = list(mixture.means.numpy()[order])
    covariances = list(mixture.covariances.numpy()[order])
    while len(weights) < num_components:
        o = int(np.argmax(weights))
        variances, axes = np.linalg.eigh(covariances[o])
        shift = 0.5 * np.sqrt(variances[-1]) * axes[:, -1]
        narrower = covariances[o] - np.outer(shift, shift)
        weights[o : o + 1] = [0.5 * weights[o]] * 2
        means[o : o + 1] = [means[o] - shift, means[o] + shift]
        covariances[o : o + 1] = [narrower] * 2
    log_shares = np.log(weights) - np.log(np.sum(weights))
    return from_covariances(log_shares, np.array(means), np.array(covariances))


def in_one_width(mixture: Mixture) -> Mixture:
    """Components that have a mean in common (`virl_tf.em.stacking`) as one Gaussian, of their
    weight and covariance together.
    """
    means, of = np.unique(mixture.means.numpy(), axis=0, return_inverse=True)
    if len(means) == mixture.num_components:
        return mixture
    of, weights = of.ravel(), np.exp(mixture.log_weights.numpy())
    sums = np.bincount(of, weights)
    covariances = np.zeros((len(means), mixture.dim, mixture.dim))
    np.add.at(covariances, of, (weights / sums[of])[:, None, None] * mixture.covariances.numpy())
    return from_covariances(np.log(sums), means, covariances)


def distinct(mixture: Mixture, number: int) -> Int64[Array, " K"]:
    """Indices of so many components, or all: the heaviest one, then again and again the heaviest by
    the share 1 - b^(2/D) of its weight, b = integral sqrt(N_o N_i) its overlap with each chosen
    one; the root, because in many dimensions two estimates of one mode hardly overlap.

    A mean of several mixtures' densities has each mode several times, and may have a `background`,
    which is no mode.
    """
    means, covariances = mixture.means.numpy(), mixture.covariances.numpy()
    power = min(1.0, 2.0 / means.shape[1])
    left, chosen = np.where(background(mixture), -np.inf, mixture.log_weights.numpy()), []
    for _ in range(min(number, int(np.isfinite(left).sum()))):
        chosen.append(int(left.argmax()))
        overlaps = _overlaps(means, covariances, chosen[-1]) ** power
        left = left + np.log1p(-overlaps)
        left[chosen] = -np.inf
    return np.array(chosen)


def background(mixture: Mixture) -> Bool[Array, " K"]:
    """Which components are wider than all rows and of the weight that `virl_tf.em.stacking` gives
    to such a one: more than twice the variance of the whole mixture, in the geometric mean over
    directions. A wide one that EM found itself is heavier: demonstrations are there. In a context
    far from all others the background is heavier, too, and counts as any other.
    """
    weights, means = np.exp(mixture.log_weights.numpy()), mixture.means.numpy()
    covariances, away = mixture.covariances.numpy(), means - weights @ means
    whole = np.einsum("k,kij->ij", weights, covariances) + (weights * away.T) @ away
    log_ratios = np.linalg.slogdet(covariances)[1] - np.linalg.slogdet(whole)[1]
    return (log_ratios > means.shape[1] * np.log(2.0)) & (weights <= 1.01 * BACKGROUND)


def _overlaps(means: np.ndarray, covariances: np.ndarray, o: int) -> Float64[Array, " K"]:
    """The Bhattacharyya coefficients of Gaussian o with all, below one."""
    between = 0.5 * (covariances + covariances[o])
    away = means - means[o]
    squares = np.einsum("ki,ki->k", away, np.linalg.solve(between, away[..., None])[..., 0])
    log_dets = np.linalg.slogdet(covariances)[1]
    log_ratios = np.linalg.slogdet(between)[1] - 0.5 * (log_dets + log_dets[o])
    return np.exp(-0.125 * squares - 0.5 * log_ratios).clip(0.0, 1.0 - 1e-12)


def _uniform(means: np.ndarray, covariances: np.ndarray) -> Mixture:
    k = len(means)
    return from_covariances(np.full(k, -np.log(k)), means, covariances)
