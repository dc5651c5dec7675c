"""The first row of a table of ablations beside the others: what a part gives, and what it costs."""

from collections.abc import Sequence
from pathlib import Path

from virl_tf.persistence.files import write_text
from virl_tf.validation import InputError

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.figures.style import Look, explain, log_ticks, open_frame, save
from experiments.references import LABELS
from experiments.result_files import COLUMNS, read_table, to_markdown
from experiments.result_statistics import (
    bootstrap_interval,
    with_interval,
    with_lost,
    without_value,
)
from experiments.screen import screen
from experiments.sweeps.ablation_tables import TABLES, read_rows, table_holding
from experiments.tasks import describe
from experiments.tasks.description import Panel

# Of `experiments.references`: what a reward has to beat.
REFERENCES = ("kde_silverman", "kde_held_out", "em_bic", "em_target")
AWAY = Panel("training", "far_share", "share of the reward's draws off the data")
COST = Panel("training", "cpu_seconds", "CPU seconds of the run")


def draw_figure_ablations(folders: Sequence[Path], out: Path) -> None:
    """A column of panels per folder of `ablate`: reward, policy, mass off the data, cost.

    Dots are seeds, bars 95 % intervals. Below the ablations: the references that were measured on
    the same demonstrations. A panel without measurements stays empty; of lost runs it says how
    many there are. Writes the same numbers as one table, `ablations.md`, beside the figure.
    """
    results = [read_ablations(folder) for folder in folders]
    found = {name for frame in results for name in frame["ablation"]}
    table = table_holding(found)
    base, *others = read_rows(table)
    names = [name for name in (base, *others) if name in found]
    stages = {stage for frame in results for stage in frame["stage"]}
    references = {LABELS[name]: f"reference {name}" for name in REFERENCES}
    references = {label: stage for label, stage in references.items() if stage in stages}
    size = (1.6 + 2.9 * len(folders), 2.0 + 0.72 * (len(names) + len(references)))
    options: Look = {"sharey": True, "squeeze": False, "layout": "constrained"}
    figure, grid = plt.subplots(4, len(folders), figsize=size, **options)
    columns: dict[str, list[str]] = {"ablation": [*names, *references]}
    for title, frame, axes_below in zip(_titles(folders), results, grid.T, strict=True):
        axes_below[0].set_title(title)
        panels = (*describe(frame["task"].iloc[0]).ablation_panels, AWAY, COST)
        for axes, panel in zip(axes_below, panels, strict=True):
            if cells := _draw_panel(axes, frame, panel, base, names, references):
                columns[f"{title}: {panel.label}"] = cells
    explain(
        figure,
        f"{TABLES[table]}, and references",
        "dots: seeds; bars: means, from 5 seeds on with 95 % intervals; dashed: the first row's "
        "mean; grey: densities of the same demonstrations without a reward; lower is better, of "
        "correlations higher",
    )
    save(figure, out / "figure_ablations")
    write_text(out / "ablations.md", to_markdown(pd.DataFrame(columns)))
    screen().out(f"wrote {out / 'ablations.md'}")


def _titles(folders: Sequence[Path]) -> list[str]:
    """Their names, with as many parents as tell them apart."""
    parts = [folder.absolute().parts for folder in folders]
    titles: list[str] = []
    for depth in range(1, max(map(len, parts)) + 1):
        titles = ["/".join(part[-depth:]).replace("_", " ") for part in parts]
        if len(set(titles)) == len(titles):
            break
    return titles


def _draw_panel(
    axes: Axes,
    frame: pd.DataFrame,
    panel: Panel,
    base: str,
    names: list[str],
    references: dict[str, str],
) -> list[str]:
    """Draw the rows; returns their cells in the table, none of a panel without measurements.

    Args:
        base: what the others are compared with, and what references stand beside.
        names: of the ablations.
        references: {label: stage}.
    """
    values = {name: _values(frame, name, panel.stage, panel.column) for name in names}
    measured = any(map(len, values.values()))
    lost = {name: _lost(frame, name, panel.stage, panel.column) for name in names if measured}
    rows = frame if measured else frame[:0]
    values |= {name: _values(rows, base, ref, panel.column) for name, ref in references.items()}
    dots(axes, values, panel.label, base)
    _write_lost(axes, list(lost.values()))
    return [_cell(v, lost.get(name, 0)) for name, v in values.items()] if measured else []


def read_ablations(folder: Path) -> pd.DataFrame:
    """The results.csv of `ablate`. Raises InputError if it is damaged, or another command's."""
    file = folder / "results.csv"
    frame = read_table(file)
    if not {"ablation", *COLUMNS} <= set(frame) or not len(frame):
        text = "is not a table of `python -m experiments ablate`: it has no ablations."
        raise InputError(f"{file} {text}")
    return frame


def dots(axes: Axes, values: dict[str, np.ndarray], label: str, base: str) -> None:
    """A row per ablation; the dashed line is the mean of the base.

    Logarithmic where a bad ablation would hide the others.
    """
    for row, (name, seeds) in enumerate(values.items()):
        colour = {base: "C1", **dict.fromkeys(LABELS.values(), "C7")}.get(name, "C0")
        rows = np.full(len(seeds), row)
        axes.plot(seeds, rows, "o", color=colour, markersize=3, alpha=0.5, markeredgewidth=0)
        mean = [seeds.mean()] if len(seeds) else []
        axes.plot(mean, rows[:1], "|", color=colour, markersize=10)
        axes.plot(bootstrap_interval(seeds), [row, row], color=colour, linewidth=1.2)
    if len(values.get(base, ())):
        axes.axvline(values[base].mean(), color="C1", linewidth=0.8, linestyle="--", zorder=0)
    axes.set_yticks(range(len(values)), [name.replace("_", " ") for name in values], fontsize=8)
    axes.set_ylim(len(values) - 0.5, -0.5)
    shown = np.concatenate(list(values.values()))
    if len(shown) and shown.max() > 5.0 * shown.min() > 0.0:
        axes.set_xscale("log")
        log_ticks(axes.xaxis, shown, (1.0, 2.0, 5.0))
    else:
        axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(label, fontsize=8)
    open_frame(axes)


def _values(frame: pd.DataFrame, name: str, stage: str, column: str) -> np.ndarray:
    chosen = frame[(frame["ablation"] == name) & (frame["stage"] == stage)]
    values = chosen[column].to_numpy(float) if column in chosen else np.array([])
    return values[np.isfinite(values)]


def _lost(frame: pd.DataFrame, name: str, stage: str, column: str) -> int:
    """How many runs are lost to the panel."""
    chosen = frame[(frame["ablation"] == name) & (frame["stage"] == stage)]
    return without_value(chosen, column) if column in chosen else 0


def _cell(values: np.ndarray, lost: int) -> str:
    return with_lost(with_interval(values, "{:.3g}".format) if len(values) else "", lost)


def _write_lost(axes: Axes, numbers: Sequence[int]) -> None:
    """Beside the rows of a panel, of which the first ones have these numbers of lost runs."""
    right: Look = {"ha": "right", "va": "bottom", "fontsize": 6, "color": "0.3"}
    for row, number in enumerate(numbers):
        if number:
            place = axes.get_yaxis_transform()  # x: a share of the width
            axes.text(1.0, row, f"{number} lost", transform=place, **right)
