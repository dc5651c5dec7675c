"""A user's demonstrations from .npy, .npz, .csv or .parquet, or one sentence on what is wrong."""

import csv
import io
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.persistence.files import load_array, load_arrays, read_csv
from virl_tf.validation import (
    MAX_UNPACKED_BYTES,
    InputError,
    as_option,
    check_choice,
    check_demonstrations,
    check_number_columns,
    check_policy_contexts,
    check_two_axes,
    reason,
    shortened,
)

import numpy as np
import pandas as pd

from experiments.early_checks import check_demonstration_file
from experiments.screen import warn

_WRONG_DESCRIPTION = LookupError, TypeError, AttributeError
MOST_NAMED = 5  # rows that an error names
MOST_LOOKED_AT = 1000  # rows, for decimal commas
MOST_PACKED = 100  # bytes that one of a .parquet file may unpack to, above MAX_UNPACKED_BYTES
# Not in quotes, nor within a name or a label, such as "joint#1", "joint #1" or "walk 1 #A".
_COMMENT = re.compile(r'("[^"]*")|(?:^\s*#|\s+#+(?:\s|$)).*$')
_TOLD = set[tuple[Path, str]]()  # folders, and names in them of which a warning has told
_NO_NAMES = ("NA", "N/A", "n/a", "<NA>", "NULL", "null", "None", "True", "False", "true", "false")


class Demonstrations(NamedTuple):
    """Numbers and what their columns are called.

    Attributes:
        groups: labels of the rows that are held out together.
        contexts: columns that are the situation, not what is done there.
    """

    x: np.ndarray  # [N, D] float64
    columns: list[str]  # [D]
    groups: np.ndarray | None = None  # [N]
    contexts: Sequence[str] = ()

    def parts(self) -> tuple[pd.DataFrame, pd.DataFrame | None]:
        """What is done, and the contexts if there are any, as `virl_tf.fit` takes them."""
        frame, names = pd.DataFrame(self.x, columns=self.columns), list(self.contexts)
        return frame.drop(columns=names), frame[names] if names else None

    def take(self, chosen: np.ndarray) -> "Demonstrations":
        """Those of a mask [N]."""
        groups = None if self.groups is None else self.groups[chosen]
        return self._replace(x=self.x[chosen], groups=groups)


def load_demonstrations(
    path: Path,
    array: str | None = None,
    columns: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    group: str | None = None,
    contexts: Sequence[str] = (),
) -> Demonstrations:
    """Read and check a file of demonstrations, a row each. Nothing in the file is executed.

    Args:
        path: .npy or .npz of an array [N, D], .csv with or without a line of names, or .parquet.
        array: which array of an .npz that holds several.
        columns: the columns to use, by name; those of an array are x0, x1, ...; None: all.
        exclude: the columns among these to leave out.
        group: the column, by name, of labels of rows that are held out together; not used else,
            unless it is one of the `contexts`.

    Raises:
        InputError: whatever is wrong, with the column and the rows (counted from 0, without the
            line of names).
    """
    check_demonstration_file(path)
    # A number that is a context is one, however it is written.
    labels = [] if group is None or group in contexts else [group]
    frame = _frame(path, array, labels, {group, *contexts})
    groups = None
    if group is not None:
        groups = frame[check_choice(f"column of {path}", group, frame.columns)]
        if group not in contexts:
            frame = frame.drop(columns=group)
        without = groups.isna().to_numpy()
        if without.any():
            raise InputError(f"{path}: column {group!r} has no label in {_rows(without)}.")
        exclude = [name for name in exclude if name != group]  # as errors advise of text
    found = _checked(chosen_columns(frame, columns, exclude, path), path)
    return found if groups is None else found._replace(groups=groups.to_numpy())


