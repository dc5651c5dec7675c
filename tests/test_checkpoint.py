import io
import stat

from virl_tf.persistence.checkpoint import load_state, save_state
from virl_tf.persistence.files import load_arrays, save_arrays, write_atomically, write_text
from virl_tf.persistence.policy_file import load_policy, save_policy
from virl_tf.validation import InputError

import numpy as np
import pytest
import tensorflow as tf

from tests.shared import make_mixture, make_state


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# --- writing --------------------------------------------------------------------------------------


def test_write_replaces_the_file(tmp_path):
    path = tmp_path / "a.txt"
    for text in ("old", "nëw"):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert names(tmp_path) == ["a.txt"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
@pytest.mark.parametrize("existing", [True, False])
def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, existing, error):
    path = tmp_path / "a.txt"
    if existing:
        write_text(path, "old")

    def write(file):
        file.write(b"half of the new")
        raise error("in the middle")

    with pytest.raises(error, match="in the middle"):
        write_atomically(path, write)
    assert names(tmp_path) == (["a.txt"] if existing else [])
    if existing:
        assert path.read_text(encoding="utf-8") == "old"


def test_a_reader_sees_the_old_file_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    seen = []
    write_atomically(
        path,
        lambda file: [
            file.write(b"new"),
            file.flush(),
            seen.append(path.read_text(encoding="utf-8")),
        ],
    )
    assert seen == ["old"]
    assert path.read_text(encoding="utf-8") == "new"


def test_a_name_that_is_a_folder_leaves_nothing_behind(tmp_path):
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(OSError):
        write_text(tmp_path / "a.txt", "text")
    assert names(tmp_path) == ["a.txt"]


# --- arrays ---------------------------------------------------------------------------------------


def test_arrays_come_back_exactly(tmp_path):
    arrays = {
        "a": np.random.default_rng(0).standard_normal((3, 4)),
        "b": np.float32([1.5]),
        "c": np.int64(7),
        "d": np.zeros((0, 2)),
    }
    arrays["e"] = np.array([np.nan, np.inf, -0.0])
    save_arrays(tmp_path / "a.npz", arrays)
    loaded = load_arrays(tmp_path / "a.npz")
    assert list(loaded) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype
        assert loaded[name].shape == array.shape


def test_the_same_arrays_give_the_same_bytes(tmp_path):
    for name in ("a.npz", "b.npz"):
        save_arrays(tmp_path / name, {"x": np.arange(5.0), "y": tf.constant([1, 2])})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_objects_are_not_written(tmp_path):
    with pytest.raises(ValueError):
        save_arrays(tmp_path / "a.npz", {"x": np.array([None, "text"], dtype=object)})
    assert names(tmp_path) == []


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"no file .*nowhere\.npz"):
        load_arrays(tmp_path / "nowhere.npz")


def npy():
    file = io.BytesIO()
    np.save(file, np.arange(3.0))
    return file.getvalue()


@pytest.mark.parametrize(
    "content", [b"", b"text", b"PK\x03\x04 no zip", npy()], ids=["empty", "text", "zip-like", "npy"]
)
def test_a_file_that_is_no_npz(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.npz is damaged"):
        load_arrays(tmp_path / "a.npz")


def test_a_folder(tmp_path):
    with pytest.raises(InputError, match="is damaged"):
        load_arrays(tmp_path)


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path):
    path = tmp_path / "a.npz"
    save_arrays(path, {"x": np.arange(20.0), "y": np.zeros(3)})
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"a\.npz"):
            load_arrays(path)


def test_a_changed_byte_gives_an_input_error_or_the_same_arrays(tmp_path):
    path = tmp_path / "a.npz"
    save_arrays(path, {"x": np.arange(3.0)})
    content = path.read_bytes()
    escaped, refused = {}, 0
    for i in range(len(content)):
        for mask in (0x01, 0x80, 0xFF):
            path.write_bytes(content[:i] + bytes([content[i] ^ mask]) + content[i + 1 :])
            try:
                arrays = load_arrays(path)
            except InputError:
                refused += 1
            except Exception as error:
                escaped[i, mask] = repr(error)
            else:  # dates and the like don't matter
                np.testing.assert_array_equal(next(iter(arrays.values())), np.arange(3.0))
    assert escaped == {}
    assert refused > len(content)


