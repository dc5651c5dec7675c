"""What a user calls to fit a policy: any log density in, a Gaussian mixture out."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import tensorflow as tf

from virl_tf.conditional import Policy, check_conditional, is_broken
from virl_tf.conditional_kde import contexts_nearby
from virl_tf.contexts import Where, drawn, places
from virl_tf.mixture import Mixture, check_mixture, standard_normal_start
from virl_tf.numerics import DENSITY, numpy_seed, split_seed
from virl_tf.observers import StepBar
from virl_tf.policy_fit.schedule import KEPT_SHARES, schedule_of, step_hparams
from virl_tf.policy_fit.start import (
    conditional_start,
    constrained_start,
    reward_start,
    standard_conditional_start,
)
from virl_tf.policy_fit.steps import Steps
from virl_tf.policy_fit.targets import Support, checked_target, tempered
from virl_tf.policy_fit.watch import Callback, Watch, rises
from virl_tf.reward import Reward
from virl_tf.validation import (
    InputError,
    check_flag,
    check_integer,
    check_policy_contexts,
    check_positive,
    check_seed,
)
from virl_tf.vips.adaptive import budget_of
from virl_tf.vips.elbo import DRAWS, measured
from virl_tf.vips.slopes import check_slopes, slopes_say_all
from virl_tf.vips.vips import Target, step_options, target_rows_at_once

NOT_COMPILED = "log_prob could not be compiled by XLA; pass jit_compile=False. XLA said"


@dataclass(frozen=True)
class PolicyResult:
    """A fitted policy, and how its fit ended.

    Attributes:
        policy: the mixture; `policy.distribution` is a tfd.MixtureSameFamily. With contexts a
            `ConditionalMixture`, whose `condition(c)` is one.
        history: a row per step, the columns of `virl_tf.vips.vips.VipsHistory`.
        warnings: a line for each reason to doubt the policy, with what to try.
        elbo: E_q[log_prob(x) / temperature - log q(x)] inside of the support, in nats: the log
            normaliser of exp(log_prob / temperature) minus KL(q || p). With contexts that of rows
            [c, x], which is the mean over them where as much is inside in each.
        elbo_error: its standard error.
        inside: share of the policy's draws where `log_prob` is finite and `support` holds; of the
            others the ELBO knows nothing, so refuse them.
        rising: whether the ELBO still rose at the end: more `num_steps` may help.
        evaluations: of `log_prob` by the search and the steps, all of them: a warning may have
            ended these before.
    """

    policy: Any
    history: pd.DataFrame
    warnings: tuple[str, ...] = ()
    elbo: float = float("nan")
    elbo_error: float = float("nan")
    inside: float = float("nan")
    rising: bool = False
    evaluations: int = 0

    def __repr__(self) -> str:
        """The policy, and how the fit ended."""
        steps = f"{len(self.history)} steps{', still rising' if self.rising else ''}"
        found = f"ELBO {self.elbo:.4f} +- {self.elbo_error:.4f} after {steps}"
        effective = f"{self.history['effective_components'].iloc[-1]:.1f} effective components"
        outside = f", {1.0 - self.inside:.1%} of its draws outside" if self.inside < 1.0 else ""
        return f"PolicyResult: {self.policy}, {found}, {effective}{outside}"


def fit_policy(
    log_prob: Target | Reward,
    dim: int,
    num_components: int = 10,
    *,
    contexts: Any = None,
    temperature: float = 1.0,
    seed: int = 0,
    search: bool | Mapping[str, Any] | None = None,
    gradients: bool | None = None,
    num_steps: int | None = None,
    samples_per_component: int | None = None,
    kl_bound: float | None = None,
    weight_kl_bound: float | None = None,
    ridge: float = 1e-6,
    initial_policy: Policy | None = None,
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
        contexts: [M, C], equally likely. Then `log_prob` takes rows [c, x], [N, C + D], and may be
            off by a function of c of a few nats, `MOST_BETWEEN`; the policy is q(x | c), fitted in
            expectation over them by `virl_tf.vips.conditional`: a fixed set of components, by
            values. Of a `Reward` without `support` the steps see contexts near these
            (`virl_tf.conditional_kde.contexts_nearby`).
        temperature: the policy is fitted to exp(log_prob / temperature), below 1 nearer to what is
            likeliest. Then, on a reward or from an `initial_policy`, without `search` and contexts,
            no weight changes: the likeliest mode would take all. Of a reward alone the weights are
            those of a fit at temperature 1, which comes first: history and callback are of what
            follows.
        seed: of the start and of all samples.
        search: add, prune and split components before the steps (`virl_tf.vips.adaptive`), which
            finds modes that a fixed set misses, but none far outside of the start's draws: there
            only an `initial_policy` as wide as that leads. Default, but with contexts and where no
            weight changes; a short one, without splits, from the start on a reward that carries an
            EM mixture. A mapping overrides the `search` section of defaults.yaml; False: a fixed
            set of components (in our runs of the paper 400 steps of 100 samples).
        gradients: the quadratic surrogate of each step is fitted to gradients of `log_prob`, of
            which it needs 3 x (D + 1) where it needs 3 x D^2 / 2 values. Default: in a search, or
            where no weight changes, if `log_prob` has gradients, no bounds and no jumps, which
            gradients do not see (looked for between draws of the start); never for a fixed set, as
            in the paper.
        num_steps: trust-region steps of the K components; default 300, 30 damped ones after a
            search, or 60 where no weight changes.
        samples_per_component: per step; default max(50, 3 x coefficients of the quadratic
            surrogate), with contexts at least 200, 4 x after a search; of gradients
            max(12, 3 x (D + 1)), 8 x after a search.
        kl_bound: KL(new || old) of each component per step; default 0.05, or 0.005 after a search.
        weight_kl_bound: the same for the weights; default 0.05, with contexts 0.002; none changes
            from a start inside of a `support`, or below `temperature` 1 (see there).
        ridge: of the surrogate's regression, in units of the rewards' variance.
        initial_policy: where to start. Default: means drawn from N(0, I) with unit covariances; for
            a `Reward`, the heaviest components of the EM mixture that it carries (`best` rewards
            do), or EM on draws of it.
        support: [N, D] -> [N] bool (with contexts of rows); outside of it `log_prob` counts as
            -inf. A recovered reward knows the bounds that `fit` was given, and no others. On one
            that carries an EM mixture, without `search` and `initial_policy`, the start is
            EM on its draws inside, and no weight changes: what the constraint leaves open keeps
            its share. Where hardly a draw is inside, a search is made.
        jit_compile: compile with XLA, which takes 15 seconds and pays from thousands of steps on.
        callback: called as callback(steps_done, policy) after the search and then after every
            `callback_every` steps and the last, where those of a split that is taken back count,
            which `history` leaves out; the result is the same without it.
        progress: show a progress bar.

    Warns:
        UserWarning: a component became `MAX_GROWTH` times as wide as the start, where the fit ends,
            or is still on its way to infinity: the density is flat or improper. Or the fit ended
            below its start, which is returned; or most draws are where `log_prob` is not finite
            or `support` does not hold, or some where it is NaN or +inf; or `log_prob` differs much
            between contexts, whatever is done there.

    Raises:
        InputError: an argument that cannot be used, or a `log_prob` of the wrong shape or dtype,
            NaN, finite nowhere at the start, or not made of TensorFlow operations. What `log_prob`
            or `support` raise themselves is passed on.
    """
    _check_functions(log_prob, support, callback)
    check_flag("gradients", gradients, None)
    check_flag("jit_compile", jit_compile)
    check_flag("progress", progress)
    seed = check_seed(seed)
    dim = check_integer("dim", dim, 1)
    num_components = check_integer("num_components", num_components, 1)
    temperature = check_positive("temperature", temperature)
    if num_steps is not None:
        check_integer("num_steps", num_steps, 1)
    check_integer("callback_every", callback_every, 1)
    c = None if contexts is None else _checked_contexts(contexts, search, gradients)
    size = dim if c is None else c.shape[1] + dim
    own = (samples_per_component, kl_bound, weight_kl_bound, ridge)
    before = None
    alone = isinstance(log_prob, Reward) and initial_policy is None and c is None
    if temperature < 1.0 and search is None and alone:
        step_hparams(KEPT_SHARES, *own)  # refuses now what cannot be used
        how = {"gradients": gradients, "ridge": ridge, "jit_compile": jit_compile}
        given = {"seed": seed, "support": support, "progress": progress, **how}
        before = _at_temperature_one(log_prob, dim, num_components, given)
        initial_policy = before.policy
    mixture = _mixture_of(log_prob) if initial_policy is None else None
    keep_shares = _keeps_shares(log_prob, initial_policy, support, temperature)
    schedule = schedule_of(search, c is not None, keep_shares)
    hparams = step_hparams(schedule.steps, *own)

    start = _start(log_prob, dim, num_components, seed, initial_policy, c)
    tried, num_points = start, schedule.steps.samples(size) * num_components
    constrained = mixture if support is not None and schedule.steps is KEPT_SHARES else None
    if constrained is not None:  # hardly any draw may be inside
        tried, num_points = constrained, target_rows_at_once(dim)
    where = _where(c, min(num_points, target_rows_at_once(dim)), seed)
    points = drawn(tried, where, split_seed(seed, 0, "check"))
    target = checked_target(log_prob, support, points)
    if constrained is not None:
        inside = constrained_start(constrained, target, num_components, seed)
        start = inside or start
        if inside is None:  # then modes inside have to be looked for
            schedule = schedule_of(True, False, keep_shares)
            hparams = step_hparams(schedule.steps, *own)
    target = tempered(target, temperature)
    if gradients:
        check_slopes(target, points)
    if gradients is None:
        unbounded = support is None and _has_no_bounds(log_prob)
        gradients = schedule.by_gradients and unbounded and slopes_say_all(target, points)

    options = step_options(hparams.kl_bound, hparams.weight_kl_bound, hparams.ridge)
    num_samples = hparams.samples_per_component or schedule.steps.samples(size, gradients)
    step_contexts = c
    if c is not None and isinstance(log_prob, Reward) and support is None:
        step_contexts = contexts_nearby(c, seed)  # of which other functions may know nothing
    steps = Steps(target, seed, options, num_samples, gradients, jit_compile, step_contexts)
    budget = None
    if schedule.search is not None:
        at_modes = mixture is not None and support is None
        budget = budget_of(num_components, dim, schedule.search, gradients, at_modes)
    middle = None if c is None else tf.reduce_mean(c, axis=0)
    watch = Watch(start, callback, callback_every, middle)
    num_steps = num_steps or schedule.steps.num_steps
    total = num_steps + (0 if budget is None else budget.steps)
    with _xla_says_why(jit_compile), StepBar(total) if progress else nullcontext() as watch.bar:
        policy, evaluations = steps.run(start, budget, num_steps, watch)
    watch.end(policy, hparams.kl_bound)
    found = _result(policy, start, target, _where(c, DRAWS, seed), seed, watch, evaluations)
    return found if before is None else _after(before, found)


