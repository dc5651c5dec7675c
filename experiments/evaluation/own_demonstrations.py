"""A user's own demonstrations: no target is known, and those held out are what there is to measure
with.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from virl_tf import metrics
from virl_tf.fit import Result
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, split_seed
from virl_tf.persistence.encoding_file import load_encoding, save_encoding
from virl_tf.persistence.files import load_arrays, save_arrays
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.policy_start import reward_start
from virl_tf.reward import Reward
from virl_tf.validation import InputError

import numpy as np
import tensorflow as tf

from experiments.evaluation.base import average_reward
from experiments.evaluation.trajectories import write_trajectories
from experiments.result_files import read_summary

RESOLUTION = 150  # of the grid in 1-D and 2-D
RewardFunction = Reward | Callable[[Any], Any]


def draw_missing(folder: Path, result: Result) -> None:
    """The arrays and pictures of a fit's folder that are not there yet.

    With contexts only that of the training: what a density looks like depends on the context.
    """
    from experiments.figures.demonstrations import draw_demonstrations, draw_training

    if result.reward.num_contexts:
        if not (folder / "training.png").is_file():
            draw_training(folder, result.history)
        return
    if not (folder / "grid.npz").is_file():
        train = load_arrays(folder / "demonstrations.npz")["train"]
        save_arrays(folder / "grid.npz", grid_arrays(result.reward, result.policy, train))
    reward = "reward.png" if result.policy.dim <= 2 else "corner.png"
    if not (folder / "training.png").is_file():
        draw_training(folder, result.history)
    if not (folder / reward).is_file() and not of_trajectories(folder):
        draw_demonstrations(folder, column_names(result.summary))


def of_trajectories(folder: Path) -> bool:
    """Whether a fit's rows are codes of trajectories, which are drawn as such."""
    return (folder / "encoding.npz").is_file()


def check_same_encoding(runs: Sequence[Path]) -> None:
    """Raises InputError unless the same codes are the same trajectories in all runs."""
    first = _decoder(runs[0])
    for run in runs[1:]:
        if not all(np.array_equal(a, b) for a, b in zip(first, _decoder(run), strict=True)):
            raise InputError(
                f"{runs[0]} and {run} encode trajectories differently; their rewards have no "
                "average. Fit all runs to the same trajectories."
            )


def _decoder(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Offset and basis of a run's encoding, empty where it has none."""
    if not of_trajectories(run):
        return np.zeros(0), np.zeros(0)
    encoding = load_encoding(run / "encoding.npz")
    return encoding.offset, encoding.basis


def column_names(summary: Mapping[str, Any]) -> list[str]:
    """Of a fit's demonstrations."""
    return [column["name"] for column in summary["columns"]]


def grid_arrays(reward: RewardFunction, policy: Mixture, x: np.ndarray) -> dict[str, Any]:
    """In 1-D and 2-D reward and policy on a grid; else draws of the policy with their rewards."""
    if policy.dim > 2:
        draws = policy.sample(min(2000, max(500, len(x))), split_seed(0, 0, "picture"))
        return {"policy_samples": draws, "policy_rewards": reward(draws)}
    if policy.dim == 2:
        grid = metrics.grid_around(x, RESOLUTION)
        axes, points = grid.axes, tf.constant(grid.points, DENSITY)
    else:
        extra = 0.1 * np.ptp(x)
        axes = np.linspace(x.min() - extra, x.max() + extra, 4 * RESOLUTION)[None]
        points = tf.constant(axes.T, DENSITY)
    return {"axes": axes, "reward": reward(points), "log_policy": policy.log_prob(points)}


class OwnInference:
    """Inference on the average reward of fits to the same demonstrations."""

    support = None
    start = staticmethod(reward_start)

    def __init__(self, runs: Sequence[Path], rewards: Sequence[Reward]):
        """From the files of the fits. Raises InputError if their codes are of different maps."""
        check_same_encoding(runs)
        self._run, self._rewards = RunFolder(runs[0]), rewards
        self._columns = column_names(read_summary(runs[0]))
        arrays = load_arrays(runs[0] / "demonstrations.npz")
        self._train, self._test = arrays["train"], arrays["test"]

    def log_prob(self, x: Any) -> Any:
        """The average reward."""
        return average_reward(self._rewards, x)

    def measure(self, policy: Mixture) -> dict[str, float]:
        """The policy's mean log-likelihood of held-out demonstrations; of all if none were."""
        points = self._test if len(self._test) else self._train
        return {"log_likelihood": float(tf.reduce_mean(policy.log_prob(points)))}

    def finish(
        self, out: Path, policy: Mixture, evaluations: Sequence[Mapping[str, float]], search: bool
    ) -> tuple[dict[str, Any], str]:
        """Arrays and pictures of the policy; its likelihood and the training policy's."""
        from experiments.figures.demonstrations import draw_demonstrations

        arrays = {"train": self._train, "test": self._test}
        save_arrays(out / "demonstrations.npz", arrays)
        save_arrays(out / "grid.npz", grid_arrays(self.log_prob, policy, self._train))
        if of_trajectories(self._run.path):
            self._write_trajectories(out, policy)
        else:
            draw_demonstrations(out, self._columns)
        new = evaluations[-1]["log_likelihood"]
        trained = self.measure(self._run.policy())["log_likelihood"]
        held_out = f"{len(self._test)} held-out" if len(self._test) else "all"
        sentence = (
            f"mean log-likelihood of {held_out} demonstrations: {new:.4f} under the new policy, "
            f"{trained:.4f} under the training policy"
        )
        return {"log_likelihood": {"inference_policy": new, "training_policy": trained}}, sentence

    def _write_trajectories(self, out: Path, policy: Mixture) -> None:
        """The new policy's trajectories, and their pictures."""
        from experiments.figures.trajectories import draw_trajectories

        encoding = load_encoding(self._run.path / "encoding.npz")
        shown = load_arrays(self._run.path / "trajectories.npz")["demonstrations"]
        policies = (policy, self._run.policy())
        write_trajectories(out, encoding, self.log_prob, policies, shown)
        save_encoding(out / "encoding.npz", encoding)
        draw_trajectories(out)
