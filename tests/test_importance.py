from virl_tf.importance import effective_sample_size, normalise

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import norm

from tests.reference import importance as reference


def random_log_weights(n=200, scale=2.0, seed=0):
    return scale * np.random.default_rng(seed).standard_normal(n)


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0])
def test_weights_are_the_references(scale):
    log_w = random_log_weights(scale=scale)
    np.testing.assert_allclose(
        np.exp(normalise(tf.constant(log_w))), reference.weights(np.exp(log_w)), rtol=1e-10
    )


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0])
def test_effective_sample_size_is_the_references(scale):
    log_w = random_log_weights(scale=scale)
    expected = reference.effective_sample_size(np.exp(log_w))
    np.testing.assert_allclose(effective_sample_size(tf.constant(log_w)), expected, rtol=1e-10)


@pytest.mark.parametrize("shift", [-1e4, -3.0, 5.0, 1e4])
def test_a_constant_factor_cancels(shift):
    log_w = random_log_weights()
    plain, shifted = tf.constant(log_w), tf.constant(log_w + shift)
    np.testing.assert_allclose(normalise(shifted), normalise(plain), atol=1e-10)
    np.testing.assert_allclose(
        effective_sample_size(shifted), effective_sample_size(plain), rtol=1e-10
    )


def test_weights_of_zero_are_allowed():
    log_w = tf.constant([0.0, -np.inf, 0.0, -np.inf], tf.float64)
    np.testing.assert_allclose(np.exp(normalise(log_w)), [2.0, 0.0, 2.0, 0.0], rtol=1e-14)
    np.testing.assert_allclose(effective_sample_size(log_w), 2.0, rtol=1e-14)


def test_draws_without_any_weight_count_nothing():
    log_w = normalise(tf.fill([5], tf.constant(-np.inf, tf.float64)))
    np.testing.assert_array_equal(np.exp(log_w), np.zeros(5))
    assert float(effective_sample_size(log_w)) == 0.0


@pytest.mark.parametrize("value", [-500.0, 0.0, 500.0])
def test_effective_sample_size_of_constant_weights_is_n(value):
    np.testing.assert_allclose(
        effective_sample_size(tf.fill([321], tf.constant(value, tf.float64))), 321.0, rtol=1e-11
    )


def test_effective_sample_size_of_one_dominant_weight_is_one():
    log_w = tf.constant([800.0] + 99 * [0.0], tf.float64)
    np.testing.assert_allclose(effective_sample_size(log_w), 1.0, rtol=1e-12)


def test_self_normalised_mean_of_a_gaussian_from_a_wider_proposal():
    n, mean = 20_000, 1.0
    x = 2.0 * np.random.default_rng(0).standard_normal(n)
    log_w = (
        norm.logpdf(x, mean, 0.8) + 12.3 - norm.logpdf(x, 0.0, 2.0)
    )  # the target is not normalised
    w = np.exp(normalise(tf.constant(log_w)))
    error = np.sqrt(
        np.mean(w**2 * (x - mean) ** 2) / n
    )  # of the ratio estimate, by the delta method
    assert abs(np.mean(w * x) - mean) < 4.4 * error  # 99.999 %
    assert error < 0.02


def test_contexts_without_any_weight_count_nothing():
    log_w = random_log_weights(40).reshape(4, 10)  # four draws of ten contexts
    log_w[:, [2, 7]] = -np.inf
    log_w[1, 3] = -np.inf
    found = np.exp(normalise(tf.constant(log_w.ravel()), 4)).reshape(4, 10)
    assert (found[:, [2, 7]] == 0.0).all()
    np.testing.assert_allclose(np.delete(found, [2, 7], axis=1).mean(axis=0), 1.25)
    np.testing.assert_allclose(found.mean(), 1.0)
    assert 1.0 <= effective_sample_size(tf.constant(np.log(found + 1e-300).ravel())) <= 40.0
