"""Small settings and data shared by the tests of the loop and of the public API."""

from virl_tf.hparams import Hparams, default_hparams

import numpy as np

SECTIONS = {
    "network": {"num_layers": 2, "layer_size": 8},
    "training": {"num_epochs": 3, "warm_up_epochs": 1, "batch_size": 16},
    "kde": {"bandwidth": 0.3, "bandwidth_scale": "absolute"},
    "policy": {"start": "samples", "update_steps": 3, "samples_per_component": 12},
    "loop": {
        "num_iterations": 4,
        "num_negatives": 64,
        "min_gain": None,
    },  # all four, although so few points tell nothing
}


def hparams(family: str = "virl", **sections: dict) -> Hparams:
    """The tiny settings for a family of methods, with some sections overridden."""
    return default_hparams(family).override(SECTIONS).override(sections)


def overrides(**sections: dict) -> dict:
    """The tiny settings as the dictionary `fit` takes, with some keys of some sections replaced."""
    return {
        name: {**SECTIONS.get(name, {}), **sections.get(name, {})}
        for name in {*SECTIONS, *sections}
    }


def set_words(*assignments: str) -> list[str]:
    """Assignments as the command line takes them: --set, the first one, --set, ..."""
    return [word for assignment in assignments for word in ("--set", assignment)]


# What the tests of `fit`, `judge` and `play` give the command line.
FIT_WORDS = [
    *set_words("network.num_layers=2", "network.layer_size=8", "training.num_epochs=2"),
    *set_words("loop.num_iterations=2", "loop.num_negatives=500", "kde.bandwidth=0.3"),
    *set_words("policy.update_steps=2", "policy.start=samples"),
]


def demonstrations(n: int = 60, seed: int = 0) -> np.ndarray:
    """Two clusters in 2-D with unequal scales, [n, 2]."""
    rng = np.random.default_rng(seed)
    centres = np.where(rng.uniform(size=(n, 1)) < 0.6, [[2.0, -10.0]], [[-1.0, 5.0]])
    return centres + rng.normal(size=(n, 2)) * [0.5, 2.0]
