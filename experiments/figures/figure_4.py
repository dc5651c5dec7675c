"""Figure 4: policies inferred on the recovered rewards against the policies that produced them."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from experiments.figures.figure_2b import COLOURS, LABELS, curve, finish, reference, select
from experiments.figures.style import save
from experiments.result_files import read_results


def draw_figure_4(sweeps: Path | Sequence[Path], out: Path) -> None:
    """Training policy (10 components, dashed) and inference policy (as many components as modes, solid) of V-IRL and G-EIM."""
    results = read_results(sweeps)
    figure, axes = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
    for method in ("virl", "geim"):
        training, inference = (select(results, stage, method, 10) for stage in ("training_policy", "inference"))
        curve(axes, training, COLOURS[method], "--", "s", f"{LABELS[method]} training")
        curve(axes, inference, COLOURS[method], "-", "o", f"{LABELS[method]} inference")
    for method, label, style in (("best_10c", "best possible 10c", (0, (5, 4))), ("em", "EM, m components", "-.")):
        reference(axes, results, method, style, label)
    finish(axes, results[results["components"].isin([0, 10]) & (results["method"] != "eim")], ("inference", "training_policy"))
    save(figure, out / "figure_4")
