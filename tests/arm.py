"""Demonstrations of an arm in a plane that reaches a target behind an obstacle, in joint space.

Five links of length 0.2, stretched along the first axis at the start. The hand goes from there to
the target past a disc, on either side of it; the elbow is on the side of the hand.
"""

import numpy as np
import tensorflow as tf

NUM_LINKS, LENGTH = 5, 0.2
TARGET, DISC, RADIUS = np.array([0.55, 0.0]), np.array([0.78, 0.0]), 0.1
_HEIGHT, _WOBBLE = 0.25, 0.02  # of the hand's way; of the joints, radians


def reaching(n=120, num_steps=30, seed=0):
    """(joint angles [n, T, 5] in radians, each relative to the link before; sides [n], -1 or 1)."""
    rng, s = np.random.default_rng(seed), np.linspace(0.0, 1.0, num_steps)
    sides = rng.choice([-1.0, 1.0], (n, 1))
    height = _HEIGHT * rng.normal(1.0, 0.1, (n, 1))
    target = TARGET + rng.normal(0.0, 0.01, (n, 1, 2))
    x = 1.0 + s * (target[..., 0] - 1.0)
    y = s * target[..., 1] + sides * height * np.sin(np.pi * s)
    angles = _evenly_bent(x + 1j * y, sides)
    waves = np.sin(0.5 * np.pi * s[:, None] * np.arange(1, 4))  # still at the start
    weights = rng.normal(0.0, _WOBBLE, (n, 3, NUM_LINKS))
    return angles + np.einsum("tw,nwj->ntj", waves, weights), sides[:, 0]


def links(angles):
    """Ends of the links: angles [..., 5] -> [..., 5, 2], of TensorFlow operations."""
    directions = tf.cumsum(angles, axis=-1)
    steps = tf.stack([tf.cos(directions), tf.sin(directions)], axis=-1)
    return LENGTH * tf.cumsum(steps, axis=-2)


def hand_side(paths):
    """The side on which the hand passes the disc, [n, T, 5] -> [n]; 0 where it touches it."""
    hands = np.asarray(links(tf.constant(paths)))[..., -1, :]  # [n, T, 2]
    touches = np.linalg.norm(hands - DISC, axis=-1).min(axis=1) < RADIUS
    nearest = np.abs(hands[..., 0] - DISC[0]).argmin(axis=1)
    return np.where(touches, 0.0, np.sign(hands[np.arange(len(hands)), nearest, 1]))


def _evenly_bent(hands, sides):
    """All joints but the first at one angle, by bisection; the first turns to the hand."""
    low, high = np.zeros(hands.shape), np.full(hands.shape, 2.0 * np.pi / NUM_LINKS)
    links = np.arange(NUM_LINKS)
    for _ in range(50):
        middle = 0.5 * (low + high)
        reach = LENGTH * np.abs(np.exp(1j * middle[..., None] * links).sum(axis=-1))
        far = reach > np.abs(hands)
        low, high = np.where(far, middle, low), np.where(far, high, middle)
    bend = -sides * low  # the elbow is where the hand is
    first = np.angle(hands / np.exp(1j * bend[..., None] * links).sum(axis=-1))
    return np.concatenate([first[..., None], np.repeat(bend[..., None], NUM_LINKS - 1, -1)], -1)
