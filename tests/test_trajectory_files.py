"""Trajectories from folders, tables, arrays and lists of episodes; errors name the episode."""

import shutil
import types

from virl_tf import InputError
from virl_tf.persistence import files
from virl_tf.persistence.files import map_array, map_arrays
from virl_tf.trajectories.episodes import check_episodes

import numpy as np
import pandas as pd
import pytest

from experiments.own_data.fit_request import FitRequest, TrajectoryRequest, read
from experiments.own_data.trajectory_files import (
    TrajectoryFile,
    episodes_of,
    load_episodes,
    split_contexts,
)

RNG = np.random.default_rng(0)
EVEN = RNG.normal(size=(6, 8, 2)).round(6)
RAGGED = [RNG.normal(size=(n, 2)).round(6) for n in (5, 9, 4, 12, 5, 6, 7, 5, 8, 5, 6)]
LENGTHS = np.array([len(x) for x in RAGGED])


def table(clock=False):
    """The ragged episodes as one frame."""
    frame = pd.DataFrame(np.concatenate(RAGGED), columns=["x", "y"])
    frame.insert(0, "episode", np.repeat(np.arange(len(RAGGED)) + 100, LENGTHS))
    if clock:
        frame["time"] = np.concatenate([0.1 * np.arange(n) ** 1.5 for n in LENGTHS])
    return frame


def folder(tmp_path, **changed):
    """A file per episode; `changed` ones hold other text."""
    for i, x in enumerate(RAGGED):
        pd.DataFrame(x, columns=["x", "y"]).to_csv(tmp_path / f"walk_{i}.csv", index=False)
    for name, text in changed.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return tmp_path


def load(path, **options):
    return load_episodes(TrajectoryFile(path, **options))


def check_ragged(found, columns=("x", "y")):
    assert found.columns == columns
    assert len(found.values) == len(RAGGED)
    for values, expected in zip(found.values, RAGGED, strict=True):
        np.testing.assert_allclose(values, expected, atol=1e-6)


# --- what is read ---------------------------------------------------------------------------------


def test_a_folder_of_csv_files_in_their_natural_order(tmp_path):
    found = load(folder(tmp_path))
    check_ragged(found)
    assert found.names == [f"walk_{i}.csv" for i in range(11)]
    assert found.times is None


def test_files_that_pandas_wrote_without_names_are_told_once(tmp_path, capsys):
    for i, x in enumerate(RAGGED):
        pd.DataFrame(x).to_csv(tmp_path / f"walk_{i}.csv", index=False)
    check_ragged(load(tmp_path), ("0", "1"))
    told = capsys.readouterr().err
    assert told.count("warning:") == 1
    assert "walk_0.csv: the first line was taken for the names 0,1" in told


def test_a_folder_of_tables_with_a_column_of_episodes(tmp_path):
    half = int(LENGTHS[:4].sum()) + 2  # one episode in both
    table()[:half].to_csv(tmp_path / "9.csv", index=False)
    table()[half:].to_csv(tmp_path / "10.csv", index=False)
    check_ragged(load(tmp_path, episode="episode"))


def test_a_table_with_a_column_of_episodes(tmp_path):
    table(clock=True).to_csv(tmp_path / "all.csv", index=False)
    found = load(tmp_path / "all.csv")
    check_ragged(found)
    assert found.names == [str(100 + i) for i in range(11)]
    np.testing.assert_allclose(found.times[3], 0.1 * np.arange(12) ** 1.5)
    assert load(tmp_path / "all.csv", columns=["y"]).columns == ("y",)
    assert load(tmp_path / "all.csv", exclude=["y"]).columns == ("x",)
    table().rename(columns={"episode": "who"}).to_csv(tmp_path / "who.csv", index=False)
    check_ragged(load(tmp_path / "who.csv", episode="who"))


@pytest.mark.parametrize("index", [["time"], ["episode", "time"], ["episode"]])
def test_episodes_and_times_may_be_the_index_that_pandas_wrote(tmp_path, index):
    pytest.importorskip("pyarrow")
    table(clock=True).set_index(index).to_parquet(tmp_path / "all.parquet")
    for path in (tmp_path / "all.parquet", tmp_path):
        found = load(path)
        check_ragged(found)
        np.testing.assert_allclose(found.times[3], 0.1 * np.arange(12) ** 1.5)
    check_ragged(load(tmp_path, exclude=["time"]))
    frame = table(clock=True).rename(columns={"episode": "who", "time": "s"})
    frame.set_index(["who", "s"]).to_parquet(tmp_path / "all.parquet")
    found = load(tmp_path, episode="who", time="s")
    np.testing.assert_allclose(found.times[3], 0.1 * np.arange(12) ** 1.5)


