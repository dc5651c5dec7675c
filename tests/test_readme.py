"""Every command in the README is run: here, made small by options put behind it, or by CI, whose
script holds the set-up.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer

import virl_tf
from experiments.cli import app
from experiments.figures.figure_2b import LABELS
from experiments.tuning.study import StudySpecification

from . import postgres

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
EXPERIMENTS = "python -m experiments "
TINY = [
    *(
        "--set",
        "training.num_epochs=2",
        "--set",
        "loop.num_iterations=2",
        "--set",
        "loop.num_negatives=500",
    ),
    *("--set", "policy.update_steps=2"),
]
NETWORK = ["--set", "network.layer_size=8"]
ONE = ["--preset", "smoke", "--seeds", "0", "--workers", "1"]
STUDY = ["--preset", "smoke", "--size", "3"]
# The first words of a command -> what makes it small. Of an option given twice the last one counts.
SMALL = {
    "run gaussians": ["--preset", "smoke", *TINY, *NETWORK],
    "run grid_walker": ["--preset", "smoke", "--steps", "3", *TINY, *NETWORK],
    "run path_planning": ["--preset", "smoke", "--steps", "4", *TINY, *NETWORK],
    "fit": [],
    "infer": ["--fixed", "--steps", "5", "--samples", "30"],
    "sweep gaussians": [*ONE, "--modes", "5", *TINY, *NETWORK],
    "sweep grid_walker": [*ONE, *TINY, *NETWORK],
    "sweep path_planning": [*ONE, *TINY, *NETWORK],
    # In D = 20 a policy takes minutes; test_ablation_command infers one.
    "ablate": [
        "--only",
        "best",
        "--rewards-only",
        "--seeds",
        "0",
        "--workers",
        "1",
        *TINY,
        *NETWORK,
    ],
    "tune": [*STUDY, "--trials", "16", "--workers", "1", *TINY],
    "compare": [*STUDY, "--seeds", "100", "--workers", "1"],
    "study-plots": STUDY,
    "figure": [],
    "claims": [],
    "report": [],
    "docs": [],
    "benchmark": ["steps", "--repeats", "1"],
}


def shell_commands():
    """Every command of the bash blocks, in order, without comments."""
    lines = "\n".join(
        re.findall(r"^```bash\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    ).splitlines()
    return [
        part.strip() for line in lines if line for part in line.partition("  #")[0].split(" && ")
    ]


def experiments_commands():
    """Those of the experiments, as lists of arguments."""
    found = [command.removeprefix(".venv/bin/") for command in shell_commands()]
    return [
        shlex.split(command.removeprefix(EXPERIMENTS))
        for command in found
        if command.startswith(EXPERIMENTS)
    ]


def inline_commands():
    """`python -m experiments ...` within sentences and tables, as lists of arguments."""
    return [shlex.split(command) for command in re.findall(rf"`{EXPERIMENTS}([^`]+)`", TEXT)]


def parsed(arguments):
    """The command that these arguments are for, and its own arguments.

    Fails where there is no such command.
    """
    group = typer.main.get_command(app)
    assert arguments[0] in group.commands, arguments
    return group.commands[arguments[0]], arguments[1:]


def small(arguments):
    """The options behind a command that make it small."""
    (name,) = [name for name in SMALL if arguments[: len(name.split())] == name.split()]
    return SMALL[name]


@pytest.mark.parametrize("arguments", experiments_commands(), ids=" ".join)
def test_commands_of_the_experiments_can_be_called(arguments):
    command, rest = parsed(arguments)
    command.make_context(
        arguments[0], list(rest)
    )  # raises for an unknown option, or a missing argument
    command.make_context(arguments[0], [*rest, *small(arguments)])


@pytest.mark.parametrize("arguments", inline_commands(), ids=" ".join)
def test_commands_in_sentences_have_the_options_they_name(arguments):
    command, rest = parsed(arguments)
    known = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    assert {word for word in rest if word.startswith("--")} <= known


def test_other_commands_are_those_of_ci_extras_and_tests():
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    extras = set(
        re.findall(
            r'^        "(\w+)": \[', (ROOT / "setup.py").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    for command in shell_commands():
        extra = re.fullmatch(r"pip install '\.\[(\w+)\]'", command)
        if EXPERIMENTS in command or command in ci:
            continue
        if extra:
            assert extra[1] in extras
        elif command.startswith(
            "optuna-dashboard "
        ):  # a server that never ends; what it is given must be what `tune` makes
            study = StudySpecification("gaussians", "virl", 10, 50, "quick", (0,), ())
            assert command.endswith(f" sqlite:///studies/{study.name}/study.db")
        else:
            assert command.startswith(
                ("pytest ", "VIRL_TF_EXAMPLES=20 pytest ", "tensorboard ")
            ) or command in (
                "pip install optuna-dashboard",
                "source .venv/bin/activate",
            ), command


@pytest.mark.slow
def test_every_command_of_the_experiments_runs(call, tmp_path, request):
    """In order, in one folder, because each goes on from those before it."""
    demonstrations, _ = virl_tf.tasks.RandomGaussians(10, seed=0).exact_samples(2000, seed=0)
    np.save(tmp_path / "demos.npy", demonstrations)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")  # for the pre-trained rewards
    done = set()
    for arguments in experiments_commands():
        if any("USER:PASSWORD@HOST" in argument for argument in arguments):
            if postgres.reason_to_skip() is not None:
                continue
            url = request.getfixturevalue("postgres").new_database()
            arguments = [url if "USER:PASSWORD" in argument else argument for argument in arguments]
        if arguments[0] == "docs":
            pytest.importorskip("pdoc", reason="extra `docs`")
        if tuple(arguments) in done:
            continue
        done.add(tuple(arguments))
        status, _, error = call(*arguments, *small(arguments), cwd=tmp_path)
        assert status == 0, f"{arguments}: {error}"
    result = virl_tf.load(tmp_path / "runs" / "demos")
    assert np.isfinite(result.reward(demonstrations)).all()
    assert (tmp_path / "runs" / "demos" / "reward.png").is_file()
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
    for number in ("1", "2a", "2b", "3", "4", "5", "7"):
        assert (tmp_path / "figures" / f"figure_{number}.png").is_file(), number


@pytest.mark.slow
def test_pytest_and_tensorboard_take_what_they_are_given(tmp_path):
    for command in shell_commands():
        words = [word for word in shlex.split(command) if "=" not in word]
        if words[0] == "pytest":
            done = subprocess.run(
                [sys.executable, "-m", *words, "--collect-only"],
                cwd=ROOT,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout
        if words[0] == "tensorboard" and shutil.which("tensorboard"):
            (tmp_path / "runs").mkdir()
            done = subprocess.run(
                [*words, "--inspect"], cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr


# Rows of the README's table of the Gaussians -> (stage, method, components) in results.csv.
INFERENCE = {
    "inference": "new policy of m components on that reward",
    "inference_search": "the same with components that come and go",
}
GAUSSIAN_ROWS = {
    f"{label} {components}c, {what}": (stage, method, components)
    for method, label in LABELS.items()
    for components in (1, 10)
    for stage, what in {
        "training": "recovered reward",
        **({"training_policy": "policy"} if method != "eim" else {}),
        **(INFERENCE if method != "eim" and components == 10 else {}),
    }.items()
} | {
    "KDE alone, bandwidth 0.215": ("reference", "kde", 0),
    "KDE alone, held-out bandwidth": ("reference", "kde_held_out", 0),
    "EM, m components": ("reference", "em", 0),
    "EM, 10 components": ("reference", "em_10c", 0),
    "EM, components by BIC": ("reference", "em_bic", 0),
    "best possible 1c": ("reference", "best_1c", 0),
    "best possible 10c": ("reference", "best_10c", 0),
}


def gaussian_cell(frame, modes, stage, method, components):
    """'0.050 (0.043 - 0.059)': mean, lowest and highest over the seeds."""
    keys = {"modes": modes, "stage": stage, "method": method, "components": components}
    rows = frame[np.logical_and.reduce([frame[name] == value for name, value in keys.items()])]
    values, diverged = rows["reported"], int((rows["status"] == "diverged").sum())
    if not len(values):
        return "not run"
    few = f", {len(values)} of 3 seeds" if len(values) < 3 else ""
    return f"{values.mean():.3f} ({values.min():.3f} - {values.max():.3f}){few}{f', {diverged} diverged' if diverged else ''}"


def test_the_table_of_the_gaussians_is_that_of_the_results():
    frame = pd.read_csv(ROOT / "experiments" / "results" / "gaussians" / "results.csv")
    for label, key in GAUSSIAN_ROWS.items():
        cells = [gaussian_cell(frame, modes, *key) for modes in (5, 20, 50)]
        assert f"| {label} | {' | '.join(cells)} |" in TEXT


def python_block(containing):
    """The one Python block of the README with these words."""
    (block,) = [
        block
        for block in re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
        if containing in block
    ]
    return block


def test_every_python_block_is_run_by_a_test():
    blocks = re.findall(r"^```python\n", TEXT, re.MULTILINE)
    recipes = re.search(r"^## Recipes\n(.*?)^## ", TEXT, re.DOTALL | re.MULTILINE)[1].count(
        "```python\n"
    )  # tests/test_recipes.py
    here = [python_block(words) for words in ("SLURMCluster", "load_reward(")]
    # Recipes are run by tests/test_recipes.py, one block by `test_readme_python_example_runs`.
    assert len(blocks) == recipes + len(here) + 1


SBATCH = """#!/bin/sh
folder=$(dirname "$0")
cp "$1" "$(mktemp "$folder/job-XXXXXX")"
echo "Submitted batch job 7"
"""


def test_the_slurm_cluster_asks_for_jobs_with_single_threaded_workers(tmp_path, monkeypatch):
    pytest.importorskip("dask_jobqueue", reason="extra `cluster`")
    for name, script in (("sbatch", SBATCH), ("scancel", "#!/bin/sh\n")):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    names = {}
    try:
        exec(python_block("SLURMCluster"), names)
        cluster = names["cluster"]
        cluster.sync(cluster._correct_state)
        scripts = [path.read_text() for path in tmp_path.glob("job-*")]
        assert len(scripts) == 8
        assert cluster.scheduler_address.startswith("tcp://")
        for script in scripts:
            assert (
                "export OMP_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1"
                in script
            )
            assert "--nworkers 16" in script
    finally:
        if "cluster" in names:
            names["cluster"].close()
