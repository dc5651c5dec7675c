import dataclasses
import os
import signal
import sys

from virl_tf import InputError, fit_policy
from virl_tf.contexts import Places
from virl_tf.domain import Domain
from virl_tf.hparams import search_hparams
from virl_tf.mixture import Mixture, gaussian
from virl_tf.policy_fit import schedule as policy_schedule
from virl_tf.policy_fit import steps as policy_steps
from virl_tf.policy_fit import watch as policy_watch
from virl_tf.policy_fit.schedule import AFTER_SEARCH, FIXED
from virl_tf.policy_fit.start import constrained_start, spread_start, standard_conditional_start
from virl_tf.policy_fit.steps import Steps
from virl_tf.policy_fit.targets import within
from virl_tf.policy_fit.watch import Watch
from virl_tf.reward import Reward
from virl_tf.vips.elbo import Measured, measured
from virl_tf.vips.vips import VipsHistory, target_rows_at_once

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tests.shared import make_mixture, make_network, make_reward

tfd = tfp.distributions
fit_policy_module = sys.modules["virl_tf.fit_policy"]  # `virl_tf.fit_policy` is the function


def normal(x):
    """A Gaussian at (1, -2), unnormalised."""
    return -0.5 * tf.reduce_sum((x - [1.0, -2.0]) ** 2 / [0.25, 4.0], axis=1)


def quick(
    log_prob=normal,
    dim=2,
    num_components=1,
    num_steps=3,
    jit_compile=False,
    search=False,
    **arguments,
):
    return fit_policy(
        log_prob,
        dim,
        num_components,
        search=search,
        num_steps=num_steps,
        jit_compile=jit_compile,
        **arguments,
    )


# --- what is fitted -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_modes():
    """A policy of two components on a mixture of two."""
    modes = tfd.MultivariateNormalDiag(
        np.array([[-2.0, 0.0], [2.0, 1.0]]), np.array([[0.5, 0.5], [0.8, 0.8]])
    )
    target = tfd.MixtureSameFamily(tfd.Categorical(probs=np.array([0.3, 0.7])), modes)
    return target, fit_policy(
        target.log_prob,
        2,
        2,
        search=False,
        num_steps=100,
        seed=2,
        kl_bound=0.1,
        samples_per_component=100,
    )


def test_a_mixture_is_found(two_modes):
    _, result = two_modes
    policy = result.policy
    order = np.argsort(policy.means[:, 0])
    np.testing.assert_allclose(policy.means.numpy()[order], [[-2.0, 0.0], [2.0, 1.0]], atol=0.1)
    np.testing.assert_allclose(np.exp(policy.log_weights.numpy())[order], [0.3, 0.7], atol=0.05)
    widths = np.sqrt(np.diagonal(policy.covariances.numpy(), axis1=1, axis2=2))[order]
    np.testing.assert_allclose(widths, [[0.5, 0.5], [0.8, 0.8]], atol=0.08)
    assert policy.distribution.log_prob(np.zeros((3, 2))).shape == (3,)


def test_elbo_approaches_the_log_normaliser_from_below(two_modes):
    elbo = two_modes[1].history.elbo.to_numpy()
    assert elbo[0] < -1.0
    assert abs(elbo[-20:].mean()) < 0.05
    assert elbo[-20:].mean() < 0.01


def test_history_has_a_row_per_step(two_modes):
    history = two_modes[1].history
    assert list(history.columns) == list(VipsHistory._fields)
    assert len(history) == 100
    assert np.isfinite(history.to_numpy()).all()
    assert history.component_kl.max() <= 0.1 * (1.0 + 1e-6)
    assert history.weight_kl.max() <= 0.1 * (
        1.0 + 1e-6
    )  # the weights' bound defaults to the components'
    assert (history.rejected == 0.0).all()


FLOAT32 = tfd.MultivariateNormalTriL([0.5, 1.0], [[1.0, 0.0], [0.5, 0.7]])


@pytest.mark.parametrize(
    ("log_prob", "mean", "covariance"),
    [
        (
            tfd.MultivariateNormalDiag(np.array([2.0, 0.0]), np.array([2.0, 0.5])).log_prob,
            [2.0, 0.0],
            [[4.0, 0.0], [0.0, 0.25]],
        ),
        (lambda x: FLOAT32.log_prob(tf.cast(x, tf.float32)), [0.5, 1.0], [[1.0, 0.5], [0.5, 0.74]]),
    ],
    ids=["TFP distribution", "float32 values"],
)
def test_any_log_density_of_tensorflow(log_prob, mean, covariance):
    policy = quick(log_prob, num_steps=40, kl_bound=0.5, ridge=1e-9).policy
    np.testing.assert_allclose(policy.means[0], mean, atol=1e-3)
    np.testing.assert_allclose(policy.covariances[0], covariance, atol=1e-3)


