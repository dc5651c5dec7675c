"""Algorithm 1 as functions: state in, state out. Nothing here prints, plots or writes."""

import time
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.conditional import Policy, conditioned
from virl_tf.density import Density
from virl_tf.discriminator.fit import DiscriminatorFitter, FitInfo
from virl_tf.em.em import em_start
from virl_tf.fusion import Fusion
from virl_tf.hparams import Hparams
from virl_tf.importance import effective_sample_size
from virl_tf.methods import Method
from virl_tf.mixture import kmeans_start, resized, samples_start, standard_normal_start
from virl_tf.negatives import Negatives, classes, draw_negatives
from virl_tf.network_stack import empty_stack
from virl_tf.numerics import DENSITY, numpy_seed, split_seed
from virl_tf.problem import Problem
from virl_tf.reward import Reward
from virl_tf.shapes import Array, Bool, Int64
from virl_tf.vips.improve import improve
from virl_tf.vips.vips import VipsHistory

IN_A_ROW = 2
"""phi_t that find nothing, one after the other, after which a run is over: one verdict is that of
one draw of negatives and a tenth of the demonstrations (docs/decisions.md, min-gain).
"""


class State(NamedTuple):
    """All that a run carries from one iteration to the next: arrays only."""

    t: int
    policy: Any  # q~_t: a Mixture, or with contexts a ConditionalMixture
    reward: Reward  # log q*_t
    network: tuple[np.ndarray, ...]  # Keras weights of phi_{t-1}; empty at t = 0
    dropped: Int64[Array, ""] = np.array(0)  # how many phi in a row, up to phi_{t-1}, found nothing
    pooled: Bool[Array, ""] = np.array(False)  # the reward was pooled: the run is over

    @property
    def converged(self) -> bool:
        """Whether nothing is left for phi_t to find: the iterations are over."""
        return bool(self.dropped >= IN_A_ROW)


class Info(NamedTuple):
    """The scalars of iteration t, for looking at; the algorithm never reads them back."""

    t: int
    train_loss: float
    validation_loss: float  # Eq. 3 on held-out points
    chance_loss: float  # of the best constant there; without offsets about 2 ln 2 = 1.386
    accuracy: float
    best_epoch: int
    epochs: int
    dropped: int  # 1 if phi_t found nothing: the reward stays
    effective_sample_size: float  # of the importance weights
    num_negatives: int
    elbo: float  # of the policy under the (unnormalised) recovered target, at its last step
    component_kl: float  # the largest of the policy's last step
    effective_components: float
    rejected_samples: float  # largest share, over the steps, of draws with no finite target
    mixture_exponent: float  # of the EM mixture that the reward was pooled with; 0: it was not
    sample_seconds: float  # CPU seconds of drawing and weighting the negatives
    training_seconds: float  # ... of training phi_t
    policy_seconds: float  # ... of the policy's steps


def init(problem: Problem, method: Method, num_components: int, hparams: Hparams) -> State:
    """q~_0, and q*_0 as the reward without any network."""
    policy = initial_policy(problem, num_components, hparams.policy.start)
    base, exponent, of_mixture = _first_base(problem, method, policy, hparams.loop.prior)
    capacity = hparams.loop.num_iterations if method.base == "reward" else 1
    network = hparams.network
    reward = Reward(
        base=base,
        base_exponent=tf.constant(exponent, DENSITY),
        networks=empty_stack(
            capacity, problem.features.num_inputs, network.num_layers, network.layer_size
        ),
        features=problem.features,
        mixture=problem.mixture,
        mixture_exponent=tf.constant(of_mixture, DENSITY),
        domain=problem.domain,
    )
    return State(0, policy, reward, ())


def _first_base(
    problem: Problem, method: Method, policy: Policy, prior: str
) -> tuple[Any, float, float]:
    """q_0 or q*_0 as a base, its exponent, and that of the EM mixture which the reward carries."""
    if method.base == "policy":
        return policy, 1.0, 0.0
    base = policy if prior == "initial_policy" else problem.prior
    if problem.from_mixture and problem.mixture.num_components:
        return base, 0.0, 1.0  # in the place where it is pooled: evaluated once
    return base, float(prior != "flat"), 0.0


