"""The runs of `python -m experiments ablate`, from hparams/ablations.yaml."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from virl_tf.hparams import DIRECTORY, read_yaml
from virl_tf.persistence.files import write_json
from virl_tf.validation import check_choice

from experiments.specification import RunRequest, Specification
from experiments.tasks import describe
from experiments.units import RunUnit

FILE = DIRECTORY / "ablations.yaml"


@dataclass(frozen=True)
class Ablation(RunUnit):
    """A run of the preset `best`, or of it with one change, followed by inference with search."""

    label: str = "best"

    @property
    def name(self) -> str:
        """A folder in the ablation's."""
        return f"{self.label}/{self.spec.name}"

    @property
    def group(self) -> str:
        """Its row of the live table."""
        return self.label

    def execute(self, folder: Path) -> None:
        """Train, infer, draw from the recovered density; `best`: also correlated references."""
        from experiments.evaluation.ablated import measure

        super().execute(folder)
        if (folder / "ablation.json").is_file():
            return
        found = measure(self.spec, folder, with_references=self.label == "best")
        write_json(folder / "ablation.json", found)


def read_rows() -> dict[str, dict[str, Any]]:
    """hparams/ablations.yaml. Raises InputError for a key that a row cannot have."""
    rows = read_yaml(FILE)
    for name, row in rows.items():
        for key in row:
            check_choice(f"key of {name} in {FILE.name}", key, ("preset", "method", "hparams"))
    return rows


def ablation_units(
    task: str,
    only: Sequence[str] | None,
    seeds: Sequence[int],
    rewards_only: bool = False,
    **target: Any,
) -> list[Ablation]:
    """Every ablation (or those named in `only`) with every seed.

    Args:
        rewards_only: no policy is inferred on them.
        target: what else `RunRequest` takes: size, dimension, rows, and assignments, over
            which an ablation's own values go.

    Raises:
        InputError: no such task or ablation, or what the task cannot have.
    """
    description = describe(task)
    rows = read_rows()
    names = [check_choice("ablation", name, rows) for name in only] if only else list(rows)
    units = []
    for name in names:
        for seed in seeds:
            spec = _specification(rows[name], task=task, seed=seed, **target)
            components = 0 if rewards_only else description.inference_components(spec.size)
            units.append(Ablation(spec, components, searches=(True,), label=name))
    return units


def _specification(row: Mapping[str, Any], **arguments: Any) -> Specification:
    """The run of a row of ablations.yaml."""
    preset, method = row.get("preset", "best"), row.get("method", "virl")
    spec = RunRequest(preset=preset, method=method, **arguments).specification()
    hparams = spec.hparams.override(row.get("hparams", {}), FILE.name)
    return replace(spec, hparams=hparams)
