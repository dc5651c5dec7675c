"""What identifies one run: task, method and hyperparameters, checked before anything is computed."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virl_tf.hparams import (
    DIRECTORY,
    Hparams,
    apply_preset,
    default_hparams,
    parse_yaml,
    published,
    read_preset,
    read_yaml,
)
from virl_tf.methods import METHODS
from virl_tf.validation import InputError, check_choice, check_integer, check_seed

# Task -> the file of its published hyperparameters. The paper has none for path planning, of which
# the walker is the first half.
TABLES = {"gaussians": "gaussians", "grid_walker": "grid_walker", "path_planning": "grid_walker"}
TASKS = tuple(TABLES)
DEFAULT_PRESETS = {"gaussians": "quick", "grid_walker": "paper", "path_planning": "paper"}
DEFAULT_STEPS = {"grid_walker": 5, "path_planning": 6}
DEFAULT_MODES = 50  # of the Gaussians' target
MAX_MODES, MAX_STEPS, MAX_DIM, MAX_ROWS = 1_000_000, 10, 100, 10_000_000


@dataclass(frozen=True)
class Specification:
    """One run.

    Attributes:
        modes: of the target; for walks 2^steps or C(steps, steps / 2).
        steps: d of a walk, 0 for the Gaussians.
        dim: D of the Gaussians, the steps of a walk.
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
    def name(self) -> str:
        """A folder name, e.g. gaussians-virl-10c-m50-s0-quick or grid_walker-virl-10c-d5-s0-paper."""
        size = (
            f"d{self.steps}"
            if self.steps
            else f"m{self.modes}" + (f"-D{self.dim}" if self.dim != 2 else "")
        )
        target = "" if self.task_seed == self.seed else f"-t{self.task_seed}"
        rows = (
            ""
            if self.num_train == read_preset(self.preset)["demonstrations"]["train"]
            else f"-n{self.num_train}"
        )
        return f"{self.task}-{self.method}-{self.components}c-{size}-s{self.seed}{target}{rows}-{self.preset}"

    def to_config(self) -> dict[str, Any]:
        """All of it as plain values, as stored in config.yaml."""
        return dataclasses.asdict(self)


def make_specification(
    *,
    task: str,
    method: str = "virl",
    components: int = 10,
    modes: int | None = None,
    steps: int | None = None,
    dim: int | None = None,
    rows: int | None = None,
    seed: int = 0,
    task_seed: int | None = None,
    preset: str | None = None,
    hparams_file: Path | None = None,
    assignments: Sequence[str] = (),
) -> Specification:
    """The run a user asked for: defaults, the published column, the preset, the user's file, then
    single assignments.

    Raises:
        InputError: anything unknown or out of range.
    """
    check_choice("task", task, TASKS)
    check_choice("method", method, METHODS)
    preset = DEFAULT_PRESETS[task] if preset is None else preset
    budget = read_preset(preset)
    modes, steps = _size(task, modes, steps)
    if dim is not None and steps:
        raise InputError(f"--dim is for gaussians; the dimension of {task} is --steps.")
    dim = steps or check_integer("--dim", 2 if dim is None else dim, 1, MAX_DIM)
    check_seed(seed)
    if task_seed is not None and steps:
        raise InputError(f"--task-seed is for gaussians; {task} has one target only.")
    task_seed = seed if task_seed is None else check_seed(task_seed)
    train, test = budget["demonstrations"]["train"], budget["demonstrations"]["test"]
    train = train if rows is None else check_integer("--rows", rows, dim + 2, MAX_ROWS)
    check_integer("--components (at most one per demonstration)", components, 1, train)

    values, family = default_hparams(method), METHODS[method].family
    if budget.get("published", True):
        values = values.override(
            published_column(task, method, components), f"hparams/{TABLES[task]}.yaml"
        )
    values = apply_preset(values, budget["hparams"], family)
    if hparams_file is not None:
        values = values.override(
            *_user_file(hparams_file, task, column_name(task, method, components))
        )
    for assignment in assignments:
        values = values.override(parse_assignment(assignment), f"--set {assignment}")
    return Specification(
        task, modes, steps, task_seed, method, components, seed, preset, train, test, dim, values
    )


def _user_file(path: Path, task: str, column: str) -> tuple[dict[str, Any], str]:
    """(overrides, where they stand) of the user's YAML file, or of hparams/tuned/ for the path
    "tuned".
    """
    if str(path) != "tuned":
        overrides = read_yaml(path)
        return {} if overrides is None else overrides, str(path)
    tuned = DIRECTORY / "tuned" / f"{TABLES[task]}.yaml"
    if not tuned.is_file():
        raise InputError(f"no {tuned}; make it with: python -m experiments compare {task} --write")
    columns = read_yaml(tuned)["columns"]
    return columns[
        check_choice(f"column of {tuned} (only these were tuned)", column, columns)
    ], str(tuned)


def _size(task: str, modes: int | None, steps: int | None) -> tuple[int, int]:
    """(modes, steps) of the target from the one that the task takes."""
    if task == "gaussians":
        if steps is not None:
            raise InputError(
                "--steps is for grid_walker and path_planning; the size of a gaussians target is --modes."
            )
        return check_integer("--modes", DEFAULT_MODES if modes is None else modes, 1, MAX_MODES), 0
    if modes is not None:
        raise InputError(f"--modes is for gaussians; the size of a {task} target is --steps.")
    steps = check_integer("--steps", DEFAULT_STEPS[task] if steps is None else steps, 1, MAX_STEPS)
    if task == "grid_walker":
        return 2**steps, steps
    if steps % 2:
        raise InputError(
            f"--steps of path_planning must be even, for the paths to meet again; got {steps}."
        )
    return math.comb(steps, steps // 2), steps


def published_column(task: str, method: str, components: int) -> dict[str, dict[str, Any]]:
    """The overrides of the task's table for a method.

    Table 2 has a column for one component and one for more (10); Table 3 has one per method and
    none for EIM, for which hparams/grid_walker.yaml holds ours.
    """
    return published(TABLES[task], column_name(task, method, components))


def column_name(task: str, method: str, components: int) -> str:
    """The column's name in its table, e.g. virl_10c (Table 2) or virl (Table 3)."""
    family = METHODS[method].family
    return (
        family
        if TABLES[task] == "grid_walker"
        else f"{family}_{'1c' if components == 1 else '10c'}"
    )


def parse_assignment(text: str) -> dict[str, dict[str, Any]]:
    """'network.layer_size=64' -> {'network': {'layer_size': 64}}; the value is read as YAML."""
    name, equals, value = text.partition("=")
    section, dot, key = name.partition(".")
    if not (equals and dot and section and key):
        raise InputError(
            f"--set {text!r}: expected SECTION.KEY=VALUE, for example network.layer_size=64."
        )
    return {section: {key: parse_yaml(value, f"--set {text!r}: the value")}}