def test_a_gaussian_in_one_dimension_is_found():
    policy = quick(
        lambda x: -2.0 * tf.reduce_sum((x - 1.0) ** 2, axis=1),
        1,
        num_steps=30,
        kl_bound=0.5,
        ridge=1e-9,
    ).policy
    np.testing.assert_allclose(policy.means, [[1.0]], atol=1e-5)
    np.testing.assert_allclose(policy.covariances, [[[0.25]]], atol=1e-5)


@pytest.fixture(scope="module")
def two_components():
    """Of five steps."""
    return quick(num_components=2, num_steps=5)


def test_a_fit_depends_on_its_seed_alone(two_components):
    again, other = (quick(num_components=2, num_steps=5, seed=seed) for seed in (0, 1))
    for a, b in zip(again.policy, two_components.policy, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
    assert again.history.equals(two_components.history)
    assert not np.array_equal(other.policy.means, two_components.policy.means)


@pytest.mark.parametrize(
    ("defaults", "dim", "expected"),
    [
        (FIXED, 2, (300, 50, None)),
        (FIXED, 5, (300, 63, None)),
        (AFTER_SEARCH, 2, (30, 50, 0.005)),
        (AFTER_SEARCH, 5, (30, 84, 0.005)),
    ],
)
def test_steps_after_a_search_are_few_and_small(defaults, dim, expected):
    assert (defaults.num_steps, defaults.samples(dim), defaults.kl_bound) == expected


def test_initial_policy_is_the_start():
    start = make_mixture(3)
    moved = quick(
        num_components=3, initial_policy=start, num_steps=1, kl_bound=1e-9, weight_kl_bound=1e-9
    ).policy
    np.testing.assert_allclose(moved.means, start.means, atol=1e-3)


def test_weight_bound_may_differ():
    history = quick(num_components=3, kl_bound=0.2, weight_kl_bound=1e-4).history
    assert history.weight_kl.max() <= 1e-4 * (1.0 + 1e-6)
    assert history.component_kl.max() > 0.1


def test_a_callback_sees_the_policy_on_its_way_and_in_the_end_and_changes_nothing(two_components):
    seen, expected = [], two_components
    found = quick(
        num_components=2,
        num_steps=5,
        callback=lambda done, policy: seen.append((done, policy)),
        callback_every=2,
    )
    assert [done for done, _ in seen] == [2, 4, 5]
    for a, b, last in zip(found.policy, expected.policy, seen[-1][1], strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(last, b)
    assert found.history.equals(expected.history)
    halfway = quick(num_components=2, num_steps=4).policy
    np.testing.assert_array_equal(seen[1][1].means, halfway.means)


def test_a_bad_callback_interval_is_refused():
    with pytest.raises(InputError, match="callback_every"):
        quick(num_steps=6, callback=lambda *_: None, callback_every=0)


def test_operations_that_xla_cannot_compile_are_refused_with_a_cure():
    def in_python(x):
        values = tf.py_function(lambda x: normal(x), [x], tf.float64)
        return tf.ensure_shape(values, [None])

    with pytest.raises(InputError, match="jit_compile=False"):
        quick(in_python, jit_compile=True)


# --- rewards as targets -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reward():
    """As `fit` leaves one: networks, pooled with a mixture of three components."""
    networks = [make_network(seed=seed).times(0.1) for seed in range(2)]
    return make_reward(networks, mixture=make_mixture(), mixture_exponent=0.5)


@pytest.fixture(scope="module")
def on_reward(reward):
    return quick(reward, num_components=3, num_steps=20)


def test_a_recovered_reward_is_a_target(reward, on_reward):
    assert np.isfinite(on_reward.history.to_numpy()).all()
    # It starts from the components that the reward is pooled with.
    assert on_reward.history.elbo.iloc[0] > on_reward.history.elbo.iloc[-1] - 0.3
    spread = spread_start(reward, 3, 0)
    from_spread = quick(reward, num_components=3, num_steps=1, initial_policy=spread)
    assert on_reward.history.elbo.iloc[0] > from_spread.history.elbo.iloc[0] + 0.1


def test_components_spread_over_demonstrations_have_their_share_of_the_volume(reward):
    spread = spread_start(reward, 5, 0)
    volumes = np.linalg.det(spread.scale_trils)
    np.testing.assert_allclose(5.0 * volumes, np.prod(reward.features.scale), rtol=1e-9)


@pytest.mark.usefixtures("on_reward")
def test_the_graph_of_a_reward_is_made_once(reward, monkeypatch):
    """TensorFlow would keep it, for every policy, as long as the process lives."""
    monkeypatch.setattr(Reward, "log_prob", None)
    assert np.isfinite(quick(reward, seed=1).elbo)


def test_a_function_of_a_reward_is_a_target(reward):
    result = quick(
        lambda x: reward(x) - tf.reduce_sum(tf.nn.relu(x[:, :1]), axis=1), num_components=2
    )
    assert np.isfinite(result.policy.means).all()


def test_the_dimension_of_a_reward_is_checked(reward):
    with pytest.raises(InputError, match="dimension 2"):
        quick(reward, 3)


# --- bad input ----------------------------------------------------------------------------------

BAD_TARGETS = {
    "no function": (3.0, "function"),
    "none": (None, "function"),
    "a column": (lambda x: normal(x)[:, None], r"\[N, D\] to \[N\]"),
    "a scalar": (lambda x: tf.reduce_sum(normal(x)), r"\[N, D\] to \[N\]"),
    "one too few": (lambda x: normal(x)[1:], r"\[N, D\] to \[N\]"),
    "integers": (lambda x: tf.cast(normal(x), tf.int32), "real numbers"),
    "complex": (lambda x: tf.complex(normal(x), normal(x)), "real numbers"),
    "NaN": (lambda x: normal(x) * np.nan, "NaN"),
    "NaN somewhere": (
        lambda x: tf.where(x[:, 0] > 0.0, tf.constant(np.nan, tf.float64), normal(x)),
        "NaN",
    ),
    "finite nowhere": (lambda x: normal(x) - np.inf, "initial_policy"),
}


@pytest.mark.parametrize(("log_prob", "message"), BAD_TARGETS.values(), ids=BAD_TARGETS)
def test_bad_targets_are_refused(log_prob, message):
    with pytest.raises(InputError, match=message):
        quick(log_prob)


BAD_NUMBERS = {
    "dim": 0,
    "num_components": 0,
    "num_steps": 0,
    "seed": -1,
    "samples_per_component": 3,
    "kl_bound": 0.0,
    "weight_kl_bound": 0.0,
    "ridge": 0.0,
    "callback": 5,
    "gradients": "x",
    "jit_compile": "no",
    "progress": 2,
}


@pytest.mark.parametrize(("name", "value"), BAD_NUMBERS.items(), ids=BAD_NUMBERS)
def test_bad_numbers_are_refused_by_name(name, value):
    def untouched(x):
        raise AssertionError("the target was evaluated")

    with pytest.raises(InputError, match=name):
        fit_policy(untouched, **{"dim": 2, "num_components": 1, "num_steps": 1, name: value})


@pytest.mark.parametrize("shape", [(2, 2), (1, 3)])
def test_an_initial_policy_of_another_shape_is_refused(shape):
    with pytest.raises(InputError, match="initial_policy"):
        quick(num_components=1, initial_policy=make_mixture(*shape))


def test_a_target_that_breaks_down_is_refused():
    # Finite at the start, but its sums overflow.
    with pytest.raises(InputError, match="log_prob"):
        quick(lambda x: -1.5e308 * tf.cast(tf.abs(x[:, 0]) < 100.0, tf.float64), num_components=2)


def test_targets_outside_their_support_are_reported():
    def box(x):
        inside = tf.reduce_all(tf.abs(x) < 2.0, axis=1)
        return tf.where(inside, normal(x), tf.constant(-np.inf, tf.float64))

    result = quick(box, num_components=1, num_steps=20)
    assert 0.0 < result.history.rejected.iloc[0] < 1.0
    assert all(np.isfinite(a).all() for a in result.policy)


# --- targets that are not TensorFlow's ------------------------------------------------------------


def in_numpy(x):
    return -0.5 * np.sum((np.asarray(x) - [1.0, -2.0]) ** 2, axis=1)


def in_plain_python(x):
    return [-0.5 * sum(float(value) ** 2 for value in row) for row in x]


SHORTEST = {"num_rounds": 1, "steps_per_round": 2}


@pytest.mark.parametrize(("log_prob", "search"), [(in_numpy, SHORTEST), (in_plain_python, False)])
def test_numpy_and_plain_python_are_refused_with_a_cure_that_works(log_prob, search):
    with pytest.raises(InputError, match=r"log_prob must be .* TensorFlow") as error:
        quick(log_prob)
    assert "tf.numpy_function" in str(error.value)
    assert "\n" not in str(error.value)
    f = lambda x: np.asarray(log_prob(x), "float64")  # noqa: E731
    cured = lambda x: tf.ensure_shape(tf.numpy_function(f, [x], tf.float64), [None])  # noqa: E731
    assert np.isfinite(quick(cured, search=search).policy.means).all()


def test_why_a_graph_is_refused_is_said():
    with pytest.raises(InputError, match="len is not well defined"):
        quick(lambda x: tf.zeros(len(x), tf.float64))


@pytest.mark.parametrize("search", [False, SHORTEST])
def test_gradients_of_a_target_without_any_are_refused(search):
    with pytest.raises(InputError, match="log_prob has no gradient"):
        quick(lambda x: normal(tf.stop_gradient(x)), gradients=True, search=search)


def test_values_without_a_slope_are_refused():
    """Of what overflows where a tf.where leaves it out the slope is NaN: components would stay."""

    def trapped(x):
        return normal(x) + tf.where(x[:, 0] > 0.0, tf.exp(-1e4 * x[:, 0]), 0.0)

    with pytest.raises(InputError, match="no finite gradient at some draws of the start"):
        quick(trapped, gradients=True)


def test_float32_is_refused_with_a_cure():
    with pytest.raises(InputError, match=r"log_prob\(tf.cast\(x, tf.float32\)\)"):
        quick(FLOAT32.log_prob)


@pytest.mark.parametrize(
    ("support", "message"),
    [
        (lambda x: x[:, 0], "booleans.*float64"),
        (lambda x: x > 0.0, r"booleans.*\[50, 2\]"),
        (lambda x: x.numpy()[:, 0] > 0.0, "support must be made of TensorFlow"),
        (lambda x: x[:, 0] > tf.constant(0.0), r"support\(tf.cast"),
        ((0.0, 1.0), "support must be a function .* not bounds, got tuple"),
    ],
    ids=["floats", "a column each", "NumPy", "float32", "bounds"],
)
def test_bad_supports_are_refused(support, message):
    with pytest.raises(InputError, match=message):
        quick(support=support)


@pytest.mark.parametrize("name", ["log_prob", "support"])
def test_what_a_target_raises_is_passed_on_with_its_name(name):
    class Own(Exception):
        pass

    def fails(x):
        raise Own("no such file")

    with pytest.raises(Own, match="no such file") as error:
        quick(**{name: fails})
    if hasattr(error.value, "__notes__"):  # from Python 3.11 on
        assert name in error.value.__notes__[0]


FLAT = {
    "flat": lambda x: 0.0 * x[:, 0],
    "a slope": lambda x: x[:, 0],
    "convex": lambda x: tf.reduce_sum(x**2, axis=1),
}
OF_FLAT = [
    pytest.param(FLAT[name], marks=[pytest.mark.slow] * (name == "convex"), id=name)
    for name in FLAT
]


SHORT = {"num_rounds": 30, "samples_per_component": 12}


@pytest.mark.parametrize("log_prob", OF_FLAT)
@pytest.mark.parametrize("search", [False, pytest.param(SHORT, marks=pytest.mark.slow)])
def test_an_improper_target_ends_with_a_warning(log_prob, search):
    with pytest.warns(UserWarning, match="support="):
        result = quick(log_prob, search=search, num_steps=150, kl_bound=1.0)
    assert len(result.warnings) == 1
    assert "\n" not in result.warnings[0]
    assert np.sqrt(np.diagonal(result.policy.covariances[0])).max() < 1e8
    assert np.isfinite(result.history.to_numpy()).all()


@pytest.mark.parametrize(
    "text",
    [
        policy_watch._LOST,
        policy_watch._grows(3),
        fit_policy_module._outside(0.1),
        fit_policy_module._worse(-2.0, -1.0),
    ],
)
def test_a_warning_names_the_options_of_the_command_line_too(text):
    options = {"num_components": "--components", "num_steps": "--steps", "support=": "--support"}
    options["samples_per_component"] = "--samples"
    assert any(name in text for name in options)
    assert [option for name, option in options.items() if name in text and option not in text] == []


@pytest.mark.parametrize(("slope", "kl", "told"), [(8.0, 0.05, 1), (0.0, 0.05, 0), (8.0, 0.02, 0)])
def test_a_component_on_its_way_to_infinity_is_told_though_its_elbo_is_noisy(slope, kl, told):
    """A wide component on a slope: single steps of its ELBO fall, ten of them do not."""
    start = gaussian(np.zeros(2), np.eye(2))
    watch, steps = Watch(start, None, 50), np.arange(40.0)
    elbo = slope * steps + np.random.default_rng(0).normal(0.0, 20.0, 40)
    nothing = np.zeros(40)
    watch.histories = [VipsHistory(elbo, nothing + kl, nothing, nothing + 1.0, nothing)]
    watch.end(start._replace(means=start.means + 1000.0), kl_bound=0.05)
    assert len(watch.warnings) == told
    assert all("may be improper" in line for line in watch.warnings)


@pytest.mark.filterwarnings("error")
def test_a_wide_target_gives_no_warning():
    policy = quick(lambda x: 1e-8 * normal(x), num_steps=80, kl_bound=2.0).policy
    np.testing.assert_allclose(
        policy.covariances[0], [[2.5e7, 0.0], [0.0, 4e8]], rtol=0.01, atol=1e4
    )


# --- large and long fits --------------------------------------------------------------------------


def test_an_interrupt_ends_the_fit_with_the_step_at_work():
    evaluated = []

    def interrupting(x):
        evaluated.append(len(x))
        if len(evaluated) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return np.float64(-np.sum(x**2, axis=1))

    def target(x):
        return tf.ensure_shape(tf.numpy_function(interrupting, [x], tf.float64), [None])

    # Not that of a library which another test imported.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            quick(target, num_steps=300)
    finally:
        signal.signal(signal.SIGINT, before)
    assert 4 <= len(evaluated) <= 6


def test_a_target_gets_a_bounded_number_of_points_at_once():
    sizes = []

    def target(x):
        sizes.append(x.shape[0])
        return -0.5 * tf.reduce_sum((x - 1.0) ** 2, axis=1)

    most = target_rows_at_once(20)
    options = {"num_components": 4, "samples_per_component": 2000, "num_steps": 2}
    policy = quick(target, 20, **options).policy
    assert 8000 > most >= max(sizes)
    assert np.isfinite(policy.means).all()


def test_a_gaussian_in_many_dimensions_is_found():
    scales = np.linspace(0.5, 2.0, 20)
    policy = quick(
        lambda x: -0.5 * tf.reduce_sum(((x - 1.0) / scales) ** 2, axis=1),
        20,
        num_steps=60,
        kl_bound=1.0,
    ).policy
    np.testing.assert_allclose(policy.means[0], np.ones(20), atol=0.01)
    np.testing.assert_allclose(policy.covariances[0], np.diag(scales**2), atol=0.01)


def test_in_a_search_too_progress_and_a_callback_change_nothing(capsys):
    steps, search = [], {"num_rounds": 2, "steps_per_round": 3, "samples_per_component": 12}
    silent = quick(search=search, num_steps=4)
    assert capsys.readouterr().err == ""
    tell = {"progress": True, "callback": lambda step, _: steps.append(step), "callback_every": 2}
    watched = quick(search=search, num_steps=4, **tell)
    assert "step 10 of 10" in capsys.readouterr().err
    assert steps == [6, 8, 10]
    np.testing.assert_array_equal(watched.policy.means, silent.policy.means)
    assert watched.history.equals(silent.history)


# --- how a fit ended ------------------------------------------------------------------------------


def test_a_policy_below_its_start_is_not_returned(two_modes):
    target = two_modes[1].policy
    with pytest.warns(UserWarning, match="the fit ended below its start .* is returned instead"):
        fitted = quick(
            target.log_prob,
            2,
            2,
            initial_policy=target,
            search=False,
            num_steps=5,
            samples_per_component=4,
            kl_bound=2.0,
        )
    for found, given in zip(fitted.policy, target, strict=True):
        np.testing.assert_array_equal(found, given)
    assert abs(fitted.elbo) < 1e-9


def test_a_policy_that_seems_hardly_below_its_start_is_returned(monkeypatch, recwarn):
    found = iter([Measured(1.0, 0.1, 1.0), Measured(1.1, 0.1, 1.0)])  # the policy, its start
    monkeypatch.setattr(fit_policy_module, "measured", lambda *_: next(found))
    start = gaussian(np.zeros(2), np.eye(2))
    fitted = quick(initial_policy=start)
    assert (fitted.elbo, fitted.warnings, len(recwarn)) == (1.0, (), 0)
    assert not np.array_equal(fitted.policy.means, start.means)


def test_the_elbo_has_an_error_and_the_result_says_so():
    fitted = quick(normal, 2, 1, search=False, num_steps=3)
    assert fitted.rising is False
    assert 0.0 < fitted.elbo_error < 0.1
    assert fitted.inside == 1.0
    assert fitted.elbo < np.log(2.0 * np.pi)
    assert f"ELBO {fitted.elbo:.4f} +- {fitted.elbo_error:.4f} after 3 steps" in repr(fitted)


def test_the_error_of_the_elbo_is_also_that_of_the_share_inside():
    """Of draws of N(0, I) all ratios are the same, and 16 % are inside."""
    start = gaussian(np.zeros(1), np.eye(1))
    target = within(start.log_prob, lambda x: x[:, 0] > 1.0)
    found = [measured(start, target, 500, seed) for seed in range(60)]
    spread = np.std([one.elbo for one in found])
    np.testing.assert_allclose(np.mean([one.error for one in found]), spread, rtol=0.25)
    contexts = Places(tf.zeros([50, 1], tf.float64), 10)
    policy = standard_conditional_start(1, 1, 1, 0)._replace(offsets=tf.zeros([1, 1], tf.float64))
    target = within(policy.log_prob, lambda rows: rows[:, 1] > 1.0)
    assert measured(policy, target, contexts, 0).error == pytest.approx(spread, rel=0.35)


@pytest.mark.parametrize("size", [10.0, 0.0])
def test_what_depends_on_the_context_alone_is_told_where_it_is_much(size, recwarn):
    c = np.linspace(-1.0, 1.0, 60)[:, None]

    def log_prob(rows):
        return size * tf.sin(6.0 * rows[:, 0]) - 0.5 * (rows[:, 1] - rows[:, 0]) ** 2

    found = fit_policy(log_prob, 1, 1, contexts=c, num_steps=30)
    assert [str(line.message) for line in recwarn] == list(found.warnings)
    expected = ["by 7.1 nats (a standard deviation), whatever is done there"] if size else []
    assert len(found.warnings) == len(expected)
    assert all(text in line for text, line in zip(expected, found.warnings, strict=True))


def test_a_fit_that_ended_early_still_rises():
    fitted = quick(lambda x: normal(x - 30.0), 2, 1, search=False, num_steps=20, kl_bound=0.01)
    assert fitted.rising
    assert "still rising" in repr(fitted)


def test_evaluations_are_counted(two_modes):
    assert two_modes[1].evaluations == 100 * 100 * 2


class Stop(Exception):
    pass


@pytest.fixture
def planned(monkeypatch):
    """What fits are about to do, which end there: the arguments of `Steps.run`."""
    calls = []

    def run(*arguments):
        calls.append(arguments)
        raise Stop

    monkeypatch.setattr(Steps, "run", run)
    return calls


def test_a_reward_with_bounds_is_followed_by_values(reward, planned):
    box = Domain(np.full(2, -50.0), np.full(2, 50.0), np.zeros(2))
    for target in (reward, reward._replace(domain=box)):
        with pytest.raises(Stop):
            quick(target, search=SHORTEST)
    assert [steps.gradients for steps, *_ in planned] == [True, False]


# --- a constraint on a reward whose modes are known ----------------------------------------------

WAYS = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])


