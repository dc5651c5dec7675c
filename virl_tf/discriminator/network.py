"""The Keras network of phi_t: building, (re)starting and freezing it."""

from collections.abc import Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from virl_tf.hparams import NetworkHparams
from virl_tf.network_stack import FrozenNetwork
from virl_tf.numerics import NETWORK, numpy_seed


def build_network(dim: int, hparams: NetworkHparams) -> keras.Sequential:
    """Dense -> batch norm -> ReLU -> dropout, `num_layers` times, then one linear unit: [N, D] ->
    [N, 1] logits.

    Layers whose rate is zero are not built: they would cost time in every step. The L2 penalty is
    on the kernels.
    """
    penalty = keras.regularizers.L2(hparams.l2) if hparams.l2 else None
    layers: list[keras.layers.Layer] = [keras.Input((dim,))]
    for _ in range(hparams.num_layers):
        layers.append(keras.layers.Dense(hparams.layer_size, kernel_regularizer=penalty))
        if hparams.batch_norm:
            layers.append(keras.layers.BatchNormalization(momentum=hparams.batch_norm_momentum))
        layers.append(keras.layers.ReLU())
        if hparams.dropout:
            sparse = hparams.dropout <= SparseDropout.most
            layers.append((SparseDropout if sparse else keras.layers.Dropout)(hparams.dropout))
    layers.append(keras.layers.Dense(1, kernel_regularizer=penalty))
    return keras.Sequential(layers)


def pays_to_fuse(hparams: NetworkHparams) -> bool:
    """Whether XLA makes a training step of this network faster.

    It fuses what batch norm and sparse dropout do between two products: a quarter of a step's time.
    Products alone gain nothing, and Keras's own dropout becomes thirty times slower, because XLA
    on a CPU makes random numbers slowly (decisions-policies.md: xla).
    """
    if hparams.dropout > SparseDropout.most:
        return False
    return hparams.batch_norm or hparams.dropout > 0.0


class SparseDropout(keras.layers.Dropout):
    """Keras's dropout, for small rates: draws the distances between dropped units instead of a
    number for every unit.

    The distances of a Bernoulli process are geometric, so the masks have the same distribution. M,
    4 x 256 units, rate 0.01, batch 500: a training step takes 3.9 ms instead of 5.2 ms, 3.0 ms
    without dropout; from a rate of 0.1 on nothing is won.
    """

    most = 0.05  # the rate up to which this is used

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Inputs with some units at 0 and the others scaled by 1 / (1 - rate), in training; else as
        they are.
        """
        if not training:
            return inputs
        seed = tf.cast(self.seed_generator.next(), tf.int32)
        return inputs * tf.reshape(
            _bernoulli_mask(tf.size(inputs), self.rate, seed), tf.shape(inputs)
        )


def _bernoulli_mask(size: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """[size] float32: 0 with probability `rate`, else 1 / (1 - rate), independently."""
    expected = rate * tf.cast(size, NETWORK)
    # Ten standard deviations more than are expected: the process ends within the mask once in 1e20
    # times.
    number = tf.cast(expected + 10.0 * tf.sqrt(expected) + 10.0, tf.int32)
    uniform = tf.random.stateless_uniform([number], seed)  # in [0, 1)
    distances = 1.0 + tf.floor(tf.math.log1p(-uniform) * np.float32(1.0 / np.log1p(-rate)))
    # Of a tiny rate even one reaches beyond all integers.
    distances = tf.minimum(distances, tf.cast(size + 1, NETWORK))
    dropped = tf.cumsum(tf.cast(distances, tf.int32)) - 1
    # The last one takes what lies beyond.
    mask = tf.fill([size + 1], tf.constant(1.0 / (1.0 - rate), NETWORK))
    places = tf.minimum(dropped, size)[:, None]
    return tf.tensor_scatter_nd_update(mask, places, tf.zeros([number]))[:size]


def seed_dropout(model: keras.Model, seed: np.ndarray) -> None:
    """Set the state of every dropout layer's generator, so that masks depend on `seed` (int32 [2])
    alone.
    """
    dropouts = [layer for layer in model.layers if isinstance(layer, keras.layers.Dropout)]
    for i, layer in enumerate(dropouts):
        layer.seed_generator.state.assign((seed + [0, i]).astype("uint32"))


def fresh_weights(model: keras.Model, seed: int) -> list[np.ndarray]:
    """Newly initialised `model.get_weights()`: Glorot-uniform kernels from `seed`, everything else
    as Keras starts it.
    """
    weights = []
    for i, layer in enumerate(model.layers):
        for variable in layer.weights:
            shape, name = tuple(variable.shape), variable.name
            if name == "kernel":
                initialiser = keras.initializers.GlorotUniform(numpy_seed(seed, i, "kernel"))
                weights.append(np.asarray(initialiser(shape, dtype="float32")))
            elif name in ("gamma", "moving_variance"):
                weights.append(np.ones(shape, np.float32))
            elif name in ("bias", "beta", "moving_mean"):
                weights.append(np.zeros(shape, np.float32))
    return weights


def start_weights(
    model: keras.Model, start: str, previous: Sequence[np.ndarray], seed: int
) -> list[np.ndarray]:
    """The weights from which a fit of phi_t starts.

    Args:
        start: "warm" (those of phi_{t-1}), "zero_head" (the same with the output layer at 0, so
            that phi_t starts as 0), "fresh".
        previous: the weights of phi_{t-1}; empty at t = 0, where every start is fresh.
    """
    if not previous or start == "fresh":
        return fresh_weights(model, seed)
    if start == "zero_head":
        return [*previous[:-2], np.zeros_like(previous[-2]), np.zeros_like(previous[-1])]
    return list(previous)


def freeze(model: keras.Model) -> FrozenNetwork:
    """The network as it predicts (dropout off), batch norm folded into the dense layer before it.

    Batch norm maps a to gamma (a - mean) / sqrt(var + eps) + beta, so Dense -> batch norm is one
    affine map (in float64, then rounded once).
    """
    affine = [_fold(dense, norm) for dense, norm in _dense_layers(model)]
    (first_kernel, first_bias), *hidden, (last_kernel, last_bias) = affine
    size = first_kernel.shape[1]
    kernels = np.stack([kernel for kernel, _ in hidden]) if hidden else np.zeros((0, size, size))
    biases = np.stack([bias for _, bias in hidden]) if hidden else np.zeros((0, size))
    arrays = (first_kernel, first_bias, kernels, biases, last_kernel, last_bias)
    return FrozenNetwork(*(tf.constant(array, NETWORK) for array in arrays))


def _dense_layers(
    model: keras.Model,
) -> Iterator[tuple[keras.layers.Dense, keras.layers.BatchNormalization | None]]:
    for layer, after in zip(model.layers, [*model.layers[1:], None], strict=True):
        if isinstance(layer, keras.layers.Dense):
            yield layer, after if isinstance(after, keras.layers.BatchNormalization) else None


def _fold(
    dense: keras.layers.Dense, norm: keras.layers.BatchNormalization | None
) -> tuple[np.ndarray, np.ndarray]:
    kernel, bias = (np.asarray(w, np.float64) for w in dense.get_weights())
    if norm is None:
        return kernel, bias
    gamma, beta, mean, variance = (np.asarray(w, np.float64) for w in norm.get_weights())
    gain = gamma / np.sqrt(variance + norm.epsilon)
    return kernel * gain, (bias - mean) * gain + beta
