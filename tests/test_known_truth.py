"""Tasks of paths with a known truth: what is measured, and the command line."""

import json
from types import SimpleNamespace

from virl_tf.mixture import gaussian
from virl_tf.tasks import Hall

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from experiments.evaluation import known_truth
from experiments.evaluation.known_truth import (
    DRAWS,
    KnownTruthExperiment,
    KnownTruthInference,
    Truth,
    proposal_of,
)
from experiments.result_files import columns_of
from tests import tiny
from tests.shared import make_mixture, make_network, make_reward

OVERRIDES = ["network.layer_size=8", "network.batch_norm=false", "training.num_epochs=2"]
OVERRIDES += ["policy.update_steps=2", "loop.num_iterations=2", "loop.num_negatives=500"]
TINY = ["--preset", "smoke", *tiny.set_words(*OVERRIDES)]
TASKS = {"obstacle_field": ["--steps", "2"], "hall": ["--modes", "3"]}
SLOW = pytest.mark.slow
OUTCOMES = {"obstacle_field": "ways_covered", "hall": "pairs_found"}


class Known:
    """A Gaussian as a task."""

    dim = 2
    density = gaussian(np.array([1.0, -2.0]), np.array([[1.0, 0.3], [0.3, 0.5]]))
    mode_centers = np.array([[1.0, -2.0]])

    def log_prob(self, x):
        return self.density.log_prob(tf.cast(x, tf.float64))

    def demonstrations(self, n, seed):
        return self.density.sample(n, [seed, 0]).numpy()

    def outcome(self, x):
        return {"right": float(np.mean(x[:, 0] > 1.0))}

    def paths(self, x):
        return x[:, None]


def test_distances_of_the_truth_itself_are_zero_and_of_another_gaussian_its_closed_form():
    truth = Truth(Known(), seed=0)
    assert truth.of_density(Known.density) == pytest.approx(0.0, abs=1e-12)
    shifted = Known.density._replace(means=Known.density.means + [[0.5, 0.0]])
    precision = np.linalg.inv(Known.density.covariances.numpy()[0])
    expected = 0.5 * 0.25 * precision[0, 0]
    assert truth.of_density(shifted) == pytest.approx(expected, abs=0.02)
    assert truth.of_policy(shifted).kl == pytest.approx(expected, abs=0.02)
    outcome = truth.outcome(truth.x)
    assert outcome["success"] == pytest.approx(0.99, abs=1e-3)
    assert outcome["right"] == pytest.approx(0.5, abs=0.02)
    assert truth.outcome_of(shifted)["right"] > 0.6


def test_the_truth_is_told_by_other_demonstrations_than_those_of_the_run():
    own = Known().demonstrations(DRAWS, 5)
    fresh = Truth(Known(), seed=5).x
    assert not np.isin(fresh, own).any()
    assert not np.isin(fresh, Truth(Known(), seed=6).x).any()


def test_a_rewards_constant_does_not_matter():
    """A reward that is a log density plus a constant has that density's distance."""
    truth, base = Truth(Known(), seed=0), make_mixture()
    constant = make_network().times(0.0)._replace(output_bias=np.array([40.0], np.float32))
    reward = make_reward([constant], base=base)
    expected = truth.of_density(base)
    assert truth.of_reward(reward, Known.density) == pytest.approx(expected, abs=0.1)
    halved = make_reward([], base=base, base_exponent=0.5, mixture=base, mixture_exponent=0.5)
    assert truth.of_reward(halved, Known.density) == pytest.approx(expected, abs=0.1)


def test_the_proposal_holds_the_mixture_that_the_reward_is_averaged_with():
    policy, other = make_mixture(seed=1), make_mixture(seed=2)
    assert proposal_of(make_reward([], mixture=other), policy).estimate is other
    plain = make_reward([])
    assert proposal_of(plain, policy).estimate is plain.base


def test_a_policy_outside_of_the_support_is_infinitely_far_and_does_nothing_right():
    truth = Truth(Hall(3), seed=0)
    away = gaussian(np.full(12, -50.0), np.eye(12))
    distance = truth.of_policy(away)
    assert (distance.kl, distance.outside) == (np.inf, 1.0)
    outcome = truth.outcome_of(away)
    assert outcome["success"] == outcome["gate_to_gate"] == outcome["pairs_found"] == 0.0


