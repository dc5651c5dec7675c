"""Versatile Inverse Reinforcement Learning via Cumulative Rewards in TensorFlow, Keras, TFP.

>>> import virl_tf
>>> result = virl_tf.fit(demonstrations, method="virl", num_components=10, seed=0)
>>> result.reward(x)          # [N, D] -> [N], the recovered log density up to a constant
>>> result.policy.distribution  # a tfd.MixtureSameFamily

Hyperparameters stand in `virl_tf.hparams`, the rows of the methods in `virl_tf.methods`, distances
in `virl_tf.metrics`; `virl_tf.export` is for use without this package.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from virl_tf import _quiet_import  # noqa: F401  (before anything that imports TensorFlow)
from virl_tf.version import VERSION

if TYPE_CHECKING:
    from virl_tf import export, tasks
    from virl_tf.among_best import AmongBest
    from virl_tf.conditional import ConditionalMixture
    from virl_tf.fit import Result, fit, load
    from virl_tf.fit_policy import PolicyResult, fit_policy
    from virl_tf.hparams import Hparams, load_hparams
    from virl_tf.methods import Method
    from virl_tf.mixture import Mixture
    from virl_tf.persistence.encoding_file import load_encoding, save_encoding
    from virl_tf.persistence.policy_file import load_policy
    from virl_tf.persistence.reward_file import load_reward
    from virl_tf.reward import Reward
    from virl_tf.score import Score
    from virl_tf.summary import FitWarning
    from virl_tf.trajectories.choice import fit_encoding
    from virl_tf.trajectories.encoding import Encoding
    from virl_tf.trajectories.moves import Moves
    from virl_tf.validation import InputError

METHODS: "dict[str, Method]"
"""What `fit` accepts as `method`: its name -> its row. A new method is a new row."""

__version__ = VERSION
"""Of this package; `virl_tf/version.py` says which versions' results may be mixed."""

# Where the public names stand. They are imported when they are first used: checks of arguments,
# files and hyperparameters need no TensorFlow, which takes seconds to load.
_HOMES = {
    "METHODS": "methods",
    "AmongBest": "among_best",
    "ConditionalMixture": "conditional",
    "Encoding": "trajectories.encoding",
    "FitWarning": "summary",
    "Hparams": "hparams",
    "InputError": "validation",
    "Mixture": "mixture",
    "Moves": "trajectories.moves",
    "PolicyResult": "fit_policy",
    "Result": "fit",
    "Reward": "reward",
    "Score": "score",
    "fit": "fit",
    "fit_encoding": "trajectories.choice",
    "fit_policy": "fit_policy",
    "load": "fit",
    "load_encoding": "persistence.encoding_file",
    "load_hparams": "hparams",
    "load_policy": "persistence.policy_file",
    "load_reward": "persistence.reward_file",
    "save_encoding": "persistence.encoding_file",
}

__all__ = [
    "METHODS",
    "AmongBest",
    "ConditionalMixture",
    "Encoding",
    "FitWarning",
    "Hparams",
    "InputError",
    "Mixture",
    "Moves",
    "PolicyResult",
    "Result",
    "Reward",
    "Score",
    "__version__",
    "export",
    "fit",
    "fit_encoding",
    "fit_policy",
    "load",
    "load_encoding",
    "load_hparams",
    "load_policy",
    "load_reward",
    "save_encoding",
    "tasks",
]


class _Package(ModuleType):
    """This package, with its public names found where they stand."""

    def __getattr__(self, name: str) -> Any:
        """A public name, or a module of the package."""
        if name in _HOMES:
            module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
            self.__dict__[name] = getattr(module, name)
            return self.__dict__[name]
        full = f"{__name__}.{name}"
        if name.startswith("_") or importlib.util.find_spec(full) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(full)

    def __setattr__(self, name: str, value: Any) -> None:
        """Importing a module binds it here, but `fit` and `fit_policy` are the functions."""
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """With the public names."""
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
