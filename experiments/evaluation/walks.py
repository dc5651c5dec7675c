"""The grid walker and path planning: which modes a policy covers, how good its walks are, how the
reward ranks the modes.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from virl_tf import metrics
from virl_tf.fit import Evaluate, Result
from virl_tf.fit_policy import fit_policy
from virl_tf.irl import State
from virl_tf.mixture import Mixture
from virl_tf.numerics import numpy_seed, split_seed
from virl_tf.persistence.files import save_arrays
from virl_tf.persistence.policy_file import load_policy
from virl_tf.reward import CumulativeValues, Reward
from virl_tf.tasks import GridWalker, PathPlanning

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from experiments.evaluation.base import average_reward, new_start, status_of
from experiments.result_statistics import normalised_rewards

LogDensity = Callable[[Any], Any] | Reward
SAMPLES = 20_000  # of a policy, for its distance and its modes: 60 of them make a covered mode
DRAWN = 5  # walks per component that the figures show
DRAWN_SINGLE = 20  # ... of Figure 1c's one component
RANDOM_POINTS = 100  # of Figure 7, in the box of 1.2 acos(spacing)


class WalkExperiment:
    """KL(q || p), the modes that policies cover, and the reward at modes and random points."""

    def __init__(self, config: Mapping[str, Any], task: GridWalker):
        """For a run's configuration and its target."""
        self._config, self.task = config, task

    def evaluator(self, train: np.ndarray, test: np.ndarray) -> Evaluate:
        """The policy's distance, modes and good walks; the reward's correlation with log p on the
        test demonstrations.
        """
        log_p, rewards = self.task.log_prob(test).numpy(), CumulativeValues(test)

        def measure(state: State) -> dict[str, float]:
            reward = rewards(state.reward).numpy()
            policy, _ = measure_policy(self.task, state.policy, self._config["seed"])
            return {**policy, "reward_correlation": metrics.correlation(reward, log_p)}

        return measure

    def write_arrays(self, out: Path, train: np.ndarray, result: Result) -> None:
        """The policy's walks with their rewards, and the reward at modes and random points.

        For path planning also a policy of one component fitted to the reward, the single behaviour
        of Figure 1c.
        """
        seed = self._config["seed"]
        extra = {}
        if isinstance(self.task, PathPlanning):
            single = fit_policy(result.reward, self.task.dim, 1, search=False, seed=seed).policy
            draws = single.sample(DRAWN_SINGLE, split_seed(seed, 0, "projection"))
            extra = {"projection_mean": single.means[0], "projection_draws": draws}
        write_walks(out, self.task, result.policy, result.reward, seed, **extra)

    def summarise(self, train: np.ndarray, result: Result) -> dict[str, Any]:
        """The final policy's measures, their best and reported values, and the contrasts of Figure
        7.
        """
        history, last = result.history, result.history.iloc[-1]
        _, covered = measure_policy(self.task, result.policy, self._config["seed"])
        elbos = history["negative_elbo"]
        return {
            "status": status_of(elbos),
            "num_modes": len(self.task.mode_centers),
            **{name: float(last[name]) for name in LABELS},
            "modes_covered": int(last["modes_covered"]),
            "objective": metrics.best_final_reported(elbos),
            "contrast": reward_contrasts(self.task, result.reward, covered, self._config["seed"]),
        }

    def draw(self, out: Path, summary: Mapping[str, Any]) -> None:
        """Demonstrations, policy and curves."""
        from experiments.figures.walks import draw_walk_overview

        draw_walk_overview(out)

    def print_summary(self, summary: Mapping[str, Any], console: Console) -> None:
        """The measures as a table."""
        table = Table("measure", "value", title="policy and recovered reward")
        for name, label in LABELS.items():
            table.add_row(label, f"{summary[name]:.4g}")
        above = summary["contrast"]["unexplored_random"]["above_best"]
        table.add_row("unexplored modes above the best random point", f"{above:.2f}")
        console.print(table)

    def inference(
        self, runs: Sequence[Path], rewards: Sequence[Reward], obstacles: float | None = None
    ) -> "WalkInference":
        """Inference on the average reward.

        Raises InputError for a share of blocked paths that cannot be.
        """
        task = self.task
        if obstacles is not None:
            assert isinstance(task, PathPlanning), "no other description has this stage"
            task = task.with_blocked_share(obstacles, self._config["seed"])
        return WalkInference(task, runs, rewards, self._config["seed"])


