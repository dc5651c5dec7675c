"""Walks of unit steps: the equations of the appendix "Grid Walker" one step at a time, with the
goal of path planning added.

`goal_variance=None` is the walker of the paper, without a goal.
"""

import itertools
import math

import numpy as np
from scipy.stats import norm


def waypoints(x):
    """[(0, 0), h_1(x), ..., h_d(x)] of one walk [d]."""
    points = [(0.0, 0.0)]
    for angle in x:
        points.append((points[-1][0] + math.cos(angle), points[-1][1] + math.sin(angle)))
    return points


def reward(x, spacing, variance, goal_variance=None):
    """The log likelihood of one walk [d]: of its waypoints on their lines, and of its end on the
    goal's height.
    """
    points = waypoints(x)
    total = 0.0
    for i in range(1, len(points)):
        total += norm.logpdf(points[i][0], spacing * i, math.sqrt(variance))
    if goal_variance is not None:
        total += norm.logpdf(points[-1][1], 0.0, math.sqrt(goal_variance))
    return total


def density_table(axes, spacing, variance, goal_variance=None):
    """exp(reward) at every point of the product of the axes: [len(axes[0]), len(axes[1]), ...]."""
    h_x, h_y, log_density = 0.0, 0.0, 0.0
    for i, angles in enumerate(np.meshgrid(*axes, indexing="ij", sparse=True), start=1):
        h_x, h_y = h_x + np.cos(angles), h_y + np.sin(angles)
        log_density = (
            log_density
            - 0.5 * (h_x - spacing * i) ** 2 / variance
            - 0.5 * math.log(2.0 * math.pi * variance)
        )
    if goal_variance is not None:
        log_density = (
            log_density
            - 0.5 * h_y**2 / goal_variance
            - 0.5 * math.log(2.0 * math.pi * goal_variance)
        )
    return np.exp(log_density)


def sign_patterns(dim):
    """All 2^d combinations of going down (-1) and up (+1)."""
    return np.array(list(itertools.product([-1.0, 1.0], repeat=dim)))


def weighted_magnitudes(n, dim, spacing, variance, seed):
    """About n points |x| [N, d] and weights [N] whose mean is Z: importance sampling of the walker,
    by changing variables.

    Draw the waypoints' distances to their lines, e_i ~ N(0, variance). Then cos x_i = spacing + e_i
    - e_{i-1}, and de/dx is triangular with determinant prod |sin x_i|. Where some |cos x_i| > 1
    there is no walk: weight 0 (left out, but counted in the mean).
    """
    errors = np.random.default_rng(seed).normal(0.0, math.sqrt(variance), (n, dim))
    cosines = spacing + np.diff(errors, axis=1, prepend=0.0)
    weights = np.zeros(n)
    possible = (np.abs(cosines) < 1.0).all(axis=1)
    x = np.arccos(cosines[possible])
    weights[possible] = 2.0**dim / np.sin(x).prod(axis=1)
    return x, weights[possible] * (possible.sum() / n)


def goal_densities(magnitudes, goal_variance):
    """N(h_d^y; 0, goal_variance) of |x| [N, d] with each of `sign_patterns`: [2^d, N]."""
    heights = sign_patterns(magnitudes.shape[1]) @ np.sin(magnitudes).T
    return norm.pdf(heights, 0.0, math.sqrt(goal_variance))


def distance_to(x, center, points_per_segment=2001):
    """The least distance of many points on the segments of one walk [d] to a point of the plane."""
    points = waypoints(x)
    least = math.inf
    for (x_0, y_0), (x_1, y_1) in itertools.pairwise(points):
        for share in np.linspace(0.0, 1.0, points_per_segment):
            least = min(
                least,
                math.hypot(
                    x_0 + share * (x_1 - x_0) - center[0], y_0 + share * (y_1 - y_0) - center[1]
                ),
            )
    return least