def test_episodes_of_a_table_need_not_be_in_one_piece(tmp_path, capsys):
    frame = table()
    steps = np.concatenate([np.arange(n) for n in LENGTHS])
    mixed = frame.iloc[np.argsort(steps, kind="stable")]
    mixed.to_csv(tmp_path / "all.csv", index=False)
    check_ragged(load(tmp_path / "all.csv"))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("clock", "late", "said"),
    [
        (False, 0.0, "rows of episode 101 stand in several places, and are put together"),
        (True, 0.0, ""),
        (True, 50.0, "rows of episode 101 stand in several places, the first with 50"),
    ],
)
def test_rows_that_were_added_to_an_earlier_episode_are_told(tmp_path, capsys, clock, late, said):
    frame = table(clock)
    rows = frame[frame.episode == 101].iloc[5:].copy()
    if clock:
        rows["time"] += late
    pd.concat([frame.drop(rows.index), rows]).to_csv(tmp_path / "all.csv", index=False)
    check_ragged(load(tmp_path / "all.csv"))
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == (said != "")


def test_of_several_gaps_the_widest_is_told(tmp_path, capsys):
    """Of an episode that stands in three places: no pause before the second, a long one later."""
    frame = table(True)
    long = frame.episode == 101
    second, third = frame[long].iloc[3:6], frame[long].iloc[6:].copy()
    third["time"] += 50.0
    rest = frame.drop(frame[long].index[3:])
    apart = [rest[rest.episode == 101], rest[rest.episode != 101].iloc[:4], second]
    apart += [rest[rest.episode != 101].iloc[4:], third]
    pd.concat(apart).to_csv(tmp_path / "all.csv", index=False)
    found = load(tmp_path / "all.csv")
    (at,) = [i for i, name in enumerate(found.names) if name == "101"]
    assert np.argmax(np.diff(found.times[at])) == 5
    assert "between its samples 5 and 6;" in " ".join(capsys.readouterr().err.split())


def test_arrays(tmp_path):
    np.save(tmp_path / "x.npy", EVEN)
    found = load(tmp_path / "x.npy")
    np.testing.assert_array_equal(found.values, EVEN)
    assert found.columns == ("x0", "x1")
    np.testing.assert_array_equal(load(tmp_path / "x.npy", columns=["x1"]).values, EVEN[..., 1:])
    np.testing.assert_array_equal(
        load(tmp_path / "x.npy", columns=["x1", "x0"]).values, EVEN[..., ::-1]
    )
    np.savez(tmp_path / "one.npz", paths=EVEN)
    np.testing.assert_array_equal(load(tmp_path / "one.npz").values, EVEN)
    np.savez(tmp_path / "two.npz", paths=EVEN, X=EVEN[0])
    np.testing.assert_array_equal(load(tmp_path / "two.npz", array="paths").values, EVEN)
    np.savez(tmp_path / "each.npz", *RAGGED)
    check_ragged(load(tmp_path / "each.npz"), ("x0", "x1"))
    np.savez_compressed(tmp_path / "flat.npz", values=np.concatenate(RAGGED), lengths=LENGTHS)
    check_ragged(load(tmp_path / "flat.npz"), ("x0", "x1"))


def test_the_columns_of_episodes_and_times_may_be_excluded(tmp_path):
    frame = table().assign(timestamp=1.0, time=lambda f: np.arange(len(f)) ** 2.0)
    frame.to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(InputError, match="columns timestamp and time; say which tells times with"):
        load(tmp_path / "x.csv")
    found = load(tmp_path / "x.csv", exclude=["timestamp", "episode"])
    check_ragged(found, ("x", "y"))
    assert found.times[1][0] == LENGTHS[0] ** 2
    even = load(tmp_path / "x.csv", exclude=["timestamp", "time"])
    assert even.times is None
    named = load(tmp_path / "x.csv", time="time", exclude=["timestamp", "time"])
    np.testing.assert_array_equal(named.times[1], found.times[1])


