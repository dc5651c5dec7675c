"""Records: all that tables and figures need of a run, anywhere; and those that are refused."""

import json
import re
import shutil
import zipfile

from virl_tf.persistence import files
from virl_tf.persistence.configuration import numerics, versions
from virl_tf.persistence.files import load_arrays, read_json, read_members, save_arrays, write_json
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import MAX_UNPACKED_BYTES, InputError
from virl_tf.version import VERSION
from virl_tf.yaml_files import to_yaml

import numpy as np
import pandas as pd
import pytest

from experiments import records
from experiments.figures import RESULTS, draw
from experiments.pooled_results import check_poolable, read_results
from experiments.records import KEPT_ROWS, read_record, unpack, unpacked, write_record
from experiments.report.results import Results
from experiments.result_files import RUN
from experiments.sweeps.sweep import RUNS, execute_unit, record_file, records_of
from experiments.sweeps.sweep_command import open_folder
from experiments.sweeps.units import RunUnit, SweepRequest, units_of
from tests.shared import contents


@pytest.fixture
def run(tmp_path):
    """A finished run with an inference, as far as a record is made of it."""
    folder = tmp_path / "run"
    rng = np.random.default_rng(0)
    for place in (folder, folder / "inference"):
        RunFolder.open(place, {"task": "gaussians", "rate": 1e-5})
        write_json(place / "summary.json", {"kl": float("nan"), "cpu_seconds": {"process": 1.5}})
        axes, values = rng.standard_normal((2, 100)), rng.standard_normal(10_000)
        save_arrays(place / "grid.npz", {"axes": axes, "reward": values, "log_policy": values})
        (place / "policy.npz").write_text("large")
    x = rng.standard_normal((2000, 2))
    save_arrays(folder / "demonstrations.npz", {"train": x, "test": x})
    save_arrays(folder / "walks.npz", {"means": x[:5], "covered": x[:5, 0] > 0.0})
    (folder / "metrics.csv").write_text("t,loss\n0,0.5\n")
    return folder


def rewritten(path, change):
    """A record with its members changed, and a digest that is right again."""
    members = read_members(path)
    seconds = members.pop("seconds.json")
    del members["sha256"]
    change(members)
    members |= {"sha256": records._digest(members), "seconds.json": seconds}
    with path.open("wb") as file:
        records._write_zip(file, members)


# --- what a record holds --------------------------------------------------------------------------


def test_a_record_holds_what_tables_and_figures_need(run, tmp_path):
    path, again = tmp_path / "records" / "a.zip", tmp_path / "again"
    write_record(run, path)
    unpack(read_record(path), again)
    of_both = {"config.yaml", "summary.json", "grid.npz"}
    expected = of_both | {f"inference/{name}" for name in of_both}
    names = {file.relative_to(again).as_posix() for file in again.rglob("*") if file.is_file()}
    assert names == expected | {"demonstrations.npz", "walks.npz", "metrics.csv"}
    for name in ("config.yaml", "summary.json", "inference/config.yaml", "metrics.csv"):
        assert (again / name).read_bytes() == (run / name).read_bytes(), name
    assert path.stat().st_size < 60_000  # noise; real grids take half of it


def test_arrays_of_a_record_are_short_and_close(run, tmp_path):
    write_record(run, tmp_path / "a.zip")
    unpack(read_record(tmp_path / "a.zip"), tmp_path / "again")
    close = {"rtol": 2.0**-12, "atol": 0.0}
    kept, whole = (load_arrays(f / "demonstrations.npz") for f in (tmp_path / "again", run))
    np.testing.assert_allclose(kept["train"], whole["train"][:KEPT_ROWS], **close)
    kept, whole = (load_arrays(folder / "grid.npz") for folder in (tmp_path / "again", run))
    every = whole["reward"].reshape(100, 100)[::2, ::2].ravel()
    np.testing.assert_allclose(kept["reward"], every, **close)
    np.testing.assert_allclose(kept["axes"], whole["axes"][:, ::2], **close)
    assert {array.dtype for array in kept.values()} == {np.dtype(np.float32)}
    kept, whole = (load_arrays(folder / "walks.npz") for folder in (tmp_path / "again", run))
    np.testing.assert_array_equal(kept["covered"], whole["covered"])


