"""VIPS with a fixed number of components: N trust-region steps of a mixture towards exp(target), in
one compiled call.

For every component VIPS maximises E_{q(x|o)}[log p*(x) + log q~(o|x)] + H(q(x|o)) with the
responsibilities log q~(o|x) of the current mixture, a lower bound of -KL(q || p*) that is tight at
the current mixture (arenz2018). The same draws serve the components and the weights.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from virl_tf.hparams import PolicyHparams
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, compiled, specs_of
from virl_tf.reward import Reward
from virl_tf.vips.surrogate import fit_quadratic, num_coefficients
from virl_tf.vips.trust_region import update_components, update_weights

Target = Callable[[tf.Tensor], tf.Tensor]


class VipsHistory(NamedTuple):
    """One value per step, [num_steps] float64, about the mixture the step started from."""

    elbo: Any  # sum_o w_o E_{q(x|o)}[log p*(x) - log q~(x)], at most log of the target's integral
    component_kl: Any  # largest KL(new || old) of a component
    weight_kl: Any  # KL of the weights
    effective_components: Any  # exp(H(w))
    rejected: Any  # share of samples where the target was not finite


def default_samples(dim: int) -> int:
    """Samples per component and step when not given: three for each coefficient of the surrogate,
    at least 50.
    """
    return max(50, 3 * num_coefficients(dim))


def samples_per_component(hparams: PolicyHparams, dim: int) -> int:
    """The number `hparams` asks for."""
    return hparams.samples_per_component or default_samples(dim)


def vips_steps(
    policy: Mixture,
    target: Target,
    seed: Any,
    kl_bound: Any,
    weight_kl_bound: Any,
    ridge: Any,
    *,
    num_steps: int,
    num_samples: int,
    first_step: Any = 0,
) -> tuple[Mixture, VipsHistory]:
    """`num_steps` updates of `policy` towards exp(target).

    Not compiled: `improve` and `fit_policy` compile it.

    Args:
        target: log p*(x) + const, float64 [N, D] -> [N]. Values that are not finite (outside its
            support) count as lower than all others.
        seed: stateless, int32 [2].
        kl_bound, weight_kl_bound, ridge: [] float64.
        num_steps, num_samples: static; samples are per component and step.
        first_step: [] int32, the number of steps done before: 2 + 3 steps are the same as 5.
    """

    def body(step: tf.Tensor, policy: Mixture, history: VipsHistory) -> Any:
        step_seed = tf.random.fold_in(seed, first_step + step)
        policy, info, _ = vips_step(
            policy, target, step_seed, kl_bound, weight_kl_bound, ridge, num_samples
        )
        history = tf.nest.map_structure(
            lambda h, v: tf.tensor_scatter_nd_update(h, [[step]], [v]), history, info
        )
        return step + 1, policy, history

    policy = Mixture(*(tf.convert_to_tensor(a, DENSITY) for a in policy))
    empty = VipsHistory(*(tf.zeros([num_steps], DENSITY) for _ in VipsHistory._fields))
    state = (tf.constant(0), policy, empty)
    _, policy, history = tf.while_loop(
        lambda i, *_: i < num_steps, body, state, maximum_iterations=num_steps
    )
    return policy, history


class Past(NamedTuple):
    """The draws of the last P steps, and the Gaussians they came from."""

    points: Any  # [K, P, S, D]
    values: Any  # [K, P, S]
    means: Any  # [K, P, D]
    inverses: Any  # [K, P, D, D], of the Cholesky factors
    log_normalisers: Any  # [K, P]


def draw_past(policy: Mixture, target: Target, seed: Any, num_past: int, num_samples: int) -> Past:
    """As if the last `num_past` steps had changed nothing."""
    k, d = policy.means.shape
    z = tf.random.stateless_normal([k, num_past * num_samples, d], seed, dtype=DENSITY)
    x = policy.means[:, None] + tf.einsum("kij,ksj->ksi", policy.scale_trils, z)
    values = tf.cast(target(tf.reshape(x, [-1, d])), DENSITY)
    about = (policy.means, _inverses(policy), policy.log_normalisers())
    shape = [k, num_past, num_samples]
    return Past(
        tf.reshape(x, [*shape, d]),
        tf.reshape(values, shape),
        *(tf.repeat(a[:, None], num_past, axis=1) for a in about),
    )


def _inverses(policy: Mixture) -> tf.Tensor:
    return tf.linalg.triangular_solve(policy.scale_trils, tf.eye(policy.dim, dtype=DENSITY))


def _pool(
    policy: Mixture, past: Past, points: tf.Tensor, values: tf.Tensor
) -> tuple[Past, tf.Tensor, tf.Tensor, tf.Tensor]:
    """New draws [K, S, D] together with the past: all of them, z [K, N, D], log q(x|o) [K, N] and
    weights of mean one [K, N].

    The weights are q(x|o) over the mixture of the Gaussians that drew component o's points. The
    present one is among them, so no weight exceeds P + 1 times another's share however far the past
    has gone.
    """
    new = Past(points, values, policy.means, _inverses(policy), policy.log_normalisers())
    both = Past(
        *(tf.concat([old, now[:, None]], axis=1) for old, now in zip(past, new, strict=True))
    )
    k, d = policy.means.shape
    x = tf.reshape(both.points, [k, 1, -1, d])
    z = tf.matmul(x - both.means[:, :, None], both.inverses, transpose_b=True)  # [K, P + 1, N, D]
    log_q = -0.5 * tf.reduce_sum(z * z, axis=-1) - both.log_normalisers[:, :, None]
    log_own = log_q[:, -1]
    weights = 1.0 / (
        1.0 + tf.reduce_sum(tf.exp(tf.minimum(log_q[:, :-1] - log_own[:, None], 700.0)), axis=1)
    )
    return both, z[:, -1], log_own, weights / tf.reduce_mean(weights, axis=1, keepdims=True)


class Draws(NamedTuple):
    """What a step evaluated."""

    points: Any  # [K, S, D]
    values: Any  # [K, S], log p* there, as the target gave it
    gains: Any  # [K], E_{q(x|o)}[log p*(x) - log q~(x)]
    past: Any = ()  # for the next step, where samples are used again


def vips_step(
    policy: Mixture,
    target: Target,
    seed: Any,
    kl_bound: Any,
    weight_kl_bound: Any,
    ridge: Any,
    num_samples: int,
    past: Any = (),
) -> tuple[Mixture, VipsHistory, Draws]:
    """One update of all components and of the weights.

    Args:
        kl_bound: [], or [K] for a bound of each component's own.
        past: draws to use again, beside `num_samples` new ones; () for none.
    """
    k, d = policy.means.shape
    z = tf.random.stateless_normal([k, num_samples, d], seed, dtype=DENSITY)
    x = tf.reshape(
        policy.means[:, None] + tf.einsum("kij,ksj->ksi", policy.scale_trils, z), [-1, d]
    )
    values = new_values = tf.reshape(tf.cast(target(x), DENSITY), [k, num_samples])
    points = tf.reshape(x, [k, num_samples, d])
    weights = None
    if past:
        both, z, log_own, weights = _pool(policy, past, points, values)
        x, values = tf.reshape(both.points, [-1, d]), tf.reshape(both.values, [k, -1])
        past = Past(*(a[:, 1:] for a in both))
    else:  # log q(x|o) of the component drawn from
        log_own = -0.5 * tf.reduce_sum(z**2, axis=-1) - policy.log_normalisers()[:, None]
    log_target, alive, rejected = _floor(values)
    log_policy = tf.reshape(policy.log_prob(x), [k, -1])
    log_responsibility = policy.log_weights[:, None] + log_own - log_policy

    a, b = fit_quadratic(z, log_target + log_responsibility, ridge, weights)
    # A component that saw no finite value, or whose surrogate is not finite, stays where it is.
    valid = (
        alive
        & tf.reduce_all(tf.math.is_finite(a), axis=[1, 2])
        & tf.reduce_all(tf.math.is_finite(b), axis=1)
    )
    a = tf.where(valid[:, None, None], a, tf.eye(d, dtype=DENSITY))
    b = tf.where(valid[:, None], b, tf.zeros_like(b))
    move = update_components(a, b, kl_bound)
    gains = tf.reduce_mean(
        (log_target - log_policy) * (1.0 if weights is None else weights), axis=1
    )
    # ... and gains no weight: its gain is at most the lowest of the others.
    least = tf.reduce_min(tf.where(alive, gains, gains.dtype.max))
    gains = tf.where(
        alive, gains, tf.where(tf.reduce_any(alive), tf.minimum(gains, least), tf.zeros_like(gains))
    )
    log_weights, weight_kl = update_weights(policy.log_weights, gains, weight_kl_bound)

    new = Mixture(
        log_weights,
        policy.means + tf.linalg.matvec(policy.scale_trils, move.mean),
        tf.matmul(policy.scale_trils, move.tril),
    )
    weights = tf.exp(policy.log_weights)
    info = VipsHistory(
        elbo=tf.reduce_sum(weights * gains),
        component_kl=tf.reduce_max(move.kl),
        weight_kl=weight_kl,
        effective_components=tf.exp(
            -tf.reduce_sum(tf.math.multiply_no_nan(policy.log_weights, weights))
        ),
        rejected=rejected,
    )
    return new, info, Draws(points, new_values, gains, past)


# Nats by which a point outside the target's support lies below everything seen, beyond the range of
# what was seen. A floor at the lowest value itself has infinite mass, and a component runs away
# over it. M: with 10, between 93 and 99 % of the draws stay in a box of half-width 1 or 3 in 2 and
# 5 dimensions; with 0, 0.1 % of them.
_OUTSIDE = 10.0


def _floor(log_target: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Give values that are not finite a finite floor: [K, S] -> [K, S], the rows with any finite
    value [K], share replaced [].
    """
    finite = tf.math.is_finite(log_target)
    alive = tf.reduce_any(finite, axis=-1)
    highest = tf.reduce_max(tf.where(finite, log_target, log_target.dtype.min))
    lowest = tf.reduce_min(tf.where(finite, log_target, log_target.dtype.max))
    floor = tf.where(
        tf.reduce_any(alive), lowest - (highest - lowest) - _OUTSIDE, tf.zeros_like(lowest)
    )
    return tf.where(finite, log_target, floor), alive, tf.reduce_mean(tf.cast(~finite, DENSITY))


