"""What networks see of a point: standardised coordinates and random Fourier features of them."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.hparams import NetworkHparams
from virl_tf.kde import held_out_bandwidth, silverman_factor
from virl_tf.network_stack import FrozenNetwork
from virl_tf.numerics import DENSITY, NETWORK, numpy_seed, to_network
from virl_tf.shapes import Array, Float32, Float64, Int64

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
    x: np.ndarray,
    bandwidth: np.ndarray | None,
    hparams: NetworkHparams,
    seed: int,
    groups: Int64[Array, " N"] | None = None,
) -> np.ndarray:
    """Random frequencies [D, F] in radians per standard deviation of the demonstrations x [N, D].

    A kernel estimate's best bandwidth is Silverman's factor times the width of what the density is
    made of. So the held-out bandwidth tells that width, l, and frequencies ~ N(0,
    (frequency_scale / (D l))^2) stand for smooth functions of that scale: their features' inner
    products approximate a Gaussian kernel (Rahimi and Recht 2007). With D because a wave that runs
    through many coordinates changes with each of them.

    Args:
        bandwidth: [D], the held-out one where p~ has it already; None: it is sought here.
        groups: see `virl_tf.kde.fit_kde`.
    """
    number = hparams.num_frequencies
    if number == 0:
        return np.zeros((x.shape[1], 0), np.float32)
    spread = x.std(axis=0)
    if bandwidth is None:
        width = held_out_bandwidth(x, spread, numpy_seed(seed, 0, "bandwidth"), groups)
    else:
        width = bandwidth / spread
    length = width / silverman_factor(*x.shape) * np.ones_like(spread)
    rng = np.random.default_rng(numpy_seed(seed, 0, "frequencies"))
    normal = rng.standard_normal((x.shape[1], number))
    scale = hparams.frequency_scale / (x.shape[1] * length)
    return (scale[:, None] * normal).astype(np.float32)
