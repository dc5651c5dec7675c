"""What a user calls to fit a policy: any log density in, a Gaussian mixture out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import tensorflow as tf

from virl_tf.hparams import SearchHparams, default_hparams, search_hparams
from virl_tf.mixture import Mixture, check_mixture, standard_normal_start
from virl_tf.numerics import DENSITY, compiled, numpy_seed, specs_of, split_seed
from virl_tf.reward import Reward
from virl_tf.shapes import Array, Bool, Float64
from virl_tf.validation import InputError, check_integer, check_seed
from virl_tf.vips.adaptive import search as vips_search
from virl_tf.vips.vips import (
    StepOptions,
    Target,
    VipsHistory,
    default_samples,
    step_options,
    vips_steps,
)

Support = Callable[[tf.Tensor], Bool[Array, " N"]]
Callback = Callable[[int, Mixture], None]

# Of a fixed set of components.
FIXED_STEPS = 300

# After a search the modes are found and what is left is the noise of the surrogate: few steps,
# small ones, of more samples. Larger ones with fewer samples end at a higher KL.
FINAL_STEPS, FINAL_KL_BOUND, FINAL_SAMPLES_PER_COEFFICIENT = 30, 0.005, 4


class StepDefaults(NamedTuple):
    """The K components' own steps, where `fit_policy` is not told otherwise."""

    num_steps: int
    samples_per_component: int
    kl_bound: float


def step_defaults(dim: int, after_search: bool) -> StepDefaults:
    """Those after a search, or those of a fixed set of components."""
    if after_search:
        samples = default_samples(dim, FINAL_SAMPLES_PER_COEFFICIENT)
        return StepDefaults(FINAL_STEPS, samples, FINAL_KL_BOUND)
    return StepDefaults(FIXED_STEPS, default_samples(dim), default_hparams().policy.kl_bound)


@dataclass(frozen=True)
class PolicyResult:
    """A fitted policy.

    Attributes:
        policy: the mixture; `policy.distribution` is a tfd.MixtureSameFamily.
        history: a row per step, the columns of `virl_tf.vips.vips.VipsHistory`.
    """

    policy: Mixture
    history: pd.DataFrame

    def __repr__(self) -> str:
        """The policy, and how the fit ended."""
        last = self.history.iloc[-1]
        found = f"ELBO {last['elbo']:.4f} after {len(self.history)} steps"
        effective = f"{last['effective_components']:.1f} effective components"
        return f"PolicyResult: {self.policy}, {found}, {effective}"


