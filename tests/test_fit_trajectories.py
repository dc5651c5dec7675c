"""`fit --trajectories` and `infer` on it: files of trajectories in, paths, pictures, scores out."""

import shutil
from dataclasses import replace

import virl_tf
from virl_tf import load_encoding, save_encoding
from virl_tf.numerics import split_seed

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from experiments.evaluation import own_demonstrations, trajectories
from experiments.evaluation.own_demonstrations import check_same_encoding
from experiments.evaluation.trajectories import (
    MOST_PUSHED,
    PUSH,
    losses_when_pushed,
    reward_draws,
    write_trajectories,
)
from experiments.figures.trajectories import COLOURS, component_colours, draw_trajectories
from tests import arm
from tests.shared import contents, make_mixture
from tests.test_fit_command import TINY

pytestmark = pytest.mark.usefixtures("quick")
SMALL = [*TINY, "--components", "2", "--no-tensorboard", "--quiet"]


@pytest.fixture(scope="module")
def finished(call, tmp_path_factory):
    """A run on a table of two columns over time: (folder, what was shown)."""
    folder = tmp_path_factory.mktemp("paths")
    angles, _ = arm.reaching(60, num_steps=12)
    hands = np.asarray(arm.links(tf.constant(angles)))[:, :, -1]
    frame = pd.DataFrame(hands.reshape(-1, 2), columns=["east", "north"])
    frame = frame.assign(who=np.repeat(np.arange(60), 12), clock=np.tile(0.5 * np.arange(12.0), 60))
    frame.to_csv(folder / "paths.csv", index=False)
    options = ["--trajectories", "--episode", "who", "--time", "clock", "--encoding", "components"]
    options += ["--encoding-size", "2"]
    status, shown, error = call(
        "fit", folder / "paths.csv", *options, *SMALL[:-1], "--out", folder / "out"
    )
    assert status == 0, error
    return folder / "out", shown


def test_the_folder_holds_paths_of_the_policy(finished):
    out, shown = finished
    encoding, result = load_encoding(out / "encoding.npz"), virl_tf.load(out)
    assert encoding.columns == ("east", "north")
    assert encoding.times[-1] == 5.5
    assert encoding.dim == result.policy.dim
    with np.load(out / "trajectories.npz") as found:
        assert found["trajectories"].shape == (1000, 12, 2)
        x = encoding.encode(found["trajectories"])
        np.testing.assert_allclose(found["rewards"], result.reward(x), rtol=1e-4)
        np.testing.assert_allclose(found["means"], encoding.decode(result.policy.means))
        np.testing.assert_allclose(found["weights"].sum(), 1.0)
        assert found["demonstrations"].shape == (60, 12, 2)
        assert list(found["columns"]) == ["east", "north"]
        assert found["losses"].shape == (2, 12)
    for name in ("paths.png", "paths.pdf", "along.png", "along.pdf", "training.png"):
        assert (out / name).is_file(), name
    assert "trajectories of 12 samples; <Encoding components" in shown
    assert "worst episode" in shown
    assert str(out / "trajectories.npz") in shown


def test_the_printed_snippet_gives_paths(finished, capsys):
    lines = finished[1].splitlines()
    exec("\n".join(lines[lines.index("import virl_tf") :]), {})
    assert capsys.readouterr().out == "(3, 12, 2)\n"


def test_a_finished_run_is_left_alone(call, finished):
    out, _ = finished
    before = contents(out)
    options = ["--trajectories", "--episode", "who", "--time", "clock", "--encoding", "components"]
    options += ["--encoding-size", "2"]
    status, _, error = call("fit", out.parent / "paths.csv", *options, *SMALL, "--out", out)
    assert status == 0, error
    assert contents(out) == before


CONSTRAINT = """
import tensorflow as tf
import virl_tf

encoding = virl_tf.load_encoding({path!r})

def support(x):
    return tf.reduce_all(encoding.decode(x)[:, 4:8, 1] > 0.05, axis=1)
"""


