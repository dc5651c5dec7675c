"""Near the demonstrations: what counts as near, and that a policy stays there."""

import numpy as np
import pytest
import tensorflow as tf

import virl_tf
from virl_tf.validation import InputError


def slow_near(demonstrations, quantile, points):
    """One distance at a time."""
    scale = demonstrations.std(axis=0)

    def distance(x, y):
        return np.sqrt((((x - y) / scale) ** 2).sum())

    own = [min(distance(x, y) for j, y in enumerate(demonstrations) if j != i) for i, x in enumerate(demonstrations)]
    most = np.quantile(own, quantile)
    return np.array([min(distance(x, y) for y in demonstrations) <= most for x in points])


@pytest.mark.parametrize(("dim", "width"), [(1, 1.0), (3, 1.0), (3, 1e-4)])
def test_near_is_what_a_slow_reference_calls_near(dim, width):
    """Also in two narrow lumps, where single precision would lose the distances."""
    rng = np.random.default_rng(dim)
    lumps = rng.choice([-1.0, 1.0], (60, 1)) + width * rng.normal(size=(60, dim))
    x = lumps * 10.0 ** np.arange(dim) + 1e3
    points = np.concatenate([x[:5], x[rng.integers(60, size=200)] + 2.0 * width * rng.normal(size=(200, dim)) * x.std(axis=0)])
    near = virl_tf.near_demonstrations(x, 0.9)(tf.constant(points)).numpy()
    np.testing.assert_array_equal(near, slow_near(x, 0.9, points))
    assert near[:5].all()
    assert 0 < near[5:].sum() < 200


def test_fresh_demonstrations_are_near_and_other_places_are_not():
    task = virl_tf.tasks.RandomGaussians(num_modes=5, seed=0, dim=10)
    near = virl_tf.near_demonstrations(task.demonstrations(12_000, seed=0))  # more than one chunk
    inside = near(task.demonstrations(2000, seed=1)).numpy().mean()
    assert inside >= 0.994  # 0.999 is expected; the binomial's 0.99999 bound at 2,000 draws
    between = task.mode_centers[:-1] + 0.5 * np.diff(task.mode_centers, axis=0)
    assert not near(between).numpy().any()
    assert not near(np.full((3, 10), [[np.nan], [np.inf], [-np.inf]])).numpy().any()


def test_a_policy_stays_near_although_the_reward_is_highest_elsewhere():
    """A bump that no demonstration ever saw, as a recovered reward can have it."""
    demonstrations = np.random.default_rng(0).normal(size=(500, 2))
    task = virl_tf.Mixture(*(tf.constant(a, tf.float64) for a in ([0.0], [[0.0, 0.0]], [np.eye(2)])))

    def reward(x):
        return tf.maximum(task.log_prob(x), 50.0 - 0.5 * tf.reduce_sum((x - 8.0) ** 2, axis=1))

    for support, share in ((None, 0.0), (virl_tf.near_demonstrations(demonstrations), 1.0)):
        policy = virl_tf.fit_policy(reward, 2, 3, seed=0, search=False, num_steps=100, support=support).policy
        draws, _ = policy.sample(2000, [0, 1])
        assert np.mean(np.linalg.norm(draws, axis=1) < 5.0) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"demonstrations": np.ones((5, 2))}, "constant"),
        ({"quantile": 0.0}, "quantile must be a finite number > 0"),
        ({"quantile": 1.5}, r"quantile must be in \(0, 1\], got 1.5"),
        ({"demonstrations": np.repeat([[0.0], [1.0]], 50, axis=0)}, "repeated"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {"demonstrations": np.random.default_rng(0).normal(size=(50, 2)), "quantile": 0.9}
    with pytest.raises(InputError, match=message):
        virl_tf.near_demonstrations(**{**arguments, **change})
