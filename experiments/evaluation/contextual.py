"""Tasks p(x | c): I-projections averaged over contexts, of those demonstrated and of others."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

from virl_tf import metrics
from virl_tf.conditional import ConditionalMixture
from virl_tf.contexts import Places, drawn
from virl_tf.demonstrations import Data
from virl_tf.density import Density
from virl_tf.fit import Evaluate, Result
from virl_tf.fusion import Fusion
from virl_tf.irl import State
from virl_tf.numerics import DENSITY, generator_of, numpy_seed, split_seed
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.policy_fit.start import conditional_start
from virl_tf.reward import Reward, evaluate

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Column, Table

from experiments.evaluation.base import average_reward, mixture_of, status_of
from experiments.evaluation.judged import reference_fits
from experiments.evaluation.situations import write_situations

WITHHELD = (0.3, 0.6)  # in the first column of c: no demonstration is of such a context
CONTEXTS = 100  # that I-projections are averaged over
DRAWS = 400  # in each; a multiple of 4, the parts of the proposal
INFERRED = 4000  # contexts that new policies are fitted for


class Truth(Protocol):
    """A density p(x | c) of x [dim] and of contexts in [-1, 1]^num_contexts."""

    dim: int
    num_contexts: int

    def log_prob(self, x: Any, c: Any) -> tf.Tensor:
        """Log p(x | c): [N, D], [N, C] -> [N]."""

    def contexts(self, n: int, seed: int) -> np.ndarray:
        """[n, C]."""

    def sample(self, c: Any, seed: int) -> Any:
        """A draw for each context: [N, C] -> [N, D]."""


class Situations:
    """A truth as a task of rows [c, x], and as a conditional `Density` of them.

    Attributes:
        num_contexts: C.
        dim: C + D.
    """

    def __init__(self, truth: Truth):
        """All but the contexts that are `WITHHELD` are demonstrated."""
        self._truth, self.num_contexts = truth, truth.num_contexts
        self.dim = truth.num_contexts + truth.dim

    def demonstrations(self, n: int, seed: int) -> np.ndarray:
        """Rows [n, C + D]."""
        c = self.contexts(n, seed)
        own_seed = numpy_seed(seed, 0, "demonstrations in contexts")
        return np.hstack([c, np.asarray(self._truth.sample(c, own_seed))])

    def contexts(self, n: int, seed: int, withheld: bool | None = False) -> np.ndarray:
        """Demonstrated ones [n, C], or those that are not, or of both kinds (None)."""
        c = self._truth.contexts(20 * n + 100, seed)
        if withheld is not None:
            inside = (c[:, 0] >= WITHHELD[0]) & (c[:, 0] < WITHHELD[1])
            c = c[inside == withheld]
        return c[:n]

    def log_prob(self, rows: Any) -> tf.Tensor:
        """Log p(x | c) of rows [c, x]: [N, C + D] -> [N]."""
        rows = tf.convert_to_tensor(rows, DENSITY)
        return self._truth.log_prob(rows[:, self.num_contexts :], rows[:, : self.num_contexts])

    def sample(self, c: Any, seed: Any = None) -> tf.Tensor:
        """A draw for each context: c [N, C] -> [N, D]. `seed`: int32 [2]."""
        own_seed = int(generator_of(seed).integers(2**31))
        return tf.convert_to_tensor(self._truth.sample(np.asarray(c), own_seed), DENSITY)


class AveragedDistances:
    """E_c[KL(q(.|c) || p(.|c))] over fresh contexts, from draws in each.

    A density is sampled itself. A reward is not: self-normalised importance sampling from, a
    quarter each, p, the policy, q*_0 and the EM mixture that the reward may be averaged with (else
    q*_0 again).
    """

    def __init__(self, task: Situations, seed: int, withheld: bool = False):
        """For demonstrated contexts, or for those that are not. `seed`: of a run, whose
        demonstrations are in others.
        """
        own_seed = numpy_seed(seed, 0, "withheld contexts" if withheld else "fresh contexts")
        c = task.contexts(CONTEXTS, own_seed, withheld)
        self._task, self._where = task, Places(tf.constant(c, DENSITY), DRAWS)

    def of_density(self, density: Density) -> float:
        """Of a conditional density."""
        rows = drawn(density, self._where, split_seed(0, 0, "distance of density"))
        return float(tf.reduce_mean(density.log_prob(rows) - self._task.log_prob(rows)))

    def of_reward(self, reward: Reward, policy: Density) -> float:
        """Of exp(R), normalised in each context; `policy`: where its mass may lie."""
        proposal = Fusion(Fusion(self._task, policy), Fusion(reward.base, mixture_of(reward)))
        rows = drawn(proposal, self._where, split_seed(0, 0, "distance of reward"))
        parts = (evaluate(reward, rows), self._task.log_prob(rows), proposal.log_prob(rows))
        return metrics.averaged_i_projection(*(tf.reshape(part, [DRAWS, -1]) for part in parts))


class ContextualExperiment:
    """Averaged I-projections of reward, policy and references; policies for all contexts."""

    def __init__(self, config: Mapping[str, Any], truth: Truth):
        """For a run's configuration and its truth."""
        self._config, self.task = config, Situations(truth)

    @cached_property
    def distances(self) -> AveragedDistances:
        """In demonstrated contexts."""
        return AveragedDistances(self.task, self._config["seed"])

    @cached_property
    def unseen(self) -> AveragedDistances:
        """In contexts that were withheld."""
        return AveragedDistances(self.task, self._config["seed"], withheld=True)

    def evaluator(self, train: np.ndarray, test: np.ndarray) -> Evaluate:
        """I-projections of reward and policy."""

        def measure(state: State) -> dict[str, float]:
            return {
                "i_projection_reward": self.distances.of_reward(state.reward, state.policy),
                "i_projection_policy": self.distances.of_density(state.policy),
            }

        return measure

    def write_arrays(self, out: Path, train: np.ndarray, result: Result) -> None:
        """situations.npz: truth, reward and policy in some contexts."""
        number = self.task.num_contexts
        names = [f"c{i}" for i in range(number)]
        names += [f"x{i}" for i in range(self.task.dim - number)]
        densities = {"log_p": self.task.log_prob, "rewards": result.reward.log_prob}
        write_situations(out, densities, result.policy, train, names)

    def summarise(self, train: np.ndarray, result: Result) -> dict[str, Any]:
        """I-projections (best, final, reported), and those in withheld contexts at the end."""
        series = {name: result.history[f"i_projection_{name}"] for name in ("reward", "policy")}
        return {
            "status": status_of(series["reward"]),
            "dim": self.task.dim,
            "i_projection": {n: metrics.best_final_reported(v) for n, v in series.items()},
            "unseen": {
                "training": self.unseen.of_reward(result.reward, result.policy),
                "training_policy": self.unseen.of_density(result.policy),
            },
        }

    def references(self, x: np.ndarray) -> dict[str, Any]:
        """The same of what others would take, fitted to rows x [N, C + D]: EM of as many components
        as the truth has modes.
        """
        data = Data(x, num_contexts=self.task.num_contexts)
        fits = reference_fits(data, {"": self._config["modes"]}, self._config["seed"])
        found = {name: self.distances_of(fit()) for name, fit in fits.items()}
        measures = ("i_projection", "unseen")
        return {key: {name: of[key] for name, of in found.items()} for key in measures}

    def distances_of(self, density: Any) -> dict[str, float]:
        """Its I-projections in demonstrated contexts, and in withheld ones."""
        places = {"i_projection": self.distances, "unseen": self.unseen}
        return {name: distances.of_density(density) for name, distances in places.items()}

    def draw(self, out: Path, summary: Mapping[str, Any]) -> None:
        """Curves, and pictures of some contexts."""
        from experiments.figures.overview import draw_overview
        from experiments.figures.situations import draw_situations

        draw_overview(out, {})
        draw_situations(out)

    def print_summary(self, summary: Mapping[str, Any], console: Console) -> None:
        """The I-projections as a table."""
        columns = ("best", "final", "reported")
        right = [Column(name, justify="right") for name in (*columns, "unseen contexts")]
        title = "I-projection KL(q || p), averaged over contexts; lower is better"
        table = Table("density", *right, title=title)
        stages = {"reward": "training", "policy": "training_policy"}
        for name, stage in stages.items():
            values = [summary["i_projection"][name][column] for column in columns]
            table.add_row(name, *(f"{v:.4f}" for v in [*values, summary["unseen"][stage]]))
        console.print(table)

    def inference(
        self, runs: Sequence[Path], rewards: Sequence[Reward], obstacles: float | None = None
    ) -> "ContextualInference":
        """Inference on the average reward."""
        return ContextualInference(self, runs, rewards)