@contextmanager
def _xla_says_why(jit_compile: bool) -> Iterator[None]:
    """Raises InputError for what XLA cannot compile."""
    try:
        yield
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        if not jit_compile:
            raise
        raise InputError(f"{NOT_COMPILED}: {error.message}") from error


def _check_functions(log_prob: Any, support: Any, callback: Any) -> None:
    functions = [("log_prob", "[N, D] -> [N]", log_prob)]
    if support is not None:
        functions.append(("support", "[N, D] -> [N] of booleans, not bounds", support))
    if callback is not None:
        functions.append(("callback", "of steps_done and policy", callback))
    for name, kind, value in functions:
        if not callable(value):
            raise InputError(f"{name} must be a function {kind}, got {type(value).__name__}.")


def _mixture_of(log_prob: Any) -> Mixture | None:
    """The EM mixture of a reward that has one: its components are at the modes."""
    mixture = log_prob.mixture if isinstance(log_prob, Reward) else None
    return mixture if isinstance(mixture, Mixture) and mixture.num_components else None


def _keeps_shares(log_prob: Any, initial_policy: Any, support: Any, temperature: float) -> bool:
    """Whether weights stay as they are: from draws inside of a constraint, and below temperature 1
    from what stands for the modes: a start of the user's own, or that of a reward.
    """
    if support is not None and initial_policy is None:
        return _mixture_of(log_prob) is not None
    return temperature < 1.0 and (initial_policy is not None or isinstance(log_prob, Reward))


