"""`python -m experiments play`: policies over moves in closed loop, in a user's own world."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import virl_tf
from virl_tf.demonstrations import DataOptions, Prepared, prepare
from virl_tf.numerics import numpy_seed
from virl_tf.persistence.files import load_arrays, save_arrays
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.trajectories.episodes import Episodes, in_equal_steps
from virl_tf.trajectories.moves import MoveRows, Moves
from virl_tf.validation import InputError, as_option, told

import numpy as np
import pandas as pd
from rich.console import Console

from experiments.evaluation.closed_loop import (
    CHOSEN,
    EM_BIC,
    POLICY,
    REPLAYED,
    World,
    movers,
    padded,
    play,
    replay,
)
from experiments.evaluation.judged import numbers_by_name
from experiments.figures.judged import draw_side_by_side
from experiments.own_data.fit_command import fit_rows, without_option
from experiments.own_data.fit_request import FitRequest
from experiments.own_data.play_request import PlayRequest
from experiments.result_files import append_rows, table_so_far
from experiments.screen import numbers_table, screen, warn
from experiments.user_functions import take_corrected

COLUMNS = ["seed", "mover"]
PICTURED = (CHOSEN, POLICY, EM_BIC)  # movers, by how their names begin
SHOWN = 150  # paths of each picture
LONGER = 1.5  # than the longest demonstration is what is given time
UNEQUAL = 1.5  # of the longest steps to the shortest, from which episodes are resampled
MOST_TIMES = 100  # as many samples as the longest episode has


class Game(NamedTuple):
    """What a command is to do.

    Attributes:
        fitted, request: its options.
        episodes, moves, rows: what was demonstrated.
        out: the folder.
        console: for all but fits.
    """

    fitted: FitRequest
    request: PlayRequest
    episodes: Episodes
    moves: Moves
    rows: MoveRows
    out: Path
    console: Console

    @property
    def samples(self) -> int:
        """That a run may take."""
        return int(LONGER * self.episodes.lengths.max())

    def world(self) -> World:
        """The same starts and noise for all. Raises InputError for what is none."""
        runs, columns = self.request.runs, self.moves.columns
        make, guard = self.request.world.function, self.request.world.guard
        found = make(runs, numpy_seed(self.fitted.seed, 0, "world"))

        def positions(world: Any) -> np.ndarray:  # which may be a property
            return np.asarray(getattr(world, "positions", None))

        start = guard(positions)(found)
        if start.shape != (runs, len(columns)) or start.dtype.kind not in "iuf":
            raise InputError(
                f"--world: World({runs}, seed).positions must be numbers [{runs}, {len(columns)}], "
                f"of the columns {', '.join(columns)}; got {told(start)}."
            )
        if not np.isfinite(start).all():
            raise InputError(
                f"--world: World({runs}, seed).positions hold NaN or infinities; nothing starts "
                "there."
            )
        for name in ("move", "outcome"):
            if not callable(getattr(found, name, None)):
                raise InputError(f"--world: the world has no method {name!r}.")
        return _Guarded(np.array(start), guard(found.move), guard(found.outcome))


@dataclass
class _Guarded:
    """A user's world whose errors are a line each."""

    positions: np.ndarray
    move: Callable[[np.ndarray], None]
    outcome: Callable[[], Any]


def play_file(
    fitted: FitRequest, request: PlayRequest, episodes: Episodes, out: Path, progress: bool
) -> None:
    """Fit to moves, play what is not in `out`/play.csv yet; then table and picture.

    Raises:
        InputError: data, options or a world that cannot be used, or an `out` of something else.
    """
    _check_moving(episodes)
    episodes = _in_equal_steps(episodes)
    moves, console = Moves.of(episodes, request.steps), screen()
    rows = moves.rows(episodes, numpy_seed(fitted.seed, 0, "moves"))
    game = Game(fitted, request, episodes, moves, rows, out, console)
    tried = game.world()
    tried.move(tried.positions.copy())
    numbers_by_name("--world: outcome()", tried.outcome(), COLUMNS)
    take_corrected(out, _identity(game), "world", "play.csv")
    folder = RunFolder.open(out, _identity(game))
    text = f"{len(rows.x)} moves of {len(episodes.values)} episodes, a new one every {moves.steps}"
    console.out(f"{text} samples; {out}")
    with folder.locked():
        result = _fit(game, progress)
        for name, paths_of in _players(game, result).items():
            if name not in set(_finished(out)["mover"]):
                with console.status(f"playing: {name}"):
                    _play_one(game, name, paths_of)
        if not (out / "play.png").is_file():
            _draw(game)
    _print_table(game)


def _check_moving(episodes: Episodes) -> None:
    """Raises InputError, by their own names, for columns in which no episode makes a move."""
    moving = [(values != values[0]).any(axis=0) for values in episodes.values]
    still = np.flatnonzero(~np.any(moving, axis=0))
    if still.size:
        names = [episodes.columns[i] for i in still]
        shown = ", ".join(map(repr, names))
        text = f"no move in {shown}: the same throughout each episode"
        raise InputError(f"{text}; leave out what does not move (--exclude {as_option(names)}).")


