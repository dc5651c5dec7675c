"""The API reference: made by one command, an entry with a docstring for every public name, every
argument documented.
"""

import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import virl_tf
from virl_tf.tasks import Task

import pytest

from experiments.docs_command import MODULES, notation

ROOT = Path(__file__).parent.parent
# What every task's methods call the same, see `virl_tf.tasks.Task`: points, a number of draws, a
# seed.
EVERYWHERE = {"x", "n", "seed"}
CONSTANTS = {
    "METHODS": "What fit accepts as method",
    "__version__": "Of this package",
}  # their docstrings stand in the source


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    pytest.importorskip("pdoc", reason="extra `docs`")
    out = tmp_path_factory.mktemp("docs") / "a folder"
    # A process of its own, as a user starts it: pdoc reads what is imported, and tests replace some
    # of it.
    command = [sys.executable, "-m", "experiments", "docs", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "wrote" in done.stdout
    assert "Warning" not in done.stderr
    return {
        module: (out / f"{module.replace('.', '/')}.html").read_text(encoding="utf-8")
        for module in MODULES
    }


class Entries(HTMLParser):
    """The text of every element with an id, until the next one."""

    def __init__(self, page):
        super().__init__()
        self.text, self.current = {}, None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag in ("section", "div") and dict(attributes).get("id"):
            self.current = dict(attributes)["id"]
            self.text[self.current] = ""

    def handle_data(self, data):
        if self.current is not None:
            self.text[self.current] += data


def squeezed(text):
    return re.sub(r"\s", "", text)


def public():
    """Every public function and class: (name on the page, the object)."""
    for module in (virl_tf, virl_tf.tasks):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found) or inspect.isclass(found):
                yield module.__name__, name, found


@pytest.mark.parametrize("module", [virl_tf, virl_tf.tasks], ids=lambda module: module.__name__)
def test_every_public_name_has_an_entry_with_its_docstring(pages, module):
    entries = Entries(pages[module.__name__]).text
    for name in set(module.__all__) - {"tasks"}:  # a page of its own
        assert name in entries, name
        docstring = CONSTANTS.get(name) or inspect.getdoc(getattr(module, name))
        assert squeezed(docstring.splitlines()[0].replace("`", "")) in squeezed(entries[name]), name
    assert squeezed(inspect.getdoc(module).splitlines()[0]) in squeezed(
        re.sub(r"<[^>]+>", "", pages[module.__name__])
    )


def test_methods_and_fields_are_there(pages):
    entries = Entries(pages["virl_tf"]).text
    for name in (
        "Reward.as_keras",
        "Reward.truncate",
        "Reward.base",
        "Mixture.distribution",
        "Mixture.log_prob",
        "Result.save",
    ):
        assert name in entries, name
    assert "demonstrations: [N, D] array, tensor or data frame of real numbers" in " ".join(
        entries["fit"].split()
    )
    for page in pages.values():
        assert "Alias for field" not in page
        assert "Create new instance" not in page


def test_the_papers_notation_is_no_emphasis(pages):
    assert "q*_0" in pages["virl_tf"]
    for page in pages.values():
        assert not re.search(r"<em>", page)
    assert notation("q*_t, `q*_t`, a * b, *text") == r"q\*_t, `q*_t`, a * b, *text"


def test_pages_need_no_network(pages):
    for page in pages.values():
        assert not re.search(r'(src|href)="https?://', page.replace('href="https://pdoc.dev"', ""))


def documented(owner, function):
    """The names of its arguments, and the docstrings that may speak of them."""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return names, " ".join(filter(None, (inspect.getdoc(function), inspect.getdoc(owner))))


@pytest.mark.parametrize(
    ("module", "name", "found"), public(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_argument_is_documented(module, name, found):
    made = found not in (virl_tf.InputError, virl_tf.FitWarning, Task)  # nobody calls these
    names, text = (
        documented(found, found.__init__ if "__init__" in vars(found) else found)
        if made
        else ([], "")
    )
    assert [argument for argument in names if not re.search(rf"\b{argument}\b", text)] == []
    if not inspect.isclass(found):
        return
    for method, function in inspect.getmembers(found, inspect.isfunction):
        if (method.startswith("_") and method != "__call__") or function.__module__.partition(".")[
            0
        ] != "virl_tf":
            continue
        names, text = documented(None, function)
        assert inspect.getdoc(function), f"{name}.{method}"
        missing = [
            argument
            for argument in names
            if argument not in EVERYWHERE and not re.search(rf"\b{argument}\b", text)
        ]
        assert missing == [], f"{name}.{method}"
        if "x" in names:
            assert "->" in text, f"{name}.{method}: shapes"


def test_without_pdoc_it_says_what_to_install(call, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pdoc", None)
    status, _, error = call("docs", "--out", tmp_path / "out")
    assert status == 2
    assert error == "error: the API reference needs pdoc: pip install 'virl_tf[docs]'.\n"
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made_is_named(call, tmp_path):
    pytest.importorskip("pdoc", reason="extra `docs`")
    (tmp_path / "file").touch()
    status, _, error = call("docs", "--out", tmp_path / "file")
    assert status == 2
    assert f"cannot write to {tmp_path / 'file'}" in error
    assert len(error.splitlines()) == 1
