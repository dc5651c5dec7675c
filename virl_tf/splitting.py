"""Which rows are held out; rows of one group are never on both sides."""

from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.shapes import Array, Bool, Int64

FEWEST_HELD_OUT = 10  # rows, for a score to tell anything
ALIKE = 1.25  # times the smallest group that is held out alone: groups that may be in its place


def held_out_rows(
    n: int, fraction: float, groups: Int64[Array, " N"] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Which of n rows are held out, and the others.

    Evenly spaced groups, in the order of their first rows, and others, as many as fit (`fitting`);
    where every row is a group of its own (`groups` is None), evenly spaced rows.
    """
    if groups is None:
        rows = np.linspace(0, n, max(1, int(fraction * n)), endpoint=False).astype(int)
        return rows, np.delete(np.arange(n), rows)
    _, first, group, sizes = np.unique(
        groups, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)[np.concatenate(held_out_rows(len(first), fraction))]
    held_out = np.isin(group, fitting(order, sizes, int(fraction * n), others=1))
    return np.flatnonzero(held_out), np.flatnonzero(~held_out)


def fitting(order: np.ndarray, sizes: np.ndarray, count: int, others: int) -> list[int]:
    """Groups, one after the other in this order, but those with which they were more than `count`
    rows: so a large group is never held out for small ones, but where these are too few to tell
    anything, and the smallest that is not has at most half of all rows: then the first of those
    that are `ALIKE` to that one, so that another order is another choice. The smallest, if none
    fits.

    `others`: so many groups are left, if there are more.
    """
    left, chosen = count, list[int]()
    for group in order:
        if sizes[group] <= left and len(sizes) - len(chosen) > others:
            chosen.append(int(group))
            left -= sizes[group]
    least = min(FEWEST_HELD_OUT, count) / 2
    enough = (sizes >= least) & (sizes <= sizes.sum() / 2) & (len(sizes) > others)
    if count - left < least and enough.any():
        alike = enough & (sizes <= ALIKE * sizes[enough].min())
        return [next(int(group) for group in order if alike[group])]
    return chosen or [int(np.argmin(sizes))]


def row_groups(x: np.ndarray, labels: Any = None) -> Int64[Array, " N"] | None:
    """The group of each row of x [N, D]: equal rows are one, and so are rows of one label [N].

    None if every row is a group of its own.
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    numbered = [np.unique(x, axis=0, return_inverse=True)[1].ravel()]
    if labels is not None:
        numbered.append(np.unique(labels, return_inverse=True)[1].ravel())
    if all(len(np.unique(numbers)) == len(x) for numbers in numbered):
        return None
    # A graph of rows, and of what rows have in common; what hangs together is a group.
    edges, nodes = [], len(x)
    for numbers in numbered:
        edges.append(nodes + numbers)
        nodes += int(numbers.max()) + 1
    ends = np.concatenate(edges)
    starts = np.tile(np.arange(len(x)), len(edges))
    graph = coo_matrix((np.ones(len(ends)), (starts, ends)), shape=(nodes, nodes))
    return connected_components(graph, directed=False)[1][: len(x)].astype(np.int64)


def folds(
    n: int, number: int, seed: int, groups: Int64[Array, " N"] | None = None
) -> list[np.ndarray]:
    """The rows of each fold of a cross-validation of n rows; a group is in one fold as a whole.

    But for one of more than half of the rows, without which the others tell little: each of its
    rows is a group of its own.
    """
    rng = np.random.default_rng(seed)
    if groups is None:
        return np.array_split(rng.permutation(n), min(number, n))
    names, group = np.unique(_without_largest(groups), return_inverse=True)
    parts = np.array_split(rng.permutation(len(names)), min(number, len(names)))
    return [rng.permutation(np.flatnonzero(np.isin(group, part))) for part in parts]


def _without_largest(groups: Int64[Array, " N"]) -> Int64[Array, " N"]:
    """Groups of which none has more than half of the rows."""
    names, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    largest = group == np.argmax(sizes)
    if largest.mean() <= 0.5:
        return groups
    return np.where(largest, len(names) + np.arange(len(group)), group)


def random_rows(
    n: int, count: int, seed: int, groups: Int64[Array, " N"] | None = None
) -> np.ndarray:
    """Which rows [n] bool are held out: `count` random ones, or random groups that fit, but two,
    of which one is for training and one is held out there.
    """
    names, group, sizes = np.unique(
        np.arange(n) if groups is None else groups, return_inverse=True, return_counts=True
    )
    order = np.random.default_rng(seed).permutation(len(names))
    return np.isin(group, fitting(order, sizes, count, others=2))


def split(
    records: Any, fraction: float, chosen: Bool[Array, " N"] | None = None
) -> tuple[Any, Any]:
    """(held out, rest) of a nested structure of tensors [N, ...]: the chosen ones, or evenly spaced
    ones.
    """
    if chosen is None:
        held_out, rest = held_out_rows(int(tf.nest.flatten(records)[0].shape[0]), fraction)
    else:
        held_out, rest = np.flatnonzero(chosen), np.flatnonzero(~chosen)
    return tuple(
        tf.nest.map_structure(lambda a, rows=rows: tf.gather(a, rows), records)
        for rows in (held_out, rest)
    )
