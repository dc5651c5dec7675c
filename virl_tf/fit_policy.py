"""What a user calls to fit a policy: any log density in, a Gaussian mixture out."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import tensorflow as tf

from virl_tf.hparams import default_hparams, search_hparams
from virl_tf.mixture import Mixture, check_mixture, standard_normal_start
from virl_tf.numerics import DENSITY, compiled, numpy_seed, specs_of, split_seed
from virl_tf.observers import StepBar
from virl_tf.policy_start import reward_start
from virl_tf.reward import Reward
from virl_tf.shapes import Array, Bool, Float64
from virl_tf.validation import InputError, check_integer, check_seed
from virl_tf.vips.adaptive import Budget, Search, budget_of
from virl_tf.vips.slopes import slopes_say_all
from virl_tf.vips.vips import (
    StepOptions,
    Target,
    VipsHistory,
    default_samples,
    density_at,
    rows_at_once,
    step_options,
    values_at,
    vips_steps,
)

Support = Callable[[tf.Tensor], Bool[Array, " N"]]
Callback = Callable[[int, Mixture], None]

# Of a fixed set of components.
FIXED_STEPS = 300

# After a search the modes are found and what is left is the noise of the surrogate: few steps,
# small ones, of more samples. Larger ones with fewer samples end at a higher KL.
FINAL_STEPS, FINAL_KL_BOUND = 30, 0.005
FINAL_SAMPLES_PER_COEFFICIENT, FINAL_SAMPLES_PER_SLOPE = 4, 8


class StepDefaults(NamedTuple):
    """The K components' own steps, where `fit_policy` is not told otherwise."""

    num_steps: int
    samples_per_component: int
    kl_bound: float


def step_defaults(dim: int, after_search: bool, gradients: bool = False) -> StepDefaults:
    """Those after a search, or those of a fixed set of components."""
    if after_search:
        per = FINAL_SAMPLES_PER_SLOPE if gradients else FINAL_SAMPLES_PER_COEFFICIENT
        samples = default_samples(dim, per, gradients)
        return StepDefaults(FINAL_STEPS, samples, FINAL_KL_BOUND)
    samples = default_samples(dim, gradients=gradients)
    return StepDefaults(FIXED_STEPS, samples, default_hparams().policy.kl_bound)


@dataclass(frozen=True)
class PolicyResult:
    """A fitted policy, and how its fit ended.

    Attributes:
        policy: the mixture; `policy.distribution` is a tfd.MixtureSameFamily.
        history: a row per step, the columns of `virl_tf.vips.vips.VipsHistory`.
        warnings: a line for each reason to doubt the policy, with what to try.
        elbo: E_q[log_prob(x) - log q(x)] inside of the support, in nats: by how much less than the
            log normaliser of exp(log_prob) tells KL(q || p).
        elbo_error: its standard error.
        rising: whether the ELBO still rose at the end: more `num_steps` may help.
        evaluations: of `log_prob` by the search and the steps, had no warning ended them early.
    """

    policy: Mixture
    history: pd.DataFrame
    warnings: tuple[str, ...] = ()
    elbo: float = float("nan")
    elbo_error: float = float("nan")
    rising: bool = False
    evaluations: int = 0

    def __repr__(self) -> str:
        """The policy, and how the fit ended."""
        steps = f"{len(self.history)} steps{', still rising' if self.rising else ''}"
        found = f"ELBO {self.elbo:.4f} +- {self.elbo_error:.4f} after {steps}"
        effective = f"{self.history['effective_components'].iloc[-1]:.1f} effective components"
        return f"PolicyResult: {self.policy}, {found}, {effective}"


