"""How EM describes rows: by a mean of several fits' densities, with shares that held-out rows give
them (stacking; Smyth and Wolpert, 1999), smoothed over contexts where there are any.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.context_smoothing import Smoothing, choose_smoothing, log_likelihoods
from virl_tf.em.density import Fit
from virl_tf.em.stacking import likeliest_shares, stacked
from virl_tf.mixture import Mixture

# Of a share: rows that each fit explains beside the held-out ones, and the smallest that is kept.
# And the nats that a mean must gain (docs/decisions-densities.md, shares).
PSEUDO_ROWS, LEAST, WORTH = 1.0, 0.05, 0.005


class One(NamedTuple):
    """A fit of EM.

    Attributes:
        fit: how it describes further rows.
        joint: what it says of the training rows.
        smooth: how that is smoothed.
        share: in the mean.
    """

    fit: Fit
    joint: Mixture
    smooth: Smoothing
    share: float = 1.0


class Described(NamedTuple):
    """A mean of EM mixtures of training rows, and how the same is made of others."""

    parts: Sequence[One]

    @property
    def unsmoothed(self) -> Mixture:
        """Of the training rows."""
        return self._mean([one.joint for one in self.parts])

    @property
    def smoothed(self) -> Mixture:
        """Of the training rows."""
        return self._mean([one.smooth(one.joint) for one in self.parts])

    def __call__(self, rows: np.ndarray) -> Mixture:
        """Smoothed, of rows [N, C + D]."""
        return self._mean([one.smooth(one.fit(rows)) for one in self.parts])

    def _mean(self, mixtures: Sequence[Mixture]) -> Mixture:
        """The mixture of all their components."""
        if len(mixtures) == 1:
            return mixtures[0]
        parts = zip(mixtures, self.parts, strict=True)
        log_weights = [of_one.log_weights + np.log(one.share) for of_one, one in parts]
        means, scale_trils = (
            tf.concat([getattr(of_one, name) for of_one in mixtures], axis=0)
            for name in ("means", "scale_trils")
        )
        return Mixture(tf.concat(log_weights, axis=0), means, scale_trils)


def describe_rows(
    fits: Sequence[Fit], train: np.ndarray, held_out: np.ndarray, num_contexts: int
) -> Described:
    """With the shares of the fits under which held-out rows given their contexts are likeliest; of
    the best fit alone if that is nearly as good, as where all find the same.

    Args:
        fits: at least one.
        train, held_out: rows [c, x], [N, C + D] and [M, C + D].
        num_contexts: C.
    """
    parts = [_part(fit, train, held_out, num_contexts) for fit in fits]
    if len(parts) == 1:
        return Described(parts)
    mixtures = [one.smooth(one.joint) for one in parts]
    log_q = np.stack([log_likelihoods(joint, held_out, num_contexts) for joint in mixtures])
    shares, best = likeliest_shares(log_q, PSEUDO_ROWS), log_q.mean(axis=1).argmax()
    if np.mean(stacked(log_q, list(shares)) - log_q[best]) < WORTH:
        return Described([parts[best]])
    kept = np.flatnonzero(shares >= LEAST)
    shares = shares / shares[kept].sum()
    return Described([parts[i]._replace(share=float(shares[i])) for i in kept])


def _part(fit: Fit, train: np.ndarray, held_out: np.ndarray, num_contexts: int) -> One:
    joint = fit(train)
    return One(fit, joint, choose_smoothing(joint, train, held_out, num_contexts))
