"""The sentences of the paper that state a result, the numbers that speak to them, and a verdict.

Not here: those of abstract, introduction, captions and conclusion that sum up others; what is
called a hypothesis, that the KDE is why V-IRL represents all modes; and that EIM and G-EIM are
"very unstable for larger numbers of update steps" of the policy. `ablate --table method_ablations`
speaks to both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from virl_tf.validation import InputError

import numpy as np
import pandas as pd
from rich.table import Table

from experiments.pooled_results import check_poolable, read_results
from experiments.result_statistics import (
    FEWEST_FOR_INTERVAL,
    Curve,
    bootstrap_interval,
    bounded,
    differences,
    paired,
    select,
    sign_flip_test,
    with_lost,
)
from experiments.screen import counted, screen
from experiments.tasks import describe

HOLDS, FAILS, TOO_FEW = "holds", "does not hold", "not enough runs"
MOSTLY = "holds but for outliers"  # by the ranks of the differences, though not in their mean
LEVEL = 0.05  # of every test, one-sided
FEWEST = 5  # pairs: with fewer a sign-flip test cannot be significant at LEVEL
ENOUGH = 15  # pairs: a difference that does not show by then is not there to be claimed
ENOUGH_SPREADS, SEEDS_OF_SPREADS = 10, 5  # the same of the paper's numbers of modes, and its seeds

TRAINED, INFERRED, OBSTRUCTED = "training", "inference", "obstacles"
VIRL, GEIM, EIM = (TRAINED, "virl", 10), (TRAINED, "geim", 10), (TRAINED, "eim", 10)
INFERENCES = (INFERRED, "virl", 10), (INFERRED, "geim", 10)


@dataclass(frozen=True)
class Finding:
    """What the results say about one claim.

    Attributes:
        need: of the verdict `TOO_FEW`, how many runs there are and how many would do.
    """

    numbers: str
    verdict: str
    need: str = ""

    @property
    def shown(self) -> str:
        """The verdict, with what it needs."""
        return f"{self.verdict} ({self.need})" if self.need else self.verdict


Check = Callable[[pd.DataFrame], Finding]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and how it is tested: `checks`, of which the worst verdict counts."""

    sentence: str
    test: str
    checks: tuple[Check, ...]

    def check(self, results: pd.DataFrame) -> Finding:
        """What the results of a sweep say."""
        findings = [one(results) for one in self.checks]
        numbers = "; ".join(found.numbers for found in findings)
        worst = _worst([found.verdict for found in findings])
        needs = [found.need for found in findings if found.verdict == worst]
        return Finding(numbers, worst, needs[0])


def _smaller(label: str, first: Curve, second: Curve, results: pd.DataFrame) -> Finding:
    """Is the first's I-projection below the second's, on the same targets and seeds?"""
    pairs = paired(results, first, second)
    a, b = pairs["first"].to_numpy(), pairs["second"].to_numpy()
    if len(pairs) < FEWEST:
        return Finding(f"{label}: {len(pairs)} pairs", TOO_FEW, _few(len(pairs), "pairs"))
    d = differences(a, b)
    wins = f"lower in {int(np.sum(d < 0.0))} of {len(pairs)}"
    numbers = f"{_mean(a)} against {_mean(b)}, {wins}, {_shown_tests(d)}"
    return _tested(f"{label}: {numbers}", d)


def _not_larger(label: str, first: Curve, second: Curve, results: pd.DataFrame) -> Finding:
    """Is the first's I-projection not above the second's, where `_smaller` has enough pairs?"""
    pairs = paired(results, first, second)
    found = _smaller(label, first, second, results)
    d = differences(pairs["first"].to_numpy(), pairs["second"].to_numpy())
    if len(d) < FEWEST or found.verdict in (HOLDS, MOSTLY):
        return found
    if sign_flip_test(-d) < LEVEL or (d.any() and _rank_test(-d) < LEVEL):
        return Finding(found.numbers, FAILS)
    return Finding(found.numbers, HOLDS) if len(d) >= ENOUGH else found


def _mean(values: np.ndarray, digits: str = ".3f") -> str:
    """Of the finite ones, and how many are not."""
    finite = values[np.isfinite(values)]
    shown = f"{finite.mean():{digits}}" if len(finite) else "none"
    return with_lost(shown, len(values) - len(finite))


def _shown_tests(d: np.ndarray) -> str:
    """The p of the mean's test, and of the ranks' where only that decides."""
    shown = f"p = {sign_flip_test(d):.2g}"
    if _verdict(d, enough=True) == MOSTLY:
        shown += f" (of ranks {_rank_test(d):.2g})"
    return shown


def _rank_test(d: np.ndarray) -> float:
    """Wilcoxon's signed ranks, one-sided: one run that diverged is one rank."""
    return _rank_p_value(tuple(bounded(d)))


