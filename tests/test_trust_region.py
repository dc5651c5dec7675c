from virl_tf.vips.trust_region import gate_eta, update_components, update_weights

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import log_softmax

from tests.reference import vips as reference

BOUNDS = [1e-6, 0.05, 10.0]


def component_problem(dim, kind, seed=0):
    """Curvature A and slope b of one component."""
    rng = np.random.default_rng([seed, dim])
    basis = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    curvature = {
        "mild": rng.uniform(0.5, 2.0, dim),
        "definite": rng.uniform(0.1, 20.0, dim),
        "indefinite": np.linspace(-3.0, 5.0, dim) if dim > 1 else np.array([-3.0]),
        "negative": -rng.uniform(0.1, 50.0, dim),
        "zero": np.zeros(dim),
        "huge": 1e8 * rng.uniform(0.5, 1.0, dim),
        "huge negative": -1e8 * rng.uniform(0.5, 1.0, dim),
        "tiny": 1e-8 * rng.uniform(0.5, 1.0, dim),
    }[kind]
    slope = rng.normal(size=dim) * max(1.0, np.abs(curvature).max())
    return (basis * curvature) @ basis.T, slope


KINDS = ["mild", "definite", "indefinite", "negative", "zero", "huge", "huge negative", "tiny"]


def step(a, b, bound):
    """The step of one component: mean, covariance, kl, eta."""
    found = update_components(
        tf.constant(a[None]), tf.constant(b[None]), tf.constant(bound, tf.float64)
    )
    tril = found.tril[0].numpy()
    return found.mean[0].numpy(), tril @ tril.T, float(found.kl[0]), float(found.eta[0])


def objective(a, b, mean, covariance):
    """E[R] + H up to a constant."""
    return (
        b @ mean
        - 0.5 * mean @ a @ mean
        - 0.5 * np.trace(a @ covariance)
        + 0.5 * np.linalg.slogdet(covariance)[1]
    )


