"""`python -m experiments study-plots`: Optuna's own pictures of a study."""

from pathlib import Path

from virl_tf.methods import METHODS
from virl_tf.validation import InputError, check_choice

from experiments.figures.comparison import draw_study
from experiments.tuning.compare import FEWEST_FOR_IMPORTANCES, find_study
from experiments.tuning.study import best_trial, count


def study_plots(
    task: str,
    method: str,
    components: int,
    *,
    preset: str | None,
    size: int | None,
    storage: str | None,
    out: Path | None,
) -> None:
    """Draw history, importances, slices and contour of one study.

    Raises:
        InputError: no such study, or too few complete trials for importances.
    """
    from optuna.trial import TrialState

    check_choice("method", method, METHODS)
    study = find_study(task, method, components, preset, size, storage)
    if study is None:
        raise InputError(
            f"no such study; make it with: python -m experiments tune {task} --method {method}"
        )
    complete = count(study, TrialState.COMPLETE)
    if best_trial(study) is None or complete < FEWEST_FOR_IMPORTANCES:
        raise InputError(
            f"{study.study_name} has {complete} complete trials; plots need at least "
            f"{FEWEST_FOR_IMPORTANCES}."
        )
    draw_study(study, out or Path("studies") / study.study_name / "plots")
