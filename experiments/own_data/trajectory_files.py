"""A user's trajectories from files or a list of episodes, or one sentence on what is wrong."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.persistence.files import map_array, map_arrays
from virl_tf.trajectories.episodes import MOST_NAMED, Episodes, check_episodes, numbered
from virl_tf.validation import (
    InputError,
    check_choice,
    check_number_columns,
    reason,
    shortened,
)

import numpy as np
import pandas as pd

from experiments.early_checks import HDF5_KINDS, check_trajectory_path
from experiments.own_data.demonstration_files import (
    check_context_names,
    chosen_columns,
    held_instead,
    read_table,
    with_index,
)
from experiments.own_data.hdf5_episodes import read_hdf5
from experiments.screen import warn
from experiments.specification import parse_names

EPISODE_COLUMNS = ("episode_index", "episode", "episode_id")
TIME_COLUMNS = ("timestamp", "time")
# What a table in LeRobot's format holds beside what was measured; and its states, else actions.
LEROBOT = ("frame_index", "index", "task_index")
LEROBOT_VALUES = ("observation.state", "action")
PAUSE = 10.0  # times an episode's median step, where another path seems to begin
# Of an .npz with all samples one after the other, and the number of each episode's.
FLAT = ("values", "lengths")


class TrajectoryFile(NamedTuple):
    """Where demonstrations are: trajectories, or (but for episode and time) a row for each.

    Attributes:
        path: a file, or a folder of .csv or .parquet files.
        array: which array of an .npz that holds several; of .hdf5 those of an episode, A,B,...
        columns, exclude: those to use, by name; None: all. Those of arrays are x0, x1, ...; a
            column of lists is one name, and so is an array of .hdf5, or its columns' NAME.0, ...
        episode: the column of a table that tells episodes apart; None: one of `EPISODE_COLUMNS`.
        time: the column of times; None: one of `TIME_COLUMNS`, if there is one.
        contexts: columns beside those, which are the same throughout an episode.
    """

    path: Path
    array: str | None = None
    columns: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    episode: str | None = None
    time: str | None = None
    contexts: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        path: Path,
        *,
        array: str | None,
        columns: str | None,
        exclude: str | None,
        episode: str | None,
        time: str | None,
        contexts: str | None = None,
    ) -> "TrajectoryFile":
        """Of a command's options, with names as A,B,..."""
        chosen = (parse_names(columns), parse_names(exclude) or [])
        return cls(path, array, *chosen, episode, time, parse_names(contexts) or [])

    @property
    def all_columns(self) -> Sequence[str] | None:
        """Those to use and the contexts."""
        return self.columns and [*self.columns, *self.contexts]


def load_episodes(file: TrajectoryFile) -> Episodes:
    """Read and check trajectories. Nothing in a file is executed; large arrays are mapped.

    - a folder of .csv files, one for each episode
    - .csv, .parquet or a folder of .parquet with a column of episodes, as LeRobot's
    - .npy [N, T, D]; .npz of one such array, of one array [T_i, D] for each episode, or of
      `values` [M, D] and `lengths` [N]
    - .hdf5 as robomimic, Minari and D4RL write it

    Raises:
        InputError: whatever is wrong, with the episode.
    """
    check_trajectory_path(file.path)
    kind = "folder" if file.path.is_dir() else file.path.suffix.lower()
    if file.array is not None and kind not in (".npz", *HDF5_KINDS):
        raise InputError(f"--array is for .npz and .hdf5 files, not for {file.path}.")
    if (file.episode or file.time) and kind in (".npy", ".npz", *HDF5_KINDS):
        option = "--episode" if file.episode else "--time"
        raise InputError(f"{option} is for tables, not for {file.path}.")
    try:
        if kind == "folder":
            return _of_folder(file)
        if kind == ".npz":
            return _of_arrays(file)
        if kind in HDF5_KINDS:
            return _of_named(*read_hdf5(file.path, parse_names(file.array)), file)
        if kind == ".npy":
            return _of_array(map_array(file.path), file)
        labels = EPISODE_COLUMNS if file.episode is None else [file.episode]
        return _of_table(_table(file.path, file, labels), file)
    except InputError as error:
        if str(file.path) in str(error):
            raise
        raise InputError(f"{file.path}: {error}") from error


