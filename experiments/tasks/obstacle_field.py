"""Paths past fixed obstacles, and what every task of paths with a known truth has in common."""

from collections.abc import Mapping
from typing import Any

from experiments.tasks import describe
from experiments.tasks.description import Grid, Panel, TaskDescription
from experiments.tasks.grid_walker import LARGEST


def _target(config: Mapping[str, Any]) -> Any:
    from virl_tf.tasks import ObstacleField

    return ObstacleField(config["steps"], config["task_seed"])


def _experiment(config: Mapping[str, Any]) -> Any:
    """Of every task of paths with a known truth."""
    from experiments.evaluation.known_truth import KnownTruthExperiment

    return KnownTruthExperiment(config, describe(config["task"]).target(config))


def path_grids(size: int, small: int) -> dict[str, Grid]:
    """The sweeps; `small`: of the preset `smoke`."""
    return {
        "quick": Grid((size,), (0, 1)),
        "best": Grid((size,), tuple(range(5))),
        "smoke": Grid((small,), (0,)),
    }


DESCRIPTION = TaskDescription(
    name="obstacle_field",
    title="Obstacle field",
    target=_target,
    experiment=_experiment,
    size_option="steps",
    size_text="obstacles that a path passes",
    size_letter="n",
    default_size=5,
    largest_size=LARGEST,
    num_modes=lambda steps: 2**steps,
    default_dim=lambda steps: steps,
    has_task_seed=True,
    same_target=("steps", "task_seed"),
    grids=path_grids(5, 2),
    sweep_methods=("virl",),
    inferred_methods=("virl",),
    inference_components=lambda steps: 2**steps,
    objective="forward_kl_reward",
    objective_place="forward_kl.reward.reported",
    objective_label="forward_kl reported",
    training_places={"training": "forward_kl.reward", "training_policy": "kl.policy"},
    inference_place="kl.inference_policy",
    columns={
        "em_bic": ("forward_kl.em_bic.reported",),
        "kde_held_out": ("forward_kl.kde_held_out.reported",),
        "em_bic_success": ("outcomes.em_bic.success",),
        "kde_held_out_success": ("outcomes.kde_held_out.success",),
        "reward_success": ("outcomes.reward.success",),
        "policy_success": ("outcomes.policy.success",),
    },
    ablation_panels=(
        Panel("training", "reported", "forward KL of the reward"),
        Panel("inference_search", "reported", "KL of the policy inferred on it"),
    ),
)
