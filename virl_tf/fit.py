"""What a user calls: `fit` recovers a reward, `fit_policy` fits a policy to any log density, `load`
reads a result back.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf

from virl_tf import irl, pooling
from virl_tf.checkpoint import write_text
from virl_tf.discriminator.fit import DiscriminatorFitter
from virl_tf.event_files import EventFiles
from virl_tf.hparams import (
    Hparams,
    PolicyHparams,
    SearchHparams,
    default_hparams,
    load_hparams,
    own_data_hparams,
    search_hparams,
    to_yaml,
)
from virl_tf.irl import Info, State
from virl_tf.methods import METHODS, Method
from virl_tf.mixture import Mixture, check_mixture, standard_normal_start
from virl_tf.numerics import DENSITY, compiled, numpy_seed, specs_of, split_seed
from virl_tf.observers import Observer, ProgressBar
from virl_tf.problem import Problem, make_problem
from virl_tf.reward import Reward
from virl_tf.run_folder import RunFolder, versions
from virl_tf.validation import (
    InputError,
    check_choice,
    check_demonstrations,
    check_integer,
    check_seed,
)
from virl_tf.vips.adaptive import search as vips_search
from virl_tf.vips.surrogate import num_coefficients
from virl_tf.vips.vips import VipsHistory, default_samples, vips_steps
from virl_tf.vips.vips import samples_per_component as policy_samples

FIXED_STEPS = 300  # of a fixed set of components
Evaluate = Callable[[State], Mapping[str, float]]


@dataclass(frozen=True)
class Result:
    """A recovered reward and its policy.

    Attributes:
        reward: R(x), callable: [..., D] -> [...], up to a constant.
        policy: q~_T; `policy.distribution` is a tfd.MixtureSameFamily.
        history: one row per iteration, the columns of `virl_tf.irl.Info`.
        config: what the run was made with.
    """

    reward: Reward
    policy: Mixture
    history: pd.DataFrame
    config: dict[str, Any]

    def save(self, path: Path | str) -> None:
        """Write the result to the folder `path`, new or empty: config.yaml, metrics.csv,
        timings.csv, reward.keras, policy.npz.

        Raises:
            InputError: the folder holds files already (nothing is overwritten), or cannot be
                written.
        """
        folder = Path(path)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists and is not an empty folder; nothing was written.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(
                folder / "config.yaml", to_yaml({"config": self.config, "versions": versions()})
            )
            timings = ["t", *(c for c in self.history.columns if c.endswith("_seconds"))]
            write_text(folder / "timings.csv", self.history[timings].to_csv(index=False))
            write_text(
                folder / "metrics.csv", self.history.drop(columns=timings[1:]).to_csv(index=False)
            )
            RunFolder(folder).write_result(self.reward, self.policy)
        except OSError as error:
            raise InputError(f"cannot write to {folder}: {error.strerror or error}.") from error


def load(path: Path | str) -> Result:
    """The result in a folder written by `Result.save`, `fit(..., directory=path)` or a run of the
    experiments.

    Raises:
        InputError: no run there, or it is not finished. Nothing in the files is executed.
    """
    folder = RunFolder(path)
    config = folder.config
    if not folder.finished:
        raise InputError(
            f"the run in {folder.path} is not finished; run its command again to continue it."
        )
    return Result(folder.reward(), folder.policy(), folder.history(), config)


def fit(
    demonstrations: Any,
    method: str = "virl",
    num_components: int = 10,
    *,
    seed: int = 0,
    hparams: Hparams | Mapping[str, Any] | str | Path | None = None,
    directory: str | Path | None = None,
    evaluate: Evaluate | None = None,
    progress: bool = False,
    tensorboard: bool = False,
) -> Result:
    """Recover the reward behind expert demonstrations.

    Args:
        demonstrations: [N, D] array or tensor of real numbers, N >= D + 2.
        method: "virl", "geim" or "eim".
        num_components: K of the Gaussian-mixture policy, 1 <= K <= N.
        seed: of everything random; the same seed on the same machine gives the same bytes.
        hparams: None (the preset `best` of hparams/presets.yaml over defaults.yaml), overrides of
            these {section: {key: value}}, a YAML file of such overrides, or a full `Hparams`.
        directory: keep config, metrics, checkpoints and result here. The same call again continues
            a stopped run and returns a finished one.
        evaluate: called with the `State` after every iteration; what it returns is added to the
            history.
        progress: show a progress bar.
        tensorboard: write TensorBoard event files into `directory`/tensorboard (off, because it
            needs a directory).

    Raises:
        InputError: any of these cannot be used; before any compute.
    """
    x = check_demonstrations(demonstrations)
    row = METHODS[check_choice("method", method, METHODS)]
    check_num_components(num_components, len(x))
    check_seed(seed)
    if tensorboard and directory is None:
        raise InputError("tensorboard=True needs a directory to write into; give directory=.")
    values = resolve_hparams(hparams, row)
    config = {
        "method": method,
        "num_components": int(num_components),
        "seed": int(seed),
        "hparams": values.to_dict(),
        "demonstrations": {
            "shape": list(x.shape),
            "sha256": hashlib.sha256(x.tobytes()).hexdigest(),
        },
    }
    folder = RunFolder.open(directory, config) if directory is not None else None
    return run(
        x,
        row,
        num_components,
        seed,
        values,
        config,
        folder=folder,
        evaluate=evaluate,
        progress=progress,
        tensorboard=tensorboard,
    )


def check_num_components(num_components: Any, num_demonstrations: int) -> int:
    """K as an int with 1 <= K <= N, else InputError."""
    return check_integer(
        "num_components (at most one per demonstration)", num_components, 1, num_demonstrations
    )


def resolve_hparams(
    hparams: Hparams | Mapping[str, Any] | str | Path | None, method: Method
) -> Hparams:
    """A full `Hparams` from whatever `fit` accepts."""
    if isinstance(hparams, Hparams):
        return default_hparams(method.family).override(hparams.to_dict())
    if isinstance(hparams, (str, Path)):
        return load_hparams(hparams, method.family)
    return own_data_hparams(method.family).override({} if hparams is None else hparams)


def run(
    demonstrations: np.ndarray,
    method: Method,
    num_components: int,
    seed: int,
    hparams: Hparams,
    config: Mapping[str, Any],
    *,
    folder: RunFolder | None = None,
    evaluate: Evaluate | None = None,
    observers: Sequence[Observer] = (),
    progress: bool = False,
    tensorboard: bool = False,
) -> Result:
    """Algorithm 1's loop over t for checked arguments, from the folder's last checkpoint if there
    is one.
    """
    if folder is not None and folder.finished:
        return load(folder.path)
    problem = make_problem(demonstrations, hparams, seed)
    with folder.locked() if folder is not None else nullcontext():
        state = first = irl.init(problem, method, num_components, hparams)
        fitter = DiscriminatorFitter(problem.features.num_inputs, hparams)
        if folder is not None:
            template = first._replace(network=tuple(fitter.model.get_weights()))
            state = first = folder.latest_state(template) or first

        rows = []
        with _watching(folder, demonstrations, first, hparams, progress, tensorboard) as watchers:
            for state, info in _stages(first, problem, method, fitter, hparams):
                row = {**info._asdict(), **(evaluate(state) if evaluate else {})}
                rows.append(row)
                if folder is not None:
                    folder.record(state, row)
                for observer in (*observers, *watchers):
                    observer(state, row)
        if folder is not None:
            folder.write_result(state.reward, state.policy)
    history = folder.history() if folder is not None else pd.DataFrame(rows)
    return Result(state.reward, state.policy, history, dict(config))


def _stages(
    state: State,
    problem: Problem,
    method: Method,
    fitter: DiscriminatorFitter,
    hparams: Hparams,
) -> Iterator[tuple[State, Info]]:
    """What is left of a run: iterations until T or convergence, then the pooling if there is one."""
    while state.t < hparams.loop.num_iterations and not (state.converged or state.pooled):
        state, info = irl.step(state, problem, method, fitter, hparams)
        yield state, info
    if pooling.is_due(state, problem, method):
        yield pooling.pool(state, problem, hparams)


@contextmanager
def _watching(
    folder: RunFolder | None,
    demonstrations: np.ndarray,
    state: State,
    hparams: Hparams,
    progress: bool,
    tensorboard: bool,
) -> Iterator[list[Observer]]:
    """Event files and progress bar of a run that goes on from `state`, as far as they are wanted."""
    watchers: list[Observer] = []
    with ExitStack() as stack:
        if folder is not None and tensorboard:
            events = EventFiles(folder.path / "tensorboard", demonstrations, state)
            watchers.append(stack.enter_context(events))
        if progress:
            bar = stack.enter_context(ProgressBar(hparams.loop.num_iterations))
            bar.resume(state.t)
            watchers.append(bar)
        yield watchers


@dataclass(frozen=True)
class PolicyResult:
    """A fitted policy.

    Attributes:
        policy: the mixture; `policy.distribution` is a tfd.MixtureSameFamily.
        history: a row per step, the columns of `virl_tf.vips.vips.VipsHistory`.
    """

    policy: Mixture
    history: pd.DataFrame


def fit_policy(
    log_prob: Callable[[tf.Tensor], tf.Tensor] | Reward,
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
    support: Callable[[tf.Tensor], tf.Tensor] | None = None,
    jit_compile: bool = False,
    callback: Callable[[int, Mixture], None] | None = None,
    callback_every: int = 50,
) -> PolicyResult:
    """Fit a Gaussian mixture q to any log density by VIPS: minimise KL(q || exp(log_prob)), all
    steps in one compiled call.

    Args:
        log_prob: unnormalised log density in TensorFlow, float64 [N, D] -> [N]; may be -inf. A
            recovered `Reward` is one; `virl_tf.stay_near` keeps its policy out of the gaps between
            the demonstrations, in many dimensions.
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
        jit_compile: compile with XLA. It pays from thousands of steps: M, one thread, CPU seconds
            of the call without and with it: 25 components on a walker's reward 4.8 and 19, 50 in D
            = 10 27 and 36, 3,000 steps without search 15 and 11.
        callback: called as callback(steps_done, policy) after every `callback_every` steps; the
            result is the same without it.

    Raises:
        InputError: an argument that cannot be used, or a `log_prob` of the wrong shape, NaN, or
            finite nowhere at the start.
    """
    seed, dim = check_seed(seed), check_integer("dim", dim, 1)
    num_components = check_integer("num_components", num_components, 1)
    options = None if search is False else search_hparams(None if search is True else search)
    values, num_steps = _step_options(
        dim, options, num_steps, samples_per_component, kl_bound, weight_kl_bound, ridge
    )
    call_steps = (
        num_steps
        if callback is None
        else min(check_integer("callback_every", callback_every, 1), num_steps)
    )
    if num_steps % call_steps:
        raise InputError(
            f"num_steps must be a multiple of callback_every ({callback_every}), got {num_steps}."
        )
    target = _target(log_prob, support)
    num_samples = policy_samples(values, dim)
    policy = _checked_start(
        log_prob, target, dim, num_components, seed, initial_policy, num_samples
    )
    bounds = [
        tf.constant(v, DENSITY) for v in (values.kl_bound, values.weight_kl_bound, values.ridge)
    ]
    search_seed, policy_seed = (
        tf.constant(split_seed(seed, 0, purpose)) for purpose in ("search", "policy")
    )

    def find(policy: Mixture) -> tuple[Mixture, VipsHistory]:
        assert options is not None
        return vips_search(policy, target, search_seed, bounds[1], bounds[2], options)

    def improve(policy: Mixture, first: Any) -> tuple[Mixture, VipsHistory]:
        return vips_steps(
            policy,
            target,
            policy_seed,
            *bounds,
            num_steps=call_steps,
            num_samples=num_samples,
            first_step=first,
        )

    try:
        policy, histories = _run_stages(
            policy,
            find if options else None,
            improve,
            num_steps // call_steps,
            callback,
            jit_compile,
        )
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        if not jit_compile:
            raise
        raise InputError(
            f"log_prob could not be compiled by XLA; pass jit_compile=False. XLA said: {error.message}"
        ) from error
    if np.isnan(policy.log_weights).any() or not all(
        np.isfinite(a).all() for a in (policy.means, policy.scale_trils)
    ):
        raise InputError("log_prob returned NaN, or values so extreme that the fit broke down.")
    columns = zip(VipsHistory._fields, zip(*histories, strict=True), strict=True)
    return PolicyResult(
        policy, pd.DataFrame({name: np.concatenate(parts) for name, parts in columns})
    )


def _step_options(
    dim: int,
    options: SearchHparams | None,
    num_steps: int | None,
    num_samples: int | None,
    kl_bound: float | None,
    weight_kl_bound: float,
    ridge: float,
) -> tuple[PolicyHparams, int]:
    """The checked options of the K components' own steps and their number, with defaults put in.

    Raises InputError.
    """
    if num_samples is None:
        num_samples = (
            default_samples(dim) if options is None else max(50, 4 * num_coefficients(dim))
        )
    if kl_bound is None:
        kl_bound = default_hparams().policy.kl_bound if options is None else options.final_kl_bound
    if num_steps is None:
        num_steps = FIXED_STEPS if options is None else options.final_steps
    given = {
        "samples_per_component": num_samples,
        "kl_bound": kl_bound,
        "weight_kl_bound": weight_kl_bound,
        "ridge": ridge,
    }
    return default_hparams().override({"policy": given}, "fit_policy").policy, check_integer(
        "num_steps", num_steps, 1
    )


def _run_stages(
    policy: Mixture,
    find: Callable[[Mixture], tuple[Mixture, VipsHistory]] | None,
    improve: Callable[[Mixture, Any], tuple[Mixture, VipsHistory]],
    calls: int,
    callback: Callable[[int, Mixture], None] | None,
    jit_compile: bool,
) -> tuple[Mixture, list[VipsHistory]]:
    """The search, if there is one, then `calls` times the steps; without a callback all in one
    compiled call.
    """
    histories: list[VipsHistory] = []
    steps_done = 0

    def done(history: VipsHistory) -> None:
        nonlocal steps_done
        histories.append(history)
        steps_done += len(history.elbo)
        if callback is not None:
            callback(steps_done, policy)

    def everything(policy: Mixture) -> tuple[Mixture, list[VipsHistory]]:
        assert find is not None
        policy, found = find(policy)
        policy, improved = improve(policy, tf.constant(0))
        return policy, [found, improved]

    if find is not None and callback is None:
        return compiled(everything, specs_of(policy), jit_compile=jit_compile)(policy)
    if find is not None:
        policy, history = compiled(find, specs_of(policy), jit_compile=jit_compile)(policy)
        done(history)
    run_steps = compiled(improve, *specs_of((policy, tf.constant(0))), jit_compile=jit_compile)
    first = 0
    for _ in range(calls):
        policy, history = run_steps(policy, tf.constant(first))
        first += len(history.elbo)
        done(history)
    return policy, histories


def _target(
    log_prob: Any, support: Callable[[tf.Tensor], tf.Tensor] | None
) -> Callable[[tf.Tensor], tf.Tensor]:
    """The log density to fit, -inf outside of `support`."""
    function = log_prob.log_prob if isinstance(log_prob, Reward) else log_prob
    if support is None:
        return function
    return lambda x: tf.where(
        support(x), tf.cast(function(x), DENSITY), tf.constant(-np.inf, DENSITY)
    )


def spread_start(reward: Reward, num_components: int, seed: int) -> Mixture:
    """K components with means drawn over the spread of a reward's demonstrations, each with 1/K of
    its volume.
    """
    policy = standard_normal_start(num_components, reward.dim, seed)
    widths = reward.features.scale * num_components ** (-1.0 / reward.dim)
    return policy._replace(
        means=reward.features.shift + reward.features.scale * policy.means,
        scale_trils=tf.linalg.diag(tf.ones_like(policy.means) * widths),
    )


def _checked_start(
    log_prob: Any,
    target: Any,
    dim: int,
    num_components: int,
    seed: int,
    initial_policy: Mixture | None,
    num_samples: int,
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
    wanted = [num_components, dim]
    if [policy.num_components, policy.dim] != wanted:
        raise InputError(
            f"initial_policy has shape [K, D] = {[policy.num_components, policy.dim]}, expected {wanted}."
        )
    _check_log_prob(
        target, policy.sample(num_samples * num_components, split_seed(seed, 0, "check"))
    )
    return policy


def _check_log_prob(log_prob: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor) -> None:
    values = np.asarray(log_prob(x))
    if values.shape != (len(x),):
        raise InputError(
            f"log_prob must map [N, D] to [N]; for x of shape {list(x.shape)} it returned {list(values.shape)}."
        )
    if not np.issubdtype(values.dtype, np.floating):
        raise InputError(f"log_prob must return real numbers, got dtype {values.dtype}.")
    if np.isnan(values).any():
        raise InputError(
            f"log_prob returned NaN at {int(np.isnan(values).sum())} of {len(x)} points drawn from the initial policy."
        )
    if not np.isfinite(values).any():
        raise InputError(
            f"log_prob is finite at none of {len(x)} points drawn from the initial policy; "
            "give an initial_policy that meets its support."
        )
