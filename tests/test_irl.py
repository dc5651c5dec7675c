import io

from virl_tf import irl
from virl_tf.demonstrations import Data
from virl_tf.discriminator.fit import DiscriminatorFitter
from virl_tf.methods import EIM, METHODS, PAPER_METHODS, VIRL
from virl_tf.mixture import resized
from virl_tf.numerics import compiled, split_seed
from virl_tf.observers import ProgressBar
from virl_tf.persistence.checkpoint import load_state, save_state
from virl_tf.problem import make_problem
from virl_tf.reward import evaluate
from virl_tf.vips import improve as line_4

import numpy as np
import pytest
import tensorflow as tf
from rich.console import Console

from tests import tiny
from tests.tiny_runs import (
    GRID,
    NUM_COMPONENTS,
    RecordingFitter,
    RecordingImprove,
    X,
    fusion_log_prob,
    mixture_log_prob,
    moments_log_prob,
    network_logits,
    networks_before,
    standardised,
    start,
    state_bytes,
)

# --- start ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy_start", ["standard_normal", "kmeans", "samples", "mixture"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_initial_state(method, policy_start):
    problem, state, hparams = start(method, policy={"start": policy_start})
    assert state.t == 0
    assert state.network == ()
    assert not state.converged
    assert not state.pooled
    assert (state.policy.num_components, state.policy.dim) == (NUM_COMPONENTS, 2)
    assert int(state.reward.networks.count) == 0
    room = hparams.loop.num_iterations if method.base == "reward" else 1
    assert state.reward.networks.capacity == room
    assert state.reward.features is problem.features
    assert float(state.reward.mixture_exponent) == 0.0


@pytest.mark.parametrize("prior", ["moments", "mixture"])
def test_virl_starts_from_the_prior(prior):
    problem, state, _ = start(VIRL, loop={"prior": prior})
    expected = mixture_log_prob(problem.prior, GRID)
    np.testing.assert_allclose(evaluate(state.reward, GRID), expected, rtol=1e-6)


@pytest.mark.parametrize("k", [1, 30])
def test_a_policy_may_start_from_the_em_mixture(k):
    hparams = tiny.hparams(VIRL.family, policy={"start": "mixture"})
    problem = make_problem(Data(tiny.demonstrations()), hparams, 0)
    assert problem.mixture.num_components == 0  # that is for pooling
    found = irl.init(problem, VIRL, k, hparams).policy
    for a, b in zip(found, resized(problem.joint, k), strict=True):
        np.testing.assert_array_equal(a, b)


def test_or_from_nothing():
    _, flat, _ = start(VIRL, loop={"prior": "flat"})
    np.testing.assert_array_equal(evaluate(flat.reward, GRID), np.zeros(len(GRID)))


