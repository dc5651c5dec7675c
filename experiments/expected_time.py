"""How long runs will take, from the committed results of such runs."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.specification import Specification
from experiments.units import RunUnit, Unit

RESULTS = Path(__file__).parent / "results"
KEYS = ["task", "method", "components", "modes", "preset", "stage"]


@cache
def timings(results: Path = RESULTS) -> pd.DataFrame:
    """Median CPU seconds of the committed runs by `KEYS`; of ablations those of `best` itself."""
    frames = [pd.DataFrame(columns=[*KEYS, "cpu_seconds"])]
    for file in sorted(results.rglob("results.csv")):
        frame = pd.read_csv(file)
        if "ablation" in frame:
            frame = frame[frame["ablation"] == "best"]
        measured = frame[frame["cpu_seconds"].notna()]
        frames.append(measured[[*KEYS, "cpu_seconds"]])
    together = pd.concat([frame for frame in frames if len(frame)] or frames)
    return together.groupby(KEYS, as_index=False)["cpu_seconds"].median()


def expected_seconds(spec: Specification, stages: Sequence[str] = ("training",)) -> float:
    """CPU seconds of a run's stages, by the committed runs of its task, method and preset.

    Those of as many components and modes, or of the nearest numbers there are. nan: there are none
    for some stage.
    """
    known = timings()
    same = (known["task"] == spec.task) & (known["method"] == spec.method)
    same &= known["preset"] == spec.preset
    total = 0.0
    for stage in stages:
        rows = known[same & (known["stage"] == stage)]
        if rows.empty:
            return float("nan")
        for column, value in (("components", spec.components), ("modes", spec.modes)):
            distance = (rows[column].astype(float) - value).abs()
            rows = rows[distance == distance.min()]
        total += float(rows["cpu_seconds"].mean())
    return total


def seconds_of_units(units: Sequence[Unit]) -> np.ndarray:
    """Expected CPU seconds of each run among the units [n]; nan where nothing like it is known."""
    runs = [unit for unit in units if isinstance(unit, RunUnit)]
    seconds = [expected_seconds(run.spec, ("training", *run.inferences)) for run in runs]
    return np.array(seconds, np.float64)


def sentence(seconds: np.ndarray, workers: int) -> str:
    """What `seconds_of_units` comes to, in words."""
    known = seconds[np.isfinite(seconds)]
    if not len(seconds):
        return "nothing left to run"
    if not len(known):
        return "expected time unknown: no committed run is of this task, method and preset"
    total = known.sum()
    text = f"about {_duration(total)} of CPU time, {_duration(total / workers)} on {workers} "
    text += f"worker{'s' if workers > 1 else ''}, by the committed runs"
    missing = len(seconds) - len(known)
    return f"{text}; and {missing} runs of which none is committed" if missing else text


def _duration(seconds: float) -> str:
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"
