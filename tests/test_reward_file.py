import io
import json
import zipfile
from pathlib import Path

from virl_tf.persistence.reward_file import load_reward
from virl_tf.reward import DTYPES, CumulativeReward
from virl_tf.validation import InputError

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.reference import reward as reference
from tests.shared import gradient, make_mixture, make_network, make_reward

PRETRAINED = Path(__file__).parent.parent / "experiments" / "results" / "pretrained"


def saved(reward, folder):
    path = folder / "reward.keras"
    reward.as_keras().save(path)
    return path


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("base_exponent", [0.0, 1.0])
def test_a_saved_reward_comes_back_exactly(tmp_path, networks, points, count, base_exponent):
    reward = make_reward(networks[:count], capacity=5, base_exponent=base_exponent)
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


@pytest.mark.parametrize(
    "content", [b"", b"this is text\n", b"PK\x03\x04 not a zip file", b"\x89HDF\r\n\x1a\n"]
)
def test_a_file_that_is_no_keras_file(tmp_path, content):
    (tmp_path / "reward.keras").write_bytes(content)
    with pytest.raises(InputError, match="is not a reward saved by virl_tf"):
        load_reward(tmp_path / "reward.keras")


def test_a_folder(tmp_path):
    with pytest.raises(InputError, match=r"no reward file .*reward\.keras"):
        load_reward(tmp_path)
    reward, rows = make_reward([make_network()]), np.random.default_rng(0).normal(size=(5, 2))
    reward.as_keras().save(tmp_path / "reward.keras")
    np.testing.assert_array_equal(load_reward(tmp_path)(rows), reward(rows))


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


def test_a_reward_with_features_comes_back_from_its_file(points, tmp_path):
    frequencies = np.random.default_rng(3).standard_normal((2, 3))
    reward = make_reward([make_network(dim=8)], frequencies=frequencies)
    loaded = load_reward(saved(reward, tmp_path))
    np.testing.assert_array_equal(loaded(points), reward(points))


def test_a_pooled_reward_comes_back_from_its_file(networks, points, tmp_path):
    reward = make_reward(networks, mixture=make_mixture(2, seed=5)).pooled(0.25)
    loaded = load_reward(saved(reward, tmp_path))
    np.testing.assert_array_equal(loaded(points), reward(points))
    assert float(loaded.mixture_exponent) == 0.25


# --- the arrays of a file -------------------------------------------------------------------------


def stored_names(path):
    """The arrays' names in the description, in the order in which they are stored."""
    with zipfile.ZipFile(path) as file:
        layers = json.loads(file.read("config.json"))["config"]["layers"]
    (layer,) = [layer for layer in layers if layer["class_name"] == "CumulativeReward"]
    return list(layer["config"]["arrays"])


