"""What held-out rows say of mixtures: whether more of them, or more in them, is better.

EM's optima are local and rows are few, so where the mean of several mixtures' densities, a mixture
of all their components, describes held-out rows better than the best of them, it counts, and more
grow with other rows held out (bagging; Breiman, 1996; stacking: Smyth and Wolpert, 1999).

Of people some do what nobody else does. Where held-out rows say so, mixtures grow anew beside one
more component, wider than all rows, whose share is small and fixed: the noise component of Banfield
and Raftery (1993), a Gaussian here. What it explains widens no other component
(docs/decisions-densities.md, background).

People do most things alike and some not, so a Gaussian is too wide for most rows of a component and
too narrow for others. Where held-out rows say so, each component ends as two Gaussians of one mean,
a wide and a narrow one, whose shares, the same for all components, are those with which held-out
rows are likeliest (stacking; docs/decisions-densities.md, widths).
"""

from collections.abc import Sequence

import numpy as np

from virl_tf.em.shrunk import RIDGE, Gaussians, joined, log_density, log_sum
from virl_tf.mixture import BACKGROUND
from virl_tf.shapes import Array, Float64

WORTH = 0.05  # nats that a mean of several must gain: it has several times as many components
# The component for rows unlike all others: its covariance in units of that of all rows, and the
# nats that it must gain on a held-out row in the mean.
WIDER, NEEDED = 4.0, 0.1
# What covariances are multiplied by: the first, or the others where these gain that much, too.
WIDTHS = (1.0, 2.0, 0.5)
ONE_WIDTH = (1.0, 0.0, 0.0)  # shares of them
# With fewer narrow ones a wide one alone would do, which says that rows are few.
LEAST_NARROW, STACKING_STEPS = 0.25, 300


def mean_is_no_better(mixtures: list[Gaussians], one: Gaussians, z: np.ndarray) -> bool:
    """Whether the mean of the mixtures' densities is not worth its size: on z [N, D] it is not
    likelier by `WORTH` and more than chance.
    """
    gain = log_density(z, mean_density(mixtures)) - log_density(z, one)
    return bool(gain.mean() < WORTH) or as_good(gain)


def as_good(lack: Float64[Array, " N"], errors: float = 1.0) -> bool:
    """Whether what one density lacks against another on rows is within so many standard errors."""
    return bool(lack.mean() <= errors * lack.std() / np.sqrt(len(lack)))


def mean_density(mixtures: list[Gaussians]) -> Gaussians:
    """The mixture of all their components whose density is the mean of theirs."""
    return weighted(mixtures, [1.0 / len(mixtures)] * len(mixtures))


def weighted(mixtures: list[Gaussians], shares: Sequence[float]) -> Gaussians:
    """The mixture of all their components in which each of them has its share, beside the
    background of the first.
    """
    pairs_of = zip(mixtures, shares, strict=True)
    parts = [one._replace(weights=share * one.weights) for one, share in pairs_of if share > 0.0]
    return joined(parts)._replace(background=mixtures[0].background)


def in_widths(gaussians: Gaussians) -> list[Gaussians]:
    """The same with each of `WIDTHS` times the covariances, but that of the background."""
    return [gaussians._replace(covariances=w * gaussians.covariances) for w in WIDTHS]


def shares_of_widths(log_q: Float64[Array, "W N"]) -> tuple[float, ...]:
    """Of the wide and the narrow width, those with which the rows are likeliest; `ONE_WIDTH` where
    they gain too little, or hardly any is narrow.

    Args:
        log_q: log density of rows under mixtures in `WIDTHS` that did not see them.
    """
    shares = likeliest_shares(log_q[1:])
    found = (0.0, *map(float, shares))
    gain = stacked(log_q, found) - log_q[0]
    pays = gain.mean() >= NEEDED and shares[-1] >= LEAST_NARROW
    return found if pays else ONE_WIDTH


def likeliest_shares(
    log_q: Float64[Array, "M N"], pseudo_rows: float = 0.0
) -> Float64[Array, " M"]:
    """The shares in a mean of densities with which rows are likeliest.

    Args:
        log_q: of rows under densities that did not see them.
        pseudo_rows: that each density explains beside these.
    """
    likelihoods = np.exp(log_q - log_q.max(axis=0))
    shares = np.full(len(log_q), 1.0 / len(log_q))
    number = log_q.shape[1] + len(log_q) * pseudo_rows
    for _ in range(STACKING_STEPS):  # EM, which has no other optimum here
        joint = shares[:, None] * likelihoods
        shares = ((joint / joint.sum(axis=0)).sum(axis=1) + pseudo_rows) / number
    return shares


def stacked(log_q: Float64[Array, "W N"], shares: Sequence[float]) -> Float64[Array, " N"]:
    """Log of the sum of densities that each have their share."""
    with np.errstate(divide="ignore"):  # a share of zero
        return log_sum((log_q + np.log(shares)[:, None]).T)


def share_of_background(z: np.ndarray, unseen: np.ndarray, log_q: Float64[Array, " M"]) -> float:
    """`BACKGROUND`, or 0 where it gains too little.

    Args:
        z: all rows [N, D].
        unseen, log_q: rows [M, D] and their log density under a mixture that did not see them.
    """
    wide = log_density(unseen, background_gaussian(z, BACKGROUND))
    both = np.logaddexp(np.log1p(-BACKGROUND) + log_q, wide)
    return BACKGROUND if np.mean(both - log_q) >= NEEDED else 0.0


def background_gaussian(z: np.ndarray, share: float) -> Gaussians:
    """One Gaussian of such a weight, with `WIDER` times the covariance of z [N, D]."""
    d = z.shape[1]
    covariance = np.cov(z, rowvar=False, bias=True).reshape(d, d) + RIDGE * np.eye(d)
    return Gaussians(np.array([share]), z.mean(axis=0)[None], WIDER * covariance[None])
