"""One study: its identity, the objective of a trial, and the loop of a worker.

Every trial is a run like any other, in a folder of its own. A worker that dies leaves a trial whose
heartbeat stops; Optuna fails it and enqueues it again with the same parameters, and the new trial
takes the old one's folder, so that it goes on from its checkpoint. A study ends when as many trials
as asked for are complete or pruned; failed ones are not counted.
"""

import contextlib
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virl_tf.hparams import Hparams
from virl_tf.persistence.configuration import differences, numerics, versions
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError

import numpy as np
import optuna
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from experiments.pooled_results import other_than_now
from experiments.result_files import DIVERGED, value_at
from experiments.specification import published_column
from experiments.sweeps.sweep import leave_if_full
from experiments.tasks import describe
from experiments.tuning.space import searched, suggest, to_parameters
from experiments.tuning.specification import StudySpecification
from experiments.tuning.storage import OPENING_SECONDS, open_storage, reason_of
from experiments.tuning.trials import (
    ENDED,
    count,
    enqueue_forgotten,
    has_failed,
    is_lost,
    release_silent,
    trials_of,
)

POLL_SECONDS = 2.0
ALLOWED_FAILURES = 10  # trials in a row that fail before a worker gives the study up
# ... with an InputError, or whose workers all died: what a user got wrong, or too little memory,
# fails them all.
ALLOWED_MISTAKES = 3
ELSEWHERE = "Give another --storage and --out."  # to one whose name or folder is taken
NOT_NEEDED = "not needed: enough trials were under way"
MADE_BY = "versions"  # the attribute of a study that says with what its trials are made


def published_parameters(spec: StudySpecification) -> dict[str, Any]:
    """The published column as a trial's parameters."""
    column = (spec.task, spec.method, spec.components)
    return to_parameters(published_column(*column), searched(*column))


def open_study(
    spec: StudySpecification, storage: optuna.storages.BaseStorage, worker: int = 0
) -> optuna.Study:
    """The study; if it is new, with the published column (if there is one) as its first trial.

    Raises:
        InputError: a study of this name exists with another space, objective or configuration; or
            the storage failed.
    """
    try:
        return _open_study(spec, storage, worker)
    except optuna.exceptions.StorageInternalError as error:
        raise InputError(f"the --storage cannot be used: {reason_of(error)}") from error


def _open_study(
    spec: StudySpecification, storage: optuna.storages.BaseStorage, worker: int
) -> optuna.Study:
    # Compares a trial's best value so far with the median of those before it at the same iteration.
    # A later seed is behind a good end of the first, and hardly pruned.
    warm_up = half_way(spec.run(spec.seeds[0], {}).hparams)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=warm_up)
    parts: dict[str, Any] = {"study_name": spec.name, "storage": storage, "pruner": pruner}
    parts["sampler"] = make_sampler(spec, worker)
    try:
        study = optuna.create_study(direction="minimize", **parts)
        deadline = 0.0
    except optuna.exceptions.DuplicatedStudyError:
        study = optuna.load_study(**parts)
        deadline = time.monotonic() + OPENING_SECONDS
    _wait_for_beginning(study, spec, deadline)
    check_begun(study, spec)
    return study


def check_same(study: optuna.Study, spec: StudySpecification) -> None:
    """Raises InputError for another space, objective or configuration than a study has stored."""
    wanted = spec.to_attributes()
    found = study.user_attrs.get("specification", wanted)
    if found != wanted:
        shown = f"another space or objective ({'; '.join(differences(found, wanted)[:4])})"
        raise InputError(f"the study {spec.name} exists with {shown}. {ELSEWHERE}")


def check_begun(study: optuna.Study, spec: StudySpecification) -> None:
    """Raises InputError unless a study is the one asked for, and its numbers those of now."""
    check_same(study, spec)
    made_by = study.user_attrs.get(MADE_BY, {})  # of older studies nobody knows
    others = other_than_now(made_by, spec.preset)
    if others:
        shown = f"other versions ({'; '.join(others[:4])})"
        text = f"the study {spec.name} was begun with {shown}"
        raise InputError(f"{text}. Use those, or give another --storage and --out.")