def load_contexts(path: Path, names: Sequence[str]) -> np.ndarray:
    """Contexts [M, C] of a file, to fit a policy for: its columns of those names; all of an array
    of C columns.

    Raises InputError.
    """
    check_demonstration_file(path)
    frame = _frame(path, None)
    if path.suffix.lower() in (".csv", ".parquet") or frame.shape[1] != len(names):
        frame = chosen_columns(frame, names, (), path)
    x = _numbers(frame, path)
    if len(x) == 1:
        raise InputError(f"{path} holds a single context; give it by --context COLUMN=NUMBER,...")
    try:
        return check_policy_contexts(pd.DataFrame(x, columns=list(names)))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _frame(
    path: Path, array: str | None, labels: Sequence[str] = (), wanted: Collection[str | None] = ()
) -> pd.DataFrame:
    """The file's rows; see `_read_npz`, `read_table` and `with_index`."""
    kind = path.suffix.lower()
    if array is not None and kind != ".npz":
        raise InputError(f"--array is for .npz files, not for {path}.")
    if kind in (".csv", ".parquet"):
        return with_index(read_table(path, labels), wanted, path)
    x = load_array(path) if kind == ".npy" else _read_npz(path, array)
    check_two_axes(x, f"{path}: ")
    return pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])


def _read_npz(path: Path, array: str | None) -> np.ndarray:
    arrays = load_arrays(path)
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


def read_table(path: Path, labels: Sequence[str] = ()) -> pd.DataFrame:
    """A .csv file with or without a line of names, or a .parquet file, with names that are text.

    The first of the columns `labels` that a .csv file has is text: 1.1 and 1.10 are two labels.

    Raises:
        InputError: it cannot be read, also where pyarrow is missing.
    """
    return _read_csv(path, labels) if path.suffix.lower() == ".csv" else _read_parquet(path)


def with_index(frame: pd.DataFrame, wanted: Collection[str | None], path: Path) -> pd.DataFrame:
    """A table with those `wanted` as columns: of a .parquet file that pandas wrote they may be its
    index.
    """
    levels = {name: frame.index.get_level_values(i) for i, name in enumerate(frame.index.names)}
    index = {
        name: level for name, level in levels.items() if name is not None and name not in frame
    }
    found = [name for name in index if name in wanted]
    if left := [name for name in index if name not in wanted and not _counts(index[name])]:
        names = ", ".join(map(repr, left))
        text = f"the table's index {names} is no column, so it is left out"
        _warn_once(path, names, f"{text}; reset_index() makes it one.")
    return frame.reset_index(level=found) if found else frame


def _counts(index: pd.Index) -> bool:
    """Whether an index, or a level of one, numbers the rows."""
    whole = pd.api.types.is_integer_dtype(index.dtype)
    return whole and bool((np.diff(index.to_numpy()) == 1).all())


def _read_csv(path: Path, labels: Sequence[str]) -> pd.DataFrame:
    try:
        comment, first, place = _first_lines(path)
        if not first:
            raise InputError(f"{path} is not a .csv file of numbers: it holds no line of them.")
        separator = _separator(first)
        cells = _cells(_uncommented(first), separator)
        named = not _is_data(cells) or _are_pandas_own(cells, path, separator, place)
        frame = _rows_below(path, separator, place + named)
        if frame is None:
            frame = pd.DataFrame(columns=range(len(cells)))
    except UnicodeDecodeError as error:
        text = f"{path} is not a .csv file in UTF-8; save it as one"
        raise InputError(f"{text}: {reason(error)}.") from error
    except (OSError, csv.Error, pd.errors.ParserError) as error:
        raise InputError(f"{path} is not a .csv file of numbers: {reason(error)}.") from error
    width = frame.shape[1]
    if separator == "," and not (named and len(cells) == width):
        _refuse_decimal_commas(path, place + named)
    if separator == r"\s+" and width == 1 < len(cells):
        cells = [" ".join(cells)]  # one name of several words
    if separator != r"\s+" and len(cells) == width - 1 and frame.iloc[:, -1].isna().all():
        cells = [*cells, ""]  # a separator at the end of all lines but the names', or a tab there
    if named:
        frame, names = _with_names(frame, cells, path)
    else:
        names = _cells(comment, separator)  # np.savetxt puts a "#" before the line of names
        names = names if len(names) == width else [f"x{i}" for i in range(width)]
    _check_names(names, path)
    found = frame.set_axis(names, axis=1)
    label = next((name for name in labels if name in names), "")
    # "NA" or "None" is a label as any other; only an empty cell is none.
    as_text: dict[str, Any] = {"dtype": str, "keep_default_na": False, "na_values": [""]}
    texts = _rows_below(path, separator, place + named, **as_text) if label else None
    if texts is not None:
        found[label] = texts[frame.columns[names.index(label)]].str.strip()
    return found


