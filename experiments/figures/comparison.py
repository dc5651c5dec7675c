"""Published against found hyperparameters."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from experiments.figures.style import Look, explain, open_frame, save
from experiments.result_files import bootstrap_interval

COLOURS = {"published": "0.35", "found": "C0"}


def draw_comparison(values: pd.DataFrame, importances: pd.DataFrame, out: Path) -> None:
    """Left: each fresh seed's objective as a dot, means, from 5 seeds on with 95 % intervals.

    Right: importances of the hyperparameters, with one standard deviation.
    """
    columns = list(values["column"].unique())
    size = (9.6, 1.6 + 0.9 * max(2, len(columns)))
    figure, (left, right) = plt.subplots(1, 2, figsize=size, layout="constrained")
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
            left.plot(chosen, row, "o", color=colour, alpha=0.5, markersize=4)
            left.plot([chosen.mean()], [i + shift], "d", color=colour, label=label)
            left.plot(bootstrap_interval(chosen), [i + shift] * 2, color=colour, linewidth=1.2)
    left.set_yticks(range(len(columns)), columns)
    left.set_ylim(len(columns) - 0.5, -0.5)
    left.set_xlabel("objective on fresh seeds (lower is better)")
    left.legend(frameon=False, fontsize=8)
    if len(importances):
        both = importances.pivot(index="hyperparameter", columns="column")
        table, deviation = both["importance"], both["deviation"]
        order = table.mean(axis=1).sort_values().index
        bars: Look = {"width": 0.8, "legend": len(table.columns) > 1, "xerr": deviation.loc[order]}
        table.loc[order].plot.barh(ax=right, **bars)
        right.set_ylabel("")
        right.set_xlabel("share of the objective's variance in the study")
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
