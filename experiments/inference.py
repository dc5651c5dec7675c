"""Inference: a new policy, fitted by VIPS to the reward of one run or the average of several."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import virl_tf
from virl_tf.fit_policy import FINAL_STEPS, PolicyResult, Support, fit_policy
from virl_tf.mixture import Mixture
from virl_tf.persistence.files import write_json, write_text
from virl_tf.persistence.policy_file import save_policy
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.reward import Reward
from virl_tf.validation import InputError, check_integer, check_seed

from rich.console import Console

from experiments.evaluation.base import Inference
from experiments.evaluation.own_demonstrations import OwnInference, draw_missing
from experiments.result_files import check_same_task
from experiments.supports import load_support
from experiments.tasks import describe, experiment_of, names_where
from experiments.tasks.description import TaskDescription

FIXED_STEPS, FIXED_SAMPLES = 400, 100
EVALUATE_EVERY = 50  # steps; the paper evaluates inference policies "at their best iteration"


class InferenceRequest(NamedTuple):
    """Which policy.

    Attributes:
        search: components are added and pruned first; without it their set is fixed, as in the
            paper.
        steps, samples: of the components' own steps; None: 400 of 100 samples for a fixed set,
            `fit_policy`'s after a search.
        obstacles: the share of path planning's paths that discs block, which the reward does not
            know of.
        support: where the policy may go, a Python function; see `experiments.supports`.
    """

    components: int
    search: bool = True
    steps: int | None = None
    samples: int | None = None
    seed: int = 0
    obstacles: float | None = None
    support: str | None = None


def infer(runs: list[Path], request: InferenceRequest, out: Path, quiet: bool = False) -> None:
    """Fit a policy; policy.npz, history.csv, summary.json and the figures' arrays go into `out`.

    Raises:
        InputError: a run that is not finished, runs on different tasks, arguments out of range, or
            an `out` of something else.
    """
    console = Console(quiet=quiet)
    check_integer("--components", request.components, 1)
    steps, samples = _steps_and_samples(request)
    check_seed(request.seed)
    check_same_task(runs)
    rewards = [RunFolder(run).reward() for run in runs]
    if any(reward.num_contexts for reward in rewards):
        raise InputError(
            "a reward of contexts has a policy for each; from Python: "
            "virl_tf.fit_policy(reward.condition(c), dim)."
        )
    given = None if request.support is None else load_support(request.support)
    inference = inference_of(runs, rewards, request.obstacles)
    config = {
        "runs": [run.name for run in runs],
        "components": request.components,
        "steps": steps,
        "samples": samples,
        "seed": request.seed,
        **({"search": True} if request.search else {}),
        **({} if request.obstacles is None else {"blocked_share": request.obstacles}),
        **({} if given is None else {"support": given.identity}),
    }
    RunFolder.open(out, config)
    if (out / "summary.json").is_file():
        console.print(f"{out}: finished before; nothing to do.")
        return

    start = time.process_time()
    with console.status(
        f"fitting {request.components} components to the reward of {len(runs)} run(s)"
    ):
        support = _both(inference.support, None if given is None else given.function)
        fitted, evaluations = _fit(inference, rewards[0], support, config)
    seconds = time.process_time() - start
    save_policy(out / "policy.npz", fitted.policy)
    write_text(out / "history.csv", fitted.history.to_csv(index_label="step"))
    found, sentence = inference.finish(out, fitted.policy, evaluations, request.search)
    summary = {**config, **found, "evaluations": evaluations, "cpu_seconds": seconds}
    write_json(out / "summary.json", summary)
    console.print(f"{sentence}; in {out}", highlight=False)


def _steps_and_samples(request: InferenceRequest) -> tuple[int, int | None]:
    """Of the components' own steps."""
    steps, samples = request.steps, request.samples
    if steps is None:
        steps = FINAL_STEPS if request.search else FIXED_STEPS
    if samples is None and not request.search:
        samples = FIXED_SAMPLES
    check_integer("--steps", steps, 1)
    return steps, None if samples is None else check_integer("--samples", samples, 4)


def inference_of(runs: list[Path], rewards: list[Reward], obstacles: float | None) -> Inference:
    """What the task infers on the average of the rewards.

    Raises InputError if it knows no obstacles, or not such a share of them.
    """
    config = RunFolder(runs[0]).config
    if "task" not in config:
        if obstacles is not None:
            raise InputError("--obstacles is for tasks; on your own demonstrations use --support.")
        for run in runs:
            draw_missing(run, virl_tf.load(run))
        return OwnInference(runs, rewards)
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


def _fit(
    inference: Inference, reward: Reward, support: Support | None, config: dict[str, Any]
) -> tuple[PolicyResult, list[dict[str, float]]]:
    """The new policy, and what is measured of it on the way."""
    components, steps, seed = config["components"], config["steps"], config["seed"]
    evaluations: list[dict[str, float]] = []

    def measure(done: int, policy: Mixture) -> None:
        evaluations.append({"step": done, **inference.measure(policy)})

    fitted = fit_policy(
        inference.log_prob,
        reward.dim,
        components,
        search=config.get("search", False),
        support=support,
        seed=seed,
        num_steps=steps,
        samples_per_component=config["samples"],
        initial_policy=inference.start(reward, components, seed),
        callback=measure,
        callback_every=EVALUATE_EVERY if steps % EVALUATE_EVERY == 0 else steps,
    )
    return fitted, evaluations
