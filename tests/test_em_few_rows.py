"""EM of few rows: what cross-validation chooses, and the mean of several starts."""

from virl_tf.em import few_rows
from virl_tf.em.em import Covariances, em_mixture
from virl_tf.em.few_rows import (
    AVERAGED,
    RIDGES,
    STARTS,
    Choice,
    _folds,
    _Judged,
    _rank,
    _Rows,
    mean_of_starts,
)
from virl_tf.em.growth import Grown
from virl_tf.em.merging import merges_of
from virl_tf.em.shrunk import SHARED, from_clusters
from virl_tf.em.stacking import ONE_WIDTH, WIDTHS
from virl_tf.tasks import RandomGaussians
from virl_tf.tasks.hall import Hall

import numpy as np
import pytest
import tensorflow as tf

from tests import shared


@pytest.fixture
def few_choices(monkeypatch):
    """Where it does not matter what is chosen among, and how surely."""
    shared.few_choices(monkeypatch)
    monkeypatch.setattr(few_rows, "FOLDS", 5)
    monkeypatch.setattr(few_rows, "STARTS_FOR_WIDTHS", 2)


def likelihood(mixture, x):
    return float(tf.reduce_mean(mixture.log_prob(x)))


@pytest.mark.slow
def test_the_mean_is_as_likely_as_what_fresh_rows_would_choose_and_nearer():
    """50 rows of ten Gaussians in five dimensions, five sets: of 16 ways of EM it is not told the
    best. Its own draws are likely under p, too.
    """
    sizes, ridges = (1, 2, 5, 10), (1e-3, 1e-2)
    lacks, likelihoods, distances = [], [], []
    for seed in range(5, 10):
        p = RandomGaussians(10, seed, dim=5).mixture
        x = p.sample(50, tf.constant([seed, 1])).numpy()
        draws = p.sample(4000, tf.constant([seed, 2]))
        found = mean_of_starts(x, seed).mixture(x)
        single = [
            em_mixture(x, size, seed, Covariances(kind, ridge))
            for size in sizes
            for ridge in ridges
            for kind in ("full", "tied")
        ]
        best = max(single, key=lambda mixture: likelihood(mixture, draws))
        lacks.append(likelihood(best, draws) - likelihood(found, draws))
        likelihoods.append(np.median([likelihood(mixture, draws) for mixture in single]))
        likelihoods[-1] -= likelihood(found, draws)
        distances.append([kl(found, p, seed), kl(best, p, seed)])
    assert np.mean(lacks) < 0.3
    assert np.mean(likelihoods) < -0.5
    of_found, of_best = np.mean(distances, axis=0)
    assert of_found < 0.7 * of_best


def kl(q, p, seed):
    draws = q.sample(4000, tf.constant([seed, 3]))
    return likelihood(q, draws) - likelihood(p, draws)


@pytest.mark.parametrize("apart", [0.0, 5.0])
def test_each_choice_counts_with_all_of_its_starts(monkeypatch, apart):
    shared.few_choices(monkeypatch)
    chosen, mixtures = [], _Rows.mixtures

    def recorded(self, choice, number):
        if number == STARTS:  # in folds it is another
            chosen.append(choice)
        return mixtures(self, choice, number)

    monkeypatch.setattr(_Rows, "mixtures", recorded)
    x = np.random.default_rng(0).standard_normal((24, 3))
    x[:12] += apart
    growth = mean_of_starts(x, 0)
    assert len(chosen) == AVERAGED
    starts = [STARTS if choice.components > 1 else 1 for choice in chosen]
    assert (1 in starts) == (apart == 0.0)
    assert len(growth.grown) == sum(starts)
    assert {one.ridge for one in growth.grown} <= set(RIDGES)
    mixture = growth.mixture(x)
    assert growth.shares == ONE_WIDTH
    assert mixture.num_components == sum(len(one.gaussians.weights) for one in growth.grown)
    np.testing.assert_allclose(np.exp(mixture.log_weights).sum(), 1.0)