def _refuse_decimal_commas(path: Path, place: int) -> None:
    """Raises InputError where every other column has what stands behind a decimal comma: digits
    alone, of which some begin with a 0, beside whole numbers that do not.
    """
    cells = _rows_below(path, ",", place, dtype=str, nrows=MOST_LOOKED_AT)
    if cells is None or cells.shape[1] % 2 == 1:
        return
    cells = cells.dropna().reset_index(drop=True)
    columns = [cells[i].str.strip() for i in cells]
    before, behind = columns[::2], columns[1::2]
    whole = all(column.str.fullmatch(r"[-+]?(0|[1-9]\d*)").all() for column in before)
    digits = all(
        column.str.fullmatch(r"\d+").all() and column.str.match(r"0\d").any() for column in behind
    )
    if whole and digits:
        text = f"'{before[0][0]},{behind[0][0]}' looks like a number with a decimal comma"
        raise InputError(
            f"{path}: {text}; separate columns by ';', write decimal "
            "points, or put a line of names above whole numbers."
        )


def _rows_below(path: Path, separator: str, place: int, **options: Any) -> pd.DataFrame | None:
    """From the line with number `place` on; None: there is none."""
    try:
        return read_csv(
            _without_comments(path),
            sep=separator,
            header=None,
            skiprows=place,
            encoding="utf-8-sig",
            skipinitialspace=True,
            **options,
        )
    except pd.errors.EmptyDataError:
        return None


def _are_pandas_own(cells: list[str], path: Path, separator: str, place: int) -> bool:
    """Whether a first line 0,1,2 of numbers is how pandas numbers columns without names, and not a
    row: so it is unless a column has whole numbers and others, all of which pandas writes alike.
    """
    own = [str(i) for i in range(len(cells))]
    if len(cells) > 1 and cells == ["", *own[:-1]]:
        return True  # above its index
    if cells != own:
        return False
    rows = _rows_below(path, separator, place + 1, dtype=str)
    if rows is None:
        return True
    whole = [rows[i].dropna().str.fullmatch(r"\s*[-+]?\d+\s*") for i in rows]
    if any(column.any() and not column.all() for column in whole):
        return False
    names = ",".join(cells)
    text = f"the first line was taken for the names {names}, as pandas numbers columns"
    _warn_once(path, names, f"{text}; if it is a row, put a line of names above it.")
    return True


def _warn_once(path: Path, names: str, text: str) -> None:
    """Of such names, once for all files of a folder."""
    if (path.parent, names) not in _TOLD:
        _TOLD.add((path.parent, names))
        warn(f"{path}: {text}")


def _with_names(
    frame: pd.DataFrame, names: list[str], path: Path
) -> tuple[pd.DataFrame, list[str]]:
    """Both without a first column that only counts the rows: pandas writes its index with an empty
    name, R without one.
    """
    width, unnamed = frame.shape[1], len(names) > 1 and not names[0]
    if len(names) not in (width, width - 1):
        raise InputError(f"{path}: {len(names)} names stand above {width} columns.")
    if unnamed or len(names) < width:
        number = pd.to_numeric(frame.iloc[:, 0], errors="coerce").to_numpy()
        # From 0 or 1 on, or in a part of a table, such as an episode's file, from any row on.
        from_a_row = len(frame) > 0 and number[0] >= 0 and float(number[0]).is_integer()
        if from_a_row and (np.diff(number) == 1).all():
            return frame.iloc[:, 1:], names[1:] if unnamed else names
        if not unnamed:
            raise InputError(
                f"{path}: {len(names)} names stand above {width} columns, of which the first does "
                "not count the rows."
            )
        if len(frame) and (number == np.rint(number)).all():  # so of rows that were chosen
            text = "the first column has no name, as an index that pandas writes"
            _warn_once(path, "column 0", f"{text}; if it is one, give --exclude 'column 0'.")
    return frame, [name or f"column {i}" for i, name in enumerate(names)]