@pytest.mark.parametrize("parts", [1, 2])
def test_lerobots_tables(tmp_path, parts):
    pytest.importorskip("pyarrow", reason="extra `parquet`")
    frame = table().rename(columns={"episode": "episode_index"})
    frame["observation.state"] = list(frame[["x", "y"]].to_numpy())
    frame["action"] = list(frame[["x", "y", "x"]].to_numpy(np.float32))
    frame["frame_index"] = np.concatenate([np.arange(n) for n in LENGTHS])
    frame["timestamp"] = frame["frame_index"] / 30.0
    frame = frame.assign(index=range(len(frame)), task_index=0).drop(columns=["x", "y"])
    (tmp_path / "data" / "chunk-000").mkdir(parents=True)
    half = int(LENGTHS[:4].sum()) if parts == 2 else 0
    frame[half:].to_parquet(tmp_path / "data" / "chunk-000" / "file-010.parquet")
    if half:
        frame[:half].to_parquet(tmp_path / "data" / "chunk-000" / "file-009.parquet")
    found = load(tmp_path / "data")
    check_ragged(found, ("observation.state.0", "observation.state.1"))
    np.testing.assert_allclose(found.times[2], np.arange(4) / 30.0)
    assert len(load(tmp_path / "data", columns=["action"]).columns) == 3
    with_task = load(tmp_path / "data", contexts=["task_index"], exclude=["index"])
    assert with_task.columns == ("observation.state.0", "observation.state.1", "task_index")

    about = tmp_path / "meta" / "episodes" / "chunk-000"
    about.mkdir(parents=True)
    pd.DataFrame({"episode_index": [0], "length": [3]}).to_parquet(about / "file-000.parquet")
    (tmp_path / "meta" / "info.json").write_text("{}")
    whole = load(tmp_path)  # the data set itself, whose meta has other tables
    for row, of_data in zip(whole.values, found.values, strict=True):
        np.testing.assert_array_equal(row, of_data)
    shutil.rmtree(tmp_path / "data" / "chunk-000")
    with pytest.raises(InputError, match=r"data holds no \.parquet files; were they downloaded"):
        load(tmp_path)


def test_episodes_whose_labels_look_like_numbers_are_told_apart(tmp_path):
    frame = table()
    labels = [f"1.{i + 1}" for i in range(len(RAGGED))]  # of which 1.1 and 1.10 are one number
    frame["episode"] = np.repeat(labels, LENGTHS)
    frame.to_csv(tmp_path / "x.csv", index=False)
    for options in ({}, {"episode": "episode"}):
        found = load(tmp_path / "x.csv", **options)
        check_ragged(found)
        assert list(found.names) == labels


def test_files_whose_names_have_other_digits_are_read(tmp_path):
    for i, x in enumerate(RAGGED):
        pd.DataFrame(x, columns=["x", "y"]).to_csv(tmp_path / f"walk{i}\u00b2.csv", index=False)
    check_ragged(load(tmp_path))


@pytest.mark.parametrize("kind", ["objects", "mappings", "dict spaces"])
def test_lists_of_episodes_in_python(kind):
    if kind == "mappings":
        given = [{"observations": x, "rewards": [0.0] * len(x)} for x in RAGGED]
        found = episodes_of(given)
    elif kind == "objects":
        given = [types.SimpleNamespace(id=i + 7, actions=x) for i, x in enumerate(RAGGED)]
        found = episodes_of(iter(given), "actions")
        assert found.names[0] == "7"
    else:
        given = [{"observations": {"hand": x[:, None], "eye": None}} for x in RAGGED]
        found = episodes_of(given, key="hand")
    check_ragged(found, ("x0", "x1"))


# --- what is mapped -------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """As if every file were large."""
    monkeypatch.setattr(files, "MAX_UNPACKED_BYTES", 0)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.usefixtures("small")
