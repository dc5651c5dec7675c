"""The parts of a run, each beside an obvious alternative."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any

import virl_tf
from virl_tf.discriminator.fit import DiscriminatorFitter, LogitData
from virl_tf.discriminator.network import build_network
from virl_tf.features import Features
from virl_tf.hparams import Hparams, default_hparams, known, rows_per_batch
from virl_tf.kde import Kde
from virl_tf.mixture import empty_mixture, gaussian, standard_normal_start
from virl_tf.network_stack import FrozenNetwork, NetworkStack
from virl_tf.numerics import DENSITY, NETWORK, split_seed
from virl_tf.reward import CumulativeValues, Reward, evaluate
from virl_tf.tasks import GridWalker, RandomGaussians, Task
from virl_tf.vips.vips import default_samples

import keras
import numpy as np
import tensorflow as tf

from experiments.benchmark.timing import (
    Row,
    compare,
    exponent,
    forward_gflop,
    rows_of,
    training_gflop,
)
from experiments.benchmark.vips import compiled_steps
from experiments.specification import published_column

NETWORKS = (
    *((4, 256, 0.0, False), (4, 256, 0.01, False), (4, 256, 0.0, True)),
    *((3, 128, 0.0, False), (3, 128, 0.01, False)),
)


def training(repeats: int) -> list[Row]:
    """One epoch of phi, per step of 250 + 250 points, beside `keras.Model.fit` on the same data."""
    rows, n, dim = [], 8000, 2
    data = np.random.default_rng(0).normal(size=(2, n, dim)).astype("float32")
    experts, samples = (LogitData(tf.constant(x), tf.zeros(n), tf.ones(n)) for x in data)
    for layers, size, dropout, batch_norm in NETWORKS:
        network: dict[str, Any] = {"num_layers": layers, "layer_size": size}
        network |= {"dropout": dropout, "batch_norm": batch_norm}
        hparams = default_hparams().override({"network": network})
        fitter = DiscriminatorFitter(dim, hparams)
        epochs = iter(range(10_000))

        def ours(fitter: DiscriminatorFitter, epochs: Iterator[int]) -> None:
            float(fitter._train_epoch(experts, samples, tf.constant([0, next(epochs)])))

        batch = rows_per_batch(hparams.training, n)
        steps = n // batch
        candidates: dict[str, Callable[[], Any]] = {
            "virl_tf": partial(ours, fitter, epochs),
            "Keras fit": keras_fit(hparams, data.reshape(-1, dim), batch, steps),
        }
        case = f"{layers} x {size}, dropout {dropout:g}" + (", batch norm" if batch_norm else "")
        gflop = training_gflop(layers, size, dim, 2 * batch)
        rows += rows_of("training step", case, compare(candidates, repeats), steps, gflop)
    return rows


def keras_fit(hparams: Hparams, x: np.ndarray, batch: int, steps: int) -> Callable[[], Any]:
    """An epoch of Keras's own loop on the same points, all steps in one call."""
    model = build_network(x.shape[1], hparams.network)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    adam = keras.optimizers.Adam(hparams.training.learning_rate)
    model.compile(adam, loss, steps_per_execution=steps, jit_compile=False)
    labels, weights = np.repeat([1.0, 0.0], len(x) // 2)[:, None], np.ones(len(x))
    return lambda: model.fit(x, labels, sample_weight=weights, batch_size=2 * batch, verbose=0)


def reward_of(count: int) -> Reward:
    """A reward of `count` random networks, 4 x 256, of points in 2-D."""
    layers, size, dim = 4, 256, 2
    rng = np.random.default_rng(0)
    shapes = [(dim, size), (size,), (layers - 1, size, size), (layers - 1, size), (size, 1), (1,)]
    weights = (rng.normal(size=(count, *shape)) / np.sqrt(size) for shape in shapes)
    arrays = (tf.constant(values, NETWORK) for values in weights)
    stack = NetworkStack(FrozenNetwork(*arrays), tf.constant(count))
    shift, scale = tf.zeros([dim], DENSITY), tf.ones([dim], DENSITY)
    features = Features(shift, scale, tf.zeros([dim, 0], NETWORK))
    base = gaussian(np.zeros(dim), np.eye(dim))
    one, nothing = tf.constant(1.0, DENSITY), tf.constant(0.0, DENSITY)
    return Reward(base, one, stack, features, empty_mixture(dim), nothing)


def _value(reward: Reward, x: tf.Tensor) -> np.ndarray:
    return evaluate(reward, x).numpy()


@tf.function
def _gradient(reward: Reward, x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        values = reward.log_prob(x)
    return tape.gradient(values, x)


def reward(repeats: int) -> list[Row]:
    """The cumulative reward of T networks (4 x 256) at 4,000 points, and its gradient."""
    rows, points, dim = [], 4000, 2
    x = tf.random.stateless_normal([points, dim], [1, 2], dtype=DENSITY)
    forward = forward_gflop(4, 256, dim, points)
    for count in (1, 10, 50, 100):
        value = reward_of(count)
        measured = compare({"virl_tf": partial(_value, value, x)}, repeats)
        rows += rows_of("cumulative reward", f"T = {count}", measured, gflop=forward * count)
        measured = compare({"virl_tf": partial(_gradient, value, x)}, repeats)
        rows += rows_of("its gradient", f"T = {count}", measured, gflop=2 * forward * count)
    return rows


def policy_steps(repeats: int) -> list[Row]:
    """One VIPS step on a cheap target for all K and D, and on a reward of ten networks."""
    rows = []
    for dim in (2, 5, 20):
        for k in (1, 10, 50, 200) if dim < 20 else (1, 10, 50):
            target = gaussian(np.ones(dim), np.eye(dim)).log_prob
            rows += _step_rows(f"K = {k}, D = {dim}", k, dim, target, default_samples(dim), repeats)
    target, samples = reward_of(10).log_prob, default_samples(2)
    rows += _step_rows("K = 10, D = 2, ten networks", 10, 2, target, samples, repeats)
    return rows


def _step_rows(
    case: str, k: int, dim: int, target: Any, num_samples: int, repeats: int
) -> list[Row]:
    steps = 20 if k * num_samples < 20_000 else 3
    start, seed = standard_normal_start(k, dim, 0), tf.constant([0, 1])
    function = compiled_steps(target, start, steps, num_samples)
    measured = compare({"virl_tf": lambda: function(start, seed).means.numpy()}, repeats)
    return rows_of("policy step", f"{case}, {num_samples} samples", measured, steps)


def kde(repeats: int) -> list[Row]:
    """Log density of 2,000 points under N demonstrations, beside scipy and scikit-learn."""
    from scipy.stats import gaussian_kde
    from sklearn.neighbors import KernelDensity

    rows, rng = [], np.random.default_rng(0)
    for dim in (2, 10):
        queries = rng.normal(size=(2000, dim))
        for n in (8000, 100_000):
            data, width = rng.normal(size=(n, dim)), 0.3
            ours = Kde(tf.constant(data, DENSITY), tf.constant(np.full(dim, width), DENSITY))
            theirs = gaussian_kde(data.T, bw_method=width)
            trees = KernelDensity(bandwidth=width, rtol=1e-6).fit(data)
            candidates = {
                "virl_tf": partial(ours.log_prob, queries),
                "scipy": partial(theirs.logpdf, queries.T),
                "scikit-learn": partial(trees.score_samples, queries),
            }
            measured = compare(candidates, max(1, repeats // 2))
            rows += rows_of("KDE", f"N = {n:,}, D = {dim}", measured)
    return rows


def slice_sampling(repeats: int) -> list[Row]:
    """8,000 demonstrations of both tasks."""
    rows: list[Row] = []
    tasks: tuple[Task, ...] = (RandomGaussians(50, 0), GridWalker(5))
    for case, task in zip(("Gaussians, m = 50", "grid walker, d = 5"), tasks, strict=True):
        measured = compare({"virl_tf": partial(task.demonstrations, 8000, 0)}, max(1, repeats // 2))
        rows += rows_of("slice sampling of 8,000", case, measured)
    return rows


def growth(repeats: int) -> list[Row]:
    """Exponents of the cost in T, N, K and D."""
    rng, rows = np.random.default_rng(0), []

    def add(part: str, what: str, sizes: Sequence[int], seconds: Callable[[int], float]) -> None:
        measured = [seconds(size) for size in sizes]
        row = {"part": part, "case": f"{what} = {sizes[0]:,} to {sizes[-1]:,}", "who": "virl_tf"}
        rows.append({**row, "cpu_seconds": measured[-1], "exponent": exponent(sizes, measured)})

    def median(make: Callable[[int], Callable[[], Any]]) -> Callable[[int], float]:
        return lambda size: compare({"it": make(size)}, repeats)["it"]["cpu_seconds"]

    x = tf.random.stateless_normal([4000, 2], [1, 2], dtype=DENSITY)
    grid = tf.random.stateless_normal([10_000, 2], [1, 3], dtype=DENSITY)

    def next_at(count: int) -> Callable[[], Any]:
        """What iteration `count` adds where the networks before it are summed already."""
        value, known = reward_of(count), CumulativeValues(grid)
        known(value.truncate(count - 1))
        return lambda: copy(known)(value).numpy()

    def kde_at(n: int) -> Callable[[], Any]:
        value = Kde(tf.constant(rng.normal(size=(n, 2)), DENSITY), tf.ones([2], DENSITY))
        return lambda: value.log_prob(x).numpy()

    def steps_at(k: int, dim: int) -> Callable[[], Any]:
        start, seed = standard_normal_start(k, dim, 0), tf.constant(split_seed(0, 0, "growth"))
        target = gaussian(np.ones(dim), np.eye(dim)).log_prob
        function = compiled_steps(target, start, 5, default_samples(dim))
        return lambda: function(start, seed).means.numpy()

    counts = [10, 20, 50, 100]
    add(
        "cumulative reward", "T", counts, median(lambda count: partial(_value, reward_of(count), x))
    )
    add("the same at fixed points, in iteration T", "T", counts, median(next_at))
    add("KDE", "N", [4000, 16_000, 64_000], median(kde_at))
    add("iteration of a run", "N", [2000, 4000, 8000, 16_000], iteration_seconds)
    add("policy step, D = 2", "K", [25, 50, 100, 200], median(lambda k: steps_at(k, 2)))
    add("policy step, K = 10", "D", [5, 10, 20], median(lambda dim: steps_at(10, dim)))
    return rows


def iteration_seconds(n: int) -> float:
    """CPU seconds of an iteration with n demonstrations.

    V-IRL 10c of Table 2, with a quarter of its epochs, steps and negatives.
    """
    column, base = published_column("gaussians", "virl", 10), default_hparams()
    less = {
        "training": {"num_epochs": base.training.num_epochs // 4},
        "policy": {"update_steps": column["policy"]["update_steps"] // 4},
        "loop": {"num_iterations": 4, "num_negatives": known(base.loop.num_negatives) // 4},
    }
    demonstrations = RandomGaussians(50, 0).mixture.sample(n, [0, 1])
    hparams = base.override(column).override(less)
    history = virl_tf.fit(demonstrations, hparams=hparams).history
    seconds = history[[f"{part}_seconds" for part in ("sample", "training", "policy")]].sum(axis=1)
    return float(seconds.iloc[1:].median())  # the first one compiles
