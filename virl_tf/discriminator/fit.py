"""Training of phi_t by importance-weighted binary cross-entropy (Eq. 3)."""

import contextlib
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from virl_tf.discriminator.network import (
    build_network,
    freeze,
    pays_to_fuse,
    seed_dropout,
    start_weights,
)
from virl_tf.hparams import Hparams, rows_per_batch
from virl_tf.network_stack import FrozenNetwork
from virl_tf.numerics import NETWORK, numpy_seed, repeat, split_seed
from virl_tf.shapes import Array, Float32


class LogitData(NamedTuple):
    """N points of one class, as the classifier sees them."""

    z: Float32[Array, "N inputs"]
    offsets: Float32[Array, " N"]  # added to the network's output for the logit; 0 but for G-EIM
    weights: Float32[Array, " N"]  # w_t(x) with mean one; ones for the demonstrations


class Classes(NamedTuple):
    """What the classifier tells apart."""

    experts: LogitData
    negatives: LogitData


class FitInfo(NamedTuple):
    """How a fit went.

    Losses are Eq. 3 without the L2 penalty; with no offsets 2 ln 2 = 1.386 is chance.
    """

    train_loss: float  # mean over the last epoch's batches
    validation_loss: float  # of the weights kept
    # of the best constant on the held-out points: 2 ln 2 with no offsets and weights of mean
    # exactly one
    chance_loss: float
    accuracy: float  # weighted, on the validation split
    best_epoch: int
    epochs: int


def weighted_cross_entropy(
    expert_logits: tf.Tensor, sample_logits: tf.Tensor, sample_weights: tf.Tensor
) -> tf.Tensor:
    """Eq. 3 from logits that are high for the expert: mean -log sigma(phi) + mean -w log(1 -
    sigma(phi)); [N], [M], [M] -> [].

    -log sigma(u) = softplus(-u) and -log(1 - sigma(u)) = softplus(u), which never take the
    logarithm of a rounded zero.
    """
    return tf.reduce_mean(tf.nn.softplus(-expert_logits)) + tf.reduce_mean(
        sample_weights * tf.nn.softplus(sample_logits)
    )


def chance_loss(experts: LogitData, samples: LogitData) -> float:
    """Eq. 3 of the best constant in the network's place; (1 + m) log(1 + m) - m log m with weights
    of mean m and no offsets.
    """
    expert, sample, weights = (
        np.asarray(a, np.float64) for a in (experts.offsets, samples.offsets, samples.weights)
    )
    # The loss is convex in the constant: bisection of its slope. All held-out weights can be zero
    # where one training point has all the weight, as in a run of G-EIM that diverges; then the
    # constant goes to the upper end.
    offsets = np.concatenate([expert, sample])
    low, high = -offsets.max() - 60.0, -offsets.min() + 60.0
    for _ in range(60):
        constant = 0.5 * (low + high)
        slope = np.mean(weights * _sigmoid(constant + sample)) - np.mean(
            _sigmoid(-constant - expert)
        )
        low, high = (low, constant) if slope > 0.0 else (constant, high)
    return float(
        np.mean(np.logaddexp(0.0, -high - expert))
        + np.mean(weights * np.logaddexp(0.0, high + sample))
    )


def _sigmoid(u: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -u))


class _Best(NamedTuple):
    """The best epoch so far."""

    loss: float
    accuracy: float
    epoch: int
    weights: list[np.ndarray]


