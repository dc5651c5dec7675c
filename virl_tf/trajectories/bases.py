"""The curves that paths are made of, for each column by itself or for all of them together.

A basis of curves, columns of [T, B], gives each column of a trajectory B numbers. Principal
components give all columns of it together one number each.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline
from threadpoolctl import threadpool_limits

from virl_tf.shapes import Array, Float64, Int64
from virl_tf.trajectories.options import ENDS

WIDTH = 0.7  # standard deviation of a radial basis function, in distances between two of them
RIDGE = 1e-10  # of the weights' regression, in units of the mean squared basis function
FOLDS = 5  # of samples, or of episodes


class Curves(NamedTuple):
    """Curves of one column.

    Attributes:
        basis: [T, B].
        names: [B].
        pinned: {number of a curve: step}: its weight is the trajectory's value at that step.
    """

    basis: Float64[Array, "T B"]
    names: list[str]
    pinned: dict[int, int]


def movement_primitive(num_steps: int, size: int, via: Sequence[str]) -> Curves:
    """Normalised radial basis functions of a probabilistic movement primitive (Paraschos et al.,
    2013), `size` of them at equal distances.

    Args:
        via: of "start" and "goal" those through which decoded paths go exactly: these values are
            numbers of the code, joined by a line to which the functions, which vanish there, add.
    """
    phase = np.linspace(0.0, 1.0, num_steps)[:, None]
    # None at a pinned end, where it would be the same as its neighbour but for its size.
    places = np.linspace(0.0, 1.0, size + len(via))
    centres = places["start" in via :][:size]
    width = WIDTH * (places[1] - places[0])
    # Relative to the nearest one, none of which underflows.
    exponents = -0.5 * ((phase - centres) / width) ** 2
    basis = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    basis /= basis.sum(axis=1, keepdims=True)
    names = [f"w{i}" for i in range(size)]
    if not via:
        return Curves(basis, names, {})
    both = len(via) == 2
    lines = {"start": 1.0 - phase if both else 1.0 + 0.0 * phase}
    lines["goal"] = phase if both else 1.0 + 0.0 * phase
    for end in via:
        basis = basis * (phase if end == "start" else 1.0 - phase)
    basis = basis * (4.0 if both else 1.0)
    ends = [end for end in ENDS if end in via]
    pinned = {i: ENDS[end] for i, end in enumerate(ends)}
    return Curves(np.hstack([*(lines[end] for end in ends), basis]), [*ends, *names], pinned)


def spline(num_steps: int, size: int) -> Curves:
    """The cubic spline through `size` waypoints at equal phases; the first and the last are the
    trajectory's ends, those between are fitted by least squares.
    """
    knots, phase = np.linspace(0.0, 1.0, size), np.linspace(0.0, 1.0, num_steps)
    basis = CubicSpline(knots, np.eye(size))(phase)
    return Curves(basis, [str(i) for i in range(size)], {0: 0, size - 1: -1})


def projection(curves: Curves, used: Int64[Array, " U"]) -> Float64[Array, "B T"]:
    """What gives a trajectory [T] its weights: ridge regression on the steps `used`.

    Weights shrink to the trajectory's mean where the curves' sum is one, so that they do not depend
    on where the origin is. Beside the line through via-points they are 0 wherever it is.
    """
    count, size = curves.basis.shape
    pinned = np.array(list(curves.pinned), int)
    free = np.setdiff1d(np.arange(size), pinned)
    basis = curves.basis[used][:, free]
    gram = basis.T @ basis
    # Of three steps the inner one is held out, and with it all that a curve says: its weight is 0.
    ridge = RIDGE * np.trace(gram) / max(len(free), 1) or RIDGE
    weights = np.linalg.solve(gram + ridge * np.eye(len(free)), basis.T)
    steps = np.arange(count)[list(curves.pinned.values())]
    found = np.zeros((size, count))
    found[pinned, steps] = 1.0
    found[np.ix_(free, used)] = weights
    # What pinned curves say of the other steps is taken from these.
    at_ends = used[:, None] == steps
    found[np.ix_(free, steps)] = weights @ (at_ends - curves.basis[used][:, pinned])
    if np.allclose(curves.basis.sum(axis=1), 1.0):
        missing = 1.0 - found[free].sum(axis=1, keepdims=True)
        found[np.ix_(free, used)] += missing / len(used)
    return found


def held_out_error(y: Float64[Array, "N T D"], curves: Curves) -> Float64[Array, " D"]:
    """RMS at each fifth sample of regressions on the others; the ends are never held out."""
    steps = np.arange(y.shape[1])
    squares = np.zeros(y.shape[2])
    for fold in range(FOLDS):
        held = (steps % FOLDS == fold) & (steps > 0) & (steps < steps[-1])
        weights = projection(curves, np.flatnonzero(~held))
        codes = np.einsum("bt,ntd->nbd", weights, y, optimize=True)
        predicted = np.einsum("sb,nbd->nsd", curves.basis[held], codes, optimize=True)
        squares += ((y[:, held] - predicted) ** 2).sum(axis=(0, 1))
    return np.sqrt(squares / (len(y) * (len(steps) - 2)))


# --- principal components -------------------------------------------------------------------------


def components(
    y: Float64[Array, "N T D"], most: int, scale: Float64[Array, " D"]
) -> tuple[np.ndarray, np.ndarray]:
    """Mean [T, D] and principal components [at most `most`, T, D] of trajectories over `scale`.

    The components have unit norm.
    """
    mean = y.mean(axis=0)
    z = ((y - mean) / scale).reshape(len(y), -1)
    # Of the episodes' inner products, in a fifth of the time of z's singular values; threads of
    # BLAS mostly wait here. QR gives unit norms also where no variance is left.
    with threadpool_limits(1):
        rows = np.linalg.eigh(z @ z.T)[1][:, ::-1][:, :most]
        found = np.linalg.qr(z.T @ rows)[0].T
    return mean, found.reshape(-1, *y.shape[1:])


def held_out_errors(
    y: Float64[Array, "N T D"], most: int, scale: Float64[Array, " D"]
) -> Float64[Array, "C D"]:
    """RMS of held-out episodes behind the first 1, 2, ... components of the others."""
    folds = [np.arange(fold, len(y), FOLDS) for fold in range(min(FOLDS, len(y)))]
    smallest = min(len(y) - max(map(len, folds)), most)
    squares = np.zeros((smallest, y.shape[2]))
    for held in folds:
        mean, found = components(np.delete(y, held, axis=0), smallest, scale)
        left = (y[held] - mean) / scale
        for i, component in enumerate(found):
            left -= np.einsum("ntd,td->n", left, component)[:, None, None] * component
            squares[i] += (left**2).mean(axis=1).sum(axis=0)
        squares[len(found) :] += (left**2).mean(axis=1).sum(axis=0)
    return np.sqrt(squares / len(y)) * scale