@cache  # with ties SciPy goes through all signs, and a check asks more than once
def _rank_p_value(d: tuple[float, ...]) -> float:
    from scipy.stats import wilcoxon

    return float(wilcoxon(d, alternative="less").pvalue)


def _verdict(d: np.ndarray, enough: bool) -> str:
    """Holds or fails where a test decides; undecided: too few runs, until there are enough."""
    if sign_flip_test(d) < LEVEL:
        return HOLDS
    if d.any() and _rank_test(d) < LEVEL:
        return MOSTLY
    if enough or sign_flip_test(-d) < LEVEL:
        return FAILS
    return TOO_FEW


def _tested(numbers: str, d: np.ndarray) -> Finding:
    """What a sign-flip test says of enough pairs."""
    verdict = _verdict(d, len(d) >= ENOUGH)
    need = f"{len(d)} pairs undecided; {ENOUGH} decide" if verdict == TOO_FEW else ""
    return Finding(numbers, verdict, need)


def _few(number: int, what: str, least: int = FEWEST) -> str:
    return f"{number} {what}; at least {least}"


def _worst(verdicts: list[str]) -> str:
    return next((verdict for verdict in (TOO_FEW, FAILS, MOSTLY) if verdict in verdicts), HOLDS)


def _less_variance(first: Curve, other: Curve, results: pd.DataFrame) -> Finding:
    """Is the first's spread over seeds below the other's, over the numbers of modes?

    With a lost run it is infinite.
    """
    groups = [select(results, curve).groupby("modes")["reported"] for curve in (first, other)]
    spreads = [group.agg(_spread).dropna() for group in groups]
    both = pd.concat(spreads, axis=1, join="inner")
    if len(both) < FEWEST:
        numbers = f"against {other[1]}: spreads at {len(both)} numbers of modes"
        return Finding(numbers, TOO_FEW, _few(len(both), "numbers of modes with 2 seeds"))
    a, b = both.to_numpy().T
    d = differences(a, b)
    means = f"{_mean(a)} against {_mean(b)} ({other[1]})"
    numbers = f"mean standard deviation {means}, {_shown_tests(d)}"
    seeds = int(min(group.size()[both.index].min() for group in groups))
    verdict = _verdict(d, seeds >= SEEDS_OF_SPREADS and len(both) >= ENOUGH_SPREADS)
    need = f"{len(both)} numbers of modes, {seeds} seeds; {ENOUGH_SPREADS} and {SEEDS_OF_SPREADS}"
    return Finding(numbers, verdict, f"{need} decide" if verdict == TOO_FEW else "")


def _spread(values: pd.Series) -> float:
    lost = len(values) > 1 and not np.isfinite(values).all()
    return float("inf") if lost else float(values.std())


def _graceful(results: pd.DataFrame) -> Finding:
    """Does V-IRL's distance grow less with m than the baselines'?

    Of the medians over seeds: a run that diverged at few modes would tilt a line through all runs
    downwards. A lost one is worse than any other.
    """
    slopes = {}
    for name, curve in {"V-IRL": VIRL, "G-EIM": GEIM, "EIM": EIM}.items():
        chosen = select(results, curve)
        if chosen["modes"].nunique() < 3 or len(chosen) < FEWEST:
            need = _few(len(chosen), f"runs of {name}") + " at 3 numbers of modes"
            return Finding(f"{counted(len(chosen), 'run')} of {name}", TOO_FEW, need)
        medians = chosen["reported"].fillna(np.inf).groupby(chosen["modes"]).median()
        whole = np.isfinite(medians).all()
        slope = np.polyfit(medians.index, medians, 1)[0] if whole else np.inf
        slopes[name] = 10.0 * float(slope)
    shown = ", ".join(f"{name} {slope:+.3f}" for name, slope in slopes.items())
    least = np.isfinite(slopes["V-IRL"]) and slopes["V-IRL"] == min(slopes.values())
    verdict = HOLDS if least else FAILS
    return Finding(f"growth of the median I-projection per 10 modes: {shown}", verdict)


_PAIRED = "sign-flip test on pairs of the same target and seed, one-sided, level 0.05"

