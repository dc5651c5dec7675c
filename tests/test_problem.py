from virl_tf import problem as problem_module
from virl_tf.contexts import GATE_KL_BOUND
from virl_tf.demonstrations import Data
from virl_tf.domain import make_domain
from virl_tf.em.density import density_fits
from virl_tf.hparams import default_hparams, own_data_hparams
from virl_tf.importance import effective_sample_size
from virl_tf.kde import Kde, fit_kde
from virl_tf.mixture import Mixture, moments
from virl_tf.numerics import numpy_seed
from virl_tf.problem import make_problem

import numpy as np
import pytest
import tensorflow as tf

from tests import tiny
from tests.tiny_runs import GRID, X, mixture_log_prob, moments_log_prob


def problem_of(x=X, seed=0, **sections):
    return make_problem(Data(x), tiny.hparams(**sections), seed)


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


def test_features_standardise_all_demonstrations():
    features = problem_of(network={"num_frequencies": 5}).features
    np.testing.assert_allclose(features.shift, X.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(features.scale, X.std(axis=0), rtol=1e-12)
    assert (features.frequencies.shape, features.num_inputs) == ((2, 5), 12)


def test_frequencies_are_chosen_where_the_prior_is_a_mixture():
    network, loop = {"num_frequencies": 5}, {"prior": "mixture"}
    random, both = problem_of(network=network), problem_of(network=network, loop=loop)
    assert both.features.frequencies.shape == (2, 5 + 54 // 20)  # of 54 training rows
    np.testing.assert_array_equal(both.features.frequencies[:, :5], random.features.frequencies)
    plain = problem_of(loop=loop)
    assert plain.features.frequencies.shape == (2, 0)


@pytest.mark.parametrize(("upper", "number"), [(np.inf, 100), (25.0, 25), (2.0, 100)])
def test_the_prior_is_compared_inside_of_the_bounds(upper, number):
    """Unless hardly any of its draws is there."""
    draws = tf.constant(np.arange(100.0)[:, None] + 0.5)
    domain = make_domain(draws.numpy()[:1], ["x"], support=(None, upper))
    assert len(problem_module.inside(draws, domain)) == number


def test_the_prior_is_compared_with_training_rows_in_each_of_their_contexts():
    rows = np.arange(21.0).reshape(7, 3)
    where = problem_module._where_compared(Data(rows, num_contexts=1))
    contexts, counts = np.unique(where.rows, return_counts=True)
    np.testing.assert_array_equal(contexts, rows[:, 0])
    assert counts.sum() == problem_module.COMPARED_DRAWS
    assert np.ptp(counts) <= 1


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


def test_the_mixture_prior_describes_the_training_demonstrations_alone():
    problem = problem_of(loop={"prior": "mixture"})
    train = problem.train.numpy()
    (fit,) = density_fits(train, numpy_seed(0, 0, "mixture"))
    expected = fit(train)
    np.testing.assert_array_equal(mixture_log_prob(problem.prior, X), mixture_log_prob(expected, X))
    assert problem.prior.num_components > 1  # X has two clusters
    assert problem.mixture.num_components == 0  # nothing is pooled


def apart(rows, dim):
    """Two Gaussians far from each other."""
    rng = np.random.default_rng(0)
    return rng.choice([-5.0, 5.0], (rows, 1)) * np.eye(dim)[0] + rng.standard_normal((rows, dim))


AUTO = {"kde": {"estimator": "auto", "bandwidth": "held_out", "bandwidth_scale": "relative"}}
AUTO["loop"] = {"prior": "auto"}


@pytest.mark.parametrize(("rows", "dim"), [(3000, 2), (300, 2), (2000, 4)])
def test_where_kernels_cover_the_density_they_are_the_estimate(rows, dim):
    problem = problem_of(apart(rows, dim), **AUTO)
    assert isinstance(problem.estimate, Kde)
    assert problem.prior.num_components == 1


def stretched(rows, dim):
    """Modes that are long in one direction of their own and thin in all others."""
    rng = np.random.default_rng(0)
    shapes = 0.01 * np.eye(dim) + rng.standard_normal((8, dim, 1)) * np.eye(dim)[0]
    centres, of = rng.uniform(-2.0, 2.0, (8, dim)), rng.integers(0, 8, rows)
    return centres[of] + np.einsum("nij,nj->ni", shapes[of], rng.standard_normal((rows, dim)))


@pytest.mark.parametrize(("rows", "dim"), [(2000, 12), (300, 11)])
def test_where_kernels_miss_it_the_mixture_is_estimate_and_prior(rows, dim):
    x = stretched(rows, dim)
    problem = problem_of(x, **AUTO)
    assert problem.estimate is problem.prior
    assert problem.estimate.num_components > 1
    kernels = fit_kde(x, "held_out", "relative", 0)
    drawn = kernels.sample(2000, [1, 2])
    log_w = problem.estimate.log_prob(drawn) - kernels.log_prob(drawn)
    assert float(effective_sample_size(log_w)) < 200


@pytest.mark.parametrize(
    ("width", "covered"), [(0.5, False), (0.53, True), (1.0, True), (9.0, False)]
)
@pytest.mark.parametrize("seed", range(3))
def test_kernels_cover_up_to_a_divergence_that_their_width_tells(width, covered, seed):
    divergence = 1.0 / width**2 - 1.0 + 2.0 * np.log(width)  # of N(0, I) from N(0, width^2 I)
    assert (divergence <= problem_module.COVERED) == covered
    normal = Mixture(np.zeros(1), np.zeros((1, 2)), np.eye(2)[None])
    kernels = Kde(np.zeros((1, 2)), np.full(2, width))
    assert problem_module.covers(kernels, normal, seed) == covered


@pytest.mark.parametrize("prior", ["moments", "mixture"])
def test_what_is_left_to_the_data_follows_from_the_prior(prior):
    problem = problem_of(apart(2000, 2), loop={"prior": prior})
    from_mixture = prior == "mixture"
    best = own_data_hparams("virl")
    found = problem.resolved(best)
    assert found.loop.num_negatives == (64_000 if from_mixture else 32_000)
    assert found.training.batch_size == (100 if from_mixture else 1800 // 14)
    assert found.policy.weight_kl_bound == default_hparams().policy.weight_kl_bound
    for num_contexts, bound in ((1, 0.01), (2, 0.005), (4, GATE_KL_BOUND), (12, GATE_KL_BOUND)):
        of_contexts = problem._replace(num_contexts=num_contexts).resolved(best)
        assert of_contexts.policy.weight_kl_bound == pytest.approx(bound)
    assert found.override({"training": {"batch_size": None}}).training == best.training
    own = {
        "training": {"batch_size": 77},
        "policy": {"weight_kl_bound": 0.01},
        "loop": {"num_negatives": 500},
    }
    assert problem.resolved(best.override(own)) == best.override(own)


# --- p~ -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", ["moments", "flat", "mixture"])
def test_the_papers_estimate_is_kernels_at_all_demonstrations(prior):
    problem = problem_of(kde={"estimator": "kernel"}, loop={"prior": prior})
    assert isinstance(problem.estimate, Kde)
    for found, expected in zip(problem.estimate, fit_kde(X, 0.3, "absolute"), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("prior", ["moments", "mixture"])
def test_the_estimate_may_be_the_mixture(prior):
    problem = problem_of(kde={"estimator": "mixture"}, loop={"prior": prior})
    assert isinstance(problem.estimate, Mixture)
    assert (problem.estimate is problem.prior) == (prior == "mixture")


def test_groups_are_held_out_together():
    groups = np.repeat(np.arange(20), 3)
    problem = make_problem(Data(X, groups), tiny.hparams(), 0)
    of_row = {tuple(row): group for row, group in zip(X, groups, strict=True)}
    held_out, train = (
        {of_row[tuple(row)] for row in rows.numpy()} for rows in (problem.held_out, problem.train)
    )
    assert not held_out & train
    assert len(held_out) == 2
    assert len(problem.held_out) == 6


def test_whatever_is_chosen_by_held_out_rows_is_told_their_groups(monkeypatch):
    groups = np.repeat(np.arange(20), 3)
    of_row = {tuple(row): group for row, group in zip(X, groups, strict=True)}
    told = []

    def recording(name, found):
        def call(rows, *rest):
            told.append(name)
            np.testing.assert_array_equal([of_row[tuple(row)] for row in rows], rest[-1])
            return found(rows)

        monkeypatch.setattr(problem_module, name, call)

    recording("fit_kde", lambda rows: fit_kde(rows, 0.3))
    recording("density_fits", lambda rows: [moments])
    recording("density_widths", lambda rows: np.ones(rows.shape[1]))
    options = tiny.hparams(loop={"mixture_average": True}, network={"num_frequencies": 4})
    make_problem(Data(X, groups), options, 0)
    assert sorted(told) == ["density_fits", "density_widths", "fit_kde"]


def test_what_smooths_the_mixture_is_told_which_rows_it_has_not_seen(monkeypatch):
    describe, given = problem_module.describe_rows, []
    monkeypatch.setattr(
        problem_module, "describe_rows", lambda *rows: given.append(rows) or describe(*rows)
    )
    options = tiny.hparams(loop={"mixture_average": True})
    problem = make_problem(Data(X, num_contexts=1), options, 0)
    ((_, train, held_out, num_contexts),) = given
    np.testing.assert_array_equal(train, problem.train)
    np.testing.assert_array_equal(held_out, problem.held_out)
    assert num_contexts == 1


# --- the mixture for pooling ----------------------------------------------------------------------


def test_as_in_the_paper_there_is_none():
    assert problem_of().mixture.num_components == 0


def test_it_has_not_seen_the_held_out_demonstrations():
    problem = problem_of(loop={"mixture_average": True})
    seed = numpy_seed(0, 0, "mixture")
    found = mixture_log_prob(problem.mixture, X)
    expected, of_all = (
        mixture_log_prob(density_fits(rows.numpy(), seed)[0](rows.numpy()), X)
        for rows in (problem.train, problem.demonstrations)
    )
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found - of_all).max() > 1e-2