def split_contexts(episodes: Episodes, names: Sequence[str]) -> tuple[Episodes, pd.DataFrame]:
    """Paths without the columns `names`, and what these are in each episode, [N, C].

    Raises:
        InputError: no such column, one that is named twice or changes within an episode, or no
            other column.
    """
    places = [i for name in names for i in _places_of(name, episodes.columns)]
    others = [i for i in range(len(episodes.columns)) if i not in places]
    check_context_names(len(places), len(set(places)), len(others))
    kept = [episodes.columns[i] for i in places]
    rows, paths = [], []
    for name, values in zip(episodes.names, episodes.values, strict=True):
        found = np.asarray(values[:, places], np.float64)
        changing = (found != found[0]).any(axis=0)
        if changing.any():
            column = kept[int(changing.argmax())]
            raise InputError(
                f"episode {name}: the context {column!r} changes within it. A context is the same "
                "throughout an episode; what changes is part of the path."
            )
        rows.append(found[0])
        paths.append(values[:, others])
    columns = tuple(episodes.columns[i] for i in others)
    # As an array where it was one, which is resampled faster.
    shaped = np.stack(paths) if isinstance(episodes.values, np.ndarray) else paths
    rest = Episodes(shaped, episodes.times, episodes.names, columns)
    return rest, pd.DataFrame(np.array(rows), columns=kept)


def _places_of(name: str, columns: Sequence[str]) -> list[int]:
    parts = _parts_of(name, columns)
    return [list(columns).index(check_choice("column for --contexts", n, columns)) for n in parts]


def _parts_of(name: str, columns: Sequence[str]) -> list[str]:
    """A column, or all that a column of lists, or an array of .hdf5, was spread to."""
    parts = [column for column in columns if column.rpartition(".")[0] == name]
    return [name] if name in columns or not parts else parts


def episodes_of(episodes: Iterable[Any], take: str = "observations", key: str | None = None) -> Any:
    """Episodes in Python, such as Minari's or what a loop over a Gymnasium environment collected.

    Args:
        episodes: objects or mappings with the field `take`: [T_i, ...], or a mapping of such, as
            of a Dict space. Their `id` is their name, if they have one.
        take: e.g. "observations" or "actions".
        key: which of such a mapping.

    Raises:
        InputError: no such field or key, or trajectories that cannot be used.
    """
    values, names = [], []
    for i, episode in enumerate(episodes):
        names.append(str(_field(episode, "id", i)))
        found = _field(episode, take)
        if found is None:
            raise InputError(f"episode {names[-1]} has no {take!r}.")
        if isinstance(found, Mapping):
            if key is None:
                raise InputError(
                    f"{take} of episode {names[-1]} hold {', '.join(map(str, found))}; choose one "
                    "with key=."
                )
            found = found[check_choice(f"key of {take}", key, found)]
        array = np.asarray(found)
        values.append(array.reshape(len(array), -1) if array.ndim else array)
    return check_episodes(values, names=names)


def _field(episode: Any, name: str, default: Any = None) -> Any:
    if isinstance(episode, Mapping):
        return episode.get(name, default)
    return getattr(episode, name, default)


# --- arrays ---------------------------------------------------------------------------------------


def _of_array(x: np.ndarray, file: TrajectoryFile, lengths: np.ndarray | None = None) -> Episodes:
    """[N, T, D], or [M, D] and the lengths [N] of its parts."""
    if x.ndim < 2 or (lengths is None and x.ndim != 3):
        raise InputError(f"trajectories must be [N, T, D], got {list(x.shape)}.")
    places, kept = _places(numbered(x.shape[-1]), file)
    if len(kept) < x.shape[-1] or places != sorted(places):
        x = x[..., places]
    if lengths is None:
        return check_episodes(x, columns=kept)
    return check_episodes(np.split(x, np.cumsum(lengths)[:-1]), columns=kept)