class WalkInference:
    """Which modes a new policy finds on the recovered reward that the training policies had not,
    and which it loses.

    Attributes:
        log_prob: the average reward, -inf on obstacles.
    """

    def __init__(
        self, task: GridWalker, runs: Sequence[Path], rewards: Sequence[Reward], seed: int
    ):
        """`task`: with the obstacles of the inference, if any."""
        self._task, self._rewards, self._seed = task, rewards, seed
        self._average = partial(average_reward, rewards)
        self.log_prob = _avoiding(task, self._average)
        free = PathPlanning(task.dim) if isinstance(task, PathPlanning) else task
        policies = [load_policy(run / "policy.npz") for run in runs]
        self._trained = np.any([measure_policy(free, q, seed)[1] for q in policies], axis=0)

    start = staticmethod(new_start)

    def measure(self, policy: Mixture) -> dict[str, float]:
        """Distance and modes."""
        return measure_policy(self._task, policy, self._seed)[0]

    @property
    def support(self) -> Callable[[Any], Any]:
        """The box of angles."""
        return self._task.contains

    def finish(
        self,
        out: Path,
        policy: Mixture,
        evaluations: Sequence[Mapping[str, float]],
        fitting: Mapping[str, Any],
    ) -> tuple[dict[str, Any], str]:
        """The walks, the modes found and lost, and the same for a policy of the same size fitted to
        the true reward.
        """
        write_walks(out, self._task, policy, self._average, self._seed)
        summary = self._modes(policy)
        components = policy.num_components
        start = self.start(self._rewards[0], components, self._seed)
        fitted = fit_policy(
            _avoiding(self._task, self._task.reward),
            policy.dim,
            components,
            support=self.support,
            seed=self._seed,
            initial_policy=start,
            **fitting,
        )
        summary["true_reward"] = self._modes(fitted.policy)
        series = [row["negative_elbo"] for row in evaluations]
        summary["objective"] = metrics.best_final_reported(series)
        if _obstructed(self._task):
            discs = self._task.obstacles._asdict()
            summary["collision_share"] = collision_share(self._task, policy, self._seed)
            summary["obstacles"] = {name: values.tolist() for name, values in discs.items()}
        kind = "open modes" if _obstructed(self._task) else "modes"
        sentence = (
            f"{summary['modes_covered']} of {summary['open_modes']} {kind} covered, "
            f"{summary['new_modes']} of them new to the training policy, {summary['lost_modes']} "
            "of its own lost; "
            f"{100.0 * summary['good_fraction']:.1f} % good walks; on the true reward "
            f"{summary['true_reward']['modes_covered']}"
        )
        return summary, sentence

    def _modes(self, policy: Mixture) -> dict[str, Any]:
        measures, covered = measure_policy(self._task, policy, self._seed)
        is_open = _open_modes(self._task)
        return {
            **measures,
            "num_modes": len(covered),
            "open_modes": int(is_open.sum()),
            "modes_covered": int((covered & is_open).sum()),
            "new_modes": int((covered & is_open & ~self._trained).sum()),
            "lost_modes": int((~covered & is_open & self._trained).sum()),
            "training_modes": int((self._trained & is_open).sum()),
        }


LABELS = {
    "negative_elbo": "negative ELBO of the policy",
    "kl": "KL(q || p) of the policy",
    "outside_share": "share of walks outside the support",
    "modes_covered": "modes covered by the policy",
    "good_fraction": "good walks (within 4 standard deviations of every line)",
    "reward_correlation": "correlation of the reward with log p on test demonstrations",
}