def fit_policy(
    log_prob: Target | Reward,
    dim: int,
    num_components: int = 10,
    *,
    seed: int = 0,
    search: bool | Mapping[str, Any] = True,
    num_steps: int | None = None,
    samples_per_component: int | None = None,
    kl_bound: float | None = None,
    weight_kl_bound: float = 0.05,
    ridge: float = 1e-6,
    initial_policy: Mixture | None = None,
    support: Support | None = None,
    jit_compile: bool = False,
    callback: Callback | None = None,
    callback_every: int = 50,
) -> PolicyResult:
    """Fit a Gaussian mixture q to any log density by VIPS: minimise KL(q || exp(log_prob)).

    Args:
        log_prob: unnormalised log density in TensorFlow, float64 [N, D] -> [N]; may be -inf. A
            recovered `Reward` is one.
        dim: D.
        num_components: K.
        seed: of the start and of all samples.
        search: add and prune components before the steps (`virl_tf.vips.adaptive`), which finds
            modes that a fixed set misses. A mapping overrides the `search` section of
            defaults.yaml; False: a fixed set of components, as in the paper.
        num_steps: trust-region steps of the K components; default 300, or 30 damped ones after a
            search.
        samples_per_component: per step; default max(50, 3 x coefficients of the quadratic
            surrogate), 4 x after a search.
        kl_bound: KL(new || old) of each component per step; default 0.05, or 0.005 after a search.
        weight_kl_bound: the same for the weights.
        ridge: of the surrogate's regression, in units of the rewards' variance.
        initial_policy: where to start. Default: means drawn from N(0, I) with unit covariances; for
            a `Reward`, from the spread of its demonstrations.
        support: [N, D] -> [N] bool; outside of it `log_prob` counts as -inf. A recovered reward
            knows no bounds of its own.
        jit_compile: compile with XLA, which takes 15 seconds and pays from thousands of steps on.
        callback: called as callback(steps_done, policy) after every `callback_every` steps; the
            result is the same without it.

    Raises:
        InputError: an argument that cannot be used, or a `log_prob` of the wrong shape, NaN, or
            finite nowhere at the start.
    """
    seed = check_seed(seed)
    dim = check_integer("dim", dim, 1)
    num_components = check_integer("num_components", num_components, 1)
    searched = None if search is False else search_hparams(None if search is True else search)
    defaults = step_defaults(dim, after_search=searched is not None)

    given = {
        "samples_per_component": samples_per_component,
        "kl_bound": defaults.kl_bound if kl_bound is None else kl_bound,
        "weight_kl_bound": weight_kl_bound,
        "ridge": ridge,
    }
    hparams = default_hparams().override({"policy": given}, "fit_policy").policy
    num_samples = hparams.samples_per_component or defaults.samples_per_component
    options = step_options(hparams.kl_bound, hparams.weight_kl_bound, hparams.ridge)
    num_steps = defaults.num_steps if num_steps is None else num_steps
    num_steps = check_integer("num_steps", num_steps, 1)
    steps_per_call = num_steps if callback is None else _steps_per_call(num_steps, callback_every)

    target = _target(log_prob, support)
    start = _start(log_prob, dim, num_components, seed, initial_policy)
    points = start.sample(num_samples * num_components, split_seed(seed, 0, "check"))
    _check_target(target, points)

    stages = _Stages(target, seed, searched, options, num_samples, steps_per_call, jit_compile)
    try:
        policy, histories = stages.run(start, num_steps // steps_per_call, callback)
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        if not jit_compile:
            raise
        raise InputError(
            "log_prob could not be compiled by XLA; pass jit_compile=False. "
            f"XLA said: {error.message}"
        ) from error
    return _result(policy, histories)


def spread_start(reward: Reward, num_components: int, seed: int) -> Mixture:
    """Means drawn over the spread of a reward's demonstrations, each component with 1/K of it."""
    policy = standard_normal_start(num_components, reward.dim, seed)
    widths = reward.features.scale * num_components ** (-1.0 / reward.dim)
    return policy._replace(
        means=reward.features.shift + reward.features.scale * policy.means,
        scale_trils=tf.linalg.diag(tf.ones_like(policy.means) * widths),
    )


@dataclass(frozen=True)
class _Stages:
    """The search, if there is one, then the K components' own steps."""

    target: Target
    seed: int
    search: SearchHparams | None
    options: StepOptions
    num_samples: int  # of the own steps, as the next
    steps_per_call: int
    jit_compile: bool

    def run(
        self, policy: Mixture, num_calls: int, callback: Callback | None
    ) -> tuple[Mixture, list[VipsHistory]]:
        """The fitted policy and the history of each compiled call."""
        histories: list[VipsHistory] = []

        def done(history: VipsHistory) -> None:
            histories.append(history)
            if callback is not None:
                callback(sum(len(part.elbo) for part in histories), policy)

        if self.search is not None:
            policy, history = self._compiled(self._find, policy)(policy)
            done(history)
        improve = self._compiled(self._improve, policy, tf.constant(0))
        for call in range(num_calls):
            policy, history = improve(policy, tf.constant(call * self.steps_per_call))
            done(history)
        return policy, histories

    def _compiled(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return compiled(function, *specs_of(arguments), jit_compile=self.jit_compile)

    def _find(self, policy: Mixture) -> tuple[Mixture, VipsHistory]:
        assert self.search is not None
        seed = tf.constant(split_seed(self.seed, 0, "search"))
        return vips_search(policy, self.target, seed, self.options, self.search)

    def _improve(self, policy: Mixture, first_step: tf.Tensor) -> tuple[Mixture, VipsHistory]:
        return vips_steps(
            policy,
            self.target,
            tf.constant(split_seed(self.seed, 0, "policy")),
            self.options,
            num_steps=self.steps_per_call,
            num_samples=self.num_samples,
            first_step=first_step,
        )


def _steps_per_call(num_steps: int, callback_every: Any) -> int:
    """How many steps are compiled as one call, or InputError."""
    steps = min(check_integer("callback_every", callback_every, 1), num_steps)
    if num_steps % steps:
        raise InputError(
            f"num_steps must be a multiple of callback_every ({callback_every}), got {num_steps}."
        )
    return steps


def _target(log_prob: Any, support: Support | None) -> Target:
    """The log density to fit, -inf outside of `support`."""
    function = log_prob.log_prob if isinstance(log_prob, Reward) else log_prob
    if support is None:
        return function

    def bounded(x: tf.Tensor) -> tf.Tensor:
        values = tf.cast(function(x), DENSITY)
        return tf.where(support(x), values, tf.constant(-np.inf, DENSITY))

    return bounded


def _start(
    log_prob: Any, dim: int, num_components: int, seed: int, initial_policy: Mixture | None
) -> Mixture:
    """The policy to start from, or InputError if `log_prob` or `initial_policy` cannot be used."""
    if not callable(log_prob):
        raise InputError(
            f"log_prob must be a function [N, D] -> [N], got {type(log_prob).__name__}."
        )
    if isinstance(log_prob, Reward) and log_prob.dim != dim:
        raise InputError(f"dim is {dim}, but the reward has dimension {log_prob.dim}.")
    start_seed = numpy_seed(seed, 0, "initial policy")
    if initial_policy is not None:
        policy = check_mixture("initial_policy is not a Mixture", initial_policy)
    elif isinstance(log_prob, Reward):
        policy = spread_start(log_prob, num_components, start_seed)
    else:
        policy = standard_normal_start(num_components, dim, start_seed)
    shape, wanted = [policy.num_components, policy.dim], [num_components, dim]
    if shape != wanted:
        raise InputError(f"initial_policy has shape [K, D] = {shape}, expected {wanted}.")
    return policy


def _check_target(target: Target, x: Float64[Array, "N D"]) -> None:
    """InputError unless `target` gives a number for each draw of the start, and some are finite."""
    values = np.asarray(target(x))
    if values.shape != (len(x),):
        raise InputError(
            f"log_prob must map [N, D] to [N]; for x of shape {list(x.shape)} "
            f"it returned {list(values.shape)}."
        )
    if not np.issubdtype(values.dtype, np.floating):
        raise InputError(f"log_prob must return real numbers, got dtype {values.dtype}.")
    if np.isnan(values).any():
        raise InputError(
            f"log_prob returned NaN at {int(np.isnan(values).sum())} of {len(x)} points "
            "drawn from the initial policy."
        )
    if not np.isfinite(values).any():
        raise InputError(
            f"log_prob is finite at none of {len(x)} points drawn from the initial policy; "
            "give an initial_policy that meets its support."
        )


def _result(policy: Mixture, histories: list[VipsHistory]) -> PolicyResult:
    """The policy with all its steps' history, or InputError if the fit broke down."""
    finite = np.isfinite(policy.means).all() and np.isfinite(policy.scale_trils).all()
    if np.isnan(policy.log_weights).any() or not finite:
        raise InputError("log_prob returned NaN, or values so extreme that the fit broke down.")
    columns = {
        name: np.concatenate([getattr(history, name) for history in histories])
        for name in VipsHistory._fields
    }
    return PolicyResult(policy, pd.DataFrame(columns))
