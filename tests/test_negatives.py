from virl_tf.fusion import Fusion
from virl_tf.methods import EIM, METHODS, VIRL
from virl_tf.negatives import Negatives, classes, draw_negatives, logit_data
from virl_tf.reward import evaluate
from virl_tf.splitting import held_out_rows

import numpy as np
import pytest
import tensorflow as tf

from tests.reference import importance as importance_reference
from tests.shared import make_mixture, make_network, make_reward
from tests.tiny_runs import X, fusion_log_prob, mixture_log_prob, standardised, start

SEED = [3, 4]
N = 200
POLICY = make_mixture()


@pytest.fixture(scope="module")
def problem():
    return start(VIRL)[0]


@pytest.fixture(scope="module")
def fusion(problem):
    return Fusion(POLICY, problem.estimate)


@pytest.fixture(scope="module")
def base():
    return make_reward([make_network()], base=make_mixture(2, seed=3))


# --- draws and weights ----------------------------------------------------------------------------


def test_weights_are_those_of_the_base_against_the_proposal(fusion, base):
    negatives = draw_negatives(fusion, base, VIRL, N, SEED)
    x = np.asarray(negatives.x)
    np.testing.assert_array_equal(x, fusion.sample(N, SEED))
    log_proposal = fusion_log_prob(POLICY, fusion.estimate, x)
    expected = importance_reference.weights(np.exp(np.asarray(base(x)) - log_proposal))
    np.testing.assert_allclose(np.exp(negatives.log_weights), expected, rtol=1e-4)
    assert np.std(expected) > 0.1


def test_a_constant_of_the_base_does_not_matter(fusion, base):
    constant = make_network().times(0.0)._replace(output_bias=np.array([8.0], np.float32))
    one, other = (draw_negatives(fusion, q, VIRL, N, SEED) for q in (base, base.add(constant)))
    np.testing.assert_allclose(one.log_weights, other.log_weights, atol=1e-5)


def test_weights_of_draws_from_the_base_itself_are_one(base):
    of_policy = base.of_policy(POLICY)
    negatives = draw_negatives(POLICY, of_policy, EIM, N, SEED)
    np.testing.assert_allclose(negatives.log_weights, np.zeros(N), atol=1e-10)


def test_without_importance_weights_all_are_one(fusion, base):
    method = METHODS["virl_no_weights"]
    weighted, plain = (draw_negatives(fusion, base, m, N, SEED) for m in (VIRL, method))
    np.testing.assert_array_equal(plain.x, weighted.x)
    np.testing.assert_array_equal(plain.log_weights, np.zeros(N))


def test_weights_are_bounded_where_the_base_is_half_of_the_proposal(base):
    # mu >= q*_0 / 2, so no weight q*_0 / mu is above 2: E[w^2] <= 2 E[w] = 2.
    prior = make_mixture(2, seed=3)
    reward = base.of_policy(prior)
    negatives = draw_negatives(Fusion(POLICY, prior), reward, VIRL, N, SEED)
    log_ratio = evaluate(reward, negatives.x) - Fusion(POLICY, prior).log_prob(negatives.x)
    assert float(tf.reduce_max(log_ratio)) <= np.log(2.0) + 1e-9
    assert np.exp(negatives.log_weights).max() < 2.5  # 2 over the draws' mean


def test_half_of_the_fusions_draws_lie_at_demonstrations(fusion, base):
    x = draw_negatives(fusion, base, VIRL, N, SEED).x.numpy()
    nearest = np.min(np.linalg.norm(x[:, None] - X[None], axis=-1), axis=1)
    # The kernel has width 0.3: a draw further than 5 widths away has probability 4e-6.
    assert (nearest[N // 2 :] < 1.5).all()
    assert not (nearest[: N // 2] < 1.5).all()


# --- as the classifier sees them ------------------------------------------------------------------


def test_points_are_seen_through_the_features(problem):
    data = logit_data(tf.constant(X), None, None, problem.features)
    np.testing.assert_allclose(data.z, standardised(X), atol=1e-6)
    np.testing.assert_array_equal(data.weights, np.ones(60))
    np.testing.assert_array_equal(data.offsets, np.zeros(60))
    assert [a.dtype for a in data] == 3 * [tf.float32]


def test_weights_are_no_logarithms(problem):
    log_weights = tf.constant(np.random.default_rng(0).normal(size=60))
    data = logit_data(tf.constant(X), log_weights, None, problem.features)
    np.testing.assert_allclose(data.weights, np.exp(log_weights), rtol=1e-6)


@pytest.mark.parametrize("of_fusion", [False, True])
def test_a_subtracted_density_is_one_of_the_standardised_points(problem, fusion, of_fusion):
    log_q = (
        fusion_log_prob(POLICY, problem.estimate, X) if of_fusion else mixture_log_prob(POLICY, X)
    )
    subtracted = fusion if of_fusion else POLICY
    data = logit_data(tf.constant(X), None, subtracted, problem.features)
    log_volume = np.log(X.std(axis=0)).sum()  # dx / dz
    np.testing.assert_allclose(data.offsets, -log_q - log_volume, rtol=1e-5, atol=1e-5)


def test_offsets_have_no_units(problem):
    """The same data in millimetres."""
    features, scale = problem.features, 1000.0
    scaled = features._replace(shift=scale * features.shift, scale=scale * features.scale)
    policy = POLICY._replace(means=scale * POLICY.means, scale_trils=scale * POLICY.scale_trils)
    one = logit_data(tf.constant(X), None, POLICY, features)
    other = logit_data(tf.constant(scale * X), None, policy, scaled)
    np.testing.assert_allclose(one.offsets, other.offsets, rtol=1e-5)
    np.testing.assert_allclose(one.z, other.z, rtol=1e-5)


# --- both classes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("subtracted", [None, POLICY])
@pytest.mark.parametrize("fraction", [0.1, 0.25])
def test_both_classes_are_split(problem, fraction, subtracted):
    x = POLICY.sample(N, SEED)
    negatives = Negatives(x, tf.constant(np.random.default_rng(0).normal(size=N)))
    held_out, train = classes(problem, negatives, subtracted, fraction)
    everything = logit_data(x, negatives.log_weights, subtracted, problem.features)
    for part, rows in zip((held_out, train), held_out_rows(N, fraction), strict=True):
        for found, whole in zip(part.negatives, everything, strict=True):
            np.testing.assert_array_equal(found, whole.numpy()[rows])
    # The demonstrations were split before, by the problem, whatever the fraction.
    for part, points in ((held_out, problem.held_out), (train, problem.train)):
        expected = logit_data(points, None, subtracted, problem.features)
        for found, wanted in zip(part.experts, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