class DiscriminatorFitter:
    """Fits phi_t for every t with one Keras model and one compiled epoch.

    The only mutable object of the algorithm: each fit first sets every variable (weights, Adam's
    moments, dropout's generators), so that a fit depends on its arguments alone. Building a model
    anew for every t would trace it anew.
    """

    def __init__(self, num_inputs: int, hparams: Hparams):
        self.hparams = hparams.training
        self.model = build_network(num_inputs, hparams.network)
        average = self.hparams.weight_average
        # Holds the moving average of the model's weights, where there is one.
        self.validated = build_network(num_inputs, hparams.network) if average else self.model
        ema = {"use_ema": True, "ema_momentum": average} if average else {}
        self.optimizer = keras.optimizers.Adam(self.hparams.learning_rate, **ema)
        self.optimizer.build(self.model.trainable_variables)
        self._optimizer_start = [variable.numpy() for variable in self.optimizer.variables]
        self._train_epoch = tf.function(
            self._epoch, autograph=False, jit_compile=pays_to_fuse(hparams.network)
        )
        self._validate = tf.function(self._validation, autograph=False)

    @property
    def num_traces(self) -> int:
        """How often the compiled epoch was traced: once for all iterations of a run."""
        return self._train_epoch.experimental_get_tracing_count()

    def fit(
        self,
        train: Classes,
        held_out: Classes,
        previous: Sequence[np.ndarray],
        seed: int,
        iteration: int,
    ) -> tuple[FrozenNetwork, list[np.ndarray], FitInfo]:
        """Train one phi_t on `train`; keep the (averaged) weights of the epoch best on `held_out`.

        Args:
            previous: Keras weights of phi_{t-1}; empty at t = 0.
            seed, iteration: for the start, the order of batches and the dropout masks.

        Returns:
            phi_t as it predicts, its Keras weights, and how the fit went.
        """
        self._reset(previous, seed, iteration)
        shuffles = split_seed(seed, iteration, "batches")
        warm_up = min(self.hparams.warm_up_epochs, self.hparams.num_epochs)
        best = _Best(np.inf, 0.0, -1, self.model.get_weights())
        train_loss, epoch = np.nan, -1
        for epoch in range(self.hparams.num_epochs):
            epoch_seed = tf.constant(shuffles + [0, epoch])
            train_loss = float(self._train_epoch(*train, epoch_seed))
            loss, accuracy = (float(v) for v in self._validate(*held_out))
            if epoch + 1 < warm_up:
                continue
            if loss < best.loss:
                best = _Best(loss, accuracy, epoch, self.validated.get_weights())
            waited = epoch - max(best.epoch, self.hparams.warm_up_epochs - 1)
            if self.hparams.patience and waited >= self.hparams.patience:
                break
        self.model.set_weights(best.weights)
        chance = chance_loss(*held_out)
        info = FitInfo(train_loss, best.loss, chance, best.accuracy, best.epoch, epoch + 1)
        return freeze(self.model), self.model.get_weights(), info

    def _reset(self, previous: Sequence[np.ndarray], seed: int, iteration: int) -> None:
        """Set every variable: weights, Adam's moments, dropout's generators."""
        start = numpy_seed(seed, iteration, "initial weights")
        weights = start_weights(self.model, self.hparams.start, previous, start)
        self.model.set_weights(weights)
        for variable, value in zip(self.optimizer.variables, self._optimizer_start, strict=True):
            variable.assign(value)
        seed_dropout(self.model, split_seed(seed, iteration, "dropout"))

    def _epoch(self, experts: LogitData, samples: LogitData, seed: tf.Tensor) -> tf.Tensor:
        """One pass over the experts in whole batches of equally many of both classes, without a
        random rest of less than a batch: the mean loss.

        Compiled.
        """
        num_experts = experts.z.shape[0]
        size = rows_per_batch(self.hparams, num_experts)
        steps = num_experts // size
        seeds = tf.random.split(seed, 2)
        experts = _shuffle(experts, steps * size, seeds[0])
        samples = _shuffle(samples, steps * size, seeds[1])

        def train_step(step: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
            batches = _rows(experts, step, size), _rows(samples, step, size)
            return total + self._train_step(*batches)

        return repeat(steps, train_step, tf.constant(0.0)) / steps

    def _train_step(self, expert: LogitData, sample: LogitData) -> tf.Tensor:
        with tf.GradientTape() as tape:
            # One batch for both classes, so that batch norm sees the same mixture in training as in
            # use.
            logits = _logits(self.model, expert, sample, training=True)
            loss = weighted_cross_entropy(*logits, sample.weights)
            penalised = loss + tf.add_n(self.model.losses) if self.model.losses else loss
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(penalised, [v.value for v in variables]), variables)
        return loss

    def _validation(self, expert: LogitData, sample: LogitData) -> tuple[tf.Tensor, tf.Tensor]:
        if self.validated is not self.model:
            self.optimizer.finalize_variable_values(self.validated.trainable_variables)
            for variable, trained in zip(
                self.validated.non_trainable_variables,
                self.model.non_trainable_variables,
                strict=True,
            ):
                variable.assign(trained)
        return _loss_and_accuracy(
            *_logits(self.validated, expert, sample, training=False), sample.weights
        )


# By what they are made of. TensorFlow never frees a graph with a loop in it: a fitter for each run
# would cost 4.5 MiB and a second.
_IDLE: dict[Hashable, list[DiscriminatorFitter]] = {}


@contextlib.contextmanager
def borrowed_fitter(num_inputs: int, hparams: Hparams) -> Iterator[DiscriminatorFitter]:
    """A fitter that nobody else has now, and the next to ask gets again unless a fit failed."""
    idle = _IDLE.setdefault((num_inputs, hparams.network, hparams.training), [])
    try:
        fitter = idle.pop()
    except IndexError:
        fitter = DiscriminatorFitter(num_inputs, hparams)
    yield fitter
    idle.append(fitter)


def _logits(
    model: keras.Model, expert: LogitData, sample: LogitData, training: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    outputs = model(tf.concat([expert.z, sample.z], axis=0), training=training)[:, 0]
    split = tf.shape(expert.z)[0]
    return outputs[:split] + expert.offsets, outputs[split:] + sample.offsets


def _loss_and_accuracy(
    expert_logits: tf.Tensor, sample_logits: tf.Tensor, sample_weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Eq. 3 and the weighted share of right answers."""
    right = tf.reduce_mean(tf.cast(expert_logits > 0.0, NETWORK)) + tf.reduce_mean(
        sample_weights * tf.cast(sample_logits <= 0.0, NETWORK)
    )
    loss = weighted_cross_entropy(expert_logits, sample_logits, sample_weights)
    return loss, right / (1.0 + tf.reduce_mean(sample_weights))


def _shuffle(data: LogitData, n: int, seed: tf.Tensor) -> LogitData:
    """N rows in random order: a random part of the data if it has more, else all of it, repeated in
    that order until there are n.
    """
    size = data.z.shape[0]
    order = tf.argsort(tf.random.stateless_uniform([size], seed))
    rows = tf.tile(order, [-(-n // size)])[:n]
    return LogitData(*(tf.gather(a, rows) for a in data))


def _rows(data: LogitData, step: tf.Tensor, size: int) -> LogitData:
    """The rows of one batch."""
    return LogitData(
        *(tf.slice(a, [step * size] + [0] * (len(a.shape) - 1), [size, *a.shape[1:]]) for a in data)
    )
