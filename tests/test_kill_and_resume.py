"""Every command that fills a folder, stopped at random moments and started again, ends with the
bytes of one that was never stopped.

20 minutes on 2 cores with 3 kills of each kind; VIRL_TF_KILLS sets another number:

    VIRL_TF_KILLS=100 pytest -m slow -s tests/test_kill_and_resume.py -k "killed and fit"
"""

import contextlib
import csv
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from tests import arm, tiny

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
KILLS = int(os.environ.get("VIRL_TF_KILLS", "3"))  # of each kind
MOST_IN_A_ROW = 5  # kills of one run, before it may end
AFTER_A_FILE = 0.1  # seconds at most between a file and the kill that waited for it
LONGEST = 600.0  # seconds of one process

TINY = ["network.layer_size=8", "training.num_epochs=2", "policy.update_steps=2"]
TINY += ["loop.num_negatives=500", "loop.min_gain=null"]
RUN = ["--preset", "smoke", "--components", "2", "--rows", "300"]
# V-IRL's runs end with a pooling.
RUN += tiny.set_words(*TINY, "loop.num_iterations=6", "loop.mixture_average=true")
TARGETS = {
    "gaussians": ["--modes", "3"],
    "grid_walker": ["--steps", "3"],
    "path_planning": ["--steps", "4"],
}
FIT = ["--components", "2", *tiny.set_words(*TINY, "loop.num_iterations=3")]
INFER = ["--components", "2", "--steps", "20"]
SUPPORT = "def support(x):\n    return x[:, 0] < 2.5\n"
WORLD = """
import numpy as np

class World:
    def __init__(self, n, seed):
        self.positions = np.random.default_rng(seed).normal(0.0, 0.01, (n, 2))

    def move(self, targets):
        self.positions = self.positions + 0.5 * (targets - self.positions)

    def outcome(self):
        return {"reach": self.positions.max()}
"""
UNITS = ["--workers", "1", *tiny.set_words(*TINY, "loop.num_iterations=3")]
# All that a study leaves to be set.
STUDY = ["--workers", "1", *tiny.set_words("training.num_epochs=2", "loop.num_negatives=500")]


class Kind(NamedTuple):
    """A command that fills a folder.

    Attributes:
        words: folder of inputs -> the command's, without --out.
        of: the kind whose folder it reads, which is its first argument then.
        workers: it has processes of its own, and is one itself; else it is forked from one that has
            imported TensorFlow.
    """

    words: Callable[[Path], list[Any]]
    of: str | None = None
    workers: bool = False


def run_of(task: str, method: str) -> Kind:
    return Kind(lambda _: ["run", task, *TARGETS[task], "--method", method, *RUN])


def fit_of(file: str, *options: str) -> Kind:
    return Kind(lambda site: ["fit", site / file, *options, *FIT])


def judged(file: str, *options: str) -> Kind:
    sizes = ["--components", "2,3", "--splits", "2"]
    return Kind(lambda site: ["judge", site / file, *options, *sizes, *FIT[2:]])


def inference(of: str, *options: str) -> Kind:
    return Kind(lambda site: [*INFER, *(site / o if o.endswith(".py") else o for o in options)], of)


def units(*words: str, settings: list[str] = UNITS) -> Kind:
    return Kind(lambda _: [*words, *settings], workers=True)


PATHS = ["--trajectories", "--encoding", "components", "--encoding-size", "2"]
KINDS = {
    **{
        f"run {task} {method}": run_of(task, method)
        for task in ("gaussians", "grid_walker")
        for method in ("virl", "geim", "eim")
    },
    "run path_planning virl": run_of("path_planning", "virl"),
    "fit rows": fit_of("rows.csv"),
    "fit bounds": fit_of("rows.csv", "--lower", "a=-9", "--periodic", "b=20", "--method", "eim"),
    "fit contexts": fit_of("rows.csv", "--contexts", "goal"),
    "fit trajectories": fit_of("paths.csv", "--columns", "a,b", *PATHS),
    "fit trajectories contexts": fit_of("paths.csv", "--contexts", "goal", *PATHS),
    "judge rows": judged("rows.csv"),
    "judge trajectories": judged("paths.csv", "--columns", "a,b", *PATHS),
    "play": Kind(
        lambda site: (
            ["play", site / "paths.csv", "--columns", "a,b", "--runs", "20", *FIT]
            + ["--world", site / "world.py"]
        )
    ),
    "infer search": inference("fit rows"),
    "infer fixed": inference("fit rows", "--fixed", "--samples", "20"),
    "infer support": inference("fit rows", "--support", "inside.py"),
    "infer contexts": inference("fit contexts"),
    "infer one context": inference("fit contexts", "--context", "goal=0.3", "--fixed"),
    "infer trajectories": inference("fit trajectories", "--fixed"),
    "infer obstacles": inference("run path_planning virl", "--obstacles", "0.3", "--fixed"),
    "sweep": units(
        *("sweep", "gaussians", "--preset", "smoke", "--modes", "3", "--seeds", "0"),
        *("--methods", "virl"),
    ),
    "ablate": units("ablate", "gaussians", "--only", "best", "--modes", "3", "--seeds", "100"),
    "rank-budgets": units(
        *("rank-budgets", "gaussians", "--presets", "smoke,quick", "--modes", "3"),
        *("--components", "2", "--points", "3"),
        settings=STUDY,
    ),
    "tune": units(
        *("tune", "gaussians", "--preset", "smoke", "--modes", "3"),
        *("--components", "2", "--trials", "1"),
        settings=STUDY,
    ),
}


