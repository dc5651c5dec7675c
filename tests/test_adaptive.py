"""VIPS with components that come and go."""

from virl_tf import InputError, fit_policy
from virl_tf.hparams import search_hparams
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, compiled, specs_of
from virl_tf.tasks import GridWalker
from virl_tf.vips import adaptive
from virl_tf.vips.adaptive import (
    Store,
    _candidates,
    _gaps,
    _local_scales,
    budget_of,
    prune,
    search,
)
from virl_tf.vips.reuse import no_batches
from virl_tf.vips.vips import step_options

import numpy as np
import pytest
import tensorflow as tf

from tests.shared import make_mixture

SEED = tf.constant([3, 4])
OPTIONS = step_options(0.05, 0.05, 1e-6)
SMALL = {
    "spare_components": 3,
    "num_rounds": 3,
    "steps_per_round": 4,
    "samples_per_component": 12,
    "split_rounds": 0,
}


def isotropic(means, stds, weights):
    """A mixture of spherical components."""
    means = np.asarray(means, float)
    trils = np.eye(means.shape[1]) * np.asarray(stds, float)[:, None, None]
    log_weights = np.log(np.asarray(weights, float) / np.sum(weights))
    return Mixture(*(tf.constant(a, DENSITY) for a in (log_weights, means, trils)))


# --- pruning ------------------------------------------------------------------------------------


def test_of_a_heavy_pair_one_goes_before_a_light_component_alone():
    policy = isotropic([[0.0, 0.0], [0.0, 0.0], [9.0, 0.0]], [1.0, 1.0, 1.0], [0.49, 0.49, 0.02])
    kept, rows = prune(policy, 2, SEED)
    assert 2 in rows.numpy()
    np.testing.assert_allclose(
        np.sort(np.exp(kept.log_weights)), [0.02, 0.98], atol=1e-12
    )  # the twin inherits


def test_of_components_far_apart_the_lightest_goes():
    policy = isotropic(10.0 * np.eye(4), np.ones(4), [0.4, 0.3, 0.1, 0.2])
    kept, rows = prune(policy, 3, SEED)
    assert sorted(rows.numpy()) == [0, 1, 3]
    assert abs(np.exp(kept.log_weights).sum() - 1.0) < 1e-12


def test_without_a_component_its_weight_is_lost_at_most():
    """However unlikely its draws are under all others."""
    policy = isotropic([[50.0], [2.0], [0.0]], np.ones(3), [0.05, 0.3, 0.65])
    _, rows = prune(policy, 2, SEED)
    assert sorted(rows.numpy()) == [1, 2]


def test_only_one_of_many_twins_survives():
    policy = isotropic([[0.0]] * 5 + [[50.0]], np.ones(6), [1, 1, 1, 1, 1, 0.01])
    kept, rows = prune(policy, 2, SEED)
    assert 5 in rows.numpy()
    np.testing.assert_allclose(np.sort(kept.means.numpy()[:, 0]), [0.0, 50.0])


def test_nothing_is_pruned_where_all_stay():
    policy = make_mixture(4, 3)
    kept, rows = prune(policy, 4, SEED)
    assert sorted(rows.numpy()) == [0, 1, 2, 3]
    np.testing.assert_allclose(kept.log_weights, tf.gather(policy.log_weights, rows), atol=1e-12)


def test_a_weight_that_underflows_is_pruned_without_nan():
    policy = isotropic([[0.0], [3.0], [6.0]], np.ones(3), [1.0, 1.0, 1.0])
    policy = policy._replace(log_weights=tf.constant([np.log(0.5), np.log(0.5), -2000.0], DENSITY))
    kept, rows = prune(policy, 2, SEED)
    assert sorted(rows.numpy()) == [0, 1]
    assert np.isfinite(kept.log_weights).all()


def test_pruning_agrees_with_its_formula():
    """The first to go, by NumPy with many draws."""
    rng = np.random.default_rng(0)
    policy = isotropic(
        rng.normal(0, 1.5, (6, 2)), rng.uniform(0.3, 1.0, 6), rng.uniform(0.05, 1.0, 6)
    )
    weights = np.exp(policy.log_weights)
    losses = []
    for o in range(6):
        x = (
            policy.means.numpy()[o]
            + rng.normal(size=(200_000, 2)) * policy.scale_trils.numpy()[o, 0, 0]
        )
        densities = np.exp(policy.component_log_prob(x).numpy())
        closest = max((j for j in range(6) if j != o), key=lambda j: np.log(densities[:, j]).mean())
        whole = densities @ weights
        without = whole - weights[o] * densities[:, o] + weights[o] * densities[:, closest]
        losses.append(weights[o] * np.clip(np.mean(np.log(whole) - np.log(without)), 0.0, 1.0))
    _, rows = prune(policy, 5, SEED, num_samples=4000)
    assert set(range(6)) - set(rows.numpy()) == {int(np.argmin(losses))}


