"""Whole runs, each in a process of its own: imports and compilation count, memory is the run's."""

import contextlib
import io
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import virl_tf
from virl_tf.hparams import default_hparams, known, rows_per_batch
from virl_tf.metrics import grid_around
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.tasks import RandomGaussians
from virl_tf.vips.vips import default_samples

import numpy as np
import pandas as pd

from experiments.benchmark.timing import Row, ceiling, forward_gflop, in_a_process, training_gflop
from experiments.runs import demonstrations, execute
from experiments.specification import RunRequest, Specification, published_column
from experiments.tasks import experiment_of

METHODS = ("virl", "geim", "eim")
LOOP = ("sample", "training", "policy", "evaluation")  # timed in every iteration
NAMES = {
    "demonstrations": "demonstrations",
    **dict(zip(LOOP, ("drawing and weighting", "training", "policy", "evaluation"), strict=True)),
    "rest": "files, references, pictures",
}
# The shapes of a run and hardly any of its work: what such a run costs at first, and not when it is
# done again, is compilation.
LITTLE = ("loop.num_iterations=2", "training.num_epochs=1")
MANY = {"paper": 100_000, "smoke": 2_000}  # demonstrations in 10 dimensions, for the peak of memory


def run(preset: str) -> Iterator[Row]:
    """A run of each method (10 components, m = 50) with its parts, and its start-up."""

    def row(part: str, case: str, cpu_seconds: float, **values: float) -> Row:
        return {"part": part, "case": case, "who": "virl_tf", "cpu_seconds": cpu_seconds, **values}

    yield row("start-up", "--help", _help_seconds())
    for method in METHODS:
        start = in_a_process(start_up, method, preset)
        whole = in_a_process(whole_run, method, preset, time.time())
        case, ceiling = f"{method} 10c, m = 50", whole["ceiling"]
        yield row("start-up", case, start["imports"] + sum(start["compilation"].values()))
        compilation = {**start["compilation"], **whole["compilation"]}
        about = {key: whole[key] for key in ("wall_seconds", "peak_gib", "i_projection")}
        about |= _counted(sum(whole["gflop"].values()), ceiling, whole["cpu_seconds"])
        yield row("whole run", case, whole["cpu_seconds"], **about)
        yield row("whole run", f"{case}: imports", whole["imports"])
        compiled = sum(compilation.values())
        yield row("whole run", f"{case}: tracing, compilation, later imports", compiled)
        for part, name in NAMES.items():
            seconds = whole["seconds"][part] - compilation[part]
            counted = _counted(whole["gflop"].get(part, 0.0), ceiling, seconds)
            yield row("whole run", f"{case}: {name}", seconds, **counted)


def memory(preset: str) -> Row:
    """The most memory that `fit` needs for many demonstrations."""
    n = MANY[preset]
    values = {"part": "fit, 2 iterations", "case": f"N = {n:,}, D = 10", "who": "virl_tf"}
    return {**values, **in_a_process(many_demonstrations, n)}


def _counted(gflop: float, ceiling: float, seconds: float) -> dict[str, float]:
    """Counted operations, their CPU seconds at the ceiling and their share; {} where none are."""
    if not gflop:
        return {}
    least = gflop / ceiling
    return {"gflop": gflop, "least_seconds": least, "share_of_ceiling": least / seconds}


