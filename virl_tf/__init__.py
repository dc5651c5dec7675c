"""Versatile Inverse Reinforcement Learning via Cumulative Rewards in TensorFlow, Keras, TFP.

>>> import virl_tf
>>> result = virl_tf.fit(demonstrations, method="virl", num_components=10, seed=0)
>>> result.reward(x)          # [N, D] -> [N], the recovered log density up to a constant
>>> result.policy.distribution  # a tfd.MixtureSameFamily

Hyperparameters stand in `virl_tf.hparams`, the rows of the methods in `virl_tf.methods`, distances
in `virl_tf.metrics`.
"""

from virl_tf import (
    _quiet_import,  # noqa: F401  (first: imports TensorFlow without its start-up log lines)
    methods,
    tasks,
)
from virl_tf.fit import Result, fit, load
from virl_tf.fit_policy import PolicyResult, fit_policy
from virl_tf.hparams import Hparams, load_hparams
from virl_tf.mixture import Mixture
from virl_tf.persistence.reward_file import load_reward
from virl_tf.reward import Reward
from virl_tf.score import Score
from virl_tf.summary import FitWarning
from virl_tf.validation import InputError

__version__ = "0.1.0"
"""Of this package; results made by different versions are not mixed."""

METHODS = methods.METHODS
"""What `fit` accepts as `method`: its name -> its row. A new method is a new row."""

__all__ = [
    "METHODS",
    "FitWarning",
    "Hparams",
    "InputError",
    "Mixture",
    "PolicyResult",
    "Result",
    "Reward",
    "Score",
    "__version__",
    "fit",
    "fit_policy",
    "load",
    "load_hparams",
    "load_reward",
    "tasks",
]
