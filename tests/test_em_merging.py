"""Clusters by merging: the metric of neighbours, and the numbers that gaps suggest."""

from virl_tf.em.em import standardised
from virl_tf.em.merging import (
    LEAST,
    RIDGE,
    _whitening,
    _within_neighbours,
    clusters,
    folds_across,
    merges_of,
    numbers_of_clusters,
)

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score


def modes(number, rows, seed=0):
    """Modes that four of eight columns tell apart; what the others vary by is the same for all."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(number), rows)
    centres = np.hstack([rng.uniform(-3.0, 3.0, (number, 4)), np.zeros((number, 4))])
    widths = np.repeat([0.15, 2.0], 4)
    return centres[labels] + widths * rng.standard_normal((len(labels), 8)), labels


def test_differences_of_nearest_neighbours_are_those_of_a_slow_reference():
    z = np.random.default_rng(0).standard_normal((30, 3))
    expected = np.zeros((3, 3))
    for i, row in enumerate(z):
        others = np.delete(z, i, axis=0)
        away = row - others[np.argmin(((others - row) ** 2).sum(axis=1))]
        expected += 0.5 * np.outer(away, away) / len(z)
    np.testing.assert_allclose(_within_neighbours(z, z), expected, rtol=1e-12)


def test_whitened_columns_have_unit_covariance():
    rng = np.random.default_rng(1)
    covariance = np.cov(rng.standard_normal((3, 3)) @ rng.standard_normal((3, 50)))
    whitening = _whitening(covariance)
    ridge = RIDGE * np.trace(covariance) / 3 + LEAST
    found = whitening.T @ (covariance + ridge * np.eye(3)) @ whitening
    np.testing.assert_allclose(found, np.eye(3), atol=1e-9)


def test_ways_of_three_rows_are_found_where_k_means_mixes_them():
    found, by_means = [], []
    for seed in range(6):
        x, labels = modes(number=15, rows=3, seed=seed)
        z = standardised(x)[0]
        found.append(adjusted_rand_score(labels, clusters(merges_of(z), 15)))
        k_means = KMeans(15, n_init=10, random_state=0).fit(z)
        by_means.append(adjusted_rand_score(labels, k_means.labels_))
    assert np.mean(found) > 0.7
    assert np.mean(by_means) < 0.4


@pytest.mark.parametrize("number", [3, 8])
def test_the_largest_gap_tells_how_many_modes_there_are(number):
    x, _ = modes(number, rows=12)
    assert numbers_of_clusters(merges_of(standardised(x)[0]), 40, 1) == [number]


def test_mixed_columns_hardly_matter():
    """They change who is whose first neighbour; the metric that these tell is nearly the same."""
    x, _ = modes(number=5, rows=8)
    z = standardised(x)[0]
    mixing = np.eye(8) + 0.1 * np.random.default_rng(3).standard_normal((8, 8))
    first, mixed = (clusters(merges_of(rows, rounds=4), 5) for rows in (z, z @ mixing))
    assert adjusted_rand_score(first, mixed) > 0.9


@pytest.mark.parametrize(
    "z",
    [
        np.zeros((6, 2)),
        np.repeat(np.random.default_rng(4).standard_normal((3, 2)), 4, axis=0),
        np.random.default_rng(5).standard_normal((2, 3)),
        np.random.default_rng(6).standard_normal((10, 30)),
        np.random.default_rng(7).standard_normal((12, 2)) * [1.0, 0.0],
    ],
    ids=["equal rows", "copies", "two rows", "more columns than rows", "a constant column"],
)
def test_odd_rows_are_merged(z):
    merges = merges_of(z)
    assert np.isfinite(merges).all()
    for number in numbers_of_clusters(merges, len(z) // 2, 4):
        labels = clusters(merges, number)
        assert labels.shape == (len(z),)
        assert set(labels) == set(range(labels.max() + 1))
        assert labels.max() < number


def test_folds_across_lose_one_row_of_a_mode_at_most():
    rng = np.random.default_rng(8)
    centres = 10.0 * rng.standard_normal((24, 5))
    order = rng.permutation(72)
    labels = np.repeat(np.arange(24), 3)[order]
    z = centres[labels] + 0.1 * rng.standard_normal((72, 5))
    parts = folds_across(merges_of(z), 10, 24, 0)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(72))
    assert {len(part) for part in parts} == {7, 8}
    assert all(len(set(labels[part])) == len(part) for part in parts)


@pytest.mark.parametrize("n", [2, 3, 9])
def test_of_fewer_rows_than_folds_each_is_a_fold(n):
    z = np.random.default_rng(9).standard_normal((n, 2))
    parts = folds_across(merges_of(z), 10, 2, 0)
    assert sorted(int(row) for part in parts for row in part) == list(range(n))
    assert len(parts) == n
