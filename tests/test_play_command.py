"""`python -m experiments play`: moves in closed loop past two obstacles, where the way is open."""

from types import SimpleNamespace

import virl_tf
from virl_tf import AmongBest, InputError
from virl_tf.conditional import conditioned
from virl_tf.contexts import Places, drawn
from virl_tf.demonstrations import Data
from virl_tf.domain import make_domain
from virl_tf.numerics import numpy_seed
from virl_tf.policy_fit.start import standard_conditional_start
from virl_tf.reward import evaluate
from virl_tf.tasks.obstacle_field import ObstacleField
from virl_tf.trajectories.episodes import check_episodes
from virl_tf.trajectories.moves import Moves

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from PIL import Image
from rich.console import Console

from experiments.evaluation import closed_loop
from experiments.evaluation.closed_loop import padded, play, replay
from experiments.own_data import play_command
from tests import tiny
from tests.shared import make_mixture, make_network, make_reward

pytestmark = pytest.mark.usefixtures("quick")

TINY = [*tiny.FIT_WORDS, "--set", "loop.min_gain=null"]
MOVERS = ["demonstrations, replayed", "reward, among 3", "policy", "kernels", "EM by BIC"]
MOVERS += ["behaviour cloning"]
WORLD = """
import numpy as np

class World:
    def __init__(self, n, seed):
        self.positions = np.random.default_rng(seed).normal(0.0, 0.01, (n, 2))
        self.real = [self.positions]

    def move(self, targets):
        assert targets.shape == self.real[0].shape
        self.real.append(self.real[-1] + 0.5 * (targets - self.real[-1]))

    def outcome(self):
        return {"reach[/m]": np.stack(self.real)[:, :, 0].max(), "moves": len(self.real) - 1}

class Elsewhere(World):
    def __init__(self, n, seed):
        self.positions = np.zeros((n, 3))

class Lost(World):
    def __init__(self, n, seed):
        self.positions = np.full((n, 2), np.nan)

class Stuck(World):
    move = None

class Silent(World):
    def outcome(self):
        return "well"

class Broken(World):
    def __init__(self, n, seed):
        self.positions = np.zeros((n, 2)) + self.nothing

class Fallen(World):
    def move(self, targets):
        raise RuntimeError(f"at {targets.shape}:\\n  fallen")

class Unseen(World):
    positions = property(lambda self: 1 / 0, lambda self, value: None)

    def __init__(self, n, seed):
        pass

class Taken(World):
    def outcome(self):
        return {"mover": 1.0}
"""


def demonstrated(n=12):
    """Paths past two obstacles in n ways, [n, 20, 2]."""
    field = ObstacleField(2, 0)
    at = np.linspace(0.0, 2.0, 20)
    heights = np.hstack([np.zeros((n, 1)), field.demonstrations(n, 0)])
    return np.stack([np.stack([at, np.interp(at, range(3), row)], axis=1) for row in heights])


def command(folder, *options):
    words = ["play", folder / "mine.npy", "--components", "2", "--runs", "20", *TINY]
    return [*words, "--candidates", "3", *options]


