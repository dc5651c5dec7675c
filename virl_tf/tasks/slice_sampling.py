"""Demonstrations by elliptical slice sampling; the paper cites its generalised form."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, compiled, specs_of, split_seed

# Chains advanced together. A sweep of the sampler ends when its slowest chain is done, so a block
# should not be too large; the compiled function has this one shape, whatever n is.
_BLOCK = 1000


def slice_sample(
    log_prob: Callable[[tf.Tensor], tf.Tensor], prior: Mixture, n: int, seed: int, burn_in: int
) -> np.ndarray:
    """Draw n independent points [n, D], one from each chain: its state after `burn_in` transitions.

    One draw per chain, because a chain hardly changes between modes: many draws of few chains get
    the modes' masses wrong.

    Args:
        log_prob: [N, D] -> [N] float64, unnormalised.
        prior: one Gaussian (K = 1) that covers the target; the sampler needs one, and it is divided
            out of the likelihood.
        seed: of the whole call. Draw i is the same for every n > i.
    """
    blocks = range(-(-n // _BLOCK))
    seeds = [tf.constant(split_seed(seed, block, "slice sampling")) for block in blocks]
    draw = compiled(lambda seed: _draw_block(log_prob, prior, seed, burn_in), specs_of(seeds[0]))
    return np.concatenate([draw(block).numpy() for block in seeds])[:n]


def _draw_block(
    log_prob: Callable[[tf.Tensor], tf.Tensor], prior: Mixture, seed: tf.Tensor, burn_in: int
) -> tf.Tensor:
    mean = prior.means[0]

    def draw_prior(seed: Any) -> tf.Tensor:
        z = tf.random.stateless_normal([_BLOCK, prior.dim], seed, dtype=DENSITY)
        return tf.linalg.matvec(prior.scale_trils[0], z)

    def log_likelihood(centred: tf.Tensor) -> tf.Tensor:
        return log_prob(centred + mean) - prior.log_prob(centred + mean)

    # TFP's sampler wants a prior with zero mean: it moves in coordinates centred at the prior's.
    kernel = tfp.experimental.mcmc.EllipticalSliceSampler(draw_prior, log_likelihood)
    seeds = tfp.random.split_seed(seed, n=2)
    draws = tfp.mcmc.sample_chain(
        1,
        draw_prior(seeds[0]),
        kernel=kernel,
        num_burnin_steps=burn_in - 1,
        trace_fn=None,
        seed=seeds[1],
    )
    return draws[0] + mean
