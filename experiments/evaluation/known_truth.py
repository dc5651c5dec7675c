"""Paths whose density is known and drawn from exactly: forward KL divergences, and what draws of
reward and policy do.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from virl_tf import metrics
from virl_tf.density import Density
from virl_tf.fit import Evaluate, Result
from virl_tf.fusion import Fusion
from virl_tf.irl import State
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, numpy_seed, split_seed
from virl_tf.persistence.files import save_arrays
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.reward import CumulativeValues, Reward
from virl_tf.score import NORMALISER_DRAWS, log_normaliser
from virl_tf.tasks import Task

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Column, Table

from experiments.evaluation.base import average_reward, mixture_of, new_start, status_of
from experiments.evaluation.trajectories import SHOWN, reward_draws
from experiments.references import LABELS, Demonstrated, fit_references

DRAWS = 20_000  # fresh demonstrations, and draws of each density
LOWEST = 0.01  # quantile of log p of true paths: above it a path counts as a success
REFERENCES = ("em_bic", "kde_held_out")
HEADS = {"truth": "truth", "reward": "reward", "policy": "policy", **LABELS}


class PathTask(Task, Protocol):
    """A task of paths in the plane, with exact demonstrations."""

    def outcome(self, x: np.ndarray) -> dict[str, float]:
        """What paths [N, D] do."""

    def paths(self, x: np.ndarray) -> np.ndarray:
        """Their points in the plane, [N, T, 2]."""

    @property
    def outlines(self) -> Mapping[str, np.ndarray]:
        """Polygons [M, V, 2] for the picture: "obstacles", "gates"."""


class Truth:
    """Fresh demonstrations, and what they say of densities."""

    def __init__(self, task: PathTask, seed: int):
        """`seed`: of a run, whose demonstrations are others."""
        self._task, self._seed = task, seed
        self.x = task.demonstrations(DRAWS, numpy_seed(seed, 0, "fresh demonstrations"))
        self._log_p = task.log_prob(self.x).numpy()
        self._rewards = CumulativeValues(self.x)

    def of_density(self, density: Density) -> float:
        """KL(p || q)."""
        log_q = density.log_prob(tf.constant(self.x, DENSITY)).numpy()
        return float(np.mean(self._log_p - log_q))

    def of_reward(self, reward: Reward, policy: Mixture) -> float:
        """KL(p || exp(R) / Z), Z by importance sampling."""
        log_z, _ = log_normaliser(reward, proposal_of(reward, policy), NORMALISER_DRAWS, self._seed)
        return float(np.mean(self._log_p - self._rewards(reward).numpy()) + log_z[0])

    def of_policy(self, policy: Mixture) -> metrics.PolicyDistance:
        """KL(q || p) where p is positive, and how much of q is elsewhere."""
        seed = split_seed(self._seed, 0, "evaluation")
        return metrics.policy_distance(policy, self._task.log_prob, 0.0, DRAWS, seed)

    def outcome(self, x: Any) -> dict[str, float]:
        """`success`, the share of paths likelier than the unlikeliest 1 % of true ones, and the
        task's own measures.
        """
        likely = self._task.log_prob(x).numpy() > np.quantile(self._log_p, LOWEST)
        return {"success": float(np.mean(likely)), **self._task.outcome(np.asarray(x))}

    def outcome_of(self, density: Density) -> dict[str, float]:
        """The same of a density's draws."""
        return self.outcome(density.sample(DRAWS, split_seed(self._seed, 0, "evaluation")))


def proposal_of(reward: Reward, policy: Mixture) -> Fusion:
    """Half policy, half the EM mixture that the reward is averaged with; without one, q*_0."""
    return Fusion(policy, mixture_of(reward))


