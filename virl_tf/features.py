"""What networks see of a point: standardised coordinates and random Fourier features of them."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.hparams import NetworkHparams
from virl_tf.kde import held_out_bandwidth, silverman_factor
from virl_tf.network_stack import FrozenNetwork
from virl_tf.numerics import DENSITY, NETWORK, numpy_seed, to_network
from virl_tf.shapes import Array, Float32, Float64, Int64

# For each random frequency; of how many each is chosen; and their scale, in units of
# 1 / (columns x width). M (docs/decisions.md, chosen-frequencies).
CHOSEN, CANDIDATES, CHOSEN_SCALE = 7, 32, 1.0
ROWS_PER_CHOSEN = 20  # with fewer rows more of them say what is chance
ROWS_AT_ONCE = 1000

_SQRT_2 = np.float32(np.sqrt(2.0))  # gives the features the variance of standardised inputs


class Features(NamedTuple):
    """z = (x - shift) / scale, and sqrt(2) sin, sqrt(2) cos of z @ frequencies."""

    shift: Float64[Array, " D"]
    scale: Float64[Array, " D"]
    frequencies: Float32[Array, "D F"]  # in radians; F = 0: the paper's plain input

    @property
    def dim(self) -> int:
        """D."""
        return int(self.shift.shape[0])

    @property
    def num_inputs(self) -> int:
        """Of the networks: D + 2 F."""
        return self.dim + 2 * int(self.frequencies.shape[1])

    def without_frequencies(self) -> "Features":
        """Standardised coordinates alone."""
        return self._replace(frequencies=self.frequencies[:, :0])

    def __call__(self, x: Float64[Array, "N D"]) -> Float32[Array, "N inputs"]:
        """The networks' input."""
        z = to_network((x - self.shift) / self.scale)
        if self.frequencies.shape[1] == 0:
            return z
        phases = tf.matmul(z, self.frequencies)
        return tf.concat([z, _SQRT_2 * tf.sin(phases), _SQRT_2 * tf.cos(phases)], axis=1)


def in_context(
    features: Features, networks: FrozenNetwork, c: Float64[Array, " C"]
) -> tuple[Features, FrozenNetwork]:
    """Features of x alone, and the networks that see them as `networks` see those of rows [c, x].

    What c adds to the first layer is constant, and with a the phases of c and b those of x

        sin(a + b) = cos(a) sin(b) + sin(a) cos(b),    cos(a + b) = cos(a) cos(b) - sin(a) sin(b).
    """
    number, count = int(c.shape[0]), int(features.frequencies.shape[1])
    sizes = [number, features.dim - number, count, count]
    of_c, of_x, of_sin, of_cos = tf.split(networks.input_kernel, sizes, axis=-2)
    z = to_network((c - features.shift[:number]) / features.scale[:number])
    bias = networks.input_bias + tf.reduce_sum(z[:, None] * of_c, axis=-2)
    phases = tf.linalg.matvec(features.frequencies[:number], z, transpose_a=True)
    sin, cos = tf.sin(phases)[:, None], tf.cos(phases)[:, None]
    kernels = [of_x, cos * of_sin - sin * of_cos, sin * of_sin + cos * of_cos]
    networks = networks._replace(input_kernel=tf.concat(kernels, axis=-2), input_bias=bias)
    of_rows = features.shift, features.scale, features.frequencies
    return Features(*(array[number:] for array in of_rows)), networks


def make_features(x: np.ndarray, frequencies: np.ndarray) -> Features:
    """Features that standardise the demonstrations x [N, D]."""
    shift = tf.constant(x.mean(axis=0), DENSITY)
    scale = tf.constant(x.std(axis=0), DENSITY)
    return Features(shift, scale, tf.constant(frequencies, NETWORK))