def four_modes():
    """Each 0.1 wide."""
    return Mixture(
        tf.math.log(tf.constant([0.4, 0.3, 0.2, 0.1], tf.float64)),
        tf.constant(WAYS),
        tf.constant(np.tile(0.1 * np.eye(2), (4, 1, 1))),
    )


@pytest.fixture
def ways():
    """A reward of four modes whose EM mixture lays each component over two of them."""
    wide = Mixture(
        tf.math.log(tf.constant([0.5, 0.5], tf.float64)),
        tf.constant([[1.0, 0.0], [-1.0, 0.0]], tf.float64),
        tf.constant(np.tile(np.diag([0.15, 1.1]), (2, 1, 1))),
    )
    return make_reward([], base=four_modes(), mixture=wide)


def beyond(x):
    """The outer half of each mode."""
    return tf.abs(x[:, 0]) > 1.0


def test_what_a_constraint_leaves_open_keeps_its_share(ways):
    fitted = fit_policy(ways, 2, 8, support=beyond)
    draws = fitted.policy.sample(4000, 0)
    assert np.mean(beyond(draws)) > 0.9
    nearest = np.linalg.norm(draws[:, None] - WAYS, axis=2).argmin(axis=1)
    np.testing.assert_allclose(np.bincount(nearest) / 4000, [0.4, 0.3, 0.2, 0.1], atol=0.05)
    assert np.ptp(fitted.history["effective_components"]) < 1e-3  # the weights are held
    assert fitted.elbo > np.log(0.5) - 0.5  # half of the mass is inside


