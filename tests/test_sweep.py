"""Sweeps: each unit once, whatever happens to workers; and what is made of the results."""

import asyncio
import contextlib
import io
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

from virl_tf.persistence.configuration import versions
from virl_tf.persistence.files import write_json
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError
from virl_tf.yaml_files import to_yaml

import numpy as np
import pandas as pd
import psutil
import pytest
from distributed import LocalCluster
from distributed.client import FutureCancelledError
from matplotlib.figure import Figure
from rich.console import Console

from experiments.figures import figure_2b
from experiments.pooled_results import read_results
from experiments.records import write_record
from experiments.result_files import COLUMNS, RUN, read_summary, to_markdown
from experiments.result_statistics import (
    bootstrap_interval,
    differences,
    paired,
    sign_flip_test,
    table,
)
from experiments.sweeps import sweep, sweep_command
from experiments.sweeps.sweep import (
    RUNS,
    Workers,
    cluster,
    execute_sweep,
    execute_unit,
    is_finished,
    record_file,
    records_of,
)
from experiments.sweeps.units import ReferenceUnit, RunUnit, SweepRequest, units_of
from experiments.tasks import describe
from experiments.tasks.path_planning import BLOCKED
from tests import tiny
from tests.fake_unit import FakeUnit

QUIET = Console(quiet=True)


def tasks_at_each_wait(monkeypatch):
    """Numbers, to be, of the tasks in the client's event loop."""
    tasks, processing = [], sweep._processing

    def counted(client):
        tasks.append(len(asyncio.all_tasks(client.loop.asyncio_loop)))
        return processing(client)

    monkeypatch.setattr(sweep, "_processing", counted)
    monkeypatch.setattr(sweep, "POLL_SECONDS", 0.02)
    return tasks


def test_units_are_done_once_whatever_happens_to_workers(tmp_path, monkeypatch):
    tasks = tasks_at_each_wait(monkeypatch)
    faults = {3: "kill once", 5: "fail"}
    units = [FakeUnit(f"unit-{i}", faults.get(i, "")) for i in range(8)]
    elsewhere = tmp_path / "elsewhere"
    units[0].execute(elsewhere)
    write_record(elsewhere, record_file(units[0], tmp_path))

    failures = execute_sweep(units, tmp_path, Workers(None, 2), QUIET)
    # Waiting leaves nothing behind: a wait with a timeout would leave a task for each unit.
    assert len(tasks) > 5
    assert max(tasks) < tasks[0] + 10
    assert list(failures) == ["unit-5"]
    assert "this unit cannot work" in failures["unit-5"]
    text = (tmp_path / "errors.txt").read_text()
    assert text == f"unit-5\n{failures['unit-5']}\n"
    assert "in execute\n" in text  # where, as well as what
    runs = tmp_path / RUNS
    assert not (runs / "unit-0").exists()  # what has a record is skipped
    for i in (1, 2, 3, 4, 6, 7):
        assert (runs / f"unit-{i}" / "finished").read_text() == "once\n"
    assert set(records_of(units, tmp_path)) == {unit.name for unit in units} - {"unit-5"}
    assert (runs / "unit-3" / "killed").exists()
    # The killed unit went on elsewhere from where it was: its first steps were done by the process
    # that died.
    workers = [(runs / "unit-3" / f"step-{i}").read_text() for i in range(5)]
    assert len(set(workers[:3])) == len(set(workers[3:])) == 1
    assert workers[0] != workers[3]

    others = [unit for unit in units if unit.fault != "fail"]
    assert execute_sweep(others, tmp_path, Workers(None, 1), QUIET) == {}
    assert not (tmp_path / "errors.txt").exists()


def test_units_are_handed_out_in_their_order_beside_those_done_before(tmp_path, monkeypatch):
    units = [FakeUnit(f"unit-{i}") for i in range(5)]
    for i in (1, 3):
        folder = tmp_path / "elsewhere" / str(i)
        units[i].execute(folder)
        write_record(folder, record_file(units[i], tmp_path))
    asked, shown, running = [], [], []

    class Client:
        nthreads = Mock(return_value={"a": 1})

        def submit(self, *given, key, pure, priority):
            asked.append((key, priority))
            ended = lambda: len(running) > 0  # noqa: E731
            return Mock(done=ended, status="finished", result=lambda: None, key=key)

        def processing(self):
            return {"a": [asked[0][0]], "b": []}

    class Board(sweep.Board):
        def __init__(self, units, done, console):
            shown.append((len(units), dict(done)))
            super().__init__(units, done, console)

        def show_running(self, units):
            running.append([unit.name for unit in units])

    monkeypatch.setattr(sweep, "cluster", lambda _: contextlib.nullcontext(Client()))
    monkeypatch.setattr(sweep, "Board", Board)
    monkeypatch.setattr(sweep, "POLL_SECONDS", 0.0)
    assert execute_sweep(units, tmp_path, Workers(None, 1), QUIET) == {}
    first_to_last = [key for key, _ in sorted(asked, key=lambda pair: -pair[1])]
    assert [key[:6] for key in first_to_last] == ["unit-0", "unit-2", "unit-4"]
    assert shown == [(5, {"fake": 2})]
    assert running == [["unit-0"], []]


