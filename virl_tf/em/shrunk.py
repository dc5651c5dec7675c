"""EM whose covariances are shrunk towards what all components have in common.

    Sigma_o = (S_o + nu W) / (N_o + nu),    W = sum_o S_o / N,

S_o the scatter of the N_o rows of component o: as if nu more rows of the pooled covariance W had
been seen (Friedman, 1989, with one parameter). So a mode of a handful of rows is a component of its
own, where EM with free covariances lays one component over two modes
(docs/decisions-densities.md, growth).
"""

import functools
from typing import NamedTuple

import numpy as np

from virl_tf.em.em import describe_clusters
from virl_tf.numerics import LOG_2PI
from virl_tf.shapes import Array, Float64, Int64

SHARED = 1e9  # pseudo-rows with which all covariances are W
MAX_STEPS, TOLERANCE = 200, 1e-4  # of EM; in nats per row, with which it has converged
RIDGE = 1e-6  # on a component's covariance, in units of the columns' variances
RIDGE_OF_HALVES = 1e-3  # ... where a component of few rows may be two
LEAST_SHARE = 1e-10  # of rows, for which a component without any counts in a division
LEAST_ROWS = 0.5  # of a component: one that EM has emptied would be split anew in every round


class Gaussians(NamedTuple):
    """A mixture while it grows, of standardised rows.

    Attributes:
        weights: [K].
        means: [K, D].
        covariances: [K, D, D].
        background: one more, which EM leaves as it is; the weights add up to what it leaves.
    """

    weights: Float64[Array, " K"]
    means: Float64[Array, "K D"]
    covariances: Float64[Array, "K D D"]
    background: "Gaussians | None" = None

    @property
    def left(self) -> float:
        """What the weights add up to."""
        return 1.0 if self.background is None else 1.0 - float(self.background.weights[0])

    @property
    def all(self) -> "Gaussians":
        """With the background as a component like the others."""
        return self if self.background is None else joined([self, self.background])


def beside(gaussians: Gaussians, background: Gaussians | None) -> Gaussians:
    """The same components with another background, or none."""
    other = gaussians._replace(background=background)
    return other._replace(weights=other.left / gaussians.left * gaussians.weights)


def joined(parts: list[Gaussians]) -> Gaussians:
    """All their components, with the weights they have, and without a background."""
    return Gaussians(
        np.concatenate([part.weights for part in parts]),
        np.concatenate([part.means for part in parts]),
        np.concatenate([part.covariances for part in parts]),
    )


def from_clusters(z: np.ndarray, number: int, seed: int) -> Gaussians:
    """A start at the centres of k-means."""
    if number == 1:
        return from_labels(z, np.zeros(len(z), int))
    from sklearn.cluster import KMeans

    number = min(number, len(np.unique(z, axis=0)))
    return from_labels(z, KMeans(number, n_init=1, random_state=seed).fit(z).labels_)


def from_labels(z: np.ndarray, labels: Int64[Array, " N"]) -> Gaussians:
    """A start at the centres of clusters of z [N, D], with the covariance within them."""
    counts, means, within = describe_clusters(z, labels, labels.max() + 1)
    within = within + RIDGE_OF_HALVES * np.eye(z.shape[1])
    return Gaussians(counts / counts.sum(), means, np.tile(within, (len(means), 1, 1)))


def fitted(z: np.ndarray, start: Gaussians, nu: float, ridge: float = RIDGE) -> Gaussians:
    """EM from `start`, with `nu` pseudo-rows, and the covariances of further rows."""
    return of_further_rows(z, maximise(z, start, nu, ridge), nu, ridge)


def maximise(
    z: np.ndarray,
    start: Gaussians,
    nu: float,
    ridge: float = RIDGE,
    tolerance: float = TOLERANCE,
) -> Gaussians:
    """EM from `start`, with `nu` pseudo-rows."""
    products = pairs(z)
    found, last = start, -np.inf
    for step in range(MAX_STEPS):
        mean, shares = _e_step(z, products, found)
        # The first step's likelihood is the start's, which need not be shrunk.
        if step > 1 and mean - last < tolerance:
            break
        last = mean
        found = _m_step(z, products, shares, nu, ridge, found.background)
    return found