def test_virl_with_the_initial_policy_as_prior_starts_where_eim_does():
    _, virl, _ = start(VIRL, loop={"prior": "initial_policy"})
    _, eim, _ = start(EIM)
    for a, b in zip(virl.policy, eim.policy, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(evaluate(virl.reward, GRID), evaluate(eim.reward, GRID))
    np.testing.assert_allclose(evaluate(eim.reward, GRID), mixture_log_prob(eim.policy, GRID))


# --- one iteration against the table, with a network that is handed in ----------------------------


@pytest.fixture
def improve(monkeypatch):
    recorder = RecordingImprove()
    monkeypatch.setattr(irl, "improve", recorder)
    return recorder


@pytest.fixture(params=METHODS.values(), ids=METHODS)
def recorded(request, improve):
    """Two iterations of a method with everything they were made of."""
    method = request.param
    problem, state, hparams = start(method)
    fitter, states, infos = RecordingFitter(), [state], []
    for _ in range(2):
        state, info = irl.step(states[-1], problem, method, fitter, hparams)
        states.append(state)
        infos.append(info)
    return method, problem, hparams, fitter, improve.targets, states, infos


def negatives_of(call):
    """Points, weights and offsets of all negatives of a call, those held out first."""
    parts = [call[name].negatives for name in ("held_out", "train")]
    z, offsets, weights = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return z.astype(np.float64) * X.std(axis=0) + X.mean(axis=0), weights, offsets


@pytest.mark.parametrize("t", [0, 1])
def test_classifier_gets_what_the_table_says(recorded, t):
    method, problem, hparams, fitter, _, states, infos = recorded
    call, policy = fitter.calls[t], states[t].policy
    x, found, found_offsets = negatives_of(call)
    assert x.shape == (hparams.loop.num_negatives, 2)

    log_q = mixture_log_prob(policy, x)
    log_proposal = fusion_log_prob(policy, problem.estimate, x) if method.fusion else log_q
    log_base = log_q
    if method.base == "reward":
        logits = sum(network_logits(network, x) for network in networks_before(t))
        log_base = moments_log_prob(x) + logits
    weights = np.exp(log_base - log_proposal) if method.importance_weights else np.ones(len(x))
    weights /= weights.mean()
    np.testing.assert_allclose(found, weights, rtol=2e-3, atol=1e-5)  # z was rounded to float32
    effective = weights.sum() ** 2 / np.sum(weights**2)
    assert infos[t].effective_sample_size == pytest.approx(effective, rel=2e-3)

    # G-EIM's logit is R_t - log q_t, as a density of the standardised points and so without units;
    # q_t is the policy.
    log_volume = np.log(X.std(axis=0)).sum()
    offsets_at = {
        "none": lambda at: np.zeros(len(at)),
        "policy": lambda at: -mixture_log_prob(policy, at) - log_volume,
        "proposal": lambda at: -fusion_log_prob(policy, problem.estimate, at) - log_volume,
    }[method.logit_offset]
    np.testing.assert_allclose(found_offsets, offsets_at(x), rtol=1e-3, atol=1e-3)
    for name, points in (("train", problem.train), ("held_out", problem.held_out)):
        experts = call[name].experts
        np.testing.assert_array_equal(experts.weights, np.ones(len(points)))
        np.testing.assert_allclose(experts.z, standardised(points), atol=1e-6)
        np.testing.assert_allclose(experts.offsets, offsets_at(points), rtol=1e-3, atol=1e-3)


def test_weights_of_eim_are_one_and_others_are_not(recorded):
    method, _, hparams, fitter, _, _, infos = recorded
    for call, info in zip(fitter.calls, infos, strict=True):
        weights = negatives_of(call)[1]
        assert weights.mean() == pytest.approx(1.0, rel=1e-5)
        assert info.num_negatives == hparams.loop.num_negatives
        if method is EIM or not method.importance_weights:
            np.testing.assert_allclose(weights, 1.0, rtol=1e-6)
            assert info.effective_sample_size == pytest.approx(hparams.loop.num_negatives)
        else:
            assert weights.std() > 0.05
            assert info.effective_sample_size < 0.99 * hparams.loop.num_negatives


@pytest.mark.parametrize("t", [0, 1])
def test_target_of_the_policy_and_reward_follow_the_table(recorded, t):
    method, _, _, _, targets, states, _ = recorded
    logits = [network_logits(network, GRID) for network in networks_before(t + 1)]
    if method.family == "virl":
        target = moments_log_prob(GRID) + sum(logits)
    elif method.family == "geim":
        target = logits[-1]
    else:
        target = mixture_log_prob(states[t].policy, GRID) + logits[-1]
    np.testing.assert_allclose(evaluate(targets[t], GRID), target, rtol=1e-5, atol=1e-4)

    after = states[t + 1]
    reward = mixture_log_prob(after.policy, GRID) if method.family == "eim" else target
    np.testing.assert_allclose(evaluate(after.reward, GRID), reward, rtol=1e-5, atol=1e-4)
    expected = {"virl": t + 1, "geim": 1, "eim": 0}[method.family]
    assert int(after.reward.networks.count) == expected


def test_classifier_is_called_with_the_previous_network_and_the_iteration(recorded):
    _, problem, _, fitter, _, states, infos = recorded
    called_with = [(call["seed"], call["iteration"]) for call in fitter.calls]
    assert called_with == [(problem.seed, 0), (problem.seed, 1)]
    assert fitter.calls[0]["previous"] == ()
    np.testing.assert_array_equal(fitter.calls[1]["previous"][0], np.zeros(3))
    np.testing.assert_array_equal(states[2].network[0], np.ones(3))
    assert [state.t for state in states] == [0, 1, 2]
    assert [info.t for info in infos] == [0, 1]


def test_iterations_draw_different_negatives(recorded):
    one, two = (np.asarray(call["train"].negatives.z) for call in recorded[3].calls)
    of_policy = len(one) // 2
    # The policy moved by exactly 0.1, so equal noise would show as equal differences.
    assert (two - one)[:of_policy].std() > 0.1


@pytest.mark.usefixtures("recorded")
def test_the_policys_steps_have_a_seed_of_their_own_in_each_iteration(improve):
    draws = [tuple(split_seed(0, t, "negatives").tolist()) for t in (0, 1)]
    assert len({*improve.seeds, *draws}) == 4


def test_info_reports_the_policys_last_step_and_the_most_that_any_of_them_rejected(recorded):
    infos = recorded[6]
    assert [info.elbo for info in infos] == [1.0, 2.0]
    assert [info.component_kl for info in infos] == [1.0, 2.0]
    assert [info.rejected_samples for info in infos] == [1.0, 2.0]
    assert all(info.sample_seconds >= 0.0 and info.training_seconds >= 0.0 for info in infos)
    assert [info.mixture_exponent for info in infos] == [0.0, 0.0]


# --- the end of a run -----------------------------------------------------------------------------

CHANCE = 2.0 * np.log(2.0)


@pytest.mark.usefixtures("improve")
@pytest.mark.parametrize("loss", [CHANCE, CHANCE - 0.9e-3, 1.5, float("nan")])
def test_a_phi_that_does_not_beat_chance_is_dropped(loss):
    problem, state, hparams = start(VIRL, loop={"min_gain": 1e-3})
    fitter = RecordingFitter([1.0, loss])
    first, info = irl.step(state, problem, VIRL, fitter, hparams)
    assert (info.dropped, int(first.reward.networks.count)) == (0, 1)
    second, info = irl.step(first, problem, VIRL, fitter, hparams)
    assert (info.dropped, int(second.reward.networks.count)) == (1, 1)
    assert not second.pooled
    np.testing.assert_array_equal(evaluate(second.reward, GRID), evaluate(first.reward, GRID))
    # The policy's steps are not lost.
    assert not np.array_equal(second.policy.means, first.policy.means)


@pytest.mark.usefixtures("improve")
def test_two_in_a_row_that_find_nothing_end_a_run():
    problem, state, hparams = start(VIRL, loop={"min_gain": 1e-3})
    fitter = RecordingFitter([2.0, 1.0, 2.0, 2.0])
    found = []
    for _ in range(4):
        state, info = irl.step(state, problem, VIRL, fitter, hparams)
        found.append((info.dropped, int(state.reward.networks.count), state.converged))
    assert found == [(1, 0, False), (0, 1, False), (1, 1, False), (1, 1, True)]


@pytest.mark.parametrize(
    ("dropped", "end"), [(1, "dropped\n"), (2, "dropped, and the iterations end here\n")]
)
def test_the_screen_says_whether_the_iterations_go_on(dropped, end):
    _, state, _ = start(VIRL)
    row = {"t": 0, "dropped": 1, "effective_sample_size": 10.2, "num_negatives": 32000}
    out = io.StringIO()
    with ProgressBar(3, Console(file=out, width=300)) as bar:
        bar(state._replace(dropped=np.array(dropped)), row)
    assert f"phi_0 tells held-out points apart no better than chance: {end}" in out.getvalue()


@pytest.mark.usefixtures("improve")
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_only_rewards_that_are_sums_converge(method):
    problem, state, hparams = start(method, loop={"min_gain": 1e-3})
    state, info = irl.step(state, problem, method, RecordingFitter([2.0]), hparams)
    assert info.dropped == state.dropped == (method.family == "virl")


@pytest.mark.usefixtures("improve")
@pytest.mark.parametrize("loss", [2.0, CHANCE, float("nan")])
def test_without_min_gain_nothing_is_dropped(loss):
    problem, state, hparams = start(VIRL)
    state, info = irl.step(state, problem, VIRL, RecordingFitter([loss]), hparams)
    assert (info.dropped, int(state.dropped), int(state.reward.networks.count)) == (0, 0, 1)


@pytest.mark.usefixtures("improve")
@pytest.mark.parametrize(
    ("prior", "starts"),
    [
        ("moments", ["prior", "policy"]),
        ("mixture", ["policy", "policy"]),
        ("initial_policy", ["policy", "policy"]),
    ],
)
def test_a_policy_at_the_modes_leaves_the_first_draws_to_one_gaussian(prior, starts):
    loop = {"prior": prior, "num_negatives": 400}
    problem, state, hparams = start(VIRL, policy={"start": "mixture"}, loop=loop)
    for of in starts:
        fitter, before = RecordingFitter(), state
        state, _ = irl.step(before, problem, VIRL, fitter, hparams)
        x, found, _ = negatives_of(fitter.calls[0])
        half = problem.prior if of == "prior" else before.policy
        weights = np.exp(evaluate(before.reward, x) - fusion_log_prob(half, problem.estimate, x))
        np.testing.assert_allclose(found, weights / weights.mean(), rtol=2e-3, atol=1e-5)


# --- whole runs with real networks ----------------------------------------------------------------


def advance(problem, state, method, hparams, num_steps, fitter=None):
    fitter = fitter or DiscriminatorFitter(problem.features.num_inputs, hparams)
    for _ in range(num_steps):
        state, info = irl.step(state, problem, method, fitter, hparams)
    return state, info, fitter


@pytest.fixture(scope="module", params=PAPER_METHODS, ids=lambda method: method.name)
def finished(request):
    """Four iterations of a method."""
    problem, state, hparams = start(request.param)
    return request.param, problem, hparams, *advance(problem, state, request.param, hparams, 4)


def test_a_run_is_finite(finished):
    method, _, _, state, info, _ = finished
    assert state.t == 4
    assert np.isfinite(evaluate(state.reward, GRID)).all()
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in tf.nest.flatten(state))
    assert np.isfinite(
        [value for key, value in info._asdict().items() if not key.endswith("_seconds")]
    ).all()
    assert info.component_kl <= 0.05 * (1.0 + 1e-6)
    assert int(state.reward.networks.count) == {"virl": 4, "geim": 1, "eim": 0}[method.name]


