"""The runs of `python -m experiments ablate`, from a table of rows in hparams."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.persistence.files import write_json
from virl_tf.validation import InputError, check_choice

from experiments.records import ABLATION
from experiments.specification import RunRequest
from experiments.sweeps.ablation_tables import KEYS, read_rows
from experiments.sweeps.units import RunUnit, asked, suffix
from experiments.tasks import describe, names_where


@dataclass(frozen=True)
class Ablation(RunUnit):
    """The run of a table's first row, or of it with one change, followed by inference with search.

    `is_base`: of the first row, whose record also has the correlations of reference densities.
    """

    is_base: bool = False

    def execute(self, folder: Path) -> None:
        """Train, infer, draw from the recovered density."""
        from experiments.evaluation.ablated import measure

        super().execute(folder)
        if (folder / ABLATION).is_file():
            return
        found = measure(self.spec, folder, with_references=self.is_base)
        write_json(folder / ABLATION, found)


def ablation_units(
    task: str,
    only: Sequence[str] | None,
    seeds: Sequence[int],
    rewards_only: bool = False,
    table: str = "ablations",
    **target: Any,
) -> list[Ablation]:
    """Every row of a table (or those named in `only`) with every seed.

    Args:
        rewards_only: no policy is inferred on them.
        target: what else `RunRequest` takes: size, dimension, rows, and assignments, over
            which a row's own values go.

    Raises:
        InputError: no such task, table or row, or what the task cannot have.
    """
    description = describe(task)
    if not description.has_search:
        takers = names_where(lambda task: task.has_search)
        raise InputError(f"ablate is for {takers}; it infers with search, which {task} cannot.")
    rows = read_rows(table)
    base, *_ = rows
    units = []
    for name in dict.fromkeys(only or rows):
        check_choice("ablation", name, rows)
        row = {"preset": rows[base].get("preset", "best"), **rows[name]}
        for seed in seeds:
            given = {**target, "task": task, "seed": seed}
            given |= {key: row[key] for key in KEYS if key in row and key != "hparams"}
            spec = RunRequest(**given).specification()
            values = spec.hparams.override(row.get("hparams", {}), f"{table}.yaml")
            spec = replace(spec, hparams=values)
            components = 0 if rewards_only else description.inference_components(spec.size)
            named = {"prefix": f"{name}/", "row": name, "label": name}
            units.append(Ablation(spec, components, (True,), is_base=name == base, **named))
    return units


class AblationRequest(NamedTuple):
    """What `ablate` is asked for: as `ablation_units` takes it."""

    task: str
    only: Sequence[str] | None
    seeds: Sequence[int]
    rewards_only: bool = False
    table: str = "ablations"
    modes: int | None = None
    steps: int | None = None
    dim: int | None = None
    rows: int | None = None
    assignments: Sequence[str] = ()

    def units(self) -> list[Ablation]:
        """All of it. Raises InputError as `ablation_units`."""
        return ablation_units(**self._asdict())

    def to_config(self) -> dict[str, Any]:
        """What identifies it, as stored in config.yaml; rows, sizes and seeds may differ."""
        config = {"ablations": self.task, "table": self.table, "overrides": list(self.assignments)}
        return config | asked(self.dim, self.rows)

    @property
    def folder(self) -> Path:
        """Where it goes by default."""
        return Path(self.table) / f"{self.task}{suffix(self.dim, self.rows)}"
