import os
import subprocess
import sys
import time

from virl_tf.persistence import reward_file, run_folder
from virl_tf.persistence.configuration import differences, versions
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError
from virl_tf.yaml_files import to_yaml

import keras
import numpy as np
import pytest
import yaml

from tests.shared import contents, make_mixture, make_reward, make_state

CONFIG = {
    "method": "virl",
    "seed": 3,
    "hparams": {"policy": {"kl_bound": 1e-6, "start": "kmeans", "patience": None}, "shape": [8, 2]},
}


def row(t, value=None):
    return {
        "t": t,
        "loss": 0.1 + 0.2 * t if value is None else value,
        "policy_seconds": 1.0 / 3.0 + t,
    }


def record(folder, *states):
    for t in states:
        folder.record(make_state(t), row(t - 1))


# --- open -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["run", "deep/below/run"])
def test_a_new_folder_is_made(tmp_path, name):
    folder = RunFolder.open(tmp_path / name, CONFIG)
    assert folder.config == CONFIG
    assert not folder.finished
    assert (
        yaml.safe_load((tmp_path / name / "config.yaml").read_text(encoding="utf-8"))["versions"]
        == versions()
    )


def test_an_empty_folder_is_used(tmp_path):
    assert RunFolder.open(str(tmp_path), CONFIG).config == CONFIG


def test_the_same_config_opens_the_same_run(tmp_path):
    record(RunFolder.open(tmp_path, CONFIG), 1, 2)
    before = contents(tmp_path)
    folder = RunFolder.open(tmp_path, {**CONFIG, "seed": np.int64(3)})
    assert contents(tmp_path) == before
    assert folder.latest_state(make_state()).t == 2


def test_words_that_look_like_something_else_and_all_numbers_are_the_same_config(tmp_path):
    words = ["1e3", "1e-3", "true", "null", "2020-01-01", "007", "a: b", "ünï", "", " x "]
    numbers = [1e-6, 5e-324, 1e300, 0.1, -0.0, 1e16, 123456789.123456789]
    config = {"words": words, "numbers": numbers}
    RunFolder.open(tmp_path, config)
    assert RunFolder.open(tmp_path, config).config == config


def test_another_config_is_refused_naming_the_keys_that_differ(tmp_path):
    RunFolder.open(tmp_path, CONFIG)
    before = contents(tmp_path)
    other = {
        "method": "eim",
        "seed": 3,
        "hparams": {
            "policy": {"kl_bound": 0.5, "start": "kmeans", "patience": None},
            "shape": [8, 2],
        },
    }
    with pytest.raises(InputError, match="holds a run with another configuration") as error:
        RunFolder.open(tmp_path, other)
    assert "method: 'virl' there, 'eim' now" in str(error.value)
    assert "hparams.policy.kl_bound: 1e-06 there, 0.5 now" in str(error.value)
    assert "seed" not in str(error.value)
    assert contents(tmp_path) == before


def test_many_differences_are_cut_short(tmp_path):
    RunFolder.open(tmp_path, {f"k{i}": 0 for i in range(9)})
    with pytest.raises(InputError, match="k3: 0 there, 1 now; and 5 more"):
        RunFolder.open(tmp_path, {f"k{i}": 1 for i in range(9)})


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(InputError, match=r"holds files but no run \(no config\.yaml\)"):
        RunFolder.open(tmp_path, CONFIG)
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}


