"""Light components that give way to halves of heavy ones, after a search."""

import io

from virl_tf.fit_policy import fit_policy
from virl_tf.hparams import search_hparams
from virl_tf.mixture import Mixture, without_light
from virl_tf.numerics import split_seed
from virl_tf.observers import StepBar
from virl_tf.policy_fit.steps import LEAST_WEIGHT, STEPS_AFTER_SPLIT, Steps
from virl_tf.policy_fit.watch import Watch
from virl_tf.vips.adaptive import budget_of
from virl_tf.vips.elbo import DRAWS, Measured, measured
from virl_tf.vips.vips import default_samples, step_options

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

CORNERS = np.array([[-4.0, -4.0], [-4.0, 4.0], [4.0, -4.0], [4.0, 4.0]])
SHARES = np.array([0.9, 0.08, 0.01, 0.01])
VARIANCE = 0.05


def mixture(weights, means, variances):
    scales = np.sqrt(np.broadcast_to(variances, len(means)))
    arrays = (np.log(weights), means, scales[:, None, None] * np.eye(means.shape[1]))
    return Mixture(*(tf.constant(array, tf.float64) for array in arrays))


def ring(x):
    """One mode that no few Gaussians describe."""
    return -0.5 * ((tf.norm(x, axis=1) - 5.0) / 0.1) ** 2


EXACT = mixture(SHARES, CORNERS, VARIANCE)


def steps_on(target, seed=0):
    options = step_options(0.005, 0.05, 1e-6)
    return Steps(target, seed, options, 40, gradients=True, jit_compile=False)


def on_the_ring(k, light):
    """Four heavy components there, and others that hold hardly any weight."""
    angles = np.pi * np.arange(k) / 2.0
    means = 5.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    weights = np.where(np.arange(k) < 4, 1.0, light)
    return mixture(weights / weights.sum(), means, 0.3)


def test_light_components_give_way_to_halves_of_the_heaviest():
    weights = np.array([0.6, 0.39, 0.005, 0.005])
    policy = mixture(weights, CORNERS, np.array([1.0, 2.0, 3.0, 4.0]))
    found = without_light(policy, 0.3)
    kept = weights[:2] / weights[:2].sum()
    # The heaviest is split, then what is the heaviest of three.
    expected = [0.5 * kept[0], 0.5 * kept[0], 0.5 * kept[1], 0.5 * kept[1]]
    np.testing.assert_allclose(np.sort(np.exp(found.log_weights)), np.sort(expected), atol=1e-12)
    np.testing.assert_allclose(
        np.exp(found.log_weights) @ found.means.numpy(), kept @ CORNERS[:2], atol=1e-12
    )
    halves = found.means.numpy()[found.means.numpy()[:, 1] < 0.0]
    np.testing.assert_allclose(halves.mean(axis=0), CORNERS[0], atol=1e-12)


def test_where_none_is_light_the_mixture_is_returned():
    policy = mixture(np.full(4, 0.25), CORNERS, 1.0)
    assert without_light(policy, 0.99) is policy
    assert without_light(EXACT, 0.03) is EXACT


def test_a_policy_with_light_components_is_better_after_splits(monkeypatch):
    monkeypatch.setattr("virl_tf.policy_fit.steps.STEPS_AFTER_SPLIT", 20)
    policy, steps = on_the_ring(12, light=1e-9), steps_on(ring)
    watch = Watch(policy, None, 50)
    found, evaluations = steps._split(policy, 3, 30, watch)
    before, after = (measured(one, ring, DRAWS, 0) for one in (policy, found))
    assert after.elbo > before.elbo + 1.0
    assert np.exp(found.log_weights).min() > LEAST_WEIGHT / 12 / 3
    samples = default_samples(2, gradients=True)
    assert evaluations == 3 * 20 * samples * 12
    assert len(watch.history) == 3 * 20


def test_light_components_that_are_modes_stay():
    watch = Watch(EXACT, None, 50)
    watch.histories = ["of the search"]
    found, evaluations = steps_on(EXACT.log_prob)._split(EXACT, 3, 30, watch)
    assert found is EXACT
    assert watch.histories == ["of the search"]
    # One round was enough to see it.
    assert evaluations == STEPS_AFTER_SPLIT * default_samples(2, gradients=True) * 4


@pytest.mark.parametrize("rounds", [0, 6])
def test_nothing_is_split_where_nothing_is_light_or_no_round_is_asked_for(rounds):
    policy = on_the_ring(12, light=1e-9) if rounds == 0 else on_the_ring(4, light=1.0)
    watch = Watch(policy, None, 50)
    found, evaluations = steps_on(ring)._split(policy, rounds, 30, watch)
    assert found is policy
    assert evaluations == 0
    assert watch.histories == []


def test_a_policy_that_broke_down_is_left_as_it_is():
    broken = EXACT._replace(means=EXACT.means * np.nan)
    assert steps_on(ring)._split(broken, 3, 30, Watch(EXACT, None, 50)) == (broken, 0)


def test_evaluations_of_splits_are_counted(monkeypatch):
    monkeypatch.setattr(Steps, "_split", lambda steps, policy, *_: (policy, 1000))
    search = {"num_rounds": 1, "steps_per_round": 1}
    sizes = {"num_steps": 1, "samples_per_component": 40}
    fitted = fit_policy(lambda x: -tf.reduce_sum(x**2, axis=1), 2, 1, search=search, **sizes)
    budget = budget_of(1, 2, search_hparams(search), gradients=True)
    assert fitted.evaluations == budget.evaluations + 1000 + 40


def test_what_is_measured_is_the_policy_inside_of_the_support():
    policy = mixture(np.ones(1), np.zeros((1, 2)), 1.0)

    def target(x):
        return tf.where(x[:, 0] > 0.5, 3.0 - x[:, 1] ** 2, -np.inf)

    x = policy.sample(DRAWS, split_seed(7, 0, "ELBO"))
    inside = x.numpy()[:, 0] > 0.5
    ratios = (target(x) - policy.log_prob(x)).numpy()[inside]
    found = measured(policy, target, DRAWS, 7)
    assert found.inside == inside.mean() < 0.5
    assert found.elbo == pytest.approx(ratios.mean() + np.log(inside.mean()))
    of_ratios = ratios.std(ddof=1) / np.sqrt(inside.sum())
    of_share = inside.std(ddof=1) / np.sqrt(DRAWS) / inside.mean()
    assert found.error == pytest.approx(np.hypot(of_ratios, of_share))


@pytest.mark.parametrize(
    ("elbo", "inside", "beats"),
    [(1.29, 0.8, True), (1.28, 0.8, False), (1.29, 0.79, False), (9.0, 0.79, False)],
)
def test_a_policy_beats_another_by_two_standard_errors_and_with_no_more_outside(
    elbo, inside, beats
):
    other = Measured(1.0, 0.1, 0.8)  # two standard errors of the difference are 0.283
    assert Measured(elbo, 0.1, inside).beats(other) is beats


def test_the_bar_counts_steps_that_were_not_planned():
    out = io.StringIO()
    with StepBar(10, Console(file=out)) as bar:
        bar.extend(10)
        for _ in range(20):
            bar.step(0.0)
    assert out.getvalue().splitlines()[-1].startswith("step 20 of 20")
