"""EM mixtures that grow: components are split in two until held-out rows are described no better.

Each covariance is shrunk towards what all components have in common,

    Sigma_o = (S_o + nu W) / (N_o + nu),    W = sum_o S_o / N,

S_o the scatter of the N_o rows of component o: as if nu more rows of the pooled covariance W had
been seen (Friedman, 1989, with one parameter). So a mode of a handful of rows is a component of its
own, where EM with free covariances lays one component over two modes (docs/decisions.md, growth).

EM's optima are local and rows are few, so where the mean of several mixtures' densities, a mixture
of all their components, describes held-out rows better than the best of them, it counts, and more
grow with other rows held out (bagging; Breiman, 1996; stacking: Smyth and Wolpert, 1999).

Of people some do what nobody else does. Where held-out rows say so, mixtures grow anew beside one
more component, wider than all rows, whose share is small and fixed: the noise component of Banfield
and Raftery (1993), a Gaussian here. What it explains widens no other component
(docs/decisions.md, background).

People do most things alike and some not, so a Gaussian is too wide for most rows of a component and
too narrow for others. Where held-out rows say so, each component ends as two Gaussians of one mean,
a wide and a narrow one, whose shares, the same for all components, are those with which held-out
rows are likeliest (stacking; docs/decisions.md, widths).
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.em import describe_clusters, one_thread, standardised, weighted_columns
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, LOG_2PI, numpy_seed
from virl_tf.shapes import Array, Float64, Int64
from virl_tf.splitting import folds

PSEUDO_ROWS = (1.0, 0.25, 2.0)  # nu, of which the better ones count
BETTER = 2
SHARED = 1e9  # pseudo-rows with which all covariances are W
# Components that growth starts from: from one it ends where two Gaussians are no better, though
# many are, and in other local optima.
STARTS = (1, 3, 10)
FOLDS = 5  # one of which is held out; another one for each of the mixtures that are averaged
# Of so few rows parts of further partitions are held out, too: optima are further apart, and EM on
# them takes seconds.
MOST_FURTHER, FURTHER_ROWS = 2, 3000
SHARING = BETTER + len(STARTS) - 1  # mixtures that leave out the first of them
WORTH = 0.05  # nats that a mean of several must gain: it has several times as many components
# The component for rows unlike all others: its share, its covariance in units of that of all rows,
# and the nats that it must gain on a held-out row in the mean.
BACKGROUND, WIDER, NEEDED = 0.01, 4.0, 0.1
# What covariances are multiplied by: the first, or the others where these gain that much, too.
WIDTHS = (1.0, 2.0, 0.5)
ONE_WIDTH = (1.0, 0.0, 0.0)  # shares of them
# With fewer narrow ones a wide one alone would do, which says that rows are few.
LEAST_NARROW, STACKING_STEPS = 0.25, 300
PATIENCE = 2  # rounds of splits without gain
# Rows that are looked at, fewer where their D^2 products are more numbers than that.
MOST_ROWS, MOST_NUMBERS = 20_000, 40_000_000
MAX_STEPS, TOLERANCE = 200, 1e-4  # of EM; in nats per row, with which it has converged
TOLERANCE_OF_ROUNDS = 3e-3  # ... enough before the next splits
TOLERANCE_OF_GROWN = 1e-3  # ... enough once it is grown
LEAST_SHARE = 1e-10  # of rows, for which a component without any counts in a division
LEAST_ROWS = 0.5  # of a component: one that EM has emptied would be split anew in every round
TOLERANCE_OF_HALVES = 1e-3  # ... enough to see whether two are better than one
RIDGE = 1e-6  # on a component's covariance, in units of the columns' variances
RIDGE_OF_HALVES = 1e-3  # ... where a component of few rows may be two


class Gaussians(NamedTuple):
    """A mixture while it grows, of standardised rows.

    Attributes:
        weights: [K].
        means: [K, D].
        covariances: [K, D, D].
        background: one more, which EM leaves as it is; the weights add up to what it leaves.
    """

    weights: Float64[Array, " K"]
    means: Float64[Array, "K D"]
    covariances: Float64[Array, "K D D"]
    background: "Gaussians | None" = None

    @property
    def left(self) -> float:
        """What the weights add up to."""
        return 1.0 if self.background is None else 1.0 - float(self.background.weights[0])

    @property
    def all(self) -> "Gaussians":
        """With the background as a component like the others."""
        return self if self.background is None else joined([self, self.background])


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
        z = (looked_at(x) - self.shift) / self.scale
        wide = wider_than_all(z, self.background) if self.background > 0.0 else None
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
            grown = grown_on(z, parts, more, seed, wider_than_all(z, share))
            of_widths = of_unseen(z, parts, grown)
        return Growth(grown, shift, scale, share, shares=shares_of_widths(of_widths))


def grow_once(x: np.ndarray, seed: int) -> Mixture:
    """One mixture of x [N, D], from most components: nearly as good, in a tenth of the time."""
    z, shift, scale = standardised(x)
    held_out = folds(len(z), FOLDS, numpy_seed(seed, 0, "held out"))[0]
    train, test = np.delete(z, held_out, axis=0), z[held_out]
    with one_thread():
        grown = _grow(train, test, STARTS[-1], PSEUDO_ROWS[0], seed, {})
    return Growth([grown], shift, scale).mixture(x)


def go_on(mixture: Mixture, x: np.ndarray) -> Mixture:
    """EM on x [N, D] from `mixture`, which keeps its number of components."""
    _, shift, scale = standardised(x)
    start = Gaussians(
        np.exp(mixture.log_weights),
        np.asarray((mixture.means - shift) / scale),
        np.asarray(mixture.covariances / (scale[:, None] * scale)),
    )
    return Growth([Grown(score=np.nan, pseudo_rows=0.0, gaussians=start)], shift, scale).mixture(x)


def looked_at(x: np.ndarray) -> np.ndarray:
    """Those rows of x [N, D]."""
    return x[rows_looked_at(*x.shape)]


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
    """The best mixture of those that leave out the first part; where the mean of several is better
    there, these and one for each other part, and for `more`.
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
        return [best]
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


