from virl_tf import reward as reward_module
from virl_tf.domain import EVERYWHERE, Domain
from virl_tf.network_stack import empty_stack
from virl_tf.reward import DTYPES, CumulativeValues, from_named_arrays, named_arrays
from virl_tf.validation import InputError

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.reference import reward as reference
from tests.shared import gradient, make_mixture, make_network, make_reward

# Rewards are about 10 in size and their networks are float32.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-4}
BOX = Domain(*(tf.constant([v, v], tf.float64) for v in (0.0, 2.5, 0.0)))


def expected(reward, x, networks, base_exponent=1.0):
    shift, scale = np.asarray(reward.features.shift), np.asarray(reward.features.scale)
    return reference.cumulative(x, reward.base, base_exponent, networks, shift, scale)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("base_exponent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_reward_is_base_plus_networks(points, networks, count, base_exponent):
    reward = make_reward(networks[:count], base_exponent=base_exponent)
    values = reward(points)
    assert values.dtype == tf.float64
    np.testing.assert_allclose(
        values, expected(reward, points, networks[:count], base_exponent), **TOLERANCE
    )
    np.testing.assert_allclose(reward.log_prob(tf.constant(points)), values, **TOLERANCE)


@pytest.mark.parametrize(
    "shape", [(2,), (1, 2), (5, 2), (3, 4, 2), (2, 1, 3, 2), (0, 2), (3, 0, 2)]
)
def test_leading_axes_are_kept(reward, networks, shape):
    x = np.random.default_rng(0).standard_normal(shape)
    values = reward(x)
    assert values.shape == shape[:-1]
    flat = expected(reward, x.reshape(-1, 2), networks)
    np.testing.assert_allclose(values, flat.reshape(shape[:-1]), **TOLERANCE)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 1), (4, 3), (2, 4), (5, 0)])
def test_another_width_is_refused(reward, shape):
    with pytest.raises(InputError, match=r"x must have shape \[\.\.\., 2\].* got \(") as error:
        reward(np.zeros(shape))
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("shape", [(2,), (3, 5, 2)])
def test_the_log_density_is_of_rows(reward, shape):
    with pytest.raises(InputError, match=r"log_prob takes rows \[N, D\], not \["):
        reward.log_prob(np.zeros(shape))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, np.int64, np.uint8])
def test_other_number_formats(reward, dtype):
    x = np.array([[0, 1], [2, 3], [1, 0]], dtype)
    np.testing.assert_array_equal(reward(x), reward(x.astype(np.float64)))


def test_lists_and_tensors(reward):
    x = [[0.5, 1.0], [2.0, -3.0]]
    np.testing.assert_array_equal(reward(x), reward(np.array(x)))
    np.testing.assert_array_equal(reward(tf.constant(x, tf.float64)), reward(np.array(x)))


def test_what_a_frame_or_a_masked_array_misses_is_no_number(reward):
    """`fit` takes frames whose columns have types of their own, and refuses what is masked."""
    x = np.array([[0.0, 1.0], [2.0, 3.0], [1.0, 0.0]])
    for frame in (pd.DataFrame(x).astype({0: "Int64"}), pd.DataFrame(x).astype({0: "bool"})):
        np.testing.assert_array_equal(reward(frame), reward(frame.to_numpy(np.float64)))
    expected = np.where([False, True, False], np.nan, reward(x))
    missing = [[False, False], [True, False], [False, False]]
    np.testing.assert_array_equal(reward(np.ma.array(x, mask=missing)), expected)
    np.testing.assert_array_equal(reward(pd.DataFrame(x).convert_dtypes().mask(missing)), expected)


@pytest.mark.parametrize("x", [[np.inf, 0.0], [0.0, -np.inf], [1e300, 0.0], [0.0, -1e40]])
def test_infinitely_far_away_it_is_minus_infinity(reward, with_features, x):
    for found in (reward, with_features[0]):
        assert found([x]).numpy() == -np.inf
        assert np.isnan(found([[np.nan, 0.0]]))


def test_what_is_left_out_is_not_told(networks):
    assert "3 networks of 3 x 8, base: a mixture of 3>" in repr(make_reward(networks))
    assert "base" not in repr(make_reward(networks, base_exponent=0.0))


def test_numbers_of_a_list_are_not_rounded(reward):
    x = [[1.0 + 1e-9, 2.0], [1.0, 2.0]]
    np.testing.assert_array_equal(reward(x), reward(np.array(x)))
    assert reward(x)[0] != reward(x)[1]


@pytest.fixture
def with_features():
    """A reward of two networks on 2 inputs and 3 frequencies, the frequencies and the networks."""
    frequencies = np.random.default_rng(3).standard_normal((2, 3))
    networks = [make_network(dim=8, seed=seed) for seed in (5, 6)]
    return make_reward(networks, frequencies=frequencies), frequencies, networks


