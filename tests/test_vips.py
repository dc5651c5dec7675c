from virl_tf.mixture import Mixture, gaussian
from virl_tf.numerics import DENSITY, split_seed
from virl_tf.vips import improve as line_4
from virl_tf.vips import vips
from virl_tf.vips.improve import improve
from virl_tf.vips.vips import (
    VipsHistory,
    default_samples,
    step_options,
    vips_step,
    vips_steps,
)

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logsumexp
from scipy.stats import norm

from tests import tiny
from tests.reference import eim
from tests.reference import vips as reference
from tests.shared import make_mixture, make_network, make_reward, plain_graph

pytestmark = pytest.mark.xla
SEED = split_seed(0, 0, "vips test")


def constants(*values):
    return [tf.constant(value, DENSITY) for value in values]


def step(policy, target, num_samples=40, bounds=(0.05, 0.02), ridge=1e-13, seed=SEED):
    return vips_step(policy, target, seed, step_options(*bounds, ridge), num_samples)[:2]


def draws(policy, num_samples, seed=SEED):
    """The whitened draws [K, S, D] of a step with this seed."""
    k, d = policy.means.shape
    return tf.random.stateless_normal([k, num_samples, d], seed, dtype=DENSITY).numpy()


def arrays(policy):
    return [np.asarray(a) for a in policy]


def covariances(policy):
    return policy.covariances.numpy()


def wavy(x):
    """A target that is no quadratic, [N, 2] -> [N]; works on NumPy arrays and tensors."""
    return 2.0 * tf.sin(x[:, 0]) - 0.3 * x[:, 1] ** 2 + tf.cos(x[:, 0] * x[:, 1])


# --- one step -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_components", [1, 3])
@pytest.mark.parametrize("bounds", [(0.05, 0.02), (1e-3, 1e-4), (5.0, 5.0)], ids=str)
def test_step_equals_the_reference(num_components, bounds):
    policy = make_mixture(num_components)
    new, info = step(policy, wavy, bounds=bounds)
    log_weights, means, covs, elbo = reference.vips_step(
        *arrays(policy), draws(policy, 40), lambda x: wavy(x).numpy(), *bounds
    )
    np.testing.assert_allclose(new.log_weights, log_weights, atol=1e-5)
    np.testing.assert_allclose(new.means, means, atol=1e-5)
    np.testing.assert_allclose(covariances(new), covs, atol=1e-5)
    assert float(info.elbo) == pytest.approx(elbo, rel=1e-9)
    assert float(info.component_kl) <= bounds[0] * (1.0 + 1e-6)
    assert float(info.weight_kl) <= bounds[1] * (1.0 + 1e-6)


def test_step_reports_the_mixture_it_started_from():
    policy = make_mixture(3)
    _, info = step(policy, wavy)
    log_weights = policy.log_weights.numpy()
    assert float(info.effective_components) == pytest.approx(
        np.exp(-np.sum(np.exp(log_weights) * log_weights))
    )
    assert float(info.rejected) == 0.0


def test_a_row_has_the_divergence_of_the_component_that_went_farthest(monkeypatch):
    move, found = vips._move_components, []
    monkeypatch.setattr(
        vips, "_move_components", lambda *given: found.append(move(*given)) or found[0]
    )
    _, info = step(make_mixture(3), wavy, bounds=(10.0, 0.02))
    (steps,) = found
    assert float(info.component_kl) == np.max(steps.kl) > 1.1 * np.min(steps.kl)


def test_scale_trils_stay_lower_triangular_with_positive_diagonals():
    new, _ = step(make_mixture(3), wavy, bounds=(1.0, 1.0))
    trils = new.scale_trils.numpy()
    np.testing.assert_array_equal(trils, np.tril(trils))
    assert (np.diagonal(trils, axis1=1, axis2=2) > 0.0).all()


