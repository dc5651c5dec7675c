"""`python -m experiments report`: the page, from the results, the claims and the sources."""

import platform
import re
from collections.abc import Callable
from pathlib import Path

import virl_tf
from virl_tf.persistence.configuration import versions
from virl_tf.persistence.files import write_text, writing
from virl_tf.validation import InputError, reason

import pandas as pd

from experiments.claims import FAILS, HOLDS, MOSTLY, TOO_FEW, Finding
from experiments.documentation import doc_tables
from experiments.report import items, sources
from experiments.report.markup import (
    Markup,
    command,
    element,
    folded,
    image,
    inline,
    join,
    markdown_table,
    page,
    table,
)
from experiments.report.results import Results, mean_with_interval
from experiments.result_statistics import lost
from experiments.screen import counted, screen
from experiments.sweeps.sweep import num_cores
from experiments.tasks import describe, descriptions

LOOKS = {HOLDS: "holds", MOSTLY: "holds", FAILS: "fails", TOO_FEW: "open"}
WRITTEN_TABLES = ("table.md", "ablations.md", "benchmark.md")  # of commands, beside their results
MOST_ROWS = 20  # of such a table that are shown without being asked for
KNOWN_PICTURES = {f"figure_{figure.number}.png" for figure in items.FIGURES}


def write_report(results: Results, out: Path) -> None:
    """Build the page into the file `out`.

    Raises:
        InputError: no results there, damaged ones, or an `out` that cannot be written.
    """
    content = build(results)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, content)
    screen().out(f"wrote {out} ({len(content) / 1e6:.1f} MB)")


def build(results: Results) -> Markup:
    """The whole page."""
    findings = {
        task: [claim.check(found.frame) for claim in describe(task).claims()]
        for task, found in results.tables.items()
    }
    shown = {
        "Claims and verdicts": verdicts(findings),
        "Headline numbers": headline(results),
        "Figures": join(figure(item, results) for item in items.FIGURES),
    }
    away = {
        "Tables of the paper": join(_table(*item) for item in items.TABLES),
        "How the claims are tested": claims(findings),
        "Beyond the paper": beyond(results),
        "Deviations and open choices": deviations(),
        "Machine, versions, cost": machine(results),
    }
    title = "Versatile Inverse Reinforcement Learning via Cumulative Rewards: a reproduction"
    parts = [
        element("section", element("h2", name), content, id=_anchor(name))
        for name, content in shown.items()
    ]
    for name, content in away.items():  # a link to what is inside opens it
        inside = element("div", content, id=_anchor(name))
        parts.append(element("section", folded(element("h2", name), inside)))
    links = [element("a", name, href=f"#{_anchor(name)}") for name in (*shown, *away)]
    contents = element("nav", element("ul", *(element("li", link) for link in links)))
    return page(title, element("h1", title), introduction(), contents, *parts)


def introduction() -> Markup:
    """What this page is."""
    return element(
        "p",
        "Freymuth, Becker and Neumann (2021) recover a reward from versatile demonstrations as a "
        "sum of discriminators (V-IRL). This page puts the results of virl_tf "
        f"{virl_tf.__version__}, an implementation in TensorFlow, beside every figure, table and "
        "claim of the paper. It is made from result files by ",
        element("code", "python -m experiments report --out report.html"),
        "; intervals are 95 % bootstrap intervals of the mean over n seeds.",
    )


def _anchor(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())


def verdicts(findings: dict[str, list[Finding]]) -> Markup:
    """Every sentence of the paper that states a result, what our runs say, and the verdict."""
    rows: list[list[object]] = []
    for task in descriptions():
        tested = task.claims()
        if not tested:
            continue
        if not findings.get(task.name):
            rows.append([task.title, f"no runs: {counted(len(tested), 'claim')} not tested", ""])
        for claim, finding in zip(tested, findings.get(task.name, []), strict=False):
            said = element("span", f"{task.title}: ", class_="soft")
            rows.append([join((said, claim.sentence)), finding.numbers, _verdict(finding)])
    found = [finding.verdict for of_task in findings.values() for finding in of_task]
    counts = [f"{verdict}: {found.count(verdict)}" for verdict in LOOKS]
    shown = table(["the paper says", "our runs say", "verdict"], rows)
    return element("div", element("p", f"{', '.join(counts)}."), shown, class_="claims")


def headline(results: Results) -> Markup:
    """Methods and references side by side, as in the README."""
    tables = doc_tables.read_tables() if doc_tables.TABLES.is_file() else {}
    try:
        text = doc_tables.markdown("headline", tables, results.path)
    except InputError as error:
        return element("p", f"Not all of its runs are here: {reason(error)}", class_="soft")
    before = "The paper draws its results and states no such numbers; ours are means over seeds."
    return Markup(element("p", before) + markdown_table(re.sub(r"[*`]", "", text)))


