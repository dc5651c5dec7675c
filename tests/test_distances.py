"""I-projections from draws against those on the grid, where both exist."""

from types import SimpleNamespace

from virl_tf import metrics
from virl_tf.em.em import em_mixture
from virl_tf.kde import fit_kde
from virl_tf.mixture import moments
from virl_tf.persistence.files import save_arrays, write_json
from virl_tf.tasks import RandomGaussians

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from experiments.evaluation import densities
from experiments.evaluation.distances import GridDistances, SampledDistances, distances_of
from experiments.specification import RunRequest
from experiments.tasks import experiment_of
from tests.shared import make_network, make_reward

TASK = RandomGaussians(5, 0)
X = TASK.exact_samples(2000, 0)[0]


def as_reward(mixture, constant):
    """A reward that is a mixture, up to a constant."""
    network = (
        make_network(dim=mixture.dim)
        .times(0.0)
        ._replace(output_bias=np.array([constant], np.float32))
    )
    return make_reward([network], dim=mixture.dim, base=mixture)


@pytest.mark.parametrize("components", [4, 5])
def test_draws_and_grid_agree_on_rewards_and_densities(components):
    policy = em_mixture(X, components, 0)
    grid, draws = GridDistances(TASK, X), SampledDistances(TASK, X)
    # The tails that the grid cuts off, and the noise of 20,000 draws, are a few per cent of the
    # distance.
    assert draws.of_density(policy) == pytest.approx(grid.of_density(policy), rel=0.2, abs=0.02)
    reward = as_reward(policy, 40.0)
    assert draws.of_reward(reward, policy) == pytest.approx(
        draws.of_density(policy), rel=0.2, abs=0.02
    )


def test_a_kernel_estimate_is_measured_by_its_own_draws():
    kde = fit_kde(X, "held_out")
    assert SampledDistances(TASK, X).of_density(kde) == pytest.approx(
        GridDistances(TASK, X).of_density(kde), rel=0.1, abs=0.02
    )


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_references_of_a_sweep_are_measured_in_any_dimension(dim, monkeypatch):
    given = {"preset": "smoke", "modes": 3, "dim": dim, "rows": 200}
    spec = RunRequest("gaussians", **given).specification()
    x = spec.description.target(spec.to_config()).exact_samples(200, 0)[0]
    fitted = em_mixture(x, 3, 0)
    monkeypatch.setattr(densities, "fit_references", lambda *_: {"em_target": fitted})
    experiment = experiment_of(spec.to_config())
    expected = distances_of(experiment.task, x).of_density(fitted)
    assert experiment.references(x) == {"i_projection": {"em_target": expected}}


@pytest.mark.parametrize("dim", [1, 3, 10])
def test_the_target_itself_is_at_distance_zero_in_any_dimension(dim):
    task = RandomGaussians(5, 0, dim=dim)
    x = task.exact_samples(500, 0)[0]
    distances = distances_of(task, x)
    reward = as_reward(task.mixture, -3.0)
    assert abs(distances.of_density(task.mixture)) < 1e-9
    assert abs(distances.of_reward(reward, moments(x))) < 0.02


def test_mass_where_only_the_wide_part_reaches_is_seen():
    task = RandomGaussians(5, 0, dim=4)
    x = task.exact_samples(2000, 0)[0]
    far = moments(np.asarray(x))
    both = task.mixture._replace(
        log_weights=tf.concat([task.mixture.log_weights + np.log(0.5), [np.log(0.5)]], axis=0),
        means=tf.concat([task.mixture.means, far.means], axis=0),
        scale_trils=tf.concat([task.mixture.scale_trils, far.scale_trils], axis=0),
    )
    found = SampledDistances(task, x).of_reward(as_reward(both, 0.0), task.mixture)
    assert found == pytest.approx(SampledDistances(task, x).of_density(both), rel=0.1)
    assert found > 1.0


