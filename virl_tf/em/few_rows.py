"""EM of few rows: how many components, how far their covariances are shrunk, and their ridge, by
cross-validation; then the mean of the densities that several starts of good choices end in.

A held-out fifth of few rows is too few to stop growth by, and what EM ends in depends on its start
more than on anything else. Its covariances are too narrow for rows that it has not seen, and end as
those of further rows. The likelihood of few rows hardly tells many narrow components from few
wide ones, though these bridge modes: so beside the likeliest choice the narrowest of those count
that are as likely (docs/decisions-densities.md, few-rows).
"""

from typing import NamedTuple

import numpy as np

from virl_tf.em.em import cluster_by_columns, one_thread, standardised
from virl_tf.em.growth import Grown, Growth
from virl_tf.em.merging import Merges, clusters, folds_across, merges_of, numbers_of_clusters
from virl_tf.em.shrunk import (
    SHARED,
    Gaussians,
    fitted,
    from_clusters,
    from_labels,
    log_densities,
    log_density,
    score,
)
from virl_tf.em.stacking import (
    WIDTHS,
    as_good,
    in_widths,
    mean_density,
    share_of_background,
    shares_of_widths,
    stacked,
)
from virl_tf.numerics import numpy_seed
from virl_tf.shapes import Array, Float64, Int64
from virl_tf.splitting import folds

COMPONENTS = (1, 2, 3, 5, 8, 10, 15, 20, 30)
PSEUDO_ROWS = (1.0, 4.0, 16.0, SHARED)
# Starts by columns find ways that differ in one of many columns, and share what they vary by;
# elsewhere they are worse.
COLUMNS_COMPONENTS = (2, 3, 5)
RIDGES = (1e-3, 1e-2, 3e-2)  # in units of the columns' variances
MOST_PER_ROW = 2 / 3  # components
FOLDS = 10  # with fewer, modes of few rows have none left
STARTS, STARTS_IN_FOLDS = 3, 2
STARTS_FOR_WIDTHS = 6  # in folds: of fewer densities the mean is narrower than in the end
AVERAGED = 4  # choices: which is best is a matter of chance
AS_LIKELY = 2.0  # standard errors of what a choice lacks against the likeliest
MERGED = 4  # numbers of components that merging suggests
FALLEN = 3.0  # nats below the best of its shrinkage, from where more components are not tried


class Choice(NamedTuple):
    """What cross-validation chooses."""

    start: str  # where clusters are from: "k-means", "columns" or "merging"
    components: int
    pseudo_rows: float
    ridge: float = RIDGES[0]