def _has_no_bounds(log_prob: Any) -> bool:
    """A reward's bounds may lie outside of all draws of the start, where no check meets them."""
    return not isinstance(log_prob, Reward) or log_prob.domain.everywhere


def _checked_contexts(contexts: Any, search: Any, gradients: bool | None) -> tf.Tensor:
    """Contexts [M, C] for a fit, or InputError if they or the other arguments cannot be used."""
    for name, value in (("search", search), ("gradients", gradients)):
        if value is not None and value is not False:
            raise InputError(f"{name} is not for contexts; leave it out.")
    return tf.constant(check_policy_contexts(contexts), DENSITY)


def _where(contexts: tf.Tensor | None, number: int, seed: int) -> Where:
    """About so many draws, of some of the contexts if there are any."""
    return places(contexts, number, split_seed(seed, 0, "contexts"))


def _start(
    log_prob: Any,
    dim: int,
    num_components: int,
    seed: int,
    initial_policy: Policy | None,
    contexts: tf.Tensor | None,
) -> Policy:
    """The policy to start from, or InputError if `log_prob` or `initial_policy` cannot be used."""
    reward = log_prob if isinstance(log_prob, Reward) else None
    if reward is not None:
        _check_reward(reward, dim, contexts)
    start_seed = numpy_seed(seed, 0, "initial policy")
    if contexts is not None:
        size = contexts.shape[1]
        if initial_policy is not None:
            name = "initial_policy is not a ConditionalMixture"
            return _of_sizes(check_conditional(name, initial_policy), num_components, dim, size)
        if reward is not None:
            return conditional_start(reward, contexts, num_components, seed)
        return standard_conditional_start(num_components, dim, size, start_seed)
    if initial_policy is not None:
        policy = check_mixture("initial_policy is not a Mixture", initial_policy)
        return _of_sizes(policy, num_components, dim, 0)
    if reward is not None:
        return reward_start(reward, num_components, seed)
    return standard_normal_start(num_components, dim, start_seed)


