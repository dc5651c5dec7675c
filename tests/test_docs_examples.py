"""Every command of the documentation is run: here, made small by options put behind it, or by CI,
whose script holds the set-up. Links lead somewhere.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import virl_tf

import numpy as np
import pytest
import typer

from experiments.cli import app
from experiments.documentation.doc_tables import find_pages
from experiments.tuning.study import StudySpecification
from experiments.user_functions import load_outcome, load_support

from . import arm, postgres, tiny

ROOT = Path(__file__).parent.parent
# In the order in which their commands are run: each goes on from those before it.
ORDER = (
    "README.md",
    "docs/usage.md",
    "docs/own-demonstrations.md",
    "docs/trajectories.md",
    "docs/contexts.md",
    "docs/paper-experiments.md",
    "docs/beyond-the-paper.md",
    "docs/studies.md",
    "docs/benchmarks.md",
    "docs/recipes.md",
    "docs/when-something-goes-wrong.md",
    "docs/from-the-paper-to-the-code.md",
    "docs/decisions.md",
    "docs/decisions-densities.md",
    "docs/decisions-policies.md",
    "docs/decisions-contexts.md",
    "docs/index.md",
    "CONTRIBUTING.md",
)
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ORDER}
TEXT = "\n".join(PAGES.values())
EXPERIMENTS = "python -m experiments "
# What no study searches, and all that is small.
FEW = tiny.set_words("training.num_epochs=2", "loop.num_iterations=2", "loop.num_negatives=500")
TINY = [*FEW, *tiny.set_words("policy.update_steps=2")]
NETWORK = ["--set", "network.layer_size=8"]
ONE = ["--preset", "smoke", "--seeds", "0", "--workers", "1"]
ABLATION = ["--rewards-only", "--seeds", "0", "--workers", "1", *TINY, *NETWORK]
STUDY = ["--preset", "smoke", "--modes", "3"]
# The first words of a command -> what makes it small. Of an option given twice the last one counts.
SMALL = {
    "run gaussians": ["--preset", "smoke", *TINY, *NETWORK],
    "run grid_walker": ["--preset", "smoke", "--steps", "3", *TINY, *NETWORK],
    "run path_planning": ["--preset", "smoke", "--steps", "4", *TINY, *NETWORK],
    "fit": [],
    "play": ["--runs", "20", *TINY, *NETWORK],
    "judge": ["--splits", "1", *TINY, *NETWORK],
    "infer": ["--fixed", "--steps", "5", "--samples", "30"],
    "sweep gaussians": [*ONE, "--modes", "5", *TINY, *NETWORK],
    "sweep grid_walker": [*ONE, *TINY, *NETWORK],
    "sweep path_planning": [*ONE, *TINY, *NETWORK],
    "sweep obstacles": [*ONE, *TINY, *NETWORK],
    "sweep waving_experts": [*ONE, *TINY, *NETWORK],
    "sweep experts": [*ONE, *TINY, *NETWORK],
    "sweep obstacle_field": [*ONE, "--steps", "2", *TINY, *NETWORK],
    "sweep hall": [*ONE, "--modes", "3", *TINY, *NETWORK],
    # In D = 20 a policy takes minutes; test_ablation_command infers one.
    "ablate": ["--only", "best", *ABLATION],
    "ablate gaussians --table open_choices": ["--only", "paper", *ABLATION],
    "ablate gaussians --table method_ablations": ["--only", "virl", *ABLATION],
    "ablate grid_walker --table method_ablations": ["--only", "virl", *ABLATION],
    "rank-budgets": [
        *("--presets", "smoke,quick", "--points", "3", "--modes", "3", "--seeds", "0"),
        *("--workers", "1", *FEW),
    ],
    "tune": [*STUDY, "--trials", "16", "--workers", "1", *FEW],
    "compare": [*STUDY, "--seeds", "100", "--workers", "1"],
    "study-plots": STUDY,
    "figure": [],
    "record": [],
    "claims": [],
    "report": [],
    "docs": [],
    "doc-tables": ["--check"],
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
    names = [name for name in SMALL if arguments[: len(name.split())] == name.split()]
    return SMALL[max(names, key=len)]


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
                "ruff format .",
                "python -m build",
                "twine check --strict dist/*",
            ), command


def ways_round_a_disc():
    """80 paths [80, 20, 2] from one corner to the other, past the middle on either side."""
    rng, s = np.random.default_rng(0), np.linspace(0.0, 1.0, 20)[:, None]
    aside = rng.choice([-1.0, 1.0], (80, 1, 1)) * rng.normal(0.3, 0.03, (80, 1, 1))
    return s * [1.0, 1.0] + aside * np.sin(np.pi * s) * [1.0, -1.0]


@pytest.mark.slow
def test_every_command_of_the_experiments_runs(call, tmp_path, request):
    """In order, in one folder, because each goes on from those before it."""
    demonstrations, _ = virl_tf.tasks.RandomGaussians(10, seed=0).exact_samples(2000, seed=0)
    np.save(tmp_path / "demos.npy", demonstrations)
    np.save(tmp_path / "paths.npy", ways_round_a_disc())
    (tmp_path / "free.py").write_text(python_blocks("docs/trajectories.md")[0])
    (tmp_path / "world.py").write_text(python_blocks("docs/trajectories.md")[1])
    (tmp_path / "outcome.py").write_text(python_blocks("docs/own-demonstrations.md")[1])
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")  # for the pre-trained rewards
    done = set()
    for arguments in experiments_commands():
        if any("USER:PASSWORD@HOST" in argument for argument in arguments):
            if postgres.reason_to_skip() is not None:
                continue
            url = request.getfixturevalue("postgres").new_database()
            arguments = [url if "USER:PASSWORD" in argument else argument for argument in arguments]
        if arguments[0] == "docs":
            pytest.importorskip("mkdocs", reason="extra `docs`")
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


def python_blocks(name):
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", PAGES[name], re.DOTALL | re.MULTILINE)


def test_every_page_is_tested():
    assert {path.relative_to(ROOT).as_posix() for path in find_pages()} | {"CONTRIBUTING.md"} == {
        *PAGES
    }


def test_every_python_block_is_run_by_a_test():
    blocks = {name: len(python_blocks(name)) for name in PAGES if python_blocks(name)}
    recipes = blocks.pop("docs/recipes.md")  # tests/test_recipes.py
    assert recipes > 5
    assert blocks == {
        "README.md": 2,
        "docs/usage.md": 3,
        "docs/own-demonstrations.md": 3,
        "docs/trajectories.md": 2,
        "docs/contexts.md": 1,
        "docs/paper-experiments.md": 1,
    }


def run_block(block, folder):
    """Run a block in a process of its own, as a user does."""
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_example_of_the_readme_runs(tmp_path):
    block, _ = python_blocks("README.md")
    assert len([line for line in block.splitlines() if line]) <= 15
    run_block(block, tmp_path)
    assert np.isfinite(np.loadtxt(tmp_path / "rewards.csv")).all()
    assert (tmp_path / "runs" / "mine" / "policy.npz").is_file()


@pytest.mark.slow
def test_trajectories_take_eight_lines_of_the_readme(tmp_path):
    _, block = python_blocks("README.md")
    assert len([line for line in block.splitlines() if line]) <= 8
    np.save(tmp_path / "paths.npy", arm.reaching(100)[0])
    run_block(f"{block}\nassert draws.shape == (100, 30, 5)\n", tmp_path)


def test_the_constraint_on_trajectories_is_one(tmp_path, monkeypatch):
    block, _ = python_blocks("docs/trajectories.md")
    assert len([line for line in block.splitlines() if line]) <= 10
    paths = ways_round_a_disc()
    encoding = virl_tf.fit_encoding(paths)
    (tmp_path / "runs" / "paths").mkdir(parents=True)
    virl_tf.save_encoding(tmp_path / "runs" / "paths" / "encoding.npz", encoding)
    (tmp_path / "free.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    straight = np.linspace(0.0, 1.0, 20)[:, None] * [1.0, 1.0]
    codes = encoding.encode([*paths[:5], straight, straight[::-1]])
    free = load_support("free.py").function(codes)
    np.testing.assert_array_equal(free, [True] * 5 + [False, False])


@pytest.mark.slow
def test_the_example_of_usage_runs(tmp_path):
    run_block(python_blocks("docs/usage.md")[0], tmp_path)
    assert (tmp_path / "reward.keras").is_file()
    assert (tmp_path / "runs" / "mine" / "policy.npz").is_file()


@pytest.mark.slow
def test_the_example_of_own_demonstrations_runs(tmp_path):
    np.save(tmp_path / "demos.npy", np.random.default_rng(0).standard_normal((300, 2)))
    run_block(python_blocks("docs/own-demonstrations.md")[0], tmp_path)


@pytest.mark.slow
def test_the_example_of_contexts_takes_ten_lines(tmp_path):
    (block,) = python_blocks("docs/contexts.md")
    assert len([line for line in block.splitlines() if line]) <= 11
    rng = np.random.default_rng(0)
    goals = rng.uniform(-1.0, 1.0, (300, 1))
    np.save(tmp_path / "goals.npy", goals)
    np.save(tmp_path / "paths.npy", goals * [1.0, 2.0] + 0.3 * rng.standard_normal((300, 2)))
    run_block(block, tmp_path)


def test_the_support_of_own_demonstrations_is_one(tmp_path):
    (tmp_path / "free.py").write_text(python_blocks("docs/own-demonstrations.md")[2])
    inside = load_support(str(tmp_path / "free.py")).function(np.array([[0.0, 0.05], [1.0, 0.0]]))
    np.testing.assert_array_equal(inside, [False, True])


def test_the_outcome_of_own_demonstrations_is_one(tmp_path):
    (tmp_path / "outcome.py").write_text(python_blocks("docs/own-demonstrations.md")[1])
    function = load_outcome(str(tmp_path / "outcome.py")).function
    x = np.random.default_rng(0).normal(size=(50, 2))
    assert function(x, x) == {"inside": 1.0}
    assert function(np.stack([x, x + 99.0]), np.stack([x, x])) == {"inside": 0.5}


def test_the_pretrained_rewards_are_loaded_as_the_page_says(monkeypatch):
    monkeypatch.chdir(ROOT)
    exec(python_blocks("docs/usage.md")[1], {})


@pytest.mark.slow
def test_what_is_exported_is_loaded_as_the_page_says(tmp_path):
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    run_block(python_blocks("docs/usage.md")[2], tmp_path)
    assert {"walker_reward", "walker_policy"} <= {path.name for path in tmp_path.iterdir()}


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
        exec(python_blocks("docs/paper-experiments.md")[0], names)
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


# --- what the pages are ---------------------------------------------------------------------------


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text):
    """Of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.replace(" ", "-") for title in words}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files_and_headings_that_exist(name):
    folder = (ROOT / name).parent
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(PAGES[name]))
    for link in links:
        if link.startswith(("http://", "https://")):
            continue
        target, _, anchor = link.partition("#")
        path = (folder / target).resolve() if target else ROOT / name
        assert path.exists(), link
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), link