def fit_policy(
    log_prob: Target | Reward,
    dim: int,
    num_components: int = 10,
    *,
    seed: int = 0,
    search: bool | Mapping[str, Any] = True,
    gradients: bool | None = None,
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
    progress: bool = False,
) -> PolicyResult:
    """Fit a Gaussian mixture q to any log density by VIPS: minimise KL(q || exp(log_prob)).

    It can be interrupted between any two steps.

    Args:
        log_prob: unnormalised log density of TensorFlow operations, float64 [N, D] -> [N]; may be
            -inf. A recovered `Reward` is one. Float32 wants a tf.cast, NumPy a tf.numpy_function;
            the error says how.
        dim: D.
        num_components: K.
        seed: of the start and of all samples.
        search: add and prune components before the steps (`virl_tf.vips.adaptive`), which finds
            modes that a fixed set misses. A mapping overrides the `search` section of
            defaults.yaml; False: a fixed set of components, as in the paper.
        gradients: the quadratic surrogate of each step is fitted to gradients of `log_prob`, of
            which it needs 3 x (D + 1) where it needs 3 x D^2 / 2 values. Default: in a search, if
            `log_prob` has gradients, no bounds and no jumps, which gradients do not see (looked
            for between draws of the start); never for a fixed set, as in the paper.
        num_steps: trust-region steps of the K components; default 300, or 30 damped ones after a
            search.
        samples_per_component: per step; default max(50, 3 x coefficients of the quadratic
            surrogate), 4 x after a search; of gradients max(12, 3 x (D + 1)), 8 x after a search.
        kl_bound: KL(new || old) of each component per step; default 0.05, or 0.005 after a search.
        weight_kl_bound: the same for the weights.
        ridge: of the surrogate's regression, in units of the rewards' variance.
        initial_policy: where to start. Default: means drawn from N(0, I) with unit covariances; for
            a `Reward`, EM on draws of it.
        support: [N, D] -> [N] bool; outside of it `log_prob` counts as -inf. A recovered reward
            knows the bounds that `fit` was given, and no others.
        jit_compile: compile with XLA, which takes 15 seconds and pays from thousands of steps on.
        callback: called as callback(steps_done, policy) after the search and then after every
            `callback_every` steps; the result is the same without it.
        progress: show a progress bar.

    Warns:
        UserWarning: a component became `MAX_GROWTH` times as wide as the start, where the fit ends,
            or is still on its way to infinity: the density is flat or improper.

    Raises:
        InputError: an argument that cannot be used, or a `log_prob` of the wrong shape or dtype,
            NaN, finite nowhere at the start, or not made of TensorFlow operations. What `log_prob`
            or `support` raise themselves is passed on.
    """
    seed = check_seed(seed)
    dim = check_integer("dim", dim, 1)
    num_components = check_integer("num_components", num_components, 1)
    searched = None if search is False else search_hparams(None if search is True else search)
    after_search = searched is not None
    defaults = step_defaults(dim, after_search)
    given = {
        "samples_per_component": samples_per_component,
        "kl_bound": defaults.kl_bound if kl_bound is None else kl_bound,
        "weight_kl_bound": weight_kl_bound,
        "ridge": ridge,
    }
    hparams = default_hparams().override({"policy": given}, "fit_policy").policy
    options = step_options(hparams.kl_bound, hparams.weight_kl_bound, hparams.ridge)
    num_steps = defaults.num_steps if num_steps is None else num_steps
    num_steps = check_integer("num_steps", num_steps, 1)
    interval = num_steps if callback is None else _interval(num_steps, callback_every)

    start = _start(log_prob, dim, num_components, seed, initial_policy)
    num_points = min(defaults.samples_per_component * num_components, rows_at_once(dim))
    points = start.sample(num_points, split_seed(seed, 0, "check"))
    target = checked_target(log_prob, support, points)
    if gradients is None:
        unbounded = support is None and _has_no_bounds(log_prob)
        gradients = after_search and unbounded and slopes_say_all(target, points)
    num_samples = hparams.samples_per_component
    num_samples = num_samples or step_defaults(dim, after_search, gradients).samples_per_component

    steps = _Steps(target, seed, options, num_samples, gradients, jit_compile)
    watch = _Watch(start, callback, interval)
    budget = None if searched is None else budget_of(num_components, dim, searched, gradients)
    total = num_steps + (0 if budget is None else budget.steps)
    try:
        with StepBar(total) if progress else nullcontext() as watch.bar:
            policy = start if budget is None else steps.search(start, budget, watch)
            policy = steps.improve(policy, num_steps, watch)
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        if not jit_compile:
            raise
        raise InputError(
            "log_prob could not be compiled by XLA; pass jit_compile=False. "
            f"XLA said: {error.message}"
        ) from error
    watch.end(policy, hparams.kl_bound)
    evaluations = num_steps * num_samples * num_components
    evaluations += 0 if budget is None else budget.evaluations
    return _result(policy, start, target, seed, watch, evaluations)


# Of a component's standard deviation, in units of the start's.
MAX_GROWTH = 1e6

# So far from the start, in the same units, a component is called lost if the ELBO rose in each of
# the last steps, all of which went as far as they were allowed.
FAR, LAST_STEPS = 100.0, 10