@pytest.mark.parametrize(("diverged", "status"), [("reward", "diverged"), ("policy", "finished")])
def test_a_summary_tells_the_outcome_of_each_density_and_how_a_run_ends(
    diverged, status, monkeypatch
):
    series = {f"forward_kl_{name}": [0.5, 0.1, 0.2] for name in ("reward", "policy")}
    series[f"forward_kl_{diverged}"] = [0.5, 0.1, 3.0]
    series |= {"kl_policy": [3.0, 2.0, 1.0], "outside_share": [1.0, 0.5, 0.25]}
    experiment = KnownTruthExperiment({"seed": 0}, Known())
    outcomes = {"outcome": lambda x: {"of": x}, "outcome_of": lambda q: {"draws of": q}}
    experiment.truth = SimpleNamespace(x="fresh", of_density=lambda q: 7.0, **outcomes)
    monkeypatch.setattr(known_truth, "fit_references", lambda *_: {"em_bic": "em"})
    monkeypatch.setattr(known_truth, "proposal_of", lambda *_: None)
    monkeypatch.setattr(known_truth, "reward_draws", lambda *_: ("of reward", 9.0))
    result = SimpleNamespace(history=pd.DataFrame(series), reward=None, policy="policy")
    found = experiment.summarise(None, result)
    assert found["outcomes"] == {
        "truth": {"of": "fresh"},
        "reward": {"of": "of reward"},
        "policy": {"draws of": "policy"},
        "em_bic": {"draws of": "em"},
    }
    assert (found["status"], found["outside_share"]) == (status, 0.25)
    assert found["effective_reward_draws"] == 9.0
    assert found["kl"]["policy"] == {"best": 1.0, "final": 1.0, "reported": 1.0}
    assert found["forward_kl"][diverged]["reported"] == 1.55
    assert found["forward_kl"]["em_bic"]["final"] == 7.0


def test_a_new_policy_is_told_from_the_training_policy(monkeypatch):
    kl, success = {"new": 1.0, "trained": 2.0}, {"new": 0.5, "trained": 0.75}
    truth = SimpleNamespace(
        of_policy=lambda q: SimpleNamespace(kl=kl[q], outside=0.0),
        outcome_of=lambda q: {"success": success[q]},
    )
    monkeypatch.setattr(
        known_truth, "RunFolder", lambda _: SimpleNamespace(policy=lambda: "trained")
    )
    rows = [{"kl_policy": 0.5}, {"kl_policy": 1.0}]
    inference = KnownTruthInference(truth, ["run"], [])
    found, sentence = inference.finish(None, "new", rows, {})
    values = {"best": 0.5, "final": 1.0, "reported": 0.75}
    assert found["kl"] == {"inference_policy": values, "training_policy": 2.0}
    told = {"policy": {"success": 0.5}, "training_policy": {"success": 0.75}}
    assert found["outcomes"] == told
    assert "1.0000 for the new policy, 2.0000 for the training policy; success 0.5" in sentence


@pytest.fixture(scope="module", params=["obstacle_field", pytest.param("hall", marks=SLOW)])
def run(request, call, tmp_path_factory):
    task = request.param
    out = tmp_path_factory.mktemp(task) / "run"
    few = ["--components", "3", "--rows", "150", "--no-tensorboard"]
    status, shown, error = call("run", task, *TASKS[task], *TINY, *few, "--out", out)
    assert status == 0, shown + error
    assert "lower KL is better" in shown
    assert "of it is where p is 0" in shown
    return task, out


@pytest.mark.usefixtures("quick")
def test_a_run_is_measured_and_drawn(run):
    task, out = run
    summary, metrics = (
        json.loads((out / "summary.json").read_text()),
        pd.read_csv(out / "metrics.csv"),
    )
    for name in ("reward", "policy"):
        final = summary["forward_kl"][name]["final"]
        assert final == pytest.approx(metrics[f"forward_kl_{name}"].iloc[-1])
    assert summary["kl"]["policy"]["final"] == pytest.approx(metrics["kl_policy"].iloc[-1])
    assert set(summary["outcomes"]) == {"truth", "reward", "policy", "em_bic", "kde_held_out"}
    assert summary["outcomes"]["truth"]["success"] == pytest.approx(0.99, abs=1e-3)
    assert all(OUTCOMES[task] in found for found in summary["outcomes"].values())
    assert 0.0 <= summary["outside_share"] <= 1.0
    assert (out / "overview.png").stat().st_size > 10_000


@pytest.mark.usefixtures("quick")
def test_a_policy_is_inferred_on_its_reward(call, run):
    task, out = run
    options = ["--components", "3", "--fixed", "--steps", "5", "--samples", "40"]
    status, shown, error = call("infer", out, *options)
    assert status == 0, shown + error
    assert f"{OUTCOMES[task]} " in shown
    found = json.loads((out / "inference" / "summary.json").read_text())
    assert set(found["kl"]) == {"inference_policy", "training_policy"}
    assert set(found["outcomes"]) == {"policy", "training_policy"}


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("task", TASKS)
def test_a_sweep_of_it(call, task, tmp_path):
    out = tmp_path / "sweep"
    status, shown, error = call("sweep", task, *TINY, "--workers", "1", "--out", out)
    assert status == 0, shown + error
    frame = pd.read_csv(out / "results.csv")
    assert list(frame.columns) == columns_of(task)
    assert set(frame["stage"]) == {"training", "training_policy", "inference"}
    assert frame["policy_success"].between(0.0, 1.0).all()
