"""The fusion mu_t = 0.5 q~_t + 0.5 p~ of policy and KDE: the proposal of the importance sampling."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.kde import Kde
from virl_tf.mixture import Mixture


class Fusion(NamedTuple):
    """mu(x) = 0.5 policy(x) + 0.5 kde(x); `kde` is the estimate p~, of kernels or a mixture."""

    policy: Mixture
    kde: Kde | Mixture

    def log_prob(self, x: tf.Tensor) -> tf.Tensor:
        """Log mu(x): [N, D] -> [N]."""
        return fuse(self.policy.log_prob(x), self.kde.log_prob(x))

    def sample(self, n: int, seed: Any) -> tf.Tensor:
        """N draws [n, D], exactly half (rounded down) from the policy: stratified, so with less variance than n coin tosses."""
        seeds = tf.random.split(tf.convert_to_tensor(seed), 2)
        estimate = self.kde.sample(n - n // 2, seeds[1])
        estimate = estimate[0] if isinstance(self.kde, Mixture) else estimate
        return tf.concat([self.policy.sample(n // 2, seeds[0])[0], estimate], axis=0)


def fuse(log_policy: tf.Tensor, log_estimate: tf.Tensor) -> tf.Tensor:
    """Log mu from log q~ and log p~ at the same points: [N], [N] -> [N]."""
    return tf.reduce_logsumexp(tf.stack([log_policy, log_estimate]), axis=0) - np.log(2.0)
