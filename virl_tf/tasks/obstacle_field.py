"""Paths past obstacles that stay where they are: 2^n ways, p(x) in closed form."""

from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.contexts import checked
from virl_tf.metrics import covered_modes
from virl_tf.numerics import DENSITY, numpy_seed
from virl_tf.shapes import Array, Float64, Int64
from virl_tf.tasks.obstacles import Obstacles
from virl_tf.validation import check_integer, check_seed

_BLOCK = 1000  # exact draws at once


class ObstacleField:
    """`virl_tf.tasks.obstacles.Obstacles` in one context, drawn from a seed.

    Attributes:
        heights: [n], of the obstacles.
        mode_centers: [2^n, n], a point in each way, two widths from every obstacle.
    """

    def __init__(self, num_obstacles: int, seed: int = 0):
        """The truth.

        Args:
            num_obstacles: n, also D; at most `virl_tf.tasks.obstacles.MAX_OBSTACLES`.
            seed: of the heights; demonstrations have their own.

        Raises:
            InputError: an argument out of its range.
        """
        self._any = Obstacles(num_obstacles)
        self.dim = self._any.dim
        self.heights = self._any.contexts(1, seed)[0]
        self._log_normaliser = self._any.log_normaliser(self.heights)
        bits = np.arange(self._any.num_ways)[:, None] >> np.arange(self.dim) & 1
        self.mode_centers = self.heights + (2.0 * bits - 1.0) * 2.0 * self._any.width

    def log_prob(self, x: Any) -> tf.Tensor:
        """Log p(x), normalised: [N, D] -> [N], float64; -inf on an obstacle."""
        x, heights = checked("x", x, self.dim), tf.constant(self.heights, DENSITY)
        # The normaliser has 2^n terms: once, not for each x.
        return self._any.log_unnormalised(x, heights) - self._log_normaliser

    def demonstrations(self, n: int, seed: int) -> Float64[Array, "n D"]:
        """N exact draws [n, D]; the first of more are the same."""
        count = -(-check_integer("n", n, 1) // _BLOCK)
        seeds = [numpy_seed(check_seed(seed), i, "obstacle field") for i in range(count)]
        rows = np.tile(self.heights, (_BLOCK, 1))
        return np.concatenate([self._any.sample(rows, block) for block in seeds])[:n]

    def ways(self, x: Float64[Array, "N D"]) -> Int64[Array, " N"]:
        """Number of each path's way, from 0: bit j is 1 above obstacle j; [N, n] -> [N]."""
        return self._any.ways(x, np.broadcast_to(self.heights, np.shape(x)))

    def outcome(self, x: Float64[Array, "N D"]) -> dict[str, float]:
        """What paths do: [N, D] -> numbers by name.

        Returns:
            {ways_covered: how many have at least 0.3 % of the paths
            (`virl_tf.metrics.covered_modes`);
            ways_entropy: of the shares of the ways, to the base 2^n: 1 if all are alike}.
        """
        ways, number = self.ways(x), self._any.num_ways
        shares = np.bincount(ways, minlength=number) / len(ways)
        entropy = -np.sum(shares * np.log(np.where(shares > 0.0, shares, 1.0))) / np.log(number)
        covered = covered_modes(ways, number).sum()
        return {"ways_covered": float(covered), "ways_entropy": float(entropy)}

    def paths(self, x: Float64[Array, "N D"]) -> Float64[Array, "N n 2"]:
        """Points in the plane, x_j over the obstacle's number j, from 1: [N, n] -> [N, n, 2]."""
        x = np.asarray(x)
        places = np.broadcast_to(np.arange(1.0, self.dim + 1.0), x.shape)
        return np.stack([places, x], axis=-1)

    @property
    def outlines(self) -> dict[str, Float64[Array, "M V 2"]]:
        """Polygons to draw: the obstacles, a width up and down."""
        corners = np.array([[-0.08, -1.0], [0.08, -1.0], [0.08, 1.0], [-0.08, 1.0]])
        middles = self.paths(self.heights[None])[0]
        return {"obstacles": middles[:, None] + corners * [1.0, self._any.width]}