def test_a_constant_added_to_the_target_changes_the_elbo_only():
    policy = make_mixture(3)
    new, info = step(policy, wavy)
    shifted, shifted_info = step(policy, lambda x: wavy(x) + 100.0)
    for found, expected in zip(shifted, new, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    assert float(shifted_info.elbo) == pytest.approx(float(info.elbo) + 100.0)


def test_other_seeds_draw_other_samples():
    policy = make_mixture(3)
    first, second = (step(policy, wavy, seed=split_seed(s, 0, "vips test"))[0] for s in (0, 1))
    assert not np.array_equal(first.means, second.means)


# --- EIM's M-step is a VIPS step ----------------------------------------------------------------


@pytest.mark.parametrize("component", [0, 1, 2])
def test_identity_behind_eim(component):
    # E[log q_t + phi + log q_t(o|x)] + H(q(x|o)) = E[phi] - KL(q(x|o) || q_t(x|o)) + log q_t(o),
    # for any component q(x|o).
    old, new, n = make_mixture(3, seed=0), make_mixture(3, seed=1), 20_000
    mean, tril = new.means[component].numpy(), new.scale_trils[component].numpy()
    x = mean + np.random.default_rng(component).standard_normal((n, 2)) @ tril.T
    log_new = new.component_log_prob(x)[:, component].numpy()
    phi = wavy(x).numpy()

    left = (
        old.log_prob(x).numpy() + phi + old.log_responsibilities(x)[:, component].numpy() - log_new
    )
    log_ratio = log_new - old.component_log_prob(x)[:, component].numpy()
    right = phi - log_ratio + old.log_weights[component].numpy()
    np.testing.assert_allclose(left, right, atol=1e-9)  # sample by sample

    old_tril = old.scale_trils[component].numpy()
    whiten = np.linalg.inv(old_tril)
    kl = reference.gaussian_kl(
        whiten @ (mean - old.means[component].numpy()), whiten @ tril @ tril.T @ whiten.T
    )
    # Four standard errors: 99.99 %.
    assert abs(np.mean(log_ratio) - kl) < 4.0 * np.std(log_ratio) / np.sqrt(n)


@pytest.mark.parametrize("bounds", [(0.05, 0.02), (1e-4, 1e-4), (20.0, 20.0)], ids=str)
def test_eim_m_step_is_a_vips_step_on_the_policy_plus_phi(bounds):
    policy = make_mixture(3)
    new, _ = step(policy, lambda x: policy.log_prob(x) + wavy(x), num_samples=60, bounds=bounds)
    log_weights, means, covs = eim.m_step(
        *arrays(policy), draws(policy, 60), lambda x: wavy(x).numpy(), *bounds
    )
    np.testing.assert_allclose(new.log_weights, log_weights, atol=1e-7)
    np.testing.assert_allclose(new.means, means, atol=1e-7)
    np.testing.assert_allclose(covariances(new), covs, atol=1e-7)


def test_nothing_moves_without_a_phi():
    policy = make_mixture(3)
    new, info = step(policy, policy.log_prob)
    for found, expected in zip(new, policy, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert float(info.elbo) == pytest.approx(0.0, abs=1e-12)


# --- many steps ---------------------------------------------------------------------------------

TARGET = gaussian(np.array([3.0, -1.0]), np.array([[0.5, 0.3], [0.3, 1.0]]))
LOG_NORMALISER = 2.5


@tf.function(autograph=False)
def compiled_steps(policy, seed):
    target = lambda x: TARGET.log_prob(x) + LOG_NORMALISER  # noqa: E731
    return vips_steps(
        policy, target, seed, step_options(0.3, 0.3, 1e-9), num_steps=30, num_samples=50
    )


def test_one_component_becomes_the_gaussian_target():
    start = gaussian(np.zeros(2), 4.0 * np.eye(2))
    policy, history = compiled_steps(start, tf.constant(SEED))
    np.testing.assert_allclose(policy.means, TARGET.means, atol=1e-6)
    np.testing.assert_allclose(covariances(policy), covariances(TARGET), atol=1e-6)
    # At the optimum log p - log q is the log normaliser at every sample, so the ELBO has no Monte
    # Carlo error.
    elbo = history.elbo.numpy()
    assert elbo[-1] == pytest.approx(LOG_NORMALISER, abs=1e-5)
    assert elbo[0] < LOG_NORMALISER - 1.0
    assert (np.diff(elbo[:4]) > 0.0).all()
    assert history.component_kl.numpy()[0] == pytest.approx(0.3, rel=1e-6)
    assert history.component_kl.numpy()[-1] < 1e-6


def test_compiled_and_eager_steps_agree(monkeypatch):
    # XLA draws other normal numbers from the same seed, so both get the same ones here. Few steps:
    # rounding errors grow.
    policy, target, z = make_mixture(3), make_mixture(2, seed=5), draws(make_mixture(3), 20)
    monkeypatch.setattr(
        tf.random, "stateless_normal", lambda shape, seed, dtype: tf.constant(z.reshape(shape))
    )

    def steps(policy):
        return vips_steps(
            policy,
            target.log_prob,
            SEED,
            step_options(0.05, 0.05, 1e-6),
            num_steps=2,
            num_samples=20,
        )

    eager, compiled = steps(policy), tf.function(steps, autograph=False, jit_compile=True)(policy)
    for found, expected in zip(tf.nest.flatten(compiled), tf.nest.flatten(eager), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)
    assert all(column.shape == (2,) for column in eager[1])
    assert eager[1]._fields == VipsHistory._fields


def test_elbo_never_exceeds_the_log_normaliser():
    target, start, num_samples = make_mixture(4, seed=2), make_mixture(3), 200

    @tf.function(autograph=False)
    def steps(policy):
        log_target = lambda x: target.log_prob(x) - 7.0  # noqa: E731
        return vips_steps(
            policy,
            log_target,
            SEED,
            step_options(0.1, 0.1, 1e-9),
            num_steps=25,
            num_samples=num_samples,
        )

    policy, history = steps(start)
    # Four standard errors of the last policy's estimate (99.99 % for one step); the spread is
    # largest at the start.
    x = start.sample(5000, SEED)
    error = np.std(target.log_prob(x).numpy() - start.log_prob(x).numpy()) / np.sqrt(num_samples)
    elbo = history.elbo.numpy()
    assert elbo.max() <= -7.0 + 4.0 * error
    assert elbo[-1] > elbo[0] + 0.5
    x = policy.sample(20_000, SEED)
    assert -0.5 < np.mean(target.log_prob(x).numpy() - policy.log_prob(x).numpy()) <= 0.02
    assert np.exp(logsumexp(policy.log_weights)) == pytest.approx(1.0)


# --- targets with holes -------------------------------------------------------------------------


def boxed(target, half_width):
    def log_prob(x):
        outside = tf.reduce_any(tf.abs(x) > half_width, axis=1)
        return tf.where(outside, tf.constant(-np.inf, DENSITY), target(x))

    return log_prob


def test_rejected_is_the_share_of_draws_outside_the_support():
    policy = make_mixture(3)
    x = policy.means.numpy()[:, None] + np.einsum(
        "kij,ksj->ksi", policy.scale_trils, draws(policy, 40)
    )
    outside = (np.abs(x) > 2.0).any(axis=-1).mean()
    assert 0.1 < outside < 0.9
    assert float(step(policy, boxed(wavy, 2.0))[1].rejected) == pytest.approx(outside)


@pytest.mark.parametrize(
    ("half_width", "num_components", "share"),
    [(3.0, 1, 0.985), (3.0, 3, 0.985), (1.0, 1, 0.75)],  # of six seeds at least 0.993 and 0.78
)
def test_the_policy_stays_within_the_support(half_width, num_components, share):
    # A flat floor outside the box would have infinite mass: the policy would grow without end, and
    # so would its "ELBO".
    target = boxed(lambda x: -0.5 * tf.reduce_sum(x**2, axis=1), half_width)

    @tf.function(autograph=False)
    def steps(policy):
        return vips_steps(
            policy, target, SEED, step_options(0.2, 0.2, 1e-6), num_steps=60, num_samples=40
        )

    policy, history = steps(make_mixture(num_components))
    assert history.rejected.numpy()[0] > 0.1
    assert all(np.isfinite(a).all() for a in arrays(policy))
    assert (np.abs(policy.sample(2000, SEED)) < half_width).all(axis=1).mean() > share
    log_normaliser = 2.0 * np.log(np.sqrt(2.0 * np.pi) * (1.0 - 2.0 * norm.sf(half_width)))
    assert history.elbo.numpy()[-1] < log_normaliser + 0.1  # Monte Carlo error of 40 draws


def test_values_that_are_not_finite_are_all_the_same_and_no_better_than_the_lowest_finite_one():
    policy = make_mixture(1)
    x = (policy.means[0] + draws(policy, 40)[0] @ tf.transpose(policy.scale_trils[0])).numpy()
    lost = x[:, 0] > np.quantile(x[:, 0], 0.8)
    lowest = wavy(x).numpy()[~lost].min()

    def moved(value):
        new, info = step(policy, lambda x: tf.where(lost, tf.constant(value, DENSITY), wavy(x)))
        return new.means.numpy()[0], float(info.rejected)

    (mean, share), *others = [moved(value) for value in (-np.inf, np.inf, np.nan)]
    assert share == pytest.approx(0.2)
    for other, other_share in others:
        np.testing.assert_array_equal(other, mean)
        assert other_share == share
    assert mean[0] <= moved(lowest)[0][0] + 1e-9  # away from where the values were lost
    assert moved(lowest)[0][0] < step(policy, wavy)[0].means.numpy()[0, 0]


def test_the_floor_is_below_what_was_seen_by_ten_nats_beyond_its_range():
    values, alive = vips.floored(tf.constant([[0.0, -5.0, -np.inf], [np.nan] * 3], DENSITY))
    lowest, seen_range = -5.0, 5.0
    floor = lowest - seen_range - 10.0
    np.testing.assert_array_equal(values, [[0.0, -5.0, floor], [floor] * 3])
    np.testing.assert_array_equal(alive, [True, False])


@pytest.mark.parametrize("part", ["curvature", "slope"])
def test_a_component_whose_surrogate_is_no_number_stays(part):
    curvature = np.tile(np.eye(2), (2, 1, 1))
    slope = np.ones((2, 2))
    {"curvature": curvature, "slope": slope}[part][0] = np.nan
    alive, options = tf.constant([True, True]), step_options(0.1, 0.1, 0.1)
    found = vips._move_components(*constants(curvature, slope), alive, options)
    np.testing.assert_allclose(found.mean[0], np.zeros(2), atol=1e-12)
    np.testing.assert_allclose(found.tril[0], np.eye(2), atol=1e-12)
    assert float(found.kl[1]) == pytest.approx(0.1, rel=1e-6)


@pytest.mark.parametrize("level", [-500.0, 0.0, 500.0])
def test_a_component_without_any_finite_value_stays_and_gains_no_weight(level):
    # Two overlapping components on the finite side, one far away where the target is -inf, and its
    # neighbour, so that the responsibilities vary over its samples.
    means = np.array([[0.0, 0.0], [1.0, 0.0], [50.0, 0.0], [51.0, 0.5]])
    policy = Mixture(*constants(np.log([0.25] * 4), means, np.tile(np.eye(2), (4, 1, 1))))

    def target(x):
        return tf.where(
            x[:, 0] > 25.0, tf.constant(-np.inf, DENSITY), level - 0.5 * tf.reduce_sum(x**2, axis=1)
        )

    new, info = step(policy, target, ridge=1e-6)
    assert float(info.rejected) == 0.5
    np.testing.assert_allclose(new.means[2:], policy.means[2:], atol=1e-9)
    np.testing.assert_allclose(new.scale_trils[2:], policy.scale_trils[2:], atol=1e-9)
    assert not np.allclose(new.means[:2], policy.means[:2], atol=1e-3)
    weights = np.exp(new.log_weights.numpy())
    assert np.isfinite(weights).all()
    assert (weights[2:] <= 0.25 + 1e-9).all()


def test_a_policy_without_any_finite_value_stays():
    policy = make_mixture(1)
    new, info = step(policy, lambda x: tf.fill(tf.shape(x)[:1], tf.constant(-np.inf, DENSITY)))
    assert float(info.rejected) == 1.0
    for found, expected in zip(new, policy, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)


# --- improve ------------------------------------------------------------------------------------


@pytest.fixture
def without_xla(monkeypatch):
    line_4._compiled_steps.cache_clear()
    monkeypatch.setattr(line_4, "compiled", plain_graph)
    yield
    line_4._compiled_steps.cache_clear()


@pytest.mark.usefixtures("without_xla")
def test_improve_is_traced_once_while_the_reward_grows():
    settings = tiny.hparams().policy
    policy = make_mixture(3)
    rewards = [make_reward([make_network(seed=i) for i in range(count)]) for count in range(4)]
    improve(policy, rewards[0], SEED, settings)
    before = line_4._compiled_steps.cache_info().misses
    results = [
        improve(policy, reward, split_seed(t, 0, "improve"), settings)[0]
        for t, reward in enumerate(rewards)
    ]
    assert line_4._compiled_steps.cache_info().misses == before
    assert not np.array_equal(results[2].means, results[3].means)


def test_improve_runs_the_steps_the_hparams_ask_for(monkeypatch):
    monkeypatch.setattr(line_4, "compiled", lambda function, *_, **__: function)
    monkeypatch.setattr(line_4, "_compiled_steps", line_4._compiled_steps.__wrapped__)
    own = {"kl_bound": 0.2, "weight_kl_bound": 0.01, "ridge": 0.01, "update_steps": 2}
    settings = tiny.hparams(policy=own).policy
    policy, reward = make_mixture(3), make_reward([make_network(seed=i) for i in range(2)])
    found, history = improve(policy, reward, SEED, settings)
    expected, _ = vips_steps(
        policy, reward.log_prob, SEED, step_options(0.2, 0.01, 0.01), num_steps=2, num_samples=12
    )
    assert history.elbo.shape == (2,)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("dim", "expected"), [(1, 50), (2, 50), (5, 63), (10, 198)])
def test_default_number_of_samples(dim, expected):
    assert default_samples(dim) == expected


def test_some_steps_and_then_others_are_the_same_as_all_at_once():
    start, target = make_mixture(2, 2), make_mixture(3, 2, seed=1).log_prob
    options = step_options(0.05, 0.05, 1e-6)

    def steps(policy, number, first):
        sizes = {"num_steps": number, "num_samples": 20, "first_step": first}
        return vips_steps(policy, target, tf.constant([3, 4]), options, **sizes)[0]

    for found, expected in zip(steps(steps(start, 1, 0), 1, 1), steps(start, 2, 0), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_component_that_sees_no_finite_value_gains_no_weight_on_others():
    """Far out its own density is so low that even the floor would be a gain."""
    log_ratios = tf.constant([[1.0, 3.0], [-2.0, 0.0], [50.0, 50.0], [-9.0, -9.0]], tf.float64)
    gains = vips.expected_gains(log_ratios, tf.constant([True, True, False, False]))
    np.testing.assert_array_equal(gains, [2.0, -1.0, -1.0, -9.0])
    nothing = vips.expected_gains(log_ratios, tf.zeros(4, tf.bool))
    np.testing.assert_array_equal(nothing, np.zeros(4))
