from virl_tf import irl
from virl_tf.checkpoint import load_state, save_state
from virl_tf.discriminator.fit import DiscriminatorFitter, FitInfo, held_out_rows
from virl_tf.kde import Kde
from virl_tf.methods import EIM, METHODS, PAPER_METHODS, VIRL
from virl_tf.mixture import bic_mixture, gaussian
from virl_tf.reward import evaluate
from virl_tf.vips.vips import VipsHistory

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from tests import tiny
from tests.conftest import make_network

X = tiny.demonstrations()
GRID = np.random.default_rng(9).normal(size=(40, 2)) * [3.0, 8.0]
NUM_COMPONENTS = 2


def state_bytes(state):
    return [np.asarray(leaf).tobytes() for leaf in tf.nest.flatten(state)]


def start(method, seed=0, **sections):
    """Problem, first state and hparams of a tiny run."""
    hparams = tiny.hparams(method.name, **sections)
    problem = irl.make_problem(X, hparams, seed)
    return problem, irl.init(problem, method, NUM_COMPONENTS, hparams), hparams


def mixture_log_prob(mixture, x):
    """By SciPy, one component at a time."""
    parts = [
        log_weight + multivariate_normal(mean, tril @ tril.T).logpdf(x)
        for log_weight, mean, tril in zip(*(np.asarray(a) for a in mixture), strict=True)
    ]
    return logsumexp(parts, axis=0)


def fusion_log_prob(policy, kde, x):
    points, width = np.asarray(kde.points), np.diag(np.asarray(kde.bandwidth) ** 2)
    log_kde = logsumexp(
        [multivariate_normal(point, width).logpdf(x) for point in points], axis=0
    ) - np.log(len(points))
    return logsumexp([mixture_log_prob(policy, x), log_kde], axis=0) - np.log(2.0)


