"""People who cross a hall: density, draws, outcomes."""

from virl_tf import InputError
from virl_tf.tasks import Hall
from virl_tf.tasks.hall import (
    ALONG,
    ASIDE,
    BOOTH,
    BOOTH_RADIUS,
    BRIDGE,
    CLEARANCE,
    MAX_PAIRS,
    Guides,
    guides_of,
)

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from experiments.tasks import describe


@pytest.fixture(scope="module")
def task():
    return Hall(40, seed=0)


@pytest.fixture(scope="module")
def draws(task):
    return task.demonstrations(20_000, seed=1)


def by_hand(task, x):
    """Log p of one path, from whole covariances."""
    points = x.reshape(6, 2)
    inside = (points[:, None] >= task.gates[:, 0]) & (points[:, None] <= task.gates[:, 1])
    start, end = (np.flatnonzero(inside[i].all(axis=1))[0] for i in (0, 5))
    areas = np.prod(task.gates[:, 1] - task.gates[:, 0], axis=1)
    ends = np.log(task.weights[start, end] / areas[start] / areas[end])
    guides = guides_of(points[:1], points[5:])
    length = np.linalg.norm(points[5] - points[0])
    axes = guides.axes[0].numpy()
    across = length * axes.T @ np.diag([ALONG**2, ASIDE**2]) @ axes
    sides = [
        multivariate_normal(guides.means[0, s].numpy().ravel(), np.kron(BRIDGE, across)).logpdf(
            points[1:5].ravel()
        )
        for s in (0, 1)
    ]
    return ends + logsumexp(guides.log_shares[0].numpy() + sides)


def test_its_density_by_hand(task, draws):
    expected = [by_hand(task, x) for x in draws[:20]]
    np.testing.assert_allclose(task.log_prob(draws[:20]), expected, rtol=1e-9)


def test_its_integral_is_one(task):
    """By importance sampling, within five standard errors of below 2 %: a pair in use at random,
    uniform ends, half of the paths on either side of the booth with bridges a fifth wider.
    """
    rng, n, wider = np.random.default_rng(0), 200_000, 1.2
    pairs = np.argwhere(task.weights > 0.0)[rng.integers(0, 40, n)]
    low, high = task.gates[pairs].transpose(2, 0, 1, 3)
    ends = low + (high - low) * rng.random((n, 2, 2))
    log_q = -np.log(40.0) - np.log(high - low).sum(axis=(1, 2))
    guides = Guides(*(part.numpy() for part in guides_of(ends[:, 0], ends[:, 1])))
    scales = wider * guides.scales
    noise = rng.standard_normal((n, 4, 2)) * scales[:, None]
    bridges = np.einsum("ij,njd,nda->nia", np.linalg.cholesky(BRIDGE), noise, guides.axes)
    between = guides.means[np.arange(n), rng.integers(0, 2, n)] + bridges
    shifts = np.einsum("nsia,nda->nsdi", between[:, None] - guides.means, guides.axes)
    z = shifts @ np.linalg.inv(np.linalg.cholesky(BRIDGE)).T / scales[:, None, :, None]
    log_det = np.linalg.slogdet(BRIDGE)[1] + 4.0 * np.log(scales).sum(axis=1)
    log_q += logsumexp(np.log(0.5) - 0.5 * (z**2).sum(axis=(2, 3)), axis=1) - log_det
    log_q -= 4.0 * np.log(2.0 * np.pi)
    x = np.concatenate([ends[:, :1], between, ends[:, 1:]], axis=1).reshape(n, 12)
    ratio = np.exp(task.log_prob(x) - log_q)
    error = ratio.std() / np.sqrt(n)
    assert error < 0.02
    assert abs(ratio.mean() - 1.0) < 5.0 * error


