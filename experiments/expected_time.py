"""How long runs will take, from the committed results of such runs."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from virl_tf.hparams import read_preset

import numpy as np
import pandas as pd

from experiments import RESULTS
from experiments.specification import Specification
from experiments.units import RunUnit, Unit

UPPER = "paper"  # the preset whose runs take longest
KEYS = ["task", "method", "components", "modes", "preset", "stage"]


@cache
def timings() -> pd.DataFrame:
    """Median CPU seconds of the committed runs by `KEYS`; of ablations those of `best` itself."""
    frames = [pd.DataFrame(columns=[*KEYS, "cpu_seconds"])]
    for file in sorted(RESULTS.rglob("results.csv")):
        frame = pd.read_csv(file)
        if "ablation" in frame:
            frame = frame[frame["ablation"] == "best"]
        measured = frame[frame["cpu_seconds"].notna()]
        frames.append(measured[[*KEYS, "cpu_seconds"]])
    together = pd.concat([frame for frame in frames if len(frame)] or frames)
    return together.groupby(KEYS, as_index=False)["cpu_seconds"].median()


class Expected(NamedTuple):
    """CPU seconds of a run; nan: nothing like it is committed.

    Attributes:
        bound: they are those of the preset `paper`, which takes longer than the run's.
        unusual: the run has other rows or dimensions than the committed ones.
    """

    seconds: float
    bound: bool = False
    unusual: bool = False


def expected_time(spec: Specification, stages: Sequence[str] = ("training",)) -> Expected:
    """Of a run's stages, by the committed runs of its task, method and preset, else of `paper`.

    Those of as many components and modes, or of the nearest numbers there are.
    """
    usual = (
        read_preset(spec.preset)["demonstrations"]["train"],
        spec.description.default_dim(spec.size),
    )
    unusual = (spec.num_train, spec.dim) != usual
    for preset in (spec.preset, UPPER):
        seconds = sum(_seconds(spec, preset, stage) for stage in stages)
        if np.isfinite(seconds):
            return Expected(seconds, preset != spec.preset, unusual)
    return Expected(float("nan"))


def _seconds(spec: Specification, preset: str, stage: str) -> float:
    rows = timings()
    wanted = {"task": spec.task, "method": spec.method, "preset": preset, "stage": stage}
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    for column, number in (("components", spec.components), ("modes", spec.modes)):
        distance = (rows[column].astype(float) - number).abs()
        rows = rows[distance == distance.min()]
    return float(rows["cpu_seconds"].mean())


def times_of_units(units: Sequence[Unit]) -> list[Expected]:
    """Of each run among the units, with its inference."""
    runs = [unit for unit in units if isinstance(unit, RunUnit)]
    return [expected_time(run.spec, ("training", *run.inferences)) for run in runs]


def sentence(times: Sequence[Expected], workers: int | None) -> str:
    """What these runs come to, in words; on a cluster (None) in CPU time alone."""
    known = [time.seconds for time in times if np.isfinite(time.seconds)]
    if not times:
        return "nothing left to run"
    if not known:
        return "expected time unknown: no run of this task and method is committed"
    bound = any(time.bound for time in times)
    about, by = ("at most", f" of preset {UPPER}") if bound else ("about", "")
    total = sum(known)
    by += ", with the usual --rows and --dim" if any(time.unusual for time in times) else ""
    text = f"{about} {_duration(total)} of CPU time{_on(workers, total)}, by the committed runs{by}"
    missing = len(times) - len(known)
    return f"{text}; and {missing} runs of which none is committed" if missing else text


def _on(workers: int | None, total: float) -> str:
    if workers is None:
        return ""
    return f", {_duration(total / workers)} on {workers} worker{'s' if workers > 1 else ''}"


def _duration(seconds: float) -> str:
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"
