"""`python -m experiments rank-budgets`: does a cheaper budget rank hyperparameters as `paper` does?

A study at a budget whose ranking is another one finds what is best for that budget.
"""

import dataclasses
import io
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from virl_tf.metrics import correlation
from virl_tf.persistence.files import write_text
from virl_tf.validation import InputError, check_choice, check_integer

import numpy as np
import optuna
import pandas as pd

from experiments.records import Record
from experiments.result_files import DIVERGED, to_markdown
from experiments.screen import counted, screen, warn
from experiments.sweeps.sweep import Workers, execute_sweep, records_of
from experiments.sweeps.sweep_command import check_all_worked, print_left
from experiments.sweeps.units import RunUnit
from experiments.tasks import describe
from experiments.tuning.space import searched, suggest
from experiments.tuning.specification import PRESETS, StudySpecification
from experiments.tuning.study import half_way, objective_value
from experiments.tuning.study_folder import check_no_sweep

FEWEST_POINTS = 3
PERMUTATIONS = 10_000  # of a p value
CHANCE = 0.05


def rank_budgets(
    study: StudySpecification, presets: Sequence[str], points: int, workers: Workers, out: Path
) -> None:
    """Run random points of a study's space at each budget, and compare the budgets' rankings.

    Writes budgets.csv, a row for each run, and budgets.md. What is finished is skipped.

    Args:
        study: whose space, target and seeds these are; its preset does not count.
        presets: budgets, the one last that the others are compared with.

    Raises:
        InputError: unknown presets, fewer than two of them or than three points, the folder of a
            sweep, or runs that failed.
    """
    console, units = screen(), _units(study, presets, points)
    check_no_sweep(out)
    out.mkdir(parents=True, exist_ok=True)
    failures = execute_sweep(units, out, workers, console)
    records = records_of(units, out)
    rows = [_row(unit, records[unit.name]) for unit in units if unit.name in records]
    values = pd.DataFrame(rows)
    write_text(out / "budgets.csv", values.to_csv(index=False))
    check_all_worked(failures, units, out)
    table = agreement(values, presets)
    text = to_markdown(table)
    write_text(out / "budgets.md", text)
    console.out(text)
    if others := _that_rank_otherwise(table):
        warn(
            f"{' and '.join(others)}: no agreement with {presets[-1]} beyond chance: a study there "
            f"may find what is worse at {presets[-1]}. Tune at {presets[-1]}, or give more --seeds "
            "or --points to tell."
        )
    console.out(f"{out / 'budgets.csv'} and .md")


def preview(
    study: StudySpecification, presets: Sequence[str], points: int, workers: Workers, out: Path
) -> None:
    """Say how many runs there are, how many are finished, and how long the rest will take.

    Nothing is done or written.

    Raises:
        InputError: as `rank_budgets`.
    """
    units = _units(study, presets, points)
    check_no_sweep(out)
    print_left(f"{counted(len(units), 'run')} in {out}", units, workers, out)


def _units(study: StudySpecification, presets: Sequence[str], points: int) -> list[RunUnit]:
    """Every point at each budget and seed. Raises InputError as `rank_budgets`."""
    check_integer("--points", points, FEWEST_POINTS)
    if len(presets) < 2 or len(presets) > len(set(presets)):
        text = "--presets needs two or more different ones, the one last that counts: quick,paper."
        raise InputError(text)
    for preset in presets:
        check_choice("preset of a study", preset, PRESETS)
    chosen = random_points(study, points)
    return [
        RunUnit(run.run(seed, overrides), 0, prefix=f"point-{i:02d}-", row=run.preset, label=i)
        for run in (dataclasses.replace(study, preset=preset) for preset in presets)
        for seed in study.seeds
        for i, overrides in enumerate(chosen)
    ]


