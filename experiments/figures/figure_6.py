"""Figure 6: how the grid walker is made, and its demonstrations."""

from pathlib import Path

from virl_tf.tasks import GridWalker

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Polygon

from experiments.figures import walks
from experiments.figures.style import Look, save

TARGET = "red"
FIRST, SECOND = "C0", "C1"  # two walks whose steps differ in their order only
CENTER = {"ha": "center", "va": "center"}
LABEL: Look = {"textcoords": "offset points", "fontsize": 8, "color": "0.2", **CENTER}


def draw_figure_6(run: Path, out: Path) -> None:
    """Left the construction (cone, vertical lines, shared waypoints), right 200 demonstrations."""
    task = walks.walk_task(run, "6")
    length = task.spacing * task.dim
    # As high as the cone on the last line.
    layout = walks.Layout(9.0, (length, 0.0), half_height=length, legend_lines=2)
    figure, (left, right) = walks.panel_row(task, layout)
    for axes in (left, right):
        walks.target_lines(axes, task, TARGET)
    construction(left, task)
    x = walks.demonstrations(run)
    walks.draw_walks(right, task, x, "black", opacity=0.22, width=0.7)
    right.set_title(f"{len(x)} expert samples, d = {task.dim}")
    entries = [
        walks.line("grid walker (first half)", "0.45"),
        walks.line("second half", walks.GRID, walks.DASHED, 0.8),
        walks.line("equidistant (target) lines", TARGET, ":"),
        walks.marker("90° cone", "0.88", "s", 9.0),
        walks.line("a walk", FIRST, width=2.2),
        walks.line("the same steps, in another order", SECOND, walks.DASHED, 2.2),
        walks.marker("shared waypoints", "0.3", "o", 3.5),
        walks.line("expert sample", "0.4", width=0.7),
    ]
    walks.legend_below(figure, entries, columns=4)
    save(figure, out / "figure_6")


def construction(axes: Axes, task: GridWalker) -> None:
    """The first half's grid in its cone, the second half's behind, two walks sharing waypoints."""
    length = task.spacing * task.dim
    cone = [(0.0, 0.0), (length, length), (length, -length)]
    axes.add_patch(Polygon(cone, facecolor="0.94", edgecolor="none", zorder=0.1))
    waypoints = task.waypoints(task.mode_centers).numpy()
    mirrored = waypoints * [-1.0, 1.0] + [2.0 * length, 0.0]
    walks.polylines(axes, mirrored, walks.GRID, width=0.8, style=walks.DASHED, zorder=1.0)
    axes.plot(2.0 * length, 0.0, "o", color=walks.GOAL, markersize=7)
    walks.polylines(axes, waypoints, "0.45", width=0.9, zorder=1.5)
    shared = np.unique(waypoints.reshape(-1, 2).round(9), axis=0)
    axes.plot(*shared.T, "o", color="0.3", markersize=3.5, zorder=4.0)
    first, second = same_steps(task)
    walks.draw_walks(axes, task, first[None], FIRST, width=2.2, zorder=3.0)
    walks.draw_walks(axes, task, second[None], SECOND, width=2.2, style=walks.DASHED, zorder=3.1)
    lengths(axes, task)
    axes.set_title("construction")


def same_steps(task: GridWalker) -> tuple[np.ndarray, np.ndarray]:
    """Two modes [d]: up, down, up, ..., and with the first two of every three steps swapped."""
    first = np.where(np.arange(task.dim) % 3 == 1, -1.0, 1.0) * np.arccos(task.spacing)
    second = first.copy()
    for i in range(0, task.dim - 1, 3):
        second[[i, i + 1]] = first[[i + 1, i]]
    return first, second


def lengths(axes: Axes, task: GridWalker) -> None:
    """The distance of two lines, below the grid, and the length of a step, on the first one up."""
    low, height = 0.93 * axes.get_ylim()[0], np.sqrt(1.0 - task.spacing**2)
    arrow = {"arrowstyle": "<->", "color": "0.2", "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (0.0, low), (task.spacing, low), arrowprops=arrow)
    axes.annotate(f"{task.spacing:g}", (0.5 * task.spacing, low), xytext=(0, 8), **LABEL)
    axes.annotate("1", (0.5 * task.spacing, 0.5 * height), xytext=(-6, 8), **LABEL)