def _check_names(names: Sequence[str], path: Path) -> None:
    """Raises InputError for a name that several columns have."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{path}: several columns are called {repeated[0]!r}.")


def _first_lines(path: Path) -> tuple[str, str, int]:
    """(the last comment before, the first line that is no comment, its place); "" and the end where
    there is none.
    """
    comment, place = "", 0
    with path.open(encoding="utf-8-sig") as file:
        for place, line in enumerate(map(str.strip, file)):
            if place == 0 and re.fullmatch(r"sep=.?", line):  # Excel's; cells tell, too
                continue
            if line and not line.startswith("#"):
                return comment, line, place
            comment = line.lstrip("# ") or comment
    return comment, "", place + 1


def _without_comments(path: Path) -> Path | io.StringIO:
    """The file, or its text where there are comments."""
    with path.open(encoding="utf-8-sig") as file:
        if not any("#" in line for line in file):
            return path
        file.seek(0)
        return io.StringIO("".join(f"{_uncommented(line.rstrip())}\n" for line in file))


def _uncommented(line: str) -> str:
    return _COMMENT.sub(r"\1", line)


def _separator(line: str) -> str:
    """Of the cells of a line: what is in it most often, but for what is quoted."""
    bare = re.sub(r'"[^"]*"', "", line)
    if re.fullmatch(r"[-+.,;\s\deE]+", bare) and re.search("[;\t]", bare):
        bare = bare.replace(",", "")  # they are decimal ones
    found = max(("\t", ";", ","), key=bare.count)
    return found if found in bare else r"\s+"


def _cells(line: str, separator: str) -> list[str]:
    delimiter = " " if separator == r"\s+" else separator
    rows = csv.reader([line.strip(" ")], delimiter=delimiter, skipinitialspace=True)
    return [cell.strip() for cell in next(rows, [])]


def _is_data(cells: list[str]) -> bool:
    """Whether the first line holds numbers, not names; "nan", "inf" and "" are data, and beside a
    number what pandas reads as missing, or as true and false.
    """
    known = [cell for cell in cells if cell not in _NO_NAMES]
    try:
        for cell in known:
            float(cell.strip().strip('"') or "nan")
    except ValueError:
        return False
    return bool(known)


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        _check_unpacked_table(path)
        return pd.read_parquet(path, engine="pyarrow").rename(columns=str)
    except InputError:
        raise
    except ImportError as error:
        raise InputError(
            f"{path}: .parquet needs pyarrow, the extra `parquet`: pip install 'virl_tf[parquet]'"
        ) from error
    # pyarrow's own errors are these; the others come of pandas's description within the file.
    except (OSError, ValueError, RuntimeError, MemoryError, *_WRONG_DESCRIPTION) as error:
        raise InputError(f"{path} is damaged or not a .parquet file: {reason(error)}") from error


def _check_unpacked_table(path: Path) -> None:
    """Raises InputError, before a .parquet file is unpacked, for one that declares more numbers
    than are read of a file of its size: a few bytes may stand for a million equal ones.
    """
    from pyarrow import parquet

    metadata = parquet.read_metadata(path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    numbers = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
    unpacked, most = 8 * numbers, max(MAX_UNPACKED_BYTES, MOST_PACKED * path.stat().st_size)
    if unpacked > most:
        raise InputError(f"{path} would unpack to {unpacked} bytes; at most {most} are read.")


def check_context_names(named: int, different: int, others: int) -> None:
    """Raises InputError for so many columns that --contexts names, and others."""
    if different < named:
        raise InputError("--contexts names a column twice.")
    if not others:
        raise InputError("--contexts leaves no column of what is done; name fewer.")


def chosen_columns(
    frame: pd.DataFrame, columns: Sequence[str] | None, exclude: Sequence[str], path: Path
) -> pd.DataFrame:
    """A frame's `columns` (None: all) but those to `exclude`. Raises InputError."""
    wanted, unwanted = (
        [check_choice(f"column of {path}", name, frame.columns) for name in names]
        for names in (columns or (), exclude)
    )
    kept = [name for name in wanted or frame.columns if name not in unwanted]
    if len(frame.columns) and not kept:
        raise InputError(f"{path}: --exclude leaves no column.")
    return frame[list(dict.fromkeys(kept))] if wanted or unwanted else frame


