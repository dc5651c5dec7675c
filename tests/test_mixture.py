from virl_tf.conditional import conditioned
from virl_tf.em.by_bic import _split, bic_mixture
from virl_tf.em.em import em_mixture, fit_em
from virl_tf.mixture import (
    BACKGROUND,
    Mixture,
    background,
    distinct,
    from_covariances,
    gaussian,
    kmeans_start,
    moments,
    resized,
    samples_start,
    standard_normal_start,
)
from virl_tf.tasks import RandomGaussians
from virl_tf.validation import InputError

import numpy as np
import pytest
import tensorflow as tf

from tests.reference import mixture as reference
from tests.shared import make_mixture, make_reward

SHAPES = [(1, 1), (1, 2), (3, 2), (10, 5)]
SEED = [3, 4]
# Estimates are compared with expectations at 4.4 standard errors: 99.999 % for one normal
# statistic, and the seeds are fixed.
SIGMAS = 4.4

two_clusters = np.concatenate(
    [np.random.default_rng(i).standard_normal((60, 2)) * [1.0, 0.1] + 9.0 * i for i in range(2)]
)


def arrays(mixture):
    return [np.asarray(array) for array in mixture]


def check_valid(mixture, k, d):
    """Normalised weights, lower-triangular factors of positive definite covariances, finite float64
    throughout.
    """
    assert (mixture.num_components, mixture.dim) == (k, d)
    log_weights, means, scale_trils = arrays(mixture)
    assert (log_weights.shape, means.shape, scale_trils.shape) == ((k,), (k, d), (k, d, d))
    assert all(
        a.dtype == np.float64 and np.isfinite(a).all() for a in (log_weights, means, scale_trils)
    )
    np.testing.assert_allclose(np.exp(log_weights).sum(), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(scale_trils, np.tril(scale_trils))
    assert (np.diagonal(scale_trils, axis1=1, axis2=2) > 0.0).all()


# --- densities ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "d"), SHAPES)
def test_log_prob_is_the_references(k, d):
    mixture = make_mixture(k, d)
    x = 4.0 * np.random.default_rng(1).standard_normal((40, d))
    np.testing.assert_allclose(
        mixture.log_prob(x), reference.log_prob(x, *arrays(mixture)), rtol=1e-10, atol=1e-10
    )
    joint = reference.joint_log_prob(x, *arrays(mixture)) - mixture.log_weights.numpy()
    np.testing.assert_allclose(mixture.component_log_prob(x), joint, rtol=1e-10, atol=1e-10)


def test_log_prob_far_away_stays_finite():
    mixture = make_mixture()
    x = np.array([[1e5, -1e5], [1e6, 0.0]])
    np.testing.assert_allclose(
        mixture.log_prob(x), reference.log_prob(x, *arrays(mixture)), rtol=1e-10
    )


def test_a_component_of_weight_zero_does_not_matter():
    log_weights, means, scale_trils = arrays(make_mixture(2))
    log_weights = np.array([-np.inf, 0.0])
    x = np.random.default_rng(0).standard_normal((10, 2))
    alone = Mixture(log_weights[1:], means[1:], scale_trils[1:]).log_prob(x)
    np.testing.assert_allclose(
        Mixture(log_weights, means, scale_trils).log_prob(x), alone, rtol=1e-14
    )
    assert set(
        Mixture(log_weights, means, scale_trils).sample_with_components(100, SEED)[1].numpy()
    ) == {1}


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 0)])
def test_log_prob_of_points_in_any_shape_is_tfps(shape):
    mixture = make_mixture(3, 2)
    x = np.random.default_rng(0).normal(size=(*shape, 2))
    found = mixture.log_prob(x)
    assert found.shape == shape
    np.testing.assert_allclose(found, mixture.distribution.log_prob(x), rtol=1e-10)


