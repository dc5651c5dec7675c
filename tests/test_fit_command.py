"""`python -m experiments fit`: a user's file in; reward, summary, pictures and a snippet out."""

import itertools
import json
import re
import shlex
import shutil
from types import SimpleNamespace

import virl_tf
from virl_tf.conditional import conditioned
from virl_tf.contexts import far_away
from virl_tf.em.em import em_mixture
from virl_tf.fit_policy import PolicyResult
from virl_tf.mixture import standard_normal_start
from virl_tf.persistence.files import save_arrays, write_json
from virl_tf.persistence.policy_file import load_policy, save_policy
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.policy_fit.targets import NowhereInsideError
from virl_tf.vips.elbo import Measured

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from PIL import Image
from rich.console import Console

from experiments import inference
from experiments.evaluation import own_demonstrations, situations
from experiments.evaluation.base import OUTSIDE_OF, UserSupport
from experiments.evaluation.own_demonstrations import OwnInference
from experiments.figures import demonstrations as pictures
from experiments.figures import style
from experiments.figures.demonstrations import draw_demonstrations
from experiments.inference import _check_shares, _closed
from experiments.own_data import fit_command
from experiments.own_data.fit_request import parse_numbers
from tests import tiny
from tests.shared import contents, make_mixture, make_network, make_reward

pytestmark = pytest.mark.usefixtures("quick")

# The smallest run that goes through everything; its numbers mean nothing.
TINY = tiny.FIT_WORDS


def clusters(n, dim, seed=0):
    """Three round clusters far from each other."""
    rng = np.random.default_rng(seed)
    return 4.0 * rng.integers(0, 3, (n, 1)) + rng.normal(size=(n, dim)) * 0.3


def demonstrations():
    """200 rows, five of them twice."""
    x = clusters(195, 2)
    return np.concatenate([x, x[:5]])


@pytest.fixture(scope="module")
def finished(call, tmp_path_factory):
    """A run on two columns of a .csv: (folder, what was shown)."""
    folder = tmp_path_factory.mktemp("fit")
    pd.DataFrame(demonstrations(), columns=["speed", "distance"]).assign(who="me").to_csv(
        folder / "mine.csv", index=False
    )
    out = folder / "it's out"
    status, shown, error = call(
        "fit", folder / "mine.csv", "--columns", "speed,distance", *TINY, "--out", out
    )
    assert status == 0, error
    return out, shown


def test_the_folder_holds_the_result_and_what_it_was_made_of(finished):
    out, _ = finished
    for name in (
        "reward.keras",
        "policy.npz",
        "config.yaml",
        "metrics.csv",
        "summary.json",
        "demonstrations.npz",
        "grid.npz",
    ):
        assert (out / name).is_file(), name
    assert list((out / "tensorboard").iterdir())
    summary = json.loads((out / "summary.json").read_text())
    assert summary["rows"] == {"train": 180, "held_out": 20, "repeated": 5}
    assert [column["name"] for column in summary["columns"]] == ["speed", "distance"]
    with np.load(out / "demonstrations.npz") as arrays:
        both = np.concatenate([arrays["train"], arrays["test"]])
        assert summary["columns"][0]["mean"] == pytest.approx(arrays["train"][:, 0].mean())
        np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(demonstrations(), axis=0))
        result = virl_tf.load(out)
        score = summary["score"]["log_likelihood"]["policy"]
        assert score["mean"] == pytest.approx(
            float(np.mean(result.policy.log_prob(arrays["test"])))
        )
    np.testing.assert_allclose(summary["bandwidth"], 0.3 * both[:180].std(axis=0), rtol=0.05)


def test_the_number_of_components_was_found(finished):
    summary = json.loads((finished[0] / "summary.json").read_text())
    assert summary["components"] == 3
    assert set(summary["components_scores"]) >= {"1", "2", "3", "5"}
    assert "components 3, chosen by cross-validation under EM" in finished[1]


def test_the_printed_snippet_loads_and_uses_the_result(finished, capsys):
    lines = finished[1].splitlines()
    snippet = lines[lines.index("import virl_tf") :]
    assert len(snippet) == 4
    exec("\n".join(snippet), {})
    assert re.search(r"tf.Tensor\(\[.+\], shape=\(3,\), dtype=float64\)", capsys.readouterr().out)


def test_pictures_are_drawn(finished):
    for name in ("reward", "training"):
        picture = np.asarray(Image.open(finished[0] / f"{name}.png").convert("RGB")).reshape(-1, 3)
        assert len(np.unique(picture, axis=0)) > 50
        assert (finished[0] / f"{name}.pdf").is_file()
        assert str(finished[0] / f"{name}.png") in finished[1].replace("\n", "")


def test_the_same_command_leaves_a_finished_run_alone(call, finished):
    out, shown = finished
    before = contents(out)
    again = call("fit", out.parent / "mine.csv", "--columns", "speed,distance", *TINY, "--out", out)
    assert again[0] == 0
    assert contents(out) == before
    assert "minute" in shown
    assert "minute" not in again[1]
    assert "\nfinished before; nothing is fitted again\n" in again[1]
    assert again[1].endswith(shown[shown.index("log-likelihood of 20 held-out") :])


def test_quiet_leaves_the_warnings(call, finished):
    words = [finished[0].parent / "mine.csv", "--columns", "speed,distance", *TINY, "--quiet"]
    status, shown, error = call("fit", *words, "--out", finished[0])
    warned = virl_tf.load(finished[0]).warnings
    assert (status, shown) == (0, "")
    assert len(warned) > 0
    assert error == "".join(f"warning: {text}\n" for text in warned)


def test_another_file_is_refused_and_nothing_changes(call, finished):
    out, _ = finished
    np.save(out.parent / "other.npy", clusters(200, 2, seed=1))
    before = contents(out)
    status, _, error = call(
        "fit", out.parent / "other.npy", "--components", "3", *TINY, "--out", out
    )
    assert status == 2
    assert "another configuration" in error
    assert contents(out) == before


@pytest.fixture(scope="module")
def in_contexts(call, tmp_path_factory):
    """A run on a .csv of which a column is the context: (arguments, folder, what was shown)."""
    folder = tmp_path_factory.mktemp("contexts")
    x = clusters(120, 3)
    frame = pd.DataFrame(x, columns=["goal", "speed", "distance"]).assign(other=x[:, 0] + 1.0)
    frame.to_csv(folder / "mine.csv", index=False)
    arguments = ["fit", folder / "mine.csv", "--contexts", "goal", "--exclude", "other"]
    arguments += [*TINY, "--components", "2", "--out", folder / "out"]
    status, shown, error = call(*arguments)
    assert status == 0, error
    return arguments, folder / "out", shown


def test_columns_can_be_contexts(in_contexts):
    _, out, shown = in_contexts
    assert "120 demonstrations of dimension 2, each in a context of dimension 1, from" in shown
    result = virl_tf.load(out)
    assert (result.reward.num_contexts, result.reward.dim) == (1, 2)
    columns = result.summary["columns"]
    assert [column["name"] for column in columns] == ["goal", "speed", "distance"]
    code = shown[shown.index("import virl_tf") :]
    exec(code.replace("print(", "found = ("), names := {})
    assert names["found"].shape == (3,)
    assert f"c = [{columns[0]['mean']:.4g}]  # a context" in fit_command.snippet(out)


