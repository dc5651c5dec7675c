"""How EM describes rows: by that of several fits under which held-out rows are likeliest, smoothed
over contexts where there are any.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from virl_tf.context_smoothing import Smoothing, choose_smoothing, log_likelihoods
from virl_tf.em.density import Fit
from virl_tf.em.stacking import as_good
from virl_tf.mixture import Mixture
from virl_tf.shapes import Array, Float64


class Described(NamedTuple):
    """An EM mixture of training rows, how it is smoothed, and how the same is made of others."""

    fit: Fit
    unsmoothed: Mixture
    smooth: Smoothing

    def __call__(self, rows: np.ndarray) -> Mixture:
        """Of rows [N, C + D]."""
        return self.smooth(self.fit(rows))

    def log_likelihoods(self, rows: np.ndarray) -> Float64[Array, " M"]:
        """Of rows [M, C + D] given their contexts."""
        return log_likelihoods(self.smooth(self.unsmoothed), rows, len(self.smooth.covariance))


def describe_rows(
    fits: Sequence[Fit], train: np.ndarray, held_out: np.ndarray, num_contexts: int
) -> Described:
    """With the first of the fits, unless held-out rows given their contexts are likelier under a
    later one by more than a standard error.

    Args:
        fits: at least one.
        train, held_out: rows [c, x], [N, C + D] and [M, C + D].
        num_contexts: C.
    """
    found, *others = (_described(fit, train, held_out, num_contexts) for fit in fits)
    if not others:
        return found
    of_found = found.log_likelihoods(held_out)
    for other in others:
        of_other = other.log_likelihoods(held_out)
        if not as_good(of_other - of_found):
            found, of_found = other, of_other
    return found


def _described(fit: Fit, train: np.ndarray, held_out: np.ndarray, num_contexts: int) -> Described:
    joint = fit(train)
    return Described(fit, joint, choose_smoothing(joint, train, held_out, num_contexts))
