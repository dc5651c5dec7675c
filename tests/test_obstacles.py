"""Paths past obstacles: the conditional truth in closed form."""

import itertools

from virl_tf import InputError
from virl_tf.tasks.obstacles import MAX_OBSTACLES, Obstacles

import numpy as np
import pytest
import tensorflow as tf


def by_hand(task, x, c):
    """Unnormalised log p(x | c) of one path."""
    prior = -0.5 * x @ np.linalg.solve(task.covariance, x)
    prior -= 0.5 * np.linalg.slogdet(2.0 * np.pi * task.covariance)[1]
    blocked = [np.exp(-0.5 * ((a - b) / task.width) ** 2) for a, b in zip(x, c, strict=True)]
    return prior + sum(np.log1p(-g) for g in blocked)


@pytest.mark.parametrize("n", [1, 2])
def test_the_normaliser_agrees_with_quadrature(n):
    task = Obstacles(n, spread=1.3, width=0.4)
    axis = np.linspace(-9.0, 9.0, 601 if n == 2 else 20_001)
    grid = np.stack(np.meshgrid(*[axis] * n, indexing="ij"), axis=-1).reshape(-1, n)
    for c in task.contexts(3, seed=1):
        total = np.exp(task.log_prob(grid, c)).sum() * (axis[1] - axis[0]) ** n
        assert total == pytest.approx(1.0, abs=1e-4)


def test_its_density_by_loops():
    task = Obstacles(4, width=0.2, smoothness=1.5)
    c, x = task.demonstrations(6, seed=0)
    expected = [by_hand(task, *pair) for pair in zip(x, c, strict=True)]
    found = task.log_prob(x, c) + task.log_normaliser(c)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found.dtype == tf.float64
    np.testing.assert_allclose(task.log_prob(x[:, None], c[0])[:, 0], task.log_prob(x, c[0]))


def test_the_share_that_passes_is_the_normaliser():
    task, c = Obstacles(3), np.array([0.1, -0.5, 0.8])
    draws = np.random.default_rng(0).multivariate_normal(np.zeros(3), task.covariance, 200_000)
    shares = np.exp([by_hand(task, x, c) for x in draws[:2000]])
    shares /= np.exp([by_hand(task, x, c + 1e6) for x in draws[:2000]])
    expected = np.exp(float(task.log_normaliser(c)))
    assert abs(shares.mean() - expected) < 5.0 * shares.std() / np.sqrt(len(shares))


def test_draws_are_of_the_density():
    """E[q / p] = 1 for a Gaussian q that lies within one way."""
    task, n = Obstacles(3), 40_000
    c = np.tile([0.1, -0.5, 0.8], (n, 1))
    x = task.sample(c, seed=1)
    mean, std = c[0] + 0.6, 0.1
    log_q = -0.5 * (((x - mean) / std) ** 2).sum(axis=1) - 1.5 * np.log(2.0 * np.pi * std**2)
    ratio = np.exp(log_q - task.log_prob(x, c))
    assert ratio.mean() == pytest.approx(1.0, abs=5.0 * ratio.std() / np.sqrt(n))
    counts = np.bincount(task.ways(x, c), minlength=task.num_ways)
    assert (counts > 0).all()


def test_every_way_has_a_number():
    task, c = Obstacles(3), np.zeros((8, 3))
    sides = np.array(list(itertools.product([-1.0, 1.0], repeat=3)))
    assert sorted(task.ways(sides, c)) == list(range(task.num_ways))
    assert task.ways([[1.0, -1.0, -1.0]], c[:1]) == [1]
    assert float(task.log_prob([0.3, 0.5, 0.7], [0.3, -1.0, -1.0])) == -np.inf


def test_seeds():
    task = Obstacles(2)
    first, again, other = (np.hstack(task.demonstrations(50, seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.isin(other, first).any()
    assert np.abs(first[:, :2]).max() <= task.spread


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Obstacles(0), "num_obstacles must be"),
        (lambda: Obstacles(MAX_OBSTACLES + 1), "num_obstacles must be"),
        (lambda: Obstacles(2, width=0.0), "width must be"),
        (lambda: Obstacles(2, spread=np.nan), "spread must be"),
        (lambda: Obstacles(2, smoothness=-1.0), "smoothness must be"),
        (lambda: Obstacles(2).sample(np.zeros((3, 1))), r"c must have shape \[N, 2\]"),
        (lambda: Obstacles(2).sample(np.zeros((3, 2)), -1), "seed"),
        (lambda: Obstacles(2).log_prob(np.zeros((3, 2)), np.zeros((3, 1))), "c must be"),
    ],
)
def test_wrong_arguments(call, text):
    with pytest.raises(InputError, match=text):
        call()
