"""Figure 3: the walks of G-EIM and V-IRL, of the training policies and of policies inferred on their rewards."""

from pathlib import Path

import matplotlib.pyplot as plt

from experiments.figures import walks
from experiments.figures.figure_2b import COLOURS, LABELS
from experiments.figures.style import read, save
from experiments.result_files import check_same_task
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
    task = walks.walk_task(runs[0], "grid_walker")
    walks.walk_task(runs[1], "grid_walker")
    check_same_task(runs)
    results = {method: [training_walks(by_method[method]), inference_walks(by_method[method])] for method in ("geim", "virl")}

    figure, row = plt.subplots(1, 4, figsize=(9.6, 4.0), layout="constrained")
    panels = [(method, stage) for method in results for stage in (0, 1)]
    for letter, axes, (method, stage) in zip("abcd", row, panels, strict=True):
        shown = results[method][stage]
        walks.target_lines(axes, task)
        walks.policy_walks(axes, task, shown, COLOURS[method], walks.reward_range(*results[method]))
        walks.ends(axes, task)
        walks.frame(axes, task)
        name = f"{letter}) {LABELS[method]} {('training', 'inference')[stage]}"
        axes.set_title(f"{name}\n{len(shown['means'])} components, {walks.covered(shown)}")
    target = walks.line("intermediate targets", walks.TARGET, ":", 1.0)
    walks.legend_below(figure, [*walks.policy_entries(), target])
    save(figure, out / "figure_3")


def training_walks(run: Path) -> dict:
    """walks.npz of the training policy."""
    return read(run, "walks.npz")


def inference_walks(run: Path) -> dict:
    """walks.npz of the policy inferred on the run's reward."""
    folder = run / "inference"
    if not (folder / "walks.npz").is_file():
        raise InputError(f"no inference result in {folder}; make it with: python -m experiments infer {run} --components 25")
    return read(folder, "walks.npz")