def of_further_rows(z: np.ndarray, gaussians: Gaussians, nu: float, ridge: float) -> Gaussians:
    """The same components as densities of a row that EM has not seen.

    The rows of a component are nearer to their mean than to the true one, which a further row
    scatters around. With e_o = sum_n r_on^2 / N_o, one row where responsibilities r are 0 and 1,

        Sigma_o = (1 + e_o / N_o) (S_o + nu W) / (N_o - e_o + nu)
        W = sum_o S_o / (N - sum_o e_o)

    as of one Gaussian, whose S / (N - 1) is unbiased and whose mean has the variance Sigma / N.
    """
    products = pairs(z)
    _, shares = _e_step(z, products, gaussians)
    spent = (shares**2).sum(axis=0) / np.maximum(shares.sum(axis=0), LEAST_SHARE)
    return _m_step(z, products, shares, nu, ridge, gaussians.background, spent)


def without_empty(gaussians: Gaussians, n: int) -> Gaussians:
    """The components that have rows, of n."""
    kept = gaussians.weights * n >= LEAST_ROWS
    weights, means, covariances = (array[kept] for array in gaussians[:3])
    weights = gaussians.left * weights / weights.sum()
    return Gaussians(weights, means, covariances, gaussians.background)


def _e_step(
    z: np.ndarray, products: np.ndarray, gaussians: Gaussians
) -> tuple[float, Float64[Array, "N K"]]:
    """The mean log-likelihood, and the components' responsibilities."""
    joint = log_joint(z, products, gaussians)
    highest = joint.max(axis=1)
    shares = np.exp(joint - highest[:, None])
    sums = shares.sum(axis=1)
    mean = float((highest + np.log(sums)).mean())
    return mean, (shares / sums[:, None])[:, : len(gaussians.weights)]


def _m_step(
    z: np.ndarray,
    products: np.ndarray,
    shares: np.ndarray,
    nu: float,
    ridge: float,
    background: Gaussians | None,
    spent: Float64[Array, " K"] | float = 0.0,
) -> Gaussians:
    """Of responsibilities `shares` [N, K]; `spent`: e_o of `of_further_rows`."""
    n, d = z.shape
    counts = np.maximum(shares.sum(axis=0), LEAST_SHARE)
    if background is not None:
        n = counts.sum()  # the others are its rows
    means = shares.T @ z / counts[:, None]
    second = np.empty((len(counts), d, d))
    first, other, _ = pair_indices(d)
    second[:, first, other] = second[:, other, first] = shares.T @ products
    scatter = second - counts[:, None, None] * means[:, :, None] * means[:, None, :]
    free = np.maximum(n - np.sum(spent), 1.0)
    shrunk = (scatter + nu * scatter.sum(axis=0) / free) / (counts - spent + nu)[:, None, None]
    wide = (1.0 + spent / counts)[:, None, None] * shrunk
    found = Gaussians(counts / counts.sum(), means, wide + ridge * np.eye(d))
    return beside(found, background)


def log_joint(z: np.ndarray, products: np.ndarray, gaussians: Gaussians) -> Float64[Array, "N K"]:
    """Log of weight times density, that of the background last: two products of matrices, whatever
    the number of components.
    """
    weights, means, covariances, _ = gaussians.all
    precisions = np.linalg.inv(covariances)
    linear = np.einsum("kij,kj->ki", precisions, means)
    constant = np.einsum("ki,ki->k", linear, means) + np.linalg.slogdet(covariances)[1]
    first, other, times = pair_indices(z.shape[1])
    twice = precisions[:, first, other] * times
    squares = products @ twice.T - 2.0 * z @ linear.T
    return np.log(weights) - 0.5 * (squares + constant + z.shape[1] * LOG_2PI)


def pairs(z: np.ndarray) -> Float64[Array, "N D*(D+1)/2"]:
    """Products of the columns of z [N, D], each pair once."""
    first, other, _ = pair_indices(z.shape[1])
    return z[:, first] * z[:, other]


@functools.cache
def pair_indices(d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both columns of each pair of d columns, and how often it is in a quadratic form."""
    first, other = np.triu_indices(d)
    return first, other, np.where(first == other, 1.0, 2.0)


def score(z: np.ndarray, gaussians: Gaussians) -> float:
    """Mean log-likelihood of z [N, D]."""
    return float(log_density(z, gaussians).mean())


def log_density(z: np.ndarray, gaussians: Gaussians) -> Float64[Array, " N"]:
    """Of each row of z [N, D]."""
    return log_sum(log_joint(z, pairs(z), gaussians))


def log_densities(z: np.ndarray, mixtures: list[Gaussians]) -> Float64[Array, "W N"]:
    """Of each row of z [N, D] under each mixture."""
    return np.stack([log_density(z, one) for one in mixtures])


def log_sum(joint: np.ndarray) -> Float64[Array, " N"]:
    """Of exp(joint [N, K]); SciPy's takes three times as long."""
    highest = joint.max(axis=1)
    return highest + np.log(np.exp(joint - highest[:, None]).sum(axis=1))
