"""Published against found hyperparameters."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.figures.style import Look, explain, open_frame, save
from experiments.result_statistics import bootstrap_interval

COLOURS = {"published": "0.35", "found": "C0"}


def draw_comparison(values: pd.DataFrame, importances: pd.DataFrame, out: Path) -> None:
    """Left the objective on fresh seeds, right the importances of the hyperparameters."""
    size = (9.6, 1.6 + 0.9 * max(2, values["column"].nunique()))
    figure, (left, right) = plt.subplots(1, 2, figsize=size, layout="constrained")
    _draw_values(left, values)
    if len(importances):
        _draw_importances(right, importances)
    else:
        right.set_axis_off()
        few = "too few complete trials for importances"
        right.text(0.5, 0.5, few, ha="center", va="center", color="0.4")
    for axes in (left, right):
        open_frame(axes)
    explain(
        figure,
        "Published against found hyperparameters",
        "left: dots: a seed each; diamonds: means; lines, from 5 seeds on: 95 % intervals; "
        "right: fANOVA, lines: a standard deviation over its forests",
    )
    save(figure, out / "compare")


def _draw_values(axes: Axes, values: pd.DataFrame) -> None:
    """Each seed's objective as a dot, means, from 5 seeds on with 95 % intervals."""
    columns = list(values["column"].unique())
    labelled: set[str] = set()
    for i, column in enumerate(columns):
        for candidate, shift in (("published", -0.15), ("found", 0.15)):
            own = (values["column"] == column) & (values["candidate"] == candidate)
            chosen = values[own]["value"].to_numpy(float)
            if not np.isfinite(chosen).any():  # all failed, or published was not beaten
                continue
            colour = COLOURS[candidate]
            label = None if candidate in labelled else candidate
            labelled.add(candidate)
            row = np.full(len(chosen), i + shift)
            axes.plot(chosen, row, "o", color=colour, alpha=0.5, markersize=4)
            axes.plot([chosen.mean()], [i + shift], "d", color=colour, label=label)
            axes.plot(bootstrap_interval(chosen), [i + shift] * 2, color=colour, linewidth=1.2)
    axes.set_yticks(range(len(columns)), columns)
    axes.set_ylim(len(columns) - 0.5, -0.5)
    axes.locator_params(axis="x", nbins=5)  # values that differ in the fourth digit are long
    axes.set_xlabel("objective on fresh seeds (lower is better)")
    if labelled:  # else matplotlib warns on the screen
        axes.legend(frameon=False, fontsize=8)


def _draw_importances(axes: Axes, importances: pd.DataFrame) -> None:
    """A bar for each hyperparameter and column, with one standard deviation."""
    both = importances.pivot(index="hyperparameter", columns="column")
    table, deviation = both["importance"], both["deviation"]
    order = table.mean(axis=1).sort_values().index
    bars: Look = {"width": 0.8, "legend": len(table.columns) > 1, "xerr": deviation.loc[order]}
    table.loc[order].plot.barh(ax=axes, **bars)
    axes.set_ylabel("")
    axes.set_xlabel("importance in the study (fANOVA, normalised)")
