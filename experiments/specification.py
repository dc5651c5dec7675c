"""What identifies one run: task, method, hyperparameters, checked before anything is computed."""

import csv
import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virl_tf.hparams import (
    DIRECTORY,
    Hparams,
    apply_preset,
    default_hparams,
    published,
    read_preset,
    runs_published,
)
from virl_tf.methods import METHODS
from virl_tf.validation import InputError, check_choice, check_integer, check_seed
from virl_tf.yaml_files import parse_yaml, read_yaml

import numpy as np

from experiments.tasks import describe, names_where
from experiments.tasks.description import TaskDescription

MAX_ROWS = 10_000_000
OF_METHOD = ("method", "components", "preset", "hparams")  # of a run's configuration


@dataclass(frozen=True)
class Specification:
    """One run.

    Attributes:
        modes: of the target.
        steps: its size, of tasks that --steps gives the size of; else 0.
        dim: D; with contexts of rows [c, x], C + D.
    """

    task: str
    modes: int
    steps: int
    task_seed: int
    method: str
    components: int
    seed: int
    preset: str
    num_train: int
    num_test: int
    dim: int
    hparams: Hparams

    @property
    def description(self) -> TaskDescription:
        """The task's."""
        return describe(self.task)

    @property
    def size(self) -> int:
        """Of the target, as --modes or --steps gives it."""
        return getattr(self, self.description.size_option)

    @property
    def name(self) -> str:
        """A folder name, e.g. gaussians-virl-10c-m50-s0-quick."""
        usual_rows = read_preset(self.preset)["demonstrations"]["train"]
        parts = [
            self.task,
            self.method,
            f"{self.components}c",
            f"{self.description.size_letter}{self.size}",
            f"D{self.dim}" if self.dim != self.description.default_dim(self.size) else "",
            f"s{self.seed}",
            f"t{self.task_seed}" if self.task_seed != self.seed else "",
            f"n{self.num_train}" if self.num_train != usual_rows else "",
            self.preset,
        ]
        return "-".join(part for part in parts if part)

    def to_config(self) -> dict[str, Any]:
        """All of it as plain values, as stored in config.yaml."""
        return dataclasses.asdict(self)

    def demonstrations(self) -> Any:
        """Training and test demonstrations [num_train + num_test, D].

        Drawn once in a process: runs of a sweep or a study share them, and slice sampling takes
        seconds.
        """
        config = self.to_config()
        of_target = tuple((key, value) for key, value in config.items() if key not in OF_METHOD)
        return _drawn(of_target)


@functools.lru_cache(maxsize=8)
def _drawn(of_target: tuple[tuple[str, Any], ...]) -> Any:
    config = dict(of_target)
    task = describe(config["task"]).experiment(config).task
    n = config["num_train"] + config["num_test"]
    x = task.demonstrations(n, config["seed"])
    # Before they are in a folder, whose file would seem to be another run's.
    if np.shape(x) != (n, task.dim):
        text = f"demonstrations of {config['task']} must be [n, D] = {[n, task.dim]}"
        raise InputError(f"{text}; for n = {n} it returned {list(np.shape(x))}.")
    return x


@dataclass(frozen=True)
class RunRequest:
    """The run a user asks for; None: the task's or the preset's own.

    Attributes:
        task_seed: of the target; None: `seed`.
        hparams_file, assignments: over the preset's hyperparameters.
    """

    task: str
    method: str = "virl"
    components: int = 10
    modes: int | None = None
    steps: int | None = None
    dim: int | None = None
    rows: int | None = None
    seed: int = 0
    task_seed: int | None = None
    preset: str | None = None
    hparams_file: Path | None = None
    assignments: Sequence[str] = ()

    def specification(self) -> Specification:
        """The run: defaults, published column, preset, user's file, assignments.

        Raises:
            InputError: anything unknown or out of range.
        """
        task, method, components, rows = self.task, self.method, self.components, self.rows
        description = describe(task)
        check_choice("method", method, METHODS)
        preset = description.default_preset if self.preset is None else self.preset
        budget = read_preset(preset)
        size = target_size(description, self.modes, self.steps)
        dim = _dimension(description, size, self.dim)
        seed = check_seed(self.seed, "--seed")
        train = budget["demonstrations"]["train"]
        train = train if rows is None else check_integer("--rows", rows, dim + 2, MAX_ROWS)
        check_integer("--components (at most one per demonstration)", components, 1, train)
        hparams = _hparams(self, preset)
        return Specification(
            task=task,
            modes=description.num_modes(size),
            steps=size if description.size_option == "steps" else 0,
            task_seed=_task_seed(description, seed, self.task_seed),
            method=method,
            components=components,
            seed=seed,
            preset=preset,
            num_train=train,
            num_test=budget["demonstrations"]["test"],
            dim=dim,
            hparams=hparams,
        )


def own_size_option(description: TaskDescription, modes: Any, steps: Any) -> Any:
    """What was given with the one of --modes and --steps that tells the size of this task's target.

    Raises:
        InputError: the other one was given.
    """
    given = {"modes": modes, "steps": steps}
    value = given.pop(description.size_option)
    ((other, unwanted),) = given.items()
    if unwanted is not None:
        takers = names_where(lambda task: task.size_option == other)
        text = f"the size of a {description.name} target is --{description.size_option}."
        raise InputError(f"--{other} is for {takers}; {text}")
    return value


