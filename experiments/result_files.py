"""Result files: what a run's summary says, the tidy table of a sweep, and its statistics."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from virl_tf.checkpoint import write_text
from virl_tf.validation import InputError

RUN = ["task", "method", "components", "modes", "seed", "preset", "stage"]  # what identifies a row
COLUMNS = [
    *RUN,
    *("best", "final", "reported", "cpu_seconds", "status"),
]

# Further columns of the walks' tables. `best`, `final` and `reported` are the policy's negative
# ELBO there.
WALK_COLUMNS = [
    *(
        "kl",
        "good_fraction",
        "open_modes",
        "modes_covered",
        "new_modes",
        "lost_modes",
        "true_reward_modes",
    ),
    *(
        "collision_share",
        "reward_correlation",
        "unexplored_above_random",
        "unexplored_random_auc",
        "explored_unexplored_auc",
    ),
]


def columns_of(task: str) -> list[str]:
    """The columns of a task's results.csv."""
    return COLUMNS if task == "gaussians" else [*COLUMNS, *WALK_COLUMNS]


def read_summary(folder: Path) -> dict[str, Any]:
    """A folder's summary.json. Raises InputError if it is missing or damaged."""
    try:
        return json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(
            f"{folder} has no summary.json: it is not a finished run. Run its command to the end first."
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / 'summary.json'} cannot be read: {error}.") from error


def check_same_task(runs: list[Path]) -> None:
    """Raises InputError unless all runs are finished and on the same target."""
    tasks = []
    for run in runs:
        summary = read_summary(run)
        keys = (
            ("task", "modes", "task_seed") if summary["task"] == "gaussians" else ("task", "steps")
        )
        tasks.append({key: summary[key] for key in keys})
    for run, task in zip(runs, tasks, strict=True):
        if task != tasks[0]:
            raise InputError(
                f"{run} has the task {task}, but {runs[0]} has {tasks[0]}; "
                "give runs on one task (of the Gaussians: with one --task-seed)."
            )


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of results.csv that one unit of a sweep gives.

    Stages: `training` is the recovered reward, `training_policy` its policy, `inference` the new
    policy on the reward (`inference_search`: with components that come and go, `inference_near`:
    also kept near the demonstrations), `reference` a density that is no method of the paper's.
    """
    summary = read_summary(folder)
    if folder.name.startswith("references"):
        key = {
            "task": "gaussians",
            "components": 0,
            "modes": summary["modes"],
            "seed": summary["seed"],
            "preset": summary["preset"],
        }
        distances = summary["i_projection"].items()
        return [
            {
                **key,
                "method": name,
                "stage": "reference",
                "best": v,
                "final": v,
                "reported": v,
                "status": "finished",
            }
            for name, v in distances
        ]
    key = {
        name: summary[name] for name in ("task", "method", "components", "modes", "seed", "preset")
    }
    if summary["task"] != "gaussians":
        return _walk_rows(folder, summary, key)
    distances = summary["i_projection"]
    seconds = {"cpu_seconds": summary["cpu_seconds"]["process"], "status": summary["status"]}
    rows = [
        {**key, "stage": "training", **distances["reward"], **seconds},
        {**key, "stage": "training_policy", **distances["policy"], **seconds},
    ]
    for stage in ("inference", "inference_search", "inference_near"):
        if (folder / stage / "summary.json").is_file():
            inference = read_summary(folder / stage)
            inferred = inference["i_projection"]["inference_policy"]
            rows.append(
                {
                    **key,
                    "stage": stage,
                    **inferred,
                    "cpu_seconds": inference["cpu_seconds"],
                    "status": "finished",
                }
            )
    return rows


def _walk_rows(folder: Path, summary: dict[str, Any], key: dict[str, Any]) -> list[dict[str, Any]]:
    """A walk's training policy, and the policies inferred on its reward without and with obstacles
    (stage `obstacles`).

    Policies found with components that come and go have the stages `inference_search` and
    `obstacles_search`.
    """
    contrast = summary["contrast"]
    training = {
        "open_modes": summary["num_modes"],
        "reward_correlation": summary["reward_correlation"],
        "unexplored_above_random": contrast["unexplored_random"]["above_best"],
        "unexplored_random_auc": contrast["unexplored_random"]["auc"],
        "explored_unexplored_auc": contrast["explored_unexplored"]["auc"],
        "cpu_seconds": summary["cpu_seconds"]["process"],
        "status": summary["status"],
    }
    rows = [{**key, "stage": "training", **summary["objective"], **training, **_present(summary)}]
    for stage in (
        "inference",
        "obstacles",
        "inference_search",
        "obstacles_search",
        "inference_near",
    ):
        if (folder / stage / "summary.json").is_file():
            found = read_summary(folder / stage)
            status = (
                "finished" if np.isfinite(found["objective"]["final"]) else "diverged"
            )  # no walk in the support
            extra = {"true_reward_modes": found["true_reward"]["modes_covered"], "status": status}
            rows.append(
                {
                    **key,
                    "stage": stage,
                    "cpu_seconds": found["cpu_seconds"],
                    **found["objective"],
                    **extra,
                    **_present(found),
                }
            )
    return rows


def _present(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: summary[name] for name in WALK_COLUMNS if name in summary}


def read_results(paths: Path | Sequence[Path], task: str = "gaussians") -> pd.DataFrame:
    """The rows of results.csv of one or several sweeps of `task`; each path is the file or its
    folder.

    Raises:
        InputError: one is not there or not a table of this version, or two hold the same run: which
            of them would count?
    """
    paths = [paths] if isinstance(paths, Path) else paths
    frame = pd.concat([_read_table(path, task) for path in paths], ignore_index=True)
    repeated = frame[frame.duplicated(RUN)] if len(paths) > 1 else frame[:0]
    if len(repeated):
        names = " ".join(str(value) for value in repeated.iloc[0][RUN])
        raise InputError(
            f"{len(repeated)} rows stand in more than one of {', '.join(map(str, paths))}: {names} ..."
        )
    return frame


def _read_table(path: Path, task: str) -> pd.DataFrame:
    file = path / "results.csv" if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            f"no results in {path}; make them with: python -m experiments sweep {task} --out {path}"
        )
    frame = pd.read_csv(file)
    if list(frame.columns) not in (COLUMNS, [*COLUMNS, *WALK_COLUMNS]):
        raise InputError(
            f"{file} is not a results table of this version: its columns are {', '.join(frame.columns)}."
        )
    return frame


def write_results(folders: list[Path], out: Path) -> pd.DataFrame:
    """Collect the finished units into results.csv."""
    rows = [row for folder in folders for row in rows_of(folder)]
    frame = pd.DataFrame(rows, columns=columns_of(rows[0]["task"] if rows else "gaussians"))
    write_text(out, frame.to_csv(index=False))
    return frame


def bootstrap_interval(
    values: np.ndarray, confidence: float = 0.95, draws: int = 10_000
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean, with a fixed seed: values [n] -> (low, high); nan
    for fewer than two values.
    """
    if len(values) < 2:
        return float("nan"), float("nan")
    means = np.random.default_rng(0).choice(values, (draws, len(values))).mean(axis=1)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(means, [tail, 100.0 - tail])
    return float(low), float(high)


