"""Training of phi_t by importance-weighted binary cross-entropy (Eq. 3)."""

from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from virl_tf.discriminator.network import build_network, freeze, seed_dropout, start_weights
from virl_tf.hparams import Hparams, TrainingHparams
from virl_tf.network_stack import FrozenNetwork
from virl_tf.numerics import NETWORK, numpy_seed, split_seed


class LogitData(NamedTuple):
    """One class of the classifier's data: N points.

    Attributes:
        z: [N, inputs] float32, what the network sees of the points.
        offsets: [N] float32, added to the network's output to give the logit (0, or -log q_t(x) for
            G-EIM).
        weights: [N] float32, w_t(x) with mean one; ones for the demonstrations.
    """

    z: Any
    offsets: Any
    weights: Any


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


def rows_per_batch(hparams: TrainingHparams, n: int) -> int:
    """Of each class, for n demonstrations to train on; by default a fourteenth of them, at most
    500.

    With few demonstrations a fixed size leaves too few steps: weights that are averaged over 500
    steps stay at their start.
    """
    size = min(500, max(1, n // 14)) if hparams.batch_size is None else hparams.batch_size
    return min(size, n)


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


class DiscriminatorFitter:
    """Fits phi_t for every t with one Keras model and one compiled epoch. phi_t is the mean of
    `ensemble_size` networks.

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
        self._train_epoch = tf.function(self._epoch, autograph=False)
        self._validate = tf.function(self._validation, autograph=False)

    @property
    def num_traces(self) -> int:
        """How often the compiled epoch was traced; stays 1 through a run."""
        return self._train_epoch.experimental_get_tracing_count()

    def fit(
        self,
        experts: LogitData,
        samples: LogitData,
        previous: list[np.ndarray] | None,
        seed: int,
        iteration: int,
    ) -> tuple[list[np.ndarray], list[FrozenNetwork], FitInfo]:
        """Train one phi_t; returns its Keras weights, the frozen networks whose sum it is, and how
        it went.

        Args:
            experts, samples: positives and negatives. An evenly spaced `validation_fraction` of
                both is held out: of the experts the same in every iteration, so a warm start has
                never seen them; of the samples equally many from policy and KDE.
            previous: weights of phi_{t-1}, or None.
            seed, iteration: for the start, the order of batches and the dropout masks.
        """
        held_experts, experts = _split(experts, self.hparams.validation_fraction)
        held_samples, samples = _split(samples, self.hparams.validation_fraction)
        size, count = self.hparams.ensemble_size, len(self.model.weights)
        weights, phi, infos = [], [], []
        for i in range(size):
            own = None if previous is None else previous[i * count : (i + 1) * count]
            data = experts, samples, held_experts, held_samples
            info = self._fit_network(
                *data, own, numpy_seed(seed, iteration, f"network {i}") if i else seed, iteration
            )
            weights += self.model.get_weights()
            phi.append(freeze(self.model).scale(1.0 / size))
            infos.append(info)
        if size == 1:
            return weights, phi, infos[0]
        loss, accuracy = _evaluate(phi, held_experts, held_samples)
        train_loss, last = (
            float(np.mean([info.train_loss for info in infos])),
            max(infos, key=lambda info: info.epochs),
        )
        return (
            weights,
            phi,
            last._replace(train_loss=train_loss, validation_loss=loss, accuracy=accuracy),
        )

    def _fit_network(
        self,
        experts: LogitData,
        samples: LogitData,
        held_experts: LogitData,
        held_samples: LogitData,
        previous: list[np.ndarray] | None,
        seed: int,
        iteration: int,
    ) -> FitInfo:
        """Train the model, which in the end has the weights (with an average: the averaged ones) of
        the best epoch.
        """
        start = numpy_seed(seed, iteration, "initial weights")
        self.model.set_weights(start_weights(self.model, self.hparams.start, previous, start))
        for variable, value in zip(self.optimizer.variables, self._optimizer_start, strict=True):
            variable.assign(value)
        seed_dropout(self.model, split_seed(seed, iteration, "dropout"))
        shuffles = split_seed(seed, iteration, "batches")

        best = np.inf, self.model.get_weights(), -1, 0.0
        train_loss, epoch = np.nan, -1
        for epoch in range(self.hparams.num_epochs):
            train_loss = float(
                self._train_epoch(experts, samples, tf.constant(shuffles + [0, epoch]))
            )
            loss, accuracy = (float(v) for v in self._validate(held_experts, held_samples))
            warmed_up = epoch + 1 >= min(self.hparams.warm_up_epochs, self.hparams.num_epochs)
            if warmed_up and loss < best[0]:
                best = loss, self.validated.get_weights(), epoch, accuracy
            waited = epoch - max(best[2], self.hparams.warm_up_epochs - 1)
            if warmed_up and self.hparams.patience and waited >= self.hparams.patience:
                break
        loss, weights, best_epoch, accuracy = best
        self.model.set_weights(weights)
        return FitInfo(
            train_loss,
            loss,
            chance_loss(held_experts, held_samples),
            accuracy,
            best_epoch,
            epoch + 1,
        )

    def _epoch(self, experts: LogitData, samples: LogitData, seed: tf.Tensor) -> tf.Tensor:
        """One pass over the experts in batches of equally many of both classes; returns the mean
        loss. Compiled.
        """
        num_experts = experts.z.shape[0]
        size = rows_per_batch(self.hparams, num_experts)
        steps = num_experts // size
        seeds = tf.random.split(seed, 2)
        experts = _shuffle(experts, steps * size, seeds[0])
        samples = _shuffle(samples, steps * size, seeds[1])

        def train_step(step: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return step + 1, total + self._train_step(
                _rows(experts, step, size), _rows(samples, step, size)
            )

        # A while_loop, because AutoGraph takes about two seconds to convert a `for`.
        _, total = tf.while_loop(
            lambda step, _: step < steps, train_step, (tf.constant(0), tf.constant(0.0))
        )
        return total / steps

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


def _evaluate(
    phi: list[FrozenNetwork], experts: LogitData, samples: LogitData
) -> tuple[float, float]:
    """Loss and accuracy of the sum of networks."""
    expert, sample = (
        tf.add_n([network.logits(data.z) for network in phi]) + data.offsets
        for data in (experts, samples)
    )
    loss, accuracy = _loss_and_accuracy(expert, sample, samples.weights)
    return float(loss), float(accuracy)


def _split(data: LogitData, fraction: float) -> tuple[LogitData, LogitData]:
    """(held out, rest), the held-out points evenly spaced; at least one point each."""
    rows, others = held_out_rows(data.z.shape[0], fraction)
    held, rest = (LogitData(*(tf.gather(a, index) for a in data)) for index in (rows, others))
    return held, rest


def held_out_rows(n: int, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Which of n rows no phi_t is trained on, and the others."""
    rows = np.linspace(0, n, max(1, int(fraction * n)), endpoint=False).astype(int)
    return rows, np.delete(np.arange(n), rows)


def _shuffle(data: LogitData, n: int, seed: tf.Tensor) -> LogitData:
    """N rows in random order: a random part of the data if it is larger, all of it in turn,
    repeated, if it is smaller.
    """
    size = data.z.shape[0]
    order = tf.argsort(tf.random.stateless_uniform([size], seed))
    rows = tf.tile(order, [-(-n // size)])[:n]
    return LogitData(*(tf.gather(a, rows) for a in data))


def _rows(data: LogitData, step: tf.Tensor, size: int) -> LogitData:
    """The rows of one batch."""
    return LogitData(
        *(tf.ensure_shape(a[step * size : (step + 1) * size], [size, *a.shape[1:]]) for a in data)
    )
