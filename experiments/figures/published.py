"""Points read off the paper's printed figures, laid beside ours."""

from pathlib import Path

from virl_tf.validation import InputError, reason

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from experiments.figures.style import COLOURS, LABELS, Look
from experiments.result_statistics import Curve, select

KEYS = ["stage", "method", "components", "modes"]
COLUMNS = [*KEYS, "value"]
STAGES = {
    "training": "reward",
    "training_policy": "training policy",
    "inference": "new policy",
}
MARKERS = {1: "s", 10: "o"}  # by components, as our curves


def read_published(file: Path, curves: list[Curve]) -> pd.DataFrame:
    """The points of a CSV file.

    Args:
        file: with the columns stage, method, components, modes (as in results.csv) and value, the
            I-projection that was read off.
        curves: of the figure; a point belongs to one of them.

    Raises:
        InputError: the file is not such a table, or a point is of no curve, repeated or not a
            positive number, its modes not a whole one.
    """
    try:
        points = pd.read_csv(file, skipinitialspace=True)
    except (OSError, ValueError) as error:
        raise InputError(f"--published {file} cannot be read: {reason(error)}.") from error
    missing = [name for name in COLUMNS if name not in points]
    if missing or points.empty:
        lacking = f"no column {missing[0]}" if missing else "no rows"
        raise InputError(f"--published {file} has {lacking}; it needs {', '.join(COLUMNS)}.")
    if not isinstance(points.index, pd.RangeIndex):  # pandas takes the first value for a label
        names = ", ".join(points.columns)
        raise InputError(f"--published {file} has rows of more values than its columns, {names}.")
    for i, row in points.iterrows():
        wrong = _refusal(row, curves)
        if wrong:
            raise InputError(f"--published {file}, row {i}: {wrong}.")
    if points.duplicated(KEYS).any():
        first = int(np.argmax(points.duplicated(KEYS)))
        raise InputError(f"--published {file}, row {first}: this point stands there already.")
    return points


def _refusal(row: pd.Series, curves: list[Curve]) -> str:
    """What is wrong with one point, or ""."""
    curve = (row["stage"], row["method"], row["components"])
    if curve not in curves:
        shown = "; ".join(f"{stage}, {method}, {number}" for stage, method, number in curves)
        return f"{', '.join(map(str, curve))} is no curve of this figure, which has {shown}"
    for name in ("modes", "value"):
        number = pd.to_numeric(row[name], errors="coerce")
        if not (np.isfinite(number) and number > 0.0):
            return f"{name} must be a positive number, got {row[name]!r:.40}"
    if float(row["modes"]) % 1.0:
        return f"modes must be a whole number, got {row['modes']!r:.40}"
    return ""


def lay_published(axes: Axes, points: pd.DataFrame, curves: list[Curve]) -> None:
    """Hollow markers, joined by thin dotted lines, in our curves' colours."""
    for curve in curves:
        chosen = select(points, curve).sort_values("modes")
        if chosen.empty:
            continue
        stage, method, components = curve
        marker = "D" if stage == "training_policy" else MARKERS.get(components, "^")
        look: Look = {"color": COLOURS[method], "linewidth": 0.7, "linestyle": ":", "zorder": 4}
        face: Look = {"markerfacecolor": "white", "markersize": 5}
        label = f"{LABELS[method]} {components}c, the paper's {STAGES[stage]}"
        axes.plot(chosen["modes"], chosen["value"], marker=marker, label=label, **look, **face)