def test_situations_are_drawn_of_contexts(in_contexts):
    _, out, _ = in_contexts
    with np.load(out / "situations.npz") as found:
        assert found["contexts"].shape == (4, 1)
        assert (np.diff(found["contexts"][:, 0]) >= 0.0).all()
        assert found["demonstrations"].shape == (4, 20, 2)
        assert found["rewards"].shape == found["log_policy"].shape == (4, situations.RESOLUTION**2)
        rows = np.load(out / "demonstrations.npz")["train"]
        assert np.isin(found["contexts"], rows[:, :1]).all()
    assert (out / "situations.gif").stat().st_size > 10_000


@pytest.mark.slow
def test_pictures_of_contexts_are_completed_after_a_kill_between_two(in_contexts, call):
    arguments, out, _ = in_contexts
    pictures = {name: (out / name).read_bytes() for name in ("situations.gif", "training.png")}
    for name in pictures:
        (out / name).unlink()
    status, _, error = call(*arguments)
    assert status == 0, error
    assert {name: (out / name).read_bytes() for name in pictures} == pictures


@pytest.mark.slow
def test_columns_are_chosen_beside_contexts(in_contexts, call, tmp_path):
    words = [*in_contexts[0][:4], "--columns", "distance", *TINY, "--components", "2"]
    status, _, error = call(*words, "--out", tmp_path)
    assert status == 0, error
    assert virl_tf.load(tmp_path).policy.dim == 1


def test_the_share_of_a_policy_inside_of_a_support():
    policy = standard_normal_start(1, 2, 0)._replace(means=tf.zeros([1, 2], tf.float64))
    calls = []
    half = UserSupport(lambda x: (calls.append(len(x)), x[:, 0] > 0.0)[1])
    share = half.outside(policy)
    assert share == pytest.approx(0.5, abs=0.02)
    again = policy._replace(means=tf.zeros([1, 2], tf.float64))
    assert half.outside(again) == share
    assert len(calls) == 1
    assert half.outside(policy._replace(means=tf.ones([1, 2], tf.float64))) < share
    assert UserSupport(lambda x: x[:, 0] > 99.0).outside(policy) == 1.0


def test_contexts_in_which_a_support_is_true_nowhere_are_told():
    policy = conditioned(standard_normal_start(1, 3, 0), 1)
    contexts = np.linspace(-1.0, 1.0, 8)[:, None]
    support = UserSupport(lambda rows: rows[:, 0] > -0.5)
    found, count = support.closed(policy, contexts)
    np.testing.assert_array_equal(found, contexts[:2])
    assert count == 8
    assert support.outside(policy, contexts) == pytest.approx(0.25, abs=0.01)
    plan = SimpleNamespace(support=support, inference=SimpleNamespace(contexts=contexts))
    (line,) = _closed(plan, policy, ["goal, x", "y", "z"])
    assert "true at no draw of the new policy in 2 of 8 contexts, the first at" in line
    assert parse_numbers("--context", shlex.split(line.split("--context")[1][:-2])[0]) == {
        "goal, x": -1.0
    }
    plan.support = UserSupport(lambda rows: rows[:, 1] < 9.0)
    assert _closed(plan, policy, ["goal"]) == []
    plan.inference.contexts = None
    assert _closed(plan, policy, ["goal"]) == []


def test_a_policy_for_the_contexts_of_a_file(in_contexts, call, tmp_path):
    """Measured by the reward in these, where nothing was demonstrated to be likely."""
    _, run, _ = in_contexts
    column = json.loads((run / "summary.json").read_text())["columns"][0]
    goals = np.linspace(column["min"], 2.0 * column["max"] - column["min"], 30)
    frame = pd.DataFrame({"kind": ["far"] * 30, "goal": goals})
    frame.to_csv(tmp_path / "goals.csv", index=False)
    np.save(tmp_path / "goals.npy", goals[:, None])
    few = ["infer", run, "--components", "3", "--steps", "2", "--samples", "40"]
    status, shown, error = call(
        *few, "--contexts", tmp_path / "goals.csv", "--out", tmp_path / "new"
    )
    assert status == 0, error
    assert "mean reward + entropy (ELBO)" in shown
    assert " of 30 contexts were not demonstrated; the first: context goal = " in error
    summary = json.loads((tmp_path / "new" / "summary.json").read_text())
    assert summary["contexts"]["shape"] == [30, 1]
    assert set(summary["elbo"]) == {"inference_policy", "training_policy"}
    assert "were not demonstrated" in summary["warnings"][0]
    with np.load(tmp_path / "new" / "situations.npz") as found:
        assert np.isin(found["contexts"], goals).all()
    policy = load_policy(tmp_path / "new" / "policy.npz")
    assert (policy.num_components, policy.num_contexts, policy.dim) == (3, 1, 2)
    # An array has no names; the same contexts are the same command.
    same = call(*few, "--contexts", tmp_path / "goals.npy", "--out", tmp_path / "new", "--quiet")
    assert same[0] == 0, same
    np.save(tmp_path / "goals.npy", goals[::-1, None])
    status, _, error = call(
        *few, "--contexts", tmp_path / "goals.npy", "--out", tmp_path / "new", "--quiet"
    )
    assert (status, "another configuration" in error) == (2, True), error


def test_contexts_of_a_file_that_are_none(in_contexts, finished, call, tmp_path):
    _, run, _ = in_contexts
    few = ["--components", "3", "--out", tmp_path / "refused"]
    goals = tmp_path / "goals.csv"
    goals.write_text("gaol\n" + "\n".join("12345"))
    fixed = tmp_path / "fixed.csv"
    fixed.write_text("goal\n" + "2\n" * 9)
    one = tmp_path / "one.csv"
    one.write_text("goal\n2\n")
    for folder, file, more, message in (
        (run, goals, [], f"unknown column of {goals} 'goal': did you mean 'gaol'?"),
        (run, fixed, [], f"{fixed}: contexts: column 'goal' is constant (value 2)"),
        (run, tmp_path / "none.csv", [], "none.csv"),
        (run, one, [], f"{one} holds a single context; give it by --context COLUMN=NUMBER,..."),
        (run, goals, ["--context", "goal=1"], "--context is one context, --contexts a file"),
        (finished[0], goals, [], "--contexts is for rewards with contexts"),
    ):
        status, _, error = call("infer", folder, *few, "--contexts", file, *more)
        assert (status, message in error) == (2, True), error
        assert not (tmp_path / "refused").exists()


