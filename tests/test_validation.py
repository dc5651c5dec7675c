from virl_tf.validation import (
    InputError,
    check_choice,
    check_demonstrations,
    check_flag,
    check_integer,
    check_positive,
    check_seed,
    check_share,
    closest,
)

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf


def data(n=10, d=2):
    return np.random.default_rng(0).standard_normal((n, d))


def replaced(row, column, value):
    x = data()
    x[row, column] = value
    return x


def constant(value, n=10_000):
    return np.column_stack([data(n, 1), np.full(n, value)])


REFUSED = {
    "1-D": (data()[:, 0], ["2-D", "1-D", "(10,)"]),
    "3-D": (data()[None], ["2-D", "3-D", "(1, 10, 2)"]),
    "scalar": (3.0, ["2-D", "0-D"]),
    "no rows": (np.zeros((0, 2)), ["empty", "(0, 2)"]),
    "no columns": (np.zeros((5, 0)), ["empty", "(5, 0)"]),
    "empty list": ([], ["2-D"]),
    "three rows in 2-D": (data(3, 2), ["3 rows", "D + 2 = 4"]),
    "too few rows in 5-D": (data(6, 5), ["6 rows", "D + 2 = 7"]),
    "NaN": (replaced(4, 1, np.nan), ["NaN", "1 of 10 rows", "row 4", "column 1", "finite"]),
    "inf": (replaced(7, 0, np.inf), ["infinities", "row 7", "column 0"]),
    "-inf": (replaced(0, 0, -np.inf), ["infinities", "row 0"]),
    "constant column": (constant(3.0), ["column 1", "constant", "value 3"]),
    "constant zero column": (constant(0.0), ["column 1", "constant"]),
    "constant up to rounding": (constant(0.1), ["column 1", "constant", "0.1"]),
    "constant up to rounding, large": (constant(1e9 / 3.0), ["column 1", "constant"]),
    "constant up to the last bit": (
        np.column_stack([data(1000, 1), 0.3 + np.spacing(0.3) * (np.arange(1000) % 2)]),
        ["constant"],
    ),
    "complex": (data() + 1j, ["numeric", "complex128"]),
    "strings": (data().astype(str), ["numeric", "<U"]),
    "bytes": (data().astype("S"), ["numeric"]),
    "objects": (data().astype(object), ["numeric", "object"]),
    "ragged": ([[1.0, 2.0], [3.0]], ["numeric", "[N, D]"]),
    "masked": (np.ma.masked_greater(data(), 0.5), ["NaN", "row"]),
    "two columns of one name": (
        pd.DataFrame(data(), columns=["a", "a"]),
        ["two columns are called 'a'"],
    ),
    "intervals": (
        pd.DataFrame({"i": pd.IntervalIndex.from_breaks(np.arange(11.0)), "x": data()[:, 0]}),
        ["'i' holds interval", "not real numbers"],
    ),
    "None": (None, ["numeric", "object"]),
    "a dictionary": ({"x": data()}, ["numeric", "object"]),
    "dates": (
        np.array([["2020-01-01", "2021-01-01"]] * 5, "datetime64[D]"),
        ["numeric", "datetime64"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unusable_demonstrations_are_refused_with_what_is_wrong(name):
    demonstrations, fragments = REFUSED[name]
    with pytest.raises(InputError) as error:
        check_demonstrations(demonstrations)
    assert "demonstrations" in str(error.value)
    for fragment in fragments:
        assert fragment in str(error.value)


ACCEPTED = {
    "float64": data(),
    "float32": data().astype(np.float32),
    "float16": data().astype(np.float16),
    "list": data().tolist(),
    "tuples": [tuple(row) for row in data()],
    "integers": np.arange(20).reshape(10, 2) ** 2,
    "uint8": np.arange(20, dtype=np.uint8).reshape(10, 2),
    "booleans": np.random.default_rng(0).integers(0, 2, (10, 2)).astype(bool),
    "tensor": tf.constant(data()),
    "fortran order": np.asfortranarray(data()),
    "strided": data(20, 4)[::2, ::2],
    "D + 2 rows": data(4, 2),
    "one column": data(3, 1),
    "small": 1e-30 * data(),
    "large offset": data() + 1e9,
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_usable_demonstrations_come_back_as_the_same_numbers_in_float64(name):
    x = check_demonstrations(ACCEPTED[name])
    assert x.dtype == np.float64
    np.testing.assert_array_equal(x, np.asarray(ACCEPTED[name], np.float64))


def test_demonstrations_are_not_changed():
    x = data()
    check_demonstrations(x)[...] = 0.0
    np.testing.assert_array_equal(x, data())


def test_unknown_choice_names_the_nearest_and_all():
    with pytest.raises(InputError, match="unknown method 'vril'") as error:
        check_choice("method", "vril", ("virl", "geim", "eim"))
    assert "did you mean 'virl'?" in str(error.value)
    assert "Allowed: eim, geim, virl" in str(error.value)


def test_a_choice_unlike_any_gets_no_hint():
    with pytest.raises(InputError) as error:
        check_choice("method", "zzz", ("virl", "geim"))
    assert "did you mean" not in str(error.value)
    assert "Allowed: geim, virl" in str(error.value)


@pytest.mark.parametrize("name", [None, 1, True, ["virl"], {"virl": 1}])
def test_a_choice_that_is_no_string_is_refused(name):
    with pytest.raises(InputError, match="unknown method"):
        check_choice("method", name, ("virl", "1", "True"))


def test_valid_choice_is_returned():
    assert check_choice("method", "geim", iter(["virl", "geim"])) == "geim"


def test_closest_prefers_the_most_similar():
    assert closest("bandwith", ["bandwidth", "bandwidth_scale"]).startswith(
        "did you mean 'bandwidth'?"
    )


@pytest.mark.parametrize("value", [1, 3, 5, np.int32(3), np.uint8(5), np.int64(1)])
def test_integers_are_returned_as_int(value):
    checked = check_integer("k", value, 1, 5)
    assert type(checked) is int
    assert checked == value


@pytest.mark.parametrize(
    "value",
    [0, 6, -1, np.int64(6), 10**30, True, np.True_, 2.0, np.float64(2.0), "2", None, [2], np.nan],
)
def test_integers_out_of_range_or_of_another_type_are_refused(value):
    with pytest.raises(InputError, match="k must be an integer from 1 to 5"):
        check_integer("k", value, 1, 5)


def test_numpys_truth_values_are_flags():
    check_flag("progress", np.False_)
    with pytest.raises(InputError, match="progress must be True or False, got 0"):
        check_flag("progress", 0)


def test_integer_without_upper_bound():
    assert check_integer("n", 10**12, 1) == 10**12
    with pytest.raises(InputError, match="n must be an integer >= 1, got 0"):
        check_integer("n", 0, 1)


@pytest.mark.parametrize(
    "value",
    [1, 0.5, 5e-324, 1.7e308, 10**30, np.int8(3), np.uint64(2**63), np.float32(0.1), np.float64(2)],
)
def test_positive_numbers_are_returned_as_float(value):
    checked = check_positive("radius", value)
    assert type(checked) is float
    assert checked == float(value)


@pytest.mark.parametrize(
    "value",
    [0.0, -1, np.nan, np.inf, True, "1", None, np.array(1.0), 10**400],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_no_positive_number_is_refused(value):
    with pytest.raises(InputError, match=r"^radius must be a finite number > 0, got "):
        check_positive("radius", value)


def test_the_refused_number_is_in_the_message():
    with pytest.raises(InputError, match=r"got -2\.5"):
        check_positive("radius", -2.5)
    with pytest.raises(InputError, match="got 'wide'"):
        check_positive("radius", "wide")


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, np.int64(7)])
def test_valid_seeds(seed):
    assert check_seed(seed) == int(seed)


@pytest.mark.parametrize("seed", [-1, 2**63, True, False, 1.0, "1", None])
def test_invalid_seeds(seed):
    with pytest.raises(InputError, match="seed must be an integer from 0"):
        check_seed(seed)


def test_input_error_is_a_value_error():
    assert issubclass(InputError, ValueError)


# --- frames and trajectories ----------------------------------------------------------------------


def frame(**columns):
    numbers = {"speed": data()[:, 0], "angle": data()[:, 1]}
    return pd.DataFrame({**numbers, **columns})


def test_a_frame_of_numbers_is_its_array():
    np.testing.assert_array_equal(check_demonstrations(frame()), data())
    nullable = frame().round(1).astype("Float64")
    np.testing.assert_array_equal(check_demonstrations(nullable), data().round(1))
    np.testing.assert_array_equal(check_demonstrations(frame().astype(object)), data())


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"who": ["me"] * 10, "when": pd.date_range("2020", periods=10)},
            r"column 'who' holds text, for example 'me'; without numbers: who, when; "
            r"with numbers: speed, angle; drop the former \(--exclude who,when\), or mend their "
            r"rows\.$",
        ),
        ({"my kind": pd.Categorical(["a"] * 10)}, r"'my kind' holds category, not real numbers.*"
         r"\(--exclude 'my kind'\)"),
        ({"speed": ["a"] * 10, "angle": ["b"] * 10}, r"'speed' holds text.*no column holds num"),
        ({"angle": 1j}, "column 'angle' holds complex128, not real numbers"),
        ({"angle": 3.0}, r"column 'angle' is constant \(value 3\); .* \(--exclude angle\)"),
        ({"angle": 3.0, "speed": [1.0] * 10}, r"so are 'angle'; .* \(--exclude speed,angle\)"),
        ({"speed": ["1,5"] * 10, "angle": ["b"] * 10}, "seem to have decimal commas"),
        ({"angle": pd.array([None, *range(9)], "Int64")}, "first: row 0, column 'angle'"),
        ({"angle": pd.array([None, *range(9)], object)}, "first: row 0, column 'angle'"),
        ({"angle": pd.array([1.0, *"12345678", 2.0], object)}, "'angle' holds text"),
        ({"angle": [1e200, *range(9)]}, "column 'angle' holds numbers up to"),
    ],
)  # fmt: skip
def test_messages_on_frames_name_the_columns(columns, expected):
    with pytest.raises(InputError, match=expected):
        check_demonstrations(frame(**columns))


