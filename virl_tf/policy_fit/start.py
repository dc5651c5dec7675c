"""Where a policy starts that is to be fitted to a recovered reward."""

import numpy as np
import tensorflow as tf

from virl_tf.conditional import ConditionalMixture, Policy, conditioned, field_shapes
from virl_tf.contexts import DRAWS as DRAWS_OF_CONTEXT
from virl_tf.contexts import drawn, places
from virl_tf.density import Density
from virl_tf.em.em import FULL, Covariances, em_mixture
from virl_tf.em.growth import grow_once
from virl_tf.fusion import Fusion
from virl_tf.importance import effective_sample_size, normalise
from virl_tf.mixture import Mixture, resized, standard_normal_start
from virl_tf.numerics import DENSITY, numpy_seed, split_seed
from virl_tf.reward import Reward, evaluate
from virl_tf.shapes import Array, Float64
from virl_tf.vips.vips import Target, density_at, values_at

# For each component: draws; effective draws, without which EM on them is no start, and with which
# it needs no ridge beyond rounding; and rows for EM.
DRAWS, FEWEST_EFFECTIVE, RESAMPLED = 2000, 10, 400
# Draws of which those inside of a constraint count, and how many of these EM sees; of fewer
# effective ones so many: growth on copies of a few draws ends in a spike on each.
INSIDE_OF, MOST_RESAMPLED = 100_000, 6000


def reward_start(reward: Reward, num_components: int, seed: int) -> Mixture:
    """The EM mixture that the reward carries, pooled with it or not, `resized`; of other rewards EM
    on draws of exp(R), which are resampled from the densities that it is made of.

    Where these miss exp(R), as G-EIM's, which are none, `spread_start`.
    """
    mixture = reward.mixture
    if isinstance(mixture, Mixture) and mixture.num_components:
        return resized(mixture, num_components)
    proposal, number = _proposal(reward), max(20_000, DRAWS * num_components)
    x = proposal.sample(number, split_seed(seed, 0, "start"))
    log_w = evaluate(reward, x) - proposal.log_prob(x)
    if _misses(log_w, num_components):
        em_seed = numpy_seed(seed, 0, "initial policy")
        return spread_start(reward, num_components, em_seed)
    return _em_of_weighted(x, log_w, num_components, seed)


def constrained_start(
    mixture: Mixture, target: Target, num_components: int, seed: int
) -> Mixture | None:
    """Components where exp(target) has its mass inside of a constraint.

    What is inside may be half of each mode, or of one component over two modes: so an EM mixture
    grows on draws inside, weighted by the target. None: they are too few for that
    (docs/decisions-policies.md, constraints).

    Args:
        mixture: from which draws reach all that the constraint leaves open.
        target: [N, D] -> [N], -inf outside.
    """
    x = mixture.sample(INSIDE_OF, split_seed(seed, 0, "constrained start"))
    log_w = values_at(target, x) - density_at(mixture, x)
    log_w = tf.where(tf.math.is_finite(log_w), log_w, -np.inf)
    if _misses(log_w, num_components):
        return None
    number = min(MOST_RESAMPLED, int(effective_sample_size(log_w)))
    rows = _resampled(x, log_w, number, seed)
    policy = resized(grow_once(rows, numpy_seed(seed, 0, "start")), num_components)
    # Components that `resized` left out have their rows nearest to one that it kept.
    nearest = policy.component_log_prob(rows).numpy().argmax(axis=1)
    shares = np.bincount(nearest, minlength=num_components) + 1.0
    return policy._replace(log_weights=tf.constant(np.log(shares / shares.sum()), DENSITY))


def _misses(log_w: Float64[Array, " N"], num_components: int) -> bool:
    return not effective_sample_size(log_w) >= FEWEST_EFFECTIVE * num_components


def _em_of_weighted(
    x: Float64[Array, "N D"], log_w: Float64[Array, " N"], num_components: int, seed: int
) -> Mixture:
    """EM on draws that are resampled by their weights.

    Those that stand for few rows want a ridge; else it would be wider than a thin mode
    (docs/decisions-policies.md, reward-start).
    """
    chosen = _resampled(x, log_w, max(2000, RESAMPLED * num_components), seed)
    enough = effective_sample_size(log_w) >= 5 * (x.shape[1] + 1) * num_components
    covariances = FULL if enough else Covariances("full", 1e-3)
    em_seed = numpy_seed(seed, 0, "initial policy")
    return em_mixture(chosen, num_components, em_seed, covariances)


def _resampled(
    x: Float64[Array, "N D"], log_w: Float64[Array, " N"], number: int, seed: int
) -> Float64[Array, "M D"]:
    weights = tf.nn.softmax(log_w).numpy()
    rng = np.random.default_rng(numpy_seed(seed, 0, "start"))
    return x.numpy()[rng.choice(len(x), number, p=weights / weights.sum())]


def _proposal(reward: Reward) -> Mixture:
    """Equal shares of a Gaussian with the demonstrations' spread, and the prior."""
    spread = Mixture(
        tf.zeros([1], DENSITY),
        reward.features.shift[None],
        tf.linalg.diag(reward.features.scale)[None],
    )
    if reward.base_exponent == 0.0:
        return spread
    pairs = zip(spread, reward.base, strict=True)
    arrays = [tf.concat(pair, axis=0) for pair in pairs]
    return Mixture(arrays[0] - np.log(2.0), *arrays[1:])


def conditional_start(
    reward: Reward, contexts: Float64[Array, "M C"], num_components: int, seed: int
) -> Policy:
    """What EM on rows [c, x] says of x given c: draws of exp(R(c, .)), resampled as above within
    each context. Without weights where these densities miss exp(R).
    """
    proposal: Density = reward.base
    if reward.mixture.num_components:
        proposal = Fusion(reward.base, reward.mixture)
    number = max(20_000, DRAWS * num_components)
    where = places(contexts, number, split_seed(seed, 0, "contexts"))
    rows = drawn(proposal, where, split_seed(seed, 0, "start"))
    log_w = normalise(evaluate(reward, rows) - proposal.log_prob(rows), DRAWS_OF_CONTEXT)
    if _misses(log_w, num_components):
        log_w = tf.zeros_like(log_w)
    joint = _em_of_weighted(rows, log_w, num_components, seed)
    return conditioned(joint, reward.num_contexts)


def standard_conditional_start(
    num_components: int, dim: int, num_contexts: int, seed: int
) -> ConditionalMixture:
    """The experts of `standard_normal_start`, the same in all contexts."""
    policy = standard_normal_start(num_components, dim, seed)
    shapes = field_shapes(num_components, dim, num_contexts)
    zeros = ConditionalMixture(*(tf.zeros(shape, DENSITY) for shape in shapes))
    return zeros._replace(offsets=policy.means, scale_trils=policy.scale_trils)


def spread_start(reward: Reward, num_components: int, seed: int) -> Mixture:
    """Means drawn over the spread of a reward's demonstrations, each component with 1/K of it."""
    policy = standard_normal_start(num_components, reward.dim, seed)
    widths = reward.features.scale * num_components ** (-1.0 / reward.dim)
    return policy._replace(
        means=reward.features.shift + reward.features.scale * policy.means,
        scale_trils=tf.linalg.diag(tf.ones_like(policy.means) * widths),
    )
