"""Result files: what a run's summary says, and the tidy table of a sweep."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from virl_tf.persistence.files import read_csv, read_json, write_text
from virl_tf.validation import InputError, reason

import numpy as np
import pandas as pd

from experiments.records import Record
from experiments.tasks import describe
from experiments.tasks.description import TaskDescription

RUN = ["task", "method", "components", "modes", "seed", "preset", "stage"]  # what identifies a row
TARGET = ("task", "modes", "seed", "preset")  # ... and one of references
COLUMNS = [*RUN, "best", "final", "reported", "cpu_seconds", "status"]
DIVERGED, FAILED = "diverged", "failed"  # of the column `status`; failed: without any values


def columns_of(task: str) -> list[str]:
    """The columns of a task's results.csv."""
    return [*COLUMNS, *describe(task).columns]


def table_so_far(path: Path, columns: list[str], label: str) -> pd.DataFrame:
    """A table that a command adds rows to, without any if it is not there yet.

    Args:
        path: its stem is the command's name.
        columns: the first ones.
        label: the one of them that holds text.

    Raises:
        InputError: it is damaged, or another table.
    """
    if not path.is_file():
        return pd.DataFrame(columns=columns)
    try:
        table = read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {reason(error)}.") from error
    numbers = table.drop(columns=label, errors="ignore").select_dtypes("number")
    same = list(table.columns[: len(columns)]) == columns
    if not same or len(numbers.columns) < len(table.columns) - 1:
        raise InputError(f"{path} is not a table of {path.stem}; remove it, and it is made anew.")
    return table


def append_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], columns: list[str], source: str
) -> None:
    """Put rows behind those of a table, whose bytes and order of columns stay as they are.

    Args:
        columns: the first ones.
        source: what named the others, for messages.

    Raises:
        InputError: it named others before.
    """
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    given = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    header = list(pd.read_csv(path, nrows=0).columns) if before else given
    if set(header) != set(given):
        new, old = (", ".join(map(repr, found[len(columns) :])) for found in (given, header))
        raise InputError(f"{source} names {new}, but {path} has {old}; they must be the same.")
    frame = pd.DataFrame(rows, columns=header)
    write_text(path, before + frame.to_csv(index=False, header=not before, lineterminator="\n"))


def read_summary(folder: Path) -> dict[str, Any]:
    """A folder's summary.json. Raises InputError if it is missing or damaged."""
    path = folder / "summary.json"
    if not path.exists():
        text = "it is not a finished run. Run its command to the end first."
        if runs := sorted(folder.glob("runs/*/reward.keras")):
            text = f"it is not a run, but holds some; give one of them, such as {runs[0].parent}."
        raise InputError(f"{folder} has no summary.json: {text}")
    return read_json(path)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around what takes values out of a result file: raises InputError if it is another's file."""
    try:
        yield
    except InputError as error:
        if str(path.parent) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        wrong = f"{type(error).__name__}: {reason(error)}"
        raise InputError(f"{path} is not as its command writes it ({wrong}).") from error


def value_at(summary: Any, *places: str) -> Any:
    """The value at a place with dots, e.g. contrast.unexplored_random.auc, or None.

    Of several places: the first value there is.
    """
    for place in places:
        value = summary
        for key in place.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def rewards_of(runs: Sequence[Path]) -> list[str]:
    """What tells the rewards of runs from others."""
    files = [run / "reward.keras" for run in runs if (run / "reward.keras").is_file()]
    return [hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files]


def check_same_task(runs: list[Path]) -> None:
    """Raises InputError unless all runs are finished and on the same target."""
    tasks = []
    for run in runs:
        summary = read_summary(run)
        with reading(run / "summary.json"):
            tasks.append(_target_of(run, summary))
    for run, task in zip(runs, tasks, strict=True):
        if task != tasks[0]:
            text = "give runs on one task (of the Gaussians: with one --task-seed)."
            raise InputError(f"{run} has the task {task}, but {runs[0]} has {tasks[0]}; {text}")


