"""The pieces of a sweep.

Each is done once, in its own folder, by any process, and can be stopped and continued. What it
leaves is its record.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.hparams import read_preset
from virl_tf.validation import InputError, check_choice

from experiments.specification import (
    RunRequest,
    Specification,
    own_size_option,
    parse_integers,
    parse_names,
    parse_seeds,
)
from experiments.tasks import describe

INFERRED_COMPONENTS = 10  # of the runs that a sweep infers policies on, as in the paper's figures


@dataclass(frozen=True)
class RunUnit:
    """A training run, followed by inference with `inference_components` on its reward (0: none).

    `searches`: the kinds of inference, False with a fixed set of components, True
    with some that come and go. `prefix`: of its name, of several units with one run. `row`: of the
    live table, if not method and number of components. `label`: what a table of results calls it.
    """

    spec: Specification
    inference_components: int
    searches: tuple[bool, ...] = (False,)
    prefix: str = ""
    row: str = ""
    label: str | int = ""

    @property
    def name(self) -> str:
        """Its folder's and its record's name."""
        return f"{self.prefix}{self.spec.name}"

    @property
    def group(self) -> str:
        """Which row of the live table it counts in."""
        return self.row or f"{self.spec.method} {self.spec.components}c"

    def execute(self, folder: Path) -> None:
        """Train, then infer at every stage of the task, or do what is left of it.

        Imports TensorFlow inside, so that a scheduler's process need not.
        """
        from experiments.inference import InferenceRequest, infer
        from experiments.runs import execute

        execute(self.spec, folder, progress=False)
        for name, options in self.inferences.items():
            request = InferenceRequest(self.inference_components, **options)
            infer([folder], request, folder / name, quiet=True)

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        """Folder in its own, "." first -> what the configuration of what is done there holds."""
        inferred = {
            name: {
                "components": self.inference_components,
                "search": options["search"] or None,
                "blocked_share": options["obstacles"],
            }
            for name, options in self.inferences.items()
        }
        return {".": self.spec.to_config(), **inferred}

    @property
    def inferences(self) -> dict[str, dict[str, Any]]:
        """Folder in the run's -> options: with search or not, the share of modes blocked."""
        if not self.inference_components:
            return {}
        stages = self.spec.description.inference_stages
        return {
            f"{stage}_search" if search else stage: {"search": search, "obstacles": share}
            for search in self.searches
            for stage, share in stages.items()
        }


@dataclass(frozen=True)
class ReferenceUnit:
    """KDE, EM, and policies fitted to the truth of one target and its demonstrations."""

    spec: Specification  # of V-IRL: its target, demonstrations and bandwidth

    @property
    def name(self) -> str:
        """references-m50-s0-quick."""
        size = f"{self.spec.description.size_letter}{self.spec.size}"
        size += "" if self._dim is None else f"-D{self._dim}"
        return f"references-{size}-s{self.spec.seed}-{self.spec.preset}"

    @property
    def _dim(self) -> int | None:
        """Of the target; None: as its size has it."""
        usual = self.spec.description.default_dim(self.spec.size)
        return None if self.spec.dim == usual else self.spec.dim

    @property
    def group(self) -> str:
        """One row for all."""
        return "references"

    def execute(self, folder: Path) -> None:
        """Fit and evaluate them."""
        from experiments.references import execute_references

        execute_references(self.spec, self.stages["."], folder)

    @property
    def stages(self) -> dict[str, dict[str, Any]]:
        """The target and its demonstrations."""
        config = self.spec.to_config()
        identity = {key: config[key] for key in ("modes", "task_seed", "seed", "num_train")}
        identity |= {} if self._dim is None else {"dim": self._dim}
        return {".": {"preset": config["preset"], "references": identity}}


Unit = RunUnit | ReferenceUnit
"""One piece of work of a sweep."""


def asked(dim: int | None, rows: int | None) -> dict[str, int]:
    """What of --dim and --rows was given: of what identifies a folder of runs. Its tables tell
    sizes and seeds apart, but not these.
    """
    return {name: n for name, n in {"dim": dim, "rows": rows}.items() if n is not None}


