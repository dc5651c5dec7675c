"""What all commands have in common: early checks, sizes, presets, --version, --quiet, --dry-run."""

import json
import re
import subprocess
import sys
from pathlib import Path

from virl_tf.persistence.files import write_json
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.version import VERSION

import numpy as np
import pandas as pd
import pytest
import typer
from rich.text import Text

from experiments import RESULTS, cli, early_checks
from experiments.cli import app
from experiments.figures import FIGURES
from experiments.own_data.demonstration_files import load_demonstrations
from experiments.records import write_record
from experiments.specification import RunRequest
from experiments.sweeps import expected_time
from experiments.sweeps.expected_time import Expected, sentence
from experiments.sweeps.sweep import record_file
from experiments.sweeps.units import SweepRequest
from experiments.tasks import descriptions

ROOT = Path(__file__).parent.parent
# Arguments that cannot be right, and what the error says: all known without TensorFlow.
WRONG = [
    (["run", "gausians"], "did you mean 'gaussians'"),
    (["run", "gaussians", "--modes", "0"], "--modes must be an integer"),
    (["run", "gaussians", "--set", "network.layer_size=7"], "is not allowed"),
    (["run", "gaussians", "--hparams", "missing.yaml"], "missing.yaml"),
    (["run", "gaussians", "--out", "setup.py"], "cannot use setup.py"),
    (["fit", "missing.npy"], "no file missing.npy"),
    (["fit", "setup.py"], "unknown kind of file '.py'"),
    (["fit", "README.npz", "--method", "vril"], "no file README.npz"),
    (["judge", "missing.npy"], "no file missing.npy"),
    (["judge", "DATA/rows.npy", "--splits", "0"], "--splits must be"),
    (["judge", "DATA/rows.npy", "--components", "4,x"], "--components must be integers"),
    (["judge", "DATA/rows.npy", "--outcome", "missing.py"], "--outcome missing.py cannot be read"),
    (["judge", "DATA/rows.npy", "--columns", "q"], "rows.npy 'q': Allowed: x0, x1"),
    (["play", "DATA/paths.npy", "--world", "missing.py"], "--world missing.py cannot be read"),
    (["play", "DATA/paths.npy", "--world", "os:getcwd", "--runs", "0"], "--runs must be"),
    (["infer", "missing", "--components", "3"], "no folder missing"),
    (["fit", "setup.csv", "--held-out", "2"], "no file setup.csv"),
    (["fit", "DATA/ids.csv"], "column 'id' counts the rows"),
    (["fit", "DATA/text.csv"], "with numbers: a; drop the former (--exclude name)"),
    (["fit", "DATA/paths.npy"], "must be 2-D"),
    (["fit", "DATA/rows.npy", "--columns", "q"], "rows.npy 'q': Allowed: x0, x1"),
    (["fit", "DATA/rows.npy", "--upper", "q=1"], "rows.npy 'q': Allowed: x0, x1"),
    (["fit", "DATA/rows.npy", "--contexts", "x0,x1"], "leaves no column of what is done"),
    (["fit", "DATA/paths.npy", "--trajectories", "--via", "end"], "unknown via-point 'end'"),
    (["fit", "DATA/still.npy", "--trajectories"], "constant"),
    (["infer", "tests", "--components", "0"], "--components must be"),
    (["infer", "tests", "--components", "3", "--samples", "1"], "--samples must be"),
    (["infer", "tests", "--components", "3"], "tests is not a run folder"),
    (["sweep", "gaussians", "--preset", "fast"], "unknown preset 'fast'"),
    (["sweep", "gaussians", "--seeds", "a"], "--seeds must be integers"),
    (["sweep", "gaussians", "--methods", "geim,vril"], "did you mean 'virl'"),
    (["sweep", "obstacle_field", "--methods", "eim"], "Allowed: virl"),
    (["ablate", "gaussians", "--only", "nothing"], "unknown ablation 'nothing'"),
    (["tune", "gaussians", "--trials", "0"], "--trials must be"),
    (["tune", "gaussians", "--steps", "3"], "the size of a gaussians target is --modes"),
    (["compare", "gaussians", "--preset", "smoke"], "no study of gaussians"),
    (["compare", "path_planning"], "the paper publishes none for path_planning"),
    (["study-plots", "grid_walker", "--method", "vril"], "did you mean 'virl'"),
    (["claims", "gaussians", "missing"], "no results in missing"),
    (["figure", "9"], "Allowed: 1, 2a"),
    (["figure", "2a", "missing"], "no results in missing"),
    (["figure", "3", "tests"], "figure 3 takes 2 folders"),
    (["figure", "robot", "setup.py"], "no robot.npz; make them with: python -m experiments bench"),
    (["record", "missing", "--out", "new"], "missing is not the folder of a finished run"),
    (["benchmark", "trainings"], "did you mean 'training'"),
    (["report", "--results", "missing"], "no folder of results missing"),
]


