"""Checking and splitting a user's demonstrations."""

from virl_tf import InputError
from virl_tf.demonstrations import DataOptions, prepare
from virl_tf.splitting import folds, held_out_rows, row_groups

import numpy as np
import pandas as pd
import pytest


def normal(n, d=2, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def prepared(x, seed=0, **options):
    return prepare(x, DataOptions(**options), seed)


def test_rows_are_held_out_at_random_and_each_is_used_once():
    x = np.column_stack([np.arange(200.0) ** 1.5, normal(200)])
    found = prepared(x)
    assert (len(found.train.rows), len(found.test)) == (180, 20)
    both = np.concatenate([found.train.rows, found.test])
    np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(x, axis=0))
    assert found.test[:, 0].max() > 1000 > found.test[:, 0].min()
    assert not np.array_equal(found.test, prepared(x, seed=1).test)
    assert found.train.groups is None


@pytest.mark.parametrize(
    ("rows", "share", "held_out"),
    [(99, 0.1, 0), (50, 0.2, 10), (100, 0.1, 10), (500, 0.1, 50), (60, 0.4, 24), (60, 0.0, 0)],
)
def test_as_many_are_held_out_as_tell_something(rows, share, held_out):
    assert len(prepared(normal(rows), held_out=share).test) == held_out


def test_columns_have_the_names_of_a_frame():
    x = normal(60)
    assert prepared(x).names == ["x0", "x1"]
    frame = pd.DataFrame(x, columns=["speed", "distance"])
    assert prepared(frame).names == ["speed", "distance"]
    np.testing.assert_array_equal(prepared(frame).train.rows, prepared(x).train.rows)


def test_contexts_may_have_few_values():
    """They have no density, on which there could be spikes."""
    goals = np.resize([[0.0], [1.0], [2.0], [2.0]], (200, 1))
    assert prepared(normal(200), contexts=goals).warnings == []
    (line,) = prepared(np.hstack([normal(200), goals])).warnings
    assert line.startswith("column 'x2': 3 distinct values")


@pytest.mark.parametrize("goals", [np.linspace(-1.0, 1.0, 200), np.arange(200)[::-1]])
def test_contexts_may_be_a_sweep(goals):
    """Of goals one after the other; nothing else may be one."""
    assert prepared(normal(200), contexts=goals[:, None]).warnings == []
    with pytest.raises(InputError, match="column 'x2' counts the rows"):
        prepared(np.column_stack([normal(200), goals]), contexts=normal(200, 1, seed=1))


def test_a_column_that_varies_in_held_out_rows_alone_has_its_name():
    x, contexts = normal(100), normal(100, 1, seed=1)
    x[~np.isin(contexts[:, 0], prepared(x, contexts=contexts).test[:, 0]), 1] = 0.0
    with pytest.raises(InputError, match="column 'x1' is constant"):
        prepared(x, contexts=contexts)


def test_angles_in_degrees_are_no_radians():
    x = normal(200) * [100.0, 1.0]
    (line,) = prepared(x, periodic=[0]).warnings
    assert "column 'x0': its values span " in line
    assert "--periodic x0=360 (in Python periodic={'x0': 360})" in line
    for fine in ({"x0": 360.0}, [1]):
        assert prepared(x, periodic=fine).warnings == []


@pytest.mark.parametrize("dither", [False, True])
def test_an_angle_in_whole_degrees_is_told_before_noise_is_added(dither):
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(0, 36, 400) * 10.0, rng.standard_normal(400)])
    x[:2, 0] = 0.0, 359.0
    told = [line for line in prepared(x, dither=dither).warnings if "goes round" in line]
    assert len(told) == 1
    assert "--periodic x0=360" in told[0]
    assert not any("goes round" in line for line in prepared(x, periodic={0: 360.0}).warnings)
    (line,) = [w for w in prepared(x[:, 1:], contexts=x[:, :1]).warnings if "goes round" in w]
    assert line.endswith("give its sine and cosine instead.")


def test_nothing_is_scored_where_a_group_would_be_missing():
    x = normal(400)
    found = prepared(x, groups=np.repeat(["a", "b"], [360, 40]))
    assert (len(found.train.rows), len(found.test)) == (400, 0)
    three = prepared(x, groups=np.repeat(["a", "b", "c"], [320, 20, 60]))
    assert (len(three.train.rows), len(three.test)) == (380, 20)


def masked(labels):
    """The missing one masked, with a label below."""
    missing = pd.isna(np.array(labels, object))
    return np.ma.array(np.where(missing, "b", labels), mask=missing)


@pytest.mark.parametrize("kind", [list, lambda labels: np.array(labels, object), pd.Series, masked])
@pytest.mark.parametrize("missing", [np.nan, None])
def test_a_missing_label_is_refused(kind, missing):
    labels = kind(["a"] * 7 + [missing] + ["a"] * 52)
    with pytest.raises(InputError, match="groups: demonstration 7 has no label"):
        prepared(normal(60), groups=labels)


