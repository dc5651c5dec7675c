"""VIPS in expectation over contexts, against loops in raw coordinates and against closed forms."""

from virl_tf.conditional import ConditionalMixture, conditioned
from virl_tf.em.em import em_mixture
from virl_tf.hparams import default_hparams
from virl_tf.mixture import Mixture
from virl_tf.tasks.experts import RandomExperts
from virl_tf.validation import InputError
from virl_tf.vips import conditional
from virl_tf.vips.conditional import conditional_step, conditional_steps
from virl_tf.vips.improve import improve
from virl_tf.vips.trust_region import gate_eta, update_components, update_weights
from virl_tf.vips.vips import VipsHistory, step_options

import numpy as np
import pytest
import tensorflow as tf
from scipy.optimize import brentq

from tests.reference import conditional_vips as reference
from tests.shared import make_mixture, make_network, make_reward

SEED = tf.constant([3, 4])
FREE = step_options(1e6, 1e6, 1e-9)
C, D = 2, 2


def contexts(n=60, size=C, seed=0):
    return np.random.default_rng(seed).uniform(-1.0, 2.0, (n, size))


def policy(k=3, seed=0, size=C):
    return conditioned(make_mixture(k, size + D, seed=seed), size)


def gate_only(policy):
    """The same gate and offsets; nothing else depends on c."""
    return policy._replace(gains=tf.zeros_like(policy.gains))


def steps(policy, log_prob, c, bound, num_steps):
    """Traced once: in plain Python they take seconds."""

    @tf.function(autograph=False)
    def run(policy):
        sizes = {"num_steps": num_steps, "num_samples": 60}
        options = step_options(bound, bound, 1e-6)
        return conditional_steps(policy, log_prob, tf.constant(c), SEED, options, **sizes)

    return run(policy)


# --- experts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1e-3, 0.05, 1e6])
def test_experts_step_as_in_raw_coordinates(monkeypatch, bound):
    monkeypatch.setattr(conditional, "_NARROWEST", 0.0)
    rng = np.random.default_rng(1)
    old, c = policy(), contexts()
    acting = conditional._acting(old, tf.constant(c), np.ones(C))
    shares = np.exp(acting.log_gate) / np.exp(acting.log_gate).sum(axis=0)
    roots = rng.standard_normal((3, D, D))
    r = roots @ roots.transpose(0, 2, 1) + 0.5 * np.eye(D)
    r_c = 2.0 * rng.standard_normal((3, D, C + 1))

    a, b, olds = [], [], []
    for o in range(3):
        tril, v, m = (np.asarray(t[o]) for t in (old.scale_trils, acting.trils, acting.means))
        k = np.column_stack([old.gains[o], old.offsets[o]])
        olds.append((k, tril @ tril.T))
        raw = np.vstack([np.column_stack([m, v]), np.eye(1, C + 1)])  # [1, s] -> [c, 1]
        g = tril.T @ (r_c[o] - r[o] @ k) @ raw
        a.append(np.block([[tril.T @ r[o] @ tril, -g[:, 1:]], [-g[:, 1:].T, np.eye(C)]]))
        b.append(np.append(g[:, 0], rng.standard_normal(C)))  # what depends on c alone is ignored
    alive = tf.constant([True] * 3)
    arguments = tf.constant(np.array(a)), tf.constant(np.array(b)), alive
    new, kl = conditional._moved(old, acting, *arguments, tf.constant(bound, tf.float64))

    for o in range(3):
        (k, covariance), eta = reference.expert_step(r[o], r_c[o], olds[o], c, shares[:, o], bound)
        np.testing.assert_allclose(np.column_stack([new.gains[o], new.offsets[o]]), k, atol=1e-5)
        np.testing.assert_allclose(
            new.scale_trils[o] @ tf.transpose(new.scale_trils[o]), covariance, atol=1e-5
        )
        of_new = reference.expected_kl((k, covariance), olds[o], c, shares[:, o])
        assert float(kl[o]) == pytest.approx(of_new, rel=1e-4)
        assert (eta == 0.0) == (bound == 1e6)


