"""Published against found hyperparameters, and the plots of a study."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import optuna
import pandas as pd

from experiments.figures.style import open_frame, save
from experiments.result_files import bootstrap_interval

COLOURS = {"published": "0.35", "found": "C0"}


def draw_comparison(values: pd.DataFrame, importances: pd.DataFrame, out: Path) -> None:
    """Left: each fresh seed's objective as a dot, means with 95 % intervals.

    Right: importances of the hyperparameters.
    """
    columns = list(values["column"].unique())
    size = (9.6, 1.6 + 0.9 * max(2, len(columns)))
    figure, (left, right) = plt.subplots(1, 2, figsize=size, layout="constrained")
    for i, column in enumerate(columns):
        for candidate, shift in (("published", -0.15), ("found", 0.15)):
            own = (values["column"] == column) & (values["candidate"] == candidate)
            chosen = values[own]["value"].to_numpy(float)
            colour, label = COLOURS[candidate], candidate if i == 0 else None
            row = np.full(len(chosen), i + shift)
            left.plot(chosen, row, "o", color=colour, alpha=0.5, markersize=4)
            left.plot([chosen.mean()], [i + shift], "d", color=colour, label=label)
            left.plot(bootstrap_interval(chosen), [i + shift] * 2, color=colour, linewidth=1.2)
    left.set_yticks(range(len(columns)), columns)
    left.set_ylim(len(columns) - 0.5, -0.5)
    left.set_xlabel("objective on fresh seeds (lower is better)")
    left.legend(frameon=False, fontsize=8)
    if len(importances):
        table = importances.pivot_table("importance", index="hyperparameter", columns="column")
        table = table.loc[table.mean(axis=1).sort_values().index]
        table.plot.barh(ax=right, width=0.8, legend=len(table.columns) > 1)
        right.set_ylabel("")
        right.set_xlabel("importance in the study")
    else:
        right.set_axis_off()
        few = "too few complete trials for importances"
        right.text(0.5, 0.5, few, ha="center", va="center", color="0.4")
    for axes in (left, right):
        open_frame(axes)
    save(figure, out / "compare")


def draw_study(study: optuna.Study, out: Path) -> None:
    """Optuna's own plots: history, importances, slices, contours of two parameters."""
    import warnings

    from optuna.visualization import matplotlib as plots

    important = list(optuna.importance.get_param_importances(study))[:2]
    drawings: dict[str, Callable[[], Any]] = {
        "history": lambda: plots.plot_optimization_history(study),
        "importances": lambda: plots.plot_param_importances(study),
        "slices": lambda: plots.plot_slice(study),
        "contour": lambda: plots.plot_contour(study, params=important),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in drawings.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            axes = np.ravel(draw())[0]
        figure = axes.figure
        if name == "slices":  # its colour bar has taken room from every panel already
            figure.set_size_inches(2.6 * len(np.ravel(figure.axes)), 4.0)
            figure.subplots_adjust(left=0.05, right=0.76, bottom=0.2)  # the bar stands at 0.79
        else:
            figure.tight_layout()
        save(figure, out / name)
