"""Clusters of rows by merging, in a metric that the rows themselves tell.

Rows of one mode differ by what the mode's covariance lets them, and a row's nearest neighbour is
mostly of its mode. So half of the covariance of differences of nearest neighbours,

    C = 1/2 mean_n (z_n - z_nn(n)) (z_n - z_nn(n))^T,

is near to the covariance within modes, whatever their number and wherever they are (in the spirit
of Art, Gnanadesikan and Kettenring, 1982). In columns whitened by it Ward's (1963) linkage merges
what EM with one covariance for all would call one component, and where modes are apart the next
merge costs far more than the last: that tells their number.
"""

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import cdist

from virl_tf.shapes import Array, Float64, Int64

RIDGE, LEAST = 1e-3, 1e-9  # in units of the mean variance of differences, and of the columns'

Merges = Float64[Array, "N-1 4"]
"""SciPy's linkage of N rows: which two clusters are merged, at which height, and their rows."""


def merges_of(z: Float64[Array, "N D"], rounds: int = 3) -> Merges:
    """All merges of standardised rows, N >= 2.

    `rounds`: neighbours are looked for again in the metric that those before tell.
    """
    metric = np.eye(z.shape[1])
    for _ in range(rounds):
        metric = _whitening(_within_neighbours(z, z @ metric))
    return linkage(z @ metric, "ward")


def clusters(merges: Merges, number: int) -> Int64[Array, " N"]:
    """Labels from 0 on, of so many clusters, or fewer where rows are equal."""
    return fcluster(merges, number, "maxclust") - 1


def numbers_of_clusters(merges: Merges, most: int, tried: int) -> list[int]:
    """Those, 2 to `most`, of which one less costs most in units of what one more costs."""
    heights = merges[:, 2]
    numbers = np.arange(2, min(most, len(heights)) + 1)
    # So many clusters are left before the merge of this index.
    before = len(heights) + 1 - numbers
    least = np.finfo(float).tiny + LEAST * heights.max(initial=0.0)
    ratios = heights[before] / np.maximum(heights[before - 1], least)
    return [int(number) for number in numbers[np.argsort(-ratios)[:tried]]]


def folds_across(
    merges: Merges, number: int, components: int, seed: int
) -> list[Int64[Array, " M"]]:
    """The rows of each fold of a cross-validation that is stratified by so many clusters: one of
    few rows never loses two of them at once.
    """
    labels = clusters(merges, components)
    rows = np.random.default_rng(seed).permutation(len(labels))
    order = rows[np.argsort(labels[rows], kind="stable")]
    return [order[i::number] for i in range(min(number, len(order)))]


def _within_neighbours(
    z: Float64[Array, "N D"], whitened: Float64[Array, "N D"]
) -> Float64[Array, "D D"]:
    distances = cdist(whitened, whitened)
    np.fill_diagonal(distances, np.inf)
    away = z - z[distances.argmin(axis=1)]
    return 0.5 * away.T @ away / len(z)


def _whitening(covariance: Float64[Array, "D D"]) -> Float64[Array, "D D"]:
    """W with W^T covariance W = I, but for a ridge."""
    d = len(covariance)
    ridge = RIDGE * np.trace(covariance) / d + LEAST
    return np.linalg.inv(np.linalg.cholesky(covariance + ridge * np.eye(d))).T
