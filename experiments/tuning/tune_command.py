"""`python -m experiments tune`: workers on one study, and what they found so far on the screen."""

import contextlib
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from virl_tf.persistence.files import write_text
from virl_tf.validation import InputError

import optuna
import pandas as pd
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from experiments.screen import counted, screen
from experiments.sweeps.expected_time import expected_time, sentence
from experiments.sweeps.sweep import NO_WORKER, Workers, ask, cluster, result_of, submit
from experiments.tasks import describe
from experiments.tuning.compare import FEWEST_FOR_IMPORTANCES
from experiments.tuning.space import written
from experiments.tuning.specification import (
    FOLDER,
    Column,
    Studies,
    StudySpecification,
    TuneRequest,
    without_password,
)
from experiments.tuning.storage import absolute, open_storage, reason_of, stored_study
from experiments.tuning.study import (
    ELSEWHERE,
    NOT_NEEDED,
    POLL_SECONDS,
    check_begun,
    enqueue_published,
    open_study,
    work,
)
from experiments.tuning.study_folder import check_folder, claim_folder
from experiments.tuning.trials import (
    ENDED,
    best_of,
    best_trial,
    count,
    has_failed,
    is_lost,
    published_trial,
    stop,
    trials_of,
)


def tune(request: TuneRequest, workers: Workers, place: Path | None) -> None:
    """Do trials until as many as asked for are complete or pruned, then print and write them.

    Args:
        place: the study's folder; None: that of its name.

    Raises:
        InputError: bad arguments, a storage that cannot be used, another study of this name, or
            trials that only fail.
    """
    console, trials = screen(), request.trials
    spec, out, url = _study_of(request, place)
    study, shown = open_study(spec, open_storage(url)), without_password(url)
    claim_folder(out, spec, url, study)
    enqueue_published(study, spec)
    try:
        if count(study, *ENDED) < trials:
            said = Text.assemble((spec.name, "bold"), f" in {shown}; runs in {out}")
            console.print(said, soft_wrap=True)
            arguments = (spec, url, trials, (out / "trials").absolute())
            _work_together(study, arguments, workers, console)
    except optuna.exceptions.StorageInternalError as error:
        text = f"--storage {shown} does not answer any more ({reason_of(error)})"
        raise InputError(f"{text}; what was done is kept, the same command continues.") from error
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "trials.csv", trials_table(study).to_csv(index=False))
    console.print(board(study, trials))
    where = f"trials: {out / 'trials.csv'}   database: {shown}"
    console.out(where)
    # A study in a folder of its own is found by its database alone.
    studies = request.studies if place is None else request.studies._replace(storage=shown)
    column = (request.method, request.components)
    for command in next_commands(studies, column, count(study, TrialState.COMPLETE)):
        console.out(f"next: {command}")
    if count(study, *ENDED) < trials:
        text = "the study was given up after too many failed trials in a row"
        last = [outcome(trial) for trial in trials_of(study) if has_failed(trial)][-1:]
        raise InputError(f"{text}; the last {last[0] if last else 'did not run'}")


def next_commands(studies: Studies, column: Column, complete: int) -> list[str]:
    """What can be done with a study of so many complete trials."""
    names = ["study-plots"] if complete >= FEWEST_FOR_IMPORTANCES else []
    if complete and column in describe(studies.task).compared:
        names.append("compare")
    return [studies.command(column, name) for name in names]


def preview(request: TuneRequest, workers: Workers, out: Path | None) -> None:
    """Say how many trials are done already, and how long the rest will take at most.

    Nothing is done or written.

    Raises:
        InputError: as `tune`.
    """
    spec, out, url = _study_of(request, out)
    done = 0
    study = stored_study(spec.name, url)
    if study is not None:
        check_begun(study, spec)
        done = count(study, *ENDED)
    left = max(0, request.trials - done)
    times = [expected_time(spec.run(seed, {})) for seed in spec.seeds] * left
    console = screen()
    console.out(
        f"{counted(request.trials, 'trial')} of {spec.name}: {done} done already, {left} to do"
    )
    console.out(sentence(times, workers.known))
    console.out("a trial that is pruned takes less, one with a larger network more")


def _study_of(request: TuneRequest, out: Path | None) -> tuple[StudySpecification, Path, str]:
    """The study, its folder, and the URL of its database; all arguments are checked."""
    spec = request.specification()
    out = out or FOLDER / spec.name
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    place = str(out.absolute())
    if request.studies.storage is None and ("?" in place or unquote(place) != place):
        text = "a URL of SQLite cannot name it (? begins options, % another letter)"
        raise InputError(f"{place} cannot hold study.db: {text}. {ELSEWHERE}")
    url = absolute(request.studies.storage or f"sqlite:///{out}/study.db")
    check_folder(out, spec, url)
    return spec, out, url


