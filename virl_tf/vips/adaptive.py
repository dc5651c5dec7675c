"""VIPS with components that come and go (arenz2020): K + B slots, of which K are the result.

In rounds: some steps of all slots; then B are pruned, those that are missed least, and as many are
added where the target exceeds the mixture of the others most, among the points evaluated so far.
The capacity is fixed, so a component that comes or goes is a row written anew: nothing is traced
again.
"""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.hparams import SearchHparams
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, repeat
from virl_tf.shapes import Array, Bool, Float64, Int32
from virl_tf.vips.reuse import Batches, no_batches
from virl_tf.vips.surrogate import num_coefficients
from virl_tf.vips.vips import (
    StepOptions,
    Target,
    VipsHistory,
    default_samples,
    density_at,
    draw_from_each,
    empty_history,
    record,
    values_at,
    vips_step,
)

# Of the initial policy: the first candidates, and the unit of the gaps.
START_DRAWS = 2000

# M (docs/decisions-policies.md, num-rounds, split-rounds).
ROUNDS_AT_MODES = 4
SPLIT_ROUNDS = 6  # elsewhere

# Per component and step; all of them would let converged components crowd the rest out.
STORED_DRAWS = 2

# Below the mixture's peak by more than the gap a point counts as not covered. Quantiles of how far
# the start's draws lie below the best of them, in turn, so that gaps scale with the target.
GAP_QUANTILES = (0.9, 0.5, 0.25, 0.1, 0.05)

# Of a new component, times 1 / (K + B). With 0.5 modes are lost. The authors: 1e-29.
NEW_WEIGHT = 0.1

# Of a new component's Cholesky factor, in units of that of the start: the one with the best ELBO,
# by so many draws for each; few suffice, because the component's own steps go on from there.
SCALES = (0.03, 0.1, 0.3, 1.0)
SCALE_DRAWS = 10

# Of a component's next step, each its own: it grows when the component's reward rose and shrinks
# when not. Above the largest the noise of the surrogate dominates.
KL_BOUND, MIN_KL_BOUND, MAX_KL_BOUND = 0.05, 0.01, 0.5
KL_BOUND_GROWTH, KL_BOUND_DECAY = 1.15, 0.7


class Budget(NamedTuple):
    """How much a search does."""

    components: int  # K
    spare: int  # B
    rounds: int
    steps_per_round: int
    samples: int  # per slot and step
    reused_steps: int = 0  # whose draws serve a step, too
    split_rounds: int = 0  # after it, where something is to be split

    @property
    def slots(self) -> int:
        """C = K + B."""
        return self.components + self.spare

    @property
    def steps(self) -> int:
        """Of all rounds."""
        return self.rounds * self.steps_per_round

    @property
    def evaluations(self) -> int:
        """How often the search evaluates the target."""
        of_steps = self.steps * self.slots * self.samples
        of_new_components = self.rounds * self.spare * len(SCALES) * SCALE_DRAWS
        return START_DRAWS + of_steps + of_new_components