def test_workers_share_what_was_compiled_beside_the_flags_they_were_given(monkeypatch):
    monkeypatch.setenv("TF_XLA_FLAGS", "--mine")
    found = sweep._worker_environment("/cache")
    assert found.items() >= sweep.WORKER_ENVIRONMENT.items()
    directory, device = "--tf_xla_persistent_cache_directory=", "--tf_xla_persistent_cache_device"
    assert found["TF_XLA_FLAGS"] == f"--mine {directory}/cache {device}_types=CPU"
    monkeypatch.setenv("TF_XLA_FLAGS", f"{directory}/own")
    assert sweep._worker_environment("/cache") == sweep.WORKER_ENVIRONMENT


def test_the_time_that_is_left_is_by_the_units_done_since_the_start(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(sweep, "time", SimpleNamespace(monotonic=lambda: clock.now))
    console = Console(file=io.StringIO(), width=120)
    units = [FakeUnit(f"unit-{i}") for i in range(8)]
    board = sweep.Board(units, Counter({"fake": 2}), console)
    board.get_renderable()
    assert board._progress.tasks[0].fields["left"] == ""
    clock.now = 60.0
    board.count(units[2], failed=False)
    board.count(units[3], failed=True)
    console.print(board.get_renderable())
    assert board._progress.tasks[0].fields["left"] == "about 2 min left"
    shown = console.file.getvalue()
    assert "done  unit-2\nFAILED  unit-3\n" in shown
    assert "4/8" in shown
    (row,) = [line for line in shown.splitlines() if "fake" in line]
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["fake", "3", "0", "1", "8"]


@pytest.mark.slow
def test_a_cluster_that_is_running_already(tmp_path):
    """A scheduler and a worker started by hand, as on other machines."""
    address = tmp_path / "scheduler.json"
    options = {
        "cwd": Path(__file__).parent.parent,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    dask = [sys.executable, "-m", "dask"]
    places = ["--scheduler-file", str(address)]
    scheduler = subprocess.Popen(
        [*dask, "scheduler", *places, "--port", "0", "--dashboard-address", "127.0.0.1:0"],
        **options,
    )
    deadline = time.monotonic() + 60
    while not (address.is_file() and address.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    worker = subprocess.Popen(
        [*dask, "worker", *places, "--nthreads", "1", "--nworkers", "1"], **options
    )
    try:
        units = [FakeUnit(f"unit-{i}") for i in range(3)]
        tcp = json.loads(address.read_text())["address"]
        assert execute_sweep(units, tmp_path, Workers(tcp), QUIET) == {}
        done = [(tmp_path / RUNS / unit.name / "finished").read_text() for unit in units]
        assert done == ["once\n"] * 3
        assert scheduler.poll() is None, "a cluster that is not ours is left running"
    finally:
        worker.terminate()
        scheduler.terminate()
        worker.wait()
        scheduler.wait()


def test_a_worker_of_other_versions_does_nothing(tmp_path):
    """Whoever asked would refuse its records, once all was done."""
    other = versions() | {"numpy": "1.0"}
    error = execute_unit(FakeUnit("unit"), tmp_path, other)
    assert "the worker has other versions (numpy: '1.0' there, " in error
    assert not list(tmp_path.iterdir())
    assert execute_unit(FakeUnit("unit"), tmp_path, versions()) is None


@pytest.mark.parametrize("inner", [".", "inference"])
def test_a_unit_that_was_begun_with_other_versions_is_refused_until_it_is_removed(inner, tmp_path):
    unit = FakeUnit("unit")
    folder = tmp_path / RUNS / "unit"
    RunFolder.open(folder, unit.stages["."])
    assert execute_unit(unit, tmp_path / "not begun") is None
    made_by = versions() | {"tensorflow": "2.0.0", "python": "2.7"}
    text = to_yaml({"config": unit.stages["."], "versions": made_by})
    (folder / inner).mkdir(exist_ok=True)
    (folder / inner / "config.yaml").write_text(text)
    before = sorted(folder.rglob("*"))
    error = execute_unit(unit, tmp_path)
    assert "begun with other versions (tensorflow: '2.0.0' there, " in error
    assert error.strip().endswith("remove it, and it is made anew.")
    assert sorted(folder.rglob("*")) == before
    assert not is_finished(unit, tmp_path)
    shutil.rmtree(folder)
    assert execute_unit(unit, tmp_path) is None
    assert records_of([unit], tmp_path)["unit"].stages["."].versions == versions()


def test_a_scheduler_without_a_worker_is_told_and_waited_for(tmp_path, monkeypatch):
    answers = []

    def ask(question):
        answers.append(sweep_ask(question))
        if len(answers) == 1:  # the first one asks how many workers there are
            local.scale(1)
        return answers[-1]

    sweep_ask = sweep.ask
    monkeypatch.setattr(sweep, "ask", ask)
    console = Console(file=io.StringIO())
    sizes = {"n_workers": 0, "threads_per_worker": 1, "processes": False}
    with LocalCluster(**sizes, protocol="tcp://", dashboard_address=":0") as local:
        units = [FakeUnit("unit-0")]
        assert not execute_sweep(units, tmp_path, Workers(local.scheduler_address), console)
    assert answers[0] == {}
    assert console.file.getvalue().startswith(sweep.NO_WORKER)


def test_a_scheduler_that_is_lost_is_one_error_and_no_failure_of_units(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "ANSWER_SECONDS", 1.0)
    units = [FakeUnit(f"unit-{i}") for i in range(200)]
    sizes = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with LocalCluster(**sizes, protocol="tcp://", dashboard_address=":0") as local:

        def close():
            while not (tmp_path / RUNS / "unit-1").exists():
                time.sleep(0.02)
            local.close()

        closing = threading.Thread(target=close)
        closing.start()
        with pytest.raises(InputError, match=r"does not answer .* same command continues"):
            execute_sweep(units, tmp_path, Workers(local.scheduler_address), QUIET)
        closing.join()
    assert 0 < len(records_of(units, tmp_path)) < len(units)


@pytest.mark.parametrize(
    ("status", "raised", "found"),
    [
        ("error", KeyError("x"), KeyError),
        ("cancelled", FutureCancelledError("x", ""), InputError),
        ("cancelled", asyncio.CancelledError(), InputError),
        ("finished", OSError("closed"), InputError),
    ],
)
def test_a_result_is_lost_with_the_scheduler_alone(status, raised, found):
    with pytest.raises(found):
        sweep.result_of(SimpleNamespace(status=status, result=Mock(side_effect=raised)))


def test_what_a_client_without_its_scheduler_says_is_one_error():
    def raising(error):
        raise error

    assert sweep.ask(lambda: 3) == 3
    for error in (OSError("closed"), AttributeError("'NoneType' object has no attribute")):
        with pytest.raises(InputError, match="Nothing that was finished is lost"):
            sweep.ask(lambda error=error: raising(error))


TINY = [
    *("--preset", "smoke"),
    *tiny.set_words("network.layer_size=8", "training.num_epochs=2", "policy.update_steps=2"),
    *tiny.set_words("loop.num_iterations=4", "loop.num_negatives=500"),
]


@pytest.mark.slow
def test_a_killed_worker_changes_no_number_of_a_real_sweep(tmp_path):
    tables = []
    for name in ("whole", "killed"):
        out = tmp_path / name
        command = [
            sys.executable,
            "-m",
            "experiments",
            "sweep",
            "gaussians",
            *TINY,
            "--workers",
            "2",
            "--out",
            str(out),
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if name == "killed":
            deadline = time.monotonic() + 120
            while (
                not list(out.glob("runs/*/checkpoints/state-00002.npz"))
                and time.monotonic() < deadline
            ):
                time.sleep(0.01)
            workers = [
                child
                for child in psutil.Process(process.pid).children(recursive=True)
                if child.memory_info().rss > 4e8
            ]
            assert workers, "no worker to kill"
            workers[0].kill()
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
        assert "7 of 7 units finished" in output
        tables.append(pd.read_csv(out / "results.csv").drop(columns="cpu_seconds"))
    pd.testing.assert_frame_equal(*tables, check_exact=True)


def test_a_worker_that_compiled_too_much_leaves_before_it_starts_a_unit(tmp_path, monkeypatch):
    def leave(status):
        raise KeyboardInterrupt  # nothing of a unit's own errors

    unit, other = FakeUnit("unit"), FakeUnit("other")
    assert execute_unit(unit, tmp_path) is None
    monkeypatch.setattr("virl_tf.numerics.free_memory_maps", lambda: 100)
    monkeypatch.setattr("os._exit", leave)
    with pytest.raises(KeyboardInterrupt):
        execute_unit(other, tmp_path)
    assert not (tmp_path / RUNS / "other").exists()
    assert execute_unit(unit, tmp_path) is None  # what is finished needs no programs


def test_workers_do_not_log_that_their_scheduler_ends(caplog):
    logger = logging.getLogger("distributed.worker")
    for text in ("Failed to communicate with scheduler during heartbeat.", "out of memory"):
        sweep._with_tasks([], logger.error, text)
    logger.removeFilter(sweep._is_news)
    assert caplog.messages == ["out of memory"]


def test_an_unreachable_scheduler_is_one_clear_error(monkeypatch):
    monkeypatch.setattr("experiments.sweeps.sweep.ANSWER_SECONDS", 1.0)
    with (
        pytest.raises(InputError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:9'"),
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(cluster(Workers("tcp://127.0.0.1:9")))
    with (
        pytest.raises(InputError, match="expected tcp://HOST:PORT"),
        contextlib.ExitStack() as stack,
    ):
        stack.enter_context(cluster(Workers("nonsense://x")))


def test_where_the_system_does_not_tell_whose_cores_they_are_all_are_used(monkeypatch):
    """As on macOS."""
    assert Workers().local == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert Workers().local == 7


def test_paper_grid_is_the_papers():
    units = units_of("gaussians", "paper", [])
    runs = [unit for unit in units if isinstance(unit, RunUnit)]
    assert len(runs) == 3 * 2 * 10 * 5
    assert {unit.spec.modes for unit in runs} == set(range(5, 55, 5))
    assert [unit.spec.seed for unit in runs] == list(np.repeat(range(5), 60))  # seed by seed
    assert len({unit.name for unit in units}) == len(units)
    assert sum(isinstance(unit, ReferenceUnit) for unit in units) == 50
    inferred = {
        (unit.spec.method, unit.spec.components) for unit in runs if unit.inference_components
    }
    assert inferred == {("virl", 10), ("geim", 10)}
    assert all(unit.inference_components in (0, unit.spec.modes) for unit in runs)
    quick = units_of("gaussians", "quick", [])
    assert len([unit for unit in quick if isinstance(unit, RunUnit)]) == 36
    assert {unit.spec.modes for unit in units_of("gaussians", "paper", [], [7], [9])} == {7}


@pytest.mark.parametrize("preset", ["paper", "quick", "smoke", "best"])
@pytest.mark.parametrize("method", ["eim", "geim", "virl"])
def test_references_are_the_same_whichever_methods_are_asked_for(method, preset):
    def references(methods):
        units = units_of("gaussians", preset, [], [5, 20], [0, 1], methods=methods)
        return [unit for unit in units if isinstance(unit, ReferenceUnit)]

    assert len(references([method])) == 4
    assert references([method]) == references(None)
    if preset == "paper":
        assert {unit.spec.hparams.kde.bandwidth for unit in references([method])} == {0.215}


@pytest.mark.parametrize("task", ["gaussians", "grid_walker", "path_planning"])
def test_every_preset_has_a_sweep(task):
    assert set(describe(task).grids) == {"smoke", "quick", "paper", "best"}


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        ("grid_walker", {(5, 32, 25), (4, 16, 12), (6, 64, 50), (8, 256, 200)}),
        ("path_planning", {(6, 20, 20)}),
    ],
)
def test_paper_walks_are_the_papers_and_the_walker_grows(task, sizes):
    units = units_of(task, "paper", [])
    columns = itertools.product(("eim", "virl", "geim"), [10], range(10))
    found = {(unit.spec.method, unit.spec.components, unit.spec.seed) for unit in units}
    assert found == set(columns)
    assert {
        (unit.spec.steps, unit.spec.modes, unit.inference_components) for unit in units
    } == sizes
    assert units[0].spec.steps == describe(task).default_size
    assert len({unit.name for unit in units}) == len(units) == 30 * len(sizes)
    assert {unit.group for unit in units} == {"eim 10c", "virl 10c", "geim 10c"}


@pytest.mark.parametrize(
    ("task", "preset", "sizes", "seeds", "expected"),
    [
        ("grid_walker", "quick", None, None, {(5, 0), (5, 1)}),
        ("grid_walker", "smoke", None, None, {(3, 0)}),
        ("path_planning", "smoke", None, None, {(4, 0)}),
        ("grid_walker", "paper", [2, 7], [9], {(2, 9), (7, 9)}),
        ("path_planning", "quick", [2], None, {(2, 0), (2, 1)}),
    ],
)
def test_sizes_and_seeds_of_walks_replace_the_presets(task, preset, sizes, seeds, expected):
    units = units_of(task, preset, ["network.layer_size=8"], sizes, seeds)
    assert {(unit.spec.steps, unit.spec.seed) for unit in units} == expected
    assert len(units) == 3 * len(expected)
    assert {unit.spec.hparams.network.layer_size for unit in units} == {8}
    assert {unit.spec.preset for unit in units} == {preset}


def test_the_preset_of_a_sweep_is_one_that_there_is():
    with pytest.raises(InputError, match="Allowed: best, paper, quick, smoke"):
        units_of("grid_walker", "fast", [])


@pytest.mark.parametrize(
    ("task", "steps", "components"),
    [
        ("grid_walker", 5, 25),
        ("grid_walker", 6, 50),
        ("grid_walker", 1, 2),
        ("path_planning", 6, 20),
        ("path_planning", 2, 2),
    ],
)
def test_inference_has_components_in_proportion_to_the_modes(task, steps, components):
    assert describe(task).inference_components(steps) == components


FOLDERS = {
    "gaussians": ["."],
    "grid_walker": [".", "inference"],
    "path_planning": [".", "inference", "obstacles"],
}


def put_stage(unit, out, name):
    """A stage of a unit as its commands leave it, and the record of what is there now."""
    folder = out / RUNS / unit.name
    RunFolder.open(folder / name, unit.stages[name])
    write_json(folder / name / "summary.json", {})
    write_record(folder, record_file(unit, out))


@pytest.mark.parametrize("task", FOLDERS)
def test_a_unit_is_finished_when_its_record_has_all_its_stages(task, tmp_path):
    unit = next(unit for unit in units_of(task, "smoke", []) if unit.group == "eim 10c")
    assert [*unit.stages] == FOLDERS[task]
    for name in FOLDERS[task]:
        assert not is_finished(unit, tmp_path)
        assert records_of([unit], tmp_path) == {}
        put_stage(unit, tmp_path, name)
    assert is_finished(unit, tmp_path)
    assert list(records_of([unit], tmp_path)) == [unit.name]


@pytest.mark.parametrize("task", FOLDERS)
def test_a_unit_trains_and_then_infers_with_and_without_obstacles(task, tmp_path, monkeypatch):
    from experiments import inference, runs

    calls = []
    monkeypatch.setattr(
        runs, "execute", lambda spec, folder, **options: calls.append((spec, folder))
    )
    monkeypatch.setattr(
        inference,
        "infer",
        lambda folders, request, out, quiet: calls.append((folders, request, out)),
    )
    unit = next(unit for unit in units_of(task, "smoke", []) if unit.group == "eim 10c")
    unit.execute(tmp_path)
    assert calls[0] == (unit.spec, tmp_path)
    shares = {tmp_path / "inference": None, tmp_path / "obstacles": BLOCKED}
    expected = {tmp_path / name: shares[tmp_path / name] for name in FOLDERS[task][1:]}
    assert {out: request.obstacles for _, request, out in calls[1:]} == expected
    assert all(folders == [tmp_path] for folders, _, _ in calls[1:])
    assert all(request.components == unit.inference_components for _, request, _ in calls[1:])
    assert not any(request.search for _, request, _ in calls[1:])


def test_a_sweep_with_search_infers_twice_and_completes_one_without(tmp_path, monkeypatch):
    from experiments import inference, runs

    calls = {}
    monkeypatch.setattr(runs, "execute", lambda spec, folder, **options: None)
    monkeypatch.setattr(
        inference,
        "infer",
        lambda folders, request, out, quiet: calls.update({out.name: request}),
    )
    plain, both = (
        next(iter(units_of("path_planning", "smoke", [], search=search)))
        for search in (False, True)
    )
    assert plain.name == both.name
    kinds = {name: stage["search"] for name, stage in both.stages.items() if name != "."}
    assert {name for name, search in kinds.items() if search} == {
        "inference_search",
        "obstacles_search",
    }
    assert kinds["inference"] is None  # as the configuration of an inference leaves it out
    for name in (".", "inference", "obstacles"):
        put_stage(plain, tmp_path, name)
    assert is_finished(plain, tmp_path)
    assert not is_finished(both, tmp_path)
    both.execute(tmp_path)
    assert {name: (request.search, request.obstacles) for name, request in calls.items()} == {
        "inference": (False, None),
        "obstacles": (False, BLOCKED),
        "inference_search": (True, None),
        "obstacles_search": (True, BLOCKED),
    }


def results(
    values: dict, seeds: int = 5, modes: tuple = (5, 20, 50), noise: float = 0.01
) -> pd.DataFrame:
    """A synthetic results.csv: values[(stage, method, components)] = mean at the smallest m; grows
    a little with m.
    """
    rng = np.random.default_rng(0)
    rows = []
    for (stage, method, components), mean in values.items():
        for m, seed in itertools.product(modes, range(seeds)):
            value = mean * (1 + m / 200) + noise * rng.normal()
            rows.append(
                [
                    "gaussians",
                    method,
                    components,
                    m,
                    seed,
                    "paper",
                    stage,
                    value,
                    value,
                    value,
                    1.0,
                    "finished",
                ]
            )
    return pd.DataFrame(rows, columns=COLUMNS)


PAPERS_WORLD = {
    **{
        ("training", method, 10): value
        for method, value in {"virl": 0.05, "geim": 0.2, "eim": 0.8}.items()
    },
    **{
        ("training", method, 1): value
        for method, value in {"virl": 0.06, "geim": 0.5, "eim": 2.0}.items()
    },
    **{
        ("training_policy", method, 10): value
        for method, value in {"virl": 0.5, "geim": 0.6}.items()
    },
    **{("inference", method, 10): value for method, value in {"virl": 0.1, "geim": 0.3}.items()},
    ("reference", "kde", 0): 0.2,
    ("reference", "kde_held_out", 0): 0.06,
    ("reference", "em_target", 0): 0.04,
    ("reference", "best_1c", 0): 2.0,
    ("reference", "best_10c", 0): 0.5,
}


def test_a_sweep_whose_units_all_fail_leaves_an_empty_table_of_its_task(tmp_path, monkeypatch):
    def execute_sweep(units, *_):
        return {unit.name: "OSError: no space left" for unit in units}

    monkeypatch.setattr(sweep_command, "execute_sweep", execute_sweep)
    request = SweepRequest("grid_walker", "smoke", None, None, None, False, [])
    with pytest.raises(InputError, match=r"3 of 3 failed, the first, .* with OSError"):
        sweep_command.sweep(request, Workers(None, 1), tmp_path)
    with pytest.raises(InputError, match="holds results of no task, not of grid_walker"):
        read_results(tmp_path, "grid_walker")


def test_claims_hold_where_they_hold_and_fail_where_they_fail():
    from experiments.claims import FAILS, GAUSSIANS, HOLDS, TOO_FEW

    frame = results(PAPERS_WORLD)
    first = GAUSSIANS[0].check(frame)
    assert first.verdict == HOLDS
    assert "lower in 15 of 15" in first.numbers
    worse = results({**PAPERS_WORLD, ("training", "virl", 10): 0.9})
    assert GAUSSIANS[0].check(worse).verdict == FAILS
    few = frame[frame["seed"] < 1]
    assert {claim.check(few).verdict for claim in GAUSSIANS} == {TOO_FEW}
    equal = results({key: 0.2 for key in PAPERS_WORLD})
    assert HOLDS not in {
        claim.check(equal).verdict for claim in (GAUSSIANS[0], GAUSSIANS[4], GAUSSIANS[6])
    }


@pytest.mark.parametrize("number", ["2b", "4"])
def test_figures_of_a_sweep(number, tmp_path):
    from experiments.figures import draw

    frame = results(PAPERS_WORLD)
    frame.loc[3, ["final", "reported", "status"]] = [2.5, 1.3, "diverged"]
    frame.to_csv(tmp_path / "results.csv", index=False)
    draw(number, [tmp_path], None, tmp_path)
    assert (tmp_path / f"figure_{number}.png").stat().st_size > 10_000
    assert (tmp_path / f"figure_{number}.pdf").stat().st_size > 5_000


def test_no_mean_of_a_figure_leaves_out_what_was_lost():
    frame = results({("training", "virl", 10): 0.1}, seeds=5)
    frame.loc[3, ["reported", "status"]] = [np.nan, "diverged"]  # of m = 5
    axes = Figure().subplots()
    figure_2b.curve(axes, frame, "C0", "-o", "V-IRL")
    drawn = axes.lines[0].get_ydata()
    assert list(np.isfinite(drawn)) == [False, True, True]
    np.testing.assert_array_equal(drawn, table(frame)["mean"])


def test_marks_of_diverged_runs_do_not_hide_each_other():
    curves = [("virl", 10, (5,)), ("geim", 1, (5, 20)), ("geim", 10, (5, 20))]
    stages = ("training", "training_policy")
    values = {(stage, *curve[:2]): 0.1 for curve in curves for stage in stages}
    frame = results(values, seeds=3)
    for method, components, modes in curves:
        rows = (frame["method"] == method) & (frame["components"] == components)
        least = 1 if components == 1 else 2  # two runs of one component, one of ten
        frame.loc[rows & frame["modes"].isin(modes) & (frame["seed"] >= least), "status"] = (
            "diverged"
        )
    axes = Figure().subplots()
    figure_2b.finish(axes, frame, stages, "reward diverged")
    marks = {
        (x, y): (line.get_color(), line.get_marker())
        for line in axes.lines
        for x, y in zip(*line.get_data(), strict=True)
    }
    assert len(marks) == 5
    assert all(y > 1.0 for _, y in marks)
    assert len({look for (x, _), look in marks.items() if x == 5}) == 3
    assert [(text.xy[0], text.get_text()) for text in axes.texts] == [(5, "2"), (20, "2")]
    labels = axes.get_legend_handles_labels()[1]
    assert "G-EIM 1c: reward diverged (4 runs)" in labels  # each once, whatever its stages
    assert "V-IRL 10c: reward diverged (1 run)" in labels


@pytest.mark.parametrize("number", ["2b", "4"])
@pytest.mark.parametrize(("method", "value"), [("eim", 1.0), ("kde", 0.2), ("virl", np.inf)])
def test_figures_of_a_sweep_without_a_curve_yet(number, method, value, tmp_path):
    """As where it is under way, of one method alone, or all of its runs diverged."""
    from experiments.figures import draw

    frame = results(PAPERS_WORLD)
    frame = frame[(frame["method"] == method) & frame["stage"].isin(["training", "reference"])]
    frame = frame.assign(reported=value, status="finished" if value < np.inf else "diverged")
    frame.to_csv(tmp_path / "results.csv", index=False)
    draw(number, [tmp_path], None, tmp_path)
    assert (tmp_path / f"figure_{number}.png").is_file()


def test_several_sweeps_are_taken_together(call, tmp_path):
    frame = results(PAPERS_WORLD)
    for m in (5, 20, 50):
        (tmp_path / str(m)).mkdir()
        frame[frame["modes"] == m].to_csv(tmp_path / str(m) / "results.csv", index=False)
    frame.to_csv(tmp_path / "all.csv", index=False)
    folders = [tmp_path / str(m) for m in (5, 20, 50)]
    together = read_results(folders).sort_values(RUN, ignore_index=True)
    pd.testing.assert_frame_equal(
        together, read_results(tmp_path / "all.csv").sort_values(RUN, ignore_index=True)
    )
    with pytest.raises(
        InputError,
        match=r"75 rows stand more than once in .*: gaussians virl 10 5 0 paper training",
    ):
        read_results([folders[0], folders[0]])

    for name, given in (("one", [tmp_path / "all.csv"]), ("several", folders)):
        assert call("figure", "2b", *given, "--out", tmp_path / name)[0] == 0
    one, several = (tmp_path / name / "figure_2b.png" for name in ("one", "several"))
    assert one.read_bytes() == several.read_bytes()
    assert call("claims", "gaussians", *folders) == call(
        "claims", "gaussians", tmp_path / "all.csv"
    )


def test_results_of_another_kind_are_refused(tmp_path):
    with pytest.raises(InputError, match="python -m experiments sweep"):
        read_results(tmp_path)
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="not a results table"):
        read_results(tmp_path)


def test_sign_flip_test_against_enumeration():
    d = np.array([-1.0, -2.0, 0.5, -0.1, -3.0])
    sums = [
        sum(s * abs(v) for s, v in zip(signs, d, strict=True))
        for signs in itertools.product((-1, 1), repeat=5)
    ]
    assert sign_flip_test(d) == np.mean([total <= d.sum() + 1e-12 for total in sums])
    assert sign_flip_test(-np.arange(1.0, 6.0)) == 2.0**-5
    assert sign_flip_test(np.arange(1.0, 6.0)) == 1.0
    assert sign_flip_test(np.array([-1.0] * 9 + [np.inf])) == 1.0  # one that the first lost
    assert sign_flip_test(np.array([-1.0] * 9 + [-np.inf])) == 2.0**-10  # a win, no more
    lost = np.array([3.0, *np.full(4, -1.0), -np.inf])  # that counts 3, the largest, not 7, the sum
    assert sign_flip_test(lost) == sign_flip_test(np.array([3.0, *np.full(4, -1.0), -3.0]))
    assert sign_flip_test(lost) > sign_flip_test(np.array([3.0, *np.full(4, -1.0), -7.0]))
    assert sign_flip_test(-np.ones(14)) == 2.0**-14
    assert sign_flip_test(np.full(5, np.inf)) == 1.0
    assert sign_flip_test(-np.ones(40)) < 1e-4


@pytest.mark.parametrize("scale", [1e-300, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e300])
def test_sign_flip_test_is_exact_at_every_size(scale):
    rng = np.random.default_rng(0)
    for n in (*range(1, 8), 5, 6, 7):
        d = scale * rng.normal(size=n)
        sums = [
            sum((s * Fraction(v) for s, v in zip(signs, d, strict=True)), Fraction(0))
            for signs in itertools.product((-1, 1), repeat=n)
        ]
        true = sum(map(Fraction, d))
        assert sign_flip_test(d) == np.mean([total <= true for total in sums])
        assert sign_flip_test(-np.abs(d)) == 2.0**-n  # the least there is
        assert sign_flip_test(np.append(-np.abs(d), [0.0, 0.0])) == 2.0**-n
    assert sign_flip_test(scale * np.zeros(5)) == 1.0


def test_differences_of_lost_runs_are_infinite():
    nan, inf = np.nan, np.inf
    first, second = np.array([1.0, nan, 2.0, inf, 0.0]), np.array([3.0, 1.0, nan, nan, -inf])
    np.testing.assert_array_equal(differences(first, second), [-2.0, inf, -inf, 0.0, -inf])


def test_bootstrap_interval():
    for few in range(1, 5):
        assert np.isnan(bootstrap_interval(np.arange(float(few)))).all()
    assert np.isfinite(bootstrap_interval(np.arange(5.0))).all()
    for lost in (np.nan, np.inf):  # of no mean
        assert np.isnan(bootstrap_interval(np.array([*np.arange(9.0), lost]))).all()
    low, high = bootstrap_interval(np.arange(100.0))
    half = 1.96 * np.arange(100.0).std() / 10  # normal theory
    assert low == pytest.approx(49.5 - half, abs=0.5)
    assert high == pytest.approx(49.5 + half, abs=0.5)


def test_table_and_pairs():
    frame = results({("training", "virl", 10): 0.1, ("training", "eim", 10): 0.5}, seeds=5)
    curves = ("training", "virl", 10), ("training", "eim", 10)
    assert len(paired(frame, *curves)) == 15
    pooled = pd.concat([frame, frame.assign(preset="quick")])
    assert len(paired(pooled, *curves)) == 30  # no pair of two presets
    summary = table(frame)
    assert list(summary["seeds"]) == [5] * 6
    assert ((summary["low"] <= summary["mean"]) & (summary["mean"] <= summary["high"])).all()
    assert to_markdown(summary).count("\n") == 8


def test_results_of_other_settings_are_pooled_only_on_request(tmp_path):
    for name, overrides in (("one", []), ("two", ["loop.num_iterations=1"])):
        (tmp_path / name).mkdir()
        frame = results({("training", "virl", 10): 0.1}, seeds=2)
        frame["seed"] += 10 * len(overrides)
        frame.to_csv(tmp_path / name / "results.csv", index=False)
        config = {"config": {"sweep": "gaussians", "preset": "paper", "overrides": overrides}}
        (tmp_path / name / "config.yaml").write_text(to_yaml(config))
    both = [tmp_path / "one", tmp_path / "two"]
    with pytest.raises(InputError, match=r"results of different settings .*loop\.num_iterations=1"):
        read_results(both)
    assert len(read_results(both, pool=True)) == 12


def test_the_folder_of_a_sweep_taken_for_a_run_names_one_of_its_runs(tmp_path):
    with pytest.raises(InputError, match="Run its command to the end first"):
        read_summary(tmp_path)
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "reward.keras").touch()
    with pytest.raises(InputError, match=f"is not a run, but holds some; .* such as {run}"):
        read_summary(tmp_path)
