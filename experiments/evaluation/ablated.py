"""What `ablate` measures of a run beside what every run measures."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from virl_tf.metrics import correlation, grid_around, normalise_on_grid
from virl_tf.mixture import moments
from virl_tf.numerics import DENSITY
from virl_tf.persistence.files import load_arrays
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.reward import Reward, evaluate
from virl_tf.tasks.slice_sampling import slice_sample

import numpy as np
import tensorflow as tf

from experiments.references import Demonstrated, fit_references
from experiments.specification import Specification

BURN_IN = 200
DRAWS = 500  # of the recovered density, to see whether it has mass away from the demonstrations


def measure(spec: Specification, folder: Path, with_references: bool) -> dict[str, Any]:
    """Of a finished run: mass of the recovered density off the demonstrations.

    `with_references`: also the correlations of the task's references with log p.
    """
    description, seed = spec.description, spec.seed
    task = description.target(spec.to_config())
    arrays = load_arrays(folder / "demonstrations.npz")
    train, test = arrays["train"], arrays["test"]
    reward = RunFolder(folder).reward()
    support = getattr(task, "contains", None)
    found: dict[str, Any] = {"far_share": far_share(reward, train, test, support, seed)}
    if (folder / "grid.npz").is_file():
        found["off_grid_share"] = off_grid_share(reward, train)
    if with_references:
        of = Demonstrated(train, seed, task)
        found["references"] = correlations(description.correlated_references, of, test)
    return found


def correlations(
    names: Sequence[str], of: Demonstrated, test: np.ndarray
) -> dict[str, dict[str, float]]:
    """{name: {column: value}}: how references' log densities go with log p on test rows."""
    log_p = of.task.log_prob(test)
    points = tf.constant(test, DENSITY)
    found = {}
    for name, density in fit_references(names, of).items():
        found[name] = {"reward_correlation": correlation(density.log_prob(points), log_p)}
    return found


def far_share(
    reward: Reward,
    train: np.ndarray,
    test: np.ndarray,
    support: Callable[[Any], Any] | None,
    seed: int,
) -> float:
    """Share of draws of exp(R) farther from all training rows than 99.9 % of the test rows are.

    The draws are those of elliptical slice sampling with the demonstrations' moments as its prior;
    distances are in units of the demonstrations' standard deviations. Without mass away from the
    demonstrations the share is about 0.001.
    """
    from sklearn.neighbors import NearestNeighbors

    def log_prob(x: Any) -> Any:
        inside = True if support is None else support(x)
        return tf.where(inside, reward.log_prob(x), tf.constant(-np.inf, tf.float64))

    draws = slice_sample(log_prob, moments(train), DRAWS, seed, BURN_IN)
    shift, scale = train.mean(axis=0), train.std(axis=0)
    neighbours = NearestNeighbors(n_neighbors=1).fit((train - shift) / scale)
    near, far = (neighbours.kneighbors((x - shift) / scale)[0][:, 0] for x in (test, draws))
    return float(np.mean(far > np.quantile(near, 0.999)))


def off_grid_share(reward: Reward, train: np.ndarray) -> float:
    """Share of the mass of exp(R), in 2-D, off the evaluation grid, by one three times as wide."""
    inner = grid_around(train).axes
    points = grid_around(train, resolution=300, margin=1.15).points
    mass = np.exp(normalise_on_grid(evaluate(reward, points)))
    off_grid = ((points < inner[:, 0]) | (points > inner[:, -1])).any(axis=1)
    return float(mass[off_grid].sum())