def test_where_contexts_say_nothing_it_is_the_unconditional_step():
    old, c = policy(), tf.constant(contexts())
    rng = np.random.default_rng(1)
    roots = rng.standard_normal((3, D, D))
    of_z, slope = roots @ roots.transpose(0, 2, 1), rng.standard_normal((3, D))
    a = np.zeros((3, D + C, D + C))
    a[:, :D, :D] = of_z
    b = np.concatenate([slope, np.zeros((3, C))], axis=1)
    bound = tf.constant(0.05, tf.float64)
    acting = conditional._acting(old, c, tf.math.reduce_variance(c, axis=0))
    new, kl = conditional._moved(
        old, acting, tf.constant(a), tf.constant(b), tf.constant([True] * 3), bound
    )
    step = update_components(tf.constant(of_z), tf.constant(slope), bound)
    moved = old.offsets + tf.linalg.matvec(old.scale_trils, step.mean)
    np.testing.assert_allclose(new.offsets, moved, atol=1e-9)
    np.testing.assert_allclose(new.gains, old.gains, atol=1e-12)
    np.testing.assert_allclose(new.scale_trils, old.scale_trils @ step.tril, atol=1e-9)
    np.testing.assert_allclose(kl, step.kl, atol=1e-9)


def test_a_row_has_the_divergence_of_the_expert_that_went_farthest(monkeypatch):
    move, found = conditional._moved, []
    monkeypatch.setattr(
        conditional, "_moved", lambda *given: found.append(move(*given)) or found[0]
    )
    options = step_options(10.0, 0.05, 1e-6)
    c = tf.constant(contexts())
    _, row = conditional_step(policy(), lambda rows: -(rows[:, -1] ** 2), c, SEED, options, 60)
    ((_, kl),) = found
    assert float(row.component_kl) == np.max(kl) > 1.1 * np.min(kl)


def test_the_least_width_of_contexts_has_their_units():
    scale = np.array([1000.0, 0.01])
    old, c = policy(), contexts()
    new = old._replace(
        gate_slopes=old.gate_slopes / scale,
        gate_curvatures=old.gate_curvatures / np.outer(scale, scale),
    )
    one, other = (
        conditional._acting(given, tf.constant(rows), rows.var(axis=0))
        for given, rows in ((old, c), (new, c * scale))
    )
    np.testing.assert_allclose(other.trils, scale[:, None] * one.trils, rtol=1e-9)


def test_of_very_many_contexts_each_step_sees_others(monkeypatch):
    seen = []

    def record(policy, target, chosen, *_):
        seen.append(chosen.numpy()[:, 0])
        return policy, VipsHistory(*np.zeros(len(VipsHistory._fields)))

    monkeypatch.setattr(conditional, "MOST_CONTEXTS", 10)
    monkeypatch.setattr(conditional, "conditional_step", record)
    c = contexts(40)
    conditional_steps(policy(), None, tf.constant(c), SEED, FREE, num_steps=60, num_samples=60)
    assert {len(rows) for rows in seen} == {10}
    assert len({tuple(rows) for rows in seen}) == 60
    assert set(np.concatenate(seen)) == set(c[:, 0])


def test_contexts_draws_and_noise_of_each_step_have_seeds_of_their_own(monkeypatch, seeds_drawn):
    monkeypatch.setattr(conditional, "MOST_CONTEXTS", 10)
    c, sizes = tf.constant(contexts(40)), {"num_steps": 2, "num_samples": 30}
    conditional_steps(policy(), lambda rows: -(rows[:, -1] ** 2), c, SEED, FREE, **sizes)
    assert len(set(seeds_drawn)) == len(seeds_drawn) == 2 * 3


def test_the_elbo_is_the_mean_over_what_the_policy_draws():
    """One nat more at nine in ten of its draws, which one of two experts makes."""
    gate = np.log([0.9, 0.1]), np.zeros((2, 1)), np.zeros((2, 1, 1))
    arrays = *gate, np.zeros((2, 1, 1)), np.array([[50.0], [-50.0]]), np.ones((2, 1, 1))
    old = ConditionalMixture(*(tf.constant(array) for array in arrays))

    def target(rows):
        return old.log_prob(rows) + tf.cast(rows[:, 1] > 0.0, tf.float64)

    c = tf.constant(contexts(size=1))
    _, row = conditional_step(old, target, c, SEED, FREE, 60)
    assert float(row.elbo) == pytest.approx(0.9)
    assert float(row.effective_components) == pytest.approx(0.9**-0.9 * 0.1**-0.1)


