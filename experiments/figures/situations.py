"""situations.png and .gif: what was done and what the policy does, in contexts of a fit."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from experiments.figures.style import (
    Look,
    crosses,
    heat_map,
    highest,
    open_frame,
    read,
    save,
    save_moving,
    shown,
)
from experiments.figures.trajectories import MOST_COLUMNS, add_paths

DEMONSTRATED: Look = {"colors": "0.3", "linewidths": 0.6, "alpha": 0.5}
DRAWN: Look = {"colors": "C1", "linewidths": 0.6, "alpha": 0.5}
MAPS = {"log_p": "truth", "rewards": "reward", "log_policy": "policy"}
MOST_NAMED = 6  # contexts
PANEL = 2.7  # inches, of its sides
Found = dict[str, np.ndarray]


def draw_situations(folder: Path) -> None:
    """situations.png and .pdf, a column of panels for each context in situations.npz; and
    situations.gif, which goes through those of moving.npz.
    """
    found = read(folder, "situations.npz")
    figure = _draw(found, range(len(found["contexts"])))
    save(figure, folder / "situations")
    moving = read(folder, "moving.npz")
    frames = [_draw(moving, [p]) for p in range(len(moving["contexts"]))]
    _hold_axes(frames)
    save_moving(frames, folder / "situations")


def _hold_axes(frames: Sequence[Figure]) -> None:
    """The limits of each panel are the widest of all frames: what moves is what is drawn."""
    for panels in zip(*(figure.axes for figure in frames), strict=True):
        for side in "xy":
            low, high = np.transpose([getattr(axes, f"get_{side}lim")() for axes in panels])
            for axes in panels:
                getattr(axes, f"set_{side}lim")(low.min(), high.max())


def _draw(found: Found, chosen: Sequence[int]) -> Figure:
    """A column of panels for each of the contexts; of a single one they stand in a row."""
    of_paths, dim = "times" in found, found["demonstrations"].shape[-1]
    rows, number = _rows(found), len(chosen)
    height = 0.7 + 2.6 * rows if dim <= 2 else 1.0 + 1.6 * rows + (not of_paths)
    options: Look = {"sharex": True, "sharey": "row", "layout": "constrained", "squeeze": False}
    if number == 1:
        options["sharey"] = not of_paths or dim == 2
        figure, grid = plt.subplots(1, rows, figsize=(0.6 + 2.8 * max(rows, 2), 3.3), **options)
        grid = grid.T
    else:
        figure, grid = plt.subplots(rows, number, figsize=(2.8 * number, height), **options)
    for column, p in zip(grid.T, chosen, strict=True):
        named = zip(found["columns"], found["contexts"][p], strict=False)
        title = [f"{name} = {value:.3g}" for name, value in named]
        more = ["..."] if len(title) > MOST_NAMED else []
        column[0].set_title(shown("\n".join(title[:MOST_NAMED] + more), PANEL), fontsize=9)
        if of_paths:
            _draw_paths(column, found, p)
        elif dim == 1:
            _draw_curves(column[0], found, p)
        elif dim == 2:
            image = _draw_maps(column, found, p)
        else:
            _draw_parallel(column[0], found, p)
    if not of_paths and dim == 2:
        figure.colorbar(image, ax=grid, label="nats below the maximum", pad=0.01)
    _label(grid, found)
    _tick(grid, whole=not of_paths and dim > 2)
    for axes in grid[:-1, 0] if number == 1 else ():
        axes.set_xlabel(grid[-1, 0].get_xlabel())
    return figure


def _rows(found: Found) -> int:
    """Of panels: of paths in the plane, else one for each column; of points, maps of the densities
    in 2-D.
    """
    dim = found["demonstrations"].shape[-1]
    if "times" in found:
        return 1 if dim == 2 else min(dim, MOST_COLUMNS)
    return len(_maps(found)) if dim == 2 else 1


def _maps(found: Found) -> dict[str, str]:
    """Key of an array -> what its map is called."""
    return {key: name for key, name in MAPS.items() if key in found}


def _draw_curves(axes: Axes, found: Found, p: int) -> None:
    """In 1-D: densities over a histogram."""
    axis = found["axes"][0]
    axes.hist(found["demonstrations"][p, :, 0], 15, density=True, color="0.85")
    for key, look in (("rewards", "C0-"), ("log_policy", "C1--")):
        density = np.exp(found[key][p] - highest(found[key][p]))
        axes.plot(axis, density / (density.sum() * (axis[1] - axis[0]) or 1.0), look)
    open_frame(axes)


def _draw_maps(panels: np.ndarray, found: Found, p: int) -> Any:
    """In 2-D: truth, if it is known, or reward with the nearest demonstrations, and the rest."""
    for axes, key in zip(panels, _maps(found), strict=True):
        image = heat_map(axes, found["axes"], found[key][p])
        axes.set_aspect("auto")  # the columns may have any units
    crosses(panels[0], found["demonstrations"][p])
    return image


def _draw_parallel(axes: Axes, found: Found, p: int) -> None:
    """In more dimensions: a line for each point, over its standardised columns."""
    every = found["demonstrations"].reshape(-1, found["demonstrations"].shape[-1])
    centre, spread = every.mean(axis=0), every.std(axis=0) + 1e-12
    for key, look in (("demonstrations", DEMONSTRATED), ("draws", DRAWN)):
        lines = (found[key][p] - centre) / spread
        points = [np.column_stack([np.arange(lines.shape[1]), line]) for line in lines]
        axes.add_collection(LineCollection(points, **look))
    axes.autoscale_view()
    open_frame(axes)


def _draw_paths(panels: np.ndarray, found: Found, p: int) -> None:
    """Paths in the plane, or each column of them over time."""
    plane = found["demonstrations"].shape[-1] == 2
    for row, axes in enumerate(panels):
        for key, look in (("demonstrations", DEMONSTRATED), ("draws", DRAWN)):
            add_paths(axes, found[key][p], found["times"], None if plane else row, **look)
        axes.autoscale_view()
        open_frame(axes)


def _label(grid: np.ndarray, found: Found) -> None:
    names = [str(name) for name in found["columns"][found["contexts"].shape[1] :]]
    of_paths, figure = "times" in found, grid[0, 0].figure
    if len(names) == 2:
        below, left = names[0], [names[1]] * len(grid)
        left = left if of_paths else [f"{row}: {names[1]}" for row in _maps(found).values()]
    elif of_paths:
        below, left = "time", names[: len(grid)]
    elif len(names) == 1:
        below, left = names[0], ["density"]
    else:
        below, left = f"column ({names[0]}, ..., {names[-1]})", ["standard deviations"]
    for axes in grid[-1]:
        axes.set_xlabel(shown(below, PANEL))
    for axes, label in zip(grid[:, 0], left, strict=True):
        axes.set_ylabel(shown(label, 1.6 if of_paths and len(names) > 2 else PANEL))
    demonstrated = "demonstrations in the nearest contexts"
    text = f"grey: {demonstrated}; orange: draws of the policy"
    if not of_paths and len(names) == 1:
        text = f"grey: {demonstrated}; blue: exp(reward), normalised; orange: policy"
    if not of_paths and len(names) == 2:
        text = f"crosses: {demonstrated}; colours: log densities"
    figure.suptitle(text, fontsize=9)


def _tick(grid: np.ndarray, whole: bool) -> None:
    """Few numbers and short ones, that do not run into each other or the next panel's.

    `whole`: below are the numbers of columns.
    """
    nice = [1, 2, 5, 10]
    below: Look = {"nbins": 6, "integer": True} if whole else {"nbins": 5, "prune": "both"}
    for axes in grid.flat:
        axes.xaxis.set_major_locator(plt.MaxNLocator(steps=nice, **below))
        axes.yaxis.set_major_locator(plt.MaxNLocator(6, steps=nice))
        axes.ticklabel_format(scilimits=(-2, 6))
