"""What is special to one task in runs, inference and summaries; `experiment_of` finds it by the
task's name.
"""

from typing import Any

from experiments.tasks.base import Experiment, Inference

__all__ = ["Experiment", "Inference", "experiment_of"]


def experiment_of(config: dict[str, Any]) -> Experiment:
    """The experiment for a run's configuration (`Specification.to_config`)."""
    if config["task"] == "gaussians":
        from experiments.tasks.gaussians import GaussiansExperiment

        return GaussiansExperiment(config)
    from experiments.tasks.walks import WalkExperiment

    return WalkExperiment(config)
