"""Inference: a newly initialised policy, fitted by VIPS to the reward of one run or the average of several."""

import json
from pathlib import Path

import numpy as np
import tensorflow as tf
from rich.console import Console

import virl_tf
from experiments.figures.figure_5 import check_same_task
from virl_tf import metrics
from virl_tf.checkpoint import load_arrays, save_arrays, save_policy, write_text
from virl_tf.fit import spread_start
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, numpy_seed
from virl_tf.run_folder import RunFolder
from virl_tf.validation import check_integer, check_seed


def infer(runs: list[Path], components: int, steps: int, samples: int, seed: int, out: Path | None) -> None:
    """Fit a policy with `components` components and write policy.npz, history.csv, grid.npz and summary.json into `out`.

    Raises:
        InputError: a run that is not finished, runs on different tasks, arguments out of range, or an `out` of something else.
    """
    console = Console()
    check_integer("--components", components, 1)
    check_integer("--steps", steps, 1)
    check_seed(seed)
    check_same_task(runs)
    rewards = [RunFolder(run).reward() for run in runs]
    out = out or runs[0] / "inference"
    config = {"runs": [str(run) for run in runs], "components": components, "steps": steps, "samples": samples, "seed": seed}
    RunFolder.open(out, config)
    if (out / "summary.json").is_file():
        console.print(f"{out}: finished before; nothing to do.")
        return

    def average_reward(x: tf.Tensor) -> tf.Tensor:
        return tf.add_n([reward.log_prob(x) for reward in rewards]) / len(rewards)

    with console.status(f"fitting {components} components to the reward of {len(runs)} run(s)"):
        fitted = virl_tf.fit_policy(
            average_reward,
            rewards[0].dim,
            components,
            seed=seed,
            num_steps=steps,
            samples_per_component=samples,
            initial_policy=spread_start(rewards[0], components, numpy_seed(seed, 0, "initial policy")),
        )
    save_policy(out / "policy.npz", fitted.policy)
    write_text(out / "history.csv", fitted.history.to_csv(index_label="step"))

    grid, target = load_arrays(runs[0] / "grid.npz"), Mixture(**load_arrays(runs[0] / "task.npz"))
    points = tf.constant(np.stack(np.meshgrid(*grid["axes"], indexing="ij"), axis=-1).reshape(-1, rewards[0].dim), DENSITY)
    log_policy, log_p = fitted.policy.log_prob(points), target.log_prob(points)
    save_arrays(out / "grid.npz", {"axes": grid["axes"], "log_policy": log_policy})
    trained = [json.loads((run / "summary.json").read_text())["i_projection"]["policy"]["final"] for run in runs]
    distances = {
        "inference_policy": metrics.i_projection(log_policy, log_p),
        "training_policy": float(np.mean(trained)),
        "inference_policy_to_reward": metrics.i_projection(log_policy, average_reward(points)),
    }
    summary = {**config, "i_projection": distances}
    write_text(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    console.print(
        f"KL to the target: {distances['inference_policy']:.4f} for the new policy, "
        f"{distances['training_policy']:.4f} for the training policy; in {out}"
    )