def _of_arrays(file: TrajectoryFile) -> Episodes:
    arrays = map_arrays(file.path)
    if file.array is not None:
        return _of_array(arrays[check_choice("array", file.array, arrays)], file)
    if set(arrays) == set(FLAT):
        return _of_array(arrays["values"], file, _check_lengths(**arrays))
    if len(arrays) == 1:
        return _of_array(next(iter(arrays.values())), file)
    if not arrays or any(x.ndim != 2 for x in arrays.values()):
        shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in arrays.items())
        raise InputError(
            f"it holds {shapes or 'no array'}; choose one [N, T, D] with --array NAME, or store an "
            "array [T, D] for each episode, or values [M, D] and lengths [N]."
        )
    return _of_named(arrays, numbered(next(iter(arrays.values())).shape[1]), file)


def _of_named(
    arrays: Mapping[str, np.ndarray], columns: Sequence[str], file: TrajectoryFile
) -> Episodes:
    """An array [T_i, D] for each episode, by its name."""
    names = sorted(arrays, key=_natural)
    if len({x.shape[1] for x in arrays.values()}) > 1:
        return check_episodes([arrays[name] for name in names], names=names)  # says which
    places, kept = _places(columns, file)
    return check_episodes([arrays[n][:, places] for n in names], names=names, columns=kept)


def _places(names: Sequence[str], file: TrajectoryFile) -> tuple[list[int], list[str]]:
    """The columns of an array that are used, of those with these names."""
    frame = pd.DataFrame(columns=list(names))
    wanted, unwanted = (
        [part for name in given or () for part in _parts_of(name, names)]
        for given in (file.all_columns, file.exclude)
    )
    kept = chosen_columns(frame, wanted, unwanted, file.path)
    return [names.index(name) for name in kept.columns], list(kept.columns)


