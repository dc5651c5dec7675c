"""What a recovered reward has to beat: the KDE it is given, EM on the same demonstrations, the best
policies of a given size.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

from experiments.specification import Specification
from virl_tf import metrics
from virl_tf.fit_policy import fit_policy
from virl_tf.hparams import published
from virl_tf.kde import Kde, fit_kde
from virl_tf.mixture import Mixture, bic_mixture, em_mixture, kmeans_start
from virl_tf.numerics import DENSITY, numpy_seed
from virl_tf.run_folder import RunFolder, write_json
from virl_tf.tasks import RandomGaussians


def best_possible(task: RandomGaussians, x: np.ndarray, num_components: int, seed: int) -> Mixture:
    """The reverse-KL optimum of a mixture of this size, as VIPS on the true density finds it from a
    k-means start.
    """
    start = kmeans_start(x, num_components, numpy_seed(seed, 0, "initial policy"))
    fitted = fit_policy(
        task.log_prob,
        2,
        num_components,
        search=False,  # from k-means centres of the data no mode is missed
        seed=seed,
        num_steps=300,
        samples_per_component=200,
        initial_policy=start,
    )
    return fitted.policy


def execute_references(spec: Specification, folder: Path) -> None:
    """Write the I-projection of every reference for one target into summary.json."""
    RunFolder.open(
        folder,
        {
            "references": {
                key: spec.to_config()[key] for key in ("modes", "task_seed", "seed", "num_train")
            }
        },
    )
    task = RandomGaussians(spec.modes, spec.task_seed)
    x = task.demonstrations(spec.num_train + spec.num_test, spec.seed)[: spec.num_train]
    points = tf.constant(metrics.grid_around(x).points, DENSITY)
    log_p, seed = task.log_prob(points), spec.seed
    densities: dict[str, Mixture | Kde] = {
        "kde": fit_kde(x, published("gaussians", "virl_10c")["kde"]["bandwidth"]),
        "kde_held_out": fit_kde(x, "held_out", seed=numpy_seed(seed, 0, "bandwidth")),
        "em": em_mixture(x, min(spec.modes, len(x)), numpy_seed(seed, 0, "EM")),
        "em_10c": em_mixture(x, 10, numpy_seed(seed, 0, "EM")),
        "em_bic": bic_mixture(x, numpy_seed(seed, 0, "EM")),
        "best_1c": best_possible(task, x, 1, seed),
        "best_10c": best_possible(task, x, 10, seed),
    }
    distances = {
        name: metrics.i_projection(density.log_prob(points), log_p)
        for name, density in densities.items()
    }
    write_json(
        folder / "summary.json",
        {"modes": spec.modes, "seed": seed, "preset": spec.preset, "i_projection": distances},
    )
