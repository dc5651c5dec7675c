"""Figure 6: how the grid walker is made, and its demonstrations."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Polygon

from experiments.figures import walks
from experiments.figures.style import save
from virl_tf.tasks import GridWalker, PathPlanning

FIRST, SECOND = "C0", "C1"  # two walks with some of their steps swapped
LABEL = {"fontsize": 7.5, "color": "0.25"}


def draw_figure_6(run: Path, out: Path) -> None:
    """Left the construction (cone, vertical lines, waypoints that walks share), right 200 demonstrations and the target lines."""
    task = walks.walk_task(run, "grid_walker")
    height = task.dim * np.sin(np.arccos(task.spacing)) + 1.0
    right_of_left = 2 * task.spacing * task.dim + 2 * walks.MARGIN
    right_of_right = task.spacing * task.dim + 2 * walks.MARGIN
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.0, 4.4), layout="constrained", width_ratios=[right_of_left, right_of_right]
    )
    construction(left, task)
    x = walks.demonstrations(run)
    walks.draw_walks(right, task, x, "black", opacity=0.22, width=0.7)
    walks.target_lines(right, task, "red")
    walks.ends(right, task)
    right.set_title(f"{len(x)} expert samples, d = {task.dim}")
    for axes in (left, right):
        walks.frame(axes, task)
        axes.set_ylim(-height, height)
    left.set_xlim(-walks.MARGIN, right_of_left - walks.MARGIN)
    walks.legend_below(
        figure,
        [
            walks.line("first half: the grid walker", "0.45"),
            walks.line("second half", walks.GRID, (0, (3, 3)), 0.8),
            walks.line("two walks with the same steps", FIRST, width=2.0),
            walks.line("in another order", SECOND, width=2.0),
            walks.line("target lines", "red", ":", 1.0),
        ],
    )
    save(figure, out / "figure_6")


def construction(axes: Axes, task: GridWalker) -> None:
    """The rotated grid inside the cone: vertical lines at equal distances, the second half of path planning faint."""
    reach = task.spacing * task.dim + walks.MARGIN
    axes.add_patch(Polygon([(0, 0), (reach, reach), (reach, -reach)], facecolor="C0", alpha=0.07, edgecolor="none", zorder=0.1))
    walks.target_lines(axes, task, "red")
    whole_grid(axes, task)
    steps = np.arange(task.dim)
    angle = np.arccos(task.spacing)
    first = np.where(steps % 4 < 2, 1.0 - 2.0 * (steps % 2), -1.0 + 2.0 * (steps % 2)) * angle  # up, down, down, up, ...
    second = np.roll(first, 1)
    for x, colour in ((first, FIRST), (second, SECOND)):
        walks.draw_walks(axes, task, x[None], colour, width=2.0, zorder=3.0)
    walks.ends(axes, task)
    axes.set_title("construction")


def whole_grid(axes: Axes, task: GridWalker) -> None:
    """The walker's modes with their shared waypoints, and the paths that path planning would continue them with."""
    walks.draw_walks(axes, task, task.mode_centers, "0.45", width=0.9, zorder=1.5)
    waypoints = np.unique(task.waypoints(task.mode_centers).numpy().reshape(-1, 2).round(9), axis=0)
    axes.plot(*waypoints.T, "o", color="0.3", markersize=3.0, zorder=2.5)
