"""What does not change during a run: demonstrations, what is fitted to them once, and the seed."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.conditional import Policy, conditioned, empty_conditional
from virl_tf.conditional_kde import ConditionalKde, conditional_kernels, contexts_nearby
from virl_tf.contexts import GATE_KL_BOUND, Places, Where, drawn, split_places
from virl_tf.demonstrations import Data
from virl_tf.density import Density
from virl_tf.description import describe_rows
from virl_tf.domain import Domain
from virl_tf.em.density import Fit, density_fits
from virl_tf.features import (
    CHOSEN,
    ROWS_PER_CHOSEN,
    Features,
    choose_frequencies,
    density_widths,
    draw_frequencies,
    make_features,
)
from virl_tf.hparams import Hparams, default_hparams, known, rows_per_batch
from virl_tf.kde import Kde, fit_kde
from virl_tf.mixture import Mixture, empty_mixture, moments
from virl_tf.numerics import DENSITY, numpy_seed, split_seed
from virl_tf.shapes import Array, Float64
from virl_tf.splitting import held_out_rows

COVERED = 1.5
"""KL(EM mixture || kernels) in nats up to which kernels cover the density.

Measured (docs/decisions.md, estimator): 0.05 to 1.06 for densities in D = 2 to 6, 2.2 and more in
ten and more dimensions.
"""
_COVER_DRAWS = 4000
COMPARED_DRAWS = 20_000
"""Of q*_0, for the characteristic function that demonstrations are compared with."""


class LeftToData(NamedTuple):
    """What hyperparameters that are null stand for."""

    num_negatives: int
    most_per_batch: int


# Networks that start from EM's mixture look for what it smooths over, edges above all: they see
# more waves, and soon know a few negatives by heart. M (docs/decisions.md, edges).
WHERE_MIXTURE = LeftToData(num_negatives=64_000, most_per_batch=100)
ELSEWHERE = LeftToData(num_negatives=32_000, most_per_batch=500)


class Problem(NamedTuple):
    """Demonstrations and what is fitted to them before the first iteration.

    With contexts the rows are [c, x] and the densities those of x given c (`virl_tf.contexts`).

    Attributes:
        demonstrations: all of them, in a random order.
        train: those that every phi_t is trained on.
        held_out: the others, by which phi_t is judged.
        estimate: p~, the density estimate of the fusion.
        kernels: a kernel estimate of the demonstrations, which p~ may be.
        prior: an EM mixture or a Gaussian that q*_0 may be.
        mixture: by EM, of `train`, for pooling; without components where nothing is pooled.
        describe: rows [N, D] -> the same mixture after EM on them, for when none are held out any
            more.
        from_mixture: q*_0 is that mixture, in the place where a reward is pooled with it.
        joint: the same of whole rows [c, x], for the policy's start, if anything needs it.
        features: what the networks see of a point.
        domain: where demonstrations can lie.
        seed: of the run.
        num_contexts: C, how many columns are context.
        step_contexts: what the policy's steps see: the demonstrations' or, where the gate's bound
            is left to the data, `virl_tf.conditional_kde.contexts_nearby`; None if C = 0.
    """

    demonstrations: Float64[Array, "N D"]
    train: Float64[Array, "N_train D"]
    held_out: Float64[Array, "N_held_out D"]
    estimate: Density
    kernels: Kde | ConditionalKde
    prior: Policy
    mixture: Policy
    describe: Callable[[np.ndarray], Policy]
    from_mixture: bool
    joint: Mixture
    features: Features
    domain: Domain
    seed: int
    num_contexts: int = 0
    step_contexts: Float64[Array, "M C"] | None = None

    def places(self, hparams: Hparams, t: int) -> Where:
        """Where the negatives of iteration t are drawn, `loop.num_negatives` or nearly so many."""
        number, size = known(hparams.loop.num_negatives), self.num_contexts
        if not size:
            return number
        seed, share = split_seed(self.seed, t, "contexts"), hparams.training.validation_fraction
        return split_places(self.held_out[:, :size], self.train[:, :size], number, share, seed)

    def resolved(self, hparams: Hparams) -> Hparams:
        """With numbers for what they leave to the data (null)."""
        found = WHERE_MIXTURE if self.from_mixture else ELSEWHERE
        training, policy, loop = hparams.training, hparams.policy, hparams.loop
        default = default_hparams().policy.weight_kl_bound
        bound = _gate_kl_bound(self.num_contexts) if self.num_contexts else default
        batch = rows_per_batch(training, len(self.train), found.most_per_batch)
        return replace(
            hparams,
            training=replace(training, batch_size=batch),
            policy=replace(policy, weight_kl_bound=policy.weight_kl_bound or bound),
            loop=replace(loop, num_negatives=loop.num_negatives or found.num_negatives),
        )


def make_problem(data: Data, hparams: Hparams, seed: int) -> Problem:
    """Shuffle and split demonstrations once, fit p~, q*_0 and the mixture for pooling."""
    rng = np.random.default_rng(numpy_seed(seed, 0, "demonstration order"))
    shuffled = data.take(rng.permutation(len(data.rows)))
    x, num_contexts = shuffled.rows, data.num_contexts
    fraction = hparams.training.validation_fraction
    held_out_index, train_index = held_out_rows(len(x), fraction, shuffled.groups)
    train = shuffled.take(train_index)

    kernels = kernel_estimate(data, hparams, seed)
    fits, held_out = _mixture_fits(train, hparams, seed), x[held_out_index]
    described, gaussian = describe_rows(fits, train.rows, held_out, num_contexts), moments(x)
    estimator, prior = _estimator_and_prior(kernels, described.unsmoothed, hparams, seed)
    from_mixture = prior == "mixture"
    mixture = described.smoothed
    of_mixture = conditioned(mixture, num_contexts)
    of_kernels = conditional_kernels(kernels, num_contexts)

    widths = _widths(data, kernels, hparams, seed)
    features = make_features(x, draw_frequencies(widths, hparams.network, seed))
    if from_mixture:
        where = _where_compared(train)
        draws = drawn(of_mixture, where, split_seed(seed, 0, "compared"))
        if not num_contexts:  # of which those near a bound would become rare
            draws = inside(draws, data.domain)
        features = _with_chosen(features, train.rows, draws, widths, seed)

    average = hparams.loop.mixture_average
    start = mixture if from_mixture and not average else gaussian
    return Problem(
        demonstrations=tf.constant(x, DENSITY),
        train=tf.constant(train.rows, DENSITY),
        held_out=tf.constant(held_out, DENSITY),
        estimate=of_mixture if estimator == "mixture" else of_kernels,
        kernels=of_kernels,
        prior=conditioned(start, num_contexts),
        mixture=of_mixture if average else empty_density(x.shape[1] - num_contexts, num_contexts),
        describe=lambda rows: conditioned(described(rows), num_contexts),
        from_mixture=from_mixture,
        joint=mixture,
        features=features,
        domain=data.domain,
        seed=seed,
        num_contexts=num_contexts,
        step_contexts=_step_contexts(shuffled, hparams, seed),
    )


def _gate_kl_bound(num_contexts: int) -> float:
    """The noise of a gate's step grows with the coefficients of its quadratics; but the bound of
    many is too slow for few, of which an expert leaves contexts behind that its gate still gives it
    (docs/decisions-contexts.md, contexts-policy).
    """
    coefficients = (num_contexts + 1) * (num_contexts + 2) / 2
    return max(GATE_KL_BOUND, 0.03 / coefficients)


def _step_contexts(data: Data, hparams: Hparams, seed: int) -> tf.Tensor | None:
    """Those that the policy's steps see."""
    if not data.num_contexts:
        return None
    given = data.rows[:, : data.num_contexts]
    if hparams.policy.weight_kl_bound is not None:
        return tf.constant(given, DENSITY)
    return contexts_nearby(given, seed, data.groups)


