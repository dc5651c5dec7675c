"""`python -m experiments tune`: workers on one study, here or on other machines, and what they
found so far on the screen.
"""

import contextlib
import os
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
from experiments.sweep import cluster, submit
from experiments.sweep_command import parse_integers
from experiments.tuning.study import (
    ENDED,
    POLL_SECONDS,
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
    task: str,
    method: str,
    components: int,
    *,
    trials: int,
    size: int | None,
    preset: str | None,
    seeds: str | None,
    assignments: list[str],
    storage: str | None,
    scheduler: str | None,
    workers: int | None,
    out: Path | None,
) -> None:
    """Do trials until `trials` of the study are complete or pruned, then print and write what was
    found.

    Raises:
        InputError: bad arguments, a storage that cannot be used, another study of this name, or
            trials that only fail.
    """
    console = Console()
    description = tasks.describe(task)
    check_choice("method", method, METHODS)
    check_integer("--trials", trials, 1)
    if workers is not None:
        check_integer("--workers", workers, 1)
    chosen = tuple(parse_integers("--seeds", seeds) or (0,))
    spec = StudySpecification(
        task=task,
        method=method,
        components=components,
        size=description.default_size if size is None else size,
        preset=description.default_preset if preset is None else preset,
        seeds=chosen,
        assignments=tuple(assignments),
    )
    check_integer("--size", spec.size, 1)
    for seed in chosen:
        spec.run(seed, {})  # everything about the runs is checked before a database is touched
    out = out or Path("studies") / spec.name
    url = storage or f"sqlite:///{out.absolute()}/study.db"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = open_study(spec, open_storage(url))

    try:
        if count(study, *ENDED) < trials:
            console.print(f"[bold]{spec.name}[/bold] in {url}; runs in {out}", highlight=False)
            _work_together(spec, study, url, trials, out, scheduler, workers, console)
    except optuna.exceptions.StorageInternalError as error:
        raise InputError(
            f"--storage {url} does not answer any more ({reason_of(error)}); what was done is "
            "kept, the same command continues."
        ) from error
    _report(study, trials, out, console)
    console.print(f"trials: {out / 'trials.csv'}   database: {url}", highlight=False)
    if count(study, *ENDED) < trials:
        raise InputError(
            "the study was given up after too many failed trials in a row; the last: "
            f"{_last_failure(study)}"
        )


def _report(study: optuna.Study, trials: int, out: Path, console: Console) -> None:
    """trials.csv, and what was found on the screen."""
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "trials.csv", study.trials_dataframe(attrs=_COLUMNS).to_csv(index=False))
    console.print(board(study, trials))


def _last_failure(study: optuna.Study) -> str:
    failed = study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
    reasons = [trial.user_attrs["reason"] for trial in failed if "traceback" in trial.user_attrs]
    return reasons[-1] if reasons else "no trial ran"


_COLUMNS = (
    "number",
    "state",
    "value",
    "datetime_start",
    "datetime_complete",
    "params",
    "user_attrs",
)


def _work_together(
    spec: StudySpecification,
    study: optuna.Study,
    url: str,
    trials: int,
    out: Path,
    scheduler: str | None,
    workers: int | None,
    console: Console,
) -> None:
    command = uuid.uuid4().hex
    try:
        local = workers or len(os.sched_getaffinity(0))
        with (
            cluster(scheduler, local) as client,
            Live(console=console, refresh_per_second=1) as live,
        ):
            from distributed import KilledWorker

            def start(worker: int) -> Any:
                folder = (out / "trials").absolute()
                arguments = (spec, url, trials, folder, worker, command)
                return submit(client, work, *arguments, pure=False)

            futures = [start(worker) for worker in range(workers or len(client.nthreads()))]
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
    """A bar over the trials, the counts of their states, and the best value beside the published
    column's.
    """
    progress = Progress(TextColumn("trials"), BarColumn(), MofNCompleteColumn())
    progress.add_task("", total=trials, completed=min(count(study, *ENDED), trials))
    counts = Table("complete", "pruned", "failed", "running")
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING)
    counts.add_row(*(str(count(study, state)) for state in states))
    values = Table("", "value", "trial", "parameters")
    for label, trial in (("published", published_trial(study)), ("best", best_trial(study))):
        if trial is not None:
            value = (
                "pruned"
                if trial.value is None or trial.state == TrialState.PRUNED
                else f"{trial.value:.4f}"
            )
            values.add_row(label, value, str(trial.number), describe(trial.params))
    return Group(counts, values, progress)


def describe(parameters: dict[str, Any]) -> str:
    """Parameters in one line."""
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in parameters.items()
    )
