"""A task from outside of the project (`tests.ring`), through the command line."""

import importlib
import json
import re

import numpy as np
import pandas as pd
import pytest

from experiments import specification, tasks
from tests import tiny

pytestmark = pytest.mark.usefixtures("quick")
SMALL = tiny.set_words("training.num_epochs=2", "loop.num_iterations=2", "loop.num_negatives=500")
SMALL = ["--preset", "smoke", *SMALL]
SEARCHED = ("network.layer_size=8", "network.num_layers=2", "policy.update_steps=2")  # by a study
OPTIONS = [*SMALL, *tiny.set_words(*SEARCHED)]


@pytest.fixture(scope="module", autouse=True)
def ring():
    """Registers the task for these tests alone."""
    module = importlib.import_module("tests.ring")
    tasks.register(module.DESCRIPTION)
    yield module
    del tasks._TASKS["ring"]


@pytest.fixture(scope="module")
def run(call, tmp_path_factory):
    out = tmp_path_factory.mktemp("ring") / "run"
    few = ["--components", "3", "--rows", "300", "--no-tensorboard"]
    status, shown, error = call("run", "ring", "--modes", "3", *OPTIONS, *few, "--out", out)
    assert status == 0, shown + error
    return out


def test_its_density_is_one(ring):
    axis = np.linspace(-4.0, 4.0, 401)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    density = np.exp(ring.Ring(3).log_prob(points).numpy())
    assert density.sum() * (axis[1] - axis[0]) ** 2 == pytest.approx(1.0, abs=1e-3)


def test_a_run_of_it_is_measured_and_drawn(run):
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["task"], summary["modes"], summary["dim"]) == ("ring", 3, 2)
    assert np.isfinite(summary["i_projection"]["reward"]["reported"])
    assert {"kde", "em_policy", "em_target", "em_bic"} <= set(summary["i_projection"])
    assert (run / "overview.png").stat().st_size > 10_000


def test_a_policy_is_inferred_on_its_reward(call, run):
    options = ["--components", "3", "--fixed", "--steps", "5", "--samples", "20"]
    status, shown, error = call("infer", run, *options)
    assert status == 0, shown + error
    found = json.loads((run / "inference" / "summary.json").read_text())
    assert np.isfinite(found["i_projection"]["inference_policy"]["final"])
    status, _, error = call("infer", run, *options, "--obstacles", "0.3")
    assert status == 2
    assert "--obstacles is for path_planning; these are runs of ring." in error


def test_without_its_module_a_run_of_it_says_what_to_import(call, run, monkeypatch):
    monkeypatch.delitem(tasks._TASKS, "ring")
    status, _, error = call("infer", run, "--components", "3")
    assert status == 2
    assert "summary.json: unknown task 'ring': Allowed: experts, " in error
    assert "or one of your own, imported before the command line" in error


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_sweep_of_it_in_a_worker_process(call, tmp_path):
    out = tmp_path / "sweep"
    arguments = ["sweep", "ring", *OPTIONS, "--workers", "1", "--out", out]
    status, shown, error = call(*arguments)
    assert status == 0, shown + error
    frame = pd.read_csv(out / "results.csv")
    assert set(frame["stage"]) == {"training", "training_policy", "inference"}
    assert set(frame["modes"]) == {2}
    assert (out / "runs" / "ring-virl-10c-b2-s0-smoke" / "metrics.csv").is_file()
    status, _, error = call("figure", "2b", out, "--out", tmp_path)
    assert (status, "holds results of ring, not of gaussians" in error) == (2, True)
    status, _, error = call("sweep", "ring", "--steps", "3", "--out", tmp_path / "other")
    assert status == 2
    assert "the size of a ring target is --modes" in error


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
def test_a_study_of_it_has_no_published_column_to_begin_with(call, tmp_path):
    out = tmp_path / "study"
    limits = ["--trials", "2", "--workers", "1", "--components", "2"]
    status, shown, error = call("tune", "ring", *SMALL, *limits, "--out", out)
    assert status == 0, shown + error
    trials = pd.read_csv(out / "trials.csv")
    assert list(trials["state"]) == ["COMPLETE"] * 2
    assert trials["params_kde.bandwidth"].between(0.0, 1.0).all()
    status, _, error = call("compare", "ring", "--out", tmp_path / "compared")
    assert status == 2
    assert "the paper publishes none for ring" in error


@pytest.mark.parametrize(
    ("columns", "share", "log_prob", "message"),
    [
        (2, 0.5, None, r"demonstrations of ring must be \[n, D\] = \[\d+, 2\]; for n = \d+ it"),
        (2, 1.0, [1], r"must map \[N, D\] to \[N\]; .* \[10000, 2\] it returned \[10000, 1\]\."),
        (3, 1.0, None, "DensityExperiment measures targets in 2-D, .* this one has D = 3"),
    ],
)
def test_a_task_of_other_shapes_is_refused_for_what_it_is(
    call, ring, tmp_path, monkeypatch, columns, share, log_prob, message
):
    def draws(self, n, seed):
        return np.random.default_rng(seed).normal(size=(int(share * n), columns))

    monkeypatch.setattr(ring.Ring, "dim", columns)
    monkeypatch.setattr(ring.Ring, "demonstrations", draws)
    if log_prob:
        monkeypatch.setattr(ring.Ring, "log_prob", lambda self, x: np.zeros([len(x), *log_prob]))
    specification._drawn.cache_clear()  # what other tests drew
    out = tmp_path / "run"
    status, _, error = call("run", "ring", *OPTIONS, "--rows", "300", "--out", out)
    specification._drawn.cache_clear()
    assert status == 2
    assert re.search(message, error)
    assert (out / "demonstrations.npz").exists() == (share == 1.0)


def test_options_of_other_tasks_are_refused(call, tmp_path):
    for options, message in (
        (["--steps", "3"], "the size of a ring target is --modes"),
        (["--dim", "3"], "the dimension of ring follows from --modes"),
        (
            ["--task-seed", "1"],
            "waving_experts; ring has one target",
        ),
        (["--modes", "101"], "--modes must be an integer from 1 to 100, got 101"),
    ):
        status, _, error = call("run", "ring", *options, "--out", tmp_path / "run")
        assert status == 2
        assert message in error