def test_reward_of_a_run_is_prior_plus_networks(finished):
    method, _, _, state, _, _ = finished
    stack = state.reward.networks
    networks = [
        tf.nest.map_structure(lambda a, i=i: a[i], stack.networks) for i in range(int(stack.count))
    ]
    total = sum((network_logits(network, GRID) for network in networks), np.zeros(len(GRID)))
    if method is VIRL:
        total += moments_log_prob(GRID)
    if method is EIM:
        total += mixture_log_prob(state.policy, GRID)
    np.testing.assert_allclose(evaluate(state.reward, GRID), total, rtol=1e-5, atol=1e-5)


def test_the_epoch_is_traced_once_in_a_run(finished):
    assert finished[5].num_traces == 1


def test_continued_run_gives_the_same_bytes(finished, tmp_path):
    method, problem, hparams, expected, _, fitter = finished
    state = irl.init(problem, method, NUM_COMPONENTS, hparams)
    template = state._replace(network=tuple(fitter.model.get_weights()))
    state, _, _ = advance(
        problem, state, method, hparams, 2, fitter
    )  # a fitter that has been used before
    save_state(tmp_path / "state.npz", state)

    problem, _, hparams = start(method)
    loaded = load_state(tmp_path / "state.npz", template)
    assert state_bytes(loaded) == state_bytes(state)
    found, _, _ = advance(problem, loaded, method, hparams, 2)
    assert state_bytes(found) == state_bytes(expected)


