"""Algorithm 1 as functions: state in, state out. Nothing here prints, plots or writes."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.discriminator.fit import DiscriminatorFitter, FitInfo, LogitData, held_out_rows
from virl_tf.fusion import Fusion, draw
from virl_tf.hparams import Hparams
from virl_tf.importance import effective_sample_size, normalise
from virl_tf.kde import Kde, fit_kde, held_out_bandwidth, silverman_factor
from virl_tf.methods import Method
from virl_tf.mixture import (
    Mixture,
    bic_mixture,
    empty_mixture,
    kmeans_start,
    moments,
    samples_start,
    standard_normal_start,
)
from virl_tf.network_stack import FrozenNetwork, NetworkStack, empty_stack
from virl_tf.numerics import DENSITY, NETWORK, numpy_seed, split_seed
from virl_tf.reward import Reward, evaluate
from virl_tf.vips.vips import improve


class Problem(NamedTuple):
    """What does not change during a run."""

    demonstrations: (
        np.ndarray
    )  # [N, D] float64, in a random order (the first ones are held out from every phi_t)
    kde: Kde | Mixture  # p~
    prior: Mixture | None  # q*_0 where it is an EM mixture
    wide: (
        Mixture | None
    )  # the Gaussian with the demonstrations' moments, where fusion or discriminator use it
    frequencies: np.ndarray  # [D, F] of the networks' Fourier features
    # by EM, of the demonstrations that phi_t is trained on; without components where nothing is
    # averaged
    mixture: Mixture
    seed: int


class State(NamedTuple):
    """All that a run carries from one iteration to the next: arrays only."""

    t: int
    policy: Mixture  # q~_t
    reward: Reward  # log q*_t
    network: tuple[
        np.ndarray, ...
    ]  # Keras weights of phi_{t-1}, of all its networks one after the other; empty at t = 0
    stopped: Any = np.array(False)  # the last phi_t was dropped: nothing is left to find


class Info(NamedTuple):
    """The scalars of iteration t, for looking at; the algorithm never reads them back."""

    t: int
    train_loss: float
    validation_loss: float  # Eq. 3 on held-out points
    chance_loss: float  # of the best constant there; without offsets about 2 ln 2 = 1.386
    accuracy: float
    best_epoch: int
    epochs: int
    # 1 if phi_t did not beat chance by `loop.min_gain`: the reward stays, and the run stops
    dropped: int
    effective_sample_size: float  # of the importance weights
    num_negatives: int
    elbo: float  # of the policy under the (unnormalised) recovered target, at its last step
    component_kl: float  # the largest of the policy's last step
    effective_components: float
    rejected_samples: (
        float  # largest share, over the steps, of policy samples where the target was not finite
    )
    mixture_exponent: (
        float  # a, of the EM mixture in the recovered reward; 0 before the last iteration
    )
    sample_seconds: float  # CPU seconds of drawing and weighting the negatives
    training_seconds: float  # ... of training phi_t
    policy_seconds: float  # ... of the policy's steps


def make_problem(demonstrations: np.ndarray, hparams: Hparams, seed: int) -> Problem:
    """Shuffle the demonstrations once, fit p~ to them, draw the frequencies."""
    order = np.random.default_rng(numpy_seed(seed, 0, "demonstration order")).permutation(
        len(demonstrations)
    )
    trained = _trained(demonstrations[order], hparams)
    prior = None
    if _prior_kind(demonstrations, hparams) == "mixture":
        prior = bic_mixture(trained, numpy_seed(seed, 0, "prior"))
    density = (
        prior
        if prior is not None and hparams.kde.estimator == "auto"
        else density_estimate(demonstrations, hparams, seed)
    )
    wide = moments(demonstrations) if hparams.loop.wide_share or hparams.loop.wide_weight else None
    frequencies = _frequencies(demonstrations, density, hparams, seed)
    demonstrations = demonstrations[order]
    mixture = empty_mixture(demonstrations.shape[1])
    if hparams.loop.mixture_average:
        mixture = bic_mixture(trained, numpy_seed(seed, 0, "mixture"))
    return Problem(demonstrations, density, prior, wide, frequencies, mixture, seed)


def _fusion(policy: Mixture, problem: Problem, hparams: Hparams) -> Fusion:
    share = hparams.loop.wide_share
    return Fusion(policy, problem.kde, problem.wide if share else None, share)


def density_estimate(x: np.ndarray, hparams: Hparams, seed: int) -> Kde | Mixture:
    """p~ of the demonstrations x [N, D] where it is not q*_0's mixture: kernels, as in the paper,
    or a mixture by EM.
    """
    density_seed = numpy_seed(seed, 0, "bandwidth")
    if hparams.kde.estimator == "mixture":
        return bic_mixture(x, density_seed)
    return fit_kde(x, hparams.kde.bandwidth, hparams.kde.bandwidth_scale, density_seed)


def _frequencies(x: np.ndarray, density: Kde | Mixture, hparams: Hparams, seed: int) -> np.ndarray:
    """Random frequencies, in radians per standard deviation of the data, whose size follows from
    the data.

    A kernel estimate's best bandwidth is Silverman's factor times the width of what the density is
    made of. So the held-out bandwidth tells that width, l, and frequencies ~ N(0, (frequency_scale
    / (D l))^2) stand for smooth functions of that scale: their features' inner products approximate
    a Gaussian kernel (Rahimi and Recht 2007). With D because a wave that runs through many
    coordinates changes with each of them.
    """
    number = hparams.network.num_frequencies
    if number == 0:
        return np.zeros((x.shape[1], 0), np.float32)
    spread = x.std(axis=0)
    if isinstance(density, Kde) and hparams.kde.bandwidth == "held_out":
        width = density.bandwidth.numpy() / spread
    else:
        width = held_out_bandwidth(x, spread, numpy_seed(seed, 0, "bandwidth")) * np.ones_like(
            spread
        )
    length = width / silverman_factor(*x.shape)
    normal = np.random.default_rng(numpy_seed(seed, 0, "frequencies")).standard_normal(
        (x.shape[1], number)
    )
    return (hparams.network.frequency_scale / (x.shape[1] * length[:, None]) * normal).astype(
        np.float32
    )


def init(problem: Problem, method: Method, num_components: int, hparams: Hparams) -> State:
    """q~_0, and q*_0 as the reward without any network."""
    x, seed = problem.demonstrations, numpy_seed(problem.seed, 0, "initial policy")
    policy = {
        "standard_normal": lambda: standard_normal_start(num_components, x.shape[1], seed),
        "kmeans": lambda: kmeans_start(x, num_components, seed),
        "samples": lambda: samples_start(x, num_components, seed),
    }[hparams.policy.start]()
    size = hparams.training.ensemble_size
    if method.base == "reward":
        prior = _prior(problem, policy, hparams)
        reward = _reward(
            problem,
            prior,
            hparams.loop.prior != "flat",
            hparams,
            size * hparams.loop.num_iterations,
        )
    else:
        reward = _reward(problem, policy, True, hparams, size)
    return State(0, policy, reward, ())


MOST_BLUR = 0.4  # Silverman's factor up to which kernels resolve what the density is made of


def _prior_kind(x: np.ndarray, hparams: Hparams) -> str:
    """`loop.prior` with "auto" resolved: one Gaussian where kernels resolve the density, else an EM
    mixture.

    M: with 8,000 demonstrations in D = 2 and 5 (factors 0.22 and 0.35) the networks find what one
    Gaussian leaves to them, and from a mixture less (on the walker nothing); in D = 10 (0.49) and
    with 300 rows in D = 3 (0.43) they end far from a mixture.
    """
    if hparams.loop.prior != "auto":
        return hparams.loop.prior
    return "moments" if silverman_factor(*x.shape) <= MOST_BLUR else "mixture"


def _prior(problem: Problem, policy: Mixture, hparams: Hparams) -> Mixture:
    """q*_0."""
    if hparams.loop.prior == "initial_policy":
        return policy
    return moments(problem.demonstrations) if problem.prior is None else problem.prior


def _trained(x: np.ndarray, hparams: Hparams) -> np.ndarray:
    """The demonstrations that phi_t is trained on; an EM mixture that saw the others, too, would
    seem too good on them.
    """
    return x[held_out_rows(len(x), hparams.training.validation_fraction)[1]]


def step(
    state: State, problem: Problem, method: Method, fitter: DiscriminatorFitter, hparams: Hparams
) -> tuple[State, Info]:
    """Iteration t of Algorithm 1."""
    seed, t = problem.seed, state.t
    cpu: dict[str, float] = {}

    with _timed(cpu, "sample"):
        base = (
            state.reward if method.base == "reward" else _policy_reward(state.reward, state.policy)
        )
        proposal = _fusion(state.policy, problem, hparams) if method.fusion else state.policy
        x = draw(proposal, hparams.loop.num_negatives, split_seed(seed, t, "negatives"))
        log_mu, log_base = proposal.log_prob(x), evaluate(base, x)
        log_w = tf.zeros(len(x), DENSITY)
        if method.importance_weights:
            # w_t = q*_t / mu_t; the constant, int q*_t dx, cancels in the self-normalisation.
            log_w = normalise(log_base - log_mu)
        demonstrations = tf.constant(problem.demonstrations, DENSITY)
        subtracted = {"none": None, "policy": state.policy, "proposal": proposal}[
            method.logit_offset
        ]
        offsets = tuple(_offset(points, subtracted, state.reward) for points in (demonstrations, x))
        if hparams.loop.wide_weight and method.base == "reward" and method.importance_weights:
            log_w, offsets = _with_wide(
                problem, base, demonstrations, x, log_mu, log_base, hparams.loop.wide_weight
            )
        experts = _logit_data(
            demonstrations, tf.zeros(len(demonstrations), DENSITY), offsets[0], state.reward
        )
        negatives = _logit_data(x, log_w, offsets[1], state.reward)

    with _timed(cpu, "training"):
        weights, phi, fit_info = fitter.fit(
            experts, negatives, list(state.network) or None, seed, t
        )
        dropped = method.base == "reward" and _at_chance(fit_info, hparams.loop.min_gain)

    with _timed(cpu, "policy"):
        # Algorithm 1, line 3: log q*_{t+1} = log q*_t + phi_t. Line 4 prints KL(q~_t || q*_t); the
        # text means t + 1.
        target = _add(base if method.accumulate else _network_reward(base), () if dropped else phi)
        exponent = 0.0
        if (
            method.base == "reward"
            and problem.mixture.num_components
            and (dropped or t + 1 == hparams.loop.num_iterations)
        ):
            exponent = _mixture_exponent(target, problem, x, log_mu, hparams)
            target = target.average(exponent)
        policy, history = improve(
            state.policy, target, split_seed(seed, t, "policy"), hparams.policy
        )
        reward = target if method.reward == "target" else _policy_reward(state.reward, policy)

    info = Info(
        t=t,
        **fit_info._asdict(),
        dropped=int(dropped),
        effective_sample_size=float(effective_sample_size(log_w)),
        num_negatives=len(x),
        elbo=float(history.elbo[-1]),
        component_kl=float(history.component_kl[-1]),
        effective_components=float(history.effective_components[-1]),
        rejected_samples=float(tf.reduce_max(history.rejected)),
        mixture_exponent=exponent,
        sample_seconds=cpu["sample"],
        training_seconds=cpu["training"],
        policy_seconds=cpu["policy"],
    )
    return State(t + 1, policy, reward, tuple(weights), np.array(dropped)), info


def _mixture_exponent(
    reward: Reward, problem: Problem, x: tf.Tensor, log_mu: tf.Tensor, hparams: Hparams
) -> float:
    """The a in [0, 1] under which q*^(1 - a) mixture^a, normalised, makes held-out rows likeliest,
    or one nearer to 1/2.

    Logarithmic opinion pooling (Genest and Zidek 1986): what only one of the two says vanishes with
    its exponent. Neither the mixture nor the networks were trained on these demonstrations. Their
    likelihood, KL(p || q), hardly minds mass where p is small; KL(q || p) does, and a = 1/2 has the
    least sum of that to the two. Such mass is the networks': a below 1/2 is raised towards it as
    long as the likelihood stays within one standard error of the best (Breiman et al. 1984). The
    normaliser is estimated from this iteration's draws x [M, D] of mu.
    """
    held, _ = held_out_rows(len(problem.demonstrations), hparams.training.validation_fraction)
    points = tf.concat([problem.demonstrations[held], x], axis=0)
    parts = np.stack([evaluate(reward, points), problem.mixture.log_prob(points)])

    def log_likelihoods(a: float) -> np.ndarray:
        pooled = np.array([1.0 - a, a]) @ parts
        log_z = np.logaddexp.reduce(pooled[len(held) :] - log_mu.numpy()) - np.log(len(x))
        return pooled[: len(held)] - log_z

    candidates = {a: log_likelihoods(a) for a in np.linspace(0.0, 1.0, 21).tolist()}
    likeliest = max(candidates, key=lambda a: float(np.mean(candidates[a])))
    lack = {
        a: candidates[likeliest] - values
        for a, values in candidates.items()
        if likeliest <= a <= 0.5
    }
    as_good = [
        a for a, values in lack.items() if values.mean() <= values.std() / np.sqrt(len(held))
    ]
    return max([likeliest, *as_good])


def _at_chance(info: FitInfo, min_gain: float | None) -> bool:
    """Whether a phi_t should be dropped; a loss that is nan says so, too."""
    return min_gain is not None and not info.chance_loss - info.validation_loss > min_gain


@contextmanager
def _timed(cpu: dict[str, float], part: str) -> Iterator[None]:
    start = time.process_time()
    yield
    cpu[part] = time.process_time() - start


def _offset(x: tf.Tensor, subtracted: Mixture | Fusion | None, reward: Reward) -> tf.Tensor:
    """What the logit at x [N, D] has besides the network's output: [N]."""
    if subtracted is None:
        return tf.zeros(len(x), DENSITY)
    # The density in standardised coordinates: R_t is free up to a constant, and this one does not
    # depend on the data's units.
    return -subtracted.log_prob(x) - tf.reduce_sum(tf.math.log(reward.scale))