def test_weights_of_ones_own_count(ways):
    fitted = fit_policy(ways, 2, 4, weight_kl_bound=0.05, num_steps=10, support=beyond)
    assert np.ptp(fitted.history["effective_components"]) > 1e-3


@pytest.fixture
def short_search(monkeypatch):
    """Three rounds, where `fit_policy` searches without being told how."""
    few = search_hparams({"num_rounds": 3, "steps_per_round": 5, "split_rounds": 0})
    monkeypatch.setattr(policy_schedule, "search_hparams", lambda _: few)


OWN_START = make_mixture(2)


@pytest.mark.parametrize(
    ("own", "rounds"), [({"search": {"num_rounds": 3}}, 3), ({"initial_policy": OWN_START}, 30)]
)
def test_a_search_and_a_start_of_ones_own_count(ways, own, rounds, planned, monkeypatch):
    monkeypatch.setattr(fit_policy_module, "constrained_start", None)  # a call of it would raise
    with pytest.raises(Stop):
        fit_policy(ways, 2, 2, num_steps=2, support=beyond, **own)
    ((_, start, budget, num_steps, _),) = planned
    assert (budget.rounds, num_steps) == (rounds, 2)
    assert np.array_equal(start.means, OWN_START.means) == ("initial_policy" in own)


