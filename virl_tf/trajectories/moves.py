"""Trajectories as moves: what is done next, given what was done last. For policies in closed loop.

A whole path is drawn at once and has to be right everywhere. A move is chosen where the last one
ended, by what is done there.
"""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from virl_tf.shapes import Array, Float64, Int64
from virl_tf.trajectories.episodes import check_columns, check_episodes
from virl_tf.validation import check_integer

AHEAD, BACK = 3, 2  # knots of a move, and of what is remembered
MOVES_OF_AN_EPISODE = 9
NOISE = 0.01  # of a column's standard deviation: no value is there twice


class MoveRows(NamedTuple):
    """M moves as `virl_tf.fit` takes them.

    Attributes:
        x: what is done, [M, 3 D].
        contexts: where, and what was done before, [M, 3 D].
        groups: number of each one's episode, [M].
    """

    x: pd.DataFrame
    contexts: pd.DataFrame
    groups: Int64[Array, " M"]


class Moves(NamedTuple):
    """Moves of D columns from one sample to the next ones.

    A move x is how far it is to the positions after 1, 2 and 3 times `steps` samples; the first
    part of it is carried out, then the next move is chosen. Its context is the position, and how
    far it is from those 1 and 2 times `steps` samples ago.

    Attributes:
        columns: their names.
        steps: samples until the next move is chosen.
    """

    columns: tuple[str, ...]
    steps: int

    @classmethod
    def of(cls, trajectories: Any, steps: int | None = None) -> "Moves":
        """For demonstrations, as `rows` takes them; None: a ninth of their median length, or the
        shortest one.

        Raises:
            InputError: `steps` is less than 1, or more than the shortest episode has.
        """
        episodes = check_episodes(trajectories)
        shortest = int(episodes.lengths.min()) - 1
        if steps is None:
            steps = max(1, int(np.median(episodes.lengths)) // MOVES_OF_AN_EPISODE)
            steps = min(steps, shortest)
        return cls(episodes.columns, check_integer("steps", steps, 1, shortest))

    def rows(self, trajectories: Any, seed: int = 0) -> MoveRows:
        """The moves from each sample on, after those in which an episode has not begun to move.

        Past its end an episode stays where it is. Noise of 1 % of a column's standard deviation
        lets no value be there many times, as a largest speed is.

        Args:
            trajectories: `Episodes`, or what `virl_tf.fit_encoding` takes.
            seed: of the noise.

        Raises:
            InputError: other columns, or no trajectories.
        """
        episodes = check_episodes(trajectories)
        check_columns(episodes.columns, self.columns)
        found = [self._windows(np.asarray(values, np.float64)) for values in episodes.values]
        rows = np.concatenate(found)
        noise = np.random.default_rng(seed).uniform(-1.0, 1.0, rows.shape)
        rows = rows + NOISE * rows.std(axis=0) * noise
        frame = pd.DataFrame(rows, columns=self._names())
        size = (1 + BACK) * len(self.columns)
        groups = np.repeat(np.arange(len(found)), [len(part) for part in found])
        return MoveRows(frame.iloc[:, size:], frame.iloc[:, :size], groups)

    def context(self, history: Float64[Array, "T N D"]) -> Float64[Array, "N 3*D"]:
        """Of N that have been at `history` so far: [T, N, D] -> [N, 3 D].

        Before its start each is taken to have stood there.
        """
        now = history[-1]
        places = [max(len(history) - 1 - j * self.steps, 0) for j in range(1, BACK + 1)]
        return np.concatenate([now, *(now - history[place] for place in places)], axis=1)

    def targets(
        self, position: Float64[Array, "N D"], x: Float64[Array, "N 3*D"]
    ) -> Float64[Array, "steps N D"]:
        """Of the next `steps` samples, on a line from `position` to the first knot of each move x:
        [N, D], [N, 3 D] -> [steps, N, D].
        """
        first = x[:, : len(self.columns)]
        shares = np.arange(1, self.steps + 1) / self.steps
        return position + shares[:, None, None] * first

    def _windows(self, path: Float64[Array, "T D"]) -> Float64[Array, "M W"]:
        moving = np.flatnonzero((path != path[0]).any(axis=1))[0] - 1
        starts, last = np.arange(moving, len(path) - 1), len(path) - 1
        now = path[starts]
        before = [np.maximum(starts - j * self.steps, 0) for j in range(1, BACK + 1)]
        after = [np.minimum(starts + j * self.steps, last) for j in range(1, AHEAD + 1)]
        parts = [now - path[places] for places in before] + [path[places] - now for places in after]
        return np.hstack([now, *parts])

    def _names(self) -> list[str]:
        """Of the columns of contexts, then of moves: x, x since 8, x in 8."""
        back = [f"since {j * self.steps}" for j in range(1, BACK + 1)]
        ahead = [f"in {j * self.steps}" for j in range(1, AHEAD + 1)]
        later = [f"{name} {when}" for when in back + ahead for name in self.columns]
        return [*self.columns, *later]
