"""EM mixtures smoothed over contexts: identities, a slow reference, and what they are for."""

from virl_tf.conditional import conditioned
from virl_tf.context_smoothing import PSEUDO_ROWS, WIDTHS, choose_smoothing
from virl_tf.em.by_bic import bic_mixture
from virl_tf.mixture import moments
from virl_tf.tasks.experts import RandomExperts

import numpy as np
import pytest
import tensorflow as tf

from tests.shared import make_mixture

SIZES = [(1, 1), (2, 1), (3, 2), (1, 4)]  # C, D


def smoothing_of(rows, c, width):
    return choose_smoothing(moments(rows), rows, rows, c)._replace(width=width)


def example(c, d, width=0.1, n=200):
    """A mixture, how it is smoothed, and rows."""
    rows = 2.0 * np.random.default_rng(c + d).standard_normal((n, c + d)) + 1.0
    return make_mixture(3, c + d, seed=c + 7 * d), smoothing_of(rows, c, width), rows


def blocks(mixture, c):
    covariances = np.asarray(mixture.covariances)
    return covariances[:, :c, :c], covariances[:, c:, :c], covariances[:, c:, c:]


# --- the formulae ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("c", "d"), SIZES)
def test_gains_are_those_of_least_squares_with_pseudo_rows(c, d):
    """Of N_o rows with the component's moments and nu rows of which the regression is G."""
    joint, smoothing, _ = example(c, d)
    found = conditioned(smoothing(joint), c)
    for o in range(3):
        count = smoothing.num_rows * float(tf.exp(joint.log_weights[o]))
        rows = np.asarray(joint.scale_trils[o]).T  # whose products add up to the covariance
        root = np.linalg.cholesky(smoothing.covariance).T
        of_c = np.vstack([np.sqrt(count) * rows[:, :c], np.sqrt(PSEUDO_ROWS) * root])
        pseudo = root @ smoothing.gains.T
        of_x = np.vstack([np.sqrt(count) * rows[:, c:], np.sqrt(PSEUDO_ROWS) * pseudo])
        expected = np.linalg.lstsq(of_c, of_x, rcond=None)[0].T
        np.testing.assert_allclose(found.gains[o], expected, rtol=1e-7, atol=1e-9)

        left = rows[:, c:] - rows[:, :c] @ expected.T
        covariance = found.scale_trils[o] @ tf.transpose(found.scale_trils[o])
        np.testing.assert_allclose(covariance, left.T @ left, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("c", "d"), SIZES)
def test_contexts_are_seen_through_a_gaussian_kernel(c, d):
    joint, smoothing, _ = example(c, d, width=0.3)
    found = smoothing(joint)
    of_c, _, _ = blocks(joint, c)
    np.testing.assert_allclose(blocks(found, c)[0], of_c + 0.3 * smoothing.covariance, rtol=1e-9)
    assert found.means is joint.means
    assert found.log_weights is joint.log_weights


@pytest.mark.parametrize(("c", "d"), SIZES)
def test_it_is_the_same_in_all_units(c, d):
    """Of contexts and rows that are scaled, turned and shifted: densities but for the Jacobian."""
    joint, smoothing, rows = example(c, d)
    rng = np.random.default_rng(1)
    turn = np.zeros((c + d, c + d))
    turn[:c, :c], turn[c:, c:] = rng.standard_normal((c, c)), rng.standard_normal((d, d))
    shift = 100.0 * rng.standard_normal(c + d)
    moved = joint._replace(
        means=joint.means @ turn.T + shift,
        scale_trils=tf.linalg.cholesky(turn @ joint.covariances @ turn.T),
    )
    there = rows @ turn.T + shift
    found = conditioned(smoothing_of(there, c, smoothing.width)(moved), c).log_prob(there)
    expected = conditioned(smoothing(joint), c).log_prob(rows)
    jacobian = np.linalg.slogdet(turn[c:, c:])[1]
    np.testing.assert_allclose(found + jacobian, expected, rtol=1e-6, atol=1e-6)


