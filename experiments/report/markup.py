"""HTML from Python values: everything is escaped unless it is markup already."""

import base64
import html
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path


class Markup(str):
    """HTML that is inserted as it is; any other text is escaped."""


def escape(value: object) -> Markup:
    """A value as markup."""
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def element(name: str, *children: object, **attributes: str) -> Markup:
    """<name attributes>children</name>; `class_` is the attribute class, `data_x` is data-x."""
    names = (key.rstrip("_").replace("_", "-") for key in attributes)
    values = zip(names, attributes.values(), strict=True)
    written = "".join(f' {key}="{html.escape(value)}"' for key, value in values)
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[object], separator: str = "") -> Markup:
    """Values behind each other."""
    return Markup(separator.join(escape(part) for part in parts))


def table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> Markup:
    """A table that becomes a list of cards on a narrow screen: cells know their columns' names."""
    head = element("tr", *(element("th", cell, scope="col") for cell in header))
    body = []
    for row in rows:
        pairs = zip(map(str, header), row, strict=True)
        cells = (element("td", element("span", cell), data_label=name) for name, cell in pairs)
        body.append(element("tr", *cells))
    parts = element("thead", head), element("tbody", *body)
    if len(header) <= 8:
        return element("table", *parts)
    return element("div", element("table", *parts, class_="many"), class_="scrolls")


def markdown_table(text: str) -> Markup:
    """The table that `result_files.to_markdown` wrote.

    Columns of one value stand in a line above it, empty ones are left out.
    """
    lines = (line.strip().strip("|").split("|") for line in text.strip().splitlines())
    header, _, *rows = ([cell.strip() for cell in line] for line in lines)
    header = [name.replace("_", " ") for name in header]  # so that they can be broken
    values = [{row[i] for row in rows} for i in range(len(header))]
    same = [i for i, found in enumerate(values) if len(found) == 1 < len(rows)]
    shown = [i for i, found in enumerate(values) if i not in same and found != {""}]
    line = ", ".join(f"{header[i]}: {rows[0][i]}" for i in same if rows[0][i])
    above = element("p", line, class_="soft") if line else Markup("")
    cells = [[row[i] for i in shown] for row in rows]
    return join((above, table([header[i] for i in shown], cells)))


def image(path: Path, text: str) -> Markup:
    """A PNG inside the page; on a narrow screen a wide one is pushed sideways, not shrunk."""
    content = path.read_bytes()
    width, height = struct.unpack(">II", content[16:24])  # of the header, which comes first
    source = f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"
    kind = "wide" if width > 1.6 * height else "square"
    return Markup(f'<img class="{kind}" src="{source}" alt="{html.escape(text)}">')


def folded(title: object, *content: object) -> Markup:
    """What is shown when its title is asked for."""
    return element("details", element("summary", title), *content)


def command(*lines: str) -> Markup:
    """Shell commands, one per line."""
    return element("pre", element("code", "\n".join(lines)))


def inline(text: str) -> Markup:
    """Markdown's `code` and **bold**; of a [link](to a file), which is not there, the text."""
    written = html.escape(text)
    written = re.sub(r"\[(.+?)\]\([^)]*\)", r"\1", written)
    written = re.sub(r"`(.+?)`", r"<code>\1</code>", written)
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", written))


STYLE = """
:root { --ink: #1c1c1c; --soft: #5c5c5c; --line: #d8d8d8; --wash: #f5f6f8; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; color: var(--ink); background: #fff;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.25; }
h2 { margin-top: 2.5rem; border-bottom: 2px solid var(--line); }
h3 { margin: 2rem 0 .5rem; }
p, li { max-width: 46rem; } .soft { color: var(--soft); font-size: .9rem; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .9rem; }
pre { background: var(--wash); padding: .6rem .8rem; border-radius: .3rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
code { font: .85em/1.4 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: .8rem 0; width: 100%;
  font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid var(--line); }
table.many { font-size: .75rem; } .many th, .many td { padding-right: .35rem; }
.scrolls { overflow-x: auto; }
th { border-bottom: 2px solid var(--soft); } td a { white-space: nowrap; }
@media (min-width: 40.01rem) { td:first-child code { white-space: nowrap; } }
.verdict { display: inline-block; padding: 0 .45rem; border-radius: .3rem; border: 1px solid;
  white-space: nowrap; }
.holds { color: #0b6b2e; } .fails { color: #a3180d; } .open { color: #76520a; }
nav ul { padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; list-style: none; }
[id] { scroll-margin-top: 4rem; }
summary { cursor: pointer; padding: .2rem 0; color: #0645ad; } summary h2 { display: inline; }
section > details { border-top: 1px solid var(--line); padding: .4rem 0; }
section > details > summary > h2 { border: 0; font-size: 1.25rem; }
.beside { display: grid; grid-template-columns: minmax(0, 1.9fr) minmax(0, 1fr); gap: 1.5rem; }
.beside figure { margin: .3rem 0; } .beside img.square { max-height: 21rem; width: auto; }
.beside p { margin: .3rem 0 .6rem; font-size: .95rem; } article h3 { margin: 1.4rem 0 .3rem; }
.claims td:last-child { white-space: nowrap; } .claims td { line-height: 1.4; }
@media (max-width: 64rem) { .beside { display: block; } }
@media (max-width: 40rem) {
  figure { overflow-x: auto; } img.wide { max-width: none; width: 44rem; }
  figcaption { position: sticky; left: 0; }
  thead { position: absolute; left: -9999px; }
  table, tbody, tr, td { display: block; width: 100%; }
  tr { border: 1px solid var(--line); border-radius: .3rem; margin: 0 0 .6rem;
    padding: .3rem .6rem; }
  td { display: flex; gap: .8rem; justify-content: space-between; border: 0; padding: .15rem 0; }
  td::before { content: attr(data-label); color: var(--soft); flex: 0 0 38%; }
  td > span { flex: 1 1 auto; min-width: 0; text-align: right; }
  td:has(> span:empty) { display: none; }
  td:first-child { display: block; font-weight: 600; } td:first-child::before { content: none; }
  td:first-child > span { text-align: left; }
}
@media print {
  html { font-size: 10pt; }
  body { max-width: none; padding: 0; } nav { display: none; }
  a { color: inherit; text-decoration: none; }
  h2, h3 { break-after: avoid; } figure, tr, pre { break-inside: avoid; }
  .verdict, pre { border: 1px solid var(--line); }
  details::details-content { content-visibility: visible; block-size: auto; }
  .scrolls { overflow: visible; }
  .beside { display: block; } .beside img { max-height: 11cm; width: auto; }
}
"""
# With an icon: a browser would ask the network for one.
META = (
    '<meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<link rel="icon" href="data:,">'
)


def page(title: str, *content: object) -> Markup:
    """A whole document that needs no other file and no network."""
    head = element("head", Markup(META), element("title", title), element("style", Markup(STYLE)))
    document = element("html", head, element("body", *content), lang="en")
    return Markup(f"<!doctype html>\n{document}\n")
