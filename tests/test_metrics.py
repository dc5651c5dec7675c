from virl_tf.metrics import (
    averaged_i_projection,
    best_final_reported,
    contrast,
    correlation,
    covered_modes,
    grid_around,
    i_projection,
    normalise_on_grid,
    policy_distance,
    sampled_i_projection,
)
from virl_tf.mixture import gaussian

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, norm

from tests.shared import make_mixture

SEED = [3, 4]
# Estimates are compared with expectations at 4.4 standard errors: 99.999 % for one normal
# statistic, and the seeds are fixed.
SIGMAS = 4.4

GRID = grid_around(np.array([[-12.0, -12.0], [12.0, 12.0]]), 400, 0.0)
MEAN_1, COVARIANCE_1 = np.array([0.5, -0.3]), np.array([[1.0, 0.3], [0.3, 0.8]])
MEAN_2, COVARIANCE_2 = np.array([-0.4, 0.6]), np.array([[1.5, -0.2], [-0.2, 1.1]])


def gaussian_kl(mean_1, covariance_1, mean_2, covariance_2):
    """KL(N_1 || N_2) in closed form."""
    precision, difference = np.linalg.inv(covariance_2), mean_2 - mean_1
    log_det = np.log(np.linalg.det(covariance_2) / np.linalg.det(covariance_1))
    return 0.5 * (
        np.trace(precision @ covariance_1)
        + difference @ precision @ difference
        - len(mean_1)
        + log_det
    )


# --- I-projection ---------------------------------------------------------------------------------


def test_i_projection_of_gaussians_is_the_closed_form():
    log_1, log_2 = (
        multivariate_normal(m, c).logpdf(GRID.points)
        for m, c in ((MEAN_1, COVARIANCE_1), (MEAN_2, COVARIANCE_2))
    )
    forward = gaussian_kl(MEAN_1, COVARIANCE_1, MEAN_2, COVARIANCE_2)
    backward = gaussian_kl(MEAN_2, COVARIANCE_2, MEAN_1, COVARIANCE_1)
    assert abs(forward - backward) > 0.1  # so that the direction is tested
    np.testing.assert_allclose(i_projection(log_1, log_2), forward, rtol=1e-6)
    np.testing.assert_allclose(i_projection(log_2, log_1), backward, rtol=1e-6)


@pytest.mark.parametrize("constant", [-1e5, -3.0, 0.0, 700.0, 1e5])
def test_i_projection_ignores_constants(constant):
    rng = np.random.default_rng(0)
    log_q, log_p = rng.standard_normal(200), rng.standard_normal(200)
    assert abs(i_projection(log_q, log_q + constant)) < 1e-9
    np.testing.assert_allclose(
        i_projection(log_q + constant, log_p - constant), i_projection(log_q, log_p), rtol=1e-8
    )


def test_i_projection_by_hand():
    # q = (3/4, 1/4), p = (1/2, 1/2)
    found = i_projection(np.log([3.0, 1.0]), np.zeros(2))
    np.testing.assert_allclose(found, 0.75 * np.log(1.5) + 0.25 * np.log(0.5), rtol=1e-14)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_points_where_q_is_zero_count_nothing():
    log_q = np.log([3.0, 1.0, 1.0])
    log_q[2] = -np.inf
    np.testing.assert_allclose(
        i_projection(log_q, np.zeros(3)), 0.75 * np.log(2.25) + 0.25 * np.log(0.75), rtol=1e-12
    )
    np.testing.assert_allclose(
        i_projection(log_q, np.array([0.0, 0.0, -np.inf])), 0.75 * np.log(1.5) + 0.25 * np.log(0.5)
    )


def test_q_where_p_is_zero_is_infinitely_far():
    assert i_projection(np.zeros(3), np.array([0.0, 0.0, -np.inf])) == np.inf


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize(
    "bad", [[np.inf], [np.nan], [np.inf, np.inf], [np.nan, -np.inf], 5 * [-np.inf]]
)
def test_a_diverged_reward_has_no_distance(bad):
    log_q = np.zeros(5)
    log_q[: len(bad)] = bad
    assert np.isnan(i_projection(log_q, np.arange(5.0)))


