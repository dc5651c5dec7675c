"""Disks that are full, read-only or gone, kills at every step of a write, and two processes on one
run.
"""

import contextlib
import errno
import os
import shutil
import subprocess
import sys

from virl_tf import InputError, fit, load
from virl_tf.persistence import run_folder
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.reward import Reward

import numpy as np
import pytest

from tests import tiny
from tests.shared import contents, make_mixture, make_network, make_reward, make_state
from tests.test_cli import TINY

pytestmark = pytest.mark.usefixtures("quick")

CONFIG = {"method": "virl", "seed": 0}
ITERATIONS = 3
STATES = [make_state(t) for t in range(ITERATIONS + 1)]
RESULT = make_reward([make_network()]), make_mixture()


@pytest.fixture(scope="module", autouse=True)
def built_once():
    """Of `RESULT` Keras's model, which takes half of the time of `go_on` to build."""
    as_keras, model = Reward.as_keras, RESULT[0].as_keras()

    def remembered(reward):
        return model if reward is RESULT[0] else as_keras(reward)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reward, "as_keras", remembered)
        yield


def go_on(path):
    """What `fit` does on the disk: open the run, continue after its last checkpoint, write the
    result.
    """
    folder = RunFolder.open(path, CONFIG)
    with folder.locked():
        state = folder.latest_state(STATES[0])
        for t in range(state.t if state is not None else 0, ITERATIONS):
            folder.record(STATES[t + 1], {"t": t, "loss": 0.1 * t, "policy_seconds": 1.0})
        folder.write_result(*RESULT)


def refusal(path):
    """The message with which `go_on` ends, if it does not come to its end."""
    try:
        go_on(path)
    except InputError as error:
        return str(error)
    return None


def content(path):
    """All files of a run but hidden ones and checkpoints before the last two."""
    older = sorted((path / "checkpoints").iterdir())[:-2]
    files = {
        str(p.relative_to(path)): p.read_bytes()
        for p in path.rglob("*")
        if p.is_file() and p not in older
    }
    return {name: data for name, data in files.items() if "/." not in f"/{name}"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    go_on(path)
    return content(path)


def partial_files(path):
    return sorted(path.rglob(".*.partial"))


class Killed(BaseException):
    """The process is gone: nothing after this reaches the disk, no cleaning up either."""


CHANGES = ["open", "mkdir", "fsync", "chmod", "replace", "unlink", "rmdir"]


class Disk:
    """Counts the calls that change the disk, and fails at number `fails_at`: once, or for good if
    the process was killed.
    """

    def __init__(self, patch, fails_at, error):
        self.calls, self.fails_at, self.error = 0, fails_at, error
        for name in CHANGES:
            patch.setattr(os, name, self.counted(getattr(os, name)))

    def counted(self, original):
        def call(*arguments, **options):
            self.calls += 1
            if self.calls == self.fails_at or (
                self.calls > self.fails_at and isinstance(self.error, Killed)
            ):
                raise self.error
            return original(*arguments, **options)

        return call


def number_of_steps(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, 10**6, None)
        go_on(tmp_path / "counted")
    return disk.calls


def test_a_kill_at_any_step_on_the_disk_loses_nothing(tmp_path, expected):
    steps = number_of_steps(tmp_path)
    assert steps > 50
    left = 0
    for step in range(1, steps + 1):
        path = tmp_path / f"run-{step}"
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, step, Killed())
            with pytest.raises(Killed):
                go_on(path)
        left += len(partial_files(path))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_folder, "_STARTED", np.inf)  # a process that begins after the kill
            go_on(path)
        assert content(path) == expected, f"killed at step {step} of {steps}"
        assert partial_files(path) == []
    assert left > 10


def test_a_disk_that_fails_at_any_step_is_reported_and_loses_nothing(tmp_path, expected):
    reported, number = 0, errno.EIO
    for step in range(1, number_of_steps(tmp_path) + 1):
        path = tmp_path / f"run-{step}"
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, step, OSError(number, os.strerror(number)))
            message = refusal(path)
        if message is not None:
            assert os.strerror(number) in message
            assert str(path) in message
            reported += 1
        if path.exists():
            leftover = [p.name for p in path.rglob(".*") if p.name != ".lock"]
            assert leftover == [] or step_is_cleaning_up(leftover), f"step {step} left {leftover}"
        go_on(path)
        assert content(path) == expected, f"failed at step {step}"
    assert reported > 50


def step_is_cleaning_up(leftover):
    """Whether what is left is what could not be removed: the temporary folder of reward.keras."""
    return all(name.startswith(".reward-") for name in leftover)


