"""The picture at the end of a run on paths: demonstrations, draws of reward and policy, curves."""

from pathlib import Path

from virl_tf.persistence.run_folder import RunFolder

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.ticker import MaxNLocator

from experiments.figures.overview import curves
from experiments.figures.style import Look, open_frame, read, save

TITLES = {
    "demonstrations": "demonstrations",
    "reward": "draws of the recovered reward",
    "policy": "draws of the policy",
}
OUTLINES: dict[str, Look] = {
    "gates": {"facecolors": "none", "edgecolors": "C2", "linewidths": 1.2, "zorder": 3},
    "obstacles": {"facecolors": "0.35", "edgecolors": "none", "zorder": 3},
}


def draw_paths(run: Path, references: dict[str, float]) -> None:
    """Four panels into the run's folder, from its files.

    Args:
        run: the run's folder.
        references: forward KL divergences to draw as thin lines, by label.
    """
    found = read(run, "paths.npz")
    figure = plt.figure(figsize=(14.5, 3.6), layout="constrained")
    maps, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[3.1, 1.2], wspace=0.03)[0]
    panels = maps.subplots(1, len(TITLES), sharex=True, sharey=True)
    for axes, (name, title) in zip(panels, TITLES.items(), strict=True):
        axes.add_collection(LineCollection(list(found[name]), linewidths=0.5, alpha=0.4))
        for kind, look in OUTLINES.items():
            if kind in found:
                axes.add_collection(PolyCollection(list(found[kind]), **look))
        axes.set_title(title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        open_frame(axes)
    _frame(panels[0], found["demonstrations"].reshape(-1, 2))
    axes, history = right.subplots(), RunFolder(run).table("metrics.csv")
    curves(axes, history, references, "forward_kl", "KL(p || q)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    save(figure, run / "overview")


def _frame(axes: Axes, points: np.ndarray) -> None:
    """Around the demonstrations; of one scale where they are about as wide as high."""
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.05 * (high - low) + 1e-9
    axes.set_xlim(low[0] - margin[0], high[0] + margin[0])
    axes.set_ylim(low[1] - margin[1], high[1] + margin[1])
    widths = high - low
    if 0.5 < widths[0] / max(widths[1], 1e-9) < 2.0:
        for panel in axes.figure.axes[:3]:
            panel.set_aspect("equal")