@pytest.fixture(scope="module")
def finished(call, tmp_path_factory):
    """(folder of the files, what was shown)."""
    folder = tmp_path_factory.mktemp("play")
    np.save(folder / "mine.npy", demonstrated())
    (folder / "world.py").write_text(WORLD)
    words = ("--world", folder / "world.py", "--out", folder / "out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closed_loop, "EPOCHS", 5)
        status, shown, error = call(*command(folder, *words))
        assert status == 0, error
        yield folder, shown


def test_every_mover_has_a_row_and_the_same_time(finished):
    folder, shown = finished
    table = pd.read_csv(folder / "out" / "play.csv")
    assert list(table["mover"]) == MOVERS
    assert (table["moves"] == 30).all()  # one and a half demonstrations
    assert all(name in shown for name in [*MOVERS, "20 runs each", "reach[/m]"])
    with Image.open(folder / "out" / "play.png") as picture:
        assert len(np.unique(np.asarray(picture))) > 10


def test_a_replay_reaches_what_was_demonstrated(finished):
    table = pd.read_csv(finished[0] / "out" / "play.csv").set_index("mover")
    assert table.loc[MOVERS[0], "reach[/m]"] == pytest.approx(2.0, abs=0.1)


def test_all_movers_have_seen_the_moves_that_the_reward_has(finished, monkeypatch):
    folder, _ = finished
    seen = []
    monkeypatch.setattr(play_command, "movers", lambda result, data, *_: seen.append(data) or {})
    moves = Moves.of(demonstrated())
    rows = moves.rows(demonstrated(), numpy_seed(0, 0, "moves"))
    fitted = SimpleNamespace(seed=0, held_out=0.1)
    game = SimpleNamespace(fitted=fitted, request=SimpleNamespace(candidates=3), rows=rows)
    play_command._players(game, None)
    with np.load(folder / "out" / "fit" / "demonstrations.npz") as arrays:
        assert len(arrays["test"]) > 0
        np.testing.assert_array_equal(seen[0].rows, arrays["train"])


def test_a_stopped_command_goes_on_to_the_same_bytes(finished, call, monkeypatch):
    folder, _ = finished
    files = [folder / "out" / name for name in ("play.csv", "play.png", "policy.npz")]
    before = [path.read_bytes() for path in files]
    lines = before[0].splitlines(keepends=True)
    files[0].write_bytes(b"".join(lines[:3]))
    for path in files[1:]:
        path.unlink()
    words = ("--world", folder / "world.py", "--out", folder / "out")
    assert call(*command(folder, *words))[0] == 0
    assert [path.read_bytes() for path in files] == before


def test_another_world_is_refused_where_moves_were_played_in_the_first(finished, call):
    folder, _ = finished
    (folder / "other.py").write_text(WORLD + "# corrected")
    words = ("--world", folder / "other.py", "--out", folder / "out")
    status, _, error = call(*command(folder, *words))
    assert status == 2
    assert "play.csv has rows by another --world; remove it, and all is measured anew" in error


def test_quiet_leaves_the_warnings(finished, call):
    folder, _ = finished
    words = ("--world", folder / "world.py", "--out", folder / "out", "--quiet")
    status, shown, error = call(*command(folder, *words))
    warned = virl_tf.load(folder / "out" / "fit").warnings
    assert (status, shown) == (0, "")
    assert len(warned) > 0
    assert all(f"warning: {text}\n" in error for text in warned)


@pytest.mark.parametrize(
    ("world", "text"),
    [
        ("Elsewhere", r"positions must be numbers [20, 2], of the columns x0, x1"),
        ("Lost", "positions hold NaN or infinities"),
        ("Stuck", "the world has no method 'move'"),
        ("Silent", "outcome() must return {name: number}"),
        ("Taken", "other names than the table's own; got 'mover'"),
        (
            "Broken",
            "Broken raised AttributeError: 'Broken' object has no attribute",
        ),
        ("Fallen", "move raised RuntimeError: at (20, 2): fallen in line"),
        ("Unseen", "positions raised ZeroDivisionError: division by zero in line"),
        ("Nowhere", "has no function 'Nowhere'"),
    ],
)
def test_a_world_that_is_none_is_refused_before_the_fit(finished, call, tmp_path, world, text):
    folder, _ = finished
    place = ("--world", f"{folder / 'world.py'}:{world}", "--out", tmp_path / "out")
    status, _, error = call(*command(folder, *place))
    assert status == 2
    assert text in " ".join(error.split())
    assert not (tmp_path / "out").exists()


def test_a_damaged_table_is_refused(finished, call):
    folder, _ = finished
    path = folder / "out" / "play.csv"
    before = path.read_text()
    path.write_text(before.replace(",policy,", ",policy,far", 1))
    words = ("--world", folder / "world.py", "--out", folder / "out")
    status, _, error = call(*command(folder, *words))
    path.write_text(before)
    assert status == 2
    assert "is not a table of play" in " ".join(error.split())


def played(folder, name, outcome):
    """Add a mover's row to play.csv, of a world with this outcome."""
    world = SimpleNamespace(outcome=lambda: outcome)
    game = SimpleNamespace(out=folder, world=lambda: world, fitted=SimpleNamespace(seed=3))
    play_command._play_one(game, name, lambda world: np.zeros((5, 2, 2)))


def test_outcomes_stand_below_their_names_in_whatever_order_they_come(tmp_path):
    played(tmp_path, "first", {"reach": 0.25, "moves": 7})
    before = (tmp_path / "play.csv").read_bytes()
    played(tmp_path, "second", {"moves": 8, "reach": 0.5})
    assert (tmp_path / "play.csv").read_bytes() == before + b"3,second,0.5,8.0\n"
    whole = (tmp_path / "play.csv").read_bytes()
    for other in ({"moves": 1.0}, {"moves": 1.0, "depth": 2.0}):
        with pytest.raises(InputError, match=r"names 'moves'.* has 'reach', 'moves'; they must"):
            played(tmp_path, "third", other)
    assert (tmp_path / "play.csv").read_bytes() == whole


def test_a_narrow_screen_hides_no_digit(tmp_path, capsys):
    names = [f"rate of collisions {i}" for i in range(9)]
    played(tmp_path, "first", dict.fromkeys(names, 1.5e7))
    console = Console(width=80)
    request = SimpleNamespace(runs=20)
    play_command._print_table(SimpleNamespace(out=tmp_path, console=console, request=request))
    shown = capsys.readouterr().out
    assert "\u2026" not in shown
    assert shown.count("7 ") >= len(names)  # the last digit of 1.5e+07


def test_too_long_a_move_is_refused(finished, call, tmp_path):
    folder, _ = finished
    words = ("--world", folder / "world.py", "--out", tmp_path / "out", "--move-steps", "20")
    status, _, error = call(*command(folder, *words))
    assert status == 2
    assert "steps must be an integer from 1 to 19" in " ".join(error.split())


def test_episodes_at_unequal_times_are_resampled(capsys, monkeypatch, tmp_path):
    times = [0.1 * np.arange(31), 0.5 * np.arange(5), 0.1 * np.array([0, 1, 3, 4, 8, 9.5])]
    values = [np.stack([3.0 * t, -t], axis=1) for t in times]  # at one speed
    episodes = check_episodes(values, times=times)

    class Stopped(Exception):
        pass

    def of(episodes, steps):
        raise Stopped(episodes)

    monkeypatch.setattr(play_command.Moves, "of", of)
    with pytest.raises(Stopped) as stopped:
        play_command.play_file(None, SimpleNamespace(steps=None), episodes, tmp_path, False)
    (found,) = stopped.value.args
    assert "samples are 0.1 to 0.5 apart; a sample of the world is 0.1" in capsys.readouterr().err
    assert found.times is None
    for one, expected, last in zip(found.values, (31, 21, 11), (1.0, 1.0, 0.5), strict=True):
        assert one.shape == (expected, 2)
        speeds = [[0.3, -0.1]] * (expected - 2) + [[0.3 * last, -0.1 * last]]
        np.testing.assert_allclose(np.diff(one, axis=0), speeds)


def test_an_episode_shorter_than_a_step_is_named(capsys):
    times = [np.arange(30.0), np.arange(30.0) * 2.0, np.array([0.0, 0.1, 0.2])]
    values = [np.stack([t, -t], axis=1) for t in times]
    with pytest.raises(InputError, match="episode 2"):
        play_command._in_equal_steps(check_episodes(values, times=times))


def test_a_gap_of_hours_is_not_filled():
    times = [0.1 * np.arange(30), np.append(0.1 * np.arange(29), 5000.0), 0.1 * np.arange(90)]
    values = [np.stack([t, -t], axis=1) for t in times]
    with pytest.raises(InputError, match=r"episode 1 lasts 50,000 steps of 0.1. Cut it where"):
        play_command._in_equal_steps(check_episodes(values, times=times))


def test_episodes_at_equal_times_stay_as_they_are(capsys):
    values = list(np.random.default_rng(0).normal(size=(2, 20, 2)))
    episodes = check_episodes(values, times=[0.1 * np.arange(20)] * 2)
    assert play_command._in_equal_steps(episodes) is episodes
    assert not capsys.readouterr().err


def test_columns_without_a_move_are_refused_by_their_own_names(call, tmp_path):
    still = np.random.default_rng(0).normal(size=(12, 1, 2)) * [0.0, 1.0] + 1.0
    paths = np.concatenate([demonstrated(), np.broadcast_to(still, (12, 20, 2))], axis=2)
    np.save(tmp_path / "mine.npy", paths)
    (tmp_path / "world.py").write_text(WORLD)
    words = command(tmp_path, "--world", tmp_path / "world.py", "--out", tmp_path / "out")
    status, _, error = call(*words)
    assert status == 2
    assert "no move in 'x2', 'x3'" in error
    assert "(--exclude x2,x3)" in error
    assert not (tmp_path / "out").exists()


class Straight:
    """Two steps to the right, whatever the context; keeps those it has seen."""

    def __init__(self):
        self.seen = []

    def sample(self, c, seed=None):
        self.seen.append(np.asarray(c))
        return np.tile([2.0, 0.0, 4.0, 0.0, 6.0, 0.0], (len(c), 1))


class Open:
    """No obstacle, no lag."""

    def __init__(self):
        self.positions, self.targets = np.zeros((3, 2)), []

    def move(self, targets):
        self.targets.append(targets)


def test_a_move_is_chosen_where_the_last_one_ended():
    world, mover = Open(), Straight()
    found = play(world, Moves(("a", "b"), 2), mover, 5, 0)
    np.testing.assert_allclose(found[:, 0], [[t, 0.0] for t in range(6)])
    np.testing.assert_array_equal(found[1:], world.targets)
    np.testing.assert_allclose(mover.seen[2][0], [4.0, 0.0, 2.0, 0.0, 4.0, 0.0])


def test_each_move_has_noise_of_its_own():
    def seeds(seed):
        seen = []
        straight = Straight()
        sample = lambda c, seed: seen.append(tuple(np.asarray(seed))) or straight.sample(c)  # noqa: E731
        play(Open(), Moves(("a", "b"), 2), SimpleNamespace(sample=sample), 5, seed)
        return seen

    assert len(set(seeds(0)) | set(seeds(1))) == 6
    assert seeds(0) == seeds(0)


def test_a_reward_chooses_among_draws_of_narrow_kernels(monkeypatch):
    seeds, em = [], closed_loop.bic_mixture
    of_rows = lambda rows, seed: seeds.append(seed) or em(rows, seed)  # noqa: E731
    monkeypatch.setattr(closed_loop, "bic_mixture", of_rows)
    data = Data(np.random.default_rng(0).normal(size=(60, 3)), num_contexts=1)
    result = SimpleNamespace(reward=make_reward([make_network(3)], dim=3), policy="policy")
    found = closed_loop.movers(result, data, 3, 0)
    assert list(found) == MOVERS[1:]
    among, nearest = found[MOVERS[1]](), found["kernels"]()
    wide = closed_loop.kernels(data, 0).bandwidth
    for narrow in (nearest, among.proposal):
        np.testing.assert_allclose(narrow.bandwidth, closed_loop.NARROWED * wide)
    assert (among.reward, among.candidates) == (result.reward, 3)
    assert found["policy"]() == "policy"
    expected = conditioned(em(data.rows, numpy_seed(7, 0, "EM")), 1)
    by_bic = closed_loop.movers(result, data, 3, 7)["EM by BIC"]()
    assert seeds == [numpy_seed(7, 0, "EM")]
    np.testing.assert_allclose(by_bic.log_prob(data.rows), expected.log_prob(data.rows))


def test_a_clone_takes_the_mean_move(monkeypatch):
    """Far from 0 and of several units."""
    monkeypatch.setattr(closed_loop, "EPOCHS", 30)
    rng = np.random.default_rng(0)
    c = rng.uniform(-1.0, 1.0, (400, 1))
    moves = np.hstack([100.0 + 3.0 * c, -50.0 * c])
    rows = np.hstack([c, moves + [0.1, 1.0] * rng.normal(size=moves.shape)])
    clone = closed_loop.Clone.of(Data(rows, num_contexts=1), 0)
    error = (clone.sample(c) - moves) / moves.std(axis=0)
    assert np.abs(error).mean() < 0.1


def test_a_clone_depends_on_its_seed_alone(monkeypatch):
    monkeypatch.setattr(closed_loop, "EPOCHS", 1)
    rows = np.random.default_rng(0).normal(size=(60, 2))
    first, again, other = (
        closed_loop.Clone.of(Data(rows, num_contexts=1), seed).sample(rows[:, :1])
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


def game(seed, episodes=None):
    """What a command is to do in a world of two that start where its seed says."""

    def world(runs, seed):
        start = np.random.default_rng(seed).normal(size=(runs, 2))
        return SimpleNamespace(positions=start, move=print, outcome=dict)

    named = SimpleNamespace(function=world, guard=lambda function: function)
    request, moves = SimpleNamespace(runs=2, world=named), Moves(("a", "b"), 2)
    fitted = SimpleNamespace(seed=seed)
    return play_command.Game(fitted, request, episodes, moves, None, None, None)


def test_all_start_at_the_same_places_which_the_seed_tells():
    first, again, other = (game(seed).world().positions for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.isin(first, other).any()


def test_a_run_may_take_half_as_long_again_as_the_longest_demonstration():
    values = [np.random.default_rng(0).normal(size=(n, 2)) for n in (4, 6, 20)]
    assert game(0, check_episodes(values)).samples == 30


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_a_mover_has_as_much_time_as_a_replay(steps):
    episodes = check_episodes([np.arange(8.0).reshape(4, 2) ** k for k in (1, 2)])
    of_mover, of_replay = Open(), Open()
    found = play(of_mover, Moves(("a", "b"), steps), Straight(), 6, 0)
    assert found.shape == replay(of_replay, episodes, 6).shape
    assert len(of_mover.targets) == len(of_replay.targets) == 6


class InPlace(Open):
    """Overwrites its positions, and what it is sent."""

    def move(self, targets):
        self.positions[:] = targets
        targets += 100.0


def test_a_world_that_works_in_place_changes_no_history():
    plain, in_place = Straight(), Straight()
    of_plain, of_in_place = (
        play(world, Moves(("a", "b"), 2), mover, 5, 0)
        for world, mover in ((Open(), plain), (InPlace(), in_place))
    )
    np.testing.assert_array_equal(of_in_place, of_plain)
    np.testing.assert_array_equal(in_place.seen, plain.seen)
    episodes = check_episodes([np.arange(8.0).reshape(4, 2) ** k for k in (1, 2)])
    of_plain, of_in_place = (replay(world, episodes, 5) for world in (Open(), InPlace()))
    np.testing.assert_array_equal(of_in_place, of_plain)


def test_a_replay_repeats_the_demonstrations_in_turn_from_each_start():
    episodes = check_episodes([np.arange(8.0).reshape(4, 2) ** k for k in (1, 2)])
    world = Open()
    world.positions = np.ones((3, 2))
    found = replay(world, episodes, 5)
    assert found.shape == (6, 3, 2)
    np.testing.assert_array_equal(found[:, 2], found[:, 0])
    np.testing.assert_array_equal(found[:4, 1], 1.0 + episodes.values[1] - episodes.values[1][0])
    np.testing.assert_array_equal(padded(episodes, 6)[5], padded(episodes, 6)[3])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"candidates": 0}, "candidates must be"),
        ({"tolerance": -1.0}, "tolerance must be at least 0 nats, got -1.0"),
        ({"tolerance": "6"}, "tolerance must be at least 0 nats, got '6'"),
        ({"reward": make_reward([make_network(2)])}, "a reward with contexts"),
        ({"proposal": make_mixture(dim=2)}, "proposal must sample in contexts"),
    ],
)
def test_what_refuses_all_candidates_is_refused(changed, message):
    proposal = conditioned(make_mixture(dim=3), 1)
    reward = make_reward([make_network(3)], dim=3, base=proposal)
    with pytest.raises(InputError, match=message):
        AmongBest(reward, proposal)._replace(**changed).sample(np.zeros([2, 1]))


