"""`python -m experiments judge`: the reward beside EM, kernels and a flow, on rows kept back."""

import shutil
import warnings
from types import SimpleNamespace

import virl_tf
from virl_tf.conditional import conditioned
from virl_tf.demonstrations import Data
from virl_tf.domain import make_domain
from virl_tf.em.by_bic import bic_mixture
from virl_tf.em.em import Covariances, em_mixture
from virl_tf.kde import fit_kde
from virl_tf.mixture import gaussian, moments
from virl_tf.numerics import numpy_seed, split_seed
from virl_tf.persistence.files import save_arrays
from virl_tf.splitting import random_rows

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy import stats

from experiments import flow
from experiments.evaluation import judged
from experiments.figures import judged as figure_of_judged
from experiments.figures.judged import _pairs
from experiments.own_data import judge_command
from experiments.own_data.demonstration_files import Demonstrations
from tests import tiny
from tests.shared import contents, make_reward

pytestmark = pytest.mark.usefixtures("quick")

TINY = [*tiny.FIT_WORDS, "--set", "loop.min_gain=null"]
OUTCOME = """
import numpy as np

def outcome(x, kept_back):
    assert x.shape[1:] == kept_back.shape[1:] and isinstance(x, np.ndarray)
    return {"reach": np.abs(x).max(), "inside[/m]": np.mean(x <= kept_back.max()), "axes": x.ndim}
"""
REFERENCES = ["EM by BIC", "EM, 2", "EM tied, 2", "KDE"]
REFERENCES += ["flow"] if flow.flow_is_installed() else []


