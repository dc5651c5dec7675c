"""People who cross a hall from gate to gate, past a booth in its middle: p(x) in closed form."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.contexts import checked
from virl_tf.numerics import DENSITY, LOG_2PI, generator
from virl_tf.shapes import Array, Float64
from virl_tf.validation import check_integer, check_seed

SIZE = np.array([70.0, 80.0])  # of the hall; all lengths in metres
WALL_GATES = 5  # gates in each of the four walls
GATE_HALF_WIDTH, GATE_DEPTH = 2.0, 2.0
BOOTH, BOOTH_RADIUS = SIZE / 2.0, 4.0
CLEARANCE = 7.0  # between the booth's centre and the path that goes around it
SOFTNESS = 2.0  # of the bend and of the choice of a side
BEND = 0.2  # standard deviation of a bend along the path, of the path's length
ASIDE, ALONG = 0.37, 0.2  # of a bridge, per square root of the path's length: 1.5 m, 0.8 m at 70 m
TIMES = np.arange(1, 5) / 5.0  # of the points in between
BRIDGE = np.minimum.outer(TIMES, TIMES) - np.outer(TIMES, TIMES)  # a Brownian bridge's covariance
MAX_PAIRS = 12 * WALL_GATES**2  # ordered, of gates in different walls


class Guides(NamedTuple):
    """What leads from starts to ends, on either side of the booth.

    Attributes:
        means: [N, 2, 4, 2], of the points in between.
        log_shares: [N, 2], of the sides.
        axes: [N, 2, 2], unit vectors along the line and aside.
        scales: [N, 2], of the bridges in these two directions.
    """

    means: tf.Tensor
    log_shares: tf.Tensor
    axes: tf.Tensor
    scales: tf.Tensor


class Hall:
    """Six points in the plane, x in R^12: the first in one gate's box, the last in another's.

        p(x) = sum_ab w_ab U(start; box a) U(end; box b) sum_s p(s) N(between; line + bend_s, S)

    w_ab are Zipf's (1/1, 1/2, 1/3 ...) over the pairs in use. On side s = -1, 1 of the booth the
    line from start to end, which passes the booth's centre at the signed distance h, bends aside
    by s softplus(CLEARANCE - s h), and p(s) = sigmoid(s h), both with h in units of SOFTNESS: a
    line far from the booth stays straight. S is that of two Brownian bridges, along the line and
    aside, of variances that grow with its length. Outside of the boxes p is 0; a
    Gaussian of a box's moments has a sixth of its mass there.

    Attributes:
        gates: [G, 2, 2], the boxes' lowest and highest corners.
        weights: [G, G], w_ab, 0 for pairs not in use.
        mode_centers: [M, 12], for each pair and each side that at least 1 % take.
    """

    dim = 12

    def __init__(self, num_pairs: int = 40, seed: int = 0):
        """The truth.

        Args:
            num_pairs: in use, at most `MAX_PAIRS`.
            seed: of the pairs; demonstrations have their own.

        Raises:
            InputError: an argument out of its range.
        """
        check_integer("num_pairs", num_pairs, 1, MAX_PAIRS)
        rng = generator(check_seed(seed), "hall")
        self.gates = _gates()
        walls = np.repeat(np.arange(4), WALL_GATES)
        possible = np.argwhere(walls[:, None] != walls)
        self._pairs = rng.permutation(possible)[:num_pairs]
        shares = 1.0 / np.arange(1.0, num_pairs + 1.0)
        self._shares = shares / shares.sum()
        self.weights = np.zeros((len(walls), len(walls)))
        self.weights[tuple(self._pairs.T)] = self._shares
        areas = np.prod(self.gates[:, 1] - self.gates[:, 0], axis=1)
        self._densities = self.weights / np.outer(areas, areas)
        self.mode_centers = self._centers()

    def log_prob(self, x: Any) -> tf.Tensor:
        """Log p(x), normalised: [N, 12] -> [N], float64; -inf outside of the boxes."""
        points = tf.reshape(checked("x", x, self.dim), [-1, 6, 2])
        start, between, end = points[:, 0], points[:, 1:5], points[:, 5]
        guides = guides_of(start, end)
        aside = tf.einsum("nstd,nad->nsat", between[:, None] - guides.means, guides.axes)
        z = tf.einsum("ij,nsaj->nsai", np.linalg.inv(np.linalg.cholesky(BRIDGE)), aside)
        squares = tf.reduce_sum((z / guides.scales[:, None, :, None]) ** 2, axis=[2, 3])
        log_det = np.linalg.slogdet(BRIDGE)[1] + 4.0 * tf.reduce_sum(tf.math.log(guides.scales), 1)
        of_sides = guides.log_shares - 0.5 * squares
        log_between = tf.reduce_logsumexp(of_sides, axis=1) - log_det - 4.0 * LOG_2PI
        gates = self._in_gates(start), self._in_gates(end)
        of_ends = tf.einsum("na,ab,nb->n", gates[0], tf.constant(self._densities), gates[1])
        return log_between + tf.math.log(of_ends)

    def demonstrations(self, n: int, seed: int) -> Float64[Array, "n 12"]:
        """N exact draws [n, 12]; the first of more are the same."""
        check_integer("n", n, 1)
        # A stream each: how many are drawn of one must not shift the next.
        rng = generator(check_seed(seed), "exact samples")
        of_pairs, of_ends, of_sides, of_bridges = rng.spawn(4)
        boxes = self.gates[self._pairs[of_pairs.choice(len(self._pairs), n, p=self._shares)]]
        low, high = boxes[:, :, 0], boxes[:, :, 1]
        ends = low + (high - low) * of_ends.random((n, 2, 2))
        guides = Guides(*(part.numpy() for part in guides_of(ends[:, 0], ends[:, 1])))
        side = (of_sides.random(n) > np.exp(guides.log_shares[:, 0])).astype(int)
        noise = of_bridges.standard_normal((n, 4, 2)) * guides.scales[:, None]
        bridges = np.einsum("ij,njd,nda->nia", np.linalg.cholesky(BRIDGE), noise, guides.axes)
        between = guides.means[np.arange(n), side] + bridges
        return np.concatenate([ends[:, :1], between, ends[:, 1:]], axis=1).reshape(n, self.dim)

    def outcome(self, x: Float64[Array, "N 12"]) -> dict[str, float]:
        """What paths do: [N, 12] -> numbers by name.

        Returns:
            {gate_to_gate: share that starts in a gate's box and ends in another's;
            off_booth: share that keeps off the booth, as straight lines from point to point;
            pair_divergence: Jensen-Shannon divergence, in bits, of the pairs of those from gate to
            gate to the weights: 1 if there are none;
            pairs_found: pairs in use with at least a third of their weight}.
        """
        paths = self.paths(x)
        start, end = (self._in_gates(paths[:, i]).numpy() for i in (0, -1))
        used = np.einsum("na,nb->ab", start, end)
        np.fill_diagonal(used, 0.0)
        shares = used / max(used.sum(), 1.0)
        found = (self.weights > 0.0) & (shares >= self.weights / 3.0)
        return {
            "gate_to_gate": float(used.sum() / len(paths)),
            "off_booth": float(np.mean(_booth_distances(paths) >= BOOTH_RADIUS)),
            "pair_divergence": _divergence(shares, self.weights) if used.any() else 1.0,
            "pairs_found": float(found.sum()),
        }

    def paths(self, x: Float64[Array, "N 12"]) -> Float64[Array, "N 6 2"]:
        """Points in the plane: [N, 12] -> [N, 6, 2]."""
        return np.asarray(x, np.float64).reshape(-1, 6, 2)

    @property
    def outlines(self) -> dict[str, Float64[Array, "M V 2"]]:
        """Polygons to draw: the gates' boxes, the booth."""
        (x0, y0), (x1, y1) = self.gates.transpose(1, 2, 0)
        boxes = np.stack([[x0, y0], [x1, y0], [x1, y1], [x0, y1]]).transpose(2, 0, 1)
        angles = np.linspace(0.0, 2.0 * np.pi, 40)
        circle = BOOTH + BOOTH_RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return {"gates": boxes, "obstacles": circle[None]}

    def _in_gates(self, points: Any) -> tf.Tensor:
        """1 where a point is in a gate's box: [N, 2] -> [N, G]."""
        inside = (points[:, None] >= self.gates[:, 0]) & (points[:, None] <= self.gates[:, 1])
        return tf.cast(tf.reduce_all(inside, axis=-1), DENSITY)

    def _centers(self) -> np.ndarray:
        ends = self.gates.mean(axis=1)[self._pairs]
        guides = guides_of(ends[:, 0], ends[:, 1])
        pair, side = np.nonzero(guides.log_shares.numpy() >= np.log(0.01))
        between = guides.means.numpy()[pair, side]
        whole = np.concatenate([ends[pair, :1], between, ends[pair, 1:]], axis=1)
        return whole.reshape(-1, self.dim)