def _widths(data: Data, kernels: Kde, hparams: Hparams, seed: int) -> Float64[Array, " D"]:
    """See `density_widths`; ones where no frequencies are drawn, which are all that need them."""
    if hparams.network.num_frequencies == 0:
        return np.ones(data.rows.shape[1])
    held_out = np.asarray(kernels.bandwidth) if hparams.kde.bandwidth == "held_out" else None
    return density_widths(data.rows, held_out, seed, data.groups)


def _where_compared(train: Data) -> Where:
    """Where q*_0 is drawn to be compared with training rows: in their contexts, if any."""
    size = train.num_contexts
    if not size:
        return COMPARED_DRAWS
    contexts = np.resize(train.rows[:, :size], (COMPARED_DRAWS, size))  # again and again
    return Places(tf.constant(contexts, DENSITY), num_draws=1)


def inside(draws: tf.Tensor, domain: Domain) -> tf.Tensor:
    """Those where q*_0 is not cut off, unless hardly any is: frequencies are not to tell of bounds,
    which are known (half-normal columns: 0.05 nats of likelihood, exponential ones 0.1).
    """
    if domain.everywhere:
        return draws
    kept = tf.boolean_mask(draws, domain.contains(draws))
    return kept if len(kept) > len(draws) // 20 else draws


