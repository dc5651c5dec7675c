"""Figure 3: walks of G-EIM and V-IRL, of training policies and of those inferred on rewards."""

from pathlib import Path

from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError

import numpy as np

from experiments.figures import check_of_one_run, infer_command, walks
from experiments.figures.style import COLOURS, LABELS, read, save

# The paper's: training and inference. A second kind of inference has the letter of the first with
# a prime.
LETTERS = {"geim": "ab", "virl": "cd"}


def draw_figure_3(runs: list[Path], out: Path) -> None:
    """Draw the training policy and those inferred on its reward, first of G-EIM, then of V-IRL.

    With inference by a fixed set of components and by search the methods have a row each. Component
    means solid, samples dotted, opacity by the recovered reward (one scale per reward), target
    lines dotted.
    """
    by_method = {RunFolder(run).config.get("method"): run for run in runs}
    if set(by_method) != {"geim", "virl"}:
        methods = " and ".join(str(RunFolder(run).config.get("method")) for run in runs)
        needs = "a run of geim and one of virl (python -m experiments run grid_walker)"
        raise InputError(f"figure 3 needs {needs}; got {methods}.")
    task, other = (walks.walk_task(run, "3") for run in runs)
    if task.dim != other.dim:
        lengths = f"{runs[0]} has {task.dim} steps, {runs[1]} has {other.dim}"
        raise InputError(f"figure 3 needs walks of one length; {lengths}.")
    results = {method: stages(by_method[method]) for method in ("geim", "virl")}
    names = list(results["geim"])
    if list(results["virl"]) != names:
        both = f"{runs[0]} and {runs[1]} have different ones"
        raise InputError(f"figure 3 needs the same inference for both runs; {both}.")

    rows = 1 if len(names) == 2 else 2
    beyond = (0.0,) * (2 * len(names) // rows)
    figure, axes = walks.panel_row(task, walks.Layout(9.6, beyond, title_lines=2, rows=rows))
    panels = [(method, name) for method in results for name in names]
    for panel, (method, name) in zip(axes, panels, strict=True):
        shown = results[method][name]
        walks.target_lines(panel, task)
        span = walks.reward_range(*results[method].values())
        walks.policy_walks(panel, task, shown, COLOURS[method], span)
        found = f"{len(shown['means'])} components, {walks.covered(shown)}"
        letter = LETTERS[method][min(names.index(name), 1)]
        prime = "'" * max(0, names.index(name) - 1)
        panel.set_title(f"{letter}{prime}) {LABELS[method]} {name}\n{found}")
    target = walks.line("intermediate targets", walks.TARGET, ":", 1.0)
    walks.legend_below(figure, [*walks.policy_entries(), target])
    save(figure, out / "figure_3")


def stages(run: Path) -> dict[str, dict[str, np.ndarray]]:
    """walks.npz of the training policy, and of the policies inferred on the run's reward."""
    found = {"training policy": read(run, "walks.npz")}
    command = infer_command([run], "--components 25", "inference")
    for folder in (run / "inference", run / "inference_search"):
        if (folder / "walks.npz").is_file():
            check_of_one_run(folder, command)
            kind = "search" if RunFolder(folder).config.get("search") else "fixed set"
            found[f"new policy, {kind}"] = read(folder, "walks.npz")
    if len(found) == 1:
        raise InputError(f"no inference result in {run / 'inference'}; make it with: {command}")
    return found
