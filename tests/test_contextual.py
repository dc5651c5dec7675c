"""Tasks p(x | c): what is withheld and measured, and the command line."""

import itertools
import json
from types import SimpleNamespace

from virl_tf import InputError
from virl_tf.conditional import conditioned
from virl_tf.demonstrations import Data
from virl_tf.em.em import em_mixture
from virl_tf.numerics import numpy_seed
from virl_tf.persistence.files import save_arrays
from virl_tf.tasks.experts import RandomExperts
from virl_tf.tasks.obstacles import Obstacles

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from PIL import Image

from experiments.evaluation import contextual, situations
from experiments.evaluation.contextual import (
    WITHHELD,
    AveragedDistances,
    ContextualExperiment,
    Situations,
)
from experiments.evaluation.judged import reference_fits
from experiments.figures import situations as figure_of_situations
from experiments.figures.situations import _draw
from experiments.flow import fit_flow, flow_is_installed
from experiments.result_files import columns_of, rows_of
from experiments.specification import RunRequest
from experiments.sweeps.units import SweepRequest, units_of
from experiments.tasks import describe
from tests import tiny
from tests.shared import make_network, make_reward

TRUTHS = {"experts": lambda: RandomExperts(3, 2, seed=1), "obstacles": lambda: Obstacles(2)}
OVERRIDES = ["network.layer_size=8", "network.num_layers=2", "training.num_epochs=2"]
OVERRIDES += ["policy.update_steps=2", "loop.num_iterations=2", "loop.num_negatives=320"]
TINY = ["--preset", "smoke", "--rows", "150", *tiny.set_words(*OVERRIDES)]
SIZES = {"experts": ["--modes", "3", "--dim", "4"], "waving_experts": ["--modes", "3"]}
SIZES["obstacles"] = ["--steps", "2"]


def is_withheld(c):
    return (c[:, 0] >= WITHHELD[0]) & (c[:, 0] < WITHHELD[1])


# --- contexts and demonstrations ------------------------------------------------------------------


@pytest.mark.parametrize("truth", TRUTHS)
def test_no_demonstration_is_of_a_withheld_context(truth):
    task = Situations(TRUTHS[truth]())
    rows = task.demonstrations(500, seed=3)
    assert (rows.shape, task.dim, task.num_contexts) == ((500, 4), 4, 2)
    assert not is_withheld(rows).any()
    assert is_withheld(task.contexts(200, 3, withheld=True)).all()
    both = is_withheld(task.contexts(500, 3, withheld=None))
    assert 0.08 < both.mean() < 0.22  # 0.15 of [-1, 1]
    np.testing.assert_array_equal(rows, task.demonstrations(500, seed=3))
    assert not np.isin(rows[:, 0], task.demonstrations(500, seed=4)[:, 0]).any()


@pytest.mark.parametrize("truth", TRUTHS)
def test_rows_have_the_density_of_the_truth(truth):
    of, task = TRUTHS[truth](), Situations(TRUTHS[truth]())
    rows = task.demonstrations(20, seed=0)
    np.testing.assert_allclose(task.log_prob(rows), of.log_prob(rows[:, 2:], rows[:, :2]))
    c = rows[:, :2]
    x = task.sample(tf.constant(c), np.array([-3, 4], np.int32))
    assert (x.shape, x.dtype) == ((20, 2), tf.float64)
    again = task.sample(tf.constant(c), np.array([-3, 5], np.int32))
    assert not np.isin(np.asarray(x), np.asarray(again)).any()


# --- distances ------------------------------------------------------------------------------------


def test_distances_of_the_truth_are_zero_and_of_shifted_experts_their_closed_form():
    truth = RandomExperts(1, 1, seed=2)
    for withheld in (False, True):
        distances = AveragedDistances(Situations(truth), 0, withheld)
        assert is_withheld(np.asarray(distances._where.contexts)).all() == withheld
        assert distances.of_density(truth.policy) == pytest.approx(0.0, abs=1e-12)
        by = np.array([0.1, -0.2])
        shifted = truth.policy._replace(offsets=truth.policy.offsets + by)
        z = np.linalg.solve(truth.policy.scale_trils[0], by)
        assert distances.of_density(shifted) == pytest.approx(0.5 * z @ z, rel=0.05)


