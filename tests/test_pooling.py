import shutil
from dataclasses import replace

import virl_tf
from virl_tf import irl, pooling
from virl_tf.demonstrations import DataOptions, prepare
from virl_tf.domain import Domain
from virl_tf.fusion import Fusion
from virl_tf.importance import effective_sample_size
from virl_tf.methods import METHODS, VIRL
from virl_tf.mixture import gaussian
from virl_tf.numerics import split_seed
from virl_tf.problem import make_problem
from virl_tf.splitting import held_out_rows

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import logsumexp

from tests import tiny
from tests.reference import pooling as reference
from tests.shared import make_network, make_reward
from tests.tiny_runs import (
    GRID,
    RecordingFitter,
    RecordingImprove,
    X,
    mixture_log_prob,
    network_logits,
    networks_before,
    start,
    state_bytes,
)

POOLED = {"mixture_average": True, "num_iterations": 2}


@pytest.fixture(autouse=True)
def improve(monkeypatch):
    """VIPS's place taken, but in the whole runs."""
    recorder = RecordingImprove()
    monkeypatch.setattr(irl, "improve", recorder)
    monkeypatch.setattr(pooling, "improve", recorder)
    return recorder


def iterated():
    """Problem, state after two iterations and hparams of a run that is to be pooled."""
    problem, state, hparams = start(VIRL, loop=POOLED)
    for _ in range(2):
        state, _ = irl.step(state, problem, VIRL, RecordingFitter(), hparams)
    return problem, state, hparams


def draws_of(problem, state, hparams):
    proposal = Fusion(state.policy, problem.estimate)
    x = proposal.sample(hparams.loop.num_negatives, split_seed(problem.seed, state.t, "pooling"))
    return x, proposal.log_prob(x)


# --- the exponent ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0])
def test_the_exponent_is_that_of_the_reference(scale):
    """Of a mixture and a reward whose networks err more or less."""
    problem, state, hparams = iterated()
    networks = state.reward.networks
    scaled = networks._replace(networks=networks.networks.times(scale))
    state = state._replace(reward=state.reward._replace(networks=scaled))
    x, log_mu = draws_of(problem, state, hparams)

    def values(points):
        return state.reward(points).numpy(), mixture_log_prob(problem.mixture, points)

    held_out = list(zip(*values(problem.held_out), strict=True))
    draws = list(zip(*values(x), log_mu.numpy(), strict=True))
    expected = [reference.log_likelihoods(a, held_out, draws) for a in pooling.EXPONENTS]
    found = pooling.log_likelihoods(state, problem, x, log_mu)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
    _, info = pooling.pool(state, problem, hparams)
    assert info.mixture_exponent == pytest.approx(reference.exponent(held_out, draws))


def in_box(reward, half_width, dim):
    """The reward, -inf outside of a box around 0."""
    sides = (np.full(dim, side) for side in (-half_width, half_width, 0.0))
    return reward._replace(domain=Domain(*(tf.constant(side, tf.float64) for side in sides)))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_where_no_draw_is_inside_the_exponent_is_a_half():
    """As of saturated controls in many dimensions: nothing is known of the normaliser."""
    problem, state, _ = start(VIRL)
    one, two = (gaussian(np.array([mean]), np.eye(1)) for mean in (-1.0, 1.0))
    problem = problem._replace(held_out=tf.constant([[-1.0], [-0.9]], tf.float64), mixture=two)
    state = state._replace(reward=in_box(make_reward([], dim=1, base=one), 2.0, 1))
    outside = tf.constant([[3.0], [-4.0]], tf.float64)
    assert pooling._exponent(state, problem, outside, one.log_prob(outside)) == 0.5
    inside = one.sample(1000, (0, 0))
    assert pooling._exponent(state, problem, inside, one.log_prob(inside)) < 0.5