def test_large_arrays_are_mapped(tmp_path, order):
    x = np.asarray(EVEN, order=order)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", a=x.astype(">f4"), b=np.zeros((0, 3)))
    mapped = map_array(tmp_path / "x.npy")
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, EVEN)
    found = map_arrays(tmp_path / "x.npz")
    assert isinstance(found["a"], np.memmap)
    np.testing.assert_array_equal(found["a"], EVEN.astype(np.float32))
    assert found["b"].shape == (0, 3)
    assert isinstance(load(tmp_path / "x.npy").values, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1.0


@pytest.mark.usefixtures("small")
def test_what_is_mapped_is_checked_against_its_header(tmp_path):
    np.save(tmp_path / "x.npy", EVEN)
    whole = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(whole[:-8])
    with pytest.raises(InputError, match=r"declares an array \[6, 8, 2\] of 8 bytes each"):
        map_array(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", a=EVEN)
    whole = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "x.npz").write_bytes(whole.replace(b"(6, 8, 2)", b"(9, 8, 2)"))
    with pytest.raises(InputError, match=r"declares an array \[9, 8, 2\]"):
        map_arrays(tmp_path / "x.npz")
    (tmp_path / "x.npz").write_bytes(b"QK" + whole[2:])
    with pytest.raises(InputError, match=r"no array where 'a.npy' should be|not an .npz"):
        map_arrays(tmp_path / "x.npz")
    np.save(tmp_path / "o.npy", np.array([None, 3], dtype=object), allow_pickle=True)
    with pytest.raises(
        InputError, match=r"pickled objects.*save arrays of unequal lengths with np\.savez"
    ):
        map_array(tmp_path / "o.npy")


# --- contexts -------------------------------------------------------------------------------------


def test_contexts_are_what_is_the_same_throughout_an_episode(tmp_path):
    pytest.importorskip("pyarrow", reason="extra `parquet`")
    goals = [[0.1 * i, -0.2 * i] for i in range(6)]
    frame = pd.DataFrame(EVEN.reshape(-1, 2), columns=["x", "y"])
    frame = frame.assign(episode=np.repeat(np.arange(6), 8), side=np.repeat(np.arange(6.0), 8))
    frame["goal"] = [goals[i] for i in frame.episode]
    frame.to_parquet(tmp_path / "all.parquet")
    found = load(tmp_path / "all.parquet", columns=["x", "y"], contexts=["goal", "side"])
    paths, contexts = split_contexts(found, ["goal", "side"])
    assert list(contexts.columns) == ["goal.0", "goal.1", "side"]
    expected = np.column_stack([goals, np.arange(6.0)])
    np.testing.assert_array_equal(contexts, expected)
    assert paths.columns == ("x", "y")
    np.testing.assert_array_equal(np.stack(paths.values), EVEN)
    plain, none = split_contexts(paths, [])
    np.testing.assert_array_equal(np.stack(plain.values), EVEN)
    assert none.shape == (6, 0)


def test_a_context_that_is_called_time_is_no_clock(tmp_path):
    frame = table()
    frame["time"] = 8.0 + frame.episode % 5
    frame.to_csv(tmp_path / "all.csv", index=False)
    paths, contexts = split_contexts(load(tmp_path / "all.csv", contexts=["time"]), ["time"])
    check_ragged(paths)
    assert list(contexts["time"]) == [8.0 + i % 5 for i in range(100, 100 + len(RAGGED))]
    assert paths.times is None


def test_contexts_of_an_array_leave_an_array(tmp_path):
    where = np.broadcast_to(np.arange(6.0)[:, None, None], (6, 8, 1))
    np.save(tmp_path / "x.npy", np.concatenate([EVEN, where], axis=2))
    found = load(tmp_path / "x.npy", columns=["x1"], contexts=["x2"])
    paths, contexts = split_contexts(found, ["x2"])
    assert isinstance(paths.values, np.ndarray)
    np.testing.assert_array_equal(paths.values, EVEN[:, :, 1:])
    np.testing.assert_array_equal(contexts["x2"], np.arange(6.0))


@pytest.mark.parametrize(("name", "step"), [("episode_index", -7), ("trial", 1)])
def test_a_column_that_only_tells_episodes_apart_is_refused_by_its_own_name(tmp_path, name, step):
    for i, x in enumerate(RAGGED):
        frame = pd.DataFrame(x, columns=["x", "y"]).assign(**{name: (step * i) ** abs(step)})
        frame.to_csv(tmp_path / f"walk_{i}.csv", index=False)
    how = {"hparams": None, "trajectories": TrajectoryRequest()}
    with pytest.raises(InputError, match=rf"column '{name}' .*\(--exclude {name}\)"):
        read(FitRequest(TrajectoryFile(tmp_path), **how))
    check_ragged(read(FitRequest(TrajectoryFile(tmp_path, exclude=[name]), **how)).episodes)
    if step < 0:
        found = read(FitRequest(TrajectoryFile(tmp_path, contexts=[name]), **how))
        assert list(found.contexts.columns) == [name]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["y"], "episode 0: the context 'y' changes within it"),
        (["z"], "unknown column for --contexts 'z'"),
        (["side", "side"], "--contexts names a column twice"),
        (["x", "y", "side"], "--contexts leaves no column of what is done"),
    ],
)
def test_bad_contexts(names, message):
    where = np.broadcast_to(np.arange(6.0)[:, None, None], (6, 8, 1))
    values = np.concatenate([EVEN, where], axis=2)
    episodes = check_episodes(values, columns=["x", "y", "side"])
    with pytest.raises(InputError, match=message):
        split_contexts(episodes, names)


