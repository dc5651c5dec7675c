"""How close a recovered reward or a policy is to the expert's density."""

from typing import Any, NamedTuple

import numpy as np

from virl_tf.mixture import Mixture


class Grid(NamedTuple):
    """A regular grid over a box in 2-D.

    Attributes:
        points: [R * R, 2], the second coordinate varying fastest.
        axes: [2, R].
    """

    points: np.ndarray
    axes: np.ndarray


def grid_around(data: np.ndarray, resolution: int = 100, margin: float = 0.05) -> Grid:
    """The grid of the numerical I-projection "near the ground truth data": its bounding box widened
    by `margin` on each side.

    Args:
        data: [N, 2].
    """
    low, high = data.min(axis=0), data.max(axis=0)
    extra = margin * (high - low)
    axes = np.linspace(low - extra, high + extra, resolution, axis=1)
    return Grid(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2), axes)


def normalise_on_grid(log_density: Any) -> np.ndarray:
    """Log probabilities of the grid's cells: [M] -> [M], so that exp sums to one."""
    values = np.asarray(log_density, np.float64)
    top = values.max()
    with np.errstate(invalid="ignore"):  # inf - inf: a diverged density becomes nan throughout
        return values - top - np.log(np.exp(values - top).sum())


def i_projection(log_q: Any, log_p: Any) -> float:
    """KL(q || p) = sum q (log q - log p) of two (unnormalised) log densities on the same grid
    points, [M] each.

    inf or NaN values of log_q give nan: a diverged reward has no distance.
    """
    log_q, log_p = normalise_on_grid(log_q), normalise_on_grid(log_p)
    q = np.exp(log_q)
    with np.errstate(invalid="ignore"):
        return float(np.sum(np.where(q == 0.0, 0.0, q * (log_q - log_p))))  # nan stays nan


def sampled_i_projection(log_q: Any, log_p: Any, log_proposal: Any) -> float:
    """KL(q || p) by self-normalised importance sampling; q need not be normalised, p and the
    proposal are.

    With w = q / proposal: KL = sum w (log q - log p) / sum w - log mean w, since mean w estimates
    the integral of q.

    Args:
        log_q, log_p, log_proposal: [M], at draws of the proposal.

    Returns:
        nan if log q is not finite where its weight is not zero.
    """
    log_q, log_p, log_proposal = (np.asarray(a, np.float64) for a in (log_q, log_p, log_proposal))
    log_w = log_q - log_proposal
    top = log_w.max()
    with np.errstate(invalid="ignore"):
        w = np.exp(log_w - top)
        mean = float(np.sum(np.where(w == 0.0, 0.0, w * (log_q - log_p))) / w.sum())
        return mean - float(top + np.log(w.mean()))


def averaged_i_projection(log_q: Any, log_p: Any, log_proposal: Any) -> float:
    """E_c[KL(q(.|c) || p(.|c))] over M contexts, by importance sampling within each.

    A function of c that is added to log q does not matter.

    Args:
        log_q, log_p, log_proposal: [S, M], S draws of the proposal in each context.
    """
    columns = (np.asarray(a, np.float64).T for a in (log_q, log_p, log_proposal))
    return float(np.mean([sampled_i_projection(*each) for each in zip(*columns, strict=True)]))


def best_final_reported(series: Any) -> dict[str, float]:
    """Best, final, and their mean, the paper's "average results between the best evaluated
    iteration and the final iteration".

    A value that is not finite (a diverged iteration) is never the best.

    Args:
        series: one value per iteration, lower is better.

    Returns:
        {best, final, reported}.
    """
    values = np.asarray(series, np.float64)
    finite = values[np.isfinite(values)]
    best = float(finite.min()) if finite.size else float("nan")
    final = float(values[-1])
    return {"best": best, "final": final, "reported": (best + final) / 2.0}


class PolicyDistance(NamedTuple):
    """How far a policy is from a density with a bounded support; see `policy_distance`."""

    negative_elbo: float  # E_q[log q - R]: KL - log Z
    kl: float  # KL(q || p)
    outside: float  # share of the draws outside the support


def policy_distance(
    policy: Mixture, log_prob: Any, log_normaliser: float, n: int, seed: Any
) -> PolicyDistance:
    """KL(q || p) and the negative ELBO from n draws of q; exact but for the Monte Carlo error.

    A Gaussian has tails everywhere, p has not: q is taken restricted to the support and normalised
    there, which adds -log(share of the draws inside) to the mean of log q - log p over those draws.
    With no draw inside both are inf.

    Args:
        policy: q.
        log_prob: log p, [N, D] -> [N], -inf outside its support.
        log_normaliser: log Z with R = log p + log Z.
        n, seed: draws; stateless seed, int32 [2].
    """
    x = policy.sample(n, seed)
    log_q, log_p = policy.log_prob(x).numpy(), np.asarray(log_prob(x))
    inside = np.isfinite(log_p)
    if not inside.any():
        return PolicyDistance(float("inf"), float("inf"), 1.0)
    kl = float(np.mean(log_q[inside] - log_p[inside]) - np.log(inside.mean()))
    return PolicyDistance(kl - log_normaliser, kl, float(1.0 - inside.mean()))


SHARE_OF_A_MODE = 0.003  # share of a policy's samples that a mode needs to count as covered


def covered_modes(modes: np.ndarray, num_modes: int, share: float = SHARE_OF_A_MODE) -> np.ndarray:
    """Which modes have at least `share` of the samples: modes [N] int, -1 for samples in none ->
    [num_modes] bool.
    """
    counts = np.bincount(modes[modes >= 0], minlength=num_modes)
    return (counts > 0) & (counts >= share * len(modes))


def contrast(high: Any, low: Any) -> dict[str, float]:
    """How clearly one group of values lies above another; nan if one is empty or holds nan.

    Args:
        high: [N], the values that should be higher.
        low: [M].

    Returns:
        {auc: probability that a value of `high` is above one of `low` (ties count half), 0.5 = no
        preference;
        gap: difference of the means, nan if both are -inf; above_best: share of `high` above the
        largest of `low`}.
    """
    high, low = np.asarray(high, np.float64), np.asarray(low, np.float64)
    if not (len(high) and len(low)) or np.isnan(high).any() or np.isnan(low).any():
        return {"auc": float("nan"), "gap": float("nan"), "above_best": float("nan")}
    above, tied = high[:, None] > low, high[:, None] == low
    with np.errstate(invalid="ignore"):
        gap = float(high.mean() - low.mean())
    return {
        "auc": float(above.mean() + 0.5 * tied.mean()),
        "gap": gap,
        "above_best": float(np.mean(high > low.max())),
    }


def correlation(x: Any, y: Any) -> float:
    """Pearson's, of [M] and [M]; nan where one is the same everywhere, or not finite."""
    x, y = np.asarray(x), np.asarray(y)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return float("nan")
    if np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])
