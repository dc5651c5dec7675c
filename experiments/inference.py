"""Inference: a newly initialised policy, fitted by VIPS to the reward of one run or the average of
several.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import virl_tf
from experiments.result_files import check_same_task
from experiments.tasks import experiment_of
from virl_tf.checkpoint import load_arrays, save_policy, write_text
from virl_tf.fit_policy import FINAL_STEPS, spread_start
from virl_tf.mixture import Mixture
from virl_tf.numerics import numpy_seed
from virl_tf.run_folder import RunFolder, write_json
from virl_tf.validation import check_integer, check_seed

FIXED_STEPS, FIXED_SAMPLES = 400, 100
EVALUATE_EVERY = 50  # steps; the paper evaluates inference policies "at their best iteration"


def infer(
    runs: list[Path],
    components: int,
    *,
    search: bool = True,
    near_data: bool = False,
    steps: int | None = None,
    samples: int | None = None,
    seed: int = 0,
    obstacles: float | None = None,
    out: Path,
    quiet: bool = False,
) -> None:
    """Fit a policy with `components` components; policy.npz, history.csv, summary.json and the
    figures' arrays go into `out`.

    Args:
        search: components are added and pruned first; without it their set is fixed, as in the
            paper.
        near_data: the policy stays near the runs' demonstrations (`virl_tf.stay_near`).
        steps, samples: of the components' own steps; None: 400 of 100 samples for a fixed set,
            `fit_policy`'s after a search.
        obstacles: the share of path planning's paths that discs block, which the reward does not
            know of.

    Raises:
        InputError: a run that is not finished, runs on different tasks, arguments out of range, or
            an `out` of something else.
    """
    console = Console(quiet=quiet)
    check_integer("--components", components, 1)
    if not search:
        steps, samples = (
            FIXED_STEPS if steps is None else steps,
            FIXED_SAMPLES if samples is None else samples,
        )
    steps = FINAL_STEPS if steps is None else check_integer("--steps", steps, 1)
    if samples is not None:
        check_integer("--samples", samples, 4)
    check_seed(seed)
    check_same_task(runs)
    rewards = [RunFolder(run).reward() for run in runs]
    demonstrations = (
        [load_arrays(run / "demonstrations.npz")["train"] for run in runs] if near_data else []
    )
    inference = experiment_of(RunFolder(runs[0]).config).inference(runs, rewards, obstacles)
    config = {
        "runs": [run.name for run in runs],
        "components": components,
        "steps": steps,
        "samples": samples,
        "seed": seed,
    }
    config |= {name: True for name, on in (("search", search), ("near_data", near_data)) if on}
    if obstacles is not None:
        config["blocked_share"] = obstacles
    RunFolder.open(out, config)
    if (out / "summary.json").is_file():
        console.print(f"{out}: finished before; nothing to do.")
        return

    target: Callable[[Any], Any] = inference.log_prob
    if near_data:
        target = virl_tf.stay_near(target, np.concatenate(demonstrations))
    evaluations: list[dict[str, float]] = []

    def measure(done: int, policy: Mixture) -> None:
        evaluations.append({"step": done, **inference.measure(policy)})

    start = time.process_time()
    with console.status(f"fitting {components} components to the reward of {len(runs)} run(s)"):
        fitted = virl_tf.fit_policy(
            target,
            rewards[0].dim,
            components,
            search=search,
            support=inference.support,
            seed=seed,
            num_steps=steps,
            samples_per_component=samples,
            initial_policy=spread_start(
                rewards[0], components, numpy_seed(seed, 0, "initial policy")
            ),
            callback=measure,
            callback_every=EVALUATE_EVERY if steps % EVALUATE_EVERY == 0 else steps,
        )
    seconds = time.process_time() - start
    save_policy(out / "policy.npz", fitted.policy)
    write_text(out / "history.csv", fitted.history.to_csv(index_label="step"))
    found, sentence = inference.finish(out, fitted.policy, evaluations, search)
    write_json(
        out / "summary.json",
        {**config, **found, "evaluations": evaluations, "cpu_seconds": seconds},
    )
    console.print(f"{sentence}; in {out}", highlight=False)
