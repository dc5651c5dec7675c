"""`python -m experiments sweep`: the units of a task, their execution, and the tidy table."""

from pathlib import Path

from virl_tf.persistence.files import write_text
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError

from rich.console import Console

from experiments.expected_time import sentence, times_of_units
from experiments.result_files import table, to_markdown, write_results
from experiments.sweep import Workers, execute_sweep
from experiments.units import ReferenceUnit, SweepRequest


def sweep(request: SweepRequest, workers: Workers, out: Path) -> None:
    """Do all units in `out`, then write results.csv and table.md; failed units come at the end.

    Raises:
        InputError: bad arguments, no such scheduler, an `out` of another sweep; or, at the end,
            units that failed.
    """
    console = Console()
    number = workers.local
    units = request.units()
    RunFolder.open(out, request.to_config())
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


def preview(request: SweepRequest, workers: Workers, out: Path) -> None:
    """Say how many units there are, how many are finished, and how long the rest will take.

    Nothing is done or written.

    Raises:
        InputError: as `sweep`.
    """
    console = Console(highlight=False, soft_wrap=True)
    number, units = workers.local, request.units()
    if (out / "config.yaml").is_file():
        RunFolder.open(out, request.to_config())
    left = [unit for unit in units if not unit.finished(out / unit.name)]
    references = sum(isinstance(unit, ReferenceUnit) for unit in left)
    done = len(units) - len(left)
    console.print(f"{len(units)} units in {out}: {done} done already, {len(left)} to do")
    console.print(sentence(times_of_units(left), number))
    if references:
        console.print(f"{references} units of references are not in this time")


def last_line(error: str) -> str:
    """Of a traceback: what went wrong."""
    return error.strip().splitlines()[-1]


def _write_tables(finished: list[Path], out: Path) -> None:
    """results.csv, table.csv and table.md."""
    means = table(write_results(finished, out / "results.csv"))
    write_text(out / "table.csv", means.to_csv(index=False))
    write_text(out / "table.md", to_markdown(means))
