"""`python -m experiments ablate`: the preset `best` and what each of its parts gives and costs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from virl_tf.hparams import DIRECTORY, read_yaml
from virl_tf.metrics import grid_around, normalise_on_grid
from virl_tf.mixture import moments
from virl_tf.numerics import DENSITY
from virl_tf.persistence.files import load_arrays, read_json, write_json, write_text
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.reward import Reward, evaluate
from virl_tf.tasks.slice_sampling import slice_sample
from virl_tf.validation import InputError, check_choice

import numpy as np
import pandas as pd
import tensorflow as tf
from rich.console import Console

from experiments.references import Demonstrated, fit_references
from experiments.result_files import (
    bootstrap_interval,
    columns_of,
    read_summary,
    reading,
    rows_of,
    to_markdown,
)
from experiments.specification import RunRequest, Specification
from experiments.sweep import Workers, execute_sweep
from experiments.sweep_command import last_line
from experiments.tasks import describe
from experiments.units import RunUnit

FILE = DIRECTORY / "ablations.yaml"
AWAY = ("far_share", "off_grid_share")  # mass of the recovered density off the demonstrations
MEASURED = ("reported", "kl", "modes_covered", "good_fraction", "reward_correlation")
SHOWN = (*MEASURED, "collision_share", *AWAY, "effective_share", "iterations", "cpu_seconds")
BURN_IN = 200
DRAWS = 2000  # of the recovered density, to see whether it has mass away from the demonstrations


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
        super().execute(folder)
        description, seed = self.spec.description, self.spec.seed
        task = description.target(self.spec.to_config())
        arrays = load_arrays(folder / "demonstrations.npz")
        train, test = arrays["train"], arrays["test"]
        reward = RunFolder(folder).reward()
        support = getattr(task, "contains", None)
        found: dict[str, Any] = {"far_share": far_share(reward, train, test, support, seed)}
        if (folder / "grid.npz").is_file():
            found["off_grid_share"] = off_grid_share(reward, train)
        if self.label == "best":
            of = Demonstrated(train, seed, task)
            found["references"] = correlations(description.correlated_references, of, test)
        write_json(folder / "ablation.json", found)

    def finished(self, folder: Path) -> bool:
        """That is written last."""
        return (folder / "ablation.json").is_file() and super().finished(folder)


def correlations(
    names: Sequence[str], of: Demonstrated, test: np.ndarray
) -> dict[str, dict[str, float]]:
    """{name: {column: value}}: how references' log densities go with log p on test rows."""
    log_p = of.task.log_prob(test)
    points = tf.constant(test, DENSITY)
    found = {}
    for name, density in fit_references(names, of).items():
        correlation = np.corrcoef(density.log_prob(points), log_p)[0, 1]
        found[name] = {"reward_correlation": float(correlation)}
    return found


def far_share(
    reward: Reward,
    train: np.ndarray,
    test: np.ndarray,
    support: Callable[[Any], Any] | None,
    seed: int,
) -> float:
    """Share of draws of exp(R) farther from all training rows than 99.9 % of the test rows are.

    The draws are those of elliptical slice sampling with the demonstrations' moments as its prior;
    distances are in units of the demonstrations' standard deviations. Without mass away from the
    demonstrations the share is about 0.001.
    """
    from sklearn.neighbors import NearestNeighbors

    def log_prob(x: Any) -> Any:
        inside = True if support is None else support(x)
        return tf.where(inside, reward.log_prob(x), tf.constant(-np.inf, tf.float64))

    draws = slice_sample(log_prob, moments(train), DRAWS, seed, BURN_IN)
    shift, scale = train.mean(axis=0), train.std(axis=0)
    neighbours = NearestNeighbors(n_neighbors=1).fit((train - shift) / scale)
    near, far = (neighbours.kneighbors((x - shift) / scale)[0][:, 0] for x in (test, draws))
    return float(np.mean(far > np.quantile(near, 0.999)))


def off_grid_share(reward: Reward, train: np.ndarray) -> float:
    """Share of the mass of exp(R), in 2-D, off the evaluation grid, by one three times as wide."""
    inner = grid_around(train).axes
    outer = grid_around(train, resolution=300, margin=1.15).axes
    points = np.stack(np.meshgrid(*outer, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.exp(normalise_on_grid(evaluate(reward, points)))
    off_grid = ((points < inner[:, 0]) | (points > inner[:, -1])).any(axis=1)
    return float(mass[off_grid].sum())


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


def ablate(
    units: Sequence[Ablation], assignments: Sequence[str], workers: Workers, out: Path
) -> None:
    """Do all units (of one task) in `out`, then write results.csv, table.csv and table.md.

    What is finished is skipped.

    Raises:
        InputError: no such scheduler, an `out` of something else; or, at the end, units that
            failed.
    """
    console, task = Console(), units[0].spec.task
    number = workers.local
    RunFolder.open(out, {"ablations": task, "overrides": list(assignments)})
    failures = execute_sweep(units, out, workers.scheduler, number, console)

    finished = [unit for unit in units if unit.finished(out / unit.name)]
    rows = [{"ablation": unit.label, **row} for unit in finished for row in _rows(out / unit.name)]
    columns = ["ablation", *columns_of(task), "iterations", "effective_share", *AWAY]
    results = pd.DataFrame(rows, columns=columns)
    means = table(results)
    write_text(out / "results.csv", results.to_csv(index=False))
    write_text(out / "table.csv", means.to_csv(index=False))
    write_text(out / "table.md", to_markdown(means))
    shown = f"{out / 'results.csv'}, {out / 'table.md'}"
    console.print(f"{len(units) - len(failures)} of {len(units)} units finished; {shown}")
    if failures:
        name, error = next(iter(failures.items()))
        raise InputError(f"{len(failures)} units failed, the first is {name}: {last_line(error)}")


def table(results: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds [95 % bootstrap interval] of each measure by ablation, size and stage."""
    rows = []
    keys = ["ablation", "task", "modes", "stage"]
    for key, group in results.groupby(keys, sort=False):
        row: dict[str, Any] = dict(zip(keys, key, strict=True)) | {"seeds": len(group)}
        for name in SHOWN:
            if name in group and group[name].notna().any():
                low, high = bootstrap_interval(group[name].to_numpy(float))
                row[name] = f"{group[name].mean():.4g} [{low:.4g}, {high:.4g}]"
        rows.append(row)
    return pd.DataFrame(rows).fillna("")


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Of results.csv, with what only ablations have; of `best` also the references."""
    summary = read_summary(folder)
    found = read_json(folder / "ablation.json")
    with reading(folder / "ablation.json"):
        yield from _with_ablation(rows_of(folder), summary, found)


def _with_ablation(
    rows: list[dict[str, Any]], summary: dict[str, Any], found: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    effective = summary["effective_sample_size"]
    of_training = {
        "iterations": summary["num_iterations"],
        # Of the importance weights, over the iterations.
        "effective_share": effective["mean"] / effective["of"],
        **{name: found[name] for name in AWAY if name in found},
    }
    for row in rows:
        yield {**row, **(of_training if row["stage"] == "training" else {})}
    if "references" in found:
        key = {name: summary[name] for name in ("task", "modes", "seed", "preset")}
        of_run = {
            name: {"reported": measured["reported"]}
            for name, measured in summary.get("i_projection", {}).items()
            if name not in ("reward", "policy")
        }
        for name, values in {**of_run, **found["references"]}.items():
            stage = f"reference {name}"
            yield {**key, "stage": stage, "method": name, **values, "status": "finished"}