def test_a_folder_may_be_below_the_home_and_its_name_too_long(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunFolder.open("~/run", CONFIG).path == tmp_path / "run"
    with pytest.raises(InputError, match="File name too long"):
        RunFolder.open(tmp_path / ("a" * 300), CONFIG)


@pytest.mark.parametrize("below", ["", "run"])
def test_a_path_through_a_file_is_refused(tmp_path, below):
    (tmp_path / "file").write_text("text", encoding="utf-8")
    with pytest.raises(InputError, match=r"cannot use .*file.* as the output folder"):
        RunFolder.open(tmp_path / "file" / below, CONFIG)
    assert contents(tmp_path) == {"file": b"text"}


@pytest.mark.parametrize("below", ["", "run"])
def test_a_path_through_a_link_to_nothing_is_refused(tmp_path, below):
    (tmp_path / "disk").symlink_to(tmp_path / "unmounted")
    with pytest.raises(InputError, match=r"disk is a link to .*unmounted, which is not there"):
        RunFolder.open(tmp_path / "disk" / below, CONFIG)
    assert not (tmp_path / "unmounted").exists()


@pytest.mark.parametrize(
    "text", ["", "3", "[1]", "versions: {}", "config: 3", "config: {a: 1", "config: {a: 1, a: 2}"]
)
def test_a_damaged_config_is_refused(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"config\.yaml is not"):
        RunFolder.open(tmp_path, CONFIG)


def test_config_of_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(InputError, match="is not a run folder"):
        RunFolder(tmp_path).config  # noqa: B018


def test_a_run_killed_before_its_config_was_written_can_be_started_again(tmp_path, monkeypatch):
    def killed(path, text):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            RunFolder.open(tmp_path / "run", CONFIG)
    folder = RunFolder.open(tmp_path / "run", CONFIG)
    record(folder, 1)
    assert folder.config == CONFIG
    assert folder.latest_state(make_state()).t == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}, ["a.c: 2 there, 3 now"]),
        ({"a": 1}, {"b": 1}, ["a: 1 there, None now", "b: None there, 1 now"]),
        ({"a": {"b": 1}}, {"a": 5}, ["a: {'b': 1} there, 5 now"]),
        ({"a": [1, 2]}, {"a": [2, 1]}, ["a: [1, 2] there, [2, 1] now"]),
    ],
)
def test_differences(old, new, expected):
    assert differences(old, new) == expected


def test_versions_name_what_results_depend_on():
    assert {"python", "tensorflow", "tensorflow-probability", "keras", "numpy"} <= set(versions())


@pytest.mark.parametrize(
    ("preset", "made_by", "refused"),
    [
        ("paper", "1.2.9", False),  # the same numbers (version.py)
        ("paper", "1.1.0", True),
        ("best", "1.2.9", True),
        (None, "1.2.9", True),
        ("paper", "3", True),  # YAML reads a number
    ],
)
@pytest.mark.parametrize("named", [True, False], ids=["in the folder", "by the caller"])
def test_numbers_of_others_are_refused(tmp_path, monkeypatch, preset, made_by, refused, named):
    config = CONFIG | ({"preset": preset} if named else {})
    RunFolder.open(tmp_path, config)
    text = (tmp_path / "config.yaml").read_text(encoding="utf-8")
    found = versions()["virl_tf"]
    (tmp_path / "config.yaml").write_text(text.replace(found, made_by), encoding="utf-8")
    monkeypatch.setattr(run_folder, "versions", lambda: versions() | {"virl_tf": "1.2.3"})
    RunFolder.open(tmp_path, config, of_runs=True)
    if not refused:
        RunFolder.open(tmp_path, config, preset=preset)
        return
    with pytest.raises(InputError, match=f"made by virl_tf {made_by}; use that version"):
        RunFolder.open(tmp_path, config, preset=preset)


def test_an_unfinished_run_of_another_tensorflow_is_refused_and_a_finished_one_is_not(
    tmp_path, networks
):
    folder = RunFolder.open(tmp_path, CONFIG)
    made_by = versions() | {"tensorflow": "2.0.0", "python": "2.7"}
    (tmp_path / "config.yaml").write_text(to_yaml({"config": CONFIG, "versions": made_by}))
    RunFolder.open(tmp_path, CONFIG)
    record(folder, 1)
    for use in (RunFolder.open, RunFolder.check):
        with pytest.raises(InputError, match=r"made by tensorflow 2\.0\.0; use that version"):
            use(tmp_path, CONFIG)
    folder.write_result(make_reward(networks), make_mixture(5))
    RunFolder.open(tmp_path, CONFIG)
    RunFolder.check(tmp_path, CONFIG)


# --- iterations -----------------------------------------------------------------------------------


def test_record_keeps_two_checkpoints_and_all_rows(tmp_path):
    folder = RunFolder.open(tmp_path, CONFIG)
    record(folder, 1, 2, 3, 4)
    assert sorted(contents(tmp_path)) == [
        "checkpoints/state-00003.npz",
        "checkpoints/state-00004.npz",
        "config.yaml",
        "metrics.csv",
        "timings.csv",
    ]
    latest = folder.latest_state(make_state())
    assert latest.t == 4
    np.testing.assert_array_equal(latest.policy.means, make_state(4).policy.means)
    history = folder.history()
    assert list(history.columns) == ["t", "loss", "policy_seconds"]
    for t in range(4):
        assert history.loc[t].to_dict() == row(t)  # exactly: floats survive the text


def test_checkpoints_are_sorted_by_number(tmp_path):
    folder = RunFolder.open(tmp_path, CONFIG)
    record(folder, *range(1, 12))
    assert folder.latest_state(make_state()).t == 11
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "state-00010.npz",
        "state-00011.npz",
    ]


