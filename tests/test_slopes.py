from virl_tf import fit_policy
from virl_tf.domain import EVERYWHERE, Domain
from virl_tf.hparams import default_hparams, own_data_hparams
from virl_tf.mixture import standard_normal_start
from virl_tf.vips.improve import improve
from virl_tf.vips.slopes import slopes_say_all, values_and_slopes
from virl_tf.vips.surrogate import fit_quadratic, fit_slopes
from virl_tf.vips.vips import step_options, takes_gradients, vips_step

import numpy as np
import pytest
import tensorflow as tf

from tests.shared import make_reward

RIDGE = tf.constant(1e-13, tf.float64)
SEED = tf.constant([3, 4])


def points(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).standard_normal(shape))


def wavy(x):
    return tf.reduce_sum(tf.sin(2.0 * x), axis=-1) - 0.1 * tf.reduce_sum(x**4, axis=-1)


def walled(x):
    return wavy(x) - tf.where(x[:, 0] > 0.3, tf.constant(100.0, tf.float64), 0.0)


# --- the surrogate --------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "draws"), [(1, 2), (3, 4), (12, 30)])
def test_quadratics_are_recovered_from_d_plus_one_draws(dim, draws):
    rng = np.random.default_rng(dim)
    a = rng.standard_normal((2, dim, dim))
    a, b = a + a.transpose(0, 2, 1), rng.standard_normal((2, dim))
    z = points(2, draws, dim)
    slopes = b[:, None] - np.einsum("kij,ksj->ksi", a, z)
    found_a, found_b = fit_slopes(z, slopes, RIDGE)
    np.testing.assert_allclose(found_a, a, atol=1e-7)
    np.testing.assert_allclose(found_b, b, atol=1e-7)


def test_many_draws_give_steins_expectations():
    z = points(1, 200_000, 2)
    _, slopes = values_and_slopes(wavy, z[0], 10_000)
    a, b = fit_slopes(z, slopes[None], RIDGE)
    # E[2 cos 2z - 0.4 z^3] = 2 exp(-2), and of its derivative 0 - 1.2: E[sin] vanishes.
    np.testing.assert_allclose(b[0], 2.0 * np.exp(-2.0), atol=0.02)
    np.testing.assert_allclose(a[0], 1.2 * np.eye(2), atol=0.03)


def test_values_and_slopes_agree_on_many_draws():
    z = points(2, 50_000, 2)
    flat = tf.reshape(z, [-1, 2])
    values, slopes = values_and_slopes(wavy, flat, len(flat))
    by_values = fit_quadratic(z, tf.reshape(values, [2, -1]), RIDGE)
    by_slopes = fit_slopes(z, tf.reshape(slopes, z.shape), RIDGE)
    np.testing.assert_allclose(by_slopes[0], by_values[0], atol=0.1)
    np.testing.assert_allclose(by_slopes[1], by_values[1], atol=0.05)


def test_too_few_draws_give_finite_numbers_and_a_batch_is_one_component_at_a_time():
    z, slopes = points(3, 4, 8), points(3, 4, 8, seed=1)
    ridge = tf.constant(1e-6, tf.float64)
    a, b = fit_slopes(z, slopes, ridge)
    assert np.isfinite(a).all()
    assert np.isfinite(b).all()
    one_a, one_b = fit_slopes(z[1:2], slopes[1:2], ridge)
    np.testing.assert_allclose(a[1:2], one_a, atol=1e-10)
    np.testing.assert_allclose(b[1:2], one_b, atol=1e-10)


# --- gradients ------------------------------------------------------------------------------------


def test_slopes_are_finite_differences_also_in_blocks():
    x = points(7, 3)
    values, slopes = values_and_slopes(wavy, x, 2)
    np.testing.assert_allclose(values, wavy(x), rtol=1e-14)
    for i in range(3):
        step = 1e-6 * np.eye(3)[i]
        np.testing.assert_allclose(
            slopes[:, i], (wavy(x + step) - wavy(x - step)) / 2e-6, atol=1e-7
        )


def kink(x):
    return -tf.reduce_sum(tf.abs(x), axis=-1)


def outside(x):
    return tf.where(x[:, 0] > 0.0, wavy(x), tf.constant(-np.inf, tf.float64))


def in_numpy(x):
    return tf.ensure_shape(tf.numpy_function(lambda x: -np.sum(x**2, axis=1), [x], x.dtype), [None])


def of_float32(x):
    return wavy(tf.cast(x, tf.float32))


def rounded(x):
    return tf.round(wavy(x))


