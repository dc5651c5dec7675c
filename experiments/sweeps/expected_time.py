"""How long runs will take, from the committed results of such runs."""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from virl_tf.hparams import read_preset
from virl_tf.yaml_files import read_yaml

import numpy as np
import pandas as pd

from experiments import RESULTS
from experiments.result_files import value_at
from experiments.screen import counted
from experiments.specification import Specification
from experiments.sweeps.units import RunUnit, Unit

UPPER = "paper"  # the preset whose runs take longest
SIZES = ["dim", "rows"]  # as config.yaml beside a table has them; 0: the usual ones
KEYS = ["task", "method", "components", "modes", "preset", "stage", *SIZES]


@cache
def timings() -> pd.DataFrame:
    """Median CPU seconds of the committed runs by `KEYS`; of ablations those of `best` itself."""
    frames = [pd.DataFrame(columns=[*KEYS, "cpu_seconds"])]
    for file in sorted(RESULTS.rglob("results.csv")):
        frame = pd.read_csv(file)
        if "ablation" in frame:
            frame = frame[frame["ablation"] == "best"]
        config = file.parent / "config.yaml"
        given = value_at(read_yaml(config), "config") if config.is_file() else {}
        measured = frame[frame["cpu_seconds"].notna()]
        measured = measured.assign(**{name: given.get(name, 0) for name in SIZES})
        frames.append(measured[[*KEYS, "cpu_seconds"]])
    together = pd.concat([frame for frame in frames if len(frame)] or frames)
    return together.groupby(KEYS, as_index=False)["cpu_seconds"].median()


class Expected(NamedTuple):
    """CPU seconds of a run; nan: nothing like it is committed.

    Attributes:
        bound: they are those of the preset `paper`, which takes longer than the run's.
        unusual: the committed ones have other rows or dimensions.
        of_smaller: ... or fewer components or modes.
    """

    seconds: float
    bound: bool = False
    unusual: bool = False
    of_smaller: bool = False


def expected_time(spec: Specification, stages: Sequence[str] = ("training",)) -> Expected:
    """Of a run's stages, by the committed runs of its task, method and preset, else of `paper`.

    Those of its rows and dimension where there are any, else of the usual ones, else of others; and
    of as many components and modes, or of the nearest numbers there are.
    """
    rows, usual_rows = spec.num_train, read_preset(spec.preset)["demonstrations"]["train"]
    dim, usual_dim = spec.dim, spec.description.default_dim(spec.size)
    own = [0 if dim == usual_dim else dim, 0 if rows == usual_rows else rows]
    table = timings()
    same, usual = ((table[SIZES] == sizes).all(axis=1) for sizes in (own, [0, 0]))
    for preset in (spec.preset, UPPER):
        for chosen in (same, usual, ~usual):
            found = [_seconds(table[chosen], spec, preset, stage) for stage in stages]
            seconds = sum(seconds for seconds, _ in found)
            if np.isfinite(seconds):
                bound, of_smaller = preset != spec.preset, any(lacking > 0 for _, lacking in found)
                return Expected(seconds, bound, chosen is not same, of_smaller)
    return Expected(float("nan"))


def _seconds(
    rows: pd.DataFrame, spec: Specification, preset: str, stage: str
) -> tuple[float, float]:
    """Of the nearest numbers of components and modes, and by how many these are too few."""
    wanted = {"task": spec.task, "method": spec.method, "preset": preset, "stage": stage}
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    lacking = 0.0
    for column, number in (("components", spec.components), ("modes", spec.modes)):
        distance = (rows[column].astype(float) - number).abs()
        rows = rows[distance == distance.min()]
        lacking += max(0.0, number - rows[column].astype(float).max())
    return float(rows["cpu_seconds"].mean()), lacking


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
        return "expected time unknown: no run of this task, method and preset is committed"
    bound = any(time.bound for time in times)
    of_smaller = any(time.of_smaller for time in times)  # times grow with it
    about = "at most" if bound and not of_smaller else "about"
    total, by = sum(known), f" of preset {UPPER}" if bound else ""
    by += ", of smaller sizes" if of_smaller else ""
    by += ", with other --rows or --dim" if any(time.unusual for time in times) else ""
    text = f"{about} {_duration(total)} of CPU time{_on(workers, known)}, by the committed runs{by}"
    missing = len(times) - len(known)
    if not missing:
        return text
    return f"{text}; none is committed for {counted(missing, 'run')} more"


def _on(workers: int | None, known: Sequence[float]) -> str:
    """A run is one worker's: however many there are, all take as long as the longest."""
    if workers is None:
        return ""
    seconds = max(sum(known) / workers, *known)
    return f", {_duration(seconds)} on {counted(workers, 'worker')}"


def _duration(seconds: float) -> str:
    if seconds < 90.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"
