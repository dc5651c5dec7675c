"""Full-covariance Gaussian mixtures: the policies q~(x) = sum_o q~(o) q~(x|o) of the paper.

Components are an axis.
"""

import functools
import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from threadpoolctl import ThreadpoolController

from virl_tf.numerics import DENSITY, LOG_2PI, sampling_seed
from virl_tf.shapes import Array, Float64
from virl_tf.validation import InputError

tfd = tfp.distributions
_SHOWN_WEIGHTS = 8


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
        centred = tf.transpose(x)[None] - self.means[:, :, None]  # [K, D, N]
        # K inverses and one batched matmul: several times faster than K x N triangular solves.
        inverses = tf.linalg.triangular_solve(self.scale_trils, tf.eye(self.dim, dtype=DENSITY))
        z = tf.matmul(inverses, centred)
        return tf.transpose(-0.5 * tf.reduce_sum(z * z, axis=1) - self.log_normalisers()[:, None])

    def log_normalisers(self) -> tf.Tensor:
        """[K]: log of (2 pi)^{D/2} det(Sigma_o)^{1/2}."""
        log_det = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(self.scale_trils)), axis=-1)
        return log_det + 0.5 * self.dim * LOG_2PI

    def log_prob(self, x: tf.Tensor) -> tf.Tensor:
        """Log q~(x): [N, D] -> [N]."""
        return tf.reduce_logsumexp(self.log_weights + self.component_log_prob(x), axis=-1)

    def log_responsibilities(self, x: tf.Tensor) -> tf.Tensor:
        """Log q~(o|x): [N, D] -> [N, K]."""
        return tf.nn.log_softmax(self.log_weights + self.component_log_prob(x), axis=-1)

    def sample(self, n: int, seed: Any = None) -> tf.Tensor:
        """Draws [n, D]. `seed`: an integer, int32 [2], or None: another one each time."""
        return self.sample_with_components(n, seed)[0]

    def sample_with_components(self, n: int, seed: Any = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws x [n, D] and the components [n] int32 they came from."""
        seeds = tf.random.split(sampling_seed(seed), 2)
        ids = tf.random.stateless_categorical(self.log_weights[None], n, seeds[0], dtype=tf.int32)
        z = tf.random.stateless_normal([n, self.dim], seeds[1], dtype=DENSITY)
        scale_trils = tf.gather(self.scale_trils, ids[0])
        return tf.gather(self.means, ids[0]) + tf.linalg.matvec(scale_trils, z), ids[0]

    def entropy(self, n: int, seed: Any) -> tf.Tensor:
        """Monte Carlo estimate of H(q~) from n draws: []."""
        return -tf.reduce_mean(self.log_prob(self.sample(n, seed)))


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
    scale_tril = np.linalg.cholesky(covariance)
    return Mixture(
        tf.zeros([1], DENSITY),
        tf.constant(mean[None], DENSITY),
        tf.constant(scale_tril[None], DENSITY),
    )


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

    scale = x.std(axis=0)
    labels = (
        KMeans(num_components, n_init=3, random_state=seed)
        .fit((x - x.mean(axis=0)) / scale)
        .labels_
    )
    prior = samples_start(x, num_components, seed).covariances[0].numpy()
    counts = np.bincount(labels, minlength=num_components)
    means, covariances = (
        np.zeros((num_components, x.shape[1])),
        np.zeros((num_components,) + prior.shape),
    )
    pseudo = x.shape[1] + 1.0
    for o in range(num_components):
        members = x[labels == o] if counts[o] else x[:1]
        means[o] = members.mean(axis=0)
        scatter = (members - means[o]).T @ (members - means[o])
        covariances[o] = (scatter + pseudo * prior) / (len(members) + pseudo)
    log_weights = np.log(np.maximum(counts, 1.0) / np.maximum(counts, 1.0).sum())
    return _uniform(means, covariances)._replace(log_weights=tf.constant(log_weights, DENSITY))


def em_start(x: np.ndarray, num_components: int, seed: int) -> Mixture:
    """`em_mixture`, with a ridge that keeps components of few rows from collapsing."""
    ridge = 1e-3 if len(x) >= 5 * (x.shape[1] + 1) * num_components else 1e-2
    return em_mixture(x, num_components, seed, Covariances("full", ridge))


_MAX_ROWS = 20_000  # for BIC
# scikit-learn's EM multiplies small matrices, for which a BLAS of many threads mostly waits: with
# two threads it takes four times as long.
_EM_THREADS = 1
# Rows up to which they are few, in any number of dimensions and for each number of a full
# covariance (docs/decisions.md, few-rows).
FEW_ROWS, FEW_ROWS_PER_NUMBER = 500, 20
# Of a column's variance within the groups of a start: one of two values is not all that counts, and
# a covariance has an inverse.
_LEAST_LEFT = 0.01
_KMEANS_START = 10  # components
_SPLIT_STARTS = 3  # of EM with two components; from a single start splits are missed


class Covariances(NamedTuple):
    """What EM may do with the covariances.

    Attributes:
        type: "full": one for each component; "tied": one for all.
        ridge: added to their diagonals, in units of the columns' variances.
    """

    type: str
    ridge: float


FULL = Covariances("full", 1e-6)


def are_few(n: int, d: int) -> bool:
    """Whether n rows in d dimensions are few to EM: its covariances are then chosen, too, by
    cross-validation; else they are full, and the number of an EM mixture is chosen by BIC.
    """
    return n < max(FEW_ROWS, FEW_ROWS_PER_NUMBER * d * (d + 1) // 2)


def em_mixture(
    x: np.ndarray, num_components: int, seed: int, covariances: Covariances = FULL
) -> Mixture:
    """Maximum-likelihood Gaussian mixture of x [N, D] by EM from a k-means start (scikit-learn).

    Of few rows the likelier one of this start and `_start_by_columns`.
    """
    z, shift, scale = _standardised(x)
    with _blas().limit(limits=_EM_THREADS):
        model = _em(z, num_components, seed, covariances)
        if num_components > 1 and are_few(*x.shape):
            start = _start_by_columns(z, num_components, seed, covariances.type)
            other = _em(z, num_components, seed, covariances, **start)
            model = max(model, other, key=lambda found: found.score(z))
        return _mixture(model, shift, scale)


def _start_by_columns(
    z: np.ndarray, num_components: int, seed: int, covariance_type: str
) -> dict[str, np.ndarray]:
    """Where EM starts, from k-means in columns that count the more the better two means describe
    them.

    In many standardised columns the one that tells two modes apart is one of many to k-means,
    which cuts through both modes.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    weights = 1.0 / np.sqrt([max(left_by_two_means(column), _LEAST_LEFT) for column in z.T])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than components
        labels = KMeans(num_components, n_init=3, random_state=seed).fit(z * weights).labels_
    members = np.eye(num_components)[labels]
    counts = np.maximum(members.sum(axis=0), 1.0)
    means = members.T @ z / counts[:, None]
    within = (z - means[labels]).T @ (z - means[labels]) / len(z)
    precision = np.linalg.inv(within + _LEAST_LEFT * np.eye(z.shape[1]))
    if covariance_type == "full":
        precision = np.tile(precision, (num_components, 1, 1))
    return {
        "weights_init": counts / counts.sum(),
        "means_init": means,
        "precisions_init": precision,
    }


def left_by_two_means(column: np.ndarray) -> float:
    """The share of a standardised column's variance within the best two groups: 0.36 of a Gaussian
    one, 0 of two values.
    """
    x = np.sort(column)
    count = np.arange(1, len(x))
    low, total = np.cumsum(x)[:-1], x.sum()
    between = low**2 / count + (total - low) ** 2 / (len(x) - count)
    return float(1.0 - between.max() / max((x**2).sum(), 1e-12))


def bic_mixture(x: np.ndarray, seed: int) -> Mixture:
    """The EM mixture of x [N, D] whose components are split while its Bayesian information
    criterion falls.

    One Gaussian at first; a component whose own rows (those it is likeliest to have drawn) two
    Gaussians describe with the lower criterion is replaced by these two, and EM goes on with all
    (X-means of Pelleg and Moore, 2000, with Gaussians). EM from a k-means start lays a component
    over two modes where there are many dimensions; this one is then split. Where two Gaussians are
    no better than one, though many are, a start from `_KMEANS_START` components gets there; of both
    models the one with the lower criterion counts. Of x at most 20,000 rows are used.
    """
    z, shift, scale = _standardised(x[np.random.default_rng(seed).permutation(len(x))[:_MAX_ROWS]])
    starts = [1]
    if len(z) >= _KMEANS_START * 5 * (z.shape[1] + 1):
        starts.append(_KMEANS_START)
    with _blas().limit(limits=_EM_THREADS):
        best = min((_grown(z, count, seed) for count in starts), key=lambda model: model.bic(z))
    return _mixture(best, shift, scale)


@functools.cache
def _blas() -> ThreadpoolController:
    """The process's libraries for linear algebra: looking for them takes as long as a small EM."""
    import sklearn.mixture  # noqa: F401 (first loads what it brings)

    return ThreadpoolController()


def _grown(z: np.ndarray, num_components: int, seed: int) -> Any:
    """EM's model from so many components, split while BIC falls."""
    best = _em(z, num_components, seed)
    while (start := _split(z, best, seed)) is not None:
        model = _em(z, len(start["means_init"]), seed, FULL, **start)
        if model.bic(z) >= best.bic(z):
            break
        best = model
    return best


def _split(z: np.ndarray, model: Any, seed: int) -> dict[str, np.ndarray] | None:
    """Where EM starts once components are split; None: there is none to split."""
    labels = model.predict(z)
    parts = []
    for o in range(model.n_components):
        own, part = (
            z[labels == o],
            (model.weights_[o : o + 1], model.means_[o : o + 1], model.precisions_[o : o + 1]),
        )
        if len(own) >= 4 * (z.shape[1] + 1):  # two covariances of full rank need half of that
            two = _em(own, 2, seed, n_init=_SPLIT_STARTS)
            one = _em(own, 1, seed)
            if two.bic(own) < one.bic(own):
                part = (part[0] * two.weights_, two.means_, two.precisions_)
        parts.append(part)
    weights, means, precisions = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if len(means) == model.n_components:
        return None
    return {
        "weights_init": weights / weights.sum(),
        "means_init": means,
        "precisions_init": precisions,
    }


def _standardised(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x - shift) / scale, shift, scale: there the ridge on the covariances means the same for all
    data.

    A column may be constant here, where all rows that differ in it are held out; its scale is 1.
    """
    shift, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    return (x - shift) / scale, shift, scale


def _em(
    z: np.ndarray, num_components: int, seed: int, covariances: Covariances = FULL, **start: Any
) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    kind: dict[str, Any] = {"covariance_type": covariances.type, "reg_covar": covariances.ridge}
    if num_components == 1:
        kind["init_params"] = "random"  # all rows are its own: the same without k-means
    model = GaussianMixture(num_components, max_iter=500, random_state=seed, **kind, **start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(z)


def _mixture(model: Any, shift: np.ndarray, scale: np.ndarray) -> Mixture:
    k, d = model.means_.shape
    covariances = np.broadcast_to(model.covariances_, (k, d, d))  # tied: one for all
    roots = scale[:, None] * np.linalg.cholesky(covariances)
    # A component may have lost all its weight; its logarithm stays a number.
    log_weights = np.log(np.maximum(model.weights_, np.finfo(np.float64).tiny))
    arrays = (log_weights, shift + scale * model.means_, roots)
    return Mixture(*(tf.constant(a, DENSITY) for a in arrays))


def _uniform(means: np.ndarray, covariances: np.ndarray) -> Mixture:
    k = len(means)
    scale_trils = np.linalg.cholesky(covariances)
    return Mixture(
        tf.fill([k], -tf.math.log(tf.cast(k, DENSITY))),
        tf.constant(means, DENSITY),
        tf.constant(scale_trils, DENSITY),
    )
