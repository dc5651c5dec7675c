"""The tables of README and docs are those of the committed results, and the command that writes
them.
"""

import json
import shutil

from virl_tf import InputError

import numpy as np
import pandas as pd
import pytest

from experiments.documentation import doc_tables
from experiments.documentation.doc_tables import (
    BLOCK,
    ROOT,
    find_pages,
    markdown,
    read_tables,
    rewritten,
    stray_rows,
    update,
)
from experiments.result_statistics import bootstrap_interval

TABLES = read_tables()


@pytest.mark.parametrize("path", find_pages(), ids=lambda path: path.name)
def test_text_and_results_agree(path):
    text = path.read_text(encoding="utf-8")
    assert stray_rows(path, text) == [], "a table with numbers stands outside of a block"
    for name, _ in BLOCK.findall(text):
        assert name in TABLES
    assert rewritten(text, TABLES) == (text, "")


def test_every_table_stands_on_one_page_or_more():
    text = "".join(path.read_text(encoding="utf-8") for path in find_pages())
    assert {name for name, _ in BLOCK.findall(text)} == {*TABLES}


def test_blocks_are_closed():
    for path in find_pages():
        text = path.read_text(encoding="utf-8")
        assert text.count("<!-- table:") == len(BLOCK.findall(text)), path


# --- with made-up results -------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """README.md, docs/ and results of their own."""
    results = tmp_path / "results"
    results.mkdir()
    frame = pd.DataFrame(
        {
            "method": ["a", "a", "a", "b", "b", "b"],
            "seed": [0, 1, 2, 2, 1, 0],
            "value": [1.0, 2.0, 6.0, 3.0, 3.0, np.nan],
            "status": ["finished"] * 5 + ["diverged"],
        }
    )
    frame.to_csv(results / "results.csv", index=False)
    rows = [{"who": "ours", "cpu": 0.0625}, {"who": "other", "cpu": 1234.5}]
    (results / "benchmark.json").write_text(json.dumps({"rows": rows}))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tables.yaml").write_text(
        "seeds:\n"
        "  corner: method\n"
        "  file: results.csv\n"
        "  value: value\n"
        "  columns: {mean: {digits: 1}, spread: {show: range, digits: 0}}\n"
        "  rows: {first: {where: {method: a}}, second: {where: {method: b}}}\n"
    )
    block = "# Title\n\n<!-- table: seeds -->\n<!-- end -->\n\nText.\n"
    (tmp_path / "README.md").write_text(block)
    (tmp_path / "docs" / "page.md").write_text("# Page\n\n| word | `3` |\n|---|---|\n")
    monkeypatch.setattr(doc_tables, "RESULTS", results)
    return tmp_path


def shown(rows, columns, **table):
    """The cells of a table with these rows and columns."""
    text = markdown("t", {"t": {"rows": rows, "columns": columns, **table}})
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]


def test_tables_are_written_and_then_agree(checkout):
    with pytest.raises(InputError, match=r"^README.md: table 'seeds' is not that of the results"):
        update(True, checkout)
    assert update(False, checkout) == ["README.md"]
    assert (checkout / "README.md").read_text() == (
        "# Title\n\n<!-- table: seeds -->\n"
        "| method | mean | spread |\n"
        "| --- | --- | --- |\n"
        "| first | 3.0 | 3 (1 - 6) |\n"
        "| second | 3.0, 1 diverged | 3 (3 - 3), 1 diverged |\n"
        "<!-- end -->\n\nText.\n"
    )
    assert update(True, checkout) == []
    assert update(False, checkout) == []


def test_a_number_that_was_changed_by_hand_is_found(checkout):
    update(False, checkout)
    page = checkout / "README.md"
    page.write_text(page.read_text().replace("3 (1 - 6)", "3 (1 - 5)"))
    with pytest.raises(InputError, match=r"README.md: table 'seeds'"):
        update(True, checkout)


