"""`python -m experiments tune` as a user meets it; where real training is not the point, with runs
that only count.
"""

import contextlib
import math
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from virl_tf.validation import InputError

import optuna
import pandas as pd
import psutil
import pytest
from distributed import LocalCluster
from optuna.trial import TrialState

from experiments.cli import main
from experiments.sweeps import sweep
from experiments.tuning import tune_command
from experiments.tuning.specification import Studies, without_password
from experiments.tuning.storage import RETRIES, absolute
from experiments.tuning.study import NOT_NEEDED, published_parameters, work
from experiments.tuning.study_folder import _place
from experiments.tuning.trials import ENDED, count
from experiments.tuning.tune_command import board, in_one_line, next_commands
from tests import fake_runs, tiny
from tests.fake_runs import COMMAND, SPECIFICATION
from tests.shared import contents
from tests.test_tuning_study import (
    ROOT,
    ask,
    assert_one_trial_went_on,
    fake,
    opened,
    states,
    steps,
    stop,
    wait_for,
    wait_until,
)

pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")

# A command with its output kept, in a process group of its own, as in a terminal.
OWN_GROUP = {
    "stdout": subprocess.PIPE,
    "stderr": subprocess.PIPE,
    "text": True,
    "start_new_session": True,
}
# The smallest study of real runs; its numbers mean nothing.
REAL = [
    *("gaussians", "--components", "2", "--modes", "3", "--preset", "smoke", "--workers", "1"),
    *tiny.set_words("training.num_epochs=2", "loop.num_iterations=2", "loop.num_negatives=500"),
]


