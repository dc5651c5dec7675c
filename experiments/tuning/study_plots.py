"""`python -m experiments study-plots`: pictures of a study."""

from pathlib import Path

from virl_tf.validation import InputError

from experiments.figures.study_pictures import draw_study
from experiments.screen import warn
from experiments.tuning.compare import FEWEST_FOR_IMPORTANCES, find_study
from experiments.tuning.importances import importances_of
from experiments.tuning.specification import FOLDER, Studies
from experiments.tuning.trials import trials_of

FEWEST_TO_RELY_ON = 30  # complete trials, of seven hyperparameters


def study_plots(studies: Studies, method: str, components: int, out: Path | None) -> None:
    """Draw history, importances, slices and the two most important parameters of one study.

    Raises:
        InputError: no such study, or complete trials that are too few for importances or all alike.
    """
    from optuna.trial import TrialState

    study = find_study(studies, (method, components))
    if study is None:
        command = studies.command((method, components))
        raise InputError(f"no such study; make it with: {command}")
    trials = trials_of(study, TrialState.COMPLETE)
    complete = len(trials)
    if complete < FEWEST_FOR_IMPORTANCES:
        need = f"plots need at least {FEWEST_FOR_IMPORTANCES}."
        raise InputError(f"{study.study_name} has {complete} complete trials; {need}")
    if len({trial.value for trial in trials}) == 1:
        alike = f"all {complete} complete trials of {study.study_name} have the same value"
        raise InputError(f"{alike}; there is nothing to draw.")
    if complete < FEWEST_TO_RELY_ON:
        text = f"{complete} complete trials; importances say little below"
        warn(f"{text} {FEWEST_TO_RELY_ON} and may be others after the next trials")
    draw_study(study, importances_of(study), out or FOLDER / study.study_name / "plots")
