"""Studies: which trials count, what becomes of those that fail, are lost or interrupted; on SQLite
and on PostgreSQL.

The runs of these trials only count (`fake_runs`); everything else is what `tune` uses.
"""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

from virl_tf.persistence.configuration import numerics, versions
from virl_tf.validation import InputError

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy import create_engine, inspect

from experiments import pooled_results, runs
from experiments.tuning import specification, storage, trials
from experiments.tuning import study as studies
from experiments.tuning.storage import RETRIES, VANISHED, open_storage
from experiments.tuning.study import (
    ALLOWED_FAILURES,
    ALLOWED_MISTAKES,
    _is_needed,
    enqueue_published,
    make_sampler,
    open_study,
    published_parameters,
    work,
)
from experiments.tuning.trials import ENDED, best_of, best_trial, count, published_trial, release
from tests import fake_runs
from tests.fake_runs import ITERATIONS, SPECIFICATION

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Runs that only count, at once, and short heartbeats."""
    for module, name, value in fake_runs.REPLACEMENTS:
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(runs, "execute", fake_runs.execute)
    monkeypatch.setattr(fake_runs, "SECONDS", "0")
    monkeypatch.setattr(studies, "POLL_SECONDS", 0.01)
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A database without a study, with Optuna's tables, which take longer to make than to copy."""
    path = tmp_path_factory.mktemp("tables") / "study.db"
    open_storage(f"sqlite:///{path}").remove_session()
    return path


@pytest.fixture
def sqlite(tables, tmp_path):
    shutil.copyfile(tables, tmp_path / "study.db")
    return f"sqlite:///{tmp_path}/study.db"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request):
    """As `tests.shared`'s, but that SQLite's has its tables already."""
    if request.param == "sqlite":
        return request.getfixturevalue("sqlite")
    return request.getfixturevalue("postgres").new_database()


def opened(url: str, spec: studies.StudySpecification = SPECIFICATION) -> optuna.Study:
    return open_study(spec, open_storage(url))


