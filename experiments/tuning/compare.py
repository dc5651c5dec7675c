"""`python -m experiments compare`: published hyperparameters against the best found."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virl_tf.persistence.configuration import versions
from virl_tf.persistence.files import write_text
from virl_tf.validation import InputError, check_choice
from virl_tf.yaml_files import read_yaml, to_yaml

import numpy as np
import optuna
import pandas as pd

from experiments.result_files import FAILED, further_values, to_markdown
from experiments.result_statistics import bounded, differences, lost, sign_flip_test, with_interval
from experiments.screen import screen
from experiments.specification import (
    column_name,
    parse_assignment,
    parse_seeds,
    published_column,
    tuned_file,
)
from experiments.sweeps.sweep import Workers, execute_sweep, records_of
from experiments.sweeps.sweep_command import check_all_worked, print_left
from experiments.sweeps.units import RunUnit
from experiments.tasks import describe
from experiments.tuning.importances import SEEDS, importances_of
from experiments.tuning.space import searched, suggest, to_parameters, written
from experiments.tuning.specification import (
    PRESETS,
    Studies,
    StudySpecification,
    without_password,
)
from experiments.tuning.storage import stored_study
from experiments.tuning.study import MADE_BY, check_same, objective_value
from experiments.tuning.study_folder import check_no_sweep
from experiments.tuning.trials import ENDED, best_trial, count, trials_of

CANDIDATES = ("published", "found")
UNBEATEN = "published was not beaten"
SCORES = (
    "Objective on fresh seeds: mean, from 5 seeds on with its 95 % bootstrap interval; lower is "
    "better; p: one-sided, that found is not lower"
)
IMPORTANCES = (
    "Importance of each hyperparameter in its study (fANOVA, normalised to add up to 1), mean and "
    f"standard deviation over {len(SEEDS)} forests"
)
FEWEST_FOR_IMPORTANCES = 8  # complete trials


@dataclass(frozen=True)
class Column:
    """A column of Table 2 or 3 with its study."""

    name: str
    spec: StudySpecification
    study: optuna.Study
    best: optuna.trial.FrozenTrial
    overrides: dict[str, dict[str, dict[str, Any]]]  # candidate -> section -> key -> value
    unbeaten: bool  # the published values are those of the best trial

    @property
    def candidates(self) -> tuple[str, ...]:
        """Those to run: the same values need not be run twice."""
        return CANDIDATES[:1] if self.unbeaten else CANDIDATES


def compare(
    studies: Studies,
    seeds: str | None,
    workers: Workers,
    write: bool,
    out: Path | None,
    budget: str | None = None,
) -> None:
    """Run published and found values of every column that has a study.

    Writes compare.md, the CSV files and compare.png into `out`.

    Args:
        budget: the runs' preset; None: that of the studies.

    Raises:
        InputError: no study of this task there, no such budget, seeds that tuning saw, the folder
            of a sweep, or runs that failed.
    """
    console, task = screen(), studies.task
    columns, units, out = _planned(studies, seeds, out, budget)
    out.mkdir(parents=True, exist_ok=True)
    console.out(_size_line(columns, units, out))
    failures = execute_sweep(units, out, workers, console)
    if len(failures) == len(units):
        check_all_worked(failures, units, out)
    records = records_of(units, out)
    rows = [
        _outcome(unit, records[unit.name].summaries["."]) if unit.name in records else _lost(unit)
        for unit in units
    ]
    values = pd.DataFrame(rows)
    report = write_report(columns, values, out)
    if write and failures:  # done again they may decide otherwise
        console.out("nothing is stored until the runs that failed are done")
    elif write:
        better = [column for column in columns if _found_is_better(column, values)]
        names = ", ".join(column.name for column in better)
        said = "what was found is better for no column on these seeds: nothing is stored"
        if better:
            said = f"wrote {names} to {write_tuned(task, better)}; use it with --hparams tuned"
        console.out(said)
    console.out(report)
    check_all_worked(failures, units, out)


def preview(
    studies: Studies,
    seeds: str | None,
    workers: Workers,
    out: Path | None,
    budget: str | None = None,
) -> None:
    """Say how many runs there are, how many are finished, and how long the rest will take.

    Nothing is done or written.

    Raises:
        InputError: as `compare`.
    """
    columns, units, out = _planned(studies, seeds, out, budget)
    print_left(_size_line(columns, units, out), units, workers, out)


def _planned(
    studies: Studies, seeds: str | None, out: Path | None, budget: str | None
) -> tuple[list[Column], list[RunUnit], Path]:
    """The columns, their runs, and the folder. Raises InputError as `compare`."""
    fresh = parse_seeds(seeds) or [100, 101, 102]
    columns = find_columns(studies)
    for column in columns:
        seen = sorted(set(fresh) & set(column.spec.seeds))
        if seen:
            text = f"tuning of {column.name} saw these seeds; give fresh ones."
            raise InputError(f"--seeds {seen}: {text}")
    spec = columns[0].spec
    preset = budget or spec.preset
    check_choice("--budget", preset, PRESETS)  # `best` has not all of the published column
    runs = {column.name: dataclasses.replace(column.spec, preset=preset) for column in columns}
    units = [
        RunUnit(
            runs[column.name].run(seed, column.overrides[candidate]),
            0,
            prefix=f"{candidate}-",
            row=f"{column.name} {candidate}",
            label=candidate,
        )
        for column in columns
        for candidate in column.candidates
        for seed in fresh
    ]
    size = f"{spec.description.size_letter}{spec.size}"
    out = out or Path("comparisons") / f"{studies.task}-{size}-{preset}"
    check_no_sweep(out)
    return columns, units, out


def _size_line(columns: Sequence[Column], units: Sequence[RunUnit], out: Path) -> str:
    plural = "s" if len(columns) > 1 else ""
    names = ", ".join(column.name for column in columns)
    return f"{len(units)} runs of the published column{plural} {names} and what was found, in {out}"


def _outcome(unit: RunUnit, summary: Mapping[str, Any]) -> dict[str, Any]:
    """A row of values.csv: the objective, and what else a run of the task measures."""
    row = _row(unit, objective_value(summary), summary["status"])
    row["cpu_seconds"] = summary["cpu_seconds"]["process"]
    return row | further_values(unit.spec.description, summary, "training")


def _lost(unit: RunUnit) -> dict[str, Any]:
    """The row of a run that failed: without one it would not count against its values."""
    return _row(unit, math.nan, FAILED)


def _row(unit: RunUnit, value: float, status: str) -> dict[str, Any]:
    spec = unit.spec
    return {
        "column": column_name(spec.task, spec.method, spec.components),
        "candidate": unit.label,
        "seed": spec.seed,
        "value": value,
        "status": status,
    }


def find_columns(studies: Studies) -> list[Column]:
    """The columns of a task that have a study with a complete trial.

    Raises InputError if none has, or one is of another space than Table 1 has now.
    """
    task, columns = studies.task, []
    for method, components in describe(task).compared:
        study = find_study(studies, (method, components))
        best = best_trial(study) if study is not None else None
        if study is None or best is None:
            continue
        spec = specification_of(study)
        check_same(study, spec)  # else its best point has no place in Table 1, or not all of it
        rows = searched(task, method, components)
        published = {
            section: {key: value for key, value in keys.items() if f"{section}.{key}" in rows}
            for section, keys in published_column(task, method, components).items()
        }
        found = suggest(optuna.trial.FixedTrial(best.params), rows)  # type: ignore[arg-type]
        overrides = {"published": published, "found": found}
        unbeaten = same_parameters(to_parameters(published, rows), best.params)
        name = column_name(task, method, components)
        columns.append(Column(name, spec, study, best, overrides, unbeaten))
    if not columns:
        where = without_password(studies.storage or "studies/")
        command = studies.command(describe(task).compared[0])
        raise InputError(
            f"no study of {task} with a complete trial in {where}; make one: {command}"
        )
    return columns


def same_parameters(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two trials' parameters are equal but for rounding.

    Powers of two are parameters by their exponent: the published 5.96e-08 is 2^-24.
    """
    return one.keys() == other.keys() and all(
        math.isclose(value, other[name], rel_tol=1e-6) for name, value in one.items()
    )


