"""T frozen multilayer perceptrons as stacked arrays, so that one compiled function sums their
outputs for every T.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from virl_tf.numerics import DENSITY, NETWORK, from_network, to_network
from virl_tf.shapes import Array, Float32, Int32

ACTIVATIONS = 2**27  # numbers of two layers, half a GiB, that points get at once


class FrozenNetwork(NamedTuple):
    """One ReLU network [N, inputs] -> [N] without batch norm or dropout, float32.

    The first hidden layer and L more, all of H units.
    """

    input_kernel: Float32[Array, "*T inputs H"]
    input_bias: Float32[Array, "*T H"]
    hidden_kernels: Float32[Array, "*T L H H"]
    hidden_biases: Float32[Array, "*T L H"]
    output_kernel: Float32[Array, "*T H 1"]
    output_bias: Float32[Array, "*T 1"]

    def logits(self, z: tf.Tensor) -> tf.Tensor:
        """phi(z): [N, inputs] -> [N], float32."""
        h = tf.nn.relu(tf.matmul(z, self.input_kernel) + self.input_bias)
        for layer in range(self.hidden_kernels.shape[0]):
            h = tf.nn.relu(tf.matmul(h, self.hidden_kernels[layer]) + self.hidden_biases[layer])
        return tf.squeeze(tf.matmul(h, self.output_kernel) + self.output_bias, axis=-1)

    def times(self, factor: float) -> "FrozenNetwork":
        """The network whose output is `factor` times as large."""
        return self._replace(
            output_kernel=factor * self.output_kernel, output_bias=factor * self.output_bias
        )


class NetworkStack(NamedTuple):
    """Room for T_max frozen networks of one shape, of which the first `count` are in use.

    Attributes:
        networks: a FrozenNetwork whose arrays have a leading axis T_max.
        count: how many are in use.
    """

    networks: FrozenNetwork
    count: Int32[Array, ""]

    @property
    def capacity(self) -> int:
        """T_max."""
        return int(self.networks.input_kernel.shape[0])

    def network(self, i: Any) -> FrozenNetwork:
        """phi_i; `i` may be a tensor."""
        return tf.nest.map_structure(lambda stacked: stacked[i], self.networks)

    def append(self, network: FrozenNetwork) -> "NetworkStack":
        """A stack with `network` at the end. Raises ValueError if it is full."""
        if int(self.count) >= self.capacity:
            raise ValueError(f"the stack holds {self.capacity} networks and is full")

        def put(stacked: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
            return tf.tensor_scatter_nd_update(stacked, self.count[None, None], new[None])

        return NetworkStack(tf.nest.map_structure(put, self.networks, network), self.count + 1)

    @property
    def rows_at_once(self) -> int:
        """So many that two layers of them, or their inputs twice, are `ACTIVATIONS`."""
        return max(1, ACTIVATIONS // (2 * max(self.networks.input_kernel.shape[1:])))

    def emptied(self) -> "NetworkStack":
        """The same room with none in use."""
        return self._replace(count=tf.constant(0))

    def sum_logits(self, z: tf.Tensor) -> tf.Tensor:
        """sum_{i < count} phi_i(z): float32 [N, inputs] -> float64 [N].

        Piecewise linear in z: second derivatives are zero. The backward pass runs through the
        networks one at a time, so memory does not grow with T.
        """
        return _sum_logits(self, z)


def empty_stack(capacity: int, num_inputs: int, num_layers: int, layer_size: int) -> NetworkStack:
    """A stack with room for `capacity` networks and none in use."""
    shapes = stack_shapes(capacity, num_inputs, num_layers, layer_size)
    return NetworkStack(
        FrozenNetwork(*(tf.zeros(shape, NETWORK) for shape in shapes)), tf.constant(0)
    )


def stack_shapes(capacity: int, num_inputs: int, num_layers: int, layer_size: int) -> FrozenNetwork:
    """The shapes of the arrays of `empty_stack`."""
    t, hidden, h = capacity, num_layers - 1, layer_size
    return FrozenNetwork(
        (t, num_inputs, h), (t, h), (t, hidden, h, h), (t, hidden, h), (t, h, 1), (t, 1)
    )


def _sum_logits(stack: NetworkStack, z: tf.Tensor) -> tf.Tensor:
    def loop(add: Any, start: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda i, _: i < stack.count,
            lambda i, total: (i + 1, add(i, total)),
            (tf.constant(0), start),
            maximum_iterations=stack.capacity,
        )[1]

    # A loop of plain matmuls: a batched product over the stack is slower, and TF's own gradient of
    # the loop would keep the activations of all T networks.
    @tf.custom_gradient
    def total(z: tf.Tensor) -> Any:
        def backward(upstream: tf.Tensor) -> tf.Tensor:
            def add(i: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
                with tf.GradientTape() as tape:
                    tape.watch(z)
                    logits = stack.network(i).logits(z)
                return gradient + tape.gradient(logits, z, to_network(upstream))

            return loop(add, tf.zeros_like(z))

        forward = loop(
            lambda i, total: total + from_network(stack.network(i).logits(z)),
            tf.zeros_like(z[:, 0], DENSITY),
        )
        return forward, backward

    return total(z)