def test_a_block_of_an_unknown_name_is_refused(checkout):
    page = checkout / "docs" / "page.md"
    page.write_text("<!-- table: sedes -->\n<!-- end -->\n")
    with pytest.raises(InputError, match=r"^docs/page.md, no table 'sedes' .* it has seeds"):
        update(False, checkout)


@pytest.mark.parametrize(
    ("row", "stray"),
    [
        ("| a | 0.5 |", True),
        ("| V-IRL 10c | fast |", True),
        ("| a | `0.5`, Figure 2b, Figures 3, 6 and 7, Eq. 1 | float64 |", False),
        ("| [a](page_1.md) | word |", False),
        ("0.5 in a sentence", False),
    ],
)
def test_numbers_in_tables_outside_of_blocks_are_found(checkout, row, stray):
    page = checkout / "docs" / "page.md"
    page.write_text(f"| x | y |\n|---|---|\n{row}\n")
    update_ = lambda: update(False, checkout)  # noqa: E731
    if stray:
        with pytest.raises(InputError, match=r"docs/page.md: a table with numbers is in no block"):
            update_()
    else:
        update_()
    assert stray_rows(page, f"```\n{row}\n```\n") == []
    page.rename(checkout / "docs" / "decisions-page.md")  # numbers of trials, by hand
    update_()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "3.000"),
        ({"show": "median"}, "2.000"),
        ({"show": "extent", "digits": 0}, "1 - 6"),
        ({"show": "extent", "where": {"method": "b"}, "digits": 0}, "3, 1 diverged"),
        ({"show": "count"}, "3"),
        ({"times": 100, "digits": 0, "unit": " %"}, "300 %"),
        ({"value": ["missing", "value"]}, "3.000"),
        ({"show": "below", "than": {"method": "b"}}, "2 of 3"),  # seed 0 of b is lost
        (
            {"show": "below", "where": {"method": "b"}, "than": {"method": "a"}},
            "1 of 3, 1 diverged",
        ),
        ({"show": "ratio", "of": {"method": "b"}, "digits": 2}, "1.00"),
        ({"where": {"seed": 2}, "show": "ratio", "of": {"seed": 1}, "times": 100}, "180.000"),
        ({"where": {"method": "b"}, "show": "count"}, "2, 1 diverged"),
        ({"where": {"method": "b", "seed": 0}, "value": ["value", "seed"]}, "0.000, 1 diverged"),
        ({"where": {"method": "{name}"}, "name": "b"}, "3.000, 1 diverged"),
        ({"file": "benchmark.json", "where": {"who": "other"}, "value": "cpu"}, "1,234.500"),
    ],
)
def test_what_a_cell_shows(checkout, settings, text):
    table = {"file": "results.csv", "where": {"method": "a"}, "value": "value"}
    assert doc_tables.cell({**table, **settings}) == text


@pytest.mark.parametrize(("diverged", "text"), [("a", "1 of 2, 1 diverged"), ("b", "2 of 2")])
def test_a_run_that_diverged_is_below_none_whatever_its_value(checkout, diverged, text):
    rows = [
        {"method": method, "seed": seed, "value": value, "status": "finished" if seed else status}
        for method, value in (("a", 1.0), ("b", 3.0))
        for status in ["diverged" if method == diverged else "finished"]
        for seed in range(2)
    ]
    rows[2 if diverged == "b" else 0]["value"] = {"a": 1.0, "b": 0.5}[diverged]
    pd.DataFrame(rows).to_csv(checkout / "results" / "runs.csv", index=False)
    settings = {"file": "runs.csv", "where": {"method": "a"}, "value": "value", "show": "below"}
    assert doc_tables.cell({**settings, "than": {"method": "b"}}) == text