def rows_file(folder):
    """Two clusters in 2-D, and a column that tells eight persons apart."""
    frame = pd.DataFrame(tiny.demonstrations(80), columns=["speed", "distance"])
    frame.assign(person=np.arange(80) // 10).to_csv(folder / "mine.csv", index=False)
    (folder / "outcome.py").write_text(OUTCOME)
    return folder / "mine.csv"


def command(folder, *options, splits=2):
    words = ["judge", folder / "mine.csv", "--group", "person", "--components", "2", *TINY]
    return [*words, "--splits", splits, "--outcome", folder / "outcome.py", *options]


@pytest.fixture(scope="module")
def finished(call, tmp_path_factory):
    """(folder of the file, folder of the result, what was shown)."""
    folder = tmp_path_factory.mktemp("judge")
    rows_file(folder)
    status, shown, error = call(*command(folder, "--out", folder / "out"))
    assert status == 0, error
    return folder, folder / "out", shown


def kept_and_train(folder, out, number=0):
    """Rows of a split that were kept back, and those that were fitted to."""
    rows = pd.read_csv(folder / "mine.csv")
    with np.load(out / f"split-{number}" / "demonstrations.npz") as arrays:
        train = arrays["train"]
        assert len(arrays["test"]) == 0
    fitted = rows["speed"].isin(train[:, 0])
    assert set(rows["person"][fitted]).isdisjoint(rows["person"][~fitted])
    return rows[["speed", "distance"]][~fitted].to_numpy(), train


def row_of(out, density, number=0):
    table = pd.read_csv(out / "judge.csv", float_precision="round_trip")
    return table[(table["density"] == density) & (table["split"] == number)].iloc[0]


def test_the_table_has_a_row_per_split_and_density(finished):
    _, out, shown = finished
    table = pd.read_csv(out / "judge.csv")
    assert list(table.columns) == [*judged.COLUMNS, "reach", "inside[/m]", "axes"]
    densities = ["kept back", "reward", "policy, 2", "policy, 2, temperature 0.5", *REFERENCES]
    assert list(table["density"]) == 2 * densities
    assert list(table["split"]) == [0] * len(densities) + [1] * len(densities)
    assert (table["rows"] == 10).all()  # of 16 the one person who fits
    assert all(name in shown for name in [*densities, "inside[/m]"])  # no markup
    assert judged.verdict(table, 0.2) in shown
    assert (flow.MISSING in shown) != flow.flow_is_installed()


def test_every_likelihood_is_that_of_the_density_itself(finished):
    folder, out, _ = finished
    test, train = kept_and_train(folder, out)
    result = virl_tf.load(out / "split-0")
    em = bic_mixture(train, numpy_seed(0, 0, "EM"))
    people = np.repeat(np.arange(7), 10)
    kde = fit_kde(train, "held_out", "relative", numpy_seed(0, 0, "bandwidth"), people)
    for name, density in (("EM by BIC", em), ("policy, 2", result.policy), ("KDE", kde)):
        values = np.asarray(density.log_prob(test))
        row = row_of(out, name)
        assert row["log_likelihood"] == pytest.approx(values.mean(), rel=1e-9)
        assert np.isnan(row["standard_error"])  # they are one person's
    behind = row_of(out, "reward")["log_likelihood"] - row_of(out, "KDE")["log_likelihood"]
    assert row_of(out, "KDE")["reward_ahead"] == pytest.approx(behind)


def test_the_reward_is_normalised(finished):
    """By a sum over a fine grid."""
    folder, out, _ = finished
    test, train = kept_and_train(folder, out)
    reward = virl_tf.load(out / "split-0").reward
    axes = [np.linspace(x.min() - 4 * x.std(), x.max() + 4 * x.std(), 300) for x in train.T]
    grid = np.stack(np.meshgrid(*axes), axis=-1)
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    log_z = np.log(np.exp(reward(grid)).sum() * cell)
    found = row_of(out, "reward")
    expected = float(np.mean(reward(test))) - log_z
    assert found["log_likelihood"] == pytest.approx(expected, abs=0.05)
    assert 0.01 < found["effective_share"] <= 1.0


def test_outcomes_are_of_the_people_and_of_draws(finished):
    folder, out, _ = finished
    test, _ = kept_and_train(folder, out)
    people = row_of(out, "kept back")
    found = (people["reach"], people["inside[/m]"], people["axes"])
    assert found == (np.abs(test).max(), 1.0, 2.0)
    assert np.isnan(people["log_likelihood"])
    em = bic_mixture(kept_and_train(folder, out)[1], numpy_seed(0, 0, "EM"))
    draws = em.sample(judged.DRAWS, split_seed(0, 0, "draws of EM by BIC"))
    assert row_of(out, "EM by BIC")["reach"] == pytest.approx(np.abs(draws).max())


def test_the_picture_shows_people_and_draws(finished):
    _, out, _ = finished
    picture = np.asarray(Image.open(out / "judge.png").convert("RGB")).reshape(-1, 3)
    assert len(np.unique(picture, axis=0)) > 50
    with np.load(out / "judge.npz") as arrays:
        shown = {name: arrays[name].shape for name in arrays.files}
    titles = ["demonstrations", "reward's draws", "policy", "EM by BIC"]
    assert shown == {**dict.fromkeys(titles, (80, 2)), "columns": (2,)}


@pytest.mark.slow
def test_a_size_that_is_chosen_is_in_no_name(call, tmp_path):
    """It may be another one in the next split."""
    rows_file(tmp_path)
    arguments = ["judge", tmp_path / "mine.csv", "--exclude", "person", *TINY, "--splits", "1"]
    status, shown, error = call(*arguments, "--out", tmp_path / "out")
    assert status == 0, error
    table = pd.read_csv(tmp_path / "out" / "judge.csv")
    assert list(table.columns) == judged.COLUMNS  # no outcome was asked for
    names = ["kept back", "reward", "policy", "EM by BIC", "EM", "EM tied", "KDE"]
    assert list(table["density"])[:7] == names
    assert "of 1 splits" in shown


# --- stopped, done again, refused -----------------------------------------------------------------


def test_a_killed_command_goes_on_to_the_same_table(call, finished, tmp_path, monkeypatch):
    folder, out, _ = finished

    def kill(*_):
        raise KeyboardInterrupt

    mine, whole = shutil.copytree(out, tmp_path / "mine"), (out / "judge.csv").read_bytes()
    lines = whole.splitlines(keepends=True)
    first = b"".join(lines[: 1 + len(lines) // 2])  # the names, and the first of two splits
    (mine / "judge.csv").write_bytes(first)
    shutil.rmtree(mine / "split-1")
    status, _, error = call(*command(folder, "--out", mine, splits=1))
    assert status == 0, error
    assert (mine / "judge.csv").read_bytes() == first
    with monkeypatch.context() as patch:
        patch.setattr(judge_command, "reference_fits", kill)
        assert call(*command(folder, "--out", mine))[0] == 130
    assert (mine / "judge.csv").read_bytes() == first
    monkeypatch.setattr(judge_command, "FEW_EFFECTIVE", 1.1)
    status, shown, error = call(*command(folder, "--out", mine, "--quiet"))
    assert (status, shown) == (0, ""), error
    assert (mine / "judge.csv").read_bytes() == whole
    assert "warning: split 1: " in error
    assert "are effective: neither is worth much" in error


def test_the_same_command_leaves_a_finished_folder_alone(call, finished):
    folder, out, shown = finished
    before = contents(out)
    status, again, error = call(*command(folder, "--out", out))
    assert status == 0, error
    assert contents(out) == before
    assert again.endswith(shown[shown.index("effective share") :])


def test_another_outcome_takes_the_fits_that_there_are(call, finished, tmp_path, monkeypatch):
    folder, out, _ = finished
    whole, mine = (out / "judge.csv").read_bytes(), shutil.copytree(out, tmp_path / "mine")
    # A refit would have the same bytes.
    monkeypatch.setattr("virl_tf.irl.step", lambda *_: pytest.fail("fitted anew"))
    words = [*command(folder, "--out", mine)]
    words[words.index(folder / "outcome.py")] = other = tmp_path / "outcome.py"
    other.write_text(OUTCOME + "# corrected")
    status, _, error = call(*words)
    assert status == 2
    assert "has rows by another --outcome; remove it, and all is measured anew" in error
    (mine / "judge.csv").unlink()
    status, _, error = call(*words)
    assert status == 0, error
    assert (mine / "judge.csv").read_bytes() == whole


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seed", "1"], "another configuration (seed"),
        (["--keep-back", "0.3"], "another configuration (keep_back"),
        (["--components", "3"], "another configuration (components"),
    ],
)
def test_another_configuration_is_refused(call, finished, options, message):
    folder, out, _ = finished
    before = contents(out)
    status, _, error = call(*command(folder, *options, "--out", out))
    assert (status, len(error.splitlines())) == (2, 1), error
    assert message in error
    assert contents(out) == before


def test_a_damaged_table_is_refused(call, finished):
    folder, out, _ = finished
    whole = (out / "judge.csv").read_text()
    try:
        for text in ("density\nreward\n", whole.replace("0,reward,10", "0,reward,x")):
            (out / "judge.csv").write_text(text)
            status, _, error = call(*command(folder, "--out", out))
            assert status == 2
            assert "is not a table of judge" in error
    finally:
        (out / "judge.csv").write_text(whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep-back", "0"], "no rows to measure on"),
        (["--keep-back", "0.9"], "from 0 to 0.5"),
        (["--keep-back", "0.1"], "keeps 8 of 80 rows in split 0; at least 10 are needed"),
        (["--components", "65"], "at most one per row to fit to, 64"),
        (["--components", "0"], "--components must be an integer >= 1"),
        (["--columns", "speed,colour"], "colour"),
        (["--group", "team"], "unknown column"),
        (["--contexts", "colour"], "unknown column"),
        (["--lower", "speed=0"], "outside"),
        (["--encoding", "promp"], "--encoding is for --trajectories"),
        (["--outcome", "DIR/empty.py"], "has no function 'outcome'"),
        (["--outcome", "DIR/wrong.py:listed"], "must return {name: number}, got [1.0]"),
        (["--outcome", "DIR/wrong.py:text"], "'reach' is 'far'"),
        (["--outcome", "DIR/wrong.py:array"], "'reach' is an array of shape (2,)"),
        (["--outcome", "DIR/wrong.py:taken"], "other names than the table's own; got 'rows'"),
        (["--outcome", "DIR/wrong.py:nothing"], "got {}"),
        (["--seed", "-1"], "--seed must be"),
        (["--seed", f"{2**63 - 1}"], "--seed of the last split must be"),
    ],
)
def test_wrong_input_is_one_line_before_any_work(call, tmp_path, options, message):
    rows_file(tmp_path)
    (tmp_path / "empty.py").write_text("")
    wrong = {"listed": "[1.0]", "text": "{'reach': 'far'}", "array": "{'reach': x[0]}"}
    wrong |= {"taken": "{'rows': 1}", "nothing": "{}"}
    lines = [f"def {name}(x, kept_back):\n    return {value}\n" for name, value in wrong.items()]
    (tmp_path / "wrong.py").write_text("\n".join(lines))
    given = [text.replace("DIR", str(tmp_path)) for text in options]
    arguments = ["judge", tmp_path / "mine.csv", "--exclude", "person", *TINY]
    status, _, error = call(*arguments, *given, "--out", tmp_path / "out")
    assert (status, len(error.splitlines())) == (2, 1), error
    assert message in error
    assert not (tmp_path / "out").exists()


# --- trajectories ---------------------------------------------------------------------------------


def test_paths_are_measured_and_drawn_as_paths(call, tmp_path):
    rng, s = np.random.default_rng(0), np.linspace(0.0, 1.0, 15)[:, None]
    aside = rng.choice([-1.0, 1.0], (60, 1, 1)) * rng.normal(0.3, 0.03, (60, 1, 1))
    paths = s * [1.0, 1.0] + aside * np.sin(np.pi * s) * [1.0, -1.0]
    np.save(tmp_path / "paths.npy", paths)
    (tmp_path / "outcome.py").write_text(OUTCOME)
    options = ["--trajectories", "--components", "2,3", "--splits", "1", *TINY]
    options += ["--outcome", tmp_path / "outcome.py", "--out", tmp_path / "out"]
    options += ["--encoding", "waypoints", "--encoding-size", "3"]
    status, _, error = call("judge", tmp_path / "paths.npy", *options)
    assert status == 0, error
    assert "a straight line" in error
    assert "--exclude" not in error  # no column of the file
    table = pd.read_csv(tmp_path / "out" / "judge.csv")
    assert (table["axes"] == 3.0).all()
    assert {"policy, 2", "policy, 3", "EM, 3", "EM tied, 3"} <= set(table["density"])
    assert (tmp_path / "out" / "split-0" / "policy-3.npz").is_file()
    assert virl_tf.load_encoding(tmp_path / "out" / "encoding.npz").num_steps == 15
    with np.load(tmp_path / "out" / "judge.npz") as arrays:
        assert arrays["demonstrations"].shape == arrays["reward's draws"].shape == (60, 15, 2)
        np.testing.assert_array_equal(arrays["columns"], ["x0", "x1"])
    assert (tmp_path / "out" / "judge.png").is_file()
    written = (tmp_path / "out" / "encoding.npz").stat().st_mtime_ns
    assert call("judge", tmp_path / "paths.npy", *options)[0] == 0
    assert (tmp_path / "out" / "encoding.npz").stat().st_mtime_ns == written
    status, _, error = call("judge", tmp_path / "paths.npy", *options, "--group", "x0")
    assert (status, "--group is for tables" in error) == (2, True)


# --- contexts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "num_contexts", "pairs"),
    [
        (2, 1, [(0, 1)]),
        (3, 1, [(1, 2), (0, 1), (0, 2)]),
        (4, 2, [(2, 3), (0, 2), (1, 3)]),
        (6, 5, [(0, 5), (1, 5), (2, 5)]),
        (5, 0, [(0, 1), (2, 3)]),
    ],
)
def test_the_picture_shows_what_is_done_over_the_contexts(width, num_contexts, pairs):
    assert _pairs(width, False, num_contexts) == pairs


