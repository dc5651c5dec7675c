"""Where a recovered reward can be trusted: near the demonstrations."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.numerics import DENSITY, NETWORK
from virl_tf.validation import InputError, check_demonstrations, check_positive

_CHUNK = 500  # demonstrations compared at once: what is held stays near the cache
_MOST_ROWS = 5_000  # whose distances decide what is near


def near_demonstrations(demonstrations: Any, quantile: float = 0.999) -> Callable[[Any], tf.Tensor]:
    """A `support` for `fit_policy`: points as close to some demonstration as demonstrations are to each other.

    A reward is learned from the demonstrations and from negatives. In many dimensions the negatives leave gaps, what the networks
    say there is arbitrary, and a policy fitted to the reward finds such a place (README: ten dimensions, KL 178 without this
    support and 2.1 with it). Distances are Euclidean, with each column in units of its standard deviation; near is what is no
    farther from a demonstration than `quantile` of the demonstrations are from their nearest other one.

    Args:
        demonstrations: real, [N, D], N >= 2.
        quantile: in (0, 1].

    Returns:
        near(x): [M, D] -> [M] bool, in TensorFlow; false where x is not finite.

    Raises:
        InputError: bad demonstrations or quantile; or more than `quantile` of the rows are repeated, so that no distance is near.
    """
    from sklearn.neighbors import NearestNeighbors

    x = check_demonstrations(demonstrations)
    if check_positive("quantile", quantile) > 1.0:
        raise InputError(f"quantile must be in (0, 1], got {quantile}.")
    centre, scale = x.mean(axis=0), x.std(axis=0)
    z = (x - centre) / scale
    rows = z[:: -(-len(z) // _MOST_ROWS)]
    nearest = NearestNeighbors(n_neighbors=2).fit(z).kneighbors(rows)[0][:, 1]  # the first one is the row itself
    most = float(np.quantile(nearest, quantile))
    if most == 0.0:
        raise InputError("demonstrations: so many rows are repeated that their distances do not tell what is near.")
    # Single precision where its rounding of squared distances is far below the squared limit.
    dtype = NETWORK if most**2 > 1e4 * np.finfo(np.float32).eps * (z**2).sum(axis=1).max() else DENSITY
    repeated = z[np.arange(-(-len(z) // _CHUNK) * _CHUNK) % len(z)]  # fills the last chunk without another nearest point
    chunks = tf.constant(repeated.reshape(-1, _CHUNK, z.shape[1]), dtype)

    def near(points: Any) -> tf.Tensor:
        y = tf.cast((tf.cast(points, DENSITY) - centre) / scale, dtype)

        def nearer(least: tf.Tensor, chunk: tf.Tensor) -> tf.Tensor:
            squares = tf.reduce_sum(chunk**2, axis=1) - 2.0 * tf.matmul(y, chunk, transpose_b=True)
            return tf.minimum(least, tf.reduce_min(squares, axis=1))

        least = tf.foldl(nearer, chunks, initializer=tf.fill(tf.shape(y)[:1], tf.constant(np.inf, dtype)))
        return least + tf.reduce_sum(y**2, axis=1) <= tf.constant(most**2, dtype)

    return near
