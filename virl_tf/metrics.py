"""How close a recovered reward or a policy is to the expert's density."""

from typing import Any, NamedTuple

import numpy as np


class Grid(NamedTuple):
    """A regular grid over a box in 2-D.

    Attributes:
        points: [R * R, 2], the second coordinate varying fastest.
        axes: [2, R].
    """

    points: np.ndarray
    axes: np.ndarray


def grid_around(data: np.ndarray, resolution: int = 100, margin: float = 0.05) -> Grid:
    """The grid of the numerical I-projection "near the ground truth data": its bounding box widened by `margin` on each side.

    Args:
        data: [N, 2].
    """
    low, high = data.min(axis=0), data.max(axis=0)
    extra = margin * (high - low)
    axes = np.linspace(low - extra, high + extra, resolution, axis=1)
    return Grid(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2), axes)


def normalise_on_grid(log_density: Any) -> np.ndarray:
    """Log probabilities of the grid's cells: [M] -> [M], so that exp sums to one."""
    values = np.asarray(log_density, np.float64)
    top = values.max()
    with np.errstate(invalid="ignore"):  # inf - inf: a diverged density becomes nan throughout
        return values - top - np.log(np.exp(values - top).sum())


def i_projection(log_q: Any, log_p: Any) -> float:
    """KL(q || p) = sum q (log q - log p) of two (unnormalised) log densities on the same grid points, [M] each.

    inf or NaN values of log_q give nan: a diverged reward has no distance.
    """
    log_q, log_p = normalise_on_grid(log_q), normalise_on_grid(log_p)
    q = np.exp(log_q)
    with np.errstate(invalid="ignore"):
        return float(np.sum(np.where(q == 0.0, 0.0, q * (log_q - log_p))))  # nan stays nan


def best_final_reported(series: Any) -> dict[str, float]:
    """Best, final, and their mean, the paper's "average results between the best evaluated iteration and the final iteration".

    A value that is not finite (a diverged iteration) is never the best.

    Args:
        series: one value per iteration, lower is better.

    Returns:
        {best, final, reported}.
    """
    values = np.asarray(series, np.float64)
    finite = values[np.isfinite(values)]
    best = float(finite.min()) if finite.size else float("nan")
    final = float(values[-1])
    return {"best": best, "final": final, "reported": (best + final) / 2.0}
