"""What a recovered reward has to beat: densities fitted to the same demonstrations without any
discriminator, and the best policies of a given size.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virl_tf.density import Density
from virl_tf.description import describe_rows
from virl_tf.em.by_bic import bic_mixture
from virl_tf.em.density import density_fits
from virl_tf.em.em import em_mixture
from virl_tf.fit_policy import fit_policy
from virl_tf.kde import fit_kde
from virl_tf.mixture import Mixture, kmeans_start
from virl_tf.numerics import numpy_seed
from virl_tf.persistence.files import write_json
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.splitting import held_out_rows
from virl_tf.tasks import Task

import numpy as np

from experiments.result_files import TARGET
from experiments.specification import Specification
from experiments.tasks import experiment_of

LABELS = {
    "kde": "KDE, the run's bandwidth",
    "kde_silverman": "KDE, Silverman's factor as a length",
    "kde_held_out": "KDE, held-out bandwidth",
    "em_policy": "EM, components of the policy",
    "em_bic": "EM, components by BIC",
    "em_grown": "EM, as in q*_0 of `best`",
    "em_target": "EM, components of the target",
    "best_1c": "VIPS on the truth, 1c",
    "best_10c": "VIPS on the truth, 10c",
}
OF_RUNS = tuple(name for name in LABELS if not name.startswith("best_"))
SWEEP_COMPONENTS = 10  # "of the policy", where runs of several policies share the references


@dataclass(frozen=True)
class Demonstrated:
    """What references are fitted to.

    Attributes:
        x: demonstrations [N, D].
        seed: of the fits.
        task: the target.
        components: of the policy.
        run_density: the density estimate p~ that the run itself has, for the reference `kde`.
    """

    x: np.ndarray
    seed: int
    task: Task
    components: int = SWEEP_COMPONENTS
    run_density: Density | None = None

    def once(self, fit: Callable[..., Density], *how: Any, purpose: str = "EM") -> Density:
        """What `fit`, called with x, `how` and a seed, gives: done once in a process, because the
        runs of a sweep or a study share demonstrations.
        """
        seed = numpy_seed(self.seed, 0, purpose)
        return _fitted(fit, self.x.shape, self.x.tobytes(), *how, seed)


@functools.lru_cache(maxsize=32)
def _fitted(fit: Callable[..., Density], shape: tuple[int, ...], x: bytes, *how: Any) -> Density:
    return fit(np.frombuffer(x).reshape(shape), *how)


def _of_the_run(of: Demonstrated) -> Density:
    assert of.run_density is not None
    return of.run_density


def _held_out_kde(x: np.ndarray, seed: int) -> Density:
    return fit_kde(x, "held_out", seed=seed)


def _as_in_best(x: np.ndarray, seed: int) -> Density:
    """What `best` pools rewards with, of all rows: a tenth of them gives shares, as held-out
    ones do.
    """
    held_out, train = (x[rows] for rows in held_out_rows(len(x), 0.1))
    return describe_rows(density_fits(train, seed), train, held_out, num_contexts=0)(x)


FITS: dict[str, Callable[[Demonstrated], Density]] = {
    "kde": _of_the_run,
    "kde_silverman": lambda of: fit_kde(of.x, "silverman"),
    "kde_held_out": lambda of: of.once(_held_out_kde, purpose="bandwidth"),
    "em_policy": lambda of: of.once(em_mixture, of.components),
    "em_bic": lambda of: of.once(bic_mixture),
    "em_grown": lambda of: of.once(_as_in_best),
    "em_target": lambda of: of.once(em_mixture, min(len(of.task.mode_centers), len(of.x))),
    "best_1c": lambda of: fitted_to_truth(of.task, of.x, 1, of.seed),
    "best_10c": lambda of: fitted_to_truth(of.task, of.x, 10, of.seed),
}


def fit_references(names: Iterable[str], of: Demonstrated) -> dict[str, Density]:
    """The densities of these names."""
    return {name: FITS[name](of) for name in names}


def fitted_to_truth(task: Task, x: np.ndarray, num_components: int, seed: int) -> Mixture:
    """A policy of this size, by VIPS on the true density from a k-means start: an optimum of the
    reverse KL, but a local one.
    """
    start = kmeans_start(x, num_components, numpy_seed(seed, 0, "initial policy"))
    fitted = fit_policy(
        task.log_prob,
        task.dim,
        num_components,
        search=False,  # from k-means centres of the data no mode is missed
        seed=seed,
        num_steps=300,
        samples_per_component=200,
        initial_policy=start,
    )
    return fitted.policy


def execute_references(spec: Specification, identity: Mapping[str, Any], folder: Path) -> None:
    """Write the I-projection of every reference for one target into summary.json.

    `identity`: the folder's configuration. What is finished is left alone.
    """
    config = spec.to_config()
    RunFolder.open(folder, identity)
    if (folder / "summary.json").is_file():
        return
    found = experiment_of(config).references(spec.demonstrations()[: spec.num_train])
    key = {name: config[name] for name in TARGET}
    write_json(folder / "summary.json", {**key, **found})
