"""What identifies one run: task, method and hyperparameters, checked before anything is computed."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virl_tf.hparams import DIRECTORY, Hparams, default_hparams, parse_yaml, published, read_yaml
from virl_tf.methods import METHODS
from virl_tf.validation import InputError, check_choice, check_integer, check_seed

TASKS = ("gaussians",)


@dataclass(frozen=True)
class Specification:
    """One run."""

    task: str
    modes: int
    task_seed: int
    method: str
    components: int
    seed: int
    preset: str
    num_train: int
    num_test: int
    hparams: Hparams

    @property
    def name(self) -> str:
        """A folder name, e.g. gaussians-virl-10c-m50-s0-quick."""
        target = "" if self.task_seed == self.seed else f"-t{self.task_seed}"
        return f"{self.task}-{self.method}-{self.components}c-m{self.modes}-s{self.seed}{target}-{self.preset}"

    def to_config(self) -> dict[str, Any]:
        """All of it as plain values, as stored in config.yaml."""
        return dataclasses.asdict(self)


def make_specification(
    *,
    task: str,
    method: str = "virl",
    components: int = 10,
    modes: int = 50,
    seed: int = 0,
    task_seed: int | None = None,
    preset: str = "quick",
    hparams_file: Path | None = None,
    assignments: Sequence[str] = (),
) -> Specification:
    """The run a user asked for: defaults, the published column, the preset, the user's file, then single assignments.

    Raises:
        InputError: anything unknown or out of range.
    """
    check_choice("task", task, TASKS)
    check_choice("method", method, METHODS)
    budget = read_presets(preset)
    check_integer("--modes", modes, 1)
    check_seed(seed)
    task_seed = seed if task_seed is None else check_seed(task_seed)
    train, test = budget["demonstrations"]["train"], budget["demonstrations"]["test"]
    check_integer("--components (at most one per demonstration)", components, 1, train)

    values = default_hparams(method).override(published(task, published_column(method, components)), f"hparams/{task}.yaml")
    values = _apply_preset(values, budget["hparams"], method)
    if hparams_file is not None:
        overrides = read_yaml(hparams_file)
        values = values.override({} if overrides is None else overrides, str(hparams_file))
    for assignment in assignments:
        values = values.override(parse_assignment(assignment), f"--set {assignment}")
    return Specification(task, modes, task_seed, method, components, seed, preset, train, test, values)


def read_presets(preset: str) -> dict[str, Any]:
    """One preset of hparams/presets.yaml."""
    presets = read_yaml(DIRECTORY / "presets.yaml")
    return presets[check_choice("preset", preset, presets)]


def published_column(method: str, components: int) -> str:
    """Table 2's column for a policy of this size: '1c' for one component, '10c' for more."""
    return f"{METHODS[method].family}_{'1c' if components == 1 else '10c'}"


def _apply_preset(values: Hparams, overrides: Mapping[str, Any], method: str) -> Hparams:
    common = {section: keys for section, keys in overrides.items() if section != "methods"}
    source = "hparams/presets.yaml"
    return values.override(common, source).override(overrides.get("methods", {}).get(METHODS[method].family, {}), source)


def parse_assignment(text: str) -> dict[str, dict[str, Any]]:
    """'network.layer_size=64' -> {'network': {'layer_size': 64}}; the value is read as YAML."""
    name, equals, value = text.partition("=")
    section, dot, key = name.partition(".")
    if not (equals and dot and section and key):
        raise InputError(f"--set {text!r}: expected SECTION.KEY=VALUE, for example network.layer_size=64.")
    return {section: {key: parse_yaml(value, f"--set {text!r}: the value")}}