def test_every_page_is_linked_from_the_readme_and_the_index():
    for start in ("README.md", "docs/index.md"):
        linked = {Path(link).name for link in re.findall(r"\]\(([^)#]+)", PAGES[start])}
        missing = {Path(name).name for name in PAGES} - linked - {"README.md", "index.md"}
        assert not missing, start


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_short_and_their_lines_fit(name):
    most = {"README.md": 150, "CONTRIBUTING.md": 120}.get(name, 300)
    assert len(PAGES[name].splitlines()) <= most
    lines = without_code(PAGES[name]).splitlines()
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []


def test_every_fault_has_a_test():
    page = PAGES["docs/when-something-goes-wrong.md"]
    _, _, *rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) >= 12
    for row in rows:
        assert re.search(r"`(test_\w+|tests/test_\w+\.py)`[^|]*\|$", row), row


def test_the_documentation_is_short():
    """Without CONTRIBUTING.md and the decisions, which are looked up and grow by an entry each."""
    read = [name for name in ORDER if name != "CONTRIBUTING.md" and "decisions" not in name]
    text = "\n".join(PAGES[name] for name in read)
    rows = [line for line in without_code(text).splitlines() if not line.startswith("|")]
    assert len(" ".join(rows).split()) <= 5_900


def test_the_readme_has_one_table_of_at_most_twelve_rows():
    rows = [line for line in PAGES["README.md"].splitlines() if line.startswith("|")]
    assert 3 <= len(rows) - 2 <= 12


