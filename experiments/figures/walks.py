"""What the figures of the grid walker and of path planning share, and the picture at the end of their runs."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.colors import to_rgb, to_rgba_array
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator

from experiments.figures.figure_2b import COLOURS, LABELS
from experiments.figures.style import read, save
from virl_tf.run_folder import RunFolder
from virl_tf.tasks import GridWalker, PathPlanning
from virl_tf.validation import InputError

SHOWN = 200  # demonstrations in a panel, as in Figure 6
MARGIN = 0.45  # of the panels, around the modes' walks
FAINTEST = 0.06  # opacity of the worst walks
# Rewards differ by this many nats at least between the faintest and the fullest walk. Perfect draws of the walker differ by a
# few nats (a chi-square over two); where all walks are good, none should look bad.
LEAST_RANGE = 8.0
DOTTED = (0, (1, 1.4))
CURVES = {"negative_elbo": "negative ELBO", "modes_covered": "modes covered", "reward_correlation": "correlation\nof the reward"}
# Colours of their own: the policy's would make them look like walks of it.
START, GOAL, TARGET, GRID = "black", "black", "0.55", "0.75"


def walk_task(run: Path, *allowed: str) -> GridWalker:
    """The task of a run. Raises InputError if it is none of `allowed`."""
    config = RunFolder(run).config
    if config.get("task") not in allowed:
        command = " or ".join(f"python -m experiments run {task}" for task in allowed)
        raise InputError(f"{run} has the task {config.get('task')!r}; give a run made by: {command}")
    return (PathPlanning if config["task"] == "path_planning" else GridWalker)(config["steps"])


def demonstrations(run: Path, n: int = SHOWN) -> np.ndarray:
    """N randomly chosen demonstrations of a run, always the same: [n, d]."""
    x = read(run, "demonstrations.npz")["train"]
    return x[np.random.default_rng(0).choice(len(x), min(n, len(x)), replace=False)]


# --- parts of a panel -------------------------------------------------------------------------------------------------------


def frame(axes: Axes, task: GridWalker, right: float = 0.0) -> None:
    """Limits around the modes' walks (with `right` more on the right), equal aspect, neither ticks nor a box."""
    waypoints = task.waypoints(task.mode_centers).numpy()
    height = waypoints[..., 1].max() + MARGIN
    axes.set_xlim(-MARGIN, waypoints[..., 0].max() + MARGIN + right)
    axes.set_ylim(-height, height)
    axes.set_aspect("equal")
    axes.set_axis_off()


def target_lines(axes: Axes, task: GridWalker, colour: str = TARGET) -> None:
    """The intermediate targets: a vertical dotted line for every step."""
    for i in range(1, task.dim + 1):
        axes.axvline(task.spacing * i, color=colour, linestyle=":", linewidth=1.0, zorder=0.5)


def ends(axes: Axes, task: GridWalker) -> None:
    """The start as a diamond; path planning's goal as a circle."""
    axes.plot(0.0, 0.0, "D", color=START, markersize=6, zorder=5, clip_on=False)
    if isinstance(task, PathPlanning):
        axes.plot(*task.goal, "o", color=GOAL, markersize=7, zorder=5, clip_on=False)


def draw_walks(
    axes: Axes,
    task: GridWalker,
    x: np.ndarray,
    colour: str,
    *,
    opacity: np.ndarray | float = 1.0,
    width: float = 1.0,
    style: object = "-",
    zorder: float = 2.0,
) -> None:
    """Walks [N, d] as polylines through their waypoints; the fullest on top.

    Args:
        opacity: one for all, or one per walk [N].
    """
    opacity = np.broadcast_to(opacity, len(x))
    order = np.argsort(opacity, kind="stable")
    colours = np.repeat(to_rgba_array(colour), len(x), axis=0)
    colours[:, 3] = opacity[order]
    waypoints = task.waypoints(x).numpy()[order]
    # Butt caps: with others the gaps between the dots of a dotted line fill up.
    axes.add_collection(
        LineCollection(
            waypoints, colors=colours, linewidths=width, linestyles=[style], joinstyle="round", capstyle="butt", zorder=zorder
        )
    )


def mode_grid(axes: Axes, task: GridWalker, passable: np.ndarray | None = None) -> None:
    """The modes' walks in grey with dots on their waypoints, in the background; those not `passable` [M] faint and dashed."""
    passable = np.ones(len(task.mode_centers), bool) if passable is None else passable
    # Steps that a blocked path shares with a passable one are covered by it.
    draw_walks(axes, task, task.mode_centers[~passable], "0.82", width=0.8, style=(0, (3, 3)), zorder=0.8)
    draw_walks(axes, task, task.mode_centers[passable], "white", width=1.6, zorder=0.9)
    draw_walks(axes, task, task.mode_centers[passable], GRID, width=0.9, zorder=1.0)


def discs(axes: Axes, centers: np.ndarray, radii: np.ndarray) -> None:
    """Obstacles."""
    patches = [Circle(tuple(center), radius) for center, radius in zip(centers, radii, strict=True)]
    axes.add_collection(PatchCollection(patches, facecolor="0.35", edgecolor="none", zorder=4.0))


# --- a policy's walks -------------------------------------------------------------------------------------------------------