def draw_frequencies(
    widths: Float64[Array, " D"], hparams: NetworkHparams, seed: int
) -> np.ndarray:
    """Random frequencies [D, F] in radians per standard deviation of the demonstrations.

    Frequencies ~ N(0, (frequency_scale / (D l))^2) stand for smooth functions of the scale l, the
    `widths`: their features' inner products approximate a Gaussian kernel (Rahimi and Recht 2007).
    With D because a wave that runs through many coordinates changes with each of them.
    """
    dim = len(widths)
    rng = np.random.default_rng(numpy_seed(seed, 0, "frequencies"))
    normal = rng.standard_normal((dim, hparams.num_frequencies))
    return (hparams.frequency_scale / (dim * widths)[:, None] * normal).astype(np.float32)


def choose_frequencies(
    z: Float32[Array, "N D"],
    draws: Float32[Array, "M D"],
    widths: Float64[Array, " D"],
    number: int,
    seed: int,
) -> np.ndarray:
    """Frequencies [D, `number`] through one or two columns, where demonstrations differ from draws
    of a density, both standardised alike.

    What it misses is often an edge of one column or a relation of two, of which waves through all
    columns see nothing. So `CANDIDATES` times as many are drawn as in `draw_frequencies`, and of
    these some, with probabilities that rise with how far the two samples' characteristic functions
    differ there (as in the test of Epps and Singleton 1986), beyond what chance makes of it.
    M (docs/decisions.md, chosen-frequencies).
    """
    dim, count = len(widths), CANDIDATES * number
    rng = np.random.default_rng(numpy_seed(seed, 0, "candidates"))
    candidates = np.zeros((dim, count))
    for i in range(count):
        size = min(dim, 1 + i % 2)
        columns = rng.choice(dim, size, replace=False)
        candidates[columns, i] = CHOSEN_SCALE / (size * widths[columns]) * rng.standard_normal(size)
    excess = np.maximum(_differences(z, draws, candidates) - 1.0, 0.0) + 1e-9
    # The largest of log p + Gumbel noise are draws without replacement, also where few p are not 0.
    keys = np.log(excess) + rng.gumbel(size=count)
    return candidates[:, np.argsort(-keys)[:number]].astype(np.float32)


def _differences(
    z: Float32[Array, "N D"], draws: Float32[Array, "M D"], frequencies: np.ndarray
) -> Float64[Array, " F"]:
    """|phi_z(w) - phi_draws(w)|^2 of two samples' characteristic functions, in units of what it is
    in the mean for two samples of one density.
    """
    of_z, of_draws = _characteristic(z, frequencies), _characteristic(draws, frequencies)
    variance = 1.0 - np.abs(of_z) ** 2
    by_chance = np.maximum(variance * (1.0 / len(z) + 1.0 / len(draws)), 1e-12)
    return np.abs(of_z - of_draws) ** 2 / by_chance


def _characteristic(z: Float32[Array, "N D"], frequencies: np.ndarray) -> np.ndarray:
    """The mean of exp(i w z), complex [F], of a sample, some rows at a time."""
    total = np.zeros(frequencies.shape[1], complex)
    for start in range(0, len(z), ROWS_AT_ONCE):
        phases = tf.matmul(z[start : start + ROWS_AT_ONCE], to_network(frequencies))
        cos, sin = (tf.reduce_sum(f(phases), axis=0).numpy() for f in (tf.cos, tf.sin))
        total += cos + 1j * sin
    return total / len(z)


def density_widths(
    x: np.ndarray,
    bandwidth: np.ndarray | None,
    seed: int,
    groups: Int64[Array, " N"] | None = None,
) -> Float64[Array, " D"]:
    """The width of what the density of x [N, D] is made of, in standard deviations of x.

    A kernel estimate's best bandwidth is Silverman's factor times that width.

    Args:
        bandwidth: [D], the held-out one where p~ has it already; None: it is sought here.
        groups: see `virl_tf.kde.fit_kde`.
    """
    spread = x.std(axis=0)
    if bandwidth is None:
        width = held_out_bandwidth(x, spread, numpy_seed(seed, 0, "bandwidth"), groups)
    else:
        width = bandwidth / spread
    return width / silverman_factor(*x.shape) * np.ones_like(spread)