def test_normalised_on_the_grid():
    values = np.random.default_rng(0).standard_normal(100) + 1e4
    log_p = normalise_on_grid(values)
    np.testing.assert_allclose(np.exp(log_p).sum(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(log_p - log_p[0], values - values[0], atol=1e-10)
    np.testing.assert_array_equal(normalise_on_grid([-np.inf, 0.0]), [-np.inf, 0.0])


# --- grid -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("resolution", [2, 7])
def test_the_grid_is_the_widened_box_of_the_data(resolution, margin):
    data = np.array([[-1.0, 10.0], [0.0, 20.0], [3.0, 12.0]])
    grid = grid_around(data, resolution, margin)
    low, high = (
        np.array([-1.0 - 4.0 * margin, 10.0 - 10.0 * margin]),
        np.array([3.0 + 4.0 * margin, 20.0 + 10.0 * margin]),
    )
    assert grid.points.shape == (resolution**2, 2)
    assert grid.axes.shape == (2, resolution)
    np.testing.assert_allclose(grid.axes[:, 0], low)
    np.testing.assert_allclose(grid.axes[:, -1], high)
    np.testing.assert_allclose(
        np.diff(grid.axes, axis=1),
        np.tile((high - low)[:, None] / (resolution - 1), resolution - 1),
    )


def test_the_second_coordinate_varies_fastest():
    grid = grid_around(np.array([[0.0, 5.0], [2.0, 7.0]]), 3, 0.0)
    expected = [[x, y] for x in (0.0, 1.0, 2.0) for y in (5.0, 6.0, 7.0)]
    np.testing.assert_allclose(grid.points, expected)


def test_the_papers_grid_has_100_points_a_side():
    assert grid_around(np.random.default_rng(0).standard_normal((20, 2))).points.shape == (
        10_000,
        2,
    )


# --- reported numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("series", "best", "final"),
    [
        ([3.0, 1.0, 2.0], 1.0, 2.0),
        ([5.0], 5.0, 5.0),
        ([1, 2, 3], 1.0, 3.0),
        ([3.0, np.nan, 2.5], 2.5, 2.5),
        ([np.nan, 4.0, 6.0], 4.0, 6.0),
        ([np.inf, 4.0, 6.0], 4.0, 6.0),
        ([-np.inf, 4.0, 6.0], 4.0, 6.0),
        ([2.0, np.inf], 2.0, np.inf),
        ([2.0, np.nan], 2.0, np.nan),
        ([np.nan, np.nan], np.nan, np.nan),
        ([np.inf], np.nan, np.inf),
    ],
)
def test_best_final_and_their_mean(series, best, final):
    found = best_final_reported(series)
    assert list(found) == ["best", "final", "reported"]
    np.testing.assert_array_equal(list(found.values()), [best, final, (best + final) / 2.0])
    assert all(type(value) is float for value in found.values())


# --- distance of a policy from a density with a bounded support -----------------------------------


@pytest.mark.parametrize("log_normaliser", [0.0, 6.1, -3.0])
def test_policy_distance_of_gaussians_is_the_closed_form(log_normaliser):
    policy, n = gaussian(MEAN_1, COVARIANCE_1), 20_000
    log_p = multivariate_normal(MEAN_2, COVARIANCE_2).logpdf
    found = policy_distance(policy, log_p, log_normaliser, n, SEED)
    x = np.random.default_rng(0).multivariate_normal(MEAN_1, COVARIANCE_1, 20_000)
    error = np.std(multivariate_normal(MEAN_1, COVARIANCE_1).logpdf(x) - log_p(x)) / np.sqrt(n)
    assert error < 0.01
    assert abs(found.kl - gaussian_kl(MEAN_1, COVARIANCE_1, MEAN_2, COVARIANCE_2)) < SIGMAS * error
    assert found.negative_elbo == pytest.approx(found.kl - log_normaliser, abs=1e-12)
    assert found.outside == 0.0


def test_policy_distance_from_itself_is_zero():
    policy = make_mixture()
    assert policy_distance(policy, policy.log_prob, 0.0, 1000, SEED) == pytest.approx(
        (0.0, 0.0, 0.0), abs=1e-12
    )


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 0.5), (0.8, 0.6), (-1.5, 0.3), (2.0, 1.0)])
def test_policy_distance_from_a_truncated_density_is_the_integral(mean, deviation):
    # p ~ exp(-|x|) on [-1, 1]; q restricted to [-1, 1] and normalised there.
    n, log_z = 200_000, np.log(2.0 * (1.0 - np.exp(-1.0)))
    inside = norm.cdf(1.0, mean, deviation) - norm.cdf(-1.0, mean, deviation)

    def difference(x):
        return norm.logpdf(x, mean, deviation) - np.log(inside) + abs(x) + log_z

    def expected(power):
        return quad(
            lambda x: norm.pdf(x, mean, deviation) / inside * difference(x) ** power,
            -1.0,
            1.0,
            points=[0.0],
        )[0]

    def log_prob(x):
        return np.where(np.abs(x[:, 0]) <= 1.0, -np.abs(x[:, 0]) - log_z, -np.inf)

    found = policy_distance(
        gaussian(np.array([mean]), np.array([[deviation**2]])), log_prob, log_z, n, SEED
    )
    kl = expected(1)
    # The mean over about n * inside draws, and the logarithm of the share of them.
    error = np.sqrt((expected(2) - kl**2) / (n * inside) + (1.0 - inside) / (n * inside))
    assert error < 0.05 * kl
    assert abs(found.kl - kl) < SIGMAS * error
    assert abs(found.outside - (1.0 - inside)) < SIGMAS * np.sqrt(inside * (1.0 - inside) / n)
    assert found.negative_elbo == pytest.approx(found.kl - log_z, abs=1e-12)


