"""`python -m experiments ablate`: the preset `best` and what each of its parts gives and costs."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

import virl_tf  # noqa: F401  (before anything that imports TensorFlow)

# isort: split
import tensorflow as tf

from experiments.result_files import (
    bootstrap_interval,
    columns_of,
    read_summary,
    rows_of,
    to_markdown,
)
from experiments.specification import TASKS, make_specification
from experiments.sweep import execute_sweep
from experiments.tasks import experiment_of
from experiments.units import RunUnit, inference_components
from virl_tf.checkpoint import load_arrays, write_text
from virl_tf.hparams import DIRECTORY, read_yaml
from virl_tf.kde import Kde, fit_kde
from virl_tf.metrics import grid_around, normalise_on_grid
from virl_tf.mixture import Mixture, bic_mixture, moments
from virl_tf.numerics import DENSITY, numpy_seed
from virl_tf.reward import Reward, evaluate
from virl_tf.run_folder import RunFolder, write_json
from virl_tf.tasks import RandomGaussians, Task
from virl_tf.tasks.slice_sampling import slice_sample
from virl_tf.validation import InputError, check_choice, check_integer

AWAY = ("far_share", "outside_share")  # mass of the recovered density away from the demonstrations
SHOWN = (
    *("reported", "kl", "modes_covered", "good_fraction", "reward_correlation", "collision_share"),
    *(*AWAY, "effective_share", "iterations", "cpu_seconds"),
)
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

    @property
    def inferences(self) -> dict[str, dict[str, Any]]:
        """Of `best` also a policy that stays near the demonstrations."""
        near = (
            {"inference_near": {"search": True, "near_data": True}} if self.label == "best" else {}
        )
        return {**super().inferences, **near} if self.inference_components else {}

    def execute(self, folder: Path) -> None:
        """Train, infer, draw from the recovered density; with `best` also KDE and EM on the same
        demonstrations.
        """
        super().execute(folder)
        arrays, task = (
            load_arrays(folder / "demonstrations.npz"),
            experiment_of(self.spec.to_config()).task,
        )
        train, seed = arrays["train"], self.spec.seed
        reward, inside = RunFolder(folder).reward(), getattr(task, "contains", None)
        found: dict[str, Any] = {
            "far_share": far_share(reward, train, arrays["test"], inside, seed)
        }
        if isinstance(task, RandomGaussians) and task.dim == 2:
            found["outside_share"] = outside_share(reward, train)
        if self.label == "best":
            found["references"] = references(task, train, arrays["test"], seed)
        write_json(folder / "ablation.json", found)

    def finished(self, folder: Path) -> bool:
        """That is written last."""
        return (folder / "ablation.json").is_file() and super().finished(folder)


def references(
    task: Task, train: np.ndarray, test: np.ndarray, seed: int
) -> dict[str, dict[str, float]]:
    """The correlation with log p on test demonstrations of densities fitted to the same walks,
    {name: {column: value}}.

    On the Gaussians every run measures its references itself.
    """
    if isinstance(task, RandomGaussians):
        return {}
    densities: dict[str, Mixture | Kde] = {
        "kde_silverman": fit_kde(train, "silverman"),
        "kde_held_out": fit_kde(train, "held_out", seed=numpy_seed(seed, 0, "bandwidth")),
        "em_bic": bic_mixture(train, numpy_seed(seed, 0, "EM")),
    }
    log_p = task.log_prob(test)
    log_q = {
        name: density.log_prob(tf.constant(test, DENSITY)) for name, density in densities.items()
    }
    return {
        name: {"reward_correlation": float(np.corrcoef(values, log_p)[0, 1])}
        for name, values in log_q.items()
    }


def far_share(
    reward: Reward,
    train: np.ndarray,
    test: np.ndarray,
    support: Callable[[Any], Any] | None,
    seed: int,
) -> float:
    """Share of draws of exp(R) that lie farther from every training demonstration than 99.9 % of
    the test demonstrations do.

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


