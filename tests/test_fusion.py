from virl_tf.fusion import Fusion
from virl_tf.importance import effective_sample_size, normalise
from virl_tf.kde import fit_kde
from virl_tf.mixture import gaussian

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logsumexp

from tests.reference import kde as kde_reference
from tests.reference import mixture as mixture_reference
from tests.shared import make_mixture

SEED = [1, 2]


@pytest.fixture
def fusion(points):
    return Fusion(make_mixture(), fit_kde(points, 0.3))


def log_mu(fusion, x):
    """log(0.5 q + 0.5 p~) by the references."""
    log_q = mixture_reference.log_prob(x, *(np.asarray(a) for a in fusion.policy))
    log_p = kde_reference.log_prob(
        x, fusion.estimate.points.numpy(), fusion.estimate.bandwidth.numpy()
    )
    return logsumexp([np.log(0.5) + log_q, np.log(0.5) + log_p], axis=0)


def test_log_prob_is_that_of_the_two_halves(fusion):
    x = 3.0 * np.random.default_rng(2).standard_normal((40, 2))
    np.testing.assert_allclose(fusion.log_prob(x), log_mu(fusion, x), rtol=1e-10)
    of_mixtures = Fusion(make_mixture(seed=1), make_mixture(seed=2))
    halves = [
        np.log(0.5) + mixture_reference.log_prob(x, *(np.asarray(a) for a in half))
        for half in of_mixtures
    ]
    np.testing.assert_allclose(of_mixtures.log_prob(x), logsumexp(halves, axis=0), rtol=1e-10)


def test_log_prob_where_one_half_vanishes(points):
    # 10^4 standard deviations from the policy its density is exp(-5e7), but the KDE is there.
    fusion = Fusion(gaussian(np.full(2, 1e4), np.eye(2)), fit_kde(points, 0.3))
    x = points[:5]
    np.testing.assert_allclose(
        fusion.log_prob(x), fusion.estimate.log_prob(x) - np.log(2.0), rtol=1e-12
    )


@pytest.mark.parametrize(("n", "from_policy"), [(0, 0), (1, 0), (2, 1), (7, 3), (1000, 500)])
def test_half_of_the_samples_come_from_each(points, n, from_policy):
    fusion = Fusion(gaussian(np.full(2, 1e3), np.eye(2)), fit_kde(points, 0.3))
    x = fusion.sample(n, SEED)
    assert x.shape == (n, 2)
    assert x.dtype == tf.float64
    near_policy = np.linalg.norm(x - np.full(2, 1e3), axis=1) < 100.0
    np.testing.assert_array_equal(near_policy, np.arange(n) < from_policy)


def test_the_halves_are_not_drawn_with_the_same_numbers():
    fusion = Fusion(gaussian(np.zeros(2), np.eye(2)), fit_kde(np.zeros((4, 2)), 1.0))
    x = fusion.sample(1000, SEED).numpy()
    correlation = np.corrcoef(x[:500, 0], x[500:, 0])[0, 1]
    assert abs(correlation) < 4.4 / np.sqrt(500)  # 99.999 % for independent halves


def test_importance_weights_are_one_where_target_and_proposal_agree(fusion):
    x = fusion.sample(60, SEED)
    target = log_mu(fusion, x.numpy()) + 7.3  # not normalised
    log_w = normalise(target - fusion.log_prob(x))
    np.testing.assert_allclose(np.exp(log_w), 1.0, rtol=1e-10)
    np.testing.assert_allclose(effective_sample_size(log_w), 60.0, rtol=1e-10)