def test_labels_of_several_lengths_are_refused():
    with pytest.raises(InputError, match=r"groups must hold a label per demonstration, \[60\]; "):
        prepared(normal(60), groups=[[1]] * 59 + [[1, 2]])


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("kind", [np.array, lambda labels: np.array(labels, object), list])
def test_labels_of_bytes_are_texts_of_any_language(coding, kind):
    """As HDF5 and TensorFlow give them."""
    names = ["J\u00f6rg", "J\u00e4rg", "Anna"] * 20
    expected = prepared(normal(60), groups=names).train.groups
    found = prepared(normal(60), groups=kind([name.encode(coding) for name in names]))
    np.testing.assert_array_equal(found.train.groups, expected)


@pytest.mark.parametrize("name", ["contexts", "groups"])
def test_frames_whose_rows_have_other_labels_are_refused(name):
    frame = pd.DataFrame(normal(60))
    column = pd.Series(np.arange(60) % 7)
    given = column.to_frame() + normal(60, 1, seed=1) if name == "contexts" else column
    assert len(prepared(frame, **{name: given}).train.rows)
    assert len(prepared(frame.to_numpy(), **{name: given[::-1]}).train.rows)
    with pytest.raises(InputError, match=f"{name}.loc"):
        prepared(frame, **{name: given[::-1]})


def test_a_column_is_known_by_its_name_before_its_number():
    frame = pd.DataFrame(np.abs(normal(60)), columns=[1, 0])
    domain = prepared(frame, support=({1: 0.0}, None)).train.domain
    np.testing.assert_array_equal(domain.lower, [0.0, -np.inf])


@pytest.mark.parametrize("seed", range(3))
def test_equal_rows_are_on_one_side(seed):
    x = normal(150)
    found = prepared(np.concatenate([x, x[:60], x[:30]]), seed)
    assert found.repeated == 90
    train, test = ({tuple(row) for row in rows} for rows in (found.train.rows, found.test))
    assert train
    assert test
    assert not train & test
    held_out, rest = held_out_rows(len(found.train.rows), 0.1, found.train.groups)
    assert not {tuple(r) for r in found.train.rows[held_out]} & {
        tuple(r) for r in found.train.rows[rest]
    }


def test_demonstrations_of_one_label_are_on_one_side():
    labels = np.repeat([f"p{i}" for i in range(30)], 5)
    x = np.column_stack([np.arange(150.0) ** 1.1, normal(150)])
    found = prepared(x, groups=labels)
    held_out = np.isin(x[:, 0], found.test[:, 0])
    people = held_out.reshape(30, 5)
    assert (people.all(axis=1) == people.any(axis=1)).all()
    assert people.all(axis=1).sum() == 3
    assert len(np.unique(found.train.groups)) == 27


@pytest.mark.parametrize("seed", range(3))
def test_two_groups_are_left_to_train_and_to_hold_out_there(seed):
    labels = np.repeat(["a", "b", "c"], [540, 30, 30])
    found = prepared(normal(600), seed, groups=labels)
    assert (len(found.train.rows), len(found.test)) == (570, 30)
    held_out, rest = held_out_rows(570, 0.1, found.train.groups)
    assert (len(held_out), len(rest)) == (30, 540)


def test_groups_that_share_a_row_hang_together():
    x = np.array([[0.0], [1.0], [1.0], [2.0], [3.0]])
    np.testing.assert_array_equal(row_groups(x), [0, 1, 1, 2, 3])
    np.testing.assert_array_equal(row_groups(x, ["a", "a", "b", "b", "c"]), [0, 0, 0, 0, 1])
    assert row_groups(x[:2]) is None
    assert row_groups(x[:2], ["a", "b"]) is None


def test_where_all_start_alike_labels_alone_are_groups_and_it_is_told():
    """Else the steps of all episodes would be one group, and none could be held out."""
    episodes = normal(600)
    episodes[::30] = 0.0  # the first step of each
    labels = np.repeat(np.arange(20), 30)
    found = prepared(episodes, groups=labels)
    assert (len(np.unique(found.train.groups)), len(found.test)) == (18, 60)
    assert any("labels alone say what is held out together" in line for line in found.warnings)
    episodes[60::30] = normal(18, seed=1)  # but for the first two
    found = prepared(episodes, groups=labels)
    assert len(np.unique(np.append(found.train.groups, found.test_groups))) == 19
    assert not found.warnings


@pytest.mark.parametrize("groups", [None, np.repeat(np.arange(20), 5)])
def test_every_row_is_in_one_fold(groups):
    parts = folds(100, 5, 0, groups)
    assert len(parts) == 5
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(100))
    if groups is not None:
        assert all(len(np.unique(groups[part])) == 4 for part in parts)
        assert all(len(part) == 20 for part in parts)