def test_policies_for_all_contexts_and_for_one(in_contexts, call, tmp_path):
    _, run, _ = in_contexts
    folder = tmp_path
    few = ["infer", run, "--components", "3", "--steps", "2", "--samples", "40"]
    (folder / "slow.py").write_text("def support(rows):\n    return rows[:, 1] < 6.0\n")
    inside = ["--support", folder / "slow.py"]
    status, shown, error = call(*few, *inside, "--out", folder / "all")
    assert status == 0, error
    assert "held-out demonstrations" in shown
    with np.load(folder / "all" / "situations.npz") as found:
        speed = np.repeat(found["axes"][0], situations.RESOLUTION)
        for rewards in found["rewards"]:
            np.testing.assert_array_equal(np.isfinite(rewards), speed < 6.0)
    policy = load_policy(folder / "all" / "policy.npz")
    assert (policy.num_components, policy.num_contexts, policy.dim) == (3, 1, 2)
    assert (folder / "all" / "situations.png").is_file()
    of_one = [*few, "--context", "goal=0.5", "--fixed"]
    status, shown, error = call(*of_one, "--out", folder / "one")
    assert status == 0, error
    assert "ELBO" in shown
    assert "warning" not in error
    assert call(*of_one, "--out", folder / "one", "--quiet") == (0, "", "")
    policy = load_policy(folder / "one" / "policy.npz")
    assert (policy.num_components, policy.num_contexts, policy.dim) == (3, 0, 2)
    summary = json.loads((folder / "one" / "summary.json").read_text())
    assert summary["context"] == [0.5]
    assert summary["elbo"]["inference_policy"] == summary["evaluations"][-1]["elbo"]
    for options, message in (
        (["--search"], "--search is not for several contexts; give one with --context."),
        (["--context", "gaol=1"], "unknown column of --context 'gaol': did you mean 'goal'?"),
        (["--context", "goal"], "--context takes COLUMN=NUMBER,..., got 'goal'"),
        (["--context", "goal=nan"], "--context: 'goal' must be a finite number"),
    ):
        status, _, error = call(*few, *options, "--out", folder / "refused")
        assert (status, message in error) == (2, True), error
        assert not (folder / "refused").exists()
    _check_a_support_and_a_temperature(call, of_one, folder)
    far = [*few, "--context", "goal=99", "--fixed", "--quiet", "--out", folder / "one"]
    status, shown, error = call(*far)
    assert (status, shown) == (2, "")
    assert "warning: context goal = 99 is outside of the demonstrated -" in error
    assert "another configuration" in error
    column = json.loads((run / "summary.json").read_text())["columns"][0]
    edge = column["max"] + 0.05 * (column["max"] - column["min"])  # near, but nobody was there
    _, _, error = call(*few, "--context", f"goal={edge}", "--fixed", "--out", folder / "one")
    assert f"warning: context goal = {edge:g} is rarer than 99 % of the demonstrated" in error
    status, _, _ = call(*few, "--context", "goal=99", "--fixed", "--out", folder / "far")
    assert status == 0
    summary = json.loads((folder / "far" / "summary.json").read_text())
    assert summary["warnings"][0].startswith("context goal = 99 is outside of the demonstrated")
    axes, policy = (
        style.read(folder / "far", "grid.npz")["axes"],
        load_policy(folder / "far" / "policy.npz"),
    )
    heaviest = policy.means[np.argmax(policy.log_weights)].numpy()
    assert (axes.min(axis=1) < heaviest).all()
    assert (heaviest < axes.max(axis=1)).all()


def _check_a_support_and_a_temperature(call, of_one, folder):
    """Both ELBOs are of what was fitted: the reward over the temperature, inside of the support."""
    where = load_policy(folder / "one" / "policy.npz").means[0, 0].numpy()
    (folder / "half.py").write_text(f"def support(x):\n    return x[:, 0] < {where}\n")
    options = ["--temperature", "0.5", "--support", folder / "half.py"]
    status, shown, error = call(*of_one, *options, "--out", folder / "half")
    assert status == 0, error
    assert "(ELBO) at temperature 0.5 inside of the support: " in shown
    run = virl_tf.load(of_one[1])
    reward, policy = run.reward.condition([0.5]), run.policy.condition([0.5])
    x = policy.sample(20_000, seed=2)
    ratio = (reward(x) / 0.5 - policy.log_prob(x)).numpy()[x[:, 0] < where]
    expected = ratio.mean() + np.log(len(ratio) / len(x))
    found = json.loads((folder / "half" / "summary.json").read_text())["elbo"]["training_policy"]
    error = 5.0 * ratio.std() / np.sqrt(2000 * len(ratio) / len(x))
    assert found == pytest.approx(expected, abs=error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine.npy", "--method", "vril"], "did you mean 'virl'"),
        (["mine.npy", "--components", "0"], "--components must be an integer >= 1"),
        (["mine.npy", "--components", "55"], "from 1 to 54"),
        (["mine.npy", "--held-out", "0.9"], "from 0 to 0.5; got 0.9"),
        (["mine.npy", "--held-out", "nan"], "from 0 to 0.5; got nan"),
        (["mine.npy", "--group", "who"], "unknown column of"),
        (["mine.npy", "--contexts", "x7"], "unknown column of"),
        (["mine.npy", "--contexts", "x0,x0"], "--contexts names a column twice"),
        (["mine.npy", "--contexts", "x0", "--exclude", "x0"], "--exclude both name 'x0'"),
        (
            ["mine.npy", "--periodic", "x0=turn"],
            "--periodic takes COLUMN=NUMBER,..., got 'x0=turn'",
        ),
        (["mine.npy", "--periodic", "x0=0"], "--periodic x0 must be a finite number > 0, got 0.0"),
        (["."], ". is a folder: give a file of demonstrations, or --trajectories if it holds a"),
        (["mine.npy", "--periodic", "x7"], "mine.npy 'x7': did you mean 'x1'?"),
        (
            ["mine.npy", "--contexts", "x0", "--periodic", "x0"],
            "--periodic: column 'x0' is a context; allowed are x1; of an angle give sine",
        ),
        (
            ["mine.npy", "--contexts", "x0", "--upper", "x1=9,x0=9"],
            "--upper: column 'x0' is a context; allowed are x1.",
        ),
        (
            ["mine.npy", "--group", "x0", "--lower", "x0=-99"],
            "--lower: 'x0' is the column of --group, which is not fitted to; allowed are x1.",
        ),
        (["mine.npy", "--lower", "x0=0,x0=1"], "--lower gives 'x0' twice"),
        (["mine.npy", "--lower", "x0"], "--lower takes COLUMN=NUMBER,..., got 'x0'"),
        (["mine.npy", "--lower", "x0=1000"], "demonstrations are outside of the bounds"),
        (["mine.npy", "--lower", "x0=1", "--upper", "x0=0"], "the lower one must be below"),
        (["mine.npy", "--lower", "x0=-99", "--periodic", "x0"], "cannot have bounds, too"),
        (["mine.npy", "--set", "network.layer_sise=8"], "did you mean 'layer_size'"),
        (["mine.npy", "--hparams", "none.yaml"], "none.yaml"),
        (["mine.npy", "--seed", "-1"], "--seed must be"),
        (["mine.npy", "--out", "setup.py"], "setup.py"),
    ],
)
def test_bad_input_is_one_clear_error(call, tmp_path, arguments, message):
    np.save(tmp_path / "mine.npy", tiny.demonstrations(n=100 if "--held-out" in arguments else 54))
    given = [str(tmp_path / a) if a == "mine.npy" else a for a in arguments]
    out = [] if "--out" in arguments else ["--out", tmp_path / "out"]
    status, shown, error = call("fit", *given, *out)
    assert status == 2
    assert message in error
    assert len(error.splitlines()) == 1
    assert "Traceback" not in shown + error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("dim", "method"),
    [
        pytest.param(1, "eim", marks=pytest.mark.slow),
        pytest.param(3, "geim", marks=pytest.mark.slow),
    ],
)
def test_other_dimensions_and_methods(call, tmp_path, dim, method):
    np.savez(tmp_path / "x.npz", a=clusters(60, dim), b=np.zeros(3))
    options = ["--array", "a", "--method", method, "--components", "2", "--held-out", "0"]
    options += ["--no-tensorboard"]
    status, shown, error = call(
        "fit", tmp_path / "x.npz", *options, *TINY, "--out", tmp_path / "out"
    )
    assert status == 0, error
    assert (tmp_path / "out" / ("reward.png" if dim == 1 else "corner.png")).is_file()
    assert not (tmp_path / "out" / "tensorboard").exists()
    assert "no rows were held out, so there is no score" in shown
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["score"] is None
    assert summary["components_reason"] == "given"
    assert (summary["bandwidth"] is None) == (method == "eim")