def test_a_constraint_on_paths_reaches_infer(call, finished, tmp_path, monkeypatch):
    out, _ = finished
    drawn = []

    def draws_of(reward, proposal):
        drawn.append((reward, proposal))
        return reward_draws(reward, proposal)

    monkeypatch.setattr(own_demonstrations, "reward_draws", draws_of)
    (tmp_path / "above.py").write_text(CONSTRAINT.format(path=str(out / "encoding.npz")))
    options = ["--components", "2", "--fixed", "--steps", "15", "--samples", "60"]
    options += ["--support", tmp_path / "above.py", "--out", tmp_path / "new"]
    status, _, error = call("infer", out, *options)
    assert status == 0, error
    with np.load(tmp_path / "new" / "trajectories.npz") as found:
        above = (found["trajectories"][:, 4:8, 1] > 0.05).all(axis=1)
        assert above.mean() > 0.7
    assert (tmp_path / "new" / "paths.png").is_file()
    (reward, proposal), run = drawn[-1], virl_tf.load(out)
    x = tf.concat([run.policy.sample(40, seed=1), proposal.policy.sample(40, seed=1)], axis=0)
    both = [run.policy, virl_tf.load_policy(tmp_path / "new")]
    expected = np.mean([np.exp(policy.log_prob(x)) for policy in both], axis=0)
    np.testing.assert_allclose(np.exp(proposal.log_prob(x)), expected)
    inside = (load_encoding(out / "encoding.npz").decode(x).numpy()[:, 4:8, 1] > 0.05).all(axis=1)
    assert 0 < inside.sum() < len(x)
    np.testing.assert_allclose(reward(x), np.where(inside, run.reward(x), -np.inf))
    assert (
        load_encoding(tmp_path / "new" / "encoding.npz").dim
        == load_encoding(out / "encoding.npz").dim
    )


def test_rewards_on_different_codes_have_no_average(call, finished, tmp_path):
    out, _ = finished
    other = tmp_path / "other"
    shutil.copytree(out, other)
    encoding = load_encoding(other / "encoding.npz")
    save_encoding(other / "encoding.npz", replace(encoding, basis=-encoding.basis))
    check_same_encoding([out, out])
    status, _, error = call("infer", out, other, "--components", "2", "--out", tmp_path / "new")
    assert status == 2
    assert "encode trajectories differently" in error
    assert not (tmp_path / "new").exists()
    (other / "encoding.npz").unlink()
    with pytest.raises(virl_tf.InputError, match="encode trajectories differently"):
        check_same_encoding([out, other])


def test_joints_over_time(tmp_path):
    y = arm.reaching(40, num_steps=10)[0][..., :3]
    encoding = virl_tf.fit_encoding(y, "components", 2)
    policy = make_mixture()
    drawn = reward_draws(policy.log_prob, policy)
    write_trajectories(tmp_path, encoding, policy.log_prob, policy, drawn, y)
    draw_trajectories(tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"paths.png", "along.png"}
    with np.load(tmp_path / "trajectories.npz") as found:
        assert found["trajectories"].shape == (1000, 10, 3)
        np.testing.assert_allclose(found["trajectories"][:, 0], 0.0, atol=1e-9)
        np.testing.assert_allclose(found["reward_effective"], 20_000, rtol=1e-6)
        np.testing.assert_allclose(found["weights"], np.exp(policy.log_weights))


def test_no_two_components_of_a_picture_have_the_same_bright_colour():
    weights = np.random.default_rng(0).dirichlet(np.ones(25))
    colours = component_colours(weights)
    heaviest = np.argsort(-weights)[: len(COLOURS)]
    np.testing.assert_array_equal(colours[heaviest], COLOURS)
    others = np.delete(colours, heaviest, axis=0)
    assert (others == others[0]).all()
    assert not (colours[heaviest] == others[0]).all(axis=1).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing", "--trajectories"], "error: no file or folder missing."),
        (["setup.py", "--trajectories"], "unknown kind of file '.py'"),
        (["docs", "--trajectories"], "docs holds no .csv files, one for each episode"),
        (["x.npy", "--via", "start"], "--via is for --trajectories."),
        (["x.npy", "--encoding", "promp"], "--encoding is for --trajectories."),
        (["x.npy", "--trajectories", "--encoding", "pormp"], "did you mean 'promp'"),
        (["x.npy", "--trajectories", "--phase", "space"], "unknown phase 'space'"),
        (["x.npy", "--trajectories", "--encoding-size", "4"], "give one of promp"),
        (["x.npy", "--trajectories", "--group", "who"], "--group is for tables"),
        (["x.npy", "--trajectories", "--columns", "x9"], "unknown column"),
        (["x.npy", "--trajectories", "--periodic", "x0=360"], "'x0' is a column of paths; unwrap"),
        (["x.npy", "--trajectories", "--lower", "x0=0"], "give infer a --support of paths"),
        (["x.npy", "--trajectories", "--array", "a"], "--array is for .npz"),
        (["x.npy"], "or --trajectories on the command line"),
    ],
)
def test_bad_input_is_one_clear_error(call, tmp_path, arguments, message):
    np.save(tmp_path / "x.npy", arm.reaching(10, num_steps=5)[0])
    given = [str(tmp_path / a) if a == "x.npy" else a for a in arguments]
    status, _, error = call("fit", *given, "--out", tmp_path / "out")
    assert status == 2
    assert message in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_context_of_paths_has_no_bounds(call, tmp_path):
    x = arm.reaching(10, num_steps=5)[0]
    side = np.broadcast_to(np.arange(10.0)[:, None, None] % 2, (*x.shape[:2], 1))
    np.save(tmp_path / "x.npy", np.concatenate([x, side], axis=-1))
    name = f"x{x.shape[-1]}"
    words = ["fit", tmp_path / "x.npy", "--trajectories", "--contexts", name]
    status, _, error = call(*words, "--lower", f"{name}=0", "--out", tmp_path / "out")
    assert status == 2
    text = f"--lower: column {name!r} is a context; allowed are the numbers of codes."
    assert error == f"error: {text}\n"


