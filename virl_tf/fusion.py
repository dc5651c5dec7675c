"""The fusion mu_t = 0.5 q~_t + 0.5 p~ of policy and KDE: the proposal of the importance sampling."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.kde import Kde
from virl_tf.mixture import Mixture


class Fusion(NamedTuple):
    """mu(x) = 0.5 policy(x) + 0.5 kde(x); with a `wide` part (1 - wide_share) of that + wide_share wide(x).

    Attributes:
        kde: the estimate p~, of kernels or a mixture.
        wide: a Gaussian that covers the demonstrations, or None.
    """

    policy: Mixture
    kde: Kde | Mixture
    wide: Mixture | None = None
    wide_share: float = 0.0

    def log_prob(self, x: tf.Tensor) -> tf.Tensor:
        """Log mu(x): [N, D] -> [N]."""
        return self.combine(self.policy.log_prob(x), self.kde.log_prob(x), x)

    def combine(self, log_policy: tf.Tensor, log_kde: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        """Log mu from log q~ and log p~ at x: [N], [N], [N, D] -> [N]."""
        half = tf.reduce_logsumexp(tf.stack([log_policy, log_kde]), axis=0) - np.log(2.0)
        if self.wide is None:
            return half
        parts = [half + np.log1p(-self.wide_share), self.wide.log_prob(x) + np.log(self.wide_share)]
        return tf.reduce_logsumexp(tf.stack(parts), axis=0)

    def counts(self, n: int) -> tuple[int, int, int]:
        """How many of n draws come from policy, p~ and wide part: stratified, so with less variance than n tosses of a die."""
        wide = round(self.wide_share * n) if self.wide is not None else 0
        return (n - wide) // 2, n - wide - (n - wide) // 2, wide

    def sample(self, n: int, seed: Any) -> tf.Tensor:
        """N draws [n, D], first the policy's."""
        seeds = tf.random.split(tf.convert_to_tensor(seed), 2)
        return tf.concat([self.policy.sample(self.counts(n)[0], seeds[0])[0], self.sample_fixed(n, seeds[1])], axis=0)

    def sample_fixed(self, n: int, seed: Any) -> tf.Tensor:
        """Those of n draws that are not the policy's."""
        _, kde, wide = self.counts(n)
        draws = [draw(self.kde, kde, seed)]
        if self.wide is not None:
            draws.append(draw(self.wide, wide, tf.random.split(tf.convert_to_tensor(seed), 2)[0]))
        return tf.concat(draws, axis=0)


def draw(density: Mixture | Kde | Fusion, n: int, seed: Any) -> tf.Tensor:
    """N draws [n, D] of any density here."""
    return density.sample(n, seed)[0] if isinstance(density, Mixture) else density.sample(n, seed)
