"""What every task's experiment offers to `experiments.runs` and `experiments.inference`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from virl_tf.conditional import Policy
from virl_tf.contexts import drawn, places
from virl_tf.fit import Evaluate, Result
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, numpy_seed, split_seed
from virl_tf.policy_fit.start import spread_start
from virl_tf.policy_fit.targets import Support
from virl_tf.reward import Reward, log_prob_of
from virl_tf.tasks import Task

import numpy as np
import tensorflow as tf
from rich.console import Console

from experiments.result_files import DIVERGED

RewardFunction = Reward | Callable[[Any], Any]

OUTSIDE_OF = 20_000  # draws of a policy, of which those outside of a support are counted
_OUTSIDE_SEED = split_seed(0, 0, "outside of the support")

SEARCH = {"split_rounds": 0}
"""Of inference with a search: as in the records of all sweeps, and it starts where a reward's modes
are, of which none is to be given up.
"""


class Inference(Protocol):
    """Inference on recovered rewards: a target for a new policy, and what is measured of that
    policy.
    """

    @property
    def log_prob(self) -> RewardFunction:
        """What the new policy is fitted to: [N, D] -> [N]."""

    @property
    def support(self) -> Callable[[Any], Any] | None:
        """Where the task's density is positive, [N, D] -> [N] bool; the recovered reward knows no
        bounds. None: everywhere.
        """

    def start(self, reward: Reward, components: int, seed: int) -> Any:
        """The new policy before its first step, for the first run's reward."""

    def measure(self, policy: Any) -> dict[str, float]:
        """A row of `evaluations` in summary.json, while the policy is fitted."""

    def finish(
        self,
        out: Path,
        policy: Any,
        evaluations: Sequence[Mapping[str, float]],
        fitting: Mapping[str, Any],
    ) -> tuple[dict[str, Any], str]:
        """Write the arrays of the figures into `out`; returns entries of summary.json and a line
        for the screen.

        Args:
            fitting: of the new policy, as arguments of `fit_policy`: search, temperature, steps,
                samples.
        """


class Experiment(Protocol):
    """One task as it is run and measured."""

    @property
    def task(self) -> Task:
        """The expert."""

    def evaluator(self, train: np.ndarray, test: np.ndarray) -> Evaluate:
        """What is measured after every iteration."""

    def write_arrays(self, out: Path, train: np.ndarray, result: Result) -> None:
        """Everything the figures need."""

    def summarise(self, train: np.ndarray, result: Result) -> dict[str, Any]:
        """This task's entries of summary.json, `status` among them."""

    def draw(self, out: Path, summary: Mapping[str, Any]) -> None:
        """The picture at the end of a run, overview.png and .pdf in `out`."""

    def print_summary(self, summary: Mapping[str, Any], console: Console) -> None:
        """The numbers that matter, on the screen."""

    def inference(
        self, runs: Sequence[Path], rewards: Sequence[Reward], obstacles: float | None
    ) -> Inference:
        """Inference on the average of these runs' rewards.

        `obstacles`: share of the modes to block, for tasks with such a stage of inference.
        """


class UserSupport:
    """Where a user lets a policy go, [N, D] -> [N] bool."""

    def __init__(self, function: Support):
        """The user's own."""
        self._function = function
        self._known: dict[tuple[bytes, ...], np.ndarray] = {}

    def __call__(self, x: Any) -> Any:
        """Whether points are inside."""
        return self._function(x)

    def outside(self, policy: Any, contexts: np.ndarray | None = None) -> float:
        """The share of a policy's draws that are outside, in some of its contexts if there are any.
        What is asked for again is not drawn again.
        """
        return 1.0 - float(np.mean(self._inside(policy, contexts)))

    def closed(self, policy: Any, contexts: np.ndarray) -> tuple[np.ndarray, int]:
        """The contexts [M, C] in which none of the same draws is inside, and of how many."""
        where = self._where(contexts)
        inside = self._inside(policy, contexts).reshape(where.num_draws, -1).any(axis=0)
        different, index = np.unique(where.contexts, axis=0, return_inverse=True)
        return different[np.bincount(index.ravel(), inside) == 0], len(different)

    def _where(self, contexts: np.ndarray | None) -> Any:
        return places(contexts, OUTSIDE_OF, _OUTSIDE_SEED)

    def _inside(self, policy: Any, contexts: np.ndarray | None) -> np.ndarray:
        key = tuple(np.asarray(array).tobytes() for array in policy)
        if key not in self._known:
            x = drawn(policy, self._where(contexts), _OUTSIDE_SEED)
            self._known[key] = np.asarray(self(x), bool)
        return self._known[key]


# A run counts as diverged when its objective ends this many nats above its best: healthy runs stay
# within 0.1, diverged ones of the prototype ended 2 nats above.
DIVERGED_NATS = 1.0


def status_of(series: Any) -> str:
    """Of a run by its objective in nats, one value per iteration: "finished", or diverged where it
    is lost at its end, or was not a number on the way.
    """
    values = np.asarray(series, np.float64)
    lost = not np.isfinite(values).all() or values[-1] > values.min() + DIVERGED_NATS
    return DIVERGED if lost else "finished"


def new_start(reward: Reward, components: int, seed: int) -> Mixture:
    """The paper's "newly initialized forward policy"; ours is over the demonstrations' spread."""
    return spread_start(reward, components, numpy_seed(seed, 0, "initial policy"))


def mixture_of(reward: Reward) -> Policy:
    """The EM mixture that a reward is averaged with, or without one q*_0: a proposal for it."""
    return reward.mixture if reward.mixture.num_components else reward.base


def average_reward(rewards: Sequence[Reward], x: Any) -> Any:
    """The mean of several runs' rewards: [N, D] -> [N]."""
    x = tf.cast(x, DENSITY)
    return sum(log_prob_of(reward)(x) for reward in rewards) / len(rewards)
