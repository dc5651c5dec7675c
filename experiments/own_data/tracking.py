"""A proportional-derivative controller that follows a path in a Gymnasium environment."""

from collections.abc import Callable
from typing import Any, NamedTuple

from virl_tf.validation import InputError

import numpy as np

Joints = Callable[[Any], tuple[np.ndarray, np.ndarray]]


class Tracked(NamedTuple):
    """An episode.

    Attributes:
        total: the sum of the environment's rewards.
        positions: [T + 1, D], what was reached, from the start on.
    """

    total: float
    positions: np.ndarray


def track(
    environment: Any, path: Any, joints: Joints, gains: tuple[Any, Any], seed: int | None = None
) -> Tracked:
    """Follow a path by a proportional-derivative controller for as many steps as it has.

    The action at step t is `gains[0] * (path[t] - position) + gains[1] * (path[t] - path[t - 1] -
    velocity)`, within the bounds of the environment's actions; it may end earlier.

    Args:
        environment: Gymnasium's `reset`, `step` and `action_space` (a Box [D]).
        path: [T, D], a row per step of the environment, as an encoding's `decode` gives it.
        joints: observation -> position [D] and velocity [D], the latter per step.
        gains: of position and velocity, numbers or [D].
        seed: of `reset`.

    Raises:
        InputError: a path that is not [T, D] of finite numbers, or of another D.
    """
    path = np.asarray(path, np.float64)
    seen, _ = environment.reset(seed=seed)
    position, velocity = joints(seen)
    if path.ndim != 2 or path.shape[1:] != np.shape(position) or not np.isfinite(path).all():
        raise InputError(
            f"path must be finite numbers [T, {np.size(position)}], got {list(path.shape)}."
        )
    low, high = environment.action_space.low, environment.action_space.high
    total, positions = 0.0, [position]
    steps = np.diff(path, axis=0, prepend=path[:1])
    for target, step in zip(path, steps, strict=True):
        action = gains[0] * (target - position) + gains[1] * (step - velocity)
        seen, reward, reached, late, _ = environment.step(np.clip(action, low, high))
        position, velocity = joints(seen)
        positions.append(position)
        total += float(reward)
        if reached or late:
            break
    return Tracked(total, np.stack(positions))
