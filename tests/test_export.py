"""Exports: the same numbers and gradients without this package, and rewards where environments and
learners of others ask for them.
"""

import copy
import subprocess
import sys
import types

import virl_tf
from virl_tf.domain import make_domain
from virl_tf.export import gymnasium_wrapper, imitation_reward, saved_model
from virl_tf.validation import InputError

import numpy as np
import pytest
import tensorflow as tf

from tests.shared import make_mixture, make_network, make_reward

# --- SavedModel -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def density():
    """Networks on a mixture, in a box one of whose sides is a turn."""
    reward = make_reward([make_network(seed=seed) for seed in range(3)])
    x = 2.0 * np.random.default_rng(0).standard_normal((100, 2))
    return reward._replace(domain=make_domain(x, ("a", "b"), {"a": 20.0}, (None, {"b": 20.0})))


@pytest.fixture(scope="module")
def exported(density, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "deep" / "reward"
    saved_model(density, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["reward"]
    return folder


@pytest.fixture(scope="module")
def loaded(exported):
    return tf.saved_model.load(str(exported))


def test_a_saved_reward_has_the_rewards_numbers(density, loaded, points):
    points = np.concatenate([points, [[35.0, 0.0], [0.0, 25.0]]])  # another turn; out of the box
    expected = density(points).numpy()
    assert expected[-1] == -np.inf
    assert np.isfinite(expected[:-1]).all()
    for number in (52, 1, 0):  # the networks are float32, whose sums depend on how many rows
        x = tf.constant(points[:number])
        np.testing.assert_allclose(loaded.log_prob(x), expected[:number], rtol=1e-6)
    single = loaded.log_prob(tf.constant(points, tf.float32))
    assert single.dtype == tf.float32
    np.testing.assert_allclose(single, expected, rtol=1e-5, atol=1e-5)


def test_a_saved_reward_has_the_rewards_gradients(density, loaded, points):
    x = tf.constant(points)
    gradients = []
    for function in (density, loaded.log_prob):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x)
        gradients.append(tape.gradient(value, x).numpy())
    assert np.abs(gradients[0]).max() > 0.1
    np.testing.assert_allclose(*gradients, rtol=1e-5, atol=1e-6)


def test_servers_find_signatures(loaded, density, points):
    signatures = loaded.signatures
    assert set(signatures) == {"serving_default", "float32"}
    for name, dtype in (("serving_default", tf.float64), ("float32", tf.float32)):
        (given,) = signatures[name].structured_input_signature[1].values()
        assert (given.name, given.dtype, given.shape.as_list()) == ("x", dtype, [None, 2])
        (found,) = signatures[name](x=tf.constant(points, dtype)).values()
        np.testing.assert_allclose(found, density(points), rtol=1e-5, atol=1e-5)


def test_a_saved_policy_has_densities_and_draws(tmp_path, points):
    policy = make_mixture(4, dim=2)
    saved_model(policy, tmp_path / "policy")
    loaded = tf.saved_model.load(str(tmp_path / "policy"))
    np.testing.assert_allclose(
        loaded.log_prob(tf.constant(points)), policy.log_prob(points), rtol=1e-12
    )
    draws = loaded.sample(tf.constant(7), tf.constant([1, 2]))
    np.testing.assert_array_equal(draws, policy.sample(7, tf.constant([1, 2])))


@pytest.mark.slow
def test_tensorflow_alone_loads_it(exported, density, points, tmp_path):
    np.save(tmp_path / "x.npy", points)
    code = (
        "import sys, numpy as np, tensorflow as tf\n"
        f"loaded = tf.saved_model.load({str(exported)!r})\n"
        "np.save('values.npy', loaded.log_prob(tf.constant(np.load('x.npy'))))\n"
        "assert not {'virl_tf', 'tensorflow_probability'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "values.npy"), density(points), rtol=1e-6)


def test_what_cannot_be_saved_is_refused(density, tmp_path):
    with pytest.raises(InputError, match=r"a Reward or a Mixture, got Result; give result\.reward"):
        saved_model(virl_tf.Result(density, make_mixture(), None, {}), tmp_path / "new")
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="there is there already; remove it"):
        saved_model(density, tmp_path / "there")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write"):
        saved_model(density, tmp_path / "file" / "new")
    with pytest.raises(InputError, match="path"):
        saved_model(density, None)
    assert {path.name for path in tmp_path.iterdir()} == {"there", "file"}


# --- imitation ------------------------------------------------------------------------------------


def test_imitations_reward_is_of_state_and_action(density):
    rng = np.random.default_rng(0)
    state, action, after = rng.normal(size=(5, 1)), rng.normal(size=5), rng.normal(size=(5, 1))
    function = imitation_reward(density)
    found = function(state.astype(np.float32), action, after, np.zeros(5, bool))
    x = np.stack([state[:, 0].astype(np.float32), action], axis=1)
    np.testing.assert_allclose(found, density(x), rtol=1e-6)
    assert (found.dtype, found.shape) == (np.float64, (5,))


def test_imitations_reward_is_of_the_features_that_are_given(density):
    state = np.arange(6.0).reshape(2, 3)
    asked = []

    def features(*transition):
        asked.append(transition)
        return transition[2][:, :2]

    done = np.array([False, True])
    found = imitation_reward(density, features)(state, np.zeros(2), state + 0.5, done)
    np.testing.assert_allclose(found, density(state[:, :2] + 0.5), rtol=1e-6)
    assert [len(part) for part in asked[0]] == [2, 2, 2, 2]


def test_rewards_without_an_end_have_one_if_it_is_given(density):
    outside = np.array([[0.0], [0.0]]), np.array([0.0, 1e3]), np.zeros((2, 1)), np.zeros(2, bool)
    assert imitation_reward(density)(*outside)[1] == -np.inf
    inside, bounded = imitation_reward(density, lowest=-50.0)(*outside)
    assert bounded == -50.0
    assert inside == pytest.approx(float(density([0.0, 0.0])), rel=1e-6)


def test_features_of_another_shape_are_refused(density):
    batch = np.zeros((3, 1)), np.zeros(3), np.zeros((3, 1)), np.zeros(3, bool)
    with pytest.raises(InputError, match=r"features must be \[N, D\]"):
        imitation_reward(density, lambda *_: np.zeros(2))(*batch)
    with pytest.raises(InputError, match=r"shape \[..., 2\] \(this reward's dimension\)"):
        imitation_reward(density, lambda *_: np.zeros((3, 5)))(*batch)


def test_imitation_takes_it(density):
    wrapper = pytest.importorskip("imitation.rewards.reward_wrapper", reason="no imitation here")
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    gymnasium = pytest.importorskip("gymnasium")
    environments = vec_env.DummyVecEnv([lambda: gymnasium.make("MountainCarContinuous-v0")])
    function = imitation_reward(density, lambda *transition: transition[2])
    wrapped = wrapper.RewardVecEnvWrapper(environments, function)
    observation, reward, _, _ = wrapped.step(np.zeros((1, 1)))
    np.testing.assert_allclose(reward, density(observation), rtol=1e-6)


# --- Gymnasium ------------------------------------------------------------------------------------


class Line:
    """Steps to the right; the episode ends after the third, or at 10."""

    limit = 10.0

    def reset(self, *, seed=None, options=None):
        self.place, self.steps = float(seed or 0), 0
        return np.array([self.place]), {"start": self.place}

    def step(self, action):
        self.place, self.steps = self.place + float(action), self.steps + 1
        reached = self.place >= self.limit
        return np.array([self.place]), -1.0, reached, self.steps == 3, {"place": self.place}


@pytest.fixture
def line():
    """As an environment of Gymnasium, where it is installed: its wrapper takes no other."""
    try:
        import gymnasium
    except ImportError:
        return Line()
    return type("LineEnvironment", (Line, gymnasium.Env), {})()


def last_and_effort(trajectory):
    return [trajectory[-1][0][0], sum(float(action) for _, action in trajectory)]


def test_an_episode_has_its_reward_at_its_end(line, density):
    wrapped = gymnasium_wrapper(line, density, last_and_effort)
    for start in (0, 1):  # the second episode knows nothing of the first
        _, info = wrapped.reset(seed=start)
        assert info == {"start": start}
        steps = [wrapped.step(np.float64(0.5)) for _ in range(3)]
        assert [reward for _, reward, *_ in steps[:2]] == [0.0, 0.0]
        assert steps[2][1] == pytest.approx(float(density([start + 1.5, 1.5])))
        assert [late for *_, late, _ in steps] == [False, False, True]
        assert steps[2][4] == {"place": start + 1.5, "environment_reward": -1.0}
    wrapped.reset(seed=9)
    assert wrapped.step(np.float64(1.5))[1] == pytest.approx(float(density([10.5, 1.5])))


def test_each_step_has_its_own_reward_where_it_is_asked_for(line, density):
    wrapped = gymnasium_wrapper(line, density, reward_of="step")
    wrapped.reset(seed=1)
    found = [wrapped.step(np.float64(0.5))[1] for _ in range(2)]
    np.testing.assert_allclose(found, density([[1.0, 0.5], [1.5, 0.5]]), rtol=1e-6)
    wrapped = gymnasium_wrapper(line, density, lambda *t: np.zeros((1, 2)) + 1e3, "step", -9.0)
    wrapped.reset()
    assert wrapped.step(np.float64(0.5))[1] == -9.0


def in_place(line, wrap=lambda x: x):
    """The line with a state of its own, which it returns and changes."""
    state = np.zeros(1)

    def step(action):
        state[:] += action
        return wrap(state), -1.0, False, state[0] >= 1.5, {}

    line.reset, line.step = lambda: (wrap(state), {}), step
    return line


def test_a_step_begins_where_an_environment_was_that_changes_its_observations(line, density):
    wrapped = gymnasium_wrapper(in_place(line), density, reward_of="step")
    wrapped.reset()
    found = [wrapped.step(np.float64(0.5))[1] for _ in range(2)]
    np.testing.assert_allclose(found, density([[0.0, 0.5], [0.5, 0.5]]), rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"place": x}])
