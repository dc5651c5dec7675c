"""The two classes of the classifier phi_t: demonstrations, and weighted draws of a proposal."""

from typing import Any, NamedTuple

import tensorflow as tf

from virl_tf.contexts import Where, drawn
from virl_tf.density import Density
from virl_tf.discriminator.fit import Classes, LogitData
from virl_tf.features import Features
from virl_tf.importance import normalise
from virl_tf.methods import Method
from virl_tf.numerics import DENSITY, NETWORK, to_network
from virl_tf.problem import Problem
from virl_tf.reward import Reward, evaluate
from virl_tf.shapes import Array, Bool, Float64
from virl_tf.splitting import split


class Negatives(NamedTuple):
    """Draws of the proposal with their normalised importance weights.

    With contexts x are rows [c, x], and `held_out` tells which of them are for validation.
    """

    x: Float64[Array, "N D"]
    log_weights: Float64[Array, " N"]
    held_out: Bool[Array, " N"] | None = None


def draw_negatives(
    proposal: Density, base: Reward, method: Method, where: Where, seed: Any
) -> Negatives:
    """Points x ~ proposal with log w_t(x) = log q(x) - log proposal(x) + const (below Eq. 3).

    The constant, the integral of q, cancels in the self-normalisation.

    Args:
        base: log q, the numerator.
        where, seed: how many draws, or for which contexts; stateless seed, int32 [2].
    """
    x = drawn(proposal, where, seed)
    num_draws, held_out = None, None
    if not isinstance(where, int):
        num_draws, held_out = where.num_draws, where.held_out
    if not method.importance_weights:
        return Negatives(x, tf.zeros(len(x), DENSITY), held_out)
    log_ratios = evaluate(base, x) - proposal.log_prob(x)
    return Negatives(x, normalise(log_ratios, num_draws), held_out)


def logit_data(
    x: Float64[Array, "N D"],
    log_weights: Float64[Array, " N"] | None,
    subtracted: Density | None,
    features: Features,
    num_contexts: int = 0,
) -> LogitData:
    """Points as the classifier sees them; its logit is the network's output - log subtracted(x).

    The subtracted density is taken in standardised coordinates: R_t is free up to a constant, and
    this one does not depend on the data's units.

    Args:
        x: points, or rows [c, x] whose first `num_contexts` columns are no part of a density.
    """
    ones = tf.ones(len(x), NETWORK)
    weights = ones if log_weights is None else to_network(tf.exp(log_weights))
    offsets = tf.zeros(len(x), NETWORK)
    if subtracted is not None:
        log_volume = tf.reduce_sum(tf.math.log(features.scale[num_contexts:]))
        offsets = to_network(-subtracted.log_prob(x) - log_volume)
    return LogitData(features(x), offsets, weights)


def classes(
    problem: Problem, negatives: Negatives, subtracted: Density | None, fraction: float
) -> tuple[Classes, Classes]:
    """(held out, train): both classes as the classifier sees them; `subtracted` as in `logit_data`.

    The demonstrations were split once, so a warm start has never seen those held out. Evenly spaced
    negatives are as many from the policy as from the density estimate.
    """
    view = subtracted, problem.features, problem.num_contexts
    sampled = logit_data(negatives.x, negatives.log_weights, *view)
    sampled_held_out, sampled_train = split(sampled, fraction, negatives.held_out)
    held_out = logit_data(problem.held_out, None, *view)
    train = logit_data(problem.train, None, *view)
    return Classes(held_out, sampled_held_out), Classes(train, sampled_train)
