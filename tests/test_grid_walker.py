import itertools

from virl_tf import InputError
from virl_tf.tasks import GridWalker, slice_sampling

import numpy as np
import pytest
import tensorflow as tf
from scipy.integrate import quad
from scipy.stats import chisquare, ks_2samp, kstest

from tests.reference import walks as reference
from tests.shared import plain_graph

SPACING, VARIANCE = 0.8, 1e-3  # the paper's
N = 8000
DEMONSTRATED = 3000
# Estimates are compared with expectations at 4.4 standard errors: 99.999 % for one normal
# statistic, and the seeds are fixed.
SIGMAS = 4.4


@pytest.fixture(scope="module")
def task():
    return GridWalker()


@pytest.fixture(scope="module")
def exact(task):
    return task.exact_samples(N, seed=1)


@pytest.fixture(scope="module")
def demonstrations(task):
    return task.demonstrations(DEMONSTRATED, seed=0)


def walks_near_modes(task, n, scale=0.1, seed=0):
    """Random walks around random modes: where the density is neither zero nor flat."""
    rng = np.random.default_rng(seed)
    return task.mode_centers[
        rng.integers(len(task.mode_centers), size=n)
    ] + scale * rng.standard_normal((n, task.dim))


def any_walks(dim, n=40, seed=0):
    return np.random.default_rng(seed).uniform(-np.pi, np.pi, (n, dim))


def half_axis(num_cells):
    """Nodes on [0, pi] and weights of the trapezoidal rule for [-pi, pi]: the density is even in
    every angle.
    """
    weights = np.full(num_cells + 1, 2.0 * np.pi / num_cells)
    weights[[0, -1]] *= 0.5
    return np.linspace(0.0, np.pi, num_cells + 1), weights


def cdf(points, weights):
    """The distribution function of weighted points, linear in between."""
    order = np.argsort(points)
    levels = np.cumsum(weights[order])
    return lambda x: np.interp(x, points[order], levels / levels[-1])


# --- normaliser -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_steps", "published"), [(5, 6.0863), (6, 7.3045)])
def test_the_normaliser_is_the_published_one(num_steps, published):
    assert abs(GridWalker(num_steps).log_normaliser - published) < 5.1e-5


@pytest.mark.parametrize("variance", [0.1, 1e-3, 1e-5])
@pytest.mark.parametrize("spacing", [0.05, 0.5, 0.8, 0.99])
def test_the_normaliser_of_one_step_is_the_integral_over_the_angle(spacing, variance):
    mode = np.arccos(spacing)
    breaks = np.clip(mode + np.sqrt(variance) * np.linspace(-30.0, 30.0, 31), 0.0, np.pi)
    half = sum(
        quad(
            lambda angle: np.exp(reference.reward([angle], spacing, variance)),
            low,
            high,
            epsabs=0.0,
            epsrel=1e-8,
        )[0]
        for low, high in itertools.pairwise(np.unique([0.0, *breaks, np.pi]))
    )
    task = GridWalker(1, spacing=spacing, variance=variance)
    np.testing.assert_allclose(task.log_normaliser, np.log(2.0 * half), atol=1e-6)


OTHER_TASKS = [
    (0.8, 1e-3),
    (0.8, 1e-4),
    (0.5, 1e-2),
    (0.2, 0.3),
    (0.9, 1e-3),
    (0.99, 1e-3),
    (0.05, 1e-4),
    (0.8, 10.0),
    (0.5, 1e3),
]


@pytest.mark.parametrize(("spacing", "variance"), OTHER_TASKS)
def test_the_normaliser_of_two_steps_is_the_integral_over_a_grid(spacing, variance):
    axis, weights = half_axis(1000)
    integral = weights @ reference.density_table([axis] * 2, spacing, variance) @ weights
    task = GridWalker(2, spacing=spacing, variance=variance)
    np.testing.assert_allclose(task.log_normaliser, np.log(integral), atol=1e-6)


@pytest.mark.parametrize(("spacing", "variance"), [(0.8, 1e-3), (0.5, 1e-2)])
@pytest.mark.parametrize("num_steps", [3, 5, 10])
def test_the_normaliser_is_a_monte_carlo_estimate_within_its_error(num_steps, spacing, variance):
    _, weights = reference.weighted_magnitudes(100_000, num_steps, spacing, variance, seed=0)
    error = weights.std() / weights.mean() / np.sqrt(len(weights))
    assert error < 2e-3
    difference = GridWalker(num_steps, spacing=spacing, variance=variance).log_normaliser - np.log(
        weights.mean()
    )
    assert abs(difference) < SIGMAS * error