def _in_equal_steps(episodes: Episodes) -> Episodes:
    """Resampled where times say that steps differ: a world moves all by a sample at once."""
    if episodes.times is None:
        return episodes
    apart = np.concatenate([np.diff(times) for times in episodes.times])
    low, step, high = np.quantile(apart, [0.05, 0.5, 0.95])
    longest = int(np.argmax(episodes.durations))
    if (times := episodes.durations[longest] / step) > MOST_TIMES * episodes.lengths.max():
        name = f"--time: episode {episodes.names[longest]} lasts {times:,.0f} steps of {step:.3g}"
        raise InputError(f"{name}. Cut it where nothing was recorded.")
    if high <= UNEQUAL * low:
        return episodes
    text = f"--time: samples are {low:.3g} to {high:.3g} apart"
    warn(f"{text}; a sample of the world is {step:.3g}, in whose steps episodes are resampled.")
    return in_equal_steps(episodes, step)


def _identity(game: Game) -> dict[str, Any]:
    """What tells this command from others."""
    fitted, request = game.fitted, game.request
    return {
        "played": _prepared(game).identity,
        "steps": game.moves.steps,
        "method": fitted.method,
        "components": fitted.components,
        "seed": fitted.seed,
        "runs": request.runs,
        "candidates": request.candidates,
        "world": request.world.identity,
        "hparams": fitted.hparams.to_dict(),
    }


def _prepared(game: Game, held_out: float = 0.0) -> Prepared:
    options = DataOptions(held_out, game.rows.groups, None, None, contexts=game.rows.contexts)
    return prepare(game.rows.x, options, game.fitted.seed)


def _fit(game: Game, progress: bool) -> virl_tf.Result:
    rows, folder = game.rows, game.out / "fit"
    result = fit_rows(game.fitted, rows.x, rows.contexts, rows.groups, folder, progress=progress)
    for text in result.warnings:
        warn(without_option(text))
    return result


def _players(game: Game, result: virl_tf.Result) -> dict[str, Callable[[World], np.ndarray]]:
    """Name -> what moves all in a world, and returns their targets [T, N, D]."""

    def player(make: Callable[[], Any]) -> Callable[[World], np.ndarray]:
        return lambda world: play(world, game.moves, make(), game.samples, game.fitted.seed)

    found: dict[str, Callable[[World], np.ndarray]] = {
        REPLAYED: lambda world: replay(world, game.episodes, game.samples)
    }
    # What the reward's networks have seen; its EM mixture goes on to all rows in the end.
    data = _prepared(game, game.fitted.held_out).train
    made = movers(result, data, game.request.candidates, game.fitted.seed)
    return found | {name: player(make) for name, make in made.items()}


def _play_one(game: Game, name: str, paths_of: Callable[[World], np.ndarray]) -> None:
    """Play, keep some paths, and add a row to play.csv, whose bytes stay as they are."""
    world = game.world()
    paths = np.moveaxis(paths_of(world), 0, 1)
    found = numbers_by_name("--world: outcome()", world.outcome(), COLUMNS)
    if name.startswith(PICTURED):
        save_arrays(game.out / f"{_title(name)}.npz", {"paths": paths[:SHOWN]})
    row = {"seed": game.fitted.seed, "mover": name, **found}
    append_rows(game.out / "play.csv", [row], COLUMNS, "--world: outcome()")


def _title(name: str) -> str:
    """Of a mover, without how many moves it chooses among."""
    return name.partition(",")[0]


def _finished(out: Path) -> pd.DataFrame:
    return table_so_far(out / "play.csv", COLUMNS, "mover")


def _draw(game: Game) -> None:
    """play.png: demonstrations, and targets that were played, on the same axes."""
    samples = game.samples + 1
    demonstrated = np.moveaxis(padded(game.episodes, samples), 0, 1)
    arrays: dict[str, Any] = {"demonstrations": demonstrated[:SHOWN]}
    for title in map(_title, PICTURED):
        arrays[title] = load_arrays(game.out / f"{title}.npz")["paths"][:, :samples]
    draw_side_by_side(
        game.out / "play", arrays, list(game.moves.columns), np.arange(float(samples))
    )


def _print_table(game: Game) -> None:
    table = _finished(game.out)
    title = f"{game.request.runs} runs each, in closed loop"
    numbers = table.iloc[:, len(COLUMNS) :]
    cells = [[f"{value:.3g}" for value in row] for row in numbers.itertuples(index=False)]
    game.console.print(numbers_table(title, list(numbers), table["mover"], cells))
    files = f"{game.out / 'play.csv'}; picture: {game.out / 'play.png'}"
    game.console.out(f"numbers: {files}")
