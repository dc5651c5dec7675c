"""The tables of hparams that `python -m experiments ablate` runs, each with its base first."""

from collections.abc import Iterable
from typing import Any

from virl_tf.hparams import DIRECTORY
from virl_tf.validation import InputError, check_choice
from virl_tf.yaml_files import read_yaml

TABLES = {
    "ablations": "The preset 'best' without each of its parts",
    "method_ablations": "The paper's methods with one part changed",
    "open_choices": "The paper's V-IRL with other choices of what the paper leaves open",
}  # name: title of a figure
KEYS = ("preset", "method", "hparams", "components", "rows")


def read_rows(table: str) -> dict[str, dict[str, Any]]:
    """A table's rows, the base first. Raises InputError for a key that a row cannot have."""
    file = DIRECTORY / f"{check_choice('table', table, TABLES)}.yaml"
    rows = read_yaml(file)
    for name, row in rows.items():
        for key in row:
            check_choice(f"key of {name} in {file.name}", key, KEYS)
    return rows


def table_holding(names: Iterable[str]) -> str:
    """The table that has all of these rows.

    Raises InputError if none has: rows of different tables are not drawn side by side.
    """
    for table in TABLES:
        if set(names) <= set(read_rows(table)):
            return table
    raise InputError(f"no table of hparams ({', '.join(TABLES)}) has all of {', '.join(names)}.")
