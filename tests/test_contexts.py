"""Contextual V-IRL from end to end: rows [c, x] in the loop, `fit(contexts=)`, files, scores."""

import functools
from dataclasses import replace
from types import SimpleNamespace

from virl_tf import InputError, export, fit, fit_policy, irl, load, pooling
from virl_tf.conditional import (
    ConditionalMixture,
    conditioned,
    empty_conditional,
    log_context_density,
)
from virl_tf.conditional_kde import contexts_nearby
from virl_tf.contexts import DRAWS, GATE_KL_BOUND, Places, drawn, split_places
from virl_tf.demonstrations import Data, DataOptions, prepare
from virl_tf.domain import EVERYWHERE, Domain
from virl_tf.em.em import em_start
from virl_tf.features import Features
from virl_tf.fusion import Fusion
from virl_tf.importance import normalise
from virl_tf.methods import EIM, GEIM, METHODS, VIRL
from virl_tf.mixture import resized
from virl_tf.negatives import classes, draw_negatives
from virl_tf.numerics import DENSITY, numpy_seed
from virl_tf.persistence.files import load_arrays, save_arrays
from virl_tf.persistence.policy_file import load_policy, save_policy
from virl_tf.persistence.reward_file import load_reward
from virl_tf.policy_fit import steps as steps_module
from virl_tf.policy_fit.start import (
    conditional_start,
    reward_start,
    standard_conditional_start,
)
from virl_tf.pooling import _exponent, _scored, log_likelihoods, pool
from virl_tf.problem import make_problem
from virl_tf.reward import CumulativeReward
from virl_tf.score import _beside_policy, log_inside, log_normaliser, score
from virl_tf.summary import RARE, context_doubts, doubts_of_contexts, rare_context
from virl_tf.tasks.experts import RandomExperts
from virl_tf.vips.conditional import conditional_steps
from virl_tf.vips.elbo import measured
from virl_tf.vips.vips import step_options

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from tests import tiny
from tests.shared import make_mixture, make_network, make_reward
from tests.tiny_runs import RecordingImprove

SEED = [3, 4]
C, D = 1, 2
rng = np.random.default_rng(0)
N = 520  # from 500 on EM takes no cross-validation
CONTEXTS = rng.uniform(-1.0, 1.0, (N, C))
X = np.column_stack([3.0 * CONTEXTS[:, 0], np.sin(3.0 * CONTEXTS[:, 0])])
X += 0.3 * rng.standard_normal(X.shape)
ROWS = np.hstack([CONTEXTS, X])
FAST = tiny.overrides(
    loop={"num_iterations": 2, "num_negatives": 160},
    policy={"start": "kmeans", "update_steps": 2, "samples_per_component": 30},
)


def problem(method=VIRL, **sections):
    return make_problem(Data(ROWS, num_contexts=C), tiny.hparams(method.family, **sections), 0)


def state(method=VIRL, **sections):
    hparams = tiny.hparams(method.family, **sections)
    found = make_problem(Data(ROWS, num_contexts=C), hparams, 0)
    return found, irl.init(found, method, 2, hparams), hparams


def network_of_contexts():
    """A network that sees the context alone."""
    kernel = np.zeros((C + D, 8), np.float32)
    kernel[0] = np.linspace(-1.0, 1.0, 8)
    bias = np.linspace(0.0, 1.0, 8, dtype=np.float32)
    return make_network(C + D, num_layers=2)._replace(input_kernel=kernel, input_bias=bias)


# --- weights and classes --------------------------------------------------------------------------


def test_weights_have_mean_one_in_each_context():
    log_w = rng.standard_normal((4, 6))
    found = np.exp(normalise(tf.constant(log_w.ravel()), num_draws=4)).reshape(4, 6)
    for m in range(6):
        w = np.exp(log_w[:, m])
        np.testing.assert_allclose(found[:, m], w / w.mean(), rtol=1e-12)


def test_a_function_of_the_context_does_not_get_into_the_weights():
    found, start, hparams = state()
    proposal, where = Fusion(start.policy, found.estimate), found.places(hparams, 0)
    one = draw_negatives(proposal, start.reward, VIRL, where, SEED)
    shifted = network_of_contexts()
    other = draw_negatives(proposal, start.reward.add(shifted), VIRL, where, SEED)
    assert np.std(shifted.logits(found.features(one.x))) > 0.1
    np.testing.assert_allclose(one.log_weights, other.log_weights, atol=1e-5)
    assert np.std(one.log_weights) > 0.1
    np.testing.assert_array_equal(one.x[:, :C], where.rows)


@pytest.mark.parametrize("method", [VIRL, GEIM], ids=["virl", "geim"])
def test_draws_of_one_context_are_held_out_together(method):
    found, start, _ = state(method)
    where = Places(tf.constant(np.arange(20.0)[:, None]), 4, num_held_out=2)
    proposal = Fusion(start.policy, found.estimate)
    negatives = draw_negatives(proposal, start.reward, method, where, SEED)
    offset = start.policy if method is GEIM else None
    held_out, train = classes(found, negatives, offset, 0.1)
    of_held_out, of_train = (np.unique(part.negatives.z[:, 0]) for part in (held_out, train))
    assert (len(of_held_out), len(of_train)) == (2, 18)
    assert of_held_out.max() < of_train.min()  # the first contexts are those of held-out rows
    assert len(held_out.negatives.z) == 2 * 4
    if method is GEIM:  # in units of x, whatever those of c
        log_volume = np.log(ROWS.std(axis=0)[C:]).sum()
        expected = -start.policy.log_prob(found.held_out) - log_volume
        np.testing.assert_allclose(held_out.experts.offsets, expected, rtol=1e-4, atol=1e-4)


