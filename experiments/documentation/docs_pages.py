"""Hooks of mkdocs.yml: what of the repository stands in the site, and where its links lead.

Pages are written for readers of the repository, who follow links to files in it. In the site,
pages and pictures that are linked come along, whatever folder they stand in; of other files the
path is said.
"""

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# Files outside of docs/ with a place in the navigation.
PAGES = {
    "README.md": "start.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
# Of the API: what a user calls, and what such calls take or return. Other modules are documented
# where they stand.
MODULES = tuple(
    f"virl_tf{name}" for name in ("", ".tasks", ".export", ".hparams", ".methods", ".metrics")
)
FENCED = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
EQUATION = re.compile(r"^\$\$(\n.*?\n)\$\$$", re.DOTALL | re.MULTILINE)  # of notebooks
LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^()\s]+)\)")


# --- links ----------------------------------------------------------------------------------------


def site_uri(path: str) -> str | None:
    """Where a file of the repository stands in the site's sources; None: nowhere."""
    if path in PAGES:
        return PAGES[path]
    if path.endswith(".ipynb"):
        return f"notebooks/{posixpath.basename(path).removesuffix('.ipynb')}.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    linked = path.endswith((".png", ".gif", ".md")) and (ROOT / path).is_file()
    return f"repository/{path}" if linked else None


def targets(text: str, path: str) -> Iterator[str]:
    """The files of the repository that the page `path` links to."""
    for part in FENCED.split(text)[::2]:
        for _, _, link in LINK.findall(part):
            if not _is_elsewhere(link):
                yield _resolved(link, path)


def rewritten(text: str, path: str) -> str:
    """The page `path` of the repository with links that lead to their targets in the site."""
    uri = site_uri(path) or path

    def replaced(found: re.Match[str]) -> str:
        picture, title, link = found.groups()
        if _is_elsewhere(link):
            return found[0]
        target = _resolved(link, path)
        there = site_uri(target)
        if there is None:
            return title if target in title else f"{title} (`{target}`)"
        relative = posixpath.relpath(there, posixpath.dirname(uri) or ".")
        return f"{picture}[{title}]({relative}{''.join(link.partition('#')[1:])})"

    text = re.sub(r"^<!-- (table: \S+|end) -->$", "", text, flags=re.MULTILINE)
    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)


def _is_elsewhere(link: str) -> bool:
    return link.startswith(("#", "http://", "https://", "data:"))


def _resolved(link: str, path: str) -> str:
    target = link.partition("#")[0]
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


# --- pages ----------------------------------------------------------------------------------------


def linked_files() -> list[str]:
    """Pages and pictures outside of docs/ that are reached by links, and `PAGES`."""
    waiting = [*PAGES, *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
    seen = dict.fromkeys(waiting)
    while waiting:
        path = waiting.pop()
        if not path.endswith(".md"):
            continue
        for target in targets((ROOT / path).read_text(encoding="utf-8"), path):
            if target not in seen and (site_uri(target) or "").startswith("repository/"):
                seen[target] = None
                waiting.append(target)
    return [path for path in seen if not path.startswith("docs/")]


def notebook_page(content: str) -> str:
    """A notebook as Markdown: its text, its code, and the outputs that are stored in it."""
    parts = []
    for cell in json.loads(content)["cells"]:
        source = EQUATION.sub(r"```math\1```", "".join(cell["source"]))
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [_output(output) for output in cell.get("outputs", [])]
    return "\n\n".join(filter(None, parts))


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f"![output](data:image/png;base64,{''.join(data['image/png'].split())})"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""


def reference_page(module: str) -> str:
    """The API of a module: an entry for each public name that it lists, or for the whole of it."""
    import importlib

    found = importlib.import_module(module)
    names = [name for name in getattr(found, "__all__", ()) if f"{module}.{name}" not in MODULES]
    if not names:
        return f"# `{module}`\n\n::: {module}\n    options: {{ show_root_heading: false }}\n"
    summary = (found.__doc__ or "").partition("\n")[0]
    entries = [_entry(found, name) for name in names]
    return "\n\n".join([f"# `{module}`", summary, *entries])


def _entry(module: Any, name: str) -> str:
    """Where the object stands, under the name by which it is called."""
    home = getattr(getattr(module, name), "__module__", module.__name__)
    public = f"{module.__name__}.{name}"
    if home != module.__name__ and home in MODULES:  # one entry each
        return f"## {public}\n\nSee [{home}]({home}.md#{home}.{name})."
    return f"::: {home}.{name}\n    options: {{ heading: {public}, toc_label: {name} }}"


def equation(source: str, *_: Any, **__: Any) -> str:
    """A fenced block `math` as MathML, which browsers draw without a script."""
    from latex2mathml.converter import convert

    return f'<div class="equation">{convert(source, display="block")}</div>'


# --- hooks ----------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Add linked files, notebooks as pages, and the API reference."""
    from mkdocs.structure.files import File

    for path in linked_files():
        uri = site_uri(path)
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    for notebook in sorted((ROOT / "docs").glob("*.ipynb")):
        files.remove(files.get_file_from_path(notebook.name))
        page = notebook_page(notebook.read_text(encoding="utf-8"))
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=page))
    for module in MODULES:
        uri = f"reference/{module}.md"
        files.append(File.generated(config, uri, content=reference_page(module)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead the links of a page to where their targets stand."""
    return rewritten(markdown, _origin(page.file.src_uri))


def _origin(uri: str) -> str:
    """The file of the repository that a page is made from."""
    for path, own in PAGES.items():
        if own == uri:
            return path
    if uri.startswith("notebooks/"):
        return f"docs/{posixpath.basename(uri).removesuffix('.md')}.ipynb"
    return uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"