# --- processes ------------------------------------------------------------------------------------


class Running:
    """A command in a process of its own, which leads a group."""

    def __init__(self, words: list[Any], out: Path, number: int = 0, forked: bool = False):
        """Start it.

        Args:
            number: how often this folder's command was started before.
            forked: see `Kind.workers`.
        """
        self.out, self.log = out, out.parent / f"{out.name}-{number}.log"
        words = [*map(str, words), "--out", str(out)]
        self._forked = forked
        if forked:
            self._process: Any = _forks().Process(target=_command, args=(words, str(self.log)))
            self._process.start()
        else:
            with self.log.open("wb") as file:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "experiments", *words],
                    cwd=ROOT,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                )

    @property
    def ended(self) -> bool:
        return (self._process.exitcode if self._forked else self._process.poll()) is not None

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until `condition` holds or the process is at its end."""
        deadline = time.monotonic() + LONGEST
        while not self.ended and not condition():
            assert time.monotonic() < deadline, self.shown()
            time.sleep(0.003)

    def sleep(self, seconds: float) -> None:
        """At most until its end."""
        end = time.monotonic() + seconds
        self.wait_until(lambda: time.monotonic() >= end)

    def signal(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # at its end since one looked
            os.kill(self._process.pid, signum)

    def kill(self) -> bool:
        """With its workers. Whether it was not at its end already."""
        self.signal(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return self.end() == -signal.SIGKILL

    def end(self) -> int:
        """Its exit status, once it is there."""
        if not self._forked:
            return self._process.wait(LONGEST)
        self._process.join(LONGEST)
        return self._process.exitcode

    def shown(self) -> str:
        return self.log.read_text(encoding="utf-8") if self.log.is_file() else ""


@cache
def _forks() -> Any:
    """What starts processes in which TensorFlow is imported and has done nothing yet."""
    context = multiprocessing.get_context("forkserver")
    imported = ["virl_tf.fit", "virl_tf.persistence.run_folder", "experiments.cli"]
    imported += ["experiments.own_data.fit_command", "matplotlib.pyplot"]
    context.set_forkserver_preload(imported)
    first = context.Process(target=int)  # at its end once all of them are imported
    first.start()
    first.join()
    return context


def _command(words: list[str], log: str) -> None:
    """Of a forked process, as `python -m experiments` does it."""
    os.setsid()
    os.chdir(ROOT)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    from virl_tf.persistence import run_folder

    run_folder._STARTED = time.time()  # tells what earlier processes have left
    sys.argv = ["experiments", *words]
    from experiments.cli import main

    main()


# --- what is left ---------------------------------------------------------------------------------

# Times, and what holds them.
TIMED_FILES = ("*.pdf", "seconds.json", "timings.csv", "table.md", "budgets.md")
TIMED_FILES += ("*.db", ".lock", "tensorboard/*")
PARTIAL = ".*.partial"  # what a kill leaves; of sweeps for a minute


def content(out: Path) -> dict[str, Any]:
    """All that a command leaves, but for its timings: by name, bytes, or what they say."""
    files = [path for path in sorted(out.rglob("*")) if path.is_file()]
    names = {path.relative_to(out).as_posix(): path.read_bytes() for path in files}
    return {name: said for name, data in names.items() if (said := timeless(name, data))}


def timeless(name: str, data: bytes) -> Any:
    """What a file says, without the times in it; None if there is nothing else."""
    path = Path(name)
    if any(path.match(pattern) for pattern in (*TIMED_FILES, PARTIAL)):
        return None
    if name.endswith(".json"):
        return without_seconds(json.loads(data))
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            return {member: timeless(member, file.read(member)) for member in file.namelist()}
    if path.name == "trials.csv":  # a trial for each worker that had it
        rows = list(csv.DictReader(io.StringIO(data.decode("utf-8"))))
        keys = [key for key in rows[0] if key == "value" or key.startswith("params_")]
        return [[row[key] for key in keys] for row in rows if row["state"] == "COMPLETE"]
    if name.endswith(".csv"):
        return without_seconds(list(csv.DictReader(io.StringIO(data.decode("utf-8")))))
    return data


def without_seconds(value: Any) -> Any:
    """Mappings in it lose what is named so."""
    if isinstance(value, dict):
        return {k: without_seconds(v) for k, v in value.items() if "seconds" not in str(k)}
    return [without_seconds(item) for item in value] if isinstance(value, list) else value


def same_content(found: Path, expected: Path) -> None:
    found, expected = content(found), content(expected)
    assert list(found) == list(expected)
    assert [name for name in found if found[name] != expected[name]] == []


class Whole(NamedTuple):
    """A command that nothing stopped, and how long it took."""

    words: list[Any]
    out: Path
    first: float  # seconds from its start to its first file
    duration: float
    forked: bool

    @property
    def names(self) -> list[str]:
        """Of files that come in the course of it, those of earlier iterations too."""
        files = [path for path in sorted(self.out.rglob("*")) if path.is_file()]
        last = [path for path in files if path.match("state-*.npz")]
        earlier = [
            path.with_name(f"state-{t:05d}.npz")
            for path in last
            for t in range(1, int(path.stem.split("-")[1]))
        ]
        return sorted({path.relative_to(self.out).as_posix() for path in [*files, *earlier]})


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder of demonstrations."""
    folder = tmp_path_factory.mktemp("site")
    rng = np.random.default_rng(0)
    goal, rows = rng.uniform(-1.0, 1.0, 80), rng.standard_normal((80, 2))
    frame = pd.DataFrame({"goal": goal, "a": rows[:, 0] + 2.0 * goal, "b": rows[:, 1]})
    frame.to_csv(folder / "rows.csv", index=False)
    angles, _ = arm.reaching(60, num_steps=12)
    frame = pd.DataFrame(angles[..., :2].reshape(-1, 2), columns=["a", "b"])
    frame = frame.assign(episode=np.repeat(np.arange(60), 12))
    frame.assign(goal=np.sin(frame["episode"])).to_csv(folder / "paths.csv", index=False)
    (folder / "inside.py").write_text(SUPPORT)
    (folder / "world.py").write_text(WORLD)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory, site):
    @cache
    def run(name: str) -> Whole:
        kind = KINDS[name]
        words = kind.words(site)
        if kind.of is not None:
            words = ["infer", run(kind.of).out, *words]
        out = tmp_path_factory.mktemp("whole") / name.replace(" ", "-")
        forked = not kind.workers
        if forked:
            _forks()
        start = time.monotonic()
        running = Running(words, out, forked=forked)
        running.wait_until(out.exists)
        first = time.monotonic() - start
        assert running.end() == 0, running.shown()
        return Whole(words, out, first, time.monotonic() - start, forked)

    return run


