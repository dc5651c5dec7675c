"""Figure 2a: the random Gaussian task."""

from pathlib import Path

import matplotlib.pyplot as plt

from experiments.figures.style import (
    crosses,
    ellipses,
    explain,
    heat_map,
    read,
    save,
    task_mixture,
)


def draw_figure_2a(run: Path, out: Path) -> None:
    """Heat map of the target's log density, ellipses of its components, demonstrations."""
    grid, target = read(run, "grid.npz"), task_mixture(run)
    figure, axes = plt.subplots(figsize=(4.1, 3.8), layout="constrained")
    image = heat_map(axes, grid["axes"], grid["log_p"])
    crosses(axes, read(run, "demonstrations.npz")["train"])
    ellipses(axes, target)
    figure.colorbar(image, label="log density, nats below the maximum")
    explain(
        figure,
        "The expert of random Gaussians",
        "colours: log density; ellipses: 95 % of each component; crosses: demonstrations",
    )
    save(figure, out / "figure_2a")