def _check_reward(reward: Reward, dim: int, contexts: tf.Tensor | None) -> None:
    number = 0 if contexts is None else contexts.shape[1]
    if reward.num_contexts and contexts is None:
        raise InputError(
            "this reward takes contexts; give contexts=, or fit a policy for one of them: "
            "fit_policy(reward.condition(c), dim)."
        )
    if reward.num_contexts != number:
        raise InputError(
            f"contexts have {number} columns, but the reward takes {reward.num_contexts}."
        )
    if reward.dim != dim:
        raise InputError(f"dim is {dim}, but the reward has dimension {reward.dim}.")


def _of_sizes(policy: Policy, k: int, dim: int, num_contexts: int) -> Policy:
    """The policy, or InputError if it is of other sizes."""
    found = [policy.num_components, policy.dim, policy.num_contexts]
    wanted = [k, dim, num_contexts]
    if found != wanted:
        raise InputError(f"initial_policy has [K, D, C] = {found}, expected {wanted}.")
    return policy


FEW_INSIDE = 0.5  # of its draws, below which a policy is not one for the support
# Nats of standard deviation between contexts. Two experts, plus a sine of c: of 3.6 nats KL 0.008,
# of 5.6 nats KL 0.6. Recovered rewards: 0.1.
MOST_BETWEEN = 5.0


def _result(
    policy: Policy,
    start: Policy,
    target: Target,
    where: Where,
    seed: int,
    watch: Watch,
    evaluations: int,
) -> PolicyResult:
    """The better of the policy and its start, with all steps' history, or InputError if the fit
    broke down.
    """
    if is_broken(policy):
        raise InputError("log_prob returned NaN, or values so extreme that the fit broke down.")
    found, of_start = measured(policy, target, where, seed), measured(start, target, where, seed)
    lines = watch.warnings
    if not lines and of_start.beats(found):
        lines = (_worse(found.elbo, of_start.elbo),)
        policy, found = start, of_start
    if found.undefined > 0.0:
        lines += (_undefined(found.undefined),)
    if found.inside < FEW_INSIDE:
        lines += (_outside(found.inside),)
    if found.between > MOST_BETWEEN:
        lines += (_differs(found.between),)
    for line in lines:
        warnings.warn(line, stacklevel=3)
    history = watch.history
    rising = rises(history["elbo"].to_numpy())
    return PolicyResult(policy, history, lines, *found[:3], rising, evaluations)


def _at_temperature_one(
    log_prob: Target | Reward, dim: int, num_components: int, options: Mapping[str, Any]
) -> PolicyResult:
    if options["support"] is None and _mixture_of(log_prob) is not None:
        # A search leaves modes out (docs/decisions-policies.md, temperature).
        options = {**options, "search": False, "num_steps": KEPT_SHARES.num_steps}
    with warnings.catch_warnings():  # those in the result are told by `_after`
        warnings.simplefilter("ignore", UserWarning)
        return fit_policy(log_prob, dim, num_components, **options)


def _after(before: PolicyResult, found: PolicyResult) -> PolicyResult:
    """The result of a fit that started from another one's."""
    for line in before.warnings:
        warnings.warn(line, stacklevel=3)
    lines = *before.warnings, *found.warnings
    return replace(found, warnings=lines, evaluations=before.evaluations + found.evaluations)


def _undefined(share: float) -> str:
    return (
        f"log_prob is NaN or +inf at {share:.2g} of the policy's draws, which count as outside of "
        "its support; if they are, return -inf there."
    )


def _outside(inside: float) -> str:
    return (
        f"only {inside:.0%} of the policy's draws are where log_prob is finite and support holds: "
        "refuse the others, or give more num_components, more num_steps (infer: --components, "
        "--steps), or an initial_policy inside."
    )


def _differs(between: float) -> str:
    return (
        f"log_prob differs between contexts by {between:.2g} nats (a standard deviation), whatever "
        "is done there, and steps see noise in that: subtract from it what depends on the context "
        "alone, such as its largest value in each."
    )


def _worse(elbo: float, of_start: float) -> str:
    return (
        f"the fit ended below its start (ELBO {elbo:.2f}, start {of_start:.2f}), which is returned "
        "instead; give more samples_per_component (infer: --samples), a smaller kl_bound, or "
        "gradients=False."
    )
