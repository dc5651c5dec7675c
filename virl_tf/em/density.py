"""How EM describes demonstrations, by the number of rows."""

from collections.abc import Callable

import numpy as np

from virl_tf.em.by_bic import bic_mixture
from virl_tf.em.em import FEW_ROWS
from virl_tf.em.few_rows import mean_of_starts
from virl_tf.em.growth import go_on, grow
from virl_tf.mixture import Mixture
from virl_tf.shapes import Array, Int64

# Rows from which a fifth is enough to stop growth by, and for each number of a full covariance
# those from which BIC does as well (docs/decisions-densities.md, growth).
FEWEST_TO_GROW, MANY_ROWS_PER_NUMBER = 200, 200

Fit = Callable[[np.ndarray], Mixture]
"""How EM describes the rows [N, D] that it was chosen by, or further ones."""


def describe_density(x: np.ndarray, seed: int) -> Mixture:
    """An EM mixture of x [N, D]: `density_fit` to the rows that it was chosen by."""
    return density_fit(x, seed)(x)


def density_fit(x: np.ndarray, seed: int, groups: Int64[Array, " N"] | None = None) -> Fit:
    """How EM describes x [N, D], as a function that does it with x or with further rows, too.

    Of many rows by BIC, and then with shrunk covariances; where rows are few for a covariance of
    every component, mixtures that grow with these; of fewer still the mean of several starts.
    """
    if _are_many(*x.shape):
        return bic_fit(x, seed)
    if len(x) >= FEWEST_TO_GROW:
        return grown_fit(x, seed, groups)
    return mean_of_starts(x, seed, groups).mixture


def conditional_fits(
    x: np.ndarray, seed: int, groups: Int64[Array, " N"] | None = None
) -> list[Fit]:
    """That of rows [c, x] as rows, and another one for held-out rows given c to choose from.

    Growth and BIC look at c and x together: of x given c either may say more
    (docs/decisions-contexts.md, smoothing).
    """
    if len(x) < FEWEST_TO_GROW:
        return [density_fit(x, seed, groups)]
    both = [bic_fit(x, seed), grown_fit(x, seed, groups)]
    return both if _are_many(*x.shape) else both[::-1]


def bic_fit(x: np.ndarray, seed: int) -> Fit:
    """`bic_mixture` of x [N, D], from which EM goes on, with these rows or further ones."""
    found = bic_mixture(x, seed)
    return lambda rows: go_on(found, rows)


def grown_fit(x: np.ndarray, seed: int, groups: Int64[Array, " N"] | None) -> Fit:
    """What has grown of x [N, D], from which further rows need few steps of EM."""
    return grow(x, seed, groups).on(x).mixture


def _are_many(n: int, d: int) -> bool:
    """Whether n rows of dimension d are enough for BIC."""
    return n >= max(FEW_ROWS, MANY_ROWS_PER_NUMBER * d * (d + 1) // 2)