def test_the_picture_says_in_which_contexts_draws_are(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(20, 3))
    arrays = {"demonstrations": x, "policy": x, "columns": np.array(["goal", "a", "b"])}
    save_arrays(tmp_path / "judge.npz", {**arrays, "contexts": np.array(["goal"])})
    shown = []
    monkeypatch.setattr(figure_of_judged, "save", lambda figure, path: shown.append(figure))
    figure_of_judged.draw_judged(tmp_path)
    assert shown[0].get_suptitle().startswith("given goal: draws are in the contexts of the rows")
    assert [axes.get_xlabel() for axes in shown[0].axes[::2]] == ["a", "goal", "goal"]
    save_arrays(tmp_path / "judge.npz", arrays)
    figure_of_judged.draw_judged(tmp_path)
    assert shown[1].get_suptitle() == "1 more column is not shown"


@pytest.mark.parametrize(
    ("width", "paths", "said"),
    [
        (1, False, ""),
        (2, False, ""),
        (5, False, "1 more column is not shown"),
        (9, False, "3 more columns are not shown"),
        (2, True, ""),
        (5, True, "2 more columns are not shown"),
    ],
)
def test_the_picture_says_how_many_columns_it_leaves_out(tmp_path, monkeypatch, width, paths, said):
    x = np.random.default_rng(0).normal(size=(20, 4, width) if paths else (20, width))
    shown = []
    monkeypatch.setattr(figure_of_judged, "save", lambda figure, path: shown.append(figure))
    times = np.arange(4.0) if paths else np.zeros(0)
    figure_of_judged.draw_side_by_side(tmp_path, {"policy": x}, list("abcdefghi")[:width], times)
    assert shown[0].get_suptitle() == said
    figure_of_judged.plt.close("all")


