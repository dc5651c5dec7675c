"""Table 1 as Optuna's parameters: what is searched, and values to and from parameters.

Powers of two are searched by their exponent, so that Optuna sees an ordered, evenly spaced range. A
parameter has the name of the hyperparameter, `section.key`; of one that is searched by its
exponent, `log2 section.key`.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from virl_tf.hparams import SearchParameter, search_space, starred
from virl_tf.methods import METHODS

from experiments.specification import column_name, published_column
from experiments.tasks import describe

if TYPE_CHECKING:
    import optuna

# The end of an interval that is open at zero: Optuna's are closed.
SMALLEST = 1e-9


def searched(task: str, method: str, components: int) -> dict[str, SearchParameter]:
    """The rows of Table 1 that are optimised.

    All but those of other methods, those that the published column stars, and those of parts that
    the method has not (EIM has no KDE).
    """
    chosen = METHODS[method]
    table = describe(task).table
    fixed = [] if table is None else starred(table, column_name(task, method, components))
    column = published_column(task, method, components)

    def is_searched(name: str, row: SearchParameter) -> bool:
        section, key = name.split(".")
        has_part = section != "kde" or chosen.fusion
        is_used = has_part if table is None else key in column.get(section, {})
        is_methods = row.methods is None or chosen.family in row.methods
        return name not in fixed and is_methods and is_used

    return {name: row for name, row in search_space().items() if is_searched(name, row)}


def suggest(
    trial: "optuna.Trial", rows: Mapping[str, SearchParameter]
) -> dict[str, dict[str, Any]]:
    """Values of one trial as overrides {section: {key: value}}."""
    overrides: dict[str, dict[str, Any]] = {}
    for name, row in rows.items():
        section, key = name.split(".")
        overrides.setdefault(section, {})[key] = _suggest(trial, name, row)
    return overrides


def to_parameters(
    values: Mapping[str, Mapping[str, Any]], rows: Mapping[str, SearchParameter]
) -> dict[str, Any]:
    """The inverse of `suggest`: overrides -> parameters of a trial."""
    found = {}
    for name, row in rows.items():
        section, key = name.split(".")
        value = values[section][key]
        zero = _zero_exponent(row)
        if zero is not None or row.type == "power_of_two":
            found[f"log2 {name}"] = zero if value == 0 else round(math.log2(value))
        else:
            found[name] = value
    return found


def written(value: Any) -> str:
    """A hyperparameter's value, as tables show it."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _suggest(trial: "optuna.Trial", name: str, row: SearchParameter) -> Any:
    if row.type == "bool":
        return trial.suggest_categorical(name, [False, True])
    low, high = row.low, row.high
    assert low is not None
    assert high is not None
    zero = _zero_exponent(row)
    if zero is not None:
        exponent = trial.suggest_int(f"log2 {name}", zero, row.spec["power_of_two_or_zero"][1])
        return 0.0 if exponent == zero else 2.0**exponent
    if row.type == "power_of_two":
        return 2 ** trial.suggest_int(f"log2 {name}", int(low), int(high))
    if row.type == "int":
        return trial.suggest_int(name, int(low), int(high))
    if row.spec.get("step"):
        return trial.suggest_float(name, low, high, step=row.spec["step"])
    low = SMALLEST if row.spec.get("open_low") else low
    return trial.suggest_float(name, low, high, log=bool(row.spec.get("log")))


def _zero_exponent(row: SearchParameter) -> int | None:
    """The exponent that stands for zero, one below the lowest, where zero is allowed."""
    exponents = row.spec.get("power_of_two_or_zero")
    return int(exponents[0]) - 1 if exponents else None
