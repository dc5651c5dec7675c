"""People beside draws of reward, policy and EM, on the same axes, from the folder of `judge`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from experiments.figures.style import Look, not_drawn, open_frame, read, save, shown

MOST_ROWS = 3  # of panels: pairs of columns, or columns over time
OTHER = -1  # what is on an axis is no column: time, or a density
BINS = 40
MARGIN = 0.05  # of the range that demonstrations are in
PANEL = 2.7  # inches, of its sides
SIZES = 2000.0  # of all dots of a panel
DOTS: Look = {"linewidths": 0, "alpha": 0.6, "color": "C0", "rasterized": True}
LINES: Look = {"linewidths": 0.6, "alpha": 0.5, "colors": "C0"}


def draw_judged(folder: Path) -> None:
    """judge.png and .pdf: a column of panels for each array of judge.npz but `times`, `columns` and
    `contexts`, the names of the first columns if they are that, also where they are not drawn.

    Rows are pairs of the first columns; of paths one in the plane, or each column over time. A pair
    of contexts, which no density draws, is none of them.
    """
    found = read(folder, "judge.npz")
    columns, times = list(map(str, found.pop("columns"))), found.pop("times", np.zeros(0))
    contexts = list(map(str, found.pop("contexts", [])))  # older folders do not say
    draw_side_by_side(folder / "judge", found, columns, times, contexts)


def draw_side_by_side(
    path: Path,
    found: Mapping[str, np.ndarray],
    columns: Sequence[str],
    times: np.ndarray,
    contexts: Sequence[str] = (),
) -> None:
    """`path`.png and .pdf of points [N, D] without `times`, or of paths [N, T, D] with times [T].
    Where there are `contexts`, these are the first columns of points.

    The first of `found` sets the limits of all.
    """
    names = [*columns, "time" if len(times) else "density"]
    pairs = _pairs(len(names) - 1, len(times) > 0, len(contexts))
    points_of = {title: [_in_plane(x, times, p) for p in pairs] for title, x in found.items()}
    size = (2.9 * len(points_of), 0.5 + PANEL * len(pairs))
    options: Look = {"sharex": "row", "sharey": "row", "layout": "constrained", "squeeze": False}
    figure, grid = plt.subplots(len(pairs), len(points_of), figsize=size, **options)
    demonstrated = next(iter(points_of.values()))
    for row, pair in enumerate(pairs):
        _set_limits(grid[row], demonstrated[row], equal=len(times) > 0 and OTHER not in pair)
        grid[row, 0].set_ylabel(shown(names[pair[1]], PANEL))
    for column, (title, panels) in enumerate(points_of.items()):
        grid[0, column].set_title(title)
        for axes, points, pair in zip(grid[:, column], panels, pairs, strict=True):
            _draw(axes, points)
            axes.set_xlabel(shown(names[pair[0]], PANEL))
            open_frame(axes)
    drawn = {place for pair in pairs for place in pair if place != OTHER}
    said = [not_drawn(len(columns) - len(drawn))]
    if contexts:
        said = [
            f"given {', '.join(contexts)}: draws are in the contexts of the rows kept back",
            *said,
        ]
    if any(said):
        figure.suptitle(shown("; ".join(filter(None, said)), size[0]), fontsize=9)
    save(figure, path)


def _pairs(width: int, paths: bool, num_contexts: int = 0) -> list[tuple[int, int]]:
    """The columns on the two axes of each row of panels."""
    if num_contexts and not paths:
        own = range(num_contexts, width)
        longest = max(num_contexts, len(own))
        across = [(i % num_contexts, own[i % len(own)]) for i in range(longest)]
        both = [(own[0], own[1])] if len(own) > 1 else []
        return [*both, *across][:MOST_ROWS]
    if width == 1 and not paths:
        return [(0, OTHER)]
    if paths and width != 2:
        return [(OTHER, i) for i in range(min(width, MOST_ROWS))]
    return [(i, i + 1) for i in range(0, min(width - 1, 2 * MOST_ROWS), 2)]


def _in_plane(x: np.ndarray, times: np.ndarray, pair: tuple[int, int]) -> np.ndarray:
    """Points [N, 2], or [N, 1] of one column, or paths [N, T, 2]."""
    if OTHER not in pair:
        return x[..., list(pair)]
    if x.ndim == 2:
        return x
    return np.stack([np.broadcast_to(times, x.shape[:2]), x[..., pair[1]]], axis=-1)


def _draw(axes: Axes, points: np.ndarray) -> None:
    if points.ndim == 3:
        axes.add_collection(LineCollection(list(points), **LINES))
    elif points.shape[1] == 1:
        bins: Any = np.linspace(*axes.get_xlim(), BINS)
        each = 1.0 / (len(points) * (bins[1] - bins[0]))  # also of those that are not in the range
        axes.hist(points[:, 0], bins, weights=np.full(len(points), each), color="C0")
    else:
        x, y = points.T
        axes.scatter(x, y, s=np.clip(SIZES / len(points), 4.0, 16.0), **DOTS)


def _set_limits(row: np.ndarray, demonstrated: np.ndarray, equal: bool) -> None:
    """For a row of panels: where demonstrations are, and a margin; `equal` units if they fit.

    Of paths alone: other columns may have any units.
    """
    flat = demonstrated.reshape(-1, demonstrated.shape[-1])
    spans = np.ptp(flat, axis=0)
    low, high = flat.min(axis=0) - MARGIN * spans, flat.max(axis=0) + MARGIN * spans
    row[0].set_xlim(low[0], high[0])
    if len(spans) == 1:
        return
    row[0].set_ylim(low[1], high[1])
    if equal and 0.25 < spans[0] / spans[1] < 4.0:
        for axes in row:
            axes.set_aspect("equal")