def test_entries_of_decisions_begin_with_the_decision():
    pages = [PAGES[name] for name in ORDER if "decisions" in name]
    entries = [
        entry for page in pages for entry in re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    ]
    assert len(entries) > 40
    assert [entry[:60] for entry in entries if not re.match(r"[\w-]+\n\n\*\*\S", entry)] == []


def test_decisions_that_comments_name_are_there():
    pages = [name.removeprefix("docs/") for name in ORDER if "decisions" in name]
    entries = {(page, entry) for page in pages for entry in anchors(PAGES[f"docs/{page}"])}
    named = set()
    code = [path for name in ("virl_tf", "experiments") for path in (ROOT / name).rglob("*.py")]
    for path in [*(ROOT / "hparams").glob("*.yaml"), *code]:
        comments = re.sub(r"\n *(# )?", " ", path.read_text(encoding="utf-8"))
        found = re.findall(r"(decisions[\w-]*\.md)(?:[:,]| \() ?([\w-]+)", comments)
        named |= set(found)
    assert len(named) > 30
    assert named <= entries


# --- the notebooks --------------------------------------------------------------------------------

# name -> (its pictures, what holds at its end)
NOTEBOOKS = {
    "the-paper": (
        *(3, "assert distances['new policy, 10 components'] < 0.5 * distances[\n"),
        *("    'its training policy, 5 components']\n",),
    ),
    "trajectories": (
        *(3, "assert before < 0.8 < 0.95 < after\n", "assert draws.shape == (500, 30, 2)\n"),
    ),
    "a-study": (
        *(3, "assert len(trials) == 4\n", "assert trials.loc[0, 'state'] == 'COMPLETE'\n"),
        "assert means.loc['published', 'mean'] < means.loc['found', 'mean']\n",
    ),
}


def notebook_cells(name):
    """The code cells of a notebook."""
    content = (ROOT / "docs" / f"{name}.ipynb").read_text(encoding="utf-8")
    return [cell for cell in json.loads(content)["cells"] if cell["cell_type"] == "code"]


def test_every_notebook_is_tested():
    assert {path.stem for path in (ROOT / "docs").glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_shows_its_pictures(name):
    outputs = [output for cell in notebook_cells(name) for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == NOTEBOOKS[name][0]
    assert "Traceback" not in str(outputs)
    assert "/" not in str([output.get("text") for output in outputs]).replace("\\n", "")
    path = ROOT / "docs" / f"{name}.ipynb"
    assert path.stat().st_size < 500_000
    for link in re.findall(r"\]\(([^)\s#]+\.md)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).is_file(), link


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name, tmp_path):
    code = "\n".join("".join(cell["source"]) for cell in notebook_cells(name))
    check = "".join(NOTEBOOKS[name][1:])
    run_block(f"import matplotlib\nmatplotlib.use('Agg')\n{code}\n{check}", tmp_path)
