"""The pictures of a study, from its trials."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import optuna
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import MaxNLocator
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from experiments.figures.style import Look, log_ticks, open_frame, save

PUBLISHED = "C3"
MOST_PER_ROW = 4
WHOLE: Look = {"integer": True, "min_n_ticks": 2}


def draw_study(study: optuna.Study, importances: pd.DataFrame, out: Path) -> None:
    """history, importances, slices and pair, each as .png and .pdf, into `out`.

    Args:
        importances: `importance` and `deviation` of each hyperparameter, the most important first.
    """
    out.mkdir(parents=True, exist_ok=True)
    names = list(importances.index)
    trials = study.get_trials(deepcopy=False)
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    draw_history(trials, out)
    draw_importances(importances, out, len(complete))
    draw_slices(complete, names, out)
    if len(names) > 1:
        draw_pair(complete, names[:2], out)


def draw_history(trials: Sequence[FrozenTrial], out: Path) -> None:
    """Objective against the trial's number, pruned ones where they were given up."""
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    pruned = [t for t in trials if t.state == TrialState.PRUNED and t.intermediate_values]
    numbers = [trial.number for trial in complete]
    values = [trial.values[0] for trial in complete]
    axes.plot(numbers, values, "o", color="C0", markersize=4, label="complete")
    last = [trial.intermediate_values[max(trial.intermediate_values)] for trial in pruned]
    given_up: Look = {"color": "0.5", "markersize": 4, "label": "pruned, at its last value"}
    if pruned:
        axes.plot([trial.number for trial in pruned], last, "x", **given_up)
    best = np.minimum.accumulate(values)
    axes.step(numbers, best, where="post", color="C0", linewidth=1.0, label="best so far")
    published = [trial for trial in complete if trial.user_attrs.get("published")]
    if published:
        look: Look = {"color": PUBLISHED, "markersize": 9, "label": "published column"}
        points = [trial.number for trial in published], [trial.values[0] for trial in published]
        axes.plot(*points, "*", **look, zorder=3)
    _objective_axis(axes, [*values, *last])
    axes.xaxis.set_major_locator(MaxNLocator(**WHOLE))
    axes.set_xlabel("trial")
    title(axes, f"{len(complete)} complete trials of {len(trials)}")
    axes.set_ylabel("objective (lower is better)")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    open_frame(axes)
    save(figure, out / "history")


def title(axes: Axes, text: str) -> None:
    """Small: what a picture rests on."""
    axes.set_title(text, fontsize=8, loc="left")


def _objective_axis(axes: Axes, values: Sequence[float]) -> None:
    """Logarithmic, or cut where values are not positive: a bad trial would hide the good ones."""
    if min(values) > 0.0:
        axes.set_yscale("log")
        log_ticks(axes.yaxis, values, (1.0, 2.0, 5.0))
        return
    most = _most_shown(values)
    beyond = sum(value > most for value in values)
    if beyond:
        lowest = min(values)
        axes.set_ylim(lowest - 0.05 * (most - lowest), most)
        above: Look = {"xycoords": "axes fraction", "fontsize": 8, "va": "top"}
        axes.annotate(f"{beyond} above", (0.02, 0.98), **above)


def _most_shown(values: Any) -> float:
    """Four times as far above the lowest value as a quarter of the values reach; all of them where
    that is nowhere.
    """
    lowest, quarter, highest = np.quantile(values, [0.0, 0.25, 1.0])
    return float(lowest + 4.0 * (quarter - lowest) if quarter > lowest else highest)


def draw_importances(importances: pd.DataFrame, out: Path, trials: int) -> None:
    """A bar for each hyperparameter, the most important on top; of few trials they say little."""
    size = (6.4, 0.8 + 0.32 * len(importances))
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    rows = importances[::-1]
    bars: Look = {"color": "C0", "xerr": rows["deviation"], "ecolor": "0.3"}
    axes.barh(rows.index, rows["importance"], **bars)
    axes.set_xlabel("importance (fANOVA, normalised)")
    title(axes, f"estimated from {trials} complete trials")
    open_frame(axes)
    save(figure, out / "importances")