def _checked(frame: pd.DataFrame, path: Path) -> Demonstrations:
    names = list(frame.columns)
    x = _numbers(frame, path)
    try:
        return Demonstrations(check_demonstrations(x, names), names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _numbers(frame: pd.DataFrame, path: Path) -> np.ndarray:
    """Of finite ones [N, D] in columns with names, or an InputError."""
    names = list(frame.columns)
    _check_names(names, path)
    if not len(frame) or not names:
        raise InputError(f"{path} holds no rows of numbers: its shape is {frame.shape}.")
    if empty := [name for name in names if frame[name].isna().all()]:
        text = "without any value, as behind a separator at the end of all lines"
        shown = ", ".join(map(repr, empty[:MOST_NAMED]))
        raise InputError(
            f"{path}: columns {text}: {shown}; drop them (--exclude {as_option(empty)})."
        )
    held = {name: held_instead(frame[name]) for name in names}
    _check_kinds(frame, held, path)
    check_number_columns(str(path), held)
    x = np.column_stack([frame[name].to_numpy(np.float64, na_value=np.nan) for name in names])
    finite = np.isfinite(x)
    if not finite.all():
        whole = finite.all(axis=0)
        bad = ", ".join(repr(name) for name, good in zip(names, whole, strict=True) if not good)
        rows = _rows_and_line(~finite.all(axis=1), path)
        raise InputError(
            f"{path}: missing values, NaN or infinities in {rows} (column {bad}); "
            "remove these rows or fill them in."
        )
    return x


def _check_kinds(frame: pd.DataFrame, held: dict[str, str], path: Path) -> None:
    """Raises InputError that tells all that is wrong with columns, where it is of several kinds."""
    wrong = {name: ("text", f"holds {what}") for name, what in held.items() if what}
    for name in held.keys() - wrong.keys():
        x = frame[name].to_numpy(np.float64, na_value=np.nan)
        if not np.isfinite(x).all():
            rows = _rows_and_line(~np.isfinite(x), path)
            wrong[name] = ("missing", f"has missing values, NaN or infinities in {rows}")
        elif len(x) > 1 and (x == x[0]).all():
            wrong[name] = ("constant", "is constant")
    if len({kind for kind, _ in wrong.values()}) < 2:
        return
    names = [name for name in held if name in wrong]
    shown = "; ".join(f"column {name!r} {wrong[name][1]}" for name in names[:MOST_NAMED])
    more = f"; and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    drop = f"drop them (--exclude {as_option(names)}) or mend the rows"
    raise InputError(f"{path}: {shown}{more}; {drop}.")


def held_instead(column: pd.Series) -> str:
    """What a column holds instead of numbers; "" if it holds numbers."""
    dtype = column.dtype
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
        return ""
    if pd.api.types.is_string_dtype(dtype) or pd.api.types.is_object_dtype(dtype):
        text = column.notna() & pd.to_numeric(column, errors="coerce").isna()
        if not text.any():
            return "text" if isinstance(column.iloc[0], str) else "objects, not real numbers"
        return f"text in {_rows(text.to_numpy())}, for example {str(column[text].iloc[0])!r:.40}"
    return f"{dtype}, not real numbers"


def _rows(bad: np.ndarray) -> str:
    """'rows 3, 17 and 2 more'."""
    found = np.flatnonzero(bad)
    return f"row{'s' if len(found) > 1 else ''} {shortened(found, MOST_NAMED)}"


def _rows_and_line(bad: np.ndarray, path: Path) -> str:
    """The rows, and of a .csv file the line of the first."""
    if path.suffix.lower() != ".csv":
        return _rows(bad)
    with path.open(encoding="utf-8-sig") as file:
        texts = [line.strip() for line in file]
    lines = [i for i, text in enumerate(texts, 1) if text and not text.startswith("#")]
    names = len(lines) - len(bad)  # the line of names; other numbers: a row may have several lines
    if names not in (0, 1):
        return _rows(bad)
    first = ", the first of them" if bad.sum() > 1 else ","
    return f"{_rows(bad)}{first} line {lines[names + int(bad.argmax())]} of the file"