def guides_of(start: Any, end: Any) -> Guides:
    """From starts [N, 2] to ends [N, 2]."""
    start, end = (tf.convert_to_tensor(points, DENSITY) for points in (start, end))
    # Paths have a length in all of the support; elsewhere only nan would be lost.
    length = tf.maximum(tf.norm(end - start, axis=-1, keepdims=True), 1e-9)
    along = (end - start) / length
    aside = tf.stack([-along[:, 1], along[:, 0]], axis=-1)
    passing = tf.reduce_sum((BOOTH - start) * along, axis=-1, keepdims=True) / length
    signed = tf.reduce_sum((start - BOOTH) * aside, axis=-1, keepdims=True)
    sides = tf.constant([[-1.0, 1.0]], DENSITY)
    bends = sides * SOFTNESS * tf.nn.softplus((CLEARANCE - sides * signed) / SOFTNESS)
    bumps = tf.exp(-0.5 * ((TIMES - passing) / BEND) ** 2)
    line = start[:, None] + TIMES[:, None] * (end - start)[:, None]
    means = line[:, None] + tf.einsum("ns,nt,nd->nstd", bends, bumps, aside)
    scales = tf.sqrt(length) * tf.constant([[ALONG, ASIDE]], DENSITY)
    log_shares = tf.math.log_sigmoid(sides * signed / SOFTNESS)
    return Guides(means, log_shares, tf.stack([along, aside], axis=1), scales)