def reward_range(*results: dict[str, np.ndarray]) -> tuple[float, float]:
    """The rewards that the faintest and the fullest walks have, from the `walks.npz` of policies on one reward.

    Quantiles, because a few walks that went astray have rewards hundreds of nats below all others.
    """
    rewards = np.concatenate([walks[name] for walks in results for name in ("means_reward", "draws_reward")])
    rewards = rewards[np.isfinite(rewards)]
    if not rewards.size:
        return 0.0, 1.0
    low, high = np.quantile(rewards, [0.1, 0.75])
    return float(min(low, high - LEAST_RANGE)), float(high)


def opacities(reward: np.ndarray, low_high: tuple[float, float]) -> np.ndarray:
    """Opacity of every walk: linear in its reward between the ends of a `reward_range`, and the end's value beyond them."""
    low, high = low_high
    level = np.nan_to_num((reward - low) / (high - low), nan=0.0, posinf=1.0, neginf=0.0)
    return FAINTEST + (1.0 - FAINTEST) * np.clip(level, 0.0, 1.0)


def policy_walks(axes: Axes, task: GridWalker, walks: dict[str, np.ndarray], colour: str, low_high: tuple[float, float]) -> None:
    """Component means solid, draws from the components dotted, opacity by the recovered reward."""
    drawn, means = (opacities(walks[f"{name}_reward"], low_high) for name in ("draws", "means"))
    draw_walks(axes, task, walks["draws"], colour, opacity=drawn, width=0.9, style=DOTTED, zorder=2.0)
    draw_walks(axes, task, walks["means"], darker(colour), opacity=means, width=1.3, zorder=3.0)


def covered(walks: dict[str, np.ndarray]) -> str:
    """How many of the modes that nothing blocks the policy covers, for titles."""
    return f"{int((walks['covered'] & walks['open']).sum())} of {int(walks['open'].sum())} modes"


def darker(colour: str, share: float = 0.4) -> tuple[float, ...]:
    """A colour mixed with black."""
    return tuple((1.0 - share) * np.array(to_rgb(colour)))


# --- legends ----------------------------------------------------------------------------------------------------------------


def line(label: str, colour: object, style: object = "-", width: float = 1.3, opacity: float = 1.0) -> Line2D:
    """A line for a legend."""
    return Line2D([], [], color=colour, linestyle=style, linewidth=width, alpha=opacity, label=label)  # type: ignore[arg-type]


def marker(label: str, colour: object, kind: str, size: float = 6.0) -> Line2D:
    """A marker for a legend."""
    return Line2D([], [], color=colour, linestyle="none", marker=kind, markersize=size, label=label)  # type: ignore[arg-type]


def policy_entries(colour: str = "0.45") -> list[Line2D]:
    """Legend entries of `policy_walks`."""
    return [
        line("component mean", darker(colour)),
        line("sample", colour, DOTTED),
        line("low recovered reward", darker(colour), opacity=0.2),
    ]


def legend_below(figure: Figure | SubFigure, entries: list[Line2D], columns: int | None = None) -> None:
    """One legend for all panels, below them."""
    figure.legend(handles=entries, loc="outside lower center", ncols=columns or len(entries), frameon=False, fontsize=8)


# --- the picture at the end of a run ----------------------------------------------------------------------------------------


def draw_walk_overview(run: Path) -> None:
    """Demonstrations, the policy's walks, and three measures over the iterations: overview.png and .pdf in the run's folder."""
    task, walks, history = walk_task(run, "grid_walker", "path_planning"), read(run, "walks.npz"), pd.read_csv(run / "metrics.csv")
    method = RunFolder(run).config["method"]
    colour = COLOURS.get(method.split("_")[0], "C3")
    figure = plt.figure(figsize=(10.5, 3.8), layout="constrained")
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[2.1, 1.0], wspace=0.03)[0]
    panels = left.subplots(1, 2)
    for axes in panels:
        target_lines(axes, task)
        ends(axes, task)
        frame(axes, task)
    x = demonstrations(run)
    draw_walks(axes=panels[0], task=task, x=x, colour="0.2", opacity=0.25, width=0.8)
    panels[0].set_title(f"{len(x)} demonstrations")
    policy_walks(panels[1], task, walks, colour, reward_range(walks))
    panels[1].set_title(f"policy of {LABELS.get(method, method)}, {len(walks['means'])} components: {covered(walks)}")
    legend_below(left, policy_entries(colour))
    curves(right, history, colour, len(task.mode_centers))
    save(figure, run / "overview")


def curves(figure: SubFigure, history: pd.DataFrame, colour: str, num_modes: int) -> None:
    """The measures in `CURVES` against the iteration, one above the other."""
    column = figure.subplots(len(CURVES), 1, sharex=True)
    for axes, (name, label) in zip(column, CURVES.items(), strict=True):
        # A policy without a walk in the support has an infinite distance; the curve has a gap there.
        values = history[name].replace([np.inf, -np.inf], np.nan)
        axes.plot(history["t"] + 1, values, "o-", markersize=3, linewidth=1.2, color=colour)
        axes.set_ylabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    figure.align_ylabels(column)
    column[1].axhline(num_modes, color="0.5", linewidth=0.7, zorder=0)
    column[1].set_ylim(0, 1.08 * num_modes)
    column[2].set_ylim(top=1.02)
    column[2].set_xlabel("iterations")
    column[2].xaxis.set_major_locator(MaxNLocator(integer=True))