def _target_of(run: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What is equal for runs on one target, or for fits to the same demonstrations."""
    if "task" in summary:
        keys = ("task", *describe(summary["task"]).same_target)
        return {key: summary.get(key) for key in keys}
    found = value_at(summary, "demonstrations.sha256")
    if found is None:
        raise InputError(f"{run / 'summary.json'} is neither a run's nor a fit's.")
    # The same numbers mean something else as contexts, or as angles, which are moved into a turn.
    turns = value_at(summary, "demonstrations.domain.period") or []
    told = {"contexts": value_at(summary, "demonstrations.contexts")}
    told |= {"turns": turns if any(float(turn) for turn in turns) else None}
    return {"demonstrations": found, **{k: v for k, v in told.items() if v is not None}}


def rows_of(summaries: Mapping[str, dict[str, Any]], where: Path) -> list[dict[str, Any]]:
    """The rows of results.csv that one unit of a sweep gives.

    Stages: `training` is the recovered reward (of walks, the policy it was recovered with),
    `training_policy` its policy, `inference` and what else the task infers the new policy on the
    reward (`..._search`: with components that come and go), `reference` a density that is no method
    of the paper's.

    Args:
        summaries: of the run, ".", and of the inferences on its reward, as a `Record` has them.
        where: what an error names.
    """
    with reading(where):
        description = describe(summaries["."]["task"])
        if "method" in summaries["."]:
            return [*_rows_of_run(description, summaries)]
        return [*_rows_of_references(description, summaries["."])]


def _rows_of_references(
    description: TaskDescription, summary: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    key = {name: summary[name] for name in TARGET}
    key |= {"components": 0, "stage": "reference", "status": "finished"}
    for name, value in summary["i_projection"].items():
        row = {**key, "method": name, "best": value, "final": value, "reported": value}
        yield row | further_values(description, summary, name)


def _rows_of_run(
    description: TaskDescription, summaries: Mapping[str, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    summary = summaries["."]
    key = {name: summary[name] for name in RUN if name != "stage"}
    of_run = {"cpu_seconds": summary["cpu_seconds"]["process"], "status": summary["status"]}
    for stage, place in description.training_places.items():
        row = {**key, "stage": stage, **value_at(summary, place), **of_run}
        yield row | further_values(description, summary, stage)
    for stage, own in _inferred(description, summaries):
        values = value_at(own, description.inference_place)
        # Of a walk: it is not finite, if none is in the support.
        status = "finished" if np.isfinite(values["final"]) else DIVERGED
        row = {**key, "stage": stage, **values}
        row |= {"cpu_seconds": own["cpu_seconds"], "status": status}
        yield row | further_values(description, own, stage)


def _inferred(
    description: TaskDescription, summaries: Mapping[str, dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(stage, summary) of each inference on a run's reward.

    A folder that `infer` made is called after the stage alone, whether it searched or not, and may
    be of the average of several runs, which is none of this one's results.
    """
    for kind in ("", "_search"):
        for stage in description.inference_stages:
            own = summaries.get(f"{stage}{kind}")
            if own is not None and len(own.get("runs", ())) <= 1:
                yield f"{stage}_search" if own.get("search", kind) else stage, own


def further_values(
    description: TaskDescription, summary: Mapping[str, Any], stage: str
) -> dict[str, Any]:
    """The task's further columns, as far as there are values for them."""
    found = {
        name: value_at(summary, *(place.format(stage=stage) for place in places))
        for name, places in description.columns.items()
    }
    return {name: value for name, value in found.items() if value is not None}


TEXT = ("ablation", "task", "method", "preset", "stage", "status")  # all other columns hold numbers


def read_table(file: Path) -> pd.DataFrame:
    """A results.csv. Raises InputError if it is damaged."""
    try:
        frame = pd.read_csv(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {reason(error)}.") from error
    # Where there are no rows, pandas takes all columns for text.
    numbers = frame[[name for name in frame if name not in TEXT and len(frame)]]
    wrong = [name for name in numbers if not pd.api.types.is_numeric_dtype(numbers[name])]
    if wrong:
        raise InputError(f"{file} is damaged: its column {wrong[0]!r:.40} holds text.")
    told = frame[[name for name in ("task", "status") if name in frame]]
    if told.isna().any(axis=None):  # a file that was cut off
        row = int(told.isna().any(axis=1).argmax()) + 1
        raise InputError(f"{file} is damaged: row {row} of {len(frame)} is not whole.")
    return frame


def table_of(records: Iterable[Record], task: str | None = None) -> pd.DataFrame:
    """The rows of results.csv of one task's units. `task`: needed where there may be none."""
    rows = [row for record in records for row in rows_of(record.summaries, record.path)]
    return pd.DataFrame(rows, columns=columns_of(task or rows[0]["task"]))


def to_markdown(frame: pd.DataFrame) -> str:
    """A Markdown table, numbers with three decimals; what is not a number is left out."""

    def written(value: Any) -> str:
        if not isinstance(value, float):
            return str(value)
        return "" if np.isnan(value) else f"{value:.3f}"

    cells = [[written(value) for value in row] for row in frame.itertuples(index=False)]
    lines = [list(frame.columns), ["---"] * len(frame.columns), *cells]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
