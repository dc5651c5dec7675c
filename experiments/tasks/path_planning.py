"""Path planning, the paper's first figure: what is not as the grid walker, its first half,
has it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.tasks import grid_walker
from experiments.tasks.description import Panel

STEPS = 6
BLOCKED = 1 / 3  # of the paths, in a sweep's inference with obstacles


def _num_paths(steps: int) -> int:
    return math.comb(steps, steps // 2)


def _target(config: Mapping[str, Any]) -> Any:
    from virl_tf.tasks import PathPlanning

    return PathPlanning(config["steps"])


def _claims() -> Sequence[Any]:
    from experiments.claims import PATH_PLANNING

    return PATH_PLANNING


DESCRIPTION = replace(
    grid_walker.DESCRIPTION,
    name="path_planning",
    title="Path planning",
    target=_target,
    default_size=STEPS,
    largest_size=10,
    size_refusal=lambda steps: "must be even, for the paths to meet again" if steps % 2 else "",
    num_modes=_num_paths,
    compared=(),
    grids=grid_walker.walk_grids(STEPS, 4),
    inference_components=_num_paths,
    inference_stages={"inference": None, "obstacles": BLOCKED},
    claims=_claims,
    figures=("1",),
    ablation_panels=(
        grid_walker.REWARD_PANEL,
        Panel("obstacles_search", "kl", "KL of the policy inferred on it, with obstacles"),
    ),
)
