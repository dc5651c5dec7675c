"""Where a policy starts that is to be fitted to a recovered reward."""

import numpy as np
import tensorflow as tf

from virl_tf.importance import effective_sample_size
from virl_tf.mixture import Mixture, em_start, standard_normal_start
from virl_tf.numerics import DENSITY, numpy_seed, split_seed
from virl_tf.reward import Reward, evaluate

DRAWS = 20_000
FEWEST_EFFECTIVE = 10  # draws for each component
RESAMPLED = 100  # draws for each component


def reward_start(reward: Reward, num_components: int, seed: int) -> Mixture:
    """EM on draws of exp(R), which are resampled from the densities that the reward is made of.

    Where these miss exp(R), as G-EIM's, which are none, `spread_start`.
    """
    proposal = _proposal(reward)
    x = proposal.sample(DRAWS, split_seed(seed, 0, "start"))
    log_w = evaluate(reward, x) - proposal.log_prob(x)
    if not effective_sample_size(log_w) >= FEWEST_EFFECTIVE * num_components:
        return spread_start(reward, num_components, numpy_seed(seed, 0, "initial policy"))
    weights = tf.nn.softmax(log_w).numpy()
    rng = np.random.default_rng(numpy_seed(seed, 0, "start"))
    number = max(2000, RESAMPLED * num_components)
    rows = rng.choice(DRAWS, number, p=weights / weights.sum())
    return em_start(x.numpy()[rows], num_components, numpy_seed(seed, 0, "initial policy"))


def _proposal(reward: Reward) -> Mixture:
    """Equal shares of a Gaussian with the demonstrations' spread, the prior, and the EM mixture."""
    spread = Mixture(
        tf.zeros([1], DENSITY),
        reward.features.shift[None],
        tf.linalg.diag(reward.features.scale)[None],
    )
    parts = [spread]
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
