"""What `fit` is asked for, and the data it reads: all that needs no TensorFlow."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.data_checks import refuse_row_numbers
from virl_tf.hparams import Hparams, load_hparams, own_data_hparams
from virl_tf.methods import METHODS
from virl_tf.trajectories.episodes import Episodes
from virl_tf.trajectories.options import TOLERANCE, check_options
from virl_tf.validation import (
    InputError,
    check_choice,
    check_integer,
    check_no_contexts,
    check_positive,
    check_seed,
    check_share,
)

import numpy as np
import pandas as pd

from experiments.early_checks import check_demonstration_file, check_trajectory_path
from experiments.own_data.demonstration_files import (
    Demonstrations,
    check_context_names,
    load_demonstrations,
)
from experiments.own_data.trajectory_files import (
    EPISODE_COLUMNS,
    TrajectoryFile,
    load_episodes,
    split_contexts,
)
from experiments.screen import warn
from experiments.specification import assigned, parse_names

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

    @classmethod
    def of(
        cls,
        trajectories: bool,
        file: TrajectoryFile,
        *,
        encoding: str,
        encoding_size: int | None,
        via: str | None,
        phase: str | None,
        tolerance: float | None,
    ) -> "TrajectoryRequest | None":
        """Of a command's options; None without --trajectories.

        Raises InputError for an option that would then do nothing.
        """
        how = cls(encoding, encoding_size, parse_names(via), phase, tolerance)
        if trajectories:
            return how
        given = {**how._asdict(), "episode": file.episode, "time": file.time}
        for name, value in given.items():
            if value not in (None, "auto"):
                raise InputError(f"--{name.replace('_', '-')} is for --trajectories.")
        return None

    @property
    def options(self) -> dict[str, Any]:
        """Of an encoding of any kind and size."""
        tolerance = TOLERANCE if self.tolerance is None else self.tolerance
        return {"via": self.via or [], "phase": self.phase, "tolerance": tolerance}


class FitRequest(NamedTuple):
    """What is fitted to which data.

    Attributes:
        file: where the data are; `contexts` are the situation, not what is done there.
        trajectories: None: a row per demonstration.
        hparams: what `virl_tf.fit` takes by default, the user's file over it, then --set.
        method, components, seed, held_out, periodic, support, dither: see `virl_tf.fit`.
        group: see `load_demonstrations`.
    """

    file: TrajectoryFile
    trajectories: TrajectoryRequest | None
    hparams: Hparams
    method: str = "virl"
    components: int | None = None
    seed: int = 0
    held_out: float = 0.1
    group: str | None = None
    periodic: Mapping[str, float] | None = None
    support: Support | None = None
    dither: bool = False

    @property
    def bounds(self) -> dict[str, Mapping[str, float]]:
        """Option -> what it says of columns."""
        lower, upper = self.support or (None, None)
        given = {"--periodic": self.periodic, "--lower": lower, "--upper": upper}
        return {option: named or {} for option, named in given.items()}

    @classmethod
    def of(
        cls,
        file: TrajectoryFile,
        how: TrajectoryRequest | None,
        *,
        method: str,
        components: int | None,
        seed: int,
        held_out: float,
        hparams_file: Path | None,
        assignments: Sequence[str],
        group: str | None = None,
        periodic: str | None = None,
        lower: str | None = None,
        upper: str | None = None,
        dither: bool = False,
    ) -> "FitRequest":
        """Of a command's options. Raises InputError for a file or option that cannot be used
        whatever the data are.
        """
        if how is None:
            check_demonstration_file(file.path)
        else:
            check_trajectory_path(file.path)
            if group is not None:
                raise InputError("--group is for tables with a row per demonstration.")
        check_choice("method", method, METHODS)
        if components is not None:
            check_integer("--components", components, 1)
        check_seed(seed, "--seed")
        check_share("--held-out", held_out)
        family = METHODS[method].family
        if hparams_file is None:
            values = own_data_hparams(family)
        else:
            values = load_hparams(hparams_file, family)
        fitted = (assigned(values, assignments), method, components, seed, held_out)
        columns = (group, parse_periods(periodic), parse_support(lower, upper))
        return cls(file, how, *fitted, *columns, dither)


class Trajectories(NamedTuple):
    """Paths, the context of each (N rows, which may have no columns), and how they become rows."""

    episodes: Episodes
    contexts: pd.DataFrame
    how: TrajectoryRequest


def read(request: FitRequest) -> Demonstrations | Trajectories:
    """The rows to fit to, or the trajectories.

    Raises:
        InputError: a file or an argument that cannot be used.
    """
    if request.trajectories is not None:
        paths = read_trajectories(request.file, request.trajectories)
        _refuse_bounds_of_paths(request, paths)
        return paths
    file, contexts = request.file, request.file.contexts
    if both := [name for name in contexts if name in file.exclude]:
        raise InputError(f"--contexts and --exclude both name {both[0]!r}; give it to one of them.")
    chosen = (file.array, file.all_columns, file.exclude, request.group, contexts)
    rows = load_demonstrations(file.path, *chosen)
    for name in contexts:
        check_choice(f"column of {file.path}", name, rows.columns)
    check_context_names(len(contexts), len({*contexts}), len({*rows.columns} - {*contexts}))
    own = [name for name in rows.columns if name not in contexts]
    for option, named in request.bounds.items():
        check_no_contexts(option, named, contexts, own)
        for name in named:
            if name == request.group:
                text = f"{option}: {name!r} is the column of --group, which is not fitted to"
                raise InputError(f"{text}; allowed are {', '.join(own)}.")
            check_choice(f"column of {file.path}", name, own)
    refuse_row_numbers(rows.x, rows.columns, contexts)
    _warn_of_episodes(rows.columns)
    return rows._replace(contexts=contexts)


def _refuse_bounds_of_paths(request: FitRequest, paths: Trajectories) -> None:
    """Raises InputError for a turn or bounds of a path's column, or a context: the others of a fit
    are codes.
    """
    cure = {"--periodic": "unwrap the angle in each episode (np.unwrap)"}
    for option, named in request.bounds.items():
        for name in named:
            if name in paths.episodes.columns:
                instead = cure.get(option, "give infer a --support of paths")
                text = f"{option} is for the numbers of codes, and {name!r} is a column of paths"
                raise InputError(f"{text}; {instead}.")
        check_no_contexts(option, named, [*map(str, paths.contexts)], ["the numbers of codes"])


def _warn_of_episodes(columns: list[str]) -> None:
    found = [name for name in EPISODE_COLUMNS if name in columns]
    if found:
        warn(
            f"column {found[0]!r}: if rows are samples of episodes, stop this and give "
            "--trajectories; each row counts as a demonstration here."
        )


def read_trajectories(file: TrajectoryFile, how: TrajectoryRequest) -> Trajectories:
    """Raises InputError for a file or an argument that cannot be used."""
    check_options(how.encoding, how.encoding_size, **how.options)
    episodes = load_episodes(file)
    _refuse_numbers_of_episodes(episodes, file.columns or (), file.contexts)
    return Trajectories(*split_contexts(episodes, file.contexts), how)


def _refuse_numbers_of_episodes(
    episodes: Episodes, chosen: Sequence[str], contexts: Sequence[str]
) -> None:
    """Raises InputError for a column that only tells episodes apart, unless it was asked for.

    Afterwards only its codes would be known, which no option leaves out.
    """
    ends = np.array([values[[0, -1]] for values in episodes.values], np.float64)
    likely = np.flatnonzero((ends[:, 0] == ends[:, 1]).all(axis=0))
    still = [i for i in likely if all((x[:, i] == x[0, i]).all() for x in episodes.values)]
    columns = [episodes.columns[i] for i in still]
    for name in columns:
        if name in EPISODE_COLUMNS and name not in (*chosen, *contexts):
            what = f"column {name!r} is the same throughout each episode, and no part of a path"
            raise InputError(f"{what}; drop it (--exclude {name}).")
    refuse_row_numbers(ends[:, 0, still], columns, contexts)


def parse_numbers(
    option: str, text: str | None, default: float | None = None
) -> dict[str, float] | None:
    """A=1,B=2 -> {A: 1, B: 2}; B alone has the default. Raises InputError."""
    if text is None:
        return None
    found: dict[str, float] = {}
    for part in parse_names(text) or []:
        name, separator, number = part.rpartition("=")
        name, number = (name.strip(), number) if separator else (part.strip(), "")
        if name in found:
            raise InputError(f"{option} gives {name!r} twice.")
        try:
            found[name] = float(number) if separator or default is None else default
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
