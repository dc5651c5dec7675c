"""Files of demonstrations: each kind that is read, and one sentence for each that cannot be."""

import re
import shlex
import sys

from virl_tf import InputError
from virl_tf.validation import as_option

import numpy as np
import pandas as pd
import pytest

from experiments.own_data.demonstration_files import load_demonstrations
from experiments.own_data.fit_request import parse_numbers
from experiments.specification import parse_names

X = np.random.default_rng(0).normal(size=(30, 2)).round(6)
LINES = [",".join(map(str, row)) for row in X]


class Explosive:
    """Leaves a trace if it is ever unpickled."""

    def __reduce__(self):
        return (exec, ("raise AssertionError('unpickled')",))


def written(path, content):
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif path.suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="extra `parquet`")
        content.to_parquet(path)
    elif path.suffix == ".npy":
        np.save(path, content, allow_pickle=True)
    else:
        np.savez(path, **content)
    return path


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("x.npy", X, ["x0", "x1"]),
        ("x.npy", X.astype(np.float32), ["x0", "x1"]),
        ("X.NPY", X, ["x0", "x1"]),
        ("x.npz", {"demos": X}, ["x0", "x1"]),
        ("x.csv", "\n".join(LINES), ["x0", "x1"]),
        ("x.csv", "\n".join(["a,b", *LINES, ""]), ["a", "b"]),
        ("x.csv", "\ufeff" + "\r\n".join(["a, b", *LINES]), ["a", "b"]),
        ("x.csv", "\n".join(["'a';\"b c\"", *LINES]).replace(",", ";"), ["'a'", "b c"]),
        ("x.csv", "\n".join(LINES).replace(",", "\t"), ["x0", "x1"]),
        ("x.csv", "\n".join(["sep=;", *LINES]).replace(",", ";"), ["x0", "x1"]),
        ("x.csv", "\n".join(["sep=;", "a,b", *LINES]).replace(",", ";"), ["a", "b"]),
        ("x.csv", "\n".join(LINES).replace(",", "  "), ["x0", "x1"]),
        ("x.csv", pd.DataFrame(X).to_csv(index=False), ["0", "1"]),
        (
            "x.csv",
            "\n".join(["# made by me, today", "# a b", *LINES]).replace(",", " "),
            ["a", "b"],
        ),
        ("x.csv", "\n".join(["# three columns here", *LINES, "# the end"]), ["x0", "x1"]),
        ("x.parquet", pd.DataFrame(X, columns=["a", "b"]), ["a", "b"]),
        ("x.parquet", pd.DataFrame(X, columns=[0, 1]).astype("Float64"), ["0", "1"]),
    ],
)
def test_what_is_read(tmp_path, name, content, columns):
    if name == "X.NPY":
        np.save(tmp_path / "x.npy", X)
        path = (tmp_path / "x.npy").rename(tmp_path / name)
    else:
        path = written(tmp_path / name, content)
    found = load_demonstrations(path)
    assert found.columns == columns
    assert found.x.dtype == np.float64
    np.testing.assert_allclose(found.x, X, atol=1e-6)


def test_one_column_is_enough(tmp_path):
    found = load_demonstrations(written(tmp_path / "x.csv", "\n".join(str(v) for v in X[:, 0])))
    np.testing.assert_array_equal(found.x, X[:, :1])


def test_arrays_and_columns_are_chosen_by_name(tmp_path):
    path = written(tmp_path / "x.npz", {"good": X, "other": X + 1.0})
    np.testing.assert_array_equal(load_demonstrations(path, array="other").x, X + 1.0)
    with pytest.raises(InputError, match="several arrays \\(good, other\\)"):
        load_demonstrations(path)
    with pytest.raises(InputError, match="did you mean 'good'"):
        load_demonstrations(path, array="godo")
    table = written(
        tmp_path / "x.csv",
        "\n".join(["name,a,b", *(f"walk {i},{line}" for i, line in enumerate(LINES))]),
    )
    found = load_demonstrations(table, columns=["b", "a"])
    assert found.columns == ["b", "a"]
    np.testing.assert_array_equal(found.x, X[:, ::-1])
    with pytest.raises(InputError, match="did you mean 'name'"):
        load_demonstrations(table, columns=["nome"])


