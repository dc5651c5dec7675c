"""`python -m experiments doc-tables`: the tables of README.md and docs/, made from result files.

A page holds a table between `<!-- table: NAME -->` and `<!-- end -->`; docs/tables.yaml says what
stands in it. A table there has `rows` and `columns`, {title: settings}. The settings of a cell are
those of the table, its column and its row together; where two say something the row's counts, and
of `where` each column's:

file: a results.csv or benchmark.json below experiments/results.
where: {column of the file: value}; the rows of the file that the cell is made from.
value: the column whose values are shown; of a list, the first one that has any.
show: how (`SHOWS`); default mean.
digits, times, unit: decimals, a factor, and what stands behind the number.
than, of: for `below` and `ratio`: a `where` put over the cell's, for what is compared with.

Text of `file`, `where`, `than` and `of` may hold {name} of another setting. `rows` may also be
{each: COLUMN, where: ...}: a row for every value of a column of the file. `corner` is the title of
the first column.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from virl_tf.persistence.files import read_json, write_text
from virl_tf.validation import InputError, reason
from virl_tf.yaml_files import read_yaml

import numpy as np
import pandas as pd

from experiments import RESULTS
from experiments.result_files import DIVERGED, FAILED, to_markdown
from experiments.result_statistics import differences, with_interval

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "docs" / "tables.yaml"
BLOCK = re.compile(r"<!-- table: (\S+) -->\n(.*?)<!-- end -->", re.DOTALL)
SETTINGS = ("file", "where", "value", "show", "digits", "times", "unit", "than", "of")

Settings = dict[str, Any]
Show = Callable[[pd.DataFrame, str, Settings], str]  # rows, column, settings of the cell


# --- from files to cells --------------------------------------------------------------------------


@cache
def read_frame(path: Path) -> pd.DataFrame:
    """The rows of a results.csv or benchmark.json.

    Raises InputError with the file's name if it cannot be read.
    """
    try:
        if path.suffix == ".json":
            return pd.DataFrame(read_json(path)["rows"])
        return pd.read_csv(path)
    except InputError:
        raise
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"cannot read {path}: {reason(error)}.") from error


def chosen(frame: pd.DataFrame, where: Settings, file: str) -> pd.DataFrame:
    """The rows with these values.

    Raises InputError for a column that the file does not have.
    """
    for column, value in where.items():
        if column not in frame:
            names = ", ".join(map(str, frame))
            raise InputError(f"{file} has no column {column!r}; it has {names}.")
        frame = frame[frame[column] == value]
    return frame


def cell(settings: Settings) -> str:
    """The text of one cell; empty where the file has no such value."""
    settings = _filled(settings)
    missing = [name for name in ("file", "value") if name not in settings]
    if missing:
        raise InputError(f"a cell needs {' and '.join(missing)}.")
    frame = _frame(settings)
    rows = chosen(frame, settings.get("where", {}), settings["file"])
    diverged = int((rows["status"] == DIVERGED).sum()) if "status" in rows else 0
    rows, column = _with_values(rows, settings["value"])
    if rows.empty:
        return f"{diverged} diverged" if diverged else ""
    name = settings.get("show", "mean")
    if name not in SHOWS:
        raise InputError(f"show: {name!r} is none of {', '.join(SHOWS)}.")
    text = SHOWS[name](rows, column, settings)
    return f"{text}, {diverged} diverged" if diverged else text


def _frame(settings: Settings) -> pd.DataFrame:
    """The rows of a cell's file."""
    return read_frame(settings.get("root", RESULTS) / settings["file"])


def _filled(settings: Settings) -> Settings:
    """Settings with the {names} in their texts replaced."""

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(part) for key, part in value.items()}
        return value.format(**settings) if isinstance(value, str) else value

    texts = ("file", "where", "than", "of")
    return {key: fill(value) if key in texts else value for key, value in settings.items()}