# --- candidates, scales, gaps -------------------------------------------------------------------


def test_the_candidate_is_the_point_that_the_mixture_misses_most():
    policy = isotropic([[0.0, 0.0]], [1.0], [1.0])
    points = tf.constant([[0.0, 0.0], [8.0, 0.0], [0.5, 0.0], [-8.0, 0.0]], DENSITY)
    values = tf.constant([0.0, -3.0, 0.0, -9.0], DENSITY)
    best = _candidates(policy, Store(points, values), 1, tf.constant(20.0, DENSITY), SEED)
    np.testing.assert_array_equal(best, [[8.0, 0.0]])


def test_unused_rows_are_never_candidates():
    policy = isotropic([[0.0]], [1.0], [1.0])
    values = tf.concat(
        [tf.constant([-1e6], DENSITY), tf.fill([50], tf.constant(-np.inf, DENSITY))], axis=0
    )
    points = tf.concat([tf.constant([[7.0]], DENSITY), tf.zeros([50, 1], DENSITY)], axis=0)
    for i in range(5):
        best = _candidates(policy, Store(points, values), 1, tf.constant(5.0, DENSITY), [i, 0])
        np.testing.assert_array_equal(best, [[7.0]])


def test_the_peak_is_that_at_points_that_were_evaluated():
    """Rows that are not used yet are zeros, where this mixture has its mode."""
    policy = isotropic([[0.0]], [1.0], [1.0])
    points = tf.constant([[7.0], [9.0], [0.0]], DENSITY)
    values = tf.constant([1.0, -1.0, -np.inf], DENSITY)
    best = _candidates(policy, Store(points, values), 1, tf.constant(5.0, DENSITY), SEED)
    np.testing.assert_array_equal(best, [[9.0]])


def test_gaps_are_quantiles_below_the_best_finite_value():
    values = tf.constant([5.0, np.nan, 1.0, -np.inf, 3.0, 4.0, -5.0], DENSITY)
    np.testing.assert_allclose(
        _gaps(values, np.array([0.0, 0.25, 0.5, 1.0])), [0.0, 1.0, 2.0, 10.0]
    )


def test_a_new_component_gets_the_scale_of_its_surroundings():
    def target(x):
        return -0.5 * tf.reduce_sum((x / 0.1) ** 2, axis=1)

    scales = _local_scales(tf.zeros([4, 2], DENSITY), target, tf.eye(2, dtype=DENSITY), SEED)
    np.testing.assert_array_equal(scales, [0.1] * 4)


def test_the_spread_of_points_is_that_around_their_mean():
    points = 100.0 + np.random.default_rng(0).standard_normal((100, 3))
    expected = np.linalg.cholesky(np.cov(points.T, bias=True))
    found = adaptive._spread(tf.constant(points))
    np.testing.assert_allclose(found, expected, atol=1e-8)


def test_step_sizes_grow_when_the_reward_rose_and_shrink_when_not():
    policy = make_mixture(6, 2)
    gains = tf.constant([1.0, 0.0, 3.0, 0.0, 0.0, -3.0], DENSITY)
    before = policy.log_weights + tf.constant([0.0, 1.0, 0.0, np.nan, 0.0, 0.0], DENSITY)
    bounds = tf.constant([0.1, 0.1, 0.49, 0.1, 0.1, 0.0101], DENSITY)
    found, scores = adaptive._adapt(adaptive.SearchState(policy, bounds, before, None, None), gains)
    np.testing.assert_allclose(found, [0.115, 0.07, 0.5, 0.1, 0.07, 0.01])  # new ones keep theirs
    np.testing.assert_allclose(scores, policy.log_weights + gains)


def small_pieces(**given):
    hparams = search_hparams({**SMALL, **given})
    return adaptive.Search(four_modes, SEED, OPTIONS, budget_of(4, 2, hparams))


