"""Tiny runs of Algorithm 1, step by step, and their parts by SciPy, for the tests of the loop."""

from virl_tf import irl
from virl_tf.demonstrations import Data
from virl_tf.discriminator.fit import FitInfo
from virl_tf.network_stack import FrozenNetwork
from virl_tf.problem import make_problem
from virl_tf.vips.vips import VipsHistory

import numpy as np
import tensorflow as tf
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from tests import tiny
from tests.shared import make_network

X = tiny.demonstrations()
GRID = np.random.default_rng(9).normal(size=(40, 2)) * [3.0, 8.0]
NUM_COMPONENTS = 2


def start(method, seed=0, **sections):
    """Problem, first state and hparams of a tiny run."""
    hparams = tiny.hparams(method.family, **sections)
    problem = make_problem(Data(X), hparams, seed)
    return problem, irl.init(problem, method, NUM_COMPONENTS, hparams), hparams


def state_bytes(state):
    return [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(state)]


# --- by SciPy -------------------------------------------------------------------------------------


def mixture_log_prob(mixture, x):
    """One component at a time."""
    parts = [
        log_weight + multivariate_normal(mean, tril @ tril.T).logpdf(x)
        for log_weight, mean, tril in zip(*(np.asarray(a) for a in mixture), strict=True)
    ]
    return logsumexp(parts, axis=0)


def fusion_log_prob(policy, kde, x):
    points, width = np.asarray(kde.points), np.diag(np.asarray(kde.bandwidth) ** 2)
    kernels = [multivariate_normal(point, width).logpdf(x) for point in points]
    log_kde = logsumexp(kernels, axis=0) - np.log(len(points))
    return logsumexp([mixture_log_prob(policy, x), log_kde], axis=0) - np.log(2.0)


def moments_log_prob(x):
    """Log q*_0, the Gaussian with the demonstrations' moments."""
    return multivariate_normal(X.mean(axis=0), np.cov(X, rowvar=False)).logpdf(x)


def standardised(x):
    return ((np.asarray(x) - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32)


def network_logits(network, x):
    return np.asarray(network.logits(tf.constant(standardised(x))), np.float64)


# --- parts that are handed in ---------------------------------------------------------------------


def networks_before(t):
    """phi_0 ... phi_{t-1} of a `RecordingFitter`."""
    arrays = [make_network(num_layers=2, seed=i) for i in range(t)]
    return [FrozenNetwork(*(tf.constant(part) for part in network)) for network in arrays]


class RecordingFitter:
    """Returns fixed networks and remembers what it was asked to fit."""

    def __init__(self, losses=()):
        """`losses`: held out, in turn; 1 after the last of them."""
        self.calls = []
        self.losses = [*losses]

    def fit(self, train, held_out, previous, seed, iteration):
        self.calls.append(
            {
                "train": train,
                "held_out": held_out,
                "previous": previous,
                "seed": seed,
                "iteration": iteration,
            }
        )
        loss = self.losses.pop(0) if self.losses else 1.0
        info = FitInfo(1.0, loss, 2.0 * np.log(2.0), 0.5, 0, 1)
        return networks_before(iteration + 1)[-1], [np.full(3, float(iteration))], info


class RecordingImprove:
    """In the place of VIPS: moves the means by 0.1 and remembers its targets and seeds."""

    def __init__(self):
        self.targets = []
        self.seeds = []

    def __call__(self, policy, target, seed, hparams, contexts=None):
        self.targets.append(target)
        self.seeds.append(tuple(np.asarray(seed).tolist()))
        last = [0.0, float(len(self.targets))]
        history = VipsHistory(*(tf.constant(last, tf.float64) for _ in VipsHistory._fields))
        history = history._replace(rejected=history.rejected[::-1])
        return policy._replace(means=policy.means + 0.1), history
