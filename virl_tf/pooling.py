"""The pooling of a converged reward with an EM mixture: beyond the paper, `loop.mixture_average`.

log q* = (1 - a) log q*_T + a log p_EM is a logarithmic opinion pool (Genest and Zidek 1986):
networks and EM err in different places, and what only one of them says vanishes with its exponent.
"""

import numpy as np
import tensorflow as tf

from virl_tf.conditional import Policy
from virl_tf.contexts import DRAWS, Places, Where, drawn
from virl_tf.discriminator.fit import FitInfo
from virl_tf.fusion import Fusion
from virl_tf.hparams import Hparams, known
from virl_tf.importance import normalise
from virl_tf.irl import Clock, Info, State, initial_policy, make_info
from virl_tf.methods import Method
from virl_tf.negatives import Negatives
from virl_tf.numerics import split_seed
from virl_tf.problem import Problem
from virl_tf.reward import Reward, evaluate
from virl_tf.shapes import Array, Float64
from virl_tf.vips.elbo import DRAWS as DRAWS_OF_ELBO
from virl_tf.vips.elbo import measured
from virl_tf.vips.improve import improve

EXPONENTS = np.linspace(0.0, 1.0, 21)
NOT_TRAINED = FitInfo(np.nan, np.nan, np.nan, np.nan, best_epoch=-1, epochs=0)


def is_due(state: State, problem: Problem, method: Method) -> bool:
    """Whether a run that has done its iterations is still to be pooled."""
    return method.converges and problem.mixture.num_components > 0 and not state.pooled


def pool(state: State, problem: Problem, hparams: Hparams) -> tuple[State, Info]:
    """The last stage of a run: the pooled reward, and the policy improved on it."""
    seed, t, clock = problem.seed, state.t, Clock()
    proposal = Fusion(state.policy, problem.estimate)
    num_draws = known(hparams.loop.num_negatives)
    scored = problem._replace(held_out=_scored(problem, num_draws))
    where = _where(scored, num_draws)
    x = drawn(proposal, where, split_seed(seed, t, "pooling"))
    log_mu = proposal.log_prob(x)
    exponent = _exponent(state, scored, x, log_mu)
    reward = of_all_rows(state.reward.pooled(exponent), problem)
    in_each = None if isinstance(where, int) else where.num_draws
    weighted = Negatives(x, normalise(evaluate(reward, x) - log_mu, in_each))
    sample_seconds = clock.lap()

    start = better_start(state.policy, reward, problem, hparams)
    policy_seed = split_seed(seed, t, "policy")
    policy, history = improve(start, reward, policy_seed, hparams.policy, problem.step_contexts)
    seconds = (sample_seconds, 0.0, clock.lap())
    info = make_info(t, NOT_TRAINED, False, weighted, history, seconds, exponent)
    return State(t + 1, policy, reward, state.network, state.dropped, np.array(True)), info


def better_start(policy: Policy, reward: Reward, problem: Problem, hparams: Hparams) -> Policy:
    """The policy, or EM's components that it started from, where these are clearly better on the
    pooled reward.

    A component at a few rows far from all others loses its weight for good where the first networks
    have not yet found these rows; the pooled reward has them.
    """
    if hparams.policy.start != "mixture":
        return policy
    start = initial_policy(problem, policy.num_components, hparams.policy.start)
    where: Where = DRAWS_OF_ELBO
    if problem.num_contexts:
        where = _where(problem, DRAWS_OF_ELBO)
    of_start, of_policy = (
        measured(one, reward.log_prob, where, problem.seed) for one in (start, policy)
    )
    return start if of_start.exceeds(of_policy) else policy


def of_all_rows(reward: Reward, problem: Problem, *more: np.ndarray) -> Reward:
    """The reward once nothing is held out any more: an EM mixture in it goes on to all
    demonstrations, and to `more` [N, D].
    """
    if float(reward.mixture_exponent) == 0.0:
        return reward
    rows = np.concatenate([problem.demonstrations, *more])
    return reward._replace(mixture=problem.describe(rows))


def _where(problem: Problem, n: int) -> Where:
    """For the normaliser, about n draws: with contexts those of the held-out rows."""
    if problem.num_contexts == 0:
        return n
    contexts = problem.held_out[:, : problem.num_contexts]
    return Places(contexts, max(DRAWS, 2 * (n // (2 * len(contexts)))))


def _scored(problem: Problem, n: int) -> Float64[Array, "M D"]:
    """The held-out rows that decide; with contexts no more than n draws are enough for."""
    rows, most = problem.held_out, max(2, n // DRAWS)
    if problem.num_contexts == 0 or len(rows) <= most:
        return rows
    return tf.gather(rows, np.linspace(0, len(rows), most, endpoint=False).astype(int))


def _exponent(state: State, problem: Problem, x: tf.Tensor, log_mu: tf.Tensor) -> float:
    """The a under which the normalised pool makes held-out rows likeliest, or one nearer to 1/2.

    Neither the mixture nor the networks were trained on these rows. Their likelihood, KL(p || q),
    hardly minds mass where p is small; KL(q || p) does, and a = 1/2 has the least sum of that to
    the two. Such mass is the networks': a below 1/2 is raised towards it as long as the likelihood
    stays within one standard error of the best (Breiman et al. 1984). Rows that tell nothing, 1/2.

    Args:
        x, log_mu: draws [M, D] and their log density [M], for the normaliser.
    """
    held_out = log_likelihoods(state, problem, x, log_mu)
    finite = np.isfinite(held_out).all(axis=0)
    if not finite.any():
        return 0.5
    if not finite.all():
        held_out = held_out[:, finite]
    means = held_out.mean(axis=1)
    likeliest = int(np.argmax(means))
    lack = held_out[likeliest] - held_out
    standard_errors = lack.std(axis=1) / np.sqrt(held_out.shape[1])
    as_good = (means[likeliest] - means <= standard_errors) & (EXPONENTS <= 0.5)
    return float(max([EXPONENTS[likeliest], *EXPONENTS[as_good]]))


def log_likelihoods(state: State, problem: Problem, x: tf.Tensor, log_mu: tf.Tensor) -> np.ndarray:
    """Of each held-out row under the normalised pool of each exponent: [21, N_held_out].

    With contexts the normaliser is that of the row's own, of which `_where` tells the draws;
    infinite where none of these is inside of the reward's bounds.
    """
    points = tf.concat([problem.held_out, x], axis=0)
    of_reward = evaluate(state.reward, points).numpy()
    of_mixture = problem.mixture.log_prob(points).numpy()
    inside = np.isfinite(of_reward)  # of the reward's domain
    pools = np.full((len(EXPONENTS), len(of_reward)), -np.inf)
    weights = EXPONENTS[:, None]
    pools[:, inside] = (1.0 - weights) * of_reward[inside] + weights * of_mixture[inside]
    num_held_out = len(problem.held_out)
    log_w = pools[:, num_held_out:] - log_mu.numpy()
    of_each = log_w.reshape(len(EXPONENTS), -1, num_held_out if problem.num_contexts else 1)
    log_normaliser = np.logaddexp.reduce(of_each, axis=1) - np.log(of_each.shape[1])
    return pools[:, :num_held_out] - log_normaliser
