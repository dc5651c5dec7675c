"""The sentences of the paper that state a result, the numbers that speak to them, and a verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from virl_tf.validation import InputError

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.result_files import bootstrap_interval, paired, read_results, sign_flip_test
from experiments.tasks import describe

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


def _smaller(
    results: pd.DataFrame, first: tuple[str, str, int], second: tuple[str, str, int]
) -> Finding:
    """Is the first's I-projection below the second's, on the same targets and seeds?"""
    pairs = paired(results, first, second)
    a, b = pairs["first"].to_numpy(), pairs["second"].to_numpy()
    if len(pairs) < FEWEST:
        return Finding(f"{len(pairs)} pairs", TOO_FEW)
    wins = int(np.sum(a < b))
    means = f"{a.mean():.3f} against {b.mean():.3f}"
    p = sign_flip_test(a - b)
    numbers = f"{means}, lower in {wins} of {len(pairs)}, p = {p:.2g}"
    return Finding(numbers, _verdict(a - b))


def _verdict(differences: np.ndarray) -> str:
    """Holds or fails where a test decides; undecided means too few runs, until there are
    `ENOUGH`.
    """
    if sign_flip_test(differences) < LEVEL:
        return HOLDS
    if sign_flip_test(-differences) < LEVEL or len(differences) >= ENOUGH:
        return FAILS
    return TOO_FEW


def _all_smaller(
    *comparisons: tuple[str, tuple[str, str, int], tuple[str, str, int]],
) -> Callable[[pd.DataFrame], Finding]:
    def check(results: pd.DataFrame) -> Finding:
        findings = [
            (label, _smaller(results, first, second)) for label, first, second in comparisons
        ]
        numbers = "; ".join(f"{label}: {finding.numbers}" for label, finding in findings)
        return Finding(numbers, _worst([finding.verdict for _, finding in findings]))

    return check


def _worst(verdicts: list[str]) -> str:
    return next((verdict for verdict in (TOO_FEW, FAILS) if verdict in verdicts), HOLDS)


def _spread(results: pd.DataFrame, key: tuple[str, str, int]) -> pd.Series:
    """Standard deviation over seeds at each number of modes."""
    stage, method, components = key
    chosen = results[
        (results["stage"] == stage)
        & (results["method"] == method)
        & (results["components"] == components)
    ]
    return chosen.groupby("modes")["reported"].std().dropna()


def _less_variance(*keys: tuple[str, str, int]) -> Callable[[pd.DataFrame], Finding]:
    """Is the spread over seeds of the first key below that of each other, over the numbers of
    modes?
    """

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
                f"mean standard deviation {both[:, 0].mean():.3f} against {both[:, 1].mean():.3f} "
                f"({key[1]}), p = {p:.2g}"
            )
            verdicts.append(_verdict(both[:, 0] - both[:, 1]))
        return Finding("; ".join(numbers), _worst(verdicts))

    return check


def _graceful(results: pd.DataFrame) -> Finding:
    """Does V-IRL's distance grow less with m than the baselines'?"""
    slopes = {}
    for name, (stage, method, components) in {"V-IRL": VIRL, "G-EIM": GEIM, "EIM": EIM}.items():
        chosen = results[
            (results["stage"] == stage)
            & (results["method"] == method)
            & (results["components"] == components)
        ]
        if chosen["modes"].nunique() < 3 or len(chosen) < FEWEST:
            return Finding(f"{len(chosen)} runs of {name}", TOO_FEW)
        slopes[name] = 10.0 * float(np.polyfit(chosen["modes"], chosen["reported"], 1)[0])
    numbers = "growth of the I-projection per 10 modes: " + ", ".join(
        f"{name} {slope:+.3f}" for name, slope in slopes.items()
    )
    return Finding(numbers, HOLDS if slopes["V-IRL"] == min(slopes.values()) else FAILS)


_PAIRED = "sign-flip test on pairs of the same target and seed, one-sided, level 0.05"

GAUSSIANS = (
    Claim(
        "V-IRL scales gracefully with the number of modes to be covered, comparing favorably to "
        "both baselines.",
        _PAIRED + " (10 components, recovered rewards)",
        _all_smaller(("V-IRL - G-EIM", VIRL, GEIM), ("V-IRL - EIM", VIRL, EIM)),
    ),
    Claim(
        "... scales gracefully with the number of modes ...",
        "least-squares slope of the I-projection in m",
        _graceful,
    ),
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
        "Both methods generate a useful reward function that encodes more information than the "
        "policy that is used to produce it.",
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


TRAINED, INFERRED, OBSTRUCTED = "training", "inference", "obstacles"
MOST = (
    0.5  # "versatile": the policy covers at least this share of as many modes as it has components
)
FEW = 0.5  # "mostly limited": at most this share of the modes covered is new
GOOD = 0.9  # "precise": share of good walks


def _versatile_and_precise(results: pd.DataFrame) -> Finding:
    """Does every training policy of both methods cover many modes with good walks?"""
    numbers, verdicts = [], []
    for method, label in (("virl", "V-IRL"), ("geim", "G-EIM")):
        runs = _walks(results, TRAINED, method)
        versatile = runs["modes_covered"] >= MOST * np.minimum(
            runs["components"], runs["open_modes"]
        )
        precise = runs["good_fraction"] >= GOOD
        numbers.append(
            f"{label}: {runs['modes_covered'].mean():.1f} modes, "
            f"{100 * runs['good_fraction'].mean():.1f} % good walks, "
            f"both in {int((versatile & precise).sum())} of {len(runs)} runs"
        )
        few = TOO_FEW if len(runs) < 3 else FAILS
        verdicts.append(HOLDS if len(runs) >= 3 and (versatile & precise).all() else few)
    return Finding("; ".join(numbers), _worst(verdicts))


def _mostly_limited(results: pd.DataFrame) -> Finding:
    """Is the share of new modes among those that inference on G-EIM's reward covers small?"""
    runs = _walks(results, INFERRED, "geim")
    if len(runs) < 3:
        return Finding(f"{len(runs)} runs", TOO_FEW)
    shares = (runs["new_modes"] / runs["modes_covered"].clip(lower=1)).to_numpy()
    low, high = bootstrap_interval(shares)
    numbers = (
        f"{runs['modes_covered'].mean():.1f} modes covered, {runs['new_modes'].mean():.1f} of them "
        f"new; share of new ones {shares.mean():.2f} [{low:.2f}, {high:.2f}]"
    )
    return Finding(numbers, HOLDS if high <= FEW else FAILS if low > FEW else TOO_FEW)