def test_networks_see_the_features(with_features, points):
    reward, frequencies, networks = with_features
    z = (points - [0.5, 1.5]) / [2.0, 3.0]
    waves = [np.sin(z @ frequencies), np.cos(z @ frequencies)]
    inputs = np.hstack([z, np.sqrt(2.0) * np.hstack(waves)])
    of_networks = reference.sum_of_mlps(networks, inputs)
    of_base = reward.base.log_prob(tf.constant(points)).numpy()
    np.testing.assert_allclose(reward(points), of_networks + of_base, **TOLERANCE)


def test_gradient_through_the_features_is_that_of_differences(with_features, points):
    reward, step = with_features[0], 1e-3
    steps = [
        (reward(points + step * e) - reward(points - step * e)) / (2.0 * step) for e in np.eye(2)
    ]
    np.testing.assert_allclose(gradient(reward, points), np.stack(steps, axis=1), atol=0.02)


@pytest.mark.parametrize("exponent", [0.0, 0.3, 1.0])
def test_pooling_is_a_geometric_mean(networks, points, exponent):
    mixture = make_mixture(2, seed=5)
    reward = make_reward(networks, base_exponent=0.7, mixture=mixture)
    of_reward = expected(reward, points, networks, 0.7)
    of_mixture = mixture.log_prob(tf.constant(points)).numpy()
    wanted = (1.0 - exponent) * of_reward + exponent * of_mixture
    pooled = reward.pooled(exponent)
    np.testing.assert_allclose(pooled(points), wanted, **TOLERANCE)
    twice = pooled.pooled(0.5)(points)
    np.testing.assert_allclose(twice, 0.5 * wanted + 0.5 * of_mixture, **TOLERANCE)


def test_a_mixture_that_is_left_out_does_not_matter(networks, points):
    nowhere = make_mixture(1)._replace(log_weights=tf.constant([-np.inf], tf.float64))
    with_it, without = make_reward(networks, mixture=nowhere), make_reward(networks)
    np.testing.assert_array_equal(with_it(points), without(points))
    np.testing.assert_array_equal(gradient(with_it, points), gradient(without, points))


def test_a_base_that_is_left_out_does_not_matter_even_where_it_is_minus_infinity(networks, points):
    nowhere = make_mixture(1)._replace(log_weights=tf.constant([-np.inf], tf.float64))
    reward = make_reward(networks, base_exponent=0.0, base=nowhere)
    np.testing.assert_allclose(
        reward(points),
        reference.sum_of_mlps(networks, (points - [0.5, 1.5]) / [2.0, 3.0]),
        **TOLERANCE,
    )


def test_a_base_that_is_left_out_does_not_spoil_the_gradient(networks, points):
    nowhere = make_mixture(1)._replace(log_weights=tf.constant([-np.inf], tf.float64))
    without = gradient(make_reward(networks, base_exponent=0.0, base=nowhere), points)
    np.testing.assert_allclose(
        without, gradient(make_reward(networks, base_exponent=0.0), points), rtol=1e-6
    )


def test_gradient_is_that_of_base_and_networks(reward, networks, points):
    without_networks = gradient(make_reward([]), points)
    without_base = gradient(make_reward(networks, base_exponent=0.0), points)
    assert np.abs(without_base).max() > 0.1
    np.testing.assert_allclose(
        gradient(reward, points), without_networks + without_base, rtol=1e-5, atol=1e-5
    )


def test_the_gradient_of_densities_with_exponents_is_that_of_differences(points):
    exponents = {"base_exponent": 0.3, "mixture_exponent": 0.7}
    reward, step = make_reward([], mixture=make_mixture(2, seed=5), **exponents), 1e-5
    steps = [
        (reward(points + step * e) - reward(points - step * e)) / (2.0 * step) for e in np.eye(2)
    ]
    np.testing.assert_allclose(gradient(reward, points), np.stack(steps, axis=1), atol=1e-6)


# --- rewards made from others ---------------------------------------------------------------------


def test_a_network_is_added_at_the_end(networks, points):
    two, three = make_reward(networks[:2]), make_reward(networks[:2]).add(networks[2])
    np.testing.assert_array_equal(three(points), make_reward(networks)(points))
    np.testing.assert_allclose(two(points), expected(two, points, networks[:2]), **TOLERANCE)


def test_nothing_is_added_beyond_the_room(networks):
    with pytest.raises(ValueError, match="full"):
        make_reward(networks, capacity=3).add(networks[0])


@pytest.mark.parametrize("base_exponent", [0.0, 0.5])
def test_of_a_policy(networks, points, base_exponent):
    policy = make_mixture(4, seed=7)
    pooled = {"mixture": make_mixture(2), "mixture_exponent": 0.3}
    of_policy = make_reward(networks, base_exponent=base_exponent, **pooled).of_policy(policy)
    np.testing.assert_allclose(of_policy(points), policy.log_prob(tf.constant(points)), rtol=1e-12)
    both = of_policy.add(networks[1])
    np.testing.assert_allclose(both(points), expected(both, points, networks[1:2]), **TOLERANCE)