@pytest.mark.slow
def test_where_modes_are_of_few_rows_several_widths_are_likelier():
    """A hall's 40 pairs of gates, 80 rows."""
    hall = Hall(40, 0)
    x, fresh = hall.demonstrations(80, 1), hall.demonstrations(4000, 9)
    growth = mean_of_starts(x, 0)
    found, wide = growth.mixture(x), growth._replace(shares=ONE_WIDTH).mixture(x)
    assert likelihood(found, fresh) > likelihood(wide, fresh) + 0.1
    ends = [
        hall.outcome(mixture.sample(4000, tf.constant([0, 1])).numpy())["gate_to_gate"]
        for mixture in (found, wide)
    ]
    assert ends[0] > ends[1]


@pytest.mark.usefixtures("few_choices")
def test_the_same_rows_give_the_same_bytes():
    x = np.random.default_rng(1).standard_normal((12, 2))
    first, again = (mean_of_starts(x, 3).mixture(x) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.usefixtures("few_choices")
def test_one_gaussian_is_described_by_one():
    """Of a hundred rows of it: KL(p || q) below that of a Gaussian fitted to half of them."""
    rng = np.random.default_rng(2)
    x, draws = rng.standard_normal((99, 3)), rng.standard_normal((20_000, 3))
    truth = -0.5 * (draws**2).sum(axis=1).mean() - 1.5 * np.log(2.0 * np.pi)
    assert truth - likelihood(mean_of_starts(x, 0).mixture(x), draws) < 9 / 99


@pytest.mark.usefixtures("few_choices")
def test_groups_are_held_out_together():
    """Four copies of each row: alone they tell of one another, and every row is a component."""
    x = np.repeat(np.random.default_rng(4).standard_normal((12, 2)), 4, axis=0)
    groups = np.repeat(np.arange(12), 4)
    sizes = [
        max(len(one.gaussians.weights) for one in mean_of_starts(x, 0, given).grown)
        for given in (None, groups)
    ]
    assert sizes[1] <= 6 < sizes[0]


@pytest.mark.usefixtures("few_choices")
def test_units_do_not_matter():
    x = np.random.default_rng(5).standard_normal((20, 2))
    x[:10] += 4.0
    # Components may change places: densities are compared.
    found, small, large = (
        mean_of_starts(unit * x, 0).mixture(unit * x).log_prob(unit * x) + 2.0 * np.log(unit)
        for unit in (1.0, 1e-6, 1e6)
    )
    np.testing.assert_allclose(small, found, atol=1e-4)
    np.testing.assert_allclose(large, found, atol=1e-4)


@pytest.mark.usefixtures("few_choices")
@pytest.mark.parametrize(
    "x",
    [
        np.repeat(np.random.default_rng(6).standard_normal((3, 2)), 5, axis=0),
        np.random.default_rng(7).standard_normal((12, 2)) * [1.0, 0.0],
        np.random.default_rng(8).standard_normal((20, 30)),
        np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]),
        np.array([[0.0], [1.0], [1.5]]),
    ],
    ids=["three different rows", "a constant column", "more columns than rows", "four", "three"],
)
def test_odd_rows_have_a_finite_density(x):
    assert np.isfinite(mean_of_starts(x, 0).mixture(x).log_prob(x)).all()


@pytest.mark.slow
@pytest.mark.usefixtures("few_choices")
def test_of_few_rows_too_a_stray_one_asks_for_a_background():
    rng = np.random.default_rng(13)
    x = rng.standard_normal((60, 4))
    assert mean_of_starts(x, 0).background == 0.0
    x[:2] = 30.0 * rng.standard_normal((2, 4))
    growth = mean_of_starts(x, 0)
    assert growth.background > 0.0
    mixture, plain = growth.mixture(x), growth._replace(background=0.0).mixture(x)
    assert mixture.num_components == plain.num_components + 1


def test_no_mixture_has_seen_the_rows_that_judge_it(monkeypatch):
    x = np.random.default_rng(3).standard_normal((40, 2))
    last, judged = [], []

    def mixtures(self, choice, number):
        last[:] = self._z.tolist()
        return [Grown(0.0, 1.0, from_clusters(self._z, 1, 0))]

    def log_density(z, mixture):
        assert not any(row in last for row in z.tolist())
        assert len(last) + len(z) == len(x)
        judged.append(len(z))
        return np.zeros(len(z))

    monkeypatch.setattr(_Rows, "mixtures", mixtures)
    monkeypatch.setattr("virl_tf.em.few_rows.log_density", log_density)
    monkeypatch.setattr(
        "virl_tf.em.few_rows.log_densities",
        lambda z, mixtures: np.tile(log_density(z, mixtures[0]), (len(WIDTHS), 1)),
    )
    mean_of_starts(x, 0)
    assert sum(judged) % len(x) == 0 < len(judged)