def test_contexts_that_are_measured_in_are_no_demonstrations_and_policies_are_for_all():
    experiment = ContextualExperiment({"seed": 5}, RandomExperts(1, 1, seed=2))
    demonstrated = experiment.task.demonstrations(1000, 5)[:, 0]
    for distances in (experiment.distances, experiment.unseen):
        assert not np.isin(distances._where.contexts, demonstrated).any()
        other = AveragedDistances(experiment.task, 6, withheld=distances is experiment.unseen)
        assert not np.isin(distances._where.contexts, other._where.contexts).any()
    of_policies = experiment.inference([], []).contexts
    assert 0.08 < is_withheld(of_policies).mean() < 0.22  # 0.15 of [-1, 1]


def test_what_a_reward_says_of_contexts_alone_does_not_matter():
    truth = RandomExperts(2, 1, seed=2)
    distances = AveragedDistances(Situations(truth), 0)
    wider = truth.policy._replace(scale_trils=1.3 * truth.policy.scale_trils)
    reward = make_reward([], dim=3).of_policy(wider)
    expected = distances.of_density(wider)
    assert expected > 0.05
    assert distances.of_reward(reward, truth.policy) == pytest.approx(expected, abs=0.02)
    kernel = np.zeros((3, 8), np.float32)
    kernel[0] = np.linspace(-1.0, 1.0, 8)
    of_context = make_network(3, num_layers=3)._replace(input_kernel=kernel)
    moved = reward.add(of_context)
    assert np.std(moved(np.zeros((9, 2)), np.linspace(-1.0, 1.0, 9)[:, None])) > 0.1
    found = distances.of_reward(moved, truth.policy)
    assert found == pytest.approx(distances.of_reward(reward, truth.policy), abs=1e-4)


def of_densities(reward, **densities):
    """Distances that are told apart."""
    return SimpleNamespace(of_reward=lambda *_: reward, of_density=densities.__getitem__)


@pytest.fixture
def told_apart():
    """An experiment whose distances say what is measured, and where."""
    config = {"seed": 5, "modes": 3, "components": 7}
    experiment = ContextualExperiment(config, TRUTHS["experts"]())
    experiment.distances = of_densities(1.0, new=2.0, trained=3.0)
    experiment.unseen = of_densities(4.0, new=5.0, trained=6.0)
    return experiment


@pytest.mark.parametrize(("diverged", "status"), [("reward", "diverged"), ("policy", "finished")])
def test_a_summary_has_what_is_measured_in_withheld_contexts(told_apart, diverged, status):
    history = {f"i_projection_{name}": [0.5, 0.1, 0.2] for name in ("reward", "policy")}
    history[f"i_projection_{diverged}"] = [0.5, 0.1, 3.0]
    result = SimpleNamespace(history=pd.DataFrame(history), reward=None, policy="trained")
    found = told_apart.summarise(None, result)
    assert found["unseen"] == {"training": 4.0, "training_policy": 6.0}
    assert found["i_projection"][diverged] == {"best": 0.1, "final": 3.0, "reported": 1.55}
    assert found["status"] == status


def test_references_have_as_many_components_as_the_truth_has_modes(told_apart, monkeypatch):
    asked = []

    def fits(data, sizes, seed):
        asked.append((data.num_contexts, sizes, seed))
        return {"EM": lambda: "new", "KDE": lambda: "trained"}

    monkeypatch.setattr(contextual, "reference_fits", fits)
    found = told_apart.references(np.zeros((20, 4)))
    assert asked == [(2, {"": 3}, 5)]
    unseen = {"EM": 5.0, "KDE": 6.0}
    assert found == {"i_projection": {"EM": 2.0, "KDE": 3.0}, "unseen": unseen}