def _gates() -> np.ndarray:
    """[G, 2, 2], wall by wall: below, above, left, right."""
    places = (np.arange(WALL_GATES) + 0.5) / WALL_GATES
    boxes = []
    for axis in (0, 1):
        for wall in (0.0, SIZE[1 - axis] - GATE_DEPTH):
            low = np.zeros((WALL_GATES, 2))
            low[:, axis] = places * SIZE[axis] - GATE_HALF_WIDTH
            low[:, 1 - axis] = wall
            extent = np.full(2, GATE_DEPTH)
            extent[axis] = 2.0 * GATE_HALF_WIDTH
            boxes.append(np.stack([low, low + extent], axis=1))
    return np.concatenate(boxes)


def _booth_distances(paths: np.ndarray) -> np.ndarray:
    """Between the booth's centre and lines from point to point: [N, 6, 2] -> [N]."""
    first, step = paths[:, :-1], np.diff(paths, axis=1)
    squares = np.maximum((step**2).sum(axis=-1), 1e-18)
    place = np.clip(((BOOTH - first) * step).sum(axis=-1) / squares, 0.0, 1.0)
    nearest = first + place[..., None] * step
    return np.linalg.norm(nearest - BOOTH, axis=-1).min(axis=1)


def _divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Jensen-Shannon divergence of two distributions, in bits."""
    middle = 0.5 * (p + q)
    parts = [a[a > 0.0] @ np.log2(a[a > 0.0] / middle[a > 0.0]) for a in (p, q)]
    return float(0.5 * sum(parts))
