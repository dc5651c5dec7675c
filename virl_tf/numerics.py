"""Number formats, seeds and root finding.

Mixtures, regressions and duals are float64; networks are float32. The casts between the two happen in `to_network` and
`from_network` only.
"""

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

DENSITY = tf.float64
NETWORK = tf.float32
LOG_2PI = float(np.log(2.0 * np.pi))


def to_network(x: tf.Tensor) -> tf.Tensor:
    """float64 (densities) -> float32 (networks)."""
    return tf.cast(x, NETWORK)


def from_network(logits: tf.Tensor) -> tf.Tensor:
    """float32 (networks) -> float64 (densities)."""
    return tf.cast(logits, DENSITY)


def specs_of(values: Any) -> Any:
    """The TensorSpec of every tensor in a nested structure; hashable, so a key for compiled functions."""
    return tf.nest.map_structure(lambda v: tf.TensorSpec(np.shape(v), v.dtype), values)


def compiled(function: Callable[..., Any], *specs: Any, jit_compile: bool = True) -> Any:
    """`function` traced once, for arguments of these specs; it cannot trace again, and calls of it raise for other shapes."""
    return tf.function(function, autograph=False, jit_compile=jit_compile).get_concrete_function(*specs)


def split_seed(seed: int, iteration: int, purpose: str) -> np.ndarray:
    """A stateless TF seed, int32 [2], for one purpose in one iteration of one run: the only source of randomness.

    Distinct (seed, iteration, purpose) give independent streams (NumPy's SeedSequence hashes them).
    """
    words = [int(seed), int(iteration), zlib.crc32(purpose.encode())]
    return np.random.SeedSequence(words).generate_state(2).astype(np.int32)


def numpy_seed(seed: int, iteration: int, purpose: str) -> int:
    """The same for libraries that take one non-negative 31-bit integer (scikit-learn, Keras initialisers)."""
    return int(split_seed(seed, iteration, purpose)[0]) & 0x7FFFFFFF


def bisect_decreasing(f: Callable[[tf.Tensor], tf.Tensor], low: tf.Tensor, high: tf.Tensor, steps: int = 60) -> tf.Tensor:
    """Elementwise root of a decreasing f by bisection; returns the upper end, where f <= 0 if f(high) <= 0.

    Args:
        f: [...] -> [...], elementwise and decreasing.
        low, high: [...] float64, the brackets.
    """

    def halve(i: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        middle = 0.5 * (low + high)
        above = f(middle) > 0.0
        return i + 1, tf.where(above, middle, low), tf.where(above, high, middle)

    _, _, high = tf.while_loop(lambda i, *_: i < steps, halve, (0, low, high), maximum_iterations=steps)
    return high
