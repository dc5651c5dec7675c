"""What identifies a study, checked before a database is opened."""

import dataclasses
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.methods import PAPER_METHODS
from virl_tf.validation import InputError, check_choice, check_integer

from experiments.specification import RunRequest, Specification, parse_seeds, target_size
from experiments.tasks import describe, descriptions
from experiments.tasks.description import TaskDescription
from experiments.tuning.space import searched

Column = tuple[str, int]  # method and components
FOLDER = Path("studies")
PRESETS = ("smoke", "quick", "paper")


def without_password(url: str) -> str:
    """As it may be shown and stored; PGPASSWORD or .pgpass tell PostgreSQL what is left out."""
    bare = re.sub(r"(?<=[?&])password=[^&]*&?", "", url).rstrip("?&")
    return re.sub(r"(//[^:/@]*):.*@", r"\1@", bare)


@dataclass(frozen=True)
class StudySpecification:
    """What identifies a study: two commands with the same one work on the same study."""

    task: str
    method: str
    components: int
    size: int  # of the target
    preset: str
    seeds: tuple[int, ...]
    assignments: tuple[str, ...]

    @property
    def name(self) -> str:
        """E.g. gaussians-virl-10c-m50-quick."""
        size = f"{self.description.size_letter}{self.size}"
        return f"{self.task}-{self.method}-{self.components}c-{size}-{self.preset}"

    @property
    def description(self) -> TaskDescription:
        """The task's."""
        return describe(self.task)

    def run(self, seed: int, overrides: Mapping[str, Mapping[str, Any]]) -> Specification:
        """The run of one trial for one seed: its suggested values over everything else."""
        given: dict[str, Any] = {"preset": self.preset, "assignments": self.assignments}
        given |= self.description.sized(self.size)
        request = RunRequest(self.task, self.method, self.components, seed=seed, **given)
        spec = request.specification()
        return dataclasses.replace(spec, hparams=spec.hparams.override(overrides, "trial"))

    def to_attributes(self) -> dict[str, Any]:
        """As stored with the study: with space and objective, so that their changes are noticed."""
        rows = searched(self.task, self.method, self.components)
        space = {
            name: {key: value for key, value in row.spec.items() if key != "description"}
            for name, row in rows.items()
        }
        attributes = dataclasses.asdict(self)
        attributes |= {"space": space, "objective": self.description.objective_label}
        return json.loads(json.dumps(attributes))


class Studies(NamedTuple):
    """A task's studies of one preset and size (None: the task's defaults) in one database.

    Attributes:
        modes, steps: the size of the target; the one that is the task's.
        storage: None: a file for each, in `FOLDER`.
    """

    task: str
    preset: str | None
    modes: int | None
    steps: int | None
    storage: str | None

    def specification(
        self, column: Column, seeds: Sequence[int] = (), assignments: Sequence[str] = ()
    ) -> StudySpecification:
        """Of the study of one column.

        Raises:
            InputError: no such task, method or preset, or a size that the task cannot have.
        """
        description = describe(self.task)
        check_choice("method", column[0], [method.name for method in PAPER_METHODS])
        size = target_size(description, self.modes, self.steps)
        preset = description.default_preset if self.preset is None else self.preset
        # Table 1 has ranges for the paper's algorithm; `best` has other parts.
        check_choice("preset of a study", preset, PRESETS)
        return StudySpecification(
            self.task, *column, size, preset, tuple(seeds), tuple(assignments)
        )

    def url(self, column: Column) -> str | None:
        """Of the database that holds the study of a column; None: there is no such file."""
        if self.storage is not None:
            return self.storage
        file = self.file(column)
        return f"sqlite:///{file.absolute()}" if file.is_file() else None

    def file(self, column: Column) -> Path:
        """Of the database of a column's study, where no storage is given."""
        return FOLDER / self.specification(column).name / "study.db"

    def check_stored(self, columns: Sequence[Column]) -> None:
        """Raises InputError if no column has a database that could hold its study."""
        if any([self.url(column) for column in columns]):
            return
        files = " or ".join(str(self.file(column)) for column in columns)
        command = self.command(columns[0])
        text = f"no study of {self.task} in {files} (elsewhere: --storage)"
        raise InputError(f"{text}; make one with: {command}")

    def command(self, column: Column, name: str = "tune") -> str:
        """That makes the study of a column, or does `name` with it, with the options that were
        given for these studies, but for a password.
        """
        given = {
            **({} if name == "compare" else {"method": column[0], "components": column[1]}),
            "preset": self.preset,
            "modes": self.modes,
            "steps": self.steps,
            "storage": self.storage and without_password(self.storage),
        }
        told = {key: shlex.quote(str(v)) for key, v in given.items() if v is not None}
        options = "".join(f" --{key} {v}" for key, v in told.items())
        return f"python -m experiments {name} {self.task}{options}"


def check_compared(task: str) -> Sequence[Column]:
    """The columns of a task that `compare` looks for studies of.

    Raises:
        InputError: no such task, or the paper publishes no column for it.
    """
    description = describe(task)
    if description.compared:
        return description.compared
    known = "; ".join(
        f"{other.name} ({', '.join(f'{m} {k}c' for m, k in other.compared)})"
        for other in descriptions()
        if other.compared
    )
    raise InputError(
        f"compare sets published columns against what studies found, and the paper publishes none "
        f"for {task}. It can compare {known}. A study of {task} has its trials in trials.csv "
        f"(python -m experiments tune {task}) and pictures (study-plots)."
    )


class TuneRequest(NamedTuple):
    """A study as `tune` is asked for it.

    Attributes:
        trials: that are to be complete or pruned.
        seeds: integers with commas between them; None: 0.
    """

    studies: Studies
    method: str
    components: int
    trials: int
    seeds: str | None
    assignments: list[str]

    def specification(self) -> StudySpecification:
        """The study. Raises InputError for whatever its runs could not be made with."""
        check_integer("--trials", self.trials, 1)
        seeds = parse_seeds(self.seeds) or [0]
        column = (self.method, self.components)
        spec = self.studies.specification(column, seeds, self.assignments)
        names = searched(spec.task, *column)
        for assignment in self.assignments:
            name = assignment.partition("=")[0].strip()
            if name in names:
                raise InputError(f"--set {name}: this study searches it; leave it out.")
        for seed in seeds:
            spec.run(seed, {})
        return spec