@pytest.mark.parametrize("variance", [1e-5, 1e-6, 1e-7, 1e-8])
@pytest.mark.parametrize("num_steps", [1, 5])
def test_the_normaliser_of_narrow_lines_is_their_limits(num_steps, variance):
    # Variance -> 0: each step's Gaussian becomes a point mass in cos x at two angles, 1 / |sin x|
    # wide. The next term is of order variance: -log(1 - 66 * variance) or so at d = 5.
    limit = num_steps * np.log(2.0 / 0.6)
    assert (
        abs(GridWalker(num_steps, variance=variance).log_normaliser - limit)
        < 100.0 * variance + 1e-6
    )


# --- density --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_steps", "spacing", "variance"),
    [(1, 0.8, 1e-3), (2, 0.3, 0.1), (5, 0.8, 1e-3), (10, 0.6, 1e-2)],
)
def test_log_prob_is_the_references(num_steps, spacing, variance):
    task = GridWalker(num_steps, spacing=spacing, variance=variance)
    x = np.concatenate(
        [
            any_walks(num_steps),
            walks_near_modes(task, 40).clip(-np.pi, np.pi),
            task.mode_centers[:3],
        ]
    )
    rewards = np.array([reference.reward(walk, spacing, variance) for walk in x])
    np.testing.assert_allclose(task.reward(x), rewards, rtol=1e-9)
    np.testing.assert_allclose(
        task.log_prob(x), rewards - task.log_normaliser, rtol=1e-9, atol=1e-8
    )


def test_the_reward_is_periodic(task):
    x = np.concatenate([any_walks(5), walks_near_modes(task, 40)])
    turns = np.random.default_rng(3).integers(-3, 4, x.shape)
    np.testing.assert_allclose(
        task.reward(x + 2.0 * np.pi * turns), task.reward(x), rtol=1e-9, atol=1e-8
    )


def test_the_reward_is_even_in_every_angle(task):
    x = any_walks(5)
    for signs in reference.sign_patterns(5):
        np.testing.assert_allclose(task.reward(signs * x), task.reward(x), rtol=1e-12)


@pytest.mark.parametrize(("angle", "step"), [(3.1416, 0), (-3.1416, 4), (np.inf, 4), (np.nan, 0)])
def test_outside_the_box_is_no_density(task, angle, step):
    x = task.mode_centers[:3].copy()
    x[1, step] = angle
    log_prob = task.log_prob(x).numpy()
    assert log_prob[1] == -np.inf
    assert np.isfinite(log_prob[[0, 2]]).all()
    np.testing.assert_array_equal(task.contains(x), [True, False, True])


@pytest.mark.parametrize("make", [np.array, tf.constant, lambda x: x], ids=["numpy", "tf", "list"])
@pytest.mark.parametrize("angle", [float(np.pi), float(-np.pi)])
def test_the_border_belongs_to_the_box(task, angle, make):
    for x in ([[angle] * 5], [[0.6, angle, 0.6, 0.6, 0.6]]):
        points = tf.constant(x, tf.float64) if make is tf.constant else make(x)
        np.testing.assert_allclose(
            task.log_prob(points), reference.reward(x[0], SPACING, VARIANCE) - task.log_normaliser
        )


@pytest.mark.parametrize("shape", [(5,), (0, 5), (1, 5), (2, 3, 5)])
def test_any_leading_axes(task, shape):
    x = np.random.default_rng(0).uniform(-4.0, 4.0, shape)
    flat = x.reshape(-1, 5)
    assert task.log_prob(x).dtype == tf.float64
    np.testing.assert_allclose(task.log_prob(x), np.reshape(task.log_prob(flat), shape[:-1]))
    np.testing.assert_allclose(task.reward(x), np.reshape(task.reward(flat), shape[:-1]))
    assert task.waypoints(x).shape == (*shape[:-1], 6, 2)


def test_log_prob_compiles_with_xla_and_sees_the_box(task):
    compiled = tf.function(task.log_prob, jit_compile=True)
    x = np.concatenate([any_walks(5), walks_near_modes(task, 40), task.mode_centers + 2.0 * np.pi])
    np.testing.assert_allclose(compiled(tf.constant(x)), task.log_prob(x), rtol=1e-9)


