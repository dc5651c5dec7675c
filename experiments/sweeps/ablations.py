"""The runs of `python -m experiments ablate`, from a table of rows in hparams."""

from collections.abc import Mapping, Sequence
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


class AblationRequest(NamedTuple):
    """What `ablate` is asked for.

    Attributes:
        only: rows of the table; None: all.
        rewards_only: no policy is inferred on them.
        assignments: over which a row's own values go.
    """

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
        """Every row with every seed.

        Raises InputError: no such task, table or row, or what the task cannot have.
        """
        description = describe(self.task)
        if not description.has_search:
            takers = names_where(lambda task: task.has_search)
            text = f"ablate is for {takers}; it infers with search, which {self.task} cannot."
            raise InputError(text)
        rows = read_rows(self.table)
        base, *_ = rows
        units = []
        for name in dict.fromkeys(self.only or rows):
            check_choice("ablation", name, rows)
            row = {"preset": rows[base].get("preset", "best"), **rows[name]}
            units += [self._unit(name, row, seed, is_base=name == base) for seed in self.seeds]
        return units

    def _unit(self, name: str, row: Mapping[str, Any], seed: int, is_base: bool) -> Ablation:
        asked_for = ("task", "modes", "steps", "dim", "rows", "assignments")
        given = {key: getattr(self, key) for key in asked_for}
        given |= {key: row[key] for key in KEYS if key in row and key != "hparams"}
        spec = RunRequest(**given, seed=seed).specification()
        values = spec.hparams.override(row.get("hparams", {}), f"{self.table}.yaml")
        spec = replace(spec, hparams=values)
        components = 0 if self.rewards_only else spec.description.inference_components(spec.size)
        named = {"prefix": f"{name}/", "row": name, "label": name}
        return Ablation(spec, components, (True,), is_base=is_base, **named)

    def to_config(self) -> dict[str, Any]:
        """What identifies it, as stored in config.yaml; rows, sizes and seeds may differ."""
        config = {"ablations": self.task, "table": self.table, "overrides": list(self.assignments)}
        return config | asked(self.dim, self.rows)

    @property
    def folder(self) -> Path:
        """Where it goes by default."""
        return Path(self.table) / f"{self.task}{suffix(self.dim, self.rows)}"