def test_a_policy_outside_of_the_support_is_infinitely_far():
    found = policy_distance(make_mixture(), lambda x: np.full(len(x), -np.inf), 3.0, 50, SEED)
    assert found == (np.inf, np.inf, 1.0)


def test_one_draw_inside_the_support_is_a_finite_distance():
    x = make_mixture().sample(50, SEED).numpy()
    found = policy_distance(
        make_mixture(), lambda y: np.where(y[:, 0] == x[7, 0], 0.0, -np.inf), 0.0, 50, SEED
    )
    assert found.kl == pytest.approx(
        make_mixture().log_prob(x[[7]]).numpy()[0] + np.log(50.0), rel=1e-12
    )
    assert found.outside == pytest.approx(0.98)


def test_policy_distance_is_a_function_of_its_seed_and_made_of_floats():
    policy, log_p = make_mixture(), multivariate_normal(MEAN_2, COVARIANCE_2).logpdf
    first, again, other = (
        policy_distance(policy, log_p, 1.0, 100, seed) for seed in (SEED, SEED, [5, 6])
    )
    assert first == again
    assert first != other
    assert all(type(value) is float for value in first)


# --- covered modes --------------------------------------------------------------------------------


def test_covered_modes_by_hand():
    modes = np.array([0, 0, 0, 2, 2, -1, -1, -1, -1, 4])
    np.testing.assert_array_equal(
        covered_modes(modes, 5, share=0.2), [True, False, True, False, False]
    )
    np.testing.assert_array_equal(
        covered_modes(modes, 5, share=0.1), [True, False, True, False, True]
    )
    np.testing.assert_array_equal(covered_modes(modes, 6, share=0.31), [False] * 6)


def test_three_in_a_thousand_samples_are_enough_and_one_fewer_is_not():
    for thousands in range(1, 41):
        counts = [3 * thousands, 3 * thousands - 1, 3 * thousands + 1]
        modes = np.full(1000 * thousands, -1)
        modes[: sum(counts)] = np.repeat([0, 1, 2], counts)
        np.testing.assert_array_equal(covered_modes(modes, 4), [True, False, True, False])


def test_no_mode_is_covered_by_samples_in_none():
    np.testing.assert_array_equal(covered_modes(np.full(100, -1), 3), [False] * 3)


def test_no_mode_is_covered_by_no_samples():
    np.testing.assert_array_equal(covered_modes(np.zeros(0, int), 3), [False] * 3)


def test_covered_modes_do_not_depend_on_the_order():
    rng = np.random.default_rng(0)
    modes = rng.integers(-1, 32, 2000)
    np.testing.assert_array_equal(
        covered_modes(modes, 32, 0.03), covered_modes(rng.permutation(modes), 32, 0.03)
    )
    expected = [np.count_nonzero(modes == mode) >= 60 for mode in range(32)]
    assert 0 < sum(expected) < 32
    np.testing.assert_array_equal(covered_modes(modes, 32, 0.03), expected)


# --- contrast -------------------------------------------------------------------------------------


def slow_contrast(high, low):
    wins = sum(1.0 if h > other else 0.5 if h == other else 0.0 for h in high for other in low)
    return {
        "auc": wins / (len(high) * len(low)),
        "gap": sum(high) / len(high) - sum(low) / len(low),
        "above_best": sum(all(h > other for other in low) for h in high) / len(high),
    }