def test_gradients_are_the_derivatives(task):
    @tf.function(autograph=False, jit_compile=True)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = task.log_prob(x)
        return tape.gradient(values, x)

    x = walks_near_modes(task, 30)
    # d/dx_k of -sum_i e_i^2 / (2 variance): only waypoints from k on move, by -sin x_k.
    expected = np.zeros_like(x)
    for n, walk in enumerate(x):
        errors = [point[0] - SPACING * i for i, point in enumerate(reference.waypoints(walk))]
        for k in range(5):
            expected[n, k] = sum(errors[i] for i in range(k + 1, 6)) * np.sin(walk[k]) / VARIANCE
    np.testing.assert_allclose(gradient(tf.constant(x)), expected, rtol=1e-8, atol=1e-8)


# --- modes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_steps", "spacing"), [(1, 0.8), (3, 0.25), (5, 0.8), (10, 0.8)])
def test_mode_centres_are_all_sign_patterns(num_steps, spacing):
    centres = GridWalker(num_steps, spacing=spacing).mode_centers
    assert centres.shape == (2**num_steps, num_steps)
    expected = reference.sign_patterns(num_steps) * np.arccos(spacing)
    np.testing.assert_allclose(sorted(centres.tolist()), sorted(expected.tolist()), rtol=1e-14)


def test_rows_of_the_mode_centres_are_their_binary_digits(task):
    for row, centre in enumerate(task.mode_centers):
        assert [angle > 0.0 for angle in centre] == [
            digit == "1" for digit in reversed(f"{row:05b}")
        ]


@pytest.mark.parametrize(("spacing", "variance"), [(0.8, 1e-3), (0.3, 0.1)])
def test_mode_centres_are_maxima_of_equal_height(spacing, variance):
    task = GridWalker(4, spacing=spacing, variance=variance)
    centres = tf.constant(task.mode_centers)
    with tf.GradientTape() as tape:
        tape.watch(centres)
        heights = task.log_prob(centres)
    np.testing.assert_allclose(tape.gradient(heights, centres), 0.0, atol=1e-9)
    peak = -2.0 * np.log(2.0 * np.pi * variance) - task.log_normaliser  # of four Gaussians
    np.testing.assert_allclose(heights, peak, rtol=1e-12)
    around = task.mode_centers[:, None] + 0.01 * np.random.default_rng(0).standard_normal((20, 4))
    assert (task.log_prob(around).numpy() < peak).all()


def test_waypoints_are_the_references(task):
    x = any_walks(5)
    np.testing.assert_allclose(
        task.waypoints(x), [reference.waypoints(walk) for walk in x], atol=1e-12
    )


def test_walks_start_at_the_origin_and_take_unit_steps(task):
    points = task.waypoints(any_walks(5)).numpy()
    np.testing.assert_array_equal(points[:, 0], 0.0)
    np.testing.assert_allclose(np.linalg.norm(np.diff(points, axis=1), axis=2), 1.0, rtol=1e-12)


def test_mode_centres_hit_the_lines_going_up_or_down_by_six_tenths(task):
    points = task.waypoints(task.mode_centers).numpy()
    np.testing.assert_allclose(points[:, :, 0], np.tile(0.8 * np.arange(6), (32, 1)), atol=1e-12)
    np.testing.assert_allclose(
        np.diff(points[:, :, 1], axis=1), 0.6 * np.sign(task.mode_centers), atol=1e-12
    )


@pytest.mark.parametrize("num_steps", [1, 5, 10])
def test_mode_centres_belong_to_themselves(num_steps):
    task = GridWalker(num_steps)
    np.testing.assert_array_equal(task.modes_of(task.mode_centers), np.arange(2**num_steps))


@pytest.mark.parametrize("step", range(5))
def test_walks_off_a_line_belong_to_no_mode(task, step):
    # Only waypoint `step` is 3.9 or 4.1 standard deviations off: the step to it is too long, the
    # one after it too short.
    for deviations, expected in (
        (3.9, np.arange(32)),
        (4.1, -1),
        (-3.9, np.arange(32)),
        (-4.1, -1),
    ):
        cosines = np.full(5, SPACING)
        cosines[step] += deviations * np.sqrt(VARIANCE)
        if step < 4:
            cosines[step + 1] -= deviations * np.sqrt(VARIANCE)
        x = np.sign(task.mode_centers) * np.arccos(cosines)
        np.testing.assert_array_equal(task.modes_of(x), np.broadcast_to(expected, 32))
    np.testing.assert_array_equal(task.modes_of(x, num_deviations=4.2), np.arange(32))
    np.testing.assert_array_equal(task.modes_of(task.mode_centers + 0.001, num_deviations=0.01), -1)


