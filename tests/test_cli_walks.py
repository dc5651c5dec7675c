"""The grid walker and path planning on the command line: runs, inference, a sweep and its claims,
and what is refused.
"""

import json
import pickle
import shutil

from virl_tf.persistence.files import load_arrays
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.version import VERSION

import pandas as pd
import pytest

from experiments.pooled_results import read_results
from experiments.records import write_record
from experiments.result_files import columns_of
from experiments.sweeps.sweep import RUNS, execute_unit, is_finished, record_file
from experiments.sweeps.units import units_of
from tests import tiny
from tests.shared import contents

pytestmark = pytest.mark.usefixtures("quick")

# The smallest runs that go through everything; their numbers mean nothing.
OVERRIDES = ["network.layer_size=8", "network.batch_norm=false", "training.num_epochs=2"]
OVERRIDES += ["kde.bandwidth=0.3", "policy.update_steps=2", "policy.start=samples"]
OVERRIDES += ["loop.num_iterations=3", "loop.num_negatives=500"]
TINY = ["--preset", "smoke", *tiny.set_words(*OVERRIDES)]
FEW_STEPS = ["--fixed", "--steps", "10", "--samples", "20"]
MEASURES = {"negative_elbo", "kl", "outside_share", "modes_covered", "good_fraction"}
MODES = {"num_modes", "open_modes", "training_modes", "new_modes", "lost_modes"}


def read(folder):
    return json.loads((folder / "summary.json").read_text())


def make_run(call, out, task, *options):
    status, shown, error = call("run", task, *TINY, *options, "--out", out)
    assert status == 0, shown + error
    assert "policy and recovered reward" in shown
    return out


def same_files(one, other, names):
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("walks")


@pytest.fixture(scope="module")
def walker(call, folder):
    """Three steps, V-IRL."""
    return make_run(call, folder / "walker", "grid_walker", "--steps", "3")


@pytest.fixture(scope="module")
def eim(call, folder):
    """Three steps, EIM."""
    return make_run(call, folder / "eim", "grid_walker", "--steps", "3", "--method", "eim")


@pytest.fixture(scope="module")
def path(call, folder):
    """Path planning in four steps."""
    return make_run(call, folder / "path", "path_planning", "--steps", "4")


@pytest.fixture(scope="module")
def inferred(call, walker):
    """Of the run `walker`."""
    status, shown, error = call("infer", walker, "--components", "6", *FEW_STEPS)
    assert status == 0, error
    assert "of 8 modes covered" in shown
    return walker / "inference"


@pytest.fixture(scope="module")
def obstructed(call, path):
    """Inference of `path` with obstacles in the way."""
    status, shown, error = call(
        "infer", path, "--components", "6", "--obstacles", "0.33", *FEW_STEPS
    )
    assert status == 0, error
    assert "of 4 open modes covered" in " ".join(shown.split())
    return path / "obstacles"


# --- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "steps", "modes"),
    [
        ("walker", 3, 8),
        pytest.param("eim", 3, 8, marks=pytest.mark.slow),
        ("path", 4, 6),
    ],
)
def test_run_writes_the_documented_files(name, steps, modes, request):
    out = request.getfixturevalue(name)
    files = (
        "config.yaml",
        "metrics.csv",
        "timings.csv",
        "summary.json",
        "reward.keras",
        "policy.npz",
        "overview.png",
        "walks.npz",
    )
    for file in (*files, "overview.pdf", "demonstrations.npz"):
        assert (out / file).is_file(), file
    assert not (out / "grid.npz").exists()  # of the Gaussians
    summary, metrics = read(out), pd.read_csv(out / "metrics.csv")
    assert list(metrics["t"]) == [0, 1, 2]
    assert (summary["steps"], summary["modes"], summary["num_modes"]) == (steps, modes, modes)
    for column in (*MEASURES, "reward_correlation"):
        assert summary[column] == pytest.approx(metrics[column].iloc[-1]), column
    objective = summary["objective"]
    assert objective["best"] == pytest.approx(metrics["negative_elbo"].min())
    assert objective["final"] == pytest.approx(metrics["negative_elbo"].iloc[-1])
    assert objective["reported"] == pytest.approx((objective["best"] + objective["final"]) / 2)
    assert summary["kl"] > 0.0
    assert -1.0 <= summary["reward_correlation"] <= 1.0
    assert set(summary["contrast"]) == {"unexplored_random", "explored_unexplored"}