def write_files(folder):
    """Those that `WRONG` calls DATA."""
    x = np.random.default_rng(0).normal(size=(40, 2))
    frame = pd.DataFrame({"a": x[:, 0], "id": np.arange(40)})
    frame.to_csv(folder / "ids.csv", index=False)
    frame.assign(name="x").drop(columns="id").to_csv(folder / "text.csv", index=False)
    np.save(folder / "rows.npy", x)
    np.save(folder / "paths.npy", np.random.default_rng(1).normal(size=(9, 8, 2)))
    np.save(folder / "still.npy", np.ones((9, 8, 2)))


def test_wrong_arguments_are_refused_before_tensorflow_is_loaded(tmp_path):
    """One process for all: what it has not imported at the end, no command did."""
    write_files(tmp_path)
    code = (
        "import json, sys\n"
        "from experiments.cli import main\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    sys.argv[1:] = arguments\n"
        "    try: main()\n"
        "    except SystemExit as end: print(end.code, flush=True)\n"
        "print(sorted({'tensorflow', 'keras', 'matplotlib'} & set(sys.modules)))\n"
    )
    given = json.dumps([arguments for arguments, _ in WRONG]).replace("DATA", str(tmp_path))
    command = [sys.executable, "-c", code, given]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    *statuses, loaded = done.stdout.splitlines()
    assert statuses == ["2"] * len(WRONG), done.stdout + done.stderr
    assert loaded == "[]"
    errors = done.stderr.splitlines()
    for (arguments, message), error in zip(WRONG, errors, strict=True):
        assert error.startswith("error: "), arguments
        assert message in error, arguments


def test_importing_the_library_loads_no_tensorflow_until_it_is_used():
    """Keras, after it, imports TensorFlow as quietly as the library does."""
    code = (
        "import sys, virl_tf\n"
        "virl_tf.InputError, virl_tf.METHODS, virl_tf.load_hparams\n"
        "print('tensorflow' in sys.modules)\n"
        "import keras\n"
        "import virl_tf.discriminator.fit, virl_tf.fit, virl_tf.fit_policy\n"
        "print(callable(virl_tf.fit), callable(virl_tf.fit_policy), virl_tf.fit.__name__)\n"
        "print(set(virl_tf.__all__) <= set(dir(virl_tf)), virl_tf.metrics.__name__)\n"
        "print(hasattr(virl_tf, 'nothing'))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    lines = ["False", "True True fit", "True virl_tf.metrics", "False"]
    assert done.stdout.splitlines() == lines
    assert done.stderr == "", "TensorFlow's log lines belong off the screen"


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", ["keras", "tensorflow", "tensorflow_probability", "tf_keras", "virl_tf.fit_policy"]
)
def test_whatever_is_imported_after_the_library_first_works_and_is_quiet(first):
    """Keras imports TensorFlow, and TFP wants all of Keras."""
    code = f"import virl_tf, {first}\nimport virl_tf.discriminator.fit, virl_tf.fit\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_process_without_stderr_can_import_the_library():
    code = "import virl_tf.numerics; print(virl_tf.numerics.DENSITY.name)"
    command = f"exec {sys.executable} -c '{code}' 2>&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "float64"


def test_early_checks_know_the_kinds_of_files_that_can_be_read(tmp_path):
    for kind in early_checks.KINDS:
        path = tmp_path / f"data{kind}"
        path.write_text("x")
        with pytest.raises(ValueError, match="data") as error:
            load_demonstrations(path)
        assert "unknown kind" not in str(error.value)


# --- one vocabulary -------------------------------------------------------------------------------


def parameters(name):
    return {parameter.name for parameter in typer.main.get_command(app).commands[name].params}


