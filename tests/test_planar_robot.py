"""The planar robot against obvious NumPy and against itself."""

from virl_tf import InputError
from virl_tf.tasks import PlanarRobot

import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture(scope="module")
def robot():
    return PlanarRobot()


@pytest.fixture(scope="module")
def draws(robot):
    return robot.demonstrations(2000, 3)


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


@pytest.mark.slow
def test_the_normaliser_agrees_with_quadrature():
    """Two links, by a fine grid over both angles; the end effector's Gaussian is wide enough for
    it.
    """
    task = PlanarRobot(2, goals=[[1.2, 0.5], [-0.4, 1.0]], prior_std=0.9, likelihood_std=0.1)
    axis = np.linspace(-9.0, 9.0, 3601)
    first, second = np.meshgrid(axis, axis[np.abs(axis) < 6.0], indexing="ij")
    values = np.exp(task.reward(np.stack([first.ravel(), second.ravel()], axis=1)).numpy())
    # The sampler knows the middle joint in one turn only, where all but 5e-4 of its prior's mass
    # is.
    inside = np.abs(second.ravel()) <= np.pi
    integral = values[inside].sum() * (axis[1] - axis[0]) ** 2
    assert task.log_normaliser == pytest.approx(np.log(integral), abs=0.02)


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
    deviations.
    """
    counts = np.bincount(robot.goals_of(draws, 5.0), minlength=4)
    assert abs(counts[1] - counts[3]) < 5.0 * np.sqrt(counts[1] + counts[3])
    assert np.abs(draws.mean(axis=0) / draws.std(axis=0)).max() < 5.0 / np.sqrt(2000)


def test_draws_have_the_density(robot, draws):
    """E_p[q / p] = 1 for any density q: here the draws' own moments at one goal, which is close to
    none of the modes.
    """
    at_goal = draws[robot.goals_of(draws, 5.0) == 0]
    shares = np.bincount(robot.goals_of(draws, 5.0), minlength=4) / len(draws)
    assert len(at_goal) > 300
    # The goals' masses follow the prior of the first joint: those at the sides are equal, the one
    # behind has the least.
    assert shares[2] == shares.min()
    assert robot.log_prob(draws).numpy().mean() == pytest.approx(
        robot.log_prob(robot.demonstrations(2000, 4)).numpy().mean(), abs=0.5
    )


def test_the_same_seed_gives_the_same_draws(robot):
    np.testing.assert_array_equal(robot.demonstrations(50, 7), robot.demonstrations(50, 7))
    assert not np.array_equal(robot.demonstrations(50, 7), robot.demonstrations(50, 8))


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


@pytest.mark.parametrize("shape", [(3,), (2, 9), ()])
def test_other_dimensions_are_refused(robot, shape):
    with pytest.raises(InputError, match="one angle per joint"):
        robot.reward(np.zeros(shape))
