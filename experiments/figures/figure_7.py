"""Figure 7: how the recovered rewards rank the modes' centres and random points."""

from pathlib import Path
from typing import Any

from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from experiments.figures import own, quoted, walks
from experiments.figures.style import COLOURS, LABELS, explain, open_frame, read, save
from experiments.pooled_results import check_poolable, check_same_preset
from experiments.result_statistics import normalised_rewards
from experiments.tasks import descriptions

COMPONENTS = 10
MODE = {"virl": "+", "geim": "x"}
RANDOM = {"virl": "_", "geim": "o"}
# A trial's column, from left to right: explored centres, unexplored ones, random points.
OFFSETS = {"explored": -0.26, "unexplored": 0.0, "random": 0.26}
GAP = 0.8  # between the methods


def draw_figure_7(folder: Path, out: Path, pool: bool = False) -> None:
    """Normalised rewards at the modes' centres ('+', 'x') and at random points ('-', 'o').

    A column for every trial.
    Centres that the training policy covers ("explored") are dark and stand left of the others.
    `pool`: draw runs of different presets, versions and lengths together.
    """
    trials = {method: find_trials(folder, method) for method in MODE}
    every = [run for runs in trials.values() for run in runs]
    steps = {run: walks.walk_task(run, "7").dim for run in every}
    if not pool:
        check_same_preset(every)
        check_poolable("task sizes", {run: {str(length)} for run, length in steps.items()})
    figure, axes = plt.subplots(figsize=(7.2, 4.0), layout="constrained")
    position, ticks, labels = 1.0, [], []
    for method, runs in trials.items():
        for i, run in enumerate(runs, start=1):
            column(axes, position, read(run, "walks.npz"), method)
            ticks.append(position)
            labels.append(str(i))
            position += 1.0
        position += GAP
    axes.set_xticks(ticks, labels)
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("trial, a seed each")
    axes.set_ylabel(f"normalised recovered reward, d = {max(steps.values())}")
    open_frame(axes)
    handles = [entry for method in MODE for entry in entries(method)]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    explain(figure, "Do recovered rewards know modes that the training policy never explored?")
    save(figure, out / "figure_7")


def find_trials(folder: Path, method: str) -> list[Path]:
    """The finished runs of a method with 10 components in a sweep's folder, by seed.

    Of walkers of several lengths those of the paper's (5 steps), else of the longest.

    Raises:
        InputError: there are none.
    """
    task = next(description for description in descriptions() if "7" in description.figures)
    found: list[tuple[int, int, Path]] = []
    for file in sorted(folder.glob("*/config.yaml")):
        config, run = RunFolder(file.parent).config, file.parent
        wanted = {"task": task.name, "method": method, "components": COMPONENTS}
        finished = (run / "summary.json").is_file() and (run / "walks.npz").is_file()
        if finished and all(config.get(key) == value for key, value in wanted.items()):
            found.append((config["steps"], config["seed"], run))
    if not found:
        wanted_runs = f"finished run of {task.name} by {method} with {COMPONENTS} components"
        is_run = (folder / "summary.json").is_file()
        sweep = quoted(Path("sweeps/walker") if is_run else own(folder))
        command = f"python -m experiments sweep {task.name} --out {sweep}"
        raise InputError(f"{folder} holds no {wanted_runs}; make them with: {command}")
    lengths = {steps for steps, _, _ in found}
    length = task.default_size if task.default_size in lengths else max(lengths)
    return [run for steps, _, run in sorted(found) if steps == length]


def column(axes: Axes, position: float, arrays: dict[str, np.ndarray], method: str) -> None:
    """One trial."""
    at_modes, at_random = normalised_rewards(arrays["modes_reward"], arrays["random_reward"])
    explored = arrays["covered"]
    groups = (at_modes[explored], at_modes[~explored], at_random)
    for name, values in zip(OFFSETS, groups, strict=True):
        x = np.full(len(values), position + OFFSETS[name])
        axes.plot(x, values, linestyle="none", **look(method, name))


def look(method: str, group: str) -> dict[str, Any]:
    """Marker and colour."""
    colour = COLOURS[method]
    if group == "random":
        hollow = {"alpha": 0.5, "markersize": 5.0, "markerfacecolor": "none"}
        return {"marker": RANDOM[method], "color": colour, **hollow}
    colours = {"explored": walks.darker(colour, 0.55), "unexplored": colour}
    return {"marker": MODE[method], "color": colours[group], "markersize": 5.5}


def entries(method: str) -> list[Line2D]:
    """A method's part of the legend."""
    labels = ("explored mode centres", "unexplored mode centres", "random points")
    return [
        Line2D([], [], linestyle="none", label=f"{LABELS[method]}, {label}", **look(method, group))
        for group, label in zip(OFFSETS, labels, strict=True)
    ]