@pytest.mark.parametrize("shape", [(), (5,), (5, 1), (2, 3), (2, 2, 1)])
def test_points_of_other_dimensions_are_refused(shape):
    with pytest.raises(InputError, match=r"x must have shape \[..., 2\], got "):
        make_mixture(3, 2).log_prob(np.zeros(shape))
    conditional = conditioned(make_mixture(3, 3), 1)
    with pytest.raises(
        InputError, match=r"x must have shape \[..., 3\], got .* log_prob\(x, c\)\."
    ):
        conditional.log_prob(np.zeros((5, 2)))


def test_paths_in_the_place_of_codes_are_told():
    reward, joint, paths = make_reward([]), make_mixture(3, 3), np.zeros((5, 9, 4))
    conditional = conditioned(joint, 1)
    in_context = make_reward([], dim=3).of_policy(conditional)
    for call in (
        lambda: make_mixture(3, 2).log_prob(paths),
        lambda: reward(paths),
        lambda: conditional.log_prob(paths),
        lambda: conditional.log_prob(paths, [0.0]),
        lambda: in_context(paths, [0.0]),
    ):
        with pytest.raises(InputError, match=r"of trajectories give the codes, encoding\.encode"):
            call()
    with pytest.raises(InputError, match=r"\(x, c\); of rows \[c, x\] it is log_prob\(rows\)"):
        in_context(np.zeros((5, 3)))
    assert in_context.log_prob(np.zeros((5, 3))).shape == (5,)


@pytest.mark.parametrize("dtype", [tf.float32, tf.int32])
def test_other_number_formats(dtype):
    mixture, x = make_mixture(2, 2), tf.cast([[1, 0], [2, -3]], dtype)
    np.testing.assert_array_equal(mixture.log_prob(x), mixture.log_prob(np.float64(x)))
    with pytest.raises(InputError, match=r"must be an array of real numbers .*complex64"):
        mixture.log_prob(tf.cast(x, tf.complex64))


@pytest.mark.parametrize("x", [None, [[1.0, 2.0], [3.0]], [[None, 1.0]], {}, "ab", 10**400])
def test_what_are_no_numbers_is_refused_in_one_line(x):
    for density in (make_mixture(), conditioned(make_mixture(3, 3), 1)):
        with pytest.raises(InputError, match=r"^x must be an array of real numbers \[") as error:
            density.log_prob(x)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(("k", "d"), SHAPES)
