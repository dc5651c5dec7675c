from virl_tf.discriminator.fit import LogitData
from virl_tf.splitting import folds, held_out_rows, random_rows, split

import numpy as np
import pytest


def data(n):
    """Records that know their row."""
    z = np.arange(2.0 * n).reshape(n, 2)
    return LogitData(*(np.float32(a) for a in (z, np.arange(n), np.arange(n) + 0.5)))


@pytest.mark.parametrize(
    ("n", "fraction", "held"),
    [(100, 0.1, 10), (101, 0.1, 10), (7, 0.1, 1), (8, 0.5, 4), (3, 0.01, 1)],
)
def test_held_out_points_are_evenly_spaced_and_disjoint(n, fraction, held):
    whole = data(n)
    out, rest = split(whole, fraction)
    rows, others = (np.asarray(part.offsets).astype(int) for part in (out, rest))
    assert len(rows) == held
    assert sorted([*rows, *others]) == list(range(n))
    assert np.ptp(np.diff([*rows, n])) <= 1  # gaps differ by rounding only
    for part, index in ((out, rows), (rest, others)):
        np.testing.assert_array_equal(part.z, whole.z[index])
        np.testing.assert_array_equal(part.weights, whole.weights[index])
    for found, expected in zip(held_out_rows(n, fraction), (rows, others), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_held_out_negatives_come_from_both_halves():
    # The fusion's draws are the policy's, then the estimate's.
    out, _ = split(data(200), 0.1)
    assert np.sum(np.asarray(out.offsets) < 100) == np.sum(np.asarray(out.offsets) >= 100) == 10


@pytest.mark.parametrize("seed", range(8))
def test_a_large_group_is_never_held_out_for_small_ones(seed):
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat([0, 1, 2], [900, 50, 50]))
    kept = random_rows(1000, 100, seed, groups)
    assert set(groups[kept]) in ({1}, {2})  # two groups are left
    held_out, rest = held_out_rows(1000, 0.1, groups)
    assert set(groups[held_out]) == {1, 2}
    assert set(groups[rest]) == {0}


def test_of_groups_that_are_all_too_large_the_smallest_is_held_out():
    groups = np.repeat([0, 1, 2], [300, 60, 20])
    assert (groups[random_rows(380, 10, 0, groups)] == 2).all()
    held_out, _ = held_out_rows(380, 0.01, groups)
    np.testing.assert_array_equal(held_out, np.flatnonzero(groups == 2))


def test_which_of_a_few_people_is_held_out_depends_on_the_seed():
    for sizes in ([30] * 4, [400, 380, 410, 390]):
        groups, n = np.repeat(np.arange(4), sizes), sum(sizes)
        kept = [set(groups[random_rows(n, n // 5, seed, groups)]) for seed in range(30)]
        assert set.union(*kept) == set(range(4))


def test_groups_of_too_few_rows_to_tell_anything_are_not_held_out_alone():
    groups = np.repeat(np.arange(6), [100, 70, 100, 100, 100, 2])
    for seed in range(8):
        assert set(groups[random_rows(472, 47, seed, groups)]) == {1}
    held_out, _ = held_out_rows(472, 0.1, groups)
    assert set(groups[held_out]) == {1}


def test_equal_groups_are_evenly_spaced():
    groups = np.repeat(np.arange(100), 4)
    held_out, _ = held_out_rows(400, 0.1, groups)
    np.testing.assert_array_equal(np.unique(groups[held_out]), np.arange(0, 100, 10))


def test_the_rows_of_a_fold_are_in_a_random_order():
    groups = np.repeat(np.arange(40), 10)
    for part in folds(400, 4, 0, groups):
        assert len(part) == 100
        assert len(np.unique(groups[part[:30]])) > 5


def test_a_group_of_more_than_half_of_the_rows_is_not_held_out_for_too_few():
    groups = np.repeat([0, 1, 2], [96, 2, 2])
    held_out, rest = held_out_rows(100, 0.1, groups)
    assert set(groups[held_out]) == {1, 2}
    assert set(groups[rest]) == {0}


def test_groups_are_evenly_spaced_by_their_first_rows_and_not_by_their_names():
    """Else the same ones would be held out, in whatever order the rows are."""
    names = np.random.default_rng(0).permutation(100)
    held_out, _ = held_out_rows(400, 0.1, np.repeat(names, 4))
    np.testing.assert_array_equal(np.unique(held_out // 4), np.arange(0, 100, 10))