def target_size(description: TaskDescription, modes: int | None, steps: int | None) -> int:
    """The target's size, from the options --modes and --steps; default: the task's.

    Raises:
        InputError: the option of other tasks, or a size that cannot be.
    """
    own, given = description.size_option, own_size_option(description, modes, steps)
    size = description.default_size if given is None else given
    size = check_integer(f"--{own}", size, 1, description.largest_size)
    refusal = description.size_refusal(size)
    if refusal:
        raise InputError(f"--{own} of {description.name} {refusal}; got {size}.")
    return size


def parse_names(text: str | None) -> list[str] | None:
    """'a,b' -> ['a', 'b'], '"a, b",c' -> ['a, b', 'c'], see `as_option`; None stays None."""
    if text is None:
        return None
    line = " ".join(text.splitlines())
    names = next(csv.reader([line], skipinitialspace=True), [])
    return [name.strip() for name in names] or [""]


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


def parse_seeds(text: str | None) -> list[int] | None:
    """What --seeds says. Raises InputError for other than integers, and for what is no seed."""
    seeds = parse_integers("--seeds", text)
    return None if seeds is None else [check_seed(seed, "--seeds") for seed in seeds]


def _dimension(description: TaskDescription, size: int, dim: int | None) -> int:
    if dim is None:
        return description.default_dim(size)
    if not description.largest_dim:
        takers = names_where(lambda task: task.largest_dim)
        fixed = f"the dimension of {description.name} follows from --{description.size_option}"
        raise InputError(f"--dim is for {takers}; {fixed}.")
    return check_integer("--dim", dim, description.smallest_dim, description.largest_dim)


def _task_seed(description: TaskDescription, seed: int, task_seed: int | None) -> int:
    if task_seed is None:
        return seed
    if not description.has_task_seed:
        takers = names_where(lambda task: task.has_task_seed)
        raise InputError(f"--task-seed is for {takers}; {description.name} has one target only.")
    return check_seed(task_seed, "--task-seed")


def _hparams(request: RunRequest, preset: str) -> Hparams:
    """The defaults, the published column where the preset wants it, the preset's, the user's."""
    family, column = METHODS[request.method].family, (request.task, request.method)
    values = default_hparams(family)
    if runs_published(preset):
        values_of_column = published_column(*column, request.components)
        values = values.override(values_of_column, f"hparams/{describe(request.task).table}.yaml")
    values = apply_preset(values, read_preset(preset)["hparams"], family)
    if request.hparams_file is not None:
        user = _user_file(request.hparams_file, *column, request.components)
        values = values.override(*user)
    return assigned(values, request.assignments)


def _user_file(path: Path, task: str, method: str, components: int) -> tuple[dict[str, Any], str]:
    """(overrides, where they stand) of the user's file, or of hparams/tuned/ for "tuned"."""
    if str(path) != "tuned":
        overrides = read_yaml(path)
        return {} if overrides is None else overrides, str(path)
    tuned = tuned_file(task)
    if not tuned.is_file():
        if not describe(task).compared:  # `compare` would refuse the task, too
            text = f"nothing is tuned for {task}; give a file of hyperparameters, or --set."
            raise InputError(f"--hparams tuned: {text}")
        raise InputError(f"no {tuned}; make it with: python -m experiments compare {task} --write")
    columns = read_yaml(tuned)["columns"]
    column = column_name(task, method, components)
    check_choice(f"column of {tuned} (only these were tuned)", column, columns)
    return columns[column], str(tuned)


def tuned_file(task: str) -> Path:
    """Where the values stand that `compare --write` found for a task."""
    return DIRECTORY / "tuned" / f"{describe(task).table or task}.yaml"


def column_name(task: str, method: str, components: int) -> str:
    """The column's name in the task's table, e.g. virl_10c (Table 2) or virl (Table 3)."""
    return describe(task).table_column(METHODS[method].family, components)


def published_column(task: str, method: str, components: int) -> dict[str, dict[str, Any]]:
    """The overrides of the task's table for a method; {} for a task without a table."""
    table = describe(task).table
    return {} if table is None else published(table, column_name(task, method, components))


def assigned(values: Hparams, assignments: Sequence[str]) -> Hparams:
    """Hyperparameters with what --set gave over them. Raises InputError."""
    for assignment in assignments:
        values = values.override(parse_assignment(assignment), f"--set {assignment}")
    return values


def parse_assignment(text: str) -> dict[str, dict[str, Any]]:
    """'network.layer_size=64' -> {'network': {'layer_size': 64}}; the value is read as YAML."""
    name, equals, value = text.partition("=")
    section, dot, key = name.partition(".")
    if not (equals and dot and section and key):
        expected = "SECTION.KEY=VALUE, for example network.layer_size=64."
        raise InputError(f"--set {text!r}: expected {expected}")
    return {section: {key: parse_yaml(value, f"--set {text!r}: the value")}}