@pytest.mark.parametrize(("resolution", "kept"), [(30, 30), (50, 50), (60, 30), (149, 50)])
def test_a_grid_of_any_resolution_has_at_most_fifty_points_a_side(resolution, kept):
    axes = np.tile(np.arange(resolution), (2, 1))
    found = records._coarser({"axes": axes, "reward": np.arange(resolution**2)})
    assert found["axes"].shape == (2, kept)
    rows = found["reward"].reshape(kept, kept) // resolution
    np.testing.assert_array_equal(rows[:, 0], found["axes"][0])


@pytest.mark.parametrize("value", [0.0, np.inf, -np.inf, np.nan, -3.0, 1.0 / 3.0, 1e-30])
def test_rounding_keeps_what_is_no_number(value):
    (found,) = records._rounded(np.array([value]))
    np.testing.assert_allclose(found, value, rtol=2.0**-12)


def test_points_far_from_0_are_kept_as_they_are(run, tmp_path):
    """As UTM's or GPS's, of which few bits leave few values; near 0 they are rounded as ever."""
    near = {name: load_arrays(run / f"{name}.npz") for name in ("grid", "demonstrations")}
    moved = np.array([0.0, 5.3e6])
    axes = np.linspace(moved, moved + 1.0, 100).T
    save_arrays(run / "grid.npz", {**near["grid"], "axes": axes})
    train = near["demonstrations"]["train"] + moved
    save_arrays(run / "demonstrations.npz", {"train": train, "test": train})
    write_record(run, tmp_path / "a.zip")
    unpack(read_record(tmp_path / "a.zip"), tmp_path / "again")
    found = load_arrays(tmp_path / "again" / "grid.npz")
    np.testing.assert_array_equal(found["axes"], axes[:, ::2])
    assert found["reward"].dtype == np.float32
    found = load_arrays(tmp_path / "again" / "demonstrations.npz")
    np.testing.assert_array_equal(found["train"], train[:KEPT_ROWS])
    write_record(tmp_path / "again", tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_the_record_of_a_record_is_the_same_file(run, tmp_path):
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    write_record(run, first)
    unpack(read_record(first), tmp_path / "again")
    write_record(tmp_path / "again", second)
    assert first.read_bytes() == second.read_bytes()


def test_equal_runs_have_equal_records_but_for_their_seconds(run, tmp_path):
    write_record(run, tmp_path / "first.zip")
    for folder in (run, run / "inference"):
        summary = read_json(folder / "summary.json")
        write_json(folder / "summary.json", {**summary, "cpu_seconds": {"process": 9.9}})
    write_record(run, tmp_path / "second.zip")
    first, second = (read_members(tmp_path / f"{name}.zip") for name in ("first", "second"))
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == ["seconds.json"]
    assert read_record(tmp_path / "second.zip").summaries["."]["cpu_seconds"] == {"process": 9.9}


def test_the_command_makes_records_of_runs(call, run, tmp_path):
    out = tmp_path / "out"
    status, shown, error = call("record", run, "--out", out)
    assert status == 0, error
    assert f"wrote {out / 'run.zip'}" in shown
    status, _, error = call("record", run, "--out", out)
    assert status == 2
    assert "is there already" in error
    (run / "summary.json").unlink()
    status, _, error = call("record", run, "--out", tmp_path / "new")
    assert status == 2
    assert "is not the folder of a finished run" in error
    assert not (tmp_path / "new").exists()


def test_records_of_several_runs_are_written_all_or_none(call, run, tmp_path):
    """So that the same command works when what was wrong is right."""
    other, out = tmp_path / "other", tmp_path / "out"
    status, _, error = call("record", run, other, "--out", out)
    assert status == 2
    assert f"{other} is not the folder of a finished run" in error
    assert not out.exists()
    shutil.copytree(run, other)
    status, _, error = call("record", run, tmp_path / "other" / ".." / "run", "--out", out)
    assert status == 2
    assert f"would both be {out / 'run.zip'}" in error
    assert not out.exists()
    assert call("record", run, other, "--out", out)[0] == 0
    assert {path.name for path in out.iterdir()} == {"run.zip", "other.zip"}


def test_of_two_runs_none_is_recorded_where_one_cannot_be(call, run, tmp_path):
    broken, out = tmp_path / "broken", tmp_path / "records"
    shutil.copytree(run, broken)
    (broken / "grid.npz").write_bytes((broken / "grid.npz").read_bytes()[:100])
    status, _, error = call("record", run, broken, "--out", out)
    assert status == 2
    assert "grid.npz" in error
    assert not out.exists()


def test_records_of_one_name_in_two_folders_are_both_unpacked(run, tmp_path):
    for name in "ab":
        write_record(run, tmp_path / "records" / name / "same.zip")
    with unpacked([tmp_path / "records"]) as (folder,):
        assert len(list(folder.iterdir())) == 2


def test_errors_name_the_record_and_not_where_it_was_unpacked(run, tmp_path):
    write_record(run, tmp_path / "a.zip")
    with unpacked([tmp_path / "a.zip", run]) as (folder, same):
        assert (folder / "grid.npz").is_file()
        assert same == run
    assert not folder.exists()
    with pytest.raises(InputError, match=r"a\.zip has no task\.npz; make them with"):
        draw("2a", [tmp_path / "a.zip"], None, tmp_path / "figures")
    with (
        pytest.raises(InputError, match=rf"^{tmp_path}/a\.zip holds nothing$"),
        unpacked([tmp_path / "a.zip"]) as (folder,),
    ):
        raise InputError(f"{folder} holds nothing")


# --- records that are none ------------------------------------------------------------------------


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def without_digest(path):
    members = read_members(path)
    members["record.json"] = members["record.json"].replace(b"gaussians", b"gaussianz")
    with path.open("wb") as file:
        records._write_zip(file, members)


def bomb(path):
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("task.npz", bytes(MAX_UNPACKED_BYTES + 1))


def changed_json(**values):
    def change(members):
        members["record.json"] = json.dumps(json.loads(members["record.json"]) | values).encode()

    return lambda path: rewritten(path, change)


STAGE = {"config": {}, "versions": {}, "summary": {}}
MANGLED = {
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("<<<<<<< HEAD\n"),
    "a bit": flipped,
    "a word": without_digest,
    "bomb": bomb,
    "format": changed_json(format=2),
    "no run": changed_json(stages={}),
    "no summary": changed_json(stages={".": {"config": {}, "versions": {}}}),
    "numbers": changed_json(stages={".": {"config": 1, "versions": {}, "summary": {}}}),
    "folder above": changed_json(stages={".": STAGE, "../inference": STAGE}),
    "file above": lambda path: rewritten(path, lambda m: m.update({"../grid.npz": b""})),
    "other file": lambda path: rewritten(path, lambda m: m.update({"run.py": b"import os"})),
}


@pytest.mark.parametrize("mangle", MANGLED.values(), ids=MANGLED)
def test_a_mangled_record_is_refused_by_its_name(mangle, run, tmp_path):
    path = tmp_path / "records" / "mangled.zip"
    write_record(run, path)
    read_record(path)
    mangle(path)
    with pytest.raises(InputError, match=r"mangled\.zip is not a record .*; delete it, and"):
        read_record(path)
    elsewhere = shutil.copyfile(path, tmp_path / "mangled.zip")
    with pytest.raises(InputError, match=r"mangled\.zip is not a record"):
        draw("2a", [elsewhere], None, tmp_path / "figures")


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("record.json", "delete it, and the command that made it makes it again"),
        ("config.json", "give a run's folder or its record"),  # as in a reward.keras
        (None, "give a run's folder or its record"),
    ],
)
def test_what_is_no_record_at_all_is_not_to_be_deleted(tmp_path, name, cure):
    path = tmp_path / "reward.keras"
    path.write_text("text")
    if name is not None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, "{}")
    with pytest.raises(InputError, match=rf"reward\.keras is not a record \(.*\); {cure}\.$"):
        draw("2a", [path], None, tmp_path / "figures")


