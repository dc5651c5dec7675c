"""The package as it is installed, and what its documents promise."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

from virl_tf.version import VERSION

import pytest

from experiments.doc_tables import find_pages

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, unpacked where an installation would put it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # a copy, because building leaves files beside setup.py
    source.mkdir()
    for name in (
        "setup.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "virl_tf",
        "experiments",
        "hparams",
    ):
        subprocess.run(["cp", "-r", str(ROOT / name), str(source)], check=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True)
    installed = folder / "site"
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(installed)
    return installed


def test_wheel_holds_code_and_hyperparameters(wheel):
    names = {str(path.relative_to(wheel)) for path in wheel.rglob("*") if path.is_file()}
    assert {
        "virl_tf/fit.py",
        "experiments/__main__.py",
        "virl_tf/hparams_files/defaults.yaml",
    } <= names
    assert {
        f"virl_tf/hparams_files/{path.name}" for path in (ROOT / "hparams").glob("*.yaml")
    } <= names
    assert not any(name.startswith("tests/") for name in names)


def test_wheel_works_outside_the_checkout(wheel, tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import virl_tf, virl_tf.hparams as h; "
        "assert virl_tf.__file__.startswith(sys.argv[1]), virl_tf.__file__; "
        "print(h.DIRECTORY); print(h.published('gaussians', 'virl_10c')['policy']['update_steps'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(wheel)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(wheel / "virl_tf" / "hparams_files"), "162"]


def test_wheel_has_the_command_virl_which_needs_no_checkout(wheel, tmp_path):
    (metadata,) = wheel.glob("*.dist-info/entry_points.txt")
    assert "virl = experiments.cli:main" in metadata.read_text()
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); sys.argv[0] = 'virl'; "
    code += "from experiments.cli import main; main()"

    def virl(*arguments):
        command = [sys.executable, "-c", code, str(wheel), *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert virl("--version").stdout == f"virl_tf {VERSION}\n"
    assert "Usage: virl run" in virl("run", "--help").stdout
    planned = virl("sweep", "gaussians", "--dry-run", "--workers", "1")
    assert "42 to do" in planned.stdout
    assert "on 1 worker, by the committed runs" in planned.stdout
    assert "only a checkout of the repository holds results" in virl("figure", "1").stderr
    assert list(tmp_path.iterdir()) == []


def test_ci_runs_the_readme_command():
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks[1].strip() in (ROOT / ".ci" / "run").read_text()


def test_lock_file_pins_every_dependency():
    pinned = set(
        re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    )
    text = re.search(r"install_requires=\[(.*)\]", (ROOT / "setup.py").read_text(), re.DOTALL)[1]
    # Extras that a user adds; their tests are skipped without them.
    text = re.sub(r'"(parquet|tensorboard|gymnasium|browser|bench)": \[[^\]]*\]', "", text)
    wanted = re.findall(r'"([A-Za-z0-9_.-]+)(?:>=[^"]*)?"(?!:)', text)
    assert {"tensorflow", "tf-keras", "distributed", "pytest"} <= set(wanted)
    assert {name.lower() for name in wanted} <= {name.lower() for name in pinned}


@pytest.fixture(scope="module")
def documentation():
    """README, docs/ and CONTRIBUTING in one text."""
    paths = [*find_pages(), ROOT / "CONTRIBUTING.md"]
    return "".join(path.read_text(encoding="utf-8") for path in paths)


def test_documentation_names_only_files_that_exist(documentation):
    names = re.findall(r"`((?:virl_tf|hparams|tests|experiments)/[\w./-]+)`", documentation)
    assert len(names) > 10
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_documentation_names_only_tests_that_exist(documentation):
    tests = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", documentation))
    assert len(named) > 10
    assert {name for name in named if f"def {name}(" not in tests} == set()