def suffix(dim: int | None, rows: int | None) -> str:
    """The same in a folder's name: -D5-n300."""
    letters = {"dim": "-D", "rows": "-n"}
    return "".join(f"{letters[name]}{number}" for name, number in asked(dim, rows).items())


class SweepRequest(NamedTuple):
    """What a sweep is made of; None: as the preset has it.

    Attributes:
        modes, steps, seeds: integers with commas between them.
        search: infer also with components that come and go; a finished sweep is completed by it.
        dim, rows: as of a run.
        methods: names with commas between them; None: all of the task's.
    """

    task: str
    preset: str | None
    modes: str | None
    steps: str | None
    seeds: str | None
    search: bool
    assignments: list[str]
    dim: int | None = None
    rows: int | None = None
    methods: str | None = None

    @property
    def chosen_preset(self) -> str:
        """The one asked for, or the task's default."""
        return describe(self.task).default_preset if self.preset is None else self.preset

    @property
    def folder(self) -> Path:
        """Where it goes by default."""
        return Path("sweeps") / f"{self.task}{suffix(self.dim, self.rows)}-{self.chosen_preset}"

    def to_config(self) -> dict[str, Any]:
        """What identifies it, as stored in config.yaml; sizes, seeds and methods may differ."""
        preset, overrides = self.chosen_preset, self.assignments
        config = {"sweep": self.task, "preset": preset, "overrides": overrides}
        return config | asked(self.dim, self.rows)

    def units(self) -> list[Unit]:
        """All of it. Raises InputError for anything unknown or out of range."""
        description = describe(self.task)
        option = f"--{description.size_option}"
        sizes = parse_integers(option, own_size_option(description, self.modes, self.steps))
        seeds = parse_seeds(self.seeds)
        methods = parse_names(self.methods)
        what = (self.task, self.chosen_preset, self.assignments)
        return units_of(
            *what, sizes, seeds, self.search, methods=methods, dim=self.dim, rows=self.rows
        )


def units_of(
    task: str,
    preset: str,
    assignments: list[str],
    sizes: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    search: bool = False,
    methods: Sequence[str] | None = None,
    **target: Any,
) -> list[Unit]:
    """The units of a task's sweep: methods x components x sizes x seeds, references per target.

    Args:
        sizes: of the targets; with `seeds`, instead of the preset's.
        search: infer also with components that come and go.
        methods: of the task's, instead of all.
        target: what else `RunRequest` takes of it.
    """
    description = describe(task)
    read_preset(preset)
    check_choice(f"preset of a sweep of {task}", preset, description.grids)
    grid = description.grids[preset]
    for method in methods or ():
        check_choice(f"method of a sweep of {task}", method, description.sweep_methods)
    searches = (False, True) if search else (False,)
    searches = (True,) if preset == "best" else searches
    if not description.has_search:
        if search:
            raise InputError(f"--search is not for {task}, a task with contexts.")
        searches = (False,)
    of_all: dict[str, Any] = {"preset": preset, "assignments": assignments, **target}
    # Seed by seed, so that what is there of an unfinished sweep shows all methods and sizes.
    requests = [
        RunRequest(task, method, components, **description.sized(size), seed=seed, **of_all)
        for seed in seeds or grid.seeds
        for size in sizes or grid.sizes
        for method in dict.fromkeys(methods or description.sweep_methods)
        for components in description.sweep_components
    ]
    specs = [request.specification() for request in requests]
    units = [RunUnit(spec, _inference_components(spec), searches) for spec in specs]
    return [*units, *_references(requests)] if description.has_references else [*units]


def _references(requests: Sequence[RunRequest]) -> list[ReferenceUnit]:
    """A unit for each target of these runs.

    Those of V-IRL, whichever methods are asked for: "the run's bandwidth" differs between methods,
    and a record of references does not say whose it is.
    """
    targets = {(request.modes, request.steps, request.seed): request for request in requests}
    runs = [replace(request, method="virl") for request in targets.values()]
    return [ReferenceUnit(run.specification()) for run in runs]


def _inference_components(spec: Specification) -> int:
    """Of the policies that a sweep infers on a run's reward; 0: none."""
    inferred = spec.method in spec.description.inferred_methods
    if not inferred or spec.components != INFERRED_COMPONENTS:
        return 0
    return spec.description.inference_components(spec.size)