def test_responsibilities_are_the_references_and_normalised(k, d):
    mixture = make_mixture(k, d)
    x = 30.0 * np.random.default_rng(1).standard_normal((40, d))
    log_r = mixture.log_responsibilities(x).numpy()
    np.testing.assert_allclose(np.exp(log_r).sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(
        log_r, reference.log_responsibilities(x, *arrays(mixture)), rtol=1e-9, atol=1e-9
    )


def test_covariances_are_those_of_the_factors():
    mixture = make_mixture(4, 3)
    for covariance, scale_tril in zip(
        mixture.covariances.numpy(), mixture.scale_trils.numpy(), strict=True
    ):
        np.testing.assert_allclose(covariance, scale_tril @ scale_tril.T, rtol=1e-14)


def test_log_prob_gradient_against_finite_differences():
    mixture, x, step = (
        make_mixture(),
        tf.constant(np.random.default_rng(0).standard_normal((20, 2))),
        1e-6,
    )
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(mixture.log_prob(x))
    gradient = tape.gradient(total, x)
    for column, shift in enumerate(step * np.eye(2)):
        numeric = (mixture.log_prob(x + shift) - mixture.log_prob(x - shift)) / (2.0 * step)
        np.testing.assert_allclose(gradient[:, column], numeric, atol=1e-7)


# --- samples --------------------------------------------------------------------------------------


def test_sample_ids_are_the_components_the_samples_came_from():
    mixture = make_mixture(6)
    centres = 100.0 * np.random.default_rng(0).permutation(
        np.stack([np.arange(6.0), np.arange(6.0) ** 2], axis=1)
    )
    x, ids = mixture._replace(means=tf.constant(centres)).sample_with_components(2000, SEED)
    assert x.dtype == tf.float64
    assert ids.dtype == tf.int32
    nearest = np.linalg.norm(x.numpy()[:, None] - centres, axis=-1).argmin(axis=1)
    np.testing.assert_array_equal(ids, nearest)
    assert set(nearest) == set(range(6))


def test_sample_ids_have_the_weights_frequencies():
    n, mixture = 40_000, make_mixture(5)
    weights = np.exp(mixture.log_weights)
    frequencies = np.bincount(mixture.sample_with_components(n, SEED)[1], minlength=5) / n
    assert (np.abs(frequencies - weights) < SIGMAS * np.sqrt(weights * (1.0 - weights) / n)).all()


@pytest.mark.parametrize(("k", "d"), SHAPES)
def test_sample_moments(k, d):
    n, mixture = 40_000, make_mixture(k, d)
    mean, covariance = reference.moments(*arrays(mixture))
    x = mixture.sample(n, SEED).numpy()
    assert x.shape == (n, d)
    assert (np.abs(x.mean(axis=0) - mean) < SIGMAS * np.sqrt(np.diag(covariance) / n)).all()
    products = (x - mean)[:, :, None] * (x - mean)[:, None, :]
    assert (
        np.abs(products.mean(axis=0) - covariance) < SIGMAS * products.std(axis=0) / np.sqrt(n)
    ).all()


def test_the_choice_of_component_and_the_noise_are_independent():
    n, means = 40_000, np.array([[0.0], [1000.0]])
    x, ids = Mixture(np.log([0.5, 0.5]), means, np.ones((2, 1, 1))).sample_with_components(n, SEED)
    noise = np.abs(x.numpy() - means[ids])[:, 0]
    assert abs(np.corrcoef(ids, noise)[0, 1]) < SIGMAS / np.sqrt(n)


@pytest.mark.parametrize("n", [0, 1])
def test_sample_of_few(n):
    x, ids = make_mixture().sample_with_components(n, SEED)
    assert (x.shape, ids.shape) == ((n, 2), (n,))


@pytest.mark.parametrize("d", [1, 2, 5])
def test_entropy_of_one_gaussian(d):
    n, mixture = 40_000, make_mixture(1, d)
    exact = (
        0.5 * d * (1.0 + np.log(2.0 * np.pi)) + np.log(np.diagonal(mixture.scale_trils[0])).sum()
    )
    # -log q has variance d / 2 under a Gaussian q.
    assert abs(float(mixture.entropy(n, SEED)) - exact) < SIGMAS * np.sqrt(0.5 * d / n)


# --- Gaussians and starts -------------------------------------------------------------------------


def test_gaussian_has_the_given_moments():
    covariance = np.array([[2.0, 0.7], [0.7, 0.5]])
    mixture = gaussian(np.array([1.0, -2.0]), covariance)
    check_valid(mixture, 1, 2)
    np.testing.assert_array_equal(mixture.means[0], [1.0, -2.0])
    np.testing.assert_allclose(mixture.covariances[0], covariance, rtol=1e-14)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_moments_are_numpys(d):
    x = np.random.default_rng(0).standard_normal((30, d)) * 10.0 ** np.arange(d) + 5.0
    mixture = moments(x)
    check_valid(mixture, 1, d)
    np.testing.assert_allclose(mixture.means[0], x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(
        mixture.covariances[0], np.cov(x, rowvar=False).reshape(d, d), rtol=1e-7
    )


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("copies", [[1.0, 2.0], [1.0, -1.0, 3.0], [1.0, 1e-4, 1e4]])
def test_moments_of_collinear_data_are_valid(scale, copies):
    x = scale * np.outer(np.random.default_rng(0).standard_normal(50), copies) + 1.0
    mixture = moments(x)
    check_valid(mixture, 1, len(copies))
    assert np.isfinite(mixture.log_prob(x)).all()


def starts(k, seed):
    return {
        "standard_normal": standard_normal_start(k, 2, seed),
        "samples": samples_start(two_clusters, k, seed),
        "kmeans": kmeans_start(two_clusters, k, seed),
        "mixture": resized(make_mixture(3, 2, seed=seed), k),
    }


@pytest.mark.parametrize("k", [1, 2, 7])
@pytest.mark.parametrize("start", ["standard_normal", "samples", "kmeans", "mixture"])
def test_starts_are_valid_and_depend_on_the_seed_alone(start, k):
    mixture = starts(k, 5)[start]
    check_valid(mixture, k, 2)
    for first, again in zip(arrays(mixture), arrays(starts(k, 5)[start]), strict=True):
        np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("start", ["standard_normal", "samples", "kmeans"])
def test_another_seed_is_another_start(start):
    assert (starts(7, 0)[start].means.numpy() != starts(7, 1)[start].means.numpy()).any()


def test_a_mixture_of_fewer_components_has_its_heaviest():
    mixture = make_mixture(5, 3)
    found = resized(mixture, 2)
    order = np.argsort(-mixture.log_weights.numpy())[:2]
    np.testing.assert_array_equal(found.means, mixture.means.numpy()[order])
    np.testing.assert_allclose(found.covariances, mixture.covariances.numpy()[order], rtol=1e-12)
    weights = np.exp(mixture.log_weights.numpy()[order])
    np.testing.assert_allclose(np.exp(found.log_weights), weights / weights.sum(), rtol=1e-12)


@pytest.mark.parametrize("dim", [2, 12])
def test_of_a_mode_that_is_there_twice_one_component_is_chosen(dim):
    twice = make_mixture(4, dim)
    moved = twice._replace(means=twice.means + 0.3 * twice.scale_trils[:, :, 0])
    pairs = [tf.concat(arrays, axis=0) for arrays in zip(twice, moved, strict=True)]
    found = distinct(Mixture(pairs[0] - np.log(2.0), *pairs[1:]), 4)
    assert sorted(found % 4) == [0, 1, 2, 3]


@pytest.mark.parametrize(("dim", "second"), [(2, 1), (8, 2)])
def test_in_many_dimensions_a_slight_overlap_is_an_estimate_of_the_same_mode(dim, second):
    """An overlap of 0.05 with the first counts as itself in two dimensions, as 0.47 in eight."""
    away = np.sqrt(-8.0 * np.log(0.05))  # of unit Gaussians with that Bhattacharyya coefficient
    means = np.zeros((3, dim))
    means[1:, 0] = away, -20.0
    unit = np.tile(np.eye(dim), (3, 1, 1))
    mixture = Mixture(*(tf.constant(a) for a in (np.log([0.5, 0.3, 0.2]), means, unit)))
    np.testing.assert_array_equal(distinct(mixture, 2), [0, second])


def test_components_with_one_mean_start_a_policy_as_one():
    """In three widths whose mean is one: the start is that of the mixture in one width."""
    modes = make_mixture(4, 5)
    shares, widths = (0.2, 0.5, 0.3), (2.0, 1.0, 1.0 / 3.0)  # of variances
    both = Mixture(
        tf.concat([modes.log_weights + np.log(share) for share in shares], axis=0),
        tf.concat([modes.means] * 3, axis=0),
        tf.concat([np.sqrt(width) * modes.scale_trils for width in widths], axis=0),
    )
    for k in (2, 4, 7):
        for found, expected in zip(resized(both, k), resized(modes, k), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_components_without_a_weight_start_no_policy(k):
    """As far from a context, where most weights underflow: halves of the others instead."""
    modes = make_mixture(2, 3)
    around = modes._replace(scale_trils=2.0 * modes.scale_trils)  # with means in common
    far = make_mixture(4, 3, seed=1)
    light = far._replace(log_weights=far.log_weights - 900.0)
    both = [
        Mixture(*(tf.concat(arrays, axis=0) for arrays in zip(*some, strict=True)))
        for some in ((modes, around), (modes, around, light))
    ]
    for found, expected in zip(*(resized(mixture, k) for mixture in both), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("k", [2, 4, 7])
def test_a_background_is_no_mode(k):
    modes = make_mixture(4, 5)
    around = gaussian(np.zeros(5), 4.0 * moments(modes.sample(2000, [0, 1]).numpy()).covariances[0])
    light = modes._replace(log_weights=modes.log_weights + np.log(1.0 - BACKGROUND))
    around = around._replace(log_weights=around.log_weights + np.log(BACKGROUND))
    both = Mixture(*(tf.concat(arrays, axis=0) for arrays in zip(light, around, strict=True)))
    for found, expected in zip(resized(both, k), resized(modes, k), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_wider_than_each_mode_and_narrower_than_all_of_them_is_no_background():
    log_weights = np.log([0.495, 0.495, 0.01])
    means = np.array([[-20.0, -20.0], [20.0, 20.0], [0.0, 0.0]])
    covariances = np.array([1.0, 1.0, 4.0])[:, None, None] * np.eye(2)
    assert not background(from_covariances(log_weights, means, covariances)).any()
    covariances[-1] = 4000.0 * np.eye(2)
    wide = background(from_covariances(log_weights, means, covariances))
    np.testing.assert_array_equal(wide, [False, False, True])


@pytest.mark.parametrize("k", [2, 10])
def test_a_wide_component_that_demonstrations_are_in_is_one(k):
    shares, widths = np.log([0.97, 0.03]), np.array([1.0, 900.0])
    covariances = widths[:, None, None] * np.eye(3)
    found = resized(from_covariances(shares, np.eye(2, 3), covariances), k)
    widest = np.linalg.det(found.scale_trils.numpy()).argmax()
    np.testing.assert_allclose(found.scale_trils[widest], 30.0 * np.eye(3), rtol=1e-12)
    np.testing.assert_allclose(np.exp(found.log_weights[widest]), 0.03, rtol=1e-12)


@pytest.mark.parametrize("k", [5, 6, 12])
def test_a_mixture_of_more_components_keeps_its_moments(k):
    mixture, found = make_mixture(5, 3), resized(make_mixture(5, 3), k)
    weights, of_more = np.exp(mixture.log_weights), np.exp(found.log_weights)
    assert of_more.max() <= weights.max() * (1.0 if k == 5 else 0.999)
    mean = weights @ mixture.means.numpy()
    np.testing.assert_allclose(of_more @ found.means.numpy(), mean, rtol=1e-10)

    def second(weights, mixture):
        squares = np.einsum("ki,kj->kij", mixture.means, mixture.means) + mixture.covariances
        return np.einsum("k,kij->ij", weights, squares)

    np.testing.assert_allclose(second(of_more, found), second(weights, mixture), rtol=1e-9)


def test_halves_are_half_a_standard_deviation_away_along_the_longest_axis():
    found = resized(gaussian(np.zeros(2), np.diag([1.0, 9.0])), 2)
    upper_last = found.means.numpy()[np.argsort(found.means[:, 1])]
    np.testing.assert_allclose(upper_last, [[0.0, -1.5], [0.0, 1.5]], atol=1e-12)


def test_standard_normal_start_is_the_authors():
    mixture = standard_normal_start(4000, 3, 0)
    np.testing.assert_array_equal(mixture.covariances, np.tile(np.eye(3), (4000, 1, 1)))
    np.testing.assert_allclose(np.exp(mixture.log_weights), 1.0 / 4000.0, rtol=1e-12)
    # 12,000 standard normal numbers
    assert abs(mixture.means.numpy().mean()) < SIGMAS / np.sqrt(12_000)
    assert abs(mixture.means.numpy().var() - 1.0) < SIGMAS * np.sqrt(2.0 / 12_000)


def test_samples_start_takes_distinct_rows_and_shrinks_the_volume():
    k = 9
    mixture = samples_start(two_clusters, k, 0)
    rows = {tuple(row) for row in two_clusters}
    means = {tuple(row) for row in mixture.means.numpy()}
    assert len(means) == k
    assert means <= rows
    volume = np.sqrt(np.linalg.det(np.cov(two_clusters, rowvar=False)))
    np.testing.assert_allclose(np.sqrt(np.linalg.det(mixture.covariances)), volume / k, rtol=1e-6)


def test_samples_start_with_as_many_components_as_points():
    x = two_clusters[:7]
    np.testing.assert_array_equal(np.sort(samples_start(x, 7, 0).means, axis=0), np.sort(x, axis=0))


def test_kmeans_start_finds_two_clusters():
    x = np.concatenate([two_clusters[:60], two_clusters[60:], two_clusters[60:]])
    mixture = kmeans_start(x, 2, 0)
    order = np.argsort(mixture.means[:, 0])
    np.testing.assert_allclose(
        mixture.means.numpy()[order], [x[:60].mean(axis=0), x[60:].mean(axis=0)], rtol=1e-12
    )
    np.testing.assert_allclose(
        np.exp(mixture.log_weights.numpy()[order]), [1.0 / 3.0, 2.0 / 3.0], rtol=1e-12
    )
    prior = samples_start(x, 2, 0).covariances[0].numpy()  # with the weight of D + 1 points
    for o, rows in zip(order, (x[:60], x[60:]), strict=True):
        scatter = len(rows) * np.cov(rows.T, bias=True)
        expected = (scatter + 3.0 * prior) / (len(rows) + 3.0)
        np.testing.assert_allclose(mixture.covariances[o], expected, rtol=1e-9)


def test_kmeans_start_is_not_misled_by_units():
    scaled = kmeans_start(two_clusters * [1e6, 1e-6], 4, 0)
    plain = kmeans_start(two_clusters, 4, 0)
    np.testing.assert_allclose(scaled.means, plain.means * [1e6, 1e-6], rtol=1e-8)


@pytest.mark.filterwarnings("error")  # of fewer different rows than clusters
@pytest.mark.parametrize("k", [4, 10])
def test_kmeans_start_with_more_components_than_distinct_points(k):
    x = np.repeat([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], 20, axis=0)
    mixture = kmeans_start(x, k, 0)
    check_valid(mixture, k, 2)
    assert np.isfinite(mixture.log_prob(x)).all()


def test_kmeans_start_with_a_component_per_point():
    check_valid(kmeans_start(two_clusters[:8], 8, 0), 8, 2)


def test_kmeans_start_on_collinear_data():
    x = np.outer(np.random.default_rng(0).standard_normal(80), [1.0, -2.0])
    check_valid(kmeans_start(x, 5, 0), 5, 2)


@pytest.mark.parametrize("unit", [1.0, 1e-9, 1e9])
def test_bic_finds_the_number_of_components(unit):
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    x = unit * (centres[rng.integers(0, 3, 1500)] + rng.standard_normal((1500, 2)))
    mixture = bic_mixture(x, 0)
    assert mixture.num_components == 3
    found = np.asarray(mixture.means)[np.argsort(np.asarray(mixture.means) @ [1.0, 2.0])]
    np.testing.assert_allclose(found, unit * centres, atol=0.2 * unit)
    np.testing.assert_allclose(np.exp(mixture.log_weights), 1.0 / 3.0, atol=0.05)


@pytest.mark.parametrize(("rows", "starts"), [(149, [1]), (150, [1, 10])])
def test_bic_starts_from_several_components_too_where_rows_are_enough(monkeypatch, rows, starts):
    """Where two Gaussians are no better than one, though many are."""
    counts = []

    def grown(z, count, seed):
        counts.append(count)
        return fit_em(z, 3 if count > 1 else 1, seed)

    monkeypatch.setattr("virl_tf.em.by_bic._grown", grown)
    rng = np.random.default_rng(0)
    x = 8.0 * rng.integers(0, 3, (rows, 1)) + rng.standard_normal((rows, 2))
    assert bic_mixture(x, 0).num_components == (3 if len(starts) > 1 else 1)
    assert counts == starts


def test_em_starts_with_the_weight_of_a_component_shared_by_its_halves():
    rng = np.random.default_rng(0)
    x = np.repeat([0.0, 20.0, 28.0], [300, 100, 200])[:, None] + rng.standard_normal((600, 1))
    start = _split(x, fit_em(x, 2, 0), 0)
    found = start["weights_init"][np.argsort(start["means_init"][:, 0])]
    np.testing.assert_allclose(found, [1 / 2, 1 / 6, 1 / 3], atol=0.01)


@pytest.mark.parametrize("rows", [2, 5])
def test_bic_of_few_points_is_one_gaussian(rows):
    x = np.random.default_rng(0).standard_normal((rows, 2))
    check_valid(bic_mixture(x, 0), 1, 2)


def test_bic_of_rows_that_differ_in_one_column_only():
    x = np.random.default_rng(0).standard_normal((60, 2)) * [1.0, 0.0]
    mixture = bic_mixture(x, 0)
    assert np.isfinite(mixture.log_prob(x)).all()
    assert np.abs(mixture.means[:, 1]).max() < 1e-9


@pytest.mark.parametrize("seed", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_splitting_finds_the_modes_that_em_merges_in_many_dimensions(seed):
    p = RandomGaussians(25, seed, dim=10).mixture
    x = p.sample(5000, tf.constant([seed, 1])).numpy()

    def distance(q):  # KL(q || p); the parameters of 25 full Gaussians alone cost about 0.16
        draws = q.sample(4000, tf.constant([seed, 2]))
        return float(tf.reduce_mean(q.log_prob(draws) - p.log_prob(draws)))

    mixture = bic_mixture(x, seed)
    assert mixture.num_components in (24, 25)
    assert distance(mixture) < 0.4
    assert distance(em_mixture(x, 25, seed)) > 1.0  # components over two modes


def test_bic_of_a_gaussian_is_one_component_and_the_moments():
    x = np.random.default_rng(0).standard_normal((2000, 5)) @ np.random.default_rng(
        1
    ).standard_normal((5, 5))
    mixture = bic_mixture(x, 0)
    check_valid(mixture, 1, 5)
    np.testing.assert_allclose(
        mixture.covariances[0], np.cov(x, rowvar=False, bias=True), rtol=1e-3, atol=1e-4
    )


def test_samples_need_no_seed():
    policy = make_mixture(2)
    assert policy.sample(3).shape == (3, 2)
    assert not np.array_equal(policy.sample(3), policy.sample(3))
    np.testing.assert_array_equal(policy.sample(3, 5), policy.sample(3, seed=5))
    assert policy.sample_with_components(3)[1].shape == (3,)


@pytest.mark.parametrize("n", [0, 1, 7, 20])
def test_a_density_is_the_same_at_many_points_and_at_a_few_at_once(monkeypatch, n):
    k, d = 3, 2
    mixture = make_mixture(k, d)
    x = np.random.default_rng(0).standard_normal((n, d))
    whole = tf.function(mixture.log_prob)(tf.constant(x))
    monkeypatch.setattr("virl_tf.mixture.NUMBERS_AT_ONCE", 7 * k * d)
    assert mixture.rows_at_once == 7
    np.testing.assert_allclose(mixture.log_prob(x), whole, rtol=1e-12)


def test_draws_are_the_same_many_and_a_few_at_once(monkeypatch):
    mixture = make_mixture(3, 2)
    whole = mixture.sample(20, seed=1)
    monkeypatch.setattr("virl_tf.mixture.NUMBERS_AT_ONCE", 7 * 2 * 2)
    np.testing.assert_array_equal(mixture.sample(20, seed=1), whole)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_many_components_have_the_density_of_few(monkeypatch, offset):
    """Up to rounding, which grows with (spread of the means / smallest width) squared."""
    rng = np.random.default_rng(3)
    k, d = 120, 3
    factors = 0.1 * rng.standard_normal((k, d, d)) + 0.01 * np.eye(d)
    covariances = factors @ factors.transpose(0, 2, 1) + 1e-4 * np.eye(d)
    means = offset + rng.standard_normal((k, d))
    mixture = Mixture(
        tf.fill([k], -tf.math.log(tf.constant(float(k), tf.float64))),
        tf.constant(means),
        tf.constant(np.linalg.cholesky(covariances)),
    )
    x = offset + 2.0 * rng.standard_normal((50, d))
    found = mixture.component_log_prob(x)
    monkeypatch.setattr("virl_tf.mixture.MANY_COMPONENTS", k + 1)
    np.testing.assert_allclose(found, mixture.component_log_prob(x), rtol=1e-7)