def test_a_row_of_a_reference_has_its_own_value_in_withheld_contexts(tmp_path):
    summary = {"task": "experts", "modes": 3, "seed": 5, "preset": "smoke"}
    values = {"i_projection": {"EM": 2.0, "KDE": 3.0}, "unseen": {"EM": 5.0, "KDE": 6.0}}
    rows = rows_of({".": summary | values}, tmp_path)
    found = {row["method"]: (row["reported"], row["unseen"], row["stage"]) for row in rows}
    assert found == {"EM": (2.0, 5.0, "reference"), "KDE": (3.0, 6.0, "reference")}


def test_a_new_policy_is_measured_beside_the_training_policy(told_apart, monkeypatch):
    trained = SimpleNamespace(policy=lambda: "trained")
    monkeypatch.setattr(contextual, "RunFolder", lambda _: trained)
    rows = [{"i_projection_policy": 0.1}, {"i_projection_policy": 2.0}]
    found, sentence = told_apart.inference(["run"], []).finish(None, "new", rows, {})
    values = {"best": 0.1, "final": 2.0, "reported": 1.05}
    assert found["i_projection"] == {"inference_policy": values, "training_policy": 3.0}
    assert found["unseen"] == {"inference": 5.0, "training_policy": 6.0}
    assert sentence.endswith(
        "2.0000 for the new policy, 3.0000 for the training policy; in unseen contexts 5.0000 and "
        "6.0000"
    )


# --- references -----------------------------------------------------------------------------------


def test_references_of_rows_with_contexts_are_conditional():
    rows = Situations(TRUTHS["experts"]()).demonstrations(520, seed=0)
    fits = reference_fits(Data(rows, num_contexts=2), {"": 3}, seed=0)
    names = ["EM by BIC", "EM", "EM tied", "KDE"]
    assert list(fits) == names + (["flow"] if flow_is_installed() else [])
    fits.pop("flow", None)  # it takes long
    axis = np.linspace(-9.0, 9.0, 91)
    grid = np.stack(np.meshgrid([0.1], [-0.2], axis, axis), axis=-1).reshape(-1, 4)
    for name, fit in fits.items():
        q = fit()
        total = np.exp(q.log_prob(tf.constant(grid))).sum() * (axis[1] - axis[0]) ** 2
        assert total == pytest.approx(1.0, abs=0.05), name
        assert q.sample(tf.constant(rows[:5, :2]), [1, 2]).shape == (5, 2)


@pytest.mark.skipif(not flow_is_installed(), reason="extra `bench`")
def test_a_flow_answers_to_the_context(monkeypatch):
    import flowjax.train

    fit, few = flowjax.train.fit_to_data, {"max_epochs": 20, "learning_rate": 5e-3}
    monkeypatch.setattr(flowjax.train, "fit_to_data", lambda *a, **k: fit(*a, **k, **few))
    rng = np.random.default_rng(0)
    c = rng.uniform(-1.0, 1.0, (800, 1))
    x = 5.0 * c + 3.0 + 0.5 * rng.standard_normal((800, 1))
    flow = fit_flow(np.hstack([c, x]), 0, 1)
    where = np.repeat([[-0.5], [0.5]], 300, axis=0)
    draws = flow.sample(tf.constant(where), np.array([1, -2], np.int32)).numpy()
    np.testing.assert_allclose(draws.reshape(2, 300).mean(axis=1), [0.5, 5.5], atol=0.4)
    axis = np.linspace(-8.0, 16.0, 2000)
    grid = np.column_stack([np.full(2000, 0.5), axis])
    assert np.exp(flow.log_prob(grid)).sum() * (axis[1] - axis[0]) == pytest.approx(1.0, abs=0.02)


# --- the command line -----------------------------------------------------------------------------


OTHERS = [pytest.param(task, marks=pytest.mark.slow) for task in SIZES if task != "experts"]


@pytest.fixture(scope="module", params=["experts", *OTHERS])
def run(request, call, tmp_path_factory):
    task = request.param
    out = tmp_path_factory.mktemp(task) / "run"
    words = ["run", task, *SIZES[task], *TINY, "--components", "3", "--no-tensorboard"]
    status, shown, error = call(*words, "--out", out)
    assert status == 0, shown + error
    assert "unseen" in shown
    return task, out


