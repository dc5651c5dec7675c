"""Policies over moves in closed loop: each move is chosen where the last one ended."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from virl_tf.among_best import AmongBest
from virl_tf.conditional import conditioned
from virl_tf.conditional_kde import conditional_kernels
from virl_tf.demonstrations import Data
from virl_tf.density import Density
from virl_tf.em.by_bic import bic_mixture
from virl_tf.fit import Result
from virl_tf.kde import Kde
from virl_tf.numerics import DENSITY, numpy_seed, split_seed
from virl_tf.trajectories.episodes import Episodes
from virl_tf.trajectories.moves import Moves

import keras
import numpy as np
import tensorflow as tf

from experiments.evaluation.judged import kernels

REPLAYED, CHOSEN, NEAREST = "demonstrations, replayed", "reward, among", "kernels"
POLICY, EM_BIC, CLONED = "policy", "EM by BIC", "behaviour cloning"
# Of the bandwidth under which held-out moves are likeliest: as wide, kernels leave the ways that
# they are of. Compared in docs/decisions-contexts.md (closed-loop).
NARROWED = 0.125
UNITS, EPOCHS, BATCH = 256, 200, 128  # of the network that clones


class World(Protocol):
    """N that move at once, as a user's file has it; `World(n, seed)` puts them at their starts.

    Attributes:
        positions: where they stand, [N, D], before the first move.
    """

    positions: Any

    def move(self, targets: np.ndarray) -> None:
        """One sample later each is sent to its target, [N, D]; who has finished may stay."""

    def outcome(self) -> Mapping[str, float]:
        """What they did: {name: number}."""


class Mover(Protocol):
    """What chooses moves."""

    def sample(self, c: Any, seed: Any = None) -> Any:
        """A move for each context: [N, C] -> [N, D]."""


def play(world: World, moves: Moves, mover: Mover, samples: int, seed: int) -> np.ndarray:
    """Targets from the start on, [`samples` + 1, N, D]: `steps` of a move, then the next one; the
    last one ends early, so that nobody has more time than a replay.
    """
    # Copies on both sides: a world may keep what it was sent, or move its positions in place.
    history = [np.array(world.positions, np.float64)]
    while len(history) <= samples:
        c = tf.constant(moves.context(np.stack(history)), DENSITY)
        x = np.asarray(mover.sample(c, split_seed(seed, len(history), "closed loop")))
        for target in moves.targets(history[-1], x)[: samples + 1 - len(history)]:
            world.move(target.copy())
            history.append(target)
    return np.stack(history)


def replay(world: World, episodes: Episodes, samples: int) -> np.ndarray:
    """Demonstrated paths from the starts of this world, in turn, [T, N, D]."""
    start = np.asarray(world.positions, np.float64)
    paths = padded(episodes, samples + 1)
    shown = paths[:, np.arange(len(start)) % paths.shape[1]]
    history = start + shown - shown[0]
    for targets in history[1:]:
        world.move(targets.copy())
    return history


def padded(episodes: Episodes, samples: int) -> np.ndarray:
    """[T, N, D]: cut after T samples, or where they end for the rest."""
    found = [np.asarray(values, np.float64)[:samples] for values in episodes.values]
    stay = [np.repeat(values[-1:], samples - len(values), axis=0) for values in found]
    return np.stack([np.concatenate(pair) for pair in zip(found, stay, strict=True)], axis=1)


def movers(
    result: Result, data: Data, candidates: int, seed: int
) -> dict[str, Callable[[], Mover]]:
    """Name -> what makes it: the reward's choice, its policy, and what others would take."""

    def nearest() -> Density:
        found: Any = kernels(data, seed)
        narrow = Kde(found.joint.points, NARROWED * found.bandwidth)
        return conditional_kernels(narrow, data.num_contexts)

    def em() -> Mover:
        mixture = bic_mixture(data.rows, numpy_seed(seed, 0, "EM"))
        return conditioned(mixture, data.num_contexts)

    return {
        f"{CHOSEN} {candidates}": lambda: AmongBest(result.reward, nearest(), candidates),
        POLICY: lambda: result.policy,
        NEAREST: nearest,
        EM_BIC: em,
        CLONED: lambda: Clone.of(data, seed),
    }


class Clone(NamedTuple):
    """Behaviour cloning: the mean move in each context, by a network; the same for any seed."""

    network: keras.Model
    num_contexts: int

    @classmethod
    def of(cls, data: Data, seed: int) -> "Clone":
        """Least squares on all rows."""
        size = data.num_contexts
        c, x = data.rows[:, :size], data.rows[:, size:]
        centred, back = keras.layers.Normalization(), keras.layers.Normalization(invert=True)
        centred.adapt(c)
        back.adapt(x)
        scaled = (x - x.mean(axis=0)) / x.std(axis=0)
        init = keras.initializers.GlorotUniform
        seeds = [numpy_seed(seed, i, "clone") for i in range(4)]
        hidden = [keras.layers.Dense(UNITS, "relu", kernel_initializer=init(s)) for s in seeds[:2]]
        out = keras.layers.Dense(x.shape[1], kernel_initializer=init(seeds[2]))
        network = keras.Sequential([keras.Input((size,)), centred, *hidden, out])
        network.compile(keras.optimizers.Adam(1e-3), "mse")
        rows = tf.data.Dataset.from_tensor_slices((c.astype("float32"), scaled.astype("float32")))
        batches = rows.shuffle(len(c), seeds[3]).batch(BATCH)
        network.fit(batches, epochs=EPOCHS, shuffle=False, verbose=0)  # they are, above
        return cls(keras.Sequential([network, back]), size)

    def sample(self, c: Any, seed: Any = None) -> np.ndarray:
        """[N, C] -> [N, D]."""
        return np.asarray(self.network(tf.cast(c, tf.float32)), np.float64)
