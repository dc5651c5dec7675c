from virl_tf.discriminator.network import (
    SparseDropout,
    _bernoulli_mask,
    build_network,
    freeze,
    fresh_weights,
    seed_dropout,
    start_weights,
)

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import tiny

DIM = 3


def build(**network):
    return build_network(DIM, tiny.hparams(network=network).network)


def randomise(model, seed=0):
    """Random weights everywhere, batch norm's statistics included."""
    rng = np.random.default_rng(seed)
    for layer in model.layers:
        for variable in layer.weights:
            positive = variable.name in ("moving_variance", "gamma")
            variable.assign(
                rng.uniform(0.2, 3.0, variable.shape)
                if positive
                else rng.normal(size=variable.shape)
            )


def points(n=50):
    return np.random.default_rng(1).normal(size=(n, DIM)).astype(np.float32)


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("num_layers", [2, 4])
def test_layers_follow_the_hparams(num_layers, dropout, batch_norm):
    model = build(
        num_layers=num_layers,
        layer_size=16,
        batch_norm=batch_norm,
        dropout=dropout,
        batch_norm_momentum=0.8,
    )
    block = [
        "Dense",
        *(["BatchNormalization"] if batch_norm else []),
        "ReLU",
        *(["Dropout"] if dropout else []),
    ]
    assert [type(layer).__name__ for layer in model.layers] == block * num_layers + ["Dense"]
    dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    shapes = [tuple(layer.kernel.shape) for layer in dense]
    assert shapes == [(DIM, 16)] + [(16, 16)] * (num_layers - 1) + [(16, 1)]
    assert all(
        layer.rate == dropout for layer in model.layers if isinstance(layer, keras.layers.Dropout)
    )
    assert all(
        layer.momentum == 0.8
        for layer in model.layers
        if isinstance(layer, keras.layers.BatchNormalization)
    )
    assert all(layer.activation is keras.activations.linear for layer in dense)
    assert model(points()).shape == (50, 1)


def test_l2_penalises_every_kernel_and_no_bias():
    model = build(num_layers=3, l2=0.5)
    randomise(model)
    kernels = [layer.kernel for layer in model.layers if isinstance(layer, keras.layers.Dense)]
    expected = 0.5 * sum(float(np.sum(np.square(kernel))) for kernel in kernels)
    assert float(tf.add_n(model.losses)) == pytest.approx(expected, rel=1e-5)
    assert build(l2=0.0).losses == []


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("num_layers", [2, 3, 4])
def test_frozen_equals_the_prediction(num_layers, batch_norm):
    model = build(num_layers=num_layers, batch_norm=batch_norm, dropout=0.3)
    randomise(model)
    frozen = freeze(model)
    assert frozen.hidden_kernels.shape == (num_layers - 1, 8, 8)
    expected = model(points(), training=False)[:, 0].numpy()
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(
        frozen.logits(points()), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max()
    )


def test_frozen_does_not_follow_the_model():
    model = build()
    randomise(model)
    frozen = freeze(model)
    before = frozen.logits(points()).numpy()
    randomise(model, seed=1)
    np.testing.assert_array_equal(frozen.logits(points()), before)
    assert all(array.dtype == tf.float32 for array in frozen)


