import functools
import itertools
import math

from virl_tf import InputError
from virl_tf.tasks import GridWalker, PathPlanning

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import chisquare, ks_2samp, kstest, norm

from tests.reference import walks as reference
from tests.test_grid_walker import SIGMAS, SPACING, VARIANCE, any_walks, cdf, walks_near_modes

GOAL_VARIANCE = 1e-3
UP = 0.6  # height of a step
# The first disc is on a waypoint of four of the six paths of four steps; the second is beside the
# paths.
OBSTACLES = [[1.6, 0.0], [2.4, 0.0]], [0.3, 0.25]


@pytest.fixture(scope="module")
def task():
    return PathPlanning(4)


@pytest.fixture(scope="module")
def blocked(task):
    return task.with_obstacles(*OBSTACLES)


@pytest.fixture(scope="module")
def draws(task):
    return task.exact_samples(3000, seed=1)


@pytest.fixture(scope="module")
def draws_of_six_steps():
    return PathPlanning(6).exact_samples(1200, seed=0)


@functools.lru_cache
def importance_sample(dim, n=20_000, goal_variance=GOAL_VARIANCE):
    """Magnitudes |x| [N, d], `sign_patterns` [2^d, d] and the weights [2^d, N] of each combination;
    their sum / N is Z.
    """
    magnitudes, weights = reference.weighted_magnitudes(n, dim, SPACING, VARIANCE, seed=5)
    return (
        magnitudes,
        reference.sign_patterns(dim),
        weights / 2**dim * reference.goal_densities(magnitudes, goal_variance),
    )


# --- normaliser -----------------------------------------------------------------------------------

GOALS = [
    (0.8, 1e-3, 1e-3),
    (0.8, 1e-3, 1e-4),
    (0.5, 1e-2, 1e-3),
    (0.2, 0.3, 0.01),
    (0.8, 10.0, 0.01),
]
WIDE_GOALS = [(0.8, 1e-3, goal_variance) for goal_variance in (0.1, 1.0, 10.0, 1e3)]


@pytest.mark.parametrize(("spacing", "variance", "goal_variance"), GOALS + WIDE_GOALS)
def test_the_normaliser_of_two_steps_is_the_integral_over_a_grid(spacing, variance, goal_variance):
    axis = np.linspace(-np.pi, np.pi, 800, endpoint=False)  # the trapezoidal rule on two circles
    table = reference.density_table([axis] * 2, spacing, variance, goal_variance)
    integral = table.sum() * (axis[1] - axis[0]) ** 2
    task = PathPlanning(2, spacing=spacing, variance=variance, goal_variance=goal_variance)
    np.testing.assert_allclose(task.log_normaliser, np.log(integral), atol=1e-6)


def test_the_normaliser_is_the_walkers_times_the_expected_density_at_the_goal():
    # Z / Z_walker = E[N(h_d^y; 0, goal_variance)] under the walker; the signs of a walk are fair
    # coins, so all are averaged.
    x, _ = GridWalker(4).exact_samples(10_000, seed=0)
    densities = reference.goal_densities(np.abs(x), GOAL_VARIANCE).mean(axis=0)
    error = densities.std() / densities.mean() / np.sqrt(len(x))
    assert error < 0.02
    expected = GridWalker(4).log_normaliser + np.log(densities.mean())
    assert abs(PathPlanning(4).log_normaliser - expected) < SIGMAS * error


@pytest.mark.parametrize(
    ("num_steps", "n", "goal_variance"), [(4, 20_000, 1e-3), (6, 20_000, 1e-3), (10, 1000, 1e-2)]
)
def test_the_normaliser_is_a_monte_carlo_estimate_within_its_error(num_steps, n, goal_variance):
    magnitudes, _, weights = importance_sample(num_steps, n, goal_variance)
    per_draw = weights.sum(axis=0)
    error = per_draw.std() / per_draw.mean() / np.sqrt(len(magnitudes))
    assert error < 0.03
    found = PathPlanning(num_steps, goal_variance=goal_variance).log_normaliser
    assert abs(found - np.log(per_draw.mean())) < SIGMAS * error