class ContextualInference:
    """How close a new policy for all contexts, the withheld ones too, comes to the truth.

    Attributes:
        log_prob: the average reward of rows [c, x].
        contexts: that it is fitted for.
    """

    def __init__(
        self, experiment: ContextualExperiment, runs: Sequence[Path], rewards: Sequence[Reward]
    ):
        """From the files of the runs."""
        self._experiment, self._runs = experiment, runs
        self.log_prob = partial(average_reward, rewards)
        self.contexts = experiment.task.contexts(INFERRED, 0, withheld=None)

    support = None

    def start(self, reward: Reward, components: int, seed: int) -> Any:
        """EM on draws of the first run's reward."""
        return conditional_start(reward, tf.constant(self.contexts), components, seed)

    def measure(self, policy: ConditionalMixture) -> dict[str, float]:
        """The policy's I-projection in demonstrated contexts."""
        return {"i_projection_policy": self._experiment.distances.of_density(policy)}

    def finish(
        self,
        out: Path,
        policy: ConditionalMixture,
        evaluations: Sequence[Mapping[str, float]],
        fitting: Mapping[str, Any],
    ) -> tuple[dict[str, Any], str]:
        """Distances of it and of the first run's policy."""
        before = self._experiment.distances_of(RunFolder(self._runs[0]).policy())
        series = [row["i_projection_policy"] for row in evaluations]
        unseen = self._experiment.unseen.of_density(policy)
        sentence = (
            f"KL to the truth: {series[-1]:.4f} for the new policy, {before['i_projection']:.4f} "
            f"for the training policy; in unseen contexts {unseen:.4f} and {before['unseen']:.4f}"
        )
        i_projection = {
            "inference_policy": metrics.best_final_reported(series),
            "training_policy": before["i_projection"],
        }
        of_unseen = {"inference": unseen, "training_policy": before["unseen"]}
        return {"i_projection": i_projection, "unseen": of_unseen}, sentence
