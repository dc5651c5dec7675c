"""A user's own demonstrations: no target is known, and those held out are what there is to measure
with.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from virl_tf.conditional import ConditionalMixture, Policy
from virl_tf.contexts import places
from virl_tf.fit import Result
from virl_tf.fusion import Fusion
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, split_seed
from virl_tf.persistence.encoding_file import load_encoding, save_encoding
from virl_tf.persistence.files import load_arrays, save_arrays
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.policy_fit.start import conditional_start, reward_start
from virl_tf.policy_fit.targets import Support, within
from virl_tf.reward import Reward
from virl_tf.score import CLEAR
from virl_tf.validation import InputError
from virl_tf.vips.elbo import Measured, measured

import numpy as np
import tensorflow as tf

from experiments.evaluation.base import OUTSIDE_OF, RewardFunction, UserSupport, average_reward
from experiments.evaluation.situations import grid_over, nearest, write_situations
from experiments.evaluation.trajectories import SHOWN, reward_draws, write_trajectories
from experiments.result_files import read_summary

RESOLUTION = 150  # of the grid in 1-D and 2-D
MEASURED = 2000  # draws of a policy
LOWER = (
    "the training policy's mean reward + entropy is higher there than the new policy's: use that, "
    "or try other --components or another --seed."
)


def draw_missing(folder: Path, result: Result) -> None:
    """The arrays and pictures of a fit's folder that are not there yet."""
    from experiments.figures.demonstrations import draw_demonstrations, draw_training

    if not (folder / "training.png").is_file():
        draw_training(folder, result.history)
    if result.reward.num_contexts:
        if not (folder / "situations.gif").is_file():  # the last of them
            train = load_arrays(folder / "demonstrations.npz")["train"]
            names = column_names(result.summary)
            _draw_situations(folder, result.reward.log_prob, result.policy, train, names)
        return
    if not (folder / "grid.npz").is_file():
        train = load_arrays(folder / "demonstrations.npz")["train"]
        save_arrays(folder / "grid.npz", grid_arrays(result.reward, result.policy, train))
    reward = "reward.png" if result.policy.dim <= 2 else "corner.png"
    if not (folder / reward).is_file() and not of_trajectories(folder):
        draw_demonstrations(folder, column_names(result.summary))


def _draw_situations(
    folder: Path,
    log_prob: Callable[[Any], Any],
    policy: Any,
    rows: np.ndarray,
    names: list[str],
    contexts: np.ndarray | None = None,
) -> None:
    """Arrays and picture of some contexts, by default demonstrated ones, in a folder that may hold
    an encoding.
    """
    from experiments.figures.situations import draw_situations

    encoding = load_encoding(folder / "encoding.npz") if of_trajectories(folder) else None
    write_situations(folder, {"rewards": log_prob}, policy, rows, names, encoding, contexts)
    draw_situations(folder)


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


def grid_arrays(
    reward: RewardFunction, policy: Mixture, x: np.ndarray, support: Support | None = None
) -> dict[str, Any]:
    """In 1-D and 2-D reward, policy and support on a grid; else draws of the policy with rewards
    and support.
    """
    if policy.dim > 2:
        points = policy.sample(min(2000, max(500, len(x))), split_seed(0, 0, "picture"))
        arrays = {"policy_samples": points, "policy_rewards": reward(points)}
    else:
        axes, points = grid_over(x, RESOLUTION)
        points = tf.constant(points, DENSITY)
        arrays = {"axes": axes, "reward": reward(points), "log_policy": policy.log_prob(points)}
    return arrays if support is None else {**arrays, "support": support(points)}


def _most_of(policy: Mixture) -> np.ndarray:
    """Corners [2, D] of where 98 % of each column of its draws are."""
    draws = policy.sample(MEASURED, split_seed(0, 0, "corners"))
    return np.quantile(draws, [0.01, 0.99], axis=0)


def is_one(context: np.ndarray | None) -> bool:
    """Whether a policy is for a single context [C], neither for several [M, C] nor without."""
    return context is not None and context.ndim == 1