@pytest.mark.parametrize("command", ["run", "sweep", "ablate", "tune", "compare", "study-plots"])
def test_sizes_are_modes_or_steps_in_every_command(command):
    assert {"modes", "steps"} <= parameters(command)
    assert "size" not in parameters(command)


def test_every_command_that_works_can_be_quiet():
    printing = {"claims", "doc-tables"}  # what they are for is what they print
    commands = typer.main.get_command(app).commands
    assert {name for name in commands if "quiet" not in parameters(name)} == printing


@pytest.mark.parametrize("task", [description.name for description in descriptions()])
def test_one_default_preset_for_all_commands_and_tasks(task):
    assert RunRequest(task).specification().preset == "quick"
    assert SweepRequest(task, None, None, None, None, False, []).chosen_preset == "quick"


def test_version_and_quiet(call, tmp_path):
    assert call("--version")[:2] == (0, f"virl_tf {VERSION}\n")
    status, shown, error = call("figure", "robot", "--out", tmp_path, "--quiet")
    assert (status, shown, error) == (0, "", "")
    assert (tmp_path / "figure_robot.png").is_file()
    status, shown, error = call("figure", "robot", "missing", "--out", tmp_path, "--quiet")
    assert (status, shown) == (2, "")
    assert error.startswith("error: no results in missing")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (
            ["study-plots", "gaussians", "--preset", "smoke", "--modes", "5", "--method", "eim"],
            "tune gaussians --method eim --components 10 --preset smoke --modes 5\n",
        ),
        (["compare", "gaussians", "--preset", "smoke"], " --components 1 --preset smoke\n"),
        (["figure", "2b", "x/gaussians-smoke"], "sweep gaussians --preset smoke --out x/gaussians"),
        (
            ["figure", "1", "x/path_planning-virl-5c-d8-s1-smoke"],
            "run path_planning --method virl --components 5 --steps 8 --seed 1 --preset smoke",
        ),
        (["figure", "2b", "x/mine"], "experiments sweep gaussians --out x/mine"),
    ],
)
def test_a_hint_repeats_the_options_that_were_given(call, tmp_path, monkeypatch, arguments, hint):
    monkeypatch.chdir(tmp_path)
    status, _, error = call(*arguments)
    assert status == 2
    assert hint in error


def test_completion_offers_tasks_methods_and_presets(monkeypatch):
    command = typer.main.get_command(app).commands["run"]
    offered = {}
    for parameter in command.params:
        if parameter.name in ("task", "method", "preset"):
            context = typer.Context(command)
            items = parameter.shell_complete(context, "")
            offered[parameter.name] = {item.value for item in items}
    assert offered["task"] >= {"gaussians", "grid_walker", "path_planning"}
    assert offered["method"] >= {"virl", "geim", "eim"}
    assert offered["preset"] == {"smoke", "quick", "paper", "best"}


# --- --dry-run ------------------------------------------------------------------------------------


def test_a_dry_sweep_counts_and_writes_nothing(call, tmp_path):
    out = tmp_path / "sweep"
    options = ["--preset", "quick", "--modes", "5", "--seeds", "0", "--workers", "2", "--out", out]
    status, shown, error = call("sweep", "gaussians", *options, "--dry-run")
    assert status == 0, error
    assert f"7 units in {out}: 0 done already, 7 to do" in shown
    assert "of CPU time" in shown
    assert "not in this time: references, 1 of the units" in shown
    status, shown, _ = call("sweep", "gaussians", *options, "--methods", "virl,geim", "--dry-run")
    assert f"5 units in {out}" in shown  # two methods, two numbers of components, references
    assert not out.exists()

    request = SweepRequest("gaussians", "quick", "5", None, "0", False, [])
    done = [unit for unit in request.units() if "eim-1c" in unit.name]
    RunFolder.open(out, request.to_config())
    for unit in done:
        RunFolder.open(tmp_path / unit.name, unit.stages["."])
        write_json(tmp_path / unit.name / "summary.json", {})
        write_record(tmp_path / unit.name, record_file(unit, out))
    status, shown, _ = call("sweep", "gaussians", *options, "--dry-run")
    assert f"{len(done)} done already, {7 - len(done)} to do" in shown
    status, _, error = call("sweep", "gaussians", *options, "--preset", "smoke", "--dry-run")
    assert status == 2
    assert "preset" in error


