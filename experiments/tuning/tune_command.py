"""`python -m experiments tune`: workers on one study, and what they found so far on the screen."""

import contextlib
import time
import uuid
from pathlib import Path
from typing import Any

from virl_tf.methods import METHODS
from virl_tf.persistence.files import write_text
from virl_tf.validation import InputError, check_choice, check_integer

import optuna
from optuna.trial import TrialState
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from experiments import tasks
from experiments.sweep import Workers, cluster, submit
from experiments.sweep_command import parse_integers
from experiments.tuning.study import (
    ENDED,
    POLL_SECONDS,
    Studies,
    StudySpecification,
    best_trial,
    count,
    open_storage,
    open_study,
    published_trial,
    reason_of,
    stop,
    work,
)


def tune(
    studies: Studies,
    column: tuple[str, int],
    trials: int,
    seeds: str | None,
    assignments: list[str],
    workers: Workers,
    out: Path | None,
) -> None:
    """Do trials until `trials` are complete or pruned, then print and write what was found.

    Args:
        column: method and components.

    Raises:
        InputError: bad arguments, a storage that cannot be used, another study of this name, or
            trials that only fail.
    """
    console = Console()
    tasks.describe(studies.task)
    check_choice("method", column[0], METHODS)
    check_integer("--trials", trials, 1)
    if workers.asked is not None:
        check_integer("--workers", workers.asked, 1)
    chosen = parse_integers("--seeds", seeds) or [0]
    spec = studies.specification(column, chosen, assignments)
    check_integer("--size", spec.size, 1)
    for seed in chosen:
        spec.run(seed, {})  # everything about the runs is checked before a database is touched
    out = out or Path("studies") / spec.name
    url = studies.storage or f"sqlite:///{out.absolute()}/study.db"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = open_study(spec, open_storage(url))

    try:
        if count(study, *ENDED) < trials:
            console.print(f"[bold]{spec.name}[/bold] in {url}; runs in {out}", highlight=False)
            arguments = (spec, url, trials, (out / "trials").absolute())
            _work_together(study, arguments, workers, console)
    except optuna.exceptions.StorageInternalError as error:
        text = f"--storage {url} does not answer any more ({reason_of(error)})"
        raise InputError(f"{text}; what was done is kept, the same command continues.") from error
    _report(study, trials, out, console)
    console.print(f"trials: {out / 'trials.csv'}   database: {url}", highlight=False)
    if count(study, *ENDED) < trials:
        text = "the study was given up after too many failed trials in a row"
        raise InputError(f"{text}; the last: {_last_failure(study)}")


TIMES = ("datetime_start", "datetime_complete")
COLUMNS = ("number", "state", "value", *TIMES, "params", "user_attrs")


def _report(study: optuna.Study, trials: int, out: Path, console: Console) -> None:
    """trials.csv, and what was found on the screen."""
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "trials.csv", study.trials_dataframe(attrs=COLUMNS).to_csv(index=False))
    console.print(board(study, trials))


def _last_failure(study: optuna.Study) -> str:
    failed = study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
    reasons = [trial.user_attrs["reason"] for trial in failed if "traceback" in trial.user_attrs]
    return reasons[-1] if reasons else "no trial ran"


def _work_together(
    study: optuna.Study,
    arguments: tuple[StudySpecification, str, int, Path],
    workers: Workers,
    console: Console,
) -> None:
    """Have all workers call `work` with these arguments, and show how far the study is."""
    command, trials = uuid.uuid4().hex, arguments[2]

    def start(worker: int) -> Any:
        return submit(client, work, *arguments, worker, command, pure=False)

    try:
        with (
            cluster(workers.scheduler, workers.local) as client,
            Live(console=console, refresh_per_second=1) as live,
        ):
            from distributed import KilledWorker

            futures = [start(worker) for worker in range(workers.asked or len(client.nthreads()))]
            while not all(future.done() for future in futures):
                live.update(board(study, trials))
                time.sleep(POLL_SECONDS)
                # A trial that kills its workers is given up by the study, not by Dask.
                for worker, future in enumerate(futures):
                    if future.status == "error" and isinstance(future.exception(), KilledWorker):
                        futures[worker] = start(worker)
            for future in futures:
                future.result()
    except KeyboardInterrupt:
        with contextlib.suppress(optuna.exceptions.OptunaError):
            stop(study, command)
        raise


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
            values.add_row(label, value, str(trial.number), describe(trial.params))
    return Group(counts, values, progress)


def describe(parameters: dict[str, Any]) -> str:
    """Parameters in one line."""
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in parameters.items()
    )
