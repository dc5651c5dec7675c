"""EM of few rows: what cross-validation chooses, and the mean of several starts."""

from virl_tf.em import Covariances, em_mixture
from virl_tf.mixture_growth import SHARED
from virl_tf.mixture_of_few import AVERAGED, RIDGE, STARTS, mean_of_starts
from virl_tf.tasks import RandomGaussians

import numpy as np
import pytest
import tensorflow as tf


def likelihood(mixture, x):
    return float(tf.reduce_mean(mixture.log_prob(x)))


@pytest.mark.parametrize("seed", [5, 6])
def test_the_mean_is_nearly_as_likely_as_the_mixture_that_fresh_rows_would_choose(seed):
    """50 rows of ten Gaussians in five dimensions: of 16 ways of EM it is not told the best."""
    p = RandomGaussians(10, seed, dim=5).mixture
    x = p.sample(50, tf.constant([seed, 1])).numpy()
    draws = p.sample(4000, tf.constant([seed, 2]))
    found = likelihood(mean_of_starts(x, seed).mixture(x), draws)
    sizes, ridges = (1, 2, 5, 10), (1e-3, 1e-2)
    single = [
        em_mixture(x, size, seed, Covariances(kind, ridge))
        for size in sizes
        for ridge in ridges
        for kind in ("full", "tied")
    ]
    likelihoods = [likelihood(mixture, draws) for mixture in single]
    assert found > max(likelihoods) - 0.3
    assert found > np.median(likelihoods) + 0.5


def test_each_choice_counts_with_all_of_its_starts():
    x = np.random.default_rng(0).standard_normal((60, 3))
    x[:30] += 5.0
    growth = mean_of_starts(x, 0)
    assert len(growth.grown) <= AVERAGED * STARTS
    assert {one.ridge for one in growth.grown} == {RIDGE}
    mixture = growth.mixture(x)
    assert mixture.num_components == sum(len(one.gaussians.weights) for one in growth.grown)
    np.testing.assert_allclose(np.exp(mixture.log_weights).sum(), 1.0)


def test_the_same_rows_give_the_same_bytes():
    x = np.random.default_rng(1).standard_normal((24, 2))
    first, again = (mean_of_starts(x, 3).mixture(x) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_gaussian_is_described_by_one():
    """Of a hundred rows of it: KL(p || q) below that of a Gaussian fitted to half of them."""
    rng = np.random.default_rng(2)
    x, draws = rng.standard_normal((99, 3)), rng.standard_normal((20_000, 3))
    truth = -0.5 * (draws**2).sum(axis=1).mean() - 1.5 * np.log(2.0 * np.pi)
    assert truth - likelihood(mean_of_starts(x, 0).mixture(x), draws) < 9 / 99


def test_groups_are_held_out_together():
    """Four copies of each row: alone they tell of one another, and every row is a component."""
    x = np.repeat(np.random.default_rng(4).standard_normal((20, 2)), 4, axis=0)
    groups = np.repeat(np.arange(20), 4)
    sizes = [
        max(len(one.gaussians.weights) for one in mean_of_starts(x, 0, given).grown)
        for given in (None, groups)
    ]
    assert sizes[1] <= 10 < sizes[0]


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_units_do_not_matter(unit):
    x = np.random.default_rng(5).standard_normal((24, 2))
    x[:12] += 4.0
    found, scaled = (mean_of_starts(u * x, 0).mixture(u * x) for u in (1.0, unit))
    np.testing.assert_allclose(scaled.means / unit, found.means, rtol=1e-6)


@pytest.mark.parametrize(
    "x",
    [
        np.repeat(np.random.default_rng(6).standard_normal((3, 2)), 5, axis=0),
        np.random.default_rng(7).standard_normal((12, 2)) * [1.0, 0.0],
        np.random.default_rng(8).standard_normal((20, 30)),
        np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]),
    ],
    ids=["three different rows", "a constant column", "more columns than rows", "four rows"],
)
def test_odd_rows_have_a_finite_density(x):
    assert np.isfinite(mean_of_starts(x, 0).mixture(x).log_prob(x)).all()


def test_shared_covariances_are_one_choice():
    """Two ways that differ in one of 16 columns: what they vary by is the same for both."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((100, 16))
    x[:, 3] += 8.0 * rng.choice([-0.5, 0.5], 100)
    assert SHARED in {one.pseudo_rows for one in mean_of_starts(x, 0).grown}


def test_the_ridge_stays_when_em_goes_on():
    """A column that varies by a millionth within its two values keeps the ridge's width."""
    x = np.random.default_rng(10).standard_normal((40, 2))
    x[:, 1] = np.where(np.arange(40) < 20, -1.0, 1.0) + 1e-6 * x[:, 1]
    trils = mean_of_starts(x, 0).mixture(x).scale_trils
    variances = np.asarray(tf.matmul(trils, trils, transpose_b=True))[:, 1, 1]
    assert variances.min() > 0.9 * RIDGE * x[:, 1].var()