def test_columns_are_left_out_by_name(tmp_path):
    table = pd.DataFrame(X, columns=["a", "b"])
    table.insert(0, "row number", range(30))
    table["who"] = "me"
    path = written(tmp_path / "x.csv", table.to_csv(index=False))
    with pytest.raises(InputError, match="without numbers: who; with numbers: row number, a, b;"):
        load_demonstrations(path)
    found = load_demonstrations(path, exclude=["who", "row number"])
    assert found.columns == ["a", "b"]
    found = load_demonstrations(path, columns=["b", "who", "a"], exclude=["who"])
    assert found.columns == ["b", "a"]
    with pytest.raises(InputError, match=r"unknown column of .* did you mean 'row number'"):
        load_demonstrations(path, exclude=["row nummer"])
    with pytest.raises(InputError, match="--exclude leaves no column"):
        load_demonstrations(path, columns=["a"], exclude=["a"])


def test_names_keep_what_is_a_comment_elsewhere(tmp_path):
    text = (
        "# mine\njoint#1, joint#2,who # three names\n1,2,me#1\n # a comment\n3,5,me#2 # another\n"
    )
    path = written(tmp_path / "x.csv", text + "4,4,me#1\n9,1,me#2\n")
    found = load_demonstrations(path, group="who")
    assert found.columns == ["joint#1", "joint#2"]
    assert list(found.groups) == ["me#1", "me#2", "me#1", "me#2"]
    assert load_demonstrations(path, group="who", exclude=["who"]).columns == found.columns
    np.testing.assert_array_equal(found.x, [[1, 2], [3, 5], [4, 4], [9, 1]])


@pytest.mark.parametrize(("one", "two"), [("me #1", "me #2"), ("walk 1 #A", "walk 1 #B")])
def test_labels_with_a_sign_before_what_tells_them_apart_are_whole(tmp_path, one, two):
    text = f"a,b,who\n1,2,{one}\n3,5,{two} # tired\n4,4,{one} #\n#8,8,x\n9,7,{two}\n"
    found = load_demonstrations(written(tmp_path / "x.csv", text), group="who")
    assert list(found.groups) == [one, two, one, two]


def test_a_sign_behind_a_number_that_begins_no_comment_is_told(tmp_path):
    path = written(tmp_path / "y.csv", "a,b\n1,2 #1 bad\n3,5\n4,4\n9,7\n")
    with pytest.raises(InputError, match=r"text in row 0, for example '2 #1 bad'"):
        load_demonstrations(path)


@pytest.mark.parametrize("index", [False, True])
def test_labels_that_look_like_numbers_are_text(tmp_path, index):
    labels = ["1.1", "1.10", "007", "7", " 7"]
    frame = pd.DataFrame({"a": np.arange(5.0), "trial": labels, "b": [1.0, 0.0, 2.0, 5.0, 3.0]})
    path = written(tmp_path / "x.csv", frame.to_csv(index=index))
    found = load_demonstrations(path, group="trial")
    assert list(found.groups) == ["1.1", "1.10", "007", "7", "7"]
    np.testing.assert_array_equal(found.x, frame[["a", "b"]])
    # As a context it is a number, and equal ones are one group.
    found = load_demonstrations(path, group="trial", contexts=["trial"])
    assert list(found.groups) == [1.1, 1.1, 7.0, 7.0, 7.0]


def test_labels_that_mean_missing_elsewhere_are_text(tmp_path):
    labels = ["None", "NA", "null", "nan", "None"]
    rows = [f"{i},{label},{i * i}" for i, label in enumerate(labels)]
    path = written(tmp_path / "x.csv", "\n".join(["a,condition,b", *rows]))
    assert list(load_demonstrations(path, group="condition").groups) == labels
    written(path, "\n".join(["a,condition,b", *rows, "7,,8", "8, ,9"]))
    with pytest.raises(InputError, match=r"column 'condition' has no label in rows 5, 6\."):
        load_demonstrations(path, group="condition")


