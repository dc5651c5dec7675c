"""Open choices and deviations, read from docs/ and from the comments of hparams/*.yaml."""

import re
from pathlib import Path
from typing import NamedTuple

from virl_tf.hparams import DIRECTORY
from virl_tf.validation import InputError

PAGE = Path(__file__).parent.parent.parent / "docs" / "from-the-paper-to-the-code.md"
BLOCK = re.compile(r"^<!-- deviations -->\n(.*?)^<!-- end -->", re.DOTALL | re.MULTILINE)


class Default(NamedTuple):
    """One value of defaults.yaml and what stands beside it."""

    name: str
    value: str
    source: str


def deviations() -> tuple[str, list[str]]:
    """(text before the list, the list's points) of the page's block `deviations`.

    Raises InputError if there is no such page or block.
    """
    if not PAGE.is_file():
        text = f"docs/{PAGE.name} is not beside the package."
        raise InputError(f"the report needs a checkout of the repository: {text}")
    found = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    if found is None:
        raise InputError(f"{PAGE} has no block <!-- deviations --> ... <!-- end -->.")
    before, *points = re.split(r"^- ", found[1], flags=re.MULTILINE)
    return " ".join(before.split()), [" ".join(point.split()) for point in points]


def file_header(path: Path) -> str:
    """The comment at the top of a YAML file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    return " ".join(line.lstrip("# ") for line in lines[:end])


def defaults() -> list[Default]:
    """Every line of defaults.yaml that holds a value, with the comments above and beside it."""
    found: list[Default] = []
    above: list[str] = []
    parents: list[str] = []
    lines = (DIRECTORY / "defaults.yaml").read_text(encoding="utf-8").splitlines()
    for line in lines[next(i for i, line in enumerate(lines) if not line.startswith("#")) :]:
        text, depth = line.strip(), (len(line) - len(line.lstrip())) // 2
        if text.startswith("#"):
            above.append(text.lstrip("# "))
        elif text:
            content, _, beside = text.partition(" #")
            key, _, value = content.partition(":")
            parents[depth:] = [key]
            comments = [comment for comment in (*above, beside.strip()) if comment]
            above = []
            if value.strip():
                found.append(Default(".".join(parents), value.strip(), " ".join(comments)))
            else:
                above = comments  # of a section: it belongs to the section's first value
    return found