def rewritten(path, *, drop=(), order=None, names=True, **changed):
    """The reward's file beside `path`, with other arrays.

    Args:
        drop: names of arrays that it lacks.
        order: in which names are described and arrays stored.
        names: False: as in version 0.1, which described shapes alone.
        changed: name, with __ for the dot -> another array.
    """
    written = stored_names(path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    content = io.BytesIO(members["model.weights.h5"])
    with h5py.File(content, "r+") as weights:
        group = weights["layers/cumulative_reward/vars"]
        arrays = {name: group[str(i)][()] for i, name in enumerate(written)}
        arrays.update({name.replace("__", "."): array for name, array in changed.items()})
        kept = [name for name in (order or arrays) if name not in drop]
        for name in list(group):
            del group[name]
        for i, name in enumerate(kept):
            group[str(i)] = arrays[name]
    members["model.weights.h5"] = content.getvalue()
    described = json.loads(members["config.json"])
    (layer,) = [e for e in described["config"]["layers"] if e["name"] == "cumulative_reward"]
    shapes = {name: list(np.shape(arrays[name])) for name in kept}
    del layer["config"]["arrays"]
    layer["config"].update({"arrays": shapes} if names else {"shapes": list(shapes.values())})
    members["config.json"] = json.dumps(described).encode()
    with zipfile.ZipFile(path.with_name("other.keras"), "w") as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path.with_name("other.keras")


def test_a_file_names_its_arrays(reward, points, tmp_path):
    path = saved(reward, tmp_path)
    assert stored_names(path) == list(DTYPES)
    order = list(reversed(DTYPES))
    np.testing.assert_array_equal(load_reward(rewritten(path, order=order))(points), reward(points))


@pytest.mark.parametrize("name", [name for name in DTYPES if not name.startswith("domain.")])
def test_a_file_without_one_of_its_arrays_is_refused(reward, tmp_path, name):
    with pytest.raises(InputError, match="is not a reward"):
        load_reward(rewritten(saved(reward, tmp_path), drop=[name]))


@pytest.mark.parametrize(
    "changed",
    [
        {"base__means": np.zeros((3, 3))},
        {"base__log_weights": np.zeros(2)},
        {"base__means": np.full((3, 2), np.inf)},
        {"base_exponent": np.float32(1.0)},
        {"base_exponent": np.array(np.nan)},
        {"mixture_exponent": np.array(0.5)},  # of a mixture without components
        {"networks__count": np.int32(4)},
        {"networks__count": np.int32(-1)},
        {"networks__input_bias": np.zeros((3, 9), np.float32)},
        {"features__scale": np.ones(3)},
        {"features__frequencies": np.zeros((2, 1), np.float32)},
        {
            "domain__lower": np.zeros(2),
            "domain__upper": np.ones(2),
            "domain__period": np.full(2, np.inf),
        },
        {"domain__lower": np.ones(2), "domain__upper": np.zeros(2), "domain__period": np.zeros(2)},
        {"another": np.zeros(2)},
    ],
    ids=lambda changed: "-".join(f"{name}={array!r}" for name, array in changed.items()),
)
def test_a_file_whose_arrays_do_not_fit_is_refused(reward, tmp_path, changed):
    with pytest.raises(InputError, match="is not a reward"):
        load_reward(rewritten(saved(reward, tmp_path), **changed))


# --- files of version 0.1 -------------------------------------------------------------------------


@pytest.mark.parametrize("first", [13, 14, 18], ids=["plain", "features", "features and mixture"])
def test_a_file_without_names_is_read(reward, points, tmp_path, first):
    path = rewritten(saved(reward, tmp_path), drop=list(DTYPES)[first:], names=False)
    old = load_reward(path)
    np.testing.assert_array_equal(old(points), reward(points))
    assert old.mixture.num_components == 0


@pytest.mark.parametrize("missing", [[3], [17], [14, 15, 16], list(range(12, 18))], ids=str)
def test_a_file_without_names_and_some_of_its_arrays_is_refused(reward, tmp_path, missing):
    drop = [list(DTYPES)[i] for i in missing]
    with pytest.raises(InputError, match="is not a reward"):
        load_reward(rewritten(saved(reward, tmp_path), drop=drop, names=False))


@pytest.mark.parametrize(
    "path", sorted(PRETRAINED.glob("*/reward.keras")), ids=lambda p: p.parent.name
)
def test_the_pretrained_rewards_have_the_values_of_their_arrays(path):
    with (
        zipfile.ZipFile(path) as file,
        h5py.File(io.BytesIO(file.read("model.weights.h5"))) as weights,
    ):
        group = weights["layers/cumulative_reward/vars"]
        assert len(group) == 13  # of version 0.1, before features and mixture
        arrays = [group[str(i)][()] for i in range(13)]
    base, base_exponent, stack, (count, shift, scale) = (
        arrays[:3],
        arrays[3],
        arrays[4:10],
        arrays[10:],
    )
    networks = [[array[i] for array in stack] for i in range(count)]
    x = shift + scale * np.random.default_rng(0).standard_normal((20, len(shift)))
    found = load_reward(path)(x)
    wanted = reference.cumulative(x, base, base_exponent, networks, shift, scale)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
