"""EM of few rows: how many components, and how far their covariances are shrunk, by
cross-validation; then the mean of the densities that several starts end in.

A held-out fifth of few rows is too few to stop growth by, and what EM ends in depends on its start
more than on anything else (docs/decisions.md, few-rows).
"""

import numpy as np

from virl_tf.em import one_thread, standardised
from virl_tf.mixture_growth import (
    SHARED,
    Grown,
    Growth,
    from_clusters,
    maximise,
    mean_density,
    score,
)
from virl_tf.numerics import numpy_seed
from virl_tf.shapes import Array, Int64
from virl_tf.splitting import folds

COMPONENTS = (1, 2, 3, 5, 8, 10, 15, 20, 30)
PSEUDO_ROWS = (1.0, 4.0, 16.0, SHARED)
RIDGE = 1e-3  # in units of the columns' variances
FOLDS = 10  # with fewer, modes of few rows have none left
STARTS, STARTS_IN_FOLDS = 10, 2
FALLEN = 3.0  # nats below the best of its shrinkage, from where more components are not tried


def mean_of_starts(x: np.ndarray, seed: int, groups: Int64[Array, " N"] | None = None) -> Growth:
    """Mixtures of x [N, D] from several starts; `groups` are held out together."""
    z, shift, scale = standardised(x)
    parts = folds(len(z), FOLDS, numpy_seed(seed, 0, "held out"), groups)
    with one_thread():
        scores: dict[tuple[int, float], float] = {}
        for nu in PSEUDO_ROWS:
            best = -np.inf
            for count in (k for k in COMPONENTS if k <= max(1, 2 * len(z) // 5)):
                found = _cross_validated(z, parts, count, nu, seed)
                scores[count, nu] = found
                best = max(best, found)
                if found < best - FALLEN:
                    break
        count, nu = max(scores, key=lambda choice: scores[choice])
        grown = _from_starts(z, count, nu, range(seed, seed + STARTS))
    return Growth(grown, shift, scale)


def _from_starts(z: np.ndarray, count: int, nu: float, seeds: range) -> list[Grown]:
    mixtures = [maximise(z, from_clusters(z, count, seed), nu, RIDGE) for seed in seeds]
    return [Grown(score(z, mixture), nu, mixture, RIDGE) for mixture in mixtures]


def _cross_validated(
    z: np.ndarray, parts: list[np.ndarray], count: int, nu: float, seed: int
) -> float:
    """Mean log-likelihood of rows z [N, D] under what the other parts end in."""
    total = 0.0
    for part in parts:
        train = np.delete(z, part, axis=0)
        grown = _from_starts(train, count, nu, range(seed, seed + STARTS_IN_FOLDS))
        total += len(part) * score(z[part], mean_density([one.gaussians for one in grown]))
    return total / len(z)
