"""The planar robot against obvious NumPy and against itself."""

from virl_tf import InputError
from virl_tf.tasks import PlanarRobot, planar_robot

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import kstest, norm

from tests.test_grid_walker import cdf


@pytest.fixture(scope="module")
def robot():
    return PlanarRobot()


@pytest.fixture(scope="module")
def draws(robot):
    return robot.demonstrations(2000, 3)


@pytest.fixture(scope="module")
def short():
    """Three links, whose end effector is at a goal often enough under the prior alone."""
    return PlanarRobot(3, goals=[[1.8, 0.6], [-0.4, 2.0]], prior_std=0.6, likelihood_std=0.3)


def test_the_arm_and_its_reward_by_hand(robot):
    x = np.random.default_rng(0).normal(0.0, 0.3, (20, 10))
    for row, value, joints in zip(x, robot.reward(x).numpy(), robot.joints(x).numpy(), strict=True):
        position, direction = np.zeros(2), 0.0
        for i, angle in enumerate(row):
            np.testing.assert_allclose(joints[i], position, atol=1e-12)
            direction += angle
            position = position + [np.cos(direction), np.sin(direction)]
        np.testing.assert_allclose(joints[-1], position, atol=1e-12)
        stds = np.array([1.0] + [0.2] * 9)
        prior = np.sum(-0.5 * (row / stds) ** 2 - np.log(stds) - 0.5 * np.log(2 * np.pi))
        likelihoods = [
            -0.5 * np.sum((position - goal) ** 2) / 1e-4 - np.log(2 * np.pi * 1e-4)
            for goal in robot.goals
        ]
        assert value == pytest.approx(prior + max(likelihoods), rel=1e-10)


def test_links_have_length_one(robot):
    joints = robot.joints(np.random.default_rng(1).normal(size=(50, 10))).numpy()
    np.testing.assert_allclose(np.linalg.norm(np.diff(joints, axis=1), axis=2), 1.0, atol=1e-12)


def test_a_goal_that_is_named_twice_counts_once(monkeypatch):
    """As of goals near each other the nearest does; the proposal goes to both."""
    monkeypatch.setattr(planar_robot, "_PROPOSED", 30_000)  # enough for three links
    robots = [
        PlanarRobot(3, goals=[[1.8, 0.6]] * n, prior_std=0.6, likelihood_std=0.3) for n in (1, 2)
    ]
    once, twice = (robot.log_normaliser for robot in robots)
    assert twice == pytest.approx(once, abs=0.02)


def test_draws_and_the_normaliser_are_those_of_importance_sampling(short):
    # Three Kolmogorov-Smirnov tests at 99.97 % each: together 99.9 % (Bonferroni).
    x = short.prior_stds * np.random.default_rng(0).standard_normal((330_000, 3))
    log_prior = norm.logpdf(x, 0.0, short.prior_stds).sum(axis=1)
    weights = np.exp(short.reward(x).numpy() - log_prior)
    assert weights.std() / weights.mean() / np.sqrt(330_000) < 0.01  # the error
    assert short.log_normaliser == pytest.approx(np.log(weights.mean()), abs=0.04)
    draws = short.demonstrations(2000, 0)
    for i in range(3):
        assert kstest(draws[:, i], cdf(x[:, i], weights)).pvalue > 3e-4


@pytest.mark.slow
def test_draws_end_at_the_goals_with_the_likelihoods_spread(robot, draws):
    goals = robot.goals_of(draws, num_deviations=5.0)
    assert (goals >= 0).all()
    errors = (robot.joints(draws).numpy()[:, -1] - robot.goals[goals]) / robot.likelihood_std
    np.testing.assert_allclose(
        errors.std(axis=0), 1.0, atol=0.08
    )  # 5 standard deviations of 2,000 draws
    np.testing.assert_allclose(errors.mean(axis=0), 0.0, atol=0.12)


@pytest.mark.slow
def test_draws_are_symmetric(robot, draws):
    """Mirroring the arm swaps the goals above and below: as many of both, within 5 standard
    deviations. The one behind has the least, by the prior of the first joint.
    """
    counts = np.bincount(robot.goals_of(draws, 5.0), minlength=4)
    assert counts[2] == counts.min()
    assert abs(counts[1] - counts[3]) < 5.0 * np.sqrt(counts[1] + counts[3])
    assert np.abs(draws.mean(axis=0) / draws.std(axis=0)).max() < 5.0 / np.sqrt(2000)


def test_the_same_seed_gives_the_same_draws(short):
    first, again, other = (short.demonstrations(50, seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(again, first)
    assert not np.isin(other, first).any()


def test_mode_centers_reach_their_goals(robot):
    ends = robot.joints(robot.mode_centers).numpy()[:, -1]
    np.testing.assert_allclose(ends, robot.goals, atol=1e-9)
    np.testing.assert_allclose(np.ptp(robot.mode_centers[:, 1:], axis=1), 0.0, atol=1e-12)


def test_goals_are_counted_within_their_distance(robot):
    x = robot.mode_centers.copy()
    turned = (
        x + np.eye(10)[0] * 0.05 / 7.0
    )  # the end effector moves by 0.05: five standard deviations
    np.testing.assert_array_equal(
        robot.goals_of(np.concatenate([x, turned])), [0, 1, 2, 3, -1, -1, -1, -1]
    )


def test_it_compiles(robot):
    x = tf.constant(robot.mode_centers)
    compiled = tf.function(robot.reward, jit_compile=True)
    np.testing.assert_allclose(compiled(x), robot.reward(x), rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_links": 1}, "num_links"),
        ({"num_links": 2.5}, "num_links"),
        ({"goals": [[7.0, 0.0, 1.0]]}, "goals"),
        ({"goals": []}, "goals"),
        ({"goals": [[np.nan, 1.0]]}, "goals"),
        ({"goals": [[11.0, 0.0]]}, "arm's length"),
        ({"goals": [[0.0, 0.0]]}, "arm's length"),
        ({"prior_std": 0.0}, "prior_std"),
        ({"likelihood_std": -0.1}, "likelihood_std"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        PlanarRobot(**arguments)