def _wait_for_beginning(study: optuna.Study, spec: StudySpecification, deadline: float) -> None:
    """Until another command has stored what the study is; from `deadline` on that is done here.

    One that is being made by another command is soon complete; if that command died, it never is.
    """
    minimised = study.directions == [optuna.study.StudyDirection.MINIMIZE]
    while "specification" not in study.user_attrs:
        foreign = any("published" not in trial.user_attrs for trial in trials_of(study))
        if not minimised or foreign:
            text = f"the storage holds another study named {spec.name}"
            raise InputError(f"{text}. {ELSEWHERE}")
        if time.monotonic() <= deadline:
            time.sleep(0.1)
            continue
        if spec.description.table is not None:
            marked = {"published": True}
            study.enqueue_trial(published_parameters(spec), marked, skip_if_exists=True)
        study.set_user_attr(MADE_BY, numerics(versions(), spec.preset))
        # Last: its presence says that the first trial is there.
        study.set_user_attr("specification", spec.to_attributes())


def enqueue_published(study: optuna.Study, spec: StudySpecification) -> None:
    """Again, where an error failed it (a full disk, say): failed trials are not done again else."""
    published = [trial for trial in trials_of(study) if trial.user_attrs.get("published")]
    if published and has_failed(published[-1]):
        study.enqueue_trial(published_parameters(spec), {"published": True})


def make_sampler(
    spec: StudySpecification, worker: int, trials: int = 0
) -> optuna.samplers.BaseSampler:
    """TPE with a seed for each worker and number of trials: a worker begun anew goes on elsewhere.

    A constant liar keeps workers from the same point.
    """
    seed = int(np.random.SeedSequence([*spec.seeds, worker, trials]).generate_state(1)[0])
    return optuna.samplers.TPESampler(
        n_startup_trials=8, multivariate=True, constant_liar=True, seed=seed
    )


def objective(trial: optuna.Trial, spec: StudySpecification, out: Path) -> float:
    """The paper's objective, averaged over the seeds; reported after every iteration.

    Raises:
        optuna.TrialPruned: the pruner says so, or a run diverged or came to nan; the reason is
            stored with the trial.
    """
    from experiments.runs import execute

    overrides = suggest(trial, searched(spec.task, spec.method, spec.components))
    frozen = trials_of(trial.study)[trial.number]
    origin = RetryHeartbeatStaleTrialCallback.retried_trial_number(frozen)
    number = trial.number if origin is None else origin
    values: list[float] = []
    for index, seed in enumerate(spec.seeds):
        run = spec.run(seed, overrides)
        first_step = index * _most_reports(run.hparams)
        report = _Report(trial, spec.description.objective, first_step)
        with _without_checkpoints(out / f"{number:04d}-s{seed}") as folder:
            summary = execute(run, folder, progress=False, observers=[report])
        value = objective_value(summary)
        if summary["status"] == DIVERGED or not np.isfinite(value):
            _prune(trial, f"diverged (objective {value:.4g})")
        trial.set_user_attr(f"cpu_seconds_s{seed}", summary["cpu_seconds"]["process"])
        values.append(value)
    return float(np.mean(values))


