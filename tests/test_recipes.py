"""The recipes: their very lines are run here, and what they promise is measured."""

import re
from pathlib import Path

import virl_tf
from virl_tf.metrics import contrast, grid_around, normalise_on_grid

import numpy as np
import pytest

from tests import test_tasks

PAGE = Path(__file__).parent.parent / "docs" / "recipes.md"
TITLES = {
    "A constraint at inference",
    "A policy that keeps to what is likeliest",
    "A log density that is slow",
    "Samples of the recovered density",
    "Trajectories of a Gymnasium environment",
    "A new task, a new method",
}
SETTINGS = {
    "network": {"num_layers": 2, "layer_size": 32},
    "training": {"num_epochs": 15, "batch_size": 100},
    "loop": {"num_iterations": 4, "num_negatives": 4000},
    "kde": {"bandwidth": 0.15},
}


def recipes():
    """{title: its code blocks}."""
    _, *parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        part.partition("\n")[0]: re.findall(r"```python\n(.*?)```", part, re.DOTALL)
        for part in parts
    }


@pytest.fixture(scope="module")
def trained():
    """What "From Python" leaves behind, smaller."""
    demonstrations, _ = virl_tf.tasks.RandomGaussians(4, seed=2).exact_samples(1500, seed=0)
    result = virl_tf.fit(demonstrations, num_components=10, seed=0, hparams=SETTINGS)
    return {"np": np, "virl_tf": virl_tf, "demonstrations": demonstrations, "result": result}


def cook(title, block, given):
    """Run one block of a recipe; returns its names."""
    names = dict(given)
    exec(compile(recipes()[title][block], f"{PAGE.name}, {title}", "exec"), names)
    return names


@pytest.mark.slow
def test_a_frugal_policy_takes_a_twentieth_of_the_evaluations(trained):
    frugal = cook("A log density that is slow", 0, trained)["frugal"]
    usual = virl_tf.fit_policy(trained["result"].reward.log_prob, dim=2, num_components=10, seed=1)
    assert usual.evaluations > 20 * frugal.evaluations
    assert frugal.elbo > usual.elbo - 0.5


def test_every_recipe_has_a_test():
    assert set(recipes()) == TITLES
    assert {title: len(blocks) for title, blocks in recipes().items()} == {
        t: 1 + (t.startswith("Samples")) for t in TITLES
    }


@pytest.mark.slow
def test_a_constraint_at_inference(trained):
    names = cook("A constraint at inference", 0, trained)
    before, after = (
        policy.sample(4000, [0, 1]).numpy() for policy in (names["start"], names["detour"])
    )
    inside = [
        np.mean(np.linalg.norm(x - names["centre"], axis=1) < names["radius"])
        for x in (before, after)
    ]
    assert inside[0] > 0.1
    assert inside[1] < 0.02
    # What is outside stays good: as likely under the reward as what the old policy does outside.
    rewards = [
        trained["result"]
        .reward(x[np.linalg.norm(x - names["centre"], axis=1) >= names["radius"]])
        .numpy()
        for x in (before, after)
    ]
    assert rewards[1].mean() > rewards[0].mean() - 0.5


@pytest.mark.slow
def test_a_policy_that_keeps_to_what_is_likeliest(trained):
    careful = cook("A policy that keeps to what is likeliest", 0, trained)["careful"]
    reward = trained["result"].reward
    usual = virl_tf.fit_policy(reward, dim=2, num_components=10, seed=1).policy
    means = [reward(policy.sample(4000, 0)).numpy().mean() for policy in (usual, careful)]
    assert means[1] > means[0] + 0.2


@pytest.fixture(scope="module")
def exact(trained):
    """Mean [2] and standard deviation [2] of the recovered density, on a grid."""
    grid = grid_around(trained["demonstrations"], 200, margin=0.3)
    weights = np.exp(normalise_on_grid(trained["result"].reward(grid.points)))
    mean = weights @ grid.points
    return mean, np.sqrt(weights @ (grid.points - mean) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize(("block", "name"), [(0, "hmc_draws"), (1, "slice_draws")])
def test_samples_of_the_recovered_density(trained, exact, block, name):
    draws = cook("Samples of the recovered density", block, trained)[name].numpy()
    assert draws.shape == (20, 200, 2)
    assert len(np.unique(draws.reshape(-1, 2), axis=0)) > 2000, "the chains move"
    mean, deviation = exact
    # 200 chains: the mean of the draws has a standard error of at least deviation / sqrt(200).
    np.testing.assert_allclose(draws.mean(axis=(0, 1)), mean, atol=0.3 * deviation.max())
    np.testing.assert_allclose(draws.reshape(-1, 2).std(axis=0), deviation, rtol=0.2)


@pytest.mark.slow
def test_trajectories_of_a_gymnasium_environment(trained):
    pytest.importorskip("gymnasium", reason="extra `gymnasium`")
    names = cook("Trajectories of a Gymnasium environment", 0, trained)
    assert names["expert"].shape == (200, 2)
    assert names["strong"] > names["between"] + 2.0
    assert names["gentle"] > names["between"] + 2.0
    new = [
        names["features"](names["drive"](names["car"], s, seed)[0])
        for s in (0.9, 0.5)
        for seed in range(2000, 2010)
    ]
    other = [
        names["features"](names["drive"](names["car"], s, seed)[0])
        for s in (0.7, 0.3)
        for seed in range(2000, 2010)
    ]
    assert contrast(*(names["driving"].reward(np.array(x)) for x in (new, other)))["auc"] > 0.95


@pytest.fixture
def methods():
    """The table of methods, as it was again after the test."""
    before = dict(virl_tf.METHODS)
    yield virl_tf.METHODS
    virl_tf.METHODS.clear()
    virl_tf.METHODS.update(before)


@pytest.mark.slow
def test_a_new_task_and_a_new_method(trained, methods):
    names = cook("A new task, a new method", 0, trained)
    ring, thirty = names["ring"], names["ring"].demonstrations(30, seed=0)
    test_tasks.test_dimension(ring)
    test_tasks.test_mode_centres(ring)
    test_tasks.test_log_prob_is_float64_of_any_kind_of_points(ring, lambda x: x.tolist())
    test_tasks.test_log_prob_is_evaluated_point_by_point(ring, thirty)
    test_tasks.test_log_prob_is_higher_at_mode_centres_than_far_away(ring)
    test_tasks.test_demonstrations_are_points_of_the_density(ring, thirty)
    test_tasks.test_demonstrations_are_a_function_of_their_seed(ring, thirty)
    for n, seed, name in ((0, 0, "n"), (2.5, 0, "n"), (10, -1, "seed")):
        test_tasks.test_bad_numbers_of_draws_and_bad_seeds_are_refused_by_name(ring, n, seed, name)
    axis = np.linspace(-3.0, 3.0, 400)
    square = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    assert np.exp(ring.log_prob(square)).sum() * (axis[1] - axis[0]) ** 2 == pytest.approx(
        1.0, abs=1e-3
    )

    assert names["bare"].config["method"] == "virl_bare"
    assert not names["row"].fusion
    assert not names["row"].importance_weights
    history = names["bare"].history[:3]  # its iterations; pooling, which follows, has other draws
    np.testing.assert_allclose(
        history["effective_sample_size"], history["num_negatives"], rtol=1e-9
    )  # every weight is one
    fresh = ring.demonstrations(500, seed=9)
    assert (
        contrast(names["bare"].reward(fresh), names["bare"].reward(np.zeros((1, 2))))["auc"] > 0.9
    ), "the ring above its middle"
