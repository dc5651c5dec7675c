"""Inference: a newly initialised policy, fitted by VIPS to the reward of one run or the average of several."""

import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from rich.console import Console

import virl_tf
from experiments.result_files import check_same_task, read_summary
from virl_tf import metrics
from virl_tf.checkpoint import load_arrays, save_arrays, save_policy, write_text
from virl_tf.fit import spread_start
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, numpy_seed
from virl_tf.run_folder import RunFolder, write_json
from virl_tf.validation import check_integer, check_seed

EVALUATE_EVERY = 50  # steps; the paper evaluates inference policies "at their best iteration"


def infer(
    runs: list[Path], components: int, *, steps: int = 400, samples: int = 100, seed: int = 0, out: Path, quiet: bool = False
) -> None:
    """Fit a policy with `components` components and write policy.npz, history.csv, grid.npz and summary.json into `out`.

    Raises:
        InputError: a run that is not finished, runs on different tasks, arguments out of range, or an `out` of something else.
    """
    console = Console(quiet=quiet)
    check_integer("--components", components, 1)
    check_integer("--steps", steps, 1)
    check_seed(seed)
    check_same_task(runs)
    rewards = [RunFolder(run).reward() for run in runs]
    config = {"runs": [run.name for run in runs], "components": components, "steps": steps, "samples": samples, "seed": seed}
    RunFolder.open(out, config)
    if (out / "summary.json").is_file():
        console.print(f"{out}: finished before; nothing to do.")
        return

    grid, target = load_arrays(runs[0] / "grid.npz"), Mixture(**load_arrays(runs[0] / "task.npz"))
    points = tf.constant(np.stack(np.meshgrid(*grid["axes"], indexing="ij"), axis=-1).reshape(-1, rewards[0].dim), DENSITY)
    log_p = target.log_prob(points)
    distances = []

    def average_reward(x: tf.Tensor) -> tf.Tensor:
        return tf.add_n([reward.log_prob(x) for reward in rewards]) / len(rewards)

    def measure(done: int, policy: Mixture) -> None:
        distances.append({"step": done, "i_projection_policy": metrics.i_projection(policy.log_prob(points), log_p)})

    start = time.process_time()
    with console.status(f"fitting {components} components to the reward of {len(runs)} run(s)"):
        fitted = virl_tf.fit_policy(
            average_reward,
            rewards[0].dim,
            components,
            seed=seed,
            num_steps=steps,
            samples_per_component=samples,
            initial_policy=spread_start(rewards[0], components, numpy_seed(seed, 0, "initial policy")),
            callback=measure,
            callback_every=EVALUATE_EVERY if steps % EVALUATE_EVERY == 0 else steps,
        )
    seconds = time.process_time() - start
    log_policy = fitted.policy.log_prob(points)
    save_policy(out / "policy.npz", fitted.policy)
    write_text(out / "history.csv", fitted.history.to_csv(index_label="step"))
    save_arrays(out / "grid.npz", {"axes": grid["axes"], "log_policy": log_policy})
    trained = [read_summary(run)["i_projection"]["policy"]["reported"] for run in runs]
    series = [row["i_projection_policy"] for row in distances]
    summary = {
        **config,
        "i_projection": {
            "inference_policy": metrics.best_final_reported(series),
            "training_policy": float(np.mean(trained)),
            "inference_policy_to_reward": metrics.i_projection(log_policy, average_reward(points)),
        },
        "evaluations": distances,
        "cpu_seconds": seconds,
    }
    write_json(out / "summary.json", summary)
    console.print(
        f"KL to the target: {series[-1]:.4f} for the new policy (best {min(series):.4f}), "
        f"{np.mean(trained):.4f} for the training policy; in {out}"
    )
