"""The report: everything it promises is in it, nothing in it needs another file, and it works in a
browser.
"""

import base64
import dataclasses
import html
import io
import re
from html.parser import HTMLParser
from pathlib import Path

from virl_tf import InputError

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.figure import Figure
from PIL import Image

from experiments.claims import FAILS, HOLDS, MOSTLY
from experiments.documentation import doc_tables
from experiments.report import items, markup, sources
from experiments.report.report import build, write_report
from experiments.report.results import Results, mean_with_interval, not_run
from experiments.result_files import COLUMNS, columns_of
from experiments.result_statistics import bootstrap_interval
from experiments.tasks import descriptions

COMMITTED = Path(__file__).parent.parent / "experiments" / "results"
VOID = {"meta", "link", "img"}


class Page(HTMLParser):
    """Checks that tags are balanced; keeps links, ids, pictures, tables and the text."""

    def __init__(self, content):
        super().__init__()
        self.open, self.links, self.ids, self.pictures, self.rows, self.pieces = (
            [],
            [],
            [],
            [],
            [],
            [],
        )
        self.feed(content)
        assert self.open == []
        self.text = " ".join("".join(self.pieces).replace("\u00a0", " ").split())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "img":
            self.pictures.append(attributes)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += 1
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [
            attributes[name] for name in ("href", "src", "srcset", "data") if name in attributes
        ]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.pieces.append(data + " ")


def squeezed(text):
    """Text as `Page.text` has it, whatever the tags between its words."""
    return re.sub(r"\s", "", text)


@pytest.fixture(scope="module")
def committed():
    content = build(Results(COMMITTED))
    return content, Page(content)


def test_every_figure_table_and_claim_is_there_with_its_verdict(committed):
    page = committed[1]
    for number in ("1", "2a", "2b", "3", "4", "5", "6", "7"):
        assert f"figure-{number}" in page.ids
    for number in ("1", "2", "3"):
        assert f"table-{number}" in page.ids
    results = Results(COMMITTED)
    for task in descriptions():
        for claim in task.claims():
            finding = claim.check(results.tables[task.name].frame)
            shown = squeezed(claim.sentence + finding.numbers + finding.verdict + claim.test)
            assert shown in squeezed(page.text), claim.sentence
    for item in items.FIGURES:
        for line in (
            item.shows,
            *item.commands,
            *(text for pair in item.elements for text in pair),
        ):
            assert squeezed(line) in squeezed(page.text), line


def test_verdicts_and_headline_come_first(committed):
    content, page = committed
    opened = re.sub(r"<details>.*?</details>", "", content, flags=re.DOTALL)
    order = ["Claims and verdicts", "Headline numbers", "Figure 1", "Figure 7"]
    places = [opened.index(f">{title}") for title in order[:2]] + [
        opened.index(f">{title}:") for title in order[2:]
    ]
    assert places == sorted(places)
    results = Results(COMMITTED)
    found = [
        claim.check(results.tables[task.name].frame)
        for task in descriptions()
        for claim in task.claims()
    ]
    verdicts = [finding.verdict for finding in found]
    counts = [f"{verdict}: {verdicts.count(verdict)}" for verdict in (HOLDS, MOSTLY, FAILS)]
    assert ", ".join(counts) in page.text
    before, _, after = opened.partition("Headline numbers</h2>")
    for finding in found:
        assert squeezed(html.escape(finding.numbers)) in squeezed(before)
    headline = doc_tables.markdown("headline", doc_tables.read_tables())
    for cell in re.findall(r"\| ([\d.]{3,}[^|]*?) (?=\|)", headline):
        assert f">{cell}<" in after
    for item in items.FIGURES:
        assert squeezed(html.escape(item.shows)) in squeezed(after), "unfolded"


def test_figures_say_what_our_runs_say(committed):
    for folder, stage, column, digits in (
        ("grid_walker", "inference", "new_modes", 1),
        ("gaussians", "training", "reported", 3),
    ):
        frame = pd.read_csv(COMMITTED / folder / "results.csv")
        rows = frame[(frame["stage"] == stage) & (frame["method"] == "virl")]
        rows = rows[(rows["modes"] == rows["modes"].max()) & (rows["components"] == 10)]
        name = "V-IRL 10c" if folder == "gaussians" else "V-IRL"
        assert f"{name} {rows[column].mean():.{digits}f}, " in committed[1].text