def find_study(studies: Studies, column: tuple[str, int]) -> optuna.Study | None:
    """The study of `tune` with the same arguments, or None; another program's is none."""
    name, url = studies.specification(column).name, studies.url(column)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = None if url is None else stored_study(name, url)
    return study if study is not None and "specification" in study.user_attrs else None


def specification_of(study: optuna.Study) -> StudySpecification:
    """What the study was made with."""
    fields = [field.name for field in dataclasses.fields(StudySpecification)]
    stored = {name: study.user_attrs["specification"][name] for name in fields}
    lists = {name: tuple(stored[name]) for name in ("seeds", "assignments")}
    return StudySpecification(**{**stored, **lists})


# --- report ---------------------------------------------------------------------------------------


def write_report(columns: Sequence[Column], values: pd.DataFrame, out: Path) -> str:
    """values.csv, hyperparameters.csv, importances.csv, compare.md, which is returned, and
    compare.png.
    """
    hyperparameters = pd.DataFrame([row for column in columns for row in _side_by_side(column)])
    scores = pd.DataFrame([_score(column, values) for column in columns])
    importances = pd.DataFrame([row for column in columns for row in _importances(column)])
    write_text(out / "values.csv", values.to_csv(index=False))
    write_text(out / "hyperparameters.csv", hyperparameters.to_csv(index=False))
    write_text(out / "importances.csv", importances.to_csv(index=False))
    text = f"{SCORES}.\n\n{to_markdown(scores)}"
    text += f"\nHyperparameters:\n\n{to_markdown(hyperparameters)}"
    if len(importances):
        text += f"\n{IMPORTANCES}:\n\n{to_markdown(importances)}"
    write_text(out / "compare.md", text)
    from experiments.figures.comparison import draw_comparison

    draw_comparison(values, importances, out)
    return text