def draw_slices(complete: Sequence[FrozenTrial], names: Sequence[str], out: Path) -> None:
    """The objective against each hyperparameter alone; the colour is the trial's number."""
    columns = min(MOST_PER_ROW, len(names))
    rows = -(-len(names) // columns)
    options: Look = {"sharey": True, "squeeze": False, "layout": "constrained"}
    size = (2.4 * columns + 0.8, 2.3 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, **options)
    values = [trial.values[0] for trial in complete]
    for axes, name in zip(grid.flat, names, strict=False):
        x = [trial.params[name] for trial in complete]
        look: Look = {"c": [trial.number for trial in complete], "cmap": "viridis_r", "s": 14}
        points = axes.scatter(x, values, **look)
        _parameter_axis(axes, "x", name, complete)
        open_frame(axes)
    _objective_axis(grid[0, 0], values)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    title(grid[0, 0], f"{len(complete)} complete trials; lower is better")
    for row in grid:
        row[0].set_ylabel("objective")
    bar = figure.colorbar(points, ax=grid, label="trial", pad=0.01)
    bar.locator = MaxNLocator(**WHOLE)
    bar.update_ticks()
    save(figure, out / "slices")


def draw_pair(complete: Sequence[FrozenTrial], names: Sequence[str], out: Path) -> None:
    """The trials over the two most important hyperparameters, coloured by their objective.

    Nothing is drawn between them: there is no network with two and a half layers.
    """
    figure, axes = plt.subplots(figsize=(5.2, 3.8), layout="constrained")
    values = np.array([trial.values[0] for trial in complete])
    positive, most = values.min() > 0.0, values.max()
    if not positive:
        most = min(most, _most_shown(values))
    norm = (LogNorm if positive else Normalize)(values.min(), most)
    order = np.argsort(-values)  # the best on top
    x, y = (np.array([float(trial.params[name]) for trial in complete])[order] for name in names)
    look: Look = {"c": values[order], "cmap": "viridis_r", "s": 40, "edgecolors": "0.3"}
    points = axes.scatter(x, y, norm=norm, linewidths=0.4, **look)
    for which, name in zip("xy", names, strict=True):
        _parameter_axis(axes, which, name, complete)
    title(axes, f"{len(complete)} complete trials")
    beyond = "max" if most < values.max() else "neither"
    told: Look = {"label": "objective (lower is better)", "format": "{x:g}", "extend": beyond}
    bar = figure.colorbar(points, **told)
    if positive:
        log_ticks(bar.long_axis, values, (1.0, 2.0, 5.0))
    open_frame(axes)
    save(figure, out / "pair")


def _parameter_axis(axes: Axes, which: str, name: str, trials: Sequence[FrozenTrial]) -> None:
    """Label, scale and ticks of an axis with a hyperparameter, over the values that were tried."""
    distribution, axis = trials[0].distributions[name], getattr(axes, f"{which}axis")
    getattr(axes, f"set_{which}label")(name)
    axes.tick_params(labelsize=7)
    if isinstance(distribution, FloatDistribution) and distribution.log:
        getattr(axes, f"set_{which}scale")("log")
        log_ticks(axis, [trial.params[name] for trial in trials], (1.0, 5.0), numticks=4)
    elif isinstance(distribution, IntDistribution):
        axis.set_major_locator(MaxNLocator(4, **WHOLE))
    elif isinstance(distribution, FloatDistribution):
        axis.set_major_locator(MaxNLocator(3))
    elif isinstance(distribution, CategoricalDistribution):
        choices: list[Any] = list(distribution.choices)
        axis.set_ticks(range(len(choices)), [str(choice) for choice in choices])
        getattr(axes, f"set_{which}lim")(-0.5, len(choices) - 0.5)