# --- a real file system that is full or read-only -------------------------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)],
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("no command mount")
    if mounted.returncode:
        pytest.skip(
            f"mounting a file system is not permitted here: {mounted.stderr.decode().strip()}"
        )
    yield path
    subprocess.run(["umount", str(path)], check=True)


def fill(disk, free):
    """Fill a disk but for about `free` bytes."""
    with (disk / "filler").open("wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass
        file.truncate(file.tell() - free)


def test_a_full_disk_is_reported_and_the_run_continues_when_there_is_room(small_disk, expected):
    seen = set()
    for free in range(0, 160 * 1024, 8 * 1024):
        fill(small_disk, free)
        message = refusal(small_disk / "run")
        if message is not None:
            assert "No space left on device" in message
            seen.add(message.split(str(small_disk))[0])
        (small_disk / "filler").unlink()
        assert [p for p in small_disk.rglob(".*") if p.name != ".lock"] == []
        if (small_disk / "run").exists():
            go_on(small_disk / "run")
            assert content(small_disk / "run") == expected
            shutil.rmtree(small_disk / "run")
    assert seen == {"cannot use ", "cannot write "}


def test_a_full_disk_is_one_line_on_the_command_line(small_disk, call):
    fill(small_disk, 8 * 1024)  # enough for config.yaml, not for the demonstrations
    status, _, error = call("run", "gaussians", *TINY, "--out", small_disk / "run")
    assert status == 2
    assert error.startswith("error: [Errno 28] No space left on device")
    assert "demonstrations.npz" in error
    assert error.endswith("the same command continues.\n")
    assert len(error.splitlines()) == 1
    assert [p.name for p in (small_disk / "run").iterdir()] == ["config.yaml"]


def test_a_read_only_disk_is_reported_and_can_be_read(small_disk, call):
    go_on(small_disk / "finished")
    half = RunFolder.open(small_disk / "half", CONFIG)
    half.record(STATES[1], {"t": 0, "loss": 0.0, "policy_seconds": 1.0})
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert load(small_disk / "finished").policy.num_components == 3
    assert half.latest_state(STATES[0]).t == 1
    with pytest.raises(
        InputError,
        match=r"cannot write .*half: Read-only file system. What was finished before is kept",
    ):
        go_on(small_disk / "half")
    with pytest.raises(
        InputError, match=r"cannot use .*new as the output folder: Read-only file system"
    ):
        go_on(small_disk / "new")
    status, _, error = call("run", "gaussians", *TINY, "--out", small_disk / "new")
    assert (status, len(error.splitlines())) == (2, 1)
    assert "Read-only file system" in error


# --- folders that go away, and two processes ------------------------------------------------------


def fit_into(path, evaluate=None, **loop):
    """A tiny run of EIM in the folder `path`."""
    hparams = tiny.overrides(loop=loop)
    options = {"num_components": 2, "hparams": hparams, "directory": path, "evaluate": evaluate}
    return fit(tiny.demonstrations(), "eim", **options)


def test_files_are_as_private_as_the_user_wants_them(tmp_path):
    code = (
        f"import os; os.umask(0o077)\nfrom pathlib import Path\n"
        "from virl_tf.persistence.files import write_text\n"
        f"write_text(Path({str(tmp_path / 'new')!r}), 'text')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("at", [1, 2])
def test_a_folder_removed_during_the_run_is_reported(tmp_path, at):
    path = tmp_path / "run"

    def remove(state):
        if state.t == at:
            shutil.rmtree(path)
        return {}

    with pytest.raises(InputError, match=r"run.*No such file or directory"):
        fit_into(path, remove)
    assert not path.exists()


def test_a_second_process_is_refused_and_changes_nothing(tmp_path):
    path = tmp_path / "run"
    first = fit_into(path, num_iterations=1)
    # As if the first process had not come to its end yet.
    for name in ("reward.keras", "policy.npz"):
        (path / name).unlink()
    before = contents(path)
    # A lock belongs to an open file, so this process stands for the first one.
    refused = pytest.raises(InputError, match="another process is working on the run in")
    with RunFolder(path).locked(), refused:
        fit_into(path, num_iterations=1)
    assert contents(path) == before
    again = fit_into(path, num_iterations=1)
    np.testing.assert_array_equal(again.policy.means, first.policy.means)


def test_a_second_command_is_refused_in_one_line(tmp_path, call):
    fill_at = tmp_path / "run"

    def stopped(*_, **__):
        raise InputError("stopped here")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.runs.run", stopped)
        # The folder and its demonstrations.
        assert call("run", "gaussians", *TINY, "--out", fill_at)[0] == 2
    with RunFolder(fill_at).locked():
        status, _, error = call("run", "gaussians", *TINY, "--out", fill_at)
    assert status == 2
    message = f"another process is working on the run in {fill_at}; wait for it or stop it."
    assert error == f"error: {message}\n"