# --- sweeps ---------------------------------------------------------------------------------------

VALUES = {"best": 0.1, "final": 0.3, "reported": 0.2}


def put_record(unit, out, made_by=None):
    """A unit's record, with made-up numbers."""
    folder = out.parent / "made" / unit.name
    for name, config in unit.stages.items():
        RunFolder.open(folder / name, config)
        if made_by is not None:
            text = to_yaml({"config": RunFolder(folder / name).config, "versions": made_by})
            (folder / name / "config.yaml").write_text(text)
        inferred = {"i_projection": {"inference_policy": VALUES}, "cpu_seconds": 2.0}
        write_json(folder / name / "summary.json", inferred)
    config = unit.spec.to_config()
    summary = {key: config[key] for key in ("task", "modes", "seed", "preset")}
    if isinstance(unit, RunUnit):
        distances = {"reward": VALUES, "policy": VALUES}
        summary |= {"method": config["method"], "components": config["components"]}
        summary |= {"status": "finished", "cpu_seconds": {"process": 5.0}}
    else:
        distances = {"kde": 0.4, "em_bic": 0.5}
    write_json(folder / "summary.json", {**summary, "i_projection": distances})
    write_record(folder, record_file(unit, out))


SWEEP = ["sweep", "gaussians", "--preset", "smoke", "--workers", "1"]