def _help_seconds() -> float:
    """CPU seconds of `python -m experiments --help`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "experiments", "--help"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


# --- in processes of their own --------------------------------------------------------------------


def whole_run(method: str, preset: str, started: float) -> dict[str, Any]:
    """The command `run gaussians`: CPU seconds by part, operations, memory, distance.

    `started`: time.time() before this process was there.
    """
    imports = time.process_time()
    spec = _specification(method, preset)
    seconds, history, summary = _timed_run(spec)
    measured: dict[str, Any] = {"imports": imports, "cpu_seconds": time.process_time()}
    measured |= {"wall_seconds": time.time() - started, "peak_gib": peak_gib()}
    measured["i_projection"] = summary["i_projection"]["reward"]["reported"]
    measured["seconds"] = {part: sum(values) for part, values in seconds.items()}
    measured["compilation"] = {part: first_excess(seconds[part]) for part in LOOP}
    measured["gflop"] = counted_gflop(spec, history)
    return {**measured, "ceiling": ceiling()}


def start_up(method: str, preset: str) -> dict[str, Any]:
    """CPU seconds of the imports, and of tracing and compilation by part of the run."""
    imports = time.process_time()
    spec = _specification(method, preset, *LITTLE)
    first, second = (_timed_run(spec)[0] for _ in range(2))
    # What is compiled is kept for the second run, but each run traces its own training.
    found = {part: first[part][0] - second[part][part == "training"] for part in LOOP}
    found["rest"] = first["rest"][0] - second["rest"][0]
    # The sampler is compiled at every call, and draws in blocks of 1,000.
    task, block = RandomGaussians(spec.modes, spec.task_seed), []
    for n in (1000, 2000):
        start = time.process_time()
        task.demonstrations(n, spec.seed)
        block.append(time.process_time() - start)
    found["demonstrations"] = 2.0 * block[0] - block[1]
    return {"imports": imports, "compilation": found}


def first_excess(seconds: Sequence[float]) -> float:
    """Tracing and compilation: the first iteration's seconds above the line of the others."""
    _, expected = np.polyfit(np.arange(1, len(seconds)), seconds[1:], 1)
    return max(0.0, seconds[0] - float(expected))


def many_demonstrations(n: int) -> dict[str, float]:
    """Two iterations of `fit` on n demonstrations in 10-D: V-IRL of Table 2, few epochs."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-5.0, 5.0, (10, 10))[rng.integers(10, size=n)] + rng.normal(size=(n, 10))
    hparams = default_hparams().override(published_column("gaussians", "virl", 10))
    few = {"training": {"num_epochs": 2}, "loop": {"num_iterations": 2}}
    virl_tf.fit(x, hparams=hparams.override(few))
    return {"cpu_seconds": time.process_time(), "peak_gib": peak_gib()}


def _specification(method: str, preset: str, *assignments: str) -> Specification:
    return RunRequest(
        task="gaussians", method=method, modes=50, preset=preset, assignments=assignments
    ).specification()


def _timed_run(spec: Specification) -> tuple[dict[str, list[float]], pd.DataFrame, dict[str, Any]]:
    """CPU seconds by part (the loop's by iteration), history and summary of a run."""
    experiment = experiment_of(spec.to_config())
    nowhere = io.StringIO()
    with (
        TemporaryDirectory(prefix="virl_tf-benchmark-") as folder,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        out = Path(folder) / "run"
        start = time.process_time()
        RunFolder.open(out, spec.to_config())
        demonstrations(experiment, spec, out)
        drawn = time.process_time() - start
        summary = execute(spec, out)
        total, history = time.process_time() - start, RunFolder(out).history()
    seconds = {part: history[f"{part}_seconds"].tolist() for part in LOOP}
    rest = total - drawn - sum(map(sum, seconds.values()))
    return {"demonstrations": [drawn], **seconds, "rest": [rest]}, history, summary


def counted_gflop(spec: Specification, history: pd.DataFrame) -> dict[str, float]:
    """Operations of the networks' matrix products in a run on the Gaussians, in GFLOP by part."""
    network, training = spec.hparams.network, spec.hparams.training
    dim, iterations = 2, np.arange(len(history))
    negatives = known(spec.hparams.loop.num_negatives)
    held = [max(1, int(training.validation_fraction * n)) for n in (spec.num_train, negatives)]
    batch = rows_per_batch(training, spec.num_train - held[0])
    step = training_gflop(network.num_layers, network.layer_size, dim, 2 * batch)
    row = forward_gflop(network.num_layers, network.layer_size, dim, 1)
    epoch = (spec.num_train - held[0]) // batch * step + sum(held) * row
    cumulative = spec.method == "virl"
    drawn = spec.hparams.policy.samples_per_component or default_samples(dim)
    draws = drawn * spec.components
    grid = len(grid_around(np.eye(2)).points)
    networks = iterations + 1 if cumulative else np.ones_like(iterations)  # in the policy's target
    return {
        "training": float(history["epochs"].sum()) * epoch,
        "sample": float(iterations.sum()) * negatives * row if cumulative else 0.0,
        "policy": float(networks.sum()) * spec.hparams.policy.update_steps * draws * row,
        "evaluation": 0.0 if spec.method == "eim" else len(history) * grid * row,
    }


def peak_gib() -> float:
    """The most memory that this process has had.

    Not getrusage: it counts what the process was forked from.
    """
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    lines = status.read_text().splitlines()
    kibibytes = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    return int(kibibytes) / 2**20
