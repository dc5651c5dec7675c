"""VIPS with components that come and go (arenz2020): a search over K + B slots, of which K are the
result.

In rounds: some steps of all slots; then B are pruned, those that are missed least, and as many are
added where the target exceeds the mixture of the others most, among the points evaluated so far.
The capacity is fixed, so a component that comes or goes is a row written anew: nothing is traced
again.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.hparams import SearchHparams
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY
from virl_tf.vips.surrogate import num_coefficients
from virl_tf.vips.vips import Draws, Target, VipsHistory, draw_past, vips_step


def spare_components(num_components: int, hparams: SearchHparams) -> int:
    """B."""
    return hparams.spare_components or max(8, num_components // 4)


def num_rounds(num_components: int, hparams: SearchHparams) -> int:
    """The number of rounds: many components need more of them, and few do, because it matters more
    which ones stay.
    """
    return hparams.num_rounds or max(
        10, math.ceil(0.4 * num_components), min(30, 250 // num_components)
    )


def search_samples(dim: int, hparams: SearchHparams) -> int:
    """New samples per slot and step."""
    return math.ceil(
        (hparams.samples_per_component or max(30, 5 * num_coefficients(dim) // 3))
        / (1 + hparams.reused_steps)
    )


def num_evaluations(num_components: int, dim: int, hparams: SearchHparams) -> int:
    """How often the search evaluates the target."""
    spare, rounds = spare_components(num_components, hparams), num_rounds(num_components, hparams)
    samples, slots = search_samples(dim, hparams), num_components + spare
    steps = hparams.steps_per_round * slots * samples
    past = hparams.reused_steps * samples
    added = spare * (len(hparams.scales) * hparams.scale_draws + past)
    return hparams.start_draws + slots * past + rounds * (steps + added)


class Store(NamedTuple):
    """Evaluated points: some of every step's draws, a sparse record of where the search has been.

    Unused rows are -inf.

    Storing all draws would let converged components crowd the rest out.
    """

    points: Any  # [N, D]
    values: Any  # [N], log p* there


class SearchState(NamedTuple):
    """What the search carries from step to step."""

    policy: Mixture  # C = K + B slots
    kl_bounds: Any  # [C], each component's step size
    # [C], log w_o + its gain at the last step; nan for a component that has made no step yet
    scores: Any
    store: Store
    past: Any = ()  # draws to use again


def search(
    start: Mixture,
    target: Target,
    seed: Any,
    weight_kl_bound: Any,
    ridge: Any,
    hparams: SearchHparams,
) -> tuple[Mixture, VipsHistory]:
    """A mixture with as many components as `start`, and a row per step.

    Not compiled: `fit_policy` compiles it.

    Args:
        start: K components; its draws are the first candidates, and its spread the unit of a new
            component's covariance.
        target, seed, weight_kl_bound, ridge: as in `vips_steps`.
    """
    k, spare = start.num_components, spare_components(start.num_components, hparams)
    seeds = tf.random.split(seed, 3)
    steps, rounds = hparams.steps_per_round, num_rounds(k, hparams)
    num_samples = search_samples(start.dim, hparams)
    state, spread, gaps = _initial_state(start, target, seeds[0], spare, rounds, hparams)
    history = VipsHistory(*(tf.zeros([rounds * steps], DENSITY) for _ in VipsHistory._fields))

    def step(i: tf.Tensor, state: SearchState, history: VipsHistory) -> Any:
        step_seed = tf.random.fold_in(seeds[1], i)
        policy, info, draws = vips_step(
            state.policy,
            target,
            step_seed,
            state.kl_bounds,
            weight_kl_bound,
            ridge,
            num_samples,
            state.past,
        )
        kl_bounds, scores = _adapt(state, draws, hparams)
        first = hparams.start_draws + i * (k + spare) * hparams.stored_draws
        store = _put(state.store, first, draws, hparams.stored_draws)
        history = tf.nest.map_structure(
            lambda h, v: tf.tensor_scatter_nd_update(h, [[i]], [v]), history, info
        )
        return i + 1, SearchState(policy, kl_bounds, scores, store, draws.past), history

    def one_round(r: tf.Tensor, state: SearchState, history: VipsHistory) -> Any:
        stop = (r + 1) * steps
        _, state, history = tf.while_loop(
            lambda i, *_: i < stop, step, (r * steps, state, history), maximum_iterations=steps
        )
        return (
            r + 1,
            _exchange(state, target, tf.random.fold_in(seeds[2], r), gaps[r], spread, k, hparams),
            history,
        )

    _, state, history = tf.while_loop(
        lambda r, *_: r < rounds,
        one_round,
        (tf.constant(0), state, history),
        maximum_iterations=rounds,
    )
    kept = Mixture(*(a[:k] for a in state.policy))  # without what the last exchange added
    return kept._replace(log_weights=tf.nn.log_softmax(kept.log_weights)), history


def _initial_state(
    start: Mixture, target: Target, seed: Any, spare: int, rounds: int, hparams: SearchHparams
) -> tuple[SearchState, tf.Tensor, tf.Tensor]:
    """The state, the Cholesky factor of the start's covariance [D, D], and the thresholds of the
    rounds [R].
    """
    seeds = tf.random.split(seed, 3)
    points = start.sample(hparams.start_draws, seeds[0])
    values = tf.cast(target(points), DENSITY)
    centred = points - tf.reduce_mean(points, axis=0)
    spread = tf.linalg.cholesky(tf.matmul(centred, centred, transpose_a=True) / hparams.start_draws)

    slots = start.num_components + spare
    more, ids = start.sample_with_components(spare, seeds[1])
    policy = Mixture(
        tf.fill([slots], tf.constant(-np.log(slots), DENSITY)),
        tf.concat([start.means, more], axis=0),
        tf.concat([start.scale_trils, tf.gather(start.scale_trils, ids)], axis=0),
    )
    room = rounds * hparams.steps_per_round * slots * hparams.stored_draws
    store = Store(
        tf.concat([points, tf.zeros([room, start.dim], DENSITY)], axis=0),
        tf.concat([_finite(values), tf.fill([room], tf.constant(-np.inf, DENSITY))], axis=0),
    )
    kl_bounds = tf.fill([slots], tf.constant(hparams.kl_bound, DENSITY))
    scores = tf.fill([slots], tf.constant(np.nan, DENSITY))
    gaps = _gaps(values, np.resize(hparams.gap_quantiles, rounds))
    return (
        SearchState(policy, kl_bounds, scores, store, _past(policy, target, seeds[2], hparams)),
        spread,
        gaps,
    )


def _past(policy: Mixture, target: Target, seed: Any, hparams: SearchHparams) -> Any:
    """What components that have made no step yet have to use again; () where nothing is."""
    if not hparams.reused_steps:
        return ()
    return draw_past(
        policy, target, seed, hparams.reused_steps, search_samples(policy.dim, hparams)
    )


def _gaps(values: tf.Tensor, quantiles: np.ndarray) -> tf.Tensor:
    """Quantiles of how far finite values lie below the largest: [N], [R] -> [R].

    All inf if none is finite.
    """
    finite = tf.math.is_finite(values)
    below = tf.reduce_max(_finite(values)) - values
    ordered = tf.sort(tf.where(finite, below, tf.constant(np.inf, DENSITY)))
    last = tf.cast(tf.reduce_sum(tf.cast(finite, tf.int32)) - 1, DENSITY)
    return tf.gather(ordered, tf.cast(tf.nn.relu(quantiles * last), tf.int32))


def _adapt(state: SearchState, draws: Draws, hparams: SearchHparams) -> tuple[tf.Tensor, tf.Tensor]:
    """Each component's KL bound grows when its reward log w_o + gain rose over the last step, and
    shrinks when not.
    """
    scores = state.policy.log_weights + draws.gains
    rose = tf.constant([hparams.kl_bound_decay, hparams.kl_bound_growth], DENSITY)
    factor = tf.gather(rose, tf.cast(scores > state.scores, tf.int32))
    factor = tf.where(tf.math.is_nan(state.scores), tf.ones_like(factor), factor)
    return tf.clip_by_value(
        state.kl_bounds * factor, hparams.min_kl_bound, hparams.max_kl_bound
    ), scores


def _put(store: Store, first: tf.Tensor, draws: Draws, each: int) -> Store:
    """The first `each` draws of every component go into the rows from `first` on."""
    dim = draws.points.shape[-1]
    points, values = (
        tf.reshape(draws.points[:, :each], [-1, dim]),
        tf.reshape(draws.values[:, :each], [-1]),
    )
    rows = (first + tf.range(points.shape[0]))[:, None]
    return Store(
        tf.tensor_scatter_nd_update(store.points, rows, points),
        tf.tensor_scatter_nd_update(store.values, rows, _finite(values)),
    )


def _exchange(
    state: SearchState,
    target: Target,
    seed: Any,
    gap: tf.Tensor,
    spread: tf.Tensor,
    k: int,
    hparams: SearchHparams,
) -> SearchState:
    """K components stay; the others are replaced where the target exceeds those most."""
    seeds = tf.random.split(seed, 4)
    kept, rows = prune(state.policy, k, seeds[2])
    spare = state.policy.num_components - k
    means = _candidates(kept, state.store, spare, gap, seeds[0])
    scale_trils = _local_scales(means, target, spread, seeds[1], hparams)[:, None, None] * spread
    log_weight = np.log(hparams.new_weight / state.policy.num_components)
    log_weights = tf.concat(
        [kept.log_weights, tf.fill([spare], tf.constant(log_weight, DENSITY))], axis=0
    )
    policy = Mixture(
        tf.nn.log_softmax(log_weights),
        tf.concat([kept.means, means], axis=0),
        tf.concat([kept.scale_trils, scale_trils], axis=0),
    )
    kl_bounds = tf.concat(
        [
            tf.gather(state.kl_bounds, rows),
            tf.fill([spare], tf.constant(hparams.kl_bound, DENSITY)),
        ],
        axis=0,
    )
    scores = tf.concat(
        [tf.gather(state.scores, rows), tf.fill([spare], tf.constant(np.nan, DENSITY))], axis=0
    )
    past = _past(Mixture(*(a[k:] for a in policy)), target, seeds[3], hparams)
    past = tf.nest.map_structure(
        lambda old, new: tf.concat([tf.gather(old, rows), new], axis=0), state.past, past
    )
    return SearchState(policy, kl_bounds, scores, state.store, past)


def prune(policy: Mixture, k: int, seed: Any, num_samples: int = 50) -> tuple[Mixture, tf.Tensor]:
    """The K components that lose least when the others go, one by one, and which they are [K].

    When o goes, the closest other component j takes its weight, so what is lost is

        w_o min(1, E_{q(x|o)}[log q~(x) - log(q~(x) - w_o q(x|o) + w_o q(x|j))]):

    w_o for a component that nothing covers, as by weight alone, and 0 for one of two that are the
    same. By weight alone a mode of little mass would go before one of a heavy pair.
    """
    slots, dim = policy.means.shape
    z = tf.random.stateless_normal([slots, num_samples, dim], seed, dtype=DENSITY)
    x = policy.means[:, None] + tf.einsum("kij,ksj->ksi", policy.scale_trils, z)
    log_components = tf.reshape(
        policy.component_log_prob(tf.reshape(x, [-1, dim])), [slots, num_samples, slots]
    )
    closeness = tf.reduce_mean(log_components, axis=1)  # [from, of], E_{q(x|from)}[log q(x|of)]
    # Relative to the largest: matrix products, where logarithms of sums take XLA minutes to
    # compile. All w_o q(x|o) are wanted to a few digits only.
    components = tf.exp(log_components - tf.reduce_max(log_components, axis=-1, keepdims=True))
    own = tf.transpose(tf.linalg.diag_part(tf.transpose(components, [1, 0, 2])))  # [C, S]

    def remove_one(i: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        alive = weights > 0.0
        barred = tf.eye(slots, dtype=DENSITY) + tf.cast(~alive, DENSITY)
        closest = tf.argmax(closeness - barred * 1e300, axis=1, output_type=tf.int32)
        mixture = tf.linalg.matvec(
            components, weights[None] * tf.ones([slots, 1], DENSITY)
        )  # [C, S]
        taken = tf.linalg.matvec(components, tf.one_hot(closest, slots, dtype=DENSITY))
        without = tf.nn.relu(mixture - weights[:, None] * own) + weights[:, None] * taken
        excess = tf.reduce_mean(tf.math.log(mixture) - tf.math.log(without + 1e-300), axis=1)
        loss = tf.where(alive, weights * tf.clip_by_value(excess, 0.0, 1.0), weights.dtype.max)
        gone = tf.one_hot(tf.argmin(loss), slots, dtype=DENSITY)
        heir = tf.linalg.matvec(tf.one_hot(closest, slots, dtype=DENSITY), gone, transpose_a=True)
        return i + 1, weights * (1.0 - gone) + heir * tf.reduce_sum(weights * gone)

    number = slots - k
    start = tf.maximum(
        tf.exp(policy.log_weights), 1e-300
    )  # a weight that underflows is not a component that is gone
    _, weights = tf.while_loop(
        lambda i, _: i < number, remove_one, (tf.constant(0), start), maximum_iterations=number
    )
    log_weights = tf.math.log(weights)
    rows = tf.math.top_k(log_weights, k).indices
    kept = Mixture(*(tf.gather(a, rows) for a in policy._replace(log_weights=log_weights)))
    return kept._replace(log_weights=tf.nn.log_softmax(kept.log_weights)), rows


def _candidates(policy: Mixture, store: Store, number: int, gap: tf.Tensor, seed: Any) -> tf.Tensor:
    """Where to add components: [number, D], each the best stored point of a random part of the
    store.

    The best is the one with the largest log p* - max(log q, max log q - gap) (arenz2020): the gap
    says how many nats below the mixture's peak a point counts as not covered at all, and from there
    on only the target decides.
    """
    log_policy = policy.log_prob(store.points)
    unused = tf.constant(-np.inf, DENSITY)
    used = store.values > unused
    peak = tf.reduce_max(tf.where(used, log_policy, unused))
    excess = tf.where(used, store.values - tf.maximum(log_policy, peak - gap), unused)
    part = tf.random.stateless_uniform(tf.shape(excess), seed, 0, number, tf.int32)
    mine = part[None] == tf.range(number)[:, None]
    return tf.gather(store.points, tf.argmax(tf.where(mine, excess, unused), axis=1))


def _local_scales(
    means: tf.Tensor, target: Target, spread: tf.Tensor, seed: Any, hparams: SearchHparams
) -> tf.Tensor:
    """For each new mean the share of the start's spread with the highest ELBO, E[log p*] + D log
    scale: [B, D] -> [B].
    """
    scales = tf.constant(hparams.scales, DENSITY)
    number, dim = means.shape
    z = tf.random.stateless_normal(
        [number, len(hparams.scales), hparams.scale_draws, dim], seed, dtype=DENSITY
    )
    x = means[:, None, None] + scales[:, None, None] * tf.linalg.matvec(spread, z)
    values = tf.reshape(tf.cast(target(tf.reshape(x, [-1, dim])), DENSITY), z.shape[:3])
    lowest = tf.reduce_min(tf.where(tf.math.is_finite(values), values, values.dtype.max))
    values = tf.where(tf.math.is_finite(values), values, lowest - 1.0)
    return tf.gather(
        scales, tf.argmax(tf.reduce_mean(values, axis=-1) + dim * tf.math.log(scales), axis=1)
    )


def _finite(values: tf.Tensor) -> tf.Tensor:
    """Values that are not finite as -inf, the mark of an unused row."""
    return tf.where(tf.math.is_finite(values), values, tf.constant(-np.inf, DENSITY))