def train_and_test(runs: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """The demonstrations of fits: those that some of these were trained on, [N, D], and those that
    all of them held out, [M, D], which are fewer where their seeds differ.
    """
    first, *others = (load_arrays(run / "demonstrations.npz") for run in runs)
    train, test = first["train"], first["test"]
    differ = [other for other in others if not np.array_equal(other["test"], test)]
    seen = {row.tobytes() for other in differ for row in other["train"]}
    held_out = np.array([row.tobytes() not in seen for row in test], bool)
    return np.concatenate([train, test[~held_out]]), test[held_out]


class OwnInference:
    """Inference on the reward of a fit, or the average of several to the same demonstrations.

    With contexts the new policy is for all that were demonstrated, or for those given as `context`,
    [M, C]; in a single one, [C], the rewards are of that one, and the demonstrations those of the
    nearest contexts.
    """

    support = None  # that of a task; `given` is the user's

    def __init__(
        self,
        runs: Sequence[Path],
        rewards: Sequence[Reward],
        context: np.ndarray | None = None,
        given: UserSupport | None = None,
    ):
        """From the files of the fits. Raises InputError if their codes are of different maps."""
        check_same_encoding(runs)
        self._run, self._context, self._given = RunFolder(runs[0]), context, given
        size = rewards[0].num_contexts
        one = is_one(context)
        self._rewards = [reward.condition(context) for reward in rewards] if one else rewards
        self._average = partial(average_reward, self._rewards)
        self._columns = column_names(read_summary(runs[0]))
        self._train, self._test = train_and_test(runs)
        self.contexts = None
        if size and not one:
            self.contexts = self._train[:, :size] if context is None else context
        self._situation = ""
        if context is not None and one:
            named = zip(self._columns, context, strict=False)
            at = ", ".join(f"{name} = {value:.4g}" for name, value in named)
            self._situation = f"{at}; demonstrations of the nearest contexts"
            near = nearest(self._train[:, :size], context)
            self._train, self._test = self._train[near, size:], self._test[:0, size:]
            self._columns = self._columns[size:]

    @property
    def log_prob(self) -> RewardFunction:
        """A reward as such, which `fit_policy` knows more of; or the average, [N, D] -> [N], of
        rows [c, x] where the policy is for all contexts.
        """
        return self._rewards[0] if len(self._rewards) == 1 else self._average

    def start(self, reward: Reward, components: int, seed: int) -> Policy | None:
        """What EM says, of the first run's reward; None: where `fit_policy` starts on a reward."""
        reward = self._rewards[0]
        if len(self._rewards) == 1:
            return None
        if self.contexts is None:
            return reward_start(reward, components, seed)
        return conditional_start(reward, tf.constant(self.contexts), components, seed)

    def measure(self, policy: Policy) -> dict[str, float]:
        """The policy's mean log-likelihood of held-out demonstrations; of all if none were. Those
        outside of the user's support do not count: the policy is not meant to reach them.

        In contexts of which nothing was held out its ELBO inside of the reward's bounds.
        """
        if self._context is not None:
            return {"elbo": self._elbo(policy).elbo}
        return {"log_likelihood": float(np.mean(self._log_prob_inside(policy)))}

    def _elbo(self, policy: Policy, temperature: float = 1.0) -> Measured:
        """Of the policy inside of bounds and support, on the reward over the temperature."""
        c = None if self.contexts is None else tf.constant(self.contexts, DENSITY)
        where = places(c, MEASURED, split_seed(0, 0, "ELBO contexts"))
        return measured(policy, lambda x: self._inside_of(x) / temperature, where, 0)

    def _inside_of(self, x: Any) -> tf.Tensor:
        """The average reward; -inf outside of the user's support."""
        bounded = self._average if self._given is None else within(self._average, self._given)
        return bounded(x)

    def _of_what(self, fitting: Mapping[str, Any]) -> str:
        temperature = fitting["temperature"]
        at = "" if temperature == 1.0 else f" at temperature {temperature:g}"
        return at if self._given is None else f"{at} inside of the support"

    def _log_prob_inside(self, policy: Policy) -> np.ndarray:
        """Of each demonstration that is scored: of a policy without contexts its density within
        the user's support, where alone one policy can be compared with another.
        """
        values = policy.log_prob(self._scored).numpy()
        if self._given is None or not isinstance(policy, Mixture):
            return values
        inside = 1.0 - self._given.outside(policy)
        return values - np.log(max(inside, 1.0 / OUTSIDE_OF))  # no less than one draw

    @property
    def _points(self) -> np.ndarray:
        return self._test if len(self._test) else self._train

    @cached_property
    def _inside(self) -> np.ndarray:
        if self._given is None:
            return np.ones(len(self._points), bool)
        return np.asarray(self._given(tf.constant(self._points, DENSITY)))

    @property
    def _scored(self) -> np.ndarray:
        """Those inside; if none is, all."""
        return self._points[self._inside] if self._inside.any() else self._points

    @property
    def _what_is_scored(self) -> str:
        kind, seen = "demonstrations", ""
        if len(self._test):
            kind = "held-out demonstrations"
            if any(float(reward.mixture_exponent) for reward in self._rewards):
                seen = ", which the reward's EM mixture has seen since"
        if self._given is None:
            return f"{len(self._points)} {kind}{seen}" if len(self._test) else f"all {kind}"
        inside, number = int(self._inside.sum()), len(self._points)
        if not inside:
            return f"{number} {kind}, none of which is inside of the support,"
        return f"{inside} {kind} inside of the support ({number - inside} left out){seen}"

    def finish(
        self,
        out: Path,
        policy: Policy,
        evaluations: Sequence[Mapping[str, float]],
        fitting: Mapping[str, Any],
    ) -> tuple[dict[str, Any], str]:
        """Arrays and pictures of the policy; its likelihood and the training policy's."""
        from experiments.figures.demonstrations import draw_demonstrations

        arrays = {"train": self._train, "test": self._test}
        save_arrays(out / "demonstrations.npz", arrays)
        if of_trajectories(self._run.path):
            save_encoding(out / "encoding.npz", load_encoding(self._run.path / "encoding.npz"))
        if isinstance(policy, ConditionalMixture):
            shown = None if self._context is None else self.contexts
            _draw_situations(out, self._inside_of, policy, self._train, self._columns, shown)
        else:
            # As the first run's own grid, with which Figure 5 shows it.
            around = load_arrays(self._run.path / "demonstrations.npz")["train"]
            if self._context is not None:
                around = np.concatenate([self._train, _most_of(policy)])
            arrays = grid_arrays(self.log_prob, policy, around, self._given)
            save_arrays(out / "grid.npz", arrays)
            if of_trajectories(out):
                self._write_trajectories(out, policy)
            else:
                draw_demonstrations(out, self._columns, self._situation)
        warned: list[str] = []
        if self._context is not None:
            name, what = "elbo", "mean reward + entropy (ELBO)" + self._of_what(fitting)
            of_new, of_trained = (
                self._elbo(one, fitting["temperature"]) for one in (policy, self._trained())
            )
            new, trained = of_new.elbo, of_trained.elbo
            if of_trained.exceeds(of_new):
                warned = [LOWER]
        else:
            name, what = "log_likelihood", f"mean log-likelihood of {self._what_is_scored}"
            new, trained = evaluations[-1][name], self.measure(self._trained())[name]
        sentence = (
            f"{what}: {new:.4f} under the new policy, {trained:.4f} under the training policy"
        )
        found = {name: {"inference_policy": new, "training_policy": trained}}
        # Nearer to what is likeliest is further from the other demonstrations.
        if self._context is None and fitting["temperature"] >= 1.0:
            warned = self._warnings(policy)
        return {**found, "warnings": warned}, sentence

    def _warnings(self, policy: Policy) -> list[str]:
        """Whether the new policy misses what the training policy does not."""
        by = self._log_prob_inside(self._trained()) - self._log_prob_inside(policy)
        if by.mean() <= CLEAR * by.std() / np.sqrt(len(by)):
            return []
        return [
            "these demonstrations are less likely under the new policy than under the training "
            f"policy, by {by.mean():.2g} nats each: it misses some of them; give more --components."
        ]

    def _trained(self) -> Any:
        """The policy of the training, in the one context if there is one."""
        policy = self._run.policy()
        return policy.condition(self._context) if is_one(self._context) else policy

    def _write_trajectories(self, out: Path, policy: Mixture) -> None:
        """The new policy's trajectories, and their pictures."""
        from experiments.figures.trajectories import draw_trajectories

        encoding = load_encoding(out / "encoding.npz")
        shown = np.asarray(encoding.decode(self._train[:SHOWN]))
        stored = self._run.path / "trajectories.npz"
        if self._context is None and stored.is_file():
            shown = load_arrays(stored)["demonstrations"]
        # The training policy alone may have next to nothing inside of a support.
        drawn = reward_draws(self._inside_of, Fusion(policy, self._trained()))
        write_trajectories(out, encoding, self.log_prob, policy, drawn, shown)
        where = "" if self._given is None else "draws of the reward inside of the support"
        draw_trajectories(out, "; ".join(filter(None, (self._situation, where))))
