"""`python -m experiments sweep`: the units of a task, their execution, and the tidy table."""

import os
from pathlib import Path

from rich.console import Console

import virl_tf  # noqa: F401  (before anything that imports TensorFlow)
from experiments.result_files import table, to_markdown, write_results
from experiments.specification import DEFAULT_PRESETS, TASKS
from experiments.sweep import execute_sweep
from experiments.units import units_of
from virl_tf.checkpoint import write_text
from virl_tf.run_folder import RunFolder
from virl_tf.validation import InputError, check_choice, check_integer


def sweep(
    task: str,
    preset: str | None,
    *,
    modes: str | None,
    steps: str | None,
    seeds: str | None,
    scheduler: str | None,
    workers: int | None,
    search: bool = False,
    assignments: list[str],
    out: Path | None,
) -> None:
    """Do all units in `out`, then write results.csv and table.md.

    Failed units are reported at the end.

    Args:
        search: infer also with components that come and go; a finished sweep is completed by it.

    Raises:
        InputError: bad arguments, no such scheduler, an `out` of another sweep; or, at the end,
            units that failed.
    """
    console = Console()
    check_choice("task", task, TASKS)
    workers = check_integer(
        "--workers", workers if workers is not None else len(os.sched_getaffinity(0)), 1
    )
    preset = DEFAULT_PRESETS[task] if preset is None else preset
    out = out or Path("sweeps") / f"{task}-{preset}"
    if (steps if task == "gaussians" else modes) is not None:
        raise InputError(f"{'--steps' if task == 'gaussians' else '--modes'} is not for {task}.")
    sizes = parse_integers("--modes", modes) or parse_integers("--steps", steps)
    units = units_of(task, preset, assignments, sizes, parse_integers("--seeds", seeds), search)
    RunFolder.open(out, {"sweep": task, "preset": preset, "overrides": assignments})
    failures = execute_sweep(units, out, scheduler, workers, console)

    finished = [out / unit.name for unit in units if unit.finished(out / unit.name)]
    results = write_results(finished, out / "results.csv")
    means = table(results)
    write_text(out / "table.csv", means.to_csv(index=False))
    write_text(out / "table.md", to_markdown(means))
    console.print(
        f"{len(finished)} of {len(units)} units finished; {out / 'results.csv'}, {out / 'table.md'} and .csv"
    )
    write_text(
        out / "errors.txt", "".join(f"{name}\n{error}\n" for name, error in failures.items())
    )
    for name, error in failures.items():
        console.print(
            f"[red]FAILED[/red] {name}: {error.strip().splitlines()[-1]}", highlight=False
        )
    if failures:
        raise InputError(
            f"{len(failures)} of {len(units)} units failed (see {out / 'errors.txt'}); the same command tries again."
        )


def parse_integers(name: str, text: str | None) -> list[int] | None:
    """'5,20' -> [5, 20]; None stays None."""
    if text is None:
        return None
    try:
        return list(
            dict.fromkeys(int(part) for part in text.split(","))
        )  # each once, in the order given
    except ValueError as error:
        raise InputError(
            f"{name} must be integers with commas between them, for example 5,20,50; got {text!r}."
        ) from error