class OtherFrame:
    """A table of another package than pandas: columns, dtypes and an array."""

    def __init__(self, **columns):
        self.held = {name: np.asarray(values) for name, values in columns.items()}
        self.columns = list(self.held)
        self.dtypes = [{"f": "Float64", "U": "String"}[a.dtype.kind] for a in self.held.values()]

    def __getitem__(self, name):
        return self.held[name]

    def __array__(self, dtype=None, copy=None):
        return np.column_stack(list(self.held.values()))


def test_frames_of_other_packages_are_read_too():
    columns = {"speed": data()[:, 0], "angle": data()[:, 1]}
    np.testing.assert_array_equal(check_demonstrations(OtherFrame(**columns)), data())
    with pytest.raises(InputError, match="column 'who' holds text, for example 'me'; without"):
        check_demonstrations(OtherFrame(**columns, who=["me"] * 10))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (np.zeros((5, 3, 2)), r"flatten trajectories \[N, T, D\] to \[N, T \* D\], x.reshape"),
        (np.zeros((5, 3, 2)), "virl_tf.fit_encoding, or --trajectories on the command line"),
        ("spiral.csv", "got 'spiral.csv'; read the file first, e.g. with pandas.read_csv"),
        (
            [np.zeros((3, 2)), np.zeros((4, 2))],
            "different lengths; of trajectories virl_tf.fit_encoding",
        ),
        (np.zeros(5), r"one column of numbers is \[N, 1\]: x\[:, None\]"),
    ],
)
def test_other_shapes_are_told_how_to_become_rows(x, expected):
    with pytest.raises(InputError, match=expected):
        check_demonstrations(x)


@pytest.mark.parametrize(
    "check",
    [
        lambda value: check_share("held_out", value),
        lambda value: check_integer("seed", value, 0),
        lambda value: check_positive("extent", value),
        lambda value: check_choice("method", value, ["virl"]),
    ],
    ids=["share", "integer", "positive", "choice"],
)
@pytest.mark.parametrize(
    ("value", "shown"),
    [(np.zeros((500, 3)), "an array of shape (500, 3)"), (["row"] * 500, "'row'")],
    ids=["array", "list"],
)
def test_a_message_does_not_print_a_whole_array(check, value, shown):
    with pytest.raises(InputError) as caught:
        check(value)
    assert shown in str(caught.value)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)