def test_a_home_that_the_shell_left_is_the_users(call, tmp_path, monkeypatch):
    """Else one part of a command would write into the home, another into a folder called ~."""
    monkeypatch.setenv("HOME", str(tmp_path))
    status, shown, _ = call("sweep", "gaussians", "--preset", "smoke", "--dry-run", "--out=~/new")
    assert status == 0
    assert f"units in {tmp_path / 'new'}:" in shown
    status, _, error = call("sweep", "gaussians", "--dry-run", "--out=~nobody-here/new")
    assert (status, error.count("\n")) == (2, 1)
    assert error.startswith("error: path must be the name of a file or folder")


def test_a_dry_sweep_refuses_the_folder_that_the_sweep_would(call, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "study" / "trials").mkdir(parents=True)
    for name, said in (("file", "file is a file"), ("study", "give a new or empty folder")):
        status, _, error = call("sweep", "gaussians", "--out", tmp_path / name, "--dry-run")
        assert (status, said in error) == (2, True), error


def test_a_dry_study_counts_its_trials_and_makes_no_database(call, tmp_path):
    options = ["--trials", "30", "--workers", "1", "--out", tmp_path / "study", "--dry-run"]
    status, shown, error = call("tune", "gaussians", *options)
    assert status == 0, error
    assert "30 trials of gaussians-virl-10c-m50-quick: 0 done already, 30 to do" in shown
    assert "on 1 worker" in shown
    assert not (tmp_path / "study").exists()


def test_the_expected_time_is_that_of_the_nearest_committed_runs(monkeypatch):
    values = ("gaussians", "virl", 10, 5, "quick", "training", 0, 0)
    keys = dict(zip(expected_time.KEYS, values, strict=True))
    rows = [{**keys, "modes": m, "cpu_seconds": s} for m, s in ((5, 10.0), (20, 30.0))]
    rows.append({**keys, "modes": 5, "stage": "inference", "cpu_seconds": 4.0})
    monkeypatch.setattr(expected_time, "timings", lambda: pd.DataFrame(rows))

    def expected(modes, *stages, preset="quick"):
        spec = RunRequest("gaussians", modes=modes, preset=preset).specification()
        return expected_time.expected_time(spec, stages or ("training",))

    assert expected(7) == (10.0, False, False, True)
    assert not expected(5).of_smaller
    assert expected(50)[:2] == (30.0, False)
    assert expected(20, "training", "inference")[:2] == (34.0, False)
    assert np.isnan(expected(5, preset="smoke").seconds)
    assert np.isnan(expected(5, "training", "obstacles").seconds)
    rows.append({**keys, "preset": "paper", "cpu_seconds": 90.0})
    assert expected(5, preset="smoke")[:2] == (90.0, True)
    assert expected(5)[:2] == (10.0, False)


def test_the_expected_time_is_of_as_many_rows_and_dimensions_where_such_runs_are_committed():
    def expected(modes=50, **given):
        spec = RunRequest("gaussians", preset="best", modes=modes, **given).specification()
        return expected_time.expected_time(spec)

    def measured(*names):
        frames = [pd.read_csv(RESULTS / "best" / name / "results.csv") for name in names]
        rows = pd.concat(frames).query("ablation == 'best' and stage == 'training'")
        return rows["cpu_seconds"].median()

    usual = expected()[:3]
    assert usual == (measured("gaussians_m50", "ablations/gaussians_m50"), False, False)
    assert expected(dim=20)[:3] == (measured("gaussians_D20"), False, False)
    assert expected(modes=20, rows=300)[:3] == (measured("rows/300"), False, False)
    assert expected(dim=7)[:3] == (usual[0], False, True)
    # Of contexts none is of the usual number of rows.
    assert expected_time.expected_time(RunRequest("experts", preset="best").specification()).unusual


@pytest.mark.parametrize("command", [["sweep", "gaussians"], ["tune", "gaussians"]])
def test_on_a_cluster_the_expected_time_is_cpu_time_alone(call, command, tmp_path):
    options = ["--out", tmp_path / "out", "--dry-run", "--scheduler", "tcp://elsewhere:8786"]
    status, shown, error = call(*command, *options)
    assert status == 0, error
    assert " of CPU time, by the committed runs" in shown
    assert "worker" not in shown
    status, _, error = call(*command, *options, "--workers", "0")
    assert status == 2
    assert "--workers must be an integer >= 1" in error


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["ablate", "--seeds", "100", "--only", "best,no_stop"], "2 units in"),
        (["rank-budgets", "--points", "3", "--presets", "smoke,quick"], "6 runs in"),
    ],
)
def test_a_dry_run_of_others_counts_and_writes_nothing(call, command, said, tmp_path):
    name, *options = command
    out = tmp_path / "out"
    status, shown, error = call(name, "gaussians", *options, "--out", out, "--dry-run")
    assert status == 0, error
    assert f"{said} {out}: 0 done already" in shown
    assert "of CPU time" in shown
    assert not out.exists()


