"""What the figures of the walks share, and the picture at the end of their runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.methods import METHODS
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.tasks import GridWalker, PathPlanning
from virl_tf.validation import InputError

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import to_rgb, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator

from experiments.figures.style import COLOURS, LABELS, Look, open_frame, read, save
from experiments.tasks import describe, descriptions

SHOWN = 200  # demonstrations in a panel, as in Figure 6
MARGIN = 0.45  # of the panels, around the modes' walks
LINE = 0.19  # inches, of a title or legend
FAINTEST = 0.06  # opacity of the worst walks
# Nats at least between the faintest and the fullest walk: perfect draws differ by a few (half a
# chi-square), and where all walks are good none should look bad.
LEAST_RANGE = 8.0
DOTTED = (0, (1, 1.4))
DASHED = (0, (4, 3))
CURVES = {
    "negative_elbo": "negative\nELBO",
    "modes_covered": "modes\ncovered",
    "reward_correlation": "correlation\nof the reward",
}
START, GOAL, TARGET, GRID = "black", "black", "0.55", "0.65"


def walk_task(run: Path, figure: str) -> GridWalker:
    """The task of a run. Raises InputError if it is none that the figure is drawn for."""
    config = RunFolder(run).config
    allowed = [task.name for task in descriptions() if figure in task.figures]
    if config.get("task") not in allowed:
        command = " or ".join(f"python -m experiments run {task}" for task in allowed)
        task = config.get("task")
        raise InputError(f"{run} has the task {task!r}; give a run made by: {command}")
    return describe(config["task"]).target(config)


def demonstrations(run: Path, n: int = SHOWN) -> np.ndarray:
    """N randomly chosen demonstrations of a run, always the same: [n, d]."""
    x = read(run, "demonstrations.npz")["train"]
    return x[np.random.default_rng(0).choice(len(x), min(n, len(x)), replace=False)]


# --- panels ---------------------------------------------------------------------------------------


class Layout(NamedTuple):
    """Where the panels of a figure stand.

    Attributes:
        width: of the figure, in inches.
        beyond: for every panel of a row, how far it goes on to the right of the modes' walks.
        half_height: of the panels' range; None: what the modes' walks need.
        title_lines, legend_lines: above each panel, and at the bottom.
        margin: inches that stay free on the right.
        rows: of panels.
    """

    width: float
    beyond: Sequence[float] = (0.0, 0.0)
    half_height: float | None = None
    title_lines: int = 1
    legend_lines: int = 1
    margin: float = 0.0
    rows: int = 1


def panel_row(task: GridWalker, layout: Layout) -> tuple[Figure, list[Axes]]:
    """A figure with panels of one scale, each with the walk's start (and goal), in equal rows.

    No layout engine: together with equal aspects they cut titles off. All sizes follow from the
    panels' ranges instead.
    """
    waypoints = task.waypoints(task.mode_centers).numpy()
    half_height = layout.half_height or waypoints[..., 1].max() + MARGIN
    ranges = [waypoints[..., 0].max() + 2.0 * MARGIN + extra for extra in layout.beyond]
    width = layout.width
    inch = (width - layout.margin) / sum(ranges)  # of one step's length
    bottom = LINE * (layout.legend_lines + 0.5)
    panel = inch * 2.0 * half_height
    row_height = panel + LINE * (layout.title_lines + 0.5)
    height = bottom + layout.rows * row_height
    figure, panels = plt.figure(figsize=(width, height)), []
    for i in range(layout.rows):
        left, low = 0.0, bottom + (layout.rows - 1 - i) * row_height
        for extent in ranges:
            place = (left / width, low / height, inch * extent / width, panel / height)
            axes = figure.add_axes(place)
            axes.set_xlim(-MARGIN, extent - MARGIN)
            axes.set_ylim(-half_height, half_height)
            axes.set_aspect("equal")
            axes.set_axis_off()
            ends(axes, task)
            panels.append(axes)
            left += inch * extent
    return figure, panels


def target_lines(axes: Axes, task: GridWalker, colour: str = TARGET) -> None:
    """The intermediate targets: a vertical dotted line for every step."""
    for i in range(1, task.dim + 1):
        axes.axvline(task.spacing * i, color=colour, linestyle=":", linewidth=1.0, zorder=0.5)


def ends(axes: Axes, task: GridWalker) -> None:
    """The start as a diamond; path planning's goal as a circle."""
    axes.plot(0.0, 0.0, "D", color=START, markersize=6, zorder=5, clip_on=False)
    if isinstance(task, PathPlanning):
        axes.plot(*task.goal, "o", color=GOAL, markersize=7, zorder=5, clip_on=False)