def test_all_densities_of_a_problem_are_conditional():
    found = problem(kde={"estimator": "mixture"}, loop={"mixture_average": True})
    x = np.linspace(-6.0, 6.0, 61)
    grid = np.stack(np.meshgrid([0.5], x, x, indexing="ij"), axis=-1).reshape(-1, C + D)
    for density in (found.estimate, found.prior, found.mixture):
        total = np.exp(density.log_prob(grid)).sum() * (x[1] - x[0]) ** 2
        assert total == pytest.approx(1.0, abs=0.01)


def test_a_policy_starts_as_the_condition_of_a_start_on_all_columns():
    found, start, _ = state(policy={"start": "kmeans"})
    of_all = em_start(found.demonstrations.numpy(), 2, numpy_seed(0, 0, "initial policy"))
    for array, expected in zip(start.policy, conditioned(of_all, C), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_a_policy_is_fitted_between_the_demonstrated_contexts_too():
    np.testing.assert_array_equal(
        np.sort(problem().step_contexts, axis=0), np.sort(CONTEXTS, axis=0)
    )
    given = problem(policy={"weight_kl_bound": None}).step_contexts.numpy()
    assert given.shape == (10_000, C)
    assert np.isin(given, CONTEXTS).mean() < 0.01
    error = CONTEXTS.std() / np.sqrt(len(given))
    np.testing.assert_allclose(given.mean(axis=0), CONTEXTS.mean(axis=0), atol=4.4 * error)
    assert 1.0 < given.var() / CONTEXTS.var() < 1.1  # kernels are narrow in one column
    assert make_problem(Data(X), tiny.hparams("virl"), 0).step_contexts is None


def test_contexts_and_columns_of_few_values_keep_these():
    few = np.arange(12.0).reshape(4, 3)
    recurring = np.tile(few, (50, 1))
    np.testing.assert_array_equal(contexts_nearby(recurring, 0), recurring)
    one_column = np.column_stack([np.arange(300) % 2, np.linspace(0.0, 1.0, 300)])
    found = contexts_nearby(one_column, 0).numpy()
    assert set(found[:, 0]) == {0.0, 1.0}
    assert len(np.unique(found[:, 1])) > 9000


@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_copies_of_a_context_do_not_tell_that_nothing_is_between(noise):
    """Of copies that are not quite equal only groups can tell."""
    rng = np.random.default_rng(1)
    contexts = rng.standard_normal((60, 3))
    copies, groups = np.repeat(contexts, 5, axis=0), np.repeat(np.arange(60), 5)
    copies += noise * rng.standard_normal(copies.shape)
    alone, grouped = (
        np.abs(contexts_nearby(copies, 0, given).numpy()[:, None] - contexts).max(2).min(1).mean()
        for given in (None, groups)
    )
    assert grouped > 0.05
    assert alone == grouped if noise == 0.0 else alone < 0.05


@pytest.mark.parametrize("seed", range(2))
def test_a_gate_does_not_wander_between_the_contexts_that_its_steps_see(seed):
    """What experts cannot follow is noise to the gate, which tells contexts apart in 8 columns."""
    size, number = 8, 300
    truth = RandomExperts(10, size, seed=seed)
    contexts, fresh = (truth.demonstrations(n, seed=n)[0] for n in (number, 400))
    waves = np.random.default_rng(0).standard_normal((size + D, 3))

    def target(rows):
        return truth.policy.log_prob(rows) + tf.reduce_sum(tf.sin(2.0 * rows @ waves), axis=1)

    def elbo(contexts, bound):
        options = step_options(0.05, bound, 1e-6)
        given = target, tf.constant(contexts), tf.constant(SEED), options
        sizes = {"num_steps": 60, "num_samples": 200}
        steps = tf.function(lambda: conditional_steps(truth.policy, *given, **sizes)[0])
        return measured(steps(), target, Places(tf.constant(fresh), 10), 0)

    with_both = elbo(contexts_nearby(contexts, 0), GATE_KL_BOUND)
    assert with_both.exceeds(elbo(contexts, GATE_KL_BOUND))
    assert with_both.exceeds(elbo(contexts_nearby(contexts, 0), 0.05))
    before = measured(truth.policy, target, Places(tf.constant(fresh), 10), 0)
    assert with_both.elbo > before.elbo - 0.2  # of the given contexts and a bound of 0.05: -1.5


def test_the_pools_normaliser_is_that_of_each_context():
    found, start, _ = state(loop={"prior": "mixture", "mixture_average": True})
    where = Places(found.held_out[:, :C], 400)
    x = tf.concat([where.rows, found.mixture.sample(where.rows, SEED)], axis=1)
    log_mu = found.mixture.log_prob(x)
    values = log_likelihoods(start, found, x, log_mu)
    # Of a density with itself: whatever the exponent, its own likelihoods.
    expected = found.mixture.log_prob(found.held_out)
    np.testing.assert_allclose(values, np.tile(expected, (21, 1)), atol=1e-9)


def test_a_context_without_a_draw_inside_has_no_say_in_the_exponent():
    found, start, _ = state(loop={"mixture_average": True})
    box = Domain(*(tf.constant(np.full(C + D, v), tf.float64) for v in (-1e3, 1e3, 0.0)))
    start = start._replace(reward=start.reward._replace(domain=box))
    where = Places(found.held_out[:, :C], 40)
    x = drawn(found.estimate, where, SEED).numpy()
    of_first = np.arange(len(x)) % len(found.held_out) == 0
    lost = np.where(of_first[:, None], 1e4, x)
    of_all, of_others = (
        _exponent(start, problem_, rows, found.estimate.log_prob(rows))
        for problem_, rows in (
            (found, tf.constant(lost)),
            (found._replace(held_out=found.held_out[1:]), tf.constant(x[~of_first])),
        )
    )
    assert of_all == of_others


def test_a_function_of_the_context_does_not_get_into_the_pools_weights(monkeypatch):
    monkeypatch.setattr(pooling, "improve", RecordingImproveOf(RecordingImprove()))
    monkeypatch.setattr(pooling, "_exponent", lambda *_: 0.3)
    found, start, hparams = state(loop={"mixture_average": True})
    shifted = network_of_contexts().times(3.0)
    rewards = start.reward, start.reward.add(shifted)
    one, other = (
        pooling.pool(start._replace(reward=reward), found, hparams)[1] for reward in rewards
    )
    assert np.std(shifted.logits(found.features(found.held_out))) > 1.0
    assert one.effective_sample_size == pytest.approx(other.effective_sample_size, rel=1e-4)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_step_of_each_method(method, monkeypatch):
    class Fitter:
        def fit(self, train, held_out, previous, seed, iteration):
            self.train = train
            info = irl.FitInfo(1.0, 1.0, 2.0 * np.log(2.0), 0.5, 0, 1)
            network = make_network(C + D, num_layers=2)
            return tf.nest.map_structure(tf.constant, network), [], info

    monkeypatch.setattr(irl, "improve", RecordingImproveOf(RecordingImprove()))
    found, start, hparams = state(method)
    fitter = Fitter()
    after, info = irl.step(start, found, method, fitter, hparams)
    assert (after.reward.num_contexts, after.reward.dim) == (C, D)
    assert info.num_negatives == 64
    weights = np.asarray(fitter.train.negatives.weights)
    if method in (EIM, METHODS["virl_no_weights"]):
        np.testing.assert_allclose(weights, 1.0, atol=1e-4)
    assert after.reward(X, CONTEXTS).shape == (N,)


class RecordingImproveOf:
    """As RecordingImprove, for experts, which have offsets where components have means."""

    def __init__(self, recorder):
        self.recorder = recorder

    def __call__(self, policy, target, seed, hparams, contexts):
        assert contexts.shape == (N, C)
        mixture = policy.condition(contexts[0])
        return policy, self.recorder(mixture, target, seed, hparams)[1]


# --- what is doubted ------------------------------------------------------------------------------


def test_contexts_that_are_rare_together_are_doubted():
    """Each of the two values of (-2, 2) was demonstrated, but never with the other one."""
    places_of_rows = np.repeat([[-2.0, -2.0], [2.0, 2.0]], 200, axis=0)
    contexts = places_of_rows + 0.3 * np.random.default_rng(0).standard_normal((400, 2))
    rows = np.column_stack([contexts, contexts.sum(axis=1)])
    rows[:, 2] += 0.1 * np.random.default_rng(1).standard_normal(400)
    mixture = conditioned(em_start(rows, 2, 0), 2)
    reward = SimpleNamespace(mixture=mixture)
    names, low, high = ("east", "north"), contexts.min(axis=0), contexts.max(axis=0)
    columns = [
        {"name": name, "min": a, "max": b} for name, a, b in zip(names, low, high, strict=True)
    ]
    rare = rare_context(mixture, contexts)
    summary = {"columns": columns, "rare_context": rare}

    assert context_doubts(np.array([2.0, 2.0]), reward, summary) == ()
    (line,) = context_doubts(tf.constant([-2.0, 2.0], DENSITY), reward, summary)
    assert line == (
        "context east = -2, north = 2 is rarer than 99 % of the demonstrated ones: reward and "
        "policy there are a guess."
    )
    doubted = [bool(context_doubts(c, reward, summary)) for c in contexts]
    assert sum(doubted) == 4  # of 400
    (line,) = context_doubts(np.array([9.0, 2.0]), reward, summary)
    assert line.startswith("context east = 9 is outside")
    several = np.array([[2.0, 2.0], [-2.0, 2.0], [9.0, 2.0]])
    (of_several,) = doubts_of_contexts(several, reward, summary)
    first = context_doubts(several[1], reward, summary)[0]
    assert of_several == f"2 of 3 contexts were not demonstrated; the first: {first}"
    assert doubts_of_contexts(several[:1], reward, summary) == ()
    before = {"columns": columns}  # of a fit before 1.0.41
    assert context_doubts(np.array([-2.0, 2.0]), reward, before) == ()


@pytest.mark.parametrize("told", [np.float64, np.float32, lambda c: np.round(c, 6)])
def test_of_few_demonstrated_contexts_none_is_doubted(told):
    """The rarest one is the quantile: rounding would decide."""
    goals = np.random.default_rng(2).uniform(-1.0, 1.0, (6, 2))
    contexts = np.repeat(goals, 60, axis=0)
    rows = np.column_stack([contexts, np.random.default_rng(0).standard_normal(360)])
    mixture = conditioned(em_start(rows, 6, 0), 2)
    rare = rare_context(mixture, contexts)
    columns = [{"name": name, "min": -1.0, "max": 1.0} for name in "ab"]
    reward, summary = SimpleNamespace(mixture=mixture), {"columns": columns, "rare_context": rare}
    assert [context_doubts(told(goal), reward, summary) for goal in goals] == [()] * 6
    assert context_doubts((goals[0] + goals[1]) / 2.0, reward, summary) != ()


@pytest.mark.parametrize("mixture", [make_mixture(2, 3), empty_conditional(1, 2)])
def test_without_a_mixture_given_contexts_none_is_rare(mixture):
    rare = rare_context(mixture, ROWS[:, :2])
    assert rare is None
    columns = [{"name": name, "min": 0.0, "max": 1.0} for name in "ab"]
    summary = {"columns": columns, "rare_context": rare}
    assert context_doubts(np.array([0.0, 1.0]), SimpleNamespace(mixture=mixture), summary) == ()


# --- fit ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fits")
    hparams = {**FAST, "loop": {**FAST["loop"], "mixture_average": True}}
    arguments = {"contexts": CONTEXTS, "seed": 1, "held_out": 0.2}
    with pytest.warns():
        result = fit(
            X, "virl", 2, hparams=hparams, directory=folder / "virl", tensorboard=True, **arguments
        )
    return folder / "virl", result, hparams, arguments


def test_a_fit_gives_a_reward_and_a_policy_of_both(results):
    path, result, *_ = results
    assert (result.reward.num_contexts, result.reward.dim) == (C, D)
    assert isinstance(result.policy, ConditionalMixture)
    assert result.reward(X, CONTEXTS).shape == (N,)
    assert result.reward(X[:, None], CONTEXTS[:3]).shape == (N, 3)
    of_one = result.reward.condition(CONTEXTS[0])(X)
    np.testing.assert_allclose(of_one, result.reward(X, CONTEXTS[0]), atol=1e-4)
    assert result.policy.sample(CONTEXTS, 0).shape == (N, D)
    assert result.policy.condition(CONTEXTS[0]).distribution.sample(3).shape == (3, D)
    low, high = np.quantile(CONTEXTS, [0.1, 0.9])
    assert result.doubts([low]) == result.doubts([high]) == load(path).doubts([low]) == ()
    contexts = CONTEXTS[:, 0]
    doubted = [bool(load(path).doubts([c])) for c in (contexts.min(), contexts.max())]
    assert any(doubted)  # at an end one is rarer than 99 % of them
    (line,) = result.doubts([high + 9.0])
    assert line.startswith(f"context c0 = {high + 9.0:g} is outside of the demonstrated")
    for c, text in (([[low]], "one context"), (["a"], "c must be"), ([low, low], "must be an")):
        with pytest.raises(InputError, match=text):
            result.doubts(c)
    for other, text in (
        (replace(result, summary={}), "no summary"),
        (replace(result, reward=make_reward([make_network()])), "no contexts"),
    ):
        with pytest.raises(InputError, match=text):
            other.doubts([low])
    assert "C = 1, D = 2" in repr(result)
    assert "C = 1, D = 2" in result._repr_html_()
    assert "held-out demonstrations given their contexts" in repr(result.score)
    assert result.score.num_contexts == C
    assert 0.0 < float(result.history["mixture_exponent"].iloc[-1]) <= 1.0
    assert list((path / "tensorboard").iterdir())


def test_its_files_come_back(results):
    path, result, *_ = results
    loaded = load(path)
    np.testing.assert_array_equal(loaded.reward(X, CONTEXTS), result.reward(X, CONTEXTS))
    np.testing.assert_array_equal(
        loaded.policy.log_prob(X, CONTEXTS), result.policy.log_prob(X, CONTEXTS)
    )
    assert loaded.score == result.score
    model = keras.saving.load_model(path / "reward.keras")
    np.testing.assert_allclose(model(ROWS), result.reward(X, CONTEXTS), rtol=1e-6, atol=1e-5)
    assert any(isinstance(layer, CumulativeReward) for layer in model.layers)


class Stop(Exception):
    pass


def test_equal_fits_give_equal_bytes_also_when_they_were_killed(results, tmp_path, monkeypatch):
    path, _, hparams, arguments = results
    whole = irl.step
    monkeypatch.setattr(irl, "step", stopping_after(whole, 1))
    with pytest.raises(Stop):
        fit(X, "virl", 2, hparams=hparams, directory=tmp_path, **arguments)
    monkeypatch.setattr(irl, "step", whole)
    with pytest.warns():
        fit(X, "virl", 2, hparams=hparams, directory=tmp_path, **arguments)
    for name in ("metrics.csv", "policy.npz", "reward.keras"):
        assert (tmp_path / name).read_bytes() == (path / name).read_bytes(), name


def stopping_after(step, iterations):
    def stopping(state, *arguments):
        if state.t >= iterations:
            raise Stop
        return step(state, *arguments)

    return stopping


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [pytest.param("geim", marks=pytest.mark.slow), "eim"])
def test_other_methods_are_the_same_call(method):
    result = fit(X, method, 2, contexts=CONTEXTS, hparams=FAST, held_out=0.2)
    assert np.isfinite(result.reward(X, CONTEXTS)).all()
    if method == "eim":  # its reward is its policy
        log_q = result.policy.log_prob(X, CONTEXTS)
        np.testing.assert_allclose(result.reward(X, CONTEXTS), log_q, rtol=1e-9)
        assert result.score.effective_share > 0.3