@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 20), (25, 3)])
@pytest.mark.parametrize("decimals", [0, 10])
def test_contrast_is_the_references(n, m, decimals):
    # Rounded to whole numbers there are many ties.
    rng = np.random.default_rng(n)
    high, low = (
        (rng.normal(0.5, 2.0, n) + 1.0).round(decimals),
        rng.normal(0.5, 2.0, m).round(decimals),
    )
    assert contrast(high, low) == pytest.approx(slow_contrast(high, low), abs=1e-12)
    assert contrast(high.tolist(), tuple(low)) == contrast(high, low)
    assert all(type(value) is float for value in contrast(high, low).values())


@pytest.mark.parametrize(
    ("high", "low", "expected"),
    [
        ([3.0, 4.0], [1.0, 2.0], (1.0, 2.0, 1.0)),
        ([1.0, 2.0], [3.0, 4.0], (0.0, -2.0, 0.0)),
        ([1.0, 1.0], [1.0], (0.5, 0.0, 0.0)),
        ([2.0, 5.0], [2.0, 3.0], (0.625, 1.0, 0.5)),
        ([-1e300, 1.0], [0.0], (0.5, -5e299, 0.5)),
        ([0.0, 1.0], [-np.inf, 0.5], (0.75, np.inf, 0.5)),
        ([-np.inf], [-np.inf], (0.5, np.nan, 0.0)),
    ],
)
def test_contrast_by_hand(high, low, expected):
    assert tuple(contrast(high, low).values()) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(("high", "low"), [([], [1.0]), ([1.0], []), ([], [])])
def test_contrast_of_an_empty_group_is_not_a_number(high, low):
    found = contrast(high, low)
    assert list(found) == ["auc", "gap", "above_best"]
    assert np.isnan(list(found.values())).all()


def gaussian_log_prob(x, mean, std):
    return -0.5 * ((x - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2.0 * np.pi)


@pytest.mark.parametrize("constant", [0.0, -700.0, 1e4])
def test_sampled_i_projection_of_two_gaussians(constant):
    # KL(N(0.5, 0.8) || N(0, 1)) in closed form; four standard errors of 200,000 draws are below
    # 0.01.
    x = 2.0 * np.random.default_rng(0).standard_normal(200_000)
    parts = (
        gaussian_log_prob(x, 0.5, 0.8) + constant,
        gaussian_log_prob(x, 0.0, 1.0),
        gaussian_log_prob(x, 0.0, 2.0),
    )
    expected = -np.log(0.8) + (0.8**2 + 0.5**2 - 1.0) / 2.0
    assert sampled_i_projection(*parts) == pytest.approx(expected, abs=0.01)


def test_sampled_i_projection_of_a_lost_density_is_nan():
    log_q = np.array([0.0, np.nan, 0.0])
    assert np.isnan(sampled_i_projection(log_q, np.zeros(3), np.zeros(3)))
    outside = np.array([0.0, -np.inf, 0.0])  # no mass there: no matter
    assert sampled_i_projection(outside, np.zeros(3), np.zeros(3)) == pytest.approx(
        -np.log(2.0 / 3.0)
    )


def test_an_averaged_i_projection_is_one_for_each_context():
    rng = np.random.default_rng(0)
    log_q, log_p, log_mu = rng.standard_normal((3, 50, 4))
    each = [sampled_i_projection(log_q[:, m], log_p[:, m], log_mu[:, m]) for m in range(4)]
    found = averaged_i_projection(log_q, log_p, log_mu)
    assert found == pytest.approx(np.mean(each))
    of_contexts = log_q + [5.0, -3.0, 100.0, 0.0]
    assert averaged_i_projection(of_contexts, log_p, log_mu) == pytest.approx(found)


@pytest.mark.filterwarnings("error")
def test_a_reward_that_tells_nothing_has_no_correlation():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 50))
    assert correlation(x, y) == pytest.approx(
        np.mean((x - x.mean()) * (y - y.mean())) / x.std() / y.std()
    )
    assert correlation(x, 3.0 * x - 2.0) == pytest.approx(1.0)
    assert np.isnan(correlation(np.full(50, 0.1), y))
    assert np.isnan(correlation(x, np.where(y > 0.0, y, np.inf)))