def figure(item: items.Figure, results: Results) -> Markup:
    """Ours beside what the paper shows; its elements, numbers and commands are folded away."""
    name = f"Figure {item.number}"
    says = [element("p", element("strong", "The paper: "), item.shows)]
    shown, beside, text = Markup(""), None, "not run yet; the commands below make it."
    with results.drawn(item.number) as picture:
        if picture is not None:
            beside = results.by_folder.get(picture.parent)
            shown = element("figure", image(picture, f"Our {name.lower()}: {item.title}"))
            text = ""
    numbers = beside or (None if item.own_runs else results.tables.get(item.task))
    text = text or (item.ours(numbers) if numbers is not None else "")
    says += [element("p", element("strong", "Ours: "), text)] if text else []
    if not item.own_runs:
        missing = results.missing(item.task)
        says += [element("p", missing, class_="soft")] if missing else []
    more = [element("p", item.remark)] if item.remark else []
    more.append(table(["the caption names", "in our figure"], item.elements))
    more += [item.numbers(numbers)] if numbers is not None else []
    more += [element("p", "Made again by:", class_="soft"), command(*item.commands)]
    heading = element("h3", f"{name}: {item.title}", id=_anchor(name))
    both = element("div", shown, element("div", *says), class_="beside")
    return element("article", heading, both, folded("its elements, numbers and commands", *more))


def _table(number: str, title: str, file: str, build_table: Callable[[str], Markup]) -> Markup:
    name = f"Table {number}"
    heading = element("h3", f"{name}: {title}", id=_anchor(name))
    source = element("p", f"From hparams/{file}.", class_="soft")
    return element("article", heading, build_table(file), source)


def claims(findings: dict[str, list[Finding]]) -> Markup:
    """Every sentence that states a result."""
    parts = []
    for task in descriptions():
        tested = task.claims()
        if not tested:
            continue
        found = findings.get(task.name) or [Finding("no runs", TOO_FEW)] * len(tested)
        rows = [
            [claim.sentence, finding.numbers, _verdict(finding), claim.test]
            for claim, finding in zip(tested, found, strict=True)
        ]
        header = ["the paper says", "our runs say", "verdict", "test"]
        parts += [element("h3", task.title), table(header, rows)]
        parts.append(command(f"python -m experiments claims {task.name} FOLDER_OF_THE_SWEEP"))
    return join(parts)


def _verdict(finding: Finding) -> Markup:
    return element("span", finding.verdict, class_=f"verdict {LOOKS[finding.verdict]}")


def beyond(results: Results) -> Markup:
    """What is in no figure of the paper: `best`, ablations, benchmarks, studies, other pictures."""
    parts = []
    for folder in results.below():
        written = () if folder in results.by_folder else WRITTEN_TABLES
        tables = [folder / name for name in written if (folder / name).is_file()]
        pictures = [p for p in sorted(folder.glob("*.png")) if p.name not in KNOWN_PICTURES]
        values = folder / "values.csv"
        if not (tables or pictures or values.is_file()):
            continue
        title = " / ".join(folder.relative_to(results.path).parts).replace("_", " ")
        parts += [element("h3", title)] if title else []
        parts += [_study_values(values)] if values.is_file() else []
        parts += [_written_table(path) for path in tables]
        for path in pictures:
            shown = image(path, f"{title} {path.stem}")
            parts.append(element("figure", shown, element("figcaption", path.stem)))
    return join(parts) if parts else element("p", "Nothing.")


def _written_table(path: Path) -> Markup:
    text = path.read_text(encoding="utf-8")
    try:
        shown = markdown_table(text)
    except (IndexError, ValueError) as error:
        raise InputError(f"{path} is not a table as a command here writes it: {error}.") from error
    number = len(text.splitlines()) - 2
    if number <= MOST_ROWS:
        return shown
    return folded(f"{number} rows", shown)


def _study_values(path: Path) -> Markup:
    """Published against found hyperparameters on fresh seeds."""
    try:
        groups = pd.read_csv(path).groupby(["column", "candidate"])
        rows = [[column, candidate, _value(group)] for (column, candidate), group in groups]
    except (LookupError, TypeError, ValueError) as error:
        made = "a comparison made by `python -m experiments compare`"
        raise InputError(f"{path} is not {made}: {error}.") from error
    return table(["column", "hyperparameters", "objective on fresh seeds (lower is better)"], rows)


def _value(group: pd.DataFrame) -> str:
    are_lost = lost(group, "value")
    return mean_with_interval(group["value"].mask(are_lost), 4, int(are_lost.sum()))


def deviations() -> Markup:
    """The documentation's list, and every default with its source."""
    before, points = sources.deviations()
    header = sources.file_header(sources.DIRECTORY / "defaults.yaml")
    rows = [
        [element("code", name), element("code", value), inline(source) or "not stated"]
        for name, value, source in sources.defaults()
    ]
    return Markup(
        element("p", inline(before))
        + element("ul", *(element("li", inline(point)) for point in points))
        + element("h3", "Every default and its source")
        + element("p", header)
        + table(["default", "value", "source"], rows)
    )


def machine(results: Results) -> Markup:
    """With what the results and this page were made, and what a run costs."""
    found = results.versions()
    packages = list(dict.fromkeys(package for made_with in found.values() for package in made_with))
    rows = [
        [package, *(made_with.get(package, "-") for made_with in found.values())]
        for package in packages
    ]
    silent = [task.folder.name for task in results.tables.values() if task.folder.name not in found]
    system = f"{platform.system()} {platform.machine()}, {num_cores()} cores"
    return Markup(
        element("h3", "The results")
        + table(["package", *found], rows)
        + (element("p", f"Not recorded for: {', '.join(silent)}.") if silent else "")
        + element("p", "Runs are single-threaded; their medians:")
        + items.costs(results)
        + element("h3", "This page")
        + table(["what", "version"], {**versions(), "system": system}.items())
    )
