"""Trajectories as moves: windows of what was done before and next."""

from virl_tf import InputError, Moves
from virl_tf.trajectories import moves as moves_module
from virl_tf.trajectories.episodes import check_episodes

import numpy as np
import pandas as pd
import pytest

PATHS = [np.cumsum(np.random.default_rng(i).normal(size=(9 + i, 2)), axis=0) for i in range(3)]


@pytest.fixture
def exact(monkeypatch):
    """No noise."""
    monkeypatch.setattr(moves_module, "NOISE", 0.0)


def rows(paths=PATHS, steps=2):
    return Moves.of(check_episodes(paths), steps).rows(paths)


def test_a_move_is_how_far_it_is_to_where_one_is_later(exact):
    """Each row, from one episode's samples one by one."""
    found, i = rows(), 0
    for episode, path in enumerate(PATHS):
        for t in range(len(path) - 1):
            before = [path[t] - path[max(t - k, 0)] for k in (2, 4)]
            after = [path[min(t + k, len(path) - 1)] - path[t] for k in (2, 4, 6)]
            np.testing.assert_allclose(found.contexts.iloc[i], np.concatenate([path[t], *before]))
            np.testing.assert_allclose(found.x.iloc[i], np.concatenate(after))
            assert found.groups[i] == episode
            i += 1
    assert i == len(found.x)


def test_columns_say_what_they_are():
    found = rows()
    assert list(found.contexts) == [
        *("x0", "x1", "x0 since 2", "x1 since 2", "x0 since 4", "x1 since 4")
    ]
    assert list(found.x)[:2] == ["x0 in 2", "x1 in 2"]


def test_what_stands_still_at_first_is_left_out(exact):
    waits = [np.concatenate([np.repeat(path[:1], 4, axis=0), path[1:]]) for path in PATHS]
    for found, wanted in zip(rows(waits)[:2], rows()[:2], strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_played_back_moves_are_in_the_contexts_of_the_demonstration(exact):
    """What a policy sees in closed loop is what it was fitted to."""
    path, moves = PATHS[2], Moves.of(check_episodes(PATHS), 2)
    wanted = rows().contexts.to_numpy()[rows().groups == 2]
    for t in range(len(path) - 1):
        np.testing.assert_allclose(moves.context(path[: t + 1, None])[0], wanted[t])


def test_targets_are_on_a_line_to_the_first_knot():
    moves, x = Moves(("a", "b"), 4), np.array([[4.0, 8.0, 9.0, 9.0, 9.0, 9.0]])
    found = moves.targets(np.array([[1.0, 0.0]]), x)
    np.testing.assert_allclose(found[:, 0], [[2, 2], [3, 4], [4, 6], [5, 8]])


def test_noise_is_one_percent_and_no_value_is_there_twice(exact, monkeypatch):
    rng = np.random.default_rng(0)
    steps = rng.choice([0.0, 0.5], size=(4, 30, 2))  # a largest speed
    paths = list(np.cumsum(steps + 1e-9 * rng.normal(size=steps.shape), axis=1))
    plain = rows(paths).x.to_numpy()
    monkeypatch.setattr(moves_module, "NOISE", 0.01)
    noisy = rows(paths).x.to_numpy()
    assert all(len(np.unique(column)) == len(column) for column in noisy.T)
    assert (np.abs(noisy - plain) <= 0.01 * plain.std(axis=0)).all()


def test_the_default_is_a_ninth_of_an_episode():
    paths = [np.cumsum(np.ones((n, 1)), axis=0) * n for n in (50, 90, 91)]
    assert Moves.of(paths).steps == 10
    paths[0] = paths[0][:5]
    assert Moves.of(paths).steps == 4


def swapped():
    return check_episodes([pd.DataFrame(path, columns=["b", "a"]) for path in PATHS])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Moves.of(check_episodes(PATHS), 9), "steps must be an integer from 1 to 8"),
        (lambda: Moves.of(check_episodes(PATHS), 0), "steps must be"),
        (lambda: Moves(("a",), 2).rows(PATHS), "the columns x0, x1; expected are a, in this order"),
        (lambda: Moves(("a", "b"), 2).rows(swapped()), "the columns b, a; expected are a, b"),
        (lambda: Moves(("a",), 2).rows(np.zeros((3, 4))), r"\[N, T, D\]"),
        (lambda: check_episodes(check_episodes(PATHS), np.arange(9.0)), "of their own; leave them"),
    ],
)
def test_what_cannot_be_used(call, text):
    with pytest.raises(InputError, match=text):
        call()