def paired(
    results: pd.DataFrame,
    first: tuple[str, str, int],
    second: tuple[str, str, int],
    column: str = "reported",
) -> pd.DataFrame:
    """A column for two (stage, method, components) on the same targets and seeds: columns modes,
    seed, first, second.
    """
    parts = []
    for name, (stage, method, components) in (("first", first), ("second", second)):
        chosen = results[
            (results["stage"] == stage)
            & (results["method"] == method)
            & (results["components"] == components)
        ]
        parts.append(chosen[["modes", "seed", column]].rename(columns={column: name}))
    return parts[0].merge(parts[1], on=["modes", "seed"])


def sign_flip_test(differences: np.ndarray, draws: int = 20_000) -> float:
    """One-sided p value of "the mean difference is below zero" under random signs; exact up to 2^14
    sign patterns.

    With n pairs p is at least 2^-n, so fewer than 5 pairs can never be significant at 0.05. A
    difference that is not a number (a lost run) counts as the largest one against the claim.
    """
    d = np.where(np.isfinite(differences), differences, np.nanmax(np.abs(differences)))
    signs: np.ndarray
    if len(d) <= 14:
        signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * len(d))).reshape(len(d), -1).T
    else:
        signs = np.vstack(
            [np.ones(len(d)), np.random.default_rng(0).choice([-1.0, 1.0], (draws, len(d)))]
        )
    return float(np.mean(signs @ d <= d.sum() + 1e-12))


def table(results: pd.DataFrame) -> pd.DataFrame:
    """Mean, 95 % bootstrap interval and number of seeds of `reported`, by stage, method, components
    and modes.

    For walks also of the measures in `WALK_COLUMNS` (means only).
    """
    rows = []
    extra = [name for name in WALK_COLUMNS if name in results.columns]
    for key, group in results.groupby(["stage", "method", "components", "modes"], sort=True):
        values = group["reported"].to_numpy()
        low, high = bootstrap_interval(values[np.isfinite(values)])
        diverged = int((group["status"] == "diverged").sum())
        rows.append(
            [
                *key,
                values.mean(),
                low,
                high,
                len(values),
                diverged,
                *group[extra].astype(float).mean(),
            ]
        )
    names = ["stage", "method", "components", "modes", "mean", "low", "high", "seeds", "diverged"]
    return pd.DataFrame(rows, columns=[*names, *extra])


def to_markdown(frame: pd.DataFrame) -> str:
    """A Markdown table, numbers with three decimals."""
    cells = [
        [f"{v:.3f}" if isinstance(v, float) else str(v) for v in row]
        for row in frame.itertuples(index=False)
    ]
    lines = [list(frame.columns), ["---"] * len(frame.columns), *cells]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
