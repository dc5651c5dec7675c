"""Algorithm 1 as functions: state in, state out. Nothing here prints, plots or writes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.discriminator.fit import DiscriminatorFitter, LogitData
from virl_tf.fusion import Fusion
from virl_tf.hparams import Hparams
from virl_tf.importance import effective_sample_size, normalise
from virl_tf.kde import Kde, fit_kde
from virl_tf.methods import Method
from virl_tf.mixture import Mixture, kmeans_start, moments, samples_start, standard_normal_start
from virl_tf.network_stack import FrozenNetwork, NetworkStack, empty_stack
from virl_tf.numerics import DENSITY, NETWORK, numpy_seed, split_seed
from virl_tf.reward import Reward, evaluate
from virl_tf.vips.vips import improve


class Problem(NamedTuple):
    """What does not change during a run."""

    demonstrations: np.ndarray  # [N, D] float64, in a random order (the first ones are held out from every phi_t)
    kde: Kde  # p~
    seed: int


class State(NamedTuple):
    """All that a run carries from one iteration to the next: arrays only."""

    t: int
    policy: Mixture  # q~_t
    reward: Reward  # log q*_t
    network: tuple[np.ndarray, ...]  # Keras weights of phi_{t-1}; empty at t = 0


class Info(NamedTuple):
    """The scalars of iteration t, for looking at; the algorithm never reads them back."""

    t: int
    train_loss: float
    validation_loss: float  # Eq. 3 on held-out points; 2 ln 2 = 1.386 is chance
    accuracy: float
    best_epoch: int
    epochs: int
    effective_sample_size: float  # of the importance weights
    num_negatives: int
    elbo: float  # of the policy under the (unnormalised) recovered target, at its last step
    component_kl: float  # the largest of the policy's last step
    effective_components: float
    rejected_samples: float  # largest share, over the steps, of policy samples where the target was not finite
    sample_seconds: float  # CPU seconds of drawing and weighting the negatives
    training_seconds: float  # ... of training phi_t
    policy_seconds: float  # ... of the policy's steps


def make_problem(demonstrations: np.ndarray, hparams: Hparams, seed: int) -> Problem:
    """Shuffle the demonstrations once and fit p~ to them."""
    order = np.random.default_rng(numpy_seed(seed, 0, "demonstration order")).permutation(len(demonstrations))
    kde_seed = numpy_seed(seed, 0, "bandwidth")
    kde = fit_kde(demonstrations, hparams.kde.bandwidth, hparams.kde.bandwidth_scale, kde_seed)
    return Problem(demonstrations[order], kde, seed)


def init(problem: Problem, method: Method, num_components: int, hparams: Hparams) -> State:
    """q~_0, and q*_0 as the reward without any network."""
    x, seed = problem.demonstrations, numpy_seed(problem.seed, 0, "initial policy")
    policy = {
        "standard_normal": lambda: standard_normal_start(num_components, x.shape[1], seed),
        "kmeans": lambda: kmeans_start(x, num_components, seed),
        "samples": lambda: samples_start(x, num_components, seed),
    }[hparams.policy.start]()
    if method.base == "reward":
        prior = policy if hparams.loop.prior == "initial_policy" else moments(x)
        reward = _reward(problem, prior, hparams.loop.prior != "flat", hparams, hparams.loop.num_iterations)
    else:
        reward = _reward(problem, policy, True, hparams, 1)
    return State(0, policy, reward, ())


def step(state: State, problem: Problem, method: Method, fitter: DiscriminatorFitter, hparams: Hparams) -> tuple[State, Info]:
    """Iteration t of Algorithm 1."""
    seed, t = problem.seed, state.t
    cpu: dict[str, float] = {}

    with _timed(cpu, "sample"):
        base = state.reward if method.base == "reward" else _policy_reward(state.reward, state.policy)
        proposal = Fusion(state.policy, problem.kde) if method.fusion else state.policy
        x = _draw(proposal, hparams.loop.num_negatives, split_seed(seed, t, "negatives"))
        log_w = tf.zeros(len(x), DENSITY)
        if method.importance_weights:
            # w_t = q*_t / mu_t; the constant, int q*_t dx, cancels in the self-normalisation.
            log_w = normalise(evaluate(base, x) - proposal.log_prob(x))
        offset = {"none": None, "policy": state.policy, "proposal": proposal}[method.logit_offset]
        experts = _logit_data(problem.demonstrations, tf.zeros(len(problem.demonstrations), DENSITY), offset, state.reward)
        negatives = _logit_data(x, log_w, offset, state.reward)

    with _timed(cpu, "training"):
        previous = list(state.network) or None
        weights, phi, fit_info = fitter.fit(experts, negatives, previous, seed, t)

    with _timed(cpu, "policy"):
        # Algorithm 1, line 3: log q*_{t+1} = log q*_t + phi_t. Line 4 prints KL(q~_t || q*_t); the text means t + 1.
        target = _add(base, phi) if method.accumulate else _network_reward(base, phi)
        policy, history = improve(state.policy, target, split_seed(seed, t, "policy"), hparams.policy)
        reward = target if method.reward == "target" else _policy_reward(state.reward, policy)

    info = Info(
        t=t,
        **fit_info._asdict(),
        effective_sample_size=float(effective_sample_size(log_w)),
        num_negatives=len(x),
        elbo=float(history.elbo[-1]),
        component_kl=float(history.component_kl[-1]),
        effective_components=float(history.effective_components[-1]),
        rejected_samples=float(tf.reduce_max(history.rejected)),
        sample_seconds=cpu["sample"],
        training_seconds=cpu["training"],
        policy_seconds=cpu["policy"],
    )
    return State(t + 1, policy, reward, tuple(weights)), info


@contextmanager
def _timed(cpu: dict[str, float], part: str) -> Iterator[None]:
    start = time.process_time()
    yield
    cpu[part] = time.process_time() - start


def _draw(proposal: Mixture | Fusion, n: int, seed: np.ndarray) -> tf.Tensor:
    return proposal.sample(n, seed) if isinstance(proposal, Fusion) else proposal.sample(n, seed)[0]


def _logit_data(x: Any, log_weights: tf.Tensor, subtracted: Mixture | Fusion | None, reward: Reward) -> LogitData:
    x = tf.convert_to_tensor(x, DENSITY)
    offset = tf.zeros_like(log_weights)
    if subtracted is not None:
        # The density in standardised coordinates: R_t is free up to a constant, and this one makes it independent of the data's
        # units.
        offset = -subtracted.log_prob(x) - tf.reduce_sum(tf.math.log(reward.scale))
    return LogitData(reward.standardise(x), tf.cast(offset, NETWORK), tf.cast(tf.exp(log_weights), NETWORK))


def _reward(problem: Problem, base: Mixture, with_base: bool, hparams: Hparams, capacity: int) -> Reward:
    x, network = problem.demonstrations, hparams.network
    stack = empty_stack(capacity, x.shape[1], network.num_layers, network.layer_size)
    shift, scale = tf.constant(x.mean(axis=0), DENSITY), tf.constant(x.std(axis=0), DENSITY)
    return Reward(base, tf.constant(float(with_base), DENSITY), stack, shift, scale)


def _emptied(stack: NetworkStack) -> NetworkStack:
    return stack._replace(count=tf.constant(0))


def _policy_reward(template: Reward, policy: Mixture) -> Reward:
    """Log q_t as a reward."""
    return template._replace(base=policy, base_scale=tf.constant(1.0, DENSITY), networks=_emptied(template.networks))


def _network_reward(template: Reward, phi: FrozenNetwork) -> Reward:
    """Phi alone as a reward."""
    return template._replace(base_scale=tf.constant(0.0, DENSITY), networks=_emptied(template.networks).append(phi))


def _add(base: Reward, phi: FrozenNetwork) -> Reward:
    """Log q*_{t+1} = log q*_t + phi_t."""
    return base._replace(networks=base.networks.append(phi))