@pytest.fixture
def out(tmp_path):
    """A sweep's folder on a new machine: nothing but the records of all its units."""
    for unit in units_of("gaussians", "smoke", []):
        put_record(unit, tmp_path / "out")
    return tmp_path / "out"


def test_records_are_all_that_another_machine_needs(call, out, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    status, shown, error = call(*SWEEP, "--out", out)
    assert status == 0, error
    assert "7 of 7 units finished" in shown
    made = {path.name for path in out.iterdir()}
    assert made == {"config.yaml", "records", "results.csv", "table.csv", "table.md"}
    written = read_results(out)
    assert set(written["stage"]) == {"training", "training_policy", "inference", "reference"}
    assert list(written["cpu_seconds"].dropna().unique()) == [5.0, 2.0]
    # Without a sweep, too.
    alone = tmp_path / "alone"
    shutil.copytree(out / "records", alone / "records")
    for folder in (alone, alone / "records"):
        both = [
            frame.sort_values(RUN, ignore_index=True) for frame in (read_results(folder), written)
        ]
        pd.testing.assert_frame_equal(*both)
        assert call("claims", "gaussians", folder)[1] == call("claims", "gaussians", out)[1]
        assert call("figure", "2b", folder, "--out", tmp_path)[0] == 0
    frame = Results(tmp_path).tables["gaussians"].frame
    assert frame.groupby(["method", "components", "modes", "seed"]).ngroups == 8


def test_a_part_of_the_records_leaves_the_rest_to_do(call, out):
    name = next(unit.name for unit in units_of("gaussians", "smoke", []) if "eim-1c" in unit.name)
    (out / "records" / f"{name}.zip").unlink()
    status, shown, _ = call(*SWEEP, "--out", out, "--dry-run")
    assert status == 0
    assert "6 done already, 1 to do" in shown
    assert "references" not in shown  # those are done
    status, shown, _ = call(*SWEEP, "--out", out, "--search", "--dry-run")
    # Two of the units infer policies; their records are without those of the search.
    assert "4 done already, 3 to do" in shown


def test_of_this_package_the_second_number_counts_for_published_presets_and_all_for_best():
    made_by = {"virl_tf": "1.2.3", "numpy": "2.0.1", "python": "3.11"}
    assert numerics(made_by, "paper") == {"virl_tf": "1.2", "numpy": "2.0.1"}
    before = {**made_by, "virl_tf": "0.3.2"}
    assert numerics(before, "paper") == {"virl_tf": "1.0", "numpy": "2.0.1"}
    assert numerics(before, "best") == {"virl_tf": "0.3.2", "numpy": "2.0.1"}
    assert numerics(made_by, "best") == {"virl_tf": "1.2.3", "numpy": "2.0.1"}
    assert numerics(made_by, None) == {"virl_tf": "1.2.3", "numpy": "2.0.1"}


@pytest.mark.parametrize(("changed", "done"), [("0.9.0", None), (VERSION + "9", 7)])
def test_records_stay_valid_while_the_second_number_does(call, out, tmp_path, changed, done):
    unit = units_of("gaussians", "smoke", [])[0]
    shutil.rmtree(tmp_path / "made" / unit.name)
    put_record(unit, out, {**versions(), "virl_tf": changed})
    status, shown, error = call(*SWEEP, "--out", out, "--dry-run")
    if done is None:
        assert status == 2
        assert f"virl_tf: '{changed.rpartition('.')[0]}' there" in error
    else:
        assert f"{done} done already" in shown


def test_records_of_other_versions_are_listed_and_refused(call, out, tmp_path):
    first, second, *_ = units_of("gaussians", "smoke", [])
    for unit in (first, second):
        shutil.rmtree(tmp_path / "made" / unit.name)
        put_record(unit, out, {**versions(), "numpy": "0.9", "python": "2.7"})
    before = contents(out)
    for options in ([], ["--dry-run"]):
        status, _, error = call(*SWEEP, "--out", out, *options)
        assert status == 2
        assert "2 of 7 records in" in error
        for unit in (first, second):
            assert f"{unit.name}.zip (numpy: '0.9' there, " in error
        assert "python" not in error
        assert f"or delete these records and their folders in {out / 'runs'} to" in error
        assert len(error.splitlines()) == 1
    assert contents(out) == before
    with pytest.raises(InputError, match=r"different versions of numpy .*zip and .*--pool"):
        read_results(out)
    assert len(read_results(out, pool=True)) > 7


def test_a_table_is_of_the_versions_that_made_its_runs_and_not_of_those_that_opened_its_folder(
    call, out, tmp_path
):
    old = {**versions(), "numpy": "0.9"}
    config = SweepRequest("gaussians", "smoke", None, None, None, False, []).to_config()
    (out / "config.yaml").write_text(to_yaml({"config": config, "versions": old}))
    assert call(*SWEEP, "--out", out)[0] == 0
    copied = tmp_path / "copied"
    copied.mkdir()
    for name in ("config.yaml", "results.csv"):
        shutil.copy(out / name, copied / name)
    before = (out / "config.yaml").read_bytes()
    assert call(*SWEEP, "--out", out)[0] == 0
    assert (out / "config.yaml").read_bytes() == before
    assert len(read_results([copied, put_further(out)])) == 2 * len(read_results(copied))


def put_further(out, assignments=(), change=None, **given):
    """Records of the sweep's next seed, in a folder of their own."""
    further = out.parent / "further"
    for unit in units_of("gaussians", "smoke", list(assignments), seeds=[1], **given):
        put_record(unit, further)
        if change is not None:
            rewritten(record_file(unit, further), change)
    return further


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["loop.num_iterations=2"], r"hparams\.loop\.num_iterations: 6 there, 2 now"),
        (["network.dropout=0.5"], r"hparams\.network\.dropout: 0\.\d+ there, 0\.5 now"),
    ],
)
def test_records_of_other_hyperparameters_are_pooled_only_when_told_to(call, out, given, said):
    further = put_further(out, given)
    message = rf"different settings \(.*further.*zip against .*out.*zip: {said}\)\. Give"
    for both in ([out, further], [out / "records", further / "records"]):
        with pytest.raises(InputError, match=message):
            read_results(both)
    assert len(read_results([out, further], pool=True)) == 2 * len(read_results(out))
    assert call("claims", "gaussians", out, further)[0] == 2
    assert call("claims", "gaussians", out, further, "--pool")[0] == 0
    assert call("figure", "2b", out, further, "--out", out)[0] == 2