def test_without_base(reward, networks, points):
    pooled = {"mixture": make_mixture(2), "mixture_exponent": tf.constant(0.3, tf.float64)}
    nothing = reward._replace(**pooled).without_base()
    np.testing.assert_array_equal(nothing(points), np.zeros(50))
    one = nothing.add(networks[2])
    np.testing.assert_allclose(one(points), expected(one, points, networks[2:], 0.0), **TOLERANCE)
    assert one.networks.capacity == reward.networks.capacity


@pytest.mark.parametrize(("count", "room"), [(0, 1), (1, 1), (3, 3)])
def test_without_room(networks, points, count, room):
    reward = make_reward(networks[:count], capacity=9)
    small = reward.without_room()
    assert (small.networks.capacity, int(small.networks.count)) == (room, count)
    np.testing.assert_array_equal(small(points), reward(points))


def test_rewards_made_from_one_leave_it_alone(reward, networks, points):
    before = reward(points)
    reward.add(networks[0]), reward.of_policy(make_mixture(4)), reward.pooled(0.3)
    reward.without_base(), reward.without_room(), reward.truncate(1)
    np.testing.assert_array_equal(reward(points), before)


@pytest.mark.parametrize("convert", [np.asarray, tf.convert_to_tensor])
def test_a_reward_is_its_named_arrays(with_features, points, convert):
    reward = with_features[0]
    arrays = named_arrays(reward)
    assert list(arrays) == list(DTYPES)
    assert {name: str(array.dtype) for name, array in arrays.items()} == DTYPES
    np.testing.assert_array_equal(arrays["base.means"], reward.base.means)
    np.testing.assert_array_equal(arrays["networks.output_bias"], reward.networks.networks[-1])
    np.testing.assert_array_equal(arrays["features.frequencies"], reward.features.frequencies)
    shuffled = {name: convert(arrays[name]) for name in sorted(arrays)}
    np.testing.assert_array_equal(from_named_arrays(shuffled)(points), reward(points))


# --- truncate -------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_truncate_keeps_the_first_networks(reward, networks, points, count):
    truncated = reward.truncate(count)
    np.testing.assert_allclose(
        truncated(points), expected(reward, points, networks[:count]), **TOLERANCE
    )
    np.testing.assert_allclose(reward(points), expected(reward, points, networks), **TOLERANCE)


@pytest.mark.parametrize("count", [-1, 4])
def test_truncate_to_an_impossible_number(reward, count):
    with pytest.raises(InputError, match="count must be an integer from 0 to 3"):
        reward.truncate(count)


# --- values at fixed points -----------------------------------------------------------------------


def grown(reward, points):
    """The cached values after each network."""
    values = CumulativeValues(points)
    return values, [
        values(reward.truncate(count)).numpy() for count in range(int(reward.networks.count) + 1)
    ]


@pytest.mark.parametrize("domain", [EVERYWHERE, BOX])
@pytest.mark.parametrize("base_exponent", [0.0, 0.5, 1.0])
def test_cached_values_are_the_reward(points, networks, base_exponent, domain):
    reward = make_reward(networks, base_exponent=base_exponent)._replace(domain=domain)
    for count, found in enumerate(grown(reward, points)[1]):
        assert found.dtype == np.float64
        assert np.isneginf(found).any() == (domain is BOX)
        np.testing.assert_allclose(found, reward.truncate(count)(points), rtol=1e-6, atol=1e-6)


def test_a_network_is_evaluated_once(points, reward, monkeypatch):
    evaluated, logits = [], reward_module._compiled_logits
    monkeypatch.setattr(
        reward_module, "_compiled_logits", lambda specs: evaluated.append(specs) or logits(specs)
    )
    values, found = grown(reward, points)
    assert len(evaluated) == 3
    np.testing.assert_array_equal(values(reward), found[-1])
    assert len(evaluated) == 3


def test_values_of_a_resumed_run_have_the_same_bytes(points, reward):
    grew = grown(reward, points)[1]
    for count in range(4):
        assert (
            CumulativeValues(points)(reward.truncate(count)).numpy().tobytes()
            == grew[count].tobytes()
        )