@pytest.mark.parametrize("command", ["sweep", "ablate", "compare", "rank-budgets"])
def test_a_number_of_local_workers_is_not_taken_beside_a_cluster(call, command, tmp_path):
    options = ["--out", tmp_path / "out", "--scheduler", "tcp://elsewhere:8786", "--workers", "3"]
    status, _, error = call(command, "gaussians", *options)
    assert status == 2
    assert "--workers 3 is of local processes, and --scheduler tcp://elsewhere:8786 has" in error
    assert not (tmp_path / "out").exists()


def test_the_expected_time_in_words():
    minutes = [Expected(60.0), Expected(120.0)]
    both = "about 3 min of CPU time, 2 min on 2 workers, by the committed runs"
    assert sentence(minutes, 2) == both
    assert sentence(minutes, None) == "about 3 min of CPU time, by the committed runs"
    assert sentence([], 2) == "nothing left to run"
    assert "unknown" in sentence([Expected(float("nan"))], 2)
    assert "; none is committed for 1 run more" in sentence([*minutes, Expected(float("nan"))], 1)
    bound = "at most 3 min of CPU time, 3 min on 1 worker, by the committed runs of preset paper"
    assert sentence([minutes[0], Expected(120.0, bound=True)], 1) == bound
    grows = "about 2 min of CPU time, by the committed runs of preset paper, of smaller sizes"
    assert sentence([Expected(120.0, bound=True, of_smaller=True)], None) == grows
    few = "about 20 min of CPU time, 10 min on 16 workers, by the committed runs"
    assert sentence([Expected(600.0)] * 2, 16) == few  # and not a sixteenth
    unusual = sentence([Expected(60.0, unusual=True)], 1)
    assert unusual.endswith("by the committed runs, with other --rows or --dim")


def test_committed_results_have_times_for_the_papers_tasks_by_default():
    for description in [description for description in descriptions() if description.table]:
        request = SweepRequest(description.name, None, None, None, None, False, [])
        times = expected_time.times_of_units(request.units())
        assert all(np.isfinite(time.seconds) for time in times), description.name


def test_the_expected_time_of_a_unit_is_with_its_inference(monkeypatch):
    asked = []
    expected = lambda spec, stages: asked.append((spec.components, stages))  # noqa: E731
    monkeypatch.setattr(expected_time, "expected_time", expected)
    ask = SweepRequest("gaussians", "quick", None, None, "0", True, [], methods="virl")
    expected_time.times_of_units(ask.units())
    inferred = {"inference", "inference_search"}
    for components, (first, *others) in asked:
        assert first == "training"
        assert set(others) == (inferred if components == 10 else set())
    assert {components for components, _ in asked} == {1, 10}


def test_help_shows_every_bracket():
    """Rich takes [n, D] for a style, and drops it."""
    for name, command in typer.main.get_command(app).commands.items():
        for parameter in command.params:
            text = parameter.help or ""
            assert Text.from_markup(text).plain == text.replace("\\[", "["), (name, parameter.name)


def test_results_are_named_after_the_file_or_folder_however_it_is_given(tmp_path, monkeypatch):
    inner = tmp_path / "walks_0.2" / "inner"
    inner.mkdir(parents=True)
    (inner / "rows.v2.csv").write_text("1")
    monkeypatch.chdir(inner)
    given = {".": "inner", "..": "walks_0.2", "../../walks_0.2/": "walks_0.2"}
    for path, name in {**given, "rows.v2.csv": "rows.v2"}.items():
        assert cli._named_after(Path(path), "runs") == Path("runs") / name


def test_numbers_in_the_help_are_those_of_the_figures(call):
    shown = " ".join(call("figure", "--help")[1].split())
    for number in FIGURES:
        assert re.search(rf"\b{number}\b", shown), number