class _Watch:
    """What looks at a fit after each step, and ends it where a component grows without end."""

    def __init__(self, start: Mixture, callback: Callback | None, callback_every: int):
        self.histories: list[VipsHistory] = []
        self.bar: StepBar | None = None
        self.warnings: tuple[str, ...] = ()
        self._steps = 0
        self._callback = callback
        self._callback_every = callback_every
        self._centre, self._widths = _centre_and_widths(start)

    def step(self, policy: Mixture, elbo: Float64[Array, "*steps"]) -> None:
        """After a step to `policy`; the ELBO of what it started from is the last or only one."""
        if self.bar is not None:
            self.bar.step(float(elbo[min(self._steps, len(elbo) - 1)]))
        self._steps += 1
        trils = policy.scale_trils.numpy()
        # What is not finite has broken down otherwise; `_result` says so.
        if (np.sqrt((trils**2).sum(axis=-1)) > MAX_GROWTH * self._widths).any():
            self.warnings = (_grows(self._steps),)

    def end(self, policy: Mixture, kl_bound: float) -> None:
        """After the last step: whether a component is on its way to infinity."""
        history = self.history.tail(LAST_STEPS)
        rising = (np.diff(history.elbo) > 0.0).all() and len(history) == LAST_STEPS
        at_the_bound = (history.component_kl > 0.99 * kl_bound).all()
        moved = np.abs(policy.means.numpy() - self._centre) / self._widths
        if not self.stopped and rising and at_the_bound and moved.max() > FAR:
            self.warnings = (_LOST,)

    @property
    def history(self) -> pd.DataFrame:
        """Of all steps so far."""
        columns = {
            name: np.concatenate([getattr(history, name) for history in self.histories])
            for name in VipsHistory._fields
        }
        return pd.DataFrame(columns)

    @property
    def stopped(self) -> bool:
        """Whether the fit is to end here."""
        return bool(self.warnings)

    def call(self, policy: Mixture) -> None:
        """Tell the user."""
        if self._callback is not None:
            self._callback(self._steps, policy)

    def is_due(self, steps_done: int) -> bool:
        """Whether the user is to be told after so many steps of the K components."""
        return self._callback is not None and steps_done % self._callback_every == 0