def _with_wide(
    problem: Problem,
    base: Reward,
    demonstrations: tf.Tensor,
    x: tf.Tensor,
    log_mu: tf.Tensor,
    log_base: tf.Tensor,
    share: float,
) -> tuple[tf.Tensor, tuple[tf.Tensor, tf.Tensor]]:
    """Log weights of the negatives, and the logit's offsets at demonstrations and negatives, with
    the negatives' density widened.

    A classifier against q*_t says nothing where q*_t is negligible: phi_t may rise there by any
    amount. Against (1 - share) q*_t + share wide it pays for that; with the logit phi_t + log q*_t
    - log(that mixture) the best phi_t is log p / q*_t still.
    """
    assert problem.wide is not None
    n = tf.cast(tf.size(log_mu), DENSITY)
    log_z = tf.reduce_logsumexp(log_base - log_mu) - tf.math.log(n)  # log int q*_t dx
    offsets, log_noise = [], tf.constant(0.0, DENSITY)
    for points, log_q in ((demonstrations, evaluate(base, demonstrations)), (x, log_base)):
        log_q = log_q - log_z
        parts = [log_q + np.log1p(-share), problem.wide.log_prob(points) + np.log(share)]
        log_noise = tf.reduce_logsumexp(tf.stack(parts), axis=0)
        offsets.append(log_q - log_noise)
    return normalise(log_noise - log_mu), (offsets[0], offsets[1])