def test_records_beside_a_table_are_pooled_only_where_settings_are_equal(out, tmp_path):
    further, table = put_further(out, ["loop.num_iterations=2"]), tmp_path / "table"
    table.mkdir()
    read_results(out).to_csv(table / "results.csv", index=False)
    made_by, same = versions(), {"sweep": "gaussians", "preset": "smoke"}
    for overrides, folders in (([], [table]), (["loop.num_iterations=2"], [further])):
        for folder in folders:
            config = {"config": {**same, "overrides": overrides}, "versions": made_by}
            (folder / "config.yaml").write_text(to_yaml(config))
    for place in (further, further / "records"):
        with pytest.raises(InputError, match=r"different settings .*loop\.num_iterations=2"):
            read_results([table, place])
    (table / "config.yaml").write_text((further / "config.yaml").read_text())
    assert len(read_results([table, further])) == 2 * len(read_results(out))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows": 500}, "rows=500"),
        ({"dim": 3}, "dim=3"),
        ({"task_seed": 0}, "task_seed=0"),
        ({"assignments": ["network.dropout=0.5"]}, "other hyperparameters"),
        ({}, ""),
    ],
)
def test_records_beside_a_table_are_compared_by_their_runs_where_no_file_tells_of_their_sweep(
    out, tmp_path, given, said
):
    further, table = put_further(out, **given), tmp_path / "table"
    table.mkdir()
    read_results(out).to_csv(table / "results.csv", index=False)
    if said:
        message = rf"different settings \(.*table.*: none; .*: {said}\)\. Give those of one, or"
        with pytest.raises(InputError, match=message):
            read_results([table, further])
    number = len(read_results([table, further], pool=bool(said)))
    assert number == 2 * len(read_results(out))


