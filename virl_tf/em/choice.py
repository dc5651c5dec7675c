"""How many Gaussians describe demonstrations, and which covariances EM may give them."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.em.em import FULL, Covariances, are_few, em_mixture
from virl_tf.em.stacking import as_good
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, compiled, numpy_seed
from virl_tf.shapes import Array, Int64
from virl_tf.splitting import folds

# Numbers of components that are tried.
CANDIDATES = (1, 2, 3, 5, 8, 10, 15, 20, 30, 50)
MOST_ROWS = 5000  # that are looked at
FOLDS = 5
GIVEN = "given"
"""The reason for a number of components that nobody chose."""
COVARIANCES = (
    FULL,
    *(Covariances("full", ridge) for ridge in (1e-3, 1e-2)),
    *(Covariances("tied", ridge) for ridge in (1e-3, 1e-2)),
)


class MixtureChoice(NamedTuple):
    """What EM should fit.

    Attributes:
        components, covariances: see `em_mixture`.
        reason: in words.
        scores: mean log-likelihood of held-out rows, by components.
    """

    components: int
    covariances: Covariances
    reason: str
    scores: dict[int, float]


def choose_mixture(
    x: np.ndarray,
    seed: int,
    groups: Int64[Array, " N"] | None = None,
    components: int | None = None,
) -> MixtureChoice:
    """Components (of a policy, too) and covariances for demonstrations x [N, D].

    `components`: their number, if it is given.

    With few rows those with the highest cross-validated likelihood. Else the smallest number of
    components that explains a held-out fifth as well as the best does, within one standard error of
    the paired differences. EM is quick, and what it needs is a fair size for a policy that is to
    cover the same modes.
    """
    few = are_few(*x.shape)
    if not few or len(x) > MOST_ROWS:
        rng = np.random.default_rng(numpy_seed(seed, 0, "number of components"))
        rows = rng.permutation(len(x))[:MOST_ROWS]
        x = x[rows]
        groups = None if groups is None else np.asarray(groups)[rows]
    if components is not None:
        covariances = FULL
        if few:
            covariances = _by_cross_validation(x, seed, groups, components).covariances
        return MixtureChoice(components, covariances, GIVEN, {})
    if few:
        return _by_cross_validation(x, seed, groups)
    held_out = np.arange(len(x) // 5)
    if groups is not None:
        held_out = folds(len(x), FOLDS, seed, groups)[0]
    return _by_held_out_rows(x, held_out, seed)


def _by_held_out_rows(x: np.ndarray, held_out: np.ndarray, seed: int) -> MixtureChoice:
    test, train = x[held_out], np.delete(x, held_out, axis=0)
    most = most_components(len(train), x.shape[1], FULL)
    likelihoods: dict[int, np.ndarray] = {}
    for count in (k for k in CANDIDATES if k <= most):
        likelihoods[count] = _log_likelihood(train, test, count, FULL, seed)
        means = {k: float(values.mean()) for k, values in likelihoods.items()}
        if _falls(means):
            break
    best = max(means, key=lambda k: means[k])
    # At the latest the best itself is as good.
    enough = next(
        count for count, values in likelihoods.items() if as_good(likelihoods[best] - values)
    )
    tried = ", ".join(map(str, means))
    reason = f"chosen by the likelihood of held-out rows under EM, of {tried}"
    if enough != best:
        reason += f": the fewest as good as the best ({best}) within one standard error"
    reason += _at_the_edge(enough)
    return MixtureChoice(enough, FULL, reason, means)


def _by_cross_validation(
    x: np.ndarray,
    seed: int,
    groups: Int64[Array, " N"] | None,
    components: int | None = None,
) -> MixtureChoice:
    parts = folds(len(x), FOLDS, numpy_seed(seed, 0, "number of components"), groups)
    fewest = len(x) - max(len(part) for part in parts)
    found: dict[Covariances, dict[int, float]] = {}
    for covariances in COVARIANCES:
        most = most_components(fewest, x.shape[1], covariances)
        counts = [k for k in CANDIDATES if k <= most]
        if components is not None:
            counts = [min(components, fewest)]
        found[covariances] = _cross_validated(x, parts, covariances, seed, counts)
    best = max(found, key=lambda covariances: max(found[covariances].values()))
    means = found[best]
    count = max(means, key=lambda k: means[k])
    kind = "one covariance for all" if best.type == "tied" else "a covariance for each"
    reason = f"chosen by cross-validation under EM, {kind}, ridge {best.ridge:g}"
    return MixtureChoice(count, best, reason + _at_the_edge(count), means)


def _at_the_edge(count: int) -> str:
    """What to say of the largest number that is tried."""
    return ", the most that are tried: more may do better" if count == CANDIDATES[-1] else ""


def _cross_validated(
    x: np.ndarray,
    parts: list[np.ndarray],
    covariances: Covariances,
    seed: int,
    counts: Sequence[int],
) -> dict[int, float]:
    """Mean log-likelihood of held-out rows, by components."""
    means: dict[int, float] = {}
    for count in counts:
        total = sum(
            _log_likelihood(np.delete(x, part, axis=0), x[part], count, covariances, seed).sum()
            for part in parts
        )
        means[count] = float(total / len(x))
        if _falls(means, worse=3):  # of few rows they scatter
            break
    return means


def _falls(means: dict[int, float], worse: int = 2) -> bool:
    """Whether so many numbers of components that are larger than the best were no better."""
    best = max(means, key=lambda k: means[k])
    return sum(k > best for k in means) >= worse


def most_components(n: int, d: int, covariances: Covariances) -> int:
    """What n rows can tell apart: five rows for each of a mean's coordinates and one where
    covariances are free; one where a ridge holds them; two rows a component where they are shared.
    """
    rows = {"tied": 2, "full": (5 if covariances == FULL else 1) * (d + 1)}[covariances.type]
    return max(1, n // rows)


def _log_likelihood(
    train: np.ndarray, test: np.ndarray, count: int, covariances: Covariances, seed: int
) -> np.ndarray:
    mixture = em_mixture(train, count, numpy_seed(seed, 0, "EM"), covariances)
    return _compiled_log_prob(train.shape[1])(mixture, tf.constant(test, DENSITY)).numpy()


@functools.cache
def _compiled_log_prob(d: int) -> Any:
    """`Mixture.log_prob` in D dimensions, whatever the numbers of components and points."""
    shapes = ([None], [None, d], [None, d, d])
    specs = Mixture(*(tf.TensorSpec(shape, DENSITY) for shape in shapes))
    points = tf.TensorSpec([None, d], DENSITY)
    return compiled(lambda mixture, x: mixture.log_prob(x), specs, points, jit_compile=False)