def test_the_stored_walks_have_the_runs_length_and_measures(walker):
    walks = load_arrays(walker / "walks.npz")
    assert walks["modes"].shape == (8, 3)
    assert walks["means"].shape == (10, 3)
    assert walks["covered"].sum() == read(walker)["modes_covered"]
    assert load_arrays(walker / "demonstrations.npz")["train"].shape == (400, 3)


def test_a_run_of_path_planning_stores_the_single_behaviour(path, walker):
    walks = load_arrays(path / "walks.npz")
    assert walks["projection_mean"].shape == (4,)
    assert walks["projection_draws"].shape == (20, 4)
    assert walks["open"].all()
    assert "projection_mean" not in load_arrays(walker / "walks.npz")


def test_a_killed_run_continues_and_ends_with_the_same_numbers(call, eim, tmp_path):
    out = tmp_path / "killed"
    shutil.copytree(eim, out)
    for name in (
        "summary.json",
        "walks.npz",
        "policy.npz",
        "reward.keras",
        "overview.png",
        "overview.pdf",
    ):
        (out / name).unlink()
    # Killed between the row of the last iteration and its checkpoint.
    (out / "checkpoints" / "state-00003.npz").unlink()
    lines = (out / "metrics.csv").read_text().splitlines()
    (out / "metrics.csv").write_text("\n".join([*lines[:-1], lines[-1].replace("1", "7")]) + "\n")
    make_run(call, out, "grid_walker", "--steps", "3", "--method", "eim")
    same_files(
        out, eim, ("config.yaml", "metrics.csv", "policy.npz", "walks.npz", "demonstrations.npz")
    )
    one, other = (json.dumps({**read(run), "cpu_seconds": None}) for run in (out, eim))
    assert one == other


# --- inference ------------------------------------------------------------------------------------


def test_inference_counts_modes_against_the_training_policy(inferred, walker):
    found = read(inferred)
    assert set(found) >= {
        *MEASURES,
        *MODES,
        "true_reward",
        "objective",
        "evaluations",
        "cpu_seconds",
    }
    assert set(found["true_reward"]) == MEASURES | MODES
    assert found["training_modes"] == read(walker)["modes_covered"]
    for one in (found, found["true_reward"]):
        assert one["num_modes"] == one["open_modes"] == 8
        assert one["modes_covered"] == one["training_modes"] - one["lost_modes"] + one["new_modes"]
        assert 0.0 <= one["good_fraction"] <= 1.0
    assert [row["step"] for row in found["evaluations"]] == [10]
    assert found["evaluations"][-1]["kl"] == pytest.approx(found["kl"])
    assert found["objective"]["final"] == pytest.approx(found["negative_elbo"])
    assert load_arrays(inferred / "walks.npz")["means"].shape == (6, 3)
    assert "obstacles" not in found


def test_infer_again_leaves_it_alone(call, inferred, walker):
    before = contents(inferred)
    status, shown, _ = call("infer", walker, "--components", "6", *FEW_STEPS)
    assert status == 0
    assert "finished before" in " ".join(shown.split())  # a long path breaks the line
    status, _, error = call("infer", walker, "--components", "7", *FEW_STEPS)
    assert status == 2
    assert "components: 6 there, 7 now" in error
    assert contents(inferred) == before


def test_infer_goes_on_with_what_a_version_of_the_same_numbers_made(
    call, inferred, walker, tmp_path
):
    shutil.copytree(inferred, tmp_path / "other")
    config = tmp_path / "other" / "config.yaml"
    config.write_text(config.read_text().replace(f"virl_tf: {VERSION}", f"virl_tf: {VERSION}9"))
    options = ["--components", "6", "--out", tmp_path / "other", *FEW_STEPS]
    status, shown, error = call("infer", walker, *options)
    assert (status, error) == (0, "")
    assert "finished before" in " ".join(shown.split())