def measure_policy(
    task: GridWalker, policy: Mixture, seed: int
) -> tuple[dict[str, float], np.ndarray]:
    """The measures of a policy from the same SAMPLES draws, and the modes it covers [M] bool.

    With obstacles, walks that collide are outside the support and never good.
    """
    draws = split_seed(seed, 0, "evaluation")
    distance = metrics.policy_distance(policy, task.log_prob, task.log_normaliser, SAMPLES, draws)
    x = policy.sample(SAMPLES, draws)
    modes = np.where(np.isfinite(task.log_prob(x).numpy()), task.modes_of(x), -1)
    covered = metrics.covered_modes(modes, len(task.mode_centers))
    measures = {
        "negative_elbo": distance.negative_elbo,
        "kl": distance.kl,
        "outside_share": distance.outside,
        "modes_covered": int(covered.sum()),
        "good_fraction": float(np.mean(modes >= 0)),
    }
    return measures, covered


def collision_share(task: PathPlanning, policy: Mixture, seed: int) -> float:
    """Share of the policy's walks that meet an obstacle."""
    x = policy.sample(SAMPLES, split_seed(seed, 0, "evaluation"))
    return float(np.mean(task.collides(x).numpy()))


def random_points(task: GridWalker, seed: int) -> np.ndarray:
    """The appendix's "negative samples", uniform in the box of 1.2 acos(spacing): [RANDOM_POINTS,
    d].
    """
    half = 1.2 * np.arccos(task.spacing)
    rng = np.random.default_rng(numpy_seed(seed, 0, "random points"))
    return rng.uniform(-half, half, (RANDOM_POINTS, task.dim))


def reward_contrasts(
    task: GridWalker, reward: LogDensity, covered: np.ndarray, seed: int
) -> dict[str, dict[str, float]]:
    """Figure 7 in numbers, on rewards normalised to [0, 1] over modes and random points."""
    at_modes, at_random = normalised_rewards(
        np.asarray(reward(task.mode_centers)), np.asarray(reward(random_points(task, seed)))
    )
    return {
        "unexplored_random": metrics.contrast(at_modes[~covered], at_random),
        "explored_unexplored": metrics.contrast(at_modes[covered], at_modes[~covered]),
    }


def write_walks(
    out: Path, task: GridWalker, policy: Mixture, reward: LogDensity, seed: int, **arrays: Any
) -> None:
    """walks.npz, for the figures: means and draws of every component, modes and random points, each
    with its reward.
    """
    rng = np.random.default_rng(numpy_seed(seed, 0, "drawn walks"))
    z = rng.standard_normal((policy.num_components, DRAWN, policy.dim))
    draws = np.asarray(policy.means)[:, None] + np.einsum("kij,ksj->ksi", policy.scale_trils, z)
    points = {
        "means": np.asarray(policy.means),
        "draws": draws.reshape(-1, policy.dim),
        "modes": task.mode_centers,
        "random": random_points(task, seed),
    }
    rewards = {f"{name}_reward": np.asarray(reward(tf.constant(x))) for name, x in points.items()}
    _, covered = measure_policy(task, policy, seed)
    about = {"weights": np.exp(policy.log_weights), "covered": covered, "open": _open_modes(task)}
    save_arrays(out / "walks.npz", {**points, **rewards, **about, **arrays})


def _obstructed(task: GridWalker) -> TypeGuard[PathPlanning]:
    return isinstance(task, PathPlanning) and len(task.obstacles.radii) > 0


def _open_modes(task: GridWalker) -> np.ndarray:
    every = np.ones(len(task.mode_centers), bool)
    return task.open_modes if isinstance(task, PathPlanning) else every


def _avoiding(task: GridWalker, log_prob: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return task.avoid_obstacles(log_prob) if isinstance(task, PathPlanning) else log_prob