def test_seconds_stand_apart_from_the_metrics(tmp_path):
    folder = RunFolder.open(tmp_path, CONFIG)
    record(folder, 1)
    assert (tmp_path / "metrics.csv").read_text(encoding="utf-8").splitlines()[0] == "t,loss"
    assert (tmp_path / "timings.csv").read_text(encoding="utf-8").splitlines()[
        0
    ] == "t,policy_seconds"


@pytest.mark.parametrize("written", [["metrics.csv"], ["metrics.csv", "timings.csv"]])
def test_an_iteration_done_again_has_one_row(tmp_path, written):
    folder = RunFolder.open(tmp_path, CONFIG)
    record(folder, 1, 2)
    kept = contents(tmp_path)
    record(folder, 3)
    # Killed in iteration 2, after some of its rows and before its checkpoint:
    for name, content in kept.items():
        if name not in written:
            (tmp_path / name).write_bytes(content)
    (tmp_path / "checkpoints" / "state-00003.npz").unlink()
    assert folder.latest_state(make_state()).t == 2
    folder.record(make_state(3), row(2, value=-1.0))
    history = folder.history()
    assert history["t"].tolist() == [0, 1, 2]
    assert history["loss"].tolist() == [row(0)["loss"], row(1)["loss"], -1.0]


def test_a_run_that_goes_on_with_other_measures_names_them(tmp_path):
    folder = RunFolder.open(tmp_path / "run", {})
    folder.record(make_state(1), {**row(0), "kl": 0.5})
    with pytest.raises(InputError, match=r"other columns than the run that goes on: 'kl'. Measure"):
        folder.record(make_state(2), row(1))


def test_numbers_that_are_not_finite_come_back(tmp_path):
    folder = RunFolder.open(tmp_path, CONFIG)
    for t, value in enumerate([np.nan, np.inf, -np.inf]):
        folder.record(make_state(t + 1), row(t, value))
    np.testing.assert_array_equal(folder.history()["loss"], [np.nan, np.inf, -np.inf])


def test_a_run_without_iterations_has_no_state(tmp_path):
    assert RunFolder.open(tmp_path, CONFIG).latest_state(make_state()) is None


# --- result ---------------------------------------------------------------------------------------


def test_the_result_comes_back_and_marks_the_run_finished(tmp_path, networks, points):
    folder = RunFolder.open(tmp_path, CONFIG)
    reward, policy = make_reward(networks), make_mixture(5)
    folder.write_result(reward, policy)
    assert folder.finished
    assert sorted(contents(tmp_path)) == ["config.yaml", "policy.npz", "reward.keras"]
    np.testing.assert_array_equal(folder.reward()(points), reward(points))
    np.testing.assert_array_equal(folder.policy().log_prob(points), policy.log_prob(points))


def test_equal_rewards_are_equal_files_whenever_they_are_written(tmp_path, networks, points):
    reward, first, second = (
        make_reward(networks),
        tmp_path / "first.keras",
        tmp_path / "second.keras",
    )
    reward_file.save_reward(first, reward)
    time.sleep(2.1)  # Keras would write the time in seconds, the archive in twos
    reward_file.save_reward(second, reward)
    assert first.read_bytes() == second.read_bytes()
    np.testing.assert_allclose(
        keras.saving.load_model(second)(points), reward(points), rtol=1e-6, atol=1e-5
    )


@pytest.mark.parametrize("missing", ["reward.keras", "policy.npz"])
def test_half_a_result_is_not_finished(tmp_path, networks, missing):
    folder = RunFolder.open(tmp_path, CONFIG)
    folder.write_result(make_reward(networks), make_mixture())
    (tmp_path / missing).unlink()
    assert not folder.finished


# --- damaged checkpoints and other processes ------------------------------------------------------


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def recorded(tmp_path, iterations=3):
    folder = RunFolder.open(tmp_path / "run", {"a": 1})
    for t in range(1, iterations + 1):
        folder.record(make_state(t), {"t": t - 1, "loss": 0.5})
    return folder


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path):
    folder = recorded(tmp_path)
    template = make_state(3)
    assert folder.latest_state(template).t == 3
    damage(folder.path / "checkpoints" / "state-00003.npz")
    with pytest.warns(UserWarning, match=r"state-00003.npz is damaged.*Going back"):
        assert folder.latest_state(template).t == 2


