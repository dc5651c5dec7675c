"""EM mixtures that grow: components are split in two until held-out rows are described no better.

EM is that of `virl_tf.em.shrunk`; whether several mixtures count, and what is added to them, says
`virl_tf.em.stacking`.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.em.em import one_thread, standardised, weighted_columns
from virl_tf.em.shrunk import (
    RIDGE,
    RIDGE_OF_HALVES,
    SHARED,
    TOLERANCE,
    Gaussians,
    beside,
    fitted,
    from_clusters,
    from_labels,
    joined,
    log_densities,
    log_joint,
    maximise,
    pairs,
    score,
    without_empty,
)
from virl_tf.em.stacking import (
    ONE_WIDTH,
    background_gaussian,
    in_widths,
    mean_density,
    mean_is_no_better,
    share_of_background,
    shares_of_widths,
    weighted,
)
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, numpy_seed
from virl_tf.shapes import Array, Float64, Int64
from virl_tf.splitting import folds, row_groups

PSEUDO_ROWS = (1.0, 0.25, 2.0)  # nu, of which the better ones count
BETTER = 2
# Components that growth starts from: from one it ends where two Gaussians are no better, though
# many are, and in other local optima.
STARTS = (1, 3, 10)
FOLDS = 5  # one of which is held out; another one for each of the mixtures that are averaged
# Of so few rows parts of further partitions are held out, too: optima are further apart, and EM on
# them takes seconds.
MOST_FURTHER, FURTHER_ROWS = 2, 3000
SHARING = BETTER + len(STARTS) - 1  # mixtures that leave out the first of them
# More mixtures where one is enough, of which the best counts: EM's optima are local
# (docs/decisions-densities.md, growth).
RESTARTS = 10
PATIENCE = 2  # rounds of splits without gain
# Rows that are looked at, fewer where their D^2 products are more numbers than that.
MOST_ROWS, MOST_NUMBERS = 20_000, 40_000_000
# In nats per row, with which EM has converged enough: for the next splits; once a mixture is grown;
# to see whether two are better than one.
TOLERANCE_OF_ROUNDS, TOLERANCE_OF_GROWN, TOLERANCE_OF_HALVES = 3e-3, 1e-3, 1e-3

Halves = dict[bytes, Gaussians | None]
"""What `halves` found, by the rows of a component: most are the same in the next round."""


class Grown(NamedTuple):
    """A mixture, its mean log-likelihood of held-out rows, and how EM shrinks and keeps its
    covariances from collapsing.
    """

    score: float
    pseudo_rows: float
    gaussians: Gaussians
    ridge: float = RIDGE


class Growth(NamedTuple):
    """What has grown, of columns shifted by `shift` [D] and divided by `scale` [D].

    Attributes:
        grown: the mixtures, whose mean counts.
        shift, scale: see above.
        background: the share of rows that are unlike all others.
        few: rows are so few that covariances have to be those of further rows.
        shares: of `WIDTHS`.
    """

    grown: list[Grown]
    shift: Float64[Array, " D"]
    scale: Float64[Array, " D"]
    background: float = 0.0
    few: bool = False
    shares: tuple[float, ...] = ONE_WIDTH

    def on(self, x: np.ndarray) -> "Growth":
        """The same after EM on x [N, D]."""
        z = (x[rows_looked_at(*x.shape)] - self.shift) / self.scale
        wide = background_gaussian(z, self.background) if self.background > 0.0 else None
        with one_thread():
            return self._replace(grown=[self._again(one, z, wide) for one in self.grown])

    def _again(self, one: Grown, z: np.ndarray, background: Gaussians | None) -> Grown:
        start = beside(one.gaussians, background)
        if self.few:
            found = fitted(z, start, one.pseudo_rows, one.ridge)
        else:
            found = maximise(z, start, one.pseudo_rows, one.ridge, TOLERANCE_OF_GROWN)
        return one._replace(gaussians=found)

    def mixture(self, x: np.ndarray) -> Mixture:
        """The mean of the densities after EM on x [N, D]."""
        mean = mean_density([one.gaussians for one in self.on(x).grown])
        found = weighted(in_widths(mean), self.shares).all
        return Mixture(
            tf.constant(np.log(found.weights), DENSITY),
            tf.constant(self.shift + self.scale * found.means, DENSITY),
            tf.constant(self.scale[:, None] * np.linalg.cholesky(found.covariances), DENSITY),
        )


def grow(x: np.ndarray, seed: int, groups: Int64[Array, " N"] | None = None) -> Growth:
    """Mixtures of x [N, D] as large as held-out rows want them; `groups` are held out together."""
    rows = rows_looked_at(*x.shape)
    z, shift, scale = standardised(x[rows])
    groups = None if groups is None else groups[rows]
    partitions = 1 + min(MOST_FURTHER, FURTHER_ROWS // len(z))
    seeds = [numpy_seed(seed, i, "held out") for i in range(partitions)]
    parts, *further = (folds(len(z), FOLDS, fold_seed, groups) for fold_seed in seeds)
    more = [part for partition in further for part in partition]
    with one_thread():
        grown = grown_on(z, parts, more, seed)
        unseen = np.concatenate([z[part] for part in parts])
        of_widths = of_unseen(z, parts, grown)
        share = share_of_background(z, unseen, of_widths[0])
        if share > 0.0:
            grown = grown_on(z, parts, more, seed, background_gaussian(z, share))
            of_widths = of_unseen(z, parts, grown)
        return Growth(grown, shift, scale, share, shares=shares_of_widths(of_widths))


def grow_once(x: np.ndarray, seed: int) -> Mixture:
    """One mixture of x [N, D], from most components: nearly as good, in a tenth of the time.

    Copies of a row, as where rows are resampled, are held out together.
    """
    z, shift, scale = standardised(x)
    held_out = folds(len(z), FOLDS, numpy_seed(seed, 0, "held out"), row_groups(z))[0]
    train, test = np.delete(z, held_out, axis=0), z[held_out]
    with one_thread():
        grown = _grow(train, test, STARTS[-1], PSEUDO_ROWS[0], seed, {})
    return Growth([grown], shift, scale).mixture(x)


def go_on(mixture: Mixture, x: np.ndarray, pseudo_rows: float) -> Mixture:
    """EM on x [N, D] from `mixture`, which keeps its number of components."""
    _, shift, scale = standardised(x)
    start = Gaussians(
        np.exp(mixture.log_weights),
        np.asarray((mixture.means - shift) / scale),
        np.asarray(mixture.covariances / (scale[:, None] * scale)),
    )
    found = Grown(score=np.nan, pseudo_rows=pseudo_rows, gaussians=start)
    return Growth([found], shift, scale).mixture(x)


def rows_looked_at(n: int, d: int) -> Int64[Array, " M"]:
    """All of n, or so many that their products are `MOST_NUMBERS`."""
    most = max(1, min(MOST_ROWS, MOST_NUMBERS // max(1, d) ** 2))
    return np.arange(n) if n <= most else np.random.default_rng(0).permutation(n)[:most]


def grown_on(
    z: np.ndarray,
    parts: list[np.ndarray],
    more: list[np.ndarray],
    seed: int,
    background: Gaussians | None = None,
) -> list[Grown]:
    """The best mixture of those that leave out the first part, of which there are `RESTARTS` more
    then; where the mean of several is better there, these and one for each other part, and for
    `more`.
    """
    first = parts[0]
    train, test = np.delete(z, first, axis=0), z[first]
    known: Halves = {}
    grown = [_grow(train, test, STARTS[0], nu, seed, known, background) for nu in PSEUDO_ROWS]
    grown = by_score(grown)[:BETTER]
    better = [one.pseudo_rows for one in grown]
    for start, nu in zip(STARTS[1:], better, strict=True):
        grown.append(_grow(train, test, start, nu, seed, known, background))
    best = by_score(grown)[0]
    if mean_is_no_better([one.gaussians for one in grown], best.gaussians, test):
        for i in range(RESTARTS):
            start, own_seed = STARTS[i % len(STARTS)], seed + len(parts) + len(more) + i
            grown.append(_grow(train, test, start, best.pseudo_rows, own_seed, {}, background))
        return by_score(grown)[:1]
    for i, part in enumerate([*parts[1:], *more]):
        train, test = np.delete(z, part, axis=0), z[part]
        start, nu = STARTS[i % len(STARTS)], better[i % BETTER]
        grown.append(_grow(train, test, start, nu, seed + i + 1, {}, background))
    return grown


def of_unseen(z: np.ndarray, parts: list[np.ndarray], grown: list[Grown]) -> Float64[Array, "W N"]:
    """Log density of the rows of each part of z [N, D], one part after the other, under what has
    grown without them (`grown_on`), in all `WIDTHS`; a single mixture for all parts goes on
    without each.
    """
    without = [mean_density([one.gaussians for one in grown[:SHARING]])]
    if len(grown) == 1:
        (one,) = grown
        others = (np.delete(z, part, axis=0) for part in parts[1:])
        without += [maximise(rows, one.gaussians, one.pseudo_rows) for rows in others]
    else:
        of_parts = grown[SHARING : SHARING + len(parts) - 1]
        without += [one.gaussians for one in of_parts]
    pairs_of = zip(parts, without, strict=True)
    return np.hstack([log_densities(z[part], in_widths(found)) for part, found in pairs_of])


def by_score(grown: list[Grown]) -> list[Grown]:
    """The best first."""
    return sorted(grown, key=lambda one: -one.score)


def _grow(
    train: np.ndarray,
    test: np.ndarray,
    start: int,
    nu: float,
    seed: int,
    known: Halves,
    background: Gaussians | None = None,
) -> Grown:
    """From so many components, all that can be split in each round."""
    first = beside(from_clusters(train, start, seed), background)
    gaussians = maximise(train, first, nu, tolerance=TOLERANCE_OF_ROUNDS)
    best = Grown(score(test, gaussians), nu, gaussians)
    rounds = 0
    while rounds < PATIENCE and (halved := split(train, gaussians, seed, known)) is not None:
        found = maximise(train, halved, nu, tolerance=TOLERANCE_OF_ROUNDS)
        gaussians = without_empty(found, len(train))
        rounds += 1
        grown = Grown(score(test, gaussians), nu, gaussians)
        if grown.score > best.score + TOLERANCE:
            best, rounds = grown, 0
    return best


def split(z: np.ndarray, gaussians: Gaussians, seed: int, known: Halves) -> Gaussians | None:
    """Every component that `halves` splits by its own rows is replaced by its two halves. None:
    there is none.

    Rows of the background are some component's, too: `halves` sees what is unlike it.
    """
    own = log_joint(z, pairs(z), beside(gaussians, None)).argmax(axis=1)
    parts = []
    for o, weight in enumerate(gaussians.weights):
        rows = np.packbits(own == o).tobytes()
        if rows not in known:
            known[rows] = halves(z[own == o], seed, gaussians.background)
        two = known[rows]
        one = Gaussians(*(array[o : o + 1] for array in gaussians[:3]))
        parts.append(one if two is None else two._replace(weights=weight * two.weights))
    if len(parts) == sum(len(part.weights) for part in parts):
        return None
    return joined(parts)._replace(background=gaussians.background)


def halves(z: np.ndarray, seed: int, background: Gaussians | None = None) -> Gaussians | None:
    """Two Gaussians of one covariance for z [N, D], if their Bayesian information criterion is
    below that of one Gaussian, each beside the background.
    """
    n, d = z.shape
    if n < d + 2 or (z == z[0]).all():
        return None
    # Columns that lie off 0 count for more. Around their means fresh rows are as likely (hall,
    # digits, tumours, Gaussians, 22 pairs of fits: -0.05 to 0.04 nats).
    starts = [from_labels(z, two_means(rows, seed)) for rows in (z, weighted_columns(z))]
    found = [
        maximise(z, beside(start, background), SHARED, RIDGE_OF_HALVES, TOLERANCE_OF_HALVES)
        for start in starts
    ]
    scores = [score(z, two) for two in found]
    gain = max(scores) - score(z, beside(from_clusters(z, 1, seed), background))
    two = beside(found[int(np.argmax(scores))], None)
    own = np.bincount(log_joint(z, pairs(z), two).argmax(axis=1), minlength=2)
    return two if n * gain > 0.5 * (d + 1) * np.log(n) and own.min() >= 2 else None


def two_means(z: np.ndarray, seed: int) -> Int64[Array, " N"]:
    """Clusters of z [N, D] by k-means; SciPy's, as scikit-learn's takes twice as long to begin."""
    from scipy.cluster.vq import kmeans2

    return kmeans2(z, 2, minit="++", seed=seed)[1]
