"""The picture at the end of a run: target, recovered reward, policy, and how they came closer."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from virl_tf.persistence.policy_file import load_policy
from virl_tf.persistence.run_folder import RunFolder

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from experiments.figures.style import (
    Look,
    crosses,
    ellipses,
    explain,
    heat_map,
    open_frame,
    read,
    save,
    task_mixture,
)


def draw_overview(run: Path, references: dict[str, float]) -> None:
    """Four panels into the run's folder, from its files; the curves alone if the data is not 2-D or
    has contexts.

    Args:
        run: the run's folder.
        references: I-projections to draw as thin lines, by label.
    """
    history, policy = RunFolder(run).table("metrics.csv"), load_policy(run / "policy.npz")
    if policy.dim != 2 or policy.num_contexts:
        figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
        curves(axes, history, references)
        save(figure, run / "overview")
        return
    grid = read(run, "grid.npz")
    target = task_mixture(run)
    figure = plt.figure(figsize=(14.5, 4.0), layout="constrained")
    maps, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[3.1, 1.2], wspace=0.03)[0]
    axes = maps.subplots(1, 3)
    titles, keys = ("expert", "recovered reward", "policy"), ("log_p", "reward", "log_policy")
    mixtures = (target, target, policy)
    for panel, title, key, mixture in zip(axes, titles, keys, mixtures, strict=True):
        image = heat_map(panel, grid["axes"], grid[key])
        ellipses(panel, mixture)
        panel.set_title(title)
    crosses(axes[0], read(run, "demonstrations.npz")["train"])
    explain(
        figure,
        "",
        "crosses: demonstrations; ellipses: 95 % of the components of the expert, and on the "
        "right map of the policy; curves: distance to the expert, lower is better; grey: "
        "densities of the same demonstrations without a reward",
    )
    maps.colorbar(image, ax=axes, label="nats below the maximum", shrink=0.85)
    curves(right.subplots(), history, references)
    save(figure, run / "overview")


def curves(
    axes: plt.Axes,
    history: pd.DataFrame,
    references: dict[str, float],
    measure: str = "i_projection",
    label: str = "KL(q || p)",
) -> None:
    """A distance of reward and policy against the iteration; references above 0 as lines labelled
    at their end.
    """
    iterations = history["t"] + 1
    reward, policy = history[f"{measure}_reward"], history[f"{measure}_policy"]
    axes.plot(iterations, reward, "o-", markersize=3, color="C0", label="recovered reward")
    axes.plot(iterations, policy, "s-", markersize=3, color="C1", label="policy")
    axes.set_yscale("log")
    # An estimate from draws may be below 0.
    references = {label: value for label, value in references.items() if value > 0.0}
    for value in sorted(references.values()):  # a lowest line drawn later has no margin
        axes.axhline(value, color="0.5", linewidth=0.7, zorder=0)
    low, high = np.log(axes.get_ylim())
    heights = [(np.log(value) - low) / (high - low) for value in references.values()]
    for name, height in zip(references, apart(heights, 0.055), strict=True):
        look: Look = {"fontsize": 7, "va": "center", "color": "0.35"}
        axes.annotate(name, (1.01, height), xycoords="axes fraction", **look)
    axes.set_xlabel("iterations")
    axes.xaxis.set_major_locator(plt.MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_ylabel(label)
    axes.legend(fontsize=7, loc="best", framealpha=1.0, edgecolor="none")
    open_frame(axes)


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """The heights, in the same order, the higher of two that are closer than `gap` moved up."""
    moved = np.array(heights)
    order = np.argsort(moved, kind="stable")
    for lower, higher in pairwise(order):
        moved[higher] = max(moved[higher], moved[lower] + gap)
    return moved.tolist()
