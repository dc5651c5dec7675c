"""Trajectories in HDF5 files as robomimic, Minari and D4RL write them, and hostile ones."""

from virl_tf import InputError

import h5py
import numpy as np
import pytest

from experiments.early_checks import check_demonstration_file
from experiments.own_data.trajectory_files import TrajectoryFile, load_episodes, split_contexts

RNG = np.random.default_rng(0)
LENGTHS = (5, 9, 4, 12, 5, 6, 7, 5, 8, 5, 6)
POSITIONS = [RNG.normal(size=(n, 2)) for n in LENGTHS]
GRIPPERS = [RNG.normal(size=n) for n in LENGTHS]


def write(path, arrays):
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return path


def robomimic(path, **more):
    arrays = {"mask/train": np.array([b"demo_0"])}
    for i, (position, gripper) in enumerate(zip(POSITIONS, GRIPPERS, strict=True)):
        arrays[f"data/demo_{i}/obs/eef_pos"] = position
        arrays[f"data/demo_{i}/obs/gripper"] = gripper
        arrays[f"data/demo_{i}/obs/goal"] = np.full((len(position), 1), float(i))
        arrays[f"data/demo_{i}/actions"] = position[:, ::-1]
    return write(path, arrays | more)


def minari(path):
    return write(path, {f"episode_{i}/observations": x for i, x in enumerate(POSITIONS)})


def d4rl(path, **changed):
    ends = np.zeros(sum(LENGTHS), bool)
    ends[np.cumsum(LENGTHS) - 1] = True
    some = ends.copy()
    some[np.cumsum(LENGTHS)[::2] - 1] = False
    arrays = {"observations": np.concatenate(POSITIONS), "terminals": some}
    arrays |= {"timeouts": ends & ~some, "metadata/algorithm": np.bytes_(b"none")}
    return write(path, arrays | changed)


def load(path, array=None, **options):
    return load_episodes(TrajectoryFile(path, array, **options))


def check(found, columns, expected):
    assert found.columns == columns
    assert len(found.values) == len(expected)
    for values, wanted in zip(found.values, expected, strict=True):
        np.testing.assert_array_equal(values, wanted)


OBSERVED = ("observations.0", "observations.1")


def test_minaris_episodes_in_their_natural_order(tmp_path):
    found = load(minari(tmp_path / "main_data.hdf5"))
    check(found, OBSERVED, POSITIONS)
    assert found.names[10] == "episode_10"


def test_d4rls_rows_end_at_terminals_and_timeouts(tmp_path):
    check(load(d4rl(tmp_path / "x.h5")), OBSERVED, POSITIONS)


def test_robomimics_arrays_side_by_side(tmp_path):
    path = robomimic(tmp_path / "low_dim.hdf5")
    both = [np.column_stack(parts) for parts in zip(POSITIONS, GRIPPERS, strict=True)]
    found = load(path, "obs/eef_pos,obs/gripper")
    check(found, ("obs/eef_pos.0", "obs/eef_pos.1", "obs/gripper"), both)
    found = load(path, "obs/eef_pos,obs/gripper", columns=["obs/gripper"])
    check(found, ("obs/gripper",), [x[:, None] for x in GRIPPERS])
    found = load(path, "obs/eef_pos,obs/goal")
    paths, contexts = split_contexts(found, ["obs/goal"])
    check(paths, ("obs/eef_pos.0", "obs/eef_pos.1"), POSITIONS)
    assert contexts["obs/goal.0"].tolist() == list(range(len(LENGTHS)))


def test_an_array_is_one_name_among_columns(tmp_path):
    path, both = robomimic(tmp_path / "x.hdf5"), "obs/eef_pos,obs/goal"
    position = ("obs/eef_pos.0", "obs/eef_pos.1")
    check(load(path, both, exclude=["obs/goal"]), position, POSITIONS)
    check(load(path, both, columns=["obs/eef_pos"]), position, POSITIONS)
    second = [x[:, 1:] for x in POSITIONS]
    check(load(path, "obs/eef_pos", exclude=[position[0]]), position[1:], second)
    found = load(path, both, columns=["obs/eef_pos"], contexts=["obs/goal"])
    rest, contexts = split_contexts(found, ["obs/goal"])
    assert (rest.columns, list(contexts)) == (position, ["obs/goal.0"])
    with pytest.raises(InputError, match=r"unknown column of .*x\.hdf5 'obs/speed'"):
        load(path, both, columns=["obs/speed"])