def test_a_trajectory_is_of_what_was_observed_and_done_then(line, density, wrap):
    seen, action = [], np.zeros(1)

    def features(trajectory):
        seen.extend(trajectory)
        return np.zeros(2)

    wrapped = gymnasium_wrapper(in_place(line, wrap), density, features)
    wrapped.reset()
    for size in (0.5, 1.0):
        action[:] = size
        wrapped.step(action)
    assert seen == [(wrap([0.5]), [0.5]), (wrap([1.5]), [1.0])]


def test_a_copy_has_an_episode_of_its_own(line, density):
    wrapped = gymnasium_wrapper(line, density, last_and_effort)
    wrapped.reset(seed=1)
    wrapped.step(np.float64(0.5))
    copied = copy.deepcopy(wrapped)
    for _ in range(2):
        copied.step(np.float64(9.0))
    found = [wrapped.step(np.float64(0.5))[1] for _ in range(2)]
    assert found == [0.0, pytest.approx(float(density([2.5, 1.5])))]


def test_without_gymnasium_any_environment_is_wrapped(density, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    wrapped = gymnasium_wrapper(Line(), density, last_and_effort)
    wrapped.reset()
    assert wrapped.limit == 10.0
    again = copy.deepcopy(wrapped)
    assert wrapped.step(10.0)[1] == pytest.approx(float(density([10.0, 10.0])))
    assert again.place == 0.0


def test_with_gymnasium_an_environment_that_is_none_of_its_own_is_wrapped(density, monkeypatch):
    """Its `Wrapper` takes no other."""
    fake = types.SimpleNamespace(Env=type("Env", (), {}), Wrapper=None)
    monkeypatch.setitem(sys.modules, "gymnasium", fake)
    wrapped = gymnasium_wrapper(Line(), density, last_and_effort)
    wrapped.reset()
    assert wrapped.step(10.0)[1] == pytest.approx(float(density([10.0, 10.0])))


def test_what_cannot_be_wrapped_is_refused(line, density):
    with pytest.raises(InputError, match="unknown reward_of 'episode'"):
        gymnasium_wrapper(line, density, last_and_effort, "episode")
    with pytest.raises(InputError, match="features are needed"):
        gymnasium_wrapper(line, density)
