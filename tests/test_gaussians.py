from virl_tf import InputError
from virl_tf.mixture import gaussian
from virl_tf.tasks import RandomGaussians, slice_sampling

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import chisquare, ks_2samp, multivariate_normal

from tests.shared import plain_graph

N = 4000


def scipy_log_prob(task, x):
    log_weights, means, _ = (np.asarray(a) for a in task.mixture)
    parts = [
        log_weight + multivariate_normal(mean, covariance).logpdf(x)
        for log_weight, mean, covariance in zip(
            log_weights, means, task.mixture.covariances.numpy(), strict=True
        )
    ]
    return logsumexp(np.reshape(parts, (len(means), -1)), axis=0)


@pytest.mark.parametrize(("num_modes", "dim"), [(1, 1), (5, 1), (1, 2), (20, 2), (7, 4)])
def test_log_prob_equals_scipy(num_modes, dim):
    task = RandomGaussians(num_modes, seed=3, dim=dim)
    x = np.concatenate([np.random.default_rng(0).uniform(-6.0, 6.0, (50, dim)), task.mode_centers])
    np.testing.assert_allclose(task.log_prob(x), scipy_log_prob(task, x), rtol=1e-9)
    np.testing.assert_array_equal(task.log_prob(x.tolist()), task.log_prob(x))


def test_targets_are_drawn_as_documented():
    task = RandomGaussians(2000, seed=0, extent=3.0, spread=0.5, min_variance=0.1)
    assert np.abs(task.mode_centers).max() <= 3.0
    # U[-3, 3]: standard deviation 3 / sqrt(3); the estimate's standard error is about 1 %.
    np.testing.assert_allclose(task.mode_centers.std(axis=0), 3.0 / np.sqrt(3.0), rtol=0.05)
    covariances = task.mixture.covariances.numpy()
    assert np.linalg.eigvalsh(covariances).min() >= 0.1 - 1e-9
    # E[A^T A + v I] = D spread^2 / 2 I + v I, here 0.25 + 0.1 on the diagonal and 0 beside it.
    np.testing.assert_allclose(covariances.mean(axis=0), 0.35 * np.eye(2), atol=0.02)
    weights = np.exp(task.mixture.log_weights.numpy())
    assert weights.sum() == pytest.approx(1.0)
    # U(0, 1) divided by its sum: the largest is about twice the mean.
    assert weights.max() * 2000 == pytest.approx(2.0, rel=0.05)


def test_target_is_a_function_of_its_seed():
    first, again, other = (RandomGaussians(5, seed=seed) for seed in (4, 4, 5))
    np.testing.assert_array_equal(first.mode_centers, again.mode_centers)
    np.testing.assert_array_equal(first.mixture.scale_trils, again.mixture.scale_trils)
    assert not np.isin(other.mode_centers, first.mode_centers).any()


# --- slice sampling against exact draws -----------------------------------------------------------


@pytest.fixture(scope="module")
def task():
    return RandomGaussians(20, seed=0)


@pytest.fixture(scope="module")
def demonstrations(task):
    return task.demonstrations(N, seed=0)


@pytest.fixture(scope="module")
def exact(task):
    return task.exact_samples(N, seed=1)


def nearest_mode(task, x):
    return np.argmax(task.mixture.log_responsibilities(x).numpy(), axis=1)


def test_modes_are_visited_by_their_mass(task, demonstrations):
    # Chi-square at 99.9 % against the expected shares of the same classification, from many exact
    # draws; small classes together.
    large, _ = task.exact_samples(400_000, seed=2)
    expected = np.bincount(nearest_mode(task, large), minlength=20) / len(large) * N
    counts = np.bincount(nearest_mode(task, demonstrations), minlength=20).astype(float)
    small = expected < 10.0
    if small.any():
        expected, counts = ([*part[~small], part[small].sum()] for part in (expected, counts))
    assert chisquare(counts, expected).pvalue > 1e-3


@pytest.mark.parametrize(
    "direction", [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, -1.0), (2.0, 1.0)], ids=str
)
def test_marginals_are_those_of_exact_draws(demonstrations, exact, direction):
    # Five Kolmogorov-Smirnov tests at 99.98 % each: together 99.9 % (Bonferroni).
    assert ks_2samp(demonstrations @ direction, exact[0] @ direction).pvalue > 2e-4


