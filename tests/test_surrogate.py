from virl_tf.vips import surrogate
from virl_tf.vips.surrogate import fit_quadratic, num_coefficients

import numpy as np
import pytest
import tensorflow as tf

from tests.reference import vips as reference

DIMS = [1, 2, 5]


def fit(z, rewards, ridge=1e-13):
    a, b = fit_quadratic(tf.constant(z), tf.constant(rewards), tf.constant(ridge, tf.float64))
    return a.numpy(), b.numpy()


def draws(k, dim, seed=0, samples=None):
    return np.random.default_rng(seed).normal(size=(k, samples or 4 * num_coefficients(dim), dim))


def quadratic(z, a, b, c):
    return c + np.einsum("ksi,ki->ks", z, b) - 0.5 * np.einsum("ksi,kij,ksj->ks", z, a, z)


@pytest.mark.parametrize(("dim", "count"), [(1, 3), (2, 6), (5, 21)])
def test_number_of_coefficients(dim, count):
    assert num_coefficients(dim) == count


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("definite", [True, False])
def test_quadratics_are_recovered_exactly(dim, definite):
    rng = np.random.default_rng(dim)
    k = 3
    root = rng.normal(size=(k, dim, dim))
    a = np.einsum("kij,klj->kil", root, root) if definite else root + root.transpose(0, 2, 1)
    if not definite:
        a[:, 0, 0] = -2.0  # at least one negative direction
    b, c = rng.normal(size=(k, dim)), rng.normal(size=(k, 1))
    z = draws(k, dim)
    found_a, found_b = fit(z, quadratic(z, a, b, c))
    np.testing.assert_allclose(found_a, a, atol=1e-8)
    np.testing.assert_allclose(found_b, b, atol=1e-8)


@pytest.mark.parametrize("dim", DIMS)
def test_noisy_rewards_give_the_least_squares_fit(dim):
    z = draws(2, dim, seed=1)
    rewards = 3.0 * np.sin(z.sum(axis=-1)) + np.random.default_rng(2).normal(size=z.shape[:2])
    a, b = fit(z, rewards)
    for o in range(2):
        expected_a, expected_b = reference.quadratic_surrogate(z[o], rewards[o])
        np.testing.assert_allclose(a[o], expected_a, atol=1e-7)
        np.testing.assert_allclose(b[o], expected_b, atol=1e-7)


def test_curvature_is_symmetric():
    z = draws(2, 3)
    a, _ = fit(z, np.cos(z).prod(axis=-1))
    np.testing.assert_array_equal(a, a.transpose(0, 2, 1))


@pytest.mark.parametrize("constant", [-50.0, 1.0, 1e4])
def test_adding_a_constant_changes_nothing(constant):
    z = draws(2, 2)
    rewards = np.sin(z.sum(axis=-1))
    for expected, found in zip(
        fit(z, rewards, 1e-6), fit(z, rewards + constant, 1e-6), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-6, 7.0, 1e6])
def test_scaling_rewards_scales_the_fit(scale):
    # Also with a large ridge: it acts on standardised rewards.
    z = draws(2, 2)
    rewards = np.sin(z.sum(axis=-1))
    for expected, found in zip(fit(z, rewards, 0.1), fit(z, scale * rewards, 0.1), strict=True):
        np.testing.assert_allclose(found, scale * expected, rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, 3.0, -1e8])
def test_constant_rewards_give_zeros(value):
    z = draws(2, 2)
    a, b = fit(z, np.full(z.shape[:2], value), 1e-6)
    np.testing.assert_array_equal(a, np.zeros((2, 2, 2)))
    np.testing.assert_array_equal(b, np.zeros((2, 2)))


def test_ridge_shrinks_and_survives_too_few_samples():
    z = draws(1, 3, samples=5)  # 10 coefficients
    rewards = np.sin(z.sum(axis=-1))
    small, large = (
        np.abs(np.concatenate([part.ravel() for part in fit(z, rewards, ridge)])).sum()
        for ridge in (1e-6, 10.0)
    )
    assert np.isfinite(small)
    assert 0.0 < large < small


def test_batch_equals_one_component_at_a_time():
    z = draws(4, 2)
    rewards = np.sin(z.sum(axis=-1)) * [[1.0], [10.0], [-1.0], [1e-3]]
    a, b = fit(z, rewards, 1e-6)
    for o in range(4):
        single_a, single_b = fit(z[o : o + 1], rewards[o : o + 1], 1e-6)
        np.testing.assert_allclose(a[o], single_a[0], rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(b[o], single_b[0], rtol=1e-9, atol=1e-14)


# --- many dimensions ------------------------------------------------------------------------------


def wavy(z):
    return np.sin(z.sum(axis=-1)) * [[1.0], [100.0]] - (z[..., 0] - 1.0) ** 2


@pytest.mark.parametrize("ridge", [1e-6, 0.1])
@pytest.mark.parametrize("dim", [1, 4, 12])
def test_conjugate_gradients_solve_the_normal_equations(monkeypatch, dim, ridge):
    z = draws(2, dim)
    monkeypatch.setattr(surrogate, "MAX_DIRECT_DIM", dim)
    expected_a, expected_b = fit(z, wavy(z), ridge)
    monkeypatch.setattr(surrogate, "MAX_DIRECT_DIM", 0)
    a, b = fit(z, wavy(z), ridge)
    scale = np.abs(expected_a).max(axis=(1, 2))
    np.testing.assert_allclose(
        a / scale[:, None, None], expected_a / scale[:, None, None], atol=1e-4
    )
    np.testing.assert_allclose(b / scale[:, None], expected_b / scale[:, None], atol=1e-4)
    np.testing.assert_array_equal(a, a.transpose(0, 2, 1))


def test_quadratics_in_many_dimensions_are_recovered():
    dim = surrogate.MAX_DIRECT_DIM + 5
    rng = np.random.default_rng(0)
    root = rng.normal(size=(2, dim, dim))
    a, b, c = root + root.transpose(0, 2, 1), rng.normal(size=(2, dim)), rng.normal(size=(2, 1))
    z = draws(2, dim)
    found_a, found_b = fit(z, quadratic(z, a, b, c))
    np.testing.assert_allclose(found_a, a, atol=1e-3)
    np.testing.assert_allclose(found_b, b, atol=1e-3)


def test_constant_rewards_in_many_dimensions_give_zeros_and_few_samples_finite_numbers():
    dim = surrogate.MAX_DIRECT_DIM + 1
    z = draws(2, dim, samples=20)
    for part in fit(z, np.full(z.shape[:2], 3.0), 1e-6):
        np.testing.assert_array_equal(part, np.zeros_like(part))
    assert all(np.isfinite(part).all() for part in fit(z, wavy(z), 1e-6))


def test_no_matrix_of_features_is_made_in_many_dimensions():
    dim = surrogate.MAX_DIRECT_DIM + 10
    rows = 2 * num_coefficients(dim)
    specs = [tf.TensorSpec(shape, tf.float64) for shape in ([3, rows, dim], [3, rows], [])]
    graph = tf.function(fit_quadratic, autograph=False).get_concrete_function(*specs).graph
    bodies = [body.graph for body in graph._functions.values() if hasattr(body, "graph")]
    sizes = [
        np.prod(tensor.shape)
        for part in (graph, *bodies)
        for op in part.get_operations()
        for tensor in op.outputs
        if tensor.shape.is_fully_defined()
    ]
    assert max(sizes) <= 3 * rows * (dim + 1)
