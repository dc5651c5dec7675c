"""Pictures of a reward recovered from a user's demonstrations, from its folder: 1-D, 2-D, more."""

from pathlib import Path
from typing import Any

from virl_tf.persistence.policy_file import load_policy

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.figures.style import (
    DEPTH,
    Look,
    crosses,
    ellipses,
    explain,
    heat_map,
    highest,
    not_drawn,
    open_frame,
    read,
    save,
    shown,
)

MOST_COLUMNS = 6  # of a corner plot
DOTS: Look = {"s": 2, "linewidths": 0, "rasterized": True}  # of a corner plot


def draw_demonstrations(folder: Path, columns: list[str], situation: str = "") -> None:
    """reward.png and .pdf in 1-D and 2-D, corner.png and .pdf else; `situation`: of all of it."""
    draw = {1: _draw_curve, 2: _draw_map}.get(len(columns), _draw_corner)
    draw(folder, columns, situation)


def _draw_curve(folder: Path, columns: list[str], situation: str) -> None:
    """Histogram of the demonstrations, exp(reward) normalised on the grid, policy's density; inside
    of the user's support, if there is one.
    """
    grid, x = read(folder, "grid.npz"), read(folder, "demonstrations.npz")["train"][:, 0]
    axis = grid["axes"][0]
    inside = grid.get("support", np.ones(len(axis), bool))
    reward = np.where(inside, grid["reward"], -np.inf)
    density = np.exp(reward - highest(reward))  # 0 where nothing is inside
    density /= np.sum(0.5 * (density[1:] + density[:-1]) * np.diff(axis)) or 1.0
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    bins = min(60, max(10, len(x) // 20))
    axes.hist(x, bins, density=True, color="0.85", label="demonstrations")
    axes.plot(axis, density, color="C0", label="exp(recovered reward), normalised")
    policy = "policy" if inside.all() else "new policy under --support"
    axes.plot(axis, np.exp(grid["log_policy"]), color="C1", linestyle="--", label=policy)
    if not inside.all():
        hatched: Look = {"facecolor": "none", "edgecolor": "0.8", "hatch": "///", "linewidth": 0}
        hatched |= {"transform": axes.get_xaxis_transform(), "label": "outside of the support"}
        axes.fill_between(axis, 0.0, 1.0, where=~inside, **hatched)
    axes.set_xlabel(shown(columns[0], 6.0))
    axes.set_ylabel("density")
    axes.legend(frameon=False, fontsize=8)
    axes.set_title(shown(situation, 6.0), fontsize=9)
    open_frame(axes)
    save(figure, folder / "reward")


def _draw_map(folder: Path, columns: list[str], situation: str) -> None:
    """The reward with demonstrations on it, and the policy with its components; in nats below what
    is highest inside of the user's support.
    """
    grid, x = read(folder, "grid.npz"), read(folder, "demonstrations.npz")["train"]
    options: Look = {"layout": "constrained", "sharex": True, "sharey": True}
    figure, panels = plt.subplots(1, 2, figsize=(10.4, 4.4), **options)
    for axes, key in zip(panels, ("reward", "log_policy"), strict=True):
        inside = np.where(grid.get("support", True), grid[key], -np.inf)
        image = heat_map(axes, grid["axes"], inside)
        axes.set_aspect("auto")  # the columns may have any units
        axes.xaxis.set_major_locator(plt.MaxNLocator(5))
        axes.yaxis.set_major_locator(plt.MaxNLocator(5))
        axes.set_xlabel(shown(columns[0], 4.4))
        if "support" in grid:
            _shade(axes, grid["axes"], ~grid["support"])
    crosses(panels[0], x)
    ellipses(panels[1], load_policy(folder / "policy.npz"), colour="white")
    panels[0].set_ylabel(shown(columns[1], 4.0))
    panels[0].set_title("recovered reward; demonstrations as crosses")
    policy = "new policy under --support" if "support" in grid else "policy"
    panels[1].set_title(f"{policy}; 95 % ellipses of its components")
    figure.colorbar(image, ax=panels, label="nats below the maximum", shrink=0.9)
    if situation:
        figure.suptitle(shown(situation, 10.0), fontsize=9)
    save(figure, folder / "reward")


def _shade(axes: Axes, grid_axes: np.ndarray, where: np.ndarray) -> None:
    """Light grey over the points of a grid [2, R] at which `where` [R * R] is true."""
    shape = (grid_axes.shape[1], grid_axes.shape[1])
    grey = np.full((*shape, 4), 0.83)
    grey[..., 3] = 0.85 * where.reshape(shape).T  # opacity
    axes.pcolormesh(*grid_axes, grey, shading="nearest", rasterized=True)


def _draw_corner(folder: Path, columns: list[str], situation: str) -> None:
    """Below the diagonal demonstrations, above it draws of the policy coloured by the reward, or
    grey outside of the user's support. On it histograms of both.
    """
    grid, x = read(folder, "grid.npz"), read(folder, "demonstrations.npz")["train"]
    draws, rewards = grid["policy_samples"], grid["policy_rewards"]
    inside = grid.get("support", np.ones(len(draws), bool))
    rewards = rewards[inside]
    depth = np.maximum(rewards - highest(rewards), -DEPTH)
    some = x[np.random.default_rng(0).permutation(len(x))[: len(draws)]]
    coloured: Look = {"c": depth, "vmin": -DEPTH, "vmax": 0.0}
    count = min(len(columns), MOST_COLUMNS)
    size = (1.0 + 1.9 * count, 1.9 * count)
    figure, panels = plt.subplots(count, count, figsize=size, layout="constrained", squeeze=False)
    for row in range(count):
        for column in range(count):
            axes, low, high = panels[row, column], *_limits(x[:, column], draws[:, column])
            axes.set_xlim(low, high)
            if row == column:
                _histograms(axes, x[:, row], draws[:, row], np.linspace(low, high, 40))
            else:
                axes.set_ylim(*_limits(x[:, row], draws[:, row]))
            pair = [column, row]
            if row > column:
                axes.scatter(*some[:, pair].T, color="0.45", alpha=0.5, **DOTS)
            elif row < column:
                axes.scatter(*draws[~inside][:, pair].T, color="0.8", **DOTS)
                image = axes.scatter(*draws[inside][:, pair].T, **coloured, **DOTS)
            _label(axes, row, column, count, columns)
    handles = panels[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    scale = "reward of the policy's draws, nats below the highest"
    figure.colorbar(image, ax=panels, label=scale, shrink=0.6)
    above = "above" if inside.all() else "above; grey: outside of the support"
    said = [f"demonstrations (below the diagonal), policy ({above})"]
    said.append(not_drawn(len(columns) - count))
    text = "; ".join(filter(None, said)) + (f"\n{situation}" if situation else "")
    figure.suptitle(shown(text, size[0]), fontsize=9)
    save(figure, folder / "corner")


def _histograms(axes: Axes, x: np.ndarray, draws: np.ndarray, bins: Any) -> None:
    """Of one column."""
    axes.hist(x, bins, density=True, color="0.8", label="demonstrations")
    axes.hist(draws, bins, density=True, histtype="step", color="C1", label="policy")
    axes.set_yticks([])


def _limits(x: np.ndarray, draws: np.ndarray) -> tuple[float, float]:
    """A range that holds all demonstrations, and all but the outermost draws."""
    low, high = min(x.min(), np.quantile(draws, 0.005)), max(x.max(), np.quantile(draws, 0.995))
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def _label(axes: Axes, row: int, column: int, count: int, columns: list[str]) -> None:
    lowest, leftmost = row == count - 1, column == 0
    axes.tick_params(labelsize=6, labelbottom=lowest, labelleft=leftmost)
    axes.xaxis.set_major_locator(plt.MaxNLocator(3))
    if row != column:
        axes.yaxis.set_major_locator(plt.MaxNLocator(3))
    axes.set_xlabel(shown(columns[column], 1.9) if lowest else "", fontsize=8)
    axes.set_ylabel(shown(columns[row], 1.9) if leftmost else "", fontsize=8)


def draw_training(folder: Path, history: pd.DataFrame) -> None:
    """training.png and .pdf: loss of each discriminator on held-out points, effective sample size
    of the weights.
    """
    figure, (loss, size) = plt.subplots(1, 2, figsize=(8.0, 3.3), layout="constrained")
    t = history["t"]
    loss.plot(t, history["validation_loss"], "o-", markersize=3, label="on held-out points")
    loss.plot(t, history["train_loss"], "s-", markersize=3, label="on points trained on")
    best: Look = {"color": "0.5", "linewidth": 0.8, "label": "best constant: nothing to learn"}
    loss.plot(t, history["chance_loss"], "_:", **best)
    loss.set_ylabel("loss of the discriminator")
    loss.legend(frameon=False, fontsize=7)
    share = history["effective_sample_size"] / history["num_negatives"]
    size.plot(t, share, "o-", markersize=3)
    size.set_ylim(0.0, 1.05)
    size.set_ylabel("effective sample size / draws")
    for axes in (loss, size):
        axes.set_xlabel("iteration")
        axes.set_xlim(t.min() - 0.5, t.max() + 0.5)
        axes.xaxis.set_major_locator(plt.MaxNLocator(integer=True, min_n_ticks=1))
        open_frame(axes)
    explain(
        figure,
        "Did the discriminators learn, and do their weights carry?",
        "a discriminator below the dotted line found something; the last ones should be at it; "
        "above a tenth of the draws the weights are fine",
    )
    save(figure, folder / "training")