def draw_walks(axes: Axes, task: GridWalker, x: np.ndarray, colour: Any, **style: Any) -> None:
    """Walks [N, d] as `polylines` through their waypoints."""
    polylines(axes, task.waypoints(x).numpy(), colour, **style)


def polylines(
    axes: Axes,
    waypoints: np.ndarray,
    colour: Any,
    *,
    opacity: np.ndarray | float = 1.0,
    width: float = 1.0,
    style: Any = "-",
    zorder: float = 2.0,
) -> None:
    """Lines through waypoints [N, W, 2], the most opaque on top.

    Args:
        opacity: one for all, or one per line [N].
    """
    opacity = np.broadcast_to(opacity, len(waypoints))
    order = np.argsort(opacity, kind="stable")
    colours = np.repeat(to_rgba_array(colour), len(waypoints), axis=0)
    colours[:, 3] = opacity[order]
    # Butt caps: others would fill the gaps of dotted lines.
    look: Look = {"linewidths": width, "linestyles": [style], "capstyle": "butt"}
    lines = LineCollection(list(waypoints[order]), colors=colours, zorder=zorder, **look)
    axes.add_collection(lines)


def mode_grid(axes: Axes, task: GridWalker, passable: np.ndarray | None, zorder: float) -> None:
    """The modes' walks in grey, in the background; those not `passable` [M] faint and dashed."""
    passable = np.ones(len(task.mode_centers), bool) if passable is None else passable
    free, blocked = task.mode_centers[passable], task.mode_centers[~passable]
    draw_walks(axes, task, blocked, "0.8", width=0.9, style=DASHED, zorder=zorder - 0.2)
    # White below the grey ones hides the dashes of steps that blocked paths share with free ones.
    draw_walks(axes, task, free, "white", width=1.6, zorder=zorder - 0.1)
    draw_walks(axes, task, free, GRID, width=0.9, zorder=zorder)


def discs(axes: Axes, centers: np.ndarray, radii: np.ndarray) -> None:
    """Obstacles."""
    patches = [Circle(tuple(center), radius) for center, radius in zip(centers, radii, strict=True)]
    axes.add_collection(PatchCollection(patches, facecolor="0.35", edgecolor="none", zorder=4.0))


# --- a policy's walks -----------------------------------------------------------------------------


def reward_range(*results: dict[str, np.ndarray]) -> tuple[float, float]:
    """The rewards of the faintest and the fullest walks, of policies on one reward.

    Quantiles, because a few walks that went astray have rewards hundreds of nats below all others.
    """
    names = ("means_reward", "draws_reward")
    rewards = np.concatenate([walks[name] for walks in results for name in names])
    rewards = rewards[np.isfinite(rewards)]
    if not rewards.size:
        return 0.0, 1.0
    low, high = np.quantile(rewards, [0.1, 0.75])
    return float(min(low, high - LEAST_RANGE)), float(high)


def opacities(reward: np.ndarray, low_high: tuple[float, float]) -> np.ndarray:
    """Opacity of every walk: linear in its reward between the ends of a `reward_range`."""
    low, high = low_high
    level = np.nan_to_num((reward - low) / (high - low), nan=0.0, posinf=1.0, neginf=0.0)
    return FAINTEST + (1.0 - FAINTEST) * np.clip(level, 0.0, 1.0)


def policy_walks(
    axes: Axes,
    task: GridWalker,
    walks: dict[str, np.ndarray],
    colour: str,
    low_high: tuple[float, float],
) -> None:
    """Component means solid, draws from the components dotted, opacity by the recovered reward."""
    drawn, means = (opacities(walks[f"{name}_reward"], low_high) for name in ("draws", "means"))
    draw_walks(axes, task, walks["draws"], colour, opacity=drawn, width=0.9, style=DOTTED)
    draw_walks(axes, task, walks["means"], darker(colour), opacity=means, width=1.3, zorder=3.0)