@pytest.mark.usefixtures("quick")
def test_a_run_is_measured_and_drawn(run):
    task, out = run
    summary = json.loads((out / "summary.json").read_text())
    metrics = pd.read_csv(out / "metrics.csv")
    assert summary["dim"] == (3 if task == "waving_experts" else 4)
    for name in ("reward", "policy"):
        final = summary["i_projection"][name]["final"]
        assert final == pytest.approx(metrics[f"i_projection_{name}"].iloc[-1])
    assert set(summary["unseen"]) == {"training", "training_policy"}
    assert (out / "overview.png").stat().st_size > 5_000
    with np.load(out / "situations.npz") as found, np.load(out / "moving.npz") as moving:
        assert len(found["contexts"]) == 4
        assert found["log_p"].shape == found["rewards"].shape == (4, situations.RESOLUTION**2)
        np.testing.assert_allclose(np.diff(moving["contexts"], 2, axis=0), 0.0, atol=1e-9)
        frames = len(moving["contexts"])
    picture = Image.open(out / "situations.gif")
    assert picture.n_frames == 2 * frames - 2  # there and back
    assert (out / "situations.gif").stat().st_size < 1_000_000


@pytest.mark.usefixtures("quick")
def test_a_policy_for_all_contexts_is_inferred_on_its_reward(call, run):
    task, out = run
    options = ["--components", "3", "--steps", "5", "--samples", "40"]
    status, shown, error = call("infer", out, *options)
    assert status == 0, shown + error
    assert "in unseen contexts" in shown
    found = json.loads((out / "inference" / "summary.json").read_text())
    assert set(found["i_projection"]) == {"inference_policy", "training_policy"}
    trained = json.loads((out / "summary.json").read_text())["unseen"]["training_policy"]
    assert found["unseen"]["training_policy"] == pytest.approx(trained)
    for refused in (
        ["--search"],
        ["--obstacles", "0.3"],
        ["--context", "x0=0.3"],
        ["--contexts", "goals.csv"],
        ["--temperature", "0.5"],
    ):
        status, _, error = call("infer", out, *options, *refused, "--out", out / "refused")
        assert (status, len(error.splitlines())) == (2, 1), task


def test_em_of_a_truth_with_more_modes_than_rows_has_a_component_for_each_row():
    rows = Situations(TRUTHS["experts"]()).demonstrations(12, seed=0)
    fits = reference_fits(Data(rows, num_contexts=2), {"": 40}, 0)
    for name in ("EM", "EM tied"):
        assert np.isfinite(fits[name]().log_prob(rows)).all()


@pytest.mark.slow
@pytest.mark.usefixtures("quick", "threads")
def test_a_sweep_of_it_has_all_densities(call, tmp_path):
    out = tmp_path / "sweep"
    words = ["sweep", "experts", "--modes", "3", *TINY, "--workers", "1", "--out", out]
    status, shown, error = call(*words)
    assert status == 0, shown + error
    assert ("no conditional flow" in shown) != flow_is_installed()
    frame = pd.read_csv(out / "results.csv")
    assert list(frame.columns) == columns_of("experts")
    stages = frame.groupby("stage")["method"].agg(set)
    methods = {"virl", "geim", "eim"}
    assert stages["training"] == stages["training_policy"] == stages["inference"] == methods
    assert {"EM by BIC", "EM", "EM tied", "KDE"} <= stages["reference"]
    assert np.isfinite(frame["unseen"]).all()
    status, _, error = call(*words[:-2], "--dim", "4", "--out", out)
    assert (status, "another configuration" in error) == (2, True)


@pytest.mark.parametrize("task", SIZES)
def test_the_sweep_of_a_task(task):
    description = describe(task)
    units = units_of(task, "best", [], seeds=[100], rows=900)
    virl = next(unit for unit in units if unit.group.startswith("virl"))
    assert virl.inferences == {"inference": {"search": False, "obstacles": None}}
    sizes = {"experts": 10, "waving_experts": 30, "obstacles": 20}
    assert virl.inference_components == sizes[task]
    assert [unit.name for unit in units if unit.group == "references"]
    assert virl.spec.num_train == 900
    assert description.target(virl.spec.to_config()).num_contexts == virl.spec.dim - 2