def failed(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    return study.get_trials(states=(TrialState.FAIL,))


def states(study: optuna.Study) -> dict[str, int]:
    found = [trial.state.name for trial in study.get_trials(deepcopy=False)]
    return {name: found.count(name) for name in found}


def by_value(monkeypatch, value_of):
    """Runs whose objective is value_of(folder's name, t); the summary has the last one, or what
    value_of(name, None) says.
    """

    def execute(run, out, *, progress, observers):
        out.mkdir(parents=True, exist_ok=True)
        for t in range(run.hparams.loop.num_iterations):
            for observer in observers:
                observer(None, {"t": t, "i_projection_reward": value_of(out.name, t)})
        return value_of(out.name, None)

    monkeypatch.setattr(runs, "execute", execute)


@contextlib.contextmanager
def within(seconds: float):
    """A block that would otherwise never end fails after this long."""

    def fail(*_):
        pytest.fail(
            f"still not done after {seconds} s"
        )  # no Exception: what is tested does not catch it

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def ask(study: optuna.Study) -> optuna.Trial:
    with warnings.catch_warnings():  # Optuna would have a heartbeat with it
        warnings.simplefilter("ignore")
        return study.ask()


# --- the trials of a study ------------------------------------------------------------------------


def test_a_study_begins_with_the_published_column_and_ends_with_as_many_trials_as_asked_for(
    url, tmp_path
):
    work(SPECIFICATION, url, 4, tmp_path, 0)
    study = opened(url)
    assert sum(states(study).values()) == count(study, *ENDED) == 4
    first = study.trials[0]
    assert first.params == published_parameters(SPECIFICATION)
    assert first.user_attrs["published"]
    assert published_trial(study).number == 0
    assert [trial.user_attrs.get("published") for trial in study.trials[1:]] == [None] * 3
    assert sorted(path.name for path in tmp_path.glob("0*")) == [
        f"{number:04d}-s0" for number in range(4)
    ]
    assert best_trial(study).value == min(trial.value for trial in study.trials)
    assert len(first.intermediate_values) == ITERATIONS


def test_more_trials_later_are_new_ones(sqlite, tmp_path):
    """A worker of the same number goes on; were its sampler to begin anew, it would do the same
    trials again.
    """
    for number in (2, 3, 4, 3):
        work(SPECIFICATION, sqlite, number, tmp_path, 0)
    study = opened(sqlite)
    assert states(study) == {"COMPLETE": 4}
    assert len({json.dumps(trial.params, sort_keys=True) for trial in study.trials}) == 4


def test_workers_do_not_begin_with_the_same_trials(sqlite, tmp_path):
    for worker, number in ((0, 2), (1, 3), (2, 4)):
        work(SPECIFICATION, sqlite, number, tmp_path, worker)
    parameters = [json.dumps(trial.params, sort_keys=True) for trial in opened(sqlite).trials]
    assert len(set(parameters)) == 4

    def first(worker):  # of those that begin at once, before any trial has ended
        study = optuna.create_study(sampler=make_sampler(SPECIFICATION, worker))
        return study.ask().suggest_float("x", 0.0, 1.0)

    assert len({first(worker) for worker in range(4)}) == 4
    assert first(1) == first(1)


def test_of_two_workers_that_start_the_last_trial_at_once_one_does_it(sqlite):
    study = opened(sqlite)
    study.add_trial(optuna.trial.create_trial(value=1.0))
    first, second = ask(study), ask(study)
    assert [_is_needed(study, trial.number, 2) for trial in (first, second)] == [True, False]
    assert _is_needed(study, second.number, 3)
    study.tell(second, 2.0)  # it ended all the same: the first one is one too many now
    assert not _is_needed(study, first.number, 2)


def test_the_value_of_a_trial_is_the_mean_over_its_seeds(monkeypatch, sqlite, tmp_path):
    spec = dataclasses.replace(SPECIFICATION, seeds=(3, 4, 8))
    by_value(
        monkeypatch, lambda name, t: 0.5 if t is not None else fake_runs.summary(float(name[-1]))
    )
    work(spec, sqlite, 1, tmp_path, 0)
    trial = opened(sqlite, spec).trials[0]
    assert trial.value == 5.0
    assert sorted(trial.intermediate_values) == list(range(3 * ITERATIONS))
    folders = sorted(path.name for path in tmp_path.glob("0*"))
    assert folders == ["0000-s3", "0000-s4", "0000-s8"]


def test_the_poolings_row_does_not_take_the_step_of_the_next_seeds_first_iteration(
    monkeypatch, sqlite, tmp_path
):
    assignments = (*SPECIFICATION.assignments, "loop.mixture_average=true")
    spec = dataclasses.replace(SPECIFICATION, seeds=(3, 4), assignments=assignments)

    def execute(run, out, *, progress, observers):
        for t in range(run.hparams.loop.num_iterations + 1):
            observers[0](None, {"t": t, "i_projection_reward": float(f"{out.name[-1]}.{t}")})
        return fake_runs.summary(1.0)

    monkeypatch.setattr(runs, "execute", execute)
    work(spec, sqlite, 1, tmp_path, 0)
    reported = opened(sqlite, spec).trials[0].intermediate_values
    rows = range(ITERATIONS + 1)
    assert [reported[step] for step in sorted(reported)] == [
        float(f"{seed}.{t}") for seed in spec.seeds for t in rows
    ]


def test_only_a_trial_that_may_go_on_keeps_its_checkpoints(monkeypatch, sqlite, tmp_path):
    """Two whole ones, a pruned one, and one that fails."""

    def execute(run, out, *, progress, observers):
        (out / "checkpoints").mkdir(parents=True)
        (out / "checkpoints" / "state-00001.npz").write_bytes(b"a state")
        if out.name == "0002-s0":
            raise optuna.TrialPruned("bad")
        if out.name == "0003-s0":
            raise OSError("the disk is full")
        return fake_runs.summary(1.0)

    monkeypatch.setattr(runs, "execute", execute)
    work(SPECIFICATION, sqlite, 4, tmp_path, 0)
    assert states(opened(sqlite)) == {"COMPLETE": 3, "PRUNED": 1, "FAIL": 1}
    kept = [path.parts[-3] for path in tmp_path.glob("*/checkpoints/*")]
    assert kept == ["0003-s0"]


# --- what goes wrong in a run ---------------------------------------------------------------------

BAD_RUNS = {
    "nan on the way": (
        lambda t: math.nan if t == 2 else 0.1,
        "i_projection_reward is nan at iteration 2",
    ),
    "infinite on the way": (
        lambda t: -math.inf if t == 1 else 0.1,
        "i_projection_reward is -inf at iteration 1",
    ),
    "nan at the end": (lambda t: fake_runs.summary(math.nan) if t is None else 0.1, "diverged"),
    "infinite at the end": (
        lambda t: fake_runs.summary(math.inf) if t is None else 0.1,
        "diverged",
    ),
    "minus infinity at the end": (
        lambda t: fake_runs.summary(-math.inf) if t is None else 0.1,
        "diverged",
    ),
    "diverged": (lambda t: fake_runs.summary(0.01, "diverged") if t is None else 0.1, "diverged"),
}


def test_a_diverged_run_is_a_pruned_trial_with_a_reason(monkeypatch, sqlite, tmp_path):
    good = {"0000-s0": 3.0, "0007-s0": 2.0}
    bad = {f"{i:04d}-s0": value for i, (value, _) in enumerate(BAD_RUNS.values(), start=1)}

    def value(name, t):
        if name in bad:
            return bad[name](t)
        return fake_runs.summary(good[name]) if t is None else good[name]

    by_value(monkeypatch, value)
    work(SPECIFICATION, sqlite, 8, tmp_path, 0)
    study = opened(sqlite)
    expected = ["COMPLETE", *["PRUNED"] * len(BAD_RUNS), "COMPLETE"]
    assert [trial.state.name for trial in study.trials] == expected
    for trial, (kind, (_, reason)) in zip(study.trials[1:], BAD_RUNS.items(), strict=False):
        assert reason in trial.user_attrs["reason"], kind
    assert best_trial(study).value == study.best_value == 2.0
    assert published_trial(study).value == 3.0


@pytest.mark.parametrize("kind", ["infinite on the way", "minus infinity at the end"])
def test_a_study_of_nothing_but_diverged_runs_ends_and_has_no_best_trial(
    kind, monkeypatch, url, tmp_path
):
    bad, _ = BAD_RUNS[kind]
    by_value(monkeypatch, lambda name, t: bad(t))
    work(SPECIFICATION, url, 3, tmp_path, 0)
    study = opened(url)
    assert states(study) == {"PRUNED": 3}
    assert best_trial(study) is None
    assert published_trial(study).state == TrialState.PRUNED


@pytest.mark.parametrize(("iterations", "half_way"), [(5, 2), (8, 4), (3, 2)])
def test_a_run_worse_than_the_median_is_pruned_half_way_with_a_reason(
    iterations, half_way, monkeypatch, sqlite, tmp_path
):
    """One that is worse before alone is not."""
    assignments = (f"loop.num_iterations={iterations}", *SPECIFICATION.assignments[1:])
    spec = dataclasses.replace(SPECIFICATION, assignments=assignments)

    def value(name, t):
        if t is None:
            return fake_runs.summary(1.0)
        return 9.0 if name == "0006-s0" or (name == "0007-s0" and t < half_way) else 1.0

    by_value(monkeypatch, value)
    work(spec, sqlite, 8, tmp_path, 0)
    study = opened(sqlite, spec)
    assert states(study) == {"COMPLETE": 7, "PRUNED": 1}
    reason = study.trials[6].user_attrs["reason"]
    assert reason == f"worse than the median at iteration {half_way}"


@pytest.mark.parametrize(("seed", "state"), [(3, "PRUNED"), (4, "COMPLETE")])
def test_of_several_seeds_the_first_is_pruned(seed, state, monkeypatch, sqlite, tmp_path):
    """The documentation says so: Optuna compares a trial's best value, be it of another seed."""
    spec = dataclasses.replace(SPECIFICATION, seeds=(3, 4))

    def value(name, t):
        end = 9.0 if name == f"0006-s{seed}" else 1.0
        return fake_runs.summary(end) if t is None else max(end, 3.0 - t)

    by_value(monkeypatch, value)
    work(spec, sqlite, 7, tmp_path, 0)
    assert opened(sqlite, spec).trials[6].state.name == state


def test_a_failed_run_is_a_failed_trial_with_a_reason_and_does_not_count(
    monkeypatch, url, tmp_path
):
    def value(name, t):
        if name == "0001-s0" and t == 2:
            raise FloatingPointError("the matrix is not positive definite")
        return fake_runs.summary(1.0) if t is None else 1.0

    by_value(monkeypatch, value)
    work(SPECIFICATION, url, 3, tmp_path, 0)
    study = opened(url)
    assert [trial.state.name for trial in study.trials] == [
        "COMPLETE",
        "FAIL",
        "COMPLETE",
        "COMPLETE",
    ]
    assert (
        study.trials[1].user_attrs["reason"]
        == "FloatingPointError: the matrix is not positive definite"
    )
    assert "Traceback" in study.trials[1].user_attrs["traceback"]
    assert best_trial(study).value == 1.0


def test_a_reason_may_be_long(monkeypatch, url, tmp_path):
    """TensorFlow's errors hold whole graphs; PostgreSQL and SQLite have to take them, with whatever
    characters are in them.
    """

    def value(name, t):
        if name == "0001-s0":
            raise RuntimeError("Matrix size-incompatible: \u03bb \x00 \ud800 " + 9000 * "node ")
        return fake_runs.summary(1.0) if t is None else 1.0

    by_value(monkeypatch, value)
    work(SPECIFICATION, url, 2, tmp_path, 0)
    assert "RuntimeError: Matrix size-incompatible" in opened(url).trials[1].user_attrs["reason"]


def always_failing(name, t):
    raise OSError("no space left on device")


def working(name, t):
    return fake_runs.summary(1.0) if t is None else 1.0


def test_a_study_whose_trials_only_fail_is_given_up_and_the_same_command_continues_it(
    monkeypatch, sqlite, tmp_path
):
    by_value(monkeypatch, always_failing)
    with within(30):
        work(SPECIFICATION, sqlite, 3, tmp_path, 0)
    study = opened(sqlite)
    assert states(study) == {"FAIL": ALLOWED_FAILURES}
    assert {trial.user_attrs["reason"] for trial in study.trials} == {
        "OSError: no space left on device"
    }
    # The same command goes on.
    by_value(monkeypatch, working)
    work(SPECIFICATION, sqlite, 3, tmp_path, 0, before=range(ALLOWED_FAILURES))
    assert states(study) == {"FAIL": ALLOWED_FAILURES, "COMPLETE": 3}


def test_a_mistake_of_the_user_ends_a_study_after_three_trials(monkeypatch, sqlite, tmp_path):
    def mistaken(name, t):
        if name == "0001-s0":
            raise FloatingPointError("no mistake of the user")
        raise InputError("the run's folder holds another run")

    by_value(monkeypatch, mistaken)
    work(SPECIFICATION, sqlite, 3, tmp_path, 0)
    assert states(opened(sqlite)) == {"FAIL": 2 + ALLOWED_MISTAKES}
    by_value(monkeypatch, working)
    before = range(2 + ALLOWED_MISTAKES)
    work(SPECIFICATION, sqlite, 3, tmp_path, 0, before=before)
    assert states(opened(sqlite)) == {"FAIL": 2 + ALLOWED_MISTAKES, "COMPLETE": 3}


class DeathError(BaseException):
    """Of a worker: nothing that it could catch."""


def deaths_until_given_up(monkeypatch, url: str, out: Path) -> int:
    """Each worker that dies has a successor, as with Dask, which finds the trial at once."""

    def find_lost(study):
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            study.tell(trial.number, state=TrialState.FAIL)
            storage.retry_callback(RETRIES)(study, study.get_trials()[trial.number])

    monkeypatch.setattr(optuna.storages, "fail_stale_trials", find_lost)
    monkeypatch.setattr(trials, "BETWEEN_SECONDS", 0.0)
    for deaths in range(99):
        with contextlib.suppress(DeathError), within(30):
            work(SPECIFICATION, url, 3, out, 0)
            return deaths
    pytest.fail("it never ends")


def test_a_study_whose_trials_kill_their_workers_is_given_up(monkeypatch, sqlite, tmp_path):
    def kill(*_):
        raise DeathError

    by_value(monkeypatch, kill)
    deaths = deaths_until_given_up(monkeypatch, sqlite, tmp_path)
    assert deaths == ALLOWED_MISTAKES * (1 + RETRIES)
    study = opened(sqlite)
    enqueue_published(study, SPECIFICATION)
    by_value(monkeypatch, working)
    work(SPECIFICATION, sqlite, 3, tmp_path, 0, before={trial.number for trial in failed(study)})
    assert states(study) == {"FAIL": deaths, "COMPLETE": 3}
    assert published_trial(study).params == published_parameters(SPECIFICATION)


def test_a_worker_that_compiled_too_much_leaves_before_it_starts_a_trial(
    monkeypatch, sqlite, tmp_path
):
    def leave(status):
        raise KeyboardInterrupt

    monkeypatch.setattr("virl_tf.numerics.free_memory_maps", lambda: 100)
    monkeypatch.setattr("os._exit", leave)
    with pytest.raises(KeyboardInterrupt):
        work(SPECIFICATION, sqlite, 2, tmp_path, 0)
    assert states(opened(sqlite)) == {"WAITING": 1}  # the published column's


def test_a_worker_in_the_place_of_one_that_died_goes_on_counting_failures(
    monkeypatch, sqlite, tmp_path
):
    calls = iter(range(10**6))

    def fail_or_die(name, t):
        raise DeathError if next(calls) % 3 == 2 else OSError("no space left on device")

    by_value(monkeypatch, fail_or_die)
    assert deaths_until_given_up(monkeypatch, sqlite, tmp_path) == (ALLOWED_FAILURES - 1) // 2


def test_failures_in_a_row_are_counted_past_trials_that_were_not_needed(
    monkeypatch, sqlite, tmp_path
):
    """With two workers on the last trial, every other trial may be one that is not needed."""
    calls = iter(range(10**6))
    monkeypatch.setattr(studies, "_is_needed", lambda *_: next(calls) % 2 == 0)
    by_value(monkeypatch, always_failing)
    with within(30):
        work(SPECIFICATION, sqlite, 3, tmp_path, 0)


# --- a study is what its command says -------------------------------------------------------------

CHANGES = {
    "seeds": ({"seeds": (0, 1)}, "seeds"),
    "assignments": (
        {"assignments": ("loop.num_iterations=6", "loop.num_negatives=500")},
        "num_iterations=6",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_configuration_under_the_same_name_is_refused(change, url):
    changes, shown = CHANGES[change]
    opened(url)
    other = dataclasses.replace(SPECIFICATION, **changes)
    assert other.name == SPECIFICATION.name
    with pytest.raises(
        InputError, match=f"exists with another space or objective .*{shown}"
    ) as caught:
        opened(url, other)
    assert "\n" not in str(caught.value)
    assert opened(url).trials[0].state == TrialState.WAITING


@pytest.mark.parametrize("change", ["a row less", "another range", "another objective"])
def test_another_space_or_objective_under_the_same_name_is_refused(change, monkeypatch, sqlite):
    opened(sqlite)
    rows = studies.searched("gaussians", "virl", 2)
    if change == "another objective":
        attributes = studies.StudySpecification.to_attributes
        monkeypatch.setattr(
            studies.StudySpecification,
            "to_attributes",
            lambda spec: {**attributes(spec), "objective": "elsewhere"},
        )
    elif change == "a row less":
        rows = {name: row for name, row in rows.items() if name != "network.l2"}
    else:
        row = rows["network.num_layers"]
        rows = {
            **rows,
            "network.num_layers": dataclasses.replace(row, high=3, spec={**row.spec, "high": 3}),
        }
    monkeypatch.setattr(specification, "searched", lambda *_: rows)
    with pytest.raises(InputError, match="another space or objective") as caught:
        opened(sqlite)
    assert "\n" not in str(caught.value)


def test_a_foreign_study_of_the_same_name_is_refused(url):
    foreign = optuna.create_study(storage=open_storage(url), study_name=SPECIFICATION.name)
    foreign.add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(InputError, match="another study named gaussians-virl-2c-m3-smoke"):
        opened(url)
    assert len(foreign.trials) == 1
    assert foreign.user_attrs == {}


@pytest.mark.parametrize("directions", [["maximize"], ["minimize", "minimize"]])
def test_a_foreign_study_with_another_objective_is_refused_though_it_is_empty(directions, sqlite):
    optuna.create_study(
        storage=open_storage(sqlite), study_name=SPECIFICATION.name, directions=directions
    )
    with pytest.raises(InputError, match=SPECIFICATION.name):
        opened(sqlite)


@pytest.mark.parametrize("moment", ["set_user_attr", "enqueue_trial"])
def test_a_command_killed_while_it_makes_the_study_leaves_one_that_begins_with_the_published_column(
    moment, monkeypatch, sqlite
):
    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, moment, killed)
        with pytest.raises(KeyboardInterrupt):
            opened(sqlite)
    monkeypatch.setattr(studies, "OPENING_SECONDS", 0.3)
    study = opened(sqlite)
    assert [trial.user_attrs for trial in study.trials] == [{"published": True}]
    assert study.user_attrs["specification"] == SPECIFICATION.to_attributes()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_two_commands_may_make_the_same_study_at_once(kind, request, tmp_path):
    rounds = 3
    urls = [f"sqlite:///{tmp_path}/{i}.db" for i in range(rounds)]
    if kind == "postgresql":
        urls = [request.getfixturevalue("postgres").new_database() for _ in range(rounds)]
    commands = [
        fake("open", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        assert [command.stdout.readline() for command in commands] == ["ready\n"] * 2
        for url in urls:
            for command in commands:
                command.stdin.write(url + "\n")
                command.stdin.flush()
            assert [command.stdout.readline() for command in commands] == ["opened\n"] * 2
            assert [trial.user_attrs for trial in opened(url).trials] == [{"published": True}]
    finally:
        for command in commands:
            command.communicate(timeout=30)


def test_the_published_column_that_failed_is_tried_again_by_the_next_command(
    monkeypatch, sqlite, tmp_path
):
    def full(*_, **__):
        raise InputError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(runs, "execute", full)
        work(SPECIFICATION, sqlite, 2, tmp_path, worker=0)
    study = opened(sqlite)
    assert states(study) == {"FAIL": studies.ALLOWED_MISTAKES}
    for _ in range(2):  # the second one finds it in the queue
        enqueue_published(study, SPECIFICATION)
    assert states(study)["WAITING"] == 1
    before = {trial.number for trial in failed(study)}
    work(SPECIFICATION, sqlite, 2, tmp_path, worker=0, before=before)
    assert published_trial(study).params == published_parameters(SPECIFICATION)
    enqueue_published(study, SPECIFICATION)
    assert "WAITING" not in states(study)


# --- storages -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "Could not parse SQLAlchemy URL"),
        ("", "--storage"),
        ("study.db", "Could not parse SQLAlchemy URL"),
        ("http://localhost/study", "cannot be used"),
        ("mysql://user@localhost/study", "driver is not installed"),
        (
            "postgresql://user@localhost/study",
            r"postgresql\+psycopg://",
        ),  # SQLAlchemy's default driver is not the extra's
        ("postgresql+psycopg://user@127.0.0.1:1/study", "onnection"),
        ("postgresql+psycopg://user@nowhere.invalid/study", "nowhere.invalid"),
        ("sqlite:////proc/study.db", "/proc/study.db"),
        ("sqlite:///{folder}/text", r"not a database\. Allowed"),
        ("sqlite:///{folder}/text/study.db", "text/study.db"),
        ("sqlite:///{folder}", "unable to open"),
        ("sqlite:///{folder}/other.db", "cannot be used"),
        ("sqlite://", "FILE"),  # in memory: every worker would have a study of its own
        ("sqlite:///:memory:", "FILE"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_clear_error(url, message, tmp_path):
    (tmp_path / "text").write_text("this is text, and more than a hundred characters of it, " * 4)
    with sqlite3.connect(
        tmp_path / "other.db"
    ) as other:  # a database with a table that Optuna would have made
        other.execute("CREATE TABLE studies (something INTEGER)")
    url = url.format(folder=tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        opened(url)
    assert "--storage" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_database_that_is_read_only_is_one_clear_error(sqlite):
    opened(sqlite)
    with pytest.raises(InputError, match="readonly"):
        opened(
            f"sqlite:///file:{sqlite.removeprefix('sqlite:///')}?mode=ro&uri=true",
            SPECIFICATION_OF_ANOTHER_METHOD,
        )


SPECIFICATION_OF_ANOTHER_METHOD = studies.StudySpecification(
    "gaussians", "eim", 2, 3, "smoke", (0,), ()
)


def test_a_server_that_refuses_is_one_clear_error(postgres):
    for url, message in (
        (postgres.url("missing"), "does not exist"),
        (postgres.url("postgres", "wrong"), "password"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            opened(url)
        assert "\n" not in str(caught.value)


# --- trials that wait -----------------------------------------------------------------------------


def test_a_waiting_trial_is_one_workers_though_two_ask_at_once(url, monkeypatch):
    """Each of these two has read that it waits before the other writes, if there is such a time."""
    opened(url)
    storages, both = [open_storage(url) for _ in range(2)], threading.Barrier(2)

    def meet(*_):
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1.0)

    monkeypatch.setattr(storage._Storage, "check_trial_is_updatable", meet)
    with ThreadPoolExecutor(2) as pool:
        taken = pool.map(
            lambda storage: storage.set_trial_state_values(1, TrialState.RUNNING), storages
        )
    assert sorted(taken) == [False, True]
    assert states(opened(url)) == {"RUNNING": 1}


def test_a_trial_that_waited_begins_now_in_any_time_zone(sqlite, monkeypatch):
    study = opened(sqlite)
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        begun = ask(study).datetime_start
        since = datetime.now() - begun
    time.tzset()
    assert timedelta(0) <= since < timedelta(minutes=1)


def test_a_locked_database_is_told_of_as_optuna_does(sqlite, monkeypatch):
    monkeypatch.setattr(storage, "_engine_options", lambda _: {"connect_args": {"timeout": 0.0}})
    study = opened(sqlite)
    with contextlib.closing(sqlite3.connect(sqlite.removeprefix("sqlite:///"))) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(optuna.exceptions.StorageInternalError) as caught:
            ask(study)
    assert storage.reason_of(caught.value) == "(sqlite3.OperationalError) database is locked"


# --- trials that were given up --------------------------------------------------------------------


def test_a_released_trial_is_done_next_with_its_parameters_in_its_folder(url, tmp_path):
    work(SPECIFICATION, url, 1, tmp_path, 0)
    study = opened(url)
    trial = ask(study)
    overrides = studies.suggest(trial, studies.searched("gaussians", "virl", 2))
    trial.report(4.0, 0)
    (tmp_path / "0001-s0").mkdir()
    (tmp_path / "0001-s0" / "step-0").write_text("before")
    release(study, [trial.number])
    assert states(study) == {"COMPLETE": 1, "FAIL": 1, "WAITING": 1}
    assert study.trials[1].user_attrs["reason"] == VANISHED

    work(SPECIFICATION, url, 3, tmp_path, 0)
    again = study.trials[2]
    assert again.state in ENDED
    assert "reason" not in again.user_attrs or again.user_attrs["reason"] != VANISHED
    assert again.params == study.trials[1].params
    assert (
        studies.suggest(
            optuna.trial.FixedTrial(again.params), studies.searched("gaussians", "virl", 2)
        )
        == overrides
    )
    assert (tmp_path / "0001-s0" / "step-0").read_text() == "before"
    assert (tmp_path / "0001-s0" / "finished").read_text() == "once\n"
    assert sorted(path.name for path in tmp_path.glob("0*")) == ["0000-s0", "0001-s0", "0003-s0"]
    assert states(study) == {"COMPLETE": 3, "FAIL": 1}


def test_only_the_named_trials_are_released(sqlite):
    study = opened(sqlite)
    trials = [ask(study) for _ in range(3)]
    release(study, [trials[1].number])
    assert [trial.state.name for trial in study.trials] == ["RUNNING", "FAIL", "RUNNING", "WAITING"]
    release(study, [])
    assert states(study) == {"RUNNING": 2, "FAIL": 1, "WAITING": 1}


def test_of_several_published_trials_that_ended_the_latest_counts():
    study = optuna.create_study()
    published = {"user_attrs": {"published": True}}
    for parts in ({"value": 5.0, **published}, {"value": 4.0, **published}, {"value": 3.0}):
        study.add_trial(optuna.trial.create_trial(**parts))
    study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL, **published))
    assert published_trial(study).value == 4.0


def test_the_published_trial_stays_the_published_one_however_often_it_is_interrupted(
    sqlite, tmp_path
):
    study = opened(sqlite)
    for _ in range(12):  # more often than a trial whose workers die is tried again
        release(study, [ask(study).number])
    work(SPECIFICATION, sqlite, 2, tmp_path, 0)
    assert states(study) == {"FAIL": 12, "COMPLETE": 2}
    assert published_trial(study).params == published_parameters(SPECIFICATION)
    assert sorted(path.name for path in tmp_path.glob("0*")) == ["0000-s0", "0013-s0"]


@pytest.mark.slow
def test_a_trial_that_never_had_a_heartbeat_is_not_waited_for_forever(sqlite, tmp_path):
    """Its worker was killed after it had taken the trial and before the first heartbeat."""
    ask(opened(sqlite))
    with within(30):
        work(SPECIFICATION, sqlite, 2, tmp_path, 0)
    study = opened(sqlite)
    assert count(study, *ENDED) == 2
    assert count(study, TrialState.RUNNING) == 0
    assert published_trial(study).params == published_parameters(SPECIFICATION)
    assert [trial.user_attrs["reason"] for trial in failed(study)] == [VANISHED]


def test_a_lost_trial_whose_finder_died_before_it_enqueued_it_is_done_next(
    url, monkeypatch, tmp_path
):
    monkeypatch.setattr(trials, "BETWEEN_SECONDS", 0.3)
    work(SPECIFICATION, url, 1, tmp_path, 0)
    study = opened(url)
    trial = ask(study)
    studies.suggest(trial, studies.searched("gaussians", "virl", 2))
    study.tell(trial.number, state=TrialState.FAIL)
    assert states(study) == {"COMPLETE": 1, "FAIL": 1}
    work(SPECIFICATION, url, 3, tmp_path, 0)
    assert states(study) == {"COMPLETE": 3, "FAIL": 1}
    assert study.trials[2].params == study.trials[1].params
    assert sorted(path.name for path in tmp_path.glob("0*")) == ["0000-s0", "0001-s0", "0003-s0"]


def test_a_lost_trial_that_its_finder_is_about_to_enqueue_is_not_done_twice(
    sqlite, monkeypatch, tmp_path
):
    study = opened(sqlite)
    trial = ask(study)
    study.tell(trial.number, state=TrialState.FAIL)
    lost = study.get_trials()[0]
    # Its finder does it while the other waits.
    monkeypatch.setattr(trials.time, "sleep", lambda _: storage.retry_callback(None)(study, lost))
    trials.enqueue_forgotten(study)
    assert states(study) == {"FAIL": 1, "WAITING": 1}


def test_a_lost_trial_that_was_failed_in_another_time_zone_is_not_waited_for(sqlite, monkeypatch):
    """Optuna stores local times: on a laptop nine hours ahead of the server, say."""
    study = opened(sqlite)
    study.tell(ask(study).number, state=TrialState.FAIL)
    (lost,) = failed(study)
    lost.datetime_complete += timedelta(hours=9)
    slept = []
    monkeypatch.setattr(trials, "_forgotten", lambda _: [lost])
    monkeypatch.setattr(trials.time, "sleep", slept.append)
    trials.enqueue_forgotten(study)
    assert slept == [trials.BETWEEN_SECONDS]
    assert states(study) == {"FAIL": 1, "WAITING": 1}


def test_a_trial_whose_heartbeat_stopped_says_so_and_the_next_one_does_not(
    url, monkeypatch, tmp_path
):
    monkeypatch.setattr(storage, "GRACE_SECONDS", 1)
    study = opened(url)
    trial = ask(study)
    study._storage.record_heartbeat(trial._trial_id)
    wait_until(lambda: optuna.storages.fail_stale_trials(study) or failed(study))
    (lost,) = failed(study)
    assert lost.user_attrs["reason"] == VANISHED
    work(SPECIFICATION, url, 1, tmp_path, 0)
    assert states(study) == {"FAIL": 1, "COMPLETE": 1}
    assert "reason" not in study.trials[1].user_attrs


# --- workers that die -----------------------------------------------------------------------------


def fake(
    *arguments: object, seconds: float | str = 0.15, deadly: str = "none", **options
) -> subprocess.Popen:
    """`python -m tests.fake_runs ...` with iterations of so many seconds, or with real runs."""
    environment = {
        **os.environ,
        "FAKE_SECONDS": str(seconds),
        "FAKE_DEADLY": deadly,
        "PYTHONWARNINGS": "ignore",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fake_runs", *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        **options,
    )


def wait_until(condition, seconds: float = 60.0) -> None:
    """Of another process."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


def wait_for(path: Path) -> str:
    """The text of a file that another process will have written."""
    wait_until(lambda: path.is_file() and path.read_text())
    return path.read_text()


def steps(folder: Path) -> list[str]:
    """The process that did each iteration."""
    return [(folder / f"step-{t}").read_text() for t in range(ITERATIONS)]


def assert_one_trial_went_on(study: optuna.Study, out: Path, number: int, trials: int) -> None:
    """Exactly so many trials, but for one that two workers began as the last at once; the lost one
    was done to its end in its old folder, by a second process from where it was.
    """
    needed = [one for one in study.trials if one.user_attrs.get("reason") != studies.NOT_NEEDED]
    lost = study.trials[number]
    assert lost.state == TrialState.FAIL
    retried = [trial for trial in study.trials if trial.system_attrs.get("failed_trial") == number]
    assert [trial.state in ENDED for trial in retried] == [True]
    assert retried[0].params == lost.params
    assert count(study, *ENDED) == trials
    assert len(needed) == trials + 1, states(study)
    folders = {f"{trial.number:04d}-s0" for trial in needed} - {f"{retried[0].number:04d}-s0"}
    assert {path.name for path in out.glob("0*")} == folders
    pids = steps(out / f"{number:04d}-s0")
    assert len(set(pids)) == 2, pids
    assert pids == sorted(pids, key=pids.index), (
        "the second process goes on from where the first was"
    )
    ended = [path for path in out.glob("0*/finished") if path.read_text() != "once\n"]
    assert not ended, "a run was done twice"
    assert study.trials[0].params == published_parameters(SPECIFICATION)


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_of_a_trial_costs_none(url, tmp_path):
    study, out = opened(url), tmp_path / "trials"
    workers = [fake("work", url, 4, out, worker) for worker in range(2)]
    try:
        victim = int(wait_for(out / "0001-s0" / "step-1"))
        os.kill(victim, signal.SIGKILL)
        assert sorted(worker.wait(timeout=120) for worker in workers) == [-signal.SIGKILL, 0]
    finally:
        stop(workers)
    assert_one_trial_went_on(study, out, 1, 4)


@pytest.mark.slow
def test_the_next_worker_takes_over_from_one_that_was_killed(url, tmp_path):
    study, out = opened(url), tmp_path / "trials"
    worker = fake("work", url, 3, out, 0)
    try:
        wait_for(out / "0000-s0" / "step-2")
    finally:
        stop([worker])
    work(SPECIFICATION, url, 3, out, 0)
    assert_one_trial_went_on(study, out, 0, 3)
    assert published_trial(study).system_attrs["failed_trial"] == 0


@pytest.mark.slow
def test_a_worker_that_was_asleep_for_too_long_neither_fails_nor_counts_twice(sqlite, tmp_path):
    """A laptop was closed, or a machine swapped: the others gave its trial up, and did it."""
    study, out = opened(sqlite), tmp_path / "trials"
    worker = fake("work", sqlite, 3, out, 0, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(out / "0000-s0" / "step-1")
        worker.send_signal(signal.SIGSTOP)
        while is_locked(
            sqlite
        ):  # in the middle of writing, it would keep SQLite's lock for as long as it sleeps
            worker.send_signal(signal.SIGCONT)
            time.sleep(0.02)
            worker.send_signal(signal.SIGSTOP)
        work(SPECIFICATION, sqlite, 3, out, 1)
        assert count(study, *ENDED) == 3
        worker.send_signal(signal.SIGCONT)
        _, error = worker.communicate(timeout=60)
        assert worker.returncode == 0, error
        assert "Traceback" not in error
    finally:
        stop([worker])
    assert states(study) == {"COMPLETE": 3, "FAIL": 1}


def is_locked(url: str) -> bool:
    time.sleep(0.05)  # a signal arrives when it does
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0.0)
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError:
        return True
    finally:
        connection.close()
    return False


def stop(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


# --- a database server that goes away -------------------------------------------------------------


@pytest.fixture
def server(postgres):
    """The server, for a test that stops it."""
    yield postgres
    if not postgres.running:
        postgres.start()


@pytest.mark.slow
def test_a_short_outage_between_two_iterations_loses_no_trial(server, monkeypatch, tmp_path):
    """The heartbeat that finds no server must not be the last one: the trial would be given up
    though its worker lives.
    """
    monkeypatch.setattr(storage, "GRACE_SECONDS", 8)
    url = server.new_database()
    study, begun, restarted = opened(url), threading.Event(), threading.Event()

    def execute(run, out, *, progress, observers):
        begun.set()
        assert restarted.wait(60)
        time.sleep(storage.GRACE_SECONDS + 3)
        return fake_runs.summary(1.0)

    monkeypatch.setattr(runs, "execute", execute)
    monkeypatch.setattr(
        threading, "excepthook", lambda _: None
    )  # what a thread dies of is told by the trial's state
    worker = threading.Thread(target=work, args=(SPECIFICATION, url, 1, tmp_path, 0), daemon=True)
    worker.start()
    assert begun.wait(60)
    server.stop()
    time.sleep(2.5)  # longer than between two heartbeats
    server.start()
    restarted.set()
    deadline = time.monotonic() + 60
    while worker.is_alive() and time.monotonic() < deadline:
        optuna.storages.fail_stale_trials(study)  # as another worker would
        time.sleep(0.2)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"]


@pytest.mark.slow
def test_a_server_stopped_in_the_middle_of_a_study_costs_nothing_that_was_done(server, tmp_path):
    url, out = server.new_database(), tmp_path / "trials"
    study = opened(url)
    worker = fake("work", url, 3, out, 0, stderr=subprocess.DEVNULL)
    try:
        wait_for(out / "0001-s0" / "step-1")
        before = study.trials[0]
        server.stop()
        worker.wait(timeout=60)
        server.start()
    finally:
        stop([worker])
    assert study.trials[0] == before
    work(SPECIFICATION, url, 3, out, 0)
    assert study.trials[0] == before
    assert_one_trial_went_on(study, out, 1, 3)


@pytest.mark.parametrize("form", ["{}", "file:{}?uri=true", "file://{}?timeout=9&uri=true"])
def test_looking_for_a_study_makes_neither_a_file_nor_tables(form, tmp_path):
    file = tmp_path / "study.db"
    url = f"sqlite:///{form.format(file)}"
    assert storage.stored_study(SPECIFICATION.name, url) is None
    assert list(tmp_path.iterdir()) == []
    file.write_bytes(b"")
    assert storage.stored_study(SPECIFICATION.name, url) is None
    assert file.read_bytes() == b""
    opened(f"sqlite:///{file}")
    assert storage.stored_study(SPECIFICATION.name, url).user_attrs["specification"]
    assert storage.stored_study("another", url) is None
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_looking_for_a_study_makes_no_tables_on_a_server(postgres):
    url = postgres.new_database()
    assert storage.stored_study(SPECIFICATION.name, url) is None
    with contextlib.closing(create_engine(url).connect()) as connection:
        assert inspect(connection).get_table_names() == []
    opened(url)
    assert storage.stored_study(SPECIFICATION.name, url).user_attrs["specification"]


@pytest.mark.parametrize("url", ["sqlite://", "nonsense", "sqlite:///{}/text", "mysql://u@h/x"])
def test_looking_into_a_storage_that_cannot_be_used_is_an_error(url, tmp_path):
    (tmp_path / "text").write_text("this is text, and more than a hundred characters of it, " * 4)
    with pytest.raises(InputError, match="--storage"):
        storage.stored_study(SPECIFICATION.name, url.format(tmp_path))


def test_the_best_is_that_of_the_trials_that_are_told():
    values = [(TrialState.COMPLETE, 2.0), (TrialState.COMPLETE, 1.0), (TrialState.FAIL, None)]
    trials = [optuna.trial.create_trial(state=state, value=value) for state, value in values]
    assert best_of(trials).value == 1.0
    assert best_of(trials[2:]) is None


def test_a_study_that_began_with_other_settings_is_refused():
    study = optuna.create_study()
    studies.check_begun(study, SPECIFICATION)
    study.set_user_attr("specification", SPECIFICATION.to_attributes())
    studies.check_begun(study, SPECIFICATION)
    begun = dataclasses.replace(SPECIFICATION, seeds=(7,)).to_attributes()
    study.set_user_attr("specification", begun)
    with pytest.raises(InputError, match="exists with another space or objective"):
        studies.check_begun(study, SPECIFICATION)


def test_a_study_that_was_begun_with_other_versions_is_refused(sqlite, monkeypatch):
    study = opened(sqlite)
    assert study.user_attrs["versions"] == numerics(versions(), "smoke")
    opened(sqlite)
    later = versions() | {"python": "4.0", "virl_tf": f"{versions()['virl_tf']}9"}
    monkeypatch.setattr(pooled_results, "versions", lambda: later)
    opened(sqlite)  # by which no number changes
    monkeypatch.setattr(pooled_results, "versions", lambda: later | {"tensorflow": "9.0"})
    with pytest.raises(InputError, match=r"begun with other versions \(tensorflow: .* '9\.0' now"):
        opened(sqlite)


def test_a_study_that_does_not_say_its_versions_goes_on(sqlite):
    """As older ones, the committed ones among them."""
    study = optuna.create_study(storage=open_storage(sqlite), study_name=SPECIFICATION.name)
    study.set_user_attr("specification", SPECIFICATION.to_attributes())
    assert opened(sqlite).user_attrs == study.user_attrs