def share_of_background(z: np.ndarray, unseen: np.ndarray, log_q: Float64[Array, " M"]) -> float:
    """`BACKGROUND`, or 0 where it gains too little.

    Args:
        z: all rows [N, D].
        unseen, log_q: rows [M, D] and their log density under a mixture that did not see them.
    """
    wide = log_density(unseen, wider_than_all(z, BACKGROUND))
    both = np.logaddexp(np.log1p(-BACKGROUND) + log_q, wide)
    return BACKGROUND if np.mean(both - log_q) >= NEEDED else 0.0


def wider_than_all(z: np.ndarray, share: float) -> Gaussians:
    """One Gaussian of such a weight, with `WIDER` times the covariance of z [N, D]."""
    d = z.shape[1]
    covariance = np.cov(z, rowvar=False, bias=True).reshape(d, d) + RIDGE * np.eye(d)
    return Gaussians(np.array([share]), z.mean(axis=0)[None], WIDER * covariance[None])


def beside(gaussians: Gaussians, background: Gaussians | None) -> Gaussians:
    """The same components with another background, or none."""
    other = gaussians._replace(background=background)
    return other._replace(weights=other.left / gaussians.left * gaussians.weights)


def by_score(grown: list[Grown]) -> list[Grown]:
    """The best first."""
    return sorted(grown, key=lambda one: -one.score)


def mean_is_no_better(mixtures: list[Gaussians], one: Gaussians, z: np.ndarray) -> bool:
    """Whether the mean of the mixtures' densities is not worth its size: on z [N, D] it is not
    likelier by `WORTH` and more than chance.
    """
    gain = log_density(z, mean_density(mixtures)) - log_density(z, one)
    return bool(gain.mean() < WORTH) or as_good(gain)


def as_good(lack: Float64[Array, " N"], errors: float = 1.0) -> bool:
    """Whether what one density lacks against another on rows is within so many standard errors."""
    return bool(lack.mean() <= errors * lack.std() / np.sqrt(len(lack)))


def mean_density(mixtures: list[Gaussians]) -> Gaussians:
    """The mixture of all their components whose density is the mean of theirs."""
    return weighted(mixtures, [1.0 / len(mixtures)] * len(mixtures))


def weighted(mixtures: list[Gaussians], shares: Sequence[float]) -> Gaussians:
    """The mixture of all their components in which each of them has its share, beside the
    background of the first.
    """
    pairs_of = zip(mixtures, shares, strict=True)
    parts = [one._replace(weights=share * one.weights) for one, share in pairs_of if share > 0.0]
    return joined(parts)._replace(background=mixtures[0].background)