@pytest.fixture
def tune(monkeypatch, capsys, tmp_path):
    """`tune` inside this process, in a folder of its own: (exit status, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["experiments", "tune", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


def assert_one_error(result: tuple[int, str, str], message: str) -> None:
    """Exit status 2, and one line that holds the message."""
    status, _, error = result
    assert status == 2, error
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
    assert message in error


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gausians"], "did you mean 'gaussians'"),
        (["gaussians", "--method", "vril"], "did you mean 'virl'"),
        (["gaussians", "--trials", "0"], "--trials must be an integer >= 1, got 0"),
        (["gaussians", "--workers", "0"], "--workers"),
        (["gaussians", "--components", "0"], "--components"),
        (["gaussians", "--modes", "0"], "--modes"),
        (["path_planning", "--steps", "3"], "even"),
        (["gaussians", "--method", "virl_no_kde"], "Allowed: eim, geim, virl"),
        (["gaussians", "--preset", "fast"], "Allowed: paper, quick, smoke"),
        (["gaussians", "--seeds", "one"], "--seeds must be integers"),
        (["gaussians", "--seeds", "-1"], "--seeds must be"),
        (["gaussians", "--seeds", "0,-1"], "--seeds must be"),
        (["gaussians", "--set", "network.layer_sise=8"], "did you mean 'layer_size'"),
        (["gaussians", "--set", "network.layer_size=8"], "this study searches it; leave it out"),
        (["gaussians", "--storage", "nonsense"], "--storage nonsense cannot be used"),
        (["gaussians", "--out", "why?"], "why? cannot hold study.db"),
        (["gaussians", "--out", "a%20b"], "a%20b cannot hold study.db"),
    ],
)
def test_bad_input_is_one_clear_error_with_status_2_and_leaves_nothing(
    tune, arguments, message, tmp_path
):
    assert_one_error(tune(*arguments), message)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_is_one_clear_error(tune, monkeypatch):
    monkeypatch.setattr("experiments.tuning.storage.CONNECT_SECONDS", 2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql+psycopg://user@127.0.0.1:{silent.getsockname()[1]}/study"
        begun = time.monotonic()
        assert_one_error(tune("gaussians", "--storage", url), "cannot be used")
    assert time.monotonic() - begun < 30.0


def test_a_scheduler_that_does_not_answer_is_one_clear_error(tune, monkeypatch):
    monkeypatch.setattr("experiments.sweeps.sweep.ANSWER_SECONDS", 1.0)
    assert_one_error(
        tune(*COMMAND, "--trials", "2", "--scheduler", "tcp://127.0.0.1:9"),
        "no Dask scheduler answers",
    )


def test_another_configuration_is_one_clear_error(tune, tmp_path):
    url = f"sqlite:///{tmp_path}/study.db"
    opened(url)
    assert_one_error(
        tune(*COMMAND, "--seeds", "1", "--storage", url), "exists with another space or objective"
    )
    assert count(opened(url), TrialState.WAITING) == 1


def test_a_preview_makes_no_database(tune, tmp_path):
    url = f"sqlite:///file:{tmp_path}/none.db?uri=true"
    status, text, error = tune(*COMMAND, "--trials", "4", "--storage", url, "--dry-run")
    assert status == 0, error
    assert "0 done already, 4 to do" in text
    assert list(tmp_path.iterdir()) == []


# --- a folder is one study's ----------------------------------------------------------------------


@pytest.fixture
def no_workers(monkeypatch):
    """`tune` that asks Dask for nothing: its trials are done here, by runs that only count."""
    monkeypatch.setattr("experiments.runs.execute", fake_runs.execute)
    monkeypatch.setattr(
        tune_command, "_work_together", lambda _, arguments, *__: work(*arguments, 0)
    )


def test_the_folder_of_another_study_is_refused_before_a_trial(tune, no_workers, tmp_path):
    assert tune(*COMMAND, "--trials", "2")[0] == 0
    (out,) = (tmp_path / "studies").iterdir()
    before = contents(out / "trials")
    elsewhere = ("--storage", f"sqlite:///{tmp_path}/x.db", "--trials", "1")
    message = "holds the trials of another study"
    assert_one_error(tune(*COMMAND, *elsewhere), message)
    assert_one_error(tune(*COMMAND, *elsewhere), "Give another --storage and --out")
    assert not (tmp_path / "x.db").exists(), "refused before a database is made"
    assert_one_error(tune(*COMMAND, "--trials", "3", "--seeds", "1"), "settings.seeds: [0] there")
    other = [*COMMAND, "--method", "eim", "--trials", "1", "--out", out]
    assert_one_error(tune(*other), message)
    (out / "study.json").unlink()  # as studies before 1.0 left their folders
    assert_one_error(tune(*COMMAND, *elsewhere), message)
    assert contents(out / "trials") == before
    assert tune(*COMMAND, *elsewhere, "--out", tmp_path / "x")[0] == 0


def test_the_folder_of_a_sweep_is_refused(tune, no_workers, tmp_path):
    (tmp_path / "config.yaml").write_text("config: {sweep: gaussians}\n")
    for more in ([], ["--dry-run"]):
        given = [*COMMAND, "--trials", "1", "--out", tmp_path, *more]
        assert_one_error(tune(*given), "holds a run or a sweep")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_the_same_study_goes_on_in_its_folder(tune, no_workers, tmp_path):
    assert tune(*COMMAND, "--trials", "1")[0] == 0
    (out,) = (tmp_path / "studies").iterdir()
    (out / "study.json").unlink()  # as studies before 1.0 left their folders
    assert tune(*COMMAND, "--trials", "2")[0] == 0
    moved = out.rename(tmp_path / "moved")
    assert tune(*COMMAND, "--trials", "3", "--out", moved)[0] == 0
    assert (
        tune(*COMMAND, "--trials", "4", "--out", "moved", "--storage", "sqlite:///moved/study.db")[
            0
        ]
        == 0
    )
    assert len(list((moved / "trials").glob("0*"))) == 4
    assert len(pd.read_csv(moved / "trials.csv")) == 4


def test_workers_elsewhere_use_the_database_that_a_relative_url_names(tune, monkeypatch, tmp_path):
    def work_elsewhere(_, arguments, *__):
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        work(*arguments, 0)
        monkeypatch.chdir(tmp_path)

    monkeypatch.setattr("experiments.runs.execute", fake_runs.execute)
    monkeypatch.setattr(tune_command, "_work_together", work_elsewhere)
    assert tune(*COMMAND, "--trials", "1", "--storage", "sqlite:///rel.db")[0] == 0
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert count(opened(f"sqlite:///{tmp_path}/rel.db"), *ENDED) == 1


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("sqlite:///a/b.db?timeout=5", "sqlite:////here/a/b.db?timeout=5"),
        ("sqlite:///file:b.db?uri=true", "sqlite:///file:/here/b.db?uri=true"),
        *((url, url) for url in ("sqlite:////a.db", "sqlite:///file:/a.db?uri=true")),
        *((url, url) for url in ("sqlite://", "sqlite:///", "sqlite:///:memory:", "nonsense")),
        ("postgresql+psycopg://host/x", "postgresql+psycopg://host/x"),
    ],
)
def test_the_path_of_a_sqlite_file_is_made_whole(url, whole, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert absolute(url) == whole.replace("/here", str(tmp_path))


@pytest.mark.slow
def test_workers_that_join_a_cluster_later_take_part(tune, monkeypatch):
    started, joining = [], []

    def ask(question):
        answer = sweep.ask(question)
        if not joining:  # the first one asks how many workers there are
            assert answer == {}
            joining.extend(threading.Timer(n, local.scale, [n]) for n in (1, 2))
            for timer in joining:
                timer.start()
        return answer

    def submit(*arguments, **options):
        started.append(arguments[-3])
        return sweep.submit(*arguments, **options)

    def execute(run, out, **options):
        wait_until(lambda: len(started) >= 2)
        return fake_runs.execute(run, out, **options)

    for name, function in (("ask", ask), ("submit", submit), ("POLL_SECONDS", 0.1)):
        monkeypatch.setattr(tune_command, name, function)
    monkeypatch.setattr("experiments.runs.execute", execute)
    sizes = {"n_workers": 0, "threads_per_worker": 1, "processes": False}
    with LocalCluster(**sizes, protocol="tcp://", dashboard_address=":0") as local:
        asked = ("--trials", "3", "--scheduler", local.scheduler_address)
        status, text, error = tune(*COMMAND, *asked)
        for timer in joining:
            timer.join()
    assert status == 0, error
    assert "no worker yet: waiting for the first" in text
    assert started == [0, 1]


def test_a_folder_does_not_tell_passwords(tmp_path):
    url = "postgresql+psycopg://user:se:cr@t@host:5432/study?password=secret"
    assert _place(tmp_path, url) == "postgresql+psycopg://user@host:5432/study"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////data/study.db", "sqlite:////data/study.db"),
        ("postgresql+psycopg://user@host/study", "postgresql+psycopg://user@host/study"),
        ("postgresql+psycopg://user:a@b:c@host:1/s", "postgresql+psycopg://user@host:1/s"),
        ("postgresql://host/s?password=a@b&x=1", "postgresql://host/s?x=1"),
        ("postgresql://host:1/s?x=1&password=a@b", "postgresql://host:1/s?x=1"),
    ],
)
def test_what_is_shown_of_a_storage_has_no_password(url, shown):
    assert without_password(url) == shown


def test_an_error_about_a_storage_has_no_password(tune, tmp_path):
    asked = ("--trials", "1", "--storage", "nosuch://user:secret@host/study")
    status, text, error = tune(*COMMAND, *asked, "--out", tmp_path / "study")
    assert status == 2
    assert "nosuch://user@host/study" in error
    assert "secret" not in text + error


# --- what is shown --------------------------------------------------------------------------------


def shown(study: optuna.Study, trials: int) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as capture:
        console.print(board(study, trials))
    return capture.get()


def test_the_board_compares_the_best_with_the_published_column():
    study = optuna.create_study()
    assert "0/4" in shown(study, 4)
    study.enqueue_trial(published_parameters(SPECIFICATION), user_attrs={"published": True})
    rows = fake_runs.study.searched("gaussians", "virl", 2)
    for value in (2.0, 3.0, 1.25, None):
        trial = study.ask()
        fake_runs.study.suggest(trial, rows)
        study.tell(
            trial, value, state=TrialState.COMPLETE if value is not None else TrialState.PRUNED
        )
    study.tell(study.ask(), state=TrialState.FAIL)
    study.ask()
    text = shown(study, 5)
    assert "4/5" in text
    assert ["3", "1", "1", "1"] in [line.replace("│", " ").split() for line in text.splitlines()]
    lines = {
        line.replace("│", " ").split()[0]: line
        for line in text.splitlines()
        if "log2 network.l2" in line
    }
    assert "2.0000" in lines["published"]
    assert "learning_rate 0.000381" in text
    assert "1.2500" in lines["best"]


def test_the_table_is_the_same_beside_a_trial_that_was_lost_before_its_parameters_were_drawn():
    def rows(*lost):
        study = optuna.create_study()
        for trial in lost:
            study.add_trial(trial)
        layers = optuna.distributions.IntDistribution(1, 9)
        norm = optuna.distributions.CategoricalDistribution([True, False])
        distributions = {"layers": layers, "norm": norm}
        params = {"layers": 4, "norm": True}
        done = {"params": params, "distributions": distributions, "value": 0.5}
        study.add_trial(optuna.create_trial(**done))
        table = tune_command.trials_table(study)[["value", "params_layers", "params_norm"]]
        return table.to_csv(index=False).splitlines()

    header, *lines = rows()
    assert lines == ["0.5,4,True"]
    assert rows(optuna.create_trial(state=TrialState.FAIL)) == [header, ",,", *lines]


def test_the_board_says_that_the_published_trial_was_pruned():
    study = optuna.create_study()
    study.enqueue_trial({}, user_attrs={"published": True})
    trial = study.ask()
    trial.report(0.5, 0)
    study.tell(trial, state=TrialState.PRUNED)
    text = shown(study, 1)
    assert "pruned" in next(line for line in text.splitlines() if "published" in line)
    assert "best" not in text


@pytest.mark.parametrize("terminal", [False, True])
def test_trials_that_ended_have_a_line_each_on_a_terminal_only_failed_ones(terminal):
    from rich.console import Console

    study, told = optuna.create_study(), {0}
    for value in (9.0, 2.0, 3.0):
        study.tell(study.ask(), value)
    for reason in ("ValueError: no\nmore", NOT_NEEDED):
        trial = study.ask()
        trial.set_user_attr("reason", reason)
        study.tell(trial, state=TrialState.FAIL)
    console = Console(force_terminal=terminal, color_system=None)
    for _ in range(2):
        with console.capture() as capture:
            tune_command.print_ended(study, told, console)
        lines = capture.get().splitlines()
        expected = ["trial 3 failed: ValueError: no; best so far 2.0000"]
        if not terminal:
            complete = ["trial 1 complete: 2.0000", "trial 2 complete: 3.0000"]
            expected = [f"{line}; best so far 2.0000" for line in complete] + expected
        assert lines == ([] if _ else expected), "each is told once"


def test_three_mistakes_of_the_user_are_one_error_with_the_last_reason(
    tune, no_workers, monkeypatch
):
    def mistaken(*_, **__):
        raise InputError("x holds a run with another configuration")

    monkeypatch.setattr("experiments.runs.execute", mistaken)
    assert_one_error(tune(*COMMAND, "--trials", "9"), "the last failed: InputError: x holds a run")


def test_a_trial_of_which_all_workers_died_says_so(tune, monkeypatch):
    def all_die(study, *_):
        for _ in range(1 + RETRIES):
            number = ask(study).number
            study.tell(number, state=TrialState.FAIL)
            fake_runs.storage.retry_callback(RETRIES)(study, study.get_trials()[number])

    monkeypatch.setattr(tune_command, "_work_together", all_die)
    said = "the last failed: 6 workers died of it, perhaps for want of memory; fewer --workers"
    assert_one_error(tune(*COMMAND, "--trials", "9"), said)


def test_a_study_says_what_can_be_done_with_it():
    studies, column = Studies("gaussians", "smoke", 3, None, None), ("virl", 10)
    assert next_commands(studies, column, 0) == []
    compare = "python -m experiments compare gaussians --preset smoke --modes 3"
    assert next_commands(studies, column, 7) == [compare]
    plots = "python -m experiments study-plots gaussians --method virl --components 10 "
    assert next_commands(studies, column, 8) == [f"{plots}--preset smoke --modes 3", compare]
    assert next_commands(studies, ("virl", 2), 7) == []


def test_the_next_command_can_be_pasted_into_a_shell():
    storage = "postgresql+psycopg://user@host/study?a=1&b=2 3"
    studies = Studies("gaussians", "smoke", 3, None, storage)
    (command,) = next_commands(studies, ("virl", 10), 7)
    assert shlex.split(command)[-2:] == ["--storage", storage]


def test_parameters_in_one_line():
    assert (
        in_one_line({"a": 0.000381, "b": True, "log2 c": -24}) == "a 0.000381, b True, log2 c -24"
    )


# --- whole studies --------------------------------------------------------------------------------


def experiments(*arguments: object, check: int = 0) -> str:
    command = [sys.executable, "-m", "experiments", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == check, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_real_study_from_beginning_to_end(tune, tmp_path):
    out = tmp_path / "study"
    text = experiments("tune", *REAL, "--trials", "2", "--out", out)
    assert "2/2" in text
    assert "published" in text
    assert "next: " not in text, "the paper has no column for two components"
    table = pd.read_csv(out / "trials.csv")
    assert list(table["number"]) == [0, 1]
    assert list(table["state"]) == ["COMPLETE", "COMPLETE"]
    assert table["value"].map(math.isfinite).all()
    for name, value in published_parameters(SPECIFICATION).items():
        assert table[f"params_{name}"][0] == value, name
    for number in (0, 1):
        folder = out / "trials" / f"{number:04d}-s0"
        assert (folder / "summary.json").is_file()
        metrics = pd.read_csv(folder / "metrics.csv")["i_projection_reward"]
        assert len(metrics) == 2
        assert table["value"][number] == pytest.approx((metrics.min() + metrics.iloc[-1]) / 2)
    study = optuna.load_study(
        study_name="gaussians-virl-2c-m3-smoke", storage=f"sqlite:///{out}/study.db"
    )
    assert study.best_value == table["value"].min()
    assert study.trials[1].intermediate_values == pytest.approx(dict(enumerate(metrics)))

    before = contents(out / "trials")
    assert tune(*REAL, "--trials", "2", "--out", out)[0] == 0
    assert tune(*REAL, "--trials", "1", "--out", out)[0] == 0
    assert contents(out / "trials") == before
    assert_one_error(
        tune(*REAL, "--set", "loop.prior=flat", "--trials", "3", "--out", out), "'loop.prior=flat'"
    )
    assert contents(out / "trials") == before


@pytest.mark.slow
def test_a_real_trial_whose_worker_was_killed_comes_to_the_same_value(tmp_path):
    values = []
    for name in ("whole", "killed"):
        out = tmp_path / name
        command = fake("tune", *REAL, "--trials", "1", "--out", out, seconds="real", **OWN_GROUP)
        try:
            if name == "killed":
                wait_until(
                    (out / "trials" / "0000-s0" / "checkpoints" / "state-00001.npz").is_file, 240
                )
                workers = [
                    child
                    for child in psutil.Process(command.pid).children(True)
                    if child.memory_info().rss > 4e8
                ]
                assert workers, "no worker to kill"
                workers[0].kill()
            end(command, 0, seconds=400.0)
        finally:
            kill_group(command)
        table = pd.read_csv(out / "trials.csv")
        assert list(table["state"]) == (["COMPLETE"] if name == "whole" else ["FAIL", "COMPLETE"])
        assert [path.name for path in (out / "trials").iterdir()] == ["0000-s0"]
        values.append(
            (table["value"].iloc[-1], (out / "trials" / "0000-s0" / "metrics.csv").read_bytes())
        )
    assert values[0] == values[1]


def tune_fake(
    url: str, out: Path, trials: int, workers: int, seconds: float = 0.2, deadly: str = "none"
) -> subprocess.Popen:
    """`tune` with runs that only count, in a process group of its own, as in a terminal."""
    arguments = ["tune", *COMMAND, "--storage", url, "--out", out]
    arguments += ["--trials", trials, "--workers", workers]
    return fake(*arguments, seconds=seconds, deadly=deadly, **OWN_GROUP)


def end(command: subprocess.Popen, status: int, seconds: float = 120.0) -> str:
    """What it wrote to stderr; never a traceback."""
    output, error = command.communicate(timeout=seconds)
    assert command.returncode == status, output + error
    assert "Traceback" not in error
    return error


def kill_group(*commands: subprocess.Popen) -> None:
    """What is left of them and of their workers."""
    for command in commands:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(command.pid, signal.SIGKILL)
    stop(list(commands))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ctrl-c", "sigterm"])
def test_an_interrupted_command_gives_its_trials_back_to_the_queue(how, url, tmp_path):
    """Ctrl-C goes to all processes of a terminal, SIGTERM of a cluster to the command alone."""
    out = tmp_path / "study"
    command = tune_fake(
        url, out, 4, 2, seconds=4.0
    )  # so long that none ends while the command does
    try:
        wait_for(out / "trials" / "0001-s0" / "step-0")
        if how == "ctrl-c":
            os.killpg(command.pid, signal.SIGINT)
        else:
            command.send_signal(signal.SIGTERM)
        error = end(command, 130)
        assert error.strip().startswith("stopped; the same command continues"), "Dask is silent"
        study = opened(url)
        interrupted = [trial.number for trial in study.trials if trial.state == TrialState.FAIL]
        assert interrupted
        assert count(study, TrialState.RUNNING) == 0
        assert count(study, TrialState.WAITING) == len(interrupted)
        before = [trial for trial in study.trials if trial.state in ENDED]

        command = tune_fake(url, out, 4, 1, seconds=0.1)
        output, error = command.communicate(timeout=120.0)
        assert command.returncode == 0, error
        assert output.count("4/4") == 1, "one table at the end, where there is no terminal"
        assert output.count("; best so far") == 4
        assert output.endswith("\n")
    finally:
        kill_group(command)
    assert count(study, *ENDED) == 4
    assert len(study.trials) == 4 + len(interrupted)
    assert [study.trials[trial.number] for trial in before] == before
    assert [path.read_text() for path in (out / "trials").glob("0*/finished")] == ["once\n"] * 4
    assert len(list((out / "trials").iterdir())) == 4
    retries = {
        trial.system_attrs["failed_trial"]
        for trial in study.trials
        if "failed_trial" in trial.system_attrs
    }
    assert retries == set(interrupted)


@pytest.mark.slow
def test_an_interrupted_command_leaves_the_trials_of_another_one_alone(url, tmp_path):
    """The same command on two machines; Ctrl-C on one."""
    out = tmp_path / "study"
    first = tune_fake(url, out, 2, 1, seconds=10.0)  # so long that neither trial ends while it does
    second = None
    try:
        wait_for(out / "trials" / "0000-s0" / "step-0")
        second = tune_fake(url, out, 2, 1, seconds=6.0)
        wait_for(out / "trials" / "0001-s0" / "step-0")
        first_process = steps_so_far(out / "trials" / "0000-s0")[0]
        running = [
            trial.number for trial in opened(url).trials if trial.state == TrialState.RUNNING
        ]
        os.killpg(first.pid, signal.SIGINT)
        end(first, 130)
        end(second, 0)
    finally:
        kill_group(*[command for command in (first, second) if command is not None])
    study = opened(url)
    assert running == [0, 1]
    assert [trial.state.name for trial in study.trials] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert first_process in steps_so_far(out / "trials" / "0000-s0"), (
        "what the first command did of its trial is kept"
    )
    assert len(set(steps_so_far(out / "trials" / "0001-s0"))) == 1, (
        "the second one's trial was not touched"
    )


def steps_so_far(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.glob("step-*"))]


@pytest.mark.slow
def test_a_worker_of_dask_killed_in_the_middle_of_a_trial_costs_none(url, tmp_path):
    out = tmp_path / "study"
    command = tune_fake(url, out, 4, 2)
    try:
        os.kill(int(wait_for(out / "trials" / "0001-s0" / "step-1")), signal.SIGKILL)
        end(command, 0)
    finally:
        kill_group(command)
    assert_one_trial_went_on(opened(url), out / "trials", 1, 4)
    table = pd.read_csv(out / "trials.csv")
    reasons = table[table["state"] == "FAIL"]["user_attrs_reason"]
    assert len(reasons[reasons != NOT_NEEDED]) == 1


@pytest.mark.slow
def test_the_same_command_goes_on_after_everything_was_killed(url, tmp_path):
    out = tmp_path / "study"
    command = tune_fake(url, out, 3, 1)
    try:
        wait_for(out / "trials" / "0001-s0" / "step-1")
        os.killpg(command.pid, signal.SIGKILL)
        command.communicate()
        command = tune_fake(url, out, 3, 1)
        end(command, 0)
    finally:
        kill_group(command)
    assert_one_trial_went_on(opened(url), out / "trials", 1, 3)


@pytest.mark.slow
def test_a_trial_that_kills_every_worker_fails_in_the_end_and_the_study_goes_on(tmp_path):
    out, url = tmp_path / "study", f"sqlite:///{tmp_path}/study.db"
    command = tune_fake(url, out, 2, 1, seconds=0.1, deadly="0001-s0")
    try:
        end(command, 0, seconds=240.0)
    finally:
        kill_group(command)
    study = opened(url)
    assert count(study, *ENDED) == 2
    assert states(study)["FAIL"] == 1 + RETRIES
    assert len(list((out / "trials" / "0001-s0").glob("killed-*"))) == 1 + RETRIES


@pytest.mark.slow
def test_a_study_whose_trials_all_kill_their_workers_ends_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_RETRIES", "0")
    out, url = tmp_path / "study", f"sqlite:///{tmp_path}/study.db"
    command = tune_fake(url, out, 3, 3, seconds=0.0, deadly="0")
    try:
        error = end(command, 2, seconds=300.0).splitlines()[-1]
    finally:
        kill_group(command)
    assert "1 workers died of it, perhaps for want of memory; fewer --workers leave more" in error
    assert count(opened(url), *ENDED) == 0


@pytest.mark.slow
def test_a_server_stopped_in_the_middle_is_one_clear_error_and_the_same_command_finishes(
    postgres, tmp_path
):
    url, out = postgres.new_database(), tmp_path / "study"
    command = tune_fake(url, out, 3, 1, seconds=1.5)
    try:
        wait_for(out / "trials" / "0001-s0" / "step-0")
        before = opened(url).trials[0]
        postgres.stop()
        error = end(command, 2).splitlines()[-1]
        assert error.startswith("error: --storage")
        assert "the same command continues" in error
        postgres.start()
        assert opened(url).trials[0] == before
        command = tune_fake(url, out, 3, 1)
        end(command, 0)
    finally:
        kill_group(command)
        if not postgres.running:
            postgres.start()
    study = opened(url)
    assert study.trials[0] == before
    assert_one_trial_went_on(study, out / "trials", 1, 3)
    assert len(set(steps(out / "trials" / "0000-s0"))) == 1