@pytest.mark.filterwarnings("ignore:.*damaged")
def test_only_damaged_checkpoints_are_one_clear_error(tmp_path):
    folder = recorded(tmp_path)
    for path in (folder.path / "checkpoints").iterdir():
        damage(path)
    with pytest.raises(InputError, match="No checkpoint before it is whole"):
        folder.latest_state(make_state(3))


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    folder = recorded(tmp_path)
    code = (
        "import sys, virl_tf.persistence.run_folder as r\n"
        "with r.RunFolder(sys.argv[1]).locked(): print('in', flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(folder.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert other.stdout.readline() == b"in\n"
    with (
        pytest.raises(InputError, match="another process is working on the run in"),
        folder.locked(),
    ):
        pass
    with pytest.raises(InputError, match="another process is working on the run in"):
        RunFolder.check(folder.path, folder.config)  # before any compute
    other.kill()  # a lock goes with its process, however it ends
    other.wait()
    RunFolder.check(folder.path, folder.config)
    with folder.locked():
        pass


# --- what kills leave behind ----------------------------------------------------------------------

LEFT = [".metrics.csv-a1b2c3d4.partial", "checkpoints/.state-00002.npz-a1b2c3d4.partial"]
OTHERS = [".metrics.csv-a1b2c3d4", "mine.partial", ".hidden", "checkpoints/notes.partial"]


def leave_behind(path, age):
    """Files as kills leave them, a temporary folder of reward.keras, and others, all of one age."""
    (path / ".reward-a1b2c3d4.partial").mkdir()
    names = [*LEFT, *OTHERS, ".reward-a1b2c3d4.partial/reward.keras"]
    for name in [*names, ".reward-a1b2c3d4.partial"]:
        if name in names:
            (path / name).write_text("half", encoding="utf-8")
        os.utime(path / name, (time.time() - age, time.time() - age))


def present(path):
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if not p.is_dir())


@pytest.mark.parametrize("finished", [False, True])
def test_the_next_start_removes_what_kills_have_left_and_nothing_else(tmp_path, finished):
    folder = recorded(tmp_path)
    if finished:
        folder.write_result(make_reward(()), make_mixture())
    with folder.locked():
        before = present(folder.path)
    leave_behind(folder.path, age=1e6)
    folder = RunFolder.open(folder.path, folder.config)
    if not finished:
        assert set(LEFT) < set(present(folder.path))  # the lock is not held yet
        with folder.locked():
            pass
    assert present(folder.path) == sorted([*before, *OTHERS])
    assert not (folder.path / ".reward-a1b2c3d4.partial").exists()


@pytest.mark.parametrize(("of_runs", "age", "kept"), [(False, 50, []), (True, 50, LEFT)])
def test_folders_that_are_never_locked_are_tidied_too(tmp_path, monkeypatch, of_runs, age, kept):
    """Those of inference, of one process; and of sweeps, whose workers may be elsewhere."""
    monkeypatch.setattr(run_folder, "_STARTED", time.time())
    path = RunFolder.open(tmp_path / "out", {"runs": ["a"]}, of_runs=of_runs).path
    (path / "checkpoints").mkdir()
    leave_behind(path, age=age)
    RunFolder.open(path, {"runs": ["a"]}, of_runs=of_runs)
    assert {name for name in present(path) if name in LEFT} == set(kept)
    old = path / LEFT[0]
    old.write_text("half", encoding="utf-8")
    os.utime(old, (1.0, 1.0))
    RunFolder.open(path, {"runs": ["a"]}, of_runs=of_runs)
    assert not old.exists()


def test_what_is_younger_than_the_process_is_kept(tmp_path):
    folder = recorded(tmp_path)
    leave_behind(folder.path, age=0)
    with folder.locked():
        assert set(LEFT) < set(present(folder.path))


def test_nothing_is_removed_without_the_lock(tmp_path):
    folder = recorded(tmp_path)
    leave_behind(folder.path, age=1e6)
    with (folder.path / ".lock").open("a") as file:
        run_folder.fcntl.flock(file, run_folder.fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process"), folder.locked():
            pass
    assert set(LEFT) < set(present(folder.path))


def test_nothing_is_removed_through_a_link(tmp_path):
    folder = recorded(tmp_path / "run")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / LEFT[0]).write_text("another's", encoding="utf-8")
    for name in ("linked", ".reward-a1b2c3d4.partial"):
        (folder.path / name).symlink_to(outside)
    run_folder.remove_partial(folder.path, time.time() + 1e6)
    assert present(outside) == [LEFT[0]]
    assert (folder.path / "linked").is_symlink()
    assert not (folder.path / ".reward-a1b2c3d4.partial").is_symlink()
