"""Event files: what TensorBoard reads of a run, whole and resumed."""

import shutil
import sys

import virl_tf
from virl_tf import irl
from virl_tf.demonstrations import Data
from virl_tf.event_files import DEPTH, EventFiles, component_divergences, drop_steps, heat_map
from virl_tf.problem import make_problem

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests import tiny
from tests.shared import make_mixture, make_state

pytestmark = pytest.mark.usefixtures("quick")


def events(folder):
    """[(tag, step, value)] of all event files in a folder, in the order TensorBoard reads them."""
    found = []
    for file in sorted(folder.glob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                array = tf.make_ndarray(value.tensor)
                found.append((value.tag, event.step, array if array.ndim else float(array)))
    return found


def series(folder, tag):
    return {step: value for name, step, value in events(folder) if name == tag}


POOLING = 4  # the step after the four iterations


def stop_at(t, policies=None):
    """An `evaluate` that ends the process's work at iteration t, as Ctrl-C does; it keeps the
    policies it sees.
    """

    def evaluate(state):
        if state.t - 1 == t:
            raise KeyboardInterrupt
        if policies is not None:
            policies.append(state.policy)
        return {"distance": 1.0 / state.t}

    return evaluate


def fit(folder, evaluate=None, demonstrations=None, **given):
    x = tiny.demonstrations() if demonstrations is None else demonstrations
    options = {
        "num_components": 3,
        "hparams": tiny.overrides(),
        "tensorboard": True,
        "held_out": 0.0,
    }
    options |= given
    return virl_tf.fit(x, directory=folder, evaluate=evaluate or stop_at(None), **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder, policies = tmp_path_factory.mktemp("run"), []
    return folder, fit(folder, stop_at(None, policies)), policies


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory):
    """The same run without saying anything of event files."""
    folder, options = tmp_path_factory.mktemp("unwatched"), {"evaluate": stop_at(None)}
    options |= {"num_components": 3, "hparams": tiny.overrides(), "held_out": 0.0}
    virl_tf.fit(tiny.demonstrations(), directory=folder, **options)
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The same run, stopped in its third iteration: to be copied."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(KeyboardInterrupt):
        fit(folder, stop_at(2))
    return folder


def test_every_number_of_the_history_is_there_once_per_step(finished):
    folder, result, _ = finished
    board = events(folder / "tensorboard")
    assert len({(tag, step) for tag, step, _ in board}) == len(board)
    tags = {tag.partition("/")[2]: tag for tag, _, _ in board}
    assert set(result.history.columns) - {"t"} <= set(tags)
    assert tags["distance"] == "evaluation/distance"
    assert {tag.partition("/")[0] for tag in tags.values() if tag} >= {
        "discriminator",
        "importance_weights",
        "policy",
        "cpu",
    }
    for name in ("validation_loss", "effective_sample_size", "elbo", "distance"):
        found = series(folder / "tensorboard", tags[name])
        known = result.history[np.isfinite(result.history[name])]
        assert list(found) == list(known["t"])
        np.testing.assert_allclose(list(found.values()), known[name], rtol=1e-6)


def test_components_have_their_weight_and_how_far_they_went(finished):
    folder, result, _ = finished
    last = max(result.history["t"])
    weights = [series(folder / "tensorboard", f"component_weight/{o:02d}")[last] for o in range(3)]
    np.testing.assert_allclose(weights, np.exp(result.policy.log_weights), rtol=1e-6)
    moved = [
        list(series(folder / "tensorboard", f"component_kl/{o:02d}").values()) for o in range(3)
    ]
    assert np.shape(moved) == (3, len(result.history))
    assert np.isfinite(moved).all()
    assert (np.array(moved) >= 0.0).all()
    assert np.max(moved) > 1e-4


def test_steps_are_measured_from_the_policy_before(finished):
    hparams = tiny.hparams()
    problem = make_problem(Data(tiny.demonstrations()), hparams, 0)
    start = irl.init(problem, virl_tf.METHODS["virl"], 3, hparams).policy
    policies = [start, *finished[2]]
    for t in range(4):
        found = [series(finished[0] / "tensorboard", f"component_kl/{o:02d}")[t] for o in range(3)]
        np.testing.assert_allclose(
            found, component_divergences(policies[t + 1], policies[t]), rtol=1e-4, atol=1e-7
        )


def test_divergences_are_those_of_tfp():
    new, old = make_mixture(4, 3, seed=1), make_mixture(4, 3, seed=2)
    normal = tfp.distributions.MultivariateNormalTriL
    expected = normal(new.means, new.scale_trils).kl_divergence(normal(old.means, old.scale_trils))
    np.testing.assert_allclose(component_divergences(new, old), expected, rtol=1e-10)
    np.testing.assert_allclose(component_divergences(new, new), 0.0, atol=1e-12)


def test_images_show_the_reward_upright():
    x, y = np.meshgrid(np.linspace(0, 1, 5), np.linspace(0, 1, 5), indexing="ij")
    image = heat_map(
        np.where((x == 1.0) & (y == 1.0), 0.0, -DEPTH).ravel()
    )  # bright in the upper right corner
    assert image.shape == (5, 5, 3)
    assert tuple(image[0, -1]) == (253, 231, 37)
    assert (image.reshape(-1, 3)[[0, 20, 24]] == (68, 1, 84)).all()
    assert (heat_map(np.array([np.nan, -np.inf, np.inf, -5.0]))[:, 0] == (68, 1, 84)).any()


def test_images_are_pngs_and_for_two_dimensions_only(finished, tmp_path):
    images = series(finished[0] / "tensorboard", "reward")
    assert sorted(images) == [0, 1, 2, 3, POOLING]
    width, height, png = images[3]
    assert tf.io.decode_png(png).shape == (int(height), int(width), 3)
    assert len(np.unique(tf.io.decode_png(png).numpy().reshape(-1, 3), axis=0)) > 20
    state = make_state(0)._replace(policy=make_mixture(3, dim=3))
    with EventFiles(tmp_path, np.random.default_rng(0).normal(size=(40, 3)), state) as board:
        board(state._replace(t=1), {"t": 0, "elbo": -1.5})
    assert {tag for tag, _, _ in events(tmp_path)} == {"policy/elbo"} | {
        f"component_{what}/{o:02d}" for what in ("kl", "weight") for o in range(3)
    }


def test_a_stopped_run_goes_on_without_gap_or_repetition(finished, stopped, tmp_path):
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    assert sorted(series(tmp_path / "tensorboard", "policy/elbo")) == [0, 1]
    fit(tmp_path)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    timed = "cpu/"
    expected = {
        (t, s): v
        for t, s, v in events(finished[0] / "tensorboard")
        if not t.startswith((timed, "reward"))
    }
    found = [
        (t, s, v)
        for t, s, v in events(tmp_path / "tensorboard")
        if not t.startswith((timed, "reward"))
    ]
    assert len(found) == len(expected)
    assert {(t, s): v for t, s, v in found} == expected


def test_steps_that_are_done_again_are_removed_first(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    drop_steps(tmp_path / "tensorboard", 2)
    assert sorted(series(tmp_path / "tensorboard", "policy/elbo")) == [0, 1]
    assert sorted(series(tmp_path / "tensorboard", "reward")) == [0, 1]


def test_a_record_cut_short_by_a_kill_does_not_stop_the_run(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    file = next((tmp_path / "tensorboard").iterdir())
    file.write_bytes(file.read_bytes()[:-7])
    fit(tmp_path)
    assert sorted(series(tmp_path / "tensorboard", "discriminator/train_loss")) == [0, 1, 2, 3]


def test_files_without_anything_to_drop_are_left_alone(finished):
    folder = finished[0] / "tensorboard"
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}
    drop_steps(folder, POOLING + 1)
    assert {
        file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()
    } == before


def test_off_by_default_and_refused_without_a_folder(unwatched):
    assert not (unwatched / "tensorboard").exists()
    with pytest.raises(virl_tf.InputError, match="directory="):
        virl_tf.fit(tiny.demonstrations(), num_components=2, tensorboard=True)


def test_watching_changes_nothing(finished, unwatched):
    for name in ("metrics.csv", "policy.npz"):
        assert (unwatched / name).read_bytes() == (finished[0] / name).read_bytes()


def test_files_are_written_without_the_tensorboard_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # every import of it fails
    with EventFiles(tmp_path, tiny.demonstrations(), make_state(0)) as board:
        board(make_state(1), {"t": 0, "elbo": -1.5})
    assert series(tmp_path, "policy/elbo") == {0: -1.5}
    assert list(series(tmp_path, "reward")) == [0]


def test_tensorboard_itself_reads_them(finished):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="extra `tensorboard`"
    )
    board = accumulator.EventAccumulator(str(finished[0] / "tensorboard"))
    board.Reload()
    tags = board.Tags()
    assert "reward" in tags["tensors"]
    assert board.summary_metadata["reward"].plugin_data.plugin_name == "images"
    assert board.summary_metadata["policy/elbo"].plugin_data.plugin_name == "scalars"
    assert [event.step for event in board.Tensors("policy/elbo")] == [0, 1, 2, 3, POOLING]
