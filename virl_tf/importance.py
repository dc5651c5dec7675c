"""Self-normalised importance weights, as logarithms."""

import numpy as np
import tensorflow as tf


def normalise(log_weights: tf.Tensor, num_draws: int | None = None) -> tf.Tensor:
    """Log w with mean(w) = 1: [N] -> [N]; or all zero, if no draw has a weight.

    Self-normalisation replaces the unknown integral of q*_t in w_t = q*_t / (q~_t int q*_t) (below
    Eq. 3) by its estimate. That is another one for each context: with `num_draws`, S, the mean is
    the same in each of them (`virl_tf.contexts.Places`), or a function of c would get into the
    reward; but zero in one that has no draw with a weight, such as one inside of bounds.
    """
    if num_draws is not None:
        of_each = tf.reshape(log_weights, [num_draws, -1])
        total = tf.reduce_logsumexp(of_each, axis=0)
        some = tf.math.is_finite(total)
        share = tf.reduce_mean(tf.cast(some, log_weights.dtype))
        of_each -= tf.where(some, total + tf.math.log(share), 0.0)
        return tf.reshape(of_each, [-1]) + np.log(num_draws)
    n = tf.cast(tf.size(log_weights), log_weights.dtype)
    total = tf.reduce_logsumexp(log_weights)
    return log_weights - tf.where(tf.equal(total, -np.inf), 0.0, total) + tf.math.log(n)


def effective_sample_size(log_weights: tf.Tensor) -> tf.Tensor:
    """Kish's (sum w)^2 / sum w^2, in [1, N], or 0 of no weights but zeros: [N] -> []."""
    total = tf.reduce_logsumexp(log_weights)
    effective = tf.exp(2.0 * total - tf.reduce_logsumexp(2.0 * log_weights))
    return tf.where(tf.equal(total, -np.inf), 0.0, effective)
