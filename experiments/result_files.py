"""Result files: what a run's summary says, the tidy table of a sweep, and its statistics."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.hparams import default_hparams, read_yaml
from virl_tf.methods import METHODS
from virl_tf.persistence.configuration import differences as config_differences
from virl_tf.persistence.configuration import numerics, versions
from virl_tf.persistence.files import read_json, write_text
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError, reason

import numpy as np
import pandas as pd

from experiments.early_checks import results_file
from experiments.records import Record, Stage, find_records, read_record
from experiments.tasks import describe, names
from experiments.tasks.description import TaskDescription

RUN = ["task", "method", "components", "modes", "seed", "preset", "stage"]  # what identifies a row
TARGET = ("task", "modes", "seed", "preset")  # ... and one of references
COLUMNS = [*RUN, "best", "final", "reported", "cpu_seconds", "status"]
Curve = tuple[str, str, int]  # stage, method, components
DIVERGED, FAILED = "diverged", "failed"  # of the column `status`; failed: without any values


def columns_of(task: str) -> list[str]:
    """The columns of a task's results.csv."""
    return [*COLUMNS, *describe(task).columns]


def table_so_far(path: Path, columns: list[str], label: str) -> pd.DataFrame:
    """A table that a command adds rows to, without any if it is not there yet.

    Args:
        path: its stem is the command's name.
        columns: the first ones.
        label: the one of them that holds text.

    Raises:
        InputError: it is damaged, or another table.
    """
    if not path.is_file():
        return pd.DataFrame(columns=columns)
    try:
        table = pd.read_csv(path, float_precision="round_trip")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {reason(error)}.") from error
    numbers = table.drop(columns=label, errors="ignore").select_dtypes("number")
    same = list(table.columns[: len(columns)]) == columns
    if not same or len(numbers.columns) < len(table.columns) - 1:
        raise InputError(f"{path} is not a table of {path.stem}; remove it, and it is made anew.")
    return table


def append_rows(
    path: Path, rows: Sequence[Mapping[str, Any]], columns: list[str], source: str
) -> None:
    """Put rows behind those of a table, whose bytes and order of columns stay as they are.

    Args:
        columns: the first ones.
        source: what named the others, for messages.

    Raises:
        InputError: it named others before.
    """
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    given = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    header = list(pd.read_csv(path, nrows=0).columns) if before else given
    if set(header) != set(given):
        new, old = (", ".join(map(repr, found[len(columns) :])) for found in (given, header))
        raise InputError(f"{source} names {new}, but {path} has {old}; they must be the same.")
    frame = pd.DataFrame(rows, columns=header)
    write_text(path, before + frame.to_csv(index=False, header=not before, lineterminator="\n"))


def read_summary(folder: Path) -> dict[str, Any]:
    """A folder's summary.json. Raises InputError if it is missing or damaged."""
    path = folder / "summary.json"
    if not path.exists():
        text = "it is not a finished run. Run its command to the end first."
        raise InputError(f"{folder} has no summary.json: {text}")
    return read_json(path)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around what takes values out of a result file: raises InputError if it is another's file."""
    try:
        yield
    except InputError as error:
        if str(path.parent) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        wrong = f"{type(error).__name__}: {reason(error)}"
        raise InputError(f"{path} is not as its command writes it ({wrong}).") from error


def value_at(summary: Any, *places: str) -> Any:
    """The value at a place with dots, e.g. contrast.unexplored_random.auc, or None.

    Of several places: the first value there is.
    """
    for place in places:
        value = summary
        for key in place.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def rewards_of(runs: Sequence[Path]) -> list[str]:
    """What tells the rewards of runs from others."""
    files = [run / "reward.keras" for run in runs if (run / "reward.keras").is_file()]
    return [hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files]


def check_same_task(runs: list[Path]) -> None:
    """Raises InputError unless all runs are finished and on the same target."""
    tasks = []
    for run in runs:
        summary = read_summary(run)
        with reading(run / "summary.json"):
            tasks.append(_target_of(run, summary))
    for run, task in zip(runs, tasks, strict=True):
        if task != tasks[0]:
            text = "give runs on one task (of the Gaussians: with one --task-seed)."
            raise InputError(f"{run} has the task {task}, but {runs[0]} has {tasks[0]}; {text}")


