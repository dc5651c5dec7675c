"""Random Gaussian mixtures, the paper's first task."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.tasks.description import Grid, Panel, TaskDescription

PAPER_MODES = tuple(range(5, 55, 5))  # of Figures 2b and 4
SEEDS = (0, 1, 2, 3, 4)


def _target(config: Mapping[str, Any]) -> Any:
    from virl_tf.tasks import RandomGaussians

    return RandomGaussians(config["modes"], config["task_seed"], dim=config.get("dim", 2))


def _experiment(config: Mapping[str, Any]) -> Any:
    from experiments.evaluation.densities import DensityExperiment

    return DensityExperiment(config, _target(config))


def _claims() -> Sequence[Any]:
    from experiments.claims import GAUSSIANS

    return GAUSSIANS


DESCRIPTION = TaskDescription(
    name="gaussians",
    title="Random Gaussians",
    target=_target,
    experiment=_experiment,
    size_option="modes",
    size_text="components m of the target mixture",
    size_letter="m",
    default_size=50,
    largest_size=1_000_000,
    default_dim=lambda size: 2,
    largest_dim=100,
    has_task_seed=True,
    same_target=("modes", "task_seed", "dim"),
    table="gaussians",
    # Table 2 has a column for one component and one for more.
    table_column=lambda family, components: f"{family}_{'1c' if components == 1 else '10c'}",
    compared=tuple(
        (method, components) for method in ("virl", "geim", "eim") for components in (1, 10)
    ),
    grids={
        "paper": Grid(PAPER_MODES, SEEDS),
        "quick": Grid((5, 20, 50), (0, 1)),
        "smoke": Grid((5,), (0,)),
        "best": Grid((10, 30, 50), SEEDS),
    },
    sweep_methods=("eim", "geim", "virl"),
    sweep_components=(10, 1),
    inferred_methods=("virl", "geim"),
    has_references=True,
    objective="i_projection_reward",
    objective_place="i_projection.reward.reported",
    objective_label="i_projection reported",
    training_places={"training": "i_projection.reward", "training_policy": "i_projection.policy"},
    inference_place="i_projection.inference_policy",
    claims=_claims,
    over_sizes=True,
    figures=("2a", "2b", "4", "5"),
    ablation_panels=(
        Panel("training", "reported", "I-projection of the reward"),
        Panel("inference_search", "reported", "I-projection of the policy inferred on it"),
    ),
)