def test_numbers_are_those_of_the_results_with_their_intervals(committed):
    for folder, stage, method, column, digits in (
        ("grid_walker", "inference", "virl", "new_modes", 1),
        ("grid_walker", "training", "geim", "explored_unexplored_auc", 3),
        ("path_planning", "obstacles", "geim", "modes_covered", 1),
    ):
        frame = pd.read_csv(COMMITTED / folder / "results.csv")
        values = frame[(frame["stage"] == stage) & (frame["method"] == method)][column]
        low, high = bootstrap_interval(values.to_numpy(float))
        interval = f" [{low:.{digits}f}, {high:.{digits}f}]" if len(values) >= 5 else ""
        shown = f"{values.mean():.{digits}f}{interval}, n = {len(values)}"
        assert shown in committed[1].text


def test_deviations_and_defaults_are_there_with_their_sources(committed):
    _, points = sources.deviations()
    assert len(points) >= 8
    for point in points:
        assert squeezed(re.sub(r"`|\*\*", "", point)) in squeezed(committed[1].text)
    content = yaml.safe_load((sources.DIRECTORY / "defaults.yaml").read_text(encoding="utf-8"))
    methods = content.pop("methods")
    values = {
        f"{section}.{key}": value
        for section, part in content.items()
        for key, value in part.items()
    }
    values |= {
        f"methods.{name}.{section}": value
        for name, part in methods.items()
        for section, value in part.items()
    }
    found = {default.name: default for default in sources.defaults()}
    assert {name: yaml.safe_load(default.value) for name, default in found.items()} == values
    assert "Short patience stops on the first plateau" in found["training.patience"].source
    assert found["training.start"].source.startswith("How phi_t starts")
    assert "wants 25 - 40 iterations" in found["methods.geim.loop"].source


def test_published_tables_are_the_papers(committed):
    text = committed[1].text
    assert "learning rate 0.000268 0.000381 0.000109 0.000622 0.000843 0.000328" in re.sub(
        r"\s+", " ", text
    )
    assert "bandwidth 0.215* 0.215* 0.215* 0.215* X X" in re.sub(r"\s+", " ", text)
    assert "update steps 63 5*" in re.sub(r"\s+", " ", text)
    assert "Layer size 2^[3, 8]" in re.sub(r"\s+", " ", text)


def test_the_page_needs_nothing_but_itself(committed):
    content, page = committed
    for link in page.links:
        assert link.startswith(("#", "data:")), link
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    assert "<script" not in content
    assert not re.search(r"url\(|@import|https?://", content)
    assert len(content) < 8_000_000


def test_pictures_are_whole_and_described(committed):
    pictures = committed[1].pictures
    assert len(pictures) >= 8
    for picture in pictures:
        assert picture["alt"]
        with Image.open(io.BytesIO(base64.b64decode(picture["src"].partition(",")[2]))) as image:
            image.load()
            assert image.format == "PNG"


def test_it_is_built_from_the_folder_that_is_given_the_same_bytes_each_time(
    call, results, tmp_path
):
    for name in ("one", "two"):
        status, shown, error = call(
            "report", "--results", results, "--out", tmp_path / "deep" / f"{name}.html"
        )
        assert status == 0, error
        assert shown.startswith("wrote ")
    assert (tmp_path / "deep" / "one.html").read_bytes() == (
        tmp_path / "deep" / "two.html"
    ).read_bytes()
    page = Page((tmp_path / "deep" / "one.html").read_text(encoding="utf-8"))
    assert "V-IRL 10c, recovered reward 0.250" in page.text
    assert "grid_walker" not in {part.folder.name for part in Results(results).tables.values()}
    assert "Grid walker no runs: 6 claims not tested" in page.text
    assert "Not all of its runs are here:" in page.text


# --- with made-up results -------------------------------------------------------------------------


def gaussian_rows(modes, seeds, preset="paper", value=0.25):
    keys = [
        ("training", method, components)
        for method in ("virl", "geim", "eim")
        for components in (1, 10)
    ]
    keys += [("training_policy", "virl", 10), ("inference", "virl", 10)]
    return pd.DataFrame(
        [
            {
                **dict(zip(("stage", "method", "components"), key, strict=True)),
                **{
                    "task": "gaussians",
                    "modes": m,
                    "seed": s,
                    "preset": preset,
                    "status": "finished",
                },
                **dict.fromkeys(("best", "final", "reported", "cpu_seconds"), value),
            }
            for key in keys
            for m in modes
            for s in seeds
        ],
        columns=COLUMNS,
    )