def _target_of(run: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What is equal for runs on one target, or for fits to the same demonstrations."""
    if "task" in summary:
        keys = ("task", *describe(summary["task"]).same_target)
        return {key: summary.get(key) for key in keys}
    found = value_at(summary, "demonstrations.sha256")
    if found is None:
        raise InputError(f"{run / 'summary.json'} is neither a run's nor a fit's.")
    # The same numbers mean something else as contexts, or as angles, which are moved into a turn.
    turns = value_at(summary, "demonstrations.domain.period") or []
    told = {"contexts": value_at(summary, "demonstrations.contexts")}
    told |= {"turns": turns if any(float(turn) for turn in turns) else None}
    return {"demonstrations": found, **{k: v for k, v in told.items() if v is not None}}


def rows_of(summaries: Mapping[str, dict[str, Any]], where: Path) -> list[dict[str, Any]]:
    """The rows of results.csv that one unit of a sweep gives.

    Stages: `training` is the recovered reward (of walks, the policy it was recovered with),
    `training_policy` its policy, `inference` and what else the task infers the new policy on the
    reward (`..._search`: with components that come and go), `reference` a density that is no method
    of the paper's.

    Args:
        summaries: of the run, ".", and of the inferences on its reward, as a `Record` has them.
        where: what an error names.
    """
    with reading(where):
        description = describe(summaries["."]["task"])
        if "method" in summaries["."]:
            return [*_rows_of_run(description, summaries)]
        return [*_rows_of_references(description, summaries["."])]


def _rows_of_references(
    description: TaskDescription, summary: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    key = {name: summary[name] for name in TARGET}
    key |= {"components": 0, "stage": "reference", "status": "finished"}
    for name, value in summary["i_projection"].items():
        row = {**key, "method": name, "best": value, "final": value, "reported": value}
        yield row | further_values(description, summary, name)


def _rows_of_run(
    description: TaskDescription, summaries: Mapping[str, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    summary = summaries["."]
    key = {name: summary[name] for name in RUN if name != "stage"}
    of_run = {"cpu_seconds": summary["cpu_seconds"]["process"], "status": summary["status"]}
    for stage, place in description.training_places.items():
        row = {**key, "stage": stage, **value_at(summary, place), **of_run}
        yield row | further_values(description, summary, stage)
    inferred = description.inference_stages
    for stage in [f"{stage}{kind}" for kind in ("", "_search") for stage in inferred]:
        if stage in summaries:
            own = summaries[stage]
            values = value_at(own, description.inference_place)
            # Of a walk: it is not finite, if none is in the support.
            status = "finished" if np.isfinite(values["final"]) else DIVERGED
            row = {**key, "stage": stage, **values}
            row |= {"cpu_seconds": own["cpu_seconds"], "status": status}
            yield row | further_values(description, own, stage)


def further_values(
    description: TaskDescription, summary: Mapping[str, Any], stage: str
) -> dict[str, Any]:
    """The task's further columns, as far as there are values for them."""
    found = {
        name: value_at(summary, *(place.format(stage=stage) for place in places))
        for name, places in description.columns.items()
    }
    return {name: value for name, value in found.items() if value is not None}


def numerics_in(folder: Path, preset: object) -> dict[str, str]:
    """The versions that made the numbers in a folder; {} where it does not say."""
    file = folder / "config.yaml"
    stored = value_at(read_yaml(file) if file.is_file() else None, "versions")
    found = stored if isinstance(stored, Mapping) else {}
    return numerics({str(name): str(version) for name, version in found.items()}, preset)


def other_than_now(made_by: Mapping[str, str], preset: object) -> list[str]:
    """In which of these packages, `numerics` of a preset, the versions are others now."""
    now = numerics(versions(), preset)
    return config_differences(made_by, {name: now.get(name) for name in made_by})


def shortened(names: Sequence[Any], most: int = 3) -> str:
    """'a, b, c and 5 more'."""
    shown = ", ".join(map(str, names[:most]))
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def check_poolable(what: str, found: Mapping[Any, set[str]]) -> None:
    """Raises InputError unless `what`, {where: the values there}, has one value everywhere."""
    if len(set().union(*found.values())) > 1:
        places: dict[tuple[str, ...], list[Any]] = {}
        for where, values in found.items():
            places.setdefault(tuple(sorted(values)), []).append(where)
        cut = _cut(sorted(set().union(*places)))
        shown = "; ".join(
            f"{shortened(where)}: {shortened([cut[value] for value in values], 5)}"
            for values, where in places.items()
        )
        raise InputError(f"results of different {what} ({shown}). Give those of one, or --pool.")


def _cut(values: Sequence[str], most: int = 60) -> dict[str, str]:
    """{value: what a message shows of it}, of sorted values: of a long one where it differs."""
    common = [0, *(_shared(*two) for two in pairwise(values)), 0]
    shown = {}
    for value, start in zip(values, map(max, pairwise(common)), strict=True):
        start = max(0, start - most // 3) if start >= most else 0
        shown[value] = f"{'...' if start else ''}{value[start:]:.{most}}"
    return shown


def _shared(one: str, other: str) -> int:
    """How many characters two different texts have in common, from the first on."""
    found = (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(found, min(len(one), len(other)))


def check_numerics(made_by: Mapping[Path, Mapping[str, str]]) -> None:
    """Raises InputError where results were made by different versions, {where: `numerics`}."""
    for package in sorted(set().union(*made_by.values())):
        said = {where: {v[package]} for where, v in made_by.items() if package in v}
        check_poolable(f"versions of {package}", said)


def check_same_preset(runs: Sequence[Path]) -> None:
    """Raises InputError unless the runs in these folders have one preset and equal versions."""
    presets = {run: str(RunFolder(run).config.get("preset")) for run in runs}
    check_poolable("presets", {run: {preset} for run, preset in presets.items()})
    check_numerics({run: numerics_in(run, preset) for run, preset in presets.items()})


def read_results(
    paths: Path | Sequence[Path], task: str | None = None, pool: bool = False
) -> pd.DataFrame:
    """The rows of results.csv of one or several sweeps.

    Args:
        paths: each is the file, its folder, or a folder of records.
        task: of all rows; None: whichever they have.
        pool: take results of different presets, settings and versions together.

    Raises:
        InputError: one is not there or not a table of this version, two hold the same run (which
            of them would count?), they are of another task, or without `pool` their presets,
            settings or versions differ.
    """
    paths = [paths] if isinstance(paths, Path) else paths
    made: dict[Path, _Made] = {}
    frames = [_read_table(path, task or "TASK", made) for path in paths]
    frame = pd.concat(frames, ignore_index=True)
    repeated = frame[frame.duplicated(RUN)]
    if len(repeated):
        names = " ".join(str(value) for value in repeated.iloc[0][RUN])
        where = ", ".join(map(str, paths))
        raise InputError(f"{len(repeated)} rows stand more than once in {where}: {names} ...")
    if not pool:
        presets = [set(map(str, one["preset"])) for one in frames]
        check_poolable("presets", dict(zip(paths, presets, strict=True)))
        check_poolable("settings", {where: {one.given} for where, one in made.items()})
        _check_settings({where: one.config for where, one in made.items()})
        check_numerics({where: one.versions for where, one in made.items()})
    tasks = sorted(frame["task"].unique())
    if task is not None and tasks != [task]:
        where, held = ", ".join(map(str, paths)), ", ".join(tasks) or "no task"
        raise InputError(f"{where} holds results of {held}, not of {task}.")
    return frame


class _Made(NamedTuple):
    """How a table, or the run of a record, was made: the versions, as `numerics` has them; what was
    given beside the preset; the configuration, {} where there is only a table.
    """

    versions: dict[str, str]
    given: str
    config: Mapping[str, Any] = {}


def _check_settings(configs: Mapping[Path, Mapping[str, Any]]) -> None:
    """Raises InputError for runs of one task and preset on different numbers of demonstrations, or
    of one method, too, with different hyperparameters. References have none.
    """
    first: dict[Any, tuple[Path, Any]] = {}
    for path, config in configs.items():
        if "hparams" not in config:
            continue
        with reading(path):
            kind = config["task"], config["preset"]
            column = *kind, config["method"], config["components"]
            told = {
                kind: {"num_train": config.get("num_train")},
                column: {"hparams": _hparams_of(config)},
            }
            pairs = [(first.setdefault(key, (path, now)), now) for key, now in told.items()]
        for (where, there), now in pairs:
            if found := [f"{text:.160}" for text in config_differences(there, now)]:
                text = f"{path} against {where}: {shortened(found)}"
                raise InputError(
                    f"results of different settings ({text}). Give those of one, or --pool."
                )


def _hparams_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """A run's hyperparameters. What there was not yet when it was made has its default, by which
    all is as it was.
    """
    defaults = default_hparams(METHODS[config["method"]].family).to_dict()
    stored = config["hparams"]
    return {**stored, **{name: {**of, **stored.get(name, {})} for name, of in defaults.items()}}


def _read_table(path: Path, task: str, made: dict[Path, _Made]) -> pd.DataFrame:
    """One of them; `made` is told how. `task`: what an error tells to sweep."""
    file = results_file(path, task)
    if file.is_dir():
        records = [read_record(found) for found in find_records(file)]
        for record in records:
            stage = record.stages["."]
            made_by = numerics(stage.versions, stage.config.get("preset"))
            made[record.path] = _Made(made_by, _given_of_unit(stage), stage.config)
        return table_of(records)
    frame = read_table(file)
    if list(frame.columns) not in [columns_of(name) for name in names()]:
        columns = ", ".join(frame.columns)[:400]
        raise InputError(
            f"{file} is not a results table of this version: its columns are {columns}."
        )
    preset = frame["preset"].iloc[0] if len(frame) else None
    given = _given_of_sweep(file.parent / "config.yaml")
    made[file.parent] = _Made(numerics_in(file.parent, preset), given)
    return frame


def _given_of_unit(stage: Stage) -> str:
    summary = stage.summary
    description = describe(summary["task"])
    size = summary.get(description.size_option, summary["modes"])
    dim = summary.get("dim", value_at(stage.config, "references.dim"))
    usual = not description.largest_dim or dim in (None, description.default_dim(size))
    return "none" if usual else f"dim={dim}"


def _given_of_sweep(file: Path) -> str:
    content = read_yaml(file) if file.is_file() else None
    overrides = value_at(content, "config.overrides")
    sizes = {name: value_at(content, f"config.{name}") for name in ("dim", "rows")}
    given = [str(overrides)] if overrides else []
    given += [f"{name}={number}" for name, number in sizes.items() if number is not None]
    return ", ".join(given) or "none"


TEXT = ("ablation", "task", "method", "preset", "stage", "status")  # all other columns hold numbers


def read_table(file: Path) -> pd.DataFrame:
    """A results.csv. Raises InputError if it is damaged."""
    try:
        frame = pd.read_csv(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {reason(error)}.") from error
    # Where there are no rows, pandas takes all columns for text.
    numbers = frame[[name for name in frame if name not in TEXT and len(frame)]]
    wrong = [name for name in numbers if not pd.api.types.is_numeric_dtype(numbers[name])]
    if wrong:
        raise InputError(f"{file} is damaged: its column {wrong[0]!r:.40} holds text.")
    return frame


def table_of(records: Iterable[Record]) -> pd.DataFrame:
    """The rows of results.csv of one task's units."""
    rows = [row for record in records for row in rows_of(record.summaries, record.path)]
    return pd.DataFrame(rows, columns=columns_of(rows[0]["task"]) if rows else COLUMNS)


FEWEST_FOR_INTERVAL = 5  # values: of two the bootstrap's interval is just their range


CONFIDENCE = 0.95  # of an interval
DRAWS, SIGN_DRAWS = 10_000, 20_000  # of the bootstrap, and of signs where not all are gone through


def bootstrap_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % percentile bootstrap interval (low, high) of the mean of values [n]; nan for n < 5."""
    if len(values) < FEWEST_FOR_INTERVAL:
        return float("nan"), float("nan")
    means = np.random.default_rng(0).choice(values, (DRAWS, len(values))).mean(axis=1)
    tail = 50.0 * (1.0 - CONFIDENCE)
    low, high = np.percentile(means, [tail, 100.0 - tail])
    return float(low), float(high)


def with_interval(values: np.ndarray, written: Callable[[float], str]) -> str:
    """'0.050 [0.043, 0.059]': the mean of values [n] and its interval, if there are enough."""
    low, high = bootstrap_interval(values)
    mean = written(float(values.mean()))
    return f"{mean} [{written(low)}, {written(high)}]" if np.isfinite(low) else mean


def select(results: pd.DataFrame, curve: Curve) -> pd.DataFrame:
    """The rows of a stage, method and number of components."""
    keys = ("stage", "method", "components")
    return results[np.all([results[key] == v for key, v in zip(keys, curve, strict=True)], axis=0)]


def paired(
    results: pd.DataFrame, first: Curve, second: Curve, column: str = "reported"
) -> pd.DataFrame:
    """A column of two curves on the same targets and seeds, of one preset: columns preset, modes,
    seed, first, second. Not a number: a run that was lost; what has no such value else is left out.
    """
    keys = ["preset", "modes", "seed"]

    def values(curve: Curve, name: str) -> pd.DataFrame:
        rows = select(results, curve)
        told = rows[column].notna() | (rows["status"] == DIVERGED)
        return rows.loc[told, [*keys, column]].rename(columns={column: name})

    return values(first, "first").merge(values(second, "second"), on=keys)


def differences(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """First - second [n], of values of which lower ones are better: infinite, against its side,
    where one is lost (not finite), and zero where both are.
    """
    lost, other_lost = ~np.isfinite(first), ~np.isfinite(second)
    with np.errstate(invalid="ignore"):
        found = np.where(lost | other_lost, 0.0, first - second)
    return np.where(lost & ~other_lost, np.inf, np.where(other_lost & ~lost, -np.inf, found))


def bounded(d: np.ndarray) -> np.ndarray:
    """`differences` with the largest finite one (1 if there is none) for infinite ones."""
    largest = float(np.abs(d[np.isfinite(d)]).max(initial=0.0)) or 1.0
    return np.clip(d, -largest, largest)


def sign_flip_test(d: np.ndarray) -> float:
    """One-sided p value of "the mean of d is below zero" under random signs; d: `differences`.

    Exact up to 2^14 sign patterns.
    With n pairs p is at least 2^-n, so fewer than 5 pairs can never be significant at 0.05. With a
    run lost on the first's side no mean is below zero; one of the other side wins, but by no more
    than the largest finite difference.
    """
    if np.isposinf(d).any():
        return 1.0
    d = bounded(d)
    signs: np.ndarray
    if len(d) <= 14:
        signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * len(d))).reshape(len(d), -1).T
    else:
        drawn = np.random.default_rng(0).choice([-1.0, 1.0], (SIGN_DRAWS, len(d)))
        signs = np.vstack([np.ones(len(d)), drawn])
    # Both sums are rounded, each in its own order; by how much depends on the size of d.
    d = d / (np.abs(d).max(initial=0.0) or 1.0)
    return float(np.mean(signs @ d <= d.sum() + 1e-9))


def lost(rows: pd.DataFrame, column: str = "reported") -> pd.Series:
    """Which runs diverged or failed, or have no finite value of a column.

    References are never lost: some are measured by another column only.
    """
    found = rows["status"].isin((DIVERGED, FAILED)) | ~np.isfinite(rows[column].astype(float))
    if "stage" in rows:
        found &= ~rows["stage"].astype(str).str.startswith("reference")
    return found


def without_value(rows: pd.DataFrame, column: str) -> int:
    """How many runs of a table are lost to a column's mean: `lost`, and without a finite value."""
    return int((lost(rows) & ~np.isfinite(rows[column].astype(float))).sum())


def table(results: pd.DataFrame) -> pd.DataFrame:
    """Mean, 95 % bootstrap interval, number of seeds of `reported`, by curve and modes.

    Of the task's further columns the means only.
    """
    rows = []
    extra = [name for name in results.columns if name not in COLUMNS]
    for key, group in results.groupby(["stage", "method", "components", "modes"], sort=True):
        values = group["reported"].to_numpy()
        low, high = bootstrap_interval(values[np.isfinite(values)])
        diverged = int((group["status"] == DIVERGED).sum())
        measured = (values.mean(), low, high, len(values), diverged)
        rows.append([*key, *measured, *group[extra].astype(float).mean()])
    names = ["stage", "method", "components", "modes", "mean", "low", "high", "seeds", "diverged"]
    return pd.DataFrame(rows, columns=[*names, *extra])


def to_markdown(frame: pd.DataFrame) -> str:
    """A Markdown table, numbers with three decimals; what is not a number is left out."""

    def written(value: Any) -> str:
        if not isinstance(value, float):
            return str(value)
        return "" if np.isnan(value) else f"{value:.3f}"

    cells = [[written(value) for value in row] for row in frame.itertuples(index=False)]
    lines = [list(frame.columns), ["---"] * len(frame.columns), *cells]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