@pytest.mark.parametrize("seed", range(4))
def test_a_start_whose_own_draws_miss_a_constraint_is_one_inside(ways, seed, planned):
    """One in a hundred draws is inside, of which one component has 50."""
    far = np.quantile(ways.mixture.sample(100_000, 1)[:, 0], 0.99)
    with pytest.raises(Stop):
        fit_policy(ways, 2, 1, support=lambda x: x[:, 0] > far, seed=seed)
    ((_, start, budget, *_),) = planned
    assert budget is None
    assert start.means[0, 0] > far - 0.2


def test_a_constraint_that_holds_nowhere_is_refused(ways):
    with pytest.raises(InputError, match="support is true at none of"):
        fit_policy(ways, 2, 1, support=lambda x: x[:, 0] > 1e6)


def test_steps_after_splits_and_the_last_ones_have_draws_of_their_own(monkeypatch):
    numbers, steps = [], []

    def each(self, step, policy, own, watch):
        numbers.extend(own)
        return iter([policy])

    monkeypatch.setattr(Steps, "_each", each)
    monkeypatch.setattr(Steps, "_step", lambda self, _: steps.append(self))
    monkeypatch.setattr(Steps, "_elbo", lambda *_: Measured(0.0, 0.0, 1.0, 0.0, 0.0))
    monkeypatch.setattr(policy_steps, "without_light", lambda policy, _: policy._replace())
    quick(num_components=2, search={**SHORTEST, "split_rounds": 2}, num_steps=60)
    assert len(set(numbers)) == len(numbers) == 60 + 2 * 40
    assert len(steps) == 2  # compiled: for all rounds, and for the last ones