def test_one_step_reaches_a_linear_gaussian_whatever_a_context_adds():
    target = policy(1, seed=5)

    def log_prob(rows):
        c = rows[:, :C]
        return target.log_prob(rows) + 3.0 * c[:, 0] - 2.0 * c[:, 1] ** 2 + 50.0

    new, row = conditional_step(policy(1), log_prob, tf.constant(contexts()), SEED, FREE, 60)
    for name in ("gains", "offsets", "scale_trils"):
        np.testing.assert_allclose(getattr(new, name), getattr(target, name), atol=1e-4)
    assert float(row.component_kl) > 0.1


# --- gate -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1e-3, 0.05, 1e6])
def test_the_gate_keeps_its_bound(bound):
    rng = np.random.default_rng(2)
    log_gate = tf.math.log_softmax(tf.constant(rng.standard_normal((40, 3))))
    gains = tf.constant(3.0 * rng.standard_normal((40, 3)))

    def expected(eta):
        new = tf.math.log_softmax(log_gate + gains / (1.0 + eta)).numpy()
        return np.mean([np.exp(n) @ (n - o) for n, o in zip(new, log_gate.numpy(), strict=True)])

    eta, kl = gate_eta(log_gate, gains, tf.constant(bound, tf.float64))
    if bound == 1e6:
        assert float(eta) == 0.0
    else:
        root = brentq(lambda e: expected(e) - bound, 0.0, 1e6)
        assert float(eta) == pytest.approx(root, rel=1e-6)
    assert float(kl) == pytest.approx(expected(float(eta)), rel=1e-9)


def test_the_gate_of_one_context_is_the_update_of_weights():
    rng = np.random.default_rng(2)
    log_weights = tf.math.log_softmax(tf.constant(rng.standard_normal(4)))
    gains, bound = tf.constant(rng.standard_normal(4)), tf.constant(0.01, tf.float64)
    eta, kl = gate_eta(log_weights[None], gains[None], bound)
    expected, expected_kl = update_weights(log_weights, gains, bound)
    found = tf.math.log_softmax(log_weights + gains / (1.0 + eta))
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert float(kl) == pytest.approx(float(expected_kl), rel=1e-6)


def test_gains_are_their_quadratics():
    rng = np.random.default_rng(3)
    acting = conditional._acting(policy(), tf.constant(contexts()), np.ones(C))
    s = tf.constant(rng.standard_normal((3, 400, C)))
    c = acting.means[:, None] + tf.einsum("kij,ksj->ksi", acting.trils, s)
    ratios = 2.0 + c[..., 0] - 0.5 * c[..., 1] ** 2 + 0.3 * c[..., 0] * c[..., 1]
    fitted = conditional._gains(s, ratios, tf.constant([True] * 3))
    raw = conditional._raw(fitted, acting)
    found = [
        conditional.quadratics(tuple(part[o : o + 1] for part in raw), c[o])[:, 0] for o in range(3)
    ]
    np.testing.assert_allclose(found, ratios, atol=0.1 * np.std(ratios))  # the ridge damps it


def test_the_gate_finds_the_targets():
    # Experts that do not overlap: of these the gate alone is to be learnt.
    far = gate_only(policy(3))._replace(offsets=np.array([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]]))
    target = far._replace(gate_slopes=far.gate_slopes + [[1.0, 0.0], [0.0, -1.0], [0.5, 0.5]])
    c = contexts(200)
    found, history = steps(far, target.log_prob, c, 0.05, 25)
    np.testing.assert_allclose(tf.exp(found.log_gate(c)), tf.exp(target.log_gate(c)), atol=0.03)
    assert np.max(history.weight_kl) <= 0.05 + 1e-9


# --- whole ----------------------------------------------------------------------------------------