@pytest.mark.filterwarnings("ignore")
def test_what_is_rare_is_told_by_the_reward_that_is_returned():
    """EM on the held-out rows, too, has moved the density of contexts."""
    hparams = {**FAST, "loop": {**FAST["loop"], "mixture_average": True}}
    result = fit(X, "virl", 2, contexts=CONTEXTS, hparams=hparams, held_out=0.2)
    densities = log_context_density(result.reward.mixture, CONTEXTS)
    assert result.summary["rare_context"] == pytest.approx(np.quantile(densities, RARE))


# --- scores ---------------------------------------------------------------------------------------


def test_the_normaliser_is_each_contexts_own():
    found, start, _ = state(loop={"prior": "mixture"})
    reward = start.reward  # a normalised density ...
    shifted = reward.add(network_of_contexts())  # ... times a function of c
    where = Places(tf.constant(CONTEXTS[:7]), 300)
    log_z, share = log_normaliser(shifted, Fusion(start.policy, found.prior), where, 0)
    expected = shifted(X[:7], CONTEXTS[:7]) - reward(X[:7], CONTEXTS[:7])
    assert log_z.shape == (7,)
    np.testing.assert_allclose(log_z, expected, atol=0.2)
    assert 0.3 < share <= 1.0


def test_the_normalisers_by_few_draws_are_not_too_small_on_average():
    """Else the reward would seem likelier than it is, here by 0.04 nats."""
    found, start, _ = state(loop={"prior": "mixture"})
    proposal = found.prior._replace(scale_trils=3.0 * found.prior.scale_trils)
    where = Places(tf.constant(np.tile(CONTEXTS, (8, 1))), 50)
    log_z, _ = log_normaliser(start.reward, proposal, where, 0)
    assert abs(log_z.mean()) < 3.5 * log_z.std() / np.sqrt(len(log_z))


