"""Draws of earlier steps, which serve a step again."""

from virl_tf.hparams import search_hparams
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY
from virl_tf.vips.adaptive import budget_of, search
from virl_tf.vips.reuse import Evaluated, no_batches, weighed, with_latest
from virl_tf.vips.surrogate import fit_quadratic, fit_slopes
from virl_tf.vips.vips import step_options, vips_step

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tests.shared import make_mixture

SEED = tf.constant([5, 6])
OPTIONS = step_options(0.05, 0.05, 1e-6)
RIDGE = tf.constant(1e-6, DENSITY)


def gaussian(x):
    """Log density of a Gaussian around (1, 2), up to a constant."""
    return -2.0 * (x[:, 0] - 1.0) ** 2 - 0.5 * (x[:, 1] - 2.0) ** 2 + 0.3 * x[:, 0] * x[:, 1]


def moved(policy, by):
    """The same mixture elsewhere, its components wider."""
    return policy._replace(means=policy.means + by, scale_trils=1.2 * policy.scale_trils)


def drawn(policy, num_samples, seed):
    """Draws of every component, of which nothing is known."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(*policy.means.shape[:1], num_samples, policy.dim))
    points = policy.means.numpy()[:, None] + np.einsum(
        "kij,ksj->ksi", policy.scale_trils.numpy(), z
    )
    zeros = tf.zeros(points.shape, DENSITY)
    return Evaluated(tf.constant(points), zeros[..., 0], zeros)


def after(policies, num_samples=4, seed=0):
    """Batches of as many steps, the latest from the last of these."""
    batches = no_batches(policies[0], len(policies), num_samples)
    for i, policy in enumerate(policies):
        batches = with_latest(batches, drawn(policy, num_samples, seed + i), policy)
    return batches


def test_a_weight_is_the_density_now_by_the_mean_of_all_that_were():
    start = make_mixture(3)
    policies = [start, moved(start, 0.2), moved(start, -0.1)]
    evaluated, z, weights = weighed(after(policies))
    for k in range(3):
        densities = np.array(
            [
                stats.multivariate_normal(
                    policy.means[k].numpy(), policy.covariances[k].numpy()
                ).pdf(evaluated.points[k].numpy())
                for policy in policies
            ]
        )
        expected = densities[-1] / densities.mean(axis=0)
        np.testing.assert_allclose(weights[k], expected / expected.mean(), rtol=1e-9)
    now = policies[-1]
    there = now.means[:, None] + tf.einsum("kij,ksj->ksi", now.scale_trils, z)
    np.testing.assert_allclose(there, evaluated.points, atol=1e-12)


def test_draws_of_a_component_that_stayed_weigh_the_same():
    policy = make_mixture(2, 3)
    np.testing.assert_allclose(weighed(after([policy] * 4))[2], 1.0, atol=1e-12)


def test_what_a_component_has_not_drawn_weighs_nothing():
    policy = make_mixture(2)
    batches = with_latest(no_batches(policy, 3, 4), drawn(policy, 4, 0), policy)
    weights = weighed(batches)[2].numpy()
    np.testing.assert_allclose(weights[:, :4], 3.0, atol=1e-12)
    assert (weights[:, 4:] == 0.0).all()


def test_what_a_component_was_before_it_drew_is_no_part_of_the_mean():
    start = make_mixture(1)
    policies = [moved(start, 0.2), moved(start, -0.1)]
    batches = no_batches(start, 3, 4)
    for i, policy in enumerate(policies):
        batches = with_latest(batches, drawn(policy, 4, i), policy)
    evaluated, _, weights = weighed(batches)
    x = evaluated.points[:, :8]
    before, now = (np.exp(policy.log_prob(x)[0]) for policy in policies)
    expected = now / (before + now)
    np.testing.assert_allclose(weights[0, :8], 12.0 * expected / expected.sum(), rtol=1e-9)


def test_the_oldest_batch_goes():
    policies = [moved(make_mixture(2), 0.1 * i) for i in range(4)]
    batches = no_batches(policies[0], 2, 4)
    for i, policy in enumerate(policies):
        batches = with_latest(batches, drawn(policy, 4, i), policy)
    np.testing.assert_array_equal(batches.points[:, 0], drawn(policies[3], 4, 3).points)
    np.testing.assert_array_equal(batches.points[:, 1], drawn(policies[2], 4, 2).points)
    np.testing.assert_array_equal(batches.means[:, 1], policies[2].means)


def test_weighed_means_are_those_of_the_component_now():
    """Of 40,000 draws of three densities, within five standard errors."""
    start = make_mixture(1)
    policies = [start, moved(start, 0.3), moved(start, 0.6)]
    evaluated, _, weights = weighed(after(policies, 40_000))
    x, w = evaluated.points[0].numpy(), weights[0].numpy()
    mean, error = (w[:, None] * x).mean(axis=0), (w[:, None] * x).std(axis=0) / np.sqrt(len(x))
    assert (np.abs(mean - policies[-1].means[0]) < 5.0 * error).all()
    unweighed = np.abs(x.mean(axis=0) - policies[-1].means[0])
    assert (unweighed > 20.0 * error).all()


def test_gains_are_means_over_what_components_are_now():
    policy = make_mixture(2)
    batches = no_batches(policy, 3, 4)
    for i, before in enumerate([moved(policy, 0.6), moved(policy, 0.3)]):
        latest = drawn(before, 4, i)
        values = tf.reshape(gaussian(tf.reshape(latest.points, [-1, 2])), [2, 4])
        batches = with_latest(batches, latest._replace(values=values), before)
    _, _, seen = vips_step(policy, gaussian, SEED, OPTIONS, 4, batches=batches)
    evaluated, _, weights = weighed(seen.batches)
    x = tf.reshape(evaluated.points, [-1, 2])
    ratios = np.reshape(gaussian(x) - policy.log_prob(x), weights.shape)
    np.testing.assert_allclose(seen.gains, np.mean(weights * ratios, axis=1), rtol=1e-9)
    assert (np.abs(seen.gains - ratios.mean(axis=1)) > 0.1).all()


@pytest.mark.parametrize("dim", [2, 11])  # normal equations, conjugate gradients
def test_a_weight_of_two_is_a_point_twice(dim):
    rng = np.random.default_rng(dim)
    z = rng.normal(size=(1, 150, dim))
    rewards = np.sin(z).sum(axis=-1) + z[..., 0] * z[..., 1]
    slopes = np.cos(z)
    weights = np.tile([0.5, 1.0, 1.5], 50)[None]  # once, twice, three times, of mean one
    rows = np.repeat(np.arange(150), (2 * weights[0]).astype(int))
    fits = (
        (fit_quadratic, rewards, 1e-4),
        (fit_slopes, slopes, 1e-12),
    )
    for fit, given, tolerance in fits:
        weighted = fit(tf.constant(z), tf.constant(given), RIDGE, tf.constant(weights))
        repeated = fit(tf.constant(z[:, rows]), tf.constant(given[:, rows]), RIDGE)
        for one, other in zip(weighted, repeated, strict=True):
            np.testing.assert_allclose(one, other, atol=tolerance)


@pytest.mark.parametrize("gradients", [False, True])
def test_eight_steps_of_an_eighth_of_the_draws_see_as_much_as_one(gradients):
    """The target is quadratic, and one component: its surrogate is exact from enough draws on."""
    policy = Mixture(*(a[:1] for a in make_mixture(2)))._replace(log_weights=tf.zeros([1], DENSITY))
    full = vips_step(policy, gaussian, SEED, OPTIONS, 40, gradients)[0]
    batches = no_batches(policy, 8, 5)
    for i in range(7):
        batches = with_latest(batches, _evaluated_draws(policy, 5, i), policy)
    found, _, seen = vips_step(policy, gaussian, SEED, OPTIONS, 5, gradients, batches)
    for one, other in zip(found, full, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert seen.latest.points.shape == (1, 5, 2)
    np.testing.assert_array_equal(seen.batches.points[:, 0], seen.latest.points)


def _evaluated_draws(policy, num_samples, seed):
    found = drawn(policy, num_samples, seed)
    x = tf.reshape(found.points, [-1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        values = gaussian(x)
    slopes = tf.reshape(tape.gradient(values, x), found.points.shape)
    return Evaluated(found.points, tf.reshape(values, found.values.shape), slopes)


def test_a_component_that_has_seen_nothing_finite_stays():
    """Batches that were not drawn are no values: alone they keep no component alive."""
    policy = moved(make_mixture(2), [100.0, 0.0])

    def nowhere(x):
        return tf.where(x[:, 0] < 0.0, gaussian(x), tf.constant(-np.inf, DENSITY))

    found, row, _ = vips_step(policy, nowhere, SEED, OPTIONS, 6, True, no_batches(policy, 3, 6))
    np.testing.assert_allclose(found.means, policy.means, atol=1e-12)
    np.testing.assert_allclose(found.scale_trils, policy.scale_trils, atol=1e-12)
    assert row.rejected == 1.0


@pytest.mark.parametrize(("gradients", "full"), [(False, 35), (True, 18)])
def test_a_search_draws_as_many_less(gradients, full):
    def samples(reused_steps):
        hparams = search_hparams({"reused_steps": reused_steps})
        return budget_of(10, 5, hparams, gradients).samples

    assert samples(0) == full
    assert samples(3) == -(-full // 4)


@pytest.mark.parametrize("reused_steps", [0, 2])
def test_every_evaluation_of_a_search_is_counted(reused_steps):
    seen = []

    def target(x):
        count = tf.py_function(lambda x: seen.append(len(x)) or np.float64(0.0), [x], tf.float64)
        return gaussian(x) + count

    few = {"num_rounds": 2, "steps_per_round": 3, "reused_steps": reused_steps}
    hparams = search_hparams(few)
    search(make_mixture(2), target, SEED, OPTIONS, hparams)
    assert sum(seen) == budget_of(2, 2, hparams).evaluations


def test_draws_that_were_not_made_leave_a_component_its_gradients():
    """A component that is new to a search has batches without values, which weigh nothing."""
    policy = make_mixture(3)
    alone, *_ = vips_step(policy, gaussian, SEED, OPTIONS, 12, True)
    room = no_batches(policy, 3, 12)
    beside, *_ = vips_step(policy, gaussian, SEED, OPTIONS, 12, True, room)
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
