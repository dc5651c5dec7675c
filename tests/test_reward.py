import io
import zipfile

from virl_tf import reward as reward_module
from virl_tf.reward import CumulativeReward, CumulativeValues, load_reward
from virl_tf.validation import InputError

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.conftest import make_mixture, make_network, make_reward
from tests.reference import reward as reference

# Rewards are about 10 in size and their networks are float32.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-4}


def expected(reward, x, networks, base_scale=1.0):
    return reference.cumulative(
        x, reward.base, base_scale, networks, reward.shift.numpy(), reward.scale.numpy()
    )


def gradient(reward, x):
    x = tf.constant(x, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        values = reward(x)
    return tape.gradient(values, x).numpy()


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("base_scale", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_reward_is_base_plus_networks(points, networks, count, base_scale):
    reward = make_reward(networks[:count], base_scale=base_scale)
    values = reward(points)
    assert values.dtype == tf.float64
    np.testing.assert_allclose(
        values, expected(reward, points, networks[:count], base_scale), **TOLERANCE
    )
    np.testing.assert_allclose(reward.log_prob(tf.constant(points)), values, **TOLERANCE)


@pytest.mark.parametrize(
    "shape", [(2,), (1, 2), (5, 2), (3, 4, 2), (2, 1, 3, 2), (0, 2), (3, 0, 2)]
)
def test_leading_axes_are_kept(reward, networks, shape):
    x = np.random.default_rng(0).standard_normal(shape)
    values = reward(x)
    assert values.shape == shape[:-1]
    flat = expected(reward, x.reshape(-1, 2), networks)
    np.testing.assert_allclose(values, flat.reshape(shape[:-1]), **TOLERANCE)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 1), (4, 3), (2, 4), (5, 0)])
def test_another_width_is_refused(reward, shape):
    with pytest.raises(InputError, match=r"x must have shape \[\.\.\., 2\].* got \(") as error:
        reward(np.zeros(shape))
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int64, np.uint8])
def test_other_number_formats(reward, dtype):
    x = np.array([[0, 1], [2, 3], [1, 0]], dtype)
    np.testing.assert_array_equal(reward(x), reward(x.astype(np.float64)))


def test_lists_and_tensors(reward):
    x = [[0.5, 1.0], [2.0, -3.0]]
    np.testing.assert_array_equal(reward(x), reward(np.array(x)))
    np.testing.assert_array_equal(reward(tf.constant(x, tf.float64)), reward(np.array(x)))


def test_inputs_of_the_networks_are_standardised(reward):
    x = np.random.default_rng(0).standard_normal((10, 2)) * 100.0
    z = reward.inputs(tf.constant(x))
    assert z.dtype == tf.float32
    np.testing.assert_allclose(z, (x - [0.5, 1.5]) / [2.0, 3.0], rtol=1e-6)


@pytest.fixture
def with_features():
    """A reward of two networks on 2 inputs and 3 frequencies, the frequencies and the networks."""
    frequencies = np.random.default_rng(3).standard_normal((2, 3))
    networks = [make_network(dim=8, seed=seed) for seed in (5, 6)]
    return make_reward(networks, frequencies=frequencies), frequencies, networks


def test_fourier_features_stand_beside_the_standardised_inputs(with_features, points):
    reward, frequencies, networks = with_features
    z = (points - [0.5, 1.5]) / [2.0, 3.0]
    features = np.hstack(
        [z, np.sqrt(2.0) * np.sin(z @ frequencies), np.sqrt(2.0) * np.cos(z @ frequencies)]
    )
    np.testing.assert_allclose(reward.inputs(tf.constant(points)), features, atol=1e-5)
    total = (
        reference.sum_of_mlps(networks, features)
        + reward.base.log_prob(tf.constant(points)).numpy()
    )
    np.testing.assert_allclose(reward(points), total, **TOLERANCE)
    assert reward.num_inputs == 8


def test_gradient_through_the_features_is_that_of_differences(with_features, points):
    reward, step = with_features[0], 1e-3
    steps = [
        (reward(points + step * e) - reward(points - step * e)) / (2.0 * step) for e in np.eye(2)
    ]
    np.testing.assert_allclose(gradient(reward, points), np.stack(steps, axis=1), atol=0.02)


