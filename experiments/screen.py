"""What commands print with."""

from rich.console import Console
from rich.text import Text


def warn(text: str, quiet: bool = False) -> None:
    """A line on stderr, which `--quiet` does not hide.

    `quiet`: none, of runs that warn by the hundred.
    """
    said = Text.assemble(("warning:", "yellow"), f" {text}")
    Console(stderr=True, quiet=quiet).print(said, soft_wrap=True)