def test_records_of_other_rows_are_pooled_only_when_told_to(out):
    further = put_further(out, methods=["eim"], rows=300)
    for path in (out / "records").glob("*-eim-*"):
        path.unlink()  # so that no method has both
    with pytest.raises(InputError, match=r"different settings .*: num_train: \d+ there, 300 now"):
        read_results([out, further])
    assert len(read_results([out, further], pool=True))


@pytest.mark.parametrize("name", ["components", "search", "steps", "samples", "blocked_share"])
def test_records_of_policies_inferred_otherwise_are_pooled_only_when_told_to(out, name):
    def otherwise(members):
        content = json.loads(members["record.json"])
        if "inference" in content["stages"]:
            content["stages"]["inference"]["config"][name] = 77
        members["record.json"] = json.dumps(content).encode()

    further = put_further(out, change=otherwise)
    with pytest.raises(InputError, match=rf"different settings .*inference\.{name}: .* there, 77"):
        read_results([out, further])
    assert len(read_results([out, further], pool=True)) == 2 * len(read_results(out))


def test_records_of_other_targets_than_their_seeds_are_pooled_only_when_told_to(out):
    """A table does not tell them from others of the same seed, with which they would be paired."""
    further = put_further(out, task_seed=3)
    message = r"different targets \(.*own seeds.*: task seed 3\)\. Give"
    with pytest.raises(InputError, match=message):
        read_results([out, further])
    assert len(read_results(further)) == len(read_results([out, further], pool=True)) // 2


def test_records_of_one_target_are_pooled_whatever_their_seeds(out):
    further = put_further(out, task_seed=0)
    assert len(read_results([out, further])) == 2 * len(read_results(out))


@pytest.mark.parametrize("request_of", ["sweep", "ablations"])
def test_records_of_another_task_or_preset_are_nobodys(call, out, request_of):
    """No unit asks for them, so nothing would say that they are others."""
    before = contents(out)
    (out / "config.yaml").unlink(missing_ok=True)
    for said in ({request_of: "grid_walker"}, {request_of: "gaussians", "preset": "paper"}):
        with pytest.raises(InputError, match="records of something else"):
            open_folder([], said, out)
    assert not (out / "config.yaml").exists()
    status, _, error = call("sweep", "gaussians", "--preset", "quick", "--out", out, "--dry-run")
    assert (status, "records of something else" in error) == (2, True)
    open_folder([], {request_of: "gaussians", "preset": "smoke"}, out)
    assert contents(out).keys() >= before.keys()


def test_records_of_ablations_are_no_results_of_a_sweep(out):
    """Nor is their table; with one row of ablations no run stands twice."""
    rows = read_results(out)
    path = next((out / "records").glob("*-virl-*"))
    rewritten(path, lambda members: members.update({records.ABLATION: b"{}"}))
    for place in (out, out / "records"):
        with pytest.raises(InputError, match="is of `ablate`; figure ablations"):
            read_results(place, pool=True)
    rows.assign(ablation="best").to_csv(out / "results.csv")
    with pytest.raises(InputError, match="is of `ablate`; figure ablations"):
        read_results(out / "results.csv")


def test_records_of_one_setting_are_taken_together_whatever_keys_are_new(out):
    def older(members):
        content = json.loads(members["record.json"])
        config = content["stages"]["."]["config"]
        if "hparams" in config:
            del config["hparams"]["loop"]["prior"]
        members["record.json"] = json.dumps(content).encode()

    further = put_further(out, change=older)
    assert len(read_results([out, further])) == 2 * len(read_results(out))


