"""The grid walker, and what every task of walks has in common with it."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.tasks import describe
from experiments.tasks.description import Grid, Panel, TaskDescription

STEPS = 5
LARGEST = 8  # of 512 equal modes none has the share of draws that covers it (SHARE_OF_A_MODE)
# Of results.csv; `best`, `final` and `reported` are the policy's negative ELBO.
WALK_COLUMNS = {
    "kl": ("kl",),
    "good_fraction": ("good_fraction",),
    "open_modes": ("open_modes", "num_modes"),  # without obstacles all are open
    "modes_covered": ("modes_covered",),
    "new_modes": ("new_modes",),
    "lost_modes": ("lost_modes",),
    "true_reward_modes": ("true_reward.modes_covered",),
    "collision_share": ("collision_share",),
    "reward_correlation": ("reward_correlation",),
    "unexplored_above_random": ("contrast.unexplored_random.above_best",),
    "unexplored_random_auc": ("contrast.unexplored_random.auc",),
    "explored_unexplored_auc": ("contrast.explored_unexplored.auc",),
}
REWARD_PANEL = Panel("training", "reward_correlation", "correlation of the reward with log p")


def walk_grids(steps: int, few_steps: int, further: Sequence[int] = ()) -> dict[str, Grid]:
    """The sweeps of walks; `few_steps`: of the preset `smoke`; `further` sizes: of `paper`."""
    return {
        "paper": Grid((steps, *further), tuple(range(10))),
        "quick": Grid((steps,), (0, 1)),
        "best": Grid((steps,), tuple(range(5))),
        "smoke": Grid((few_steps,), (0,)),
    }


def _target(config: Mapping[str, Any]) -> Any:
    from virl_tf.tasks import GridWalker

    return GridWalker(config["steps"])


def _experiment(config: Mapping[str, Any]) -> Any:
    """Of every task of walks."""
    from experiments.evaluation.walks import WalkExperiment

    return WalkExperiment(config, describe(config["task"]).target(config))


def _claims() -> Sequence[Any]:
    from experiments.claims import GRID_WALKER

    return GRID_WALKER


DESCRIPTION = TaskDescription(
    name="grid_walker",
    title="Grid walker",
    target=_target,
    experiment=_experiment,
    size_option="steps",
    size_text="steps d of a walk",
    size_letter="d",
    default_size=STEPS,
    largest_size=LARGEST,
    num_modes=lambda steps: 2**steps,
    default_dim=lambda steps: steps,
    same_target=("steps",),
    table="grid_walker",
    compared=(("virl", 10), ("geim", 10), ("eim", 10)),  # EIM's published column is ours
    # The paper has one length; the others show the growth with the number of modes, 16 to 256.
    grids=walk_grids(STEPS, 3, further=(4, 6, 8)),
    # The paper infers with 25 components where there are 32 modes; other sizes in proportion.
    inference_components=lambda steps: max(1, round(25 / 32 * 2**steps)),
    objective="negative_elbo",
    objective_place="negative_elbo",
    objective_label="negative_elbo",
    training_places={"training": "objective"},
    inference_place="objective",
    columns=WALK_COLUMNS,
    claims=_claims,
    figures=("3", "6", "7"),
    ablation_panels=(
        REWARD_PANEL,
        Panel("inference_search", "kl", "KL of the policy inferred on it"),
    ),
    correlated_references=("kde_silverman", "kde_held_out", "em_bic"),
)
