"""The fusion mu_t = 0.5 q~_t + 0.5 p~ of policy and KDE: the proposal of the importance sampling."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.kde import Kde
from virl_tf.mixture import Mixture


class Fusion(NamedTuple):
    """mu(x) = 0.5 policy(x) + 0.5 kde(x); with a `wide` part (1 - wide_share) of that + wide_share
    wide(x).

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
        half = tf.reduce_logsumexp(
            tf.stack([self.policy.log_prob(x), self.kde.log_prob(x)]), axis=0
        ) - np.log(2.0)
        if self.wide is None:
            return half
        parts = [half + np.log1p(-self.wide_share), self.wide.log_prob(x) + np.log(self.wide_share)]
        return tf.reduce_logsumexp(tf.stack(parts), axis=0)

    def counts(self, n: int) -> tuple[int, int, int]:
        """How many of n draws come from policy, p~ and wide part: stratified, so with less variance
        than n tosses of a die.
        """
        wide = round(self.wide_share * n) if self.wide is not None else 0
        return (n - wide) // 2, n - wide - (n - wide) // 2, wide

    def sample(self, n: int, seed: Any) -> tf.Tensor:
        """N draws [n, D]: the policy's, then those of p~, then the wide part's."""
        policy, kde, wide = self.counts(n)
        seeds = tf.random.split(tf.convert_to_tensor(seed), 2)
        draws = [draw(self.policy, policy, seeds[0]), draw(self.kde, kde, seeds[1])]
        if self.wide is not None:
            draws.append(draw(self.wide, wide, tf.random.split(seeds[1], 2)[0]))
        return tf.concat(draws, axis=0)


def draw(density: Mixture | Kde | Fusion, n: int, seed: Any) -> tf.Tensor:
    """N draws [n, D] of any density here."""
    return density.sample(n, seed)[0] if isinstance(density, Mixture) else density.sample(n, seed)