def test_of_long_settings_the_part_that_differs_is_shown():
    long = [f"network.layer_size={i}" for i in range(64, 70)]
    settings = {name: {str([*long, end])} for name, end in {"a": "x=1", "b": "x=2"}.items()}
    with pytest.raises(InputError, match=r"a: \.\.\..*x=1'\]; b: \.\.\..*x=2'\]\)") as raised:
        check_poolable("settings", settings)
    assert len(str(raised.value)) < 250


@pytest.mark.parametrize(
    "folder",
    [
        *(
            "sweeps/gaussians",
            "sweeps/grid_walker",
            "sweeps/path_planning",
            "contexts/obstacles_n2",
        ),
        *("contexts/experts_c4_m10", "contexts/waving_experts_c2_m10"),  # with --dim
    ],
)
def test_committed_records_are_of_one_setting(folder):
    assert len(read_results(RESULTS / folder))


def test_records_of_another_configuration_are_listed_and_refused(call, out):
    status, _, error = call(*SWEEP, "--set", "network.layer_size=8", "--out", out)
    assert status == 2
    assert "6 of 7 records in" in error  # the references have no networks
    assert "(hparams.network.layer_size: 64 there, 8 now)" in error
    assert "and 1 more" in error
    unit = next(unit for unit in units_of("gaussians", "smoke", []) if len(unit.stages) > 1)
    others = units_of("gaussians", "smoke", ["network.layer_size=8"], seeds=[1])
    with pytest.raises(InputError, match=r"6 of 7 records in .*hparams\.network\.layer_size"):
        records_of(others, out)  # the hyperparameters of other seeds are these, too
    assert records_of(units_of("gaussians", "smoke", [], seeds=[1]), out) == {}
    path = record_file(unit, out)
    members = json.loads(read_members(path)["record.json"])
    members["stages"]["inference"]["config"]["components"] = 99
    changed_json(stages=members["stages"])(path)
    with pytest.raises(InputError, match=r"\(inference\.components: 99 there, 5 now\)"):
        records_of([unit], out)


def test_a_mangled_record_stops_the_sweep(call, out):
    file = sorted((out / "records").iterdir())[0]
    file.write_bytes(file.read_bytes()[:-5])
    status, _, error = call(*SWEEP, "--out", out)
    assert status == 2
    assert f"{file} is not a record" in error
    assert "delete it" in error
    assert len(error.splitlines()) == 1


def test_a_kill_before_the_record_costs_nothing(tmp_path, monkeypatch):
    """The run is finished, the record not yet there, or half written."""
    unit = next(unit for unit in units_of("gaussians", "smoke", []) if "geim-1c" in unit.name)
    out, done = tmp_path / "out", []
    put_record(unit, tmp_path / "other")
    shutil.copytree(tmp_path / "made" / unit.name, out / RUNS / unit.name)
    monkeypatch.setattr("experiments.runs.execute", lambda *_, **__: done.append("execute"))

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", killed)
        patch.setattr(files.os, "unlink", lambda path: None)
        with pytest.raises(KeyboardInterrupt):
            execute_unit(unit, out)
    assert [path.suffix for path in (out / "records").iterdir()] == [".partial"]
    assert records_of([unit], out) == {}
    assert execute_unit(unit, out) is None
    whole = record_file(unit, tmp_path / "other").read_bytes()
    assert record_file(unit, out).read_bytes() == whole
    assert execute_unit(unit, out) is None
    assert done == ["execute"] * 2


@pytest.mark.parametrize("name", ["../inference", "/inference", "a/b", "..", ""])
def test_a_stage_is_a_folder_in_the_runs(name, run, tmp_path):
    """Refused for its name, not because the seconds do not know it."""
    path = tmp_path / "mangled.zip"
    write_record(run, path)
    stages = {".": STAGE, "inference": STAGE, name: STAGE}
    changed_json(stages=stages)(path)
    members = read_members(path)
    members["seconds.json"] = json.dumps(dict.fromkeys(stages)).encode()
    with path.open("wb") as file:
        records._write_zip(file, members)
    with pytest.raises(InputError, match=re.escape(f"is not a record (it holds {name!r})")):
        read_record(path)
