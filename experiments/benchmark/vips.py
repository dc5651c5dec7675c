"""Policies on targets whose truth is known, beside gmmvi, the VIPS authors' own library."""

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from virl_tf.fit_policy import fit_policy
from virl_tf.hparams import search_hparams
from virl_tf.metrics import covered_modes, policy_distance
from virl_tf.mixture import Mixture, kmeans_start, standard_normal_start
from virl_tf.numerics import DENSITY, compiled, numpy_seed, specs_of, split_seed
from virl_tf.persistence.files import save_arrays
from virl_tf.policy_fit.schedule import AFTER_SEARCH, step_hparams
from virl_tf.tasks import GridWalker, PlanarRobot, RandomGaussians
from virl_tf.vips.adaptive import KL_BOUND, budget_of
from virl_tf.vips.adaptive import search as vips_search
from virl_tf.vips.slopes import slopes_say_all
from virl_tf.vips.vips import default_samples, step_options, vips_steps

import numpy as np
import tensorflow as tf

from experiments.benchmark.timing import Row, compare, in_a_process

SAMPLES = 20_000
FRESH = {"desired_samples_per_component": 100, "ratio_reused_samples_to_desired": 0.0}
RESTARTS = 60  # of the search for the best known policy
TIMES_OURS = 20.0  # the CPU seconds a peer may take
# gmmvi's recommended design, the same with fixed components, VIPS itself; and the two that add
# components started from one, as in gmmvi's own experiments on mixtures: with all of ours from the
# start they add none until one is given up.
PEERS = ("SAMTRON", "SEMTRON", "ZAMTRUX", "SAMTRON/1", "ZAMTRUX/1")


@dataclass(frozen=True)
class Target:
    """A target, its start and what is counted.

    Attributes:
        log_prob: log p, normalised, [N, D] -> [N].
        start_std: [D], of the start's means and components.
        modes_of: [N, D] -> [N] int, -1 for none; None where there is nothing to count.
    """

    name: str
    dim: int
    components: int
    log_prob: Callable[[Any], Any]
    start_std: np.ndarray
    modes_of: Callable[[Any], np.ndarray] | None
    num_modes: int

    def start(self, seed: int) -> Mixture:
        """K components at random."""
        drawn = numpy_seed(seed, 0, "initial policy")
        start = standard_normal_start(self.components, self.dim, drawn)
        std = tf.constant(self.start_std, DENSITY)
        return start._replace(means=start.means * std, scale_trils=start.scale_trils * std[:, None])

    def measure(self, policy: Mixture) -> dict[str, float]:
        """KL(q || p) (by draws inside the support) and the modes covered by 0.3 % of the draws."""
        seed = split_seed(0, 0, "evaluation")
        measured = {"kl": policy_distance(policy, self.log_prob, 0.0, SAMPLES, seed).kl}
        if self.modes_of is not None:
            modes = self.modes_of(policy.sample(SAMPLES, seed))
            measured["modes"] = int(covered_modes(modes, self.num_modes).sum())
        return measured


def targets() -> dict[str, Callable[[int], Target]]:
    """Name -> what makes the target for a seed; walkers and robot are the same for all."""
    found: dict[str, Callable[[int], Target]] = {}
    for dim, components in ((5, 10), (5, 25), (5, 40), (7, 64)):
        walker, name = GridWalker(dim), f"walker d = {dim}, K = {components}"
        counted = (walker.log_prob, np.ones(dim), walker.modes_of, 2**dim)
        found[name] = partial(_for_any_seed, Target(name, dim, components, *counted))
    for components in (10, 30):
        name = f"mixture of 30, K = {components}"
        found[name] = partial(_mixture, name, components)
    robot, name = PlanarRobot(), "planar robot, K = 40"
    counted = (robot.log_prob, robot.prior_stds, robot.goals_of, 4)
    found[name] = partial(_for_any_seed, Target(name, 10, 40, *counted))
    return found


def _for_any_seed(target: Target, seed: int) -> Target:
    return target


def _mixture(name: str, components: int, seed: int) -> Target:
    log_prob = RandomGaussians(30, seed).log_prob
    return Target(name, 2, components, log_prob, np.full(2, 3.0), None, 0)