@pytest.mark.parametrize(("failed", "text"), [("a", "1 of 2"), ("b", "2 of 2")])
def test_a_run_that_failed_is_below_none_and_above_all(checkout, failed, text):
    rows = [
        {"method": method, "seed": seed, "value": value, "status": "finished"}
        for method, value in (("a", 1.0), ("b", 3.0))
        for seed in range(2)
    ]
    rows[2 if failed == "b" else 0] |= {"value": np.nan, "status": "failed"}
    pd.DataFrame(rows).to_csv(checkout / "results" / "runs.csv", index=False)
    settings = {"file": "runs.csv", "where": {"method": "a"}, "value": "value", "show": "below"}
    assert doc_tables.cell({**settings, "than": {"method": "b"}}) == text


def test_the_rows_of_a_ratio_are_averaged(checkout):
    settings = {"file": "results.csv", "where": {"method": "b"}, "value": "value", "show": "ratio"}
    found = doc_tables.cell({**settings, "of": {"method": "a"}, "digits": 1})
    assert found == "1.0, 1 diverged"  # 3 of 3; the median of the others is 2


def test_intervals_are_the_bootstraps(checkout):
    values = np.array([1.0, 2.0, 6.0, 1.0, 5.0])
    low, high = bootstrap_interval(values)
    pd.DataFrame({"value": values}).to_csv(checkout / "results" / "five.csv", index=False)
    settings = {"value": "value", "show": "interval", "digits": 2}
    found = doc_tables.cell({**settings, "file": "five.csv"})
    assert found == f"3.00 [{low:.2f}, {high:.2f}]"
    of_three = {**settings, "file": "results.csv", "where": {"method": "a"}}
    assert doc_tables.cell(of_three) == "3.00"


def test_diverged_runs_are_counted(checkout):
    path = checkout / "results" / "results.csv"
    frame = pd.read_csv(path).fillna(9.0)
    frame.to_csv(path.with_name("other.csv"), index=False)
    settings = {"file": "other.csv", "where": {"method": "b"}, "value": "value"}
    assert doc_tables.cell(settings) == "5.000, 1 diverged"


def test_rows_of_each_value_and_empty_cells(checkout):
    columns = {
        "mean": {"value": "value"},
        "of b": {"value": "value", "where": {"seed": 0}},
    }
    table = {"file": "results.csv", "digits": 0}
    cells = shown({"each": "method"}, columns, **table)
    assert cells[2:] == [["`a`", "3", "1"], ["`b`", "3, 1 diverged", "1 diverged"]]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"where": {"method": "c"}}, "the results have nothing for the row 'r'"),
        ({"where": {"mehtod": "a"}}, "results.csv has no column 'mehtod'; it has method, seed"),
        ({"show": "mode"}, "show: 'mode' is none of mean, median"),
        ({"file": "missing.csv"}, "cannot read .*missing.csv"),
    ],
)
def test_tables_that_cannot_be_made_are_one_clear_error(checkout, row, message):
    with pytest.raises(InputError, match=rf"^table 't': .*{message}"):
        shown({"r": row}, {"c": {"value": "value"}}, file="results.csv")


def test_outside_of_a_checkout_it_says_so(tmp_path):
    with pytest.raises(InputError, match="needs a checkout"):
        find_pages(tmp_path)


def test_the_command(call):
    status, said, error = call("doc-tables", "--check")
    assert (status, said, error) == (0, "", "")


def test_the_command_names_the_first_table_that_differs(call, checkout, monkeypatch):
    shutil.copy(ROOT / "README.md", checkout / "README.md")
    monkeypatch.setattr(doc_tables.update, "__defaults__", (checkout,))
    status, _, error = call("doc-tables", "--check")
    assert status == 2
    assert "README.md, no table 'headline'" in error
    assert len(error.splitlines()) == 1


def test_the_range_of_one_number_is_that_number(checkout):
    options = {"file": "results.csv", "value": "value", "show": "range"}
    rows = {"one": {"where": {"method": "a", "seed": 2}}, "three": {"where": {"method": "a"}}}
    cells = shown(rows, {"spread": {"digits": 0}}, **options)
    assert [row[-1] for row in cells[-2:]] == ["6", "3 (1 - 6)"]