@pytest.mark.parametrize("goal_variance", [0.01, 0.1])
@pytest.mark.parametrize("variance", [1e-5, 1e-6, 1e-7, 1e-8])
def test_the_normaliser_of_narrow_lines_is_their_limits(variance, goal_variance):
    # Variance -> 0: 2^d walks of mass 1 / |sin x_1 ... sin x_d| each, and a binomial number of them
    # end at each height.
    ups = np.arange(5)
    heights = UP * (2 * ups - 4)
    walks = np.array([math.comb(4, up) for up in ups])
    limit = 4.0 * np.log(1.0 / UP) + np.log(walks @ norm.pdf(heights, 0.0, np.sqrt(goal_variance)))
    found = PathPlanning(4, variance=variance, goal_variance=goal_variance).log_normaliser
    # The height's variance grows by a few times the lines', as a share of the goal's.
    assert abs(found - limit) < 10.0 * variance / goal_variance + 100.0 * variance + 1e-6


def test_the_normaliser_of_a_narrow_goal_is_its_limit():
    # Goal variance -> 0, d = 2: sin x_2 = -sin x_1, so x_2 = -x_1 (the lines rule out the walks
    # with x_2 = x_1 + pi), with density 1 / |cos x_2|. The next term is of order goal variance /
    # variance of the height.
    angles, spread = np.linspace(0.0, 1.5, 30_001), np.sqrt(VARIANCE)
    on_lines = norm.pdf(np.cos(angles), SPACING, spread) * norm.pdf(
        2.0 * np.cos(angles), 2.0 * SPACING, spread
    )
    limit = np.log(2.0 * np.sum(on_lines / np.cos(angles)) * angles[1])
    assert abs(PathPlanning(2, goal_variance=1e-6).log_normaliser - limit) < 1e-3


# --- density and modes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_steps", "spacing", "variance", "goal_variance"),
    [(2, 0.3, 0.1, 0.5), (6, 0.8, 1e-3, 1e-3), (10, 0.8, 1e-3, 1e-2)],
)
def test_log_prob_is_the_references(num_steps, spacing, variance, goal_variance):
    task = PathPlanning(num_steps, spacing=spacing, variance=variance, goal_variance=goal_variance)
    x = np.concatenate(
        [
            any_walks(num_steps),
            walks_near_modes(task, 40).clip(-np.pi, np.pi),
            task.mode_centers[:2],
        ]
    )
    rewards = np.array([reference.reward(walk, spacing, variance, goal_variance) for walk in x])
    np.testing.assert_allclose(task.reward(x), rewards, rtol=1e-9)
    np.testing.assert_allclose(
        task.log_prob(x), rewards - task.log_normaliser, rtol=1e-9, atol=1e-8
    )


def test_outside_the_box_is_no_density(task):
    x = task.mode_centers[:3].copy()
    x[1, 2] += 2.0 * np.pi
    log_prob = task.log_prob(x).numpy()
    assert log_prob[1] == -np.inf
    assert np.isfinite(log_prob[[0, 2]]).all()
    np.testing.assert_allclose(
        task.reward(x), task.reward(task.mode_centers[:3]), rtol=1e-9
    )  # periodic