def test_what_stays_keeps_its_step_size_score_and_draws():
    pieces = small_pieces(reused_steps=1)
    policy = isotropic(3.0 * np.arange(14.0).reshape(7, 2), np.ones(7), [1, 6, 2, 7, 3, 5, 4])
    state, scale = pieces.begin(Mixture(*(array[:4] for array in policy)))
    own = tf.range(7.0, dtype=DENSITY)
    batches = no_batches(policy, 2, 12)._replace(drawn=tf.ones([7, 2], tf.bool))
    state = state._replace(policy=policy, kl_bounds=own, scores=own, batches=batches)
    found = pieces.exchange(tf.constant(0), state, scale)
    kept = np.round(found.policy.means.numpy()[:4, 0] / 6.0).astype(int)
    assert sorted(kept) == [1, 3, 5, 6]  # the heaviest of components far apart
    np.testing.assert_array_equal(found.kl_bounds, [*kept, *[adaptive.KL_BOUND] * 3])
    np.testing.assert_array_equal(found.scores, [*kept, *[np.nan] * 3])
    means = found.policy.means[:, None].numpy()
    np.testing.assert_array_equal(found.batches.means, np.repeat(means, 2, axis=1))
    np.testing.assert_array_equal(found.batches.drawn, [[True] * 2] * 4 + [[False] * 2] * 3)


def test_new_components_begin_with_a_small_part_of_an_equal_share():
    pieces = small_pieces()
    start = isotropic(np.eye(2)[[0, 1, 0, 1]], np.ones(4), np.ones(4))
    state, scale = pieces.begin(start)
    found = pieces.exchange(tf.constant(0), state, scale)
    spare, slots = pieces.budget.spare, pieces.budget.slots
    of_new = adaptive.NEW_WEIGHT / slots  # beside the others' weights, whose sum is one
    expected = of_new / (1.0 + spare * of_new)
    np.testing.assert_allclose(np.exp(found.policy.log_weights[-spare:]), expected, rtol=1e-9)


def test_whatever_a_search_draws_has_a_seed_of_its_own(seeds_drawn):
    pieces = small_pieces()
    state, scale = pieces.begin(isotropic(np.eye(2)[[0, 1, 0, 1]], np.ones(4), np.ones(4)))
    for r in range(2):
        state = pieces.exchange(tf.constant(r), pieces.step(tf.constant(r), state), scale)
    # The start's draws and spare components, a component and noise each; then of each round the
    # step's draws, and those that tell what goes, where something comes, and how wide it is.
    assert len(set(seeds_drawn)) == len(seeds_drawn) == 2 * 2 + 2 * 4


def test_every_step_has_rows_of_its_own_in_the_store():
    pieces = small_pieces()
    state, _ = pieces.begin(isotropic(np.eye(2)[[0, 1, 0, 1]], np.ones(4), np.ones(4)))
    for i in range(3):
        state = pieces.step(tf.constant(i), state)
    used = np.isfinite(state.store.values)
    number = adaptive.START_DRAWS + 3 * 7 * adaptive.STORED_DRAWS
    np.testing.assert_array_equal(used, np.arange(len(used)) < number)
    values = four_modes(state.store.points)
    np.testing.assert_allclose(state.store.values[:number], values[:number], rtol=1e-9)


# --- the search ---------------------------------------------------------------------------------


def four_modes(x):
    """Narrow modes at the corners of a square, equally heavy."""
    corners = np.array([[-4.0, -4.0], [-4.0, 4.0], [4.0, -4.0], [4.0, 4.0]])
    return tf.reduce_logsumexp(
        -0.5 * tf.reduce_sum((x[:, None] - corners) ** 2, axis=2) / 0.05, axis=1
    )


def test_the_search_finds_modes_that_a_fixed_set_misses():
    # A start far in one corner: without adding, components move to the modes nearest to them.
    start = isotropic(np.full((4, 2), -4.0) + np.eye(4, 2), np.full(4, 2.0), np.ones(4))

    options = {"initial_policy": start, "num_steps": 30, "samples_per_component": 40, "seed": 1}
    found, fixed = (
        fit_policy(four_modes, 2, 4, search=search, **options).policy
        for search in ({"num_rounds": 8, "steps_per_round": 12}, False)
    )
    assert len({tuple(np.sign(mean)) for mean in fixed.means.numpy()}) < 4
    assert len({tuple(np.sign(mean)) for mean in found.means.numpy()}) == 4  # as on 10 of 16 seeds
    x = found.sample(2000, SEED)
    distance = float(
        tf.reduce_mean(found.log_prob(x) - four_modes(x)) + np.log(4.0 * 2.0 * np.pi * 0.05)
    )
    assert abs(distance) < 0.02