def _more(
    stage: str, column: str, label: str, sign: float = 1.0
) -> Callable[[pd.DataFrame], Finding]:
    """Is V-IRL's value of a column above G-EIM's (below, with sign -1), on the same seeds?"""

    def check(results: pd.DataFrame) -> Finding:
        pairs = paired(results, (stage, "virl", 10), (stage, "geim", 10), column).dropna()
        a, b = pairs["first"].to_numpy(float), pairs["second"].to_numpy(float)
        if len(pairs) < FEWEST:
            means = f", means {a.mean():.3g} against {b.mean():.3g}" if len(pairs) else ""
            return Finding(f"{label}: {len(pairs)} pairs{means}", TOO_FEW)
        p = sign_flip_test(sign * (b - a))
        return Finding(
            f"{label}: V-IRL {a.mean():.3g}, G-EIM {b.mean():.3g}, p = {p:.2g}",
            _verdict(sign * (b - a)),
        )

    return check


def _each(*checks: Callable[[pd.DataFrame], Finding]) -> Callable[[pd.DataFrame], Finding]:
    def check(results: pd.DataFrame) -> Finding:
        findings = [one(results) for one in checks]
        return Finding(
            "; ".join(f.numbers for f in findings), _worst([f.verdict for f in findings])
        )

    return check


def _walks(results: pd.DataFrame, stage: str, method: str) -> pd.DataFrame:
    return results[
        (results["stage"] == stage) & (results["method"] == method) & (results["components"] == 10)
    ]


GRID_WALKER = (
    Claim(
        "We find that the sampling policies for both V-IRL and G-EIM are versatile and precise.",
        f"every policy covers at least {MOST:.0%} as many modes as it has components, with at "
        f"least {GOOD:.0%} good walks",
        _versatile_and_precise,
    ),
    Claim(
        "... the inference policy of G-EIM is mostly limited to behaviors that were found during "
        "the training ...",
        f"95 % bootstrap interval of the share of new modes below {FEW:.0%}",
        _mostly_limited,
    ),
    Claim(
        "... the recovered reward of V-IRL allows for previously unexplored modes to be found by "
        "the inference policy.",
        _PAIRED + " (new modes, V-IRL against G-EIM)",
        _more(INFERRED, "new_modes", "new modes"),
    ),
    Claim(
        "V-IRL is able to represent both explored and unexplored mode centers well.",
        _PAIRED + " (V-IRL against G-EIM)",
        _each(
            _more(
                TRAINED,
                "unexplored_above_random",
                "share of unexplored centers above the best random point",
            ),
            _more(TRAINED, "unexplored_random_auc", "AUC unexplored against random"),
        ),
    ),
    Claim(
        "... G-EIM clearly prefers explored modes, failing to distinguish between [random points] "
        "and unexplored ones.",
        _PAIRED + " (AUC of explored against unexplored centers; 0.5 is no preference)",
        _more(TRAINED, "explored_unexplored_auc", "AUC explored against unexplored", sign=-1.0),
    ),
)

PATH_PLANNING = (
    Claim(
        "V-IRL reconstructs a versatile reward function that allows for good solutions even when "
        "some paths are obstructed.",
        _PAIRED
        + " (open paths found with obstacles, and those new to the training policy; V-IRL against "
        "G-EIM)",
        _each(
            _more(OBSTRUCTED, "modes_covered", "open paths found"),
            _more(OBSTRUCTED, "new_modes", "new open paths"),
        ),
    ),
)


def print_claims(task: str, results: Path | Sequence[Path]) -> None:
    """Print each claim on a task with its numbers and verdict, from one sweep or from several
    together.

    Raises:
        InputError: unknown task, no results there, or results of another task.
    """
    claims = describe(task).claims()
    frame = read_results(results, task)
    found = sorted(frame["task"].unique())
    if found != [task]:
        where = ", ".join(map(str, [results] if isinstance(results, Path) else results))
        raise InputError(
            f"{where} holds results of {', '.join(found) or 'no task'}, not of {task}."
        )
    table = Table("the paper says", "the runs say", "verdict", "test", show_lines=True)
    for claim in claims:
        finding = claim.check(frame)
        table.add_row(
            *(
                escape(text)
                for text in (claim.sentence, finding.numbers, finding.verdict, claim.test)
            )
        )
    Console().print(table)