@pytest.mark.parametrize("bad", [2.0 * np.pi, -2.0 * np.pi, np.nan, np.inf])
def test_walks_outside_the_box_belong_to_no_mode(task, bad):
    x = task.mode_centers.copy()
    x[:, 2] += bad  # the same walk in the plane, or none
    np.testing.assert_array_equal(task.modes_of(x), -1)


def test_exact_draws_belong_to_their_modes(task, exact):
    modes = task.modes_of(exact[0])
    found = modes >= 0
    assert found.mean() > 0.99  # 5 waypoints within 4 standard deviations: 0.9997
    np.testing.assert_array_equal(modes[found], exact[1][found])


# --- exact draws ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_steps", [1, 3, 5])
def test_exact_draws_have_equal_modes(num_steps):
    # Chi-square at 99.9 %.
    x, modes = GridWalker(num_steps).exact_samples(4000, seed=3)
    np.testing.assert_array_equal(
        modes, [int("".join("1" if a > 0.0 else "0" for a in walk[::-1]), 2) for walk in x]
    )
    assert chisquare(np.bincount(modes, minlength=2**num_steps)).pvalue > 1e-3


@pytest.mark.parametrize(("spacing", "variance"), [(0.8, 1e-3), (0.4, 0.05), (0.95, 0.01)])
def test_exact_draws_of_one_step_have_the_densitys_distribution(spacing, variance):
    # Kolmogorov-Smirnov at 99.9 %.
    axis, weights = half_axis(4000)
    density = weights * reference.density_table([axis], spacing, variance)
    x, _ = GridWalker(1, spacing=spacing, variance=variance).exact_samples(4000, seed=0)
    assert kstest(np.abs(x[:, 0]), cdf(axis, density)).pvalue > 1e-3


def test_exact_draws_of_narrow_lines_are_as_narrow():
    # Three Kolmogorov-Smirnov tests at 99.97 % each: together 99.9 %. In the limit the waypoints'
    # errors are independent.
    x, _ = GridWalker(3, variance=1e-7).exact_samples(2000, seed=0)
    for errors in np.cumsum(np.cos(x) - SPACING, axis=1).T:
        assert kstest(errors / np.sqrt(1e-7), "norm").pvalue > 3e-4


def test_exact_draws_of_two_steps_have_the_marginals_of_the_density():
    # Two Kolmogorov-Smirnov tests at 99.95 % each: together 99.9 % (Bonferroni).
    axis, weights = half_axis(1000)
    density = reference.density_table([axis] * 2, SPACING, VARIANCE)
    x, _ = GridWalker(2).exact_samples(4000, seed=0)
    assert kstest(np.abs(x[:, 0]), cdf(axis, weights * (density @ weights))).pvalue > 5e-4
    assert kstest(np.abs(x[:, 1]), cdf(axis, weights * (weights @ density))).pvalue > 5e-4


def test_exact_draws_of_five_steps_have_the_marginals_of_importance_sampling(exact):
    # Five Kolmogorov-Smirnov tests at 99.98 % each: together 99.9 %. The reference has 100,000
    # nearly equal weights.
    magnitudes, weights = reference.weighted_magnitudes(100_000, 5, SPACING, VARIANCE, seed=1)
    for i in range(5):
        assert kstest(np.abs(exact[0][:, i]), cdf(magnitudes[:, i], weights)).pvalue > 2e-4


def test_waypoints_of_exact_draws_keep_the_correlations_of_importance_sampling(exact):
    # The covariances of the waypoints' first coordinates: 15 estimates, of relative standard errors
    # of sqrt(2 / 8000) = 1.6 %.
    magnitudes, weights = reference.weighted_magnitudes(100_000, 5, SPACING, VARIANCE, seed=1)
    expected = np.cov(np.cumsum(np.cos(magnitudes) - SPACING, axis=1).T, aweights=weights)
    found = np.cov(np.cumsum(np.cos(exact[0]) - SPACING, axis=1).T)
    np.testing.assert_allclose(found, expected, atol=SIGMAS * 0.016 * VARIANCE)


def test_signs_of_exact_draws_do_not_depend_on_their_magnitudes(exact):
    # Five Kolmogorov-Smirnov tests at 99.98 % each: together 99.9 %.
    for column in exact[0].T:
        assert ks_2samp(column[column > 0.0], -column[column < 0.0]).pvalue > 2e-4


def test_exact_draws_are_a_function_of_their_seed(task, exact):
    again, modes = task.exact_samples(N, seed=1)
    np.testing.assert_array_equal(again, exact[0])
    np.testing.assert_array_equal(modes, exact[1])
    assert not np.isin(task.exact_samples(100, seed=2)[0], exact[0]).any()


