"""Results of several runs or sweeps as one table, and what may stand in one."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from virl_tf.hparams import default_hparams, read_preset
from virl_tf.methods import METHODS
from virl_tf.persistence.configuration import differences as config_differences
from virl_tf.persistence.configuration import numerics, versions
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError, shortened
from virl_tf.yaml_files import read_yaml

import pandas as pd

from experiments.early_checks import results_file
from experiments.records import ABLATION, FOLDER, Stage, find_records, read_record
from experiments.result_files import RUN, columns_of, read_table, reading, table_of, value_at
from experiments.specification import RunRequest
from experiments.tasks import describe, names


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
    """Raises InputError unless the runs in these folders have one preset, equal settings, as far as
    they are of tasks, and equal versions.
    """
    configs = {run: RunFolder(run).config for run in runs}
    presets = {run: str(config.get("preset")) for run, config in configs.items()}
    check_poolable("presets", {run: {preset} for run, preset in presets.items()})
    _check_settings({run: {".": config} for run, config in configs.items() if "task" in config})
    check_numerics({run: numerics_in(run, preset) for run, preset in presets.items()})


def read_results(
    paths: Path | Sequence[Path], task: str | None = None, pool: bool = False
) -> pd.DataFrame:
    """The rows of results.csv of one or several sweeps.

    Args:
        paths: each is the file, its folder, or a folder of records.
        task: of all rows; None: whichever they have.
        pool: take results of different presets, settings, targets and versions together.

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
        records = {where: one.stages for where, one in made.items() if one.stages}
        _check_settings(
            {
                where: {name: stage.config for name, stage in stages.items()}
                for where, stages in records.items()
            }
        )
        beside_table = len(records) < len(made)
        given = {where: {_given(where, one, beside_table)} for where, one in made.items()}
        check_poolable("settings", given)
        check_poolable("targets", _targets(records))
        check_numerics({where: one.versions for where, one in made.items()})
    tasks = sorted(frame["task"].unique())
    if task is not None and tasks != [task]:
        where, held = ", ".join(map(str, paths)), ", ".join(tasks) or "no task"
        raise InputError(f"{where} holds results of {held}, not of {task}.")
    return frame


class _Made(NamedTuple):
    """How a table, or the run of a record, was made: the versions, as `numerics` has them; what was
    given to the sweep beside the preset, "" where no file tells; the record's stages.
    """

    versions: dict[str, str]
    of_sweep: str
    stages: Mapping[str, Stage] = MappingProxyType({})


_OF_INFERENCE = ("components", "search", "steps", "samples", "blocked_share")


def _check_settings(runs: Mapping[Path, Mapping[str, Mapping[str, Any]]]) -> None:
    """Raises InputError for runs of one task and preset on different numbers of demonstrations; of
    one method, too, with different hyperparameters; or of one size, too, from whose rewards
    policies were inferred in different ways. References have none of these.

    `runs`: {where: {stage: its configuration}}.
    """
    first: dict[Any, tuple[Path, Any]] = {}
    for path, stages in runs.items():
        config = stages["."]
        if "hparams" not in config:
            continue
        with reading(path):
            kind = config["task"], config["preset"]
            column = *kind, config["method"], config["components"]
            told = {
                kind: {"num_train": config.get("num_train")},
                column: {"hparams": _hparams_of(config)},
                **{
                    (*kind, config["modes"], name): {
                        name: {key: stage.get(key) for key in _OF_INFERENCE}
                    }
                    for name, stage in stages.items()
                    if name != "."
                },
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
        _refuse_ablations(file, any(ABLATION in record.files for record in records))
        sweep = (file.parent if file.name == FOLDER else file) / "config.yaml"
        for record in records:
            stage = record.stages["."]
            made_by = numerics(stage.versions, stage.config.get("preset"))
            of_sweep = _given_of_sweep(sweep) if sweep.is_file() else ""
            made[record.path] = _Made(made_by, of_sweep, record.stages)
        return table_of(records)
    frame = read_table(file)
    _refuse_ablations(file, "ablation" in frame)
    if list(frame.columns) not in [columns_of(name) for name in names()]:
        columns = ", ".join(frame.columns)[:400]
        raise InputError(
            f"{file} is not a results table of this version: its columns are {columns}."
        )
    preset = frame["preset"].iloc[0] if len(frame) else None
    given = _given_of_sweep(file.parent / "config.yaml")
    made[file.parent] = _Made(numerics_in(file.parent, preset), given)
    return frame


def _refuse_ablations(place: Path, are: bool) -> None:
    """Raises InputError where results are: rows of a table are no runs of one setting."""
    if are:
        raise InputError(f"{place} is of `ablate`; figure ablations is drawn from its folder.")


def _given(where: Path, made: _Made, beside_table: bool) -> str:
    """What was given beside the preset; to a run, of which `_check_settings` compares the rest, its
    dimension alone, but beside a table, whose runs have no configurations there, all of it.
    """
    if not made.stages or (beside_table and made.of_sweep):
        return made.of_sweep
    with reading(where):
        dim = _given_dim(made.stages["."])
        given = [] if dim is None else [f"dim={dim}"]
        given += _given_besides(made.stages["."], dim) if beside_table else []
    return ", ".join(given) or "none"


def _targets(records: Mapping[Path, Mapping[str, Stage]]) -> dict[Path, set[str]]:
    """Of which seed a run's target is: its own, as in sweeps, or another; {} if all are of one.

    Runs of one seed are pairs in tables that do not say it.
    """
    seeds = {}
    for where, stages in records.items():
        with reading(where):
            target = stages["."].config
            target = target.get("references", target)
            seeds[where] = target["task_seed"], target["seed"]
    if len({task_seed for task_seed, _ in seeds.values()}) < 2:
        return {}
    return {
        where: {"own seeds" if task_seed == seed else f"task seed {task_seed}"}
        for where, (task_seed, seed) in seeds.items()
    }


def _size(summary: Mapping[str, Any]) -> int:
    return summary.get(describe(summary["task"]).size_option, summary["modes"])


def _given_dim(stage: Stage) -> int | None:
    """None: the size's own."""
    description = describe(stage.summary["task"])
    dim = stage.summary.get("dim", value_at(stage.config, "references.dim"))
    usual = description.default_dim(_size(stage.summary))
    return None if not description.largest_dim or dim == usual else dim


def _given_besides(stage: Stage, dim: int | None) -> list[str]:
    """In what a run, or references, differ from those of this task, size, seed and preset."""
    description, config = describe(stage.summary["task"]), stage.config
    target = config.get("references", config)
    method, components = config.get("method", "virl"), config.get("components", 1)
    usual = RunRequest(
        description.name,
        method,
        components,
        **description.sized(_size(stage.summary)),
        dim=dim,
        rows=target.get("num_train"),
        seed=target["seed"],
        preset=config["preset"],
    ).specification()
    given = []
    if usual.num_train != read_preset(usual.preset)["demonstrations"]["train"]:
        given.append(f"rows={usual.num_train}")
    if target.get("task_seed", usual.task_seed) != usual.task_seed:
        given.append(f"task_seed={target['task_seed']}")
    if "hparams" in config and _hparams_of(config) != usual.hparams.to_dict():
        given.append("other hyperparameters")
    return given


def _given_of_sweep(file: Path) -> str:
    content = read_yaml(file) if file.is_file() else None
    overrides = value_at(content, "config.overrides")
    sizes = {name: value_at(content, f"config.{name}") for name in ("dim", "rows")}
    given = [str(overrides)] if overrides else []
    given += [f"{name}={number}" for name, number in sizes.items() if number is not None]
    return ", ".join(given) or "none"