def _centre_and_widths(policy: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """The mean [D] and the standard deviation [D] of the whole mixture."""
    weights = np.exp(policy.log_weights.numpy())
    means = policy.means.numpy()
    centre = weights @ means
    variances = np.diagonal(policy.covariances.numpy(), axis1=1, axis2=2)
    return centre, np.sqrt(weights @ (variances + (means - centre) ** 2))


_LOST = (
    "log_prob may be improper: a component is far from the start and still moves as fast as it "
    "may, with a rising ELBO. Bound it with support=, or add a log density that falls off; if the "
    "mode is that far away, give an initial_policy near to it, or more num_steps."
)


def _grows(steps: int) -> str:
    return (
        f"log_prob seems flat or improper: after {steps} steps a component is {MAX_GROWTH:g} "
        "times as wide as the start, and the fit ends there. Bound it with support=, or add a log "
        "density that falls off; if it is that wide, give an initial_policy of its width."
    )


@dataclass(frozen=True)
class _Steps:
    """The search, and the K components' own steps.

    Each step is a call of its own: Python looks for Ctrl-C between calls only.
    """

    target: Target
    seed: int
    options: StepOptions
    num_samples: int  # of the own steps
    gradients: bool
    jit_compile: bool

    def search(self, start: Mixture, budget: Budget, watch: _Watch) -> Mixture:
        """The K components that the search finds."""
        seed = tf.constant(split_seed(self.seed, 0, "search"))
        search = Search(self.target, seed, self.options, budget, self.gradients)
        state, scale = self._compiled(search.begin, start)(start)
        number = tf.constant(0)
        step = self._compiled(search.step, number, state)
        exchange = self._compiled(search.exchange, number, state, scale)
        for r in range(budget.rounds):
            for i in range(r * budget.steps_per_round, (r + 1) * budget.steps_per_round):
                state = step(tf.constant(i), state)
                watch.step(state.policy, state.history.elbo)
                if watch.stopped:
                    break
            state = exchange(tf.constant(r), state, scale)
            if watch.stopped:
                break
        watch.histories.append(VipsHistory(*(column[: i + 1] for column in state.history)))
        policy = search.result(state)
        watch.call(policy)
        return policy

    def improve(self, policy: Mixture, num_steps: int, watch: _Watch) -> Mixture:
        """After `num_steps` steps, or those until a component grows without end."""
        if watch.stopped:
            return policy
        step = self._compiled(self._improve, policy, tf.constant(0))
        for i in range(num_steps):
            policy, history = step(policy, tf.constant(i))
            watch.histories.append(history)
            watch.step(policy, history.elbo)
            if watch.is_due(i + 1):
                watch.call(policy)
            if watch.stopped:
                break
        return policy

    def _improve(self, policy: Mixture, i: tf.Tensor) -> tuple[Mixture, VipsHistory]:
        seed = tf.constant(split_seed(self.seed, 0, "policy"))
        given = (policy, self.target, seed, self.options)
        sizes: dict[str, Any] = {"num_steps": 1, "num_samples": self.num_samples}
        return vips_steps(*given, **sizes, gradients=self.gradients, first_step=i)

    def _compiled(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return compiled(function, *specs_of(arguments), jit_compile=self.jit_compile)


def _interval(num_steps: int, callback_every: Any) -> int:
    """Of how many steps each the callback is told, or InputError unless the last is among them."""
    interval = min(check_integer("callback_every", callback_every, 1), num_steps)
    if num_steps % interval:
        raise InputError(
            f"num_steps must be a multiple of callback_every ({callback_every}), got {num_steps}."
        )
    return interval


# --- targets --------------------------------------------------------------------------------------


def checked_target(log_prob: Any, support: Support | None, x: Float64[Array, "N D"]) -> Target:
    """The log density to fit, -inf outside of `support`; both are tried at x first.

    Raises:
        InputError: no number for each x, none finite, or what TensorFlow cannot compile.
    """
    function = log_prob.log_prob if isinstance(log_prob, Reward) else log_prob
    if support is None:
        _check_values(_tried("log_prob", function, x), x)
        return function
    inside = np.asarray(_tried("support", support, x))
    if inside.shape != (len(x),) or inside.dtype != bool:
        raise InputError(
            f"support must map [N, D] to [N] of booleans; for x of shape {list(x.shape)} it "
            f"returned {inside.dtype} {list(inside.shape)}. Return a comparison, such as "
            "tf.reduce_all(x > 0.0, axis=1)."
        )
    values = _tried("log_prob", function, x)

    def bounded(x: tf.Tensor) -> tf.Tensor:
        values = tf.cast(function(x), DENSITY)
        return tf.where(support(x), values, tf.constant(-np.inf, DENSITY))

    _check_shape(values, x)
    _check_values(bounded(x), x)
    return bounded


def _tried(name: str, function: Callable[..., Any], x: Float64[Array, "N D"]) -> Any:
    """function(x), once it is known that TensorFlow can compile it.

    Raises:
        InputError: it takes float32 only, or is not made of TensorFlow operations.
    """
    with _Named(name):
        try:
            values = function(x)
        except _OF_TENSORFLOW:
            if not _takes_float32(function, x):
                raise
            raise InputError(
                f"{name} takes float32, but gets float64 [N, D]; cast what it gets: "
                f"lambda x: {name}(tf.cast(x, tf.float32))."
            ) from None
    rows = tf.TensorSpec(x.shape, x.dtype)
    try:
        tf.function(function, autograph=False).get_concrete_function(rows)
    except (*_OF_TENSORFLOW, NotImplementedError, AttributeError) as error:
        dtype = "bool" if name == "support" else "float64"
        raise InputError(
            f"{name} must be made of TensorFlow operations ({type(error).__name__}); wrap NumPy or "
            f"plain Python: f = lambda x: np.asarray({name}(x), '{dtype}'), and then "
            f"lambda x: tf.ensure_shape(tf.numpy_function(f, [x], tf.{dtype}), [None])."
        ) from error
    return values


_OF_TENSORFLOW = (tf.errors.OpError, TypeError, ValueError)


def _takes_float32(function: Callable[..., Any], x: Float64[Array, "N D"]) -> bool:
    try:
        function(tf.cast(x, tf.float32))
    except _OF_TENSORFLOW:
        return False
    return True


class _Named:
    """Gives what the user's function raises the function's name, from Python 3.11 on."""

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        """Passes on the error as it is."""
        if error is None or isinstance(error, InputError):
            return
        if hasattr(error, "add_note"):
            note = f"This is {self._name}'s own error; fit_policy passed it float64 [N, D]."
            error.add_note(note)


def _has_no_bounds(log_prob: Any) -> bool:
    """A reward's bounds may lie outside of all draws of the start, where no check meets them."""
    return not isinstance(log_prob, Reward) or log_prob.domain.everywhere


def _start(
    log_prob: Any, dim: int, num_components: int, seed: int, initial_policy: Mixture | None
) -> Mixture:
    """The policy to start from, or InputError if `log_prob` or `initial_policy` cannot be used."""
    if not callable(log_prob):
        raise InputError(
            f"log_prob must be a function [N, D] -> [N], got {type(log_prob).__name__}."
        )
    if isinstance(log_prob, Reward) and log_prob.num_contexts:
        raise InputError(
            "this reward takes contexts; fit a policy for one of them: "
            "fit_policy(reward.condition(c), dim)."
        )
    if isinstance(log_prob, Reward) and log_prob.dim != dim:
        raise InputError(f"dim is {dim}, but the reward has dimension {log_prob.dim}.")
    start_seed = numpy_seed(seed, 0, "initial policy")
    if initial_policy is not None:
        policy = check_mixture("initial_policy is not a Mixture", initial_policy)
    elif isinstance(log_prob, Reward):
        policy = reward_start(log_prob, num_components, seed)
    else:
        policy = standard_normal_start(num_components, dim, start_seed)
    shape, wanted = [policy.num_components, policy.dim], [num_components, dim]
    if shape != wanted:
        raise InputError(f"initial_policy has shape [K, D] = {shape}, expected {wanted}.")
    return policy


def _check_shape(values: Any, x: Float64[Array, "N D"]) -> np.ndarray:
    """The values as an array, or InputError unless they are a real number for each x."""
    values = np.asarray(values)
    if values.shape != (len(x),):
        raise InputError(
            f"log_prob must map [N, D] to [N]; for x of shape {list(x.shape)} "
            f"it returned {list(values.shape)}."
        )
    if not np.issubdtype(values.dtype, np.floating):
        raise InputError(f"log_prob must return real numbers, got dtype {values.dtype}.")
    return values


def _check_values(values: Any, x: Float64[Array, "N D"]) -> None:
    """InputError unless these are numbers for each draw of the start, and some are finite."""
    values = _check_shape(values, x)
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


# Draws that the start and the policy are compared by, and steps whose mean ELBO is.
COMPARED, LATEST = 2000, 10


def _result(
    policy: Mixture, start: Mixture, target: Target, seed: int, watch: _Watch, evaluations: int
) -> PolicyResult:
    """The better of the policy and its start, with all steps' history, or InputError if the fit
    broke down.
    """
    finite = np.isfinite(policy.means).all() and np.isfinite(policy.scale_trils).all()
    if np.isnan(policy.log_weights).any() or not finite:
        raise InputError("log_prob returned NaN, or values so extreme that the fit broke down.")
    found, of_start = _measured(policy, target, seed), _measured(start, target, seed)
    lines = watch.warnings
    if not lines and of_start.beats(found):
        lines = (_worse(found.elbo, of_start.elbo),)
        policy, found = start, of_start
    for line in lines:
        warnings.warn(line, stacklevel=3)
    history = watch.history
    rising = _rises(history["elbo"].to_numpy())
    return PolicyResult(policy, history, lines, found.elbo, found.error, rising, evaluations)


class _Measured(NamedTuple):
    """A policy that is restricted to the target's support."""

    elbo: float
    error: float  # its standard error
    inside: float  # share of the unrestricted policy's draws

    def beats(self, other: "_Measured") -> bool:
        """Whether the ELBO is higher, and no more is outside."""
        clearly = self.elbo - other.elbo > 2.0 * np.hypot(self.error, other.error)
        return bool(clearly and self.inside >= other.inside)


def _measured(policy: Mixture, target: Target, seed: int) -> _Measured:
    x = policy.sample(COMPARED, split_seed(seed, 0, "ELBO"))
    log_ratio = np.asarray(values_at(target, x)) - density_at(policy, x).numpy()
    log_ratio = log_ratio[np.isfinite(log_ratio)]
    number = len(log_ratio)
    if number < 2:
        return _Measured(-np.inf, 0.0, number / COMPARED)
    error = log_ratio.std(ddof=1) / np.sqrt(number)
    elbo = log_ratio.mean() + np.log(number / COMPARED)
    return _Measured(float(elbo), float(error), number / COMPARED)


def _rises(elbo: np.ndarray) -> bool:
    """Whether the last steps are above those before them by more than they scatter."""
    last, before = elbo[-LATEST:], elbo[-2 * LATEST : -LATEST]
    if len(before) < LATEST:
        return False
    error = np.hypot(last.std(ddof=1), before.std(ddof=1)) / np.sqrt(LATEST)
    return bool(last.mean() - before.mean() > 3.0 * error)


def _worse(elbo: float, of_start: float) -> str:
    return (
        f"the fit ended below its start (ELBO {elbo:.2f}, start {of_start:.2f}), which is returned "
        "instead; give more samples_per_component, a smaller kl_bound, or gradients=False."
    )
