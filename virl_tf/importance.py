"""Self-normalised importance weights, as logarithms."""

import tensorflow as tf


def normalise(log_weights: tf.Tensor) -> tf.Tensor:
    """Log w with mean(w) = 1: [N] -> [N].

    Self-normalisation replaces the unknown integral of q*_t in w_t = q*_t / (q~_t int q*_t) (below
    Eq. 3) by its estimate.
    """
    n = tf.cast(tf.size(log_weights), log_weights.dtype)
    return log_weights - tf.reduce_logsumexp(log_weights) + tf.math.log(n)


def effective_sample_size(log_weights: tf.Tensor) -> tf.Tensor:
    """Kish's (sum w)^2 / sum w^2, in [1, N]: [N] -> []."""
    return tf.exp(2.0 * tf.reduce_logsumexp(log_weights) - tf.reduce_logsumexp(2.0 * log_weights))
