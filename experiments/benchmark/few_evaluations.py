"""How many evaluations of a target with gradients a policy of a given KL takes, beside gmmvi."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from virl_tf.fit_policy import fit_policy
from virl_tf.numerics import split_seed
from virl_tf.vips.slopes import slopes_say_all
from virl_tf.vips.surrogate import num_coefficients

import numpy as np

from experiments.benchmark.timing import Row, in_a_process
from experiments.benchmark.vips import (
    Target,
    gmmvi_model,
    policy_of,
    targets,
    written_by,
)

# Names of `targets`, and KLs that gmmvi's best design comes to within a minute.
LEVELS = {
    "mixture of 30, K = 10": (1.0, 0.65),
    "mixture of 30, K = 30": (0.25, 0.15),
    "walker d = 5, K = 25": (0.7, 0.5),
    "planar robot, K = 40": (7.0, 5.0),
}

# (rounds, steps of each) of a search, from few evaluations to many.
SCHEDULES = ((3, 8), (4, 8), (5, 8), (4, 14), (5, 12), (5, 16), (6, 16), (8, 16), (10, 20))

# Steps whose draws serve again, of gradients and of values.
REUSED_STEPS, REUSED_STEPS_OF_VALUES = 5, 9

DESIGNS = ("SAMTRON", "SAMTRON/1", "ZAMTRUX/1")  # of gmmvi, the best ones on these targets
SECONDS = 60.0
POINTS = 1000  # between which jumps are looked for
GROWTH = 1.15  # of gmmvi's evaluations, from one look at its policy to the next


def frugal(dim: int, gradients: bool, rounds: int, steps: int) -> dict[str, Any]:
    """Arguments of `fit_policy` for a target whose evaluations are dear: a step sees two draws for
    each unknown of a component's surrogate, most of them again, and one of its own ends it.
    """
    unknowns = dim + 1 if gradients else num_coefficients(dim)
    reused_steps = REUSED_STEPS if gradients else REUSED_STEPS_OF_VALUES
    search = {"num_rounds": rounds, "steps_per_round": steps, "split_rounds": 0}
    samples = math.ceil(2 * unknowns / (1 + reused_steps))
    return {
        "search": {**search, "reused_steps": reused_steps, "samples_per_component": samples},
        "num_steps": 1,
        "samples_per_component": max(4, 2 * unknowns),
        "kl_bound": 0.05,
    }


def few_evaluations(seeds: Sequence[int], peers: bool, peer_seconds: float | None) -> Iterator[Row]:
    """Rows of all targets, each in a process of its own, as `vips.vips`."""
    for name in LEVELS:
        yield from in_a_process(rows_by_name, name, seeds, peers, peer_seconds or SECONDS)


def rows_by_name(name: str, seeds: Sequence[int], peers: bool, seconds: float) -> list[Row]:
    """For each seed and level the fewest evaluations, ours and of gmmvi's best design; inf: it was
    not reached.
    """
    make = targets()[name]
    rows = []
    for seed in seeds:
        found = {"virl_tf": least(name, trace_of_ours(make(seed), seed))}
        for design in DESIGNS if peers else ():
            trace = trace_of_gmmvi(make(seed), seed, design, seconds)
            found[f"gmmvi {design}"] = least(name, trace)
        if peers:
            of_designs = [found[f"gmmvi {design}"] for design in DESIGNS]
            found["gmmvi, best design"] = [min(level) for level in zip(*of_designs, strict=True)]
        for who, evaluations in found.items():
            for level, number in zip(LEVELS[name], evaluations, strict=True):
                case = f"{name}, KL {level:g}"
                row = {"part": "few evaluations", "case": case, "who": who, "seed": seed}
                rows.append({**row, "evaluations": number})
    return rows


def least(name: str, trace: Sequence[tuple[int, float]]) -> list[float]:
    """For each of the target's levels the fewest evaluations of (evaluations, KL) that reach it."""
    return [min((n for n, kl in trace if kl <= level), default=np.inf) for level in LEVELS[name]]


def trace_of_ours(target: Target, seed: int) -> list[tuple[int, float]]:
    """(evaluations, KL) of a fit with each of `SCHEDULES`."""
    found: list[tuple[int, float]] = []
    start = target.start(seed)
    given: dict[str, Any] = {"seed": seed, "initial_policy": start}
    points = start.sample(POINTS, split_seed(seed, 0, "check"))
    gradients = slopes_say_all(target.log_prob, points)
    for rounds, steps in SCHEDULES:
        options = {**given, **frugal(target.dim, gradients, rounds, steps)}
        fitted = fit_policy(target.log_prob, target.dim, target.components, **options)
        found.append((fitted.evaluations, target.measure(fitted.policy)["kl"]))
    return found


def trace_of_gmmvi(
    target: Target, seed: int, design: str, seconds: float
) -> list[tuple[int, float]]:
    """(evaluations, KL) while it goes on, for so many CPU seconds without those of the looks."""
    model, found, spent, due = gmmvi_model(target, seed, design, {}), [], 0.0, 0.0
    while spent < seconds:
        start = time.process_time()
        model.train_iter()
        spent += time.process_time() - start
        if (written := written_by(model)) >= due:
            found.append((written, target.measure(policy_of(model))["kl"]))
            due = GROWTH * written
    return found