@pytest.fixture
def no_pictures(monkeypatch):
    """Empty ones, for a page of which the text counts; those of `committed` are drawn."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **look: EMPTY.save(file, "PNG"))


EMPTY = Image.new("RGB", (1, 1))


@pytest.fixture
def results(tmp_path):
    """A folder of results of the Gaussians alone."""
    folder = tmp_path / "results" / "gaussians"
    folder.mkdir(parents=True)
    gaussian_rows([5, 50], [0, 1]).to_csv(folder / "results.csv", index=False)
    return tmp_path / "results"


@pytest.mark.usefixtures("no_pictures")
def test_what_was_not_run_is_said(results):
    said = Results(results).missing("gaussians")
    assert said == (
        "Of the full sweep (3 methods, 5 seeds) not run: 10, 15, 20, 25, 30, 35, 40, 45 modes; "
        "runs done: 12 of 30 at 5 modes, 12 of 30 at 50 modes."
    )
    assert squeezed(said) in squeezed(Page(build(Results(results))).text)
    full = gaussian_rows(range(5, 55, 5), range(5))
    assert not_run("gaussians", [full]) == ""
    assert not_run("gaussians", [full[full["modes"] < 30], full[full["modes"] >= 30]]) == ""
    further = gaussian_rows([5], range(5, 10))
    assert "24 of 30 at 5 modes" in not_run("gaussians", [full[full["seed"] < 4], further])
    quick = gaussian_rows(range(5, 55, 5), range(5), preset="quick")
    assert "not run: 5, 10" in not_run("gaussians", [quick])
    assert not_run("grid_walker", []) == "Not run yet."


def walker_rows(modes, seeds=range(3)):
    """Training of both methods; as many modes covered as there are."""
    keys = [(method, m, seed) for method in ("virl", "geim") for m in modes for seed in seeds]
    common = {"task": "grid_walker", "components": 10, "preset": "paper", "stage": "training"}
    frame = pd.DataFrame(keys, columns=["method", "modes", "seed"])
    frame = frame.assign(**common, status="finished", reported=0.5, cpu_seconds=1.0)
    frame = frame.assign(modes_covered=frame["modes"], open_modes=frame["modes"])
    return frame.reindex(columns=columns_of("grid_walker"))


def put(folder, frame):
    folder.mkdir()
    frame.to_csv(folder / "results.csv", index=False)


def test_the_papers_size_stands_for_a_walkers_task(results):
    for name, frame in (
        ("walker", walker_rows([32])),
        ("walker_d6", walker_rows([64], range(5))),
        ("walker_d8", walker_rows([256], range(1))),
    ):
        put(results / name, frame)
    found = Results(results)
    assert found.tables["grid_walker"].folder.name == "walker"
    assert found.missing("grid_walker") == (
        "Of the full sweep (3 methods, 10 seeds) not run: 16 modes; runs done: 6 of 30 at 32 "
        "modes, 10 of 30 at 64 modes, 2 of 30 at 256 modes."
    )


@pytest.mark.parametrize(("modes", "shown"), [([16, 32, 64], 32), ([16, 64], 64)])
def test_several_sizes_of_a_walker_are_not_averaged(results, modes, shown):
    put(results / "walker", walker_rows(modes))
    found = Results(results)
    for table in (found.tables["grid_walker"], found.by_folder[results / "walker"]):
        assert set(table.frame["modes"]) == {shown}
        cells = items.walks(table, training=("modes_covered",))
        assert f"{shown:.1f}, n\u00a0=\u00a03" in cells
    assert all(f"6 of 30 at {m} modes" in found.missing("grid_walker") for m in modes)


def test_the_committed_walker_is_the_papers():
    found = Results(COMMITTED)
    assert found.tables["grid_walker"].folder.name == "grid_walker"
    assert found.missing("grid_walker") == ""  # 4, 5, 6 and 8 steps are whole


@pytest.mark.usefixtures("no_pictures")
def test_of_two_tables_the_larger_one_stands_for_its_task(results):
    (results / "all").mkdir()
    gaussian_rows([5, 10, 50], [0, 1], value=0.125).to_csv(
        results / "all" / "results.csv", index=False
    )
    assert Results(results).tables["gaussians"].folder.name == "all"
    assert "0.125" in Page(build(Results(results))).text


def test_tables_and_pictures_beyond_the_paper_are_there(committed):
    """`best` and its references, the ablations' table, benchmarks; not the tables of each ablation
    folder.
    """
    page = committed[1]
    shown = [folder.relative_to(COMMITTED).as_posix() for folder in Results(COMMITTED).below()]
    assert "best/ablations" in shown
    assert "best/ablations/gaussians_m50" not in shown
    for name in (
        "best/gaussians_m50/table.md",
        "best/ablations/ablations.md",
        "benchmark/vips/benchmark.md",
    ):
        _, _, *rows = (COMMITTED / name).read_text(encoding="utf-8").splitlines()
        cells = [cell.strip() for row in (rows[0], rows[-1]) for cell in row.split("|")]
        assert all(squeezed(cell) in squeezed(page.text) for cell in cells), name
    assert {"best / ablations figure_ablations", "benchmark / vips figure_robot"} <= {
        p["alt"] for p in page.pictures
    }


def test_columns_of_one_value_stand_above_a_table_and_empty_ones_nowhere():
    page = Page(
        markup.markdown_table(
            "| a | b | c | d |\n| --- | --- | --- | --- |\n| 1 |  | x | 5 |\n| 2 |  |  | 5 |\n"
        )
    )
    assert page.text == "d: 5 a c 1 x 2"
    assert page.rows == [2, 2, 2]
    assert Page(markup.markdown_table("| a | b |\n| --- | --- |\n| 1 | 2 |\n")).text == "a b 1 2"


@pytest.mark.usefixtures("no_pictures")
def test_text_in_results_is_never_markup(results):
    folder = results / "study <script>alert(1)<"
    folder.mkdir()
    told = {"column": ["<img src=x onerror=y>"], "candidate": "a&b", "value": 0.5, "status": "ok"}
    pd.DataFrame(told).to_csv(folder / "values.csv")
    content = build(Results(results))
    assert "<script" not in content
    assert "<img src=x" not in content
    assert "&lt;img src=x onerror=y&gt;" in content
    assert "a&amp;b" in content


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("other/results.csv", "a,b\n1,2\n", "not a results table of this version"),
        ("other/results.csv", "ablation,b\n1,2\n", "figure ablations is drawn from it"),
        (
            "other/results.csv",
            ",".join(COLUMNS) + "\nchess" + ",1" * 11 + "\n",
            r"it holds \['chess'\]",
        ),
        ("other/results.csv", ",".join(columns_of("grid_walker")) + "\n", r"it holds \[\]"),
        ("other/values.csv", "a,b\n1,2\n", "not a comparison made by"),
        ("other/table.md", "", "table.md is not a table"),
        ("other/table.md", "| a | b |\n| --- | --- |\n| 1 |\n", "table.md is not a table"),
        ("other/config.yaml", "a: [1", "config.yaml"),
    ],
)
def test_damaged_results_are_one_clear_error(results, name, content, message, tmp_path):
    (results / "other").mkdir()
    (results / name).write_text(content)
    with pytest.raises(InputError, match=message):
        write_report(Results(results), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("content", ["", "- a", "versions: [a]", "versions:\n  1: 2"])
def test_a_configuration_of_another_program_says_no_versions(results, content):
    (results / "other").mkdir()
    (results / "other" / "config.yaml").write_text(content)
    assert Results(results).versions() == {"other": {"1": "2"} if "1" in content else {}}


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("table", ["values.csv", "budgets.csv"])
def test_runs_of_a_study_are_no_results_of_its_task(results, table):
    """Their records are of many hyperparameters, of which `compare` and `rank-budgets` tell."""
    (results / "study" / "records").mkdir(parents=True)
    (results / "study" / "records" / "found-gaussians-virl-10c-m50-s100-paper.zip").touch()
    rows = "column,candidate,value,status\nvirl_10c,found,0.125,finished\n"
    (results / "study" / table).write_text(rows)
    found = Results(results)
    assert [part.folder.name for part in found.tables.values()] == ["gaussians"]
    assert ("0.1250" in Page(build(found)).text) == (table == "values.csv")


@pytest.mark.usefixtures("no_pictures")
def test_folders_and_files_that_cannot_be_used_are_named(call, results, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        (["--results", tmp_path / "missing"], "no folder of results"),
        (["--results", tmp_path / "empty"], "holds no results.csv"),
        (["--results", results, "--out", tmp_path], f"cannot write {tmp_path}"),
    ):
        out = [] if "--out" in arguments else ["--out", tmp_path / "report.html"]
        status, _, error = call("report", *arguments, *out)
        assert status == 2
        assert message in error
        assert len(error.splitlines()) == 1


def test_intervals_are_of_the_finite_values():
    values = pd.Series([1.0, 2.0, 3.0, 4.0, 5.0, np.nan])
    low, high = bootstrap_interval(np.arange(1.0, 6.0))
    assert mean_with_interval(values, 2) == f"3.00 [{low:.2f}, {high:.2f}], n\u00a0=\u00a05"
    assert mean_with_interval(values[:4], 2) == "2.50, n\u00a0=\u00a04"
    assert mean_with_interval(pd.Series([0.5])) == "0.500, n\u00a0=\u00a01"
    assert mean_with_interval(pd.Series([np.nan])) == "-"


def test_lost_runs_are_said_beside_every_mean(results):
    frame = gaussian_rows([50], range(2))
    lost = (frame["seed"] == 1) & (frame["method"] == "virl") & (frame["components"] == 10)
    frame.loc[lost, ["final", "reported", "status"]] = [np.nan, np.nan, "diverged"]
    found = Results(results).tables["gaussians"]
    gaussians = dataclasses.replace(found, frame=frame)
    assert "V-IRL 10c 0.250 (1 lost), G-EIM 1c 0.250," in items.most_modes(gaussians, "training")
    cells = items.distances(gaussians, "training")
    assert "(1 diverged)" in cells
    assert "0.250, n\u00a0=\u00a01 (1 lost)" in cells

    frame = walker_rows([32]).assign(kl=0.5)
    lost = (frame["method"] == "virl") | (frame["seed"] == 0)
    frame.loc[lost, "status"] = "diverged"
    frame.loc[lost, ["kl", "reported"]] = np.nan
    walker = dataclasses.replace(found, frame=frame)
    said = items.of_methods(walker, "training", "kl", "explored_unexplored_auc")
    shown = "KL(q || p): V-IRL none (3 lost), G-EIM 0.50 (1 lost)"
    assert said == f"{shown} (training, means over seeds)."
    assert "0.50, n\u00a0=\u00a02 (1 lost)" in items.walks(walker, training=("kl",))


@pytest.mark.usefixtures("no_pictures")
def test_lost_runs_of_a_comparison_are_said(results):
    """Those that diverged with a finite value, too, as compare.md counts them."""
    folder = results / "study"
    folder.mkdir()
    values = {"column": "virl_1c", "candidate": "found", "value": [0.5, np.nan, 0.5]}
    told = values | {"status": ["finished", "failed", "diverged"]}
    pd.DataFrame(told).to_csv(folder / "values.csv")
    assert "0.5000, n = 1 (2 lost)" in Page(build(Results(results))).text


def test_markup_escapes_everything_else():
    assert (
        markup.element("p", "a < b", markup.element("b", "&"), class_='"x"')
        == '<p class="&quot;x&quot;">a &lt; b<b>&amp;</b></p>'
    )
    assert (
        markup.inline("**a** `<b>` [text](file.md)")
        == "<strong>a</strong> <code>&lt;b&gt;</code> text"
    )
    with pytest.raises(ValueError, match="zip"):
        markup.table(["a", "b"], [["only one"]])


# --- in a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(committed, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(committed[0], encoding="utf-8")
    return path


TOO_WIDE = """() => [
    ...document.querySelectorAll('td, pre, figure, img.square, p, li, h1, h2, h3')]
    .filter(e => (e.closest('.scrolls') || e).getBoundingClientRect().right > innerWidth + 1)
    .map(e => e.outerHTML.slice(0, 80))"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_it_renders_in_chromium(browser, stored, width):
    page = browser.new_page(viewport={"width": width, "height": 844})
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(stored.as_uri())
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [stored.as_uri()]
    assert page.evaluate("[...document.images].length") >= 8
    assert page.evaluate(
        "[...document.images].every(image => image.complete && image.naturalWidth > 100)"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(TOO_WIDE) == []
    if width == 1280:
        assert page.evaluate("document.documentElement.scrollHeight") <= 6_000
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(TOO_WIDE) == []
    # On a phone a wide picture is not shrunk to nothing but scrolls in its figure.
    widths = page.evaluate(
        "[...document.querySelectorAll('img.wide')]"
        ".map(image => image.getBoundingClientRect().width)"
    )
    assert min(widths) >= 600
    smallest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('td')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 12
    labels = page.evaluate(
        "getComputedStyle(document.querySelector('td:nth-child(2)'), '::before').content"
    )
    assert (labels != "none") == (width == 390), (
        "cells name their column where the header is hidden"
    )
    page.close()


@pytest.mark.slow
def test_a_link_opens_what_is_folded_away(browser, stored):
    page = browser.new_page(viewport={"width": 1280, "height": 844})
    page.goto(stored.as_uri())
    section = page.locator("#beyond-the-paper")
    assert not section.is_visible()
    page.click("nav >> text=Beyond the paper")
    assert section.is_visible()
    page.close()


@pytest.mark.slow
def test_it_prints(browser, stored):
    page = browser.new_page()
    page.goto(stored.as_uri())
    pages = page.pdf(format="A4").count(b"/Type /Page\n")
    assert 15 <= pages <= 60, "with what is folded away on the screen"
    page.close()
