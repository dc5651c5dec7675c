"""VIPS with a fixed number of components: trust-region steps of a mixture towards p*.

The mixture q(x) = sum_o w_o q(x|o) is to minimise KL(q || p*), of which log p* is known up to a
constant. As log q(x) = log w_o + log q(x|o) - log q(o|x),

    -KL(q || p*) = sum_o w_o (E_{q(x|o)}[log p*(x) + log q(o|x)] + H(q(x|o))) + H(w).

The responsibilities log q(o|x) tie the components together. Those of the mixture q~ that a step
starts from, log q~(o|x), are lower by E_{q(x)}[KL(q(o|x) || q~(o|x))] >= 0, and the same at q = q~.
With them in their place we have a lower bound, tight at q~ (arenz2018):

    -KL(q || p*) >= sum_o w_o (E_{q(x|o)}[R_o(x)] + H(q(x|o))) + H(w),                        (1)
    R_o(x) = log p*(x) + log q~(o|x).

It falls apart into a problem for each component and one for the weights,

    max_{q(x|o)} E_{q(x|o)}[R_o(x)] + H(q(x|o))    s.t. KL(q(x|o) || q~(x|o)) <= kl_bound,
    max_w        sum_o w_o R(o) + H(w)             s.t. KL(w || w~) <= weight_kl_bound,

where R(o) = E_{q~(x|o)}[R_o(x)] + H(q~(x|o)) = log w~_o + E_{q~(x|o)}[log p*(x) - log q~(x)]. The
same draws serve both. With log p* = log q_t + phi_t, (1) is what the paper's Eq. 1 minimises, with
the sign changed: hence EIM's M-step is a step of VIPS.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from virl_tf.conditional import Policy
from virl_tf.hparams import PolicyHparams, known
from virl_tf.mixture import Mixture, log_normalisers
from virl_tf.numerics import DENSITY, in_blocks, repeat
from virl_tf.reward import Reward
from virl_tf.shapes import Array, Bool, Float64, Int32
from virl_tf.vips.reuse import Batches, Evaluated, weighed, with_latest
from virl_tf.vips.slopes import values_and_slopes
from virl_tf.vips.surrogate import fit_quadratic, fit_slopes, num_coefficients
from virl_tf.vips.trust_region import ComponentStep, update_components, update_weights

Target = Callable[[tf.Tensor], tf.Tensor]
"""log p*(x) + const, [N, D] -> [N]; what is not finite is outside of its support."""


# Numbers in the points that a target gets at once, and in the [K, D, N] of a mixture's density: a
# target may hold dozens of arrays of N numbers, the mixture holds three of its own. 1 and 256 MiB.
TARGET_NUMBERS, MIXTURE_NUMBERS = 2**17, 2**25

# The same where gradients are taken, of fewer points: what stays in the processor's cache is done
# sooner (75 components, D = 20: a step takes 122 instead of 157 ms).
TARGET_SLOPE_NUMBERS, MIXTURE_SLOPE_NUMBERS = 2**15, 2**21


class StepOptions(NamedTuple):
    """What a step may do, float64."""

    kl_bound: Float64[Array, "..."]  # [], or [K]: a bound of each component's own
    weight_kl_bound: Float64[Array, ""]
    ridge: Float64[Array, ""]  # of the surrogate's regression, in units of the rewards' variance


def step_options(kl_bound: float, weight_kl_bound: float | None, ridge: float) -> StepOptions:
    """The numbers as tensors; a bound that is left to the data (null) has been resolved."""
    values = kl_bound, known(weight_kl_bound), ridge
    return StepOptions(*(tf.constant(value, DENSITY) for value in values))


class VipsHistory(NamedTuple):
    """One value per step, about the mixture the step started from."""

    elbo: Float64[Array, "*steps"]  # E_{q~}[log p*(x) - log q~(x)] <= log of the integral of p*
    component_kl: Float64[Array, "*steps"]  # largest KL(new || old) of a component
    weight_kl: Float64[Array, "*steps"]  # KL of the weights
    effective_components: Float64[Array, "*steps"]  # exp(H(w))
    rejected: Float64[Array, "*steps"]  # share of draws where the target was not finite


class Seen(NamedTuple):
    """What a step evaluated, and what it says of the components."""

    latest: Evaluated
    batches: Batches | tuple[()]  # with the latest, if any are kept
    gains: Float64[Array, " K"]  # E_{q~(x|o)}[log p*(x) - log q~(x)]


def default_samples(dim: int, per_coefficient: int = 3, gradients: bool = False) -> int:
    """Samples per component and step: so many per coefficient of the surrogate; at least 50, or 12
    of gradients, each of which is worth D values.
    """
    if gradients:
        return max(12, per_coefficient * (dim + 1))
    return max(50, per_coefficient * num_coefficients(dim))


# Up to so many dimensions `surrogate: auto` takes values: a component needs at most 84 of them.
MOST_DIMENSIONS_OF_VALUES = 6


def takes_gradients(hparams: PolicyHparams, target: Reward) -> bool:
    """Whether the steps towards a reward follow its gradients; those see no bounds."""
    if hparams.surrogate != "auto":
        return hparams.surrogate == "gradients"
    return target.dim > MOST_DIMENSIONS_OF_VALUES and target.domain.everywhere


def empty_history(num_steps: int) -> VipsHistory:
    """Zeros, to be filled by `record`."""
    return VipsHistory(*(tf.zeros([num_steps], DENSITY) for _ in VipsHistory._fields))


def record(history: VipsHistory, step: Int32[Array, ""], row: VipsHistory) -> VipsHistory:
    """The history with the values of one step in their places."""
    return tf.nest.map_structure(
        lambda column, value: tf.tensor_scatter_nd_update(column, [[step]], [value]), history, row
    )


def vips_steps(
    policy: Mixture,
    target: Target,
    seed: Int32[Array, "2"],
    options: StepOptions,
    *,
    num_steps: int,
    num_samples: int,
    gradients: bool = False,
    first_step: Int32[Array, ""] | int = 0,
) -> tuple[Mixture, VipsHistory]:
    """`num_steps` updates of `policy` towards exp(target).

    Not compiled: `improve` and `fit_policy` compile it.

    Args:
        target: values that are not finite count as lower than all others.
        seed: stateless.
        num_samples: draws per component and step.
        gradients: the surrogate is fitted to gradients, not to values.
        first_step: the number of steps done before: 2 + 3 steps are the same as 5.
    """

    def step(i: tf.Tensor, state: tuple[Mixture, VipsHistory]) -> tuple[Mixture, VipsHistory]:
        policy, history = state
        step_seed = tf.random.fold_in(seed, first_step + i)
        policy, row, _ = vips_step(policy, target, step_seed, options, num_samples, gradients)
        return policy, record(history, i, row)

    policy = Mixture(*(tf.convert_to_tensor(array, DENSITY) for array in policy))
    return repeat(num_steps, step, (policy, empty_history(num_steps)))


def vips_step(
    policy: Mixture,
    target: Target,
    seed: Int32[Array, "2"],
    options: StepOptions,
    num_samples: int,
    gradients: bool = False,
    batches: Batches | tuple[()] = (),
) -> tuple[Mixture, VipsHistory, Seen]:
    """One update of all components and of the weights; its row of the history; what it has seen.

    Args:
        gradients: the surrogate is fitted to the rewards' gradients, not to their values.
        batches: of steps before, whose draws serve this one, too.
    """
    k, d = policy.means.shape
    z, points = draw_from_each(policy, num_samples, seed)
    latest = evaluated = _evaluated(target, points, gradients)
    weights = tf.ones([k, num_samples], DENSITY)
    if batches:
        batches = with_latest(batches, latest, policy)
        evaluated, z, weights = weighed(batches)
    log_target, alive = floored(evaluated.values)

    of_components = log_normalisers(policy.scale_trils)
    log_component = -0.5 * tf.reduce_sum(z**2, axis=-1) - of_components[:, None]
    x = tf.reshape(evaluated.points, [-1, d])
    log_policy, slopes_of_policy = _density_and_slopes(policy, x, gradients)
    log_policy = tf.reshape(log_policy, log_target.shape)
    log_responsibility = policy.log_weights[:, None] + log_component - log_policy
    rewards = log_target + log_responsibility  # R_o(x)

    slopes = None
    if slopes_of_policy is not None:
        slopes = evaluated.slopes - tf.reshape(slopes_of_policy, z.shape)
    inside = tf.reduce_all(tf.math.is_finite(evaluated.values) | (weights == 0.0), axis=1)
    a, b = _surrogate(policy, z, rewards, slopes, inside, weights, options.ridge)
    move = _move_components(a, b, alive, options)
    gains = expected_gains(weights * (log_target - log_policy), alive)
    log_weights, weight_kl = update_weights(policy.log_weights, gains, options.weight_kl_bound)
    new = Mixture(
        log_weights,
        policy.means + tf.linalg.matvec(policy.scale_trils, move.mean),
        tf.matmul(policy.scale_trils, move.tril),
    )

    shares = tf.exp(policy.log_weights)
    entropy = -tf.reduce_sum(tf.math.multiply_no_nan(policy.log_weights, shares))
    row = VipsHistory(
        elbo=tf.reduce_sum(shares * gains),
        component_kl=tf.reduce_max(move.kl),
        weight_kl=weight_kl,
        effective_components=tf.exp(entropy),
        rejected=rejected_share(latest.values),
    )
    return new, row, Seen(latest, batches, gains)


def _evaluated(target: Target, points: Float64[Array, "K S D"], gradients: bool) -> Evaluated:
    """The target at the points and, if asked for, its gradient."""
    d = points.shape[-1]
    x = tf.reshape(points, [-1, d])
    if not gradients:
        values = tf.reshape(values_at(target, x), points.shape[:-1])
        return Evaluated(points, values, tf.zeros_like(points))
    values, slopes = values_and_slopes(target, x, max(1, TARGET_SLOPE_NUMBERS // d))
    return Evaluated(
        points, tf.reshape(values, points.shape[:-1]), tf.reshape(slopes, points.shape)
    )


def _density_and_slopes(
    policy: Mixture, x: Float64[Array, "N D"], gradients: bool
) -> tuple[Float64[Array, " N"], Float64[Array, "N D"] | None]:
    """Log q~(x) and, if asked for, its gradient."""
    if not gradients:
        return density_at(policy, x), None
    most = max(1, MIXTURE_SLOPE_NUMBERS // (policy.num_components * policy.dim))
    return values_and_slopes(policy.log_prob, x, most)


def _surrogate(
    policy: Mixture,
    z: Float64[Array, "K S D"],
    rewards: Float64[Array, "K S"],
    slopes: Float64[Array, "K S D"] | None,
    inside: Bool[Array, " K"],
    weights: Float64[Array, "K S"],
    ridge: Float64[Array, ""],
) -> tuple[Float64[Array, "K D D"], Float64[Array, "K D"]]:
    """A and b of R_o(mean_o + L_o z), from its slopes by z where there are any.

    The gradient of R_o by z is L_o^T grad (log p* - log q~)(x) - z. A component with draws outside
    of the target's support takes the values: they see its edge.
    """
    if slopes is None:
        return fit_quadratic(z, rewards, ridge, weights)
    slopes = tf.einsum("kji,ksj->ksi", policy.scale_trils, slopes) - z
    by_slopes = fit_slopes(z, tf.where(inside[:, None, None], slopes, -z), ridge, weights)

    def of_both() -> tuple[tf.Tensor, tf.Tensor]:
        a, b = fit_quadratic(z, rewards, ridge, weights)
        a = tf.where(inside[:, None, None], by_slopes[0], a)
        return a, tf.where(inside[:, None], by_slopes[1], b)

    return tf.cond(tf.reduce_all(inside), lambda: by_slopes, of_both)


def values_at(target: Target, x: Float64[Array, "N D"]) -> Float64[Array, " N"]:
    """The target at x, in blocks where these are many numbers."""
    return in_blocks(target, x, target_rows_at_once(x.shape[1]))


def target_rows_at_once(dim: int) -> int:
    """How many points a target gets at most."""
    return max(1, TARGET_NUMBERS // dim)


def density_at(policy: Policy, x: Float64[Array, "N D"]) -> Float64[Array, " N"]:
    """Log q~(x), in blocks where these are many components and points."""
    rows = max(1, MIXTURE_NUMBERS // (policy.num_components * policy.dim))
    return in_blocks(policy.log_prob, x, rows)


def draw_from_each(
    policy: Mixture, num_samples: int, seed: Int32[Array, "2"]
) -> tuple[Float64[Array, "K S D"], Float64[Array, "K S D"]]:
    """S draws of every component: z ~ N(0, I) and x = mean_o + L_o z."""
    k, d = policy.means.shape
    z = tf.random.stateless_normal([k, num_samples, d], seed, dtype=DENSITY)
    return z, policy.means[:, None] + tf.einsum("kij,ksj->ksi", policy.scale_trils, z)


def _move_components(
    a: Float64[Array, "K D D"],
    b: Float64[Array, "K D"],
    alive: Bool[Array, " K"],
    options: StepOptions,
) -> ComponentStep:
    """The components' steps, in the whitened coordinates of each.

    One that saw no finite value, or whose surrogate is not finite, stays where it is.
    """
    finite_a = tf.reduce_all(tf.math.is_finite(a), axis=[1, 2])
    finite_b = tf.reduce_all(tf.math.is_finite(b), axis=1)
    valid = alive & finite_a & finite_b
    # A = I and b = 0 are the surrogate of log N(0, I), which asks for no step.
    a = tf.where(valid[:, None, None], a, tf.eye(b.shape[-1], dtype=DENSITY))
    b = tf.where(valid[:, None], b, tf.zeros_like(b))
    return update_components(a, b, options.kl_bound)


def expected_gains(
    log_ratios: Float64[Array, "K S"], alive: Bool[Array, " K"]
) -> Float64[Array, " K"]:
    """E_{q~(x|o)}[log p*(x) - log q~(x)].

    That of a component that saw no finite value is at most the lowest of the others, so that it
    gains no weight.
    """
    gains = tf.reduce_mean(log_ratios, axis=1)
    lowest = tf.reduce_min(tf.where(alive, gains, gains.dtype.max))
    of_others = tf.where(tf.reduce_any(alive), tf.minimum(gains, lowest), tf.zeros_like(gains))
    return tf.where(alive, gains, of_others)


# Nats by which a point outside the target's support lies below everything seen, beyond the range of
# what was seen. A floor at the lowest value itself has infinite mass, and a component runs away
# over it: with 0 nearly all draws leave a box, with 10 nearly none.
_OUTSIDE = 10.0


def floored(
    values: Float64[Array, "K S"],
) -> tuple[Float64[Array, "K S"], Bool[Array, " K"]]:
    """Values with a floor in place of those that are not finite, and which components have any that
    is.
    """
    finite = tf.math.is_finite(values)
    alive = tf.reduce_any(finite, axis=-1)
    highest = tf.reduce_max(tf.where(finite, values, values.dtype.min))
    lowest = tf.reduce_min(tf.where(finite, values, values.dtype.max))
    floor = lowest - (highest - lowest) - _OUTSIDE
    floor = tf.where(tf.reduce_any(alive), floor, tf.zeros_like(lowest))
    return tf.where(finite, values, floor), alive


def rejected_share(values: Float64[Array, "K S"]) -> Float64[Array, ""]:
    """Of draws where the target is not finite."""
    return tf.reduce_mean(tf.cast(~tf.math.is_finite(values), DENSITY))
