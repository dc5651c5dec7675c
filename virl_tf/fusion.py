"""The fusion mu_t = 0.5 q~_t + 0.5 p~ of policy and density estimate, from which negatives come."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.contexts import halves
from virl_tf.density import Density
from virl_tf.numerics import sampling_seed


class Fusion(NamedTuple):
    """mu(x) = 0.5 policy(x) + 0.5 estimate(x), a `Density`."""

    policy: Density  # q~_t
    estimate: Density  # p~

    def log_prob(self, x: Any) -> tf.Tensor:
        """Log mu(x): [N, D] -> [N]."""
        parts = tf.stack([self.policy.log_prob(x), self.estimate.log_prob(x)])
        return tf.reduce_logsumexp(parts, axis=0) - np.log(2.0)

    def sample(self, n: Any, seed: Any = None) -> tf.Tensor:
        """Draws [n, D], first the policy's half, then the estimate's.

        Half of each, not n tosses of a coin: stratified draws have less variance.

        Args:
            n: how many, or of conditional densities the contexts [n, C] (`virl_tf.contexts`).
            seed: as of its parts.
        """
        seeds = tf.random.split(sampling_seed(seed), 2)
        first, second = halves(n)
        of_policy = self.policy.sample(first, seeds[0])
        of_estimate = self.estimate.sample(second, seeds[1])
        return tf.concat([of_policy, of_estimate], axis=0)