GAUSSIANS = (
    Claim(
        "V-IRL scales gracefully with the number of modes to be covered, comparing favorably to "
        "both baselines.",
        _PAIRED + " (10 components, recovered rewards)",
        (
            partial(_smaller, "V-IRL - G-EIM", VIRL, GEIM),
            partial(_smaller, "V-IRL - EIM", VIRL, EIM),
        ),
    ),
    Claim(
        "... scales gracefully with the number of modes ...",
        "least-squares slope, in m, of the median I-projection over seeds",
        (_graceful,),
    ),
    Claim(
        "V-IRL provides a stable solution ...",
        "sign-flip test on the standard deviations over seeds at each m",
        (partial(_less_variance, VIRL, GEIM), partial(_less_variance, VIRL, EIM)),
    ),
    Claim(
        "... for the same number of policy components [1 component: V-IRL against the baselines].",
        _PAIRED,
        (
            partial(_smaller, "V-IRL - G-EIM", (TRAINED, "virl", 1), (TRAINED, "geim", 1)),
            partial(_smaller, "V-IRL - EIM", (TRAINED, "virl", 1), (TRAINED, "eim", 1)),
        ),
    ),
    Claim(
        "Both methods generate a useful reward function that encodes more information than the "
        "policy that is used to produce it.",
        _PAIRED + " (inference policy against training policy)",
        (
            partial(_smaller, "V-IRL", ("inference", "virl", 10), ("training_policy", "virl", 10)),
            partial(_smaller, "G-EIM", ("inference", "geim", 10), ("training_policy", "geim", 10)),
        ),
    ),
    Claim(
        "V-IRL generally shows less variance in its solutions ...",
        "sign-flip test on the standard deviations over seeds at each m (inference)",
        (partial(_less_variance, *INFERENCES),),
    ),
    Claim(
        "... and produces slightly better rewards overall.",
        _PAIRED + " (inference policies)",
        (partial(_smaller, "V-IRL - G-EIM", *INFERENCES),),
    ),
    Claim(
        "... produces policies of the same quality as behavioral cloning approaches designed for "
        "versatile behavior.",
        "the same test: holds unless V-IRL's training policies are above EIM's (10 components)",
        (partial(_not_larger, "V-IRL - EIM", ("training_policy", "virl", 10), EIM),),
    ),
)


MOST = 0.5  # "versatile": the policy covers this share of as many modes as it has components
FEW = 0.5  # "mostly limited": at most this share of the modes covered is new
GOOD = 0.9  # "precise": share of good walks
FEWEST_OF_EACH = 3  # runs of each method, for a claim on every one


def _versatile_and_precise(results: pd.DataFrame) -> Finding:
    """Does every training policy of both methods cover many modes with good walks?"""
    numbers, verdicts, fewest = [], [], len(results)
    for method, label in (("virl", "V-IRL"), ("geim", "G-EIM")):
        runs = select(results, (TRAINED, method, 10))
        covered, good = runs["modes_covered"], runs["good_fraction"]
        possible = np.minimum(runs["components"], runs["open_modes"])
        both = (covered >= MOST * possible) & (good >= GOOD)
        means = f"{covered.mean():.1f} modes, {100 * good.mean():.1f} % good walks"
        in_runs = f"both in {int(both.sum())} of {counted(len(runs), 'run')}"
        found = f"{means}, {in_runs}" if len(runs) else "0 runs"
        numbers.append(f"{label}: {found}")
        verdict = HOLDS if both.all() else FAILS
        verdicts.append(verdict if len(runs) >= FEWEST_OF_EACH else TOO_FEW)
        fewest = min(fewest, len(runs))
    need = _few(fewest, "runs of a method", FEWEST_OF_EACH) if fewest < FEWEST_OF_EACH else ""
    return Finding("; ".join(numbers), _worst(verdicts), need)


def _mostly_limited(results: pd.DataFrame) -> Finding:
    """Is the share of new modes among those that inference on G-EIM's reward covers small?"""
    every = select(results, (INFERRED, "geim", 10))
    runs = every[every["modes_covered"] > 0]  # of no mode there is no share
    if len(runs) < FEWEST_FOR_INTERVAL:
        need = _few(len(runs), "runs that cover a mode", FEWEST_FOR_INTERVAL)
        return Finding(f"{counted(len(runs), 'run')} that cover a mode", TOO_FEW, need)
    shares = (runs["new_modes"] / runs["modes_covered"]).to_numpy()
    low, high = bootstrap_interval(shares)
    covered, new = runs["modes_covered"].mean(), runs["new_modes"].mean()
    interval = f"{shares.mean():.2f} [{low:.2f}, {high:.2f}]"
    numbers = f"{covered:.1f} modes covered, {new:.1f} of them new; share of new ones {interval}"
    numbers += f"; {len(every) - len(runs)} more cover none" if len(every) > len(runs) else ""
    if high <= FEW:
        return Finding(numbers, HOLDS)
    if low > FEW:
        return Finding(numbers, FAILS)
    return Finding(numbers, TOO_FEW, f"{counted(len(runs), 'run')} undecided; more of them")


