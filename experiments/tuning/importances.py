"""Which hyperparameters of a study matter: fANOVA (Hutter, Hoos and Leyton-Brown, 2014).

It fits a forest of random trees to the trials, so a share depends on the forest's seed. Hence the
mean over several, and how far they are apart.
"""

import optuna
import pandas as pd

SEEDS = range(10)  # of the forests


def importances_of(study: optuna.Study) -> pd.DataFrame:
    """What each hyperparameter alone explains of the objective's variance over the complete trials.

    By fANOVA (Hutter, Hoos and Leyton-Brown 2014); normalised, so that all add up to 1.

    Returns columns `importance`, the mean over forests, and `deviation`, the standard deviation;
    the most important first.
    """
    evaluators = [optuna.importance.FanovaImportanceEvaluator(seed=seed) for seed in SEEDS]
    found = [
        optuna.importance.get_param_importances(study, evaluator=evaluator)
        for evaluator in evaluators
    ]
    shares = pd.DataFrame(found)
    both = {"importance": shares.mean(), "deviation": shares.std()}
    table = pd.DataFrame(both).rename_axis("hyperparameter")
    return table.sort_values("importance", ascending=False)
