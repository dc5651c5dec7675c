"""Figure 2b: I-projection against the number of target modes, for every method and size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.figures.published import lay_published, read_published
from experiments.figures.style import COLOURS, LABELS, Look, explain, open_frame, save
from experiments.pooled_results import read_results
from experiments.references import LABELS as REFERENCES
from experiments.result_files import DIVERGED, TARGET
from experiments.result_statistics import select
from experiments.screen import counted

# The references that are drawn; more would hide the curves.
DASHES: dict[str, Any] = {
    "kde": ":",
    "kde_held_out": "--",
    "em_target": "-.",
    "em_bic": (0, (3, 1, 1, 1, 1, 1)),
    "best_1c": (0, (1, 4)),
    "best_10c": (0, (5, 4)),
}


BANDS = (
    "lines: means over seeds; bands: one standard deviation, downwards at most half the mean; "
    "lower is better; above: runs that diverged, a number where several did"
)
CURVE = ["method", "components"]  # what tells curves of a stage apart
CURVES = [("training", method, components) for method in LABELS for components in (1, 10)]


def draw_figure_2b(
    sweeps: Path | Sequence[Path], out: Path, pool: bool = False, published: Path | None = None
) -> None:
    """Mean and spread over seeds of (best + final) / 2; references; what diverged, above.

    `published`: points read off the paper's figure, laid beside ours (figures/published.py).
    """
    points = None if published is None else read_published(published, CURVES)
    results = read_results(sweeps, "gaussians", pool)
    figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    for method, label in LABELS.items():
        for components, style, marker in ((1, "--", "s"), (10, "-", "o")):
            chosen = select(results, ("training", method, components))
            curve(axes, chosen, COLOURS[method], style + marker, f"{label} {components}c")
    for name in DASHES:
        reference(axes, results, name)
    if points is not None:
        lay_published(axes, points, CURVES)
    finish(axes, results, ("training",), published=points)
    explain(
        figure,
        "Recovered rewards against the number of the expert's modes",
        f"1c, 10c: components of the training policy; {BANDS}; grey: densities of the same "
        "demonstrations without a reward, and policies that VIPS fits to the truth",
    )
    save(figure, out / "figure_2b")


def means(chosen: pd.DataFrame) -> pd.Series:
    """Over seeds, by modes; nan where a run has no value: of the others alone it would be too good.

    (The mean of pandas leaves it out; `skipna` for groups is of its version 3.)
    """
    return chosen.groupby("modes")["reported"].agg(lambda values: values.to_numpy(float).mean())


def curve(axes: Axes, chosen: pd.DataFrame, colour: str, style: str, label: str) -> None:
    """Mean over seeds with a band of one standard deviation; nothing of no runs."""
    if chosen.empty:
        return
    mean, spread = means(chosen), chosen.groupby("modes")["reported"].std().fillna(0.0)
    axes.plot(mean.index, mean, style, color=colour, markersize=4, label=label, zorder=3)
    low = np.maximum(mean - spread, 0.5 * mean)  # the axis is logarithmic
    band: Look = {"alpha": 0.15, "linewidth": 0, "zorder": 2}
    axes.fill_between(mean.index, low, mean + spread, color=colour, **band)


def reference(axes: Axes, results: pd.DataFrame, name: str) -> None:
    """Thin grey line of the means, with dots: a single number of modes shows, too."""
    mean = means(select(results, ("reference", name, 0)))
    if len(mean):
        look: Look = {"color": "0.45", "markersize": 3, "linewidth": 0.8, "linestyle": DASHES[name]}
        axes.plot(mean.index, mean, ".", **look, label=REFERENCES[name], zorder=1)


def mark_diverged(axes: Axes, results: pd.DataFrame, what: str) -> None:
    """A line of marks above the axes for each method and size: + of 1 component, x of more; beside
    one of several runs, how many.

    `what` diverged, for the legend.
    """
    diverged = results[results["status"] == DIVERGED].drop_duplicates([*TARGET, *CURVE])
    above: Look = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    for line, (key, runs) in enumerate(diverged.groupby(CURVE)):
        method, components = key
        height, colour = 1.02 + 0.035 * line, COLOURS.get(str(method), "0.3")
        sign = "+" if components == 1 else "x"
        counts = runs.groupby("modes").size()
        axes.plot(counts.index, np.full(len(counts), height), sign, color=colour, **above)
        beside: Look = {"textcoords": "offset points", "va": "center", "color": colour}
        for modes, count in counts[counts > 1].items():
            place = {"xy": (modes, height), "xycoords": above["transform"], "xytext": (5, 0)}
            axes.annotate(str(count), **place, **beside, fontsize=7)
        number = counted(len(runs), "run")
        label = f"{LABELS.get(str(method), method)} {components}c: {what} ({number})"
        axes.plot([], [], sign, color=colour, label=label)


def finish(
    axes: Axes,
    results: pd.DataFrame,
    stages: tuple[str, ...],
    what: str = "diverged",
    published: pd.DataFrame | None = None,
) -> None:
    """Axes, which reach the `published` points, too, legend, and `mark_diverged`."""
    mark_diverged(axes, results[results["stage"].isin(stages)], what)
    values = results.loc[results["stage"].isin(stages), "reported"]
    sizes = set(results["modes"])
    if published is not None:
        values, sizes = pd.concat([values, published["value"]]), sizes | set(published["modes"])
    positive = values[np.isfinite(values) & (values > 0.0)]  # estimates from draws may be below 0
    if len(positive):  # a sweep that is under way may have no curve yet
        axes.set_yscale("log")
        # A reference may be exact (0 with a component for every mode) and squeeze the curves.
        axes.set_ylim(bottom=0.5 * positive.min())
    axes.set_xlabel("target components m")
    axes.set_ylabel("I-projection KL(q || p)")
    axes.set_xticks(sorted(sizes))
    lines = [line for line in axes.get_legend_handles_labels()[0] if _is_seen(axes, line)]
    place: Look = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    if lines:
        look: Look = {"fontsize": 7, "handlelength": 4, "markerscale": 0.8}
        axes.legend(handles=lines, frameon=False, **look, **place)
    open_frame(axes)


def _is_seen(axes: Axes, line: Any) -> bool:
    """Whether any of it is within the axes; a sign without data stands for marks above them."""
    values, (low, high) = np.asarray(line.get_ydata(), float), axes.get_ylim()
    return not len(values) or bool(((low <= values) & (values <= high)).any())
