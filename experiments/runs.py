"""One run: demonstrations, reward, metrics, summary, picture, all in one folder.

What is special to a task is in `tasks`.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from virl_tf.demonstrations import Data
from virl_tf.fit import Evaluate, run
from virl_tf.irl import State
from virl_tf.methods import METHODS
from virl_tf.observers import Observer
from virl_tf.persistence.files import load_arrays, save_arrays, write_json
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError, check_demonstrations

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from experiments.evaluation.base import Experiment
from experiments.result_files import read_summary
from experiments.screen import screen
from experiments.specification import Specification
from experiments.tasks import experiment_of


def execute(
    spec: Specification,
    out: Path,
    *,
    progress: bool = True,
    quiet: bool = False,
    observers: Sequence[Observer] = (),
    tensorboard: bool = True,
) -> dict[str, Any]:
    """Do one run in `out`, or what is left of it, and return its summary.

    Args:
        progress: show what happens on the screen, and draw the picture.
        quiet: with `progress`: the picture alone.
        observers: called after every iteration that is done now.
        tensorboard: write event files; on, because a run that went wrong is then seen without being
            done again.
    """
    console = screen(quiet=quiet or not progress)
    config = spec.to_config()
    folder, experiment = RunFolder.open(out, config), experiment_of(config)
    # Without its result (a file that was removed) it is made from the last checkpoint.
    if (out / "summary.json").is_file() and folder.finished:
        console.out(f"{out}: finished before; nothing to do.")
        summary = read_summary(out)
        experiment.print_summary(summary, console)
        return summary

    start = time.process_time() - folder.seconds()
    console.print(Text.assemble((spec.name, "bold"), f" in {out}"), soft_wrap=True)
    with console.status(f"drawing {spec.num_train + spec.num_test} demonstrations"):
        train, test = demonstrations(experiment, spec, out)
    identity = (METHODS[spec.method], spec.components, spec.seed, spec.hparams, config)
    evaluate = _timed(experiment.evaluator(train, test))
    watched: dict[str, Any] = {"observers": observers, "progress": progress and not quiet}
    watched |= {"tensorboard": tensorboard, "evaluate": evaluate}
    data = Data(train, num_contexts=getattr(experiment.task, "num_contexts", 0))
    result = run(data, *identity, folder=folder, **watched)
    experiment.write_arrays(out, train, result)
    before = time.process_time()
    measured = experiment.summarise(train, result)
    seconds = {"summary": time.process_time() - before}  # references, too
    seconds["process"] = time.process_time() - start
    summary = _summary(config, measured, result.history, seconds)
    if progress:  # a sweep does not need hundreds of pictures
        experiment.draw(out, summary)
    # Last: its presence says that all the rest is there.
    write_json(out / "summary.json", summary)
    experiment.print_summary(summary, console)
    print_costs(summary, console)
    picture = f"figure: {out / 'overview.png'}   " if progress else ""
    numbers = f"numbers: {out / 'metrics.csv'}, {out / 'summary.json'}"
    console.out(picture + numbers)
    return summary


def _summary(
    config: dict[str, Any], measured: dict[str, Any], history: pd.DataFrame, seconds: dict
) -> dict[str, Any]:
    """The content of summary.json."""
    parts = ("sample", "training", "policy")
    of_parts = {part: float(history[f"{part}_seconds"].sum()) for part in parts}
    trained = history[history["epochs"] > 0]  # the last row may be the pooling's
    sizes = trained["effective_sample_size"]
    return {
        **{key: value for key, value in config.items() if key != "hparams"},
        **measured,
        "num_iterations": len(trained),
        "effective_sample_size": {
            "of": int(trained["num_negatives"].iloc[-1]),
            "mean": float(sizes.mean()),
            "final": float(sizes.iloc[-1]),
        },
        "cpu_seconds": {**of_parts, **seconds},
    }


def _timed(evaluate: Evaluate) -> Evaluate:
    """The same with its CPU seconds."""

    def measure(state: State) -> dict[str, float]:
        start = time.process_time()
        return {**evaluate(state), "evaluation_seconds": time.process_time() - start}

    return measure


def demonstrations(
    experiment: Experiment, spec: Specification, out: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Training and test demonstrations, drawn once and kept in the folder."""
    path = out / "demonstrations.npz"
    if not path.is_file():
        x = spec.demonstrations()
        save_arrays(path, {"train": x[: spec.num_train], "test": x[spec.num_train :]})
    arrays = load_arrays(path)
    train, test = arrays["train"], arrays["test"]
    dim = experiment.task.dim
    if [train.shape, test.shape] != [(spec.num_train, dim), (spec.num_test, dim)]:
        text = "does not hold the demonstrations of this run; delete it, and they are drawn again."
        raise InputError(f"{path} {text}")
    return check_demonstrations(train), test


def print_costs(summary: dict[str, Any], console: Console) -> None:
    """Effective sample size and where the CPU seconds went."""
    size, seconds = summary["effective_sample_size"], summary["cpu_seconds"]
    console.out(
        f"effective sample size {size['mean']:.0f} of {size['of']} on average; CPU seconds: "
        f"{seconds['training']:.0f} discriminators, {seconds['policy']:.0f} policy, "
        f"{seconds['sample']:.0f} sampling, {seconds['summary']:.0f} measuring it and the "
        f"references, {seconds['process']:.0f} the whole run"
    )
