"""How EM describes demonstrations, by the number of rows."""

import functools
from collections.abc import Callable

import numpy as np

from virl_tf.em.by_bic import bic_mixture
from virl_tf.em.few_rows import mean_of_starts
from virl_tf.em.growth import go_on, grow
from virl_tf.mixture import Mixture
from virl_tf.shapes import Array, Int64

# Rows from which a fifth is enough to stop growth by (docs/decisions-densities.md, growth).
FEWEST_TO_GROW = 200
BIC_PSEUDO_ROWS = (1.0, 0.0)  # with which covariances of what BIC found are shrunk

Fit = Callable[[np.ndarray], Mixture]
"""How EM describes the rows [N, D] that it was chosen by, or further ones."""


def density_fits(x: np.ndarray, seed: int, groups: Int64[Array, " N"] | None = None) -> list[Fit]:
    """How EM describes x [N, D], as functions that do it with x or with further rows, too: one, or
    some to which held-out rows give shares (`describe_rows`).

    Of few rows the mean of several starts; of more mixtures that grow with shrunk covariances, and
    what BIC finds: the local optima of both are others (docs/decisions-densities.md, shares).
    """
    if len(x) < FEWEST_TO_GROW:
        return [mean_of_starts(x, seed, groups).mixture]
    return [grown_fit(x, seed, groups), *bic_fits(x, seed)]


def bic_fits(x: np.ndarray, seed: int) -> list[Fit]:
    """`bic_mixture` of x [N, D], from which EM goes on with shrunk and with free covariances.

    Free ones of few rows are too narrow; shrunk ones are too wide where modes are of different
    sizes (docs/decisions-densities.md, shrunk-bic).
    """
    found = bic_mixture(x, seed)
    return [functools.partial(go_on, found, pseudo_rows=nu) for nu in BIC_PSEUDO_ROWS]


def grown_fit(x: np.ndarray, seed: int, groups: Int64[Array, " N"] | None) -> Fit:
    """What has grown of x [N, D], from which further rows need few steps of EM."""
    return grow(x, seed, groups).on(x).mixture
