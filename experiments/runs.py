"""One run of the random Gaussian task: demonstrations, reward, metrics, summary, picture, all in one folder."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from experiments.references import expectation_maximisation
from experiments.specification import Specification
from virl_tf import irl, metrics
from virl_tf.checkpoint import load_arrays, save_arrays
from virl_tf.fit import Result, run
from virl_tf.irl import State
from virl_tf.kde import fit_kde
from virl_tf.methods import METHODS
from virl_tf.numerics import DENSITY, numpy_seed
from virl_tf.reward import evaluate
from virl_tf.run_folder import RunFolder, write_json
from virl_tf.tasks import RandomGaussians

console = Console()


def execute(spec: Specification, out: Path, *, progress: bool = True) -> dict[str, Any]:
    """Do one run in `out`, or what is left of it, and return its summary. `progress`: show what happens on the screen."""
    console.quiet = not progress
    folder = RunFolder.open(out, spec.to_config())
    summary_file = out / "summary.json"
    if summary_file.is_file():
        console.print(f"{out}: finished before; nothing to do.")
        summary = json.loads(summary_file.read_text())
        print_summary(summary)
        return summary

    start = time.process_time() - seconds_before(out)
    console.print(f"[bold]{spec.name}[/bold] in {out}")
    task = RandomGaussians(spec.modes, spec.task_seed)
    train, test = demonstrations(task, spec, out)
    grid = metrics.grid_around(train)
    result = run(
        train,
        METHODS[spec.method],
        spec.components,
        spec.seed,
        spec.hparams,
        spec.to_config(),
        folder=folder,
        evaluate=evaluator(task, grid, test),
        progress=progress,
    )
    write_grid(out, task, grid, result)
    summary = summarise(spec, task, grid, train, result)
    summary["cpu_seconds"]["process"] = time.process_time() - start
    if progress:  # a sweep does not need hundreds of pictures
        from experiments.figures.overview import draw_overview

        draw_overview(out, {label: summary["i_projection"][key]["reported"] for key, label in _LINES.items()})
    write_json(summary_file, summary)  # last: its presence says that all the rest is there
    print_summary(summary)
    console.print(f"figure: {out / 'overview.png'}   numbers: {out / 'metrics.csv'}, {summary_file}")
    return summary


def seconds_before(out: Path) -> float:
    """CPU seconds of the iterations that an earlier process did in this folder."""
    path = out / "timings.csv"
    return float(pd.read_csv(path).drop(columns="t").to_numpy().sum()) if path.is_file() else 0.0


def demonstrations(task: RandomGaussians, spec: Specification, out: Path) -> tuple[np.ndarray, np.ndarray]:
    """Training and test demonstrations, drawn once and kept in the folder."""
    path = out / "demonstrations.npz"
    if not path.is_file():
        with console.status(f"drawing {spec.num_train + spec.num_test} demonstrations by elliptical slice sampling"):
            x = task.demonstrations(spec.num_train + spec.num_test, spec.seed)
        save_arrays(out / "task.npz", task.mixture._asdict())
        save_arrays(path, {"train": x[: spec.num_train], "test": x[spec.num_train :]})  # last: it says that both are there
    arrays = load_arrays(path)
    return arrays["train"], arrays["test"]


def evaluator(task: RandomGaussians, grid: metrics.Grid, test: np.ndarray) -> Callable[[State], dict[str, float]]:
    """What is measured after every iteration."""
    points = tf.constant(grid.points, DENSITY)
    log_p = task.log_prob(points)

    def measure(state: State) -> dict[str, float]:
        return {
            "i_projection_reward": metrics.i_projection(evaluate(state.reward, points), log_p),
            "i_projection_policy": metrics.i_projection(state.policy.log_prob(points), log_p),
            "test_log_likelihood_policy": float(tf.reduce_mean(state.policy.log_prob(test))),
        }

    return measure


def write_grid(out: Path, task: RandomGaussians, grid: metrics.Grid, result: Result) -> None:
    """Log densities on the grid, for the figures."""
    points = tf.constant(grid.points, DENSITY)
    densities = {"log_p": task.log_prob(points), "reward": result.reward(points), "log_policy": result.policy.log_prob(points)}
    save_arrays(out / "grid.npz", {"axes": grid.axes, **densities})


def summarise(
    spec: Specification, task: RandomGaussians, grid: metrics.Grid, train: np.ndarray, result: Result
) -> dict[str, Any]:
    """The run in one mapping: what figures and comparisons need."""
    points = tf.constant(grid.points, DENSITY)
    log_p = task.log_prob(points)

    def reference(log_q: tf.Tensor) -> dict[str, float]:
        return metrics.best_final_reported([metrics.i_projection(log_q, log_p)])

    history = result.history
    kde = irl.make_problem(train, spec.hparams, spec.seed).kde
    held_out = fit_kde(train, "held_out", "absolute", numpy_seed(spec.seed, 0, "bandwidth"))
    seconds = {part: float(history[f"{part}_seconds"].sum()) for part in ("sample", "training", "policy")}
    return {
        **{key: value for key, value in spec.to_config().items() if key != "hparams"},
        "status": "diverged" if has_diverged(history["i_projection_reward"]) else "finished",
        "num_iterations": len(history),
        "i_projection": {
            "reward": metrics.best_final_reported(history["i_projection_reward"]),
            "policy": metrics.best_final_reported(history["i_projection_policy"]),
            "kde": reference(kde.log_prob(points)),
            "kde_held_out": reference(held_out.log_prob(points)),
            "em": reference(expectation_maximisation(train, spec.components, spec.seed).log_prob(points)),
            "em_true_components": reference(
                expectation_maximisation(train, min(spec.modes, len(train)), spec.seed).log_prob(points)
            ),
        },
        "bandwidth": {"kde": kde.bandwidth.numpy().tolist(), "kde_held_out": held_out.bandwidth.numpy().tolist()},
        "worst_over_best": _worst_after_best(history["i_projection_reward"]),
        "test_log_likelihood_policy": float(history["test_log_likelihood_policy"].iloc[-1]),
        "effective_sample_size": {
            "of": int(history["num_negatives"].iloc[-1]),
            "mean": float(history["effective_sample_size"].mean()),
            "final": float(history["effective_sample_size"].iloc[-1]),
        },
        "cpu_seconds": seconds,
    }


# A run counts as diverged when its reward ends this many nats above its best: healthy runs stay within 0.1, diverged ones of the
# prototype ended 2 nats above.
DIVERGED_NATS = 1.0


def has_diverged(series: pd.Series) -> bool:
    """Whether the I-projection of a run's reward (one value per iteration) is lost at its end, or was not a number on the way."""
    values = series.to_numpy()
    return bool(not np.isfinite(values).all() or values[-1] > values.min() + DIVERGED_NATS)


