"""Figure 4: policies inferred on the recovered rewards against the policies that produced them."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

from experiments.figures.figure_2b import BANDS, curve, finish, reference
from experiments.figures.published import lay_published, read_published
from experiments.figures.style import COLOURS, LABELS, explain, save
from experiments.pooled_results import read_results
from experiments.result_statistics import select

CURVES = (
    ("training_policy", "--s", "training policy"),
    ("inference", "-o", "new policy, fixed set"),
    ("inference_search", "-.^", "new policy, search"),
)


OF_THE_PAPER = [
    (stage, method, 10) for method in ("virl", "geim") for stage in ("training_policy", "inference")
]


def draw_figure_4(
    sweeps: Path | Sequence[Path], out: Path, pool: bool = False, published: Path | None = None
) -> None:
    """Training policies (10 components, dashed) and inference policies (as many as modes).

    Solid: a fixed set of components; dash-dotted, where a sweep has it: components
    that come and go. `published`: points read off the paper's figure (figures/published.py).
    """
    points = None if published is None else read_published(published, OF_THE_PAPER)
    results = read_results(sweeps, "gaussians", pool)
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for method in ("virl", "geim"):
        for stage, style, label in CURVES:
            chosen = select(results, (stage, method, 10))
            if len(chosen):
                curve(axes, chosen, COLOURS[method], style, f"{LABELS[method]} {label}")
    for name in ("best_10c", "kde_held_out", "em_target", "em_bic"):
        reference(axes, results, name)
    if points is not None:
        lay_published(axes, points, OF_THE_PAPER)
    stages = tuple(stage for stage, *_ in CURVES)
    shown = results["components"].isin([0, 10]) & (results["method"] != "eim")
    # A run's status is of its reward; the policies may be fine.
    finish(axes, results[shown], stages, "reward diverged", points)
    explain(
        figure,
        "New policies on the recovered rewards, and the policies of the training",
        "training policy: 10 components; new policy: as many as the expert has modes, a fixed set "
        f"or by search; {BANDS}",
    )
    save(figure, out / "figure_4")