def _with_chosen(
    features: Features,
    train: np.ndarray,
    draws: tf.Tensor,
    widths: Float64[Array, " D"],
    seed: int,
) -> Features:
    """The features, and more frequencies if they have any: where training rows differ from draws of
    q*_0.
    """
    number = min(CHOSEN * int(features.frequencies.shape[1]), len(train) // ROWS_PER_CHOSEN)
    if number == 0:
        return features
    plain = features.without_frequencies()
    z, of_draws = plain(tf.constant(train, DENSITY)), plain(draws)
    more = choose_frequencies(z, of_draws, widths, number, seed)
    both = tf.concat([features.frequencies, more], axis=1)
    return features._replace(frequencies=both)


def empty_density(dim: int, num_contexts: int) -> Policy:
    """Without components, of x [D] given c [C]."""
    return empty_conditional(dim, num_contexts) if num_contexts else empty_mixture(dim)


def kernel_estimate(data: Data, hparams: Hparams, seed: int) -> Kde:
    """The paper's p~: kernels at the demonstrations."""
    kde = hparams.kde
    density_seed = numpy_seed(seed, 0, "bandwidth")
    return fit_kde(data.rows, kde.bandwidth, kde.bandwidth_scale, density_seed, data.groups)


def _mixture_fits(train: Data, hparams: Hparams, seed: int) -> list[Fit]:
    """See `density_fits`; of an empty mixture if no other is needed."""
    loop = hparams.loop
    needed = (
        hparams.policy.start == "mixture"
        or loop.mixture_average
        or loop.prior in ("mixture", "auto")
        or hparams.kde.estimator != "kernel"
    )
    if not needed:
        return [lambda rows: empty_mixture(rows.shape[1])]
    return density_fits(train.rows, numpy_seed(seed, 0, "mixture"), train.groups)


def _estimator_and_prior(
    kernels: Kde, mixture: Mixture, hparams: Hparams, seed: int
) -> tuple[str, str]:
    """What p~ and q*_0 are: "kernel" or "mixture", "moments" or "mixture".

    The EM mixture is of training rows alone: a q*_0 that saw the held-out rows, too, would seem too
    good on them. "auto": where kernels do not cover the density, the mixture takes their place in
    p~, and the networks, which find little then, start from it. With contexts the rows decide, too
    (docs/decisions-contexts.md, contexts).
    """
    estimator, prior = hparams.kde.estimator, hparams.loop.prior
    if "auto" in (estimator, prior):
        covered = covers(kernels, mixture, seed)
        estimator = _chosen(estimator, "kernel" if covered else "mixture")
        prior = _chosen(prior, "moments" if covered else "mixture")
    return estimator, prior


def _chosen(given: str, found: str) -> str:
    return found if given == "auto" else given


def covers(kernels: Kde, mixture: Mixture, seed: int) -> bool:
    """Whether kernels lie where the density does, as far as an EM mixture tells it.

    By the mixture's draws and logarithms: the effective share of the kernels' draws, which this
    bounds (it is at most exp(-KL)), is decided by the few of the largest weights.
    """
    x = mixture.sample(_COVER_DRAWS, split_seed(seed, 0, "coverage"))
    divergence = tf.reduce_mean(mixture.log_prob(x) - kernels.log_prob(x))
    return bool(divergence <= COVERED)