def test_a_reward_that_does_not_go_on_from_the_one_before_is_evaluated_from_its_start(
    points, networks, reward
):
    values, features = CumulativeValues(points), reward.features
    others = [
        reward.truncate(1),
        make_reward([*networks[:2], make_network(seed=9)]),
        make_reward(networks, base_exponent=0.5),
        make_reward(networks, mixture=make_mixture(2, seed=5)).pooled(0.25),
        reward._replace(base=make_mixture(2, seed=5)),
        reward._replace(features=features._replace(shift=features.shift + 1.0)),
        reward._replace(features=features._replace(scale=2.0 * features.scale)),
    ]
    for other in others:
        values(reward)
        np.testing.assert_array_equal(values(other), CumulativeValues(points)(other))
        assert not np.array_equal(values(other), values(reward))


# --- as a density for samplers --------------------------------------------------------------------


def test_hamiltonian_monte_carlo_takes_it_as_a_target(reward):
    kernel = tfp.mcmc.HamiltonianMonteCarlo(
        reward, step_size=tf.constant(0.05, tf.float64), num_leapfrog_steps=2
    )
    start = np.random.default_rng(0).standard_normal((6, 2))

    @tf.function
    def chain():
        return tfp.mcmc.sample_chain(
            4,
            tf.constant(start),
            kernel=kernel,
            seed=[1, 2],
            trace_fn=lambda _, results: results.accepted_results.target_log_prob,
        )

    x, log_probs = chain()
    assert x.shape == (4, 6, 2)
    assert x.dtype == tf.float64
    assert np.isfinite(x).all()
    assert (x[-1].numpy() != start).all(axis=1).any()
    np.testing.assert_allclose(log_probs, reward(x), **TOLERANCE)


# --- TensorFlow's transformations -----------------------------------------------------------------


def value_and_slope(reward, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        values = reward(x)
    return values, tape.gradient(values, x)


def test_a_pooled_reward_and_its_gradient_are_vectorised(networks):
    reward = make_reward(networks[:2], mixture=make_mixture(), mixture_exponent=0.5)
    x = tf.constant(np.random.default_rng(0).normal(size=(5, 2)))
    values, slopes = tf.vectorized_map(
        lambda point: value_and_slope(reward, point), x, fallback_to_while_loop=False
    )
    expected_values, expected_slopes = value_and_slope(reward, x)
    np.testing.assert_allclose(values, expected_values, rtol=1e-6)
    np.testing.assert_allclose(slopes, expected_slopes, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_batch_jacobians_of_a_reward_and_of_its_gradient(reward):
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 2)))
    with tf.GradientTape() as tape:
        tape.watch(x)
        column = reward(x)[:, None]
    slopes = value_and_slope(reward, x)[1]
    np.testing.assert_allclose(tape.batch_jacobian(column, x)[:, 0], slopes, rtol=1e-6)
    with tf.GradientTape() as tape:
        tape.watch(x)
        slopes = value_and_slope(reward, x)[1]
    hessian = tape.batch_jacobian(slopes, x)  # of the base: the networks are piecewise linear
    step = 1e-4
    for i in range(2):
        shift = step * tf.one_hot(i, 2, dtype=tf.float64)
        ends = [value_and_slope(reward.truncate(0), x + s)[1] for s in (shift, -shift)]
        np.testing.assert_allclose(hessian[:, i], (ends[0] - ends[1]) / (2.0 * step), rtol=1e-4)


def test_many_points_are_evaluated_a_few_at_once(monkeypatch, reward, points):
    """A wide network's activations at millions of points were gigabytes."""
    whole = reward_module.evaluate(reward, tf.constant(points))
    monkeypatch.setattr("virl_tf.network_stack.ACTIVATIONS", 2 * 8 * 7)
    assert reward.networks.rows_at_once == 7 < len(points)
    assert empty_stack(1, 14, 2, 8).rows_at_once == 4  # where inputs are more
    found = reward_module.evaluate(reward, tf.constant(points))
    np.testing.assert_allclose(found, whole, rtol=1e-6)


@pytest.mark.parametrize("domain", [EVERYWHERE, BOX])
@pytest.mark.parametrize("shape", [None, [None, None], [2]])
def test_graphs_of_unknown_shapes(reward, shape, domain):
    reward = reward._replace(domain=domain)
    function = tf.function(
        lambda x: reward(x), autograph=False, input_signature=[tf.TensorSpec(shape, tf.float64)]
    )
    x = tf.constant([0.5, 1.0] if shape == [2] else [[0.5, 1.0], [2.0, 3.0]], tf.float64)
    np.testing.assert_array_equal(function(x), reward(x))
    if shape != [2]:
        with pytest.raises(tf.errors.InvalidArgumentError):
            function(tf.zeros([4, 3], tf.float64))


@pytest.mark.parametrize("kind", [tf.constant, np.asarray])
def test_single_precision_is_a_reward_of_what_it_stands_for(kind):
    reward, x = make_reward([make_network()]), np.ones((3, 2), np.float32)
    found = reward.log_prob(kind(x))
    assert found.dtype == tf.float64
    np.testing.assert_array_equal(found, reward.log_prob(tf.constant(x, tf.float64)))
