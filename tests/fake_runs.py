"""Studies with short heartbeats and runs that only count: the command line, `python -m
tests.fake_runs tune ...`, or one worker.

A run makes a file per iteration, like a checkpoint, with the process that did it in it; what is
there is not done again. Dask's workers import this module anew, as `__mp_main__`, so that they have
the same replacements.
"""

import math
import os
import signal
import sys
import time
from pathlib import Path
from types import ModuleType

from experiments.tuning import storage, study, tune_command

SIZE, ITERATIONS = 3, 5
SPECIFICATION = study.StudySpecification(
    "gaussians",
    "virl",
    2,
    SIZE,
    "smoke",
    (0,),
    (f"loop.num_iterations={ITERATIONS}", "loop.num_negatives=500"),
)
COMMAND = ["gaussians", "--components", "2", "--modes", str(SIZE), "--preset", "smoke"]
COMMAND += [part for assignment in SPECIFICATION.assignments for part in ("--set", assignment)]
SECONDS = os.environ.get("FAKE_SECONDS", "0")  # of an iteration; "real": the runs are real ones
DEADLY = os.environ.get("FAKE_DEADLY", "none")  # runs in such folders kill their process


def execute(run, out: Path, *, progress=True, observers=()) -> dict:
    """In place of `experiments.runs.execute`."""
    out.mkdir(parents=True, exist_ok=True)
    value = 1.0 + math.log10(run.hparams.training.learning_rate / 5e-5)
    for t in range(run.hparams.loop.num_iterations):
        if (out / f"step-{t}").is_file():
            continue
        time.sleep(float(SECONDS))
        (out / f"step-{t}").write_text(str(os.getpid()))
        if out.name.startswith(DEADLY) and t == 1:
            (out / "step-1").unlink()
            (out / f"killed-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        for observer in observers:
            observer(None, {"t": t, "i_projection_reward": value})
    with (out / "finished").open("a") as file:
        file.write("once\n")
    return summary(value)


def summary(value: float, status: str = "finished") -> dict:
    """What a study reads of a run's summary."""
    return {
        "task": "gaussians",
        "status": status,
        "i_projection": {"reward": {"reported": value}},
        "cpu_seconds": {"process": 0.0},
    }


# Heartbeats that tests can wait for; SQLite's clock has whole seconds.
REPLACEMENTS = [
    (storage, "HEARTBEAT_SECONDS", 1),
    (storage, "GRACE_SECONDS", 4),
    (study, "POLL_SECONDS", 0.2),
    (storage, "RETRIES", int(os.environ.get("FAKE_RETRIES", storage.RETRIES))),
    (tune_command, "POLL_SECONDS", 0.2),
]


def open_again_and_again() -> None:
    """For every URL on stdin: open its study; say what came of it."""
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            study.open_study(SPECIFICATION, storage.open_storage(line.strip()))
            print("opened", flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}".replace("\n", " "), flush=True)


if __name__ in ("__main__", "__mp_main__"):
    for module, name, value in REPLACEMENTS:
        setattr(module, name, value)
    if SECONDS != "real":  # the module itself would load TensorFlow, for seconds
        runs = ModuleType("experiments.runs")
        runs.execute = execute
        sys.modules[runs.__name__] = runs

if __name__ == "__main__":
    if sys.argv[1] == "work":
        url, trials, folder, worker = sys.argv[2:]
        study.work(SPECIFICATION, url, int(trials), Path(folder), int(worker))
    elif sys.argv[1] == "open":
        open_again_and_again()
    else:
        from experiments.cli import main

        main()