@pytest.mark.parametrize("num_steps", [2, 4, 6, 8, 10])
def test_modes_are_the_walks_with_as_many_steps_up_as_down(num_steps):
    centres = PathPlanning(num_steps).mode_centers
    assert centres.shape == (math.comb(num_steps, num_steps // 2), num_steps)
    balanced = [
        pattern for pattern in reference.sign_patterns(num_steps).tolist() if sum(pattern) == 0.0
    ]
    np.testing.assert_array_equal(sorted(np.sign(centres).tolist()), balanced)
    np.testing.assert_allclose(np.abs(centres), np.arccos(SPACING), rtol=1e-14)


def test_mode_centres_are_maxima_that_end_at_the_goal(task):
    centres = tf.constant(task.mode_centers)
    with tf.GradientTape() as tape:
        tape.watch(centres)
        heights = task.log_prob(centres)
    np.testing.assert_allclose(tape.gradient(heights, centres), 0.0, atol=1e-9)
    peak = -2.5 * np.log(2.0 * np.pi * 1e-3) - task.log_normaliser  # of five Gaussians
    np.testing.assert_allclose(heights, peak, rtol=1e-12)
    np.testing.assert_allclose(task.goal, [3.2, 0.0], rtol=1e-14)
    np.testing.assert_allclose(
        task.waypoints(task.mode_centers)[:, -1], np.tile(task.goal, (6, 1)), atol=1e-12
    )


@pytest.mark.parametrize("num_steps", [2, 6, 10])
def test_mode_centres_belong_to_themselves(num_steps):
    task = PathPlanning(num_steps)
    np.testing.assert_array_equal(
        task.modes_of(task.mode_centers), np.arange(len(task.mode_centers))
    )


def test_walks_that_miss_the_goal_belong_to_no_mode(task):
    unbalanced = [pattern for pattern in reference.sign_patterns(4) if pattern.sum() != 0.0]
    np.testing.assert_array_equal(task.modes_of(np.array(unbalanced) * np.arccos(SPACING)), -1)


def test_a_walk_belongs_to_its_mode_up_to_four_deviations_from_the_goal():
    # With wide lines only the goal decides. Turning the last step changes the height of the end by
    # a known amount.
    task = PathPlanning(4, variance=0.1)
    for deviations, expected in ((3.9, np.arange(6)), (4.1, -1), (-3.9, np.arange(6)), (-4.1, -1)):
        x = task.mode_centers.copy()
        x[:, -1] = np.arcsin(np.sin(x[:, -1]) + deviations * np.sqrt(GOAL_VARIANCE))
        np.testing.assert_array_equal(task.modes_of(x), np.broadcast_to(expected, 6))
    np.testing.assert_array_equal(task.modes_of(x, num_deviations=4.2), np.arange(6))


@pytest.mark.parametrize("bad", [2.0 * np.pi, np.nan, 0.5])
def test_walks_outside_the_box_or_off_the_lines_belong_to_no_mode(task, bad):
    x = task.mode_centers.copy()
    x[:, 1] += bad
    np.testing.assert_array_equal(task.modes_of(x), -1)


# --- draws ----------------------------------------------------------------------------------------


def test_draws_end_near_the_goal_and_most_belong_to_modes(task, draws):
    x, modes = draws
    assert np.abs(task.waypoints(x).numpy()[:, -1] - task.goal).max() < 6.0 * np.sqrt(1e-3)
    found = task.modes_of(x)
    assert np.mean(found >= 0) > 0.99
    np.testing.assert_array_equal(found[found >= 0], modes[found >= 0])
    np.testing.assert_array_equal(
        np.sign(x[modes >= 0]), np.sign(task.mode_centers[modes[modes >= 0]])
    )


def test_draws_with_unbalanced_signs_have_no_mode():
    # A goal so wide that other walks get there too.
    task = PathPlanning(4, goal_variance=0.5)
    x, modes = task.exact_samples(1000, seed=0)
    balanced = np.sign(x).sum(axis=1) == 0.0
    assert 0.5 < balanced.mean() < 0.9
    np.testing.assert_array_equal(modes >= 0, balanced)


def test_demonstrations_are_exact_draws(task, draws):
    np.testing.assert_array_equal(task.demonstrations(100, seed=1), draws[0][:100])


def test_draws_are_those_of_every_longer_call(task, draws):
    for n in (1, 700):
        x, modes = task.exact_samples(n, seed=1)
        np.testing.assert_array_equal(x, draws[0][:n])
        np.testing.assert_array_equal(modes, draws[1][:n])
    assert len(np.unique(draws[0], axis=0)) == len(draws[0])
    assert not np.isin(task.exact_samples(100, seed=2)[0], draws[0]).any()


def test_draws_of_two_steps_have_the_marginals_of_the_density():
    # Four Kolmogorov-Smirnov tests at 99.98 % each: together 99.9 % (Bonferroni).
    task = PathPlanning(2)
    x, modes = task.exact_samples(3000, seed=0)
    axis = np.linspace(-np.pi, np.pi, 1200, endpoint=False)
    density = reference.density_table([axis] * 2, SPACING, VARIANCE, GOAL_VARIANCE)
    half = axis[1] / 2.0 - axis[0] / 2.0  # a node's mass lies half a cell to either side
    for i in range(2):
        marginal = density.sum(axis=1 - i)
        assert kstest(x[:, i], cdf(axis + half, marginal)).pvalue > 2e-4
        both = np.bincount(np.arange(1200) // 2, marginal)  # the same in cells twice as wide
        assert kstest(x[:, i], cdf(axis[1::2] + half, both)).pvalue > 2e-4
    assert (
        chisquare(np.bincount(modes[modes >= 0], minlength=2)).pvalue > 1e-3
    )  # mirror images, 99.9 %


@pytest.mark.parametrize("num_steps", [4, 6])
def test_modes_have_the_masses_of_importance_sampling(request, num_steps):
    # Chi-square at 99.9 %; the expected shares have standard errors of about 2 %.
    draws = request.getfixturevalue({4: "draws", 6: "draws_of_six_steps"}[num_steps])
    _, signs, weights = importance_sample(num_steps)
    centres = PathPlanning(num_steps).mode_centers
    rows = [int(np.flatnonzero((signs == np.sign(centre)).all(axis=1))[0]) for centre in centres]
    masses = weights.sum(axis=1)[rows]
    assert weights.sum() * (1.0 - 1e-9) < masses.sum() <= weights.sum() * (1.0 + 1e-9)
    counts = np.bincount(draws[1], minlength=len(centres))
    assert chisquare(counts, counts.sum() * masses / masses.sum()).pvalue > 1e-3
    assert chisquare(counts).pvalue < 1e-3  # power: the masses are not equal
    if num_steps == 6:
        assert masses.max() / masses.min() == pytest.approx(2.0, abs=0.15)  # as the prototype found


@pytest.mark.parametrize("num_steps", [4, 6])
def test_marginals_are_those_of_importance_sampling(request, num_steps):
    # Kolmogorov-Smirnov tests of every |x_i| and every waypoint's height, at 99.9 % together
    # (Bonferroni).
    x, _ = request.getfixturevalue({4: "draws", 6: "draws_of_six_steps"}[num_steps])
    magnitudes, signs, weights = importance_sample(num_steps)
    used = weights.max(axis=1) > 1e-12 * weights.max()
    heights = np.cumsum(signs[used][:, None] * np.sin(magnitudes), axis=2)  # [patterns, N, d]
    level = 1e-3 / (2 * num_steps)
    for i in range(num_steps):
        assert kstest(np.abs(x[:, i]), cdf(magnitudes[:, i], weights.sum(axis=0))).pvalue > level
        found = np.sin(x[:, : i + 1]).sum(axis=1)
        assert kstest(found, cdf(heights[:, :, i].ravel(), weights[used].ravel())).pvalue > level


def test_the_tests_have_power(draws):
    # The walker's own magnitudes, without the goal's influence on them, fail.
    magnitudes, _, weights = importance_sample(4)
    walks, _ = GridWalker(4).exact_samples(3000, seed=0)
    assert (
        min(
            kstest(np.abs(walks[:, i]), cdf(magnitudes[:, i], weights.sum(axis=0))).pvalue
            for i in range(4)
        )
        < 1e-4
    )


# --- collisions -----------------------------------------------------------------------------------


def test_collisions_are_the_references(blocked):
    x = np.concatenate([any_walks(4, 20), walks_near_modes(blocked, 40, scale=0.2)])
    collides = blocked.collides(x).numpy()
    assert 0.2 < collides.mean() < 0.8
    for walk, found in zip(x, collides, strict=True):
        # 400 points per segment are 0.0025 apart: at distance 0.25 they overestimate by at most
        # 0.00125^2 / 0.5.
        gaps = [reference.distance_to(walk, c, 401) - r for c, r in zip(*OBSTACLES, strict=True)]
        assert abs(min(gaps)) > 1e-5
        assert found == (min(gaps) < 0.0)


def test_a_path_between_two_waypoints_outside_a_disc_may_still_cross_it(task):
    x = np.arccos(SPACING) * np.array(
        [[-1.0, -1.0, 1.0, 1.0]]
    )  # starts down: from the origin to (0.8, -0.6)
    assert task.with_obstacles([[0.4, -0.3]], 0.01).collides(x).numpy().all()
    beside = [0.4 + 0.6 * 0.02, -0.3 + 0.8 * 0.02]  # 0.02 across from the middle of the segment
    assert not task.with_obstacles([beside], 0.0199).collides(x).numpy().any()
    assert task.with_obstacles([beside], 0.0201).collides(x).numpy().all()


STRAIGHT = np.zeros(4)  # a walk along the x axis, from (0, 0) to (4, 0)


@pytest.mark.parametrize(
    ("center", "distance"),
    [
        ([0.5, 0.25], 0.25),  # beside a segment
        ([2.0, -0.5], 0.5),  # beside a waypoint
        ([-0.25, 0.0], 0.25),  # behind the start
        ([4.5, 0.0], 0.5),  # beyond the end
        ([-3.0, 4.0], 5.0),
        ([7.0, -4.0], 5.0),
    ],
    ids=str,
)
def test_a_path_that_grazes_a_disc_does_not_meet_it(task, center, distance):
    # All numbers are exact in binary: the path touches the circle. A little more, and it is inside.
    for radius, expected in (
        (distance, False),
        (distance * (1.0 + 1e-12), True),
        (distance * (1.0 - 1e-12), False),
    ):
        other = PathPlanning(4)
        other.obstacles = task.obstacles._replace(
            centers=np.array([center]), radii=np.array([radius])
        )
        assert bool(other.collides(STRAIGHT)) == expected
        assert (reference.distance_to(STRAIGHT, center) < radius) == expected


@pytest.mark.parametrize("shape", [(4,), (0, 4), (3, 4), (2, 3, 4)], ids=str)
def test_collisions_of_any_leading_axes(task, blocked, shape):
    x = np.random.default_rng(0).uniform(-1.0, 1.0, shape)
    for any_task in (task, blocked):
        found = any_task.collides(x)
        assert found.dtype == tf.bool
        np.testing.assert_array_equal(
            found, np.reshape(any_task.collides(x.reshape(-1, 4)), shape[:-1])
        )


def test_nothing_collides_without_obstacles(task):
    assert not task.collides(any_walks(4)).numpy().any()
    assert task.open_modes.all()
    assert task.open_modes.shape == (6,)


def test_open_modes_are_the_paths_that_miss_every_disc(blocked):
    # The disc at (1.6, 0) blocks the four paths that come back to height 0 after two steps.
    ups = np.sign(blocked.mode_centers)
    np.testing.assert_array_equal(blocked.open_modes, ups[:, 0] == ups[:, 1])
    for centre, is_open in zip(blocked.mode_centers, blocked.open_modes, strict=True):
        gaps = [reference.distance_to(centre, c, 401) - r for c, r in zip(*OBSTACLES, strict=True)]
        assert is_open == (min(gaps) > 0.0)


# --- tasks with obstacles -------------------------------------------------------------------------


def test_the_task_itself_stays_without_obstacles(task, draws):
    other = PathPlanning(4)
    before = other.log_prob(other.mode_centers).numpy()
    with_disc = other.with_obstacles(*OBSTACLES)
    with_disc.demonstrations(5, seed=1)
    assert len(with_disc.obstacles.radii) == 2
    assert len(other.obstacles.radii) == 0
    assert other.open_modes.all()
    np.testing.assert_array_equal(other.log_prob(other.mode_centers), before)
    np.testing.assert_array_equal(other.demonstrations(300, seed=1), draws[0][:300])


def test_the_new_task_has_the_same_settings():
    task = PathPlanning(
        2, spacing=0.6, variance=2e-3, goal_variance=3e-3, burn_in=7
    ).with_obstacles([[0.6, 0.8]], 0.1)
    assert (task.dim, task.spacing, task.variance, task.goal_variance, task.burn_in) == (
        2,
        0.6,
        2e-3,
        3e-3,
        7,
    )
    np.testing.assert_array_equal(task.mode_centers, PathPlanning(2, spacing=0.6).mode_centers)


def test_one_radius_is_for_all_discs(task):
    centers = [[2.0, 0.9], [1.0, 5.0], [2.0, -0.9]]
    one, each = task.with_obstacles(centers, 0.1), task.with_obstacles(centers, [0.1, 0.1, 0.1])
    np.testing.assert_array_equal(one.obstacles.radii, [0.1, 0.1, 0.1])
    np.testing.assert_array_equal(one.obstacles.centers, each.obstacles.centers)
    np.testing.assert_array_equal(one.obstacles.radii, each.obstacles.radii)


@pytest.mark.parametrize("changed", ["centers", "radii"])
def test_obstacles_are_copies_of_the_callers_arrays(task, changed):
    arrays = {"centers": np.array([[2.0, 0.9]]), "radii": np.array([0.1])}
    other = task.with_obstacles(**arrays)
    arrays[changed] += 100.0
    np.testing.assert_array_equal(other.obstacles.centers, [[2.0, 0.9]])
    np.testing.assert_array_equal(other.obstacles.radii, [0.1])


BAD_OBSTACLES = {
    "one point": ([1.6, 0.0], 0.1, "centers"),
    "points in space": ([[1.6, 0.0, 0.0]], 0.1, "centers"),
    "three axes": ([[[1.6, 0.0]]], 0.1, "centers"),
    "a number": (1.6, 0.1, "centers"),
    "no axes": ([], 0.1, "centers"),
    "ragged": ([[1.6, 0.0], [0.8]], 0.1, "centers"),
    "words": ([["left", "up"]], 0.1, "centers"),
    "none": (None, 0.1, "centers"),
    "a dictionary": ({"x": 1.6}, 0.1, "centers"),
    "complex": ([[1.6 + 1.0j, 0.0]], 0.1, "centers"),
    "NaN centre": ([[np.nan, 0.0]], 0.1, "centers"),
    "infinite centre": ([[1.6, -np.inf]], 0.1, "centers"),
    "too many radii": ([[1.6, 0.0]], [0.1, 0.2], "radii"),
    "too few radii": ([[1.6, 0.0]] * 3, [0.1, 0.2], "radii"),
    "radii with two axes": ([[1.6, 0.0]], [[0.1]], "radii"),
    "negative radius": ([[1.6, 0.0]], -0.1, "radii"),
    "one negative radius": ([[1.6, 0.0], [2.0, 0.9]], [0.1, -0.1], "radii"),
    "zero radius": ([[1.6, 0.0]], 0.0, "radii"),
    "NaN radius": ([[1.6, 0.0]], np.nan, "radii"),
    "infinite radius": ([[1.6, 0.0]], np.inf, "radii"),
    "word radius": ([[1.6, 0.0]], "wide", "radii"),
    "no radius": ([[1.6, 0.0]], None, "radii"),
}


@pytest.mark.parametrize("case", BAD_OBSTACLES)
def test_bad_obstacles_are_refused_by_name(task, case):
    centers, radii, name = BAD_OBSTACLES[case]
    with pytest.raises(InputError, match=f"obstacles: .*{name}"):
        task.with_obstacles(centers, radii)


@pytest.mark.parametrize(
    ("centers", "radii"),
    [
        ([[0.0, 0.0]], 0.1),
        ([[3.2, 0.0]], 0.1),
        ([[0.8, 0.6], [0.8, -0.6]], 0.1),
        ([[1.6, 0.0]], 1.3),
        ([[100.0, 0.0]], 99.9),
    ],
    ids=["the start", "the goal", "both first waypoints", "the middle", "nearly everything"],
)
def test_obstacles_that_block_every_path_are_refused(task, centers, radii):
    with pytest.raises(InputError, match="obstacles block every one of the 6 paths"):
        task.with_obstacles(centers, radii)


def test_no_discs_are_no_obstacles(task):
    other = task.with_obstacles(np.zeros((0, 2)), 0.1)
    assert other.open_modes.all()
    np.testing.assert_array_equal(
        other.log_prob(task.mode_centers), task.log_prob(task.mode_centers)
    )


@pytest.fixture(scope="module")
def unblocked_draws(blocked):
    return blocked.exact_samples(400, seed=3)


def test_demonstrations_of_a_task_with_obstacles_never_collide(blocked, unblocked_draws):
    x, modes = unblocked_draws
    assert not blocked.collides(x).numpy().any()
    assert np.isfinite(blocked.log_prob(x)).all()
    assert set(modes) == set(np.flatnonzero(blocked.open_modes))
    np.testing.assert_array_equal(blocked.demonstrations(50, seed=3), x[:50])


def test_demonstrations_of_a_task_with_obstacles_are_those_without_that_miss_them(
    task, blocked, draws, unblocked_draws
):
    # Kolmogorov-Smirnov tests, five at 99.98 %: together 99.9 % (Bonferroni).
    x = unblocked_draws[0]
    missing = draws[0][~blocked.collides(draws[0]).numpy()]
    assert len(missing) > 500
    for found, expected in [
        *zip(x.T, missing.T, strict=True),
        (task.log_prob(x), task.log_prob(missing)),
    ]:
        assert ks_2samp(found, expected).pvalue > 2e-4


def test_obstacles_that_leave_nothing_to_draw_are_an_error(monkeypatch):
    # The walker's sampler is replaced by one walk that collides: 100 batches of true draws would
    # take long.
    task = PathPlanning(2).with_obstacles([[0.8, 0.6]], 0.1)
    blocked = task.mode_centers[~task.open_modes]
    monkeypatch.setattr(
        GridWalker,
        "exact_samples",
        lambda self, n, seed: (np.repeat(blocked, n, axis=0), np.zeros(n, int)),
    )
    with pytest.raises(InputError, match=r"the obstacles .* leave almost no path to draw"):
        task.exact_samples(1, seed=0)


# --- -inf where a path collides -------------------------------------------------------------------


def test_log_prob_is_minus_infinity_exactly_where_a_path_collides(task, blocked):
    x = np.concatenate([any_walks(4), walks_near_modes(task, 60, scale=0.2), task.mode_centers])
    collides = blocked.collides(x).numpy()
    assert 0.1 < collides.mean() < 0.9
    np.testing.assert_array_equal(
        blocked.log_prob(x), np.where(collides, -np.inf, task.log_prob(x))
    )
    np.testing.assert_array_equal(blocked.reward(x), task.reward(x))
    assert blocked.log_normaliser == task.log_normaliser


@pytest.mark.parametrize(
    ("dtype", "jit_compile"), [(tf.float32, None), (tf.float64, False), (tf.float64, True)]
)
def test_any_log_density_avoids_the_obstacles(blocked, dtype, jit_compile):
    def recovered(x):
        return tf.cast(tf.reduce_sum(x**2, axis=-1), dtype)

    constrained = blocked.avoid_obstacles(recovered)
    if jit_compile is not None:
        constrained = tf.function(constrained, jit_compile=jit_compile)
    x = tf.constant(walks_near_modes(blocked, 60, scale=0.2))
    found = constrained(x)
    assert found.dtype == dtype
    np.testing.assert_allclose(
        found, np.where(blocked.collides(x), -np.inf, recovered(x)), rtol=1e-6
    )


def test_without_obstacles_a_log_density_stays_what_it_is(task):
    x = any_walks(4)

    def recovered(x):
        return tf.reduce_sum(tf.constant(x), axis=-1)

    np.testing.assert_array_equal(task.avoid_obstacles(recovered)(x), recovered(x))


def test_gradients_beside_obstacles_are_those_without(task, blocked):
    def gradient_of(any_task):
        @tf.function(autograph=False, jit_compile=True)
        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                values = any_task.log_prob(x)
            return tape.gradient(values, x)

        return gradient

    x = tf.constant(
        np.concatenate([walks_near_modes(task, 60), task.mode_centers])
    )  # some centres go through a disc's centre
    free = ~blocked.collides(x).numpy()
    assert 5 < free.sum() < 60
    found, expected = gradient_of(blocked)(x).numpy(), gradient_of(task)(x).numpy()
    np.testing.assert_allclose(found[free], expected[free], rtol=1e-9, atol=1e-9)
    assert np.isfinite(found).all()


# --- a share of blocked paths ---------------------------------------------------------------------


def nearest_blocked_share(num_steps, share):
    """By counting: of the choices of one to three inner waypoints, the nearest share of paths
    through them, and the choices.
    """
    paths = [
        pattern for pattern in itertools.product([-1, 1], repeat=num_steps) if sum(pattern) == 0
    ]
    visits = [{(i, sum(path[:i])) for i in range(1, num_steps)} for path in paths]
    best, choices = np.inf, []
    for count in (1, 2, 3):
        for choice in itertools.combinations(sorted(set.union(*visits)), count):
            blocked = sum(not visited.isdisjoint(choice) for visited in visits) / len(paths)
            if blocked < 1.0 and abs(blocked - share) < best - 1e-9:
                best, choices = abs(blocked - share), []
            if blocked < 1.0 and abs(abs(blocked - share) - best) < 1e-9:
                choices.append(
                    {(round(SPACING * i, 6), round(UP * height, 6) + 0.0) for i, height in choice}
                )
    return best, choices


@pytest.mark.parametrize(
    ("num_steps", "share"), [(2, 0.5), (4, 0.1), (4, 0.999), (6, 1.0 / 3.0), (6, 0.6)]
)
def test_the_blocked_share_is_the_nearest_possible(num_steps, share):
    best, choices = nearest_blocked_share(num_steps, share)
    task = PathPlanning(num_steps)
    for seed in range(3):
        other = task.with_blocked_share(share, seed)
        assert abs(np.mean(~other.open_modes) - share) == pytest.approx(best, abs=1e-9)
        assert {(round(x, 6), round(y, 6) + 0.0) for x, y in other.obstacles.centers} in choices
        np.testing.assert_array_equal(other.obstacles.radii, 0.25)


def test_obstacles_are_a_function_of_their_seed():
    task = PathPlanning(6)
    first, again = (task.with_blocked_share(0.33, seed=4).obstacles for _ in range(2))
    np.testing.assert_array_equal(first.centers, again.centers)
    assert len(task.obstacles.radii) == 0


def test_seeds_choose_among_all_obstacles_that_are_equally_good():
    _, choices = nearest_blocked_share(4, 0.5)
    assert len(choices) > 1
    task = PathPlanning(4)
    wanted, found = set(map(frozenset, choices)), set()
    # Each of k choices is missed by 12 k seeds with probability e^-12.
    for seed in range(12 * len(choices)):
        centers = task.with_blocked_share(0.5, seed).obstacles.centers.round(6) + 0.0
        found.add(frozenset(map(tuple, centers.tolist())))
        assert found <= wanted
        if found == wanted:
            break
    assert found == wanted


def test_small_discs_block_the_same_paths():
    task = PathPlanning(6)
    small, large = (task.with_blocked_share(0.33, 0, radius) for radius in (0.01, 0.25))
    np.testing.assert_array_equal(small.open_modes, large.open_modes)
    np.testing.assert_array_equal(small.obstacles.radii, 0.01)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_bad_shares_are_refused_by_name(task, share):
    with pytest.raises(InputError, match="share"):
        task.with_blocked_share(share, seed=0)


def test_bad_radii_and_seeds_are_refused_by_name(task):
    with pytest.raises(InputError, match="radius"):
        task.with_blocked_share(0.33, 0, 0.0)
    with pytest.raises(InputError, match="seed"):
        task.with_blocked_share(0.33, -1)


@pytest.mark.parametrize("radius", [3.0, 100.0])
def test_discs_that_leave_no_path_are_refused(task, radius):
    with pytest.raises(InputError, match=f"radius {radius} blocks every one of the 6 paths"):
        task.with_blocked_share(0.33, 0, radius)


# --- what is refused ------------------------------------------------------------------------------


def test_odd_numbers_of_steps_are_refused():
    with pytest.raises(InputError, match=r"num_steps must be even.*5"):
        PathPlanning(5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_steps": 0},
        {"num_steps": 12},
        {"spacing": 1.0},
        {"variance": 0.0},
        {"goal_variance": 0.0},
        {"burn_in": 0},
    ],
    ids=str,
)
def test_bad_arguments_are_refused_by_name(arguments):
    with pytest.raises(InputError, match=f"^{next(iter(arguments))} must be"):
        PathPlanning(**arguments)