@pytest.mark.parametrize("shape", [(1,), (2, 4, 1)])
def test_a_draw_has_one_context(shape):
    proposal = conditioned(make_mixture(dim=3), 1)
    among = AmongBest(make_reward([make_network(3)], dim=3, base=proposal), proposal)
    with pytest.raises(InputError, match=r"c must be \[N, 1\], a context for each draw, got shape"):
        among.sample(np.zeros(shape))
    assert among.sample(np.zeros([0, 1])).shape == (0, 2)


@pytest.mark.parametrize("tolerance", [0.0, 0.3, 1.0, np.inf])
def test_the_first_is_taken_that_is_almost_as_good_as_the_best(tolerance):
    """Against each candidate's reward, one by one."""
    proposal = conditioned(make_mixture(dim=3), 1)
    reward = make_reward([make_network(3)], dim=3, base=proposal)
    c = np.linspace(-1.0, 1.0, 7)[:, None]
    rows = np.asarray(drawn(proposal, Places(c, 5), np.array([3, 4], np.int32)))
    among = AmongBest(reward, proposal, 5, tolerance)
    chosen = among.sample(c, np.array([3, 4], np.int32))
    in_graph = tf.function(lambda c: among.sample(c, [3, 4]))(c)
    np.testing.assert_array_equal(in_graph, chosen)
    places = []
    for i, x in enumerate(np.asarray(chosen)):
        own = rows[i::7]
        values = [evaluate(reward, row[None]).numpy()[0] for row in own]
        place = next(j for j, value in enumerate(values) if value >= max(values) - tolerance)
        np.testing.assert_array_equal(x, own[place, 1:])
        places.append(place)
    assert (max(places) > 0) == (tolerance < np.inf)


def test_an_angle_is_as_good_a_turn_further():
    """Of a reward that is the same in all turns, half of the draws around where these are cut."""
    turns = make_domain(np.linspace(-3.0, 3.0, 40)[:, None], ["x"], periodic=["x"])
    base = standard_conditional_start(1, 1, 1, 0)
    empty = base._replace(**{name: array[:0] for name, array in base._asdict().items()})
    reward = make_reward([], dim=2, base=base, mixture=empty)._replace(domain=turns.behind(1))
    proposal = base._replace(
        offsets=tf.constant([[np.pi]], tf.float64), scale_trils=0.1 * base.scale_trils
    )
    x = AmongBest(reward, proposal, tolerance=9.0).sample(np.zeros([400, 1]), 0)
    assert 0.4 < np.mean(x > turns.upper) < 0.6