def test_few_draws_inside_leave_the_start_as_it_is(ways):
    x = ways.mixture.sample(100_000, 1).numpy()
    far = np.sort(x[:, 0])[-20]

    def target(x):
        return tf.where(x[:, 0] > far, ways.log_prob(x), -np.inf)

    assert constrained_start(ways.mixture, target, 4, seed=0) is None


def test_a_component_without_a_draw_inside_keeps_a_weight(ways, monkeypatch):
    def one_of_two_elsewhere(mixture, num_components):
        one = gaussian(np.zeros(2), np.eye(2))
        both = (tf.repeat(array, 2, axis=0) for array in one)
        return Mixture(*both)._replace(means=tf.constant([[0.0, 0.0], [90.0, 0.0]], tf.float64))

    monkeypatch.setattr("virl_tf.policy_fit.start.resized", one_of_two_elsewhere)
    weights = np.exp(constrained_start(ways.mixture, ways.log_prob, 2, seed=0).log_weights)
    assert 0.0 < weights[1] < 1e-3
    assert weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("dim", [6, 11])
def test_a_narrow_constraint_has_no_spikes_for_a_start(dim):
    """Of 200 draws inside: copies of them would have one on each."""
    mixture = gaussian(np.zeros(dim), np.eye(dim))

    def target(x):
        return tf.where(x[:, 0] > 2.9, mixture.log_prob(x), -np.inf)

    start = constrained_start(mixture, target, 1, seed=0)
    widths = np.sqrt(np.diag(start.covariances[0]))
    assert widths[0] < 0.5
    assert widths[1:].min() > 0.4


