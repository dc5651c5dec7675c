"""A fit to codes of trajectories, as trajectories again: draws, mean paths, where a reward is
strict.
"""

from pathlib import Path
from typing import Any

from virl_tf.density import Density
from virl_tf.importance import effective_sample_size
from virl_tf.mixture import Mixture
from virl_tf.numerics import split_seed
from virl_tf.persistence.files import save_arrays
from virl_tf.trajectories.encoding import Encoding
from virl_tf.trajectories.episodes import Episodes, resample

import numpy as np
import tensorflow as tf

from experiments.evaluation.base import RewardFunction

DRAWS = 1000  # of the policy
SHOWN = 200  # demonstrations, and draws of the reward
PROPOSED = 20_000  # of which the latter are resampled
PLACES = 40  # at which a path is pushed aside
PUSH = 0.05  # of the phases, the standard deviation of a push along the path
MOST_PUSHED = 10  # components, the heaviest


def some_demonstrations(episodes: Episodes, encoding: Encoding) -> np.ndarray:
    """At most `SHOWN` of them on the encoding's grid, [M, T, D]."""
    count = len(episodes.values)
    rows = np.unique(np.linspace(0, count - 1, min(count, SHOWN)).astype(int))
    return resample(episodes.take(rows), encoding.num_steps, encoding.phase)


def write_trajectories(
    folder: Path,
    encoding: Encoding,
    reward: RewardFunction,
    policy: Mixture,
    draws_of_reward: tuple[np.ndarray, float],
    demonstrations: np.ndarray,
) -> None:
    """Write trajectories.npz.

    - trajectories [S, T, D]: draws of the policy; their `rewards` [S] and `components` [S]
    - means [K, T, D], weights [K]: of the policy's components
    - reward_draws [M, T, D], of which the `reward_effective` say how many count
    - pushes [P] phases, losses [K', P]: see `losses_when_pushed`
    - demonstrations [M, T, D], times [T], columns [D]

    Args:
        draws_of_reward: what `reward_draws` returns.
    """
    x, components = policy.sample_with_components(DRAWS, split_seed(0, 0, "trajectories"))
    drawn, effective = draws_of_reward
    heaviest = np.argsort(-policy.log_weights.numpy())[:MOST_PUSHED]
    codes = tf.gather(policy.means, heaviest).numpy()
    places, losses = losses_when_pushed(encoding, reward, codes, demonstrations)
    arrays = {
        "trajectories": encoding.decode(x),
        "rewards": reward(x),
        "components": components,
        "means": encoding.decode(policy.means),
        "weights": tf.exp(policy.log_weights),
        "reward_draws": encoding.decode(drawn),
        "reward_effective": effective,
        "pushes": places,
        "losses": losses,
        "demonstrations": demonstrations,
        "times": encoding.times,
        "columns": np.array(encoding.columns),
    }
    save_arrays(folder / "trajectories.npz", arrays)


def reward_draws(
    reward: RewardFunction, proposal: Density, number: int = SHOWN, seed: Any = None
) -> tuple[np.ndarray, float]:
    """Draws of exp(R), resampled from those of a proposal, and how many of these are effective.

    `seed`: int32 [2]; None: the one of a fit's pictures.
    """
    first = split_seed(0, 0, "reward draws") if seed is None else np.asarray(seed)
    x = proposal.sample(PROPOSED, first)
    log_w = tf.cast(reward(x), tf.float64) - proposal.log_prob(x)
    weights = tf.nn.softmax(log_w).numpy()
    rng = np.random.default_rng(int(first[0]) & 0x7FFFFFFF)
    rows = rng.choice(PROPOSED, number, p=weights / weights.sum())
    return x.numpy()[rows], float(effective_sample_size(log_w))


def losses_when_pushed(
    encoding: Encoding, reward: RewardFunction, codes: np.ndarray, demonstrations: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where along their paths a reward is strict.

    A path is pushed aside at one phase, either way in each column, by the demonstrations' standard
    deviation there, and less the farther from that phase; what the encoding cannot follow is left
    out.

    Args:
        codes: [K, D'].
        demonstrations: [M, T, D].

    Returns:
        The phases [P], and the mean loss of reward in nats, [K, P].
    """
    phases = np.linspace(0.0, 1.0, encoding.num_steps)
    places = np.linspace(0.0, 1.0, min(PLACES, encoding.num_steps))
    bumps = np.exp(-0.5 * ((phases - places[:, None]) / PUSH) ** 2)  # [P, T]
    spread = demonstrations.std(axis=0)  # [T, D]
    moves = np.einsum("pt,td,ctd->pdc", bumps, spread, encoding.projection)
    both = np.stack([moves, -moves], axis=2)  # [P, D, 2, D']
    pushed = codes[:, None, None, None] + both
    values = np.asarray(reward(tf.constant(pushed.reshape(-1, codes.shape[1]))))
    means = values.reshape(pushed.shape[:-1]).mean(axis=(2, 3))
    return places, np.asarray(reward(tf.constant(codes)))[:, None] - means
