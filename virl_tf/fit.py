"""What a user calls: `fit` recovers a reward, `load` reads a result back."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from virl_tf import irl, pooling
from virl_tf.conditional import is_broken
from virl_tf.contexts import checked_context
from virl_tf.demonstrations import Data, DataOptions, prepare
from virl_tf.discriminator.fit import DiscriminatorFitter, borrowed_fitter
from virl_tf.em.choice import GIVEN, choose_mixture
from virl_tf.event_files import EventFiles
from virl_tf.hparams import Hparams, default_hparams, load_hparams, own_data_hparams
from virl_tf.irl import Info, State
from virl_tf.methods import METHODS, Method
from virl_tf.observers import Observer, ProgressBar
from virl_tf.persistence.configuration import versions
from virl_tf.persistence.files import plain, write_json, write_text, writing
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.problem import Problem, kernel_estimate, make_problem
from virl_tf.reward import Reward
from virl_tf.score import Score, from_plain, in_words
from virl_tf.summary import FitWarning, context_doubts, rare_context, summarise
from virl_tf.validation import (
    InputError,
    check_choice,
    check_flag,
    check_integer,
    check_path,
    check_seed,
    reason,
    told,
)
from virl_tf.vips.improve import check_surrogate
from virl_tf.yaml_files import to_yaml

Evaluate = Callable[[State], Mapping[str, float]]
Finish = Callable[["Result", Problem], "Result"]


@dataclass(frozen=True)
class Result:
    """A recovered reward and its policy.

    Attributes:
        reward: R(x), callable: [..., D] -> [...], up to a constant; with contexts R(c, x), called
            as reward(x, c), up to a function of c. x is what was given to `fit`: of trajectories
            their codes, of angles any turn.
        policy: q~_T, a `Mixture`; `policy.distribution` is a tfd.MixtureSameFamily. With contexts a
            `ConditionalMixture`, whose `condition(c)` is one. Its log_prob takes the same x (with
            contexts (x, c), or rows [c, x]), but of angles the one turn that
            `reward.domain.wrap(x)` gives.
        history: one row per iteration, and of the pooling if there was one (its `epochs` are 0);
            the columns of `virl_tf.irl.Info`.
        config: what the run was made with.
        summary: what was found, as in summary.json.
    """

    reward: Reward
    policy: Any
    history: pd.DataFrame
    config: dict[str, Any]
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def score(self) -> Score | None:
        """How likely held-out demonstrations are; None if none were held out."""
        return from_plain(self.summary.get("score"))

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the result worth less, each with what to do next."""
        return tuple(self.summary.get("warnings", ()))

    def doubts(self, c: Any) -> tuple[str, ...]:
        """Why reward and policy are a guess in one context c [C]: a line for each of its columns
        that is far outside of the demonstrated ones, else one if it is rarer than 99 % of these: in
        a gap, at an end, or of values never demonstrated together (of G-EIM and EIM columns alone).
        As `infer --context` warns; `condition(c)` is silent.

        Raises:
            InputError: c is something else, or there are no contexts, or no summary.
        """
        size = self.reward.num_contexts
        if not size or "columns" not in self.summary:
            missing = "summary of its demonstrations" if size else "contexts"
            raise InputError(f"this result has no {missing}.")
        return context_doubts(checked_context(c, size), self.reward, self.summary)

    def __repr__(self) -> str:
        """Reward, policy, score and warnings, a line each."""
        count = int((self.history["epochs"] > 0).sum())  # the last row may be the pooling's
        plural = "" if count == 1 else "s"
        lines = [f"Result of {self.config.get('method')}, {count} iteration{plural}:"]
        lines += [f"  {self.reward}", f"  {self.policy}"]
        lines += [f"  {line}" for line in in_words(self.summary).splitlines()]
        return "\n".join([*lines, *(f"  warning: {text}" for text in self.warnings)])

    def _repr_html_(self) -> str:
        """What a notebook shows: the lines of `repr`, and draws of the policy."""
        from virl_tf.picture import as_html, picture_of  # here: Matplotlib takes half a second

        plain = self.reward.num_contexts == 0
        return as_html(repr(self), picture_of(self.reward, self.policy) if plain else None)

    def save(self, path: Path | str) -> None:
        """Write the result to the folder `path`, new or empty: config.yaml, metrics.csv,
        timings.csv, reward.keras, policy.npz, and summary.json if there is one.

        Raises:
            InputError: the folder holds files already (nothing is overwritten), or cannot be
                written.
        """
        folder = check_path(path)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists and is not an empty folder; nothing was written.")
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            described = {"config": plain(self.config), "versions": versions()}
            write_text(folder / "config.yaml", to_yaml(described))
            timings = ["t", *(c for c in self.history.columns if c.endswith("_seconds"))]
            write_text(folder / "timings.csv", self.history[timings].to_csv(index=False))
            write_text(
                folder / "metrics.csv", self.history.drop(columns=timings[1:]).to_csv(index=False)
            )
            if self.summary:
                write_json(folder / "summary.json", self.summary)
            RunFolder(folder).write_result(self.reward, self.policy)


