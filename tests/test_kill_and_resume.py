"""Real runs, stopped at random moments and started again, end with the bytes of a run that was
never stopped.

Half an hour on 2 cores, with 30 kills per method (15 on each task; VIRL_TF_KILLS sets another
number per method and task):

    pytest -m slow -s tests/test_kill_and_resume.py
"""

import json
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests import tiny

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
KILLS = int(os.environ.get("VIRL_TF_KILLS", "15"))
MOST_IN_A_ROW = 5  # kills of one run, before it may end
TASKS = {"gaussians": ["--modes", "5"], "grid_walker": ["--steps", "3"]}
METHODS = ["virl", "geim", "eim"]
ITERATIONS = 40
OVERRIDES = ["network.layer_size=8", "network.batch_norm=false", "training.num_epochs=2"]
OVERRIDES += ["kde.bandwidth=0.3", "policy.update_steps=2", "loop.num_negatives=500"]
# V-IRL's runs end with a pooling.
OVERRIDES += [f"loop.num_iterations={ITERATIONS}", "loop.mixture_average=true"]
BOTH = pytest.mark.parametrize(
    ("task", "method"), [(task, method) for task in TASKS for method in METHODS]
)


class Running(NamedTuple):
    """A run in a process of its own."""

    process: subprocess.Popen
    log: Path
    out: Path

    def iterations(self) -> int:
        """Lines of progress so far."""
        return sum(
            line.startswith("t ") for line in self.log.read_text(encoding="utf-8").splitlines()
        )

    def did_all_iterations(self) -> bool:
        """In this process or an earlier one."""
        return (self.out / "checkpoints" / f"state-{ITERATIONS:05d}.npz").exists()

    def wait_until(self, condition):
        """Until `condition` holds or the process is at its end."""
        deadline = time.monotonic() + 300
        while self.process.poll() is None and not condition():
            assert time.monotonic() < deadline, self.log.read_text(encoding="utf-8")
            time.sleep(0.005)

    def end(self) -> int:
        return self.process.wait(timeout=300)


class Whole(NamedTuple):
    """A run that nothing stopped, and how long it took."""

    out: Path
    duration: float  # seconds from its first output to its end
    iteration: float
    closing: float  # from its last iteration to its end


def start(task: str, method: str, out: Path, number: int = 0) -> Running:
    log = out.parent / f"{out.name}-{number}.log"
    command = ["run", task, *TASKS[task], "--method", method, "--preset", "smoke"]
    command += ["--components", "2", *tiny.set_words(*OVERRIDES), "--out", str(out)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "experiments", *command], cwd=ROOT, stdout=file, stderr=file
        )
    return Running(process, log, out)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    @cache
    def run(task: str, method: str) -> Whole:
        out = tmp_path_factory.mktemp("whole") / f"{task}-{method}"
        running = start(task, method, out)
        running.wait_until(lambda: running.log.stat().st_size > 0)
        first_output = time.monotonic()
        running.wait_until(lambda: running.iterations() >= 1)
        first_iteration = time.monotonic()
        running.wait_until(lambda: running.iterations() >= ITERATIONS)
        last_iteration = time.monotonic()
        iteration = (last_iteration - first_iteration) / (ITERATIONS - 1)
        assert running.end() == 0, running.log.read_text(encoding="utf-8")
        end = time.monotonic()
        return Whole(out, end - first_output, iteration, end - last_iteration)

    return run


def content(out: Path) -> dict[str, object]:
    """All that a run leaves, byte by byte, but for its timings and pictures."""
    names = ["metrics.csv", "reward.keras", *sorted(p.name for p in out.glob("*.npz"))]
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    del summary["cpu_seconds"]
    return {
        **{name: (out / name).read_bytes() for name in names},
        "summary": summary,
        "checkpoints": [
            p.read_bytes() for p in sorted((out / "checkpoints").glob("state-*.npz"))[-2:]
        ],
    }


def same_content(found: Path, expected: Path):
    found, expected = content(found), content(expected)
    assert list(found) == list(expected)
    assert [name for name in found if found[name] != expected[name]] == []


def random_moment(running: Running, rng: np.random.Generator, whole: Whole):
    """Any time from the first output to the end, or in the next three iterations, or after the last
    one.
    """
    running.wait_until(lambda: running.log.stat().st_size > 0)
    kind = rng.choice(3, p=[0.4, 0.4, 0.2])
    if kind == 0:
        time.sleep(rng.uniform(0.0, whole.duration))
    elif kind == 1:
        running.wait_until(lambda: running.iterations() >= 1)
        time.sleep(rng.uniform(0.0, 3.0 * whole.iteration))
    else:
        running.wait_until(running.did_all_iterations)
        time.sleep(rng.uniform(0.0, whole.closing))


@BOTH
def test_killed_runs_end_with_the_same_bytes(task, method, whole, tmp_path):
    expected = whole(task, method)
    rng = np.random.default_rng([list(TASKS).index(task), METHODS.index(method)])
    phases, chains = (
        {"before an iteration": 0, "between and in iterations": 0, "after the last": 0},
        0,
    )
    while sum(phases.values()) < KILLS:
        out = tmp_path / f"run-{chains}"
        chains, in_a_row = chains + 1, 0
        while True:
            running = start(task, method, out, in_a_row)
            if in_a_row < MOST_IN_A_ROW and sum(phases.values()) < KILLS:
                random_moment(running, rng, expected)
            else:
                running.wait_until(lambda: False)
            if running.process.poll() is not None:
                break
            running.process.kill()
            running.end()
            in_a_row += 1
            phases[
                list(phases)[2 if running.did_all_iterations() else min(1, running.iterations())]
            ] += 1
        assert running.end() == 0, running.log.read_text(encoding="utf-8")
        same_content(out, expected.out)
    kills = sum(phases.values())
    print(f"\n{task} {method}: {kills} kills in {chains} runs ({phases}); all bytes equal")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
@pytest.mark.parametrize(
    ("task", "method"), [("gaussians", "virl"), ("grid_walker", "geim"), ("gaussians", "eim")]
)
def test_a_stopped_run_says_how_to_go_on_and_ends_with_the_same_bytes(
    task, method, signum, whole, tmp_path
):
    expected, stopped = whole(task, method), 0
    rng = np.random.default_rng([signum, METHODS.index(method)])
    for number in range(5):
        out = tmp_path / f"run-{number}"
        for attempt in range(4):
            running = start(task, method, out, attempt)
            if attempt < 3:
                random_moment(running, rng, expected)
                running.process.send_signal(signum)
            status, shown = running.end(), running.log.read_text(encoding="utf-8")
            if (out / "summary.json").is_file():  # the signal, if any, came after the work was done
                break
            assert status == 130, shown
            assert "the same command continues from the last finished iteration" in shown
            assert "Traceback" not in shown
            stopped += 1
        same_content(out, expected.out)
        if stopped:
            break
    print(f"\n{task} {method}: stopped {stopped} times; all bytes equal")
    assert stopped > 0
