"""What every `Density` keeps to: mixtures, kernel estimates and their fusion."""

from virl_tf.density import Density
from virl_tf.fusion import Fusion
from virl_tf.kde import fit_kde
from virl_tf.mixture import gaussian, moments

import numpy as np
import pytest
import tensorflow as tf

from tests.shared import make_mixture

SEED = [5, 6]
POINTS = np.random.default_rng(0).standard_normal((60, 2)) * [1.0, 3.0]
KERNELS = fit_kde(POINTS, 0.4)
DENSITIES = {
    "mixture": make_mixture(),
    "one Gaussian": gaussian(np.ones(2), np.eye(2)),
    "kernels": KERNELS,
    "fusion with kernels": Fusion(make_mixture(), KERNELS),
    "fusion with a mixture": Fusion(make_mixture(), make_mixture(2, seed=3)),
}


@pytest.fixture(params=DENSITIES.values(), ids=DENSITIES)
def density(request):
    return request.param


def test_it_has_the_methods(density):
    assert isinstance(density, Density)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_log_prob_has_a_number_per_point(density, n):
    x = 3.0 * np.random.default_rng(1).standard_normal((n, 2))
    for points in (x, tf.constant(x)):
        log_p = density.log_prob(points)
        assert (log_p.shape, log_p.dtype) == ((n,), tf.float64)
        assert np.isfinite(log_p).all()


def test_points_do_not_matter_to_each_other(density):
    x = 3.0 * np.random.default_rng(1).standard_normal((9, 2))
    together = density.log_prob(tf.constant(x))
    alone = [float(density.log_prob(tf.constant(x[i : i + 1]))[0]) for i in range(9)]
    np.testing.assert_allclose(together, alone, rtol=1e-9)


def test_it_integrates_to_one(density):
    # By importance sampling from a Gaussian twice as wide as the draws.
    proposal = moments(density.sample(1000, [1, 2]).numpy())
    proposal = proposal._replace(scale_trils=2.0 * proposal.scale_trils)
    x = proposal.sample(40_000, SEED)
    weights = np.exp(density.log_prob(x) - proposal.log_prob(x))
    assert weights.mean() == pytest.approx(1.0, abs=5.0 * weights.std() / np.sqrt(len(weights)))
    assert weights.std() < 4.0  # else the line before says little


@pytest.mark.parametrize("n", [0, 1, 2, 7, 1000])
def test_draws_have_a_row_each(density, n):
    x = density.sample(n, SEED)
    assert (x.shape, x.dtype) == ((n, 2), tf.float64)
    assert np.isfinite(x).all()


def test_what_a_draw_is_of_and_its_noise_have_seeds_of_their_own(density, seeds_drawn):
    density.sample(7, SEED)
    assert len(set(seeds_drawn)) == len(seeds_drawn) >= 2


def test_draws_depend_on_the_seed_alone(density):
    x = density.sample(50, SEED)
    np.testing.assert_array_equal(x, density.sample(50, tf.constant(SEED)))
    assert (x.numpy() != density.sample(50, [6, 5]).numpy()).all()


def test_draws_are_of_the_density(density):
    # The mean ratio of another density to this one is the other's integral: one.
    x = density.sample(40_000, SEED)
    narrow = gaussian(np.mean(x, axis=0), 0.3 * np.cov(np.transpose(x)))
    ratio = np.exp(narrow.log_prob(x) - density.log_prob(x))
    assert ratio.mean() == pytest.approx(1.0, abs=5.0 * ratio.std() / np.sqrt(len(ratio)))
    assert ratio.std() < 20.0
