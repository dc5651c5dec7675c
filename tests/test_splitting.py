from virl_tf.discriminator.fit import LogitData
from virl_tf.splitting import held_out_rows, split

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
