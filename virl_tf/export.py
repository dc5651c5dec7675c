"""Rewards and policies for use without this package: TensorFlow's SavedModel, `imitation`'s reward
interface, Gymnasium's environments.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY
from virl_tf.persistence.files import PARTIAL, writing
from virl_tf.reward import Reward
from virl_tf.shapes import Array, Float64
from virl_tf.validation import InputError, check_choice, check_path

__all__ = ["gymnasium_wrapper", "imitation_reward", "saved_model"]

# Batches of transitions -> what the reward is of: state [N, ...], action [N, ...], next state
# [N, ...], done [N] bool -> [N, D].
StepFeatures = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Any]
StepReward = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], Float64[Array, " N"]]
Trajectory = list[tuple[Any, Any]]


# --- SavedModel -----------------------------------------------------------------------------------


def saved_model(density: Reward | Mixture, directory: Path | str) -> None:
    """Write a reward or a policy as a SavedModel, for which TensorFlow alone is enough.

    >>> virl_tf.export.saved_model(result.reward, "reward")
    >>> tf.saved_model.load("reward").log_prob(x)  # [N, D] -> [N], differentiable

    `log_prob` takes float64 or float32 and returns the same; it computes as the reward itself does.
    That of a reward with contexts takes rows [c, x], [N, C + D].
    A policy has `sample(n, seed)` beside it: int32 [] and int32 [2] -> float64 [n, D], the draws of
    `Mixture.sample`. Signatures, for servers: `serving_default` is `log_prob` of float64 `x`,
    `float32` the same of float32, `sample` that of a policy.

    Args:
        density: a `Reward`, or a `Mixture` such as `result.policy`.
        directory: a new folder; written whole or not at all.

    Raises:
        InputError: another kind of density, a folder that is there already, or one that cannot be
            written.
    """
    directory = check_path(directory)
    if not isinstance(density, (Reward, Mixture)):
        found = type(density).__name__
        raise InputError(
            f"density must be a Reward or a Mixture, got {found}; give result.reward, or of a "
            "policy with contexts policy.condition(c)."
        )
    if directory.exists():
        raise InputError(f"{directory} is there already; remove it, or give a new folder.")
    with writing(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        parent = directory.parent
        with tempfile.TemporaryDirectory(PARTIAL, f".{directory.name}-", parent) as partial:
            module = _Exported(density)
            tf.saved_model.save(module, f"{partial}/model", module.signatures())
            os.replace(f"{partial}/model", directory)


class _Exported(tf.Module):
    """The functions of a density, traced for both dtypes and any number of points."""

    def __init__(self, density: Reward | Mixture):
        super().__init__()
        self._size = density.num_contexts + density.dim

        def log_prob(x: tf.Tensor) -> tf.Tensor:
            points = tf.cast(x, DENSITY)
            if isinstance(density, Reward):
                points = density.domain.wrap(points)
            return tf.cast(density.log_prob(points), x.dtype)

        self.log_prob = tf.function(log_prob, autograph=False)
        if isinstance(density, Mixture):
            count, seed = tf.TensorSpec([], tf.int32, "n"), tf.TensorSpec([2], tf.int32, "seed")
            self.sample = tf.function(density.sample, [count, seed], autograph=False)

    def signatures(self) -> dict[str, Any]:
        """Name of the signature -> its concrete function."""
        found = {
            name: self.log_prob.get_concrete_function(tf.TensorSpec([None, self._size], dtype, "x"))
            for name, dtype in (("serving_default", DENSITY), ("float32", tf.float32))
        }
        if hasattr(self, "sample"):
            found["sample"] = self.sample.get_concrete_function()
        return found


# --- for reinforcement learning -------------------------------------------------------------------


def imitation_reward(
    reward: Callable[[Any], Any],
    features: StepFeatures | None = None,
    lowest: float = -np.inf,
) -> StepReward:
    """A reward of single steps, as `imitation.rewards.reward_function.RewardFn` is called.

    `imitation.rewards.reward_wrapper.RewardVecEnvWrapper(environments, it)` gives it to whatever
    learns. `imitation` is not needed here.

    Args:
        reward: [N, D] -> [N], such as `result.reward`.
        features: (state [N, ...], action [N, ...], next_state [N, ...], done [N]) -> [N, D], as the
            demonstrations were made of the expert's steps; None: state and action, flat, side by
            side.
        lowest: what stands for lower rewards. A reward with bounds is minus infinity outside of
            them, which no learner takes: give a number then.

    Raises:
        InputError: when it is called: features of another shape than the reward's.
    """
    described = _state_and_action if features is None else features

    def of_steps(
        state: np.ndarray, action: np.ndarray, next_state: np.ndarray, done: np.ndarray
    ) -> Float64[Array, " N"]:
        return _values(reward, described(state, action, next_state, done), len(state), lowest)

    return of_steps


def _state_and_action(
    state: np.ndarray, action: np.ndarray, next_state: np.ndarray, done: np.ndarray
) -> Float64[Array, "N D"]:
    """[N, D]; a discrete action is one number."""
    parts = (np.reshape(part, (len(state), -1)) for part in (state, action))
    return np.concatenate([np.asarray(part, np.float64) for part in parts], axis=1)


def _values(
    reward: Callable[[Any], Any], x: Any, count: int, lowest: float
) -> Float64[Array, " N"]:
    values = np.asarray(reward(np.asarray(x, np.float64)), np.float64)
    if values.shape != (count,):
        raise InputError(
            f"features must be [N, D] for N steps or trajectories: of {count} they have shape "
            f"{np.shape(x)}, and rewards {values.shape}."
        )
    return np.maximum(values, lowest)


def gymnasium_wrapper(
    environment: Any,
    reward: Callable[[Any], Any],
    features: Callable[..., Any] | None = None,
    reward_of: str = "trajectory",
    lowest: float = -np.inf,
) -> Any:
    """The environment with the recovered reward in the place of its own.

    Its own stays in `info["environment_reward"]`.

    Args:
        environment: a `gymnasium.Env`, or what has its `reset` and `step`.
        reward: [N, D] -> [N], such as `result.reward`.
        features: of a trajectory [(observation, action), ...], each observation that after its
            action: -> [D], as each demonstration was made; of steps: see `imitation_reward`.
        reward_of: "trajectory": the reward of the whole episode comes with its last step, and 0
            before; "step": each step has one.
        lowest: see `imitation_reward`.

    Returns:
        A `gymnasium.Wrapper` of a `gymnasium.Env`, else an object with `reset` and `step`.

    Raises:
        InputError: another `reward_of`, or trajectories without `features`.
    """
    kinds = {"trajectory": _OfTrajectory, "step": _OfSteps}
    kind = kinds[check_choice("reward_of", reward_of, kinds)]
    if reward_of == "trajectory" and features is None:
        raise InputError("features are needed: trajectory [(observation, action), ...] -> [D].")

    class RecoveredReward(_wrapper_class(environment)):  # type: ignore[misc]
        """What the recovered reward says of what happens in an environment."""

        def __init__(self, environment: Any):
            super().__init__(environment)
            self._source = kind(reward, features, lowest)  # here: a copy has its own episode

        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            observation, info = self.env.reset(**options)
            self._source.begin(observation)
            return observation, info

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            seen, own, reached, late, info = self.env.step(action)
            value = self._source.after(action, seen, reached, late)
            return seen, value, reached, late, {**info, "environment_reward": own}

    return RecoveredReward(environment)


class _OfTrajectory:
    """With the last step, the reward of the episode."""

    def __init__(
        self, reward: Callable[[Any], Any], features: Callable[[Trajectory], Any], lowest: float
    ):
        self._reward, self._features, self._lowest = reward, features, lowest
        self._trajectory: Trajectory = []

    def begin(self, observation: Any) -> None:
        self._trajectory = []

    def after(self, action: Any, observation: Any, reached: bool, late: bool) -> float:
        self._trajectory.append((_kept(observation), _kept(action)))
        if not (reached or late):
            return 0.0
        x = np.asarray(self._features(self._trajectory), np.float64)[None]
        return float(_values(self._reward, x, 1, self._lowest)[0])


class _OfSteps:
    """With each step, its own reward."""

    def __init__(self, reward: Callable[[Any], Any], features: StepFeatures | None, lowest: float):
        self._reward = imitation_reward(reward, features, lowest)
        self._before: Any = None

    def begin(self, observation: Any) -> None:
        self._before = _kept(observation)

    def after(self, action: Any, observation: Any, reached: bool, late: bool) -> float:
        batch = (np.asarray(part)[None] for part in (self._before, action, observation, reached))
        self._before = _kept(observation)
        return float(self._reward(*batch)[0])


def _kept(value: Any) -> Any:
    """With arrays of its own: an environment may return its state, and change that in place."""
    return tf.nest.map_structure(lambda x: x.copy() if isinstance(x, np.ndarray) else x, value)


def _wrapper_class(environment: Any) -> type:
    """Gymnasium's, or one that does as much for environments that are none of its own."""
    try:
        import gymnasium
    except ImportError:
        return _PlainWrapper
    return gymnasium.Wrapper if isinstance(environment, gymnasium.Env) else _PlainWrapper


class _PlainWrapper:
    """Whatever is not here is the environment's."""

    def __init__(self, environment: Any):
        self.env = environment

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not there yet, in a copy that is being made
            raise AttributeError(name)
        return getattr(self.env, name)