def ours(target: Target, seed: int, search: bool) -> tuple[Row, Mixture]:
    """`fit_policy` with its defaults: its measures, and the policy."""
    k, start_cpu = target.components, time.process_time()
    options: dict[str, Any] = {"seed": seed, "search": search, "initial_policy": target.start(seed)}
    fitted = fit_policy(target.log_prob, target.dim, k, **options)
    seconds = time.process_time() - start_cpu
    who = "virl_tf" if search else "virl_tf, fixed components"
    row = {"who": who, "seed": seed, "evaluations": fitted.evaluations}
    return {**row, "cpu_seconds": seconds, **target.measure(fitted.policy)}, fitted.policy


def seconds_after_tracing(target: Target, seed: int, evaluations: int) -> float:
    """CPU seconds of what `fit_policy` does by default, once it is compiled by XLA.

    `evaluations`: that it took; those beyond search and last steps are of steps after splits.
    """
    start = target.start(seed)
    seeds = tf.constant(split_seed(seed, 0, "search"))
    points = start.sample(1000, split_seed(seed, 0, "check"))
    gradients = slopes_say_all(target.log_prob, points)
    own = step_hparams(AFTER_SEARCH)
    options = step_options(own.kl_bound, own.weight_kl_bound, own.ridge)
    larger = step_options(KL_BOUND, own.weight_kl_bound, own.ridge)
    num_samples = AFTER_SEARCH.samples(target.dim, gradients)
    fewer = default_samples(target.dim, gradients=gradients)
    of_search = budget_of(target.components, target.dim, search_hparams(), gradients).evaluations
    of_last = AFTER_SEARCH.num_steps * num_samples * target.components
    of_splits = (evaluations - of_search - of_last) // (fewer * target.components)
    last: dict[str, Any] = {"num_steps": AFTER_SEARCH.num_steps, "num_samples": num_samples}
    split: dict[str, Any] = {"num_steps": of_splits, "num_samples": fewer}
    last["gradients"] = split["gradients"] = gradients

    def run(policy: Mixture, seed: Any) -> Mixture:
        given = (target.log_prob, seed, options, search_hparams(), gradients)
        policy, _ = vips_search(policy, *given)
        if of_splits:
            policy, _ = vips_steps(policy, target.log_prob, seed, larger, **split)
        return vips_steps(policy, target.log_prob, seed, options, **last)[0]

    function = compiled(run, *specs_of((start, seeds)))
    return compare({"": partial(function, start, seeds)}, 1)[""]["cpu_seconds"]


def best_known(target: Target, mixture: Mixture, seed: int, found: Mixture) -> Row:
    """The lowest KL of many long fits to a mixture of more components than the set has.

    They start at random parts of the target's own components, or at k-means centres of its draws,
    and at `found`.
    """
    k, rng, start_cpu = target.components, np.random.default_rng(seed), time.process_time()
    x = mixture.sample(2000, split_seed(seed, 0, "best known")).numpy()
    steps = [
        compiled_steps(target.log_prob, found, 150, 200),
        compiled_steps(target.log_prob, found, 40, 200, kl_bound=0.005),
    ]

    def fit(policy: Mixture, i: int) -> Mixture:
        for run in steps:
            policy = run(policy, tf.constant([seed, i]))
        return policy

    fits = [fit(found, 0)]
    for i in range(1, RESTARTS + 1):
        rows = rng.choice(mixture.num_components, k, replace=False, p=np.exp(mixture.log_weights))
        equal = tf.fill([k], tf.constant(-np.log(k), DENSITY))
        part = Mixture(equal, *(tf.gather(a, rows) for a in mixture[1:]))
        if i % 2:
            fits.append(fit(part, i))
        else:
            some = x[rng.choice(len(x), 1000, replace=False)]
            fits.append(fit(kmeans_start(some, k, i), i))
    best = min((target.measure(policy) for policy in fits), key=lambda measured: measured["kl"])
    row = {"who": "best known", "seed": seed, "cpu_seconds": time.process_time() - start_cpu}
    return {**row, "evaluations": len(fits) * 190 * 200 * k, **best}


def compiled_steps(
    log_prob: Callable[[Any], Any],
    start: Mixture,
    num_steps: int,
    num_samples: int,
    kl_bound: float = 0.05,
) -> Callable[[Mixture, Any], Mixture]:
    """Steps of a fixed set of components, from a policy of the shapes of `start` and a seed."""
    options = step_options(kl_bound, 0.05, 1e-6)
    sizes: dict[str, Any] = {"num_steps": num_steps, "num_samples": num_samples}

    def run(policy: Mixture, seed: Any) -> Mixture:
        return vips_steps(policy, log_prob, seed, options, **sizes)[0]

    return compiled(run, *specs_of((start, tf.constant([0, 0]))))


