"""Bounds and angles of demonstrations."""

from virl_tf import InputError
from virl_tf.domain import EVERYWHERE, make_domain

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests.shared import make_reward

NAMES = ["heading", "speed"]
TURN = 2.0 * np.pi


def angles(centre, n=200, seed=0):
    """Angles in [0, 2 pi) around a centre, and speeds in [0, 1)."""
    rng = np.random.default_rng(seed)
    return np.stack([np.mod(rng.normal(centre, 0.3, n), TURN), rng.random(n)], axis=1)


def test_without_bounds_and_angles_nothing_changes():
    x = angles(0.0)
    for none in ({}, {"periodic": []}, {"periodic": {}}, {"support": (None, None)}):
        assert make_domain(x, NAMES, **none) is EVERYWHERE
    domain = make_domain(x, NAMES)
    assert domain.everywhere
    assert domain.wrap(x) is x
    values = tf.constant(x[:, 0])
    np.testing.assert_array_equal(domain.bounded(x, values), values)


@pytest.mark.parametrize("centre", np.linspace(0.0, TURN, 9))
def test_angles_are_cut_where_no_demonstrations_are(centre):
    x = angles(centre)
    domain = make_domain(x, NAMES, periodic=["heading"])
    wrapped = np.asarray(domain.wrap(x))
    assert np.ptp(wrapped[:, 0]) < 2.5  # one mode of width 0.3, not its two halves
    assert domain.contains(wrapped).numpy().all()
    np.testing.assert_allclose(np.cos(wrapped[:, 0]), np.cos(x[:, 0]), atol=1e-12)
    np.testing.assert_array_equal(wrapped[:, 1], x[:, 1])
    for turns in (-3, 1, 1000):
        turned = np.asarray(domain.wrap(x + [TURN * turns, 0.0]))
        np.testing.assert_allclose(turned, wrapped, atol=1e-9)


def test_points_of_any_kind_are_wrapped():
    x = angles(1.0)[:5]
    domain = make_domain(x, NAMES, periodic=["heading"])
    for given in (x.tolist(), x.astype(np.float32), tf.constant(x, tf.float32)):
        wrapped = domain.wrap(given)
        assert wrapped.dtype == tf.float64
        np.testing.assert_allclose(wrapped, x, atol=1e-6)
    with pytest.raises(
        InputError, match=r"x must have shape \[\.\.\., 2\], got \(5, 1\); with contexts"
    ):
        domain.wrap(x[:, :1])


def test_the_gradient_passes_through_angles_and_other_columns():
    x = tf.constant(angles(1.0)[:5])
    domain = make_domain(x.numpy(), NAMES, periodic={"heading": TURN})
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(domain.wrap(x) * [2.0, 3.0])
    np.testing.assert_allclose(tape.gradient(y, x), np.tile([2.0, 3.0], (5, 1)))


@pytest.mark.parametrize(
    "support",
    [
        ((-np.inf, 0.0), (np.inf, 1.0)),
        ({"speed": 0}, {"speed": 1.0}),
        ({1: 0.0}, {1: 1}),
        (pd.Series({"speed": 0.0, "heading": -np.inf}), pd.Series([np.inf, 1.0])),
    ],
    ids=["arrays", "names", "numbers", "series"],
)
def test_points_outside_of_bounds_are_minus_infinity(support):
    domain = make_domain(angles(1.0), NAMES, support=support)
    points = [[50.0, 0.5], [0.0, -0.1], [0.0, 1.1], [0.0, 0.0], [0.0, 1.0]]
    points = tf.constant(points, tf.float64)  # the last two at a bound
    np.testing.assert_array_equal(domain.contains(points), [True, False, False, True, True])
    values = domain.bounded(points, tf.ones(5, tf.float64)).numpy()
    np.testing.assert_array_equal(values, [1.0, -np.inf, -np.inf, 1.0, 1.0])


@pytest.mark.parametrize("support", [None, (-1.0, 1.0), (None, {"speed": 1.0})])
def test_what_is_infinite_is_outside_and_what_is_no_number_stays_none(support):
    domain = make_domain(np.array([[0.0, 0.5], [0.5, 0.0]]), NAMES, support=support)
    points = tf.constant([[np.inf, 0.0], [0.0, -np.inf], [np.nan, 0.0], [0.0, 0.0]], tf.float64)
    values = domain.bounded(points, tf.constant([np.nan, np.nan, np.nan, 1.0], tf.float64))
    np.testing.assert_array_equal(values, [-np.inf, -np.inf, np.nan, 1.0])


def test_of_an_angle_one_turn_has_a_density():
    domain = make_domain(angles(1.0), NAMES, periodic=["heading"])
    reward = make_reward([])._replace(domain=domain)
    turns = [[1.0 + turn, 0.5] for turn in (0.0, TURN, -TURN)]
    values = reward.log_prob(tf.constant(turns, tf.float64)).numpy()
    assert np.isfinite(values[0])
    np.testing.assert_array_equal(values[1:], -np.inf)


@pytest.mark.parametrize(
    "periodic", ["heading", 0, {"heading"}, {"heading": 1}.keys(), [0], np.array(["heading"])]
)
def test_angles_are_one_column_or_any_number_of_them(periodic):
    expected = make_domain(angles(1.0), NAMES, periodic=["heading"])
    found = make_domain(angles(1.0), NAMES, periodic=periodic)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"periodic": ["headng"]}, "did you mean 'heading'"),
        ({"periodic": [2]}, "no column 2: there are 2"),
        ({"periodic": np.int64(2)}, "no column 2: there are 2"),
        ({"periodic": 0.5}, "column"),
        ({"periodic": [[0, 1]]}, "a column is a name or a number, got"),
        ({"periodic": np.array([[0, 1]])}, "a column is a name or a number, got"),
        ({"periodic": [0, "heading"]}, "'heading' is given twice"),
        ({"periodic": {"heading": 0.0}}, "the period of column 'heading' must be a finite number"),
        ({"periodic": {"heading": "turn"}}, "the period of column 'heading'"),
        ({"periodic": [0], "support": (0.0, None)}, "cannot have bounds, too"),
        ({"support": (None, 0.5)}, "demonstrations are outside of the bounds"),
        ({"support": (1.0, 0.0)}, "demonstrations are outside|must be below"),
        ({"support": ({"speed": 1.0}, {"speed": 1.0})}, "the lower one must be below"),
        ({"support": ({"speed": np.nan}, None)}, "the lower one must be below"),
        ({"support": ([1.0, 2.0, 3.0], None)}, "the lower bounds must be a number, 2 numbers"),
        ({"support": ("low", "high")}, "the lower bounds must be"),
        ({"support": 3.0}, "a pair"),
        ({"support": lambda x: x[:, 0] > 0.0}, "a function of points belongs to"),
    ],
)
def test_what_is_no_domain_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        make_domain(angles(1.0), NAMES, **arguments)