TIMES = ("datetime_start", "datetime_complete")
COLUMNS = ("number", "state", "value", *TIMES, "params", "user_attrs")


def trials_table(study: optuna.Study) -> pd.DataFrame:
    """A row for each trial; a whole number stays one beside a trial that was lost before its
    parameters were drawn.
    """
    table = study.trials_dataframe(attrs=COLUMNS)
    parameters = [name for name in table if str(name).startswith("params_")]
    return table.astype({name: table[name].convert_dtypes().dtype for name in parameters})


def _work_together(
    study: optuna.Study,
    arguments: tuple[StudySpecification, str, int, Path],
    workers: Workers,
    console: Console,
) -> None:
    """Have all workers call `work` with these arguments, and show how far the study is."""
    command, trials = uuid.uuid4().hex, arguments[2]
    told = {trial.number for trial in trials_of(study, *ENDED, TrialState.FAIL)}
    before = frozenset(told)

    def start(worker: int) -> Any:
        return submit(client, work, *arguments, worker, command, before, pure=False)

    try:
        with (
            cluster(workers) as client,
            # Transient: the last state is printed once, when the study's files are written.
            Live(console=console, refresh_per_second=1, transient=True) as live,
        ):
            from distributed import KilledWorker

            _wait_for_a_worker(client, console)
            futures: list[Any] = []
            while not futures or not all(future.done() for future in futures):
                # A cluster may grow; where a worker has ended, there is nothing left to do.
                if not any(future.done() for future in futures):
                    number = workers.asked or len(ask(client.nthreads))
                    futures += [start(worker) for worker in range(len(futures), number)]
                live.update(board(study, trials))
                time.sleep(POLL_SECONDS)
                print_ended(study, told, console)
                # A trial that kills its workers is given up by the study, not by Dask.
                for worker, future in enumerate(futures):
                    if future.status == "error" and isinstance(future.exception(), KilledWorker):
                        futures[worker] = start(worker)
            for future in futures:
                result_of(future)
            print_ended(study, told, console)
    except KeyboardInterrupt:
        with contextlib.suppress(optuna.exceptions.OptunaError):
            stop(study, command)
        raise


def _wait_for_a_worker(client: Any, console: Console) -> None:
    """Those of a cluster may start later than the command."""
    if not ask(client.nthreads):
        console.out(NO_WORKER)
        ask(lambda: client.wait_for_workers(1))


def print_ended(study: optuna.Study, told: set[int], console: Console) -> None:
    """A line for each trial that ended and is not in `told`; on a terminal, where the board tells
    of the others, for failed ones alone.
    """
    ended = trials_of(study, *ENDED, TrialState.FAIL)
    best = best_of(ended)
    best_so_far = "" if best is None else f"; best so far {best.value:.4f}"
    for trial in ended:
        failed = trial.state == TrialState.FAIL
        unneeded = trial.user_attrs.get("reason") == NOT_NEEDED
        if trial.number not in told and not unneeded and (failed or not console.is_terminal):
            line = f"trial {trial.number} {outcome(trial)}{best_so_far}"
            console.out(line)
        told.add(trial.number)


LESS = "fewer --workers leave more to each, and the same command continues"


def outcome(trial: FrozenTrial) -> str:
    """What became of a trial that ended: its value, or why it has none."""
    if trial.state == TrialState.COMPLETE:
        return f"complete: {trial.value:.4f}"
    reason = trial.user_attrs.get("reason", "no reason was stored").splitlines()[0]
    if is_lost(trial):
        deaths = 1 + len(RetryHeartbeatStaleTrialCallback.retry_history(trial))
        reason = f"{deaths} workers died of it, perhaps for want of memory; {LESS}"
    return f"{'failed' if trial.state == TrialState.FAIL else 'pruned'}: {reason}"


def board(study: optuna.Study, trials: int) -> Group:
    """A bar over the trials, counts of their states, the best value beside the published one."""
    progress = Progress(TextColumn("trials"), BarColumn(), MofNCompleteColumn())
    progress.add_task("", total=trials, completed=min(count(study, *ENDED), trials))
    counts = Table("complete", "pruned", "failed", "running")
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING)
    counts.add_row(*(str(count(study, state)) for state in states))
    values = Table("", "value", "trial", "parameters")
    for label, trial in (("published", published_trial(study)), ("best", best_trial(study))):
        if trial is not None:
            pruned = trial.value is None or trial.state == TrialState.PRUNED
            value = "pruned" if pruned else f"{trial.value:.4f}"
            values.add_row(label, value, str(trial.number), in_one_line(trial.params))
    return Group(counts, values, progress)


def in_one_line(parameters: dict[str, Any]) -> str:
    """Of a trial."""
    return ", ".join(f"{name} {written(value)}" for name, value in parameters.items())
