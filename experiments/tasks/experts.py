"""Random linear-Gaussian experts, and what every task p(x | c) with a known truth has in common."""

from collections.abc import Mapping
from typing import Any

from experiments.tasks import describe
from experiments.tasks.description import Panel, TaskDescription
from experiments.tasks.obstacle_field import path_grids

DIM = 2  # D; a row [c, x] has C more
NO_FLOW = "no conditional flow: flowjax is not installed (pip install 'virl_tf[bench]')."


def random_experts(config: Mapping[str, Any], waves: float = 0.0) -> Any:
    """`modes` experts; C follows from `dim`, that of rows [c, x]."""
    from virl_tf.tasks.experts import RandomExperts

    return RandomExperts(config["modes"], config["dim"] - DIM, config["task_seed"], waves=waves)


def _experiment(config: Mapping[str, Any]) -> Any:
    """Of every task p(x | c) with a known truth."""
    from experiments.evaluation.contextual import ContextualExperiment

    return ContextualExperiment(config, describe(config["task"]).target(config))


DESCRIPTION = TaskDescription(
    name="experts",
    title="Random experts",
    target=random_experts,
    experiment=_experiment,
    size_option="modes",
    size_text="experts m of p(x | c)",
    size_letter="m",
    default_size=10,
    largest_size=10_000,
    default_dim=lambda size: DIM + 1,
    smallest_dim=DIM + 1,
    largest_dim=DIM + 10,
    has_task_seed=True,
    same_target=("modes", "task_seed", "dim"),
    grids=path_grids(10, 3),
    sweep_methods=("eim", "geim", "virl"),
    has_references=True,
    wanted_packages={"flowjax": NO_FLOW},
    has_search=False,
    objective="i_projection_reward",
    objective_place="i_projection.reward.reported",
    objective_label="i_projection reported",
    training_places={"training": "i_projection.reward", "training_policy": "i_projection.policy"},
    inference_place="i_projection.inference_policy",
    columns={"unseen": ("unseen.{stage}",)},
    ablation_panels=(
        Panel("training", "reported", "I-projection of the reward"),
        Panel("inference", "reported", "I-projection of the policy inferred on it"),
    ),
)