def _worst_after_best(series: pd.Series) -> float:
    """The largest value after the best iteration over the best: 1 if nothing got worse again."""
    values = series.to_numpy()
    if not np.isfinite(values).any():
        return float("nan")
    best = int(np.nanargmin(values))
    return float(values[best:].max() / values[best])


_LINES = {"kde": "KDE", "kde_held_out": "KDE, held-out bandwidth", "em": "EM"}
_ROWS = {
    "reward": "recovered reward",
    "policy": "policy",
    "kde": "KDE alone (the run's bandwidth)",
    "kde_held_out": "KDE alone (held-out bandwidth)",
    "em": "EM, components of the policy",
    "em_true_components": "EM, components of the target",
}


def print_summary(summary: dict[str, Any]) -> None:
    """The I-projections as a table on the screen."""
    table = Table(title="I-projection KL(q || p) on the grid; lower is better")
    for column in ("density", "best", "final", "reported"):
        table.add_column(column, justify="left" if column == "density" else "right")
    for key, label in _ROWS.items():
        values = summary["i_projection"][key]
        table.add_row(label, *(f"{values[column]:.4f}" for column in ("best", "final", "reported")))
    console.print(table)
    size = summary["effective_sample_size"]
    seconds = summary["cpu_seconds"]
    console.print(
        f"effective sample size {size['mean']:.0f} of {size['of']} on average; CPU seconds: "
        f"{seconds['training']:.0f} training, {seconds['policy']:.0f} policy, {seconds['sample']:.0f} sampling, "
        f"{seconds['process']:.0f} the whole run"
    )