def test_dimension_and_rows_tell_sweeps_apart():
    plain = SweepRequest("experts", None, None, None, None, False, [])
    other = plain._replace(dim=5, rows=900)
    assert plain.to_config() == {"sweep": "experts", "preset": "quick", "overrides": []}
    assert other.to_config() == {**plain.to_config(), "dim": 5, "rows": 900}
    assert (plain.folder.name, other.folder.name) == ("experts-quick", "experts-D5-n900-quick")
    names = [unit.name for unit in other.units()]
    assert "references-m10-D5-s0-quick" in names
    assert "experts-virl-10c-m10-D5-s0-n900-quick" in names
    identities = [unit.stages["."]["references"] for unit in other.units() if "ref" in unit.name]
    assert all(identity["dim"] == 5 for identity in identities)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: RunRequest("experts", dim=2).specification(), "--dim must be an integer from 3"),
        (lambda: RunRequest("obstacles", dim=4).specification(), "follows from --steps"),
        (lambda: RunRequest("obstacles", steps=7).specification(), "from 1 to 6, got 7"),
        (lambda: RunRequest("obstacles", task_seed=1).specification(), "has one target only"),
        (lambda: units_of("experts", "best", [], search=True), "--search is not for experts"),
    ],
)
def test_what_cannot_be(ask, text):
    with pytest.raises(InputError, match=text):
        ask()


def test_a_conditional_mixture_of_rows_is_what_em_says():
    """The reference `EM` is the joint mixture, conditioned."""
    rows = Situations(TRUTHS["experts"]()).demonstrations(520, seed=0)
    joint = em_mixture(rows, 3, numpy_seed(0, 0, "EM"))
    fitted = reference_fits(Data(rows, num_contexts=2), {"": 3}, seed=0)["EM"]()
    expected = conditioned(joint, 2).log_prob(rows)
    np.testing.assert_allclose(fitted.log_prob(rows), expected)


# --- the picture ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_contexts_that_are_shown_are_spread_along_their_longest_direction(sign):
    t = np.random.default_rng(0).permutation(np.linspace(0.0, 1.0, 81))
    c = np.column_stack([t, sign * 100.0 * t])
    found = situations.some_contexts(c)
    np.testing.assert_allclose(found[:, 0], [0.125, 0.375, 0.625, 0.875])
    np.testing.assert_allclose(found[:, 1], sign * 100.0 * found[:, 0])
    np.testing.assert_allclose(situations.between(c, 3)[:, 0], [0.125, 0.5, 0.875])


def test_of_few_contexts_each_is_shown_once():
    c = np.array([[2.0, 7.0], [1.0, 7.0], [3.0, 7.0]])  # a column of one value
    np.testing.assert_array_equal(situations.some_contexts(c)[:, 0], [1.0, 2.0, 3.0])


def test_a_grid_of_one_column_reaches_a_tenth_beyond_its_values():
    axes, points = situations.grid_over(np.array([[10.0], [0.0], [3.0]]), 5)
    np.testing.assert_allclose(axes, [np.linspace(-1.0, 11.0, 20)])
    np.testing.assert_array_equal(points, axes.T)


@pytest.mark.parametrize(("n", "number"), [(100, 20), (1000, 50), (10_000, 200)])
def test_nearest_contexts_are_so_in_units_of_their_spread(n, number):
    c = np.random.default_rng(0).normal(size=(n, 2))
    one = np.array([0.5, -0.5])
    found = situations.nearest(c, one)
    expected = np.argsort((((c - one) / c.std(axis=0)) ** 2).sum(axis=1))[:number]
    np.testing.assert_array_equal(found, expected)
    scales = np.array([1.0, 100.0])
    np.testing.assert_array_equal(situations.nearest(scales * c, scales * one), found)