@pytest.mark.parametrize("rows", [200, 1000, 100_000])
@pytest.mark.parametrize("truth", [-2.0, -0.7, 0.0, 0.7, 2.0])
def test_the_exponent_is_below_a_half_only_as_far_as_held_out_demonstrations_can_tell(rows, truth):
    # q* = N(-1, 1), the mixture N(1, 1): their geometric mean with exponent a is N(2 a - 1, 1).
    one, two = (gaussian(np.array([mean]), np.eye(1)) for mean in (-1.0, 1.0))
    x = np.random.default_rng(0).normal(truth, 1.0, (rows, 1))
    held_out = x[held_out_rows(rows, 0.1)[0]]
    problem, state, _ = start(VIRL)
    problem = problem._replace(held_out=tf.constant(held_out), mixture=two)
    state = state._replace(reward=make_reward([], dim=1, base=one))
    wide = gaussian(np.zeros(1), 4.0 * np.eye(1))
    draws = wide.sample(200_000, (0, 0))
    found = pooling._exponent(state, problem, draws, wide.log_prob(draws))

    held, candidates = held_out[:, 0], np.linspace(0.0, 1.0, 21)
    log_likelihood = np.array([-0.5 * (held - 2.0 * a + 1.0) ** 2 for a in candidates])
    lack = log_likelihood[log_likelihood.mean(axis=1).argmax()] - log_likelihood
    # In standard errors; the estimated normalisers may move a candidate over the bound by one step.
    errors = lack.mean(axis=1) / np.maximum(lack.std(axis=1) / np.sqrt(len(held)), 1e-12)
    likeliest = candidates[log_likelihood.mean(axis=1).argmax()]
    nearest = max(candidates[(errors <= 1.0) & (candidates <= max(likeliest, 0.5))])
    assert found == pytest.approx(nearest, abs=0.051)
    if rows == 100_000:
        assert found == pytest.approx(np.clip(0.5 + 0.5 * truth, 0.0, 1.0), abs=0.051)
    if truth == 0.0:
        assert 0.5 <= found <= 0.56
    if rows == 200 and truth == -0.7:
        assert likeliest + 0.1 < found <= 0.5  # 20 rows tell less


def test_held_out_demonstrations_are_likely_under_the_pool():
    problem, state, hparams = iterated()
    _, info = pooling.pool(state, problem, hparams)
    # The slow way: q*_2 normalised on a grid that covers all of it.
    one, two = (np.linspace(X[:, i].min() - 9.0, X[:, i].max() + 9.0, 400) for i in (0, 1))
    grid = np.stack(np.meshgrid(one, two), axis=-1).reshape(-1, 2)
    area = (one[1] - one[0]) * (two[1] - two[0])
    assert len(problem.held_out) == 6

    def parts(x):
        return np.stack([state.reward(x).numpy(), mixture_log_prob(problem.mixture, x)])

    at_held, at_grid = parts(problem.held_out.numpy()), parts(grid)

    def log_likelihood(a):
        weights = np.array([1.0 - a, a])
        return np.mean(weights @ at_held) - logsumexp(weights @ at_grid) - np.log(area)

    # 64 draws estimate the normaliser: the likelihood found is the best up to their error.
    best = max(map(log_likelihood, np.linspace(0.0, 1.0, 21)))
    assert log_likelihood(info.mixture_exponent) > best - 0.3
    assert log_likelihood(0.0) < best - 1.0  # random networks


# --- the last stage of a run ----------------------------------------------------------------------


