"""The package as it is installed, and what its documents promise."""

import ast
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from virl_tf.version import VERSION

import pytest
import yaml
from packaging.version import Version

from experiments.documentation.doc_tables import find_pages

ROOT = Path(__file__).parent.parent
# What the tested environment holds; the others are for one purpose each, and tests of what needs
# them are skipped without them.
LOCKED_EXTRAS = {"cluster", "docs", "parquet", "postgres", "release", "test"}


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def setup_argument(name):
    """What setup.py gives to setuptools as `name`, without running it."""
    (call,) = (
        node.value
        for node in ast.parse(read("setup.py")).body
        if isinstance(node, ast.Expr) and getattr(node.value, "func", None) is not None
    )
    (value,) = (keyword.value for keyword in call.keywords if keyword.arg == name)
    return ast.literal_eval(value)


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
        f"virl_tf/hparams_files/{path.relative_to(ROOT / 'hparams').as_posix()}"
        for path in (ROOT / "hparams").rglob("*.yaml")
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


def test_a_script_beside_a_checkout_of_that_name_imports_the_package(tmp_path):
    (tmp_path / "virl_tf").symlink_to(ROOT, target_is_directory=True)
    (tmp_path / "mine.py").write_text("import virl_tf.version; print(virl_tf.__file__)\n")
    command = [sys.executable, "mine.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).name == "__init__.py"


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
    lock = read("requirements.lock")
    pinned = set(re.findall(r"^([A-Za-z0-9_.-]+)==", lock, re.MULTILINE))
    extras = setup_argument("extras_require")
    wanted = setup_argument("install_requires")
    wanted += [requirement for name in LOCKED_EXTRAS for requirement in extras[name]]
    names = {re.match(r"[\w.-]+", requirement)[0] for requirement in wanted}
    assert {"tensorflow", "tf-keras", "distributed", "pytest", "mkdocs"} <= names
    assert {name.lower() for name in names} <= {name.lower() for name in pinned}
    assert set(re.findall(r"--extra (\w+)", lock)) == LOCKED_EXTRAS


def test_the_lowest_versions_are_the_bounds():
    lines = re.findall(r"^([\w.-]+)(?:\[\w+\])?==(\S+)", read("requirements.lowest"), re.MULTILINE)
    pinned = {name.lower(): Version(version) for name, version in lines}
    extras = setup_argument("extras_require")
    wanted = setup_argument("install_requires")
    command = read("requirements.lowest").splitlines()[0]
    wanted += [r for name in re.findall(r"--extra (\w+)", command) for r in extras[name]]
    bounds = [re.fullmatch(r"([\w.-]+)(?:\[\w+\])?>=([\w.]+)", text).groups() for text in wanted]
    assert {"tensorflow", "numpy", "pytest", "distributed"} <= {name for name, _ in bounds}
    assert {name: pinned[name.lower()] for name, _ in bounds} == {
        name: Version(bound) for name, bound in bounds
    }
    lowest = re.search(r'python_requires=">=([\d.]+),', read("setup.py"))[1]
    assert f"on Python {lowest}:" in command
    assert f"--python-version {lowest} " in command


def test_every_extra_has_a_row_in_one_table():
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (yes|no) \|$", read("docs/usage.md"), re.MULTILINE)
    extras = set(setup_argument("extras_require"))
    assert dict(rows) == {name: "yes" if name in LOCKED_EXTRAS else "no" for name in extras}


def test_the_newest_entry_of_the_changelog_is_this_version():
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d$", read("CHANGELOG.md"), re.M)
    assert versions[0] == VERSION
    numbers = [tuple(map(int, version.split("."))) for version in versions]
    assert numbers == sorted(numbers, reverse=True)


def test_the_citation_is_the_papers():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert "version" not in citation, "it stands in virl_tf/version.py"
    paper = citation["preferred-citation"]
    names = [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
    for part in (paper["title"], " and ".join(names), str(paper["year"])):
        assert f"{{{part}}}" in read("README.md")


def test_the_workflow_runs_what_ci_runs_wherever_the_package_does():
    jobs = yaml.safe_load(read(".github/workflows/tests.yml"))["jobs"]
    tests = jobs["tests"]
    assert {"run": ".ci/run"} in tests["steps"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    low, high = re.search(r'python_requires=">=3\.(\d+),<3\.(\d+)"', read("setup.py")).groups()
    versions = [f"3.{minor}" for minor in range(int(low), int(high))]
    assert tests["strategy"]["matrix"]["python"] == versions
    assert tests["strategy"]["matrix"]["os"] == ["ubuntu-latest", "macos-latest"]
    for job in jobs.values():
        for named in re.findall(r"tests/\w+\.py", str(job)):
            assert (ROOT / named).is_file(), named


def test_the_container_is_made_of_what_is_here():
    lines = read("Containerfile").splitlines()
    copied = [line.split()[1] for line in lines if line.startswith("COPY")]
    assert copied == ["requirements.lock", "."]
    assert 'ENTRYPOINT ["virl"]' in lines
    for line in ("pip install -r requirements.lock", "pip install --no-deps -e ."):
        assert any(line in step for step in lines)
    assert ".git" in read(".dockerignore").splitlines()


# --- as a stranger gets it ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    """(sdist, the wheel that is built from it) of the files that git knows."""
    pytest.importorskip("build", reason="extra `release`")
    folder = tmp_path_factory.mktemp("distributions")
    source = folder / "source"
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).hardlink_to(ROOT / name)
    command = [sys.executable, "-m", "build", "--no-isolation", "-o", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


@pytest.mark.slow
def test_an_index_would_take_both(distributions):
    pytest.importorskip("twine", reason="extra `release`")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, distributions)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert [f"virl_tf-{VERSION}" in path.name for path in distributions] == [True, True]


@pytest.mark.slow
def test_both_hold_hyperparameters_and_results(distributions):
    sdist, wheel = distributions
    with tarfile.open(sdist) as archive:
        of_sdist = {name.partition("/")[2] for name in archive.getnames()}
    of_wheel = set(zipfile.ZipFile(wheel).namelist())
    hparams = {path.name for path in (ROOT / "hparams").glob("*.yaml")}
    assert {f"hparams/{name}" for name in hparams} <= of_sdist
    assert {f"virl_tf/hparams_files/{name}" for name in hparams} <= of_wheel
    results = {
        path.relative_to(ROOT).as_posix()
        for name in ("results.csv", "config.yaml")
        for path in (ROOT / "experiments" / "results").rglob(name)
    }
    assert len(results) > 10
    assert results <= of_wheel & of_sdist
    assert "virl_tf/py.typed" in of_wheel & of_sdist
    for name in ("requirements.lock", "requirements.lowest", "CHANGELOG.md", "CITATION.cff"):
        assert name in of_sdist, name
    assert "tests/conftest.py" in of_sdist
    assert not any(name.endswith(".pyc") for name in of_sdist | of_wheel)


@pytest.mark.slow
def test_the_wheel_is_installed_in_an_empty_environment(distributions, tmp_path):
    """The dependencies, which take minutes, are those of this environment, behind its own."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    python, virl = (tmp_path / "env" / "bin" / name for name in ("python", "virl"))
    command = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", distributions[1]]
    subprocess.run(command, check=True, capture_output=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    behind = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(behind))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments):
        done = subprocess.run(
            arguments, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(virl, "--version") == f"virl_tf {VERSION}\n"
    assert str(site) in run(python, "-c", "import virl_tf.fit; print(virl_tf.__file__)")
    assert "42 to do" in run(virl, "sweep", "gaussians", "--dry-run", "--workers", "1")
    small = ["--set", "loop.num_iterations=1", "--set", "training.num_epochs=2"]
    small += ["--set", "policy.update_steps=2", "--set", "loop.num_negatives=500"]
    run(virl, "run", "gaussians", "--preset", "smoke", "--modes", "3", "--rows", "200", *small)
    assert len(list(tmp_path.glob("runs/*/overview.png"))) == 1


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