def test_it_says_what_the_reward_is_made_of(finished):
    out, shown = finished
    summary = json.loads((out / "summary.json").read_text())
    exponent, reward = summary["mixture_exponent"], virl_tf.load(out).reward
    assert exponent == float(reward.mixture_exponent)
    assert ("the log density of an EM mixture" in shown) == (exponent > 0.0)
    gained = summary["validation_loss"] < summary["chance_loss"]
    assert ("found nothing more" in shown) != gained


def test_it_says_what_em_found(finished, capsys):
    summary = json.loads((finished[0] / "summary.json").read_text())
    mixture = {"components": 41, "means": 21, "background": 0.01}
    said = {**summary, "mixture_exponent": 0.5, "mixture": mixture}
    fit_command.print_summary(said, Console(width=200))
    shown = capsys.readouterr().out
    assert "EM mixture: 41 Gaussians at 21 means, 1% of them wider" in shown
    plain = {"components": 21, "means": 21, "background": 0.0}
    fit_command.print_summary({**said, "mixture": plain}, Console(width=200))
    assert "EM mixture: 21 Gaussians\n" in capsys.readouterr().out


def test_codes_cannot_be_left_out_of_the_file(finished, capsys):
    said = json.loads((finished[0] / "summary.json").read_text())
    said["warnings"] = ["columns 'a_w0', 'b_w0': a straight line; drop them (--exclude a_w0,b_w0)."]
    fit_command.print_summary(said, Console(width=200), of_codes=True)
    shown = capsys.readouterr().err
    assert "a straight line; drop them." in shown
    assert "--exclude" not in shown
    assert "these columns are codes: --encoding" in shown


@pytest.mark.parametrize(("loss", "exponent"), [(1.0, 0.0), (1.5, 0.25), (1.3, 0.0)])
def test_the_last_discriminator_is_called_useless_only_where_it_is(
    finished, capsys, loss, exponent
):
    summary = json.loads((finished[0] / "summary.json").read_text())
    said = {**summary, "validation_loss": loss, "chance_loss": 1.3, "mixture_exponent": exponent}
    fit_command.print_summary(said, Console(width=200))
    shown = capsys.readouterr().out
    assert ("found nothing more" in shown) == (loss >= 1.3)
    assert ("EM mixture" in shown) == (exponent > 0.0)


def test_bounds_angles_and_groups_reach_the_fit(call, tmp_path):
    rng = np.random.default_rng(0)
    heading, speed = "heading [deg]", "speed [/s]"  # no markup for the screen
    frame = pd.DataFrame({heading: rng.normal(0.0, 20.0, 120) % 360, speed: rng.random(120)})
    frame.assign(who=[f"p{i // 6}" for i in range(120)]).to_csv(tmp_path / "x.csv", index=False)
    options = ["--periodic", f"{heading}=360", "--lower", f"{speed}=0", "--upper", f"{speed}=1"]
    options += ["--group", "who", "--components", "2", "--no-tensorboard"]
    out = tmp_path / "out [/s]"
    status, shown, error = call("fit", tmp_path / "x.csv", *options, *TINY, "--out", out)
    assert status == 0, error
    result = virl_tf.load(out)
    inside = result.reward([[10.0, 0.5], [370.0, 0.5], [-350.0, 0.5]]).numpy()
    np.testing.assert_allclose(inside, inside[0])
    assert np.isneginf(result.reward([[10.0, 1.5], [10.0, -0.5]]).numpy()).all()
    # Not cut where the demonstrations are: all of them are within a quarter turn of each other.
    with np.load(out / "demonstrations.npz") as arrays:
        both = np.concatenate([arrays["train"], arrays["test"]])
        held_out = {row[1] for row in arrays["test"]}
    assert np.ptp(both[:, 0]) < 180.0
    low, high = result.summary["columns"][0]["turn"]
    assert low <= both[:, 0].min() <= both[:, 0].max() < high == low + 360.0
    assert f"{heading} is cut at {low:g}: its values are in [{low:g}, {high:g})" in shown
    assert all(text in shown for text in (f"run folder {out}", f"│ {heading} │", f"│ {speed} "))
    assert "turn" not in result.summary["columns"][1]
    of_held_out = frame[speed].isin(held_out).to_numpy().reshape(20, 6)
    assert (of_held_out.all(axis=1) == of_held_out.any(axis=1)).all()
    assert of_held_out.sum() == 12


# --- inference on it ------------------------------------------------------------------------------


SEARCH = ["--components", "2", "--fixed", "--steps", "4", "--samples", "20"]


def test_what_one_of_several_fits_was_trained_on_is_not_held_out(tmp_path):
    """Of fits with other seeds, whose rewards are averaged."""
    rows = clusters(100, 2)
    rows[60] = rows[0]  # one of them twice
    for name, held_out in (("a", slice(0, 10)), ("b", slice(5, 20)), ("c", slice(50, 60))):
        test = np.zeros(100, bool)
        test[held_out] = True
        arrays = {"train": rows[~test], "test": rows[test]}
        (tmp_path / name).mkdir()
        save_arrays(tmp_path / name / "demonstrations.npz", arrays)
    for names, expected in (("a", range(10)), ("aa", range(10)), ("ab", range(5, 10)), ("ac", ())):
        runs = [tmp_path / name for name in names]
        train, test = own_demonstrations.train_and_test(runs)
        np.testing.assert_array_equal(test, rows[list(expected)])
        assert sorted(map(tuple, np.concatenate([train, test]))) == sorted(map(tuple, rows))


def test_a_figure_of_the_papers_tasks_is_none_of_a_fit(call, finished):
    status, _, error = call("figure", "2a", finished[0])
    assert status == 2
    assert "figure 2a is of the paper's tasks, not of your own demonstrations" in error