def test_steps_come_closer_to_a_truth_than_em():
    task = RandomExperts(3, 1, seed=2)
    c, x = task.demonstrations(400, 0)
    start = conditioned(em_mixture(np.hstack([c, x]), 3, 0), 1)
    found, history = steps(start, task.policy.log_prob, c, 0.05, 15)

    def divergence(q):
        fresh = task.contexts(2000, 9)
        rows = tf.concat([fresh, q.sample(fresh, SEED)], axis=1)
        return float(tf.reduce_mean(q.log_prob(rows) - task.policy.log_prob(rows)))

    assert divergence(start) > 0.01
    assert divergence(found) < 0.3 * divergence(start)
    assert np.max(history.component_kl) <= 0.05 + 1e-6
    assert history.elbo[-1] > history.elbo[0]


def test_what_is_nowhere_finite_moves_nothing():
    def nowhere(rows):
        return tf.fill([len(rows)], tf.constant(-np.inf, tf.float64))

    old = policy()
    new, row = conditional_step(old, nowhere, tf.constant(contexts()), SEED, FREE, 40)
    np.testing.assert_array_equal(new.offsets, old.offsets)
    np.testing.assert_allclose(new.scale_trils, old.scale_trils, atol=1e-12)
    assert float(row.rejected) == 1.0
    assert all(np.isfinite(array).all() for array in new)


@pytest.mark.parametrize("part", ["curvature", "slope"])
def test_an_expert_whose_surrogate_is_no_number_stays(part):
    old = policy()
    acting = conditional._acting(old, tf.constant(contexts()), np.ones(C))
    curvature = np.tile(np.eye(D + C), (3, 1, 1))
    slope = np.ones((3, D + C))
    {"curvature": curvature, "slope": slope}[part][0] = np.nan
    alive, bound = tf.constant([True] * 3), tf.constant(0.1, tf.float64)
    surrogates = tf.constant(curvature), tf.constant(slope)
    new, kl = conditional._moved(old, acting, *surrogates, alive, bound)
    for name in ("gains", "offsets", "scale_trils"):
        np.testing.assert_allclose(getattr(new, name)[0], getattr(old, name)[0], atol=1e-12)
    np.testing.assert_allclose(kl[1:], 0.1, rtol=1e-6)


def test_contexts_of_a_step_that_are_equal_in_a_column_do_not_break_it(monkeypatch):
    monkeypatch.setattr(conditional, "MOST_CONTEXTS", 20)
    c = contexts(400)
    c[:, 1] = np.arange(400) == 7  # of most steps all are 0

    def log_prob(rows):
        return -0.5 * tf.reduce_sum((rows[:, C:] - rows[:, :1]) ** 2, axis=1)

    found, history = steps(policy(2), log_prob, c, 0.05, 20)
    assert all(np.isfinite(array).all() for array in (*found, *history))


def contextual_reward():
    network = make_network(C + D)
    conditional_base = policy(2, seed=7)
    empty = ConditionalMixture(*(array[:0] for array in conditional_base))
    return make_reward([network], dim=C + D, base=conditional_base, mixture=empty)


def test_improve_takes_policies_of_both_kinds():
    few = {"policy": {"update_steps": 2, "samples_per_component": 40}}
    hparams, seed = default_hparams().override(few).policy, np.array([1, 2], np.int32)
    c = tf.constant(contexts())
    (new, history), (again, _) = (
        improve(policy(), contextual_reward(), seed, hparams, c) for _ in range(2)
    )
    assert isinstance(new, ConditionalMixture)
    assert len(history.elbo) == 2
    for one, other in zip(new, again, strict=True):
        np.testing.assert_array_equal(one, other)
    without, _ = improve(make_mixture(), make_reward([]), seed, hparams)
    assert isinstance(without, Mixture)


def test_gradients_are_refused():
    hparams = default_hparams().override({"policy": {"surrogate": "gradients"}}).policy
    with pytest.raises(InputError, match="gradients is not for contexts; allowed: values, auto"):
        improve(policy(), contextual_reward(), np.array([1, 2], np.int32), hparams, contexts())