def load(path: Path | str) -> Result:
    """The result in a folder written by `Result.save`, `fit(..., directory=path)` or a run of the
    experiments.

    Raises:
        InputError: no run there, or it is not finished, or a policy alone, which is `load_policy`'s
            to read. Nothing in the files is executed.
    """
    folder = RunFolder(path)
    config = folder.config
    if "runs" in config:
        raise InputError(
            f"{folder.path} holds the result of infer, a policy without a reward: read it with "
            "virl_tf.load_policy. load is for runs of fit and of the experiments."
        )
    if not folder.finished:
        raise InputError(
            f"the run in {folder.path} is not finished; run its command again to continue it."
        )
    return Result(folder.reward(), folder.policy(), folder.history(), config, folder.summary())


def fit(
    demonstrations: Any,
    method: str = "virl",
    num_components: int | None = None,
    *,
    contexts: Any = None,
    held_out: float = 0.1,
    groups: Any = None,
    periodic: Sequence[Any] | Mapping[Any, float] | None = None,
    support: tuple[Any, Any] | None = None,
    dither: bool = False,
    seed: int = 0,
    hparams: Hparams | Mapping[str, Any] | str | Path | None = None,
    directory: str | Path | None = None,
    evaluate: Evaluate | None = None,
    progress: bool = False,
    tensorboard: bool = False,
) -> Result:
    """Recover the reward behind expert demonstrations.

    Args:
        demonstrations: [N, D] array, tensor or data frame of real numbers, N >= D + 2.
        method: "virl", "geim", "eim", or an ablation: a name in `METHODS`.
        num_components: K of the Gaussian-mixture policy, at most one per demonstration that is not
            held out; None: chosen by the likelihood of held-out rows under EM.
        contexts: [N, C] array, tensor or data frame of the situation of each demonstration: then
            the reward is R(c, x) and the policy q(x | c) (docs/contexts.md). None: there are none.
        held_out: share of the demonstrations that only the score sees; 0: none. Fewer than ten
            become ten where these are at most a tenth, else none. Once they are scored, an EM
            mixture that the reward is averaged with is fitted to them, too.
        groups: [N] labels, e.g. of people: demonstrations of one label are held out together, from
            score and training alike. Equal rows are a group, too, unless that links most groups.
        periodic: columns (names or numbers) that are angles in radians, or {column: whole turn}.
        support: bounds (lower, upper) of the columns: a number for all, [D] numbers, {column:
            number} or None each. The reward is -inf outside.
        dither: spread columns whose values repeat by uniform noise as wide as their resolution.
        seed: of everything random; the same seed on the same machine gives the same bytes.
        hparams: None (defaults.yaml and, for V-IRL, the preset `best` over it), overrides of
            these {section: {key: value}}, a YAML file of such overrides, or a full `Hparams`.
        directory: keep config, metrics, checkpoints and result here. The same call again continues
            a stopped run and returns a finished one, on which `evaluate` is not called.
        evaluate: called with the `State` after every iteration; what it returns is added to the
            history.
        progress: show a progress bar.
        tensorboard: write TensorBoard event files into `directory`/tensorboard (off, because it
            needs a directory).

    Raises:
        InputError: any of these cannot be used (before any compute), `evaluate` returns no numbers
            by name, or the policy breaks down.

    Warns:
        FitWarning: what is in `Result.warnings`.
    """
    row = METHODS[check_choice("method", method, METHODS)]
    seed = check_seed(seed)
    _check_kinds(evaluate, dither=dither, progress=progress, tensorboard=tensorboard)
    options = DataOptions(held_out, groups, periodic, support, dither, contexts)
    prepared = prepare(demonstrations, options, seed)
    if num_components is not None:
        num_components = check_num_components(num_components, len(prepared.train.rows))
    if tensorboard and directory is None:
        raise InputError("tensorboard=True needs a directory to write into; give directory=.")
    values, data = resolve_hparams(hparams, row), prepared.train
    if data.num_contexts:
        check_surrogate(values.policy)
    config = {
        "method": method,
        "num_components": num_components,
        "seed": seed,
        "hparams": values.to_dict(),
        "demonstrations": prepared.identity,
    }
    if directory is not None:
        RunFolder.check(directory, config)
        if RunFolder(directory).finished:
            RunFolder(directory).tidy_if_unlocked()
            return _warned(_finished(directory, num_components, evaluate), directory)
    if values.kde.bandwidth != "held_out":
        kernel_estimate(data, values, seed)  # refuses one that is too narrow
    choice = choose_mixture(data.rows, seed, data.groups, num_components)
    config["num_components"] = choice.components
    folder = RunFolder.open(directory, config) if directory is not None else None

    def finish(result: Result, problem: Problem) -> Result:
        fitted = (result.reward, result.policy, result.history)
        summary = summarise(prepared, choice, row, problem, fitted)
        reward = result.reward
        if len(prepared.test):
            reward = pooling.of_all_rows(reward, problem, prepared.test)
        rows = np.concatenate([data.rows, prepared.test])
        summary["rare_context"] = rare_context(reward.mixture, rows[:, : data.num_contexts])
        if folder is not None:
            folder.write_summary(summary, {"train": data.rows, "test": prepared.test})
        return replace(result, reward=reward, summary=summary)

    result = run(
        data,
        row,
        choice.components,
        seed,
        values,
        config,
        folder=folder,
        evaluate=evaluate,
        finish=finish,
        progress=progress,
        tensorboard=tensorboard,
    )
    return _warned(result, directory)