def in_widths(gaussians: Gaussians) -> list[Gaussians]:
    """The same with each of `WIDTHS` times the covariances, but that of the background."""
    return [gaussians._replace(covariances=w * gaussians.covariances) for w in WIDTHS]


def shares_of_widths(log_q: Float64[Array, "W N"]) -> tuple[float, ...]:
    """Of the wide and the narrow width, those with which the rows are likeliest; `ONE_WIDTH` where
    they gain too little, or hardly any is narrow.

    Args:
        log_q: log density of rows under mixtures in `WIDTHS` that did not see them.
    """
    two = log_q[1:]
    likelihoods = np.exp(two - two.max(axis=0))
    shares = np.full(len(two), 1.0 / len(two))
    for _ in range(STACKING_STEPS):  # EM, which has no other optimum here
        joint = shares[:, None] * likelihoods
        shares = (joint / joint.sum(axis=0)).mean(axis=1)
    found = (0.0, *map(float, shares))
    gain = stacked(log_q, found) - log_q[0]
    pays = gain.mean() >= NEEDED and shares[-1] >= LEAST_NARROW
    return found if pays else ONE_WIDTH


def stacked(log_q: Float64[Array, "W N"], shares: Sequence[float]) -> Float64[Array, " N"]:
    """Log of the sum of densities that each have their share."""
    with np.errstate(divide="ignore"):  # a share of zero
        return log_sum((log_q + np.log(shares)[:, None]).T)


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


def joined(parts: list[Gaussians]) -> Gaussians:
    """All their components, with the weights they have, and without a background."""
    return Gaussians(
        np.concatenate([part.weights for part in parts]),
        np.concatenate([part.means for part in parts]),
        np.concatenate([part.covariances for part in parts]),
    )


def halves(z: np.ndarray, seed: int, background: Gaussians | None = None) -> Gaussians | None:
    """Two Gaussians of one covariance for z [N, D], if their Bayesian information criterion is
    below that of one Gaussian, each beside the background.
    """
    n, d = z.shape
    if n < d + 2 or (z == z[0]).all():
        return None
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


def from_clusters(z: np.ndarray, number: int, seed: int) -> Gaussians:
    """A start at the centres of k-means."""
    if number == 1:
        return from_labels(z, np.zeros(len(z), int))
    from sklearn.cluster import KMeans

    number = min(number, len(np.unique(z, axis=0)))
    return from_labels(z, KMeans(number, n_init=1, random_state=seed).fit(z).labels_)


def from_labels(z: np.ndarray, labels: Int64[Array, " N"]) -> Gaussians:
    """A start at the centres of clusters of z [N, D], with the covariance within them."""
    counts, means, within = describe_clusters(z, labels, labels.max() + 1)
    within = within + RIDGE_OF_HALVES * np.eye(z.shape[1])
    return Gaussians(counts / counts.sum(), means, np.tile(within, (len(means), 1, 1)))


def fitted(z: np.ndarray, start: Gaussians, nu: float, ridge: float = RIDGE) -> Gaussians:
    """EM from `start`, with `nu` pseudo-rows, and the covariances of further rows."""
    return of_further_rows(z, maximise(z, start, nu, ridge), nu, ridge)


def maximise(
    z: np.ndarray,
    start: Gaussians,
    nu: float,
    ridge: float = RIDGE,
    tolerance: float = TOLERANCE,
) -> Gaussians:
    """EM from `start`, with `nu` pseudo-rows."""
    products = pairs(z)
    found, last = start, -np.inf
    for step in range(MAX_STEPS):
        mean, shares = _e_step(z, products, found)
        # The first step's likelihood is the start's, which need not be shrunk.
        if step > 1 and mean - last < tolerance:
            break
        last = mean
        found = _m_step(z, products, shares, nu, ridge, found.background)
    return found


def of_further_rows(z: np.ndarray, gaussians: Gaussians, nu: float, ridge: float) -> Gaussians:
    """The same components as densities of a row that EM has not seen.

    The rows of a component are nearer to their mean than to the true one, which a further row
    scatters around. With e_o = sum_n r_on^2 / N_o, one row where responsibilities r are 0 and 1,

        Sigma_o = (1 + e_o / N_o) (S_o + nu W) / (N_o - e_o + nu)
        W = sum_o S_o / (N - sum_o e_o)

    as of one Gaussian, whose S / (N - 1) is unbiased and whose mean has the variance Sigma / N.
    """
    products = pairs(z)
    _, shares = _e_step(z, products, gaussians)
    spent = (shares**2).sum(axis=0) / np.maximum(shares.sum(axis=0), LEAST_SHARE)
    return _m_step(z, products, shares, nu, ridge, gaussians.background, spent)