def test_a_run_of_the_same_name_is_another_run(call, inferred, walker, eim, tmp_path):
    before, other = contents(inferred), tmp_path / walker.name
    shutil.copytree(walker, other)
    shutil.copyfile(eim / "reward.keras", other / "reward.keras")
    status, _, error = call("infer", other, "--components", "6", "--out", inferred, *FEW_STEPS)
    assert status == 2
    assert "another configuration" in error
    assert contents(inferred) == before


def test_inference_with_obstacles_tells_what_they_block(obstructed):
    found, walks = read(obstructed), load_arrays(obstructed / "walks.npz")
    assert found["blocked_share"] == 0.33
    assert (found["num_modes"], found["open_modes"]) == (6, 4)
    assert walks["open"].sum() == 4
    assert 0.0 <= found["collision_share"] <= found["outside_share"] + 1e-12
    assert len(found["obstacles"]["centers"]) == len(found["obstacles"]["radii"]) >= 1
    assert (
        found["modes_covered"] == found["training_modes"] - found["lost_modes"] + found["new_modes"]
    )
    assert found["training_modes"] <= found["open_modes"]
    assert not (obstructed.parent / "inference").exists()


@pytest.mark.parametrize(
    ("runs", "options", "message"),
    [
        (
            ["walker"],
            ["--obstacles", "0.3"],
            "--obstacles is for path_planning; these are runs of grid_walker",
        ),
        (["path"], ["--obstacles", "1"], "share of blocked paths must be"),
        (["walker", "path"], [], "give runs on one task"),
        (["walker", "walker"], [], "a run is given twice"),
        (["walker"], ["--steps", "0"], "--steps must be an integer >= 1"),
        (["walker"], ["--seed", "-1"], "--seed must be"),
    ],
)
def test_inference_that_cannot_be_is_one_clear_line_and_leaves_nothing(
    call, runs, options, message, request, tmp_path
):
    runs = [request.getfixturevalue(name) for name in runs]
    before = [contents(run) for run in runs]
    status, _, error = call(
        "infer", *runs, "--components", "3", *options, "--out", tmp_path / "out"
    )
    assert status == 2
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert message in error
    assert not (tmp_path / "out").exists()
    assert [contents(run) for run in runs] == before


def test_a_run_is_no_folder_for_its_inference(call, walker):
    before = contents(walker)
    status, _, error = call("infer", walker, "--components", "3", "--out", walker)
    assert (status, len(error.splitlines())) == (2, 1)
    assert "is the run itself" in error
    assert contents(walker) == before


# --- a sweep and its claims -----------------------------------------------------------------------


SWEEP = ["sweep", "grid_walker", *TINY, "--workers", "1"]


@pytest.fixture(scope="module")
def swept(call, folder, walker, eim, inferred):
    """A smoke sweep that finds V-IRL's and EIM's runs done, and G-EIM's as a worker does it.

    In this process; that sweeps start workers is tested in test_sweep.py.
    """
    out = folder / "sweep"
    RunFolder.open(out, {"sweep": "grid_walker", "preset": "smoke", "overrides": OVERRIDES})
    for unit in units_of("grid_walker", "smoke", OVERRIDES):
        if unit.spec.method == "geim":
            of_dask = pickle.loads(pickle.dumps(unit))  # noqa: S301
            assert execute_unit(of_dask, out) is None
            assert is_finished(unit, out)
        else:
            run = out / RUNS / unit.name
            shutil.copytree(walker if unit.spec.method == "virl" else eim, run)
            # Of an inference its components count, here.
            shutil.copytree(inferred, run / "inference", dirs_exist_ok=True)
            write_record(run, record_file(unit, out))
    status, shown, error = call(*SWEEP, "--out", out)
    assert status == 0, shown + error
    assert "3 of 3 units finished" in " ".join(shown.split())
    return out


