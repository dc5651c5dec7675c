import numpy as np
import pytest
from scipy.stats import multivariate_normal

from virl_tf.metrics import best_final_reported, grid_around, i_projection, normalise_on_grid

GRID = grid_around(np.array([[-12.0, -12.0], [12.0, 12.0]]), 400, 0.0)
MEAN_1, COVARIANCE_1 = np.array([0.5, -0.3]), np.array([[1.0, 0.3], [0.3, 0.8]])
MEAN_2, COVARIANCE_2 = np.array([-0.4, 0.6]), np.array([[1.5, -0.2], [-0.2, 1.1]])


def gaussian_kl(mean_1, covariance_1, mean_2, covariance_2):
    """KL(N_1 || N_2) in closed form."""
    precision, difference = np.linalg.inv(covariance_2), mean_2 - mean_1
    log_det = np.log(np.linalg.det(covariance_2) / np.linalg.det(covariance_1))
    return 0.5 * (np.trace(precision @ covariance_1) + difference @ precision @ difference - len(mean_1) + log_det)


# --- I-projection -------------------------------------------------------------------------------------------------------


def test_i_projection_of_gaussians_is_the_closed_form():
    log_1, log_2 = (multivariate_normal(m, c).logpdf(GRID.points) for m, c in ((MEAN_1, COVARIANCE_1), (MEAN_2, COVARIANCE_2)))
    forward = gaussian_kl(MEAN_1, COVARIANCE_1, MEAN_2, COVARIANCE_2)
    backward = gaussian_kl(MEAN_2, COVARIANCE_2, MEAN_1, COVARIANCE_1)
    assert abs(forward - backward) > 0.1  # so that the direction is tested
    np.testing.assert_allclose(i_projection(log_1, log_2), forward, rtol=1e-6)
    np.testing.assert_allclose(i_projection(log_2, log_1), backward, rtol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_i_projection_is_positive_for_different_densities(seed):
    rng = np.random.default_rng(seed)
    assert i_projection(3.0 * rng.standard_normal(200), 3.0 * rng.standard_normal(200)) > 0.1


@pytest.mark.parametrize("constant", [-1e5, -3.0, 0.0, 700.0, 1e5])
def test_i_projection_ignores_constants(constant):
    rng = np.random.default_rng(0)
    log_q, log_p = rng.standard_normal(200), rng.standard_normal(200)
    assert abs(i_projection(log_q, log_q + constant)) < 1e-9
    np.testing.assert_allclose(i_projection(log_q + constant, log_p - constant), i_projection(log_q, log_p), rtol=1e-8)


def test_i_projection_by_hand():
    # q = (3/4, 1/4), p = (1/2, 1/2)
    found = i_projection(np.log([3.0, 1.0]), np.zeros(2))
    np.testing.assert_allclose(found, 0.75 * np.log(1.5) + 0.25 * np.log(0.5), rtol=1e-14)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_points_where_q_is_zero_count_nothing():
    log_q = np.log([3.0, 1.0, 1.0])
    log_q[2] = -np.inf
    np.testing.assert_allclose(i_projection(log_q, np.zeros(3)), 0.75 * np.log(2.25) + 0.25 * np.log(0.75), rtol=1e-12)
    np.testing.assert_allclose(i_projection(log_q, np.array([0.0, 0.0, -np.inf])), 0.75 * np.log(1.5) + 0.25 * np.log(0.5))


def test_q_where_p_is_zero_is_infinitely_far():
    assert i_projection(np.zeros(3), np.array([0.0, 0.0, -np.inf])) == np.inf


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("bad", [[np.inf], [np.nan], [np.inf, np.inf], [np.nan, -np.inf], 5 * [-np.inf]])
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


# --- grid ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("resolution", [2, 7])
def test_the_grid_is_the_widened_box_of_the_data(resolution, margin):
    data = np.array([[-1.0, 10.0], [0.0, 20.0], [3.0, 12.0]])
    grid = grid_around(data, resolution, margin)
    low, high = np.array([-1.0 - 4.0 * margin, 10.0 - 10.0 * margin]), np.array([3.0 + 4.0 * margin, 20.0 + 10.0 * margin])
    assert grid.points.shape == (resolution**2, 2)
    assert grid.axes.shape == (2, resolution)
    np.testing.assert_allclose(grid.axes[:, 0], low)
    np.testing.assert_allclose(grid.axes[:, -1], high)
    np.testing.assert_allclose(np.diff(grid.axes, axis=1), np.tile((high - low)[:, None] / (resolution - 1), resolution - 1))


def test_the_second_coordinate_varies_fastest():
    grid = grid_around(np.array([[0.0, 5.0], [2.0, 7.0]]), 3, 0.0)
    expected = [[x, y] for x in (0.0, 1.0, 2.0) for y in (5.0, 6.0, 7.0)]
    np.testing.assert_allclose(grid.points, expected)


def test_the_papers_grid_has_100_points_a_side():
    assert grid_around(np.random.default_rng(0).standard_normal((20, 2))).points.shape == (10_000, 2)


# --- reported numbers ---------------------------------------------------------------------------------------------------


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
