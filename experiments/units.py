"""The pieces of a sweep.

Each is done once, in its own folder, by any process, and can be stopped and continued.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from experiments.specification import DEFAULT_STEPS, Specification, make_specification
from virl_tf.hparams import read_preset

BLOCKED = 1 / 3  # of the paths of path planning, in a sweep's inference with obstacles
PAPER_MODES = tuple(range(5, 55, 5))
GRIDS: dict[str, dict[str, tuple[int, ...]]] = {
    "paper": {"modes": PAPER_MODES, "seeds": (0, 1, 2, 3, 4)},
    "quick": {"modes": (5, 20, 50), "seeds": (0, 1)},
    "smoke": {"modes": (5,), "seeds": (0,)},
    "best": {"modes": (10, 30, 50), "seeds": (0, 1, 2, 3, 4)},
}


class Unit(Protocol):
    """One piece of work of a sweep."""

    @property
    def name(self) -> str:
        """Its folder's name."""

    @property
    def group(self) -> str:
        """Which row of the live table it counts in."""

    def execute(self, folder: Path) -> None:
        """Do it, or what is left of it.

        Imports TensorFlow inside, so that a scheduler's process need not.
        """

    def finished(self, folder: Path) -> bool:
        """Whether all its results are there."""


@dataclass(frozen=True)
class RunUnit:
    """A training run, followed by inference with `inference_components` on its reward (0: none).

    `searches`: the kinds of inference, False with a fixed set of components as in the paper, True
    with some that come and go.
    """

    spec: Specification
    inference_components: int
    searches: tuple[bool, ...] = (False,)

    @property
    def name(self) -> str:
        """As the run's."""
        return self.spec.name

    @property
    def group(self) -> str:
        """Method and number of components."""
        return f"{self.spec.method} {self.spec.components}c"

    def execute(self, folder: Path) -> None:
        """Train, then infer; path planning also with obstacles in the way."""
        from experiments.inference import infer
        from experiments.runs import execute

        execute(self.spec, folder, progress=False)
        for name, options in self.inferences.items():
            infer([folder], self.inference_components, **options, out=folder / name, quiet=True)

    def finished(self, folder: Path) -> bool:
        """Each summary is written last."""
        return all((folder / name / "summary.json").is_file() for name in (".", *self.inferences))

    @property
    def inferences(self) -> dict[str, dict[str, Any]]:
        """Folder in the run's -> options of `infer`: with search or not, the share of the paths
        that obstacles block.
        """
        if not self.inference_components:
            return {}
        shares = {
            "inference": None,
            **({"obstacles": BLOCKED} if self.spec.task == "path_planning" else {}),
        }
        return {
            f"{name}_search" if search else name: {"search": search, "obstacles": share}
            for search in self.searches
            for name, share in shares.items()
        }


@dataclass(frozen=True)
class ReferenceUnit:
    """KDE, EM and the best possible fits for one target and its demonstrations."""

    spec: Specification  # of any method: its target and demonstrations

    @property
    def name(self) -> str:
        """references-m50-s0-quick."""
        return f"references-m{self.spec.modes}-s{self.spec.seed}-{self.spec.preset}"

    @property
    def group(self) -> str:
        """One row for all."""
        return "references"

    def execute(self, folder: Path) -> None:
        """Fit and evaluate them."""
        from experiments.references import execute_references

        execute_references(self.spec, folder)

    def finished(self, folder: Path) -> bool:
        """The summary is the only file."""
        return (folder / "summary.json").is_file()


WALK_SEEDS = {"paper": (0, 1, 2, 3, 4), "quick": (0, 1), "smoke": (0,), "best": (0, 1, 2, 3, 4)}
SMOKE_STEPS = {"grid_walker": 3, "path_planning": 4}


def units_of(
    task: str,
    preset: str,
    assignments: list[str],
    sizes: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    search: bool = False,
) -> list[Any]:
    """The units of a task's sweep.

    Args:
        sizes: m of the Gaussians, d of a walk; with `seeds`, instead of the preset's.
        search: infer also with components that come and go.
    """
    if task == "gaussians":
        units: list[Any] = list(gaussian_units(preset, assignments, sizes, seeds))
    else:
        units = list(walk_units(task, preset, assignments, sizes, seeds))
    kinds = (True,) if preset == "best" else (False, True) if search else (False,)
    return [replace(unit, searches=kinds) if isinstance(unit, RunUnit) else unit for unit in units]


def inference_components(task: str, steps: int) -> int:
    """The paper infers with 25 components where there are 32 modes; 20 on path planning's 20; other
    sizes in proportion.
    """
    if task == "gaussians":
        return 0
    return (
        max(1, round(25 / 32 * 2**steps)) if task == "grid_walker" else math.comb(steps, steps // 2)
    )


def walk_units(
    task: str,
    preset: str,
    assignments: list[str],
    steps: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[RunUnit]:
    """Figures 3 and 7, and the obstacles of Figure 1: {EIM, V-IRL, G-EIM} x seeds, each with
    inference; long runs first.
    """
    read_preset(preset)
    lengths = steps or ((SMOKE_STEPS if preset == "smoke" else DEFAULT_STEPS)[task],)
    units = []
    for method in ("eim", "virl", "geim"):
        for length in lengths:
            for seed in seeds or WALK_SEEDS[preset]:
                spec = make_specification(
                    task=task,
                    method=method,
                    steps=length,
                    seed=seed,
                    preset=preset,
                    assignments=assignments,
                )
                units.append(RunUnit(spec, inference_components(task, length)))
    return units


def gaussian_units(
    preset: str,
    assignments: list[str],
    modes: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[RunUnit | ReferenceUnit]:
    """Figure 2b and 4: {V-IRL, G-EIM, EIM} x {1, 10} components x m x seeds; inference on V-IRL 10c
    and G-EIM 10c.

    Long runs come first, so that the last minutes keep all workers busy. `modes`, `seeds`: instead
    of the preset's.
    """
    read_preset(preset)
    grid = {"modes": modes or GRIDS[preset]["modes"], "seeds": seeds or GRIDS[preset]["seeds"]}
    units: list[RunUnit | ReferenceUnit] = []
    for method in ("eim", "geim", "virl"):
        for components in (10, 1):
            for num_modes in grid["modes"]:
                for seed in grid["seeds"]:
                    spec = make_specification(
                        task="gaussians",
                        method=method,
                        components=components,
                        modes=num_modes,
                        seed=seed,
                        preset=preset,
                        assignments=assignments,
                    )
                    infer = num_modes if components == 10 and method != "eim" else 0
                    units.append(RunUnit(spec, infer))
    targets = {
        (unit.spec.modes, unit.spec.seed): unit.spec for unit in units if unit.spec.method == "virl"
    }
    return [*units, *(ReferenceUnit(spec) for spec in targets.values())]
