"""A user's demonstrations from .npy, .npz, .csv or .parquet, or one sentence on what is wrong."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.persistence.files import DamagedFileError, load_arrays
from virl_tf.validation import InputError, check_choice, check_demonstrations

import numpy as np
import pandas as pd

from experiments.early_checks import check_demonstration_file

MOST_NAMED = 5  # rows that an error names


class Demonstrations(NamedTuple):
    """Numbers and what their columns are called."""

    x: np.ndarray  # [N, D] float64
    columns: list[str]  # [D]


def load_demonstrations(
    path: Path, array: str | None = None, columns: Sequence[str] | None = None
) -> Demonstrations:
    """Read and check a file of demonstrations, a row each. Nothing in the file is executed.

    Args:
        path: .npy or .npz of an array [N, D], .csv with or without a line of names, or .parquet.
        array: which array of an .npz that holds several.
        columns: the columns to use, by name, of a .csv or .parquet.

    Raises:
        InputError: whatever is wrong, with the column and the rows (counted from 0, without the
            line of names).
    """
    readers: dict[str, Callable[[], pd.DataFrame]] = {
        ".npy": lambda: _frame_of(_read_npy(path), path),
        ".npz": lambda: _frame_of(_read_npz(path, array), path),
        ".csv": lambda: _read_csv(path),
        ".parquet": lambda: _read_parquet(path),
    }
    check_demonstration_file(path)
    kind = path.suffix.lower()
    if array is not None and kind != ".npz":
        raise InputError(f"--array is for .npz files, not for {path}.")
    if columns is not None and kind in (".npy", ".npz"):
        raise InputError(
            f"--columns is for .csv and .parquet files; the columns of {path} have no names."
        )
    return _checked(_chosen(readers[kind](), columns, path), path)


def _read_npy(path: Path) -> np.ndarray:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            f"{path} is damaged or not an .npy file of a plain array: {error}."
        ) from error
    if not isinstance(found, np.ndarray):
        raise InputError(f"{path} holds several arrays; give it the ending .npz.")
    return found


def _read_npz(path: Path, array: str | None) -> np.ndarray:
    try:
        arrays = load_arrays(path)
    except DamagedFileError as error:
        raise InputError(str(error)) from error
    if not arrays:
        raise InputError(f"{path} holds no array.")
    if array is None and len(arrays) > 1:
        raise InputError(
            f"{path} holds several arrays ({', '.join(sorted(arrays))}); "
            "choose one with --array NAME."
        )
    if array is None:
        return next(iter(arrays.values()))
    return arrays[check_choice(f"array in {path}", array, arrays)]


def _frame_of(x: np.ndarray, path: Path) -> pd.DataFrame:
    if x.ndim != 2:
        one = " (one column of numbers is [N, 1]: x[:, None])" if x.ndim == 1 else ""
        raise InputError(
            f"{path}: demonstrations must be 2-D [N, D], got {x.ndim}-D with shape {x.shape}{one}."
        )
    return pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        comment, first = _first_lines(path)
        separator = max((",", ";", "\t"), key=first.count)
        separator = separator if separator in first else r"\s+"
        header = None if _is_data(_cells(first, separator)) else 0
        frame = pd.read_csv(
            path,
            sep=separator,
            header=header,
            comment="#",
            encoding="utf-8-sig",
            skipinitialspace=True,
        )
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path} is not a .csv file of numbers: {str(error).strip()}.") from error
    if header is None:
        names = _cells(comment, separator)  # np.savetxt puts a "#" before the line of names
        if len(names) != frame.shape[1]:
            names = [f"x{i}" for i in range(frame.shape[1])]
        frame.columns = pd.Index(names)
    elif _counts_rows(frame):
        shown = ",".join(str(name) for name in frame.columns[1:])
        raise InputError(
            f"{path}: the first column has no name and counts the rows; "
            f"leave it out with --columns {shown}"
        )
    return frame


def _counts_rows(frame: pd.DataFrame) -> bool:
    """Whether the first column has no name and holds 0, 1, 2, ..., as pandas writes its index."""
    unnamed = str(frame.columns[0]).startswith("Unnamed:")
    return unnamed and frame.iloc[:, 0].equals(pd.Series(range(len(frame))))


def _first_lines(path: Path) -> tuple[str, str]:
    """(the last comment before, the first line that is no comment), "" where there is none."""
    comment = ""
    with path.open(encoding="utf-8-sig") as file:
        for line in map(str.strip, file):
            if line and not line.startswith("#"):
                return comment, line
            comment = line.lstrip("# ") or comment
    return comment, ""


def _cells(line: str, separator: str) -> list[str]:
    parts = line.split() if separator == r"\s+" else line.split(separator)
    return [part.strip() for part in parts]


def _is_data(cells: list[str]) -> bool:
    """Whether the first line holds numbers, not names (0, 1, 2, ... are pandas's own names)."""
    return all(_is_number(cell) for cell in cells) and cells != [str(i) for i in range(len(cells))]


def _is_number(cell: str) -> bool:
    """Whether a cell of the first line is data, not a name; "nan", "inf" and "" are data."""
    try:
        float(cell.strip().strip('"') or "nan")
    except ValueError:
        return False
    return True


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path, engine="pyarrow")
    except ImportError as error:
        raise InputError(
            f"{path}: .parquet needs pyarrow, the extra `parquet`: pip install '.[parquet]'"
        ) from error
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise InputError(f"{path} is damaged or not a .parquet file: {error}") from error


def _chosen(frame: pd.DataFrame, columns: Sequence[str] | None, path: Path) -> pd.DataFrame:
    frame = frame.rename(columns=str)
    if columns is None:
        return frame
    names = [check_choice(f"column of {path}", name, frame.columns) for name in columns]
    return frame[list(dict.fromkeys(names))]


def _checked(frame: pd.DataFrame, path: Path) -> Demonstrations:
    names = [str(name) for name in frame.columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{path}: several columns are called {repeated[0]!r}.")
    if not len(frame) or not names:
        raise InputError(f"{path} holds no rows of numbers: its shape is {frame.shape}.")
    x = np.column_stack([_numbers(frame[name], path) for name in names])
    finite = np.isfinite(x)
    if not finite.all():
        whole = finite.all(axis=0)
        bad = ", ".join(repr(name) for name, good in zip(names, whole, strict=True) if not good)
        rows = _rows(~finite.all(axis=1))
        raise InputError(
            f"{path}: missing values, NaN or infinities in {rows} (column {bad}); "
            "remove these rows or fill them in."
        )
    try:
        return Demonstrations(check_demonstrations(x), names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _numbers(column: pd.Series, path: Path) -> Any:
    """One column as float64 [N]."""
    dtype = column.dtype
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
        return column.to_numpy(np.float64, na_value=np.nan)
    if pd.api.types.is_string_dtype(dtype) or pd.api.types.is_object_dtype(dtype):
        text = column.notna() & pd.to_numeric(column, errors="coerce").isna()
        shown = repr(column[text].iloc[0])[:40] if text.any() else "text"
        where = f" in {_rows(text.to_numpy())}" if text.any() else ""
        raise InputError(
            f"{path}: column {column.name!r} holds text{where}, for example {shown}; "
            "choose others with --columns."
        )
    raise InputError(f"{path}: column {column.name!r} holds {dtype}, not real numbers.")


def _rows(bad: np.ndarray) -> str:
    """'rows 3, 17 and 2 more'."""
    found = np.flatnonzero(bad)
    shown = ", ".join(str(row) for row in found[:MOST_NAMED])
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"row{'s' if len(found) > 1 else ''} {shown}{more}"