class KnownTruthExperiment:
    """Forward KL of reward, policy and references, KL(q || p) of the policy, and outcomes."""

    def __init__(self, config: Mapping[str, Any], task: PathTask):
        """For a run's configuration and its target."""
        self._config, self.task = config, task

    @cached_property
    def truth(self) -> Truth:
        """Drawn once, if it is asked for."""
        return Truth(self.task, self._config["seed"])

    def evaluator(self, train: np.ndarray, test: np.ndarray) -> Evaluate:
        """The distances of reward and policy."""

        def measure(state: State) -> dict[str, float]:
            distance = self.truth.of_policy(state.policy)
            return {
                "forward_kl_reward": self.truth.of_reward(state.reward, state.policy),
                "forward_kl_policy": self.truth.of_density(state.policy),
                "kl_policy": distance.kl,
                "outside_share": distance.outside,
            }

        return measure

    def write_arrays(self, out: Path, train: np.ndarray, result: Result) -> None:
        """paths.npz, for the picture: demonstrations, draws of reward and policy, outlines."""
        drawn, _ = reward_draws(result.reward, proposal_of(result.reward, result.policy))
        of_policy = result.policy.sample(SHOWN, split_seed(self._config["seed"], 0, "paths"))
        shown = {"demonstrations": train[:SHOWN], "reward": drawn, "policy": of_policy}
        paths = {name: self.task.paths(np.asarray(x)) for name, x in shown.items()}
        save_arrays(out / "paths.npz", {**paths, **self.task.outlines})

    def summarise(self, train: np.ndarray, result: Result) -> dict[str, Any]:
        """Distances (best, final, reported) of the run and of its references, outcomes of all."""
        history, truth = result.history, self.truth
        fitted = fit_references(REFERENCES, Demonstrated(train, self._config["seed"], self.task))
        of_run = {name: history[f"forward_kl_{name}"] for name in ("reward", "policy")}
        series = {**of_run, **{name: [truth.of_density(q)] for name, q in fitted.items()}}
        proposal = proposal_of(result.reward, result.policy)
        drawn, effective = reward_draws(result.reward, proposal, DRAWS)
        densities = {"policy": result.policy, **fitted}
        return {
            "status": status_of(history["forward_kl_reward"]),
            "dim": self.task.dim,
            "forward_kl": {name: metrics.best_final_reported(v) for name, v in series.items()},
            "kl": {"policy": metrics.best_final_reported(history["kl_policy"])},
            "outside_share": float(history["outside_share"].iloc[-1]),
            "effective_reward_draws": effective,
            "outcomes": {
                "truth": truth.outcome(truth.x),
                "reward": truth.outcome(drawn),
                **{name: truth.outcome_of(density) for name, density in densities.items()},
            },
        }

    def draw(self, out: Path, summary: Mapping[str, Any]) -> None:
        """Paths and curves."""
        from experiments.figures.paths import draw_paths

        found = summary["forward_kl"]
        draw_paths(out, {LABELS[name]: found[name]["reported"] for name in REFERENCES})

    def print_summary(self, summary: Mapping[str, Any], console: Console) -> None:
        """Distances and outcomes as a table."""
        outcomes, distances = summary["outcomes"], summary["forward_kl"]
        right = [Column(HEADS[name], justify="right") for name in outcomes]
        table = Table("measure", *right, title="lower KL is better; the rest should be as true")
        finals = [distances.get(name, {"final": 0.0})["final"] for name in outcomes]
        table.add_row("KL(p || q)", *(f"{value:.4g}" for value in finals))
        for key in outcomes["truth"]:
            row = [f"{found[key]:.4g}" for found in outcomes.values()]
            table.add_row(key.replace("_", " "), *row)
        console.print(table)
        kl, outside = summary["kl"]["policy"]["final"], summary["outside_share"]
        text = f"KL(q || p) of the policy: {kl:.4f}; {100.0 * outside:.1f} % of it is where p is 0"
        console.out(text)

    def inference(
        self, runs: Sequence[Path], rewards: Sequence[Reward], obstacles: float | None = None
    ) -> "KnownTruthInference":
        """Inference on the average reward."""
        return KnownTruthInference(self.truth, runs, rewards)


class KnownTruthInference:
    """How close a new policy comes to the truth, and what its paths do."""

    def __init__(self, truth: Truth, runs: Sequence[Path], rewards: Sequence[Reward]):
        """From the files of the runs."""
        self._truth, self._runs = truth, runs
        self.log_prob = partial(average_reward, rewards)

    # A new policy is spread over all demonstrations: it would start outside of narrow bounds.
    support = None
    start = staticmethod(new_start)

    def measure(self, policy: Mixture) -> dict[str, float]:
        """The policy's distance."""
        distance = self._truth.of_policy(policy)
        return {"kl_policy": distance.kl, "outside_share": distance.outside}

    def finish(
        self,
        out: Path,
        policy: Mixture,
        evaluations: Sequence[Mapping[str, float]],
        fitting: Mapping[str, Any],
    ) -> tuple[dict[str, Any], str]:
        """Distance and outcomes, beside those of the first run's policy."""
        trained = RunFolder(self._runs[0]).policy()
        series = [row["kl_policy"] for row in evaluations]
        before = self._truth.of_policy(trained).kl
        kl = {"inference_policy": metrics.best_final_reported(series), "training_policy": before}
        policies = {"policy": policy, "training_policy": trained}
        outcomes = {name: self._truth.outcome_of(q) for name, q in policies.items()}
        found = ", ".join(f"{key} {value:.4g}" for key, value in outcomes["policy"].items())
        sentence = (
            f"KL to the truth: {series[-1]:.4f} for the new policy, {before:.4f} for the training "
            f"policy; {found}"
        )
        return {"kl": kl, "outcomes": outcomes}, sentence
