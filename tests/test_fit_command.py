"""`python -m experiments fit`: a user's file in; reward, summary, pictures and a snippet out."""

import json
import re

import virl_tf

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from rich.console import Console

from experiments import fit_command
from experiments.figures import style
from tests import tiny
from tests.conftest import make_mixture, make_reward

pytestmark = pytest.mark.usefixtures("quick")

# The smallest run that goes through everything; its numbers mean nothing.
TINY = tiny.set_words("network.num_layers=2", "network.layer_size=8", "training.num_epochs=2")
TINY += tiny.set_words("loop.num_iterations=2", "loop.num_negatives=500", "kde.bandwidth=0.3")
TINY += tiny.set_words("policy.update_steps=2", "policy.start=samples")


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
        score = summary["held_out_log_likelihood"]["policy"]
        assert score["mean"] == pytest.approx(
            float(np.mean(result.policy.log_prob(arrays["test"])))
        )
    np.testing.assert_allclose(summary["bandwidth"], 0.3 * both[:180].std(axis=0), rtol=0.05)


def test_the_number_of_components_was_found(finished):
    summary = json.loads((finished[0] / "summary.json").read_text())
    assert summary["components"] == 3
    assert set(summary["components_scores"]) >= {"1", "2", "3", "5"}
    assert "components 3, chosen by the likelihood of held-out rows under EM" in finished[1]


def test_the_printed_snippet_loads_and_uses_the_result(finished, capsys):
    lines = finished[1].splitlines()
    snippet = lines[lines.index("import virl_tf") :]
    assert len(snippet) == 3
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
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    again = call("fit", out.parent / "mine.csv", "--columns", "speed,distance", *TINY, "--out", out)
    assert again[0] == 0
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    table = shown[shown.index("demonstrations  ") :]
    assert again[1].endswith(table[table.index("recovered reward") :])


def test_another_file_is_refused_and_nothing_changes(call, finished):
    out, _ = finished
    np.save(out.parent / "other.npy", clusters(200, 2, seed=1))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    status, _, error = call(
        "fit", out.parent / "other.npy", "--components", "3", *TINY, "--out", out
    )
    assert status == 2
    assert "another configuration" in error
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.csv"], "error: no file missing.csv."),
        (["setup.py"], "unknown kind of file '.py'"),
        (["mine.npy", "--method", "vril"], "did you mean 'virl'"),
        (["mine.npy", "--components", "0"], "--components must be an integer from 1 to 54"),
        (["mine.npy", "--components", "55"], "from 1 to 54"),
        (["mine.npy", "--held-out", "0.9"], "from 0 to 0.5; got 0.9"),
        (["mine.npy", "--held-out", "nan"], "from 0 to 0.5; got nan"),
        (["mine.npy", "--set", "network.layer_sise=8"], "did you mean 'layer_size'"),
        (["mine.npy", "--hparams", "none.yaml"], "none.yaml"),
        (["mine.npy", "--seed", "-1"], "seed must be"),
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
    ("dim", "method"), [pytest.param(1, "eim", marks=pytest.mark.slow), (3, "geim")]
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
    assert "no rows were held out (60 in all), so there is no score" in shown
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["held_out_log_likelihood"] == {}
    assert summary["components_reason"] == "given"
    assert (summary["bandwidth"] is None) == (method == "eim")


# --- the pieces -----------------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [1, 3])
def test_as_many_components_as_clusters_are_chosen(modes):
    rng = np.random.default_rng(0)
    x = 8.0 * rng.integers(0, modes, (600, 1)) * [1.0, 100.0] + rng.normal(size=(600, 2)) * [
        1.0,
        100.0,
    ]
    choice = fit_command.choose_components(x, seed=0)
    assert choice.components == modes
    assert max(choice.scores, key=choice.scores.get) >= modes


@pytest.mark.parametrize("rows", [3, 4, 10])
def test_few_rows_get_one_component(rows):
    assert (
        fit_command.choose_components(
            np.random.default_rng(0).normal(size=(rows, 1)), seed=0
        ).components
        == 1
    )


def test_rows_are_held_out_at_random_and_each_is_used_once():
    x = np.arange(200.0)[:, None]
    train, test = fit_command.split(x, 0.1, seed=0)
    assert (len(train), len(test)) == (180, 20)
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test]), axis=0), x)
    assert test.max() > 150 > 50 > test.min()
    assert not np.array_equal(test, fit_command.split(x, 0.1, seed=1)[1])
    assert len(fit_command.split(x, 0.04, seed=0)[1]) == 0  # 8 rows would tell nothing


def test_the_normaliser_of_a_known_density():
    policy = make_mixture(3)
    kde = virl_tf.kde.fit_kde(policy.sample(400, [1, 2]).numpy(), 0.5)
    reward = make_reward([], base=policy, base_exponent=1.0)
    log_z, effective = fit_command.log_normaliser(reward, fit_command.Fusion(policy, kde), seed=0)
    assert abs(log_z) < 0.02
    assert effective > 0.5 * fit_command.NORMALISER_DRAWS
    half = fit_command.log_normaliser(
        reward._replace(base_exponent=0.5 * reward.base_exponent),
        fit_command.Fusion(policy, kde),
        seed=0,
    )
    assert half[0] > 0.5


def test_it_says_what_the_reward_is_made_of(finished):
    out, shown = finished
    summary = json.loads((out / "summary.json").read_text())
    exponent, reward = summary["mixture_exponent"], virl_tf.load(out).reward
    assert exponent == float(reward.mixture_exponent)
    assert ("x the log density of an EM mixture" in shown) == (exponent > 0.0)
    gained = summary["validation_loss"] < summary["chance_loss"]
    assert ("found nothing more" in shown) != gained


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


def test_repeated_rows_are_pointed_out(finished):
    assert "5 rows repeat another" in finished[1]


def test_files_of_a_run_that_was_killed_before_its_summary_are_completed(call, finished, tmp_path):
    out, _ = finished
    summary = (out / "summary.json").read_text()
    for name in ("summary.json", "grid.npz", "reward.png"):
        (out / name).unlink()
    assert (
        call("fit", out.parent / "mine.csv", "--columns", "speed,distance", *TINY, "--out", out)[0]
        == 0
    )
    assert (out / "reward.png").is_file()
    found, before = json.loads((out / "summary.json").read_text()), json.loads(summary)
    for timed in (found, before):
        timed.pop("cpu_seconds")
    assert found == before
    assert style.read(out, "grid.npz")["axes"].shape == (2, fit_command.RESOLUTION)