@pytest.mark.usefixtures("short_search")
def test_where_hardly_a_draw_is_inside_there_is_a_search(ways, monkeypatch):
    monkeypatch.setattr("virl_tf.policy_fit.start.FEWEST_EFFECTIVE", 1e9)
    seen = []
    fitted = fit_policy(ways, 2, 4, support=beyond, callback=lambda done, _: seen.append(done))
    assert len(fitted.history) >= 3 * 5 + 30  # of a search and the steps after it
    assert seen[-1] == len(fitted.history)
    assert np.mean(beyond(fitted.policy.sample(2000, 0))) > 0.5


# --- temperature --------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.25, pytest.param(4.0, marks=pytest.mark.slow)])
def test_a_gaussian_at_a_temperature_is_one_of_so_many_times_its_covariance(temperature):
    fitted = quick(num_steps=40, kl_bound=0.5, temperature=temperature)
    variances = temperature * np.array([0.25, 4.0])
    np.testing.assert_allclose(fitted.policy.covariances[0], np.diag(variances), atol=1e-3)
    np.testing.assert_allclose(fitted.policy.means[0], [1.0, -2.0], atol=1e-3)
    log_normaliser = np.log(2.0 * np.pi) + 0.5 * np.log(variances).sum()
    np.testing.assert_allclose(fitted.elbo, log_normaliser, atol=1e-2)


STEPS_DOWN = {"num_steps": 20, "kl_bound": 0.3}  # as far as 60 of 0.05


@pytest.fixture(scope="module")
def apart():
    """A reward of four modes that carries them as its EM mixture."""
    return make_reward([], base=four_modes(), mixture=four_modes())


@pytest.fixture(scope="module")
def cold(apart):
    return fit_policy(apart, 2, 4, temperature=0.25, **STEPS_DOWN)


def test_below_temperature_one_modes_become_narrower_and_keep_their_shares(cold):
    check_narrower_modes(cold.policy, atol=0.01)


def check_narrower_modes(policy, atol):
    """Where they were, with the shares that they have at temperature one."""
    np.testing.assert_allclose(np.exp(policy.log_weights), [0.4, 0.3, 0.2, 0.1], atol=atol)
    np.testing.assert_allclose(policy.means, WAYS, atol=0.01)
    expected = np.tile(0.0025 * np.eye(2), (4, 1, 1))
    np.testing.assert_allclose(policy.covariances, expected, atol=2e-4)


def test_from_a_start_of_ones_own_they_do_so_on_any_log_density(apart):
    own = {"initial_policy": apart.mixture, "seed": 0, **STEPS_DOWN}
    fitted = fit_policy(apart.log_prob, 2, 4, temperature=0.25, **own)
    check_narrower_modes(fitted.policy, atol=1e-3)
    inside = fit_policy(apart, 2, 4, temperature=0.25, support=lambda x: x[:, 0] < 99.0, **own)
    np.testing.assert_allclose(inside.policy.log_weights, fitted.policy.log_weights, atol=1e-3)