def random_points(study: StudySpecification, number: int) -> list[dict[str, dict[str, Any]]]:
    """Points of a study's space as overrides, drawn uniformly; always the same ones."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    drawing = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    space = searched(study.task, study.method, study.components)
    return [suggest(drawing.ask(), space) for _ in range(number)]


def _row(unit: RunUnit, record: Record) -> dict[str, Any]:
    summary: Mapping[str, Any] = record.summaries["."]
    value = objective_value(summary)
    bad = summary["status"] == DIVERGED or not math.isfinite(value)
    return {
        "point": unit.label,
        "preset": unit.spec.preset,
        "seed": unit.spec.seed,
        "value": math.inf if bad else value,
        "half_way": _half_way(unit, record),
        "cpu_seconds": summary["cpu_seconds"]["process"],
    }


def _half_way(unit: RunUnit, record: Record) -> float:
    """The best value when pruning begins; infinite if it was not finite by then."""
    history = pd.read_csv(io.BytesIO(record.files["metrics.csv"]))
    until = history[describe(unit.spec.task).objective][: half_way(unit.spec.hparams) + 1]
    return float(until.min()) if np.isfinite(until).all() else math.inf


def agreement(values: pd.DataFrame, presets: Sequence[str]) -> pd.DataFrame:
    """For each budget Spearman's correlation of its points' ranks with the last budget's.

    A point's value is the mean over seeds; one that diverged at any seed comes last. Of several
    seeds, how well one ranks as another does at the same budget: a budget whose own seeds disagree
    cannot agree with another one. And how well half a run tells, where pruning begins.
    """
    means = values.groupby(["preset", "point"])["value"].mean().unstack("preset")
    ranks = means.rank()
    last = presets[-1]
    rows = []
    for preset in presets:
        own = values[values["preset"] == preset]
        agreed = correlation(ranks[preset], ranks[last])
        row = {"budget": preset, f"rank correlation with {last}": f"{agreed:.2f}"}
        row["p"] = "-" if preset == last else f"{_p_value(ranks[preset], ranks[last]):.2g}"
        if values["seed"].nunique() > 1:
            row["between seeds"] = f"{_between_seeds(own):.2f}"
        row["pairs right half way"] = f"{_right_pairs(own['half_way'], own['value']):.2f}"
        best: Any = means[preset].idxmin()
        told = str(best), f"{ranks[last][best]:.0f} of {len(ranks)}"
        if np.isinf(means[preset].min()):  # all points diverged
            told = "none", "none"
        row["best point"], row[f"its rank at {last}"] = told
        row["diverged points"] = str(int(np.isinf(means[preset]).sum()))
        row["CPU seconds of a run"] = f"{own['cpu_seconds'].mean():.0f}"
        rows.append(row)
    return pd.DataFrame(rows)


def _that_rank_otherwise(table: pd.DataFrame) -> list[str]:
    """The budgets of `agreement` whose correlation is not above chance."""
    budgets = table[table["p"] != "-"]
    correlations = budgets.iloc[:, 1].astype(float)
    agree = (budgets["p"].astype(float) <= CHANCE) & (correlations > 0.0)
    return list(budgets["budget"][~agree])


def _between_seeds(values: pd.DataFrame) -> float:
    """The mean of the rank correlations of each two seeds of a budget; nan of a single one."""
    ranks = values.pivot(index="point", columns="seed", values="value").rank()
    pairs = itertools.combinations(ranks.columns, 2)
    found = [correlation(ranks[a], ranks[b]) for a, b in pairs]
    return float(np.mean(found)) if found else math.nan


def _right_pairs(early: pd.Series, late: pd.Series) -> float:
    """The share of pairs of runs whose order is that of their ends (concordance; by chance 0.5)."""
    x, y = early.rank().to_numpy(), late.rank().to_numpy()
    of_early, of_late = np.sign(x[:, None] - x), np.sign(y[:, None] - y)
    differ = of_late != 0.0
    return float((1.0 + (of_early * of_late)[differ].mean()) / 2.0) if differ.any() else math.nan


def _p_value(x: Any, y: Any) -> float:
    """Of a correlation as far from zero, by exchanging the points: many that diverged share a rank,
    of which the usual formula knows nothing.
    """
    found = correlation(x, y)
    if math.isnan(found):
        return math.nan
    rng = np.random.default_rng(0)
    by_chance = [abs(correlation(x, rng.permutation(y))) for _ in range(PERMUTATIONS)]
    return (1 + int(np.sum(np.array(by_chance) >= abs(found) - 1e-9))) / (1 + PERMUTATIONS)