def test_names_of_columns_stand_in_lines_as_they_are(tmp_path, monkeypatch):
    """A formula between two dollars was none, and an error after all fits."""
    x, price = np.random.default_rng(0).normal(size=(20, 2)), "in US$ (100% of A$)"
    names = [f"{price} per month of the year before", f"{price}, {price}, {price}"]
    arrays = {"demonstrations": x, "policy": x, "columns": np.array(names)}
    save_arrays(tmp_path / "judge.npz", arrays)
    figure_of_judged.draw_judged(tmp_path)
    assert (tmp_path / "judge.png").is_file()
    shown = []
    monkeypatch.setattr(figure_of_judged, "save", lambda figure, path: shown.append(figure))
    figure_of_judged.draw_judged(tmp_path)
    shown[0].draw_without_rendering()
    left, right = shown[0].axes
    assert left.get_xlabel().replace("\n", " ") == names[0].replace("$", r"\$")
    assert left.xaxis.label.get_window_extent().x1 < right.xaxis.label.get_window_extent().x0
    assert left.yaxis.label.get_window_extent().y0 >= 0.0
    figure_of_judged.plt.close("all")


def test_draws_outside_of_the_picture_make_no_others_denser(tmp_path, monkeypatch):
    x = np.linspace(0.0, 1.0, 100)[:, None]
    arrays = {"demonstrations": x, "policy": np.where(x < 0.5, x, 100.0)}
    save_arrays(tmp_path / "judge.npz", {**arrays, "columns": np.array(["speed"])})
    shown = []
    monkeypatch.setattr(figure_of_judged, "save", lambda figure, path: shown.append(figure))
    figure_of_judged.draw_judged(tmp_path)
    areas = [sum(b.get_height() * b.get_width() for b in a.patches) for a in shown[0].axes]
    np.testing.assert_allclose(areas, [1.0, 0.5])
    figure_of_judged.plt.close("all")