@pytest.fixture(scope="module")
def small_search():
    """A compiled small search of three components on two modes, and its arguments."""
    hparams = search_hparams(SMALL)
    start = isotropic([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [1.0] * 3, [1.0] * 3)
    calls = []

    def target(x):
        calls.append(x.shape[0])
        return four_modes(x)

    def run(start, seed):
        return search(start, target, seed, OPTIONS, hparams)

    return compiled(run, *specs_of((start, SEED)), jit_compile=False), start, hparams


def test_the_number_of_components_is_that_of_the_start(small_search):
    run, start, _ = small_search
    policy, history = run(start, SEED)
    assert policy.means.shape == start.means.shape
    assert abs(np.exp(policy.log_weights).sum() - 1.0) < 1e-12
    assert (np.linalg.eigvalsh(policy.covariances) > 0.0).all()
    assert history.elbo.shape == (12,)
    assert np.isfinite(history.elbo).all()


def test_a_search_depends_on_its_seed_alone(small_search):
    run, start, _ = small_search
    first, again, other = (run(start, seed)[0] for seed in (SEED, SEED, SEED + 1))
    np.testing.assert_array_equal(first.means, again.means)
    assert not np.array_equal(first.means, other.means)


def test_few_components_have_more_rounds_and_so_do_many():
    rounds = {k: budget_of(k, 2, search_hparams()).rounds for k in (1, 10, 25, 64)}
    assert rounds == {1: 30, 10: 25, 25: 10, 64: 26}


def test_few_rounds_are_enough_from_where_the_modes_are():
    assert budget_of(64, 2, search_hparams(), at_modes=True).rounds == 4
    assert budget_of(64, 2, search_hparams({"num_rounds": 7}), at_modes=True).rounds == 7
    splits = [budget_of(4, 2, search_hparams(), at_modes=at).split_rounds for at in (False, True)]
    assert splits == [6, 0]
    assert budget_of(4, 2, search_hparams({"split_rounds": 3}), at_modes=True).split_rounds == 3


def test_the_support_is_respected():
    """A density that rises towards its edge: nothing is added beyond it and hardly anything drawn
    there.
    """
    inside = lambda x: tf.reduce_all(tf.abs(x) <= 1.0, axis=1)  # noqa: E731
    result = fit_policy(
        lambda x: tf.reduce_sum(x, axis=1),
        2,
        3,
        seed=1,
        support=inside,
        search=SMALL,
        num_steps=40,
        jit_compile=False,
    )
    x = result.policy.sample(4000, SEED)
    weighty = np.exp(result.policy.log_weights) > 0.01
    assert np.abs(result.policy.means.numpy()[weighty]).max() < 1.0
    assert np.mean(inside(x)) > 0.85


def test_a_target_that_is_finite_hardly_anywhere_is_survived():
    def spike(x):
        return tf.where(
            tf.reduce_all(tf.abs(x - 0.2) < 0.3, axis=1),
            tf.zeros_like(x[:, 0]),
            tf.constant(-np.inf, DENSITY),
        )

    result = fit_policy(spike, 2, 2, seed=0, search=SMALL, num_steps=10, jit_compile=False)
    assert all(np.isfinite(a).all() for a in result.policy)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rounds": 3}, "num_rounds"),
        ({"reused_step": 1}, "unknown key 'search.reused_step': did you mean 'reused_steps'"),
        ({"reused_steps": -1}, "reused_steps"),
        ({"num_rounds": 0}, "num_rounds"),
        ({"spare_components": 1.5}, "spare_components"),
        ({"samples_per_component": 0}, "samples_per_component"),
        ({"steps_per_round": None}, "steps_per_round"),
        ([1], "mapping"),
        ("on", "mapping"),
    ],
)
def test_bad_options_are_refused(overrides, message):
    with pytest.raises(InputError, match=message):
        fit_policy(four_modes, 2, 2, search=overrides)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 205))
def test_nearly_every_component_finds_a_mode_of_the_walker_of_its_own(seed):
    task = GridWalker(5)
    policy = fit_policy(task.log_prob, 5, 25, seed=seed).policy
    modes = task.modes_of(policy.means)
    assert len(set(modes[modes >= 0])) >= 24  # of seeds 200 to 239: 25 on 35, 24 on 5


def test_each_round_has_a_gap_of_its_own(monkeypatch):
    seen, candidates = [], adaptive._candidates

    def noted(policy, store, number, gap, seed):
        seen.append(float(gap))
        return candidates(policy, store, number, gap, seed)

    monkeypatch.setattr(adaptive, "_candidates", noted)
    pieces = small_pieces()
    state, scale = pieces.begin(isotropic(np.eye(2)[[0, 1, 0, 1]], np.ones(4), np.ones(4)))
    for r in range(3):
        pieces.exchange(tf.constant(r), state, scale)
    assert seen == scale.gaps.numpy().tolist()
    assert seen[0] > seen[1] > seen[2]