def test_mass_of_the_mixtures_that_a_reward_is_made_of_is_seen():
    """In ten dimensions neither p nor the policy nor one Gaussian meets what a broad component of
    an EM mixture holds.
    """
    task = RandomGaussians(50, 3, dim=10)
    x = task.exact_samples(4000, 0)[0]
    one, two = (em_mixture(x, 20, seed) for seed in (0, 1))
    distances = SampledDistances(task, x)
    averaged = make_reward(
        [], dim=10, base=moments(x), base_exponent=0.0, mixture=one, mixture_exponent=1.0
    )
    for reward in (as_reward(one, 1.0), averaged):
        assert distances.of_reward(reward, two) == pytest.approx(
            distances.of_density(one), rel=0.05
        )


# --- what runs and inferences tell ----------------------------------------------------------------


def experiment_in_2d():
    spec = RunRequest("gaussians", preset="smoke", modes=5, rows=200).specification()
    return experiment_of(spec.to_config())


def test_the_policy_is_scored_on_the_test_demonstrations():
    experiment, policy = experiment_in_2d(), em_mixture(X[:200], 3, 0)
    measure = experiment.evaluator(X[:200], X[1000:])
    found = measure(SimpleNamespace(policy=policy, reward=as_reward(policy, 2.0)))
    expected = float(np.mean(policy.log_prob(X[1000:])))
    assert found["test_log_likelihood_policy"] == pytest.approx(expected)
    assert expected != pytest.approx(float(np.mean(policy.log_prob(X[:200]))))


@pytest.mark.parametrize(("diverged", "status"), [("reward", "diverged"), ("policy", "finished")])
def test_a_run_diverges_by_its_reward(diverged, status, monkeypatch):
    history = {f"i_projection_{name}": [0.5, 0.1, 0.2] for name in ("reward", "policy")}
    history[f"i_projection_{diverged}"] = [0.5, 0.1, 3.0]
    history["test_log_likelihood_policy"] = [-3.0, -2.0, -1.0]
    monkeypatch.setattr(densities, "fit_references", lambda *_: {})
    summary = experiment_in_2d().summarise(X, SimpleNamespace(history=pd.DataFrame(history)))
    assert summary["status"] == status
    assert summary["i_projection"][diverged] == {"best": 0.1, "final": 3.0, "reported": 1.55}
    assert summary["test_log_likelihood_policy"] == -1.0


@pytest.mark.parametrize(("rows", "components"), [(6, 6), (50, 10)])
def test_em_as_a_policy_has_no_more_components_than_rows(rows, components, monkeypatch):
    asked = []
    monkeypatch.setattr(densities, "fit_references", lambda _, of: asked.append(of) or {})
    experiment_in_2d().references(X[:rows])
    assert [of.components for of in asked] == [components]


def test_a_new_policy_stands_beside_the_mean_of_the_training_policies(tmp_path):
    runs = [tmp_path / name for name in "abc"]
    for run, reported in zip(runs, (0.1, 0.2, 0.9), strict=True):
        run.mkdir()
        of_policy = {"best": 9.0, "final": 9.0, "reported": reported}
        write_json(run / "summary.json", {"i_projection": {"policy": of_policy}})
        save_arrays(run / "demonstrations.npz", {"train": X, "test": X[:0]})
    one, two = (em_mixture(X, k, 0) for k in (1, 3))
    inference = experiment_in_2d().inference(runs, [as_reward(one, 3.0)] * 2)
    rows = [{"step": 50, "i_projection_policy": 0.1}, {"step": 100, "i_projection_policy": 0.5}]
    found, sentence = inference.finish(tmp_path, two, rows, {})
    distances = found["i_projection"]
    points = metrics.grid_around(X).points
    expected = metrics.i_projection(two.log_prob(points), one.log_prob(points))
    assert distances["inference_policy_to_reward"] == pytest.approx(expected, rel=1e-4)
    assert distances["training_policy"] == pytest.approx(0.4)
    assert distances["inference_policy"] == {"best": 0.1, "final": 0.5, "reported": 0.3}
    assert "0.3000 for the new policy, 0.4000 for the training policy" in sentence