def test_one_gaussian_says_the_same_of_every_context():
    rows = np.random.default_rng(0).standard_normal((100, 3)) @ np.array(
        [[1.0, 0.5, 0.2], [0.0, 1.0, -0.7], [0.0, 0.0, 0.3]]
    )
    joint = moments(rows)
    for width in WIDTHS:
        found = conditioned(smoothing_of(rows, 1, width)(joint), 1)
        expected = conditioned(joint, 1).log_prob(rows)
        np.testing.assert_allclose(found.log_prob(rows), expected, rtol=1e-6, atol=1e-6)


def test_without_contexts_nothing_is_smoothed():
    joint = make_mixture(3, 2)
    rows = np.random.default_rng(0).standard_normal((50, 2))
    assert choose_smoothing(joint, rows, rows, 0)(joint) is joint


def test_a_component_that_has_lost_its_rows_keeps_numbers():
    joint, smoothing, rows = example(2, 1)
    log_weights = tf.constant([0.0, -700.0, -1.0], tf.float64)
    found = conditioned(smoothing(joint._replace(log_weights=log_weights)), 2)
    assert np.isfinite(found.log_prob(rows)).all()
    np.testing.assert_allclose(found.gains[1], smoothing.gains, atol=0.2)  # all it knows is G


@pytest.mark.parametrize("second", ["constant", "the same as the first"])
def test_contexts_without_a_spread_of_their_own_are_no_error(second):
    rows = np.random.default_rng(0).standard_normal((200, 3))
    rows[:, 1] = 2.0 if second == "constant" else rows[:, 0]
    joint = bic_mixture(rows, 0)  # EM's ridge gives it an inverse
    found = choose_smoothing(joint, rows, rows, 2)
    assert np.isfinite(conditioned(found(joint), 2).log_prob(rows)).all()


# --- what it is for -------------------------------------------------------------------------------


def likelihood(policy, rows):
    return float(tf.reduce_mean(policy.log_prob(rows)))


def split(rows, low, high):
    """Rows whose first context lies elsewhere, and those where it lies there."""
    inside = (rows[:, 0] >= low) & (rows[:, 0] < high)
    return rows[~inside], rows[inside]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_unseen_contexts_are_likelier_and_seen_ones_not_less(seed):
    """Of experts whose contexts are uniform, which Gaussians over them are not."""
    task = RandomExperts(10, 2, seed)
    seen, _ = split(np.hstack(task.demonstrations(3000, seed)), 0.2, 0.6)
    fresh, unseen = split(np.hstack(task.demonstrations(6000, seed + 100)), 0.2, 0.6)
    train, held_out = seen[:2000], seen[2000:]
    joint = bic_mixture(train, seed)
    smoothing = choose_smoothing(joint, train, held_out, 2)
    plain, smoothed = conditioned(joint, 2), conditioned(smoothing(joint), 2)
    assert smoothing.width > 0.0
    assert likelihood(smoothed, unseen) > likelihood(plain, unseen) + 0.05
    assert likelihood(smoothed, fresh) > likelihood(plain, fresh)


def test_the_chosen_width_is_the_likeliest_on_held_out_rows():
    joint, _, rows = example(2, 1)
    held_out = np.asarray(joint.sample(500, [1, 2]))
    chosen = choose_smoothing(joint, rows, held_out, 2)
    likelihoods = {
        width: likelihood(conditioned(chosen._replace(width=width)(joint), 2), held_out)
        for width in WIDTHS
    }
    assert likelihoods[chosen.width] == max(likelihoods.values())


def test_contexts_that_tell_groups_apart_are_hardly_smoothed():
    """A jump between two groups of contexts: what is wide blurs it."""
    rng = np.random.default_rng(0)
    c = rng.uniform(-1.0, 1.0, (4000, 1))
    rows = np.hstack([c, np.where(c > 0.0, 5.0, -5.0) + 0.1 * rng.standard_normal((4000, 1))])
    train, held_out = rows[:3000], rows[3000:]
    joint = bic_mixture(train, 0)
    assert choose_smoothing(joint, train, held_out, 1).width <= 0.01


def test_a_smoothing_says_what_it_holds():
    _, smoothing, rows = example(2, 1, width=0.03)
    assert smoothing.num_rows == len(rows)
    assert smoothing.gains.shape == (1, 2)
    np.testing.assert_allclose(smoothing.covariance, np.cov(rows[:, :2].T, bias=True))
