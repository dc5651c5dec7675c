"""A fit with contexts, in some of its situations: what was done there, and what the policy does."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from virl_tf import metrics
from virl_tf.conditional import ConditionalMixture
from virl_tf.numerics import DENSITY, split_seed
from virl_tf.persistence.files import save_arrays
from virl_tf.trajectories.encoding import Encoding

import numpy as np
import tensorflow as tf

SHOWN = 4  # situations
NEAREST_SHARE, FEWEST, MOST = 0.05, 20, 200  # of the demonstrations, in the contexts nearest to one
DRAWS = 100
FRAMES = 16  # of the moving picture
RESOLUTION, COARSE = 100, 60  # of the grid in 1-D and 2-D, and of the moving picture's


def grid_over(x: np.ndarray, resolution: int) -> tuple[np.ndarray, np.ndarray]:
    """Axes [D, G] and points [G^D, D] around x [N, D] of one or two columns; of one 4 times as many
    as `resolution`.
    """
    if x.shape[1] == 2:
        grid = metrics.grid_around(x, resolution)
        return grid.axes, grid.points
    extra = 0.1 * np.ptp(x)
    axes = np.linspace(x.min() - extra, x.max() + extra, 4 * resolution)[None]
    return axes, axes.T


def some_contexts(c: np.ndarray) -> np.ndarray:
    """Contexts [P, C] of those [N, C], at most `SHOWN`, spread along their first principal
    component.
    """
    spread = c.std(axis=0)
    z = (c - c.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    along = z @ np.linalg.svd(z, full_matrices=False)[2][0]
    along *= np.sign(along @ z[:, 0]) or 1.0
    number = min(SHOWN, len(c))
    places = (np.arange(number) + 0.5) / number * len(c)
    return c[np.argsort(along, kind="stable")[places.astype(int)]]


def nearest(c: np.ndarray, one: np.ndarray) -> np.ndarray:
    """The rows of those contexts of c [N, C] that are nearest to `one` [C], in units of their
    spread.
    """
    number = int(np.clip(NEAREST_SHARE * len(c), FEWEST, MOST))
    distances = (((c - one) / c.std(axis=0)) ** 2).sum(axis=1)
    return np.argsort(distances, kind="stable")[:number]


def between(c: np.ndarray, number: int) -> np.ndarray:
    """Contexts [number, C] on the line from the first of `some_contexts` to the last."""
    first, *_, last = some_contexts(c)
    return np.linspace(first, last, number)


def write_situations(
    folder: Path,
    densities: Mapping[str, Callable[[Any], Any]],
    policy: ConditionalMixture,
    rows: np.ndarray,
    names: Sequence[str],
    encoding: Encoding | None = None,
    contexts: np.ndarray | None = None,
) -> None:
    """Write situations.npz, of P contexts, and moving.npz, of others between them.

    - contexts [P, C], demonstrations [P, n, D] in the contexts nearest to each, draws [P, S, D]
    - in 1-D and 2-D axes [D, G], and each of the densities and log_policy on their grid, [P, G^D]
    - of trajectories demonstrations and draws are paths [P, ., T, D], beside times [T]
    - columns: what those of c and then of x, or of the paths, are called

    Args:
        densities: log densities of rows [c, x] [N, C + D]: `rewards` and, where the truth is
            known, `log_p`.
        rows: demonstrations.
        names: of their columns.
        encoding: of trajectories.
        contexts: [M, C], of which P are shown; None: those demonstrated.
    """
    c = rows[:, : policy.num_contexts] if contexts is None else contexts
    functions = {**densities, "log_policy": policy.log_prob}
    for name, chosen, resolution in (
        ("situations", some_contexts(c), RESOLUTION),
        ("moving", between(c, FRAMES), COARSE),
    ):
        arrays = _in_contexts(chosen, policy, rows, encoding)
        arrays["columns"] = np.array(names)
        if encoding is not None:
            arrays["columns"] = np.array([*names[: policy.num_contexts], *encoding.columns])
            arrays["times"] = encoding.times
        elif policy.dim <= 2:
            x = rows[:, policy.num_contexts :]
            if contexts is not None:  # perhaps the policy goes where no demonstration is
                x = np.concatenate([x, arrays["draws"].reshape(-1, policy.dim)])
            arrays |= _on_grid(chosen, functions, *grid_over(x, resolution))
        save_arrays(folder / f"{name}.npz", arrays)


def _in_contexts(
    contexts: np.ndarray, policy: ConditionalMixture, rows: np.ndarray, encoding: Encoding | None
) -> dict[str, Any]:
    """Demonstrations near to each context, and draws in it."""
    c, x = rows[:, : policy.num_contexts], rows[:, policy.num_contexts :]
    near = np.stack([x[nearest(c, one)] for one in contexts])
    seed = split_seed(0, 0, "situations")
    draws = np.stack([policy.condition(one).sample(DRAWS, seed) for one in contexts])
    if encoding is not None:
        near, draws = (np.stack([encoding.decode(codes) for codes in of]) for of in (near, draws))
    return {"contexts": contexts, "demonstrations": near, "draws": draws}


def _on_grid(
    contexts: np.ndarray,
    functions: Mapping[str, Callable[[Any], Any]],
    axes: np.ndarray,
    points: np.ndarray,
) -> dict[str, Any]:
    """Of each function its values on the grid, in each context."""
    on_grid = [np.hstack([np.tile(one, (len(points), 1)), points]) for one in contexts]
    values = {
        name: np.stack([function(tf.constant(rows, DENSITY)) for rows in on_grid])
        for name, function in functions.items()
    }
    return {"axes": axes, **values}