def mean_of_starts(x: np.ndarray, seed: int, groups: Int64[Array, " N"] | None = None) -> Growth:
    """Mixtures of x [N, D] from several starts; `groups` are held out together."""
    z, shift, scale = standardised(x)
    merges = merges_of(z)
    # Merging finds modes of few rows, and tells how many there are, where they are apart.
    numbers = numbers_of_clusters(merges, len(z) // 2, MERGED)
    parts = _folds(merges, numbers, numpy_seed(seed, 0, "held out"), groups)
    usual_choices = [
        [Choice(start, count, nu, ridge) for count in counts]
        for start, counts in (("k-means", COMPONENTS), ("merging", sorted(numbers)))
        for nu in PSEUDO_ROWS
        for ridge in RIDGES
    ]
    column_choices = [[Choice("columns", count, SHARED) for count in COLUMNS_COMPONENTS]]
    with one_thread():
        others = [_Rows(np.delete(z, part, axis=0), seed) for part in parts]
        usual = _best(z, parts, others, usual_choices)
        by_columns = _best(z, parts, others, column_choices)
        better = not as_good(by_columns[0].of_rows - usual[0].of_rows)
        best, rows = by_columns if better else usual, _Rows(z, seed)
        of_widths = _in_widths(z, parts, others, best)
        shares = shares_of_widths(of_widths)
        grown = [one for found in best for one in rows.mixtures(found.choice, STARTS)]
        background = share_of_background(z, z, stacked(of_widths, shares))
    return Growth(grown, shift, scale, background, few=True, shares=shares)


def _folds(
    merges: Merges, numbers: list[int], seed: int, groups: Int64[Array, " N"] | None
) -> list[np.ndarray]:
    """Stratified where modes have fewer rows than there are folds: what is likelier would else be a
    matter of which ones lose two rows at once (docs/decisions-densities.md, few-rows).
    """
    n = len(merges) + 1
    if groups is None and numbers and n < FOLDS * numbers[0]:
        return folds_across(merges, FOLDS, numbers[0], seed)
    return folds(n, FOLDS, seed, groups)


class _Rows:
    """Rows z [N, D], and where EM on them starts: the same for all shrinkages."""

    def __init__(self, z: np.ndarray, seed: int):
        self._z, self._seed = z, seed
        self._starts: dict[tuple[str, int, int], Gaussians] = {}

    def mixtures(self, choice: Choice, number: int) -> list[Grown]:
        """What EM from so many starts ends in; one Gaussian has one."""
        grown = []
        for i in range(number if choice.components > 1 else 1):
            start = self._start(choice.start, choice.components, i)
            mixture = fitted(self._z, start, choice.pseudo_rows, choice.ridge)
            of_rows = score(self._z, mixture)
            grown.append(Grown(of_rows, choice.pseudo_rows, mixture, choice.ridge))
        return grown

    def _start(self, kind: str, components: int, i: int) -> Gaussians:
        key = kind, components, i
        if key not in self._starts:
            z, seed = self._z, self._seed + i
            if kind == "k-means":
                self._starts[key] = from_clusters(z, components, seed)
            elif kind == "columns":
                self._starts[key] = from_labels(z, cluster_by_columns(z, components, seed))
            else:
                merges = merges_of(z, rounds=i + 2)
                self._starts[key] = from_labels(z, clusters(merges, components))
        return self._starts[key]


class _Judged(NamedTuple):
    """A choice, and what mixtures of it say of rows.

    Attributes:
        choice: what was judged.
        of_rows: log-likelihood of each under what the other parts end in.
        of_seen: mean log-likelihood of the rows that EM saw: the narrower, the higher.
    """

    choice: Choice
    of_rows: Float64[Array, " N"]
    of_seen: float


def _best(
    z: np.ndarray, parts: list[np.ndarray], others: list[_Rows], choices: list[list[Choice]]
) -> list[_Judged]:
    """The good ones of several series, each of more and more components; first the likeliest.

    Args:
        parts, others: the rows of z that are held out, and those that EM sees then.
    """
    most = max(1, int(MOST_PER_ROW * len(z)))
    judged: list[_Judged] = []
    for series in choices:
        highest = -np.inf
        for choice in series:
            if choice.components > most and choice is not series[0]:
                break
            judged.append(_judged(z, parts, others, choice))
            mean = judged[-1].of_rows.mean()
            highest = max(highest, mean)
            if mean < highest - FALLEN:
                break
    likeliest, *rest = sorted(judged, key=lambda one: -one.of_rows.mean())
    return [likeliest, *sorted(rest, key=lambda one: _rank(one, likeliest))][:AVERAGED]


def _in_widths(
    z: np.ndarray, parts: list[np.ndarray], others: list[_Rows], best: list[_Judged]
) -> Float64[Array, "W N"]:
    """Held-out rows' log density under the mean of all densities, in `WIDTHS`."""
    of_widths = np.zeros((len(WIDTHS), len(z)))
    for part, rows in zip(parts, others, strict=True):
        found = [one for judged in best for one in rows.mixtures(judged.choice, STARTS_FOR_WIDTHS)]
        mean = mean_density([one.gaussians for one in found])
        of_widths[:, part] = log_densities(z[part], in_widths(mean))
    return of_widths


def _judged(z: np.ndarray, parts: list[np.ndarray], others: list[_Rows], choice: Choice) -> _Judged:
    of_rows, of_seen = np.zeros(len(z)), []
    for part, rows in zip(parts, others, strict=True):
        found = rows.mixtures(choice, STARTS_IN_FOLDS)
        mean = mean_density([one.gaussians for one in found])
        of_rows[part] = log_density(z[part], mean)
        of_seen += [one.score for one in found]
    return _Judged(choice, of_rows, float(np.mean(of_seen)))


def _rank(one: _Judged, likeliest: _Judged) -> tuple[bool, float]:
    """The narrowest first of those that are as likely, then the others by their likelihood."""
    lack = likeliest.of_rows - one.of_rows
    likely = as_good(lack, AS_LIKELY)
    return not likely, -one.of_seen if likely else lack.mean()
