"""Where a recovered reward can be trusted: near the demonstrations."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.numerics import DENSITY, NETWORK
from virl_tf.validation import InputError, check_demonstrations, check_positive

_CHUNK = 500  # demonstrations compared at once: what is held stays near the cache
_MOST_ROWS = 5_000  # whose distances decide what is near


def stay_near(
    log_prob: Callable[[Any], Any],
    demonstrations: Any,
    quantile: float = 0.999,
    steepness: float = 100.0,
) -> Callable[[Any], tf.Tensor]:
    """The reward near the demonstrations; elsewhere less than its lowest finite value there, ever
    less with the distance.

    A reward is learned from the demonstrations and from negatives. In many dimensions the negatives
    leave gaps, what the networks say there is arbitrary, and a policy fitted to the reward finds
    such a place. Distances are Euclidean, with each column in units of its standard deviation; near
    is what is no farther from a demonstration than `quantile` of the demonstrations are from their
    nearest other one. A point d limits away has the lowest of the demonstrations' rewards
    - steepness D (d^2 - 1).

    Args:
        log_prob: a recovered reward, or any [M, D] -> [M].
        demonstrations: real, [N, D].
        quantile: in (0, 1].
        steepness: in nats. A steep slope keeps more of a policy near, a gentle one is easier to
            follow from a wide start. M, 50 components, D = 10, seeds 100 - 102, I-projection: 100:
            0.85, 1.33, 0.61 (3.0, 2.9, 1.3 without); 10, 100 and a wall of -inf were compared on
            earlier rewards, of demonstrations with wrong shares of the modes: 3.6, 3.4, 9.1; 2.6,
            2.7, 4.0; 2.8, 3.5, 2.9. Where the reward has no gaps it costs: D = 10 since EM splits
            components: 100: 0.41, 0.63, 0.39 (0.34, 0.23, 0.25 without); walker, d = 5, 25
            components, modes: 100: 24, 22, 21 (25, 25, 25 without).

    Returns:
        The log density to give to `fit_policy`: [M, D] -> float64 [M], in TensorFlow; nan where x
            is.

    Raises:
        InputError: bad demonstrations, quantile or steepness; a reward of another shape, or finite
            at no demonstration; or more than `quantile` of the rows are repeated, so that no
            distance is near.
    """
    x = check_demonstrations(demonstrations)
    if check_positive("quantile", quantile) > 1.0:
        raise InputError(f"quantile must be in (0, 1], got {quantile}.")
    steepness = check_positive("steepness", steepness)
    if not callable(log_prob):
        raise InputError(
            f"log_prob must be a function [M, D] -> [M], got {type(log_prob).__name__}."
        )
    rewards = np.asarray(log_prob(tf.constant(x, DENSITY)), np.float64)
    if rewards.shape != x.shape[:1] or not np.isfinite(rewards).any():
        raise InputError(
            f"log_prob must give a number at each of the {len(x)} demonstrations, and at some a finite one."
        )
    lowest = rewards[np.isfinite(rewards)].min()
    distances = _squared_distances(x, quantile)

    def near(points: Any) -> tf.Tensor:
        points = tf.convert_to_tensor(points, DENSITY)
        beyond = distances(points) - 1.0
        away = lowest - steepness * x.shape[1] * beyond
        return tf.where(beyond > 0.0, away, tf.cast(log_prob(points), DENSITY))

    return near


def _squared_distances(x: np.ndarray, quantile: float) -> Callable[[Any], tf.Tensor]:
    """To the nearest row of x [N, D], in units of the `quantile` of the rows' distances to their
    nearest other row.
    """
    from sklearn.neighbors import NearestNeighbors

    centre, scale = x.mean(axis=0), x.std(axis=0)
    z = (x - centre) / scale
    rows = z[:: -(-len(z) // _MOST_ROWS)]
    nearest = (
        NearestNeighbors(n_neighbors=2).fit(z).kneighbors(rows)[0][:, 1]
    )  # the first one is the row itself
    limit = float(np.quantile(nearest, quantile))
    if limit == 0.0:
        raise InputError(
            "demonstrations: so many rows are repeated that their distances do not tell what is near."
        )
    # Single precision where its rounding of squared distances is far below the squared limit.
    dtype = (
        NETWORK if limit**2 > 1e4 * np.finfo(np.float32).eps * (z**2).sum(axis=1).max() else DENSITY
    )
    repeated = z[
        np.arange(-(-len(z) // _CHUNK) * _CHUNK) % len(z)
    ]  # fills the last chunk without another nearest point
    chunks = tf.constant(repeated.reshape(-1, _CHUNK, z.shape[1]), dtype)

    def distances(points: Any) -> tf.Tensor:
        y = tf.cast((points - centre) / scale, dtype)

        def nearer(least: tf.Tensor, chunk: tf.Tensor) -> tf.Tensor:
            squares = tf.reduce_sum(chunk**2, axis=1) - 2.0 * tf.matmul(y, chunk, transpose_b=True)
            return tf.minimum(least, tf.reduce_min(squares, axis=1))

        least = tf.foldl(
            nearer, chunks, initializer=tf.fill(tf.shape(y)[:1], tf.constant(np.inf, dtype))
        )
        return tf.cast(least + tf.reduce_sum(y**2, axis=1), DENSITY) / limit**2

    return distances