def _check_lengths(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    whole = lengths.ndim == 1 and lengths.dtype.kind in "iu" and (lengths > 0).all()
    if not whole or values.ndim != 2 or int(lengths.sum()) != len(values):
        raise InputError(
            f"lengths {list(lengths.shape)} must be whole numbers above 0 whose sum is the number "
            f"of rows of values {list(values.shape)}."
        )
    return lengths


# --- tables ---------------------------------------------------------------------------------------


def _of_folder(file: TrajectoryFile) -> Episodes:
    folder = file.path
    if (folder / "meta" / "info.json").is_file() and (folder / "data").is_dir():
        folder = folder / "data"  # of a LeRobot data set, whose `meta` has tables, too
    tables = sorted(folder.rglob("*.parquet"), key=_natural)
    paths = tables or sorted(folder.glob("*.csv"), key=_natural)
    if not paths:
        raise InputError(f"{folder} holds no .parquet files; were they downloaded?")
    labels = [] if file.episode is None else [file.episode]
    frames = [_table(path, file, labels) for path in paths]
    needed = [_needed(frame, file, of_episodes=not tables) for frame in frames]
    for frame, found, path in zip(frames, needed, paths, strict=True):
        if found != needed[0]:
            raise InputError(
                f"{path} has the columns {', '.join(frame.columns)}; {paths[0]} has "
                f"{', '.join(frames[0].columns)}."
            )
    if tables or file.episode is not None:
        return _of_table(pd.concat(frames, ignore_index=True), file)
    rows = np.repeat(np.arange(len(paths)), [len(frame) for frame in frames])
    filled = [frame for frame in frames if len(frame)]  # others would make numbers objects
    whole = pd.concat(filled or frames, ignore_index=True)
    return _split(whole, rows, [path.name for path in paths], file)


def _needed(frame: pd.DataFrame, file: TrajectoryFile, of_episodes: bool) -> list[str]:
    """The columns that all files of a folder must have, as they are used.

    `of_episodes`: there is a file for each, so that only --episode names a column of them.
    """
    labels = {file.episode, file.time, *(() if of_episodes else EPISODE_COLUMNS)}
    used = set(frame) - set(file.exclude)
    if file.all_columns is not None:
        used &= {*TIME_COLUMNS, *(_whole(name, frame) for name in file.all_columns)}
    return [name for name in frame.columns if name in used or name in labels]


def _table(path: Path, file: TrajectoryFile, labels: Sequence[str]) -> pd.DataFrame:
    """With its episodes, times and contexts as columns; `labels` as of `read_table`."""
    wanted = {*EPISODE_COLUMNS, *TIME_COLUMNS, file.episode, file.time, *file.contexts}
    return with_index(read_table(path, labels), wanted, path)


def _of_table(frame: pd.DataFrame, file: TrajectoryFile) -> Episodes:
    """A table with a column of episodes."""
    name = file.episode
    if name is None:
        known = [column for column in EPISODE_COLUMNS if column in frame]
        if not known:
            raise InputError(
                f"it has no column {' or '.join(EPISODE_COLUMNS)}; say which of "
                f"{', '.join(frame.columns)} tells episodes apart with --episode COLUMN."
            )
        name = known[0]
    labels = frame.pop(check_choice("column", name, frame.columns))
    file = file._replace(exclude=[other for other in file.exclude if other != name])
    if labels.isna().any():
        row = int(labels.isna().to_numpy().argmax())
        raise InputError(f"column {name!r} has no label in row {row}.")
    rows, names = pd.factorize(labels)
    return _split(frame, np.asarray(rows), [str(label) for label in names], file)


def _split(
    frame: pd.DataFrame, episode: np.ndarray, names: list[str], file: TrajectoryFile
) -> Episodes:
    """Episodes of a table's rows.

    Args:
        episode: [rows], number of each row's episode.
        names: of the episodes.
    """
    if not len(frame):
        raise InputError("it holds no rows.")
    order = np.argsort(episode, kind="stable")
    ends = np.cumsum(np.bincount(episode, minlength=len(names)))[:-1]
    times, named = None, [*(file.columns or ()), *file.exclude, *file.contexts]
    clocks = [name for name in TIME_COLUMNS if name in frame and name not in named]
    if file.time is not None:
        clocks = [check_choice("column", file.time, frame.columns)]
        file = file._replace(exclude=[name for name in file.exclude if name != file.time])
    if len(clocks) > 1:
        raise InputError(
            f"it has columns {' and '.join(clocks)}; say which tells times with --time, and leave "
            "the other out with --exclude."
        )
    clock = clocks[0] if clocks else None
    if clock is not None:
        numbers = {str(n): "" for n in frame if pd.api.types.is_numeric_dtype(frame[n].dtype)}
        check_number_columns("times", {**numbers, clock: held_instead(frame[clock])})
        times = np.split(frame.pop(clock).to_numpy(np.float64, na_value=np.nan)[order], ends)
    if frame.columns.empty:
        raise InputError("it has no column beside those of episodes and times.")
    frame = _values(frame, file)
    _check_numbers(frame, episode, names)
    x = np.column_stack([frame[n].to_numpy(np.float64, na_value=np.nan) for n in frame])[order]
    found = check_episodes(np.split(x, ends), times, names=names, columns=list(frame.columns))
    _warn_of_pieces(episode, found)
    return found


def _warn_of_pieces(episode: np.ndarray, found: Episodes) -> None:
    """Of episodes whose rows stand in several places, as where some were added at the end: whether
    they belong there only times can tell.

    Args:
        episode: [rows], number of each row's episode.
        found: the episodes, whose times increase if there are any.
    """
    starts = np.flatnonzero(np.diff(episode, prepend=-1))
    lengths = np.diff(np.append(starts, len(episode)))
    if np.median(lengths) == 1.0:
        return  # step by step, all that move at once
    pieces = np.bincount(episode[starts], minlength=len(found.names))
    apart, pause = np.flatnonzero(pieces > 1), ""
    if found.times is not None:
        pauses = {i: _pause(np.flatnonzero(episode == i), starts, found.times[i]) for i in apart}
        apart = np.array([i for i in apart if pauses[i]])
        pause = pauses[apart[0]] if len(apart) else ""
    if not len(apart):
        return
    text = f"rows of {_episodes([found.names[int(i)] for i in apart])} stand in several places"
    if pause:
        warn(f"{text}, {pause}; if these are two paths, give one another label.")
        return
    what = "and are put together in their order, as there is no column of times (--time)"
    warn(f"{text}, {what}; see that they were recorded in this order.")


def _pause(rows: np.ndarray, starts: np.ndarray, times: np.ndarray) -> str:
    """The widest gap in an episode's times between two places of the table; "" if it is narrow.

    Args:
        rows: where the episode is.
        starts: the rows with which pieces begin.
    """
    behind = np.flatnonzero(np.isin(rows, starts))[1:]
    steps = np.diff(times)
    widest = behind[np.argmax(steps[behind - 1])]
    step = steps[widest - 1]
    between = f"the first with {step:.4g} between its samples {widest - 1} and {widest}"
    return between if step > PAUSE * np.median(steps) else ""


def _episodes(names: Sequence[str]) -> str:
    return f"episode{'s' if len(names) > 1 else ''} {shortened(names, MOST_NAMED)}"


def _values(frame: pd.DataFrame, file: TrajectoryFile) -> pd.DataFrame:
    """The columns that a trajectory is made of, of those of lists whole ones or NAME.0, ..."""
    if file.columns is None and "frame_index" in frame:
        asked = {*file.contexts, *file.exclude}
        frame = frame.drop(columns=[n for n in LEROBOT if n in frame and n not in asked])
        file = file._replace(columns=[name for name in LEROBOT_VALUES if name in frame][:1] or None)
    # Other lists may hold no numbers, so whole columns are left out first.
    wholes = [_whole(name, frame) for name in file.all_columns or ()]
    left_out = [name for name in file.exclude if _whole(name, frame) == name]
    spread = _spread(chosen_columns(frame, wholes, left_out, file.path))
    wanted, unwanted = (
        [part for name in given for part in _parts_of(name, list(spread.columns))]
        for given in (file.all_columns or (), [n for n in file.exclude if n not in left_out])
    )
    return chosen_columns(spread, wanted, unwanted, file.path)


def _whole(name: str, frame: pd.DataFrame) -> str:
    """The column of lists that NAME.0 is of, if it is of one; else the name itself."""
    of = name.rpartition(".")[0]
    return of if name not in frame and of in frame else name


def _check_numbers(frame: pd.DataFrame, episode: np.ndarray, names: list[str]) -> None:
    """Raises InputError for columns without numbers; where it is one cell, with its episode."""
    held = {str(name): held_instead(frame[name]) for name in frame}
    for name, what in held.items():
        column = frame[name]
        text = (column.notna() & pd.to_numeric(column, errors="coerce").isna()).to_numpy()
        if what.startswith("text") and text.any() and not text.all():
            first = names[episode[int(text.argmax())]]
            example = str(column[text].iloc[0])
            raise InputError(f"episode {first}: column {name!r} holds text: {example!r:.40}.")
    check_number_columns("trajectories", held)


def _spread(frame: pd.DataFrame) -> pd.DataFrame:
    """Columns of lists as columns of numbers: state -> state.0, state.1, ..."""
    parts = []
    for name in frame:
        column = frame[name]
        if not len(column) or not isinstance(column.iloc[0], (list, tuple, np.ndarray)):
            parts.append(column.to_frame())
            continue
        lengths = column.map(lambda value: len(value) if hasattr(value, "__len__") else -1)
        other = (lengths != lengths.iloc[0]).to_numpy()
        if other.any():
            row = int(other.argmax())
            raise InputError(
                f"column {name!r} holds lists of {lengths.iloc[0]} numbers, but of "
                f"{lengths.iloc[row]} in row {row}."
            )
        try:
            values = np.stack([np.asarray(value, np.float64).ravel() for value in column])
        except (TypeError, ValueError) as error:
            text = f"column {name!r} holds lists of something else than numbers"
            raise InputError(f"{text}: {reason(error)}.") from error
        names = [f"{name}.{i}" for i in range(values.shape[1])]
        parts.append(pd.DataFrame(values, columns=names, index=frame.index))
    return pd.concat(parts, axis=1)


def _natural(path: Path | str) -> list[Any]:
    """Sorts walk_10 behind walk_9."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]