def test_log_densities_are_those_of_exact_draws(task, demonstrations, exact):
    # Kolmogorov-Smirnov at 99.9 %: neither too peaked nor too wide within the modes.
    assert ks_2samp(task.log_prob(demonstrations), task.log_prob(exact[0])).pvalue > 1e-3


def test_the_tests_have_power(task, exact):
    # Draws of another distribution fail them: the mixture with equal weights.
    uniform = task.mixture._replace(log_weights=np.full(20, -np.log(20.0)))
    other = uniform.sample(N, np.array([1, 2])).numpy()
    assert ks_2samp(other @ [1.0, 0.0], exact[0] @ [1.0, 0.0]).pvalue < 1e-4


def test_exact_draws_have_the_mixtures_weights(task, exact):
    # Chi-square at 99.9 %.
    expected = np.exp(task.mixture.log_weights.numpy()) * N
    counts = np.bincount(exact[1], minlength=20)
    keep = expected >= 5.0
    rest = [[part[~keep].sum()] if (~keep).any() else [] for part in (counts, expected)]
    assert chisquare([*counts[keep], *rest[0]], [*expected[keep], *rest[1]]).pvalue > 1e-3
    np.testing.assert_array_equal(task.exact_samples(N, seed=1)[0], exact[0])


@pytest.fixture
def few_chains(monkeypatch):
    """A hundred chains at once, whose programs XLA would compile for seconds."""
    monkeypatch.setattr(slice_sampling, "compiled", plain_graph)
    monkeypatch.setattr(slice_sampling, "_BLOCK", 100)


@pytest.mark.usefixtures("few_chains")
def test_draws_are_those_of_every_longer_call():
    task = RandomGaussians(20, seed=0, burn_in=3)
    np.testing.assert_array_equal(task.demonstrations(150, 0), task.demonstrations(230, 0)[:150])


def test_blocks_of_chains_are_different(demonstrations):
    assert len(np.unique(demonstrations, axis=0)) == N


@pytest.mark.usefixtures("few_chains")
def test_each_task_samples_its_own_target(task):
    # The compiled sampler must not be shared between targets of equal shape.
    other = RandomGaussians(20, seed=7, burn_in=20)
    RandomGaussians(20, seed=0, burn_in=20).demonstrations(100, seed=0)
    x = other.demonstrations(500, seed=0)
    assert np.mean(other.log_prob(x)) > np.mean(task.log_prob(x)) + 1.0


@pytest.mark.usefixtures("few_chains")
def test_one_gaussian_in_one_dimension():
    task = RandomGaussians(1, seed=0, dim=1, burn_in=20)
    x = task.demonstrations(1000, seed=0)
    # Squares of standard normal numbers have mean 1 and variance 2: four standard errors, 99.99 %.
    squares = (x - task.mode_centers) ** 2 / task.mixture.covariances.numpy()[0]
    assert abs(squares.mean() - 1.0) < 4.0 * np.sqrt(2.0 / 1000)


@pytest.mark.parametrize("dim", [3, 10])
def test_demonstrations_in_more_than_two_dimensions_are_exact_draws(dim):
    # Slice sampling fails in D = 5: chi-squares of 3,686 and 2,215 of the modes' shares where 85
    # are allowed (m = 50, 8,000 draws, seeds 0 and 100).
    task = RandomGaussians(20, seed=1, dim=dim)
    np.testing.assert_array_equal(task.demonstrations(50, 2), task.exact_samples(50, 2)[0])


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_modes": 0},
        {"seed": -1},
        {"dim": 0},
        {"burn_in": 0},
        {"extent": 0.0},
        {"spread": 0.0},
        {"min_variance": 0.0},
    ],
    ids=str,
)
def test_bad_arguments_are_refused_by_name(arguments):
    name = next(iter(arguments))
    with pytest.raises(InputError, match=name):
        RandomGaussians(**{"num_modes": 3, **arguments})


def test_a_chain_makes_as_many_transitions_as_are_asked_for(monkeypatch):
    """The last of which is the draw."""
    made = []

    def count(num_results, state, *, num_burnin_steps, **_):
        made.append(num_results + num_burnin_steps)
        return state[None]

    monkeypatch.setattr(slice_sampling.tfp.mcmc, "sample_chain", count)
    monkeypatch.setattr(slice_sampling, "_BLOCK", 3)
    prior = gaussian(np.zeros(1), np.eye(1))
    assert slice_sampling._draw_block(prior.log_prob, prior, [1, 2], 7).shape == (3, 1)
    assert made == [7]