def test_compressed_arrays_and_bytes_of_more_axes(tmp_path):
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for i, x in enumerate(POSITIONS):
            data = np.repeat(x[:, :, None], 2, axis=2).astype(np.float32)
            file.create_dataset(f"episode_{i}/observations", data=data, compression="gzip")
    found = load(tmp_path / "x.hdf5")
    assert found.columns == tuple(f"observations.{i}" for i in range(4))
    np.testing.assert_allclose(found.values[3][:, [0, 2]], POSITIONS[3], atol=1e-6)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (
            None,
            r"demo_0 has no array 'observations'; .* of actions \[5, 2\], longer \[6, 1\], ",
        ),
        ("obs", r"episode demo_0 has no array 'obs'; give --array NAME,... of actions"),
        ("obs/eef_pos,obs/velocity", "episode demo_0 has no array 'obs/velocity'"),
        ("../demo_1/actions", "has no array"),
        ("obs/", "has no array 'obs/'"),
        ("/", "has no array '/'"),
        ("name", "array 'name' of episode demo_0 holds no numbers over time"),
        ("number", "array 'number' of episode demo_0 holds no numbers over time"),
        ("obs/eef_pos,longer", "different numbers of samples: obs/eef_pos 5, longer 6"),
    ],
)
def test_arrays_that_are_not_there(tmp_path, array, message):
    more = {"name": ["a"] * 5, "number": 3.0, "longer": np.zeros((6, 1))}
    path = robomimic(tmp_path / "x.hdf5", **{f"data/demo_0/{k}": v for k, v in more.items()})
    with pytest.raises(InputError, match=message) as error:
        load(path, array)
    assert "x.hdf5" in str(error.value)


def test_rows_whose_ends_cannot_be_told(tmp_path):
    with pytest.raises(InputError, match="no group for each episode, and no terminals or timeouts"):
        load(write(tmp_path / "x.hdf5", {"observations": POSITIONS[0]}))
    path = d4rl(tmp_path / "y.hdf5", terminals=np.zeros(3, bool), timeouts=np.zeros(3, bool))
    with pytest.raises(InputError, match="72 rows, but terminals and timeouts of 3"):
        load(path)


def test_of_episodes_of_different_widths_one_is_named(tmp_path):
    arrays = {f"episode_{i}/observations": x for i, x in enumerate(POSITIONS)}
    arrays["episode_3/observations"] = np.zeros((7, 5))
    with pytest.raises(InputError, match="episode episode_3 is of another width"):
        load(write(tmp_path / "x.hdf5", arrays))


def test_an_episode_without_samples_is_named(tmp_path):
    arrays = {f"episode_{i}/observations": x for i, x in enumerate(POSITIONS)}
    arrays["episode_9/observations"] = np.zeros((0, 2))
    with pytest.raises(InputError, match="episode episode_9 is too short: 0 samples"):
        load(write(tmp_path / "x.hdf5", arrays))


def test_options_of_tables_and_a_forgotten_flag(tmp_path):
    path = minari(tmp_path / "x.hdf5")
    with pytest.raises(InputError, match="--time is for tables"):
        load(path, time="timestamps")
    with pytest.raises(InputError, match=r"of \.hdf5 files episodes are read; give --trajectories"):
        check_demonstration_file(path)
    with pytest.raises(InputError, match=r"no \.parquet files; give its .*x\.hdf5 itself\."):
        load(tmp_path)


# --- what a stranger's file may hold --------------------------------------------------------------


def test_nothing_outside_of_the_file_is_read(tmp_path):
    secret = write(tmp_path / "secret.hdf5", {"x": POSITIONS[1]})
    path = minari(tmp_path / "x.hdf5")
    with h5py.File(path, "a") as file:
        file["episode_0/linked"] = h5py.ExternalLink(secret.name, "x")
        file["episode_0/soft"] = h5py.SoftLink("/episode_1/observations")
        file["episode_99"] = h5py.ExternalLink(secret.name, "/")
        layout = h5py.VirtualLayout((9, 2), float)
        layout[:] = h5py.VirtualSource(secret, "x", (9, 2))
        file["episode_0"].create_virtual_dataset("virtual", layout)
        raw = [(str(secret), 0, 8 * 9)]
        file["episode_0"].create_dataset("raw", (9,), float, external=raw)
    assert len(load(path).values) == len(LENGTHS)
    for name in ("linked", "soft"):
        with pytest.raises(InputError, match=f"has no array '{name}'"):
            load(path, name)
    for name in ("virtual", "raw"):
        with pytest.raises(InputError, match=f"{name} is not an array within the file"):
            load(path, name)


def test_a_bomb_is_not_unpacked(tmp_path):
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for i in range(2):
            group = file.create_group(f"episode_{i}")
            group.create_dataset("observations", (10**9, 4), chunks=(1000, 4), compression="gzip")
    with pytest.raises(InputError, match="declares more bytes than are read"):
        load(tmp_path / "x.hdf5")


@pytest.mark.parametrize("content", [b"not HDF5", None])
def test_damaged_files(tmp_path, content):
    path = robomimic(tmp_path / "x.hdf5")
    path.write_bytes(path.read_bytes()[:5000] if content is None else content)
    with pytest.raises(InputError, match=r"x\.hdf5 is damaged or not an HDF5 file"):
        load(path, "actions")
