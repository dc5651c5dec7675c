"""Paths past fixed obstacles: density, draws, ways, outcomes."""

from virl_tf import InputError
from virl_tf.tasks import ObstacleField
from virl_tf.tasks.obstacles import MAX_OBSTACLES, Obstacles

import numpy as np
import pytest


def test_it_is_the_density_of_obstacles_in_one_context():
    task, conditional = ObstacleField(4, seed=3), Obstacles(4)
    x = task.demonstrations(50, seed=0)
    np.testing.assert_allclose(task.log_prob(x), conditional.log_prob(x, task.heights), rtol=1e-10)
    np.testing.assert_array_equal(task.heights, conditional.contexts(1, 3)[0])
    assert not np.allclose(task.heights, ObstacleField(4, seed=4).heights)
    assert float(task.log_prob(task.heights[None])[0]) == -np.inf


@pytest.mark.parametrize("n", [2, 5])
def test_its_integral_is_one(n):
    """By importance sampling from a wide Gaussian, within five standard errors of below 2 %."""
    task, rng, std = ObstacleField(n, seed=1), np.random.default_rng(0), 1.3
    x = std * rng.standard_normal((200_000, n))
    log_q = -0.5 * (x**2).sum(axis=1) / std**2 - n * np.log(std * np.sqrt(2.0 * np.pi))
    ratio = np.exp(task.log_prob(x) - log_q)
    error = ratio.std() / np.sqrt(len(x))
    assert error < 0.02
    assert abs(ratio.mean() - 1.0) < 5.0 * error


def test_draws_are_of_the_density():
    """The shares of the ways are those of importance-weighted draws."""
    task, rng = ObstacleField(2, seed=1), np.random.default_rng(0)
    x = 1.3 * rng.standard_normal((200_000, 2))
    log_q = -0.5 * (x**2).sum(axis=1) / 1.3**2
    weights = np.exp(task.log_prob(x) - log_q)
    expected = np.bincount(task.ways(x), weights, minlength=4) / weights.sum()
    draws = task.demonstrations(40_000, seed=5)  # of several blocks
    found = np.bincount(task.ways(draws), minlength=4) / len(draws)
    np.testing.assert_allclose(found, expected, atol=0.015)
    np.testing.assert_array_equal(task.demonstrations(1500, seed=5), draws[:1500])
    assert len(np.unique(draws, axis=0)) == len(draws)  # no block is there twice


def test_every_way_has_a_centre_and_a_number():
    task = ObstacleField(5, seed=0)
    np.testing.assert_array_equal(task.ways(task.mode_centers), np.arange(32))


def test_outcomes():
    task = ObstacleField(3, seed=0)
    one = task.outcome(np.repeat(task.mode_centers[:1], 10, axis=0))
    assert one == {"ways_covered": 1.0, "ways_entropy": 0.0}
    every = task.outcome(task.mode_centers)
    assert every == {"ways_covered": 8.0, "ways_entropy": pytest.approx(1.0)}


def test_pictures_have_a_point_and_a_polygon_for_each_obstacle():
    task = ObstacleField(3, seed=0)
    path = task.paths(task.heights[None])[0]
    assert path.tolist() == [[i + 1.0, height] for i, height in enumerate(task.heights)]
    np.testing.assert_allclose(task.outlines["obstacles"].mean(axis=1), path)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: ObstacleField(0), "num_obstacles must be"),
        (lambda: ObstacleField(MAX_OBSTACLES + 1), "num_obstacles must be"),
        (lambda: ObstacleField(2, seed=-1), "seed"),
        (lambda: ObstacleField(2).log_prob(np.zeros((3, 1))), "x must be"),
    ],
)
def test_wrong_arguments(call, text):
    with pytest.raises(InputError, match=text):
        call()