def test_a_q0_that_is_ems_mixture_is_drawn_from_where_the_policy_misses_modes():
    """Kernels, or EM with the policy's few components, do not reach all of it."""
    _, start, _ = state(loop={"prior": "mixture", "mixture_average": False})
    reward = start.reward
    assert reward.mixture.num_components == 0
    assert _beside_policy(reward, start.policy, None) is reward.base
    one = reward._replace(base_exponent=tf.constant(0.0, tf.float64))
    assert _beside_policy(one, start.policy, None) is start.policy


def test_of_many_held_out_contexts_some_are_scored(monkeypatch):
    found, start, _ = state(loop={"prior": "mixture"})
    monkeypatch.setattr("virl_tf.score.MOST_IN_CONTEXTS", 7)
    densities = start.policy, found.estimate, found.prior
    scored = score(ROWS, start.reward, *densities, 0, np.arange(N))
    assert scored.rows == 7
    assert np.isfinite(scored.log_likelihood["KDE"]["standard_error"])
    of_x = np.log(ROWS.std(axis=0)[C:]).sum()  # whatever the units of contexts
    assert scored.log_volume == pytest.approx(of_x)


def test_the_share_inside_of_bounds_is_each_contexts_own():
    """Of x ~ N(c, 1) where x must be positive."""
    zero, one = np.zeros((1, 1)), np.ones((1, 1, 1))
    arrays = np.zeros(1), zero, np.zeros((1, 1, 1)), one, zero, one
    of_context = ConditionalMixture(*(tf.constant(array) for array in arrays))
    sides = ([-np.inf, 0.0], [np.inf, np.inf], [0.0, 0.0])
    positive = Domain(*(tf.constant(side, tf.float64) for side in sides))
    reward = make_reward([], dim=2).of_policy(of_context)._replace(domain=positive)
    where = Places(tf.constant([[0.0], [50.0]], tf.float64), 4000)
    found = log_inside(of_context, reward, where, 0)
    np.testing.assert_allclose(found, np.log([0.5, 1.0]), atol=0.06)


