"""`python -m experiments docs`: the pages of docs/ and the API reference as a site."""

import logging
from pathlib import Path

from virl_tf.persistence.files import writing
from virl_tf.validation import InputError

from experiments.documentation.doc_tables import find_pages
from experiments.documentation.docs_pages import ROOT
from experiments.screen import screen

EXTRA = "the site needs MkDocs with Material and mkdocstrings: pip install 'virl_tf[docs]'."


def write_site(out: Path) -> None:
    """Build the site that mkdocs.yml describes into the folder `out`, for use offline.

    Raises:
        InputError: the extra `docs` is not installed, this is no checkout, `out` holds something
            else, which MkDocs would delete, or cannot be written, or a page has a fault.
    """
    find_pages()  # only a checkout has any
    try:
        import latex2mathml  # noqa: F401
        import material  # noqa: F401
        import mkdocstrings  # noqa: F401
        from mkdocs.commands.build import build
        from mkdocs.config import load_config
        from mkdocs.exceptions import MkDocsException
    except ImportError as error:
        raise InputError(EXTRA) from error
    _check_out(out)
    said = _Warnings()
    logging.getLogger("mkdocs").addHandler(said)
    try:
        with writing(out):
            build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(out.resolve()), strict=True))
    except MkDocsException as error:
        raise InputError(f"the site was not built: {said.text or error}") from error
    finally:
        logging.getLogger("mkdocs").removeHandler(said)
    screen().out(f"wrote {out / 'index.html'}")


class _Warnings(logging.Handler):
    """Keeps what MkDocs warns of, each of which is an error here."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Add a line."""
        self.text += f"{'; ' if self.text else ''}{' '.join(record.getMessage().split())}"


def _check_out(out: Path) -> None:
    """MkDocs empties the folder first: it must be new, empty, or a site."""
    if out.exists() and not out.is_dir():
        raise InputError(f"cannot write {out}: it is a file; give a folder.")
    if out.is_dir() and any(out.iterdir()) and not (out / "sitemap.xml").is_file():
        raise InputError(f"{out} holds something that is no site; give a new or an empty folder.")
