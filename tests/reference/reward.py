"""ReLU networks and the cumulative reward, a network at a time, in float64."""

import numpy as np

from tests.reference import mixture


def mlp(network, z):
    """phi(z) of one FrozenNetwork (or six arrays in its order): [N, D] -> [N]."""
    arrays = [np.asarray(array, np.float64) for array in network]
    input_kernel, input_bias, hidden_kernels, hidden_biases, output_kernel, output_bias = arrays
    h = np.maximum(z @ input_kernel + input_bias, 0.0)
    for kernel, bias in zip(hidden_kernels, hidden_biases, strict=True):
        h = np.maximum(h @ kernel + bias, 0.0)
    return (h @ output_kernel + output_bias)[:, 0]


def sum_of_mlps(networks, z):
    """sum_i phi_i(z): [N, D] -> [N]."""
    total = np.zeros(len(z))
    for network in networks:
        total = total + mlp(network, z)
    return total


def cumulative(x, base, base_exponent, networks, shift, scale):
    """R(x) = base_exponent * log base(x) + sum_i phi_i((x - shift) / scale): [N, D] -> [N]."""
    log_base = mixture.log_prob(x, *(np.asarray(array) for array in base))
    return base_exponent * log_base + sum_of_mlps(networks, (x - shift) / scale)