def test_of_many_held_out_contexts_some_decide_the_exponent(monkeypatch):
    found, start, hparams = state(loop={"mixture_average": True})
    monkeypatch.setattr("virl_tf.pooling.DRAWS", hparams.loop.num_negatives // 4)
    scored = _scored(found, hparams.loop.num_negatives)
    assert len(scored) == 4 < len(found.held_out)
    assert set(map(tuple, scored.numpy())) <= set(map(tuple, found.held_out.numpy()))
    assert pool(start, found, hparams)[0].pooled
    assert len(_scored(problem()._replace(num_contexts=0), 2)) == len(found.held_out)


# --- what users get wrong -------------------------------------------------------------------------

BROKEN = {
    "other rows": (CONTEXTS[:70], f"contexts must hold a row per demonstration, [{N}, C], got"),
    "one axis": (CONTEXTS[:, 0], f"got shape ({N},); one number for each is [N, 1]: c[:, None]"),
    "NaN": (np.where(CONTEXTS > 0.9, np.nan, CONTEXTS), "contexts hold NaN or infinities"),
    "constant": (np.ones((N, 1)), "contexts: column 0 is constant (value 1)"),
    "text": (np.full((N, 1), "a"), "contexts must be a numeric array [N, C]"),
}


@pytest.mark.parametrize(("contexts", "text"), BROKEN.values(), ids=BROKEN)
def test_contexts_that_cannot_be_used(contexts, text):
    with pytest.raises(InputError) as error:
        fit(X, contexts=contexts)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_for_contexts_is_refused_before_a_folder_is_made(tmp_path):
    hparams = {"policy": {"surrogate": "gradients"}}
    with pytest.raises(InputError, match="gradients is not for contexts"):
        fit(X, contexts=CONTEXTS, hparams=hparams, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_columns_of_contexts_have_names_and_no_bounds():
    frame = pd.DataFrame(CONTEXTS, columns=["goal"])
    found = prepare(X, DataOptions(contexts=frame, support=(-9.0, {"x1": 9.0}), held_out=0.2), 0)
    assert found.names == ["goal", "x0", "x1"]
    assert found.train.num_contexts == found.identity["contexts"] == 1
    np.testing.assert_array_equal(found.train.domain.lower, [-np.inf, -9.0, -9.0])
    np.testing.assert_array_equal(found.train.domain.upper, [np.inf, np.inf, 9.0])
    np.testing.assert_array_equal(
        np.sort(np.vstack([found.train.rows, found.test]), 0), np.sort(ROWS, 0)
    )
    with pytest.raises(InputError, match="periodic: column 'goal' is a context; allowed are x0, "):
        prepare(X, DataOptions(contexts=frame, periodic=["goal"]), 0)
    with pytest.raises(InputError, match=r"support: column 'goal' is a context; [^;]*x1\.$"):
        prepare(X, DataOptions(contexts=frame, support=(None, {"goal": 9.0})), 0)
    with pytest.raises(InputError, match="both have a column 'goal'"):
        prepare(pd.DataFrame(X, columns=["x", "goal"]), DataOptions(contexts=frame), 0)
    without = prepare(X, DataOptions(), 0)
    assert "contexts" not in without.identity


@functools.cache
def conditional_reward():
    found, start, _ = state()
    features = Features(found.features.shift, found.features.scale, found.features.frequencies)
    return make_reward([make_network(3)], dim=3, base=start.policy, mixture=found.mixture)._replace(
        features=features
    )


def test_a_reward_says_whether_it_wants_a_context():
    reward = conditional_reward()
    with pytest.raises(InputError, match=r"takes contexts \[..., 1\]: \(x, c\)"):
        reward(X)
    with pytest.raises(InputError, match=r"takes no contexts: \(x\)"):
        make_reward([make_network()])(X, CONTEXTS)
    with pytest.raises(InputError, match="takes no contexts"):
        make_reward([make_network()]).condition([0.0])
    with pytest.raises(InputError, match=r"c must be one context \[1\]"):
        reward.condition(CONTEXTS)
    with pytest.raises(InputError, match="c must be finite numbers, got"):
        reward.condition(np.full(C, np.nan))
    for given in ({}, {"initial_policy": make_mixture(3)}):
        with pytest.raises(InputError, match="give contexts=, or fit a policy for one"):
            fit_policy(reward, D, 3, **given)


def test_a_reward_with_contexts_is_exported_as_a_function_of_rows(tmp_path):
    reward = conditional_reward()
    export.saved_model(reward, tmp_path / "reward")
    loaded = tf.saved_model.load(str(tmp_path / "reward"))
    np.testing.assert_allclose(
        loaded.log_prob(tf.constant(ROWS)), reward(X, CONTEXTS), rtol=1e-6, atol=1e-6
    )
    with pytest.raises(InputError, match=r"of a policy with contexts policy.condition\(c\)"):
        export.saved_model(reward.base, tmp_path / "policy")


def test_the_reward_of_one_context_is_a_target_for_policies():
    reward = conditional_reward()
    found = fit_policy(
        reward.condition(CONTEXTS[0]), D, 2, search=False, num_steps=2, samples_per_component=20
    )
    assert found.policy.dim == D
    graph = tf.function(reward.condition(CONTEXTS[0])).get_concrete_function(
        tf.TensorSpec([None, D], tf.float64)
    )
    np.testing.assert_allclose(graph(tf.constant(X)), reward(X, CONTEXTS[0]), atol=1e-5)
    with tf.GradientTape() as tape:
        x = tf.constant(X)
        tape.watch(x)
        values = reward(x, CONTEXTS)
    assert tape.gradient(values, x).shape == (N, D)


def test_the_reward_of_one_context_is_one_without_contexts(tmp_path):
    """With waves through c and x, two networks, a pooled mixture, a bound and an angle."""
    size, dim = 2, 3
    rows = np.random.default_rng(5).standard_normal((60, size + dim))
    frequencies = np.random.default_rng(6).standard_normal((size + dim, 4))
    networks = [make_network(size + dim + 8, seed=i) for i in range(2)]
    base, mixture = (conditioned(make_mixture(4, size + dim, seed=i), size) for i in range(2))
    bounds = [-1.0, -np.inf, -2.0], [np.inf, np.inf, 2.0], [0.0, 0.0, 4.0]
    domain = Domain(*(tf.constant(side, DENSITY) for side in bounds)).behind(size)
    pooled = {"base": base, "mixture": mixture, "mixture_exponent": 0.3}
    reward = make_reward(networks, dim=size + dim, frequencies=frequencies, **pooled)
    reward = reward._replace(domain=domain)
    for c in rows[:3, :size]:
        found, x = reward.condition(c), rows[:, size:]
        expected = np.asarray(reward(x, c))
        assert 5 < np.isfinite(expected).sum() < 60
        assert (found.num_contexts, found.dim) == (0, dim)
        np.testing.assert_allclose(found(x), expected, rtol=1e-5, atol=1e-5)
    found.as_keras().save(tmp_path / "reward.keras")
    np.testing.assert_array_equal(load_reward(tmp_path / "reward.keras")(x), found(x))
    unbounded = reward._replace(domain=EVERYWHERE, mixture=empty_conditional(dim, size))
    expected = unbounded(x, c)
    np.testing.assert_allclose(unbounded.condition(c)(x), expected, rtol=1e-5, atol=1e-5)


def test_a_policy_on_the_reward_of_one_context_starts_from_em_there():
    mixture = conditioned(make_mixture(4, C + D), C)
    reward, c = conditional_reward()._replace(mixture=mixture), tf.constant(CONTEXTS[0])
    start = reward_start(reward.condition(c), 2, seed=0)
    for a, b in zip(start, resized(reward.mixture.condition(c), 2), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_policy_may_start_from_what_the_em_mixture_says_given_the_context():
    found, first, _ = state(policy={"start": "mixture"})
    for a, b in zip(first.policy, conditioned(resized(found.joint, 2), C), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_a_reward_is_pooled_with_is_smoothed_with_further_rows_too():
    found, _, _ = state(loop={"mixture_average": True})
    rows, again = np.asarray(found.train), found.describe(np.array(found.train))
    np.testing.assert_allclose(again.log_prob(rows), found.mixture.log_prob(rows), atol=0.05)


# --- policies -------------------------------------------------------------------------------------


def quick(log_prob, **given):
    """A short fit; of two components where nothing else is said."""
    sizes = {"num_steps": 3, "samples_per_component": 40} | given
    k = sizes.pop("num_components", 2)
    return fit_policy(log_prob, D, k, contexts=CONTEXTS, **sizes)


def plain_target(rows):
    """A Gaussian that moves with c; not normalised."""
    return (
        -2.0 * tf.reduce_sum((rows[:, C:] - 3.0 * rows[:, :C]) ** 2, axis=1) + 5.0 * rows[:, 0] ** 2
    )


def test_the_error_of_an_elbo_is_of_draws_within_their_contexts():
    """Between contexts the target may differ by any f(c), which is nothing about the policy."""
    found, further = (quick(lambda r, k=k: plain_target(r) + k * r[:, 0]) for k in (0.0, 100.0))
    assert 0.0 < further.elbo_error == pytest.approx(found.elbo_error, rel=0.01)


def test_a_function_of_the_context_does_not_get_into_a_policys_start():
    _, start, _ = state()
    rewards = start.reward, start.reward.add(network_of_contexts().times(3.0))
    contexts = tf.constant(CONTEXTS)
    one, other = (
        conditional_start(reward, contexts, 2, 0).log_prob(ROWS).numpy() for reward in rewards
    )
    np.testing.assert_allclose(one, other, atol=0.05)


def test_a_policy_for_all_contexts_finds_the_truth():
    """Of one Gaussian whose mean is 3 c and whose variance is 1/4, off by a quadratic f(c)."""
    found = quick(plain_target, num_components=1, num_steps=60)
    policy = found.policy
    np.testing.assert_allclose(policy.gains[0], [[3.0], [3.0]], atol=1e-4)
    np.testing.assert_allclose(policy.offsets[0], [0.0, 0.0], atol=1e-4)
    np.testing.assert_allclose(policy.scale_trils[0], 0.5 * np.eye(D), atol=1e-4)
    assert np.isfinite(found.elbo)
    assert found.warnings == ()


def test_a_policy_from_em_ends_at_the_truth():
    truth = RandomExperts(3, C, seed=1)
    rows = np.hstack(truth.demonstrations(1000, seed=2))
    start = conditioned(em_start(rows, 3, seed=0), C)
    found = quick(truth.policy.log_prob, num_components=3, num_steps=60, initial_policy=start)
    assert -0.02 < found.elbo <= 3.0 * found.elbo_error


def test_a_policy_on_a_recovered_reward_starts_near_it():
    reward = conditional_reward()
    found = quick(reward)
    shape = ConditionalMixture((2,), (2, C), (2, C, C), (2, D, C), (2, D), (2, D, D))
    assert [tuple(array.shape) for array in found.policy] == list(shape)
    afar = standard_conditional_start(2, D, C, 0)
    from_afar = quick(reward, num_steps=1, initial_policy=afar)
    assert found.history["elbo"][0] > from_afar.history["elbo"][0]
    assert found.policy.condition(CONTEXTS[0]).dim == D
    assert found.evaluations == 3 * 40 * 2


def test_steps_on_a_reward_see_contexts_beside_the_given_ones(monkeypatch):
    seen = []

    def recorded(policy, target, contexts, *given, **sizes):
        seen.append(contexts.shape[0])
        return conditional_steps(policy, target, contexts, *given, **sizes)

    monkeypatch.setattr(steps_module, "conditional_steps", recorded)
    reward = conditional_reward()
    quick(reward)
    quick(reward, support=lambda rows: rows[:, 1] < 1e3)  # may know of the given ones alone
    quick(reward.log_prob)
    assert seen == [10_000, N, N]


def test_single_steps_are_the_steps_of_one_call():
    """`fit_policy` takes one step a call; seeds go on with their number."""
    target = RandomExperts(3, C, seed=1).policy
    start, seed = standard_conditional_start(2, D, C, 0), tf.constant(SEED)
    given = tf.constant(CONTEXTS), seed, step_options(0.05, 0.05, 1e-6)
    sizes = {"num_samples": 40}
    whole, _ = conditional_steps(start, target.log_prob, *given, num_steps=2, **sizes)
    part, _ = conditional_steps(start, target.log_prob, *given, num_steps=1, **sizes)
    part, _ = conditional_steps(part, target.log_prob, *given, num_steps=1, first_step=1, **sizes)
    np.testing.assert_allclose(part.offsets, whole.offsets, rtol=1e-9)


def test_a_callback_sees_policies_with_contexts_and_support_sees_rows():
    seen = []
    found = quick(
        plain_target,
        num_steps=4,
        support=lambda rows: rows[:, 1] > 3.0 * rows[:, 0] - 1.0,
        callback=lambda step, policy: seen.append((step, policy.num_contexts)),
        callback_every=2,
    )
    assert seen == [(2, C), (4, C)]
    assert 0.0 < found.history["rejected"].max() < 1.0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"search": True}, "search is not for contexts; leave it out"),
        ({"search": {"num_rounds": 3}}, "search is not for contexts"),
        ({"gradients": True}, "gradients is not for contexts"),
        ({"contexts": CONTEXTS[:, 0]}, r"contexts must be an array.*c\[:, None\].*condition\(c\)"),
        ({"contexts": np.full((9, 1), 2.0)}, "contexts.*does not vary|constant"),
        ({"contexts": np.full((9, 1), np.nan)}, "contexts"),
        ({"contexts": [[1.0], [2.0, 3.0]]}, r"contexts must hold a row .*got shape \(2, None\)"),
        ({"contexts": 3.0}, r"contexts must be .*\[M, C\]"),
        (
            {"contexts": rng.standard_normal((9, 2))},
            "contexts have 2 columns, but the reward takes 1",
        ),
        ({"initial_policy": make_mixture(2)}, "initial_policy is not a ConditionalMixture"),
        (
            {"initial_policy": standard_conditional_start(3, D, C, 0)},
            r"initial_policy has \[K, D, C\] = \[3, 2, 1\], expected \[2, 2, 1\]",
        ),
        ({"dim": 3}, "dim is 3, but the reward has dimension 2"),
    ],
)
def test_fits_with_contexts_that_cannot_be(given, text):
    arguments = {"dim": D, "num_components": 2, "contexts": CONTEXTS} | given
    with pytest.raises(InputError, match=text):
        fit_policy(conditional_reward(), **arguments)


