"""Paths executed in an environment: a point mass, and Gymnasium's arm that reaches for a target."""

import types

import virl_tf
from virl_tf import InputError

import numpy as np
import pytest

from experiments.own_data.tracking import track


class PointMass:
    """Gymnasium's interface: a unit mass [2], pushed once per step; late after `most` steps."""

    action_space = types.SimpleNamespace(low=-np.ones(2), high=np.ones(2))

    def __init__(self, most=1000):
        self.most, self.pushes = most, []

    def reset(self, seed=None):
        self.x, self.v = np.random.default_rng(seed).normal(size=2), np.zeros(2)
        return np.concatenate([self.x, self.v]), {}

    def step(self, action):
        self.pushes.append(action)
        self.v = self.v + action
        self.x = self.x + self.v
        late = len(self.pushes) == self.most
        return np.concatenate([self.x, self.v]), -np.abs(self.x).sum(), False, late, {}


def halves(seen):
    return seen[:2], seen[2:]


def circle(steps=200):
    angle = np.linspace(0.0, 2.0 * np.pi, steps)
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def test_a_path_is_followed_and_rewards_are_summed():
    environment = PointMass()
    found = track(environment, circle(), halves, (0.2, 0.7), seed=3)
    assert found.positions.shape == (201, 2)
    np.testing.assert_array_equal(found.positions[0], environment.reset(seed=3)[0][:2])
    assert np.linalg.norm(found.positions[51:] - circle()[50:], axis=1).max() < 0.05
    assert found.total == pytest.approx(-np.abs(found.positions[1:]).sum())


def test_actions_keep_their_bounds_and_an_episode_its_end():
    environment = PointMass(most=7)
    found = track(environment, 1e6 * circle(), halves, (1.0, 0.0))
    assert found.positions.shape == (8, 2)
    assert np.abs(environment.pushes).max() == 1.0


@pytest.mark.parametrize("path", [np.zeros((5, 3)), np.zeros(5), np.full((5, 2), np.nan)])
def test_paths_that_cannot_be_followed(path):
    with pytest.raises(InputError, match=r"path must be finite numbers \[T, 2\]"):
        track(PointMass(), path, halves, (1.0, 1.0))


# --- Reacher: an arm of two links, which has two ways to a target ---------------------------------

GOAL, LINKS, STEPS, GAINS = np.array([0.10, 0.08]), (0.10, 0.11), 50, (2.0, 20.0)


def reacher():
    """Reacher-v5 with one target, and its observation's joint angles and their speed per step."""
    gymnasium = pytest.importorskip("gymnasium", reason="extra `gymnasium`")
    pytest.importorskip("mujoco", reason="extra `gymnasium`")

    class OneTarget(gymnasium.Wrapper):
        def reset(self, **options):
            self.env.reset(**options)
            base = self.env.unwrapped
            places, speeds = base.data.qpos.copy(), base.data.qvel.copy()
            places[2:] = GOAL
            base.set_state(places, speeds)
            return base._get_obs(), {}

    environment = OneTarget(gymnasium.make("Reacher-v5"))
    dt = environment.unwrapped.dt
    return environment, lambda seen: (np.arctan2(seen[2:4], seen[:2]), dt * seen[6:8])


def bent(goal, side):
    """The angles that reach a goal with the elbow on one side."""
    first, second = LINKS
    bend = side * np.arccos((goal @ goal - first**2 - second**2) / (2.0 * first * second))
    inner = np.arctan2(second * np.sin(bend), first + second * np.cos(bend))
    return np.array([np.arctan2(goal[1], goal[0]) - inner, bend])


def demonstrate(environment, joints, seed):
    """A minimum-jerk reach with the elbow on either side, as it went."""
    rng = np.random.default_rng(seed)
    end = bent(GOAL + rng.normal(0.0, 0.004, 2), rng.choice([-1.0, 1.0]))
    s = np.clip(np.arange(1, STEPS + 1) / rng.uniform(18.0, 26.0), 0.0, 1.0)[:, None]
    start, _ = joints(environment.reset(seed=seed)[0])
    path = start + s**3 * (10.0 - 15.0 * s + 6.0 * s**2) * (end - start)
    return track(environment, path, joints, GAINS, seed=seed)


@pytest.mark.slow
def test_a_policy_reaches_as_its_demonstrations_do():
    environment, joints = reacher()
    shown = [demonstrate(environment, joints, seed) for seed in range(100)]
    paths = np.stack([episode.positions for episode in shown])
    encoding = virl_tf.fit_encoding(paths)
    policy = virl_tf.fit(encoding.encode(paths), seed=0).policy
    draws = encoding.decode(policy.sample(100, seed=0)).numpy()

    def mean_return(chosen):
        each = [track(environment, p[1:], joints, GAINS, 1000 + i) for i, p in enumerate(chosen)]
        return np.mean([episode.total for episode in each])

    expert = np.mean([episode.total for episode in shown])
    of_policy, of_mean = mean_return(draws), mean_return([paths.mean(axis=0)] * 20)
    assert expert - 0.8 < of_policy
    assert of_mean < of_policy - 0.4
    assert 0.2 < (draws[:, -1, 1] > 0.0).mean() < 0.8