def _side_by_side(column: Column) -> list[dict[str, Any]]:
    published, found = (column.overrides[candidate] for candidate in CANDIDATES)
    names = ("column", "hyperparameter", *CANDIDATES)
    values = [
        (f"{s}.{k}", published[s][k], v) for s, keys in found.items() for k, v in keys.items()
    ]
    rows = [(column.name, name, written(old), written(new)) for name, old, new in values]
    return [dict(zip(names, row, strict=True)) for row in rows]


def _score(column: Column, values: pd.DataFrame) -> dict[str, Any]:
    row: dict[str, Any] = {"column": column.name}
    parts = _by_seed(column, values)
    for candidate, chosen in parts.items():
        v = chosen["value"].to_numpy(float)
        failed = (chosen["status"] == FAILED).all()
        row[candidate] = FAILED if failed else with_interval(v, "{:.4f}".format)
        row[f"{candidate} diverged"] = str(int(lost(chosen, "value").sum()))
    if column.unbeaten:
        row |= {"found": UNBEATEN, "found diverged": "-", "found lower in": "-", "p": "-"}
    else:
        d = _found_less_published(parts)
        row["found lower in"] = f"{int((d < 0.0).sum())} of {len(d)}"
        row["p"] = f"{sign_flip_test(d):.2g}" if len(d) else "-"
    row["trials"] = str(count(column.study, *ENDED))
    row["found in tuning"] = f"{column.best.value:.4f}"
    return row


def _by_seed(column: Column, values: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Each candidate's runs of a column, by seed."""
    own = values[values["column"] == column.name].sort_values("seed").set_index("seed")
    return {name: own[own["candidate"] == name] for name in column.candidates}


def _found_less_published(parts: Mapping[str, pd.DataFrame]) -> np.ndarray:
    """`differences` of the objective on the seeds that both have.

    A run that diverged is lost whatever its value, as in a study, which prunes it.
    """
    values = [parts[name]["value"].mask(lost(parts[name], "value")) for name in CANDIDATES]
    published, found = pd.concat(values, axis=1, join="inner").to_numpy(float).T
    return differences(found, published)


def _importances(column: Column) -> list[dict[str, Any]]:
    complete = trials_of(column.study, optuna.trial.TrialState.COMPLETE)
    if len(complete) < FEWEST_FOR_IMPORTANCES or np.ptp([trial.value for trial in complete]) == 0.0:
        return []
    found = importances_of(column.study).dropna(subset="importance").reset_index()
    return [{"column": column.name, **row} for row in found.to_dict("records")]


def _found_is_better(column: Column, values: pd.DataFrame) -> bool:
    """Whether the mean over the seeds that both have is lower, and no run was lost that is not lost
    with the published values, too.
    """
    if column.unbeaten:
        return False
    d = _found_less_published(_by_seed(column, values))
    return len(d) > 0 and not np.isposinf(d).any() and bool(bounded(d).mean() < 0.0)


def _with_assignments(column: Column) -> dict[str, dict[str, Any]]:
    """What was found, and what was set for the study besides: the runs compared had both."""
    sections = [parse_assignment(text) for text in column.spec.assignments]
    values: dict[str, dict[str, Any]] = {}
    for section in (*sections, column.overrides[column.candidates[-1]]):
        for name, keys in section.items():
            values[name] = {**values.get(name, {}), **keys}
    return values


def write_tuned(task: str, columns: Sequence[Column]) -> Path:
    """hparams/tuned/<table>.yaml: the best values of each column, and where they come from.

    Columns that it has of other studies stay.
    """
    path = tuned_file(task)
    content: dict[str, Any] = {"columns": {}, "provenance": {}}
    if path.is_file():
        content = read_yaml(path)
    for column in columns:
        content["columns"][column.name] = _with_assignments(column)
        content["provenance"][column.name] = {
            "study": column.study.study_name,
            "trials": count(column.study, *ENDED),
            "trial": column.best.number,
            "value": column.best.value,
            "seeds": list(column.spec.seeds),
            "preset": column.spec.preset,
            "assignments": list(column.spec.assignments),
            # Of the study nobody knows them where it is older than the attribute.
            "versions": column.study.user_attrs.get(MADE_BY),
            "compared_with": {**versions(), "optuna": optuna.__version__},
        }
    path.parent.mkdir(exist_ok=True)
    found = f"# Found by `python -m experiments tune {task}`, written by `compare {task} --write`."
    write_text(path, f"{found} Loaded by --hparams tuned.\n{to_yaml(content)}")
    return path