def _with_values(rows: pd.DataFrame, value: str | list[str]) -> tuple[pd.DataFrame, str]:
    """The rows that have a value, and the name of its column."""
    names = [value] if isinstance(value, str) else value
    for name in names:
        found = rows[rows[name].notna()] if name in rows else rows[:0]
        if len(found):
            return found, name
    return rows[:0], names[0]


def _numbers(rows: pd.DataFrame, column: str, settings: Settings) -> np.ndarray:
    return rows[column].to_numpy(float) * settings.get("times", 1.0)


def _written(number: float, settings: Settings) -> str:
    digits = settings.get("digits", 3)
    rounded = round(number, digits) + 0.0  # no -0.00
    return f"{rounded:,.{digits}f}{settings.get('unit', '')}"


def _of_numbers(show: Callable[[np.ndarray, Callable[[float], str]], str]) -> Show:
    """Of the rows' values, and how one of them is written."""

    def shown(rows: pd.DataFrame, column: str, settings: Settings) -> str:
        written = partial(_written, settings=settings)
        return show(_numbers(rows, column, settings), written)

    return shown


def _extent(numbers: np.ndarray, written: Callable[[float], str]) -> str:
    """Lowest - highest, or the one number that both are."""
    low, high = written(numbers.min()), written(numbers.max())
    return low if low == high else f"{low} - {high}"


def _range(numbers: np.ndarray, written: Callable[[float], str]) -> str:
    """Mean (lowest - highest); of one number that alone."""
    low, high = written(numbers.min()), written(numbers.max())
    return low if len(numbers) == 1 else f"{written(numbers.mean())} ({low} - {high})"


def _compared(settings: Settings, name: str) -> pd.DataFrame:
    """The rows that a cell is compared with."""
    where = settings.get("where", {}) | settings[name]
    return chosen(_frame(settings), where, settings["file"])


def _below(rows: pd.DataFrame, column: str, settings: Settings) -> str:
    """On how many seeds the value is below the other one; that of a lost run is below none, also
    where it is a number, as in `compare`.
    """

    def by_seed(frame: pd.DataFrame) -> pd.Series:
        gone = frame.get("status", pd.Series("", frame.index)).isin((DIVERGED, FAILED))
        values = frame.set_index("seed")[column].mask(gone.to_numpy())
        return values[(frame[column].notna() | gone).to_numpy()]

    both = [by_seed(_compared(settings, name)) for name in ("where", "than")]
    d = differences(*pd.concat(both, axis=1, join="inner").to_numpy(float).T)
    return f"{(d < 0.0).sum()} of {len(d)}"


def _ratio(rows: pd.DataFrame, column: str, settings: Settings) -> str:
    """Mean in units of the other rows' mean."""
    other = _compared(settings, "of")[column].mean()
    return _written(_numbers(rows, column, settings).mean() / other, settings)


SHOWS: dict[str, Show] = {
    "mean": _of_numbers(lambda numbers, written: written(numbers.mean())),
    "median": _of_numbers(lambda numbers, written: written(float(np.median(numbers)))),
    "range": _of_numbers(_range),
    "interval": _of_numbers(with_interval),  # of fewer than 5 rows the mean alone
    "extent": _of_numbers(_extent),
    "count": lambda rows, column, settings: str(len(rows)),
    "below": _below,
    "ratio": _ratio,
}


# --- from cells to tables -------------------------------------------------------------------------


def read_tables(path: Path = TABLES) -> dict[str, Settings]:
    """What stands in which table."""
    tables = read_yaml(path)
    for name, table in tables.items():
        unknown = set(table) - {*SETTINGS, "corner", "rows", "columns"}
        if unknown or not {"rows", "columns"} <= set(table):
            raise InputError(f"{path}, table {name!r}: needs rows and columns, not {unknown}.")
    return tables