# --- what is written ------------------------------------------------------------------------------


def test_draws_of_the_reward_are_those_of_its_density():
    target, proposal = make_mixture(seed=1), make_mixture(num_components=1, seed=2)
    scale_trils = 4.0 * tf.eye(2, batch_shape=[1], dtype=tf.float64)
    wide = proposal._replace(means=tf.zeros_like(proposal.means), scale_trils=scale_trils)
    drawn, effective = reward_draws(lambda x: target.log_prob(x) + 7.0, wide)
    exact = target.sample(20_000, split_seed(0, 0, "exact")).numpy()
    error = exact.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - exact.mean(axis=0)) < 4.0 * error).all()
    assert 200 < effective < 20_000


def test_a_push_costs_what_it_moves():
    """Of a quadratic reward on the path at one phase: a push elsewhere costs nothing."""
    y = arm.reaching(30, num_steps=21)[0]
    encoding = virl_tf.fit_encoding(y, "promp", 10)

    def reward(x):
        return -tf.reduce_sum(encoding.decode(x)[:, 10] ** 2, axis=1)

    codes = encoding.encode(y[:3])
    places, losses = losses_when_pushed(encoding, reward, codes, y)
    np.testing.assert_allclose(places, np.linspace(0.0, 1.0, 21))
    assert losses.shape == (3, 21)
    for place in (7, 10):
        expected = 0.0
        for joint in range(5):
            push = np.zeros((21, 5))
            push[:, joint] = np.exp(-0.5 * ((places - places[place]) / PUSH) ** 2)
            push *= y.std(axis=0)
            for side in (-1.0, 1.0):
                pushed = encoding.encode(encoding.decode(codes).numpy() + side * push)
                expected += (reward(codes) - reward(pushed)) / 10.0
        np.testing.assert_allclose(losses[:, place], expected, rtol=1e-6)
    assert (losses.argmax(axis=1) == 10).all()
    assert np.abs(losses[:, [0, 2, 18, 20]]).max() < 0.05 * losses.max()


def test_of_many_components_the_heaviest_are_pushed(tmp_path, monkeypatch):
    y = arm.reaching(30, num_steps=21)[0]
    encoding, policy = virl_tf.fit_encoding(y, "promp", 4), make_mixture(13, 20, seed=1)
    pushed = []

    def losses(encoding, reward, codes, demonstrations):
        pushed.append(codes)
        return np.zeros(1), np.zeros((len(codes), 1))

    monkeypatch.setattr(trajectories, "losses_when_pushed", losses)
    drawn = policy.sample(5, split_seed(0, 0, "drawn")).numpy(), 4.0
    write_trajectories(tmp_path, encoding, policy.log_prob, policy, drawn, y)
    order = np.argsort(-policy.log_weights.numpy())[:MOST_PUSHED]
    assert len(order) == 10
    np.testing.assert_array_equal(pushed[0], policy.means.numpy()[order])


# --- two ways -------------------------------------------------------------------------------------


