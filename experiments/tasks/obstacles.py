"""Paths past obstacles whose places are the context: what is not as random experts have it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.tasks import experts
from experiments.tasks.obstacle_field import path_grids

LARGEST = 6  # the normaliser has 2^n terms for each row


def _target(config: Mapping[str, Any]) -> Any:
    from virl_tf.tasks.obstacles import Obstacles

    return Obstacles(config["steps"])


DESCRIPTION = replace(
    experts.DESCRIPTION,
    name="obstacles",
    title="Obstacles in many places",
    target=_target,
    size_option="steps",
    size_text="obstacles that a path passes",
    size_letter="n",
    default_size=2,
    largest_size=LARGEST,
    num_modes=lambda steps: 2**steps,
    default_dim=lambda steps: 2 * steps,
    largest_dim=0,
    has_task_seed=False,
    same_target=("steps",),
    grids=path_grids(2, 1),
    # No path of a Gaussian stops at an obstacle, so several are needed for each way.
    inference_components=lambda steps: 5 * 2**steps,
)
