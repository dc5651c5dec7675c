"""Where a policy starts that is to be fitted to a recovered reward."""

from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.em import em_mixture, em_start
from virl_tf.importance import effective_sample_size
from virl_tf.mixture import Mixture, standard_normal_start
from virl_tf.numerics import DENSITY, numpy_seed, split_seed
from virl_tf.reward import Reward, evaluate

# For each component: draws; effective draws, without which EM on them is no start, and with which
# it needs no ridge beyond rounding; and rows for EM.
DRAWS, FEWEST_EFFECTIVE, RESAMPLED = 2000, 10, 400


def reward_start(reward: Reward, num_components: int, seed: int) -> Mixture:
    """EM on draws of exp(R), which are resampled from the densities that the reward is made of.

    Where these miss exp(R), as G-EIM's, which are none, `spread_start`.
    """
    proposal, number = _proposal(reward), max(20_000, DRAWS * num_components)
    x = proposal.sample(number, split_seed(seed, 0, "start"))
    log_w = evaluate(reward, x) - proposal.log_prob(x)
    effective = effective_sample_size(log_w)
    em_seed = numpy_seed(seed, 0, "initial policy")
    if not effective >= FEWEST_EFFECTIVE * num_components:
        return spread_start(reward, num_components, em_seed)
    weights = tf.nn.softmax(log_w).numpy()
    rng = np.random.default_rng(numpy_seed(seed, 0, "start"))
    rows = rng.choice(number, max(2000, RESAMPLED * num_components), p=weights / weights.sum())
    drawn = x.numpy()[rows]
    # A ridge in units of the spread is wider than a thin mode (decisions.md: reward-start).
    if effective >= 5 * (reward.dim + 1) * num_components:
        return em_mixture(drawn, num_components, em_seed)
    return em_start(drawn, num_components, em_seed)


def _proposal(reward: Reward) -> Mixture:
    """Equal shares of a Gaussian with the demonstrations' spread, the prior, and the EM mixture."""
    spread = Mixture(
        tf.zeros([1], DENSITY),
        reward.features.shift[None],
        tf.linalg.diag(reward.features.scale)[None],
    )
    parts: list[Any] = [spread]
    if reward.base_exponent > 0.0:
        parts.append(reward.base)
    if reward.mixture.num_components:
        parts.append(reward.mixture)
    arrays = [tf.concat(arrays, axis=0) for arrays in zip(*parts, strict=True)]
    return Mixture(arrays[0] - np.log(len(parts)), *arrays[1:])


def spread_start(reward: Reward, num_components: int, seed: int) -> Mixture:
    """Means drawn over the spread of a reward's demonstrations, each component with 1/K of it."""
    policy = standard_normal_start(num_components, reward.dim, seed)
    widths = reward.features.scale * num_components ** (-1.0 / reward.dim)
    return policy._replace(
        means=reward.features.shift + reward.features.scale * policy.means,
        scale_trils=tf.linalg.diag(tf.ones_like(policy.means) * widths),
    )
