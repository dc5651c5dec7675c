"""Joint EM mixtures whose Gaussians, given a context, also speak for contexts beside their own.

EM fits p(c, x), though only p(x | c) is wanted: its Gaussians over contexts are as narrow as the
contexts they saw, so between two of them, and where there was none, the nearest one alone decides,
with gains that a few contexts close together tell next to nothing about. So, with V the covariance
of all contexts and G the gains of the regression of all x on c,

    S_o' = S_o + w V,    A_o' = (S_xc,o + l_o G V) (S_o + l_o V)^-1,    l_o = nu / N_o,

where component o has N_o rows: contexts seen through a Gaussian kernel, and gains shrunk towards G
by nu rows. Sigma_o' is what x scatter around A_o' c + b_o'. Held-out rows choose w
(docs/decisions-contexts.md, smoothing).
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.conditional import conditioned
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY
from virl_tf.shapes import Array, Float64

WIDTHS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)  # w, in units of the variances of all contexts
PSEUDO_ROWS = 0.01  # nu


class Smoothing(NamedTuple):
    """How the mixtures of a set of rows [c, x] are smoothed.

    Attributes:
        covariance: V.
        gains: G.
        num_rows: N, of which a component of weight pi_o has N_o = pi_o N.
        width: w.
    """

    covariance: Float64[Array, "C C"]
    gains: Float64[Array, "D C"]
    num_rows: int
    width: float = 0.0

    def __call__(self, joint: Mixture) -> Mixture:
        """The smoothed mixture over rows [c, x]; `joint` itself if C = 0."""
        size, v = len(self.covariance), self.covariance
        if size == 0:
            return joint
        covariances = np.asarray(joint.covariances)
        of_c, cross = covariances[:, :size, :size], covariances[:, size:, :size]
        counts = self.num_rows * np.exp(np.asarray(joint.log_weights))
        # A component may have lost all its rows: l_o stays a number.
        shares = (PSEUDO_ROWS / np.maximum(counts, PSEUDO_ROWS))[:, None, None]
        gains = (cross + shares * (self.gains @ v)) @ np.linalg.inv(of_c + shares * v)

        # E[(x - A c - b) (x - A c - b)^T] = S_xx - A S_cx - S_xc A^T + A S_cc A^T
        explained = gains @ cross.mT
        residual = covariances[:, size:, size:] - explained - explained.mT
        residual = residual + gains @ of_c @ gains.mT
        of_c = of_c + self.width * v
        cross = gains @ of_c
        of_x = residual + cross @ gains.mT
        smoothed = np.block([[of_c, cross.mT], [cross, of_x]])
        return joint._replace(scale_trils=tf.constant(np.linalg.cholesky(smoothed), DENSITY))


def choose_smoothing(
    joint: Mixture, train: np.ndarray, held_out: np.ndarray, num_contexts: int
) -> Smoothing:
    """With the w under which held-out rows are likeliest given their contexts.

    Args:
        joint: a mixture of `train`, which did not see `held_out`.
        train, held_out: rows [c, x], [N, C + D] and [M, C + D].
        num_contexts: C; without any there is nothing to smooth.
    """
    centred = train - train.mean(axis=0)
    c, x = centred[:, :num_contexts], centred[:, num_contexts:]
    if num_contexts == 0:
        return Smoothing(c.T @ c, x.T @ c, len(train))
    gains = np.linalg.lstsq(c, x, rcond=None)[0].T
    plain = Smoothing(c.T @ c / len(c), gains, len(train))

    def likelihood(smoothing: Smoothing) -> float:
        return float(log_likelihoods(smoothing(joint), held_out, num_contexts).mean())

    return max((plain._replace(width=width) for width in WIDTHS), key=likelihood)


def log_likelihoods(joint: Mixture, rows: np.ndarray, num_contexts: int) -> Float64[Array, " M"]:
    """Of rows [M, C + D] given their contexts."""
    return conditioned(joint, num_contexts).log_prob(rows).numpy()
