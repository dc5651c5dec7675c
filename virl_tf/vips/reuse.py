"""Draws of earlier steps, which serve a step again, weighed for what their component is now.

In a step a component moves by a small KL, so what its last B steps drew are almost draws of what it
is now. Taken together they are draws of the mixture of what it was, q_1 (now) to q_B, so that

    E_{q_1}[f(x)] = E[w(x) f(x)],    w(x) = q_1(x) / (1/B sum_b q_b(x)) <= B,

with weights that sum to the number of draws (the balance heuristic; arenz2020 reuse draws so).
Evaluations of the target, the dear part, are then 1 / B of what a step makes use of.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY
from virl_tf.shapes import Array, Bool, Float64


class Evaluated(NamedTuple):
    """Draws of every component, and the target there."""

    points: Float64[Array, "K S D"]
    values: Float64[Array, "K S"]  # log p*, as the target gave it
    slopes: Float64[Array, "K S D"]  # its gradient; zeros where none was asked for


class Batches(NamedTuple):
    """What the last B steps drew from every component, the latest first, and what it was then."""

    points: Float64[Array, "K B S D"]
    values: Float64[Array, "K B S"]
    slopes: Float64[Array, "K B S D"]
    means: Float64[Array, "K B D"]
    scale_trils: Float64[Array, "K B D D"]
    drawn: Bool[Array, "K B"]  # not yet, where a component is younger than B steps


def no_batches(components: Mixture, number: int, num_samples: int) -> Batches:
    """Of components that have drawn nothing: points at the means that weigh nothing."""
    k = components.num_components
    means = tf.repeat(components.means[:, None], number, axis=1)
    points = tf.repeat(means[:, :, None], num_samples, axis=2)
    values = tf.fill([k, number, num_samples], tf.constant(-np.inf, DENSITY))
    scale_trils = tf.repeat(components.scale_trils[:, None], number, axis=1)
    drawn = tf.zeros([k, number], tf.bool)
    return Batches(points, values, tf.zeros_like(points), means, scale_trils, drawn)


def with_latest(batches: Batches, latest: Evaluated, policy: Mixture) -> Batches:
    """The batches with those of this step, drawn from `policy`, in place of the oldest."""
    drawn = tf.ones([policy.num_components], tf.bool)
    new = Batches(*latest, policy.means, policy.scale_trils, drawn)
    return Batches(
        *(
            tf.concat([one[:, None], older[:, :-1]], axis=1)
            for one, older in zip(new, batches, strict=True)
        )
    )


def weighed(
    batches: Batches,
) -> tuple[Evaluated, Float64[Array, "K N D"], Float64[Array, "K N"]]:
    """All N = B S draws; z, where x = mean_o + L_o z for what component o is now; and weights of
    mean one.
    """
    k, b, s, d = batches.points.shape
    points = tf.reshape(batches.points, [k, b * s, d])
    centred = points[:, None] - batches.means[:, :, None]  # [K, B, N, D], by what it was at b
    z = tf.linalg.triangular_solve(batches.scale_trils, tf.transpose(centred, [0, 1, 3, 2]))
    log_dets = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(batches.scale_trils)), axis=-1)
    log_densities = -0.5 * tf.reduce_sum(z**2, axis=2) - log_dets[..., None]  # [K, B, N]

    nothing = tf.constant(-np.inf, DENSITY)
    of_all = tf.where(batches.drawn[..., None], log_densities, nothing)
    log_weights = log_densities[:, 0] - tf.reduce_logsumexp(of_all, axis=1)
    log_weights = tf.where(tf.repeat(batches.drawn, s, axis=1), log_weights, nothing)
    weights = tf.cast(b * s, DENSITY) * tf.nn.softmax(log_weights, axis=1)
    values = tf.reshape(batches.values, [k, b * s])
    everything = Evaluated(points, values, tf.reshape(batches.slopes, points.shape))
    return everything, tf.transpose(z[:, 0], [0, 2, 1]), weights