@pytest.mark.parametrize("sizes", [[99, 1], [60, 20, 20], [100]])
def test_rows_of_a_group_of_more_than_half_are_spread_over_the_folds(sizes):
    groups = np.repeat(np.arange(len(sizes)), sizes)
    parts = folds(100, 5, 0, groups)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(100))
    assert max(len(part) for part in parts) <= 60
    for small in range(1, len(sizes)):
        assert sum(small in groups[part] for part in parts) == 1


def test_a_group_of_half_of_the_rows_is_in_one_fold():
    groups = np.repeat([0, 1, 2, 3], [30, 10, 10, 10])
    parts = folds(60, 4, 0, groups)
    assert sorted(len(part) for part in parts) == [10, 10, 10, 30]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": 0.6}, "from 0 to 0.5; got 0.6"),
        ({"held_out": True}, "from 0 to 0.5; got True"),
        ({"held_out": float("nan")}, "got nan"),
        ({"groups": ["a"] * 7}, r"a label per demonstration, \[60\]"),
        ({"groups": ["a"] * 60}, "60 of 60 demonstrations are of one group .* and 0 of others"),
        ({"groups": ["a"] * 55 + ["b"] * 5}, "and 5 of others, .* at least 6 are needed"),
    ],
)
def test_options_that_cannot_be_used(options, message):
    with pytest.raises(InputError, match=message):
        prepared(normal(60), **options)


def test_what_tells_data_and_options_apart():
    x, labels = normal(60), np.repeat(np.arange(30), 2)
    kinds = [{}, {"held_out": 0.2}, {"groups": labels}, {"support": (-9.0, 9.0)}]
    kinds += [{"periodic": ["x0"]}, {"periodic": {"x0": 7.0}}]
    identities = [prepared(x, **options).identity for options in kinds]
    identities.append(prepared(x + 1.0).identity)
    assert len({str(identity) for identity in identities}) == len(identities)
    assert prepared(x).identity == prepared(x.tolist()).identity


@pytest.mark.parametrize("support", [(0.0, 10.0), ({"x1": 0.0}, {"x1": 10.0})])
def test_noise_of_recorded_numbers_stays_inside_of_their_bounds(support):
    x = np.random.default_rng(0).integers(0, 11, (300, 2)).astype(float)
    rows = prepared(x, held_out=0.0, support=support, dither=True).train.rows
    assert (rows[:, 1].min() >= 0.0) & (rows[:, 1].max() <= 10.0)
    np.testing.assert_array_less(np.abs(rows - x), 0.5)
    assert len(np.unique(rows[:, 1])) == 300


@pytest.mark.parametrize("options", [{}, {"contexts": normal(200)}, {"periodic": ["x0"]}])
def test_recorded_numbers_are_spread_with_and_without_bounds(options):
    x = np.random.default_rng(0).integers(0, 6, (200, 2)).astype(float)
    rows = prepared(x, held_out=0.0, dither=True, **options).train.rows[:, -2:]
    assert len(np.unique(rows[:, 1])) == 200
    np.testing.assert_array_less(np.abs(rows[:, 1] - x[:, 1]), 0.5 + 1e-9)


def test_copies_stay_on_one_side_where_noise_is_added_to_a_column_of_them():
    x = np.column_stack([normal(200, 1), np.random.default_rng(0).integers(0, 3, 200)])
    found = prepared(np.concatenate([x, x]), dither=True, held_out=0.2)
    assert found.repeated == 200
    assert not np.isin(found.test[:, 0], found.train.rows[:, 0]).any()
    whole = np.random.default_rng(0).integers(0, 5, (400, 2)).astype(float)
    assert prepared(whole, dither=True).train.groups is None  # equal by chance
    assert prepared(whole, dither=True).repeated == 0


def test_contexts_of_few_values_keep_them():
    c, x = np.repeat([[0.0], [1.0]], 100, axis=0), np.repeat([[3.0], [4.0]], 100, axis=0)
    rows = prepared(x, held_out=0.0, dither=True, contexts=c, support=(3.0, 5.0)).train.rows
    np.testing.assert_array_equal(rows[:, :1], c)
    assert len(np.unique(rows[:, 1])) == 200
    assert rows[:, 1].min() >= 3.0


def test_nothing_is_held_out_where_only_a_handful_of_rows_could_be():
    groups = np.repeat(np.arange(3), [45, 3, 2])
    for seed in range(4):
        assert len(prepared(normal(50), seed, groups=groups, held_out=0.2).test) == 0


def test_a_score_never_rests_on_a_handful_of_rows():
    groups = np.repeat(np.arange(5), [100, 100, 100, 100, 2])
    assert len(prepared(normal(402), groups=groups).test) == 100
    mostly_one = np.repeat(np.arange(4), [95, 2, 2, 6])  # of which two are for the training
    for seed in range(8):
        assert len(prepared(normal(105), seed, groups=mostly_one).test) in (6, 8)