def _finished(directory: Any, num_components: int | None, evaluate: Evaluate | None) -> Result:
    """What is in the folder; warns if it was made without an `evaluate`, or with a given number of
    components where one is to be chosen now.
    """
    result = load(directory)
    if num_components is None and result.summary.get("components_reason") == GIVEN:
        text = (
            f"{directory} was finished with num_components={result.config['num_components']}, "
            "which was given then: none is chosen now. For a chosen one give another folder."
        )
        warnings.warn(text, FitWarning, stacklevel=3)
    if evaluate is not None and set(result.history.columns) <= set(Info._fields):
        text = (
            f"{directory} was finished without evaluate=, which is not called now: its history has "
            "no such measurements. For these give another folder."
        )
        warnings.warn(text, FitWarning, stacklevel=3)
    return result


def _warned(result: Result, directory: Any) -> Result:
    """The result of a fit, after its warnings. Raises InputError if its folder lost them."""
    if not result.summary:
        raise InputError(
            f"{directory} has lost its summary.json; remove its reward.keras, and the same call "
            "makes both anew."
        )
    for text in result.warnings:
        warnings.warn(text, FitWarning, stacklevel=3)
    return result


def _check_kinds(evaluate: Any, **flags: Any) -> None:
    """Raises InputError: `evaluate` would be called after an iteration, "no" counts as true."""
    for name, value in flags.items():
        check_flag(name, value)
    if evaluate is not None and not callable(evaluate):
        raise InputError(f"evaluate must be a function of the State, got {told(evaluate)}.")


def check_num_components(num_components: Any, num_demonstrations: int) -> int:
    """K as an int with 1 <= K <= N, of N that are not held out, else InputError."""
    what = "num_components (--components; at most one per demonstration that is not held out)"
    return check_integer(what, num_components, 1, num_demonstrations)


def resolve_hparams(
    hparams: Hparams | Mapping[str, Any] | str | Path | None, method: Method
) -> Hparams:
    """A full `Hparams` from whatever `fit` accepts."""
    if isinstance(hparams, Hparams):
        return default_hparams(method.family).override(hparams.to_dict())
    if isinstance(hparams, (str, Path)):
        return load_hparams(hparams, method.family)
    return own_data_hparams(method.family).override({} if hparams is None else hparams)


