from virl_tf.kde import Kde, fit_kde
from virl_tf.mixture import Mixture, bic_mixture
from virl_tf.problem import make_problem

import numpy as np
import pytest

from tests import tiny
from tests.tiny_runs import GRID, X, mixture_log_prob, moments_log_prob


def problem_of(x=X, seed=0, **sections):
    return make_problem(x, tiny.hparams(**sections), seed)


# --- the demonstrations ---------------------------------------------------------------------------


def test_the_demonstrations_are_in_random_order():
    problems = [problem_of(seed=seed) for seed in (0, 0, 1)]
    for problem in problems:
        np.testing.assert_array_equal(np.sort(problem.demonstrations, axis=0), np.sort(X, axis=0))
        np.testing.assert_array_equal(problem.estimate.bandwidth, [0.3, 0.3])
    np.testing.assert_array_equal(problems[0].demonstrations, problems[1].demonstrations)
    assert not np.array_equal(problems[0].demonstrations, problems[2].demonstrations)
    assert not np.array_equal(problems[0].demonstrations, X)
    assert [problem.seed for problem in problems] == [0, 0, 1]


@pytest.mark.parametrize(("fraction", "held"), [(0.1, 6), (0.5, 30), (0.001, 1)])
def test_they_are_split_once_for_all_iterations(fraction, held):
    problem = problem_of(training={"validation_fraction": fraction})
    rows = set(range(0, 60, 60 // held))
    np.testing.assert_array_equal(
        problem.held_out, problem.demonstrations.numpy()[[i for i in range(60) if i in rows]]
    )
    np.testing.assert_array_equal(
        problem.train, problem.demonstrations.numpy()[[i for i in range(60) if i not in rows]]
    )
    assert len(problem.held_out) == held


def test_the_callers_array_is_left_alone():
    x = X.copy()
    problem_of(x)
    np.testing.assert_array_equal(x, X)


def test_features_standardise_all_demonstrations():
    features = problem_of(network={"num_frequencies": 5}).features
    np.testing.assert_allclose(features.shift, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(features.scale, X.std(axis=0), rtol=1e-12)
    assert (features.frequencies.shape, features.num_inputs) == ((2, 5), 12)


def test_frequencies_come_from_the_held_out_bandwidth_that_the_estimate_has():
    network = {"num_frequencies": 5}
    sought = problem_of(network=network)  # beside an estimate of another bandwidth
    known, absolute = (
        problem_of(network=network, kde={"bandwidth": "held_out", "bandwidth_scale": scale})
        for scale in ("relative", "absolute")
    )
    frequencies = known.features.frequencies.numpy()
    np.testing.assert_allclose(frequencies, sought.features.frequencies, rtol=1e-6)
    # In inverse proportion to each column's bandwidth.
    ratio = np.asarray(known.estimate.bandwidth / absolute.estimate.bandwidth)
    found = absolute.features.frequencies.numpy()
    np.testing.assert_allclose(found, frequencies * ratio[:, None], rtol=1e-5)
    assert abs(ratio[0] / ratio[1] - 1.0) > 0.1


# --- q*_0 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", ["moments", "flat", "initial_policy"])
def test_the_prior_is_the_gaussian_with_the_demonstrations_moments(prior):
    found = problem_of(loop={"prior": prior}).prior
    np.testing.assert_allclose(mixture_log_prob(found, GRID), moments_log_prob(GRID), rtol=1e-6)


def test_the_mixture_prior_is_the_em_mixture_of_lowest_bic_without_the_held_out_demonstrations():
    problem = problem_of(loop={"prior": "mixture"})
    # Another seed: up to EM's tolerance.
    expected = bic_mixture(problem.demonstrations.numpy()[[i for i in range(60) if i % 10]], 0)
    assert expected.num_components == problem.prior.num_components == 2  # X has two clusters
    found = mixture_log_prob(problem.prior, X)
    np.testing.assert_allclose(found, mixture_log_prob(expected, X), atol=0.05)
    of_all = mixture_log_prob(bic_mixture(problem.demonstrations.numpy(), 0), X)
    assert np.abs(found - of_all).max() > 0.05


@pytest.mark.parametrize(("rows", "dim", "components"), [(3000, 2, 1), (40, 2, 2), (500, 6, 2)])
def test_the_automatic_prior_is_a_mixture_where_kernels_blur(rows, dim, components):
    rng = np.random.default_rng(0)
    x = rng.choice([-5.0, 5.0], (rows, 1)) * np.eye(dim)[0] + rng.standard_normal((rows, dim))
    assert problem_of(x, loop={"prior": "auto"}).prior.num_components == components


# --- p~ -------------------------------------------------------------------------------------------


def test_the_automatic_estimate_is_the_mixture_that_the_reward_starts_from():
    problem = problem_of(kde={"estimator": "auto"}, loop={"prior": "mixture"})
    assert problem.estimate is problem.prior
    assert problem.prior.num_components == 2


@pytest.mark.parametrize(
    ("estimator", "prior"), [("auto", "moments"), ("auto", "flat"), ("kernel", "mixture")]
)
def test_else_the_estimate_is_kernels_at_all_demonstrations(estimator, prior):
    problem = problem_of(kde={"estimator": estimator}, loop={"prior": prior})
    assert isinstance(problem.estimate, Kde)
    for found, expected in zip(problem.estimate, fit_kde(X, 0.3, "absolute"), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("prior", ["moments", "mixture"])
def test_the_estimate_may_be_a_mixture_of_its_own(prior):
    problem = problem_of(kde={"estimator": "mixture"}, loop={"prior": prior})
    assert isinstance(problem.estimate, Mixture)
    assert problem.estimate is not problem.prior
    expected = mixture_log_prob(bic_mixture(X, 0), X)
    np.testing.assert_allclose(mixture_log_prob(problem.estimate, X), expected, atol=1e-3)


# --- the mixture for pooling ----------------------------------------------------------------------


def test_as_in_the_paper_there_is_none():
    assert problem_of().mixture.num_components == 0


def test_it_has_not_seen_the_held_out_demonstrations():
    problem = problem_of(loop={"mixture_average": True})
    expected = bic_mixture(problem.demonstrations.numpy()[[i for i in range(60) if i % 10]], 0)
    assert problem.mixture.num_components == expected.num_components == 2
    found = mixture_log_prob(problem.mixture, X)
    np.testing.assert_allclose(found, mixture_log_prob(expected, X), atol=1e-3)
    of_all = mixture_log_prob(bic_mixture(problem.demonstrations.numpy(), 0), X)
    assert np.abs(found - of_all).max() > 1e-2
