"""What `fit` is asked for, and the data it reads: all that needs no TensorFlow."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from virl_tf.data_checks import refuse_row_numbers
from virl_tf.hparams import Hparams
from virl_tf.trajectories.episodes import Episodes
from virl_tf.trajectories.options import TOLERANCE, check_options
from virl_tf.validation import InputError, check_choice, check_positive

import numpy as np
import pandas as pd

from experiments.demonstration_files import Demonstrations, check_context_names, load_demonstrations
from experiments.specification import parse_names
from experiments.trajectory_files import (
    EPISODE_COLUMNS,
    TrajectoryFile,
    load_episodes,
    split_contexts,
)

Support = tuple[Mapping[str, float] | None, Mapping[str, float] | None]


class TrajectoryRequest(NamedTuple):
    """How trajectories become rows.

    Attributes:
        encoding, encoding_size: the kind and its size, and via, phase, tolerance: see
            `virl_tf.fit_encoding`; None: its defaults.
    """

    encoding: str = "auto"
    encoding_size: int | None = None
    via: Sequence[str] | None = None
    phase: str | None = None
    tolerance: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Of an encoding of any kind and size."""
        tolerance = TOLERANCE if self.tolerance is None else self.tolerance
        return {"via": self.via or [], "phase": self.phase, "tolerance": tolerance}


class FitRequest(NamedTuple):
    """What is fitted to which data.

    Attributes:
        file: where the data are; `contexts` are the situation, not what is done there.
        group: see `load_demonstrations`.
        trajectories: None: a row per demonstration.
        method, components, seed, held_out, periodic, support, dither: see `virl_tf.fit`.
        hparams: see `early_checks.check_fit`.
    """

    file: TrajectoryFile
    hparams: Hparams
    group: str | None = None
    trajectories: TrajectoryRequest | None = None
    method: str = "virl"
    components: int | None = None
    seed: int = 0
    held_out: float = 0.1
    periodic: Mapping[str, float] | None = None
    support: Support | None = None
    dither: bool = False


Trajectories = tuple[Episodes, pd.DataFrame]
"""Paths, and the context of each: N rows, which may have no columns."""


def read(request: FitRequest) -> Demonstrations | Trajectories:
    """The rows to fit to, or the trajectories.

    Raises:
        InputError: a file or an argument that cannot be used.
    """
    how, file, contexts = request.trajectories, request.file, request.file.contexts
    if how is not None:
        if request.group is not None:
            raise InputError("--group is for tables with a row per demonstration.")
        check_options(how.encoding, how.encoding_size, **how.options)
        episodes = load_episodes(file)
        _refuse_numbers_of_episodes(episodes, {*(file.columns or ()), *contexts})
        return split_contexts(episodes, contexts)
    chosen = (file.all_columns, file.exclude, request.group)
    rows = load_demonstrations(file.path, file.array, *chosen)
    for name in contexts:
        check_choice(f"column of {file.path}", name, rows.columns)
    check_context_names(len(contexts), len({*contexts}), len({*rows.columns} - {*contexts}))
    for named in (request.periodic, *(request.support or ())):
        for name in named or ():
            check_choice(f"column of {file.path}", name, rows.columns)
    refuse_row_numbers(rows.x, rows.columns)
    return rows._replace(contexts=contexts)


def _refuse_numbers_of_episodes(episodes: Episodes, named: Collection[str]) -> None:
    """Raises InputError for a column that only tells episodes apart, unless it was asked for.

    Afterwards only its codes would be known, which no option leaves out.
    """
    ends = np.array([values[[0, -1]] for values in episodes.values], np.float64)
    likely = np.flatnonzero((ends[:, 0] == ends[:, 1]).all(axis=0))
    still = [i for i in likely if all((x[:, i] == x[0, i]).all() for x in episodes.values)]
    columns = [episodes.columns[i] for i in still]
    for name in columns:
        if name in EPISODE_COLUMNS and name not in named:
            what = f"column {name!r} is the same throughout each episode, and no part of a path"
            raise InputError(f"{what}; drop it (--exclude {name}).")
    refuse_row_numbers(ends[:, 0, still], columns)


def parse_numbers(
    option: str, text: str | None, default: float | None = None
) -> dict[str, float] | None:
    """A=1,B=2 -> {A: 1, B: 2}; B alone has the default. Raises InputError."""
    if text is None:
        return None
    found = {}
    for part in parse_names(text) or []:
        name, separator, number = part.partition("=")
        try:
            found[name.strip()] = float(number) if separator or default is None else default
        except ValueError as error:
            raise InputError(f"{option} takes COLUMN=NUMBER,..., got {part!r}.") from error
    return found


def parse_periods(text: str | None) -> dict[str, float] | None:
    """--periodic as `virl_tf.fit` takes it; a column alone is an angle in radians."""
    found = parse_numbers("--periodic", text, default=2.0 * math.pi)
    for name, turn in (found or {}).items():
        check_positive(f"--periodic {name}", turn)
    return found


def parse_support(lower: str | None, upper: str | None) -> Support | None:
    """--lower and --upper as `virl_tf.fit` takes them."""
    if lower is None and upper is None:
        return None
    return parse_numbers("--lower", lower), parse_numbers("--upper", upper)