def test_a_new_policy_and_figure_5_of_fits(call, finished, tmp_path):
    plain = tmp_path / "plain"
    frame = pd.DataFrame(demonstrations(), columns=["speed", "distance"])
    hparams = virl_tf.load(finished[0]).config["hparams"]
    with pytest.warns(virl_tf.FitWarning):
        virl_tf.fit(frame, num_components=3, hparams=hparams, directory=plain)
    (tmp_path / "slow.py").write_text("def support(x):\n    return x[:, 0] < 6.0\n")
    options = [*SEARCH, "--support", tmp_path / "slow.py"]
    status, shown, error = call("infer", plain, *options, "--out", tmp_path / "new")
    assert status == 0, error
    with np.load(plain / "demonstrations.npz") as arrays:
        test = arrays["test"]
    inside = test[test[:, 0] < 6.0]
    assert 0 < len(inside) < 20
    left_out = f"inside of the support ({20 - len(inside)} left out)"
    assert f"of {len(inside)} held-out demonstrations {left_out}" in shown
    for name in ("policy.npz", "reward.png", "history.csv", "summary.json"):
        assert (tmp_path / "new" / name).is_file(), name
    assert (plain / "reward.png").is_file()  # what the library does not draw is drawn now
    found = json.loads((tmp_path / "new" / "summary.json").read_text())
    policy = load_policy(tmp_path / "new" / "policy.npz")
    for name, of in {"inference": policy, "training": virl_tf.load(plain).policy}.items():
        share = 1.0 - found["outside_of_support"][f"{name}_policy"]
        expected = np.mean(of.log_prob(inside)) - np.log(share)
        assert found["log_likelihood"][f"{name}_policy"] == pytest.approx(expected, abs=0.1)
    shares = [
        float(np.mean(of.sample(20_000, seed=1)[:, 0] >= 6.0))
        for of in (policy, virl_tf.load(plain).policy)
    ]
    assert list(found["outside_of_support"].values()) == pytest.approx(shares, abs=0.02)
    assert f"{100 * found['outside_of_support']['training_policy']:.1f} % of the training" in shown
    grid = style.read(tmp_path / "new", "grid.npz")
    x = np.repeat(grid["axes"][0], own_demonstrations.RESOLUTION)
    np.testing.assert_array_equal(grid["support"], x < 6.0)
    read = shown.splitlines()[-1].removeprefix("read it from Python: ")
    np.testing.assert_array_equal(eval(read, {"virl_tf": virl_tf}).means, policy.means)
    with pytest.raises(virl_tf.InputError, match=r"read it with virl_tf\.load_policy"):
        virl_tf.load(tmp_path / "new")
    status, _, error = call("figure", "5", finished[0], "--inference", tmp_path / "new")
    assert status == 2
    assert "was inferred on the runs plain, not on" in error
    drawn = ["--inference", tmp_path / "new", "--out", tmp_path / "figures"]
    status, _, error = call("figure", "5", plain, *drawn)
    assert status == 0, error
    assert (tmp_path / "figures" / "figure_5.png").is_file()
    (tmp_path / "new").rename(plain / "inference")
    assert call("record", plain, "--out", tmp_path / "records")[0] == 0
    status, _, error = call("figure", "5", tmp_path / "records" / "plain.zip", *drawn[2:])
    assert status == 0, error
    plain.rename(tmp_path / "renamed")
    status, _, error = call("figure", "5", tmp_path / "renamed", *drawn[2:])
    assert status == 0, error
    status, shown, error = call("infer", tmp_path / "renamed", *options)
    assert status == 0, error
    assert "finished before; nothing to do" in shown


def test_figure_5_shows_an_inference_on_fits_of_other_seeds(call, finished, tmp_path):
    """Whose first one held out what lies outside of its grid, and another was trained on."""
    first = shutil.copytree(finished[0], tmp_path / "first")
    with np.load(first / "demonstrations.npz") as arrays:
        rows = np.concatenate([arrays["train"], arrays["test"]])
    rows = rows[rows[:, 0].argsort()]
    save_arrays(first / "demonstrations.npz", {"train": rows[:-20], "test": rows[-20:]})
    (first / "grid.npz").unlink()
    both, new = [first, finished[0]], tmp_path / "new"
    status, _, error = call("infer", *both, *SEARCH, "--out", new)
    assert status == 0, error
    axes = (style.read(folder, "grid.npz")["axes"] for folder in (new, first, finished[0]))
    of_new, of_first, of_other = axes
    np.testing.assert_array_equal(of_new, of_first)
    assert not np.array_equal(of_first, of_other)
    status, _, error = call("figure", "5", *both, "--inference", new, "--out", tmp_path)
    assert status == 0, error


def test_a_support_true_nowhere_is_refused_and_too_few_components_are_warned_of(
    call, finished, tmp_path
):
    run = shutil.copytree(finished[0], tmp_path / "run")
    save_policy(run / "policy.npz", em_mixture(demonstrations(), 3, 0))
    text = "def support(x):\n    return x[:, 0] > 1000.0\n"
    (tmp_path / "far.py").write_text(text)
    few = ["--components", "1", *SEARCH[2:], "--support", tmp_path / "far.py"]
    status, _, error = call("infer", run, *few, "--out", tmp_path / "one")
    assert status == 2
    assert "true at none of" in error
    assert "check its units" in error
    assert "initial_policy" not in error
    (tmp_path / "far.py").write_text(text.replace(">", "<"))
    status, _, error = call("infer", run, *few, "--out", tmp_path / "one")  # mended
    assert status == 0, error
    warned = json.loads((tmp_path / "one" / "summary.json").read_text())["warnings"]
    assert warned[-1].endswith("it misses some of them; give more --components.")
    assert f"warning: {warned[-1]}\n" in error


@pytest.mark.parametrize(
    ("support", "message"),
    [
        ("none.py", "none.py cannot be read"),
        ("empty.py", "has no function 'support'"),
        ("empty.py:inside", "has no function 'inside'"),
        ("no_such_module_at_all:inside", "cannot be read"),
    ],
)
def test_a_support_that_cannot_be_read(call, finished, tmp_path, support, message):
    (tmp_path / "empty.py").write_text("")
    place = tmp_path / support if ".py" in support else support
    arguments = [*SEARCH, "--support", place, "--out", tmp_path / "new"]
    status, _, error = call("infer", finished[0], *arguments)
    assert status == 2
    assert message in error
    assert not (tmp_path / "new").exists()


def test_a_policy_nearer_to_what_is_likeliest(call, finished, tmp_path):
    few = ["infer", finished[0], "--components", "3", "--steps", "5", "--samples", "40"]
    status, shown, error = call(*few, "--temperature", "0.5", "--out", tmp_path / "new")
    assert status == 0, error
    assert "3 components at temperature 0.5" in shown
    assert "less likely" not in error  # what it is for
    summary = json.loads((tmp_path / "new" / "summary.json").read_text())
    assert summary["temperature"] == 0.5
    history = pd.read_csv(tmp_path / "new" / "history.csv")
    assert len(history) == 5  # no search
    assert np.ptp(history["effective_components"]) < 1e-3
    status, _, error = call(*few, "--temperature", "0", "--out", tmp_path / "cold")
    assert status == 2
    assert "--temperature must be a finite number > 0" in error
    assert not (tmp_path / "cold").exists()


def put_fit(folder, rows, columns, preset="own"):
    """A fit's folder as far as an inference reads it, with ten rows held out."""
    RunFolder.open(folder, {"preset": preset})
    write_json(folder / "summary.json", {"columns": [{"name": name} for name in columns]})
    save_arrays(folder / "demonstrations.npz", {"train": rows[:-10], "test": rows[-10:]})
    return folder


def test_a_context_has_the_order_of_its_columns_however_it_is_given(tmp_path):
    run = put_fit(tmp_path / "run", clusters(40, 3), ["goal", "load", "speed"])
    given = inference.InferenceRequest(1, context={"load": 2.0, "goal": 1.0})
    found = inference._context(run, SimpleNamespace(num_contexts=2), given)
    np.testing.assert_array_equal(found, [1.0, 2.0])