def _more(stage: str, column: str, label: str, results: pd.DataFrame, sign: float = 1.0) -> Finding:
    """Is V-IRL's value of a column above G-EIM's (below, with sign -1), on the same seeds?"""
    pairs = paired(results, (stage, "virl", 10), (stage, "geim", 10), column)
    a, b = pairs["first"].to_numpy(float), pairs["second"].to_numpy(float)
    if len(pairs) < FEWEST:
        means = f", means {_mean(a, '.3g')} against {_mean(b, '.3g')}" if len(pairs) else ""
        numbers = f"{label}: {counted(len(pairs), 'pair')}{means}"
        return Finding(numbers, TOO_FEW, _few(len(pairs), "pairs"))
    d = differences(-sign * a, -sign * b)
    means = f"V-IRL {_mean(a, '.3g')}, G-EIM {_mean(b, '.3g')}"
    return _tested(f"{label}: {means}, {_shown_tests(d)}", d)


def _not_distinguished(results: pd.DataFrame) -> Finding:
    """Are unexplored centers and random points alike to G-EIM's reward, an AUC of one half?"""
    values = select(results, (TRAINED, "geim", 10))["unexplored_random_auc"].dropna().to_numpy()
    if len(values) < FEWEST_FOR_INTERVAL:
        need = _few(len(values), "runs", FEWEST_FOR_INTERVAL)
        return Finding(counted(len(values), "run"), TOO_FEW, need)
    low, high = bootstrap_interval(values)
    numbers = f"AUC unexplored against random {values.mean():.2f} [{low:.2f}, {high:.2f}]"
    return Finding(numbers, HOLDS if low <= 0.5 <= high else FAILS)


PREFERENCE = "AUC explored against unexplored"
ABOVE = "share of unexplored centers above the best random point"
GRID_WALKER = (
    Claim(
        "We find that the sampling policies for both V-IRL and G-EIM are versatile and precise.",
        f"every policy covers at least {MOST:.0%} as many modes as it has components, with at "
        f"least {GOOD:.0%} good walks",
        (_versatile_and_precise,),
    ),
    Claim(
        "... the inference policy of G-EIM is mostly limited to behaviors that were found during "
        "the training ...",
        f"95 % bootstrap interval of the share of new modes below {FEW:.0%}",
        (_mostly_limited,),
    ),
    Claim(
        "... the recovered reward of V-IRL allows for previously unexplored modes to be found by "
        "the inference policy.",
        _PAIRED + " (new modes, V-IRL against G-EIM)",
        (partial(_more, INFERRED, "new_modes", "new modes"),),
    ),
    Claim(
        "V-IRL is able to represent both explored and unexplored mode centers well.",
        _PAIRED + " (V-IRL against G-EIM)",
        (
            partial(_more, TRAINED, "unexplored_above_random", ABOVE),
            partial(_more, TRAINED, "unexplored_random_auc", "AUC unexplored against random"),
        ),
    ),
    Claim(
        "... G-EIM clearly prefers explored modes ...",
        _PAIRED + " (AUC of explored against unexplored centers; 0.5 is no preference)",
        (partial(_more, TRAINED, "explored_unexplored_auc", PREFERENCE, sign=-1.0),),
    ),
    Claim(
        "... failing to distinguish between them [read as: random points] and unexplored ones.",
        "95 % bootstrap interval of the AUC of unexplored centers against random points on G-EIM's "
        "reward reaches 0.5",
        (_not_distinguished,),
    ),
)

PATH_PLANNING = (
    Claim(
        "V-IRL reconstructs a versatile reward function that allows for good solutions even when "
        "some paths are obstructed.",
        f"{_PAIRED} (open paths found with obstacles, and those new to the training policy; V-IRL "
        "against G-EIM)",
        (
            partial(_more, OBSTRUCTED, "modes_covered", "open paths found"),
            partial(_more, OBSTRUCTED, "new_modes", "new open paths"),
        ),
    ),
)


def print_claims(task: str, results: Path | Sequence[Path], pool: bool = False) -> None:
    """Print each claim on a task with its numbers and verdict, from one or several sweeps.

    Args:
        pool: take results of different presets, settings, targets, versions and sizes together.

    Raises:
        InputError: unknown task, no results there, results of another task, or without `pool`
            results that differ in these.
    """
    description = describe(task)
    claims = description.claims()
    if not claims:
        raise InputError(f"the paper says nothing of {task}: there is no claim to test.")
    frame = read_results(results, task, pool)
    if not (pool or description.over_sizes):
        check_poolable("task sizes", {"numbers of modes": set(frame["modes"].astype(str))})
    table = Table("the paper says", "the runs say", "verdict", "test", show_lines=True)
    for claim in claims:
        finding = claim.check(frame)
        table.add_row(claim.sentence, finding.numbers, finding.shown, claim.test)
    screen().print(table)