@pytest.mark.parametrize(("columns", "warned"), [(["x", "episode"], True), (["x", "y"], False)])
def test_a_table_of_episodes_is_told_apart_from_rows(tmp_path, columns, warned, capsys):
    pd.DataFrame(EVEN[0], columns=columns).to_csv(tmp_path / "x.csv", index=False)
    read(FitRequest(TrajectoryFile(tmp_path / "x.csv"), trajectories=None, hparams=None))
    text = "warning: column 'episode': if rows are samples"
    assert (text in capsys.readouterr().err) == warned


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("walk_3", "x,y\n1,2\n3,\n4,5\n", "walk_3.csv is not finite: .* sample 1, column 'y'"),
        ("walk_4", "x,y\n1,2\n3,4\n", "walk_4.csv is too short: 2 samples; at least 3"),
        ("walk_4", "x,y\n", "walk_4.csv is too short: 0 samples"),
        ("walk_5", "x,y\n" + 4 * "1,2\n", "walk_5.csv is constant"),
        ("walk_2", "x,z\n1,2\n", "walk_2.csv has the columns x, z; .*walk_0.csv has x, y"),
        ("walk_6", "x,y\n1,2\noops,4\n5,6\n", "walk_6.csv: column 'x' holds text: 'oops'"),
        ("walk_7", "", "walk_7.csv is not a .csv file"),
    ],
)
def test_the_file_of_a_bad_episode_is_named(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        load(folder(tmp_path, **{name: text}))


def test_a_copied_file_is_named(tmp_path):
    path = folder(tmp_path)
    (path / "walk_8.csv").write_bytes((path / "walk_1.csv").read_bytes())
    with pytest.raises(InputError, match=r"walk_8.csv is a copy \(first: of walk_1.csv\)"):
        load(path)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda f: f.rename(columns={"episode": "who"}), {}, "no column episode_index or episode"),
        (lambda f: f, {"episode": "epsiode"}, "did you mean 'episode'"),
        (lambda f: f, {"time": "clock"}, "unknown column 'clock'"),
        (lambda f: f, {"columns": ["z"]}, "unknown column of .* 'z'"),
        (lambda f: f.replace({"episode": {100: None}}), {}, "'episode' has no label in row 0"),
        (lambda f: f.assign(y="left"), {}, "'y' holds text"),
        (lambda f: f.assign(time="now"), {}, "'time' holds text"),
        (lambda f: f.assign(time="now"), {}, r"numbers: x, y; drop the former \(--exclude time\)"),
        (lambda f: f.assign(time="1,5", x="2,5", y="3,5"), {}, "seem to have decimal commas"),
        (lambda f: f.assign(episode=5), {}, "1 trajectories; at least two"),
        (lambda f: f[["episode"]], {}, "no column beside those of episodes and times"),
        (lambda f: f.assign(y=f.y.mask(f.episode == 104)), {}, "episode 104 is not finite"),
        (lambda f: f.assign(time=0.0), {}, "episode 100: its times do not increase"),
    ],
)
def test_bad_tables(tmp_path, change, options, message):
    change(table()).to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(InputError, match=message) as error:
        load(tmp_path / "all.csv", **options)
    assert "all.csv" in str(error.value)


def write_each(frame, place):
    """A file for each episode, with the index as it is."""
    place.mkdir()
    for name, episode in frame.groupby("episode"):
        episode.drop(columns="episode").to_csv(place / f"{name}.csv")
    return place


def test_an_index_that_pandas_wrote_is_left_out(tmp_path):
    table().to_csv(tmp_path / "all.csv")
    check_ragged(load(tmp_path / "all.csv"))
    check_ragged(load(write_each(table(), tmp_path / "running")))
    counted = table().set_axis(np.concatenate([np.arange(n) for n in LENGTHS]))
    check_ragged(load(write_each(counted, tmp_path / "each its own")))


