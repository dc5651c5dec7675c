"""The tasks of the experiments, one description each.

A module of this folder with a `DESCRIPTION` is found by itself; one from elsewhere calls
`register`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from experiments.tasks.description import TaskDescription

_TASKS: dict[str, TaskDescription] = {}


def register(description: TaskDescription) -> None:
    """Make a task known to all commands of this process, and to the workers that it starts."""
    _TASKS[description.name] = description


def names() -> tuple[str, ...]:
    """Of all tasks."""
    return tuple(_TASKS)


def descriptions() -> tuple[TaskDescription, ...]:
    """Of all tasks."""
    return tuple(_TASKS.values())


def names_where(holds: Callable[[TaskDescription], Any]) -> str:
    """The tasks of which something holds, for a sentence."""
    found = [task.name for task in descriptions() if holds(task)]
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def describe(name: str) -> TaskDescription:
    """A task's description. Raises InputError if there is no such task."""
    if name not in _TASKS:
        from virl_tf.validation import InputError, closest, told  # imports NumPy

        own = "one of your own, imported before the command line (CONTRIBUTING.md)"
        raise InputError(f"unknown task {told(name)}: {closest(str(name), _TASKS)}, or {own}.")
    return _TASKS[name]


def experiment_of(config: Mapping[str, Any]) -> Any:
    """The `experiments.evaluation.base.Experiment` of a run's configuration."""
    return describe(config["task"]).experiment(config)


def modules_elsewhere() -> list[str]:
    """The modules that registered tasks from outside of this folder: what a worker has to
    import.
    """
    modules = {description.experiment.__module__ for description in descriptions()}
    return sorted(name for name in modules if not name.startswith(f"{__name__}."))


for _found in pkgutil.iter_modules(__path__):
    _module = importlib.import_module(f"{__name__}.{_found.name}")
    if hasattr(_module, "DESCRIPTION"):
        register(_module.DESCRIPTION)
