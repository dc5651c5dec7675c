"""What commands print with: results on stdout, warnings on stderr."""

from typing import Any

from rich.console import Console
from rich.text import Text


def screen(**options: Any) -> Console:
    """A console on which users' names of columns and files stand as they are.

    As markup, Rich would drop the unit of "speed [m]", and end in an error at "rate [/s]".
    """
    return Console(markup=False, emoji=False, **options)


def warn(text: str, quiet: bool = False) -> None:
    """A line on stderr, which `--quiet` does not hide.

    `quiet`: none, of runs that warn by the hundred.
    """
    said = Text.assemble(("warning:", "yellow"), f" {text}")
    screen(stderr=True, quiet=quiet).print(said, soft_wrap=True)