def test_the_pool_is_a_geometric_mean_and_the_policys_target(improve):
    problem, state, hparams = iterated()
    pooled, info = pooling.pool(state, problem, hparams)
    a = info.mixture_exponent
    assert 0.0 < a <= 1.0
    assert float(state.reward.mixture_exponent) == 0.0
    logits = sum(network_logits(network, GRID) for network in networks_before(2))
    of_prior = mixture_log_prob(problem.prior, GRID)
    of_all_rows = problem.describe(problem.demonstrations.numpy())  # nothing is held out any more
    expected = (1.0 - a) * (of_prior + logits) + a * mixture_log_prob(of_all_rows, GRID)
    np.testing.assert_allclose(pooled.reward(GRID), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(improve.targets[-1](GRID), pooled.reward(GRID))
    np.testing.assert_allclose(pooled.policy.means, state.policy.means + 0.1)


def test_a_policy_that_lost_a_mode_goes_on_from_the_mixtures_components(improve):
    problem, state, hparams = start(VIRL, policy={"start": "mixture"}, loop=POOLED)
    reward = state.reward.pooled(1.0)
    own = irl.initial_policy(problem, 2, "mixture")
    lost = own._replace(means=own.means[:1] + tf.zeros_like(own.means))
    assert pooling.better_start(own, reward, problem, hparams) is own
    found = pooling.better_start(lost, reward, problem, hparams)
    np.testing.assert_array_equal(found.means, own.means)
    pooled, _ = pooling.pool(state._replace(policy=lost), problem, hparams)
    np.testing.assert_allclose(pooled.policy.means, own.means + 0.1)  # as the recorder improves it
    as_in_the_paper = replace(hparams, policy=replace(hparams.policy, start="kmeans"))
    assert pooling.better_start(lost, reward, problem, as_in_the_paper) is lost


@pytest.mark.parametrize("dropped", [0, 2])
def test_the_state_says_that_the_run_is_over(dropped):
    problem, state, hparams = iterated()
    state = state._replace(dropped=np.array(dropped))
    before = state_bytes(state)
    pooled, info = pooling.pool(state, problem, hparams)
    assert (state.t, bool(state.pooled)) == (2, False)
    assert (pooled.t, bool(pooled.pooled), pooled.converged) == (3, True, dropped == 2)
    for found, kept in zip(pooled.network, state.network, strict=True):
        np.testing.assert_array_equal(found, kept)
    assert state_bytes(state) == before
    tf.nest.assert_same_structure(pooled, state)
    assert not pooling.is_due(pooled, problem, VIRL)
    assert info.t == 2


def test_its_row_has_no_losses(improve):
    problem, state, hparams = iterated()
    _, info = pooling.pool(state, problem, hparams)
    losses = (info.train_loss, info.validation_loss, info.chance_loss, info.accuracy)
    assert np.isnan(losses).all()
    assert (info.best_epoch, info.epochs, info.dropped) == (-1, 0, 0)
    assert info.num_negatives == 64
    assert info.elbo == float(len(improve.targets))
    assert info.training_seconds == 0.0
    assert min(info.sample_seconds, info.policy_seconds) >= 0.0


def test_its_weights_are_those_of_the_pool():
    problem, state, hparams = iterated()
    pooled, info = pooling.pool(state, problem, hparams)
    x, log_mu = draws_of(problem, state, hparams)
    expected = effective_sample_size(pooled.reward(x) - log_mu)
    assert info.effective_sample_size == pytest.approx(float(expected), rel=1e-6)


def test_its_draws_are_its_own():
    seeds = []

    class Estimate:
        def __init__(self, density):
            self.log_prob, self._density = density.log_prob, density

        def sample(self, n, seed):
            seeds.append(tuple(np.asarray(seed)))
            return self._density.sample(n, seed)

    problem, state, hparams = start(VIRL, loop={**POOLED, "num_iterations": 3})
    problem = problem._replace(estimate=Estimate(problem.estimate))
    for _ in range(2):
        state, _ = irl.step(state, problem, VIRL, RecordingFitter(), hparams)
    pooling.pool(state, problem, hparams)
    irl.step(state, problem, VIRL, RecordingFitter(), hparams)  # of the same t
    assert len(set(seeds)) == len(seeds) == 4


def test_the_seed_of_its_policys_steps_is_that_of_no_other_draws(improve):
    problem, state, hparams = iterated()
    pooling.pool(state, problem, hparams)
    draws = [tuple(split_seed(problem.seed, t, "pooling").tolist()) for t in range(3)]
    assert len({*improve.seeds, *draws}) == 3 + len(draws)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_what_is_due(method):
    with_mixture, state, _ = start(method, loop=POOLED)
    assert pooling.is_due(state, with_mixture, method) == (method.family == "virl")
    without, state, _ = start(method)
    assert not pooling.is_due(state, without, method)


# --- whole runs -----------------------------------------------------------------------------------


@pytest.fixture
def real_improve(monkeypatch):
    from virl_tf.vips.improve import improve

    monkeypatch.setattr(irl, "improve", improve)
    monkeypatch.setattr(pooling, "improve", improve)


def test_a_reward_that_starts_from_the_mixture_has_it_once_and_in_the_end_of_all_rows():
    """With what is pooled in its place the networks alone shrink, and nothing is held out now."""
    problem, state, hparams = start(VIRL, loop={**POOLED, "prior": "mixture"})
    assert (float(state.reward.base_exponent), float(state.reward.mixture_exponent)) == (0.0, 1.0)
    expected = mixture_log_prob(problem.mixture, X)
    np.testing.assert_allclose(state.reward(X), expected, rtol=1e-12)
    complete = problem.describe(problem.demonstrations.numpy())
    assert np.abs(mixture_log_prob(complete, X) - expected).max() > 1e-3

    layers, size = hparams.network.num_layers, hparams.network.layer_size
    phi = make_network(problem.features.num_inputs, layers, size)
    state = state._replace(reward=state.reward.add(phi))
    networks = state.reward(X) - expected
    pooled, info = pooling.pool(state, problem, hparams)
    of_all = mixture_log_prob(complete, X)
    shrunk = (1.0 - info.mixture_exponent) * networks
    np.testing.assert_allclose(pooled.reward(X), of_all + shrunk, rtol=1e-5, atol=1e-5)


class Stop:
    """An `evaluate` that interrupts the run when it has come to the state `at`."""

    def __init__(self, at=None):
        self.at = at
        self.seen = []

    def __call__(self, state):
        self.seen.append((state.t, bool(state.pooled)))
        if state.t == self.at:
            raise KeyboardInterrupt
        return {}


def run(folder=None, stop=None, **loop):
    hparams = tiny.overrides(loop={**tiny.SECTIONS["loop"], **POOLED, **loop})
    options = {"num_components": 2, "hparams": hparams, "directory": folder, "held_out": 0.2}
    return virl_tf.fit(X, evaluate=stop or Stop(), **options)


def content(folder):
    """All that a run leaves, byte by byte, but for its timings."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    skipped = ("timings.csv", "config.yaml")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in skipped and not path.name.startswith(".")
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder and the result of a pooled run that nothing stopped, and what it told."""
    folder, told = tmp_path_factory.mktemp("whole") / "run", Stop()
    return folder, run(folder=folder, stop=told), told.seen


@pytest.mark.usefixtures("real_improve")
def test_the_pooling_is_a_row_after_the_iterations(whole):
    _, result, seen = whole
    history = result.history
    assert list(history.t) == [0, 1, 2]
    assert seen == [(1, False), (2, False), (3, True)]
    assert list(history.mixture_exponent[:2]) == [0.0, 0.0]
    assert history.mixture_exponent[2] > 0.0
    assert float(result.reward.mixture_exponent) == pytest.approx(history.mixture_exponent[2])
    assert list(np.isnan(history.validation_loss)) == [False, False, True]
    assert int(result.reward.networks.count) == 2


@pytest.mark.usefixtures("real_improve")
def test_rows_held_out_for_the_score_join_the_mixture_after_it(monkeypatch):
    result = run(prior="mixture")
    data = prepare(X, DataOptions(held_out=0.2), 0)
    problem = make_problem(data.train, tiny.hparams(loop={**POOLED, "prior": "mixture"}), 0)
    expected = problem.describe(np.concatenate([problem.demonstrations, data.test]))
    np.testing.assert_array_equal(result.reward.mixture.means, expected.means)

    of_all_rows = pooling.of_all_rows
    monkeypatch.setattr(pooling, "of_all_rows", lambda reward, of, *_: of_all_rows(reward, of))
    as_scored = run(prior="mixture")
    assert as_scored.summary == result.summary
    assert as_scored.score.rows == len(data.test) > 0
    assert not np.array_equal(as_scored.reward.mixture.means, expected.means)
    assert np.array_equal(as_scored.policy.means, result.policy.means)


@pytest.mark.usefixtures("real_improve")
def test_a_run_that_converges_early_is_pooled_too():
    result = run(stop=(stop := Stop()), num_iterations=5, min_gain=10.0)  # none gains so much
    assert stop.seen == [(1, False), (2, False), (3, True)]
    assert list(result.history.dropped) == [1, 1, 0]
    assert float(result.reward.mixture_exponent) > 0.0
    assert int(result.reward.networks.count) == 0


@pytest.mark.usefixtures("real_improve")
def test_a_run_stopped_in_the_pooling_ends_with_the_same_bytes(whole, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(folder=tmp_path / "run", stop=Stop(3))
    run(folder=tmp_path / "run", stop=(go_on := Stop()))
    assert go_on.seen == [(3, True)]
    assert content(tmp_path / "run") == content(whole[0])


@pytest.mark.usefixtures("real_improve")
def test_a_run_stopped_after_the_pooling_writes_its_result(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    for name in ("reward.keras", "policy.npz"):
        (tmp_path / "run" / name).unlink()
    run(folder=tmp_path / "run", stop=(go_on := Stop()))
    assert go_on.seen == []
    assert content(tmp_path / "run") == content(whole[0])
