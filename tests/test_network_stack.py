from virl_tf.network_stack import FrozenNetwork, empty_stack
from virl_tf.reward import Reward, evaluate

import numpy as np
import pytest
import tensorflow as tf

from tests.reference import reward as reference
from tests.shared import make_network, make_reward

DIM, SIZE = 3, 8
POINTS = np.random.default_rng(0).standard_normal((40, DIM)).astype(np.float32)


def make_networks(count, num_layers=3):
    return [make_network(DIM, num_layers, SIZE, seed=i) for i in range(count)]


def make_stack(networks, capacity, num_layers=3):
    stack = empty_stack(capacity, DIM, num_layers, SIZE)
    for network in networks:
        stack = stack.append(network)
    return stack


def gradient(function, z, upstream=None):
    z = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(z)
        values = function(z)
    return tape.gradient(
        values, z, None if upstream is None else tf.cast(upstream, values.dtype)
    ).numpy()


@pytest.mark.parametrize("num_layers", [2, 3, 4])
@pytest.mark.parametrize(("count", "capacity"), [(0, 1), (1, 1), (3, 3), (3, 7)])
def test_sum_over_the_stack_is_the_sum_of_its_networks(count, capacity, num_layers):
    networks = make_networks(count, num_layers)
    stack = make_stack(networks, capacity, num_layers)
    assert (int(stack.count), stack.capacity) == (count, capacity)
    total = stack.sum_logits(POINTS).numpy()
    assert total.dtype == np.float64
    # float32 networks against float64: outputs are about 1
    np.testing.assert_allclose(total, reference.sum_of_mlps(networks, POINTS), atol=2e-5)
    singles = sum(
        (network.logits(POINTS).numpy().astype(np.float64) for network in networks),
        np.zeros(len(POINTS)),
    )
    np.testing.assert_allclose(total, singles, atol=1e-6)


def test_networks_beyond_the_count_do_not_matter():
    networks = make_networks(3)
    stack = make_stack(networks, 5)._replace(count=tf.constant(2))
    np.testing.assert_allclose(
        stack.sum_logits(POINTS), reference.sum_of_mlps(networks[:2], POINTS), atol=2e-5
    )


def test_append_puts_the_network_behind_those_in_use():
    a, b, c = make_networks(3)
    stack = make_stack([a, b], 3)._replace(count=tf.constant(1)).append(c)
    assert int(stack.count) == 2
    np.testing.assert_allclose(
        stack.sum_logits(POINTS), reference.sum_of_mlps([a, c], POINTS), atol=2e-5
    )


@pytest.mark.parametrize("capacity", [1, 3])
def test_append_to_a_full_stack_raises(capacity):
    stack = make_stack(make_networks(capacity), capacity)
    with pytest.raises(ValueError, match=f"holds {capacity} networks and is full"):
        stack.append(make_network(DIM, 3, SIZE))


def test_append_stores_the_network_exactly():
    network = make_network(DIM, 3, SIZE)
    stack = make_stack([network], 2)
    stored = FrozenNetwork(*(array[0] for array in stack.networks))
    for new, old in zip(stored, network, strict=True):
        np.testing.assert_array_equal(new, old)


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3])
def test_gradient_is_that_of_the_single_networks(count):
    networks, upstream = make_networks(count), np.random.default_rng(1).standard_normal(len(POINTS))
    found = gradient(make_stack(networks, 4).sum_logits, POINTS, upstream)
    expected = sum(
        (gradient(network.logits, POINTS, upstream) for network in networks), np.zeros_like(POINTS)
    )
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_gradient_against_finite_differences_away_from_kinks():
    networks, step = make_networks(3), 1e-6
    found = gradient(make_stack(networks, 4).sum_logits, POINTS)
    z, centre = (
        POINTS.astype(np.float64),
        reference.sum_of_mlps(networks, POINTS.astype(np.float64)),
    )
    checked = 0
    for column, shift in enumerate(step * np.eye(DIM)):
        # The reference is float64 and piecewise linear: both one-sided differences agree unless a
        # kink lies in between.
        ahead = (reference.sum_of_mlps(networks, z + shift) - centre) / step
        behind = (centre - reference.sum_of_mlps(networks, z - shift)) / step
        smooth = np.abs(ahead - behind) < 1e-6
        np.testing.assert_allclose(found[smooth, column], 0.5 * (ahead + behind)[smooth], atol=1e-4)
        checked += smooth.sum()
    assert checked > 0.95 * z.size


def test_compiled_with_xla_gives_the_same_sum_and_gradient():
    stack, upstream = (
        make_stack(make_networks(3), 4),
        np.random.default_rng(1).standard_normal(len(POINTS)),
    )

    @tf.function(jit_compile=True)
    def both(z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            total = stack.sum_logits(z)
        return total, tape.gradient(total, z, upstream)

    total, found = both(tf.constant(POINTS))
    np.testing.assert_allclose(total, stack.sum_logits(POINTS), atol=2e-5)
    np.testing.assert_allclose(found, gradient(stack.sum_logits, POINTS, upstream), atol=2e-5)


# --- compiled once --------------------------------------------------------------------------------


def test_evaluation_is_traced_once_however_many_networks_and_points(monkeypatch):
    networks = [make_network(2, 2, 5, seed=i) for i in range(20)]  # a shape that no other test has
    traces, log_prob = [], Reward.log_prob
    monkeypatch.setattr(
        Reward, "log_prob", lambda reward, x: traces.append(x) or log_prob(reward, x)
    )
    for count in range(1, 21):
        reward = make_reward(networks[:count], 20, num_layers=2, layer_size=5)
        x = np.random.default_rng(count).standard_normal((3 * count, 2))
        shift, scale, _ = (np.asarray(array) for array in reward.features)
        expected = reference.cumulative(x, reward.base, 1.0, networks[:count], shift, scale)
        np.testing.assert_allclose(evaluate(reward, tf.constant(x)), expected, rtol=1e-5, atol=1e-4)
    assert len(traces) == 1