def test_exact_draws_are_points_of_the_density(task, exact):
    assert exact[0].shape == (N, 5)
    assert exact[0].dtype == np.float64
    assert len(np.unique(exact[0], axis=0)) == N
    assert np.isfinite(task.log_prob(exact[0])).all()


# --- slice sampling against exact draws -----------------------------------------------------------


@pytest.mark.slow
def test_demonstrations_visit_all_modes_equally(task, demonstrations):
    # Chi-square at 99.9 %.
    modes = task.modes_of(demonstrations)
    assert np.mean(modes < 0) < 0.005
    assert chisquare(np.bincount(modes[modes >= 0], minlength=32)).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("step", range(5))
def test_marginals_are_those_of_exact_draws(demonstrations, exact, step):
    # Five Kolmogorov-Smirnov tests at 99.98 % each: together 99.9 % (Bonferroni).
    assert ks_2samp(demonstrations[:, step], exact[0][:, step]).pvalue > 2e-4


@pytest.mark.parametrize("step", range(1, 6))
@pytest.mark.parametrize("coordinate", [0, 1])
def test_waypoints_are_those_of_exact_draws(task, demonstrations, exact, step, coordinate):
    # Ten Kolmogorov-Smirnov tests at 99.99 % each: together 99.9 % (Bonferroni).
    found, expected = (
        task.waypoints(x).numpy()[:, step, coordinate] for x in (demonstrations, exact[0])
    )
    assert ks_2samp(found, expected).pvalue > 1e-4


def test_log_densities_are_those_of_exact_draws(task, demonstrations, exact):
    # Kolmogorov-Smirnov at 99.9 %: neither too peaked nor too wide within the modes.
    assert ks_2samp(task.log_prob(demonstrations), task.log_prob(exact[0])).pvalue > 1e-3


def test_the_tests_have_power(task, exact):
    # Draws of other distributions fail them: of lines half as wide again, and with one step in 20
    # turned up.
    wide = GridWalker(variance=1.5e-3).exact_samples(DEMONSTRATED, seed=0)[0]
    assert all(ks_2samp(np.abs(wide[:, i]), np.abs(exact[0][:, i])).pvalue < 2e-4 for i in range(5))
    assert ks_2samp(task.log_prob(wide), task.log_prob(exact[0])).pvalue < 1e-3
    x = exact[0][:DEMONSTRATED]
    turned = np.where(np.random.default_rng(0).uniform(size=x.shape) < 0.05, np.abs(x), x)
    assert chisquare(np.bincount(task.modes_of(turned) + 1, minlength=33)[1:]).pvalue < 1e-3


# --- other numbers of steps, and what is refused --------------------------------------------------


@pytest.mark.parametrize("num_steps", range(1, 11))
def test_every_allowed_number_of_steps_works(num_steps):
    task = GridWalker(num_steps)
    assert task.dim == num_steps
    assert task.mode_centers.shape == (2**num_steps, num_steps)
    assert np.isfinite(task.log_normaliser)
    x, modes = task.exact_samples(50, seed=0)
    assert x.shape == (50, num_steps)
    assert np.isfinite(task.log_prob(x)).all()
    assert np.mean(task.modes_of(x) == modes) > 0.9


def test_demonstrations_of_ten_steps_are_near_the_modes(monkeypatch):
    monkeypatch.setattr(slice_sampling, "_BLOCK", 100)  # chains: no more than are asked for
    monkeypatch.setattr(slice_sampling, "compiled", plain_graph)
    task = GridWalker(10)
    x = task.demonstrations(100, seed=0)
    assert x.shape == (100, 10)
    assert np.mean(task.modes_of(x) >= 0) > 0.95


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_steps": 0},
        {"num_steps": 11},
        {"spacing": 1.0},
        {"spacing": 0.0},
        {"variance": 0.0},
        {"burn_in": 0},
    ],
    ids=str,
)
def test_bad_arguments_are_refused_by_name(arguments):
    with pytest.raises(InputError, match=next(iter(arguments))):
        GridWalker(**arguments)


@pytest.mark.parametrize("num_steps", [np.int64(3), np.uint8(3)])
def test_numpy_numbers_are_numbers(num_steps):
    task = GridWalker(num_steps, spacing=np.float32(0.5), variance=np.float64(0.01))
    assert (task.dim, task.spacing, task.variance) == (3, 0.5, 0.01)
    assert type(task.dim) is int
