"""Figure 1: maximum likelihood, the information projection and V-IRL on path planning."""

from pathlib import Path

from virl_tf.persistence.run_folder import RunFolder
from virl_tf.tasks import GridWalker
from virl_tf.validation import InputError

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures import check_of_one_run, infer_command, walks
from experiments.figures.style import COLOURS, read, save
from experiments.result_files import read_summary

DEMONSTRATIONS = 60  # in panel a
DRAWN = 20  # samples of the single Gaussians
TITLES = (
    *("a) task", "b) maximum likelihood", "c) information projection"),
    "d) V-IRL, some paths obstructed",
)
DEMONSTRATED, LIKELIHOOD, PROJECTION = "C2", "C3", "C4"


def draw_figure_1(run: Path, out: Path) -> None:
    """Draw the four panels.

    (a) the task: start, goal, the grid of its modes and demonstrations, (b) the Gaussian of maximum
    likelihood, (c) a Gaussian fitted by the information projection, (d) a policy inferred on
    V-IRL's reward with obstacles in the way.
    """
    task = walks.walk_task(run, "1")
    if RunFolder(run).config["method"] != "virl":
        command = "python -m experiments run path_planning --method virl"
        raise InputError(f"{run} is not a run of V-IRL; make one with: {command}")
    mean, draws = projection(run)
    inferred, obstacles = obstructed(run, len(task.mode_centers))

    figure, row = make_panels(task, inferred["open"])
    shown = walks.demonstrations(run, DEMONSTRATIONS)
    walks.draw_walks(row[0], task, shown, DEMONSTRATED, opacity=0.3, width=0.8)
    x = read(run, "demonstrations.npz")["train"]
    z = np.random.default_rng(0).standard_normal((DRAWN, x.shape[1]))
    scale = np.linalg.cholesky(np.cov(x, rowvar=False, bias=True))
    single_gaussian(row[1], task, x.mean(axis=0), x.mean(axis=0) + z @ scale.T, LIKELIHOOD)
    single_gaussian(row[2], task, mean, draws, PROJECTION)
    walks.policy_walks(row[3], task, inferred, COLOURS["virl"], walks.reward_range(inferred))
    walks.discs(row[3], np.asarray(obstacles["centers"]), np.asarray(obstacles["radii"]))
    walks.legend_below(
        figure,
        [
            walks.marker("start", walks.START, "D", 5.0),
            walks.marker("goal", walks.GOAL, "o"),
            walks.line("paths of the modes", walks.GRID),
            walks.line("demonstration", DEMONSTRATED, width=0.8),
            walks.line("mean", "0.25"),
            walks.line("sample", "0.45", walks.DOTTED),
            walks.marker("obstacle", "0.35", "o", 9.0),
            walks.line("blocked path", "0.75", walks.DASHED, 0.9),
        ],
    )
    save(figure, out / "figure_1")


def make_panels(task: GridWalker, passable: np.ndarray) -> tuple[Figure, list[Axes]]:
    """Four panels of one scale with start, goal and grid, in the last of the `passable` modes."""
    # The mean path of maximum likelihood is straight, and longer than the way to the goal.
    beyond = [0.0, (1.0 - task.spacing) * task.dim, 0.0, 0.0]
    figure, row = walks.panel_row(task, walks.Layout(11.6, beyond))
    for axes, title in zip(row, TITLES, strict=True):
        first, last = axes is row[0], axes is row[3]
        walks.mode_grid(axes, task, passable if last else None, zorder=3.0 if first else 1.0)
        axes.set_title(title)
    return figure, row


def projection(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Mean and draws of the one-component policy that the run stored."""
    arrays = read(run, "walks.npz")
    if not {"projection_mean", "projection_draws"} <= set(arrays):
        missing = "projection_mean and projection_draws (an older run)"
        command = "make the run again with: python -m experiments run path_planning"
        raise InputError(f"{run / 'walks.npz'} has no {missing}; {command}")
    return arrays["projection_mean"], arrays["projection_draws"][:DRAWN]


def obstructed(run: Path, components: int) -> tuple[dict[str, np.ndarray], dict[str, list]]:
    """walks.npz of the policy inferred with obstacles, and the obstacles' centers and radii."""
    folder = run / "obstacles"
    # The folder may also hold an inference that `--out` put there, without obstacles.
    summary = read_summary(folder) if (folder / "summary.json").is_file() else {}
    obstacles = summary.get("obstacles")
    options = f"--components {components} --obstacles 0.33"
    command = infer_command([run], options, "obstacles")
    if obstacles is None:
        text = f"no result of inference with obstacles in {folder}"
        raise InputError(f"{text}; make it with: {command}")
    check_of_one_run(folder, command)
    return read(folder, "walks.npz"), obstacles


def single_gaussian(
    axes: Axes, task: GridWalker, mean: np.ndarray, draws: np.ndarray, colour: str
) -> None:
    """Mean solid, draws dotted."""
    walks.draw_walks(axes, task, draws, colour, opacity=0.6, width=0.9, style=walks.DOTTED)
    walks.draw_walks(axes, task, mean[None], walks.darker(colour), width=1.8, zorder=3.0)