def covered(walks: dict[str, np.ndarray]) -> str:
    """How many of the modes that nothing blocks the policy covers, for titles."""
    return f"{int((walks['covered'] & walks['open']).sum())} of {int(walks['open'].sum())} modes"


def darker(colour: str, share: float = 0.4) -> tuple[float, ...]:
    """A colour mixed with black."""
    return tuple((1.0 - share) * np.array(to_rgb(colour)))


# --- legends --------------------------------------------------------------------------------------


def line(
    label: str, colour: Any, style: Any = "-", width: float = 1.3, opacity: float = 1.0
) -> Line2D:
    """A line for a legend."""
    look: Look = {"color": colour, "linestyle": style, "linewidth": width, "alpha": opacity}
    return Line2D([], [], label=label, **look)


def marker(label: str, colour: Any, kind: str, size: float = 6.0) -> Line2D:
    """A marker for a legend."""
    return Line2D([], [], color=colour, linestyle="none", marker=kind, markersize=size, label=label)


def policy_entries(colour: str = "0.45") -> list[Line2D]:
    """Legend entries of `policy_walks`."""
    return [
        line("component mean", darker(colour)),
        line("sample", colour, DOTTED),
        line("low recovered reward", darker(colour), opacity=0.2),
    ]


def legend_below(
    figure: Figure, entries: list[Line2D], columns: int | None = None, *, left: bool = False
) -> None:
    """One legend for all panels, below them; `left`: at the left end instead of in the middle."""
    place: Look = {"loc": "lower left" if left else "lower center", "borderaxespad": 0.3}
    look: Look = {"frameon": False, "fontsize": 8, "handlelength": 2.6}
    figure.legend(handles=entries, ncols=columns or len(entries), **place, **look)


# --- the picture at the end of a run --------------------------------------------------------------


def draw_walk_overview(run: Path) -> None:
    """Demonstrations, the policy's walks, measures over the iterations: overview.png and .pdf."""
    config, walks = RunFolder(run).config, read(run, "walks.npz")
    task, method = describe(config["task"]).target(config), config["method"]
    colour = COLOURS.get(METHODS[method].family, "C3")
    width = 11.5 if isinstance(task, PathPlanning) else 9.0
    layout = Layout(width, title_lines=2, margin=3.3)
    figure, (left, right) = panel_row(task, layout)
    for axes in (left, right):
        target_lines(axes, task)
    x = demonstrations(run)
    draw_walks(left, task, x, "0.2", opacity=0.25, width=0.8)
    left.set_title(f"{len(x)} demonstrations")
    policy_walks(right, task, walks, colour, reward_range(walks))
    found = f"{len(walks['means'])} components, {covered(walks)}"
    right.set_title(f"policy of {LABELS.get(method, method)}\n{found}")
    legend_below(figure, policy_entries(colour), left=True)
    curves(figure, RunFolder(run).table("metrics.csv"), colour, len(task.mode_centers))
    save(figure, run / "overview")


def curves(figure: Figure, history: pd.DataFrame, colour: str, num_modes: int) -> None:
    """The measures in `CURVES` against the iteration, one above the other, on the right."""
    width, height = figure.get_size_inches()
    sides: Look = {"left": 1.0 - 2.4 / width, "right": 1.0 - 0.1 / width}
    ends: Look = {"bottom": 0.5 / height, "top": 1.0 - 0.15 / height}
    grid = figure.add_gridspec(len(CURVES), 1, **sides, **ends, hspace=0.25)
    look: Look = {"markersize": 3, "linewidth": 1.2, "color": colour, "clip_on": False}
    column: Any = grid.subplots(sharex=True)
    for axes, (name, label) in zip(column, CURVES.items(), strict=True):
        # A policy without a walk in the support has an infinite distance: a gap in the curve.
        values = history[name].replace([np.inf, -np.inf], np.nan)
        axes.plot(history["t"] + 1, values, "o-", **look)
        axes.set_ylabel(label)
        open_frame(axes)
    figure.align_ylabels(column)
    column[1].axhline(num_modes, color="0.5", linewidth=0.7, zorder=0)
    column[1].set_ylim(0, 1.08 * num_modes)
    column[1].yaxis.set_major_locator(MaxNLocator(4, integer=True))
    column[2].set_ylim(top=1.02)
    column[2].set_xlabel("iterations")
    column[2].set_xlim(0.5, len(history) + 0.5)
    column[2].xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