@pytest.mark.parametrize("kind", ["mild", "definite", "indefinite", "negative", "zero"])
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("bound", [1e-3, 0.05, 1.0])
def test_component_equals_the_minimum_of_its_dual(kind, dim, bound):
    a, b = component_problem(dim, kind)
    mean, covariance, _, eta = step(a, b, bound)
    expected_mean, expected_covariance, expected_eta = reference.component_step(a, b, bound)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(covariance, expected_covariance, rtol=1e-5, atol=1e-6)
    assert eta == pytest.approx(expected_eta, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("bound", BOUNDS)
def test_component_keeps_the_bound_and_does_not_worsen(kind, dim, bound):
    a, b = component_problem(dim, kind)
    mean, covariance, kl, eta = step(a, b, bound)
    assert np.linalg.eigvalsh(covariance)[0] > 0.0
    exact = reference.gaussian_kl(mean, covariance)
    assert exact <= bound * (1.0 + 1e-6) + 1e-9
    assert kl == pytest.approx(exact, rel=1e-6, abs=1e-9)
    assert eta >= 0.0
    if eta > 0.0:
        assert kl == pytest.approx(bound, rel=1e-6)
    before = objective(a, b, np.zeros(dim), np.eye(dim))
    assert objective(a, b, mean, covariance) >= before - 1e-9 * abs(before)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_inactive_bound_gives_the_exact_optimum(dim):
    a, _ = component_problem(dim, "mild")
    b = np.full(dim, 0.3)
    mean, covariance, kl, eta = step(a, b, 10.0)
    assert eta == 0.0
    assert 0.0 < kl < 10.0
    np.testing.assert_allclose(mean, np.linalg.solve(a, b), rtol=1e-10)
    np.testing.assert_allclose(covariance, np.linalg.inv(a), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["mild", "indefinite"])
def test_a_bound_that_is_hardly_active_is_reached(kind):
    """With an eta that is hardly above the least that is allowed."""
    a, b = component_problem(2, kind)
    least = max(0.0, -np.linalg.eigvalsh(a)[0])
    precision = (a + (least + 1e-6) * np.eye(2)) / (1.0 + least + 1e-6)
    mean = np.linalg.solve(precision, b) / (1.0 + least + 1e-6)
    bound = reference.gaussian_kl(mean, np.linalg.inv(precision))
    _, _, kl, eta = step(a, b, bound)
    assert eta - least == pytest.approx(1e-6, rel=1e-3)
    assert kl == pytest.approx(bound, rel=1e-6)


def test_a_component_at_its_optimum_stays():
    mean, covariance, kl, eta = step(np.eye(3), np.zeros(3), 1e-6)
    np.testing.assert_allclose(mean, np.zeros(3), atol=1e-12)
    np.testing.assert_allclose(covariance, np.eye(3), atol=1e-12)
    assert kl == pytest.approx(0.0, abs=1e-12)
    assert eta == 0.0


def test_a_step_gains_and_a_larger_bound_gains_more():
    a, b = component_problem(3, "indefinite")
    values = [objective(a, b, *step(a, b, bound)[:2]) for bound in (1e-6, 1e-3, 0.05, 0.5, 10.0)]
    assert objective(a, b, np.zeros(3), np.eye(3)) < values[0]
    assert np.all(np.diff(values) > 0.0)


@pytest.mark.parametrize("slope", [-2.0, 0.0, 0.5])
@pytest.mark.parametrize("curvature", [-1.0, 0.0, 1.0, 30.0])
def test_one_dimension_in_closed_form(slope, curvature):
    mean, covariance, kl, eta = step(np.array([[curvature]]), np.array([slope]), 0.1)
    np.testing.assert_allclose(mean, [slope / (curvature + eta)], rtol=1e-9)
    np.testing.assert_allclose(covariance, [[(1.0 + eta) / (curvature + eta)]], rtol=1e-9)
    variance = (1.0 + eta) / (curvature + eta)
    assert kl == pytest.approx(
        0.5 * (variance - 1.0 - np.log(variance) + (slope / (curvature + eta)) ** 2), abs=1e-10
    )


def test_components_are_updated_independently():
    problems = [component_problem(2, kind) for kind in ("mild", "indefinite", "huge", "zero")]
    a, b = (np.stack(arrays) for arrays in zip(*problems, strict=True))
    batch = update_components(tf.constant(a), tf.constant(b), tf.constant(0.05, tf.float64))
    for o in range(len(problems)):
        single = update_components(
            tf.constant(a[o : o + 1]), tf.constant(b[o : o + 1]), tf.constant(0.05, tf.float64)
        )
        for one, all_of_them in zip(single, batch, strict=True):
            np.testing.assert_allclose(all_of_them[o], one[0], rtol=1e-9, atol=1e-12)


# --- weights ------------------------------------------------------------------------------------


def new_weights(log_weights, gains, bound):
    found, kl = update_weights(
        tf.constant(log_weights, tf.float64),
        tf.constant(gains, tf.float64),
        tf.constant(bound, tf.float64),
    )
    return found.numpy(), float(kl)


def discrete_kl(new, old):
    weights = np.exp(new)
    terms = np.where(weights > 0.0, weights * (new - old), 0.0)
    return terms.sum()


LOG_WEIGHTS = np.log([0.1, 0.2, 0.3, 0.4])
GAINS = {
    "small": [0.01, -0.02, 0.0, 0.03],
    "moderate": [1.0, -2.0, 0.5, 3.0],
    "very unequal": [0.0, 1e3, -1e3, 10.0],
    "to the lightest": [1e3, 0.0, 0.0, 0.0],
}


@pytest.mark.parametrize("gains", GAINS)
@pytest.mark.parametrize("bound", [1e-3, 0.05, 1.0])
def test_weights_equal_the_minimum_of_their_dual(gains, bound):
    found, _ = new_weights(LOG_WEIGHTS, GAINS[gains], bound)
    expected = reference.weight_step(LOG_WEIGHTS, np.array(GAINS[gains]), bound)
    np.testing.assert_allclose(np.exp(found), np.exp(expected), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("gains", GAINS)
@pytest.mark.parametrize("bound", BOUNDS)
def test_weights_keep_the_bound_and_stay_normalised(gains, bound):
    found, kl = new_weights(LOG_WEIGHTS, GAINS[gains], bound)
    free = log_softmax(LOG_WEIGHTS + np.array(GAINS[gains]))
    assert np.exp(found).sum() == pytest.approx(1.0, abs=1e-12)
    assert kl == pytest.approx(discrete_kl(found, LOG_WEIGHTS), rel=1e-9, abs=1e-15)
    if discrete_kl(free, LOG_WEIGHTS) <= bound:
        np.testing.assert_allclose(found, free, rtol=1e-12, atol=1e-12)
    else:
        assert kl == pytest.approx(bound, rel=1e-6)
        assert kl <= bound * (1.0 + 1e-12)


def test_equal_gains_change_no_weight():
    found, kl = new_weights(LOG_WEIGHTS, np.full(4, -7.0), 0.05)
    np.testing.assert_allclose(found, LOG_WEIGHTS, atol=1e-12)
    assert kl == pytest.approx(0.0, abs=1e-12)


def test_one_component_keeps_weight_one():
    found, kl = new_weights([0.0], [-123.0], 0.05)
    np.testing.assert_array_equal(found, [0.0])
    assert kl == 0.0


@pytest.mark.parametrize("gain", [0.0, 5.0, 800.0])
def test_a_component_of_vanishing_weight_does_no_harm(gain):
    old = np.array([np.log(0.5), np.log(0.5), -700.0])
    found, kl = new_weights(old, [0.0, 1.0, gain], 0.05)
    assert np.isfinite(found).all()
    assert np.exp(found).sum() == pytest.approx(1.0, abs=1e-12)
    assert 0.0 < kl <= 0.05 * (1.0 + 1e-9)
    assert found[1] > found[0]


def test_a_heavy_gain_brings_back_a_component_of_vanishing_weight():
    found, kl = new_weights([0.0, -700.0], [0.0, 1e4], 10.0)
    assert kl == pytest.approx(10.0, rel=1e-6)
    assert found[1] > -10.0


def test_the_bound_holds_though_one_context_of_many_gains_a_lot():
    """There alone the gate wants to go far, and it knows hardly any other expert."""
    shares = np.full((1000, 2), 0.5)
    shares[:, 0] *= 1.0 - 2e-16
    gains = np.zeros((1000, 2))
    gains[0, 1] = 1e4
    _, kl = gate_eta(*(tf.constant(array) for array in (np.log(shares), gains, np.float64(1e-5))))
    assert float(kl) <= 1e-5 * (1.0 + 1e-9)
