"""One study: its identity, its storage, the objective of a trial, and the loop of a worker.

Every trial is a run like any other, in a folder of its own. A worker that dies leaves a trial whose
heartbeat stops; Optuna fails it and enqueues it again with the same parameters, and the new trial
takes the old one's folder, so that it goes on from its checkpoint. A study ends when as many trials
as asked for are complete or pruned; failed ones are not counted.
"""

import contextlib
import re
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

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
from experiments.tasks import describe
from experiments.tuning.space import searched, suggest, to_parameters
from experiments.tuning.specification import StudySpecification, without_password

HEARTBEAT_SECONDS = 10
GRACE_SECONDS = 40  # without a heartbeat, after which a trial counts as lost
BETWEEN_SECONDS = 3.0  # that a worker may take from failing a lost trial to its enqueueing
RETRIES = 5  # of one lost trial
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
POLL_SECONDS = 2.0
# Heartbeat and retry have been experimental since 2.9.
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
ALLOWED_FAILURES = 10  # trials in a row that fail before a worker gives the study up
# ... with an InputError, or whose workers all died: what a user got wrong, or too little memory,
# fails them all.
ALLOWED_MISTAKES = 3
CONNECT_SECONDS = 10  # until a PostgreSQL server counts as one that does not answer
ALLOWED = "Allowed: sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE."
ELSEWHERE = "Give another --storage and --out."  # to one whose name or folder is taken
MADE_BY = "versions"  # the attribute of a study that says with what its trials are made
OPENING_SECONDS = 3.0  # that another command may take to make the tables, or the study


def published_parameters(spec: StudySpecification) -> dict[str, Any]:
    """The published column as a trial's parameters."""
    column = (spec.task, spec.method, spec.components)
    return to_parameters(published_column(*column), searched(*column))


VANISHED = "its worker vanished or was stopped"
NOT_NEEDED = "not needed: enough trials were under way"


CLAIM = """
    UPDATE trials SET state = 'RUNNING', datetime_start = :now
    WHERE trial_id = :trial_id AND state = 'WAITING'
"""


class _Storage(optuna.storages.RDBStorage):
    """Optuna's, but heartbeats outlive an outage, after which Optuna sends no more; a trial that is
    given up says why; and SQLite, too, hands a waiting trial to one worker alone.
    """

    def record_heartbeat(self, trial_id: int) -> None:
        """Say that a trial's worker is alive, if the database answers."""
        with contextlib.suppress(optuna.exceptions.StorageInternalError):
            super().record_heartbeat(trial_id)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """A trial that fails without a reason had nobody left to store one."""
        if state == TrialState.RUNNING and self.engine.name == "sqlite":
            return self._claim(trial_id)
        if state == TrialState.FAIL and "reason" not in self.get_trial(trial_id).user_attrs:
            with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
                self.set_trial_user_attr(trial_id, "reason", VANISHED)
        return super().set_trial_state_values(trial_id, state, values)

    def _claim(self, trial_id: int) -> bool:
        """Whether a trial waited, and is this worker's now.

        In one statement: between Optuna's reading and its writing SQLite locks no row, so that all
        workers of a study that goes on would have the same trial.
        """
        from sqlalchemy import DateTime, bindparam, text
        from sqlalchemy.exc import SQLAlchemyError

        now = datetime.now(timezone.utc).replace(tzinfo=None)  # as Optuna stores times
        claim = text(CLAIM).bindparams(bindparam("now", now, DateTime), trial_id=trial_id)
        try:
            with self.engine.begin() as connection:
                return connection.execute(claim).rowcount == 1
        except SQLAlchemyError as error:
            raise optuna.exceptions.StorageInternalError("a trial was not taken") from error


def stored_study(name: str, url: str) -> optuna.Study | None:
    """The study of this name, or None. Nothing is made, neither file nor tables.

    Raises:
        InputError: as `open_storage`.
    """
    _check_kept(url)
    if _is_empty(url):
        return None
    storage = open_storage(url)
    if name not in optuna.get_all_study_names(storage):
        return None
    return optuna.load_study(study_name=name, storage=storage)


