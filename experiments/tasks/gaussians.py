"""The random Gaussian task: numerical I-projections on a grid around the demonstrations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from experiments.references import expectation_maximisation
from experiments.result_files import read_summary
from experiments.tasks.base import average_reward, has_diverged
from virl_tf import metrics
from virl_tf.checkpoint import load_arrays, load_policy, save_arrays
from virl_tf.fit import Evaluate, Result
from virl_tf.hparams import default_hparams
from virl_tf.irl import State, make_problem
from virl_tf.kde import fit_kde
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, numpy_seed
from virl_tf.reward import CumulativeValues, Reward
from virl_tf.tasks import RandomGaussians
from virl_tf.validation import InputError


class GaussiansExperiment:
    """The I-projection of reward and policy, with KDE and EM as references."""

    objective = "i_projection_reward"

    def __init__(self, config: Mapping[str, Any]):
        """For a run's configuration."""
        self._config = config
        self.task = RandomGaussians(config["modes"], config["task_seed"])

    def evaluator(self, train: np.ndarray, test: np.ndarray) -> Evaluate:
        """I-projections of reward and policy, and the policy's likelihood of the test demonstrations."""
        points = tf.constant(metrics.grid_around(train).points, DENSITY)
        log_p, rewards = self.task.log_prob(points), CumulativeValues(points)

        def measure(state: State) -> dict[str, float]:
            return {
                "i_projection_reward": metrics.i_projection(rewards(state.reward), log_p),
                "i_projection_policy": metrics.i_projection(state.policy.log_prob(points), log_p),
                "test_log_likelihood_policy": float(tf.reduce_mean(state.policy.log_prob(test))),
            }

        return measure

    def write_arrays(self, out: Path, train: np.ndarray, result: Result) -> None:
        """The target, and log densities on the grid."""
        grid = metrics.grid_around(train)
        points = tf.constant(grid.points, DENSITY)
        densities = {
            "log_p": self.task.log_prob(points),
            "reward": result.reward(points),
            "log_policy": result.policy.log_prob(points),
        }
        save_arrays(out / "task.npz", self.task.mixture._asdict())
        save_arrays(out / "grid.npz", {"axes": grid.axes, **densities})

    def summarise(self, train: np.ndarray, result: Result) -> dict[str, Any]:
        """I-projections (best, final, reported) of the run and of its references."""
        points = tf.constant(metrics.grid_around(train).points, DENSITY)
        log_p = self.task.log_prob(points)

        def reference(log_q: tf.Tensor) -> dict[str, float]:
            return metrics.best_final_reported([metrics.i_projection(log_q, log_p)])

        history, seed, modes = result.history, self._config["seed"], self._config["modes"]
        hparams = default_hparams(self._config["method"]).override(self._config["hparams"])
        kde = make_problem(train, hparams, seed).kde
        held_out = fit_kde(train, "held_out", "absolute", numpy_seed(seed, 0, "bandwidth"))
        em = expectation_maximisation(train, self._config["components"], seed)
        em_true = expectation_maximisation(train, min(modes, len(train)), seed)
        return {
            "status": "diverged" if has_diverged(history[self.objective]) else "finished",
            "i_projection": {
                "reward": metrics.best_final_reported(history["i_projection_reward"]),
                "policy": metrics.best_final_reported(history["i_projection_policy"]),
                "kde": reference(kde.log_prob(points)),
                "kde_held_out": reference(held_out.log_prob(points)),
                "em": reference(em.log_prob(points)),
                "em_true_components": reference(em_true.log_prob(points)),
            },
            "bandwidth": {"kde": kde.bandwidth.numpy().tolist(), "kde_held_out": held_out.bandwidth.numpy().tolist()},
            "worst_over_best": _worst_after_best(history["i_projection_reward"]),
            "test_log_likelihood_policy": float(history["test_log_likelihood_policy"].iloc[-1]),
        }

    def draw(self, out: Path, summary: Mapping[str, Any]) -> None:
        """Heat maps and curves."""
        from experiments.figures.overview import draw_overview

        draw_overview(out, {label: summary["i_projection"][key]["reported"] for key, label in _LINES.items()})

    def print_summary(self, summary: Mapping[str, Any], console: Console) -> None:
        """The I-projections as a table."""
        table = Table(title="I-projection KL(q || p) on the grid; lower is better")
        for column in ("density", "best", "final", "reported"):
            table.add_column(column, justify="left" if column == "density" else "right")
        for key, label in _ROWS.items():
            values = summary["i_projection"][key]
            table.add_row(label, *(f"{values[column]:.4f}" for column in ("best", "final", "reported")))
        console.print(table)

    def inference(self, runs: Sequence[Path], rewards: Sequence[Reward], obstacles: float | None = None) -> "GaussiansInference":
        """Inference on the average reward. Raises InputError if obstacles are asked for."""
        if obstacles is not None:
            raise InputError("--obstacles is for path_planning; these are runs of gaussians.")
        return GaussiansInference(runs, rewards)


class GaussiansInference:
    """How close a new policy comes to the target, on the first run's grid."""

    def __init__(self, runs: Sequence[Path], rewards: Sequence[Reward]):
        """From the files of the runs."""
        self._runs, self._rewards, grid = runs, rewards, load_arrays(runs[0] / "grid.npz")
        self._axes = grid["axes"]
        mesh = np.stack(np.meshgrid(*self._axes, indexing="ij"), axis=-1)
        self._points = tf.constant(mesh.reshape(-1, rewards[0].dim), DENSITY)
        self._log_p = load_policy(runs[0] / "task.npz").log_prob(self._points)

    def log_prob(self, x: Any) -> Any:
        """The average reward."""
        return average_reward(self._rewards, x)

    def measure(self, policy: Mixture) -> dict[str, float]:
        """The policy's I-projection."""
        return {"i_projection_policy": metrics.i_projection(policy.log_prob(self._points), self._log_p)}

    support = None

    def finish(
        self, out: Path, policy: Mixture, evaluations: Sequence[Mapping[str, float]], search: bool
    ) -> tuple[dict[str, Any], str]:
        """The policy on the grid; I-projections of it and of the training policies."""
        log_policy = policy.log_prob(self._points)
        save_arrays(out / "grid.npz", {"axes": self._axes, "log_policy": log_policy})
        trained = float(np.mean([read_summary(run)["i_projection"]["policy"]["reported"] for run in self._runs]))
        series = [row["i_projection_policy"] for row in evaluations]
        distances = {
            "inference_policy": metrics.best_final_reported(series),
            "training_policy": trained,
            "inference_policy_to_reward": metrics.i_projection(log_policy, self.log_prob(self._points)),
        }
        new = f"{series[-1]:.4f} for the new policy (best {min(series):.4f})"
        sentence = f"KL to the target: {new}, {trained:.4f} for the training policy"
        return {"i_projection": distances}, sentence


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