def test_a_reward_with_features_comes_back_from_its_file(with_features, points, tmp_path):
    loaded = load_reward(saved(with_features[0], tmp_path))
    np.testing.assert_array_equal(loaded(points), with_features[0](points))


def without_arrays(path, missing):
    """The reward's file beside `path`, without these of its arrays."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    content = io.BytesIO(members["model.weights.h5"])
    with h5py.File(content, "r+") as weights:
        for i in missing:
            del weights[f"layers/cumulative_reward/vars/{i}"]
    members["model.weights.h5"] = content.getvalue()
    with zipfile.ZipFile(path.with_name("old.keras"), "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path.with_name("old.keras")


@pytest.mark.parametrize("first", [13, 14], ids=["neither features nor mixture", "no mixture"])
def test_a_file_of_an_earlier_version_is_read(reward, points, tmp_path, first):
    old = load_reward(without_arrays(saved(reward, tmp_path), range(first, 18)))
    np.testing.assert_array_equal(old(points), reward(points))
    assert old.mixture.num_components == 0


@pytest.mark.parametrize("missing", [[3], [13], [17], [14, 15, 16], list(range(12, 18))], ids=str)
def test_a_file_without_some_of_its_arrays_is_refused(reward, tmp_path, missing):
    with pytest.raises(InputError, match="is not a reward"):
        load_reward(without_arrays(saved(reward, tmp_path), missing))


@pytest.mark.parametrize("exponent", [0.0, 0.3, 1.0])
def test_the_average_is_a_geometric_mean(networks, points, exponent):
    mixture = make_mixture(2, seed=5)
    reward = make_reward(networks, base_scale=0.7, mixture=mixture)
    wanted = (1.0 - exponent) * expected(
        reward, points, networks, 0.7
    ) + exponent * mixture.log_prob(tf.constant(points)).numpy()
    np.testing.assert_allclose(reward.average(exponent)(points), wanted, **TOLERANCE)
    twice = reward.average(exponent).average(0.5)
    np.testing.assert_allclose(
        twice(points),
        0.5 * wanted + 0.5 * mixture.log_prob(tf.constant(points)).numpy(),
        **TOLERANCE,
    )


def test_an_averaged_reward_comes_back_from_its_file(networks, points, tmp_path):
    reward = make_reward(networks, mixture=make_mixture(2, seed=5)).average(0.25)
    loaded = load_reward(saved(reward, tmp_path))
    np.testing.assert_array_equal(loaded(points), reward(points))
    assert float(loaded.mixture_scale) == 0.25


def test_a_mixture_that_is_left_out_does_not_matter(networks, points):
    nowhere = make_mixture(1)._replace(log_weights=tf.constant([-np.inf], tf.float64))
    with_it, without = make_reward(networks, mixture=nowhere), make_reward(networks)
    np.testing.assert_array_equal(with_it(points), without(points))
    np.testing.assert_array_equal(gradient(with_it, points), gradient(without, points))


def test_a_base_that_is_left_out_does_not_matter_even_where_it_is_minus_infinity(networks, points):
    nowhere = make_mixture(1)._replace(log_weights=tf.constant([-np.inf], tf.float64))
    reward = make_reward(networks, base_scale=0.0, base=nowhere)
    np.testing.assert_allclose(
        reward(points),
        reference.sum_of_mlps(networks, (points - [0.5, 1.5]) / [2.0, 3.0]),
        **TOLERANCE,
    )


def test_a_base_that_is_left_out_does_not_spoil_the_gradient(networks, points):
    nowhere = make_mixture(1)._replace(log_weights=tf.constant([-np.inf], tf.float64))
    without = gradient(make_reward(networks, base_scale=0.0, base=nowhere), points)
    np.testing.assert_allclose(
        without, gradient(make_reward(networks, base_scale=0.0), points), rtol=1e-6
    )


def test_gradient_is_that_of_base_and_networks(reward, networks, points):
    without_networks = gradient(make_reward([]), points)
    without_base = gradient(make_reward(networks, base_scale=0.0), points)
    assert np.abs(without_base).max() > 0.1
    np.testing.assert_allclose(
        gradient(reward, points), without_networks + without_base, rtol=1e-5, atol=1e-5
    )


# --- truncate -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_truncate_keeps_the_first_networks(reward, networks, points, count):
    truncated = reward.truncate(count)
    np.testing.assert_allclose(
        truncated(points), expected(reward, points, networks[:count]), **TOLERANCE
    )
    np.testing.assert_allclose(reward(points), expected(reward, points, networks), **TOLERANCE)


@pytest.mark.parametrize("count", [-1, 4, 100, 1.5, None, "1"])
def test_truncate_to_an_impossible_number(reward, count):
    with pytest.raises(InputError, match="count must be an integer from 0 to 3"):
        reward.truncate(count)


@pytest.mark.parametrize("integer", [np.int64, np.int32])
def test_truncate_takes_numpy_integers(reward, points, integer):
    np.testing.assert_array_equal(reward.truncate(integer(2))(points), reward.truncate(2)(points))


# --- values at fixed points -----------------------------------------------------------------------


def grown(reward, points):
    """The cached values after each network."""
    values = CumulativeValues(points)
    return values, [
        values(reward.truncate(count)).numpy() for count in range(int(reward.networks.count) + 1)
    ]


@pytest.mark.parametrize("base_scale", [0.0, 0.5, 1.0])
def test_cached_values_are_the_reward(points, networks, base_scale):
    reward = make_reward(networks, base_scale=base_scale)
    for count, found in enumerate(grown(reward, points)[1]):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, reward.truncate(count)(points), rtol=1e-6, atol=1e-6)


def test_a_network_is_evaluated_once(points, reward, monkeypatch):
    evaluated, logits = [], reward_module._compiled_logits
    monkeypatch.setattr(
        reward_module, "_compiled_logits", lambda specs: evaluated.append(specs) or logits(specs)
    )
    values, found = grown(reward, points)
    assert len(evaluated) == 3
    np.testing.assert_array_equal(values(reward), found[-1])
    assert len(evaluated) == 3


def test_values_of_a_resumed_run_have_the_same_bytes(points, reward):
    grew = grown(reward, points)[1]
    for count in range(4):
        assert (
            CumulativeValues(points)(reward.truncate(count)).numpy().tobytes()
            == grew[count].tobytes()
        )


def test_a_reward_that_does_not_go_on_from_the_one_before_is_evaluated_from_its_start(
    points, networks, reward
):
    values = CumulativeValues(points)
    others = [
        reward.truncate(1),
        make_reward([*networks[:2], make_network(seed=9)]),
        make_reward(networks, base_scale=0.5),
        make_reward(networks, mixture=make_mixture(2, seed=5)).average(0.25),
        reward._replace(base=make_mixture(2, seed=5)),
        reward._replace(shift=reward.shift + 1.0),
        reward._replace(scale=2.0 * reward.scale),
    ]
    for other in others:
        values(reward)
        np.testing.assert_array_equal(values(other), CumulativeValues(points)(other))
        assert not np.array_equal(values(other), values(reward))


# --- files ----------------------------------------------------------------------------------------


def saved(reward, folder):
    path = folder / "reward.keras"
    reward.as_keras().save(path)
    return path


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("base_scale", [0.0, 1.0])
def test_a_saved_reward_comes_back_exactly(tmp_path, networks, points, count, base_scale):
    reward = make_reward(networks[:count], capacity=5, base_scale=base_scale)
    loaded = load_reward(saved(reward, tmp_path))
    np.testing.assert_array_equal(loaded(points), reward(points))
    np.testing.assert_array_equal(gradient(loaded, points), gradient(reward, points))
    assert (int(loaded.networks.count), loaded.dim) == (count, 2)
    assert [a.dtype for a in tf.nest.flatten(loaded)] == [a.dtype for a in tf.nest.flatten(reward)]


def test_a_loaded_reward_can_be_saved_again_and_truncated(tmp_path, reward, points):
    (tmp_path / "again").mkdir()
    loaded = load_reward(saved(load_reward(saved(reward, tmp_path)), tmp_path / "again"))
    np.testing.assert_array_equal(loaded(points), reward(points))
    np.testing.assert_array_equal(loaded.truncate(1)(points), reward.truncate(1)(points))


def test_keras_loads_the_file_as_a_model(tmp_path, reward, points):
    model = keras.saving.load_model(saved(reward, tmp_path))
    assert model.trainable_variables == []
    values = model(points)
    assert values.dtype == tf.float64
    np.testing.assert_allclose(values, reward(points), rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(
        model.predict(points, verbose=0), reward(points), rtol=1e-6, atol=1e-5
    )
    (layer,) = [layer for layer in model.layers if isinstance(layer, CumulativeReward)]
    np.testing.assert_array_equal(layer.reward(points), reward(points))


def test_other_shapes_come_back_too(tmp_path):
    networks = [make_network(3, 2, 16, seed=i) for i in range(2)]
    base = make_mixture(7, 3)
    reward = make_reward(networks, capacity=2, dim=3, num_layers=2, layer_size=16, base=base)
    x = np.random.default_rng(0).standard_normal((10, 3))
    np.testing.assert_array_equal(load_reward(str(saved(reward, tmp_path)))(x), reward(x))


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"no reward file .*nowhere\.keras"):
        load_reward(tmp_path / "nowhere.keras")


@pytest.mark.parametrize("name", ["reward.keras", "reward.h5", "reward.txt", "reward"])
@pytest.mark.parametrize(
    "content", [b"", b"this is text\n", b"PK\x03\x04 not a zip file", b"\x89HDF\r\n\x1a\n"]
)
def test_a_file_that_is_no_keras_file(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="is not a reward saved by virl_tf"):
        load_reward(tmp_path / name)


def test_a_folder(tmp_path):
    with pytest.raises(InputError, match="no reward file"):
        load_reward(tmp_path)


def test_another_keras_model(tmp_path):
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(tmp_path / "dense.keras")
    with pytest.raises(InputError, match="is not a reward saved by virl_tf"):
        load_reward(tmp_path / "dense.keras")


@pytest.mark.parametrize(
    "config",
    [
        "[]",
        "{}",
        "not json",
        '{"class_name": "Dense", "config": {"units": 1}, "module": "keras.layers"}',
    ],
)
def test_a_keras_file_with_another_description(tmp_path, reward, config):
    source, path = saved(reward, tmp_path), tmp_path / "changed.keras"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, config if name == "config.json" else old.read(name))
    with pytest.raises(InputError, match=r"changed\.keras"):
        load_reward(path)


@pytest.mark.parametrize("where", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("damage", ["cut", "flip", "insert"])
def test_a_damaged_file(tmp_path, reward, where, damage):
    path = saved(reward, tmp_path)
    content = path.read_bytes()
    i = int(where * len(content))
    broken = {
        "cut": b"",
        "flip": bytes([content[i] ^ 0xFF]) + content[i + 1 :],
        "insert": b"\0" + content[i:],
    }[damage]
    path.write_bytes(content[:i] + broken)
    with pytest.raises(InputError, match=r"reward\.keras"):
        load_reward(path)


@pytest.mark.filterwarnings("ignore")  # Keras's that HDF5 is a legacy format
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_code_in_a_file_is_refused_and_not_executed(tmp_path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    path, marker = tmp_path / f"reward{suffix}", tmp_path / "executed"
    lambda_layer = keras.layers.Lambda(lambda x: [open("executed", "w").close(), x][1])
    keras.Sequential([keras.Input((2,)), lambda_layer]).save(path)
    marker.unlink()  # building the model here ran it
    with pytest.raises(InputError, match="is not a reward saved by virl_tf"):
        load_reward(path)
    assert not marker.exists()


# --- as a density for samplers --------------------------------------------------------------------


def test_hamiltonian_monte_carlo_takes_it_as_a_target(reward):
    kernel = tfp.mcmc.HamiltonianMonteCarlo(
        reward, step_size=tf.constant(0.05, tf.float64), num_leapfrog_steps=2
    )
    start = np.random.default_rng(0).standard_normal((6, 2))

    @tf.function
    def chain():
        return tfp.mcmc.sample_chain(
            4,
            tf.constant(start),
            kernel=kernel,
            seed=[1, 2],
            trace_fn=lambda _, results: results.accepted_results.target_log_prob,
        )

    x, log_probs = chain()
    assert x.shape == (4, 6, 2)
    assert x.dtype == tf.float64
    assert np.isfinite(x).all()
    assert (x[-1].numpy() != start).all(axis=1).any()
    np.testing.assert_allclose(log_probs, reward(x), **TOLERANCE)
