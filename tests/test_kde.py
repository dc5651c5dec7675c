from virl_tf import kde as module
from virl_tf.kde import Kde, fit_kde, silverman_factor
from virl_tf.validation import InputError

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import gaussian_kde

from tests.reference import kde as reference

SEED = [5, 6]
# Estimates are compared with expectations at 4.4 standard errors: 99.999 % for one normal
# statistic, and the seeds are fixed.
SIGMAS = 4.4


def normal(n, d=2, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def two_clusters(n, seed):
    """Two clusters of std 0.3 whose centres are 20 apart in both columns."""
    rng = np.random.default_rng(seed)
    return 0.3 * rng.standard_normal((n, 2)) + rng.choice([-10.0, 10.0], (n, 1))


def make_kde(points, bandwidth):
    return Kde(
        tf.constant(points),
        tf.constant(np.broadcast_to(bandwidth, points.shape[1:]).astype(np.float64)),
    )


# --- density --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("d", "bandwidth"),
    [(1, [0.3]), (2, [0.215, 0.215]), (2, [0.05, 3.0]), (5, [0.1, 0.2, 0.3, 0.4, 0.5])],
)
def test_log_prob_is_the_references(d, bandwidth):
    points, x = normal(30, d), 2.0 * normal(20, d, seed=1)
    found = make_kde(points, bandwidth).log_prob(x)
    np.testing.assert_allclose(
        found, reference.log_prob(x, points, bandwidth), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("block", [1, 36, 37, 38, 64])
@pytest.mark.parametrize("num_queries", [1, 37, 100])
def test_blocks_do_not_change_anything(monkeypatch, block, num_queries):
    points, x = normal(30), 2.0 * normal(num_queries, seed=1)
    kde = make_kde(points, 0.3)
    monkeypatch.setattr(module, "_BLOCK", block)
    blocked = module._log_prob(
        kde, tf.constant(x)
    )  # not the compiled one: it has the constant built in
    assert blocked.shape == (num_queries,)
    np.testing.assert_allclose(
        blocked, reference.log_prob(x, points, [0.3, 0.3]), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("d", [module._MAX_SUMMED_COLUMNS, module._MAX_SUMMED_COLUMNS + 1])
def test_distances_by_columns_and_by_a_product_give_the_same_density(d):
    points, x = normal(90, d), 2.0 * normal(40, d, seed=1)
    kde = make_kde(points, np.linspace(0.2, 0.6, d))
    np.testing.assert_allclose(
        kde.log_prob(x), reference.log_prob(x, points, np.linspace(0.2, 0.6, d)), rtol=1e-10
    )


def test_the_gradient_is_the_closed_form():
    points, x = normal(60), tf.constant(2.0 * normal(9, seed=1))
    kde = make_kde(points, 0.3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        log_p = kde.log_prob(x)
    difference = points - x.numpy()[:, None]
    kernels = np.exp(-0.5 * np.sum((difference / 0.3) ** 2, axis=-1))
    expected = (kernels[..., None] * difference / 0.3**2).sum(axis=1) / kernels.sum(
        axis=1, keepdims=True
    )
    np.testing.assert_allclose(tape.gradient(log_p, x), expected, rtol=1e-9)


def test_a_large_offset_keeps_the_precision():
    points, x = 1e6 + normal(50), 1e6 + 2.0 * normal(20, seed=1)
    expected = reference.log_prob(x - 1e6, points - 1e6, [0.1, 0.1])  # these differences are exact
    np.testing.assert_allclose(make_kde(points, 0.1).log_prob(x), expected, atol=1e-5)


def test_far_away_stays_finite():
    points, x = normal(20), np.array([[1e4, -1e4]])
    np.testing.assert_allclose(
        make_kde(points, 0.1).log_prob(x), reference.log_prob(x, points, [0.1, 0.1]), rtol=1e-10
    )


# --- bandwidth ------------------------------------------------------------------------------------


def test_silverman_gives_the_papers_bandwidth():
    assert round(silverman_factor(10_000, 2), 3) == 0.215


@pytest.mark.parametrize(("n", "d"), [(50, 1), (50, 2), (200, 5)])
def test_silverman_factor_is_scipys(n, d):
    np.testing.assert_allclose(
        silverman_factor(n, d), gaussian_kde(normal(n, d).T).silverman_factor(), rtol=1e-14
    )


@pytest.mark.parametrize("bandwidth", [0.215, "silverman"])
def test_absolute_and_relative_bandwidth(bandwidth):
    points = normal(100) * [3.0, 0.1] + 7.0
    number = silverman_factor(100, 2) if bandwidth == "silverman" else bandwidth
    np.testing.assert_allclose(
        fit_kde(points, bandwidth, "absolute").bandwidth, [number, number], rtol=1e-14
    )
    np.testing.assert_allclose(
        fit_kde(points, bandwidth, "relative").bandwidth, number * points.std(axis=0), rtol=1e-14
    )


def test_fit_keeps_the_points():
    points = normal(20)
    np.testing.assert_array_equal(fit_kde(points, 0.3).points, points)


@pytest.mark.parametrize("scale", ["absolute", "relative"])
def test_held_out_beats_silverman_on_separated_clusters(scale):
    train, test = two_clusters(200, 0), two_clusters(200, 1)
    held_out, silverman = (
        fit_kde(train, bandwidth, scale) for bandwidth in ("held_out", "silverman")
    )
    gain = np.mean(held_out.log_prob(test) - silverman.log_prob(test))
    # Silverman's width follows the distance of the clusters (relative) or is blind to the data
    # (absolute).
    assert gain > (1.0 if scale == "relative" else 0.0)
    assert float(held_out.bandwidth[0]) < 0.3


@pytest.mark.parametrize("scale", ["absolute", "relative"])
def test_held_out_follows_the_units(scale):
    points = two_clusters(60, 0)
    small, large = (
        fit_kde(points, "held_out", scale, seed=3),
        fit_kde(1000.0 * points, "held_out", scale, seed=3),
    )
    np.testing.assert_allclose(large.bandwidth, 1000.0 * small.bandwidth, rtol=1e-9)


def test_copies_of_one_group_do_not_ask_for_spikes():
    points = np.repeat(normal(30), 3, axis=0)
    groups = np.repeat(np.arange(30), 3)
    alone, together = (fit_kde(points, "held_out", groups=g).bandwidth for g in (None, groups))
    assert float(alone[0]) < 0.1  # a copy of each held-out point is a kernel
    assert float(together[0]) > 3.0 * float(alone[0])


def test_held_out_is_the_among_best_its_neighbours():
    train, test = normal(300), normal(3000, seed=1)
    bandwidth = fit_kde(train, "held_out").bandwidth.numpy()
    best = np.mean(make_kde(train, bandwidth).log_prob(test))
    assert best > np.mean(make_kde(train, 2.0 * bandwidth).log_prob(test))
    assert best > np.mean(make_kde(train, 0.5 * bandwidth).log_prob(test))


def test_held_out_with_as_few_points_as_are_allowed():
    bandwidth = fit_kde(normal(4), "held_out").bandwidth.numpy()
    assert np.isfinite(bandwidth).all()
    assert (bandwidth > 0.0).all()


# --- samples --------------------------------------------------------------------------------------


def test_sample_moments():
    n, points, bandwidth = 40_000, normal(30) * [1.0, 4.0] + 3.0, np.array([0.5, 0.2])
    x = make_kde(points, bandwidth).sample(n, SEED).numpy()
    assert x.dtype == np.float64
    mean, covariance = (
        points.mean(axis=0),
        np.cov(points, rowvar=False, bias=True) + np.diag(bandwidth**2),
    )
    assert (np.abs(x.mean(axis=0) - mean) < SIGMAS * np.sqrt(np.diag(covariance) / n)).all()
    products = (x - mean)[:, :, None] * (x - mean)[:, None, :]
    assert (
        np.abs(products.mean(axis=0) - covariance) < SIGMAS * products.std(axis=0) / np.sqrt(n)
    ).all()


def test_samples_scatter_around_every_point():
    n, points = 40_000, 100.0 * np.arange(20.0)[:, None] * [1.0, 0.0]
    x = make_kde(points, 1.0).sample(n, SEED).numpy()
    nearest = np.abs(x[:, :1] - points[:, 0]).argmin(axis=1)
    frequencies = np.bincount(nearest, minlength=20) / n
    assert (np.abs(frequencies - 0.05) < SIGMAS * np.sqrt(0.05 * 0.95 / n)).all()
    assert abs((x - points[nearest]).std() - 1.0) < SIGMAS / np.sqrt(
        4.0 * n
    )  # 2 n standard normal numbers


def test_kernels_that_cannot_be_compiled_any_more_are_an_error_and_not_a_crash(monkeypatch):
    x = normal(3)
    make_kde(normal(23), [0.3, 0.3]).log_prob(x)
    monkeypatch.setattr("virl_tf.numerics.free_memory_maps", lambda: 100)
    make_kde(normal(23, seed=1), [0.2, 0.3]).log_prob(x)  # compiled before
    with pytest.raises(InputError, match="max_map_count"):
        make_kde(normal(29), [0.3, 0.3]).log_prob(x)


def test_kernels_are_drawn_without_a_seed():
    kde = make_kde(normal(20), [0.3, 0.3])
    assert not np.array_equal(kde.sample(3), kde.sample(3))
