"""Line 4 of Algorithm 1: the policy's steps towards log q*_{t+1}, with contexts and without."""

import functools
from typing import Any

import tensorflow as tf

from virl_tf.conditional import ConditionalMixture, Policy
from virl_tf.hparams import PolicyHparams
from virl_tf.numerics import DENSITY, compiled, specs_of
from virl_tf.reward import Reward
from virl_tf.shapes import Array, Float64, Int32
from virl_tf.validation import InputError
from virl_tf.vips.conditional import FEWEST_DRAWS, conditional_steps
from virl_tf.vips.vips import (
    StepOptions,
    VipsHistory,
    default_samples,
    step_options,
    takes_gradients,
    vips_steps,
)


def improve(
    policy: Policy,
    target: Reward,
    seed: Int32[Array, "2"],
    hparams: PolicyHparams,
    contexts: Float64[Array, "N C"] | None = None,
) -> tuple[Policy, VipsHistory]:
    """`hparams.update_steps` steps of `policy` towards a reward; with contexts, for these.

    Compiled once per run, however many networks the reward has.

    Raises:
        InputError: see `check_surrogate`.
    """
    if contexts is not None:
        check_surrogate(hparams)
        contexts = tf.convert_to_tensor(contexts, DENSITY)
    gradients = contexts is None and takes_gradients(hparams, target)
    num_samples = hparams.samples_per_component or _default_samples(policy, gradients)
    of_contexts = None if contexts is None else specs_of(contexts)
    specs = specs_of(policy), specs_of(target), of_contexts
    steps = _compiled_steps(*specs, hparams.update_steps, num_samples, gradients)
    options = step_options(hparams.kl_bound, hparams.weight_kl_bound, hparams.ridge)
    return steps(policy, target, contexts, tf.constant(seed), options)


def _default_samples(policy: Policy, gradients: bool) -> int:
    if isinstance(policy, ConditionalMixture):
        return max(FEWEST_DRAWS, default_samples(policy.num_contexts + policy.dim))
    return default_samples(policy.dim, gradients=gradients)


def check_surrogate(hparams: PolicyHparams) -> None:
    """Raises InputError if it is of gradients, which steps with contexts do not follow."""
    if hparams.surrogate == "gradients":
        raise InputError("policy.surrogate: gradients is not for contexts; allowed: values, auto.")


@functools.cache
def _compiled_steps(
    policy: Any, target: Any, contexts: Any, num_steps: int, num_samples: int, gradients: bool
) -> Any:
    """The compiled steps for a policy, a reward and contexts (or None) of these specs.

    By XLA: a step is hundreds of small operations, and fused they take a quarter of the time, which
    pays for the compilation from the eighth iteration on. Not with gradients, whose steps are large
    products (docs/decisions-policies.md, xla).
    """
    sizes: dict[str, Any] = {"num_steps": num_steps, "num_samples": num_samples}

    def steps(
        policy: Any, target: Reward, contexts: Any, seed: tf.Tensor, options: StepOptions
    ) -> tuple[Policy, VipsHistory]:
        if contexts is None:
            return vips_steps(policy, target.log_prob, seed, options, **sizes, gradients=gradients)
        return conditional_steps(policy, target.log_prob, contexts, seed, options, **sizes)

    seed_spec = tf.TensorSpec([2], tf.int32)
    options_spec = StepOptions(*[tf.TensorSpec([], DENSITY)] * 3)
    specs = policy, target, contexts, seed_spec, options_spec
    return compiled(steps, *specs, jit_compile=not gradients)