@pytest.mark.usefixtures("few_choices")
def test_shared_covariances_are_one_choice():
    """Two ways that differ in one of 12 columns: what they vary by is the same for both."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((50, 12))
    x[:, 3] += 8.0 * rng.choice([-0.5, 0.5], 50)
    assert mean_of_starts(x, 0).grown[0].pseudo_rows == SHARED


@pytest.mark.usefixtures("few_choices")
def test_the_ridge_stays_when_em_goes_on(monkeypatch):
    """A column that varies by a millionth within its two values has the ridge's width."""
    monkeypatch.setattr(few_rows, "RIDGES", RIDGES[:1])
    x = np.random.default_rng(10).standard_normal((20, 2))
    x[:, 1] = np.where(np.arange(20) < 10, -1.0, 1.0) + 1e-6 * x[:, 1]
    growth = mean_of_starts(x, 0)
    width = min(w for w, share in zip(WIDTHS, growth.shares, strict=True) if share > 0.0)
    trils = growth.mixture(x).scale_trils
    variances = np.asarray(tf.matmul(trils, trils, transpose_b=True))[:, 1, 1]
    assert variances.min() > 0.9 * width * RIDGES[0] * x[:, 1].var()


def test_modes_of_fewer_rows_than_there_are_folds_lose_one_of_them_at_most():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 3)
    centres = 10.0 * rng.standard_normal((24, 5))
    z = centres[labels] + 0.1 * rng.standard_normal((72, 5))
    parts = _folds(merges_of(z), [24], 0, None)
    assert all(len(set(labels[part])) == len(part) for part in parts)


def test_the_narrowest_of_those_as_likely_come_first():
    """Less likely by more than two standard errors is behind, however narrow."""
    rows = np.tile([0.0, 1.0], 50)

    def judged(lack, of_seen):
        return _Judged(Choice(False, 2, 1.0), rows - lack, of_seen)

    likeliest, wide = judged(0.0, 1.0), judged(rows - 0.5, 2.0)
    narrow, unlikely = judged(0.9 * rows - 0.45, 3.0), judged(rows + 1.0, 9.0)
    ranked = sorted([unlikely, wide, narrow], key=lambda one: _rank(one, likeliest))
    assert [one.of_seen for one in ranked] == [3.0, 2.0, 9.0]


@pytest.mark.slow
def test_ways_among_columns_of_noise_are_components_of_their_own():
    """Twenty ways of four rows, which four of eight columns tell apart."""
    rng = np.random.default_rng(14)
    centres = np.hstack([rng.uniform(-3.0, 3.0, (20, 4)), np.zeros((20, 4))])
    x = np.repeat(centres, 4, axis=0) + np.repeat([0.1, 1.0], 4) * rng.standard_normal((80, 8))
    draws = mean_of_starts(x, 0).mixture(x).sample(2000, tf.constant([1, 2])).numpy()
    away = np.abs(draws[:, None, :4] - centres[:, :4]).max(axis=2).min(axis=1)
    assert np.mean(away > 0.6) < 0.1


@pytest.mark.usefixtures("few_choices")
def test_narrow_ways_of_few_rows_are_kept_apart():
    """Eight ways of four rows in ten columns: few draws are between them."""
    rng = np.random.default_rng(11)
    centers = 3.0 * rng.standard_normal((8, 10))
    x = np.repeat(centers, 4, axis=0) + 0.3 * rng.standard_normal((32, 10))
    draws = mean_of_starts(x, 0).mixture(x).sample(2000, tf.constant([1, 2])).numpy()
    distances = np.linalg.norm(draws[:, None] - centers, axis=2).min(axis=1)
    assert np.mean(distances > 3.0) < 0.05


@pytest.mark.usefixtures("few_choices")
@pytest.mark.parametrize("x", [[[0.0], [1.0]], [[0.0, 1.0], [1.0, 0.0]], [[2.0], [2.0]]])
def test_two_rows_have_a_density(x):
    """What is left of three, or of two groups: a fold of them leaves one."""
    x = np.array(x)
    mixture = mean_of_starts(x, 0).mixture(x)
    assert np.isfinite(mixture.log_prob(x)).all()