def gmmvi(
    target: Target,
    seed: int,
    design: str,
    evaluations: int,
    options: Mapping[str, Any] | None = None,
    most_seconds: float = float("inf"),
) -> Row:
    """The same target, start, evaluations and most components for a design of gmmvi.

    Args:
        most_seconds: CPU seconds, from the end of the first iteration on (it traces), after which
            it has to stop.
    """
    model = gmmvi_model(target, seed, design, options or {})
    start_cpu = time.process_time()
    iterations, first, seconds = 0, 0.0, 0.0
    while written_by(model) < evaluations and seconds - first < most_seconds:
        model.train_iter()
        iterations += 1
        seconds = time.process_time() - start_cpu
        first = first or seconds
    policy = policy_of(model)
    after, written = seconds - first, written_by(model)
    row = {"who": f"gmmvi {design}", "seed": seed, "evaluations": written}
    row |= {"cpu_seconds": seconds, "cpu_after_tracing": after}
    row |= {"components": policy.num_components, "iterations": iterations}
    row |= {"stopped": float(after >= most_seconds)}
    row |= {"cpu_ms_per_iteration": 1e3 * after / max(1, iterations - 1)}
    return {**row, **target.measure(policy)}


def written_by(model: Any) -> int:
    """How often a model of gmmvi has evaluated its target."""
    return int(model.sample_db.num_samples_written)


def policy_of(model: Any) -> Mixture:
    """The mixture of a model of gmmvi."""
    gmm = model.model
    policy = Mixture(*(tf.cast(a, DENSITY) for a in (gmm.log_weights, gmm.means, gmm.chol_cov)))
    return policy._replace(log_weights=tf.nn.log_softmax(policy.log_weights))


def gmmvi_model(target: Target, seed: int, design: str, options: Mapping[str, Any]) -> Any:
    """Its model of a target, from the same start."""
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    from gmmvi.experiments.target_distributions.lnpdf import LNPDF
    from gmmvi.models.full_cov_gmm import FullCovGMM
    from gmmvi.models.gmm_wrapper import GmmWrapper
    from gmmvi.optimization.gmmvi import GMMVI

    class Wrapped(LNPDF):
        def log_density(self, x: tf.Tensor) -> tf.Tensor:
            # gmmvi's regression needs finite values: far below everything outside the support.
            values = tf.cast(target.log_prob(tf.cast(x, DENSITY)), tf.float32)
            return tf.where(tf.math.is_finite(values), values, -1e6 * tf.ones_like(values))

        def get_num_dimensions(self) -> int:
            return target.dim

    np.random.seed(seed)  # noqa: NPY002 (gmmvi draws from it)
    tf.random.set_seed(seed)
    design, _, first = design.partition("/")
    start = Mixture(*(a[: int(first or target.components)] for a in target.start(seed)))
    config = _gmmvi_config(target, design, options)
    covariances = tf.matmul(start.scale_trils, start.scale_trils, transpose_b=True)
    arrays = (tf.nn.softmax(start.log_weights), start.means, covariances)
    gmm = FullCovGMM(*(tf.cast(a, tf.float32) for a in arrays))
    regularizer = config["ng_estimator_config"].get("initial_l2_regularizer", 1e-12)
    stepsize = config["component_stepsize_adapter_config"]["initial_stepsize"]
    wrapped = GmmWrapper(gmm, stepsize, regularizer, 10_000)
    return GMMVI.build_from_config(config=config, target_distribution=Wrapped(), model=wrapped)


