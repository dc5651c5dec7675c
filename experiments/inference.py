"""Inference: a new policy, fitted by VIPS to the reward of one run or the average of several."""

import hashlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import virl_tf
from virl_tf.fit_policy import PolicyResult, fit_policy
from virl_tf.persistence.files import write_json, write_text
from virl_tf.persistence.policy_file import save_policy
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.policy_fit.schedule import AFTER_SEARCH, FIXED, KEPT_SHARES
from virl_tf.policy_fit.targets import NowhereInsideError, Support
from virl_tf.reward import Reward
from virl_tf.summary import context_doubts, doubts_of_contexts
from virl_tf.validation import InputError, as_option, check_choice, check_positive

import numpy as np
from rich.console import Console

from experiments.evaluation.base import SEARCH, Inference, UserSupport
from experiments.evaluation.own_demonstrations import (
    OwnInference,
    column_names,
    draw_missing,
    is_one,
)
from experiments.own_data.demonstration_files import load_contexts
from experiments.result_files import check_same_task, read_summary, rewards_of
from experiments.screen import screen, warn
from experiments.tasks import describe, experiment_of, names_where
from experiments.tasks.description import TaskDescription
from experiments.user_functions import load_support

FIXED_STEPS, FIXED_SAMPLES = 400, 100
EVALUATE_EVERY = 50  # steps; the paper evaluates inference policies "at their best iteration"


class InferenceRequest(NamedTuple):
    """Which policy.

    Attributes:
        search: components are added and pruned first; without it their set is fixed, as in the
            paper; None: but for a policy for all contexts, below temperature 1, and where
            `fit_policy` starts from a reward's draws inside of the support.
        steps, samples: of the components' own steps; None: 400 of 100 samples for a fixed set,
            else `fit_policy`'s.
        obstacles: the share of path planning's paths that discs block, which the reward does not
            know of.
        support: where the policy may go, a Python function; see `experiments.user_functions`.
        context: of rewards with contexts the one to fit a policy for, by its columns' names.
        contexts: a file of those to fit one for; without either it is for all that were
            demonstrated.
        temperature: below 1 the policy is nearer to what is likeliest; see `fit_policy`.
    """

    components: int
    search: bool | None = None
    steps: int | None = None
    samples: int | None = None
    seed: int = 0
    obstacles: float | None = None
    support: str | None = None
    context: Mapping[str, float] | None = None
    contexts: Path | None = None
    temperature: float = 1.0