def _logit_data(
    x: tf.Tensor, log_weights: tf.Tensor, offsets: tf.Tensor, reward: Reward
) -> LogitData:
    return LogitData(
        reward.inputs(x), tf.cast(offsets, NETWORK), tf.cast(tf.exp(log_weights), NETWORK)
    )


def _reward(
    problem: Problem, base: Mixture, with_base: bool, hparams: Hparams, capacity: int
) -> Reward:
    x, network = problem.demonstrations, hparams.network
    stack = empty_stack(
        capacity,
        x.shape[1] + 2 * problem.frequencies.shape[1],
        network.num_layers,
        network.layer_size,
    )
    shift, scale = tf.constant(x.mean(axis=0), DENSITY), tf.constant(x.std(axis=0), DENSITY)
    base_scale, none = tf.constant(float(with_base), DENSITY), tf.constant(0.0, DENSITY)
    return Reward(
        base,
        base_scale,
        stack,
        shift,
        scale,
        tf.constant(problem.frequencies, NETWORK),
        problem.mixture,
        none,
    )


def _emptied(stack: NetworkStack) -> NetworkStack:
    return stack._replace(count=tf.constant(0))


def _policy_reward(template: Reward, policy: Mixture) -> Reward:
    """Log q_t as a reward."""
    return template._replace(
        base=policy, base_scale=tf.constant(1.0, DENSITY), networks=_emptied(template.networks)
    )


def _network_reward(template: Reward) -> Reward:
    """A reward of networks alone, none yet."""
    return template._replace(
        base_scale=tf.constant(0.0, DENSITY), networks=_emptied(template.networks)
    )


def _add(base: Reward, phi: Sequence[FrozenNetwork]) -> Reward:
    """Log q*_{t+1} = log q*_t + phi_t, the sum of these networks."""
    for network in phi:
        base = base._replace(networks=base.networks.append(network))
    return base