def test_a_column_of_contexts_that_does_not_vary_is_not_to_be_dropped():
    fixed = np.column_stack([np.linspace(0.0, 1.0, 9), np.full(9, 0.5)])
    said = r"contexts: column 1 is constant \(value 0\.5\); every column must vary\. Vary it a"
    with pytest.raises(InputError, match=said):
        fit_policy(conditional_reward(), D, 2, contexts=fixed)


def test_contexts_for_a_reward_without_any():
    with pytest.raises(InputError, match="contexts have 1 columns, but the reward takes 0"):
        fit_policy(make_reward([make_network()]), 2, contexts=CONTEXTS)


# --- files ----------------------------------------------------------------------------------------


def test_damaged_files_are_refused(tmp_path):
    reward = conditional_reward()
    save_policy(tmp_path / "policy.npz", reward.base)
    arrays = load_arrays(tmp_path / "policy.npz")
    assert set(arrays) == set(ConditionalMixture._fields)
    for name, array in arrays.items():
        save_arrays(tmp_path / "broken.npz", {**arrays, name: array[1:]})
        with pytest.raises(InputError, match="is not a policy: expected finite float64"):
            load_policy(tmp_path / "broken.npz")
    broken = {
        "other shapes": reward._replace(
            base=reward.base._replace(offsets=tf.zeros([2, 3], "float64"))
        ),
        "not finite": reward._replace(base=reward.base._replace(offsets=reward.base.offsets / 0.0)),
        "impossible": reward._replace(
            base=reward.base._replace(gains=tf.zeros([2, 2, 3], "float64"))
        ),
    }
    for text, wrong in broken.items():
        wrong.as_keras().save(tmp_path / "reward.keras")
        with pytest.raises(InputError, match=text):
            load_reward(tmp_path / "reward.keras")


def test_places_are_about_as_many_as_asked_for():
    found, _, hparams = state()
    where = found.places(hparams, 0)
    assert len(where.rows) == hparams.loop.num_negatives // DRAWS * DRAWS


def test_held_out_demonstrations_contexts_are_for_validation_alone():
    found, _, hparams = state()
    where = found.places(hparams, 0)
    number = int(hparams.training.validation_fraction * len(where.contexts))
    assert where.num_held_out == max(1, number)
    held_out, rows = where.held_out, where.rows.numpy()
    assert np.isin(rows[held_out], found.held_out[:, :C]).all()
    assert np.isin(rows[~held_out], found.train[:, :C]).all()
    assert not np.isin(rows[~held_out], found.held_out[:, :C]).any()
    again = split_places(found.held_out[:, :C], found.train[:, :C], 10_000 * DRAWS, 0.2, SEED)
    assert again.held_out.sum() == 2_000 * DRAWS  # more than there are


def test_iterations_draw_in_contexts_of_their_own():
    found, _, hparams = state()
    first, again, second = (found.places(hparams, t).contexts.numpy() for t in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(np.sort(first, axis=0), np.sort(second, axis=0))
