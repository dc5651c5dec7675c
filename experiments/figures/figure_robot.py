"""The planar robot: the arms of a policy, from `python -m experiments benchmark vips`."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from experiments.figures.style import Look, explain, read, save


def draw_figure_robot(results: Path, out: Path) -> None:
    """Left the mean of every component, as opaque as it is heavy; right draws; crosses: goals."""
    arrays = read(results, "robot.npz")
    options: Look = {"layout": "constrained", "sharex": True, "sharey": True}
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.0, 4.7), **options)
    weights = arrays["weights"] / arrays["weights"].max()
    used = weights > 1e-3
    arms(left, arrays["means"][used], list(0.15 + 0.85 * weights[used]), 1.2)
    arms(right, arrays["draws"], [0.25] * len(arrays["draws"]), 0.7)
    left.set_title(f"means of {used.sum()} components")
    right.set_title(f"{len(arrays['draws'])} draws of the policy")
    for axes in (left, right):
        axes.scatter(*arrays["goals"].T, marker="x", s=50, color="red", zorder=3)
        axes.plot(0.0, 0.0, "s", color="0.2", markersize=6)
        axes.set_aspect("equal")
        axes.set_xlim(-8.5, 8.5)
        axes.set_ylim(-8.5, 8.5)
        axes.set_xlabel("x, link lengths")
    left.set_ylabel("y, link lengths")
    explain(
        figure,
        "Planar robot: arms of a policy fitted to reach one of four goals",
        "square: where the arm is fixed; crosses: goals of its tip; left, the heavier a component "
        "the darker its arm",
    )
    save(figure, out / "figure_robot")


def arms(axes: Axes, joints: np.ndarray, opacity: list[float], width: float) -> None:
    """Polylines [N, D + 1, 2]."""
    axes.add_collection(LineCollection(list(joints), colors="C0", alpha=opacity, linewidths=width))
