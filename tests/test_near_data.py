"""Near the demonstrations: what counts as near, what the reward becomes elsewhere, and that a
policy stays.
"""

import numpy as np
import pytest
import tensorflow as tf

import virl_tf
from virl_tf.validation import InputError


def slow_stay_near(reward, demonstrations, quantile, points):
    """One distance at a time."""
    scale = demonstrations.std(axis=0)

    def distance(x, y):
        return np.sqrt((((x - y) / scale) ** 2).sum())

    own = [
        min(distance(x, y) for j, y in enumerate(demonstrations) if j != i)
        for i, x in enumerate(demonstrations)
    ]
    limit, lowest = np.quantile(own, quantile), reward(demonstrations).min()
    beyond = (
        np.array([min(distance(x, y) for y in demonstrations) for x in points]) ** 2 / limit**2
        - 1.0
    )
    return np.where(
        beyond > 0.0, lowest - 100.0 * demonstrations.shape[1] * beyond, reward(points)
    ), beyond


@pytest.mark.parametrize(("dim", "width"), [(1, 1.0), (3, 1.0), (3, 1e-4)])
def test_it_is_the_slow_reference(dim, width):
    """Also in two narrow lumps, where single precision would lose the distances."""
    rng = np.random.default_rng(dim)
    lumps = rng.choice([-1.0, 1.0], (60, 1)) + width * rng.normal(size=(60, dim))
    x = lumps * 10.0 ** np.arange(dim) + 1e3
    points = np.concatenate(
        [
            x[:5],
            x[rng.integers(60, size=200)]
            + 2.0 * width * rng.normal(size=(200, dim)) * x.std(axis=0),
        ]
    )
    expected, beyond = slow_stay_near(lambda y: np.sin(y.sum(axis=1)), x, 0.9, points)
    found = virl_tf.stay_near(lambda y: tf.sin(tf.reduce_sum(y, axis=1)), x, 0.9)(
        tf.constant(points)
    ).numpy()
    # Rounding of squared distances, in units of the squared limit, times the steepness.
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=0.1 * dim)
    np.testing.assert_allclose(found[beyond < -1e-3], expected[beyond < -1e-3], rtol=1e-12)
    assert 5 < (beyond <= 0.0).sum() < 200


def test_fresh_demonstrations_are_near_and_other_places_are_not():
    task = virl_tf.tasks.RandomGaussians(num_modes=5, seed=0, dim=10)
    near = virl_tf.stay_near(task.log_prob, task.demonstrations(5000, seed=0))
    fresh = task.demonstrations(2000, seed=1)
    inside = np.isclose(near(fresh), task.log_prob(fresh)).mean()
    assert inside >= 0.994  # 0.999 is expected; the binomial's 0.99999 bound at 2,000 draws
    between = task.mode_centers[:-1] + 0.5 * np.diff(task.mode_centers, axis=0)
    assert (near(between).numpy() < task.log_prob(fresh).numpy().min()).all()


@pytest.mark.parametrize("search", [False, True])
def test_a_policy_stays_near_although_the_reward_is_highest_elsewhere(search):
    """A bump that no demonstration ever saw, as a recovered reward can have it."""
    demonstrations = np.random.default_rng(0).normal(size=(500, 2))
    task = virl_tf.Mixture(
        *(tf.constant(a, tf.float64) for a in ([0.0], [[0.0, 0.0]], [np.eye(2)]))
    )

    def reward(x):
        return tf.maximum(task.log_prob(x), 50.0 - 0.5 * tf.reduce_sum((x - 8.0) ** 2, axis=1))

    for target, share in ((reward, 0.0), (virl_tf.stay_near(reward, demonstrations), 1.0)):
        steps = {} if search else {"num_steps": 100}
        policy = virl_tf.fit_policy(target, 2, 3, seed=0, search=search, **steps).policy
        draws = policy.sample(2000, [0, 1])
        assert np.mean(np.linalg.norm(draws, axis=1) < 5.0) == pytest.approx(share, abs=0.02)


def test_places_that_the_reward_forbids_stay_forbidden():
    x = np.random.default_rng(0).normal(size=(100, 2))
    near = virl_tf.stay_near(
        lambda y: tf.where(y[:, 0] > 0.0, tf.constant(-np.inf, tf.float64), 0.0 * y[:, 0]), x
    )
    values = near(x).numpy()
    np.testing.assert_array_equal(values, np.where(x[:, 0] > 0.0, -np.inf, 0.0))
    assert near([[-50.0, 0.0]]).numpy()[0] < -500.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"demonstrations": np.ones((5, 2))}, "constant"),
        ({"quantile": 0.0}, "quantile must be a finite number > 0"),
        ({"steepness": -1.0}, "steepness must be a finite number > 0"),
        ({"quantile": 1.5}, r"quantile must be in \(0, 1\], got 1.5"),
        ({"demonstrations": np.repeat([[0.0, 1.0], [1.0, 0.0]], 50, axis=0)}, "repeated"),
        ({"log_prob": 3.0}, "log_prob must be a function"),
        ({"log_prob": lambda x: x}, "log_prob must give a number at each of the 50 demonstrations"),
        ({"log_prob": lambda x: x[:, 0] * np.nan}, "at some a finite one"),
    ],
)
def test_bad_arguments(change, message):
    arguments = {
        "log_prob": lambda x: x[:, 0],
        "demonstrations": np.random.default_rng(0).normal(size=(50, 2)),
        "quantile": 0.9,
    }
    with pytest.raises(InputError, match=message):
        virl_tf.stay_near(**{**arguments, **change})