@pytest.mark.slow
def test_columns_can_be_contexts(call, tmp_path):
    """All densities are those of the other columns given these, draws are in kept-back contexts."""
    rng = np.random.default_rng(0)
    goal = rng.uniform(-1.0, 1.0, 120)
    speed = 3.0 * goal + 0.3 * rng.standard_normal(120)
    frame = pd.DataFrame({"speed": speed, "goal": goal})
    frame.to_csv(tmp_path / "mine.csv", index=False)
    (tmp_path / "outcome.py").write_text(OUTCOME_OF_ROWS)
    words = ["judge", tmp_path / "mine.csv", "--contexts", "goal", "--components", "1,2", *TINY]
    words += ["--splits", "1", "--outcome", tmp_path / "outcome.py", "--out", tmp_path / "out"]
    status, shown, error = call(*words)
    assert status == 0, error
    assert "120 demonstrations of dimension 1 given goal from" in shown
    table = pd.read_csv(tmp_path / "out" / "judge.csv").set_index("density")
    names = ["kept back", "reward", "policy, 1", "policy, 2", "EM by BIC", "EM, 1", "EM tied, 1"]
    assert {*names, "EM, 2", "EM tied, 2", "KDE"} <= set(table.index)
    assert (table["goals"] == table.loc["kept back", "goals"]).all()
    result = virl_tf.load(tmp_path / "out" / "split-0")
    assert result.reward.num_contexts == 1
    assert virl_tf.load_policy(tmp_path / "out/split-0/policy-2.npz").num_contexts == 1
    with np.load(tmp_path / "out" / "split-0" / "demonstrations.npz") as arrays:
        train = arrays["train"]
    test = frame[["goal", "speed"]][~frame["goal"].isin(train[:, 0])].to_numpy()
    em = conditioned(em_mixture(train, 1, numpy_seed(0, 0, "EM")), 1)
    expected = {"EM, 1": em.log_prob(test), "policy, 1": result.policy.log_prob(test)}
    axis = np.linspace(-15.0, 15.0, 1000)
    on_axis = result.reward(axis[:, None], test[:, None, :1])  # [24, 1000]
    log_z = np.log(np.exp(on_axis).sum(axis=1) * (axis[1] - axis[0]))
    expected["reward"] = result.reward(test[:, 1:], test[:, :1]) - log_z
    for name, values in expected.items():
        found = table.loc[name, "log_likelihood"]
        assert found == pytest.approx(np.mean(values), abs=1e-9 if name != "reward" else 0.05)
    # Linear in the context: draws follow it.
    assert table.loc["EM, 1", "follow"] == pytest.approx(table.loc["kept back", "follow"], abs=0.1)
    with np.load(tmp_path / "out" / "judge.npz") as arrays:
        assert list(arrays["columns"]) == ["goal", "speed"]
        assert list(arrays["contexts"]) == ["goal"]
        assert np.isin(arrays["reward's draws"][:, 0], test[:, 0]).all()
    before = contents(tmp_path / "out")
    assert call(*words)[0] == 0
    assert contents(tmp_path / "out") == before
    status, _, error = call(*[word for word in words if word not in ("--contexts", "goal")])
    assert (status, "another configuration" in error) == (2, True)


OUTCOME_OF_ROWS = """
import numpy as np

def outcome(x, kept_back):
    assert x.shape[1] == kept_back.shape[1] == 2
    goals = len(np.unique(x[:, 0]))
    return {"goals": goals, "follow": np.corrcoef(x.T)[0, 1]}
"""


def test_what_draws_do_is_compared_in_the_same_contexts():
    """Of more kept-back rows than contexts to draw in."""
    rows = np.random.default_rng(0).normal(size=(300, 2))
    measure = judged.Measure(rows, lambda x: x, None, 0, 1)
    density = conditioned(gaussian(np.zeros(2), np.eye(2)), 1)
    first, second = (measure.draws(name, density) for name in ("policy", "KDE"))
    np.testing.assert_array_equal(first[:, 0], second[:, 0])
    assert len(np.unique(first[:, 0])) == 250
    assert not np.isin(first[:, 1], second[:, 1]).any()


def test_draws_of_a_reward_in_each_context_are_those_of_its_density():
    contexts = np.repeat([[-1.0], [1.0]], 1000, axis=0)
    density = conditioned(gaussian(np.zeros(2), np.array([[1.0, 1.8], [1.8, 4.0]])), 1)
    reward = make_reward([]).of_policy(density)
    wide = conditioned(gaussian(np.zeros(2), np.diag([1.0, 9.0])), 1)
    rows = np.random.default_rng(0).uniform(-1.0, 1.0, (300, 2))
    found = judged.normalised(reward, wide, Data(rows, num_contexts=1), 0, rows[:40, :1])
    assert found.log_z.shape == (40,)
    np.testing.assert_allclose(found.log_z, 0.0, atol=0.3)
    draws = found.sample(contexts, split_seed(0, 0, "draws")).numpy().reshape(2, 1000)
    np.testing.assert_allclose(draws.mean(axis=1), [-1.8, 1.8], atol=0.1)
    np.testing.assert_allclose(draws.std(axis=1), np.sqrt(4.0 - 1.8**2), rtol=0.1)


# --- the parts ------------------------------------------------------------------------------------


def test_em_of_one_component_is_the_gaussian_of_the_rows():
    x = tiny.demonstrations(200)
    fits = judged.reference_fits(Data(x), {", 1": 1}, seed=0)
    exact = stats.multivariate_normal(x.mean(axis=0), np.cov(x.T, bias=True)).logpdf(x)
    np.testing.assert_allclose(fits["EM, 1"]().log_prob(x), exact, atol=1e-4)
    # Its ridge is 0.01 of a column's variance at most.
    np.testing.assert_allclose(fits["EM tied, 1"]().log_prob(x), exact, atol=0.2)


