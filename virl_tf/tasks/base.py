"""What every task offers."""

from typing import Any, Protocol

import numpy as np
import tensorflow as tf


class Task(Protocol):
    """An expert whose reward is known: R(x) = log p(x).

    In all tasks x are points [N, D], a row each; n is a number of draws; seed is an integer from 0:
    the same one, the same draws.
    """

    @property
    def dim(self) -> int:
        """D."""

    @property
    def mode_centers(self) -> np.ndarray:
        """[M, D], one point in the middle of each mode."""

    def log_prob(self, x: Any) -> tf.Tensor:
        """Log p(x), normalised: [N, D] -> [N], float64."""

    def demonstrations(self, n: int, seed: int) -> np.ndarray:
        """N demonstrations [n, D], by elliptical slice sampling, or exact."""
