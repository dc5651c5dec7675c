"""The grid walker: d steps of length one in the plane, each given by its absolute angle.

It is the paper's (appendix "Grid Walker").

The waypoint after step i is h_i(x) = (sum_{j<=i} cos x_j, sum_{j<=i} sin x_j), and the reward is
the log likelihood of the waypoints' first coordinates under Gaussians on d equidistant vertical
lines,

    R(x) = sum_i log N(h_i^x(x); spacing * i, variance).

R depends on the angles through cosines only, so exp R is 2 pi-periodic in each of them and has no
normaliser on R^d. Restricted to [-pi, pi]^d it is a density with 2^d modes of exactly equal mass,
at the sign patterns of acos(spacing).
"""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.contexts import checked
from virl_tf.mixture import gaussian
from virl_tf.numerics import DENSITY, LOG_2PI, generator
from virl_tf.tasks.slice_sampling import slice_sample
from virl_tf.validation import InputError, check_integer, check_positive, check_seed

SUPPORT = float(np.pi)  # half-width of the box of angles
_MIN_VARIANCE = 1e-10  # the quadrature's nodes lie 17 per standard deviation: 3 million of them


class GridWalker:
    """log p(x) = sum_i log N(h_i^x(x); spacing * i, variance) - log Z on [-pi, pi]^d, else -inf.

    Attributes:
        dim: d, the number of steps.
        spacing, variance: of the target lines.
        mode_centers: [2^d, d]; row k has the sign pattern of k's binary digits: x_i > 0 where bit i
            is set.
    """

    max_steps = 10

    def __init__(
        self,
        num_steps: int = 5,
        *,
        spacing: float = 0.8,
        variance: float = 1e-3,
        burn_in: int = 250,
    ):
        """Build the task.

        Args:
            num_steps: d, 1 to 10.
            spacing: distance of consecutive lines, in (0, 1): a step of length one must reach the
                next line.
            variance: of the Gaussian on each line.
            burn_in: transitions of each slice-sampling chain before its draw (50 are too few).

        Raises:
            InputError: an argument out of its range.
        """
        self.dim = check_integer("num_steps", num_steps, 1, self.max_steps)
        self.spacing = check_positive("spacing", spacing)
        if self.spacing >= 1.0:
            raise InputError(f"spacing must be below 1, the length of a step; got {spacing!r}.")
        self.variance = check_positive("variance", variance)
        if self.variance < _MIN_VARIANCE:
            raise InputError(f"variance must be at least {_MIN_VARIANCE:g}, got {variance!r}.")
        self.burn_in = check_integer("burn_in", burn_in, 1)
        bits = np.arange(2**self.dim)[:, None] >> np.arange(self.dim) & 1
        self.mode_centers = (2.0 * bits - 1.0) * np.arccos(self.spacing)

    @property
    def log_normaliser(self) -> float:
        """Log Z: the integral of exp R over the box, exact up to quadrature (6.0863 at d = 5)."""
        return _recursion(self.dim, self.spacing, self.variance).log_normaliser

    def waypoints(self, x: Any) -> tf.Tensor:
        """h_0 ... h_d: [..., d] -> [..., d + 1, 2]; h_0 is the origin.

        Raises InputError for another last axis.
        """
        x = self._angles(x)
        steps = tf.stack([tf.cos(x), tf.sin(x)], axis=-1)
        return tf.concat([tf.zeros_like(steps[..., :1, :]), tf.cumsum(steps, axis=-2)], axis=-2)

    def reward(self, x: Any) -> tf.Tensor:
        """R(x): [..., d] -> [...], float64; periodic, finite everywhere.

        Raises InputError for another last axis.
        """
        errors = self._line_errors(self._angles(x))
        return tf.reduce_sum(
            -0.5 * errors**2 / self.variance - 0.5 * (LOG_2PI + np.log(self.variance)), axis=-1
        )

    def log_prob(self, x: Any) -> tf.Tensor:
        """Log p(x), normalised: [..., d] -> [...], float64; -inf outside [-pi, pi]^d.

        Raises InputError for another last axis.
        """
        x = self._angles(x)
        values = self.reward(x) - tf.constant(self.log_normaliser, DENSITY)
        return tf.where(self.contains(x), values, -np.inf * tf.ones_like(values))

    def contains(self, x: Any) -> tf.Tensor:
        """Whether x lies in the support [-pi, pi]^d: [..., d] -> [...] bool."""
        return tf.reduce_all(tf.abs(self._angles(x)) <= SUPPORT, axis=-1)

    def modes_of(self, x: Any, num_deviations: float = 4.0) -> np.ndarray:
        """The mode each walk belongs to, or -1: [N, d] -> [N] int.

        A walk belongs to the mode of its sign pattern if it is in the support and every waypoint is
        within `num_deviations` standard deviations of its line.
        """
        x = self._angles(x)
        reach = num_deviations * np.sqrt(self.variance)
        near = tf.reduce_all(tf.abs(self._line_errors(x)) <= reach, axis=-1)
        patterns = (x.numpy() > 0.0) @ (1 << np.arange(self.dim))
        return np.where((near & self.contains(x)).numpy(), patterns, -1)

    def demonstrations(self, n: int, seed: int) -> np.ndarray:
        """N demonstrations [n, d] by elliptical slice sampling with the pseudo-prior N(0, I)."""
        check_integer("n", n, 1)
        check_seed(seed)
        prior = gaussian(np.zeros(self.dim), np.eye(self.dim))
        return slice_sample(self.log_prob, prior, n, seed, self.burn_in)

    def exact_samples(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """N exact draws [n, d] and their sign patterns [n]: the slice sampler's oracle."""
        check_integer("n", n, 1)
        rng = generator(check_seed(seed), "exact samples")
        x = _recursion(self.dim, self.spacing, self.variance).sample(n, rng)
        return x, (x > 0.0) @ (1 << np.arange(self.dim))

    def _line_errors(self, x: tf.Tensor) -> tf.Tensor:
        """h_i^x - spacing * i: [..., d] -> [..., d]."""
        return tf.cumsum(tf.cos(x) - self.spacing, axis=-1)

    def _angles(self, x: Any) -> tf.Tensor:
        return checked("x", x, self.dim)


def half_circle(spacing: float, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes [A] and weights [A] of the trapezoidal rule on half of the circle, which is enough by
    symmetry, without those where every waypoint would be 9 standard deviations off.
    """
    # 17 cells per standard deviation of an angle (spacing 0.8), however narrow.
    half = 1024 * max(1, int(np.ceil(np.sqrt(1e-3 / variance))))
    angles = np.linspace(0.0, np.pi, half + 1)
    quadrature = np.full(len(angles), 2.0 * np.pi / half)
    quadrature[[0, -1]] *= 0.5  # the first and last node belong to both halves
    reach = np.abs(np.cos(angles) - spacing) <= 18.0 * np.sqrt(variance)
    return angles[reach], quadrature[reach]


class _Recursion:
    """Z by integrating one angle at a time, from the last.

    With the error e = h_i^x - spacing * i of the waypoint before,

        V_{i-1}(e) = int_{-pi}^{pi} N(e + cos x - spacing; 0, variance) V_i(e + cos x - spacing) dx,
        V_d = 1, Z = V_0(0).

    The integral is over the angle (over cos x it has a singularity), by the trapezoidal rule, which
    converges exponentially for periodic integrands. V_i is tabulated in e and interpolated.
    """

    num_errors = 401

    def __init__(self, num_steps: int, spacing: float, variance: float):
        from scipy.interpolate import CubicSpline

        self.spacing, self.variance = spacing, variance
        width = 9.0 * np.sqrt(variance)
        errors = np.linspace(-width, width, self.num_errors)
        self.angles, self.quadrature = half_circle(spacing, variance)
        # log V_i for i = d, ..., 1; the integrand of V_{i-1} uses V_i.
        log_values = [np.zeros_like(errors)]
        self._splines = [CubicSpline(errors, log_values[0])]
        for _ in range(num_steps):
            log_values.append(self._integrate(errors))
            self._splines.append(CubicSpline(errors, log_values[-1]))
        self.log_normaliser = float(self._splines[-1](0.0))

    def _log_integrand(self, errors: np.ndarray, spline: Any) -> np.ndarray:
        """Log N(e') + log V_i(e') at e' = e + cos x - spacing: [N] -> [N, angles]."""
        after = errors[:, None] + np.cos(self.angles) - self.spacing
        edge = spline.x[-1]  # beyond it N(e') is below e^-40 of its peak, and V_i is smooth
        log_density = -0.5 * after**2 / self.variance - 0.5 * (LOG_2PI + np.log(self.variance))
        return log_density + spline(np.clip(after, -edge, edge))

    def _integrate(self, errors: np.ndarray) -> np.ndarray:
        terms = self._log_integrand(errors, self._splines[-1])
        top = terms.max(axis=1, keepdims=True)
        return top[:, 0] + np.log(np.exp(terms - top) @ self.quadrature)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """N walks [n, d]: each angle by its inverse distribution function given those before."""
        x, errors = np.empty((n, len(self._splines) - 1)), np.zeros(n)
        for i in range(x.shape[1]):
            spline = self._splines[-2 - i]  # V_{i+1}
            # The table of 1,000 walks has 16 MB.
            for rows in np.array_split(np.arange(n), -(-n // 1000)):
                x[rows, i] = self._draw_angles(self._log_integrand(errors[rows], spline), rng)
            x[:, i] *= rng.choice([-1.0, 1.0], n)
            errors = errors + np.cos(x[:, i]) - self.spacing
        return x

    def _draw_angles(self, log_density: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One angle in [0, pi] per row, linear between the nodes of the distribution function."""
        density = np.exp(log_density - log_density.max(axis=1, keepdims=True))
        masses = 0.5 * (density[:, 1:] + density[:, :-1])
        cumulative = np.cumsum(masses, axis=1)
        levels = rng.uniform(0.0, cumulative[:, -1])
        cells = np.minimum((cumulative <= levels[:, None]).sum(axis=1), masses.shape[1] - 1)
        rows = np.arange(len(levels))
        into = 1.0 - (cumulative[rows, cells] - levels) / masses[rows, cells]
        return self.angles[cells] + np.clip(into, 0.0, 1.0) * (self.angles[1] - self.angles[0])


@functools.lru_cache(maxsize=32)
def _recursion(num_steps: int, spacing: float, variance: float) -> _Recursion:
    return _Recursion(num_steps, spacing, variance)