def outside_share(reward: Reward, train: np.ndarray) -> float:
    """Share of the mass of exp(R), in 2-D, outside the evaluation grid: by a grid three times as
    wide and as high around it.
    """
    inner, outer = grid_around(train).axes, grid_around(train, resolution=300, margin=1.15).axes
    points = np.stack(np.meshgrid(*outer, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.exp(normalise_on_grid(evaluate(reward, points)))
    return float(mass[((points < inner[:, 0]) | (points > inner[:, -1])).any(axis=1)].sum())


def ablation_units(
    task: str,
    only: Sequence[str] | None,
    seeds: Sequence[int],
    modes: int | None,
    steps: int | None,
    dim: int | None,
    rows: int | None = None,
    assignments: Sequence[str] = (),
    rewards_only: bool = False,
) -> list[Ablation]:
    """Every ablation (or those named in `only`) with every seed; `assignments` are put over all.

    Raises InputError.

    `rewards_only`: no policy is inferred on them.
    """
    check_choice("task", task, TASKS)
    changes = read_yaml(DIRECTORY / "ablations.yaml")
    names = [check_choice("ablation", name, changes) for name in only] if only else list(changes)
    units = []
    for name in names:
        preset = changes[name].pop("preset", "best")
        change = [
            f"{section}.{key}={_text(v)}"
            for section, keys in changes[name].items()
            for key, v in keys.items()
        ]
        for seed in seeds:
            spec = make_specification(
                task=task,
                modes=modes,
                steps=steps,
                dim=dim,
                rows=rows,
                seed=seed,
                preset=preset,
                assignments=[*assignments, *change],
            )
            components = 0 if rewards_only else inference_components(task, spec.steps) or spec.modes
            units.append(Ablation(spec, components, searches=(True,), label=name))
    return units


def ablate(
    units: Sequence[Ablation],
    assignments: Sequence[str],
    scheduler: str | None,
    workers: int | None,
    out: Path,
) -> None:
    """Do all units (of one task) in `out`, then write results.csv, table.csv and table.md.

    What is finished is skipped.

    Raises:
        InputError: no such scheduler, an `out` of something else; or, at the end, units that
            failed.
    """
    console, task = Console(), units[0].spec.task
    workers = check_integer(
        "--workers", workers if workers is not None else len(os.sched_getaffinity(0)), 1
    )
    RunFolder.open(out, {"ablations": task, "overrides": list(assignments)})
    failures = execute_sweep(units, out, scheduler, workers, console)

    finished = [unit for unit in units if unit.finished(out / unit.name)]
    rows = [{"ablation": unit.label, **row} for unit in finished for row in _rows(out / unit.name)]
    results = pd.DataFrame(
        rows, columns=["ablation", *columns_of(task), "iterations", "effective_share", *AWAY]
    )
    means = table(results)
    write_text(out / "results.csv", results.to_csv(index=False))
    write_text(out / "table.csv", means.to_csv(index=False))
    write_text(out / "table.md", to_markdown(means))
    console.print(
        f"{len(units) - len(failures)} of {len(units)} units finished; {out / 'results.csv'}, {out / 'table.md'}"
    )
    if failures:
        name, error = next(iter(failures.items()))
        raise InputError(
            f"{len(failures)} units failed, the first is {name}: {error.strip().splitlines()[-1]}"
        )


def table(results: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds and 95 % bootstrap interval of each measure, a row per ablation, size and
    stage.
    """
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
    """Of results.csv, with what only ablations have; of `best` also the references (those of the
    run, then its own).
    """
    summary, found = (
        read_summary(folder),
        json.loads((folder / "ablation.json").read_text(encoding="utf-8")),
    )
    effective = summary["effective_sample_size"]
    of_training = {
        "iterations": summary["num_iterations"],
        "effective_share": effective["mean"]
        / effective["of"],  # of the importance weights, over the iterations
        **{name: found[name] for name in AWAY if name in found},
    }
    for row in rows_of(folder):
        yield {**row, **(of_training if row["stage"] == "training" else {})}
    if "references" in found:
        key = {name: summary[name] for name in ("task", "modes", "seed", "preset")}
        measured = summary.get("i_projection", {})
        of_run = {
            name: {"reported": measured[name]["reported"]}
            for name in measured
            if name not in ("reward", "policy")
        }
        for name, values in {**of_run, **found["references"]}.items():
            yield {
                **key,
                "stage": f"reference {name}",
                "method": name,
                **values,
                "status": "finished",
            }


def _text(value: Any) -> str:
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