def _is_empty(url: str) -> bool:
    """Whether a database lacks Optuna's tables, which opening would make, as far as is known."""
    from sqlalchemy import create_engine, inspect, make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        parts = make_url(url)
        if parts.get_backend_name() == "sqlite" and not _sqlite_path(parts.database or "").exists():
            return True  # to ask would make it
        engine = create_engine(url, **_engine_options(url))
        try:
            return not inspect(engine).has_table("studies")
        finally:
            engine.dispose()
    except (SQLAlchemyError, ImportError, ValueError, OSError):
        return False  # opening says what is wrong


def _sqlite_path(database: str) -> Path:
    """Of a file's name or its URI."""
    is_uri = database.startswith("file:")
    return Path(unquote(urlsplit(database).path) if is_uri else database)


def absolute(url: str) -> str:
    """That of a SQLite file with its whole path: workers have other working directories."""
    found = re.fullmatch(r"(sqlite:///(?:file:)?)(?!file:)([^/:].*)", url)
    return url if found is None else f"{found[1]}{Path(found[2]).absolute()}"


def open_storage(url: str) -> optuna.storages.RDBStorage:
    """The database at `url`, created if it is a SQLite file that does not exist.

    Raises:
        InputError: nothing answers there, it is no database of Optuna's, or its driver is not
            installed.
    """
    from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

    _check_kept(url)
    _make_folder(url)
    shown = without_password(url)
    retry = _retry(RETRIES)
    # From the first refusal on: the attempt before it may take long, as it loads what it needs.
    deadline: float | None = None
    while True:
        try:
            return _Storage(
                url,
                heartbeat_interval=HEARTBEAT_SECONDS,
                grace_period=GRACE_SECONDS,
                heartbeat_stale_trial_callback=retry,
                engine_kwargs=_engine_options(url),
            )
        except ImportError as error:
            install = f"for PostgreSQL: pip install 'virl_tf[postgres]'. {ALLOWED}"
            raise InputError(
                f"--storage {shown}: its driver is not installed ({error}); {install}"
            ) from error
        except (
            SQLAlchemyError,
            RuntimeError,
            ValueError,
            AssertionError,
            optuna.exceptions.StorageInternalError,
        ) as error:
            # Commands that begin at once on a new database get in each other's way.
            refused = isinstance(error, (SQLAlchemyError, ValueError))
            contended = not refused or isinstance(error, (IntegrityError, ProgrammingError))
            deadline = deadline or time.monotonic() + OPENING_SECONDS
            if time.monotonic() > deadline or not (contended or "already exists" in str(error)):
                reason = f"{reason_of(error).rstrip('.')}. {ALLOWED}"
                raise InputError(f"--storage {shown} cannot be used: {reason}") from error
            time.sleep(0.2)


def _retry(most: int | None) -> Callable[[optuna.Study, FrozenTrial], None]:
    """Enqueues a lost trial again, at most so often."""
    enqueue = RetryHeartbeatStaleTrialCallback(most, inherit_intermediate_values=True)

    def retry(study: optuna.Study, trial: FrozenTrial) -> None:
        trial.user_attrs.pop("reason", None)  # it is the lost trial's, not the next one's
        enqueue(study, trial)

    return retry


def _check_kept(url: str) -> None:
    """Raises InputError for a database in memory."""
    if url in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        raise InputError(f"--storage {url} is in memory, where no worker sees it. {ALLOWED}")


def _make_folder(url: str) -> None:
    """Of a SQLite file; InputError if there can be none."""
    # A URI with options names an existing file.
    if not url.startswith("sqlite:///") or url.startswith("sqlite:///file:"):
        return
    try:
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--storage {url}: {error.strerror or error}.") from error


def _engine_options(url: str) -> dict[str, Any]:
    """Of SQLAlchemy."""
    from sqlalchemy.pool import NullPool

    if url.startswith("sqlite"):
        return {"connect_args": {"timeout": 60}}  # two workers on one file wait for each other
    # A connection each time: a server has few of them (PostgreSQL 100) and a study many workers,
    # idle for seconds on end; and none is left over that a server's restart broke.
    options: dict[str, Any] = {"poolclass": NullPool}
    if url.startswith("postgresql"):
        options["connect_args"] = {"connect_timeout": CONNECT_SECONDS}
    return options


def reason_of(error: BaseException) -> str:
    """The first line of what went wrong; Optuna's own error has the database's as its cause."""
    while error.__cause__ is not None and isinstance(error, optuna.exceptions.StorageInternalError):
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


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
        _release_silent(study)
        _enqueue_forgotten(study)
        if _is_hopeless(_failures_in_a_row(study, before)):
            return
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


