"""`python -m experiments sweep`: the units of a task, their execution, and the tidy table."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from virl_tf.persistence.configuration import differences, numerics, versions
from virl_tf.persistence.files import write_text
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError
from virl_tf.yaml_files import to_yaml

import pandas as pd

from experiments.pooled_results import numerics_in
from experiments.records import FOLDER, find_records, read_record
from experiments.result_files import table_of, to_markdown
from experiments.result_statistics import table
from experiments.screen import counted, screen
from experiments.sweeps.ablations import AblationRequest
from experiments.sweeps.expected_time import sentence, times_of_units
from experiments.sweeps.sweep import ERRORS, Workers, execute_sweep, records_of
from experiments.sweeps.units import ReferenceUnit, SweepRequest, Unit
from experiments.tasks import describe


def sweep(request: SweepRequest, workers: Workers, out: Path) -> None:
    """Do all units in `out`, then write results.csv and table.md; failed units come at the end.

    Raises:
        InputError: bad arguments, no such scheduler, an `out` of another sweep, records that are
            not those of these units; or, at the end, units that failed.
    """
    console = screen()
    units = request.units()
    open_folder(units, request.to_config(), out)
    for package, text in describe(request.task).wanted_packages.items():
        if importlib.util.find_spec(package) is None:
            console.out(text)
    failures = execute_sweep(units, out, workers, console)
    finished = records_of(units, out)
    results = table_of(finished.values(), request.task)
    write_tables(results, table(results), out)
    shown = f"{out / 'results.csv'}, {out / 'table.md'} and .csv"
    console.out(f"{len(finished)} of {counted(len(units), 'unit')} finished; {shown}")
    check_all_worked(failures, units, out)


def open_folder(units: Sequence[Unit], config: Mapping[str, Any], out: Path) -> None:
    """The folder of units that `config` identifies, or of their records alone.

    Raises InputError as `records_of`, or for a folder of something else.
    """
    records_of(units, out)
    if not (out / "config.yaml").is_file() and find_records(out / FOLDER):
        _check_theirs(config, out)
        write_text(out / "config.yaml", to_yaml({"config": config, "versions": versions()}))
    RunFolder.open(out, config, of_runs=True)


def _check_theirs(config: Mapping[str, Any], out: Path) -> None:
    """Raises InputError for records of another task or preset, which no unit would ask for."""
    wanted = {"task": config.get("sweep", config.get("ablations"))}
    wanted |= {key: config[key] for key in ("preset",) if key in config}
    for file in find_records(out / FOLDER):
        record = read_record(file)
        said = {**record.stages["."].config, "task": record.summaries["."].get("task")}
        if other := differences({key: said.get(key) for key in wanted}, wanted):
            text = f"{out / FOLDER} holds records of something else ({file.name}: {other[0]})"
            raise InputError(f"{text}. Give another --out.")


def preview(request: SweepRequest | AblationRequest, workers: Workers, out: Path) -> None:
    """Say how many units there are, how many are finished, and how long the rest will take.

    Nothing is done or written; what kills have left behind is removed.

    Raises:
        InputError: as `sweep` or `ablate`.
    """
    units = request.units()
    if (out / "config.yaml").is_file():
        RunFolder.open(out, request.to_config(), of_runs=True)
    elif find_records(out / FOLDER):
        _check_theirs(request.to_config(), out)
    else:
        RunFolder.check(out, request.to_config())
    print_left(f"{counted(len(units), 'unit')} in {out}", units, workers, out)


def print_left(what: str, units: Sequence[Unit], workers: Workers, out: Path) -> None:
    """`what` there is, how many of the units are done, and how long the rest will take.

    Raises InputError as `records_of`.
    """
    console, finished = screen(), records_of(units, out)
    left = [unit for unit in units if unit.name not in finished]
    references = sum(isinstance(unit, ReferenceUnit) for unit in left)
    console.out(f"{what}: {len(finished)} done already, {len(left)} to do")
    console.out(sentence(times_of_units(left), workers.known))
    if references:
        console.out(f"not in this time: references, {references} of the units")


def check_all_worked(failures: Mapping[str, str], units: Sequence[Unit], out: Path) -> None:
    """Raises InputError where some failed, as `execute_sweep` returns them."""
    if failures:
        name, error = next(iter(failures.items()))
        first = error.strip().splitlines()[-1].rstrip(".")
        raise InputError(
            f"{len(failures)} of {len(units)} failed, the first, {name}, with {first}; see "
            f"{out / ERRORS}; the same command tries again."
        )


def write_tables(results: pd.DataFrame, means: pd.DataFrame, out: Path) -> None:
    """results.csv, table.csv and table.md, and in config.yaml the versions that made them: of the
    folder's records, which `records_of` has checked, and not those that opened the folder.
    """
    config = RunFolder(out).config
    preset, now = config.get("preset"), versions()
    if numerics_in(out, preset) != numerics(now, preset):
        write_text(out / "config.yaml", to_yaml({"config": config, "versions": now}))
    write_text(out / "results.csv", results.to_csv(index=False))
    write_text(out / "table.csv", means.to_csv(index=False))
    write_text(out / "table.md", to_markdown(means))