def without_empty(gaussians: Gaussians, n: int) -> Gaussians:
    """The components that have rows, of n."""
    kept = gaussians.weights * n >= LEAST_ROWS
    weights, means, covariances = (array[kept] for array in gaussians[:3])
    weights = gaussians.left * weights / weights.sum()
    return Gaussians(weights, means, covariances, gaussians.background)


def _e_step(
    z: np.ndarray, products: np.ndarray, gaussians: Gaussians
) -> tuple[float, Float64[Array, "N K"]]:
    """The mean log-likelihood, and the components' responsibilities."""
    joint = log_joint(z, products, gaussians)
    highest = joint.max(axis=1)
    shares = np.exp(joint - highest[:, None])
    sums = shares.sum(axis=1)
    mean = float((highest + np.log(sums)).mean())
    return mean, (shares / sums[:, None])[:, : len(gaussians.weights)]


def _m_step(
    z: np.ndarray,
    products: np.ndarray,
    shares: np.ndarray,
    nu: float,
    ridge: float,
    background: Gaussians | None = None,
    spent: Float64[Array, " K"] | float = 0.0,
) -> Gaussians:
    """Of responsibilities `shares` [N, K]; `spent`: e_o of `of_further_rows`."""
    n, d = z.shape
    counts = np.maximum(shares.sum(axis=0), LEAST_SHARE)
    if background is not None:
        n = counts.sum()  # the others are its rows
    means = shares.T @ z / counts[:, None]
    second = np.empty((len(counts), d, d))
    first, other, _ = pair_indices(d)
    second[:, first, other] = second[:, other, first] = shares.T @ products
    scatter = second - counts[:, None, None] * means[:, :, None] * means[:, None, :]
    free = np.maximum(n - np.sum(spent), 1.0)
    shrunk = (scatter + nu * scatter.sum(axis=0) / free) / (counts - spent + nu)[:, None, None]
    wide = (1.0 + spent / counts)[:, None, None] * shrunk
    found = Gaussians(counts / counts.sum(), means, wide + ridge * np.eye(d))
    return beside(found, background)


def log_joint(z: np.ndarray, products: np.ndarray, gaussians: Gaussians) -> Float64[Array, "N K"]:
    """Log of weight times density, that of the background last: two products of matrices, whatever
    the number of components.
    """
    weights, means, covariances, _ = gaussians.all
    precisions = np.linalg.inv(covariances)
    linear = np.einsum("kij,kj->ki", precisions, means)
    constant = np.einsum("ki,ki->k", linear, means) + np.linalg.slogdet(covariances)[1]
    first, other, times = pair_indices(z.shape[1])
    twice = precisions[:, first, other] * times
    squares = products @ twice.T - 2.0 * z @ linear.T
    return np.log(weights) - 0.5 * (squares + constant + z.shape[1] * LOG_2PI)


def pairs(z: np.ndarray) -> Float64[Array, "N D*(D+1)/2"]:
    """Products of the columns of z [N, D], each pair once."""
    first, other, _ = pair_indices(z.shape[1])
    return z[:, first] * z[:, other]


@functools.cache
def pair_indices(d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both columns of each pair of d columns, and how often it is in a quadratic form."""
    first, other = np.triu_indices(d)
    return first, other, np.where(first == other, 1.0, 2.0)


def score(z: np.ndarray, gaussians: Gaussians) -> float:
    """Mean log-likelihood of z [N, D]."""
    return float(log_density(z, gaussians).mean())


def log_density(z: np.ndarray, gaussians: Gaussians) -> Float64[Array, " N"]:
    """Of each row of z [N, D]."""
    return log_sum(log_joint(z, pairs(z), gaussians))


def log_densities(z: np.ndarray, mixtures: list[Gaussians]) -> Float64[Array, "W N"]:
    """Of each row of z [N, D] under each mixture."""
    return np.stack([log_density(z, one) for one in mixtures])


def log_sum(joint: np.ndarray) -> Float64[Array, " N"]:
    """Of exp(joint [N, K]); SciPy's takes three times as long."""
    highest = joint.max(axis=1)
    return highest + np.log(np.exp(joint - highest[:, None]).sum(axis=1))