def budget_of(
    num_components: int,
    dim: int,
    hparams: SearchHparams,
    gradients: bool = False,
    at_modes: bool = False,
) -> Budget:
    """What `hparams` asks for, with defaults for what is None.

    Many components need more rounds, and few do, because it matters more which ones stay. From a
    start whose components are at the modes few rounds are enough (`at_modes`), and light ones stay:
    they are modes.
    """
    splits = 0 if at_modes else SPLIT_ROUNDS
    for_many = math.ceil(0.4 * num_components)
    for_few = min(30, 250 // num_components)
    of_values = max(30, 5 * num_coefficients(dim) // 3)
    wanted = default_samples(dim, gradients=True) if gradients else of_values
    samples = hparams.samples_per_component or math.ceil(wanted / (1 + hparams.reused_steps))
    return Budget(
        components=num_components,
        spare=hparams.spare_components or max(8, num_components // 4),
        rounds=hparams.num_rounds or (ROUNDS_AT_MODES if at_modes else max(10, for_many, for_few)),
        steps_per_round=hparams.steps_per_round,
        samples=samples,
        reused_steps=hparams.reused_steps,
        split_rounds=splits if hparams.split_rounds is None else hparams.split_rounds,
    )


class Store(NamedTuple):
    """Evaluated points: some of every step's draws, a sparse record of where it has been."""

    points: Float64[Array, "N D"]
    values: Float64[Array, " N"]  # log p* there; -inf for unused rows


class SearchState(NamedTuple):
    """What the search carries from step to step."""

    policy: Mixture  # of all C slots
    kl_bounds: Float64[Array, " C"]
    scores: Float64[Array, " C"]  # log w_o + its gain at the last step; nan for a new component
    store: Store
    history: VipsHistory  # of all steps
    batches: Batches | tuple[()] = ()  # of the steps before, if they serve again


class Scale(NamedTuple):
    """What the start says of the target's size."""

    gaps: Float64[Array, " R"]  # of each round, in nats
    spread: Float64[Array, "D D"]  # the Cholesky factor of the draws' covariance


class Search(NamedTuple):
    """A search, in the pieces of which `search` is made; a caller may compile each of them.

    Attributes:
        target: as in `vips_steps`.
        seed: int32 [2].
        options: of the steps; each component's KL bound is the search's own.
        budget: how much it does.
        gradients: as in `vips_steps`.
    """

    target: Target
    seed: Int32[Array, "2"]
    options: StepOptions
    budget: Budget
    gradients: bool = False

    def begin(self, start: Mixture) -> tuple[SearchState, Scale]:
        """The first state; the start's draws are the first candidates."""
        draws_seed, spare_seed = tf.unstack(tf.random.split(self._seeds()[0], 2))
        points = start.sample(START_DRAWS, draws_seed)
        values = values_at(self.target, points)
        gaps = _gaps(values, np.resize(GAP_QUANTILES, self.budget.rounds))
        state = _first_state(start, points, values, spare_seed, self.budget)
        return state, Scale(gaps, _spread(points))

    def step(self, i: Int32[Array, ""], state: SearchState) -> SearchState:
        """Step i of all slots."""
        step_seed = tf.random.fold_in(self._seeds()[1], i)
        own = self.options._replace(kl_bound=state.kl_bounds)
        sizes = (self.budget.samples, self.gradients)
        policy, row, seen = vips_step(
            state.policy, self.target, step_seed, own, *sizes, state.batches
        )
        kl_bounds, scores = _adapt(state, seen.gains)
        first_row = START_DRAWS + i * self.budget.slots * STORED_DRAWS
        store = _put(state.store, first_row, seen.latest.points, seen.latest.values)
        history = record(state.history, i, row)
        return SearchState(policy, kl_bounds, scores, store, history, seen.batches)

    def exchange(self, r: Int32[Array, ""], state: SearchState, scale: Scale) -> SearchState:
        """What ends round r: K components stay, the others are replaced."""
        round_seed = tf.random.fold_in(self._seeds()[2], r)
        components = self.budget.components
        return _exchange(state, self.target, round_seed, scale.gaps[r], scale.spread, components)

    def result(self, state: SearchState) -> Mixture:
        """The K components that stayed, without what the last exchange added."""
        kept = Mixture(*(array[: self.budget.components] for array in state.policy))
        return _normalised(kept)

    def _seeds(self) -> list[tf.Tensor]:
        """Of the start, the steps and the exchanges."""
        return tf.unstack(tf.random.split(self.seed, 3))


def search(
    start: Mixture,
    target: Target,
    seed: Int32[Array, "2"],
    options: StepOptions,
    hparams: SearchHparams,
    gradients: bool = False,
) -> tuple[Mixture, VipsHistory]:
    """A mixture with as many components as `start`, and a row per step; all in one graph.

    Args:
        start: K components; its draws are the first candidates, and their spread the unit of a new
            component's covariance.
        target, seed, options, gradients: as in `Search`.
    """
    budget = budget_of(start.num_components, start.dim, hparams, gradients)
    pieces = Search(target, seed, options, budget, gradients)
    state, scale = pieces.begin(start)

    def one_round(r: tf.Tensor, state: SearchState) -> SearchState:
        first_step = r * budget.steps_per_round
        state = repeat(budget.steps_per_round, pieces.step, state, first_step)
        return pieces.exchange(r, state, scale)

    state = repeat(budget.rounds, one_round, state)
    return pieces.result(state), state.history


def _first_state(
    start: Mixture,
    points: Float64[Array, "N D"],
    values: Float64[Array, " N"],
    seed: Int32[Array, "2"],
    budget: Budget,
) -> SearchState:
    """The start, the spare components at draws from it, and a store that holds the first points."""
    means, ids = start.sample_with_components(budget.spare, seed)
    spare_trils = tf.gather(start.scale_trils, ids)
    policy = Mixture(
        _filled(budget.slots, -np.log(budget.slots)),
        tf.concat([start.means, means], axis=0),
        tf.concat([start.scale_trils, spare_trils], axis=0),
    )
    room = budget.steps * budget.slots * STORED_DRAWS
    store = Store(
        tf.concat([points, tf.zeros([room, start.dim], DENSITY)], axis=0),
        tf.concat([_finite(values), _filled(room, -np.inf)], axis=0),
    )
    kl_bounds = _filled(budget.slots, KL_BOUND)
    scores = _filled(budget.slots, np.nan)
    batches: Batches | tuple[()] = ()
    if budget.reused_steps:
        batches = no_batches(policy, 1 + budget.reused_steps, budget.samples)
    return SearchState(policy, kl_bounds, scores, store, empty_history(budget.steps), batches)


def _spread(points: Float64[Array, "N D"]) -> Float64[Array, "D D"]:
    """The Cholesky factor of the points' covariance."""
    centred = points - tf.reduce_mean(points, axis=0)
    covariance = tf.matmul(centred, centred, transpose_a=True) / points.shape[0]
    return tf.linalg.cholesky(covariance)


def _gaps(values: Float64[Array, " N"], quantiles: np.ndarray) -> Float64[Array, " R"]:
    """Quantiles of how far finite values lie below the largest; all inf if none is finite."""
    finite = tf.math.is_finite(values)
    below = tf.reduce_max(_finite(values)) - values
    ordered = tf.sort(tf.where(finite, below, tf.constant(np.inf, DENSITY)))
    last = tf.cast(tf.reduce_sum(tf.cast(finite, tf.int32)) - 1, DENSITY)
    rows = tf.cast(tf.nn.relu(quantiles * last), tf.int32)
    return tf.gather(ordered, rows)


def _adapt(
    state: SearchState, gains: Float64[Array, " C"]
) -> tuple[Float64[Array, " C"], Float64[Array, " C"]]:
    """The KL bounds of the next step, and the scores of this one."""
    scores = state.policy.log_weights + gains
    rose = tf.cast(scores > state.scores, tf.int32)
    factor = tf.gather(tf.constant([KL_BOUND_DECAY, KL_BOUND_GROWTH], DENSITY), rose)
    factor = tf.where(tf.math.is_nan(state.scores), tf.ones_like(factor), factor)
    kl_bounds = tf.clip_by_value(state.kl_bounds * factor, MIN_KL_BOUND, MAX_KL_BOUND)
    return kl_bounds, scores


def _put(
    store: Store,
    first_row: Int32[Array, ""],
    points: Float64[Array, "C S D"],
    values: Float64[Array, "C S"],
) -> Store:
    """The first STORED_DRAWS draws of every component go into the rows from `first_row` on."""
    points = tf.reshape(points[:, :STORED_DRAWS], [-1, points.shape[-1]])
    values = tf.reshape(values[:, :STORED_DRAWS], [-1])
    rows = (first_row + tf.range(points.shape[0]))[:, None]
    return Store(
        tf.tensor_scatter_nd_update(store.points, rows, points),
        tf.tensor_scatter_nd_update(store.values, rows, _finite(values)),
    )


def _exchange(
    state: SearchState,
    target: Target,
    seed: Int32[Array, "2"],
    gap: Float64[Array, ""],
    spread: Float64[Array, "D D"],
    k: int,
) -> SearchState:
    """K components stay; the others are replaced where the target exceeds those most."""
    slots = state.policy.num_components
    spare = slots - k
    candidates_seed, scales_seed, prune_seed = tf.unstack(tf.random.split(seed, 3))
    kept, rows = prune(state.policy, k, prune_seed)
    means = _candidates(kept, state.store, spare, gap, candidates_seed)
    scales = _local_scales(means, target, spread, scales_seed)
    added = Mixture(
        _filled(spare, np.log(NEW_WEIGHT / slots)), means, scales[:, None, None] * spread
    )

    policy = Mixture(*(tf.concat(pair, axis=0) for pair in zip(kept, added, strict=True)))
    kl_bounds = [tf.gather(state.kl_bounds, rows), _filled(spare, KL_BOUND)]
    scores = [tf.gather(state.scores, rows), _filled(spare, np.nan)]
    batches = state.batches
    if batches:
        of_kept = (tf.gather(array, rows) for array in batches)
        of_added = no_batches(added, *batches.values.shape[1:])
        batches = Batches(*(tf.concat(pair, 0) for pair in zip(of_kept, of_added, strict=True)))
    return state._replace(
        policy=_normalised(policy),
        kl_bounds=tf.concat(kl_bounds, axis=0),
        scores=tf.concat(scores, axis=0),
        batches=batches,
    )


def prune(
    policy: Mixture, k: int, seed: Int32[Array, "2"], num_samples: int = 50
) -> tuple[Mixture, Int32[Array, " K"]]:
    """The K components that lose least when the others go, one by one, and which they are.

    When o goes, the closest other component j takes its weight, so what is lost is

        w_o min(1, E_{q(x|o)}[log q~(x) - log(q~(x) - w_o q(x|o) + w_o q(x|j))]):

    w_o for a component that nothing covers, as by weight alone, and 0 for one of two that are the
    same. By weight alone a mode of little mass would go before one of a heavy pair.
    """
    slots = policy.num_components
    densities, closeness = _densities_at_draws(policy, num_samples, seed)
    own = tf.transpose(tf.linalg.diag_part(tf.transpose(densities, [1, 0, 2])))  # [C, S]

    def remove_one(_: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        alive = weights > 0.0
        heirs = _closest_others(closeness, alive)  # [C, C], a row of zeros and a one for each
        weight = weights[:, None]
        mixture = tf.linalg.matvec(densities, weights[None] * tf.ones([slots, 1], DENSITY))
        of_heir = tf.linalg.matvec(densities, heirs)  # [C, S]
        without = tf.nn.relu(mixture - weight * own) + weight * of_heir
        excess = tf.reduce_mean(tf.math.log(mixture) - tf.math.log(without + 1e-300), axis=1)
        loss = weights * tf.clip_by_value(excess, 0.0, 1.0)
        loss = tf.where(alive, loss, weights.dtype.max)

        gone = tf.one_hot(tf.argmin(loss), slots, dtype=DENSITY)
        heir = tf.linalg.matvec(heirs, gone, transpose_a=True)
        return weights * (1.0 - gone) + heir * tf.reduce_sum(weights * gone)

    # A weight that underflows is not a component that is gone.
    start = tf.maximum(tf.exp(policy.log_weights), 1e-300)
    log_weights = tf.math.log(repeat(slots - k, remove_one, start))
    rows = tf.math.top_k(log_weights, k).indices
    pruned = policy._replace(log_weights=log_weights)
    kept = Mixture(*(tf.gather(array, rows) for array in pruned))
    return _normalised(kept), rows


def _densities_at_draws(
    policy: Mixture, num_samples: int, seed: Int32[Array, "2"]
) -> tuple[Float64[Array, "C S C"], Float64[Array, "C C"]]:
    """At draws of every component the densities of all, and E_{q(x|o)}[log q(x|j)] of o and j.

    Densities are relative to the largest at each point: the sums of `prune` are then matrix
    products, where logarithms of sums take XLA minutes to compile.
    """
    slots, dim = policy.means.shape
    _, points = draw_from_each(policy, num_samples, seed)
    log_densities = policy.component_log_prob(tf.reshape(points, [-1, dim]))
    log_densities = tf.reshape(log_densities, [slots, num_samples, slots])
    closeness = tf.reduce_mean(log_densities, axis=1)
    largest = tf.reduce_max(log_densities, axis=-1, keepdims=True)
    return tf.exp(log_densities - largest), closeness


def _closest_others(
    closeness: Float64[Array, "C C"], alive: Bool[Array, " C"]
) -> Float64[Array, "C C"]:
    """For each component a one at the closest other that is alive, else zeros."""
    slots = closeness.shape[0]
    barred = tf.eye(slots, dtype=DENSITY) + tf.cast(~alive, DENSITY)
    closest = tf.argmax(closeness - barred * 1e300, axis=1, output_type=tf.int32)
    return tf.one_hot(closest, slots, dtype=DENSITY)


def _candidates(
    policy: Mixture,
    store: Store,
    number: int,
    gap: Float64[Array, ""],
    seed: Int32[Array, "2"],
) -> Float64[Array, "B D"]:
    """Where to add components: the best stored point of each of `number` random parts of the store.

    The best is the one with the largest log p* - max(log q, max log q - gap) (arenz2020): the gap
    says how many nats below the mixture's peak a point counts as not covered at all, and from there
    on only the target decides.
    """
    unused = tf.constant(-np.inf, DENSITY)
    used = store.values > unused
    log_policy = density_at(policy, store.points)
    peak = tf.reduce_max(tf.where(used, log_policy, unused))
    covered = tf.maximum(log_policy, peak - gap)
    excess = tf.where(used, store.values - covered, unused)

    part = tf.random.stateless_uniform(tf.shape(excess), seed, 0, number, tf.int32)
    mine = part[None] == tf.range(number)[:, None]
    best = tf.argmax(tf.where(mine, excess, unused), axis=1)
    return tf.gather(store.points, best)


def _local_scales(
    means: Float64[Array, "B D"],
    target: Target,
    spread: Float64[Array, "D D"],
    seed: Int32[Array, "2"],
) -> Float64[Array, " B"]:
    """For each new mean the one of SCALES with the highest ELBO, E[log p*] + D log scale."""
    number, dim = means.shape
    scales = tf.constant(SCALES, DENSITY)
    shape = [number, len(SCALES), SCALE_DRAWS]
    z = tf.random.stateless_normal([*shape, dim], seed, dtype=DENSITY)
    x = means[:, None, None] + scales[:, None, None] * tf.linalg.matvec(spread, z)
    values = tf.reshape(values_at(target, tf.reshape(x, [-1, dim])), shape)

    finite = tf.math.is_finite(values)
    lowest = tf.reduce_min(tf.where(finite, values, values.dtype.max))
    values = tf.where(finite, values, lowest - 1.0)
    elbo = tf.reduce_mean(values, axis=-1) + dim * tf.math.log(scales)
    return tf.gather(scales, tf.argmax(elbo, axis=1))


def _filled(length: int, value: float) -> Float64[Array, " N"]:
    return tf.fill([length], tf.constant(value, DENSITY))


def _finite(values: Float64[Array, " N"]) -> Float64[Array, " N"]:
    """Values that are not finite as -inf, the mark of an unused row."""
    return tf.where(tf.math.is_finite(values), values, tf.constant(-np.inf, DENSITY))


def _normalised(policy: Mixture) -> Mixture:
    return policy._replace(log_weights=tf.nn.log_softmax(policy.log_weights))
