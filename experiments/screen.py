"""What commands print with: results on stdout, warnings on stderr."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text


def screen(**options: Any) -> Console:
    """A console on which users' names of columns and files stand as they are.

    As markup, Rich would drop the unit of "speed [m]", and end in an error at "rate [/s]"; and it
    would colour what looks like a number. Lines are for `out`, which does not break them: nobody
    can copy a path that is.
    """
    return Console(markup=False, emoji=False, highlight=False, **options)


def counted(number: int, noun: str) -> str:
    """The number and its noun, with an s unless it is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def numbers_table(
    title: str, columns: Sequence[str], names: Iterable[str], cells: Iterable[Iterable[str]]
) -> Table:
    """A row of cells for each name."""
    # An ellipsis, which is Rich's way with too many columns, would hide a power of ten.
    numbers = (Column(name, justify="right", overflow="fold") for name in columns)
    table = Table(Column("", overflow="fold"), *numbers, title=title)
    for name, row in zip(names, cells, strict=True):
        table.add_row(name, *row)
    return table


def warn(text: str, quiet: bool = False) -> None:
    """A line on stderr, which `--quiet` does not hide.

    `quiet`: none, of runs that warn by the hundred.
    """
    said = Text.assemble(("warning:", "yellow"), f" {text}")
    screen(stderr=True, quiet=quiet).print(said, soft_wrap=True)
