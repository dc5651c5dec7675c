"""`python -m experiments sweep`: the units of a task, their execution, and the tidy table."""

from pathlib import Path
from typing import NamedTuple

from virl_tf.persistence.files import write_text
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError

from rich.console import Console

from experiments.result_files import table, to_markdown, write_results
from experiments.sweep import Workers, execute_sweep
from experiments.tasks import describe
from experiments.tasks.description import TaskDescription
from experiments.units import units_of


class SweepRequest(NamedTuple):
    """What a sweep is made of; None: as the preset has it.

    Attributes:
        modes, steps, seeds: integers with commas between them.
        search: infer also with components that come and go; a finished sweep is completed by it.
    """

    task: str
    preset: str | None
    modes: str | None
    steps: str | None
    seeds: str | None
    search: bool
    assignments: list[str]


def sweep(request: SweepRequest, workers: Workers, out: Path | None) -> None:
    """Do all units in `out`, then write results.csv and table.md; failed units come at the end.

    Raises:
        InputError: bad arguments, no such scheduler, an `out` of another sweep; or, at the end,
            units that failed.
    """
    console = Console()
    task, assignments = request.task, request.assignments
    description = describe(task)
    number = workers.local
    preset = description.default_preset if request.preset is None else request.preset
    out = out or Path("sweeps") / f"{task}-{preset}"
    sizes = _sizes(description, {"modes": request.modes, "steps": request.steps})
    seeds = parse_integers("--seeds", request.seeds)
    units = units_of(task, preset, assignments, sizes, seeds, request.search)
    RunFolder.open(out, {"sweep": task, "preset": preset, "overrides": assignments})
    failures = execute_sweep(units, out, workers.scheduler, number, console)
    finished = [out / unit.name for unit in units if unit.finished(out / unit.name)]
    _write_tables(finished, out)
    shown = f"{out / 'results.csv'}, {out / 'table.md'} and .csv"
    console.print(f"{len(finished)} of {len(units)} units finished; {shown}")
    errors = "".join(f"{name}\n{error}\n" for name, error in failures.items())
    write_text(out / "errors.txt", errors)
    for name, error in failures.items():
        console.print(f"[red]FAILED[/red] {name}: {last_line(error)}", highlight=False)
    if failures:
        raise InputError(
            f"{len(failures)} of {len(units)} units failed (see {out / 'errors.txt'}); "
            "the same command tries again."
        )


def last_line(error: str) -> str:
    """Of a traceback: what went wrong."""
    return error.strip().splitlines()[-1]


def _sizes(description: TaskDescription, given: dict[str, str | None]) -> list[int] | None:
    """The sizes asked for with the option that is the task's."""
    for option, text in given.items():
        if option != description.size_option and text is not None:
            raise InputError(f"--{option} is not for {description.name}.")
    return parse_integers(f"--{description.size_option}", given[description.size_option])


def _write_tables(finished: list[Path], out: Path) -> None:
    """results.csv, table.csv and table.md."""
    means = table(write_results(finished, out / "results.csv"))
    write_text(out / "table.csv", means.to_csv(index=False))
    write_text(out / "table.md", to_markdown(means))


def parse_integers(name: str, text: str | None) -> list[int] | None:
    """'5,20' -> [5, 20]; None stays None."""
    if text is None:
        return None
    try:
        each_once = dict.fromkeys(int(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(
            f"{name} must be integers with commas between them, for example 5,20,50; got {text!r}."
        ) from error
    return list(each_once)
