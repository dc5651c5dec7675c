"""I-projections KL(q || p): on a grid in 2-D, as in the paper; elsewhere, of Gaussian mixtures,
from draws.
"""

from virl_tf import metrics
from virl_tf.density import Density
from virl_tf.mixture import Mixture, moments
from virl_tf.numerics import DENSITY, split_seed
from virl_tf.reward import CumulativeValues, Reward, evaluate
from virl_tf.tasks import RandomGaussians, Task
from virl_tf.validation import InputError

import numpy as np
import tensorflow as tf

from experiments.evaluation.base import mixture_of

DRAWS = 40_000  # of a density, or of the proposal for a reward
WIDENING = 1.5  # of the wide part of that proposal, against the demonstrations' covariance


class GridDistances:
    """The paper's numerical I-projection, on the grid around the demonstrations."""

    def __init__(self, task: Task, train: np.ndarray):
        """For a target in 2-D and its demonstrations [N, 2].

        Raises InputError for a log_prob of another shape: [N, 1] beside a reward's [N] is [N, N].
        """
        self._points = tf.constant(metrics.grid_around(train).points, DENSITY)
        self._log_p, self._rewards = task.log_prob(self._points), CumulativeValues(self._points)
        if (shape := list(np.shape(self._log_p))) != [len(self._points)]:
            where = f"for x of shape {list(self._points.shape)} it returned {shape}"
            raise InputError(f"log_prob of the task must map [N, D] to [N]; {where}.")

    def of_reward(self, reward: Reward, policy: Mixture) -> float:
        """Of the normalised exp(R)."""
        return metrics.i_projection(self._rewards(reward), self._log_p)

    def of_density(self, density: Density) -> float:
        """Of a normalised density."""
        return metrics.i_projection(density.log_prob(self._points), self._log_p)


class SampledDistances:
    """Estimates from draws, for any D.

    A density is sampled itself. A reward is not: self-normalised importance sampling from a mixture
    of p (a half) and, an eighth each, a wide Gaussian, the policy, q*_0 and the EM mixture that the
    reward may be averaged with (else q*_0 again). Without the last two, mass between the modes went
    unseen in ten dimensions: an EM mixture as a reward, 2.4 from p, was found to be 1.6. Mass that
    none of the five meets is not seen; a policy inferred on the reward with search may find it.
    """

    def __init__(self, task: RandomGaussians, train: np.ndarray):
        """For a target and its demonstrations [N, D]."""
        self._task = task
        wide = moments(train)
        self._wide = wide._replace(scale_trils=WIDENING * wide.scale_trils)
        target_draws = task.mixture.sample(DRAWS // 2, split_seed(0, 0, "distance of target"))
        wide_draws = self._wide.sample(DRAWS // 8, split_seed(0, 0, "distance of wide part"))
        self._rewards = CumulativeValues(tf.concat([target_draws, wide_draws], axis=0))

    def of_reward(self, reward: Reward, policy: Mixture) -> float:
        """Of the normalised exp(R), by draws; `policy`: where else its mass may lie."""
        others = {
            "policy": policy,
            "q*_0": reward.base,
            "EM": mixture_of(reward),
        }
        seeds = {name: split_seed(0, 0, f"distance of {name}") for name in others}
        draws = tf.concat([q.sample(DRAWS // 8, seeds[name]) for name, q in others.items()], axis=0)
        x = tf.concat([self._rewards.points, draws], axis=0)
        log_q = tf.concat([self._rewards(reward), evaluate(reward, draws)], axis=0)
        target = np.log(0.5) + self._task.mixture.log_prob(x)
        rest = [np.log(0.125) + part.log_prob(x) for part in (self._wide, *others.values())]
        log_proposal = tf.reduce_logsumexp(tf.stack([target, *rest]), axis=0)
        return metrics.sampled_i_projection(log_q, self._task.log_prob(x), log_proposal)

    def of_density(self, density: Density) -> float:
        """The mean of log q - log p over draws of q."""
        x = density.sample(DRAWS, split_seed(0, 0, "distance of density"))
        return float(tf.reduce_mean(density.log_prob(x) - self._task.log_prob(x)))


def distances_of(task: Task, train: np.ndarray) -> GridDistances | SampledDistances:
    """The paper's way where it is possible. Raises InputError where neither is."""
    if task.dim == 2:
        return GridDistances(task, train)
    if not isinstance(task, RandomGaussians):
        text = "DensityExperiment measures targets in 2-D, or RandomGaussians; this one has D = "
        raise InputError(f"{text}{task.dim}. Give its description another experiment.")
    return SampledDistances(task, train)