def run(
    data: Data,
    method: Method,
    num_components: int,
    seed: int,
    hparams: Hparams,
    config: Mapping[str, Any],
    *,
    folder: RunFolder | None = None,
    evaluate: Evaluate | None = None,
    finish: Finish | None = None,
    observers: Sequence[Observer] = (),
    progress: bool = False,
    tensorboard: bool = False,
) -> Result:
    """Algorithm 1's loop over t for checked arguments, from the folder's last checkpoint if there
    is one; `finish` is what is done to the result before it is written.
    """
    if folder is not None and folder.finished:
        return load(folder.path)
    problem = make_problem(data, hparams, seed)
    hparams = problem.resolved(hparams)
    with (
        folder.locked() if folder is not None else nullcontext(),
        borrowed_fitter(problem.features.num_inputs, hparams) as fitter,
    ):
        state = first = irl.init(problem, method, num_components, hparams)
        if folder is not None:
            template = first._replace(network=tuple(fitter.model.get_weights()))
            state = first = folder.latest_state(template) or first
        # What a checkpoint's reward is made of, on whatever machine it was begun.
        reward = first.reward
        problem = problem._replace(features=reward.features, mixture=reward.mixture)

        rows = []
        with _watching(folder, data.rows, first, hparams, progress, tensorboard) as watchers:
            for state, info in _stages(first, problem, method, fitter, hparams):
                _check_policy(state)
                row = {**info._asdict(), **_measured(evaluate, state)}
                rows.append(row)
                if folder is not None:
                    folder.record(state, row)
                for observer in (*observers, *watchers):
                    observer(state, row)
        history = folder.history() if folder is not None else pd.DataFrame(rows)
        result = Result(state.reward, state.policy, history, dict(config))
        if finish is not None:
            result = finish(result, problem)
        if folder is not None:
            folder.write_result(result.reward, result.policy)
    return result


def _measured(evaluate: Evaluate | None, state: State) -> dict[str, Any]:
    """What `evaluate` says of the state: numbers that files can hold. Raises InputError for others,
    before they are in any.
    """
    found = {} if evaluate is None else evaluate(state)
    if not isinstance(found, Mapping):
        raise InputError(f"evaluate must return a dictionary of numbers, got {told(found)}.")
    for name in found:
        if not isinstance(name, str):
            raise InputError(f"evaluate must return numbers by names of text, got {name!r}.")
        if name in Info._fields:
            raise InputError(f"evaluate must not return {name!r}, a column of the history already.")
    try:
        return {name: _plain_number(value) for name, value in found.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"evaluate must return a number for each name: {reason(error)}") from error


def _plain_number(value: Any) -> int | float:
    """Whole numbers that a table's columns can hold stay whole."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return value if whole and abs(value) < 2**63 else float(value)


def _stages(
    state: State,
    problem: Problem,
    method: Method,
    fitter: DiscriminatorFitter,
    hparams: Hparams,
) -> Iterator[tuple[State, Info]]:
    """What is left of a run: iterations until T or convergence, then the pooling if it is due."""
    while state.t < hparams.loop.num_iterations and not (state.converged or state.pooled):
        state, info = irl.step(state, problem, method, fitter, hparams)
        yield state, info
    if pooling.is_due(state, problem, method):
        yield pooling.pool(state, problem, hparams)


def _check_policy(state: State) -> None:
    """Raises InputError for a policy that is no policy any more; nothing of it is kept."""
    if is_broken(state.policy):
        raise InputError(
            f"the policy broke down in iteration {state.t - 1}: its arrays are not finite. Give a "
            "smaller policy.kl_bound, a larger policy.ridge (--set), or fewer num_components "
            "(--components)."
        )


@contextmanager
def _watching(
    folder: RunFolder | None,
    demonstrations: np.ndarray,
    state: State,
    hparams: Hparams,
    progress: bool,
    tensorboard: bool,
) -> Iterator[list[Observer]]:
    """Event files and progress bar, if wanted, of a run that goes on from `state`."""
    watchers: list[Observer] = []
    with ExitStack() as stack:
        if folder is not None and tensorboard:
            events = EventFiles(folder.path / "tensorboard", demonstrations, state)
            watchers.append(stack.enter_context(events))
        if progress:
            bar = stack.enter_context(ProgressBar(hparams.loop.num_iterations))
            bar.resume(state.t)
            watchers.append(bar)
        yield watchers