def test_the_arm_reaches_its_target_in_two_ways():
    angles, sides = arm.reaching()
    assert angles.shape == (120, 30, 5)
    np.testing.assert_array_equal(arm.hand_side(angles), sides)
    hands = np.asarray(arm.links(tf.constant(angles)))[:, -1, -1]
    assert np.linalg.norm(hands - arm.TARGET, axis=1).max() < 0.15
    np.testing.assert_allclose(angles[:, 0], 0.0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::virl_tf.FitWarning")  # EM is about as good
def test_100_demonstrations_give_a_policy_with_components_in_both_ways():
    angles, _ = arm.reaching(100)
    encoding = virl_tf.fit_encoding(angles)
    result = virl_tf.fit(encoding.encode(angles), seed=0)
    means = arm.hand_side(encoding.decode(result.policy.means).numpy())
    assert set(means) == {-1.0, 1.0}
    draws = arm.hand_side(encoding.decode(result.policy.sample(1000, seed=0)).numpy())
    assert (draws == 0.0).mean() < 0.02
    assert 0.25 < (draws > 0.0).mean() < 0.8  # of the demonstrations 0.56


def _check_draws_inside_of_a_support(call, infer, folder):
    """Of the reward, whose picture else shows what the support forbids."""
    encoding = load_encoding(folder / "out/encoding.npz")
    middle = float(np.median(np.load(folder / "one/trajectories.npz")["reward_draws"][:, -1, 0]))
    (folder / "low.py").write_text(
        "import tensorflow as tf\nimport virl_tf\n"
        f"encoding = virl_tf.load_encoding({str(folder / 'out/encoding.npz')!r})\n"
        f"def support(x):\n    return encoding.decode(x)[:, -1, 0] < {middle}\n"
    )
    status, _, error = call(*infer, "--support", folder / "low.py", "--out", folder / "low")
    assert status == 0, error
    drawn = np.load(folder / "low/trajectories.npz")["reward_draws"]
    assert encoding.num_steps == drawn.shape[1]
    assert (drawn[:, -1, 0] < middle).all()


@pytest.mark.slow
def test_paths_may_have_a_context_each(call, tmp_path):
    """Columns that are the same throughout an episode."""
    angles, _ = arm.reaching(60, num_steps=12)
    frame = pd.DataFrame(angles[..., :2].reshape(-1, 2), columns=["a", "b"])
    where = np.sin(np.arange(60.0))
    frame = frame.assign(episode=np.repeat(np.arange(60), 12), goal=np.repeat(where, 12))
    frame.to_csv(tmp_path / "paths.csv", index=False)
    options = ["--trajectories", "--encoding", "components", "--encoding-size", "2"]
    options += ["--contexts", "goal", *SMALL[:-1]]
    status, shown, error = call("fit", tmp_path / "paths.csv", *options, "--out", tmp_path / "out")
    assert status == 0, error
    assert "60 demonstrations of dimension 2, each in a context of dimension 1," in shown
    result, encoding = virl_tf.load(tmp_path / "out"), load_encoding(tmp_path / "out/encoding.npz")
    assert (result.reward.num_contexts, result.reward.dim, encoding.dim) == (1, 2, 2)
    assert encoding.columns == ("a", "b")
    rows = np.concatenate(list(np.load(tmp_path / "out/demonstrations.npz").values()))
    np.testing.assert_array_equal(np.sort(rows[:, 0]), np.sort(where))
    with np.load(tmp_path / "out/situations.npz") as found:
        assert found["draws"].shape[2:] == found["demonstrations"].shape[2:] == (12, 2)
        assert list(found["columns"]) == ["goal", "a", "b"]
    code = shown[shown.index("import virl_tf") :]
    exec(code.replace("print(", "found = ("), names := {})
    assert names["found"] == (3, 12, 2)
    few = ["--components", "2", "--steps", "2", "--samples", "40", "--fixed"]
    one = ["infer", tmp_path / "out", *few, "--context", "goal=0.3", "--out", tmp_path / "one"]
    assert call(*one)[0] == 0
    assert np.load(tmp_path / "one/trajectories.npz")["trajectories"].shape == (1000, 12, 2)
    _check_draws_inside_of_a_support(call, one[:-2], tmp_path)
    again = ["fit", tmp_path / "paths.csv", *options, "--out", tmp_path / "out"]
    before = contents(tmp_path / "out")
    written = (tmp_path / "out/encoding.npz").stat().st_mtime_ns
    assert call(*again)[0] == 0
    assert (tmp_path / "out/encoding.npz").stat().st_mtime_ns == written
    after = contents(tmp_path / "out")
    assert after == before