def _gmmvi_config(target: Target, design: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A design of gmmvi with ours of what it leaves open, and `options` over both."""
    from gmmvi.configs import get_default_algorithm_config, update_config

    with contextlib.redirect_stdout(io.StringIO()):
        config = get_default_algorithm_config(design)
    variances = (target.start_std**2).astype("float32")
    start = {"use_diagonal_covs": False, "prior_mean": 0.0, "initial_cov": variances}
    ours = {
        "temperature": 1.0,
        "use_sample_database": True,
        "max_database_size": 1_000_000,
        "component_stepsize_adapter_config": {"initial_stepsize": 0.1},
        "model_initialization": start,
    }
    config = update_config(update_config(config, ours), dict(options))
    if config["num_component_adapter_type"] == "adaptive":
        most = {"max_components": target.components, "add_iters": 5}
        config["num_component_adapter_config"] |= most
    return config


def vips(
    seeds: Sequence[int], peers: bool, peer_seconds: float | None, out: Path, only: str = ""
) -> Iterator[Row]:
    """The `fits` of all targets, or of those with `only` in their names.

    Each in a process of its own: gmmvi keeps gigabytes, and after an hour of compilations in one
    process it crashed.
    """
    for name in targets():
        if only in name:
            yield from in_a_process(fits_by_name, name, seeds, peers, peer_seconds, out)


def fits_by_name(name: str, *arguments: Any) -> list[Row]:
    """`fits` of one of `targets`."""
    return list(fits(targets()[name], *arguments))


def fits(
    make: Callable[[int], Target],
    seeds: Sequence[int],
    peers: bool,
    peer_seconds: float | None,
    out: Path,
) -> Iterator[Row]:
    """All seeds of a target: with search, fixed components, and gmmvi at as many evaluations.

    All of gmmvi's designs run on the first seed, and on the others the one that was best there. The
    robot's first policy goes to out/robot.npz, for `figure robot`.

    Args:
        peer_seconds: CPU seconds after which a run of gmmvi has to stop; None: TIMES_OURS of what
            the search takes.
    """
    target = make(seeds[0])
    case = {"part": "policy fit", "case": target.name}
    designs: tuple[str, ...] = PEERS if peers else ()
    after_tracing = None
    for seed in seeds:
        found, policy = ours(make(seed), seed, True)
        if after_tracing is None:
            after_tracing = seconds_after_tracing(make(seed), seed, int(found["evaluations"]))
            most = TIMES_OURS * after_tracing if peer_seconds is None else peer_seconds
        yield {**case, **found, "cpu_after_tracing": after_tracing}
        if target.name.startswith("planar robot") and seed == seeds[0]:
            save_robot(out / "robot.npz", policy)
        yield {**case, **ours(make(seed), seed, False)[0]}
        if target.components < 30 and target.name.startswith("mixture"):
            mixture = RandomGaussians(30, seed).mixture
            yield {**case, **best_known(make(seed), mixture, seed, policy)}
        evaluations = found["evaluations"]
        results = {
            design: gmmvi(make(seed), seed, design, evaluations, None, most) for design in designs
        }
        yield from ({**case, **row} for row in results.values())
        distances = {name: np.nan_to_num(row["kl"], nan=np.inf) for name, row in results.items()}
        designs = tuple(sorted(distances, key=distances.__getitem__)[:1])


def save_robot(file: Path, policy: Mixture) -> None:
    """The arms of the components' means and of some draws."""
    robot = PlanarRobot()
    draws = policy.sample(200, split_seed(0, 0, "drawn arms"))
    arms = {"means": robot.joints(policy.means), "draws": robot.joints(draws), "goals": robot.goals}
    file.parent.mkdir(parents=True, exist_ok=True)
    save_arrays(file, {**arms, "weights": np.exp(policy.log_weights)})


def steps_beside_gmmvi() -> list[Row]:
    """Iterations of a fixed set of components: time, and KL after as many evaluations.

    100 new evaluations for each component and iteration.

    gmmvi: the designs with fixed components and its two estimators, without reuse of samples, which
    would be fewer evaluations.
    """
    rows: list[Row] = []
    num_steps = 300
    for name in ("mixture of 30, K = 30", "walker d = 5, K = 25"):
        target = targets()[name](0)
        start, seed = target.start(0), tf.constant(split_seed(0, 0, "policy"))
        function = compiled_steps(target.log_prob, start, num_steps, 100)
        measured = compare({"virl_tf": partial(function, start, seed)}, 3)["virl_tf"]["cpu_seconds"]
        evaluations = num_steps * 100 * target.components
        row = {"part": "fixed components", "case": target.name, "evaluations": evaluations}
        ours = {"who": "virl_tf", "cpu_seconds": measured / num_steps}
        rows.append({**row, **ours, **target.measure(function(start, seed))})
        for design in ("SEMTRON", "ZEMTRON"):
            found = gmmvi(target, 0, design, evaluations, {"sample_selector_config": FRESH})
            rows.append({**row, **found, "cpu_seconds": found["cpu_ms_per_iteration"] / 1e3})
            rows[-1].pop("seed")
    return rows
