"""A task from outside of the project: bumps on a ring. Importing this module registers it, as a
sweep's workers do.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from experiments.evaluation.densities import DensityExperiment
from experiments.tasks import register
from experiments.tasks.description import Grid, Panel, TaskDescription

RADIUS, WIDTH, SHARPNESS = 2.0, 0.2, 2.0


class Ring:
    """p(x) is proportional to exp(-(r - RADIUS)^2 / (2 WIDTH^2) + SHARPNESS cos(m theta))."""

    dim = 2

    def __init__(self, modes: int):
        self._modes = modes
        angles = 2.0 * np.pi * np.arange(modes) / modes
        self.mode_centers = RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        around = 2.0 * np.pi * np.i0(SHARPNESS)
        across = RADIUS * WIDTH * np.sqrt(2.0 * np.pi)
        self._log_normaliser = np.log(around * across)

    def log_prob(self, x: Any) -> tf.Tensor:
        x = tf.convert_to_tensor(x, tf.float64)
        distance = (tf.norm(x, axis=1) - RADIUS) / WIDTH
        angle = tf.atan2(x[:, 1], x[:, 0])
        bumps = SHARPNESS * tf.cos(self._modes * angle)
        return bumps - 0.5 * tf.square(distance) - self._log_normaliser

    def demonstrations(self, n: int, seed: int) -> np.ndarray:
        """By rejection from the box around the ring."""
        rng = np.random.default_rng(seed)
        drawn = rng.uniform(-1.5 * RADIUS, 1.5 * RADIUS, (100 * n, 2))
        highest = SHARPNESS - self._log_normaliser
        accepted = np.log(rng.uniform(size=len(drawn))) < self.log_prob(drawn).numpy() - highest
        return drawn[accepted][:n]


def target(config: Mapping[str, Any]) -> Ring:
    return Ring(config["modes"])


def experiment(config: Mapping[str, Any]) -> DensityExperiment:
    return DensityExperiment(config, target(config))


DESCRIPTION = TaskDescription(
    name="ring",
    title="Ring",
    target=target,
    experiment=experiment,
    size_option="modes",
    size_text="bumps on the ring",
    size_letter="b",
    default_size=3,
    largest_size=100,
    default_dim=lambda size: 2,
    same_target=("modes",),
    default_preset="smoke",
    grids={"smoke": Grid((2,), (0,))},
    sweep_methods=("virl",),
    inferred_methods=("virl",),
    objective="i_projection_reward",
    objective_place="i_projection.reward.reported",
    objective_label="i_projection reported",
    training_places={"training": "i_projection.reward", "training_policy": "i_projection.policy"},
    inference_place="i_projection.inference_policy",
    figures=("2b",),
    ablation_panels=(
        Panel("training", "reported", "I-projection of the reward"),
        Panel("inference_search", "reported", "I-projection of the policy inferred on it"),
    ),
)
register(DESCRIPTION)
