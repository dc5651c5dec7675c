from virl_tf import features as features_module
from virl_tf.features import (
    Features,
    choose_frequencies,
    density_widths,
    draw_frequencies,
    make_features,
)
from virl_tf.kde import held_out_bandwidth
from virl_tf.numerics import DENSITY, numpy_seed

import numpy as np
import tensorflow as tf

from tests import tiny

HPARAMS = tiny.hparams(network={"num_frequencies": 400}).network


def clusters(width, n=2000):
    """Four, ten apart."""
    rng = np.random.default_rng(0)
    return rng.choice([-5.0, 5.0], (n, 2)) + width * rng.standard_normal((n, 2))


def test_inputs_of_the_networks_are_standardised():
    x = np.random.default_rng(0).standard_normal((200, 3)) * [1.0, 100.0, 1e-3] + [0.0, 5.0, 7.0]
    features = make_features(x, np.zeros((3, 0)))
    z = features(tf.constant(x))
    assert z.dtype == tf.float32
    np.testing.assert_allclose(z, (x - x.mean(axis=0)) / x.std(axis=0), rtol=1e-4, atol=1e-6)
    assert (features.dim, features.num_inputs) == (3, 3)


def test_fourier_features_stand_beside_the_standardised_inputs(points):
    frequencies = np.random.default_rng(3).standard_normal((2, 3))
    features = make_features(points, frequencies)
    z = (points - points.mean(axis=0)) / points.std(axis=0)
    waves = np.sqrt(2.0) * np.hstack([np.sin(z @ frequencies), np.cos(z @ frequencies)])
    found = features(tf.constant(points))
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, np.hstack([z, waves]), atol=1e-5)
    assert (features.dim, features.num_inputs) == (2, 8)


def test_other_points_are_standardised_with_the_same_numbers():
    shift, scale = tf.constant([1.0], DENSITY), tf.constant([2.0], DENSITY)
    features = Features(shift, scale, tf.zeros((1, 0)))
    np.testing.assert_array_equal(features(tf.constant([[1.0], [5.0]], DENSITY)), [[0.0], [2.0]])


def test_no_frequencies_as_in_the_paper():
    found = draw_frequencies(np.ones(2), tiny.hparams().network, 0)
    assert (found.shape, found.dtype) == ((2, 0), np.float32)


def test_frequencies_follow_the_scale_of_what_the_density_is_made_of():
    sizes = []
    for width in (0.1, 0.4):
        x = clusters(width)
        frequencies = draw_frequencies(density_widths(x, None, 0), HPARAMS, 0)
        assert (frequencies.shape, frequencies.dtype) == ((2, 400), np.float32)
        per_unit = frequencies / x.std(axis=0)[:, None]  # radians per unit of the data
        sizes.append(width * per_unit.std())
        of_scaled = draw_frequencies(density_widths(1e6 * x, None, 0), HPARAMS, 0)
        np.testing.assert_allclose(of_scaled, frequencies, rtol=1e-4)
    # frequency_scale 0.6 / D over the width that the bandwidth tells: the clusters' within the
    # steps of 1.25 of its search, and 1.26 times it, because each of the four clusters has only a
    # quarter of the points that Silverman's factor is told.
    np.testing.assert_allclose(sizes, 0.3 / 1.26, rtol=0.27)


def test_a_held_out_bandwidth_that_is_known_is_not_sought_again(monkeypatch):
    x = clusters(0.3, n=300)
    sought = density_widths(x, None, 5)
    bandwidth = held_out_bandwidth(x, x.std(axis=0), numpy_seed(5, 0, "bandwidth")) * x.std(axis=0)
    monkeypatch.setattr(features_module, "held_out_bandwidth", None)  # calling it fails
    np.testing.assert_allclose(density_widths(x, bandwidth, 5), sought, rtol=1e-6)
    np.testing.assert_allclose(density_widths(x, 2.0 * bandwidth, 5), 2.0 * sought, rtol=1e-6)


def test_a_bandwidth_is_sought_with_groups_held_out_together():
    """Else copies of a row ask for waves as short as what tells them apart."""
    rows = np.random.default_rng(0).standard_normal((100, 2))
    noise = 1e-3 * np.random.default_rng(1).standard_normal((300, 2))
    copies = np.repeat(rows, 3, axis=0) + noise
    widths = density_widths(copies, None, 0, np.repeat(np.arange(100), 3))
    assert widths.min() > 0.5 > 0.1 > density_widths(copies, None, 0).max()


def test_frequencies_depend_on_the_seed():
    one, again, other = (draw_frequencies(np.ones(2), HPARAMS, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.isin(one, other).any()


# --- chosen ---------------------------------------------------------------------------------------


def chosen(z, draws, number=100, seed=0):
    return choose_frequencies(tf.constant(z), tf.constant(draws), np.ones(z.shape[1]), number, seed)


def normal(n=4000, dim=5, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


def test_frequencies_are_chosen_where_a_column_or_a_relation_of_two_differs():
    z = normal()
    z[:, 1] = np.sign(z[:, 1]) + 0.05 * z[:, 1]  # mean 0, variance about 1
    found = chosen(z, normal(seed=1))
    assert (found.shape, found.dtype) == ((5, 100), np.float32)
    assert (found[1] != 0.0).mean() > 0.8
    z = normal()
    z[:, 3] *= np.sign(z[:, 4] * z[:, 3])  # of one sign: each column alone as it was
    found = chosen(z, normal(seed=1))
    both = (found[3] != 0.0) & (found[4] != 0.0)
    assert both.mean() > 0.5  # of one pair of ten


def test_they_run_through_one_or_two_columns_and_differ():
    found = chosen(normal(), normal(seed=1))
    number = (found != 0.0).sum(axis=0)
    assert set(number) == {1, 2}
    assert len(np.unique(found, axis=1).T) == 100
    alone = chosen(normal(dim=1), normal(dim=1, seed=1))
    assert (alone != 0.0).all()
    again, other = (chosen(normal(), normal(seed=1), seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(again, found)
    assert not np.isin(other[other != 0.0], found).any()


def test_they_are_as_long_as_the_columns_that_they_run_through_are_many_and_wide():
    """Of equal samples, so that none is likelier to be chosen."""
    widths, z = np.array([1.0, 4.0]), tf.zeros([2, 2])
    found = widths[:, None] * choose_frequencies(z, z, widths, 400, 0)
    through_both = (found != 0.0).all(axis=0)
    for columns, lengths in ((1, found[:, ~through_both]), (2, found[:, through_both])):
        variances = [np.mean(column[column != 0.0] ** 2) for column in lengths]
        np.testing.assert_allclose(variances, 1.0 / columns**2, rtol=0.4)


def test_what_is_not_chance_is_told_from_what_is():
    """Two samples of one density differ by what is expected in the mean."""
    frequencies = np.random.default_rng(2).standard_normal((5, 500))
    by_chance = features_module._differences(normal(), normal(9000, seed=1), frequencies)
    np.testing.assert_allclose(by_chance.mean(), 1.0, atol=0.15)
    shifted = features_module._differences(normal() + 0.2, normal(9000, seed=1), frequencies)
    assert shifted.mean() > 5.0


def test_without_a_difference_some_are_chosen_all_the_same():
    """Of equal samples no candidate has any weight."""
    found = chosen(normal(), normal())
    assert (found != 0.0).any(axis=0).all()
    assert len(np.unique(found, axis=1).T) == 100


def test_the_same_point_throughout_is_no_division_by_zero():
    still = np.zeros((50, 2), np.float32)
    assert np.isfinite(features_module._differences(still, still, np.ones((2, 3)))).all()
