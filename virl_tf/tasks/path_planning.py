"""Path planning, the whole of Figure 1: paths fan out from the start and meet again at the goal.

The paper models only the first half of it (`GridWalker`) and gives no construction of the whole.
This is the smallest one: the walker's lines up to d (even), and a Gaussian on the last waypoint's
second coordinate,

    log p(x) = sum_i log N(h_i^x(x); spacing * i, variance) + log N(h_d^y(x); 0, goal_variance) -
    log Z.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.numerics import DENSITY, LOG_2PI, generator, numpy_seed
from virl_tf.tasks.grid_walker import GridWalker, half_circle
from virl_tf.validation import InputError, check_integer, check_positive, check_seed


class Discs(NamedTuple):
    """Discs in the plane: centers [M, 2], radii [M]."""

    centers: np.ndarray
    radii: np.ndarray


class PathPlanning(GridWalker):
    """The walker with a goal at (spacing * d, 0).

    It has C(d, d/2) modes: the walks with as many steps up as down.

    Attributes:
        mode_centers: [C(d, d/2), d].
        obstacles: none, unless made by `with_obstacles`.
    """

    def __init__(
        self,
        num_steps: int = 6,
        *,
        spacing: float = 0.8,
        variance: float = 1e-3,
        goal_variance: float = 1e-3,
        burn_in: int = 250,
    ):
        """As `GridWalker`, for an even number of steps.

        Args:
            num_steps: d, even, 2 to 10.
            spacing, variance: the walker's.
            burn_in: the walker's, not used: demonstrations are exact draws.
            goal_variance: of the Gaussian on the height of the end point.

        Raises:
            InputError: an argument out of its range.
        """
        super().__init__(num_steps, spacing=spacing, variance=variance, burn_in=burn_in)
        if self.dim % 2:
            raise InputError(
                f"num_steps must be even, for the paths to meet again; got {num_steps}."
            )
        self.goal_variance = check_positive("goal_variance", goal_variance)
        self.obstacles = Discs(np.zeros((0, 2)), np.zeros(0))
        ups = (self.mode_centers > 0.0).sum(axis=1)
        self._patterns = np.flatnonzero(2 * ups == self.dim)  # that reach the goal
        self.mode_centers = self.mode_centers[self._patterns]

    @property
    def goal(self) -> np.ndarray:
        """[2]."""
        return np.array([self.spacing * self.dim, 0.0])

    @property
    def log_normaliser(self) -> float:
        """Log Z of the task without obstacles, exact up to quadrature."""
        return _log_normaliser(self.dim, self.spacing, self.variance, self.goal_variance)

    def reward(self, x: Any) -> tf.Tensor:
        """The walker's reward plus the goal's: [..., d] -> [...]; without obstacles."""
        miss = self.waypoints(x)[..., -1, 1]
        return (
            super().reward(x)
            - 0.5 * miss**2 / self.goal_variance
            - 0.5 * (LOG_2PI + np.log(self.goal_variance))
        )

    def log_prob(self, x: Any) -> tf.Tensor:
        """Log p(x): [..., d] -> [...]; -inf outside [-pi, pi]^d and at obstacles (same Z)."""
        return self.avoid_obstacles(super().log_prob)(x)

    def modes_of(self, x: Any, num_deviations: float = 4.0) -> np.ndarray:
        """The rows of `mode_centers` or -1: [N, d] -> [N] int.

        As the walker's, and the end point is within `num_deviations` of the goal.
        """
        miss = np.abs(self.waypoints(x)[..., -1, 1].numpy())
        pattern = super().modes_of(x, num_deviations)
        index = np.searchsorted(self._patterns, pattern).clip(max=len(self._patterns) - 1)
        near = miss <= num_deviations * np.sqrt(self.goal_variance)
        return np.where(near & (self._patterns[index] == pattern), index, -1)

    def demonstrations(self, n: int, seed: int) -> np.ndarray:
        """N demonstrations [n, d], exact.

        The modes' masses differ, and chains of a slice sampler would get them wrong.
        """
        return self.exact_samples(n, seed)[0]

    def exact_samples(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """N independent draws [n, d] and their modes [n], by rejection from the walker's.

        A mode is a row of `mode_centers`; -1 is a walk whose signs do not add up to zero.

        Raises:
            InputError: the obstacles leave (almost) nothing to draw.
        """
        check_integer("n", n, 1)
        check_seed(seed)
        walker = GridWalker(self.dim, spacing=self.spacing, variance=self.variance)
        rng = generator(seed, "goal")
        kept: list[np.ndarray] = []
        for batch in range(10_000):
            # Batches have one size, so that draw i is the same for every n > i.
            x, _ = walker.exact_samples(5000, numpy_seed(seed, batch, "walks"))
            miss = self.waypoints(x)[:, -1, 1].numpy()
            accepted = np.log(rng.uniform(size=len(x))) < -0.5 * miss**2 / self.goal_variance
            kept.append(x[accepted & ~self.collides(x).numpy()])
            if sum(map(len, kept)) >= n:
                x = np.concatenate(kept)[:n]
                return x, self.modes_of(x, np.inf)
            if batch == 99 and not sum(map(len, kept)):
                break
        raise InputError(
            "the obstacles (or a very small goal_variance) leave almost no path to draw."
        )

    # --- obstacles: unknown to the demonstrations, known to whoever uses the recovered reward -----

    def with_obstacles(self, centers: Any, radii: Any) -> "PathPlanning":
        """The same task with discs in the way.

        Args:
            centers: [M, 2].
            radii: [M] or one number, > 0.

        Raises:
            InputError: wrong shapes or numbers, or discs that block every path.
        """
        try:
            centers = np.array(centers, np.float64)
            radii = np.broadcast_to(np.asarray(radii, np.float64), centers.shape[:1]).copy()
        except (TypeError, ValueError) as error:
            raise InputError(
                f"obstacles: centers must be numbers [M, 2], radii [M] or one number; {error}."
            ) from error
        if centers.ndim != 2 or centers.shape[1] != 2 or not np.isfinite(centers).all():
            raise InputError(
                f"obstacles: centers must be finite numbers [M, 2], got shape {centers.shape}."
            )
        if not (np.isfinite(radii).all() and (radii > 0.0).all()):
            raise InputError(f"obstacles: radii must be finite numbers > 0, got {radii.tolist()}.")
        task = PathPlanning(
            self.dim,
            spacing=self.spacing,
            variance=self.variance,
            goal_variance=self.goal_variance,
            burn_in=self.burn_in,
        )
        task.obstacles = Discs(centers, radii)
        if not task.open_modes.any():
            raise InputError(
                f"the obstacles block every one of the {len(self.mode_centers)} paths; "
                "leave at least one open."
            )
        return task

    def with_blocked_share(self, share: float, seed: int, radius: float = 0.25) -> "PathPlanning":
        """The same task with discs on one to three waypoints.

        Chosen at random among the choices that block nearest to `share`.

        Args:
            share: of the paths, in (0, 1).
            seed: of the choice.
            radius: of the discs.

        Raises:
            InputError: a share outside (0, 1), a radius that is no positive number, or one that
                leaves no path.
        """
        if check_positive("share of blocked paths", share) >= 1.0:
            raise InputError(f"the share of blocked paths must be between 0 and 1, got {share!r}.")
        radius = check_positive("radius", radius)
        paths = self.waypoints(self.mode_centers)
        inner = np.unique(paths[:, 1:-1].numpy().reshape(-1, 2).round(9), axis=0)
        discs = [Discs(center[None], np.array([radius])) for center in inner]
        blocks = np.stack([_meets(paths, disc) for disc in discs])
        choices = [
            rows for count in (1, 2, 3) for rows in itertools.combinations(range(len(inner)), count)
        ]
        blocked = np.array([blocks[list(rows)].any(axis=0).mean() for rows in choices])
        distance = np.where(blocked < 1.0, np.abs(blocked - share), np.inf).round(9)
        if not np.isfinite(distance.min()):
            raise InputError(
                f"any disc of radius {radius} blocks every one of the "
                f"{len(self.mode_centers)} paths."
            )
        rng = generator(check_seed(seed), "obstacles")
        chosen = choices[rng.choice(np.flatnonzero(distance == distance.min()))]
        return self.with_obstacles(inner[list(chosen)], radius)

    @property
    def open_modes(self) -> np.ndarray:
        """Which paths no obstacle blocks: [C(d, d/2)] bool."""
        return ~self.collides(self.mode_centers).numpy()

    def collides(self, x: Any) -> tf.Tensor:
        """Whether a path meets an obstacle anywhere along its segments: [..., d] -> [...] bool."""
        return _meets(self.waypoints(x), self.obstacles)

    def avoid_obstacles(self, log_prob: Callable[[Any], tf.Tensor]) -> Callable[[Any], tf.Tensor]:
        """`log_prob` with -inf wherever the path meets an obstacle: for `fit_policy`."""
        if not len(self.obstacles.radii):
            return log_prob

        def constrained(x: Any) -> tf.Tensor:
            values = log_prob(x)
            return tf.where(self.collides(x), -np.inf * tf.ones_like(values), values)

        return constrained


def _meets(waypoints: tf.Tensor, obstacles: Discs) -> tf.Tensor:
    """Whether a segment comes closer to a centre than its radius: [..., d + 1, 2] -> [...] bool."""
    start = waypoints[..., :-1, None, :]
    step = (waypoints[..., 1:, :] - waypoints[..., :-1, :])[..., None, :]
    to_center = tf.constant(obstacles.centers, DENSITY) - start
    projected = tf.reduce_sum(to_center * step, axis=-1, keepdims=True)
    along = tf.clip_by_value(projected, 0.0, 1.0)  # steps have length one
    distance = tf.norm(to_center - along * step, axis=-1)
    return tf.reduce_any(distance < tf.constant(obstacles.radii, DENSITY), axis=[-2, -1])


@functools.lru_cache(maxsize=32)
def _log_normaliser(num_steps: int, spacing: float, variance: float, goal_variance: float) -> float:
    """Log Z by Fourier's inversion in the second coordinate.

    Z is the walker's times E[N(h_d^y; 0, goal_variance)].

    The walker's recursion with exp(i w sin x) put under the integral gives U^w_0(0) = Z E[exp(i w
    h_d^y)], which is real because the task is symmetric; then Z_goal = 1/pi int_0^inf U^w_0(0)
    exp(-w^2 goal_variance / 2) dw.
    """
    from scipy.interpolate import CubicSpline

    spread = np.sqrt(variance)
    errors = np.linspace(-9.0 * spread, 9.0 * spread, 181)
    angles, quadrature = half_circle(spacing, variance)
    # |h_d^y| <= d: the trapezoidal rule in w is exact up to images of the goal, a period 2 pi /
    # step away and 9 deviations off.
    deviation = np.sqrt(goal_variance)
    step = 2.0 * np.pi / (2.0 * num_steps + 9.0 * deviation)
    total = 0.0
    for first in range(0, int(9.0 / deviation / step) + 1, 128):
        frequencies = step * np.arange(first, first + 128)
        waves = np.cos(frequencies * np.sin(angles)[:, None])  # [angles, W]
        values = np.ones((len(errors), len(frequencies)))  # U_i(e): [errors, W]
        for _ in range(num_steps):
            spline, before = CubicSpline(errors, values), np.empty_like(values)
            for row, error in enumerate(errors):
                after = error + np.cos(angles) - spacing
                near = np.abs(after) <= errors[-1]
                log_density = -0.5 * after[near] ** 2 / variance - 0.5 * (
                    LOG_2PI + np.log(variance)
                )
                weights = quadrature[near] * np.exp(log_density)
                before[row] = weights @ (waves[near] * spline(after[near]))
            values = before
        terms = values[len(errors) // 2] * np.exp(-0.5 * goal_variance * frequencies**2)
        total += terms.sum() - (0.5 * terms[0] if first == 0 else 0.0)
        if np.abs(terms).max() < 1e-14 * total:  # U has died out: h_d^y has a smooth density
            break
    return float(np.log(total * step / np.pi))
