"""What does not change during a run: demonstrations, what is fitted to them once, and the seed."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.density import Density
from virl_tf.features import Features, draw_frequencies, make_features
from virl_tf.hparams import Hparams
from virl_tf.kde import fit_kde, silverman_factor
from virl_tf.mixture import Mixture, bic_mixture, empty_mixture, moments
from virl_tf.numerics import DENSITY, numpy_seed
from virl_tf.shapes import Array, Float64
from virl_tf.splitting import held_out_rows

MAX_BLUR = 0.4
"""Silverman's factor up to which kernels resolve what a density is made of.

With 8,000 demonstrations in D = 2 and 5 (factors 0.22 and 0.35) the networks find what one Gaussian
leaves to them; in D = 10 (0.49), and with 300 rows in D = 3 (0.43), they do not.
"""


class Problem(NamedTuple):
    """Demonstrations and what is fitted to them before the first iteration.

    Attributes:
        demonstrations: all of them, in a random order.
        train: those that every phi_t is trained on.
        held_out: the others, by which phi_t is judged.
        estimate: p~, the density estimate of the fusion.
        prior: an EM mixture or a Gaussian that q*_0 may be.
        mixture: by EM, of `train`, for pooling; without components where nothing is pooled.
        features: what the networks see of a point.
        seed: of the run.
    """

    demonstrations: Float64[Array, "N D"]
    train: Float64[Array, "N_train D"]
    held_out: Float64[Array, "N_held_out D"]
    estimate: Density
    prior: Mixture
    mixture: Mixture
    features: Features
    seed: int


def make_problem(demonstrations: np.ndarray, hparams: Hparams, seed: int) -> Problem:
    """Shuffle and split demonstrations [N, D] once, fit p~, q*_0 and the mixture for pooling."""
    rng = np.random.default_rng(numpy_seed(seed, 0, "demonstration order"))
    shuffled = demonstrations[rng.permutation(len(demonstrations))]
    held_out_index, train_index = held_out_rows(len(shuffled), hparams.training.validation_fraction)
    train = shuffled[train_index]

    prior = _prior(shuffled, train, hparams, seed)
    estimate: Density = prior
    if hparams.kde.estimator != "auto" or prior.num_components == 1:
        estimate = density_estimate(demonstrations, hparams, seed)
    mixture = empty_mixture(shuffled.shape[1])
    if hparams.loop.mixture_average:
        mixture = bic_mixture(train, numpy_seed(seed, 0, "mixture"))

    bandwidth = None
    if hparams.kde.bandwidth == "held_out" and hasattr(estimate, "bandwidth"):  # not a mixture
        bandwidth = np.asarray(estimate.bandwidth)
    frequencies = draw_frequencies(demonstrations, bandwidth, hparams.network, seed)
    return Problem(
        tf.constant(shuffled, DENSITY),
        tf.constant(train, DENSITY),
        tf.constant(shuffled[held_out_index], DENSITY),
        estimate,
        prior,
        mixture,
        make_features(shuffled, frequencies),
        seed,
    )


def density_estimate(x: np.ndarray, hparams: Hparams, seed: int) -> Density:
    """p~ of the demonstrations x [N, D] where it is not q*_0: kernels, as in the paper, or a
    mixture by EM.
    """
    density_seed = numpy_seed(seed, 0, "bandwidth")
    if hparams.kde.estimator == "mixture":
        return bic_mixture(x, density_seed)
    return fit_kde(x, hparams.kde.bandwidth, hparams.kde.bandwidth_scale, density_seed)


def _prior(shuffled: np.ndarray, train: np.ndarray, hparams: Hparams, seed: int) -> Mixture:
    """The mixture for q*_0, of training rows alone: one that saw the held-out rows, too, would seem
    too good on them. Else the Gaussian with the demonstrations' moments.
    """
    kind = hparams.loop.prior
    if kind == "auto":
        kind = "moments" if silverman_factor(*shuffled.shape) <= MAX_BLUR else "mixture"
    if kind == "mixture":
        return bic_mixture(train, numpy_seed(seed, 0, "prior"))
    return moments(shuffled)
