"""Pictures of a fit to trajectories, from its folder: paths in 2-D, else each column over time."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from experiments.figures.style import Look, explain, not_drawn, open_frame, read, save, shown

MOST_COLUMNS = 7
MOST_LINES = 100  # of a panel
LABELLED = 0.005  # least weight of a component with a label
TAB10 = plt.get_cmap("tab10").colors  # type: ignore[attr-defined]
# Of the heaviest components, and of all that are lighter; tab10's own grey is not among them.
COLOURS, LIGHTER = [colour for colour in TAB10 if len(set(colour)) > 1], (0.6, 0.6, 0.6)
Lines = list[tuple[np.ndarray, Any, Look]]  # paths [N, T, D], a colour for all or each, the look


def draw_trajectories(folder: Path, situation: str = "") -> None:
    """paths.png and .pdf: demonstrations, draws of reward and policy, mean paths; along.png and
    .pdf: what the reward loses where a path is pushed aside.
    """
    found = read(folder, "trajectories.npz")
    _draw_paths(folder, found, situation)
    _draw_along(folder, found)


def _draw_paths(folder: Path, found: dict[str, np.ndarray], situation: str) -> None:
    panels = _panels(found)
    width = found["means"].shape[2]
    plane = width == 2
    rows = 1 if plane else min(width, MOST_COLUMNS)
    height = 3.6 if plane else 1.0 + 1.3 * rows
    options: Look = {"sharex": True, "sharey": "row", "layout": "constrained", "squeeze": False}
    figure, grid = plt.subplots(rows, len(panels), figsize=(3.1 * len(panels), height), **options)
    for column, (title, lines) in enumerate(panels.items()):
        grid[0, column].set_title(title)
        for row in range(rows):
            axes = grid[row, column]
            for paths, colour, look in lines:
                one = None if plane else row
                add_paths(axes, paths, found["times"], one, colors=colour, **look)
            axes.autoscale_view()
            open_frame(axes)
    _label(grid, found)
    _legend(grid[0, -1], found["weights"])
    said = [situation, not_drawn(width - MOST_COLUMNS)]
    if any(said):
        figure.suptitle(shown("; ".join(filter(None, said)), figure.get_figwidth()), fontsize=9)
    save(figure, folder / "paths")


def _panels(found: dict[str, np.ndarray]) -> dict[str, Lines]:
    """Title -> what is drawn."""
    weights = found["weights"]
    colours = component_colours(weights)
    draws = found["trajectories"][:MOST_LINES]
    own = colours[found["components"][:MOST_LINES]]
    heavier = [o for o in np.argsort(-weights) if weights[o] >= LABELLED]
    thin: Look = {"linewidths": 0.6, "alpha": 0.5}
    heavy: Look = {"linewidths": 0.5 + 4.0 * np.sqrt(weights[heavier])}
    demonstrations, reward = found["demonstrations"], found["reward_draws"][:MOST_LINES]
    effective = float(found["reward_effective"])
    few = f"\n(only {effective:.0f} effective)" if effective < MOST_LINES else ""
    return {
        f"{len(demonstrations)} demonstrations": [(demonstrations, "0.3", thin)],
        f"draws of the reward{few}": [(reward, "C0", thin)],
        "draws of the policy": [(draws, own, thin)],
        "mean paths and weights": [(found["means"][heavier], colours[heavier], heavy)],
    }


def component_colours(weights: np.ndarray) -> np.ndarray:
    """[K, 3]: one for each of the heaviest, and grey for the others."""
    ranks = np.argsort(np.argsort(-weights))
    return np.array([*COLOURS, LIGHTER])[np.minimum(ranks, len(COLOURS))]


def add_paths(
    axes: Axes, paths: np.ndarray, times: np.ndarray, column: int | None, **look: Any
) -> None:
    """Paths [N, T, D] in the plane, or one column of them over time."""
    points = list(paths)
    if column is not None:
        points = [np.column_stack([times, path[:, column]]) for path in paths]
    axes.add_collection(LineCollection(points, **look))


def _label(grid: np.ndarray, found: dict[str, np.ndarray]) -> None:
    names = [str(name) for name in found["columns"]]
    for axes in grid[-1]:
        axes.set_xlabel(shown(names[0], 3.0) if len(names) == 2 else "time")
    for row, axes in enumerate(grid[:, 0]):
        axes.set_ylabel(shown(names[1], 3.0) if len(names) == 2 else shown(names[row], 1.5))
    spans = np.ptp(found["demonstrations"], axis=(0, 1))
    if len(names) == 2 and 0.25 < spans[0] / spans[1] < 4.0:
        for axes in grid[0]:
            axes.set_aspect("equal")


def _legend(axes: Axes, weights: np.ndarray) -> None:
    """The weights of the heaviest components, as many as there are colours."""
    heavier = np.sort(weights[weights >= LABELLED])[::-1]
    for weight, colour in zip(heavier, COLOURS, strict=False):
        axes.plot([], [], color=colour, label=f"{weight:.2f}")
    if len(heavier) > len(COLOURS):
        axes.plot([], [], color=LIGHTER, label="lighter")
    outside: Look = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    axes.legend(frameon=False, fontsize=7, handlelength=1.0, **outside)


def _draw_along(folder: Path, found: dict[str, np.ndarray]) -> None:
    """A line for each of the heaviest components."""
    weights = found["weights"]
    order, colours = np.argsort(-weights)[: len(found["losses"])], component_colours(weights)
    figure, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    for o, losses in zip(order, found["losses"], strict=True):
        colour, width = colours[o], 0.5 + 4.0 * np.sqrt(weights[o])
        finite = np.where(np.isfinite(losses), losses, np.nan)
        label = f"weight {weights[o]:.2f}"
        axes.plot(found["pushes"], finite, color=colour, linewidth=width, label=label)
    axes.set_xlabel("phase of the path, 0 at its start, 1 at its end")
    axes.set_ylabel("reward lost, nats")
    axes.legend(frameon=False, fontsize=7, ncols=2)
    open_frame(axes)
    explain(
        figure,
        "What a push aside costs along each component's mean path",
        "a push of one standard deviation of the demonstrations there; high: the reward is strict",
    )
    save(figure, folder / "along")