@functools.cache
def _compiled_improve(policy: Mixture, target: Reward, num_steps: int, num_samples: int) -> Any:
    """The compiled steps for a policy and a reward of these specs."""

    def steps(
        policy: Mixture, target: Reward, seed: Any, *bounds: Any
    ) -> tuple[Mixture, VipsHistory]:
        return vips_steps(
            policy, target.log_prob, seed, *bounds, num_steps=num_steps, num_samples=num_samples
        )

    # XLA: a step is hundreds of small operations, and fused they take a quarter of the time (M, 200
    # steps of K = 10: 0.13 and 0.52 CPU seconds), so that its 3 seconds of compilation pay from the
    # eighth iteration on.
    return compiled(
        steps, policy, target, tf.TensorSpec([2], tf.int32), *[tf.TensorSpec([], DENSITY)] * 3
    )


def improve(
    policy: Mixture, target: Reward, seed: Any, hparams: PolicyHparams
) -> tuple[Mixture, VipsHistory]:
    """`hparams.update_steps` steps of `policy` towards a reward, compiled once per run however many
    networks the reward has.
    """
    num_samples = samples_per_component(hparams, policy.dim)
    steps = _compiled_improve(specs_of(policy), specs_of(target), hparams.update_steps, num_samples)
    bounds = (
        tf.constant(v, DENSITY) for v in (hparams.kl_bound, hparams.weight_kl_bound, hparams.ridge)
    )
    return steps(policy, target, tf.constant(seed), *bounds)
