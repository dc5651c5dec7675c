"""Densities that can be evaluated everywhere: I-projections of reward, policy and references."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from virl_tf import metrics
from virl_tf.demonstrations import Data
from virl_tf.fit import Evaluate, Result
from virl_tf.hparams import default_hparams
from virl_tf.irl import State
from virl_tf.kde import Kde
from virl_tf.methods import METHODS
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY
from virl_tf.persistence.files import load_arrays, save_arrays
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.problem import kernel_estimate
from virl_tf.reward import Reward
from virl_tf.tasks import RandomGaussians, Task

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Column, Table

from experiments.evaluation.base import average_reward, new_start, status_of
from experiments.evaluation.distances import distances_of
from experiments.references import (
    LABELS,
    OF_RUNS,
    SWEEP_COMPONENTS,
    Demonstrated,
    fit_references,
)
from experiments.result_files import read_summary


class DensityExperiment:
    """The I-projection of reward and policy onto a density in 2-D, or onto Gaussian mixtures in any
    dimension, with KDE and EM as references.
    """

    def __init__(self, config: Mapping[str, Any], task: Task):
        """For a run's configuration and its target."""
        self._config, self.task = config, task

    def evaluator(self, train: np.ndarray, test: np.ndarray) -> Evaluate:
        """I-projections of reward and policy, and the policy's likelihood of the test
        demonstrations.
        """
        distances = distances_of(self.task, train)

        def measure(state: State) -> dict[str, float]:
            return {
                "i_projection_reward": distances.of_reward(state.reward, state.policy),
                "i_projection_policy": distances.of_density(state.policy),
                "test_log_likelihood_policy": float(tf.reduce_mean(state.policy.log_prob(test))),
            }

        return measure

    def write_arrays(self, out: Path, train: np.ndarray, result: Result) -> None:
        """The target's components, if it has any, and in 2-D log densities on the grid."""
        if isinstance(self.task, RandomGaussians):
            save_arrays(out / "task.npz", self.task.mixture._asdict())
        if self.task.dim != 2:
            return
        grid = metrics.grid_around(train)
        points = tf.constant(grid.points, DENSITY)
        densities = {
            "log_p": self.task.log_prob(points),
            "reward": result.reward(points),
            "log_policy": result.policy.log_prob(points),
        }
        save_arrays(out / "grid.npz", {"axes": grid.axes, **densities})

    def summarise(self, train: np.ndarray, result: Result) -> dict[str, Any]:
        """I-projections (best, final, reported) of the run and of its references."""
        history = result.history
        of = self._demonstrated(train, self._config["components"])
        references = fit_references(OF_RUNS, of)
        distances = distances_of(self.task, train)
        found = {name: [distances.of_density(q)] for name, q in references.items()}
        kernels = {name: kde for name, kde in references.items() if isinstance(kde, Kde)}
        rewards, policies = history["i_projection_reward"], history["i_projection_policy"]
        series = {"reward": rewards, "policy": policies, **found}
        return {
            "status": status_of(rewards),
            "dim": self.task.dim,
            "i_projection": {
                name: metrics.best_final_reported(values) for name, values in series.items()
            },
            "bandwidth": {name: kde.bandwidth.numpy().tolist() for name, kde in kernels.items()},
            "test_log_likelihood_policy": float(history["test_log_likelihood_policy"].iloc[-1]),
        }

    def references(self, x: np.ndarray) -> dict[str, Any]:
        """I-projections of all references, fitted to demonstrations x [N, D]."""
        fitted = fit_references(LABELS, self._demonstrated(x, min(SWEEP_COMPONENTS, len(x))))
        distances = distances_of(self.task, x)
        return {"i_projection": {name: distances.of_density(q) for name, q in fitted.items()}}

    def _demonstrated(self, x: np.ndarray, components: int) -> Demonstrated:
        """With the density estimate that a run on them has."""
        seed, family = self._config["seed"], METHODS[self._config["method"]].family
        hparams = default_hparams(family).override(self._config["hparams"])
        run_density = kernel_estimate(Data(x), hparams, seed)
        return Demonstrated(x, seed, self.task, components, run_density)

    def draw(self, out: Path, summary: Mapping[str, Any]) -> None:
        """Heat maps (in 2-D) and curves."""
        from experiments.figures.overview import draw_overview

        # By value: where two are the same density, one line is enough, with the first one's label.
        found = summary["i_projection"]
        labels = {found[name]["reported"]: LABELS[name] for name in reversed(OF_RUNS)}
        draw_overview(out, {label: value for value, label in labels.items()})

    def print_summary(self, summary: Mapping[str, Any], console: Console) -> None:
        """The I-projections as a table."""
        columns = ("best", "final", "reported")
        right = [Column(column, justify="right") for column in columns]
        table = Table("density", *right, title="I-projection KL(q || p); lower is better")
        labels = {"reward": "recovered reward", "policy": "policy", **LABELS}
        found = summary["i_projection"]
        for name in (name for name in labels if name in found):
            table.add_row(labels[name], *(f"{found[name][column]:.4f}" for column in columns))
        console.print(table)

    def inference(
        self, runs: Sequence[Path], rewards: Sequence[Reward], obstacles: float | None = None
    ) -> "DensityInference":
        """Inference on the average reward."""
        return DensityInference(self.task, runs, rewards)


class DensityInference:
    """How close a new policy comes to the target: on the first run's grid, or from draws where
    there is none.
    """

    def __init__(self, task: Task, runs: Sequence[Path], rewards: Sequence[Reward]):
        """From the files of the runs."""
        self._runs = runs
        self.log_prob = partial(average_reward, rewards)
        self._train = _demonstrations(task, runs[0])
        self._distances = distances_of(task, self._train)

    def measure(self, policy: Mixture) -> dict[str, float]:
        """The policy's I-projection."""
        return {"i_projection_policy": self._distances.of_density(policy)}

    support = None
    start = staticmethod(new_start)

    def finish(
        self,
        out: Path,
        policy: Mixture,
        evaluations: Sequence[Mapping[str, float]],
        fitting: Mapping[str, Any],
    ) -> tuple[dict[str, Any], str]:
        """The policy on the grid; I-projections of it and of the training policies."""
        distances: dict[str, Any] = {}
        if policy.dim == 2:
            grid = metrics.grid_around(self._train)
            points = tf.constant(grid.points, DENSITY)
            log_policy = policy.log_prob(points)
            save_arrays(out / "grid.npz", {"axes": grid.axes, "log_policy": log_policy})
            to_reward = metrics.i_projection(log_policy, self.log_prob(points))
            distances["inference_policy_to_reward"] = to_reward
        found = [read_summary(run)["i_projection"]["policy"]["reported"] for run in self._runs]
        trained = float(np.mean(found))
        series = [row["i_projection_policy"] for row in evaluations]
        distances["inference_policy"] = metrics.best_final_reported(series)
        distances["training_policy"] = trained
        # Both are what Figure 4 shows, or one would be a final value and the other half a best one.
        new = f"{distances['inference_policy']['reported']:.4f} for the new policy"
        both = f"{new}, {trained:.4f} for the training policy"
        return {"i_projection": distances}, f"KL to the target, (best + final) / 2: {both}"


def _demonstrations(task: Task, run: Path) -> np.ndarray:
    """What a run was trained on; where its folder has them no more, drawn again."""
    if (run / "demonstrations.npz").is_file():
        return load_arrays(run / "demonstrations.npz")["train"]
    config = RunFolder(run).config
    n = config["num_train"] + config["num_test"]
    return task.demonstrations(n, config["seed"])[: config["num_train"]]