def test_labels_may_be_the_index_of_a_parquet_file(tmp_path, capsys):
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(who=np.arange(30) // 3).set_index("who")
    found = load_demonstrations(written(tmp_path / "x.parquet", frame), group="who")
    assert found.columns == ["a", "b"]
    assert list(found.groups) == list(np.arange(30) // 3)
    capsys.readouterr()
    assert load_demonstrations(tmp_path / "x.parquet").groups is None
    assert "the table's index 'who' is no column" in " ".join(capsys.readouterr().err.split())


def test_a_context_may_say_which_rows_are_held_out_together(tmp_path):
    path = written(tmp_path / "x.csv", "goal,a\n1,2\n1,5\n4,4\n4,1\n")
    found = load_demonstrations(path, group="goal", contexts=["goal"])
    assert found.columns == ["goal", "a"]
    assert list(found.groups) == [1, 1, 4, 4]
    assert load_demonstrations(path, group="goal").columns == ["a"]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_quoted_names_may_hold_separators(tmp_path, separator):
    rows = [line.replace(",", separator) for line in LINES]
    text = "\n".join([f'"a, left"{separator}"b, #2"', *rows])
    path = written(tmp_path / "x.csv", text)
    found = load_demonstrations(path)
    assert found.columns == ["a, left", "b, #2"]
    np.testing.assert_array_equal(found.x, X)


def test_the_option_that_an_error_names_leaves_out_names_with_commas(tmp_path):
    lines = ['"who, by name",a,"""b"", too"', *(f"me,{line}" for line in LINES)]
    path = written(tmp_path / "x.csv", "\n".join(lines))
    with pytest.raises(InputError) as error:
        load_demonstrations(path)
    option, value = shlex.split(re.search(r"\((--exclude .*)\)", str(error.value)).group(1))
    assert option == "--exclude"
    assert load_demonstrations(path, exclude=parse_names(value)).columns == ["a", '"b", too']
    value = shlex.split(as_option(['"b", too', "a", "who, by name"]))[0]
    assert parse_names(value) == ['"b", too', "a", "who, by name"]
    assert parse_numbers("--lower", '"speed, m/s"=1.5,a=2') == {"speed, m/s": 1.5, "a": 2.0}
    assert parse_numbers("--lower", "v=x=1.5") == {"v=x": 1.5}
    assert parse_numbers("--periodic", "a,b=360", 6.0) == {"a": 6.0, "b": 360.0}
    for text in ("5", "a", "=", "a="):
        with pytest.raises(InputError, match=f"takes COLUMN=NUMBER,..., got '{text}'"):
            parse_numbers("--lower", text)


def test_numbers_in_names_are_no_comments(tmp_path):
    path = written(tmp_path / "x.csv", csv(header="joint #1,joint #2 # both"))
    assert load_demonstrations(path).columns == ["joint #1", "joint #2"]


def test_the_name_of_one_column_may_be_several_words(tmp_path):
    lines = ["reaction time [s]", *(str(v) for v in X[:, 0])]
    found = load_demonstrations(written(tmp_path / "x.csv", "\n".join(lines)))
    assert found.columns == ["reaction time [s]"]
    np.testing.assert_array_equal(found.x, X[:, :1])


def test_a_first_row_with_words_for_values_is_no_line_of_names(tmp_path):
    path = written(tmp_path / "x.csv", "\n".join(["True,1.5", "False,2.5", "True,0.5", "False,1"]))
    found = load_demonstrations(path)
    assert found.columns == ["x0", "x1"]
    np.testing.assert_array_equal(found.x, [[1.0, 1.5], [0.0, 2.5], [1.0, 0.5], [0.0, 1.0]])
    path = written(tmp_path / "y.csv", csv(header="NA,1.5"))
    with pytest.raises(InputError, match=r"missing values.* in row 0, line 1 .*column 'x0'"):
        load_demonstrations(path)


@pytest.mark.parametrize(("header", "name"), [("a,b,", "'column 2'"), (None, "x2")])
def test_a_separator_at_the_end_of_all_lines_is_told(tmp_path, header, name):
    lines = ([] if header is None else [header]) + [f"{line}," for line in LINES]
    path = written(tmp_path / "x.csv", "\n".join(lines))
    with pytest.raises(InputError, match=rf"without any value.*--exclude {name}\)"):
        load_demonstrations(path)
    np.testing.assert_array_equal(load_demonstrations(path, exclude=[name.strip("'")]).x, X)


@pytest.mark.parametrize(("separator", "end"), [(",", ""), ("\t", "\t"), (";", "")])
def test_a_separator_at_the_end_of_lines_gives_no_column_another_name(tmp_path, separator, end):
    rows = [[i, i * i, 7 - i * i] for i in range(6)]  # what counts the rows is no name of them
    lines = [separator.join(map(str, row)) + separator for row in rows]
    text = "\n".join([separator.join(["t", "x", "y"]) + end, *lines])
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(InputError, match=r"without any value, .*'column 3'; drop them"):
        load_demonstrations(tmp_path / "mine.csv")
    found = load_demonstrations(tmp_path / "mine.csv", exclude=["column 3"])
    assert found.columns == ["t", "x", "y"]
    np.testing.assert_array_equal(found.x, rows)


def test_decimal_commas_without_a_line_of_names_are_told(tmp_path):
    lines = [line.replace(",", ";").replace(".", ",") for line in LINES]
    path = written(tmp_path / "x.csv", "\n".join(lines))
    with pytest.raises(InputError, match="they seem to have decimal commas"):
        load_demonstrations(path)


@pytest.mark.parametrize(("names", "width"), [([], 1), ([], 2), (["a,b"], 2)])
def test_decimal_commas_between_commas_are_told(names, width, tmp_path):
    values = np.random.default_rng(0).normal(20.0, 5.0, (60, width))
    lines = [",".join(f"{value:.3f}".replace(".", ",") for value in row) for row in values]
    path = written(tmp_path / "x.csv", "\n".join([*names, *lines]))
    with pytest.raises(InputError, match=r"'\d+,\d{3}' looks like a number with a decimal comma"):
        load_demonstrations(path)


@pytest.mark.parametrize(("names", "digits"), [([], 1), (["hour,minute"], 3)])
def test_pairs_of_whole_numbers_are_no_decimal_commas(names, digits, tmp_path):
    pairs = np.random.default_rng(0).integers(0, 1000, (60, 2))
    lines = [f"{first},{second:0{digits}d}" for first, second in pairs]
    found = load_demonstrations(written(tmp_path / "x.csv", "\n".join([*names, *lines])))
    np.testing.assert_array_equal(found.x, pairs)


def test_row_names_that_r_wrote_are_left_out(tmp_path):
    lines = [f'"{i}" {line.replace(",", " ")}' for i, line in enumerate(LINES, 1)]
    path = written(tmp_path / "x.csv", "\n".join(['"a" "b"', *lines]))
    found = load_demonstrations(path)
    assert found.columns == ["a", "b"]
    np.testing.assert_array_equal(
        found.x, load_demonstrations(written(tmp_path / "y.csv", csv())).x
    )


def test_an_index_that_pandas_wrote_is_left_out(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b"])
    found = load_demonstrations(written(tmp_path / "x.csv", frame.to_csv()))
    assert found.columns == ["a", "b"]
    np.testing.assert_allclose(found.x, X)
    later = frame.set_axis(frame.index + 50).to_csv()
    assert load_demonstrations(written(tmp_path / "z.csv", later)).columns == ["a", "b"]
    shuffled = frame.set_axis(frame.index[::-1]).to_csv()  # which tells something
    assert load_demonstrations(written(tmp_path / "y.csv", shuffled)).columns[1:] == ["a", "b"]


def test_an_index_of_chosen_rows_is_told(tmp_path, capsys):
    """Which does not count those that are left."""
    frame = pd.DataFrame(X, columns=["a", "b"])
    frame[frame.index != 1].to_csv(tmp_path / "x.csv")
    assert load_demonstrations(tmp_path / "x.csv").columns == ["column 0", "a", "b"]
    told = capsys.readouterr().err
    assert "x.csv: the first column has no name, as an index that pandas writes" in told
    assert "give --exclude 'column 0'" in told
    found = load_demonstrations(tmp_path / "x.csv", exclude=["column 0"])
    np.testing.assert_allclose(found.x, np.delete(X, 1, axis=0))
    (tmp_path / "other").mkdir()
    frame.set_index(np.linspace(0.5, 9.1, len(X))).to_csv(tmp_path / "other" / "x.csv")
    assert load_demonstrations(tmp_path / "other" / "x.csv").columns == ["column 0", "a", "b"]
    assert capsys.readouterr().err == ""


def test_names_that_pandas_gives_by_itself_are_no_row(tmp_path, capsys):
    frame = pd.DataFrame(X)
    found = load_demonstrations(written(tmp_path / "x.csv", frame.to_csv()))
    assert (found.columns, capsys.readouterr().err) == (["0", "1"], "")
    np.testing.assert_allclose(found.x, X)
    found = load_demonstrations(written(tmp_path / "y.csv", frame.to_csv(index=False)))
    assert found.columns == ["0", "1"]
    np.testing.assert_allclose(found.x, X)
    told = capsys.readouterr().err
    assert "y.csv: the first line was taken for the names 0,1" in told
    assert "if it is a row, put a line of names above it." in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("width", [1, 2])
def test_a_first_row_that_counts_is_a_row_among_numbers_written_as_short_as_can_be(
    tmp_path, capsys, width
):
    x = np.round(X[:, :width], 1)
    x[:2] = np.arange(width)
    np.savetxt(tmp_path / "x.csv", x, fmt="%g", delimiter=",")
    found = load_demonstrations(tmp_path / "x.csv")
    assert found.columns == ["x0", "x1"][:width]
    np.testing.assert_allclose(found.x, x)
    assert capsys.readouterr().err == ""
    with pytest.raises(InputError, match="holds no rows"):
        load_demonstrations(written(tmp_path / "y.csv", "0,1\n"))


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_the_columns_of_arrays_have_names_too(tmp_path, name):
    path = written(tmp_path / name, X if name == "x.npy" else {"x": X})
    found = load_demonstrations(path, exclude=["x0"])
    assert found.columns == ["x1"]
    np.testing.assert_array_equal(found.x, X[:, 1:])
    with pytest.raises(InputError, match="Allowed: x0, x1"):
        load_demonstrations(path, columns=["x2"])


def with_holes(*rows):
    x = X.copy()
    x[list(rows), 1] = np.nan
    return x


def csv(*lines, header="a,b"):
    return "\n".join([header, *LINES, *lines])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.txt",
            "1 2",
            r"unknown kind of file '\.txt'; allowed are \.npy, \.npz, \.csv, \.parquet",
        ),
        ("x.npy", b"", "x.npy is empty"),
        ("x.csv", "", "x.csv is empty"),
        ("x.csv", "\n\n", "not a .csv file of numbers"),
        ("x.csv", 200_000 * "x", "not a .csv file of numbers: field larger than field limit"),
        ("x.csv", csv(header="a,a"), "x.csv: several columns are called 'a'"),
        (
            "x.csv",
            "a,b\n" + 9 * "1,2,3\n",
            "2 names stand above 3 columns, of which the first does",
        ),
        ("x.csv", csv(header="a,b,c,d"), "x.csv: 4 names stand above 2 columns"),
        ("x.csv", "a,b\n", r"holds no rows of numbers: its shape is \(0, 2\)"),
        ("x.csv", b"\xff\xfe\x00\x01", "not a .csv file in UTF-8; save it as one"),
        ("x.csv", csv("1,2,3"), "not a .csv file of numbers.*line 32"),
        (
            "x.csv",
            csv("1,oops"),
            r"column 'b' holds text in row 30, for example 'oops'; without numbers: b; "
            r"with numbers: a; drop the former \(--exclude b\), or mend their rows\.$",
        ),
        ("x.csv", csv("1,"), r"NaN or infinities in row 30, line 32 of the file \(column 'b'\)"),
        ("x.csv", csv("1,inf"), r"row 30, line 32 of the file \(column 'b'\)"),
        (
            "x.csv",
            "# mine\n\n" + csv(",2", ",3"),
            r"in rows 30, 31, the first of them line 34 of the file \(column 'a'\)",
        ),
        (
            "x.csv",
            "who,a,b,still\nme,1,2,7\nme,,3,7\nme,3,9,7\n",
            r"column 'who' holds text in rows 0, 1, 2, for example 'me'; column 'a' has missing "
            r"values, NaN or infinities in row 1, line 3 of the file; column 'still' is constant; "
            r"drop them \(--exclude who,a,still\) or mend the rows\.$",
        ),
        ("x.csv", "a;b\n" + 9 * "1,5;2,5\n", "no column holds numbers; they seem to have decimal"),
        ("x.npy", b"not an array", "damaged or not an .npy file"),
        (
            "x.npy",
            np.array([Explosive()] * 9, dtype=object),
            "damaged or not an .npy file.*holds pickled objects, which are not loaded",
        ),
        (
            "x.npy",
            X[:, 0],
            r"must be 2-D \[N, D\], got 1-D with shape \(30,\) \(one column of numbers is \[N, 1\]",
        ),
        (
            "x.npy",
            np.zeros((2, 3, 4)),
            r"must be 2-D.*got 3-D.*: flatten trajectories \[N, T, D\] to \[N, T \* D\]",
        ),
        ("x.npy", np.zeros((0, 2)), "holds no rows of numbers"),
        ("x.npy", X[:3], "3 rows of dimension 2; at least D \\+ 2 = 4 are needed"),
        ("x.npy", X + 1j, "holds complex128, not real numbers"),
        ("x.npy", X.astype(str), "column 'x0' holds text"),
        ("x.npy", X * [1.0, 0.0], "x.npy: demonstrations: column 'x1' is constant"),
        ("x.npy", with_holes(3, 17), r"in rows 3, 17 \(column 'x1'\)"),
        ("x.npy", with_holes(*range(8)), r"in rows 0, 1, 2, 3, 4 and 3 more"),
        ("x.npz", b"PK\x03\x04 broken", "damaged, or no zip file, as which .npz"),
        (
            "x.npz",
            {"x": np.array([Explosive()] * 9, dtype=object)},
            "damaged or not an .npz file.*holds pickled objects, which are not loaded",
        ),
        ("x.npz", {}, "holds no array|damaged"),
        ("x.parquet", b"PAR1 broken", "damaged or not a .parquet file|needs pyarrow"),
        (
            "x.parquet",
            pd.DataFrame({"when": pd.date_range("2020", periods=5), "a": range(5)}),
            "'when' holds datetime64",
        ),
        (
            "x.parquet",
            pd.DataFrame({"who": list("abcde"), "a": range(5)}),
            "'who' holds text in rows 0, 1, 2, 3, 4, for example 'a'",
        ),
        (
            "x.parquet",
            pd.DataFrame({"a": [1, None, 3, 4], "b": range(4)}, dtype="Int64"),
            "row 1 .column 'a'.",
        ),
    ],
)
def test_what_is_refused(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        load_demonstrations(written(tmp_path / name, content))


@pytest.mark.parametrize("name", ["missing.csv", "folder.npy"])
def test_what_is_not_a_file_is_refused(tmp_path, name):
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(InputError, match=r"no file|is a folder: give a file"):
        load_demonstrations(tmp_path / name)


def test_options_of_other_kinds_of_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="--array is for"):
        load_demonstrations(written(tmp_path / "x.npy", X), array="x")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"needs pyarrow, the extra `parquet`: pip install"):
        load_demonstrations(tmp_path / "x.parquet")


def test_a_parquet_bomb_is_not_unpacked(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow", reason="extra `parquet`")
    monkeypatch.setattr("experiments.own_data.demonstration_files.MAX_UNPACKED_BYTES", 2**20)
    bomb = written(tmp_path / "x.parquet", pd.DataFrame({"a": np.zeros(10**6)}))
    with pytest.raises(InputError, match=r"x\.parquet would unpack to 8000000 bytes; at most"):
        load_demonstrations(bomb)
    large = np.random.default_rng(0).integers(10, size=(10**5, 2))  # few values take few bits
    assert len(load_demonstrations(written(tmp_path / "y.parquet", pd.DataFrame(large))).x) == 10**5
