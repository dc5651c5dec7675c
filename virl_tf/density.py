"""What mixtures, kernel estimates and their fusion have in common."""

from typing import Any, Protocol, runtime_checkable

import tensorflow as tf


@runtime_checkable
class Density(Protocol):
    """A normalised density of points in D dimensions that can be evaluated and sampled.

    A conditional one takes rows [c, x] for points, and for n the contexts [n, C]
    (`virl_tf.contexts`).
    """

    def log_prob(self, x: Any, /) -> tf.Tensor:
        """Its logarithm: [N, D] -> [N] float64."""

    def sample(self, n: Any, /, seed: Any = None) -> tf.Tensor:
        """Draws [n, D] float64. `seed`: an integer, int32 [2], or None: another one each time."""
