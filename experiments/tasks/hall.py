"""People who cross a hall: what is not as the obstacle field, its first half, has it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.tasks import obstacle_field

PAIRS = 40
MOST_PAIRS = 300  # of gates in different walls


def _target(config: Mapping[str, Any]) -> Any:
    from virl_tf.tasks import Hall

    return Hall(config["modes"], config["task_seed"])


DESCRIPTION = replace(
    obstacle_field.DESCRIPTION,
    name="hall",
    title="Hall",
    target=_target,
    size_option="modes",
    size_text="pairs of gates in use",
    size_letter="m",
    default_size=PAIRS,
    largest_size=MOST_PAIRS,
    num_modes=lambda pairs: pairs,
    default_dim=lambda pairs: 12,
    same_target=("modes", "task_seed"),
    grids=obstacle_field.path_grids(PAIRS, 3),
    inference_components=lambda pairs: pairs,
)
