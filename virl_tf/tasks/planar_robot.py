"""The planar robot of the VIPS papers: an arm of unit links that reaches for one of the goals.

The joint angles x are relative, so link i points in direction x_1 + ... + x_i. A Gaussian prior
keeps the arm smooth, and the end effector e(x) must lie at a goal:

    R(x) = log N(x; 0, diag(1, s^2, ..., s^2)) + max_g log N(e(x); g, likelihood_std^2 I).

The values (10 links, goals at distance 7 on the four half-axes, s = 0.2, likelihood_std = 0.01) are
those of arenz2020 as their public code (gmmvi) has them. The arm reaches each goal in many smooth
shapes, so there is no list of modes; what is counted are the goals.
"""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.contexts import checked
from virl_tf.numerics import DENSITY, LOG_2PI, generator
from virl_tf.validation import InputError, check_integer, check_positive, check_seed, reason

GOALS = ((7.0, 0.0), (0.0, 7.0), (-7.0, 0.0), (0.0, -7.0))
# Whole turns of the first joint: beyond them its prior N(0, 1) has 1e-20 of its mass.
_TURNS = np.arange(-1, 2)
# Of 1.0, 1.2, 1.5, 1.8 and 2.2 the one with the largest effective sample size: 0.8 % of the
# proposals.
_WIDER = 1.5
_PROPOSED = 200_000


