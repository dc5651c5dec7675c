"""Figure 5: training policy, recovered reward and inference policy of V-IRL on one task."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError

import matplotlib.pyplot as plt
import numpy as np
from scipy.interpolate import RegularGridInterpolator

from experiments.figures import infer_command
from experiments.figures.style import (
    crosses,
    ellipses,
    explain,
    heat_map,
    read,
    save,
    task_mixture,
)
from experiments.result_files import check_same_task, rewards_of
from experiments.screen import counted


def draw_figure_5(runs: list[Path], inference: Path | None, out: Path) -> None:
    """Draw the three panels as contour plots over heat maps.

    (a) log density of the first run's training policy, (b) the average reward of all runs, (c) log
    density of the policy that `infer` fitted to that average; the target's 95 % ellipses, if it is
    known, and 500 demonstrations in each.

    Raises InputError for runs on demonstrations that are not 2-D.
    """
    check_same_task(runs)
    first = read(runs[0], "grid.npz")
    if first.get("axes", np.zeros((0, 0))).shape[0] != 2:
        raise InputError(f"figure 5 is for demonstrations in 2-D; {runs[0]} has others.")
    inference = inference or runs[0] / "inference"
    if not (inference / "grid.npz").is_file():
        command = infer_command(runs, "--components 30", "inference")
        raise InputError(f"no inference result in {inference}; make it with: {command}")
    inferred = read(inference, "grid.npz")
    _check_inferred_on(runs, inference, np.array_equal(first["axes"], inferred.get("axes", 0)))
    average = average_on_first([read(run, "grid.npz") for run in runs])
    panels = {
        "a) training policy": first["log_policy"],
        f"b) recovered reward, {counted(len(runs), 'run')}": average,
        "c) new policy on b)": inferred["log_policy"],
    }
    x = read(runs[0], "demonstrations.npz")["train"]
    target = task_mixture(runs[0])
    figure, row = plt.subplots(1, 3, figsize=(9.6, 3.9), layout="constrained")
    for axes, (title, log_density) in zip(row, panels.items(), strict=True):
        image = heat_map(axes, first["axes"], log_density, contours=True)
        crosses(axes, x)
        ellipses(axes, target)
        axes.set_title(title)
    figure.colorbar(image, ax=row, label="nats below the maximum", shrink=0.85)
    known = "" if target is None else "; ellipses: 95 % of the expert's components"
    explain(
        figure,
        "A policy, the reward it helped to recover, and a new policy on that reward",
        f"colours: log density or reward, a line every 2 nats; crosses: demonstrations{known}",
    )
    save(figure, out / "figure_5")


def average_on_first(grids: Sequence[Mapping[str, np.ndarray]]) -> np.ndarray:
    """The mean of rewards [R * R], each on `axes` [2, R] of its own, at the points of the first's.

    A run's grid lies around its own demonstrations. What is not on it is taken as at its nearest
    point: a mean over fewer rewards there would have steps along the grids' borders.
    """
    first = np.stack(np.meshgrid(*grids[0]["axes"], indexing="ij"), axis=-1)
    rewards = []
    for grid in grids:
        axes, reward = grid["axes"], grid["reward"].reshape(grid["axes"].shape[1], -1)
        points = np.clip(first, axes[:, 0], axes[:, -1])
        # A reward is known up to a constant; each is aligned by its largest value.
        rewards.append(_interpolated(axes, reward - reward.max(), points))
    return np.mean(rewards, axis=0).ravel()


def _interpolated(axes: np.ndarray, values: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Bilinear; -inf, outside of a reward's bounds, wherever a corner that counts is -inf."""
    outside = np.isneginf(values)
    finite = RegularGridInterpolator(axes, np.where(outside, 0.0, values))(points)
    return np.where(RegularGridInterpolator(axes, 1.0 * outside)(points) > 0.0, -np.inf, finite)


def _check_inferred_on(runs: list[Path], inference: Path, same_grid: bool) -> None:
    """Raises InputError unless the inference was made from these runs, on the same grid."""
    config = RunFolder(inference).config
    made_from, rewards = config.get("runs"), rewards_of(runs)
    same = made_from == [run.resolve().name for run in runs]
    if "rewards" in config and len(rewards) == len(runs):  # not of records
        renamed = inference.resolve().parent == runs[0].resolve()  # with the run it is in
        same = (same or renamed) and config["rewards"] == rewards
    if not (same and same_grid):
        found = ", ".join(map(str, made_from or ["something else"]))
        raise InputError(
            f"{inference} was inferred on the runs {found}, not on {', '.join(map(str, runs))}; "
            f"make one with: {infer_command(runs, '--components 30', 'inference')}"
        )