def test_what_is_left_out_may_differ_from_file_to_file(tmp_path, capsys):
    path = write_each(table().drop(index=LENGTHS[0] + 2), tmp_path / "chosen rows")
    with pytest.raises(InputError, match=r"101\.csv has the columns column 0, x, y; .* has x, y"):
        load(path)
    assert "give --exclude 'column 0'" in capsys.readouterr().err
    for options in ({"exclude": ["column 0"]}, {"columns": ["x", "y"]}):
        found = load(path, **options)
        assert found.columns == ("x", "y")
        np.testing.assert_allclose(found.values[1], np.delete(RAGGED[1], 2, axis=0))
    pd.DataFrame(RAGGED[3], columns=["x", "z"]).to_csv(path / "103.csv", index=False)
    with pytest.raises(InputError, match=r"103\.csv has the columns x, z; .* has x, y"):
        load(path, columns=["x", "y"])
    assert load(path, columns=["x"]).columns == ("x",)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": EVEN, "b": EVEN[0]}, r"it holds a \[6, 8, 2\], b \[8, 2\]; choose one"),
        ({}, "it holds no array; choose one"),
        ({"a": EVEN[0]}, r"trajectories must be \[N, T, D\], got \[8, 2\]"),
        ({"a": EVEN[0], "b": EVEN[0, :, :1]}, "episode b is of another width: 1 columns"),
        ({"values": EVEN[0], "lengths": [3, 4]}, "whose sum is the number of rows"),
        ({"values": EVEN[0], "lengths": [9, -1]}, "whole numbers above 0"),
        ({"values": EVEN[0], "lengths": [3.0, 5.0]}, "whole numbers above 0"),
    ],
)
def test_bad_arrays(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match=message):
        load(tmp_path / "x.npz")


def test_what_is_no_file_of_trajectories(tmp_path):
    with pytest.raises(InputError, match="no file or folder"):
        load(tmp_path / "missing")
    with pytest.raises(InputError, match=r"holds no .csv files, one for each episode"):
        load(tmp_path)
    np.save(tmp_path / "x.npy", EVEN)
    with pytest.raises(InputError, match=r"--array is for \.npz"):
        load(tmp_path / "x.npy", array="a")
    for option in ("episode", "time"):
        with pytest.raises(InputError, match=f"--{option} is for tables"):
            load(tmp_path / "x.npy", **{option: "a"})


def test_one_number_of_the_lists_in_a_column_is_chosen_by_the_name_that_it_gets(tmp_path):
    pytest.importorskip("pyarrow", reason="extra `parquet`")
    frame = table().assign(note=[["text"]] * int(LENGTHS.sum()))
    frame["state"] = list(frame[["x", "y"]].to_numpy())
    frame.drop(columns=["x", "y"]).to_parquet(tmp_path / "all.parquet")
    found = load(tmp_path / "all.parquet", exclude=["note", "state.0"])
    assert found.columns == ("state.1",)
    np.testing.assert_array_equal(found.values[2], RAGGED[2][:, 1:])
    chosen = load(tmp_path / "all.parquet", columns=["state.1", "state.0"])
    assert chosen.columns == ("state.1", "state.0")
    np.testing.assert_array_equal(chosen.values[2], RAGGED[2][:, ::-1])
    check_ragged(load(tmp_path / "all.parquet", columns=["state"]), ("state.0", "state.1"))
    for name in ("state.2", "other.0"):
        with pytest.raises(InputError, match=rf"unknown column of .* '{name}'"):
            load(tmp_path / "all.parquet", columns=[name])


def test_lists_in_a_column_have_one_length(tmp_path):
    pytest.importorskip("pyarrow", reason="extra `parquet`")
    frame = pd.DataFrame({"episode": [0, 0, 0, 1], "state": [[1.0], [2.0], [3.0, 4.0], [5.0]]})
    frame.to_parquet(tmp_path / "x.parquet")
    with pytest.raises(InputError, match="'state' holds lists of 1 numbers, but of 2 in row 2"):
        load(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    ("episodes", "options", "message"),
    [
        ([{"actions": EVEN[0]}] * 2, {}, "episode 0 has no 'observations'"),
        ([{"observations": {"a": EVEN[0]}}] * 2, {}, "hold a; choose one with key="),
        ([{"observations": {"a": EVEN[0]}}] * 2, {"key": "b"}, "unknown key of observations 'b'"),
        ([{"observations": EVEN[0], "id": "u"}] * 2, {}, "episode u is a copy"),
        ([{"observations": 3.0}] * 2, {}, "episode 0 must be real numbers"),
    ],
)
def test_bad_lists_of_episodes(episodes, options, message):
    with pytest.raises(InputError, match=message):
        episodes_of(episodes, **options)