@pytest.mark.parametrize("with_mixture", [True, False])
def test_a_reward_is_fitted_at_temperature_one_first(monkeypatch, apart, with_mixture):
    module = sys.modules["virl_tf.fit_policy"]
    whole, calls = module.fit_policy, []

    def first(*given, **options):
        calls.append(options)
        found = whole(*given, **options, initial_policy=four_modes(), search=False, num_steps=1)
        return dataclasses.replace(found, warnings=("at temperature one",), evaluations=10**9)

    monkeypatch.setattr(module, "fit_policy", first)
    lone = apart if with_mixture else make_reward([], base=four_modes())
    with pytest.raises(InputError, match="kl_bound"):
        whole(lone, 2, 4, temperature=0.25, kl_bound=-1.0)
    assert calls == []
    with pytest.warns(UserWarning, match="at temperature one"):
        fitted = whole(lone, 2, 4, temperature=0.25, seed=3, support=lambda x: x[:, 0] < 99.0)
    assert fitted.warnings == ("at temperature one",)
    assert fitted.evaluations > 10**9
    np.testing.assert_allclose(np.exp(fitted.policy.log_weights), [0.4, 0.3, 0.2, 0.1], atol=0.02)
    assert fitted.policy.covariances.numpy().max() < 0.005  # nearer to the modes than 0.01
    assert [options["seed"] for options in calls] == [3]


@pytest.mark.parametrize(
    "own", [{"search": False}, {"search": {"num_rounds": 2, "steps_per_round": 4}}]
)
def test_a_search_or_a_fixed_set_that_is_asked_for_moves_the_weights(apart, own):
    """Towards those of exp(R / temperature), 0.4^4, 0.3^4, ... of their sum."""
    fitted = fit_policy(apart, 2, 4, temperature=0.25, num_steps=60, **own)
    assert np.exp(fitted.policy.log_weights).max() > 0.5


def test_a_constraint_starts_from_shares_at_temperature_one(ways):
    fitted = fit_policy(ways, 2, 8, support=beyond, temperature=0.5, num_steps=5)
    draws = fitted.policy.sample(4000, 0)
    nearest = np.linalg.norm(draws[:, None] - WAYS, axis=2).argmin(axis=1)
    np.testing.assert_allclose(np.bincount(nearest) / 4000, [0.4, 0.3, 0.2, 0.1], atol=0.05)


def test_a_bad_temperature_is_refused():
    with pytest.raises(InputError, match="temperature must be a finite number > 0"):
        quick(temperature=0.0)


@pytest.mark.parametrize(("rise", "rising"), [(0.009, False), (0.011, True)])
def test_a_rise_that_is_not_worth_more_steps_is_none(rise, rising):
    elbo = np.repeat([0.0, 1.0, 1.0 + rise], policy_watch.LATEST)
    assert policy_watch.rises(elbo) is rising
    assert not policy_watch.rises(elbo[-policy_watch.LATEST :])


def test_a_policy_at_its_best_rises_no_more():
    """Steps of a hundredth of a nat and less are its last digits."""
    fitted = quick(normal, 2, 1, search=False, num_steps=80, samples_per_component=500)
    assert not fitted.rising


def test_draws_outside_are_told():
    half = quick(
        lambda x: tf.where(x[:, 0] > 0.0, normal(x), tf.constant(-np.inf, tf.float64)), 2, 4
    )
    x = half.policy.sample(20_000, 5).numpy()
    share = (x[:, 0] > 0.0).mean()
    assert 0.5 < share < 1.0
    assert half.inside == pytest.approx(share, abs=0.02)
    assert f"{1.0 - half.inside:.1%} of its draws outside" in repr(half)


def test_each_reason_to_doubt_a_policy_is_told():
    def slit(x):
        value = tf.where(tf.abs(x[:, 0]) < 0.3, normal(x), tf.constant(-np.inf, tf.float64))
        return tf.where(x[:, 1] > 1.0, tf.constant(np.nan, tf.float64), value)

    with pytest.warns(UserWarning, match="is NaN"):
        found = quick(slit, 2, 1, num_steps=1)
    assert any("is NaN" in line for line in found.warnings)
    assert any("draws are where log_prob is finite" in line for line in found.warnings)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_log_density_away_from_the_start_is_told(value):
    def far(x):  # the start is around 0
        edge = tf.constant(value, tf.float64)
        return tf.where(x[:, 0] > 6.0, edge, -0.5 * tf.reduce_sum((x - [5.5, 0.0]) ** 2, axis=1))

    with pytest.warns(UserWarning, match=r"log_prob is NaN or \+inf at 0\.\d+ of the policy's"):
        found = fit_policy(far, 2, 1, search=False, num_steps=60)
    assert len(found.warnings) == 1
    assert found.inside < 1.0


def test_few_draws_inside_are_told():
    start = gaussian(np.zeros(2), np.eye(2))
    with pytest.warns(UserWarning, match=r"only \d+% of the policy's draws"):
        fit_policy(
            normal,
            2,
            1,
            initial_policy=start,
            search=False,
            num_steps=1,
            kl_bound=1e-9,
            support=lambda x: x[:, 0] > 1.5,
        )


def test_the_ridge_is_that_of_the_steps():
    """As large as the features it halves what they say."""
    options = {"num_components": 2, "initial_policy": make_mixture(2), "kl_bound": 5.0}
    one, other = (quick(num_steps=1, ridge=ridge, **options).policy for ridge in (1e-6, 1.0))
    assert np.abs(one.means - other.means).max() > 0.1
