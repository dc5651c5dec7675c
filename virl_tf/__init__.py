"""virl_tf: Versatile Inverse Reinforcement Learning via Cumulative Rewards, in TensorFlow, Keras and TFP.

>>> import virl_tf
>>> result = virl_tf.fit(demonstrations, method="virl", num_components=10, seed=0)
>>> result.reward(x)          # [N, D] -> [N], the recovered log density up to a constant
>>> result.policy.distribution  # a tfd.MixtureSameFamily
"""

from virl_tf import (
    _quiet_import,  # noqa: F401  (first: imports TensorFlow without its start-up log lines)
    tasks,
)
from virl_tf.fit import Result, fit, fit_policy, load
from virl_tf.hparams import Hparams, load_hparams
from virl_tf.methods import METHODS
from virl_tf.mixture import Mixture
from virl_tf.reward import Reward, load_reward
from virl_tf.validation import InputError

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Hparams",
    "InputError",
    "Mixture",
    "Result",
    "Reward",
    "__version__",
    "fit",
    "fit_policy",
    "load",
    "load_hparams",
    "load_reward",
    "tasks",
]