def test_draws_are_of_the_density(task, draws):
    """E_p[q / p] = 1 for another density q on the same support: a hall with other weights."""
    other = Hall(40, seed=0)
    shares = np.roll(task._shares, 7)
    used = tuple(task._pairs.T)
    other._densities[used] *= shares / task._shares
    ratio = np.exp(other.log_prob(draws) - task.log_prob(draws))
    assert ratio.mean() == pytest.approx(1.0, abs=5.0 * ratio.std() / np.sqrt(len(ratio)))
    points = task.paths(draws)
    guides = guides_of(points[:, 0], points[:, 5])
    straight = np.abs(guides.log_shares[:, 0] - guides.log_shares[:, 1]) > 10.0
    side = guides.log_shares.numpy()[straight].argmax(axis=1)
    shifts = points[straight, 1:5] - guides.means.numpy()[straight, side]
    z = np.einsum("nid,nad->nia", shifts, guides.axes.numpy()[straight])
    z /= guides.scales.numpy()[straight, None]
    covariances = np.einsum("nia,nja->aij", z, z) / len(z)
    np.testing.assert_allclose(covariances, [BRIDGE, BRIDGE], atol=0.01)


def test_it_is_of_the_size_of_a_hall(task, draws):
    points = task.paths(draws)
    assert (points.min(axis=(0, 1)) > -15.0).all()
    assert (points.max(axis=(0, 1)) < 95.0).all()
    along, aside = 0.5 * guides_of([[35.0, 0.0]], [[35.0, 80.0]]).scales.numpy()[0]
    assert 0.5 < along < aside < 2.0  # metres, in the middle of the longest paths


def test_lines_near_the_booth_bend_around_it_and_others_do_not():
    ends = [[35.5, 1.0], [10.0, 1.0]], [[35.5, 79.0], [10.0, 79.0]]
    guides = guides_of(*ends)
    near, far = guides.means.numpy()
    for path in near:
        whole = np.concatenate([[ends[0][0]], path, [ends[1][0]]])
        x = np.linspace(0.0, 1.0, 500)
        fine = np.stack([np.interp(x, np.linspace(0.0, 1.0, 6), column) for column in whole.T])
        assert np.linalg.norm(fine.T - BOOTH, axis=1).min() > 0.8 * CLEARANCE
    likelier = guides.log_shares.numpy()[1].argmax()
    np.testing.assert_allclose(far[likelier][:, 0], 10.0, atol=1e-3)
    assert np.exp(guides.log_shares[0]) == pytest.approx([0.56, 0.44], abs=0.01)


def test_outcomes_of_true_paths(task, draws):
    found = task.outcome(draws)
    assert found["gate_to_gate"] == 1.0
    assert found["off_booth"] > 0.97
    assert found["pair_divergence"] < 0.01
    assert found["pairs_found"] == 40.0


def test_outcomes_of_others(task, draws):
    first = task.log_prob(draws).numpy().argmax()
    one = task.outcome(np.repeat(draws[first : first + 1], 5, axis=0))
    assert one["pairs_found"] == 1.0
    assert 0.0 < one["pair_divergence"] < 1.0
    inside = np.linspace(BOOTH - BOOTH_RADIUS, BOOTH + BOOTH_RADIUS, 6).reshape(1, 12)
    assert task.outcome(inside) == {
        "gate_to_gate": 0.0,
        "off_booth": 0.0,
        "pair_divergence": 1.0,
        "pairs_found": 0.0,
    }
    home = np.tile(task.gates[0].mean(axis=0), 6)[None]  # ends where it started
    assert task.outcome(home)["gate_to_gate"] == 0.0
    assert task.log_prob(home).numpy()[0] == -np.inf


def test_weights_are_zipfs_and_of_the_seed(task):
    weights = np.sort(task.weights[task.weights > 0.0])[::-1]
    np.testing.assert_allclose(weights, weights[0] / np.arange(1, 41))
    assert weights.sum() == pytest.approx(1.0)
    assert (Hall(40, seed=1).weights != task.weights).any()
    assert (Hall(MAX_PAIRS).weights > 0.0).sum() == MAX_PAIRS
    assert describe("hall").largest_size == MAX_PAIRS


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Hall(0), "num_pairs must be"),
        (lambda: Hall(MAX_PAIRS + 1), "num_pairs must be"),
        (lambda: Hall(3, seed=-1), "seed"),
        (lambda: Hall(3).log_prob(np.zeros((2, 6))), "x must be"),
    ],
)
def test_wrong_arguments(call, text):
    with pytest.raises(InputError, match=text):
        call()
