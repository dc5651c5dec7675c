"""`python -m experiments ablate`: the preset `best` and what each of its parts gives and costs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.records import ABLATION, Record
from experiments.result_files import TARGET, columns_of, reading, rows_of
from experiments.result_statistics import lost, with_interval, without_value
from experiments.screen import counted, screen
from experiments.sweeps.ablations import AblationRequest
from experiments.sweeps.sweep import Workers, execute_sweep, records_of
from experiments.sweeps.sweep_command import check_all_worked, open_folder, write_tables

AWAY = ("far_share", "off_grid_share")  # mass of the recovered density off the demonstrations
MEASURED = ("reported", "kl", "modes_covered", "good_fraction", "reward_correlation")
SHOWN = (*MEASURED, "collision_share", *AWAY, "effective_share", "iterations", "cpu_seconds")


def ablate(request: AblationRequest, workers: Workers, out: Path) -> None:
    """Do all units in `out`, then write results.csv, table.csv and table.md.

    What is finished is skipped.

    Raises:
        InputError: no such scheduler, an `out` of something else; or, at the end, units that
            failed.
    """
    console, units = screen(), request.units()
    open_folder(units, request.to_config(), out)
    failures = execute_sweep(units, out, workers, console)

    records = records_of(units, out)
    finished = [unit for unit in units if unit.name in records]
    rows = [
        {"ablation": unit.label, **row} for unit in finished for row in _rows(records[unit.name])
    ]
    columns = ["ablation", *columns_of(request.task), "iterations", "effective_share", *AWAY]
    results = pd.DataFrame(rows, columns=columns)
    write_tables(results, table(results), out)
    shown = f"{out / 'results.csv'}, {out / 'table.md'}"
    console.out(f"{len(units) - len(failures)} of {counted(len(units), 'unit')} finished; {shown}")
    check_all_worked(failures, units, out)


def table(results: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds [95 % bootstrap interval] of each measure by ablation, size and stage.

    A measure of which lost runs have no value has no mean: one of the others would be too good.
    """
    rows = []
    keys = ["ablation", "task", "modes", "stage"]
    for key, group in results.groupby(keys, sort=False):
        row: dict[str, Any] = dict(zip(keys, key, strict=True))
        row |= {"seeds": len(group), "diverged": int(lost(group).sum())}
        for name in SHOWN:
            if name in group and group[name].notna().any() and not without_value(group, name):
                row[name] = with_interval(group[name].dropna().to_numpy(float), "{:.4g}".format)
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def _rows(record: Record) -> Iterator[dict[str, Any]]:
    """Of results.csv, with what only ablations have; of `best` also the references."""
    with reading(record.path):
        rows, summary = rows_of(record.summaries, record.path), record.summaries["."]
        found = json.loads(record.files[ABLATION])
        effective = summary["effective_sample_size"]
        of_training = {
            "iterations": summary["num_iterations"],
            # Of the importance weights, over the iterations.
            "effective_share": effective["mean"] / effective["of"],
            **{name: found[name] for name in AWAY if name in found},
        }
        for row in rows:
            yield {**row, **(of_training if row["stage"] == "training" else {})}
        if "references" in found:
            key = {name: summary[name] for name in TARGET}
            of_run = {
                name: {"reported": measured["reported"]}
                for name, measured in summary.get("i_projection", {}).items()
                if name not in ("reward", "policy")
            }
            for name, values in {**of_run, **found["references"]}.items():
                stage = f"reference {name}"
                yield {**key, "stage": stage, "method": name, **values, "status": "finished"}
