"""The tables of hparams that `python -m experiments ablate` runs, each with its base first."""

from collections.abc import Iterable
from typing import Any

from virl_tf.hparams import DIRECTORY, read_yaml
from virl_tf.validation import InputError, check_choice

TABLES = ("ablations", "method_ablations", "open_choices")
KEYS = ("preset", "method", "hparams", "components", "rows")


def read_rows(table: str) -> dict[str, dict[str, Any]]:
    """A table's rows, the base first. Raises InputError for a key that a row cannot have."""
    file = DIRECTORY / f"{check_choice('table', table, TABLES)}.yaml"
    rows = read_yaml(file)
    for name, row in rows.items():
        for key in row:
            check_choice(f"key of {name} in {file.name}", key, KEYS)
    return rows


def table_of(names: Iterable[str]) -> list[str]:
    """The rows, the base first, of the table that has all of these.

    Raises InputError if none has: rows of different tables are not drawn side by side.
    """
    for table in TABLES:
        rows = list(read_rows(table))
        if set(names) <= set(rows):
            return rows
    raise InputError(f"no table of hparams ({', '.join(TABLES)}) has all of {', '.join(names)}.")