def test_the_ridge_of_few_rows_keeps_modes_wide_enough_for_others():
    rng = np.random.default_rng(0)
    centres = rng.uniform(-5.0, 5.0, (12, 8))
    x = np.concatenate([centres + 0.5 * rng.standard_normal((12, 8)) for _ in range(5)])
    rows, fresh = x[:24], x[24:]
    chosen = judged.tied_mixture(Data(rows), 12, seed=0).log_prob(fresh).numpy().mean()
    narrow = em_mixture(rows, 12, 0, Covariances("tied", 1e-6)).log_prob(fresh).numpy().mean()
    assert chosen > narrow + 1.0


@pytest.mark.parametrize(("n", "parts"), [(100, 5), (600, 1)])
def test_of_few_rows_all_say_which_ridge(monkeypatch, n, parts):
    x = np.random.default_rng(0).standard_normal((n, 2))
    seen = []

    def em_mixture(rows, *how):
        seen.append({tuple(row) for row in rows})
        return moments(rows)

    monkeypatch.setattr(judged, "em_mixture", em_mixture)
    judged.tied_mixture(Data(x), 3, 0)
    *tried, last = seen
    assert last == {tuple(row) for row in x}
    left_out = [sum(tuple(row) not in rows for rows in tried) for row in x]
    assert sum(left_out) == len(judged.RIDGES) * parts * n // 5
    assert max(left_out) == len(judged.RIDGES)