def test_all_that_is_shown_of_a_context_is_of_that_one(tmp_path):
    rng = np.random.default_rng(0)
    c = rng.uniform(-1.0, 1.0, (1000, 1))
    rows = np.hstack([c, 5.0 * c + 0.01 * rng.normal(size=c.shape)])
    policy = conditioned(em_mixture(rows, 1, 0), 1)
    rewards = lambda rows: 2.0 * policy.log_prob(rows)  # noqa: E731
    situations.write_situations(tmp_path, {"rewards": rewards}, policy, rows, ["goal", "speed"])
    for name in ("situations", "moving"):
        with np.load(tmp_path / f"{name}.npz") as found:
            points = found["axes"].T
            assert len(found["contexts"]) > 3
            for i, one in enumerate(found["contexts"]):
                assert np.abs(found["draws"][i] - 5.0 * one).max() < 0.1
                assert np.abs(found["demonstrations"][i] - 5.0 * one).max() < 0.4
                expected = policy.condition(one).log_prob(points)
                np.testing.assert_allclose(found["log_policy"][i], expected, atol=1e-6)
                np.testing.assert_allclose(found["rewards"][i], 2.0 * expected, atol=1e-6)


def found_at(scale, centre, dim, paths=False):
    """As in situations.npz: 3 contexts, columns of some unit."""
    rng = np.random.default_rng(0)
    shape = (3, 20, 6, dim) if paths else (3, 20, dim)
    x = centre + scale * rng.normal(size=shape)
    names = np.array(["c", *(f"x{i}" for i in range(dim))])
    found = {"contexts": rng.normal(size=(3, 1)), "columns": names}
    found |= {"demonstrations": x, "draws": x}
    if paths:
        return found | {"times": scale * np.linspace(0.0, 1.0, 6)}
    axes = centre + scale * np.tile(np.linspace(-4.0, 4.0, 30), (dim, 1))
    values = rng.normal(size=(3, 30**dim)) if dim <= 2 else None
    return found | {"axes": axes, "rewards": values, "log_policy": values}


@pytest.mark.parametrize(("scale", "centre"), [(1e-4, 0.0), (130.0, 101_325.0), (2e7, 0.0)])
@pytest.mark.parametrize(("dim", "paths"), [(1, False), (2, False), (6, False), (2, True)])
def test_no_number_below_a_panel_runs_into_the_next(scale, centre, dim, paths):
    figure = _draw(found_at(scale, centre, dim, paths), range(3))
    figure.canvas.draw()
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    boxes = []
    for axes in panels[-3:]:
        for label in filter(lambda label: label.get_text(), axes.get_xticklabels()):
            box = label.get_window_extent()
            if axes.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= axes.bbox.x1 + 1:
                boxes.append(box)
    assert len(boxes) >= 6
    boxes.sort(key=lambda box: box.x0)
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
    bars = [axes.get_ylabel() for axes in figure.axes if axes not in panels]
    assert bars == (["nats below the maximum"] if dim == 2 and not paths else [])
    plt.close(figure)


@pytest.mark.parametrize(
    ("dim", "paths"), [(1, False), (2, False), (6, False), (2, True), (3, True)]
)
def test_axes_do_not_move_with_the_context(tmp_path, monkeypatch, dim, paths):
    found = found_at(1.0, 0.0, dim, paths)
    further = np.arange(3.0).reshape(-1, *np.ones(found["draws"].ndim - 1, int))
    found |= {name: found[name] + further for name in ("demonstrations", "draws")}
    for name in ("situations", "moving"):
        save_arrays(tmp_path / f"{name}.npz", {k: v for k, v in found.items() if v is not None})
    frames = []
    monkeypatch.setattr(figure_of_situations, "save", lambda figure, path: plt.close(figure))
    monkeypatch.setattr(figure_of_situations, "save_moving", lambda found, _: frames.extend(found))
    figure_of_situations.draw_situations(tmp_path)
    limits = [[(*axes.get_xlim(), *axes.get_ylim()) for axes in f.axes] for f in frames]
    assert len(limits) == 3
    assert limits[0] == limits[1] == limits[2]
    for figure in frames:
        plt.close(figure)