def test_runs_of_two_presets_have_none_in_common(tmp_path):
    names = {"a": "quick", "b": "quick", "c": "paper"}
    runs = {n: put_fit(tmp_path / n, clusters(40, 2), "xy", preset) for n, preset in names.items()}
    assert inference._preset_of([runs["a"], runs["b"]]) == "quick"
    assert inference._preset_of([runs["a"], runs["c"]]) is None


def test_two_supports_are_both_to_be_true():
    x, everywhere = tf.constant([-1.0, 0.5, 2.0]), lambda x: x > -9.0
    above, below = (lambda x: x > 0.0), (lambda x: x < 1.0)
    np.testing.assert_array_equal(inference._both(above, below)(x), [False, True, False])
    np.testing.assert_array_equal(inference._both(below, everywhere)(x), [True, True, False])
    assert inference._both(None, above) is inference._both(above, None) is above
    assert inference._both(None, None) is None


def test_several_rewards_are_averaged_and_one_is_taken_as_it_is(tmp_path):
    rows = clusters(40, 2)
    runs = [put_fit(tmp_path / name, rows, "xy") for name in "ab"]
    one, two = (make_reward([make_network(2, seed=seed)]) for seed in range(2))
    found = OwnInference(runs, [one, two]).log_prob(tf.constant(rows))
    np.testing.assert_allclose(found, (one(rows) + two(rows)) / 2.0)
    assert OwnInference(runs[:1], [one]).log_prob is one


@pytest.mark.parametrize(
    ("context", "expected"),
    [(None, ("all", "first", 3, 7)), ([0.5], ("one", "first at 0.5", 3, 7))],
)
def test_an_average_starts_where_the_first_reward_is_high(tmp_path, monkeypatch, context, expected):
    """In the one context, or in all of them."""
    rows = clusters(40, 3)
    runs = [put_fit(tmp_path / name, rows, ["goal", "x", "y"]) for name in "ab"]
    contexts = []
    for_all = lambda reward, c, *rest: contexts.append(c) or ("all", reward, *rest)  # noqa: E731
    monkeypatch.setattr(own_demonstrations, "conditional_start", for_all)
    monkeypatch.setattr(own_demonstrations, "reward_start", lambda *given: ("one", *given))

    class Named(str):
        num_contexts = 1

        def condition(self, c):
            return f"{self} at {c[0]}"

    rewards = [Named("first"), Named("second")]
    at = None if context is None else np.array(context)
    assert OwnInference(runs, rewards, at).start(rewards[0], 3, 7) == expected
    assert OwnInference(runs[:1], rewards[:1], at).start(rewards[0], 3, 7) is None
    if context is None:
        np.testing.assert_array_equal(contexts, [rows[:-10, :1]])


def test_what_an_em_mixture_has_seen_of_held_out_demonstrations_is_told(tmp_path):
    run = put_fit(tmp_path / "run", clusters(40, 2), "xy")
    lone, averaged = make_reward([]), make_reward([], mixture=make_mixture(2), mixture_exponent=0.3)
    seen = ", which the reward's EM mixture has seen since"
    for rewards, told in (([lone], ""), ([averaged], seen), ([lone, averaged], seen)):
        found = OwnInference([run] * len(rewards), rewards)
        assert found._what_is_scored == f"10 held-out demonstrations{told}"


def test_a_policy_without_a_draw_inside_counts_as_one_with_a_single_one(tmp_path):
    rows = clusters(40, 2)
    run = put_fit(tmp_path / "run", rows, "xy")
    policy = make_mixture(2)
    support = UserSupport(lambda x: x[:, 0] > 99.0)
    found = OwnInference([run], [make_reward([])], given=support)._log_prob_inside(policy)
    np.testing.assert_allclose(found, policy.log_prob(rows[-10:]) + np.log(OUTSIDE_OF))


@pytest.mark.parametrize(
    ("context", "temperature", "warned"), [(None, 1.0, 1), (None, 0.5, 0), ([0.5], 1.0, 0)]
)
def test_a_policy_that_is_meant_to_miss_demonstrations_is_not_warned_of(
    tmp_path, monkeypatch, context, temperature, warned
):
    size = 0 if context is None else 1
    run = put_fit(tmp_path / "run", clusters(410, size + 2), ["goal", "x", "y"][1 - size :])
    policy = make_mixture(2)
    reward = make_reward([])
    given = SimpleNamespace(num_contexts=size, condition=lambda c: reward)
    at = None if context is None else np.array(context)
    found = OwnInference([run], [given if size else reward], at)
    found._trained, found._warnings = lambda: policy, lambda _: ["misses"]
    monkeypatch.setattr(pictures, "draw_demonstrations", lambda *_: None)
    monkeypatch.setattr(own_demonstrations, "RESOLUTION", 5)
    evaluations = [{"step": 1, "log_likelihood": -1.0}]
    result, _ = found.finish(tmp_path, policy, evaluations, {"temperature": temperature})
    assert result["warnings"] == ["misses"] * warned


def test_a_policy_for_one_context_is_shown_beside_the_nearest_demonstrations(tmp_path):
    rng = np.random.default_rng(0)
    rows = np.hstack([rng.permutation(np.linspace(-1.0, 1.0, 410))[:, None], clusters(410, 2)])
    run = put_fit(tmp_path / "run", rows, ["goal", "x", "y"])
    asked = []
    reward = SimpleNamespace(num_contexts=1, condition=asked.append)
    found = OwnInference([run], [reward], np.array([0.5]))
    assert asked == [[0.5]]
    train = rows[:-10]
    near = np.abs(train[:, 0] - 0.5).argsort()[:20]
    np.testing.assert_array_equal(found._train, train[near, 1:])
    assert (len(found._test), found.contexts) == (0, None)


@pytest.mark.parametrize(("rows", "warned"), [(100, 1), (9, 0)])
def test_a_policy_that_misses_demonstrations_is_told_where_their_number_makes_it_sure(
    tmp_path, rows, warned
):
    run = put_fit(tmp_path / "run", clusters(40, 2), "xy")
    noise = np.resize([-1.0, 1.0, 0.0], rows)  # of 0.5 nats, whose standard deviation is 0.8
    found = OwnInference([run], [make_reward([])])
    found._trained = lambda: "trained"
    found._log_prob_inside = {"trained": 0.5 + noise, "new": 0.0 * noise}.__getitem__
    assert len(found._warnings("new")) == warned
    found._log_prob_inside = {"trained": 0.0 * noise, "new": 0.5 + noise}.__getitem__
    assert found._warnings("new") == []


@pytest.mark.parametrize("worse", [True, False])
def test_a_new_policy_in_contexts_that_is_worse_than_the_training_policy_is_told(
    tmp_path, monkeypatch, worse
):
    run = put_fit(tmp_path / "run", clusters(410, 3), ["goal", "x", "y"])
    monkeypatch.setattr(own_demonstrations, "RESOLUTION", 5)
    monkeypatch.setattr(pictures, "draw_demonstrations", lambda *_: None)
    policy = make_mixture(2)
    reward = SimpleNamespace(num_contexts=1, condition=lambda c: make_reward([]))
    found = OwnInference([run], [reward], np.array([0.5]))
    found._trained = lambda: "trained"
    of_new = -1.5 if worse else -1.01
    found._elbo = lambda one, *_: Measured(-1.0 if one == "trained" else of_new, 0.1, 1.0)
    result, _ = found.finish(tmp_path, policy, [], {"temperature": 1.0})
    assert result["warnings"] == ([own_demonstrations.LOWER] if worse else [])