def markdown(name: str, tables: dict[str, Settings], root: Path | None = None) -> str:
    """One table, lines with their ends, of the results in `root`; default: the committed ones.

    Raises:
        InputError: no such table, or one of its rows or columns is in no file: it was renamed.
    """
    if name not in tables:
        raise InputError(f"no table {name!r} in docs/tables.yaml; it has {', '.join(tables)}.")
    table = tables[name]
    shared = {key: value for key, value in table.items() if key in SETTINGS}
    shared["root"] = root or RESULTS
    columns: dict[str, Settings] = table["columns"]
    lines: list[list[str]] = []
    try:
        for title, row in _rows(table, shared):
            cells = [cell(_joined(shared, column, row)) for column in columns.values()]
            if not any(cells):
                raise InputError(f"the results have nothing for the row {title!r}.")
            lines.append([title, *cells])
    except (InputError, KeyError) as error:
        raise InputError(f"table {name!r}: {error}") from error
    return to_markdown(pd.DataFrame(lines, columns=[table.get("corner", ""), *columns]))


def _rows(table: Settings, shared: Settings) -> Iterator[tuple[str, Settings]]:
    """(title, settings) of each row."""
    rows = table["rows"]
    if "each" not in rows:
        yield from rows.items()
        return
    first = next(iter(table["columns"].values()))
    settings = _filled(_joined(shared, first, rows))
    frame = _frame(settings)
    for value in chosen(frame, rows.get("where", {}), settings["file"])[rows["each"]].unique():
        yield f"`{value}`", {"where": {rows["each"]: value}}


def _joined(shared: Settings, column: Settings, row: Settings) -> Settings:
    where = shared.get("where", {}) | column.get("where", {}) | row.get("where", {})
    return {**shared, **column, **row, "where": where}


# --- from tables to pages -------------------------------------------------------------------------


def find_pages(root: Path = ROOT) -> list[Path]:
    """README.md and docs/*.md.

    Raises InputError outside of a checkout of the repository.
    """
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    if not pages[0].is_file() or len(pages) == 1:
        raise InputError(f"no README.md and docs/ in {root}: this needs a checkout.")
    return pages


def rewritten(text: str, tables: dict[str, Settings]) -> tuple[str, str]:
    """A page with its tables made anew, and the name of the first one that was another before."""
    differs: list[str] = []

    def made(found: re.Match[str]) -> str:
        name, before = found.groups()
        now = markdown(name, tables)
        if now != before:
            differs.append(name)
        return f"<!-- table: {name} -->\n{now}<!-- end -->"

    return BLOCK.sub(made, text), next(iter(differs), "")


def stray_rows(path: Path, text: str) -> list[str]:
    """Rows of a page's Markdown tables outside of blocks that hold a number.

    What is written as code, or names an equation, a figure or a table of the paper, is no number.
    Decisions rest on trials of which no records are kept: their numbers are written by hand.
    """
    if path.name.startswith("decisions"):
        return []
    text = re.sub(r"```.*?```", "", BLOCK.sub("", text), flags=re.DOTALL)
    names = (
        r"`[^`]*`|\]\([^)]*\)|\b(Eq\.|Equation|Figures?|Tables?|Algorithm) \d\w?(( and|,) \d\w?)*"
    )
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if re.search(r"(?<!\w)\d", re.sub(names, "", row))]


def update(check: bool, root: Path = ROOT) -> list[str]:
    """Write the tables into the pages; returns the names of the pages that were changed.

    Args:
        check: write nothing.
        root: the folder of README.md and docs/.

    Raises:
        InputError: a block whose name is unknown, numbers in a table outside of a block, results
            that cannot be read, or, with `check`, the first table that is not that of the results.
    """
    tables = read_tables(root / "docs" / "tables.yaml")
    changed = []
    for path in find_pages(root):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(root).as_posix()
        if stray := stray_rows(path, text):
            raise InputError(f"{name}: a table with numbers is in no block: {stray[0]}")
        try:
            new, differs = rewritten(text, tables)
        except InputError as error:
            raise InputError(f"{name}, {error}") from error
        if differs and check:
            raise InputError(
                f"{name}: table {differs!r} is not that of the results; "
                "`python -m experiments doc-tables` writes it."
            )
        if differs:
            write_text(path, new)
            changed.append(name)
    return changed
