"""Which density is the best one of demonstrations: by the likelihood of rows that none has seen,
and by what draws do.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

from virl_tf.conditional import Policy, conditioned
from virl_tf.conditional_kde import conditional_kernels
from virl_tf.contexts import Places, Where, drawn, places
from virl_tf.demonstrations import Data
from virl_tf.density import Density
from virl_tf.em.by_bic import bic_mixture
from virl_tf.em.em import Covariances, are_few, em_mixture
from virl_tf.fusion import Fusion
from virl_tf.kde import fit_kde
from virl_tf.numerics import DENSITY, at_share, numpy_seed, split_seed
from virl_tf.reward import Reward, evaluate
from virl_tf.score import (
    CLEAR,
    DRAWS_IN_CONTEXT,
    NORMALISER_DRAWS,
    log_inside,
    log_normaliser,
    mean_and_error,
    normaliser_error,
)
from virl_tf.splitting import folds
from virl_tf.validation import InputError, told

import numpy as np
import pandas as pd
import tensorflow as tf

from experiments.evaluation.trajectories import reward_draws
from experiments.flow import fit_flow, flow_is_installed

KEPT_BACK, REWARD, POLICY, EM_BIC, FLOW = "kept back", "reward", "policy", "EM by BIC", "flow"
DRAWS = 4000  # of each density, for its outcome
CANDIDATES = 50  # of a draw of a reward with contexts
FOLDS, RIDGES = 5, (1e-6, 1e-3, 3e-3, 1e-2)  # of EM with one covariance
COLUMNS = ["split", "density", "rows", "log_likelihood", "standard_error"]
# By which the reward is ahead on the same rows, and the share of its proposal that is effective.
COLUMNS += ["reward_ahead", "ahead_error", "effective_share"]

Outcome = Callable[[Any, Any], Any]


class NormalisedReward(NamedTuple):
    """The density exp(R) / Z, a `Density`, by draws of a proposal.

    Attributes:
        log_z: log Z [1], or with contexts of each that is measured in, [M].
        effective_share: of the proposal's draws, by their importance weights.
    """

    reward: Reward
    proposal: Density
    log_z: np.ndarray
    effective_share: float

    def log_prob(self, x: Any) -> tf.Tensor:
        """[N, D] -> [N]; with contexts of the rows [M, C + D] that are measured."""
        return evaluate(self.reward, x) - self.log_z

    def sample(self, n: Any, seed: Any = None) -> tf.Tensor:
        """[n, D], resampled by their weights from draws of the proposal: some more than once.

        Args:
            n: how many, or the contexts [n, C].
            seed: int32 [2].
        """
        if isinstance(n, int):
            return reward_draws(lambda x: evaluate(self.reward, x), self.proposal, n, seed)[0]
        seeds = tf.random.split(seed, 2)
        rows = drawn(self.proposal, Places(n, CANDIDATES), seeds[0])
        log_w = tf.reshape(evaluate(self.reward, rows) - self.proposal.log_prob(rows), [-1, len(n)])
        shares = tf.random.stateless_uniform([len(n), 1], seeds[1], dtype=DENSITY)
        chosen = at_share(tf.nn.softmax(tf.transpose(log_w)), shares)[:, 0]
        x = tf.reshape(rows[:, n.shape[1] :], [CANDIDATES, len(n), -1])
        return tf.gather(tf.transpose(x, [1, 0, 2]), chosen, batch_dims=1)


def normalised(
    reward: Reward, policy: Density, data: Data, seed: int, contexts: tf.Tensor | None = None
) -> NormalisedReward:
    """By draws of the policy and of the EM mixture that the reward has, or kernels of the rows.

    `contexts`: to measure in, [M, C]; None: there are none.
    """
    known: Any = reward.mixture
    other = known if known.num_components else kernels(data, seed)
    proposal = Fusion(policy, other)
    where = NORMALISER_DRAWS if contexts is None else Places(contexts, DRAWS_IN_CONTEXT)
    return NormalisedReward(reward, proposal, *log_normaliser(reward, proposal, where, seed))


def kernels(data: Data, seed: int) -> Density:
    """KDE, of the bandwidth in standard deviations under which held-out rows are likeliest."""
    own_seed = numpy_seed(seed, 0, "bandwidth")
    found = fit_kde(data.rows, "held_out", "relative", own_seed, data.groups)
    return conditional_kernels(found, data.num_contexts)


def reference_fits(
    data: Data, sizes: Mapping[str, int], seed: int
) -> dict[str, Callable[[], Density]]:
    """Name -> what fits it: densities that others would take, without any discriminator.

    EM of given sizes, {suffix of its name: components}, has scikit-learn's own ridge, on
    standardised columns; where components share a covariance, the one of `RIDGES` under which
    held-out rows are likeliest. With contexts all are what they say of x given c.
    """
    x, size, em_seed = data.rows, data.num_contexts, numpy_seed(seed, 0, "EM")
    fits: dict[str, Callable[[], Density]] = {
        EM_BIC: lambda: conditioned(bic_mixture(x, em_seed), size)
    }
    for suffix, k in sizes.items():
        fits[f"EM{suffix}"] = partial(_em_given, x, size, k, em_seed)
        fits[f"EM tied{suffix}"] = partial(tied_mixture, data, k, em_seed)
    fits["KDE"] = partial(kernels, data, seed)
    if flow_is_installed():
        fits[FLOW] = partial(fit_flow, x, seed, size)
    return fits


def _em_given(x: np.ndarray, num_contexts: int, components: int, *how: Any) -> Policy:
    """EM of so many components, at most one for each row."""
    return conditioned(em_mixture(x, min(components, len(x)), *how), num_contexts)


def tied_mixture(data: Data, components: int, seed: int) -> Density:
    """EM whose components share a covariance, with a ridge chosen by a part of the rows; of few
    rows by all of them, in turn.
    """
    x = data.rows
    parts = folds(len(x), FOLDS, seed, data.groups)
    parts = parts if are_few(*x.shape) else parts[:1]

    def fit(rows: np.ndarray, ridge: float) -> Density:
        return _em_given(rows, data.num_contexts, components, seed, Covariances("tied", ridge))

    def held_out(ridge: float) -> float:
        fits = [fit(np.delete(x, part, axis=0), ridge) for part in parts]
        points = [tf.constant(x[part], DENSITY) for part in parts]
        pairs = zip(fits, points, strict=True)
        return float(np.concatenate([found.log_prob(rows) for found, rows in pairs]).mean())

    return fit(x, max(RIDGES, key=held_out))


class Measure(NamedTuple):
    """What the densities of one split are measured with.

    Attributes:
        test: kept-back rows [M, D], or [M, C + D].
        as_seen: what the user's function and pictures see of rows [S, D]: these, or decoded paths
            [S, T, D'].
        outcome: the user's function; None: there is none.
        seed: of draws.
        num_contexts: C; draws are in the contexts of kept-back rows.
        groups: whose rows the kept-back ones are, [M]; None: each is its own.
    """

    test: np.ndarray
    as_seen: Callable[[np.ndarray], np.ndarray]
    outcome: Outcome | None
    seed: int
    num_contexts: int = 0
    groups: np.ndarray | None = None

    @property
    def contexts(self) -> tf.Tensor | None:
        """Of the kept-back rows [M, C]; None if C = 0."""
        size = self.num_contexts
        return tf.constant(self.test[:, :size], DENSITY) if size else None

    @property
    def _where(self) -> Where:
        contexts = self.contexts
        return NORMALISER_DRAWS if contexts is None else Places(contexts, DRAWS_IN_CONTEXT)

    def kept_back(self) -> dict[str, Any]:
        """The row of the kept-back rows themselves. Raises InputError, as `outcome_of`."""
        kept_back = self.as_seen(self.test)
        found = {"density": KEPT_BACK, "rows": len(self.test)}
        return {**found, **outcome_of(self.outcome, kept_back, kept_back)}

    def row(self, name: str, density: Density, reward: NormalisedReward) -> dict[str, Any]:
        """That of a density; the likelihoods are those inside of the reward's bounds, which say
        nothing about who is better. Raises InputError, as `outcome_of`.
        """
        of_rows, of_reward = (self._log_prob(d) for d in (density, reward))
        if density is not reward:
            of_rows = of_rows - log_inside(density, reward.reward, self._where, self.seed)
        mean, error = mean_and_error(of_rows, self.groups).values()
        found = {"density": name, "rows": len(self.test)}
        found |= {"log_likelihood": mean, "standard_error": error}
        if density is reward:
            found["effective_share"] = reward.effective_share
        else:
            ahead = mean_and_error(of_reward - of_rows, self.groups)
            found["reward_ahead"], found["ahead_error"] = ahead.values()
        kept_back = self.as_seen(self.test)
        return {**found, **outcome_of(self.outcome, self.draws(name, density), kept_back)}

    def draws(self, name: str, density: Density) -> np.ndarray:
        """`DRAWS` of a density, as seen; of all densities in the same contexts."""
        seed = split_seed(self.seed, 0, f"draws of {name}")
        where = places(self.contexts, DRAWS, split_seed(self.seed, 0, "contexts of draws"))
        return self.as_seen(np.asarray(drawn(density, where, seed)))

    def _log_prob(self, density: Density) -> np.ndarray:
        return np.asarray(density.log_prob(tf.constant(self.test, DENSITY)))


def outcome_of(outcome: Outcome | None, x: np.ndarray, kept_back: np.ndarray) -> dict[str, float]:
    """What the user's function says of draws; nothing if there is none. It may change what it gets.

    Raises:
        InputError: it says something else than names and numbers, or has the name of a column.
    """
    if outcome is None:
        return {}
    return numbers_by_name("--outcome: the function", outcome(x.copy(), kept_back.copy()), COLUMNS)


def numbers_by_name(what: str, found: Any, taken: Collection[str]) -> dict[str, float]:
    """What a user's function returned, checked.

    Args:
        what: the function, for messages.
        taken: names that a table has for something else.

    Raises:
        InputError: no names and numbers, or such a name.
    """
    wanted = f"{what} must return {{name: number}}"
    if not isinstance(found, Mapping) or not found:
        raise InputError(f"{wanted}, got {told(found)}.")
    numbers = {}
    for name, value in found.items():
        if not isinstance(name, str) or not name.strip() or "\r" in name or name in taken:
            raise InputError(f"{wanted}, with other names than the table's own; got {name!r}.")
        if not isinstance(value, (bool, int, float, np.bool_, np.integer, np.floating)):
            raise InputError(f"{wanted}; {name!r} is {told(value)}.")
        numbers[name] = float(value)
    return numbers


# --- over all splits ------------------------------------------------------------------------------


def over_splits(table: pd.DataFrame, keep_back: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Means and standard errors of each density, in the order of the table.

    Splits that keep back such a share of the same rows tell less than as many of others (Nadeau and
    Bengio 2003). Of one split the errors are those over its rows, where there are any.
    """
    numbers = table.drop(columns=["split", "rows"]).groupby("density", sort=False)
    alike = np.sqrt(1.0 + table["split"].nunique() * keep_back / (1.0 - keep_back))
    means, errors = numbers.mean(), alike * numbers.sem(ddof=1)
    for name, of_rows in (("log_likelihood", "standard_error"), ("reward_ahead", "ahead_error")):
        errors[name] = errors[name].fillna(means[of_rows])
    return means, errors


def verdict(table: pd.DataFrame, keep_back: float, in_contexts: bool = False) -> str:
    """The reward against the likeliest reference, in one line.

    Args:
        keep_back: share of the rows that is kept back in each split.
        in_contexts: the reward has a normaliser for each row, whose errors are in those of the
            rows.
    """
    means, errors = over_splits(table, keep_back)
    best = means["log_likelihood"].drop(index=[n for n in means.index if _is_own(n)]).idxmax()
    of_best = table[table["density"] == best]["reward_ahead"]
    mean, splits = means.loc[best, "reward_ahead"], len(of_best)
    # Few splits may agree by chance: so the larger one counts. There are no more rows than all.
    of_normaliser = 0.0 if in_contexts else normaliser_error(means["effective_share"][REWARD])
    of_rows = np.hypot(means.loc[best, "ahead_error"], of_normaliser)
    error = max(errors.loc[best, "reward_ahead"], of_rows / np.sqrt(min(splits, 1.0 / keep_back)))
    place = "ahead of" if mean > 0.0 else "behind"
    if not abs(mean) > CLEAR * error:
        place = "not distinguishable from"
    known = "no standard error of one group" if np.isnan(error) else f"standard error {error:.2f}"
    by = f"{mean:+.2f} nats per row ({known})"
    on = f"ahead on {(of_best > 0).sum()} of {splits} splits"
    return f"The recovered reward is {place} the best reference, {best}: {by}; {on}."


def _is_own(name: str) -> bool:
    return name in (KEPT_BACK, REWARD) or name.startswith(POLICY)