def trials_of(study: optuna.Study, *states: TrialState) -> list[FrozenTrial]:
    """Its trials in these states, or all; not copied, so not to be changed."""
    return study.get_trials(deepcopy=False, states=states or None)


def count(study: optuna.Study, *states: TrialState) -> int:
    """The number of trials in these states, or of all."""
    return len(trials_of(study, *states))


def _is_needed(study: optuna.Study, number: int, num_trials: int) -> bool:
    """Whether a trial is among the first `num_trials`: two workers may start the last at once."""
    started = trials_of(study, *ENDED, TrialState.RUNNING)
    earlier = [trial for trial in started if trial.state in ENDED or trial.number < number]
    return len(earlier) < num_trials


def is_lost(trial: FrozenTrial) -> bool:
    """Whether so many workers died of a trial that it is not tried again."""
    history = RetryHeartbeatStaleTrialCallback.retry_history(trial)
    return trial.user_attrs.get("reason") == VANISHED and len(history) >= RETRIES


def has_failed(trial: FrozenTrial) -> bool:
    """Whether a trial failed for good: it was neither tried again nor not needed."""
    failed = trial.state == TrialState.FAIL
    return failed and ("traceback" in trial.user_attrs or is_lost(trial))


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


def stop(study: optuna.Study, command: str) -> None:
    """Have a command's workers stop, wherever they are, and put their trials back in the queue."""
    study.set_user_attr("stopped", [*study.user_attrs.get("stopped", []), command])
    running = trials_of(study, TrialState.RUNNING)
    release(study, [t.number for t in running if t.user_attrs.get("worker") == [command, t.number]])


def release(study: optuna.Study, numbers: Collection[int]) -> None:
    """Fail trials whose workers were stopped; enqueued again, they go on from their checkpoint."""
    retry = _retry(None)
    for trial in study.get_trials(deepcopy=True, states=(TrialState.RUNNING,)):
        if trial.number in numbers:
            try:
                study.tell(trial.number, state=TrialState.FAIL)
            except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
                continue  # it ended, or another gave it up
            # Only workers that die count against a trial.
            trial.system_attrs.pop("retry_history", None)
            retry(study, trial)


def _release_silent(study: optuna.Study) -> None:
    """Give up trials whose worker died before the first heartbeat: Optuna never does."""
    limit = datetime.now() - timedelta(seconds=GRACE_SECONDS)
    running = trials_of(study, TrialState.RUNNING)
    silent = [t for t in running if t.user_attrs.get("worker", [None, None])[1] != t.number]
    begun = [(t.number, t.datetime_start) for t in silent]
    release(study, [number for number, start in begun if start is not None and start < limit])


def _enqueue_forgotten(study: optuna.Study) -> None:
    """Enqueue lost trials whose finder failed them, and died before it enqueued them."""
    for trial in _forgotten(study):
        age = datetime.now() - (trial.datetime_complete or datetime.min)
        # Optuna writes local times: a finder in another time zone seems to be of the future.
        left = BETWEEN_SECONDS - age.total_seconds()
        time.sleep(min(BETWEEN_SECONDS, max(0.0, left)))
        if trial.number in {forgotten.number for forgotten in _forgotten(study)}:
            _retry(RETRIES)(study, trial)


def _forgotten(study: optuna.Study) -> list[FrozenTrial]:
    trials = study.get_trials(deepcopy=True)
    histories = [RetryHeartbeatStaleTrialCallback.retry_history(trial) for trial in trials]
    retried = {number for history in histories for number in history}
    lost = [trial for trial in trials if trial.user_attrs.get("reason") == VANISHED]
    return [t for t in lost if t.state == TrialState.FAIL and t.number not in retried]


def best_trial(study: optuna.Study) -> FrozenTrial | None:
    """The complete trial with the lowest value, or None."""
    return best_of(trials_of(study, TrialState.COMPLETE))


def best_of(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The same of these."""
    ended = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    complete = [trial for trial in ended if trial.value is not None]
    return min(complete, key=lambda trial: trial.value, default=None)  # type: ignore[arg-type, return-value]


def published_trial(study: optuna.Study) -> FrozenTrial | None:
    """The latest trial with the published values that ended (or None)."""
    ended = reversed(trials_of(study, *ENDED))
    return next((trial for trial in ended if trial.user_attrs.get("published")), None)
