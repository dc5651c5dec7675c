"""Row numbers, whole numbers, copies, constants and outliers are seen, and nothing else is."""

import re
from pathlib import Path

from virl_tf.data_checks import (
    ATOM,
    COPIES,
    FEWEST_ROWS,
    dither,
    examine,
    examine_angles,
)
from virl_tf.validation import InputError, check_demonstrations

import numpy as np
import pytest

NUM_SETS = 300  # none of them with a warning: fewer than 1 % have one, with 95 % confidence


def data(n=1000, d=3, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def beside(column, n=1000):
    """A column to the right of three of Gaussian noise."""
    return np.column_stack([data(n), np.broadcast_to(column, n)])


RNG = np.random.default_rng(1)
COUNTS = {
    "from 0": np.arange(1000),
    "from 1": np.arange(1, 1001),
    "backwards": np.arange(1000)[::-1],
    "every tenth": 7 + 10 * np.arange(1000),
    "a tenth left out": np.delete(np.arange(1111), np.arange(1, 1111, 10)),
    "shuffled": RNG.permutation(1000),
    "shuffled, a third left out": RNG.permutation(1500)[:1000] + 5,
    "seconds": np.arange(1000) / 30.0,
    "seconds, rounded": np.round(np.arange(1000) / 30.0, 3),
}


@pytest.mark.parametrize("column", COUNTS.values(), ids=COUNTS)
def test_a_column_that_counts_the_rows_is_refused(column):
    with pytest.raises(InputError, match=re.escape("column 'x3' counts the rows; drop it (--")):
        examine(beside(column))


@pytest.mark.parametrize("n", [5, 9])
def test_few_rows_are_counted_too(n):
    with pytest.raises(InputError, match=r"column 'id' counts the rows; drop it \(--exclude id"):
        examine(np.column_stack([data(n, 1), np.arange(n)]), ["a", "id"])


def test_the_only_column_may_be_the_count():
    with pytest.raises(InputError, match="column 'x0' counts the rows"):
        examine(np.arange(30.0)[:, None])


def test_names_are_quoted_for_the_shell():
    with pytest.raises(InputError, match=re.escape("(--exclude 'row number')")):
        examine(beside(np.arange(1000)), ["a", "b", "c", "row number"])


LINE = beside(0.0) @ np.array([1.0, -2.0, 0.0, 0.0])
WARNED = {
    "time stamps": (
        beside(np.cumsum(RNG.random(1000))),
        "column 'x3': sorted, as time stamps and numbers of trajectories are",
    ),
    "ids with gaps": (beside(np.sort(RNG.choice(3000, 1000, replace=False))), "'x3': sorted"),
    "numbers of trajectories": (beside(np.arange(1000) // 5), "column 'x3': sorted"),
    "zero and one": (beside(data()[:, 0] > 0.3), "column 'x3': 2 distinct values in 1000 rows"),
    "whole numbers": (beside(RNG.integers(0, 90, 1000)), "90 distinct values.*--dither"),
    "powers of ten": (
        beside(10.0 ** RNG.uniform(-6.0, -2.0, 1000)),
        "column 'x3': positive, over more than 2 powers of ten.*give the logarithm of it",
    ),
    "tenths": (beside(RNG.integers(0, 9, 1000) * 0.1), "column 'x3': 9 distinct values"),
    "two coarse columns": (
        np.column_stack([data().round(1)[:, :2], RNG.standard_normal(1000)]),
        r"columns 'x0', 'x1': \d\d, \d\d distinct.*drop them \(--exclude x0,x1\)",
    ),
    "a sensor at rest": (
        beside(np.maximum(data()[:, 1], 0.0)),
        "column 'x3': exactly 0 in 499 of 1000 rows.*leave these rows out",
    ),
    "at rest but for noise": (
        beside(np.where(RNG.random(1000) < 0.92, 1e-17 * data()[:, 1], data()[:, 2])),
        r"column 'x3': exactly .* in 9\d\d of 1000 rows.*leave these rows out",
    ),
    "a stand-in": (
        beside(np.where(RNG.random(1000) < 0.08, -999.0, data()[:, 2])),
        "column 'x3': exactly -999 in",
    ),
    "a few stand-ins": (
        beside(np.append(data()[:-9, 0], [-5.0] * 9)),
        "column 'x3': exactly -5 in 9 of 1000 rows",
    ),
    "a few stand-ins in the only column": (
        np.append(data()[:-9, 0], [-5.0] * 9)[:, None],
        "column 'x0': exactly -5 in 9 of 1000 rows",
    ),
    "zero in half of few rows": (
        np.column_stack([data(200), np.maximum(data(200)[:, 0], 0.0)]),
        r"column 'x3': exactly 0 in \d+ of 200 rows.*leave these rows out",
    ),
    "everything twice": (np.concatenate([data(), data()]), "50% of the rows repeat another one"),
    "rounded and twice": (np.concatenate([data().round(3)] * 2), "50% of the rows repeat"),
    "a tenth twice": (np.concatenate([data(), data(100)]), "9% of the rows repeat another one"),
    "one column twice": (np.concatenate([data(d=1), data(d=1)]), "50% of the rows repeat"),
    "nearly constant": (beside(1e3 + 1e-6 * data()[:, 0] ** 2), "'x3': varies by less than 1e-07"),
    "another unit": (beside(2.54 * data()[:, 0] + 1.0), "'x3': a straight line of the columns"),
    "rounded to 3 digits": (beside(2.54 * data()[:, 0]).round(3), "'x3': a straight line"),
    "a sum": (beside(LINE), "column 'x3': a straight line of the columns before it"),
    "one row far away": (
        np.concatenate([data(), [[0.0, 1e6, 0.0]]]),
        r"column 'x1': 1e\+06 in row 1000 is 1.1e\+06 standard deviations of the other rows away",
    ),
    "three of a filler": (
        beside(np.append(data()[3:, 0], [9.97e36] * 3)),
        r"column 'x3': 9.97e\+36 in row \d+ is",
    ),
    "one row of 40": (np.concatenate([data(39), [[-1e3, 0.0, 0.0]]]), "'x0': -1000 in row 39"),
}


@pytest.mark.parametrize(("x", "expected"), WARNED.values(), ids=WARNED)
def test_a_warning_is_one_line_with_what_to_do(x, expected):
    (line,) = examine(check_demonstrations(x))
    assert re.search(expected, line)
    assert re.search(
        r"drop (it|them) \(--exclude|leave (these|such) rows out|keep one of each|logarithm of it",
        line,
    )
    assert line.endswith(".")
    assert "\n" not in line


def turned(centre, width, turn, n=400):
    """Angles around a centre, from -turn / 2 on."""
    x = np.random.default_rng(3).normal(centre, width, n)
    return (x + 0.5 * turn) % turn - 0.5 * turn


ANGLES = {
    "around south": (turned(180.0, 8.0, 360.0), "say --periodic heading=360"),
    "around north": (turned(180.0, 8.0, 360.0) + 180.0, "(in Python periodic={'heading': 360})"),
    "all round, whole": (np.random.default_rng(3).integers(0, 360, 400), "a turn of 360"),
    "in radians": (turned(np.pi, 0.1, 2.0 * np.pi).astype(np.float32), "--periodic heading (in"),
}


@pytest.mark.parametrize(("x", "expected"), ANGLES.values(), ids=ANGLES)
def test_an_angle_that_goes_round_is_known_by_both_ends_of_its_turn(x, expected):
    x = np.column_stack([x, data(400, 1)]).astype(float)
    (line,) = examine_angles(x, ["heading", "speed"], np.zeros(2))
    assert expected in line
    assert line.startswith("column 'heading': its values, ")
    assert examine_angles(x, ["heading", "speed"], np.array([360.0, 0.0])) == []
    (line,) = examine_angles(x, ["heading", "speed"], np.zeros(2), num_contexts=1)
    assert line.endswith("goes round, give its sine and cosine instead.")


def test_what_ends_within_a_turn_is_no_angle():
    rng = np.random.default_rng(4)
    others = {
        "age": rng.integers(0, 101, 500),
        "percent": rng.uniform(0.0, 100.0, 500),
        "temperature [F]": rng.normal(60.0, 20.0, 500),
        "latitude": rng.uniform(-90.0, 90.0, 500),
        "day": rng.integers(1, 367, 500),
        "minute": rng.uniform(0.0, 1440.0, 500),
        "byte": rng.integers(0, 256, 500),
        "heading of a path eastwards": rng.normal(90.0, 30.0, 500),
        "normal, to 3": np.clip(rng.normal(size=500), -3.1, 3.1),
        "up to pi": rng.exponential(size=500).clip(0.0, 2.0 * np.pi),
    }
    x = np.column_stack([*others.values()]).astype(float)
    assert examine_angles(x, list(others), np.zeros(len(others))) == []
    for i in range(NUM_SETS):
        name = list(CONTINUOUS)[i % len(CONTINUOUS)]
        x = CONTINUOUS[name](rng, 200, 3)
        assert examine_angles(x, ["a", "b", "c"], np.zeros(3)) == [], name


def test_copies_of_a_few_rows_are_not_called_coarse():
    (line,) = examine(np.repeat(data(90), 3, axis=0))
    assert line.startswith("67% of the rows repeat another one")


def test_a_row_far_away_in_two_columns_makes_no_straight_line_of_them():
    lines = examine(np.concatenate([data(), [[1e6, 1e6, 0.0]]]))
    assert [line.split(":")[0] for line in lines] == ["column 'x0'", "column 'x1'"]


@pytest.mark.parametrize(("seed", "middle"), [(0, 5.0), (1, -7.0), (2, 5432100.0), (3, 0.0)])
def test_heavy_tails_are_told_with_their_cure(seed, middle):
    rng = np.random.default_rng(seed)
    x = np.column_stack([middle + 2.0 * rng.standard_t(1.5, 4000), rng.standard_normal(4000)])
    (line,) = examine(x)
    assert line.startswith("column 'x0': heavy tails")
    cured = eval(line[line.index("np.") : line.index(" of it")], {"np": np, "x": x[:, 0]})
    assert 0.8 < np.diff(np.quantile(cured, [0.16, 0.84]))[0] / 2.0 < 1.3
    assert examine(np.column_stack([cured, x[:, 1]])) == []
    assert not any("heavy" in line for line in examine(x[:1999]))


def test_cauchys_tails_have_one_line_and_powers_of_ten_that_of_the_logarithm():
    cauchy = np.random.default_rng(0).standard_cauchy((4000, 1))
    assert ["heavy" in line for line in examine(cauchy)] == [True]
    for width in (1.5, 3.0):
        (line,) = examine(np.exp(width * data(4000, 1)))
        assert line.endswith("logarithm." if width < 2.0 else "logarithm of it.")
    mostly_one_value = np.where(np.arange(4000)[:, None] % 3, 0.0, cauchy)
    assert not any("heavy" in line for line in examine(mostly_one_value))


GLITCHES = {"glitches": (0.005, 1e4), "very few": (0.002, 100.0), "rare mode": (0.02, 10.0)}


@pytest.mark.parametrize("name", ["normal", "exponential", "five degrees", "modes", *GLITCHES])
def test_light_tails_and_rare_modes_are_no_heavy_tails(name):
    share, away = GLITCHES.get(name, (0.0, 0.0))
    draw = {
        "normal": lambda rng: rng.standard_normal((4000, 2)),
        "exponential": lambda rng: rng.exponential(size=(4000, 2)),
        "five degrees": lambda rng: rng.standard_t(5, (4000, 2)),
        "modes": lambda rng: modes(rng, 4000, 2),
    }.get(name, lambda rng: rng.standard_normal((4000, 2)) + away * (rng.random((4000, 1)) < share))
    for seed in range(20):
        x = draw(np.random.default_rng(seed))
        assert not any("heavy" in line for line in examine(x))


def test_many_columns_are_named_in_part():
    (line,) = examine(RNG.integers(0, 2, (100, 8)).astype(float) + data(100, 8).round() * 2.0)
    assert line.startswith("columns 'x0', 'x1', 'x2', 'x3', 'x4' and 3 more: ")


def correlated(rng, n, d):
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 0.01 * rng.normal(size=(n, d))


def modes(rng, n, d):
    return 10.0 * rng.normal(size=(5, d))[rng.integers(5, size=n)] + 0.1 * rng.normal(size=(n, d))


def ways(rng, n, d):
    return 1e5 * rng.integers(2, size=(n, 1)) + rng.normal(size=(n, d))


CONTINUOUS = {
    "normal": lambda rng, n, d: rng.normal(size=(n, d)),
    "uniform": lambda rng, n, d: rng.random((n, d)),
    "exponential": lambda rng, n, d: rng.exponential(size=(n, d)),
    "lognormal": lambda rng, n, d: rng.lognormal(size=(n, d)),
    "heavy tails": lambda rng, n, d: rng.standard_t(5, size=(n, d)),
    "correlated": correlated,
    "modes": modes,
    "two ways far apart along a diagonal": ways,
    "far from 0": lambda rng, n, d: 1e4 * rng.normal(size=d) + rng.normal(size=(n, d)),
}
ROUNDED = {
    "exact": lambda x: x,
    "float32": lambda x: x.astype(np.float32).astype(float),
    "4 digits": lambda x: x.round(4),
    "3 digits": lambda x: x.round(3),
}


BETWEEN = {"float32", "4 digits"}


@pytest.mark.parametrize(
    "rounded",
    [
        pytest.param(function, marks=[pytest.mark.slow] * (name in BETWEEN), id=name)
        for name, function in ROUNDED.items()
    ],
)
def test_continuous_data_gives_no_warning(rounded):
    rng = np.random.default_rng(2)
    for i in range(NUM_SETS):
        name = list(CONTINUOUS)[i % len(CONTINUOUS)]
        n = int(np.exp(rng.uniform(np.log(30), np.log(2000))))
        d = int(rng.integers(1, min(12, n // 3)))
        x = rounded(CONTINUOUS[name](rng, n, d))
        assert examine(x) == [], f"{n} rows in {d}-D, {name}"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("unit", [1e99, 1e-99])
def test_extreme_units_are_no_matter(unit):
    x = data() * [unit, 1.0, 1.0]
    assert examine(x) == []
    assert examine(np.concatenate([x, x])[:, :1]) != []


# --- dither ---------------------------------------------------------------------------------------


def test_not_all_columns_are_to_be_dropped():
    x = np.random.default_rng(0).integers(0, 9, (200, 2)).astype(float)
    line = next(line for line in examine(x) if "distinct values" in line)
    assert "--exclude" not in line
    assert "spread them by the resolution (--dither" in line


@pytest.mark.parametrize("step", [1.0, 0.1, 25.0])
def test_dither_spreads_coarse_columns_by_their_resolution_and_keeps_the_others(step):
    coarse = step * RNG.integers(0, 9, 4000)
    x = np.column_stack([data(4000, 1), coarse, 7.0 + data(4000, 1, seed=9)])
    kept = x.copy()
    spread = dither(x, seed=3)
    np.testing.assert_array_equal(x, kept)
    np.testing.assert_array_equal(spread[:, [0, 2]], x[:, [0, 2]])
    noise = (spread - x)[:, 1] / step
    assert np.abs(noise).max() <= 0.5 + 1e-9
    # Uniform on a unit interval: its mean is 0 within four standard errors, its variance 1 / 12.
    assert abs(noise.mean()) < 4.0 * np.sqrt(1.0 / 12.0 / 4000)
    assert noise.var() == pytest.approx(1.0 / 12.0, rel=0.1)
    assert examine(spread) == []


def test_the_noise_is_the_seeds_and_each_columns_own():
    x = RNG.integers(0, 2, (500, 2)).astype(float)
    np.testing.assert_array_equal(dither(x, 0), dither(x, 0))
    first, second = dither(x, 0) - x, dither(x, 1) - x
    assert not np.array_equal(first, second)
    assert abs(np.corrcoef(first.T)[0, 1]) < 0.2


def test_a_value_between_others_is_spread_no_further_than_half_way_to_them():
    x = np.append(RNG.integers(1, 6, 1000), [3.02] * 3)[:, None].astype(float)
    noise = (dither(x, 0) - x)[:, 0]
    assert np.abs(noise[x[:, 0] == 1.0]).max() > 0.4  # not by the smallest gap
    assert noise[x[:, 0] == 3.0].max() <= 0.01 + 1e-9
    far = np.append(RNG.integers(0, 3, 1000), [100.0] * 10)[:, None].astype(float)
    assert np.abs(dither(far, 0) - far).max() <= 0.5
    code = np.append(RNG.integers(0, 2, 1000), [99.0] * 10)[:, None].astype(float)
    assert np.abs(dither(code, 0) - code).max() <= 0.5


def test_copies_of_a_few_rows_are_not_spread_apart():
    few = np.column_stack([data(60, 2), RNG.integers(0, 2, 60)])
    x = np.tile(few, (3, 1))
    spread = dither(x, 0)
    np.testing.assert_array_equal(spread[:, :2], x[:, :2])
    assert len(np.unique(spread[:, 2])) == len(x)


def test_many_values_that_repeat_are_spread_but_not_for_one_that_does():
    """As tenths of a wide column; a sensor at rest has one value in half of its rows."""
    tenths = np.rint(100.0 * data(1000, 1)) / 10.0
    at_rest = np.maximum(data(1000, 1, seed=1), 0.0)
    assert len(np.unique(tenths)) > 200
    x = np.column_stack([tenths, at_rest])
    spread = dither(x, 0)
    assert len(np.unique(spread[:, 0])) == len(x)
    assert np.abs(spread - x)[:, 0].max() <= 0.05 + 1e-9
    np.testing.assert_array_equal(spread[:, 1], at_rest[:, 0])


def test_a_spike_in_a_rounded_column_is_told_what_spreads_it():
    tenths = np.rint(100.0 * data(1000, 1)) / 10.0
    tenths[:80] = 3.0
    (line,) = examine(np.column_stack([tenths, data(1000, 2, seed=1)]))
    assert "exactly 3 in 8" in line
    assert "spread all by the resolution (--dither, in Python dither=True), or drop it" in line


def test_continuous_columns_keep_their_bytes():
    np.testing.assert_array_equal(dither(data().round(3), 0), data().round(3))


def test_contexts_far_from_zero_are_told_earlier():
    """Experts' shares are made of their squares."""
    x = np.random.default_rng(0).standard_normal((300, 2)) + 5e5
    (line,) = examine(x, num_contexts=1)
    assert line.startswith("column 'x0': varies by less than 1e-05 of its size")
    assert examine(x - 4.9e5, num_contexts=1) == []


def test_a_value_that_many_contexts_have_is_no_spike():
    x = np.random.default_rng(0).standard_normal((300, 2))
    x[::10, 0] = 0.5
    assert examine(x, num_contexts=1) == []
    (line,) = examine(x)
    assert "exactly 0.5 in 30 of 300 rows" in line


def test_a_row_that_is_there_five_times_is_no_stand_in():
    x = data(1000)
    assert examine(np.concatenate([x, [x[7]] * 4])) == []


def test_a_narrow_mode_of_rounded_numbers_is_no_stand_in():
    x = data(1000)
    x[:30, 1] *= 1e-4
    assert examine(x.round(3)) == []


def test_of_a_few_rows_none_is_far_away():
    assert examine(np.array([[0.0, 1.0], [0.1, 2.0], [90.0, 3.5], [0.2, 5.0]])) == []


def test_the_documentation_has_the_shares_from_which_copies_are_told():
    page = (Path(__file__).parents[1] / "docs" / "own-demonstrations.md").read_text()
    assert COPIES == ATOM == 1.0 / 20.0
    assert "| a twentieth of the rows or more repeat others" in page
    assert FEWEST_ROWS == 5
    assert "| one value in a twentieth of the rows, or if no other repeats, at least five " in page
    x = data(1000)
    assert examine(np.concatenate([x, x[:52]])) == []  # 4.9 %
    assert len(examine(np.concatenate([x, x[:53]]))) == 1  # 5.03 %


def test_a_zero_with_another_sign_is_a_copy():
    x = data(100)
    x[np.arange(6), np.arange(6) % 3] = 0.0
    copies = np.where(x[:6] == 0.0, -0.0, x[:6])
    (line,) = examine(np.concatenate([x, copies]))
    assert "6% of the rows repeat another one" in line


def test_copies_are_fewer_than_three_times_those_of_chance():
    """Of columns that hang together chance gives more of them than shuffled ones have."""
    z = np.random.default_rng(0).standard_normal((1500, 2))
    x = np.round(np.column_stack([z[:, 0], 0.9 * z[:, 0] + 0.44 * z[:, 1]]), 1)
    assert not any("repeat another one" in line for line in examine(x))
