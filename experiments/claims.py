"""The sentences of the paper that state a result, the numbers that speak to them, and a verdict."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from experiments.result_files import paired, read_results, sign_flip_test
from virl_tf.validation import check_choice

HOLDS, FAILS, TOO_FEW = "holds", "does not hold", "not enough runs"
LEVEL = 0.05  # of every test, one-sided
FEWEST = 5  # pairs: with fewer a sign-flip test cannot be significant at LEVEL
ENOUGH = 15  # pairs: a difference that does not show by then is not there to be claimed

VIRL, GEIM, EIM = ("training", "virl", 10), ("training", "geim", 10), ("training", "eim", 10)


@dataclass(frozen=True)
class Finding:
    """What the results say about one claim."""

    numbers: str
    verdict: str


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and how it is tested."""

    sentence: str
    test: str
    check: Callable[[pd.DataFrame], Finding]


def _smaller(results: pd.DataFrame, first: tuple[str, str, int], second: tuple[str, str, int]) -> Finding:
    """Is the first's I-projection below the second's, on the same targets and seeds?"""
    pairs = paired(results, first, second)
    a, b = pairs["first"].to_numpy(), pairs["second"].to_numpy()
    if len(pairs) < FEWEST:
        return Finding(f"{len(pairs)} pairs", TOO_FEW)
    wins = int(np.sum(a < b))
    numbers = f"{a.mean():.3f} against {b.mean():.3f}, lower in {wins} of {len(pairs)}, p = {sign_flip_test(a - b):.2g}"
    return Finding(numbers, _verdict(a - b))


def _verdict(differences: np.ndarray) -> str:
    """Holds or fails where a test decides; undecided means too few runs, until there are `ENOUGH`."""
    if sign_flip_test(differences) < LEVEL:
        return HOLDS
    if sign_flip_test(-differences) < LEVEL or len(differences) >= ENOUGH:
        return FAILS
    return TOO_FEW


def _all_smaller(*comparisons: tuple[str, tuple[str, str, int], tuple[str, str, int]]) -> Callable[[pd.DataFrame], Finding]:
    def check(results: pd.DataFrame) -> Finding:
        findings = [(label, _smaller(results, first, second)) for label, first, second in comparisons]
        numbers = "; ".join(f"{label}: {finding.numbers}" for label, finding in findings)
        return Finding(numbers, _worst([finding.verdict for _, finding in findings]))

    return check


def _worst(verdicts: list[str]) -> str:
    return next((verdict for verdict in (TOO_FEW, FAILS) if verdict in verdicts), HOLDS)


def _spread(results: pd.DataFrame, key: tuple[str, str, int]) -> pd.Series:
    """Standard deviation over seeds at each number of modes."""
    stage, method, components = key
    chosen = results[(results["stage"] == stage) & (results["method"] == method) & (results["components"] == components)]
    return chosen.groupby("modes")["reported"].std().dropna()


def _less_variance(*keys: tuple[str, str, int]) -> Callable[[pd.DataFrame], Finding]:
    """Is the spread over seeds of the first key below that of each other, over the numbers of modes?"""

    def check(results: pd.DataFrame) -> Finding:
        spreads = [_spread(results, key) for key in keys]
        numbers, verdicts = [], []
        for key, other in zip(keys[1:], spreads[1:], strict=True):
            both = pd.concat([spreads[0], other], axis=1, join="inner").to_numpy()
            if len(both) < FEWEST:
                numbers.append(f"against {key[1]}: spreads at {len(both)} numbers of modes")
                verdicts.append(TOO_FEW)
                continue
            p = sign_flip_test(both[:, 0] - both[:, 1])
            numbers.append(
                f"mean standard deviation {both[:, 0].mean():.3f} against {both[:, 1].mean():.3f} ({key[1]}), p = {p:.2g}"
            )
            verdicts.append(_verdict(both[:, 0] - both[:, 1]))
        return Finding("; ".join(numbers), _worst(verdicts))

    return check


def _graceful(results: pd.DataFrame) -> Finding:
    """Does V-IRL's distance grow less with m than the baselines'?"""
    slopes = {}
    for name, (stage, method, components) in {"V-IRL": VIRL, "G-EIM": GEIM, "EIM": EIM}.items():
        chosen = results[(results["stage"] == stage) & (results["method"] == method) & (results["components"] == components)]
        if chosen["modes"].nunique() < 3 or len(chosen) < FEWEST:
            return Finding(f"{len(chosen)} runs of {name}", TOO_FEW)
        slopes[name] = 10.0 * float(np.polyfit(chosen["modes"], chosen["reported"], 1)[0])
    numbers = "growth of the I-projection per 10 modes: " + ", ".join(f"{name} {slope:+.3f}" for name, slope in slopes.items())
    return Finding(numbers, HOLDS if slopes["V-IRL"] == min(slopes.values()) else FAILS)


_PAIRED = "sign-flip test on pairs of the same target and seed, one-sided, level 0.05"

GAUSSIANS = (
    Claim(
        "V-IRL scales gracefully with the number of modes to be covered, comparing favorably to both baselines.",
        _PAIRED + " (10 components, recovered rewards)",
        _all_smaller(("V-IRL - G-EIM", VIRL, GEIM), ("V-IRL - EIM", VIRL, EIM)),
    ),
    Claim("... scales gracefully with the number of modes ...", "least-squares slope of the I-projection in m", _graceful),
    Claim(
        "V-IRL provides a stable solution ...",
        "sign-flip test on the standard deviations over seeds at each m",
        _less_variance(VIRL, GEIM, EIM),
    ),
    Claim(
        "... for the same number of policy components [1 component: V-IRL against the baselines].",
        _PAIRED,
        _all_smaller(
            ("V-IRL - G-EIM", ("training", "virl", 1), ("training", "geim", 1)),
            ("V-IRL - EIM", ("training", "virl", 1), ("training", "eim", 1)),
        ),
    ),
    Claim(
        "Both methods generate a useful reward function that encodes more information than the policy that is used to "
        "produce it.",
        _PAIRED + " (inference policy against training policy)",
        _all_smaller(
            ("V-IRL", ("inference", "virl", 10), ("training_policy", "virl", 10)),
            ("G-EIM", ("inference", "geim", 10), ("training_policy", "geim", 10)),
        ),
    ),
    Claim(
        "V-IRL generally shows less variance in its solutions ...",
        "sign-flip test on the standard deviations over seeds at each m (inference)",
        _less_variance(("inference", "virl", 10), ("inference", "geim", 10)),
    ),
    Claim(
        "... and produces slightly better rewards overall.",
        _PAIRED + " (inference policies)",
        _all_smaller(("V-IRL - G-EIM", ("inference", "virl", 10), ("inference", "geim", 10))),
    ),
)


def print_claims(task: str, results: Path) -> None:
    """Print each claim on a task with its numbers and verdict."""
    check_choice("task", task, ("gaussians",))
    frame = read_results(results)
    table = Table("the paper says", "the runs say", "verdict", "test", show_lines=True)
    for claim in GAUSSIANS:
        finding = claim.check(frame)
        table.add_row(claim.sentence, finding.numbers, finding.verdict, claim.test)
    Console().print(table)
