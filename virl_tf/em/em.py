"""Gaussian mixtures of demonstrations by expectation-maximisation (scikit-learn)."""

import functools
import warnings
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from threadpoolctl import ThreadpoolController

from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY
from virl_tf.shapes import Array, Int64

# Rows up to which they are few, in any number of dimensions and for each number of a full
# covariance (docs/decisions-densities.md, few-rows).
FEW_ROWS, FEW_ROWS_PER_NUMBER = 500, 20
# Of a column's variance within the groups of a start: one of two values is not all that counts, and
# a covariance has an inverse.
LEAST_LEFT = 0.01


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
    """Whether n rows in d dimensions are few to EM: the covariances of a mixture of so many
    components are then chosen, too, by cross-validation; else they are full.
    """
    return n < max(FEW_ROWS, FEW_ROWS_PER_NUMBER * d * (d + 1) // 2)


def em_mixture(
    x: np.ndarray, num_components: int, seed: int, covariances: Covariances = FULL
) -> Mixture:
    """Maximum-likelihood Gaussian mixture of x [N, D] by EM from a k-means start (scikit-learn).

    Of few rows the likelier one of this start and `_start_by_columns`.
    """
    z, shift, scale = standardised(x)
    with one_thread():
        model = fit_em(z, num_components, seed, covariances)
        if num_components > 1 and are_few(*x.shape):
            start = _start_by_columns(z, num_components, seed, covariances.type)
            other = fit_em(z, num_components, seed, covariances, **start)
            model = max(model, other, key=lambda found: found.score(z))
        return to_mixture(model, shift, scale)


def em_start(x: np.ndarray, num_components: int, seed: int) -> Mixture:
    """`em_mixture`, with a ridge that keeps components of few rows from collapsing."""
    ridge = 1e-3 if len(x) >= 5 * (x.shape[1] + 1) * num_components else 1e-2
    return em_mixture(x, num_components, seed, Covariances("full", ridge))


def cluster_by_columns(z: np.ndarray, number: int, seed: int) -> Int64[Array, " N"]:
    """Clusters of z [N, D] by k-means in `weighted_columns`."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    number = min(number, len(z))  # a fold of two rows leaves one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than clusters
        return KMeans(number, n_init=3, random_state=seed).fit(weighted_columns(z)).labels_


def weighted_columns(z: np.ndarray) -> np.ndarray:
    """Columns that count the more the better two means describe them.

    In many standardised columns the one that tells two modes apart is one of many to k-means,
    which cuts through both modes.
    """
    return z / np.sqrt([max(left_by_two_means(column), LEAST_LEFT) for column in z.T])


def describe_clusters(
    z: np.ndarray, labels: Int64[Array, " N"], number: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows [K] (at least one), means [K, D], and the covariance [D, D] within all clusters."""
    members = np.eye(number)[labels]
    counts = np.maximum(members.sum(axis=0), 1.0)
    means = members.T @ z / counts[:, None]
    within = (z - means[labels]).T @ (z - means[labels]) / len(z)
    return counts, means, within


def _start_by_columns(
    z: np.ndarray, num_components: int, seed: int, covariance_type: str
) -> dict[str, np.ndarray]:
    """Where EM starts, from `cluster_by_columns`."""
    labels = cluster_by_columns(z, num_components, seed)
    counts, means, within = describe_clusters(z, labels, num_components)
    precision = np.linalg.inv(within + LEAST_LEFT * np.eye(z.shape[1]))
    if covariance_type == "full":
        precision = np.tile(precision, (num_components, 1, 1))
    return {
        "weights_init": counts / counts.sum(),
        "means_init": means,
        "precisions_init": precision,
    }


def left_by_two_means(column: np.ndarray) -> float:
    """The share of a column's mean square within the best two groups: where its mean is 0, 0.36 of
    a Gaussian one, 0 of two values; the less the farther from 0 it is.
    """
    x = np.sort(column)
    count = np.arange(1, len(x))
    low, total = np.cumsum(x)[:-1], x.sum()
    between = low**2 / count + (total - low) ** 2 / (len(x) - count)
    return float(1.0 - between.max(initial=0.0) / max((x**2).sum(), 1e-12))


@functools.cache
def _libraries() -> ThreadpoolController:
    """The process's libraries for linear algebra: looking for them takes as long as a small EM."""
    import sklearn.mixture  # noqa: F401 (first loads what it brings)

    return ThreadpoolController()


def one_thread() -> Any:
    """A context in which the matrices of EM, which are small, are multiplied by one thread: a BLAS
    of two mostly waits, and takes four times as long.
    """
    return _libraries().limit(limits=1)


def standardised(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x - shift) / scale, shift, scale: there the ridge on the covariances means the same for all
    data.

    A column may be constant here, where all rows that differ in it are held out; its scale is 1.
    """
    shift, scale = x.mean(axis=0), x.std(axis=0)
    # Of 60 times 0.1 the standard deviation is not 0.
    scale = np.where((x == x[0]).all(axis=0) | (scale == 0.0), 1.0, scale)
    return (x - shift) / scale, shift, scale


def fit_em(
    z: np.ndarray, num_components: int, seed: int, covariances: Covariances = FULL, **start: Any
) -> Any:
    """scikit-learn's model of z [N, D], from k-means or `start`."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    kind: dict[str, Any] = {"covariance_type": covariances.type, "reg_covar": covariances.ridge}
    if num_components == 1:
        kind["init_params"] = "random"  # all rows are its own: the same without k-means
    model = GaussianMixture(num_components, max_iter=500, random_state=seed, **kind, **start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(z)


def to_mixture(model: Any, shift: np.ndarray, scale: np.ndarray) -> Mixture:
    """Of scikit-learn's model of rows (x - shift) / scale, that of x."""
    k, d = model.means_.shape
    covariances = np.broadcast_to(model.covariances_, (k, d, d))  # tied: one for all
    roots = scale[:, None] * np.linalg.cholesky(covariances)
    # A component may have lost all its weight; its logarithm stays a number.
    log_weights = np.log(np.maximum(model.weights_, np.finfo(np.float64).tiny))
    arrays = (log_weights, shift + scale * model.means_, roots)
    return Mixture(*(tf.constant(a, DENSITY) for a in arrays))