# --- kills ----------------------------------------------------------------------------------------


def random_moment(running: Running, rng: np.random.Generator, whole: Whole) -> None:
    """Soon after one of the files that are not there yet came, or at any time of what is left."""
    missing = [name for name in whole.names if not (running.out / name).exists()]
    if missing and rng.uniform() < 0.7:
        running.wait_until((running.out / missing[rng.integers(len(missing))]).exists)
        running.sleep(AFTER_A_FILE * rng.uniform() ** 3)  # the last files come close together
    else:
        left = (whole.duration - whole.first) * len(missing) / len(whole.names)
        running.sleep(whole.first + rng.uniform(0.0, left))


@pytest.mark.parametrize("name", KINDS)
def test_killed_runs_end_with_the_same_bytes(name, whole, tmp_path):
    expected, rng = whole(name), np.random.default_rng(list(KINDS).index(name))
    kills, chains = 0, 0
    while kills < KILLS:
        out, in_a_row = tmp_path / str(chains) / expected.out.name, 0
        out.parent.mkdir()
        while True:
            running = Running(expected.words, out, in_a_row, expected.forked)
            if in_a_row < MOST_IN_A_ROW and kills < KILLS:
                random_moment(running, rng, expected)
            else:
                running.wait_until(lambda: False)
            if running.ended or not running.kill():
                break
            assert "Traceback" not in running.shown(), running.shown()
            in_a_row, kills = in_a_row + 1, kills + 1
        assert running.end() == 0, running.shown()
        assert "Traceback" not in running.shown(), running.shown()
        same_content(out, expected.out)
        assert not (expected.forked and list(out.rglob(PARTIAL)))
        chains += 1
        print(f"\n{name}: {kills} kills in {chains} runs; all bytes equal", flush=True)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
@pytest.mark.parametrize(
    "name", ["run gaussians virl", "run grid_walker geim", "fit trajectories contexts"]
)
def test_a_stopped_run_says_how_to_go_on_and_ends_with_the_same_bytes(
    name, signum, whole, tmp_path
):
    expected, stopped = whole(name), 0
    rng = np.random.default_rng([signum, list(KINDS).index(name)])
    for number in range(5):
        out = tmp_path / str(number) / expected.out.name
        out.parent.mkdir()
        for attempt in range(4):
            running = Running(expected.words, out, attempt)
            if attempt < 3:
                running.wait_until(out.exists)
                running.sleep(rng.uniform(0.0, expected.duration - expected.first))
                running.signal(signum)
            status, shown = running.end(), running.shown()
            if (out / "summary.json").is_file():  # the signal, if any, came after the work was done
                break
            assert status == 130, shown
            assert "the same command continues from the last finished iteration" in shown
            assert "Traceback" not in shown
            stopped += 1
        same_content(out, expected.out)
        if stopped:
            break
    print(f"\n{name}: stopped {stopped} times; all bytes equal")
    assert stopped > 0