class Plan(NamedTuple):
    """What a command is to do.

    Attributes:
        inference: the task's, on the average of the rewards.
        reward: of the first run.
        context: of the policy, [C] or several [M, C]; None: without, or for all demonstrated.
        support: the user's.
        search: as `InferenceRequest`; None: as `fit_policy` does it where there is a support, or
            below temperature 1.
        temperature: as `InferenceRequest`.
        config: what tells this command from others.
        warnings: what is to be doubted before the fit; of the context by the first run.
    """

    inference: Inference
    reward: Reward
    context: np.ndarray | None
    support: UserSupport | None
    search: bool | None
    temperature: float
    config: dict[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def fitting(self) -> dict[str, Any]:
        """How the same is fitted to another target, as arguments of `fit_policy`."""
        search = False if self.search is False else SEARCH
        steps, samples = self.config["steps"], self.config["samples"]
        own = {"num_steps": steps, "samples_per_component": samples}
        return {"search": search, "temperature": self.temperature, **own}


def infer(runs: list[Path], request: InferenceRequest, out: Path, quiet: bool = False) -> None:
    """Fit a policy; policy.npz, history.csv, summary.json and the figures' arrays go into `out`.

    Raises:
        InputError: a run that is not finished, runs on different tasks, or an `out` of something
            else, or one that another process is working on.
    """
    console = screen(quiet=quiet)
    plan = _planned(runs, request, out, console)
    folder = RunFolder.open(out, plan.config, preset=_preset_of(runs))
    if (out / "summary.json").is_file():
        console.out(f"{out}: finished before; nothing to do.")
    else:
        with folder.locked(), _nothing_left_by_errors(out):
            console.out(_what_is_fitted(runs, request))
            _infer(plan, runs, out, console)
    console.out(f"read it from Python: virl_tf.load_policy({str(out)!r})")


def _infer(plan: Plan, runs: list[Path], out: Path, console: Console) -> None:
    """The fit, and all that is made of it."""
    start = time.process_time()
    with console.status("fitting"):
        fitted, evaluations = _fit(plan)
    seconds = time.process_time() - start
    save_policy(out / "policy.npz", fitted.policy)
    write_text(out / "history.csv", fitted.history.to_csv(index_label="step"))
    found, sentence = plan.inference.finish(out, fitted.policy, evaluations, plan.fitting)
    closed: list[str] = []
    if plan.support is not None:
        found |= {"outside_of_support": _outside(plan, fitted.policy, RunFolder(runs[0]).policy())}
        closed = _closed(plan, fitted.policy, column_names(read_summary(runs[0])))
    doubts = [*fitted.warnings, *found.get("warnings", ()), *closed]
    if doubts or "warnings" in found:
        found |= {"warnings": [*plan.warnings, *doubts]}
    summary = {**plan.config, **found, "evaluations": evaluations, "cpu_seconds": seconds}
    write_json(out / "summary.json", summary)
    console.out(f"{sentence}; in {out}")
    _print_found(found, console)
    for text in doubts:
        warn(text, console.quiet)


def _planned(runs: list[Path], request: InferenceRequest, out: Path, console: Console) -> Plan:
    """Raises InputError."""
    if len({run.resolve() for run in runs}) < len(runs):
        raise InputError("a run is given twice; the average of rewards is over different ones.")
    if out.resolve() in {run.resolve() for run in runs}:
        raise InputError(f"--out {out} is the run itself; a new policy wants a folder of its own.")
    check_same_task(runs)
    rewards = [RunFolder(run).reward() for run in runs]
    context = _context(runs[0], rewards[0], request)
    doubts: tuple[str, ...] = ()
    if context is not None:
        told = context_doubts if context.ndim == 1 else doubts_of_contexts
        doubts = told(context, rewards[0], read_summary(runs[0]))
    for text in doubts:
        warn(text, console.quiet)
    for_all = rewards[0].num_contexts > 0 and not is_one(context)
    if for_all and request.search:
        raise InputError("--search is not for several contexts; give one with --context.")
    if request.support is not None and "task" in RunFolder(runs[0]).config:
        text = "--support is for fits to your own demonstrations; path_planning has --obstacles."
        raise InputError(text)
    named = None if request.support is None else load_support(request.support)
    support = None if named is None else UserSupport(named.function)
    search, temperature = request.search, _temperature(runs[0], request.temperature)
    inside = support is not None and len(runs) == 1 and rewards[0].mixture.num_components > 0
    if search is None and not inside and temperature >= 1.0:
        search = not for_all
    if search is None and temperature < 1.0 and not for_all:
        _check_shares(rewards, context)
    steps, samples = _steps_and_samples(request, search, for_all)
    inference = inference_of(runs, rewards, request.obstacles, context, support)
    config = {
        **_identities(out, runs),
        "components": request.components,
        "steps": steps,
        "samples": samples,
        "seed": request.seed,
        **({} if search is False else {"search": search}),
        **({} if request.obstacles is None else {"blocked_share": request.obstacles}),
        **({} if named is None else {"support": named.identity}),
        **({} if context is None else _identity_of(context)),
        **({} if temperature == 1.0 else {"temperature": temperature}),
    }
    return Plan(inference, rewards[0], context, support, search, temperature, config, doubts)


def _identity_of(context: np.ndarray) -> dict[str, Any]:
    """One context as it is; of several [M, C] what tells them from others."""
    if context.ndim == 1:
        return {"context": context.tolist()}
    digest = hashlib.sha256(context.tobytes()).hexdigest()
    return {"contexts": {"shape": list(context.shape), "sha256": digest}}


def _check_shares(rewards: Sequence[Reward], context: np.ndarray | None) -> None:
    """Raises InputError for an average of which nothing tells the shares of its modes, that stay
    below temperature 1; of a single reward a fit at temperature 1 does.
    """
    first = rewards[0] if context is None else rewards[0].condition(context)
    if len(rewards) > 1 and not first.mixture.num_components:
        raise InputError(
            "--temperature below 1 keeps the weights of an EM mixture, and the rewards of these "
            "runs carry none; give one run, or --search, which changes weights."
        )


def _preset_of(runs: list[Path]) -> object:
    """The runs' preset, or None if they have several."""
    presets = {RunFolder(run).config.get("preset") for run in runs}
    return presets.pop() if len(presets) == 1 else None


@contextmanager
def _nothing_left_by_errors(out: Path) -> Iterator[None]:
    """The same command is given again with another --support, or after Ctrl-C with the right
    --components, and would be another configuration than that of a folder in which nothing was
    made.
    """
    try:
        yield
    except BaseException:
        if {path.name for path in out.iterdir()} == {"config.yaml", ".lock"}:
            (out / "config.yaml").unlink()
        raise


def _identities(out: Path, runs: list[Path]) -> dict[str, list[str]]:
    """Of runs: their names, and those of their rewards, as folders of one name are not one run.

    The names are those that stand in `out` already, if folders were renamed since.
    """
    rewards = rewards_of(runs)
    before = RunFolder(out).config if (out / "config.yaml").is_file() else {}
    known = before.get("rewards") == rewards and "runs" in before
    names = before["runs"] if known else [run.resolve().name for run in runs]
    return {"runs": names, "rewards": rewards}


def _what_is_fitted(runs: list[Path], request: InferenceRequest) -> str:
    named = str(runs[0]) if len(runs) == 1 else f"{len(runs)} runs, averaged"
    at = "" if request.temperature == 1.0 else f" at temperature {request.temperature:g}"
    what = f"a policy of {request.components} components{at} on the reward of {named}"
    return f"{what}; half a minute as a rule"


def _outside(plan: Plan, new: Any, trained: Any) -> dict[str, float]:
    """The share of two policies' draws that are outside of the user's support."""
    assert plan.support is not None
    trained = trained.condition(plan.context) if is_one(plan.context) else trained
    contexts = getattr(plan.inference, "contexts", None)
    policies = {"inference_policy": new, "training_policy": trained}
    return {name: plan.support.outside(one, contexts) for name, one in policies.items()}


def _closed(plan: Plan, policy: Any, columns: Sequence[str]) -> list[str]:
    """A line if there are contexts in which no draw of the new policy is inside of the support."""
    contexts = getattr(plan.inference, "contexts", None)
    if plan.support is None or contexts is None:
        return []
    found, count = plan.support.closed(policy, contexts)
    if not len(found):
        return []
    first = zip(columns, found[0], strict=False)
    at = as_option(f"{name}={value:.4g}" for name, value in first)
    return [
        f"--support is true at no draw of the new policy in {len(found)} of {count} contexts, the "
        f"first at {at}: the policy is none for these. See whether the support is meant so, or "
        f"fit a policy for one of them (--context {at})."
    ]


def _print_found(found: Mapping[str, Any], console: Console) -> None:
    """Whether a constraint holds."""
    if "outside_of_support" in found:
        new, trained = (f"{100.0 * share:.1f} %" for share in found["outside_of_support"].values())
        text = f"{new} of the new policy's draws, {trained} of the training policy's"
        console.out(f"outside of the support: {text}")


def _steps_and_samples(
    request: InferenceRequest, search: bool | None, for_all: bool
) -> tuple[int, int | None]:
    """Of the components' own steps; those of a policy for all contexts are `fit_policy`'s."""
    steps, samples = request.steps, request.samples
    if steps is None:
        if for_all:
            steps = FIXED.num_steps
        elif search is None:
            steps = KEPT_SHARES.num_steps
        else:
            steps = AFTER_SEARCH.num_steps if search else FIXED_STEPS
    if samples is None and search is False and not for_all:
        samples = FIXED_SAMPLES
    return steps, samples


def _temperature(run: Path, given: float) -> float:
    """Raises InputError for what is none, and for runs of tasks, whose truth has temperature 1."""
    if given != 1.0 and "task" in RunFolder(run).config:
        text = f"--temperature is for fits to your own demonstrations; {run} is of a task."
        raise InputError(text)
    return check_positive("--temperature", given)


def _context(run: Path, reward: Reward, request: InferenceRequest) -> np.ndarray | None:
    """The one to fit a policy for, [C], or several, [M, C].

    Raises InputError for other columns than the contexts'.
    """
    given, file = request.context, request.contexts
    if given is None and file is None:
        return None
    option = "--contexts" if given is None else "--context"
    if given is not None and file is not None:
        raise InputError("--context is one context, --contexts a file of several; give one option.")
    if reward.num_contexts == 0:
        raise InputError(f"{option} is for rewards with contexts; that of {run} has none.")
    if "task" in RunFolder(run).config:
        raise InputError(f"{option} is for fits to your own demonstrations; {run} is of a task.")
    names = column_names(read_summary(run))[: reward.num_contexts]
    if file is not None:
        return load_contexts(file, names)
    assert given is not None
    for name in given:
        check_choice("column of --context", name, names)
    missing = [name for name in names if name not in given]
    if missing:
        raise InputError(f"--context gives no {missing[0]!r}; the contexts are {', '.join(names)}.")
    for name, value in given.items():
        if not np.isfinite(value):
            raise InputError(f"--context: {name!r} must be a finite number, got {value}.")
    return np.array([given[name] for name in names])


def inference_of(
    runs: list[Path],
    rewards: list[Reward],
    obstacles: float | None,
    context: np.ndarray | None,
    given: UserSupport | None,
) -> Inference:
    """What the task infers on the average of the rewards; `given`: the user's own support.

    Raises InputError if it knows no obstacles, or not such a share of them.
    """
    config = RunFolder(runs[0]).config
    if "task" not in config:
        if obstacles is not None:
            raise InputError("--obstacles is for tasks; on your own demonstrations use --support.")
        for run in runs:
            with suppress(OSError):  # it may be read-only
                draw_missing(run, virl_tf.load(run))
        return OwnInference(runs, rewards, context, given)
    if obstacles is not None and not _has_obstacles(describe(config["task"])):
        takers = names_where(_has_obstacles)
        raise InputError(f"--obstacles is for {takers}; these are runs of {config['task']}.")
    return experiment_of(config).inference(runs, rewards, obstacles)


def _has_obstacles(description: TaskDescription) -> bool:
    return any(share is not None for share in description.inference_stages.values())


def _both(first: Support | None, second: Support | None) -> Support | None:
    """Where both are true; None is everywhere."""
    if first is None or second is None:
        return first or second
    return lambda x: first(x) & second(x)


def _fit(plan: Plan) -> tuple[PolicyResult, list[dict[str, float]]]:
    """The new policy inside of the task's support and the user's, and what is measured of it on the
    way.
    """
    inference, reward, config = plan.inference, plan.reward, plan.config
    components, steps, seed = config["components"], config["steps"], config["seed"]
    evaluations: list[dict[str, float]] = []
    measured: Any = None

    def measure(done: int, policy: Any) -> None:
        nonlocal measured
        measured = policy
        evaluations.append({"step": done, **inference.measure(policy)})

    try:
        with warnings.catch_warnings():  # its warnings are in the result
            warnings.filterwarnings("ignore", category=UserWarning, module=__name__)
            fitted = fit_policy(
                inference.log_prob,
                reward.dim,
                components,
                contexts=getattr(inference, "contexts", None),
                temperature=plan.temperature,
                search=SEARCH if plan.search else plan.search,
                support=_both(inference.support, plan.support),
                seed=seed,
                num_steps=steps,
                samples_per_component=config["samples"],
                initial_policy=inference.start(reward, components, seed),
                callback=measure,
                callback_every=EVALUATE_EVERY if steps % EVALUATE_EVERY == 0 else steps,
            )
    except NowhereInsideError as error:
        if plan.support is None:
            raise
        rows = "" if getattr(inference, "contexts", None) is None else "; it sees rows [c, x]"
        raise InputError(
            f"--support: the support is true at none of {error.draws} draws of the reward; "
            f"check its units{rows}."
        ) from error
    if fitted.policy is not measured:  # the start, or that of a fit that ended early
        done = len(fitted.history)
        evaluations = [row for row in evaluations if row["step"] < done]
        measure(done, fitted.policy)
    return fitted, evaluations