def test_an_average_without_a_mixture_is_no_start_for_low_temperatures():
    lone, told = make_reward([]), make_reward([], mixture=make_mixture(2))
    _check_shares([told, told], None)
    _check_shares([lone], None)
    with pytest.raises(
        virl_tf.InputError, match="the rewards of these runs carry none; give one run"
    ):
        _check_shares([lone, lone], None)


MIXED = {"mixture": make_mixture(2), "mixture_exponent": 0.3}


def planned(monkeypatch, folder, rewards, **asked):
    """What is to be done on such rewards, of which only some attributes count."""
    rewards_of = iter(rewards)
    monkeypatch.setattr(RunFolder, "reward", lambda _: next(rewards_of))
    monkeypatch.setattr(inference, "check_same_task", lambda _: None)
    monkeypatch.setattr(inference, "inference_of", lambda *_: None)
    for name, steps in {"AFTER_SEARCH": 30, "KEPT_SHARES": 60, "FIXED": 300}.items():
        monkeypatch.setattr(inference, name, SimpleNamespace(num_steps=steps))
    monkeypatch.setattr(inference, "FIXED_STEPS", 400)
    monkeypatch.setattr(inference, "FIXED_SAMPLES", 100)
    runs = [put_fit(folder / str(i), clusters(40, 2), "xy") for i in range(len(rewards))]
    request = inference.InferenceRequest(3, seed=5, **asked)
    return inference._planned(runs, request, folder / "out", Console(quiet=True))


@pytest.mark.parametrize(
    ("runs", "mixed", "asked", "search", "steps", "samples"),
    [
        (1, False, {}, True, 30, None),
        (1, True, {}, True, 30, None),
        (1, True, {"support": True}, None, 60, None),  # it starts at the reward's draws inside
        (1, False, {"support": True}, True, 30, None),
        (2, True, {"support": True}, True, 30, None),
        (2, True, {"temperature": 0.5}, None, 60, None),
        (1, True, {"search": True, "support": True}, True, 30, None),
        (1, True, {"search": False, "support": True}, False, 400, 100),
        (1, True, {"search": False, "steps": 7, "samples": 9}, False, 7, 9),
    ],
)
def test_which_components_are_searched_for_and_how_long(
    tmp_path, monkeypatch, runs, mixed, asked, search, steps, samples
):
    reward = make_reward([], **(MIXED if mixed else {}))
    if "support" in asked:
        (tmp_path / "inside.py").write_text("def support(x):\n    return x[:, 0] > 0.0\n")
        asked = {**asked, "support": str(tmp_path / "inside.py")}
    plan = planned(monkeypatch, tmp_path, [reward] * runs, **asked)
    config = plan.config
    assert (plan.search, config["steps"], config["samples"]) == (search, steps, samples)
    assert (config["components"], config["seed"]) == (3, 5)
    searched = plan.fitting["search"]
    assert searched is False if search is False else searched == inference.SEARCH


def test_all_that_changes_a_policy_tells_commands_apart(tmp_path, monkeypatch):
    for name in ("above", "below"):
        sign = {"above": ">", "below": "<"}[name]
        (tmp_path / f"{name}.py").write_text(f"def support(x):\n    return x[:, 0] {sign} 0.0\n")
    fixed = {"search": False, "steps": 9, "samples": 9}
    changes = [{}, {"search": True}, {"steps": 8}, {"samples": 8}, {"temperature": 0.5}]
    changes += [{"support": str(tmp_path / f"{name}.py")} for name in ("above", "below")]
    changes.append({"obstacles": 0.5})
    found = [
        planned(monkeypatch, tmp_path, [make_reward([])], **{**fixed, **change}).config
        for change in changes
    ]
    assert all(one != other for one, other in itertools.combinations(found, 2))


@pytest.mark.parametrize(("temperature", "search"), [(1.0, False), (0.5, None)])
def test_an_average_in_all_contexts_needs_no_mixture(tmp_path, monkeypatch, temperature, search):
    rewards = [SimpleNamespace(num_contexts=1, mixture=make_reward([]).mixture)] * 2
    plan = planned(monkeypatch, tmp_path, rewards, temperature=temperature)
    assert (plan.search, plan.config["steps"], plan.config["samples"]) == (search, 300, None)


@pytest.mark.parametrize(("steps", "every"), [(400, 50), (50, 50), (30, 30), (120, 120)])
def test_a_fit_has_the_commands_seed_and_is_evaluated_at_its_end(monkeypatch, steps, every):
    given, policy = {}, make_mixture(2)

    def fit(*_, callback, **options):
        given.update(options)
        callback(steps, policy)
        return PolicyResult(policy, pd.DataFrame(index=range(steps)))

    monkeypatch.setattr(inference, "fit_policy", fit)
    start = lambda reward, components, seed: ("start", components, seed)  # noqa: E731
    task = SimpleNamespace(log_prob=None, support=None, start=start, measure=lambda _: {"kl": 1.0})
    config = {"components": 2, "steps": steps, "seed": 5, "samples": 40}
    plan = inference.Plan(task, make_reward([]), None, None, False, 0.5, config)
    _, evaluations = inference._fit(plan)
    assert evaluations == [{"step": steps, "kl": 1.0}]
    assert given["callback_every"] == every
    assert (given["seed"], given["initial_policy"]) == (5, ("start", 2, 5))
    assert (given["num_steps"], given["samples_per_component"]) == (steps, 40)
    assert (given["search"], given["temperature"], given["support"]) == (False, 0.5, None)


@pytest.mark.parametrize("contexts", [None, np.zeros((3, 1))])
def test_only_of_the_users_own_support_units_are_to_be_checked(monkeypatch, contexts):
    def fit(*_, **__):
        raise NowhereInsideError(70)

    monkeypatch.setattr(inference, "fit_policy", fit)
    task = SimpleNamespace(log_prob=None, support=None, start=print, contexts=contexts)
    config = {"components": 2, "steps": 1, "seed": 5, "samples": 40}
    plan = inference.Plan(task, make_reward([]), None, None, False, 1.0, config)
    with pytest.raises(NowhereInsideError):
        inference._fit(plan)
    plan = plan._replace(support=UserSupport(lambda x: x[:, 0] > 0.0))
    rows = "" if contexts is None else "; it sees rows [c, x]"
    said = f"true at none of 70 draws of the reward; check its units{rows}."
    with pytest.raises(virl_tf.InputError, match=f"{re.escape(said)}$"):
        inference._fit(plan)


@pytest.mark.parametrize("made", [[], ["policy.npz"]])
def test_an_error_leaves_no_configuration_where_nothing_was_made(tmp_path, made):
    for name in ("config.yaml", ".lock", *made):
        (tmp_path / name).touch()
    with pytest.raises(KeyboardInterrupt), inference._nothing_left_by_errors(tmp_path):
        raise KeyboardInterrupt
    assert (tmp_path / "config.yaml").exists() == bool(made)


