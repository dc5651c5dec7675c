"""An extension of griffe, which reads docstrings for the site: the paper's q*_t is no emphasis."""

import re
from typing import Any

import griffe


def notation(docstring: str) -> str:
    """Stars of symbols are escaped, and the second of two shapes, except within `code`.

    [c, x] [N, D] would be a link.
    """
    return re.sub(
        r"(`[^`]*`)|(?<=\w)\*|(?<=\] )\[",
        lambda found: found[1] or "\\" + found[0],
        docstring,
    )


class Notation(griffe.Extension):
    """Every docstring in the paper's notation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Escape one docstring. Those of constants have examples in them and stay as they are."""
        if obj.docstring is not None:
            obj.docstring.value = notation(obj.docstring.value)