class PlanarRobot:
    """log p(x) = R(x) - log Z.

    Attributes:
        dim: number of joints.
        goals: [G, 2].
        prior_std, likelihood_std: s and the standard deviation of the end effector around a goal.
    """

    def __init__(
        self,
        num_links: int = 10,
        *,
        goals: Any = GOALS,
        prior_std: float = 0.2,
        likelihood_std: float = 0.01,
    ) -> None:
        """Build the task.

        Args:
            num_links: D, at least 2.
            goals: [G, 2], no farther from the origin than the arm is long.
            prior_std: s.
            likelihood_std: standard deviation of the end effector around a goal.

        Raises:
            InputError: an argument out of its range, a goal at the origin or beyond the arm's
                length.
        """
        self.dim = check_integer("num_links", num_links, 2)
        try:
            self.goals = np.asarray(goals, float)
        except (TypeError, ValueError) as error:
            raise InputError(f"goals must be points [G, 2]; {reason(error)}.") from error
        pairs = self.goals.ndim == 2 and self.goals.shape[1] == 2
        if not pairs or not len(self.goals) or not np.isfinite(self.goals).all():
            raise InputError(f"goals must be points [G, 2], got shape {self.goals.shape}.")
        distances = np.hypot(*self.goals.T)
        if not ((distances > 0.0) & (distances < self.dim)).all():
            raise InputError(
                f"goals must lie between the origin and the arm's length {self.dim}; "
                f"got distances {distances}."
            )
        self.prior_std = check_positive("prior_std", prior_std)
        self.likelihood_std = check_positive("likelihood_std", likelihood_std)

    @property
    def prior_stds(self) -> np.ndarray:
        """[D], the prior's standard deviations: 1 for the first joint, then `prior_std`."""
        return np.array([1.0] + [self.prior_std] * (self.dim - 1))

    @property
    def mode_centers(self) -> np.ndarray:
        """[G, D]: for each goal the evenly bent arm that reaches it."""
        return _even_arms(self.dim, self.goals)

    @property
    def log_normaliser(self) -> float:
        """Log of the integral of exp R, by importance sampling (-10.61 by default, error 0.01)."""
        return self._calibration[0]

    def joints(self, x: Any) -> tf.Tensor:
        """Joints from the origin to the end effector: [..., D] -> [..., D + 1, 2]."""
        directions = tf.cumsum(self._angles(x), axis=-1)
        steps = tf.stack([tf.cos(directions), tf.sin(directions)], axis=-1)
        return tf.concat([tf.zeros_like(steps[..., :1, :]), tf.cumsum(steps, axis=-2)], axis=-2)

    def reward(self, x: Any) -> tf.Tensor:
        """R(x): [..., D] -> [...], float64. Raises InputError for another last axis."""
        x = self._angles(x)
        stds = tf.constant(self.prior_stds, DENSITY)
        surprise = 0.5 * (x / stds) ** 2 + tf.math.log(stds) + 0.5 * LOG_2PI
        log_prior = -tf.reduce_sum(surprise, axis=-1)
        distances = tf.reduce_min(self._goal_distances(x), axis=-1)
        log_scale = 2.0 * np.log(self.likelihood_std)
        return log_prior - 0.5 * (distances / self.likelihood_std) ** 2 - LOG_2PI - log_scale

    def log_prob(self, x: Any) -> tf.Tensor:
        """Log p(x), normalised: [..., D] -> [...], float64.

        Raises InputError for another last axis.
        """
        return self.reward(x) - tf.constant(self.log_normaliser, DENSITY)

    def goals_of(self, x: Any, num_deviations: float = 4.0) -> np.ndarray:
        """The goal within `num_deviations` of each arm's end effector, or -1: [N, D] -> [N] int."""
        distances = self._goal_distances(self._angles(x)).numpy()
        near = distances.min(axis=-1) <= num_deviations * self.likelihood_std
        return np.where(near, distances.argmin(axis=-1), -1)

    def demonstrations(self, n: int, seed: int) -> np.ndarray:
        """N independent draws [n, D] of p, by rejection.

        Not by slice sampling as in the paper's own tasks: a chain does not leave its goal.
        """
        check_integer("n", n, 1)
        rng = generator(check_seed(seed), "exact samples")
        bound = self._calibration[1]
        drawn: list[np.ndarray] = []
        while sum(map(len, drawn)) < n:
            x, weights = self._propose(_PROPOSED, rng)
            drawn.append(x[rng.uniform(size=len(x)) * bound < weights])
        return np.concatenate(drawn)[:n]

    @property
    def _calibration(self) -> tuple[float, float]:
        goals = tuple(map(tuple, self.goals))
        return _calibrate(self.dim, goals, self.prior_std, self.likelihood_std)

    def _propose(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Arms x [n, D] that end at goals, and exp R(x) over their density [n], with mean Z.

        The end e is drawn around a goal, and all joints but the first and a middle one from a prior
        that is wider by _WIDER. Bent there, the two halves of the arm must span |e|, for which
        there are two angles (or none: weight 0), and the first joint turns the arm to e. The area
        of e that belongs to a change of these two joints is |a x b|, the halves' cross product.
        """
        middle = self.dim // 2
        goals = rng.integers(len(self.goals), size=n)
        noise = rng.normal(size=(n, 2)) @ np.array([1.0, 1j])
        end = self.goals[goals] @ np.array([1.0, 1j]) + self.likelihood_std * noise
        x = rng.normal(0.0, _WIDER * self.prior_std, (n, self.dim))
        x[:, [0, middle]] = 0.0
        directions = np.exp(1j * np.cumsum(x, axis=1))
        a, b = directions[:, :middle].sum(axis=1), directions[:, middle:].sum(axis=1)
        spanned = np.abs(end) ** 2 - np.abs(a) ** 2 - np.abs(b) ** 2
        cosine = spanned / (2.0 * np.abs(a) * np.abs(b))
        bend = np.arccos(np.clip(cosine, -1.0, 1.0)) * rng.choice([-1.0, 1.0], n)
        bent = a + np.abs(b) * a / np.abs(a) * np.exp(1j * bend)

        log_ratio = -0.5 * (1.0 - _WIDER**-2) * np.sum((x / self.prior_std) ** 2, axis=1)
        log_ratio += (self.dim - 2) * np.log(_WIDER)
        # The joint's angle, in the turn that its prior could reach.
        x[:, middle] = np.angle(np.exp(1j * bend) * a * np.conj(b))
        turned = np.angle(end * np.conj(bent))[:, None] + 2.0 * np.pi * _TURNS
        # The prior N(0, 1) of the first joint chooses the turn.
        first = np.cumsum(np.exp(-0.5 * turned**2 - 0.5 * LOG_2PI), axis=1)
        chosen = np.sum(rng.uniform(size=(n, 1)) * first[:, -1:] > first, axis=1)
        x[:, 0] = turned[np.arange(n), chosen]
        area = np.abs(a) * np.abs(b) * np.abs(np.sin(bend))
        bent_surprise = 0.5 * (x[:, middle] / self.prior_std) ** 2
        log_ratio -= bent_surprise + np.log(self.prior_std) + 0.5 * LOG_2PI
        # Near one goal others may be near, too: of them R takes the nearest, the proposal all.
        of_goals = self.goals @ np.array([1.0, 1j])
        log_goals = -0.5 * (np.abs(end[:, None] - of_goals) / self.likelihood_std) ** 2
        log_ratio += log_goals.max(axis=1) - np.logaddexp.reduce(log_goals, axis=1)
        with np.errstate(divide="ignore"):
            weights = 2.0 * len(self.goals) * first[:, -1] * np.exp(log_ratio) / area
        return x, np.where(np.abs(cosine) < 1.0, weights, 0.0)

    def _goal_distances(self, x: tf.Tensor) -> tf.Tensor:
        """|e(x) - g|: [..., D] -> [..., G]."""
        return tf.norm(self.joints(x)[..., -1:, :] - tf.constant(self.goals, DENSITY), axis=-1)

    def _angles(self, x: Any) -> tf.Tensor:
        return checked("x", x, self.dim)


@functools.cache
def _calibrate(
    dim: int, goals: tuple[tuple[float, float], ...], prior_std: float, likelihood_std: float
) -> tuple[float, float]:
    """Log Z, and a bound of the proposals' weights: twice the largest of three million."""
    task = PlanarRobot(dim, goals=goals, prior_std=prior_std, likelihood_std=likelihood_std)
    rng = np.random.default_rng(0)
    weights = [task._propose(_PROPOSED, rng)[1] for _ in range(15)]
    return float(np.log(np.mean(weights))), 2.0 * float(np.max(weights))


def _even_arms(dim: int, goals: np.ndarray) -> np.ndarray:
    """[G, D]: all joints but the first at one angle, by bisection; the first turns to the goal."""
    arms = np.zeros((len(goals), dim))
    for row, goal in zip(arms, goals, strict=True):
        low, high = 0.0, 2.0 * np.pi / dim  # straight; closed to a polygon, whose end is the origin
        for _ in range(60):
            middle = 0.5 * (low + high)
            end = np.exp(1j * middle * np.arange(dim)).sum()
            low, high = (middle, high) if abs(end) > np.hypot(*goal) else (low, middle)
        row[1:] = low
        row[0] = np.angle(complex(*goal) / np.exp(1j * low * np.arange(dim)).sum())
    return arms
