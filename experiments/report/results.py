"""The committed results as the report reads them: tables, pictures, versions, what is missing."""

import contextlib
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from virl_tf.validation import InputError
from virl_tf.yaml_files import read_yaml

import numpy as np
import pandas as pd

from experiments.early_checks import has_results
from experiments.figures import draw
from experiments.pooled_results import read_results
from experiments.result_files import RUN, value_at
from experiments.result_statistics import with_interval, with_lost
from experiments.tasks import describe, descriptions, names

OF_STUDIES = ("values.csv", "budgets.csv")  # tables of runs with many hyperparameters
NEED_TABLES_ONLY = ("2b", "4")  # figures that are drawn from results.csv alone


@dataclass(frozen=True)
class Table:
    """One results.csv."""

    folder: Path
    task: str
    frame: pd.DataFrame


class Results:
    """A folder of results, one folder each."""

    def __init__(self, path: Path):
        """Read the tables in `path`. Raises InputError if there are none, or one cannot be read."""
        self.path = path
        if not path.is_dir():
            raise InputError(f"no folder of results {path}; give one with --results.")
        self.folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
        found = [_read(folder) for folder in self.folders if _is_sweeps(folder)]
        if not found:
            command = f"python -m experiments sweep TASK --out {path / 'TASK'}"
            text = "holds no results.csv in any of its folders"
            raise InputError(f"{path} {text}; make one with: {command}")
        self.every = found
        shown = [_of_one_size(table) for table in found]
        self.by_folder = {table.folder: table for table in shown}
        # Of several tables of a task one of the paper's size stands for it, of these that of most
        # runs.
        self.tables: dict[str, Table] = {}
        for table in sorted(shown, key=_rank):
            self.tables[table.task] = table

    def missing(self, task: str) -> str:
        """What of a task's full sweep is in none of its tables, see `not_run`."""
        return not_run(task, [table.frame for table in self.every if table.task == task])

    def below(self) -> list[Path]:
        """All folders below, benchmarks and this one last.

        Of those under ablations the figure's table speaks for each.
        """
        inside = [path for path in self.path.rglob("*") if path.is_dir()]
        inside.sort(key=lambda path: ("benchmark" in path.relative_to(self.path).parts, path))
        own = [path for path in inside if not (path.parent / "ablations.md").is_file()]
        return [*own, self.path]

    @contextlib.contextmanager
    def drawn(self, number: str) -> Iterator[Path | None]:
        """A path to the figure's PNG, drawn now if none is stored and it can be; else None.

        The stored one is first looked for where a table stands for its task.
        """
        folders = [*(table.folder for table in self.tables.values()), *self.folders]
        stored = [folder / f"figure_{number}.png" for folder in folders]
        found = next((path for path in stored if path.is_file()), None)
        tasks = [task.name for task in descriptions() if number in task.figures]
        tables = [self.tables[task] for task in tasks if task in self.tables]
        if found is not None or not tables or number not in NEED_TABLES_ONLY:
            yield found
            return
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            draw(number, [tables[0].folder], None, Path(folder))
            yield Path(folder) / f"figure_{number}.png"

    def versions(self) -> dict[str, dict[str, str]]:
        """What each folder's config.yaml says it was made with."""
        found = {}
        for folder in self.folders:
            if (folder / "config.yaml").is_file():
                stored = value_at(read_yaml(folder / "config.yaml"), "versions")
                stored = stored if isinstance(stored, Mapping) else {}  # of another program
                found[folder.name] = {str(key): str(value) for key, value in stored.items()}
        return found


def _is_sweeps(folder: Path) -> bool:
    """Not where records are of many hyperparameters: `compare` and `rank-budgets` put them there,
    and tables of their own.
    """
    others = any((folder / name).is_file() for name in OF_STUDIES)
    return has_results(folder) and not others


def _read(folder: Path) -> Table:
    frame = read_results(folder)
    tasks = sorted(frame["task"].unique())
    if len(tasks) != 1 or tasks[0] not in names():
        text = f"must hold the results of one task of {', '.join(names())}; it holds {tasks}."
        raise InputError(f"{folder} {text}")
    return Table(folder, tasks[0], frame)


def _papers_size(table: Table) -> pd.Series:
    """Which rows are of the size that the paper has."""
    description = describe(table.task)
    return table.frame["modes"] == description.num_modes(description.default_size)


def _rank(table: Table) -> tuple[bool, int]:
    """The higher, the better it stands for its task."""
    runs = table.frame.groupby(["method", "components", "modes", "seed"]).ngroups
    return bool(_papers_size(table).any()), runs


def _of_one_size(table: Table) -> Table:
    """As it is shown: rows of several sizes are not averaged where claims are on one.

    As in Figure 7 those of the paper's size, else of the largest.
    """
    if describe(table.task).over_sizes:
        return table
    of_paper = _papers_size(table)
    largest = table.frame["modes"] == table.frame["modes"].max()
    return replace(table, frame=table.frame[of_paper if of_paper.any() else largest])


def mean_with_interval(values: pd.Series, digits: int = 3, lost: int = 0) -> str:
    """'0.050 [0.043, 0.059], n = 5 (1 lost)': mean and 95 % bootstrap interval of finite values.

    Args:
        lost: runs that should have one, and have none.
    """
    numbers = values.to_numpy(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not len(finite):
        return with_lost("-", lost)
    shown = with_interval(finite, f"{{:.{digits}f}}".format)
    return with_lost(f"{shown}, n\u00a0=\u00a0{len(finite)}", lost)


def not_run(task: str, frames: Sequence[pd.DataFrame]) -> str:
    """What of a task's full sweep is in none of its tables, in one sentence; '' if nothing is.

    The full sweep has the sizes and seeds of the preset `paper`, of every method.
    """
    if not frames:
        return "Not run yet."
    every = pd.concat(frames).drop_duplicates(RUN)
    description = describe(task)
    grid = description.grids["paper"]
    sizes = [description.num_modes(size) for size in grid.sizes]
    kinds = len(description.sweep_methods) * len(description.sweep_components)
    wanted = kinds * len(grid.seeds)
    done = every[(every["stage"] == "training") & (every["preset"] == "paper")]
    done = done[done["seed"].isin(grid.seeds)]
    counts = {size: int((done["modes"] == size).sum()) for size in sizes}
    missing = [str(size) for size, count in counts.items() if not count]
    begun = {size: count for size, count in counts.items() if 0 < count < wanted}
    fewer = [f"{count} of {wanted} at {size} modes" for size, count in begun.items()]
    parts = [f"not run: {', '.join(missing)} modes"] if missing else []
    parts += [f"runs done: {', '.join(fewer)}"] if fewer else []
    sweep = f"{len(description.sweep_methods)} methods, {len(grid.seeds)} seeds"
    return f"Of the full sweep ({sweep}) {'; '.join(parts)}." if parts else ""