def test_other_seeds_give_other_runs(finished):
    method, _, hparams, _, _, fitter = finished
    problem, state, _ = start(method)
    first, _, _ = advance(problem, state, method, hparams, 1, fitter)
    # Another seed for the loop only: the same start, other draws.
    second, _, _ = advance(problem._replace(seed=1), state, method, hparams, 1, fitter)
    assert not np.array_equal(first.policy.means, second.policy.means)
    assert not np.array_equal(first.network[0], second.network[0])


def test_a_step_leaves_its_state_alone(finished):
    method, _, hparams, _, _, fitter = finished
    problem, state, _ = start(method)
    before = state_bytes(state)
    advance(problem, state, method, hparams, 1, fitter)
    assert state_bytes(state) == before


# --- options beyond the paper ---------------------------------------------------------------------

OPTIONS = {
    "prior, features and weight average": {
        "loop": {"prior": "mixture"},
        "network": {"num_frequencies": 5},
        "training": {"weight_average": 0.9},
    },
    "mixture": {"kde": {"estimator": "mixture"}},
    "mixture that is q*_0, too": {"kde": {"estimator": "auto"}, "loop": {"prior": "mixture"}},
}
VIRL_AND_SLOW = [
    pytest.param(method, id=method.name, marks=[] if method is VIRL else pytest.mark.slow)
    for method in PAPER_METHODS
]


@pytest.mark.parametrize("method", VIRL_AND_SLOW)
@pytest.mark.parametrize("option", OPTIONS)
def test_options_for_every_method_continue_with_the_same_bytes(option, method, tmp_path):
    problem, first, hparams = start(method, **OPTIONS[option])
    expected, _, fitter = advance(problem, first, method, hparams, 2)
    assert np.isfinite(evaluate(expected.reward, GRID)).all()
    half, _, _ = advance(problem, first, method, hparams, 1, fitter)
    save_state(tmp_path / "state.npz", half)
    template = first._replace(network=tuple(fitter.model.get_weights()))
    loaded = load_state(tmp_path / "state.npz", template)
    found, _, _ = advance(problem, loaded, method, hparams, 1)
    assert state_bytes(found) == state_bytes(expected)


def test_steps_are_plain_graphs_in_this_suite():
    """Whatever their caller asks for; where that came undone nobody saw why the suite was slow."""
    steps = line_4.compiled(tf.identity, tf.TensorSpec([], tf.float32), jit_compile=True)
    fused = compiled(tf.identity, tf.TensorSpec([], tf.float32), jit_compile=True)
    attribute = "_XlaMustCompile"
    assert fused.function_def.attr[attribute].b
    assert not steps.function_def.attr[attribute].b
