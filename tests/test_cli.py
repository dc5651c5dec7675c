"""The command line as a user meets it: real processes, real folders."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import tensorflow as tf
import typer
import yaml

from experiments import interrupts
from tests import tiny
from tests.shared import contents

pytestmark = pytest.mark.usefixtures("quick")
ROOT = Path(__file__).parent.parent
# The smallest run that goes through everything; its numbers mean nothing.
TINY = ["--preset", "smoke", "--modes", "5", "--components", "2"]
TINY += tiny.set_words("network.layer_size=8", "training.num_epochs=2", "loop.num_iterations=3")
TINY += tiny.set_words("loop.num_negatives=500", "policy.update_steps=2")


@pytest.fixture(scope="module")
def finished(call, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    status, shown, error = call("run", "gaussians", *TINY, "--out", out)
    assert status == 0, error
    assert "recovered reward" in shown
    return out


@pytest.mark.parametrize(
    "method",
    ["virl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("geim", "eim"))],
)
def test_run_writes_the_documented_files(call, method, finished, tmp_path):
    out = finished
    if method != "virl":
        out = tmp_path / "run"
        assert call("run", "gaussians", "--method", method, *TINY, "--out", out)[0] == 0
    for name in (
        "config.yaml",
        "metrics.csv",
        "timings.csv",
        "summary.json",
        "reward.keras",
        "policy.npz",
        "overview.png",
    ):
        assert (out / name).is_file(), name
    assert len(list((out / "checkpoints").iterdir())) == 2
    metrics = pd.read_csv(out / "metrics.csv")
    assert list(metrics["t"]) == [0, 1, 2]
    summary = json.loads((out / "summary.json").read_text())
    for density, column in (("reward", "i_projection_reward"), ("policy", "i_projection_policy")):
        values = summary["i_projection"][density]
        assert values["best"] == pytest.approx(metrics[column].min())
        assert values["final"] == pytest.approx(metrics[column].iloc[-1])
        assert values["reported"] == pytest.approx((values["best"] + values["final"]) / 2)
    for reference in ("kde", "kde_silverman", "kde_held_out", "em_policy", "em_bic", "em_target"):
        assert 0 < summary["i_projection"][reference]["reported"] < 20
    stored = yaml.safe_load((out / "config.yaml").read_text())
    assert stored["config"]["hparams"]["network"]["layer_size"] == 8
    assert set(stored["versions"]) >= {"python", "tensorflow", "keras", "numpy"}


def test_run_again_leaves_a_finished_run_alone(call, finished):
    before = contents(finished)
    status, shown, _ = call("run", "gaussians", *TINY, "--out", finished)
    assert status == 0
    assert "finished before" in " ".join(shown.split())
    assert contents(finished) == before


def test_run_again_makes_a_result_that_was_removed(call, finished):
    before = (finished / "reward.keras").read_bytes()
    (finished / "reward.keras").unlink()
    assert call("run", "gaussians", *TINY, "--out", finished)[0] == 0
    assert (finished / "reward.keras").read_bytes() == before


def test_a_run_is_quiet_and_ctrl_c_says_how_to_go_on(tmp_path):
    out = tmp_path / "stopped"
    long = tiny.set_words("loop.num_iterations=2000")  # the signal must not come after the end
    command = [sys.executable, "-m", "experiments", "run", "gaussians", *TINY, *long]
    # Of three dimensions, which are drawn without slice sampling, whose programs take seconds.
    command += ["--dim", "3", "--rows", "300", "--out", str(out)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 600
    first = out / "checkpoints" / "state-00001.npz"
    while not first.is_file() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 130, error
    assert "the same command continues" in error
    assert "Traceback" not in error
    assert "absl::InitializeLog" not in error, "TensorFlow's log lines belong off the screen"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_a_callback_swallows_comes_again(monkeypatch, capsys, number):
    monkeypatch.setattr(interrupts, "REPEAT_SECONDS", 0.2)
    before = signal.getsignal(number)
    swallowed = 0

    def work():
        nonlocal swallowed
        with interrupts.interruptible():
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:  # as Python does with one that is raised in a destructor
                swallowed += 1
            time.sleep(5.0)

    with pytest.raises(typer.Exit) as ended:
        work()
    assert (ended.value.exit_code, swallowed) == (130, 1)
    assert "the same command continues" in capsys.readouterr().err
    assert signal.getsignal(number) == before
    time.sleep(0.3)  # nothing more comes after the end


@pytest.mark.parametrize(("times", "reached"), [(1, [None]), (2, "before")])
def test_a_signal_waits_for_tensorflow_and_a_second_does_not(monkeypatch, capsys, times, reached):
    """Its C++ does not expect exceptions of the Python that it calls."""
    monkeypatch.setattr(interrupts, "OWN", {__name__.partition(".")[0]})
    done = "before"

    def call_tensorflow():
        nonlocal done
        done = tf.nest.map_structure(signal.raise_signal, [signal.SIGINT] * times)
        done = "the next line"

    tracing = sys.gettrace()
    with pytest.raises(typer.Exit) as ended, interrupts.interruptible():
        call_tensorflow()
    assert (ended.value.exit_code, done) == (130, reached)
    assert "the same command continues" in capsys.readouterr().err
    assert sys.gettrace() == tracing


def test_a_signal_in_what_tensorflow_calls_from_cpp_comes_behind_it(monkeypatch):
    """An exception in there came out as a SystemError, and as a segmentation fault."""
    monkeypatch.setattr(interrupts, "OWN", {__name__.partition(".")[0]})
    module = {"__name__": "tensorflow", "signal": signal}
    exec(  # a class that TensorFlow's check of new types interrupts, as if it were its own code
        "class New:\n"
        "    asked = 0\n"
        "    @property\n"
        "    def __class__(self):\n"
        "        New.asked += 1\n"
        "        if New.asked == 1:\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "        return New\n",
        module,
    )

    @interrupts.interruptible()
    def call_tensorflow():
        tf.nest.assert_same_structure(module["New"](), module["New"]())
        pytest.fail("not interrupted")

    with pytest.raises(typer.Exit):
        call_tensorflow()
    assert module["New"].asked > 1, "TensorFlow went on"


def test_another_configuration_in_the_folder_is_refused_and_nothing_changes(call, finished):
    before = contents(finished)
    status, _, error = call("run", "gaussians", *TINY, "--seed", "1", "--out", finished)
    assert status == 2
    assert "seed: 0 there, 1 now" in error
    assert contents(finished) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "gaussians", "--method", "vril"], "did you mean 'virl'"),
        (["run", "gaussians", "--preset", "fast"], "Allowed: best, paper, quick, smoke"),
        (["run", "gaussians", "--components", "0"], "--components"),
        (["run", "gaussians", "--components", "401"], "from 1 to 400"),
        (["run", "gaussians", "--seed", "-1"], "--seed must be"),
        (["run", "gaussians", "--task-seed", "-1"], "--task-seed must be"),
        (["run", "gaussians", "--set", "network.layer_sise=8"], "did you mean 'layer_size'"),
        (
            ["run", "gaussians", "--set", "training.learning_rate=5e-3"],
            "0.005 is not allowed",
        ),  # a number, as in files
        (["run", "gaussians", "--set", "network.l2=[1"], "is not valid YAML"),
        (["run", "gaussians", "--set", "layer_size"], "expected SECTION.KEY=VALUE"),
        (["run", "gaussians", "--out", "virl_tf"], "no config.yaml"),
    ],
)
def test_bad_input_is_one_clear_error_with_status_2(call, arguments, message, tmp_path):
    out = [] if "--out" in arguments or arguments[0] != "run" else ["--out", tmp_path / "out"]
    status, _, error = call(*arguments, *out)
    assert status == 2
    assert message in error
    assert not (tmp_path / "out").exists()


def test_infer_and_figures_from_result_files(call, finished, tmp_path):
    status, _, error = call("figure", "5", finished, "--out", tmp_path)
    assert status == 2
    assert "python -m experiments infer" in error
    options = ["--components", "3", "--fixed", "--steps", "5", "--samples", "10"]
    status, shown, _ = call("infer", finished, *options)
    assert status == 0
    summary = json.loads((finished / "inference" / "summary.json").read_text())
    new = summary["i_projection"]["inference_policy"]["reported"]
    trained = summary["i_projection"]["training_policy"]
    assert f"{new:.4f} for the new policy, {trained:.4f} for the training policy" in shown
    for number in ("2a", "5"):
        assert call("figure", number, finished, "--out", tmp_path)[0] == 0
        for kind in ("png", "pdf"):
            assert (tmp_path / f"figure_{number}.{kind}").stat().st_size > 10_000


def test_inference_draws_demonstrations_again_that_a_committed_run_has_not(
    call, finished, tmp_path
):
    options = ["--components", "3", "--fixed", "--steps", "5", "--samples", "10"]
    without = shutil.copytree(finished, tmp_path / finished.name)
    (without / "demonstrations.npz").unlink()
    outs = [tmp_path / "with", tmp_path / "without"]
    for run, out in zip((finished, without), outs, strict=True):
        status, _, error = call("infer", run, *options, "--out", out)
        assert status == 0, error
    names = ("policy.npz", "grid.npz", "history.csv")
    one, other = ([(out / name).read_bytes() for name in names] for out in outs)
    assert one == other


def test_figures_are_the_same_bytes_when_drawn_again(call, finished, tmp_path):
    for folder in ("one", "two"):
        call("figure", "2a", finished, "--out", tmp_path / folder)
    for kind in ("png", "pdf"):
        assert (tmp_path / "one" / f"figure_2a.{kind}").read_bytes() == (
            tmp_path / "two" / f"figure_2a.{kind}"
        ).read_bytes()


def test_obstacles_are_for_path_planning(call, finished):
    before = contents(finished)
    status, _, error = call("infer", finished, "--components", "3", "--obstacles", "0.3")
    assert status == 2
    assert error == "error: --obstacles is for path_planning; these are runs of gaussians.\n"
    status, _, error = call("infer", finished, "--components", "3", "--support", "free.py")
    assert status == 2
    assert "--support is for fits to your own demonstrations" in error
    assert contents(finished) == before
