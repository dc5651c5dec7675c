"""The site: built by one command without a warning, every page and public name in it, every
argument documented, nothing from the network, readable on a phone.
"""

import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import virl_tf
from virl_tf.tasks import Task
from virl_tf.validation import InputError

import pytest

from experiments.documentation import docs_command, docs_pages
from experiments.documentation.docs_pages import MODULES, notebook_page, rewritten, targets

ROOT = Path(__file__).parent.parent
# What every task's methods call the same, see `virl_tf.tasks.Task`: points, a number of draws, a
# seed.
EVERYWHERE = {"x", "n", "seed"}


def public():
    """Every public function and class: (module, name on the page, the object)."""
    for module in (virl_tf, virl_tf.tasks, virl_tf.export):
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isfunction(found) or inspect.isclass(found):
                yield module.__name__, name, found


# --- the site -------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Ids, links, what is loaded, emphasis and text of a page."""

    def __init__(self, content):
        super().__init__()
        self.ids, self.links, self.loaded, self.tags, self.pieces = set(), [], [], set(), []
        self.feed(content)
        self.text = " ".join("".join(self.pieces).split())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.add(tag)
        self.ids.add(attributes.get("id"))
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        elif "src" in attributes or (tag == "link" and "href" in attributes):
            self.loaded.append(attributes.get("src") or attributes["href"])

    def handle_data(self, data):
        self.pieces.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built by a process of its own, as a user starts it."""
    pytest.importorskip("mkdocstrings", reason="extra `docs`")
    out = tmp_path_factory.mktemp("docs") / "a folder"
    command = [sys.executable, "-m", "experiments", "docs", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("wrote ")
    return out


@pytest.fixture(scope="module")
def pages(site):
    return {
        path.relative_to(site).as_posix(): Page(path.read_text(encoding="utf-8"))
        for path in site.rglob("*.html")
        if path.name != "404.html"  # its links begin at the root of a server
    }


@pytest.mark.slow
def test_every_page_of_the_documentation_is_in_the_navigation(pages):
    linked = {link.partition("#")[0] for link in pages["index.html"].links}
    of_docs = {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")} - {"index.html"}
    others = {uri.replace(".md", ".html") for uri in docs_pages.PAGES.values()}
    notebooks = {f"notebooks/{path.stem}.html" for path in (ROOT / "docs").glob("*.ipynb")}
    reference = {f"reference/{module}.html" for module in MODULES}
    assert of_docs | others | notebooks | reference <= linked


@pytest.mark.slow
def test_every_link_leads_to_a_file_and_heading_of_the_site(site, pages):
    checked = 0
    for name, page in pages.items():
        for link in [*page.links, *page.loaded]:
            if link.startswith(("https://", "data:")):
                continue
            target, _, anchor = link.partition("#")
            path = (site / name).parent / target if target else site / name
            path = path / "index.html" if path.is_dir() else path
            assert path.is_file(), f"{name}: {link}"
            there = path.resolve().relative_to(site.resolve()).as_posix()
            if anchor and there in pages:
                assert anchor in pages[there].ids, f"{name}: {link}"
            checked += 1
    assert checked > 500


@pytest.mark.slow
def test_nothing_comes_from_the_network(site, pages):
    for name, page in pages.items():
        assert [link for link in page.loaded if link.startswith(("http", "//"))] == [], name
    css = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"url\([\"']?https?://", css)


@pytest.mark.slow
def test_every_public_name_has_an_entry_with_its_docstring(pages):
    for module, name, found in public():
        homes = [f"reference/{found.__module__}.html", f"reference/{module}.html"]
        page = next(pages[home] for home in homes if home in pages)
        assert f"{found.__module__}.{name}" in page.ids, name
        first = inspect.getdoc(found).splitlines()[0]
        assert re.sub(r"[\s`]", "", first) in re.sub(r"[\s`]", "", page.text), name
    for method in ("Reward.as_keras", "Mixture.distribution"):
        name = f"{getattr(virl_tf, method.split('.')[0]).__module__}.{method.split('.')[1]}"
        ids = pages["reference/virl_tf.html"].ids
        assert any(str(found).endswith(method) for found in ids), name


@pytest.mark.slow
def test_symbols_are_no_emphasis_and_equations_are_drawn(pages):
    for module in MODULES:
        assert "em" not in pages[f"reference/{module}.html"].tags
    assert "q*_0" in pages["reference/virl_tf.html"].text
    assert {"math", "mfrac", "munderover"} <= pages["from-the-paper-to-the-code.html"].tags


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_their_window_and_load_only_files(browser, site, pages, width):
    shown = browser.new_page(viewport={"width": width, "height": 844})
    asked, said = [], []
    shown.on("request", lambda request: asked.append(request.url))
    shown.on("pageerror", lambda error: said.append(str(error)))
    for name in pages:
        shown.goto((site / name).as_uri())
        assert shown.evaluate("document.documentElement.scrollWidth") <= width, name
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    shown.close()


# --- links, notebooks, errors ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("docs/usage.md", "[a](studies.md#b)", "[a](studies.md#b)"),
        ("docs/usage.md", "[a](../README.md#c)", "[a](start.md#c)"),
        ("docs/usage.md", "[a](../hparams/x.yaml)", "a (`hparams/x.yaml`)"),
        ("docs/usage.md", "[`hparams/x.yaml`](../hparams/x.yaml)", "`hparams/x.yaml`"),
        ("docs/usage.md", "[a](trajectories.ipynb)", "[a](notebooks/trajectories.md)"),
        ("README.md", "[a](docs/usage.md)", "[a](usage.md)"),
        ("README.md", "[a](LICENSE), [b](https://x.y)", "a (`LICENSE`), [b](https://x.y)"),
        (
            "README.md",
            "![a](experiments/results/overview.png)",
            "![a](repository/experiments/results/overview.png)",
        ),
        (
            "experiments/results/pretrained/README.md",
            "[a](../../../docs/usage.md)",
            "[a](../../../../usage.md)",
        ),
        ("docs/usage.md", "```\n[a](../x.yaml)\n```", "```\n[a](../x.yaml)\n```"),
        ("docs/usage.md", "<!-- table: x -->\n| a |\n<!-- end -->", "\n| a |\n"),
    ],
)
def test_links_lead_to_where_their_targets_stand(path, text, expected):
    assert rewritten(text, path) == expected


def test_targets_are_files_of_the_repository():
    text = "[a](../README.md#b) [c](#d) [e](https://f)\n```\n[g](h)\n```\n"
    assert list(targets(text, "docs/usage.md")) == ["README.md"]


def test_a_notebook_is_a_page_with_its_outputs():
    page = notebook_page((ROOT / "docs" / "trajectories.ipynb").read_text(encoding="utf-8"))
    assert page.startswith("# ")
    assert page.count("```python\n") >= 3
    assert page.count("![output](data:image/png;base64,") == 3
    page = notebook_page((ROOT / "docs" / "the-paper.ipynb").read_text(encoding="utf-8"))
    assert "```math\nR(x) = " in page
    assert "$$" not in page


def test_the_papers_notation_is_no_emphasis():
    docs_notation = pytest.importorskip(
        "experiments.documentation.docs_notation", reason="extra `docs`"
    )
    text = docs_notation.notation("q*_t, `q*_t`, a * b, *text")
    assert text == r"q\*_t, `q*_t`, a * b, *text"
    shapes = docs_notation.notation("rows [c, x] [N, C + D], `[c, x] [N, D]`, [a](page.md)")
    assert shapes == r"rows [c, x] \[N, C + D], `[c, x] [N, D]`, [a](page.md)"


def test_without_mkdocs_it_says_what_to_install(call, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "material", None)
    status, _, error = call("docs", "--out", tmp_path / "out")
    assert status == 2
    assert error == f"error: {docs_command.EXTRA}\n"
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_no_site_is_left_alone(tmp_path):
    """MkDocs would delete what is in it."""
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InputError, match="holds something that is no site"):
        docs_command._check_out(tmp_path)
    with pytest.raises(InputError, match="it is a file"):
        docs_command._check_out(tmp_path / "thesis.tex")
    docs_command._check_out(tmp_path / "new")
    (tmp_path / "sitemap.xml").touch()
    docs_command._check_out(tmp_path)


def test_warnings_of_mkdocs_are_the_error():
    said = docs_command._Warnings()
    logger = docs_command.logging.getLogger("mkdocs.test")
    logger.addHandler(said)
    logger.warning("a page\nis missing")
    logger.warning("so is %s", "another")
    assert said.text == "a page is missing; so is another"


# --- the docstrings -------------------------------------------------------------------------------


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