def half_way(hparams: Hparams) -> int:
    """The iteration from which on a run is compared with others.

    Before, it counts how fast a policy leaves its start, not where it ends. Of 20 runs on the
    walker half of the pairs are in the order of their ends after 3 of EIM's 150 iterations (0.49;
    half way 0.87), after 8 of G-EIM's 30 0.62 (0.83). `rank-budgets` tells it of half way.
    """
    return max(2, hparams.loop.num_iterations // 2)


def _most_reports(hparams: Hparams) -> int:
    """Rows of a run's history: one for each iteration, and the pooling's. Of two values that are
    reported for one step Optuna keeps the first.
    """
    return hparams.loop.num_iterations + int(hparams.loop.mixture_average)


@contextlib.contextmanager
def _without_checkpoints(folder: Path) -> Iterator[Path]:
    """Leave none behind once the run is whole or pruned: in a study they would be gigabytes."""
    try:
        yield folder
    except optuna.TrialPruned:
        RunFolder(folder).drop_checkpoints()
        raise
    RunFolder(folder).drop_checkpoints()


@dataclass(frozen=True)
class _Report:
    """An observer that reports the objective to a trial and asks whether to go on."""

    trial: optuna.Trial
    column: str
    first_step: int  # runs of further seeds are reported behind each other

    def __call__(self, state: Any, row: Mapping[str, Any]) -> None:
        value = float(row[self.column])
        if not np.isfinite(value):
            _prune(self.trial, f"{self.column} is {value} at iteration {row['t']}")
        self.trial.report(value, self.first_step + int(row["t"]))
        if self.trial.should_prune():
            _prune(self.trial, f"worse than the median at iteration {row['t']}")


def objective_value(summary: Mapping[str, Any]) -> float:
    """What a study minimises, from a run's summary."""
    return float(value_at(summary, describe(summary["task"]).objective_place))


def _prune(trial: optuna.Trial, reason: str) -> None:
    trial.set_user_attr("reason", reason)
    raise optuna.TrialPruned(reason)


class _NotNeededError(Exception):
    """Another worker's trial was the last one asked for."""


def work(
    spec: StudySpecification,
    url: str,
    num_trials: int,
    out: Path,
    worker: int,
    command: str = "",
    before: Collection[int] = (),
) -> None:
    """A worker: trials, one by one, until `num_trials` of the study are complete or pruned.

    Args:
        command: whose worker it is; its trials carry this name, and it stops when `stop` was called
            with it.
        before: the trials that had failed when the command began. A worker that takes the place of
            one that died goes on counting.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = open_study(spec, open_storage(url), worker)
    current = -1

    def guarded(trial: optuna.Trial) -> float:
        nonlocal current
        current = trial.number
        trial.set_user_attr("worker", [command, trial.number])
        if not _is_needed(study, trial.number, num_trials):
            trial.set_user_attr("reason", NOT_NEEDED)
            raise _NotNeededError
        try:
            return objective(trial, spec, out)
        except optuna.TrialPruned:
            raise
        except Exception as error:
            trial.set_user_attr("reason", f"{type(error).__name__}: {error}")
            trial.set_user_attr("traceback", traceback.format_exc()[-2000:])
            trial.set_user_attr("mistake", isinstance(error, InputError))
            raise

    while count(study, *ENDED) < num_trials and command not in study.user_attrs.get("stopped", []):
        optuna.storages.fail_stale_trials(study)
        release_silent(study)
        enqueue_forgotten(study)
        if _is_hopeless(_failures_in_a_row(study, before)):
            return
        leave_if_full()  # Dask starts this again in a new process
        if count(study, *ENDED, TrialState.RUNNING) < num_trials:
            study.sampler = make_sampler(spec, worker, count(study))
            try:
                study.optimize(guarded, n_trials=1, catch=(Exception,))
            except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
                # This process slept for so long that its trial was given up, and is another's now.
                if current not in _failed(study):
                    raise
        else:  # the last ones are under way elsewhere; wait, in case one is lost
            time.sleep(POLL_SECONDS)


def _failed(study: optuna.Study) -> set[int]:
    return {trial.number for trial in trials_of(study, TrialState.FAIL)}


def _is_needed(study: optuna.Study, number: int, num_trials: int) -> bool:
    """Whether a trial is among the first `num_trials`: two workers may start the last at once."""
    started = trials_of(study, *ENDED, TrialState.RUNNING)
    earlier = [trial for trial in started if trial.state in ENDED or trial.number < number]
    return len(earlier) < num_trials


def _is_hopeless(failures: Sequence[FrozenTrial]) -> bool:
    """Whether the next trial would fail like these."""
    last = failures[-ALLOWED_MISTAKES:]
    alike = [trial for trial in last if trial.user_attrs.get("mistake") or is_lost(trial)]
    return len(failures) >= ALLOWED_FAILURES or len(alike) == ALLOWED_MISTAKES


def _failures_in_a_row(study: optuna.Study, before: Collection[int]) -> list[FrozenTrial]:
    """Up to now, without those from before the command began."""
    failures: list[FrozenTrial] = []
    for trial in trials_of(study, *ENDED, TrialState.FAIL):
        if trial.state in ENDED:
            failures = []
        elif trial.number not in before and has_failed(trial):
            failures.append(trial)
    return failures