@pytest.mark.parametrize("n", [100, 600])
def test_copies_in_a_group_are_held_out_together_where_a_ridge_is_chosen(monkeypatch, n):
    x = np.repeat(np.random.default_rng(0).standard_normal((n // 5, 2)), 5, axis=0)
    seen = []

    def em_mixture(rows, *how):
        seen.append({tuple(row) for row in rows})
        return moments(rows)

    monkeypatch.setattr(judged, "em_mixture", em_mixture)
    judged.tied_mixture(Data(x, groups=np.repeat(np.arange(n // 5), 5)), 3, 0)
    assert len(seen) > len(judged.RIDGES)
    *tried, last = (len(rows) for rows in seen)
    assert last == n // 5
    assert set(tried) == {4 * n // 25}  # a fifth of them is left out, and no copy is in


def test_kernels_are_as_wide_as_other_groups_are_likeliest_under():
    """Were copies held out from each other, kernels would be as narrow as what tells them apart."""
    rng = np.random.default_rng(0)
    x = np.repeat(rng.standard_normal((60, 2)), 5, axis=0) + 1e-3 * rng.standard_normal((300, 2))
    alone = judged.kernels(Data(x), 0).bandwidth.numpy()
    found = judged.kernels(Data(x, groups=np.repeat(np.arange(60), 5)), 0).bandwidth.numpy()
    assert found.min() > 0.1 > alone.max()


def test_a_reward_that_is_a_density_is_normalised_and_drawn_from_as_one():
    x = np.random.default_rng(0).normal(size=(400, 2)) * [1.0, 3.0]
    density = gaussian(np.zeros(2), np.diag([1.0, 9.0]))
    reward = make_reward([]).of_policy(density)
    found = judged.normalised(reward, density, Data(x), seed=0)
    np.testing.assert_allclose(found.log_prob(x), density.log_prob(x), atol=0.02)
    draws = found.sample(4000, split_seed(0, 0, "draws"))
    np.testing.assert_allclose(np.cov(draws.T), np.diag([1.0, 9.0]), rtol=0.1, atol=0.2)
    np.testing.assert_array_equal(draws, found.sample(4000, split_seed(0, 0, "draws")))


def table_of(ahead):
    """Of a reward that is ahead of EM so far in each split, and a nat further of the KDE."""
    rows = []
    for split, by in enumerate(ahead):
        row = {"split": split, "rows": 10, "standard_error": 0.1, "ahead_error": 0.1}
        rows.append({**row, "density": "kept back", "works": 1.0})
        of_reward = {"log_likelihood": 2.0, "works": 0.9, "effective_share": 1.0}
        rows.append({**row, "density": "reward", **of_reward})
        rows.append({**row, "density": "policy, 2", "log_likelihood": 9.0, "works": 0.8})
        for name, further in (("EM, 2", 0.0), ("KDE", 1.0)):
            behind = {"log_likelihood": 2.0 - by - further, "reward_ahead": by + further}
            rows.append({**row, "density": name, **behind, "works": 0.1 * split})
    return pd.DataFrame(rows, columns=[*judged.COLUMNS, "works"])


@pytest.mark.parametrize(
    ("ahead", "place", "by", "error", "on"),
    [
        ([1.0, 1.2], "ahead of", "+1.10", "0.12", "2 of 2"),
        ([-1.0, -1.2], "behind", "-1.10", "0.12", "0 of 2"),
        ([0.1, 0.1], "not distinguishable from", "+0.10", "0.07", "2 of 2"),
        ([-1.0, 1.5], "not distinguishable from", "+0.25", "1.53", "1 of 2"),
        ([0.5], "ahead of", "+0.50", "0.10", "1 of 1"),
        ([0.0, 0.1, 2.0], "not distinguishable from", "+0.70", "0.86", "2 of 3"),
        # Of all rows there are five parts, however often they are kept back.
        ([1.0] * 20, "ahead of", "+1.00", "0.04", "20 of 20"),
    ],
)
def test_the_verdict(ahead, place, by, error, on):
    by = f"{by} nats per row (standard error {error})"
    said = f"The recovered reward is {place} the best reference, EM, 2: {by}; ahead on {on} splits."
    assert judged.verdict(table_of(ahead), 0.2) == said


def test_one_split_whose_rows_are_of_one_group_says_nothing():
    said = judged.verdict(table_of([2.0]).assign(ahead_error=np.nan), 0.2)
    assert "not distinguishable from the best reference, EM, 2: +2.00 nats per row (no " in said


def test_the_error_of_the_normaliser_counts():
    """Rows differ by nothing where the reward is EM's mixture, normalised by draws."""
    table = table_of([0.003]).assign(ahead_error=1e-9)
    assert "is ahead of" in judged.verdict(table, 0.2)
    table.loc[table["density"] == "reward", "effective_share"] = 0.5
    assert "is not distinguishable from" in judged.verdict(table, 0.2)
    # With contexts each row has a normaliser, and its error, of its own.
    assert "is ahead of" in judged.verdict(table, 0.2, in_contexts=True)


def test_more_splits_of_the_same_rows_are_not_more_rows():
    """Of 200 rows without any difference, of which a fifth is kept back time and again."""
    rng = np.random.default_rng(0)
    clear = 0
    for _ in range(200):
        of_rows = rng.normal(size=200)
        of_splits = [of_rows[rng.permutation(200)[:40]].mean() for _ in range(20)]
        table = table_of(of_splits).assign(ahead_error=1.0 / np.sqrt(40))
        table = table[table["density"] != "KDE"]
        clear += "not distinguishable" not in judged.verdict(table, 0.2)
    # At two standard errors 5 %; with more than 9 % in less than one of a hundred such tests.
    assert clear <= 18


def test_a_function_may_change_what_it_gets():
    rows = np.random.default_rng(0).normal(size=(20, 2))
    em = gaussian(np.zeros(2), np.eye(2))
    reward = judged.NormalisedReward(make_reward([]).of_policy(em), em, np.zeros(1), 1.0)

    def outcome(x, kept_back):
        x += 100.0
        kept_back += 100.0
        return {"mean": float(x.mean())}

    measure = judged.Measure(rows.copy(), lambda x: x, outcome, 0)
    assert measure.kept_back()["mean"] > 99.0
    measure.row("EM", em, reward)
    np.testing.assert_array_equal(measure.test, rows)


def test_errors_are_over_splits_or_of_one_split_over_its_rows():
    means, errors = judged.over_splits(table_of([1.0, 2.0]), 0.2)
    assert means.loc["EM, 2", "log_likelihood"] == 0.5
    assert errors.loc["EM, 2", "log_likelihood"] == pytest.approx(0.5 * np.sqrt(1.5))
    assert errors.loc["KDE", "works"] == pytest.approx(0.05 * np.sqrt(1.5))
    _, errors = judged.over_splits(table_of([1.0]), 0.2)
    assert errors.loc["EM, 2", "log_likelihood"] == 0.1
    assert np.isnan(errors.loc["EM, 2", "works"])


def test_a_reward_is_not_ahead_by_its_bounds():
    """One that is EM inside of bounds, outside of which is half of EM."""
    em = gaussian(np.zeros(2), np.eye(2))
    domain = make_domain(np.ones((3, 2)), ["a", "b"], support=({"a": 0.0}, None))
    reward = make_reward([]).of_policy(em)._replace(domain=domain)
    rows = np.abs(np.random.default_rng(0).normal(size=(50, 2)))
    found = judged.normalised(reward, em, Data(rows, domain=domain), seed=0)
    row = judged.Measure(rows, lambda x: x, None, 0).row("EM", em, found)
    assert row["reward_ahead"] == pytest.approx(0.0, abs=0.03)
    assert row["log_likelihood"] == pytest.approx(np.mean(em.log_prob(rows)) + np.log(2), abs=0.03)


def test_kept_back_rows_of_a_group_count_as_one():
    rows = np.random.default_rng(0).normal(size=(20, 2))
    other = gaussian(np.ones(2), np.eye(2))
    reward = judged.NormalisedReward(make_reward([]).of_policy(other), other, np.zeros(1), 1.0)

    def errors(*measure):
        row = judged.Measure(*measure).row("EM", gaussian(np.zeros(2), np.eye(2)), reward)
        return [row["standard_error"], row["ahead_error"]]

    once = errors(rows, lambda x: x, None, 0)
    groups = np.repeat(np.arange(20), 5)
    often = errors(np.repeat(rows, 5, axis=0), lambda x: x, None, 0, 0, groups)
    np.testing.assert_allclose(often, once, rtol=0.05)  # N - 1 in the place of N


def test_noise_of_recorded_numbers_stays_inside_of_their_bounds_and_out_of_contexts():
    x = np.random.default_rng(0).integers(0, 5, (200, 2)).astype(float)
    rows = Demonstrations(x, ["goal", "grade"], contexts=["goal"])
    fitted = SimpleNamespace(dither=True, periodic=None, support=({"grade": 0.0}, None), seed=0)
    found = judge_command._dithered(rows, fitted).x
    np.testing.assert_array_equal(found[:, 0], x[:, 0])
    assert found[:, 1].min() >= 0.0
    assert len(np.unique(found[:, 1])) == 200
    assert judge_command._dithered(rows, SimpleNamespace(dither=False)) is rows


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_kept_back_as_a_whole(seed):
    groups = np.random.default_rng(0).integers(0, 12, 100)
    kept = random_rows(100, 30, seed, groups)
    assert set(groups[kept]).isdisjoint(groups[~kept])
    assert 0 < kept.sum() <= 30
    assert random_rows(100, 1, seed, np.zeros(100, int)).all()  # at least one group
    assert random_rows(100, 30, seed).sum() == 30


def test_the_flow_is_a_density():
    pytest.importorskip("flowjax", reason="extra `bench`")
    x = np.random.default_rng(0).normal(size=(300, 1)) * 2.0 + 5.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = flow.fit_flow(x, seed=0)
    grid = np.linspace(-30.0, 40.0, 7001)
    mass = np.exp(found.log_prob(grid[:, None])) * 0.01
    assert mass.sum() == pytest.approx(1.0, abs=0.01)
    draws = found.sample(4000, split_seed(0, 0, "draws"))
    assert np.mean(draws) == pytest.approx((mass * grid).sum(), abs=0.15)
    np.testing.assert_array_equal(draws, found.sample(4000, split_seed(0, 0, "draws")))


def test_copies_are_on_one_side_where_noise_is_added_to_a_column_of_them():
    """And in the fit to a split and its references, which hold out rows of their own."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=120), rng.integers(0, 3, 120)])
    rows = Demonstrations(np.concatenate([x, x]), ["speed", "grade"])
    fitted = SimpleNamespace(dither=True, periodic=None, support=None, seed=0)
    found = judge_command._dithered(rows, fitted)
    request = SimpleNamespace(keep_back=0.2, components=[])
    task = judge_command.Judge(fitted, request, found, None, None, False, None)
    split = judge_command._split(task, 0)
    assert len(split.test) == 48
    assert not np.isin(split.test[:, 0], split.data.rows[:, 0]).any()
    assert len(np.unique(split.groups)) == 24
    assert len(np.unique(split.data.groups)) == 96
    alone = judge_command._dithered(rows.take(np.arange(240) < 120), fitted)
    assert alone.groups is None


def test_an_angle_a_whole_turn_further_on_is_a_copy():
    x = np.random.default_rng(0).integers(-180, 180, (60, 2)) + [0.0, 0.5]
    rows = Demonstrations(np.concatenate([x, x + [360.0, 0.0]]), ["angle", "speed"])
    fitted = SimpleNamespace(dither=False, periodic={"angle": 360.0}, support=None, seed=0)
    request = SimpleNamespace(keep_back=0.2, components=[])
    task = judge_command.Judge(fitted, request, rows, None, None, False, None)
    split = judge_command._split(task, 0)
    told_apart = {tuple(row) for row in split.data.rows}
    assert len(split.test) == 24
    assert told_apart.isdisjoint(map(tuple, split.test))
    angles = np.concatenate([split.data.rows, split.test])[:, 0]
    assert np.ptp(angles) < 360.0, "kept-back ones are in the same turn"


def test_each_split_keeps_back_others():
    rows = Demonstrations(np.random.default_rng(0).normal(size=(100, 2)), ["speed", "grade"])
    fitted = SimpleNamespace(dither=False, periodic=None, support=None, seed=7)
    request = SimpleNamespace(keep_back=0.2, components=[])
    task = judge_command.Judge(fitted, request, rows, None, None, False, None)
    first, second = (judge_command._split(task, number) for number in range(2))
    assert (first.seed, second.seed) == (7, 8)
    assert len(first.test) == len(second.test) == 20
    common = {tuple(row) for row in first.test} & {tuple(row) for row in second.test}
    assert len(common) < 10  # 4 by chance


def test_contexts_are_no_codes_of_paths():
    rows = Demonstrations(np.arange(6.0).reshape(2, 3), ["goal", "w0", "w1"], contexts=["goal"])
    encoding = SimpleNamespace(decode=lambda codes: 2.0 * codes)
    task = SimpleNamespace(rows=rows, encoding=encoding, request=SimpleNamespace(outcome=None))
    split = SimpleNamespace(test=rows.x, seed=0, groups=None)
    measure = judge_command._measure(task, split)
    np.testing.assert_array_equal(measure.as_seen(rows.x), 2.0 * rows.x[:, 1:])
    np.testing.assert_array_equal(measure.contexts, rows.x[:, :1])


def test_splits_that_keep_back_the_same_rows_are_warned_of(capsys):
    same, other = np.zeros((20, 2)), np.ones((20, 2))
    splits = [SimpleNamespace(test=rows) for rows in (same, other, same.copy())]
    judge_command._warn_of_the_same_rows(splits[:2])
    assert capsys.readouterr().err == ""
    judge_command._warn_of_the_same_rows(splits)
    assert "of 3 splits only 2 keep back different rows" in " ".join(
        capsys.readouterr().err.split()
    )