def test_a_sweep_trains_infers_and_collects(swept):
    frame = pd.read_csv(swept / "results.csv")
    assert list(frame.columns) == columns_of("grid_walker")
    rows = {(row.method, row.stage) for row in frame.itertuples()}
    assert rows == {
        (method, stage) for method in ("virl", "geim", "eim") for stage in ("training", "inference")
    }
    assert len(frame) == 6
    assert set(frame["task"]) == {"grid_walker"}
    assert set(frame["modes"]) == set(frame["open_modes"]) == {8}
    training, inference = frame[frame["stage"] == "training"], frame[frame["stage"] == "inference"]
    assert inference[["new_modes", "lost_modes", "true_reward_modes"]].notna().all(axis=None)
    assert (
        training[["new_modes", "lost_modes", "true_reward_modes", "collision_share"]]
        .isna()
        .all(axis=None)
    )
    worker = swept / RUNS / "grid_walker-geim-10c-d3-s0-smoke"
    for stage, summary in (("training", read(worker)), ("inference", read(worker / "inference"))):
        row = frame[(frame["method"] == "geim") & (frame["stage"] == stage)].iloc[0]
        assert row["reported"] == pytest.approx(summary["objective"]["reported"], nan_ok=True)
        assert (row["kl"], row["modes_covered"]) == (
            pytest.approx(summary["kl"]),
            summary["modes_covered"],
        )
    assert read(worker / "inference")["components"] == 6  # 25 of 32, in proportion
    assert not (worker / "overview.png").exists()


def test_the_record_of_a_smoke_unit_is_small(swept):
    files = sorted((swept / "records").iterdir())
    assert len(files) == 3
    assert all(file.stat().st_size < 15_000 for file in files)


def test_a_sweeps_table_has_a_row_for_every_stage_and_method(swept):
    lines = (swept / "table.md").read_text().splitlines()
    assert len(lines) == 2 + 6
    assert "modes_covered" in lines[0]
    results, table = pd.read_csv(swept / "results.csv"), pd.read_csv(swept / "table.csv")
    assert set(table["seeds"]) == {1}
    for row in results.itertuples():
        mean = table[(table["stage"] == row.stage) & (table["method"] == row.method)].iloc[0]
        assert (mean["mean"], mean["good_fraction"]) == pytest.approx(
            (row.reported, row.good_fraction), nan_ok=True
        )


def test_the_same_sweep_again_does_nothing(call, swept):
    before = contents(swept)
    status, shown, _ = call(*SWEEP, "--out", swept)
    assert status == 0
    assert "3 of 3 units finished" in " ".join(shown.split())
    assert contents(swept) == before


def test_a_seed_given_twice_counts_once(call, swept, tmp_path):
    out = tmp_path / "sweep"
    shutil.copytree(swept, out)
    assert call(*SWEEP, "--seeds", "0,0", "--steps", "3,3", "--out", out)[0] == 0
    assert len(pd.read_csv(out / "results.csv")) == 6


def test_one_seed_is_not_enough_for_any_claim_on_the_grid_walker(call, swept, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    for results in ([swept, "--pool"], [swept / "results.csv"]):
        status, shown, _ = call("claims", "grid_walker", *results)
        assert status == 0
        assert shown.count("not enough runs") == 6
        assert "does not hold" not in shown


def test_policies_inferred_in_different_ways_are_pooled_on_request_alone(call, swept):
    status, _, error = call("claims", "grid_walker", swept)
    assert status == 2
    assert "results of different settings" in error
    assert "inference.steps: " in error


def test_one_run_is_not_enough_for_any_claim_on_path_planning(
    call, path, obstructed, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "300")
    write_record(path, tmp_path / "records" / "path.zip")
    frame = read_results(tmp_path)
    assert list(frame["stage"]) == ["training", "obstacles"]
    found = frame.iloc[1]
    assert (found["open_modes"], found["collision_share"]) == (
        4,
        read(obstructed)["collision_share"],
    )
    status, shown, _ = call("claims", "path_planning", tmp_path)
    assert status == 0
    assert shown.count("not enough runs") == 1


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "grid_walker", "--modes", "5"], "--modes is for experts, gaussians, hall"),
        (["sweep", "walker"], "did you mean 'grid_walker'"),
        (
            ["sweep", "grid_walker", "--modes", "5"],
            "the size of a grid_walker target is --steps",
        ),
        (["sweep", "path_planning", "--steps", "4,5"], "--steps of path_planning must be even"),
        (["sweep", "grid_walker", "--steps", "3;4"], "--steps must be integers with commas"),
        (["sweep", "grid_walker", "--seeds", "-1"], "--seeds must be"),
    ],
)
def test_bad_input_is_one_clear_error_with_status_2(call, arguments, message, tmp_path):
    status, _, error = call(*arguments, "--out", tmp_path / "out")
    assert status == 2
    assert error.startswith("error: ")
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()
