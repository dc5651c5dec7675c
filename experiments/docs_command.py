"""`python -m experiments docs`: the API reference, made from the docstrings."""

import re
from pathlib import Path
from typing import Any

import virl_tf
from virl_tf.validation import InputError

from rich.console import Console

# What a user calls, and what such calls take or return. Other modules are documented where they
# stand.
MODULES = ("virl_tf", "virl_tf.tasks", "virl_tf.hparams", "virl_tf.methods", "virl_tf.metrics")
# pdoc comes to tasks by itself, and would take the functions `virl_tf.fit` and `virl_tf.fit_policy`
# for the modules of these names.
SPECIFICATION = [
    *(module for module in MODULES if module != "virl_tf.tasks"),
    r"!virl_tf\.fit(_policy)?$",
]

# What Python itself says of named tuples.
EMPTY = ("Alias for field number", "Create new instance of")


def write_reference(out: Path) -> None:
    """One HTML page for each of `MODULES` into `out`, with a search box, for use offline.

    Raises:
        InputError: pdoc is not installed, or `out` cannot be written.
    """
    try:
        import jinja2
        import pdoc
        import pdoc.render
    except ImportError as error:
        raise InputError("the API reference needs pdoc: pip install 'virl_tf[docs]'.") from error
    for name in virl_tf.__all__:  # pdoc documents what has been imported
        getattr(virl_tf, name)
    pdoc.render.configure(docformat="google", footer_text="virl_tf")
    to_markdown = pdoc.render.env.filters["to_markdown"]

    @jinja2.pass_context
    def with_notation(context: Any, docstring: str) -> str:
        return "" if docstring.startswith(EMPTY) else to_markdown(context, notation(docstring))

    pdoc.render.env.filters["to_markdown"] = with_notation
    try:
        pdoc.pdoc(*SPECIFICATION, output_directory=out)
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror or error}.") from error
    finally:
        pdoc.render.env.filters["to_markdown"] = to_markdown
    Console().print(f"wrote {out / 'index.html'}", highlight=False, soft_wrap=True)


def notation(docstring: str) -> str:
    """The paper's q*_t is no emphasis: stars behind a letter are escaped, except within `code`."""
    return re.sub(r"(`[^`]*`)|(?<=\w)\*", lambda found: found[1] or r"\*", docstring)