def initial_policy(problem: Problem, num_components: int, start: str) -> Policy:
    """q~_0, by the name of its start: with contexts what that says of x given c.

    A k-means cluster of rows [c, x] tells little of how x depends on c, so EM goes on from there:
    from k-means alone experts collapse on one another (docs/decisions-contexts.md,
    contexts-policy).
    """
    x, size = problem.demonstrations.numpy(), problem.num_contexts
    seed = numpy_seed(problem.seed, 0, "initial policy")
    if start == "mixture":
        return conditioned(resized(problem.joint, num_components), size)
    if start == "standard_normal":
        return conditioned(standard_normal_start(num_components, x.shape[1], seed), size)
    if start == "samples":
        return conditioned(samples_start(x, num_components, seed), size)
    clusters = em_start if size else kmeans_start
    return conditioned(clusters(x, num_components, seed), size)


def step(
    state: State,
    problem: Problem,
    method: Method,
    fitter: DiscriminatorFitter,
    hparams: Hparams,
) -> tuple[State, Info]:
    """Iteration t of Algorithm 1; its lines are named at the end of ours."""
    seed, t, clock = problem.seed, state.t, Clock()

    # log q*_t (V-IRL) or log q_t, and the proposal mu_t of negatives.
    base = state.reward if method.base == "reward" else state.reward.of_policy(state.policy)
    proposal = _proposal(state, problem, method, hparams)
    draw_seed = split_seed(seed, t, "negatives")
    negatives = draw_negatives(proposal, base, method, problem.places(hparams, t), draw_seed)
    offset = {"none": None, "policy": state.policy, "proposal": proposal}[method.logit_offset]
    held_out, train = classes(problem, negatives, offset, hparams.training.validation_fraction)
    sample_seconds = clock.lap()

    # Train phi_t by weighted binary cross-entropy, Eq. 3 (line 2).
    phi, weights, fit = fitter.fit(train, held_out, state.network, seed, t)
    dropped = method.converges and found_nothing(fit, hparams.loop.min_gain)
    training_seconds = clock.lap()

    # log q*_{t+1} = log q*_t + phi_t (line 3), and q~_{t+1}, which minimises KL(q~ || q*_{t+1})
    # (line 4; the paper prints t for t + 1).
    previous = base if method.accumulate else base.without_base()
    target = previous if dropped else previous.add(phi)
    policy_seed = split_seed(seed, t, "policy")
    policy, history = improve(
        state.policy, target, policy_seed, hparams.policy, problem.step_contexts
    )
    reward = target if method.reward == "target" else state.reward.of_policy(policy)

    seconds = (sample_seconds, training_seconds, clock.lap())
    info = make_info(t, fit, dropped, negatives, history, seconds)
    in_a_row = np.array(state.dropped + 1 if dropped else 0)
    return State(t + 1, policy, reward, tuple(weights), in_a_row), info


def _proposal(state: State, problem: Problem, method: Method, hparams: Hparams) -> Density:
    """mu_t: the fusion of q~_t and p~, or q~_t alone.

    A policy that starts at EM's modes does not stand for a q*_0 that is one Gaussian, and neither
    do kernels: hardly a weight is effective. So the first draws are q*_0's own instead of the
    policy's (docs/decisions.md, first-draws).
    """
    if not method.fusion:
        return state.policy
    at_modes = hparams.policy.start == "mixture" and not problem.from_mixture
    first = state.t == 0 and method.base == "reward" and at_modes
    return Fusion(state.reward.base if first else state.policy, problem.estimate)


def found_nothing(fit: FitInfo, min_gain: float | None) -> bool:
    """Whether phi_t tells held-out points apart no better than the best constant does.

    At convergence phi_T = 0 everywhere (below Eq. 2). A loss that is nan says so, too.

    Args:
        min_gain: `loop.min_gain`, in nats of held-out cross-entropy; None: never.
    """
    return min_gain is not None and not fit.chance_loss - fit.validation_loss > min_gain


def make_info(
    t: int,
    fit: FitInfo,
    dropped: bool,
    negatives: Negatives,
    history: VipsHistory,
    seconds: tuple[float, float, float],
    exponent: float = 0.0,
) -> Info:
    """The scalars of one iteration, as Python numbers."""
    sample_seconds, training_seconds, policy_seconds = seconds
    return Info(
        t=t,
        **fit._asdict(),
        dropped=int(dropped),
        effective_sample_size=float(effective_sample_size(negatives.log_weights)),
        num_negatives=len(negatives.x),
        elbo=float(history.elbo[-1]),
        component_kl=float(history.component_kl[-1]),
        effective_components=float(history.effective_components[-1]),
        rejected_samples=float(tf.reduce_max(history.rejected)),
        mixture_exponent=exponent,
        sample_seconds=sample_seconds,
        training_seconds=training_seconds,
        policy_seconds=policy_seconds,
    )


class Clock:
    """CPU seconds between its readings."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def lap(self) -> float:
        """Since the last reading."""
        before, self._last = self._last, time.process_time()
        return self._last - before