def test_every_doubt_of_an_inference_is_shown_and_kept(tmp_path, monkeypatch):
    run = put_fit(tmp_path / "run", clusters(40, 2), "xy")
    save_policy(run / "policy.npz", make_mixture(2))
    policy = make_mixture(3)
    result = PolicyResult(policy, pd.DataFrame({"elbo": [1.0]}), ("it rose",))
    monkeypatch.setattr(inference, "_fit", lambda _: (result, []))
    monkeypatch.setattr(inference, "_closed", lambda *_: ["closed"])
    shown = []
    monkeypatch.setattr(inference, "warn", lambda text, _: shown.append(text))
    monkeypatch.setattr(inference, "_outside", lambda *_: {"inference": 0.1, "training": 0.2})
    finish = lambda *_: ({"warnings": ["misses"]}, "found")  # noqa: E731
    task = SimpleNamespace(finish=finish)
    support = UserSupport(lambda x: x[:, 0] > 0.0)
    config = {"steps": 1, "samples": 1}
    plan = inference.Plan(task, None, None, support, False, 1.0, config, ("a guess",))
    out = tmp_path / "out"
    out.mkdir()
    inference._infer(plan, [run], out, Console(quiet=True))
    kept = json.loads((out / "summary.json").read_text())["warnings"]
    assert kept == ["a guess", "it rose", "misses", "closed"]
    assert shown == kept[1:]  # the first was, before the fit


def test_temperatures_and_contexts_are_of_fits(tmp_path):
    run, fit = tmp_path / "run", put_fit(tmp_path / "fit", clusters(40, 2), "xy")
    RunFolder.open(run, {"task": "experts"})
    assert inference._temperature(run, 1.0) == 1.0
    assert inference._temperature(fit, 0.5) == 0.5
    with pytest.raises(virl_tf.InputError, match="--temperature is for fits to your own"):
        inference._temperature(run, 0.5)
    reward = SimpleNamespace(num_contexts=1)
    with pytest.raises(virl_tf.InputError, match="--context is for fits to your own"):
        inference._context(run, reward, inference.InferenceRequest(1, context={"goal": 1.0}))


def test_obstacles_are_of_tasks(call, finished, tmp_path):
    arguments = [*SEARCH, "--obstacles", "0.3", "--out", tmp_path / "new"]
    status, _, error = call("infer", finished[0], *arguments)
    assert status == 2
    assert "use --support" in error


def test_files_of_a_run_that_was_killed_before_its_pictures_are_completed(call, finished, tmp_path):
    out, _ = finished
    summary = (out / "summary.json").read_text()
    for name in ("grid.npz", "reward.png"):
        (out / name).unlink()
    assert (
        call("fit", out.parent / "mine.csv", "--columns", "speed,distance", *TINY, "--out", out)[0]
        == 0
    )
    assert (out / "reward.png").is_file()
    assert (out / "summary.json").read_text() == summary
    assert style.read(out, "grid.npz")["axes"].shape == (2, own_demonstrations.RESOLUTION)


@pytest.mark.parametrize(("value", "warned"), [(99.1, 0), (110.9, 0), (98.9, 1), (111.1, 1)])
def test_a_context_a_tenth_of_their_span_outside_is_no_guess(value, warned):
    columns = [{"name": "goal", "min": 100.0, "max": 110.0}]
    assert len(far_away(np.array([value]), columns)) == warned


def test_a_curve_is_normalised_inside_of_the_users_support(tmp_path, monkeypatch):
    x = clusters(200, 1)
    middle = float(np.median(x))
    policy = em_mixture(x, 2, 0)
    support = lambda points: points[:, 0] > middle  # noqa: E731
    arrays = own_demonstrations.grid_arrays(policy.log_prob, policy, x, support)
    save_arrays(tmp_path / "demonstrations.npz", {"train": x, "test": x[:0]})
    save_arrays(tmp_path / "grid.npz", arrays)
    drawn = []
    monkeypatch.setattr(pictures, "save", lambda figure, _: drawn.append(figure.axes[0]))
    draw_demonstrations(tmp_path, ["speed"])
    axis, density = drawn[0].lines[0].get_data()
    assert (density[axis <= middle] == 0.0).all()
    assert (0.5 * (density[1:] + density[:-1]) * np.diff(axis)).sum() == pytest.approx(1.0)
    labels = [text.get_text() for text in drawn[0].get_legend().get_texts()]
    assert labels[-2:] == ["new policy under --support", "outside of the support"]


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("least", [2.0, 1e9])
@pytest.mark.filterwarnings("error:invalid value:RuntimeWarning")
def test_colours_are_nats_below_what_is_highest_inside_of_the_users_support(
    tmp_path, monkeypatch, dim, least
):
    """Of which the highest mode, at 0, is outside, or all."""
    x = clusters(600, dim)
    policy, support = em_mixture(x, 3, 0), lambda points: points[:, 0] > least
    reward = lambda points: policy.log_prob(points) - 30.0 * points[:, 0]  # noqa: E731
    arrays = own_demonstrations.grid_arrays(reward, policy, x, support)
    save_arrays(tmp_path / "demonstrations.npz", {"train": x, "test": x[:0]})
    save_arrays(tmp_path / "grid.npz", arrays)
    save_policy(tmp_path / "policy.npz", policy)
    drawn = []
    monkeypatch.setattr(pictures, "save", lambda figure, _: drawn.append(figure))
    draw_demonstrations(tmp_path, ["speed", "distance", "angle"][:dim])
    plt.close(drawn[0])
    panels = drawn[0].axes
    inside = np.asarray(arrays["support"])
    if dim == 2:
        nats = np.asarray(panels[0].collections[0].get_array())
        nats = nats.reshape(own_demonstrations.RESOLUTION, -1).T.ravel()
        assert (nats[~inside] == -style.DEPTH).all()
        nats = nats[inside]
    else:
        grey, coloured = panels[1].collections
        assert len(grey.get_offsets()) == (~inside).sum() > 0
        nats = np.asarray(coloured.get_array())
    assert len(nats) == inside.sum()
    assert (nats == 0.0).sum() == inside.any()


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_two_dollars_in_a_name_are_no_formula(tmp_path, dim):
    """Which was an error after the fit."""
    x, names = clusters(100, dim), ["${x}_${y}", "in US$ (100% of A$)", "$_$"][:dim]
    policy = em_mixture(x, 1, 0)
    save_arrays(tmp_path / "demonstrations.npz", {"train": x, "test": x[:0]})
    save_policy(tmp_path / "policy.npz", policy)
    arrays = own_demonstrations.grid_arrays(policy.log_prob, policy, x)
    save_arrays(tmp_path / "grid.npz", arrays)
    draw_demonstrations(tmp_path, names, f"{names[0]} = 1")
    assert len(list(tmp_path.glob("*.png"))) == 1
    given = conditioned(em_mixture(clusters(100, dim + 1), 1, 0), 1)
    rows = clusters(100, dim + 1)
    own_demonstrations._draw_situations(tmp_path, given.log_prob, given, rows, ["$^$", *names])
    assert (tmp_path / "situations.gif").is_file()
