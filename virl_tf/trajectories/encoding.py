"""A trajectory as a few numbers: an affine map to codes, and one back to paths.

Movement primitives, splines through waypoints and principal components are all of this form:

    decode(x) = offset + sum_i x_i basis_i,    encode(y)_i = <projection_i, y - offset>,

with y [T, D] a trajectory at T equal phases. What differs are the arrays.
"""

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.numerics import real_tensor
from virl_tf.shapes import Array, Float64
from virl_tf.trajectories.episodes import (
    Episodes,
    at_samples,
    check_columns,
    check_episodes,
    resample,
)
from virl_tf.validation import InputError

MOST_SHOWN = 6  # columns of an error
# Times an encoding's error, that codes lose of what they do not stand for: more is lost of 5 of
# 6,933 paths of people that it was made of, of none of 1,734 others, and of none of 72 of a rod.
UNLIKE = 7.0
# Of what a path spans, to rounding, and of its largest number, to arithmetic far from 0: this says
# nothing of what codes stand for.
ROUNDED, FAR = 1e-4, 1e-8


class Reconstruction(NamedTuple):
    """What codes lose, in the data's units, at the samples that were recorded.

    Attributes:
        columns: [D] names.
        rms: [D], root of the mean square over all samples.
        episodes: [N], the same of each episode's distance over all columns.
        worst: the name of the episode with the largest.
    """

    columns: tuple[str, ...]
    rms: np.ndarray
    episodes: np.ndarray
    worst: str

    def __repr__(self) -> str:
        """In a line."""
        shown = errors_shown(self.columns, self.rms)
        return f"RMS error {shown}; worst episode: {self.worst}, {self.episodes.max():.3g}"


@dataclass(frozen=True, eq=False, repr=False)
class Encoding:
    """What stands between trajectories and `fit`, whose rows are codes; see `fit_encoding`.

    Attributes:
        kind: "promp", "waypoints" or "components".
        phase: "time" or "length", of which the T phases are equal shares.
        columns: [D], of the trajectories.
        code_columns: [D'], of the codes.
        offset: float64 [T, D].
        basis, projection: float64 [D', T, D].
        duration: median of the demonstrations', in the unit of their times or in steps.
        error: [D], RMS over held-out samples or episodes, in the data's units.
    """

    kind: str
    phase: str
    columns: tuple[str, ...]
    code_columns: tuple[str, ...]
    offset: np.ndarray
    basis: np.ndarray
    projection: np.ndarray
    duration: float
    error: np.ndarray

    @property
    def dim(self) -> int:
        """D', numbers of a code."""
        return len(self.basis)

    @property
    def num_steps(self) -> int:
        """T, of decoded paths."""
        return len(self.offset)

    @property
    def times(self) -> np.ndarray:
        """[T], of decoded paths that take the median duration; of lengths, at equal speed."""
        return np.linspace(0.0, self.duration, self.num_steps)

    def encode(self, trajectories: Any, times: Any = None) -> Float64[Array, "N C"]:
        """Codes [N, D'], float64; a thousand episodes are in memory at once.

        Args:
            trajectories: [N, T', D] of any T', N arrays [T_i, D], or `Episodes`.
            times: of the samples, as for `check_episodes`.

        Warns:
            UserWarning: a trajectory loses `UNLIKE` times as much as the demonstrations did: what
                a code does not hold no reward sees.

        Raises:
            InputError: trajectories that cannot be used, of another width, or frames whose columns
                have other names or another order.
        """
        episodes = self._checked(trajectories, times)
        codes, unlike = [], []
        for block in episodes.blocks():
            y = resample(block, self.num_steps, self.phase)
            codes.append(self._codes(y))
            unlike.append(self._unlike(y, codes[-1]))
        names = np.asarray(episodes.names)[np.concatenate(unlike)]
        if len(names):
            warnings.warn(self._lost(names, len(episodes.names)), stacklevel=2)
        return np.concatenate(codes)

    def decode(self, x: Any) -> tf.Tensor:
        """Paths of codes: [..., D'] -> [..., T, D], float64.

        Of TensorFlow operations, so that constraints and rewards on paths have gradients and can
        be compiled. Raises InputError for another last axis, or no real numbers.
        """
        x = real_tensor("codes", x, self.dim)
        if x.shape.rank == 0 or x.shape[-1] != self.dim:
            raise InputError(
                f"codes must have shape [..., {self.dim}]; got {tuple(x.shape)}. "
                "Trajectories become codes by encode()."
            )
        return self.offset + tf.tensordot(x, self.basis, 1)

    def reconstruction(self, trajectories: Any, times: Any = None) -> Reconstruction:
        """The error of decode(encode(trajectories)), at the samples that the episodes have.

        Args:
            trajectories, times: as for `encode`.

        Raises:
            InputError: as `encode`.
        """
        episodes = self._checked(trajectories, times)
        squares, lengths = np.zeros(len(self.columns)), episodes.lengths
        each: list[float] = []
        for block in episodes.blocks():
            codes = self._codes(resample(block, self.num_steps, self.phase))
            paths = at_samples(self.decode(codes).numpy(), block, self.phase)
            for path, values in zip(paths, block.values, strict=True):
                own = (path - values) ** 2
                squares += own.sum(axis=0)
                each.append(float(np.sqrt(own.sum(axis=1).mean())))
        worst = str(episodes.names[int(np.argmax(each))])
        rms = np.sqrt(squares / lengths.sum())
        return Reconstruction(self.columns, rms, np.array(each), worst)

    def _codes(self, y: Float64[np.ndarray, "N T D"]) -> np.ndarray:
        return (y - self.offset).reshape(len(y), -1) @ self.projection.reshape(self.dim, -1).T

    def _unlike(self, y: Float64[np.ndarray, "N T D"], codes: np.ndarray) -> np.ndarray:
        """Of each [N], whether its codes stand for something else."""
        rms = np.sqrt(((self.decode(codes).numpy() - y) ** 2).mean(axis=1))
        rounding = ROUNDED * np.ptp(y, axis=1) + FAR * np.abs(y).max(axis=1)
        return (rms > UNLIKE * self.error + rounding).any(axis=1)

    def _lost(self, names: np.ndarray, number: int) -> str:
        which = f"{len(names)} of {number} trajectories" if number > 1 else "this trajectory"
        first = f" (first: {names[0]})" if number > 1 else ""
        return (
            f"{which}{first} lost more than {UNLIKE:g} times this encoding's error "
            f"({errors_shown(self.columns, self.error)}) as codes: a reward sees nothing of what "
            "is lost. reconstruction() says how much, and decode() what is left."
        )

    def _checked(self, trajectories: Any, times: Any) -> Episodes:
        episodes = check_episodes(trajectories, times, to_fit=False)
        check_columns(episodes.columns, self.columns)
        return episodes

    def __repr__(self) -> str:
        """Shapes and error, in a line."""
        sizes = f"[{self.num_steps}, {len(self.columns)}] <-> {self.dim} numbers"
        error = errors_shown(self.columns, self.error)
        return f"<Encoding {self.kind} over {self.phase}: {sizes}; held-out RMS error {error}>"


def errors_shown(columns: tuple[str, ...], rms: np.ndarray) -> str:
    """'x 0.01, y 0.02 and 3 more up to 0.05'."""
    pairs = list(zip(columns, rms, strict=True))
    shown = ", ".join(f"{name} {value:.3g}" for name, value in pairs[:MOST_SHOWN])
    if len(pairs) <= MOST_SHOWN:
        return shown
    return f"{shown} and {len(pairs) - MOST_SHOWN} more up to {rms[MOST_SHOWN:].max():.3g}"