@pytest.mark.parametrize(
    ("log_prob", "expected"),
    [
        (wavy, True),
        (kink, True),
        (of_float32, True),
        (walled, False),
        (outside, False),
        (in_numpy, False),
        (rounded, False),
    ],
)
def test_gradients_are_used_where_they_say_all(log_prob, expected):
    assert slopes_say_all(log_prob, points(100, 2)) is expected


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_what_is_infinitely_low_between_points_has_a_jump():
    x = tf.constant([[-1.0, 0.0], [1.0, 0.0]], tf.float64)

    def divided(x):
        return tf.where(tf.abs(x[:, 0]) < 0.3, tf.constant(-np.inf, tf.float64), wavy(x))

    assert slopes_say_all(wavy, x)
    assert not slopes_say_all(divided, x)


def test_a_single_point_is_enough_to_ask():
    assert slopes_say_all(wavy, points(1, 2))


# --- steps ----------------------------------------------------------------------------------------


def gaussian(x):
    return -0.5 * tf.reduce_sum((x - 0.3) ** 2 / np.array([0.5, 2.0]), axis=-1)


def test_on_a_gaussian_both_surrogates_take_the_same_step():
    policy, options = standard_normal_start(1, 2, 0), step_options(0.05, 0.05, 1e-13)
    by_values = vips_step(policy, gaussian, SEED, options, 30)[0]
    by_slopes = vips_step(policy, gaussian, SEED, options, 30, gradients=True)[0]
    np.testing.assert_allclose(by_slopes.means, by_values.means, atol=1e-8)
    np.testing.assert_allclose(by_slopes.scale_trils, by_values.scale_trils, atol=1e-8)


def test_components_outside_of_the_support_take_values():
    policy, options = standard_normal_start(3, 2, 0), step_options(0.05, 0.05, 1e-6)

    def inside(x):
        value = -tf.reduce_sum(x**2, axis=1)
        return tf.where(x[:, 0] < 5.0, value, tf.constant(-np.inf, tf.float64))

    far = policy._replace(means=policy.means + np.array([[0.0], [5.0], [0.0]]))
    by_values = vips_step(far, inside, SEED, options, 40)[0]
    by_slopes = vips_step(far, inside, SEED, options, 40, gradients=True)[0]
    np.testing.assert_array_equal(by_slopes.means[1], by_values.means[1])
    assert np.abs(by_slopes.means - by_values.means)[[0, 2]].max() > 0.0
    assert np.isfinite(by_slopes.scale_trils).all()


def test_a_fit_with_a_jump_sees_it():
    search = {"num_rounds": 2, "steps_per_round": 10, "split_rounds": 0}
    fitted, blind = (
        fit_policy(walled, 2, 2, search=search, gradients=gradients).policy.sample(500, 0)
        for gradients in (None, True)
    )
    assert np.mean(fitted[:, 0] > 0.3) < 0.05 < np.mean(blind[:, 0] > 0.3)


# --- while a reward is recovered ------------------------------------------------------------------


def policy_hparams(**values):
    return default_hparams().override({"policy": {"update_steps": 30, **values}}, "test").policy


def gaussian_reward(dim, domain=EVERYWHERE):
    return make_reward([], dim=dim)._replace(domain=domain)


@pytest.mark.parametrize(
    ("surrogate", "dim", "expected"),
    [("values", 9, False), ("gradients", 2, True), ("auto", 6, False), ("auto", 7, True)],
)
def test_which_rewards_are_followed_by_gradients(surrogate, dim, expected):
    assert takes_gradients(policy_hparams(surrogate=surrogate), gaussian_reward(dim)) is expected


def test_a_reward_with_bounds_is_followed_by_values():
    box = Domain(np.full(7, -9.0), np.full(7, 9.0), np.zeros(7))
    assert not takes_gradients(policy_hparams(surrogate="auto"), gaussian_reward(7, box))


def test_the_paper_takes_values():
    assert default_hparams().policy.surrogate == "values"
    assert own_data_hparams("virl").policy.surrogate == "auto"


def test_both_surrogates_improve_a_policy_alike():
    reward, start = gaussian_reward(2), standard_normal_start(2, 2, 0)
    elbos = [
        improve(start, reward, SEED, policy_hparams(surrogate=surrogate))[1].elbo.numpy()
        for surrogate in ("values", "gradients")
    ]
    assert elbos[1][-5:].mean() > elbos[1][0]
    assert abs(elbos[0][-5:].mean() - elbos[1][-5:].mean()) < 0.3