# --- states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [1, 2, 3])
def test_a_state_comes_back_exactly(tmp_path, t):
    state = make_state(t)
    save_state(tmp_path / "state.npz", state)
    loaded = load_state(tmp_path / "state.npz", make_state(5))
    tf.nest.assert_same_structure(loaded, state)
    for new, old in zip(tf.nest.flatten(loaded), tf.nest.flatten(state), strict=True):
        np.testing.assert_array_equal(new, old)
        assert type(new) is type(old)
        assert np.asarray(new).dtype == np.asarray(old).dtype
    x = np.random.default_rng(0).standard_normal((10, 2))
    np.testing.assert_array_equal(loaded.reward(x), state.reward(x))


def test_a_state_has_more_arrays_than_one_digit_sorts(tmp_path):
    state = make_state(1, num_weights=30)
    save_state(tmp_path / "state.npz", state)
    loaded = load_state(tmp_path / "state.npz", make_state(2, num_weights=30))
    np.testing.assert_array_equal(
        [w[0, 0] for w in loaded.network], [w[0, 0] for w in state.network]
    )


@pytest.mark.parametrize(
    "template",
    [
        make_state(num_components=4),
        make_state(num_weights=1),
        make_state(num_weights=3),
        make_state()._replace(network=()),
    ],
    ids=["components", "fewer weights", "more weights", "no network"],
)
def test_a_state_of_other_shapes_is_refused(tmp_path, template):
    save_state(tmp_path / "state.npz", make_state())
    with pytest.raises(InputError, match=r"state\.npz belongs to a run with other shapes"):
        load_state(tmp_path / "state.npz", template)


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"format": 1},
        {"format": 2},
        {"format": 4},
        {"format": np.array([1, 1])},
        {"format": "one"},
        {"array_000": np.zeros(1)},
    ],
)
def test_another_format_is_refused(tmp_path, arrays):
    save_arrays(tmp_path / "state.npz", arrays)
    with pytest.raises(InputError, match=r"state\.npz is not a checkpoint of format 3"):
        load_state(tmp_path / "state.npz", make_state())


def test_text_in_place_of_numbers_is_refused(tmp_path):
    save_state(tmp_path / "state.npz", make_state())
    arrays = load_arrays(tmp_path / "state.npz")
    save_arrays(
        tmp_path / "state.npz",
        {name: a if name == "format" else np.full(a.shape, "x") for name, a in arrays.items()},
    )
    with pytest.raises(InputError, match=r"state\.npz"):
        load_state(tmp_path / "state.npz", make_state())


# --- policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "d"), [(1, 1), (3, 2), (10, 5)])
def test_a_policy_comes_back_exactly(tmp_path, k, d):
    policy = make_mixture(k, d)
    save_policy(tmp_path / "policy.npz", policy)
    loaded = load_policy(str(tmp_path / "policy.npz"))
    for new, old in zip(loaded, policy, strict=True):
        assert tf.is_tensor(new)
        np.testing.assert_array_equal(new, old)


def policy_arrays(**changed):
    arrays = {name: np.asarray(a) for name, a in make_mixture(3, 2)._asdict().items()} | changed
    return {name: a for name, a in arrays.items() if a is not None}


@pytest.mark.parametrize(
    "changed",
    [
        {"means": None},
        {"extra": np.zeros(2)},
        {"means": np.zeros((4, 2))},
        {"means": np.zeros(3)},
        {"means": np.zeros((3, 3))},
        {"means": np.zeros((3, 2), np.float32)},
        {"means": np.full((3, 2), np.nan)},
        {"log_weights": np.zeros((3, 1))},
        {"log_weights": np.full(3, np.nan)},
        {"log_weights": np.full(3, "a")},
        {"scale_trils": np.zeros((3, 2))},
        {"scale_trils": np.full((3, 2, 2), np.inf)},
    ],
    ids=lambda changed: "-".join(
        f"{k}:{'missing' if v is None else f'{v.dtype}{list(v.shape)}'}" for k, v in changed.items()
    ),
)
def test_a_file_that_is_no_policy_is_refused(tmp_path, changed):
    save_arrays(tmp_path / "policy.npz", policy_arrays(**changed))
    with pytest.raises(InputError, match=r"policy\.npz is not a policy"):
        load_policy(tmp_path / "policy.npz")