@pytest.mark.parametrize("start", ["warm", "zero_head", "fresh"])
def test_every_start_is_fresh_without_a_previous_network(start):
    model = build()
    for found, expected in zip(
        start_weights(model, start, (), 5), fresh_weights(model, 5), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def test_starts_from_a_previous_network():
    model = build(batch_norm=True)
    randomise(model)
    previous = model.get_weights()
    for found, expected in zip(start_weights(model, "warm", previous, 5), previous, strict=True):
        np.testing.assert_array_equal(found, expected)
    for found, expected in zip(
        start_weights(model, "fresh", previous, 5), fresh_weights(model, 5), strict=True
    ):
        np.testing.assert_array_equal(found, expected)

    *body, head_kernel, head_bias = start_weights(model, "zero_head", previous, 5)
    for found, expected in zip(body, previous[:-2], strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not head_kernel.any()
    assert not head_bias.any()
    model.set_weights([*body, head_kernel, head_bias])
    np.testing.assert_array_equal(model(points(), training=False), np.zeros((50, 1)))
    assert previous[-2].any()  # the argument itself is left alone


def test_fresh_weights_depend_on_the_seed_only():
    first, second = build(batch_norm=True), build(batch_norm=True)
    randomise(first)
    keras.utils.set_random_seed(99)
    for found, expected in zip(fresh_weights(first, 3), fresh_weights(second, 3), strict=True):
        np.testing.assert_array_equal(found, expected)
    other = fresh_weights(second, 4)
    assert not np.array_equal(other[0], fresh_weights(second, 3)[0])


def test_fresh_weights_are_glorot_kernels_and_the_identity_batch_norm():
    model = build(num_layers=3, batch_norm=True)
    weights = fresh_weights(model, 0)
    assert [w.shape for w in weights] == [w.shape for w in model.get_weights()]
    named = list(
        zip(
            [variable.name for layer in model.layers for variable in layer.weights],
            weights,
            strict=True,
        )
    )
    for name, value in named:
        if name == "kernel":
            limit = np.sqrt(6.0 / sum(value.shape))
            assert 0.5 * limit < np.abs(value).max() <= limit
        else:
            np.testing.assert_array_equal(value, float(name in ("gamma", "moving_variance")))
    hidden = [value for name, value in named if name == "kernel" and value.shape == (8, 8)]
    assert not np.array_equal(*hidden)


def test_seeded_dropout_masks_are_reproducible():
    model = build(dropout=0.5)
    model.set_weights(fresh_weights(model, 0))

    def train_outputs(seed):
        seed_dropout(model, np.array(seed, np.int32))
        return [model(points(), training=True).numpy() for _ in range(2)]

    first, again, other = train_outputs([1, -2]), train_outputs([1, -2]), train_outputs([2, -2])
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])  # the masks change from step to step
    assert not np.array_equal(first[0], other[0])


def test_dropout_layers_have_masks_of_their_own():
    model = build(num_layers=2, dropout=0.5)
    seed_dropout(model, np.array([1, 2], np.int32))
    masks = [
        layer(np.ones((20, 8)), training=True).numpy()
        for layer in model.layers
        if isinstance(layer, keras.layers.Dropout)
    ]
    assert len(masks) == 2
    assert not np.array_equal(*masks)


# --- dropout of small rates -----------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("rate", [0.01, 0.02, 0.05])
def test_dropped_units_are_a_bernoulli_process(rate, fused):
    """Share dropped, pairs of neighbours and first unit, each within 5 standard deviations; what
    stays is scaled.
    """
    mask = tf.function(
        lambda seed: _bernoulli_mask(20_000, rate, seed), autograph=False, jit_compile=fused
    )
    masks = np.stack([mask(tf.constant([i, 7])).numpy() for i in range(50)])
    dropped = masks == 0.0
    np.testing.assert_allclose(masks[~dropped], 1.0 / (1.0 - rate), rtol=1e-6)
    for events, probability in (
        (dropped, rate),
        (dropped[:, 1:] & dropped[:, :-1], rate**2),
        (dropped[:, 100:] & dropped[:, :-100], rate**2),
        (dropped[:, :1000], rate),
        (dropped[:, -1000:], rate),
    ):
        deviation = np.sqrt(probability * (1.0 - probability) / events.size)
        assert abs(events.mean() - probability) < 5.0 * deviation


def test_the_first_and_the_last_unit_are_dropped_as_often_as_others():
    mask = tf.function(lambda seed: _bernoulli_mask(4, 0.5, seed), autograph=False)
    masks = np.stack([mask(tf.constant([i, 7])).numpy() for i in range(400)])
    np.testing.assert_allclose((masks == 0.0).mean(axis=0), 0.5, atol=0.1)  # 4 standard errors


def test_a_tiny_rate_drops_hardly_anything():
    mask = _bernoulli_mask(256_000, 1e-10, [3, 7]).numpy()
    np.testing.assert_array_equal(mask, np.ones(256_000))


def test_small_rates_drop_in_training_only_and_by_their_seed():
    model = build(num_layers=2, layer_size=64, dropout=0.05)
    assert sum(isinstance(layer, SparseDropout) for layer in model.layers) == 2
    x = tf.random.stateless_normal([100, DIM], [1, 2])

    def outputs(seed):
        seed_dropout(model, np.array(seed, np.int32))
        return model(x, training=True).numpy()

    np.testing.assert_array_equal(outputs([1, 2]), outputs([1, 2]))
    assert not np.array_equal(outputs([1, 2]), outputs([1, 3]))
    np.testing.assert_array_equal(model(x, training=False), model(x, training=False))
    assert not np.array_equal(outputs([1, 2]), model(x, training=False))


def test_larger_rates_use_keras_own_layer():
    model = build(num_layers=2, layer_size=64, dropout=0.06)
    assert not any(isinstance(layer, SparseDropout) for layer in model.layers)
