"""Figure 3: the walks of G-EIM and V-IRL, of the training policies and of policies inferred on their rewards."""

from pathlib import Path

import numpy as np

from experiments.figures import walks
from experiments.figures.figure_2b import COLOURS, LABELS
from experiments.figures.style import read, save
from virl_tf.run_folder import RunFolder
from virl_tf.validation import InputError


def draw_figure_3(runs: list[Path], out: Path) -> None:
    """Draw (a) G-EIM's training policy, (b) the policy inferred on its reward, (c) and (d) the same for V-IRL.

    Component means solid, samples dotted, opacity by the recovered reward (one scale per reward), target lines dotted.
    """
    by_method = {RunFolder(run).config.get("method"): run for run in runs}
    if set(by_method) != {"geim", "virl"}:
        methods = " and ".join(str(RunFolder(run).config.get("method")) for run in runs)
        raise InputError(f"figure 3 needs a run of geim and one of virl (python -m experiments run grid_walker); got {methods}.")
    task, other = (walks.walk_task(run, "grid_walker") for run in runs)
    if task.dim != other.dim:
        raise InputError(f"figure 3 needs walks of one length; {runs[0]} has {task.dim} steps, {runs[1]} has {other.dim}.")
    results = {method: both_walks(by_method[method]) for method in ("geim", "virl")}

    figure, row = walks.panel_row(task, 9.6, beyond=(0.0, 0.0, 0.0, 0.0), title_lines=2)
    panels = [(method, stage) for method in results for stage in (0, 1)]
    for letter, axes, (method, stage) in zip("abcd", row, panels, strict=True):
        shown = results[method][stage]
        walks.target_lines(axes, task)
        walks.policy_walks(axes, task, shown, COLOURS[method], walks.reward_range(*results[method]))
        name = f"{letter}) {LABELS[method]} {('training', 'inference')[stage]}"
        axes.set_title(f"{name}\n{len(shown['means'])} components, {walks.covered(shown)}")
    target = walks.line("intermediate targets", walks.TARGET, ":", 1.0)
    walks.legend_below(figure, [*walks.policy_entries(), target])
    save(figure, out / "figure_3")


def both_walks(run: Path) -> list[dict[str, np.ndarray]]:
    """walks.npz of the training policy, and of the policy inferred on the run's reward."""
    folder = run / "inference"
    if not (folder / "walks.npz").is_file():
        raise InputError(f"no inference result in {folder}; make it with: python -m experiments infer {run} --components 25")
    return [read(run, "walks.npz"), read(folder, "walks.npz")]