def standardised(x):
    return ((x - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32)


def network_logits(network, x):
    return np.asarray(network.logits(tf.constant(standardised(x))), np.float64)


# --- start ----------------------------------------------------------------------------------------


def test_problem_holds_the_demonstrations_in_random_order():
    problems = [irl.make_problem(X, tiny.hparams(), seed) for seed in (0, 0, 1)]
    for problem in problems:
        np.testing.assert_array_equal(np.sort(problem.demonstrations, axis=0), np.sort(X, axis=0))
        np.testing.assert_array_equal(problem.kde.bandwidth, [0.3, 0.3])
    np.testing.assert_array_equal(problems[0].demonstrations, problems[1].demonstrations)
    assert not np.array_equal(problems[0].demonstrations, problems[2].demonstrations)
    assert not np.array_equal(problems[0].demonstrations, X)


@pytest.mark.parametrize("policy_start", ["standard_normal", "kmeans", "samples"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_initial_state(method, policy_start):
    _, state, hparams = start(method, policy={"start": policy_start})
    assert state.t == 0
    assert state.network == ()
    assert (state.policy.num_components, state.policy.dim) == (NUM_COMPONENTS, 2)
    assert int(state.reward.networks.count) == 0
    assert state.reward.networks.capacity == (
        hparams.loop.num_iterations if method.base == "reward" else 1
    )
    np.testing.assert_allclose(state.reward.shift, X.mean(axis=0))
    np.testing.assert_allclose(state.reward.scale, X.std(axis=0))


def test_priors_of_virl():
    _, moments, _ = start(VIRL, loop={"prior": "moments"})
    expected = multivariate_normal(X.mean(axis=0), np.cov(X, rowvar=False)).logpdf(GRID)
    np.testing.assert_allclose(evaluate(moments.reward, GRID), expected, rtol=1e-6)
    _, flat, _ = start(VIRL, loop={"prior": "flat"})
    np.testing.assert_array_equal(evaluate(flat.reward, GRID), np.zeros(len(GRID)))


def test_the_mixture_prior_is_the_em_mixture_of_lowest_bic_without_the_held_out_demonstrations():
    problem, state, _ = start(VIRL, loop={"prior": "mixture"})
    expected = bic_mixture(
        problem.demonstrations[[i for i in range(len(X)) if i % 10]], 0
    )  # another seed: up to EM's tolerance
    assert expected.num_components == state.reward.base.num_components == 2  # X has two clusters
    np.testing.assert_allclose(evaluate(state.reward, X), mixture_log_prob(expected, X), atol=0.05)
    seen = mixture_log_prob(bic_mixture(problem.demonstrations, 0), X)
    assert np.abs(evaluate(state.reward, X) - seen).max() > 0.05


@pytest.mark.parametrize(("rows", "dim", "components"), [(3000, 2, 1), (40, 2, 2), (500, 6, 2)])
def test_the_automatic_prior_is_a_mixture_where_kernels_blur(rows, dim, components):
    rng = np.random.default_rng(0)
    x = rng.choice([-5.0, 5.0], (rows, 1)) * np.eye(dim)[0] + rng.standard_normal((rows, dim))
    hparams = tiny.hparams(loop={"prior": "auto"})
    state = irl.init(irl.make_problem(x, hparams, 0), VIRL, 2, hparams)
    assert state.reward.base.num_components == components


def test_virl_with_the_initial_policy_as_prior_starts_where_eim_does():
    _, virl, _ = start(VIRL, loop={"prior": "initial_policy"})
    _, eim, _ = start(EIM)
    for a, b in zip(virl.policy, eim.policy, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(evaluate(virl.reward, GRID), evaluate(eim.reward, GRID))
    np.testing.assert_allclose(evaluate(eim.reward, GRID), mixture_log_prob(eim.policy, GRID))


# --- one iteration against the table, with a network that is handed in ----------------------------


class RecordingFitter:
    """Returns a fixed network and remembers what it was asked to fit."""

    def __init__(self):
        self.calls = []

    def fit(self, experts, samples, previous, seed, iteration):
        self.calls.append(
            {
                "experts": experts,
                "samples": samples,
                "previous": previous,
                "seed": seed,
                "iteration": iteration,
            }
        )
        arrays = make_network(num_layers=2, seed=iteration)
        network = type(arrays)(*(tf.constant(array) for array in arrays))
        return (
            [np.full(3, float(iteration))],
            [network],
            FitInfo(1.0, 1.0, 2.0 * np.log(2.0), 0.5, 0, 1),
        )


@pytest.fixture(params=METHODS.values(), ids=METHODS)
def recorded(request, monkeypatch):
    """Two iterations of a method with everything they were made of."""
    targets = []

    def eager_improve(policy, target, seed, hparams):
        targets.append(target)
        moved = policy._replace(means=policy.means + 0.1)
        return moved, irl_history(len(targets))

    monkeypatch.setattr(irl, "improve", eager_improve)
    method = request.param
    problem, state, hparams = start(method)
    fitter, states, infos = RecordingFitter(), [state], []
    for _ in range(2):
        state, info = irl.step(states[-1], problem, method, fitter, hparams)
        states.append(state)
        infos.append(info)
    return method, problem, hparams, fitter, targets, states, infos


def irl_history(value):
    return VipsHistory(*(tf.constant([0.0, float(value)], tf.float64) for _ in VipsHistory._fields))


def networks_before(t):
    arrays = [make_network(num_layers=2, seed=i) for i in range(t)]
    return [type(a)(*(tf.constant(part) for part in a)) for a in arrays]


@pytest.mark.parametrize("t", [0, 1])
def test_classifier_gets_what_the_table_says(recorded, t):
    method, problem, hparams, fitter, _, states, infos = recorded
    call, policy = fitter.calls[t], states[t].policy
    z = np.asarray(call["samples"].z, np.float64)
    x = z * X.std(axis=0) + X.mean(axis=0)
    assert x.shape == (hparams.loop.num_negatives, 2)

    log_q = mixture_log_prob(policy, x)
    log_proposal = fusion_log_prob(policy, problem.kde, x) if method.fusion else log_q
    log_base = log_q
    if method.base == "reward":
        prior = multivariate_normal(X.mean(axis=0), np.cov(X, rowvar=False)).logpdf(x)
        log_base = prior + sum(network_logits(network, x) for network in networks_before(t))
    weights = np.exp(log_base - log_proposal) if method.importance_weights else np.ones(len(x))
    weights /= weights.mean()
    np.testing.assert_allclose(
        call["samples"].weights, weights, rtol=2e-3, atol=1e-5
    )  # z was rounded to float32
    assert infos[t].effective_sample_size == pytest.approx(
        weights.sum() ** 2 / np.sum(weights**2), rel=2e-3
    )
    np.testing.assert_array_equal(call["experts"].weights, np.ones(len(X)))
    np.testing.assert_allclose(call["experts"].z, standardised(problem.demonstrations), atol=1e-6)

    # G-EIM's logit is R_t - log q_t, as a density of the standardised points and so without units;
    # q_t is the policy.
    log_volume = np.log(X.std(axis=0)).sum()
    for name, at in {"samples": x, "experts": problem.demonstrations}.items():
        offsets = {
            "none": lambda at: np.zeros(len(at)),
            "policy": lambda at: -mixture_log_prob(policy, at) - log_volume,
            "proposal": lambda at: -fusion_log_prob(policy, problem.kde, at) - log_volume,
        }[method.logit_offset](at)
        np.testing.assert_allclose(call[name].offsets, offsets, rtol=1e-3, atol=1e-3)


def test_weights_of_eim_are_one_and_others_are_not(recorded):
    method, _, hparams, fitter, _, _, infos = recorded
    for call, info in zip(fitter.calls, infos, strict=True):
        weights = np.asarray(call["samples"].weights)
        assert weights.mean() == pytest.approx(1.0, rel=1e-5)
        assert info.num_negatives == hparams.loop.num_negatives
        if method is EIM or not method.importance_weights:
            np.testing.assert_allclose(weights, 1.0, rtol=1e-6)
            assert info.effective_sample_size == pytest.approx(hparams.loop.num_negatives)
        else:
            assert weights.std() > 0.05
            assert info.effective_sample_size < 0.99 * hparams.loop.num_negatives


def test_half_of_the_fusions_draws_lie_at_demonstrations(recorded):
    method, _, hparams, fitter, _, _, _ = recorded
    z = np.asarray(fitter.calls[0]["samples"].z, np.float64)
    x = z * X.std(axis=0) + X.mean(axis=0)
    nearest = np.min(np.linalg.norm(x[:, None] - X[None], axis=-1), axis=1)
    half = hparams.loop.num_negatives // 2
    # The kernel has width 0.3: a draw further than 5 widths away has probability 4e-6.
    if method.fusion:
        assert (nearest[half:] < 1.5).all()
    assert len(x) == 2 * half


@pytest.mark.parametrize("t", [0, 1])
def test_target_of_the_policy_and_reward_follow_the_table(recorded, t):
    method, _, _, _, targets, states, _ = recorded
    network = network_logits(networks_before(t + 1)[-1], GRID)
    if method.family == "virl":
        prior = multivariate_normal(X.mean(axis=0), np.cov(X, rowvar=False)).logpdf(GRID)
        target = prior + sum(network_logits(each, GRID) for each in networks_before(t + 1))
    elif method.family == "geim":
        target = network
    else:
        target = mixture_log_prob(states[t].policy, GRID) + network
    np.testing.assert_allclose(evaluate(targets[t], GRID), target, rtol=1e-5, atol=1e-4)

    reward = mixture_log_prob(states[t + 1].policy, GRID) if method.family == "eim" else target
    np.testing.assert_allclose(evaluate(states[t + 1].reward, GRID), reward, rtol=1e-5, atol=1e-4)
    assert (
        int(states[t + 1].reward.networks.count)
        == {"virl": t + 1, "geim": 1, "eim": 0}[method.family]
    )


def test_classifier_is_called_with_the_previous_network_and_the_iteration(recorded):
    _, problem, _, fitter, _, states, infos = recorded
    assert [(call["seed"], call["iteration"]) for call in fitter.calls] == [
        (problem.seed, 0),
        (problem.seed, 1),
    ]
    assert fitter.calls[0]["previous"] is None
    np.testing.assert_array_equal(fitter.calls[1]["previous"][0], np.zeros(3))
    np.testing.assert_array_equal(states[2].network[0], np.ones(3))
    assert [state.t for state in states] == [0, 1, 2]
    assert [info.t for info in infos] == [0, 1]


def test_iterations_draw_different_negatives(recorded):
    calls = recorded[3].calls
    half = len(calls[0]["samples"].z) // 2
    # The policy moved by exactly 0.1, so equal noise would show as equal differences.
    difference = np.asarray(calls[1]["samples"].z)[:half] - np.asarray(calls[0]["samples"].z)[:half]
    assert difference.std() > 0.1


def test_info_reports_the_policys_last_step(recorded):
    infos = recorded[6]
    assert [info.elbo for info in infos] == [1.0, 2.0]
    assert all(info.sample_seconds >= 0.0 and info.training_seconds >= 0.0 for info in infos)


# --- whole runs with real networks ----------------------------------------------------------------


def advance(problem, state, method, hparams, num_steps, fitter=None):
    fitter = fitter or DiscriminatorFitter(2, hparams)
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
        total += multivariate_normal(X.mean(axis=0), np.cov(X, rowvar=False)).logpdf(GRID)
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


class FixedLossFitter(RecordingFitter):
    """As recorded, with these held-out losses in turn."""

    def __init__(self, losses):
        super().__init__()
        self.losses = losses

    def fit(self, *args):
        weights, phi, info = super().fit(*args)
        return weights, phi, info._replace(validation_loss=self.losses[len(self.calls) - 1])


@pytest.mark.parametrize("loop", [{"wide_share": 0.25}, {}], ids=str)
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_the_wide_part_of_the_density_that_the_discriminator_sees(share, loop):
    problem, state, hparams = start(VIRL, loop={"wide_weight": share, **loop})
    fitter = RecordingFitter()
    for _ in range(3):
        before = state
        state, _ = irl.step(state, problem, VIRL, fitter, hparams)
    call = fitter.calls[-1]
    x, demonstrations = (
        np.asarray(call[name].z, np.float64) * X.std(axis=0) + X.mean(axis=0)
        for name in ("samples", "experts")
    )
    log_mu, in_fusion = fusion_log_prob(before.policy, problem.kde, x), loop.get("wide_share", 0.0)
    if in_fusion:
        log_mu = np.logaddexp(
            np.log1p(-in_fusion) + log_mu, np.log(in_fusion) + mixture_log_prob(problem.wide, x)
        )
    log_z = logsumexp(evaluate(before.reward, x) - log_mu) - np.log(len(x))
    log_q, log_q_demonstrations = (
        evaluate(before.reward, points).numpy() - log_z for points in (x, demonstrations)
    )

    def log_noise(points, log_q):
        return np.logaddexp(
            np.log1p(-share) + log_q, np.log(share) + mixture_log_prob(problem.wide, points)
        )

    weights = np.exp(log_noise(x, log_q) - log_mu)
    np.testing.assert_allclose(
        call["samples"].weights, weights / weights.mean(), rtol=2e-3, atol=1e-6
    )
    np.testing.assert_allclose(
        call["samples"].offsets, log_q - log_noise(x, log_q), rtol=1e-3, atol=1e-3
    )
    offsets = log_q_demonstrations - log_noise(demonstrations, log_q_demonstrations)
    np.testing.assert_allclose(call["experts"].offsets, offsets, rtol=1e-3, atol=1e-3)
    # The classifier that is right about p = e^c q* has the logit log p - log noise: with these
    # offsets, phi = c.
    assert np.all(np.asarray(call["samples"].offsets) <= -np.log1p(-share) + 1e-4)


def test_the_wide_part_is_for_rewards_that_are_sums():
    for method in (METHODS["geim"], EIM, METHODS["virl_no_weights"]):
        calls = []
        for weight in (0.0, 0.3):
            problem, state, hparams = start(method, loop={"wide_weight": weight})
            irl.step(state, problem, method, fitter := RecordingFitter(), hparams)
            calls.append(fitter.calls[0]["samples"])
        for a, b in zip(*calls, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("loss", [2.0 * np.log(2.0), 2.0 * np.log(2.0) - 0.9e-3, 1.5, float("nan")])
def test_a_phi_that_does_not_beat_chance_is_dropped(loss):
    problem, state, hparams = start(VIRL, loop={"min_gain": 1e-3})
    fitter = FixedLossFitter([1.0, loss])
    first, info = irl.step(state, problem, VIRL, fitter, hparams)
    assert (info.dropped, bool(first.stopped), int(first.reward.networks.count)) == (0, False, 1)
    second, info = irl.step(first, problem, VIRL, fitter, hparams)
    assert (info.dropped, bool(second.stopped)) == (1, True)
    np.testing.assert_array_equal(evaluate(second.reward, GRID), evaluate(first.reward, GRID))
    assert not np.array_equal(
        second.policy.means, first.policy.means
    )  # the policy's steps are not lost


def test_without_min_gain_nothing_is_dropped():
    problem, state, hparams = start(VIRL)
    state, info = irl.step(state, problem, VIRL, FixedLossFitter([2.0]), hparams)
    assert (info.dropped, bool(state.stopped), int(state.reward.networks.count)) == (0, False, 1)


# --- the proposal where q*_0 is an EM mixture -----------------------------------------------------


def test_auto_proposes_from_the_mixture_that_the_reward_starts_from():
    problem, state, hparams = start(VIRL, kde={"estimator": "auto"}, loop={"prior": "mixture"})
    assert problem.kde is problem.prior
    _, info = irl.step(state, problem, VIRL, RecordingFitter(), hparams)
    # mu >= q*_0 / 2, so no weight q*_0 / mu is above 2: E[w^2] <= 2 E[w] = 2.
    assert (
        info.effective_sample_size >= 0.5 * info.num_negatives * 0.9
    )  # of a sample; 0.9 for its noise


@pytest.mark.parametrize(
    ("estimator", "prior"), [("auto", "moments"), ("auto", "flat"), ("kernel", "mixture")]
)
def test_else_the_proposal_is_the_kernels(estimator, prior):
    problem, _, _ = start(VIRL, kde={"estimator": estimator}, loop={"prior": prior})
    assert isinstance(problem.kde, Kde)
    assert (problem.prior is None) == (prior != "mixture")


# --- the average with an EM mixture ---------------------------------------------------------------


def averaged(**loop):
    """All states and infos of a run that ends with the average."""
    problem, state, hparams = start(
        VIRL, loop={"mixture_average": True, "num_iterations": 2, **loop}
    )
    states, infos = [state], []
    for _ in range(2):
        if not states[-1].stopped:
            state, info = irl.step(states[-1], problem, VIRL, RecordingFitter(), hparams)
            states.append(state)
            infos.append(info)
    return problem, states, infos


def test_the_last_iteration_ends_with_the_average_alone():
    problem, states, infos = averaged()
    assert [float(state.reward.mixture_scale) for state in states[:2]] == [0.0, 0.0]
    a = infos[1].mixture_exponent
    assert infos[0].mixture_exponent == 0.0
    assert 0.0 < a <= 1.0
    phi = [
        network_logits(type(n)(*(tf.constant(part) for part in n)), GRID)
        for n in (make_network(num_layers=2, seed=t) for t in (0, 1))
    ]
    expected = (1.0 - a) * (evaluate(states[0].reward, GRID) + sum(phi)) + a * mixture_log_prob(
        problem.mixture, GRID
    )
    np.testing.assert_allclose(evaluate(states[2].reward, GRID), expected, rtol=1e-5)


def test_a_run_that_stops_early_ends_with_the_average_too():
    _, states, infos = averaged(min_gain=10.0)  # no network gains so much
    assert bool(states[-1].stopped)
    assert len(infos) == 1
    assert infos[0].mixture_exponent > 0.0
    assert float(states[-1].reward.mixture_scale) == infos[0].mixture_exponent


def test_held_out_demonstrations_are_likely_under_the_average():
    problem, states, infos = averaged()
    reward = states[2].reward
    # The slow way: q*_2 normalised on a grid that covers all of it.
    one, two = (np.linspace(X[:, i].min() - 9.0, X[:, i].max() + 9.0, 400) for i in (0, 1))
    grid = np.stack(np.meshgrid(one, two), axis=-1).reshape(-1, 2)
    networks = [make_network(num_layers=2, seed=t) for t in (0, 1)]
    networks = [type(n)(*(tf.constant(part) for part in n)) for n in networks]
    held = problem.demonstrations[:: len(X) // int(0.1 * len(X))]
    assert len(held) == 6

    def parts(x):
        return np.stack(
            [
                evaluate(states[0].reward, x) + sum(network_logits(n, x) for n in networks),
                mixture_log_prob(problem.mixture, x),
            ]
        )

    at_held, at_grid = parts(held), parts(grid)

    def log_likelihood(a):
        weights = np.array([1.0 - a, a])
        return (
            np.mean(weights @ at_held)
            - logsumexp(weights @ at_grid)
            - np.log((one[1] - one[0]) * (two[1] - two[0]))
        )

    # 64 draws estimate the normaliser: the likelihood found is the best up to their error.
    best = max(map(log_likelihood, np.linspace(0.0, 1.0, 21)))
    assert log_likelihood(infos[1].mixture_exponent) > best - 0.3
    assert log_likelihood(0.0) < best - 1.0  # random networks
    assert float(reward.mixture_scale) == infos[1].mixture_exponent


@pytest.mark.parametrize("rows", [200, 1000, 100_000])
@pytest.mark.parametrize("truth", [-2.0, -0.7, 0.0, 0.7, 2.0])
def test_the_exponent_is_below_a_half_only_as_far_as_held_out_demonstrations_can_tell(rows, truth):
    # q* = N(-1, 1), the mixture N(1, 1): their geometric mean with exponent a is N(2 a - 1, 1).
    rng = np.random.default_rng(0)
    one, two = (gaussian(np.array([mean]), np.eye(1)) for mean in (-1.0, 1.0))
    x = rng.normal(truth, 1.0, (rows, 1))
    hparams = tiny.hparams(loop={"mixture_average": True})
    problem = irl.Problem(x, one, None, None, np.zeros((1, 0), np.float32), two, 0)
    reward = irl.init(problem, VIRL, 1, hparams).reward._replace(base=one)
    draws = gaussian(np.zeros(1), 4.0 * np.eye(1)).sample(200_000, (0, 0))
    log_mu = gaussian(np.zeros(1), 4.0 * np.eye(1)).log_prob(draws)

    held, candidates = x[held_out_rows(rows, 0.1)[0]][:, 0], np.linspace(0.0, 1.0, 21)
    log_likelihood = np.array([-0.5 * (held - 2.0 * a + 1.0) ** 2 for a in candidates])
    lack = log_likelihood[log_likelihood.mean(axis=1).argmax()] - log_likelihood
    # In standard errors; the estimated normalisers may move a candidate over the bound by one step.
    errors = lack.mean(axis=1) / np.maximum(lack.std(axis=1) / np.sqrt(len(held)), 1e-12)
    likeliest = candidates[log_likelihood.mean(axis=1).argmax()]
    nearest = max(candidates[(errors <= 1.0) & (candidates <= max(likeliest, 0.5))])
    found = irl._mixture_exponent(reward, problem, draws, log_mu, hparams)
    assert found == pytest.approx(nearest, abs=0.051)
    if rows == 100_000:
        assert found == pytest.approx(np.clip(0.5 + 0.5 * truth, 0.0, 1.0), abs=0.051)
    if truth == 0.0:
        assert 0.5 <= found <= 0.56
    if rows == 200 and truth == -0.7:
        assert likeliest + 0.1 < found <= 0.5  # 20 rows tell less


def test_the_mixture_has_not_seen_the_held_out_demonstrations():
    problem, _, _ = averaged()
    held = set(range(0, len(X), len(X) // int(0.1 * len(X))))
    rest = problem.demonstrations[[i for i in range(len(X)) if i not in held]]
    expected = bic_mixture(rest, 0)
    assert problem.mixture.num_components == expected.num_components == 2
    np.testing.assert_allclose(
        mixture_log_prob(problem.mixture, X), mixture_log_prob(expected, X), atol=1e-3
    )
    other = mixture_log_prob(bic_mixture(problem.demonstrations, 0), X)
    assert np.abs(mixture_log_prob(problem.mixture, X) - other).max() > 1e-2


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_as_in_the_paper_nothing_is_averaged(method):
    problem, state, hparams = start(method, loop={"num_iterations": 1})
    assert problem.mixture.num_components == state.reward.mixture.num_components == 0
    state, info = irl.step(state, problem, method, RecordingFitter(), hparams)
    assert (info.mixture_exponent, float(state.reward.mixture_scale)) == (0.0, 0.0)


OPTIONS = {
    "average": {"loop": {"mixture_average": True}},
    "prior": {"loop": {"prior": "mixture"}},
    "wide part": {"loop": {"wide_share": 0.3}},
    "wide part of the negatives' density": {"loop": {"wide_share": 0.3, "wide_weight": 0.1}},
    "features": {"network": {"num_frequencies": 5}},
    "weight average": {"training": {"weight_average": 0.9}},
    "ensemble": {"training": {"ensemble_size": 2}},
    "mixture": {"kde": {"estimator": "mixture"}},
    "mixture that is q*_0, too": {"kde": {"estimator": "auto"}, "loop": {"prior": "mixture"}},
}


@pytest.mark.parametrize("method", PAPER_METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("option", OPTIONS)
def test_options_for_every_method_continue_with_the_same_bytes(option, method, tmp_path):
    problem, first, hparams = start(method, **OPTIONS[option])
    fitter = DiscriminatorFitter(first.reward.num_inputs, hparams)
    expected, _, _ = advance(problem, first, method, hparams, 2, fitter)
    assert np.isfinite(evaluate(expected.reward, GRID)).all()
    half, _, _ = advance(problem, first, method, hparams, 1, fitter)
    save_state(tmp_path / "state.npz", half)
    networks = tuple(fitter.model.get_weights() * hparams.training.ensemble_size)
    loaded = load_state(tmp_path / "state.npz", first._replace(network=networks))
    found, _, _ = advance(
        problem, loaded, method, hparams, 1, DiscriminatorFitter(first.reward.num_inputs, hparams)
    )
    assert state_bytes(found) == state_bytes(expected)


def test_frequencies_follow_the_scale_of_what_the_density_is_made_of():
    rng = np.random.default_rng(0)
    hparams = tiny.hparams(
        network={"num_frequencies": 400},
        kde={"bandwidth": "held_out", "bandwidth_scale": "relative"},
    )
    sizes = []
    for width in (0.1, 0.4):  # clusters of this width, ten apart
        x = rng.choice([-5.0, 5.0], (2000, 2)) + width * rng.standard_normal((2000, 2))
        frequencies = (
            irl.make_problem(x, hparams, 0).frequencies / x.std(axis=0)[:, None]
        )  # radians per unit of the data
        sizes.append(width * frequencies.std())
        scaled = irl.make_problem(1e6 * x, hparams, 0).frequencies
        np.testing.assert_allclose(scaled, irl.make_problem(x, hparams, 0).frequencies, rtol=1e-4)
    # frequency_scale 0.6 / D over the width that the bandwidth tells: the clusters' within the
    # steps of 1.25 of its search, and 1.26 times it, because each of the four clusters has only a
    # quarter of the points that Silverman's factor is told.
    np.testing.assert_allclose(sizes, 0.3 / 1.26, rtol=0.27)
