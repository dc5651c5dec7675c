"""How likely held-out demonstrations are under what was recovered, and under KDE and EM."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.conditional import Policy
from virl_tf.contexts import Places, Where, drawn
from virl_tf.density import Density
from virl_tf.fusion import Fusion
from virl_tf.importance import effective_sample_size
from virl_tf.numerics import DENSITY, split_seed
from virl_tf.reward import Reward, evaluate
from virl_tf.shapes import Array, Int64
from virl_tf.validation import InputError

REWARD = "recovered reward"
NORMALISER_DRAWS = 20_000
DRAWS_IN_CONTEXT = 200  # for the normaliser of each held-out row's context
MOST_IN_CONTEXTS = 2000  # held-out rows, each with a normaliser of its own
NO_ERROR = "no standard error of one row or group"
CLEAR = 2.0  # standard errors by which a difference counts
UNSURE = 0.2  # nats each that are clear where rows of one group have no standard error
CHANCE = 1e-3  # that a density which is the truth counts as one that misses a row


class Score(NamedTuple):
    """Mean log-likelihoods of held-out demonstrations: nats per demonstration, in their own units.

    Where the reward has bounds the other densities are those inside of them, too.

    Attributes:
        rows: how many were held out; with contexts at most `MOST_IN_CONTEXTS` of them.
        log_likelihood: density -> {"mean", "standard_error"}, the latter by how groups of rows
            differ where rows are of groups, and nan of a single one.
        over_em: the same of the paired differences to EM, of rows alone.
        log_volume: to be added for the likelihoods of standardised columns.
        log_normaliser: of exp(R), by importance sampling; with contexts the mean of theirs.
        effective_share: of its draws.
        num_contexts: C; from 1 on all densities are those given the row's context, and the reward's
            normaliser is estimated for each with draws of the policy and an EM mixture.
        missed: density -> how many rows it misses that EM does not. Were it the truth, a density
            ratio above a would have a probability below 1 / a (Markov); a mode that is missed also
            has a standard error too large for its mean.
        em_components: K of EM, which is the policy's; 0: not told.
    """

    rows: int
    log_likelihood: Mapping[str, Mapping[str, float]]
    over_em: Mapping[str, Mapping[str, float]]
    log_volume: float
    log_normaliser: float
    effective_share: float
    num_contexts: int = 0
    missed: Mapping[str, int] = MappingProxyType({})
    em_components: int = 0

    def __repr__(self) -> str:
        """A line per density, then what they say."""
        given = " given their contexts" if self.num_contexts else ""
        lines = [
            f"log-likelihood of {self.rows} held-out demonstrations{given}, nats each, in their "
            f"own units ({self.log_volume:+.3f} for standardised columns):"
        ]
        for name, value in self.log_likelihood.items():
            error = value["standard_error"]
            told = NO_ERROR if np.isnan(error) else f"standard error {error:.4f}"
            lines.append(f"  {name:<17}{value['mean']:10.4f}, {told}")
        return "\n".join([*lines, self.verdict])

    def behind_em(self, name: str) -> bool:
        """Whether the density of this name is clearly less likely than EM, or misses rows."""
        mean, error = self._over_em(name)
        return mean < -CLEAR * error or (mean < 0.0 and self.missed.get(name, 0) > 0)

    def _over_em(self, name: str) -> tuple[float, float]:
        """Mean and standard error; the reward's with that of its normaliser, which is one for all
        rows. With contexts each row has its own, so the rows' error has it already.
        """
        mean, error = self.over_em[name].values()
        if np.isnan(error):
            error = UNSURE / CLEAR if self.rows > 1 else np.inf
        if name == REWARD and not self.num_contexts:
            error = float(np.hypot(error, normaliser_error(self.effective_share)))
        return mean, error

    @property
    def verdict(self) -> str:
        """What the reward's likelihood says, in one line."""
        mean, error = self._over_em(REWARD)
        if np.isnan(mean):
            return "Nothing is known of the recovered reward's normaliser, nor of its likelihood."
        unknown = np.isnan(self.over_em[REWARD]["standard_error"])
        told = NO_ERROR if unknown else f"standard error {error:.2g}"
        by = f"by {abs(mean):.2g} nats each ({told})"
        em = "EM"
        if count := self.em_components:
            em += f" with {count} component{'s' if count > 1 else ''}"
        if self.behind_em(REWARD):
            return f"{em} explains these demonstrations better than the recovered reward, {by}."
        if mean > CLEAR * error:
            return f"The recovered reward explains these demonstrations better than {em}, {by}."
        which = "more" if mean > 0.0 else "less"
        return (
            f"The recovered reward and {em} are not distinguishable on {self.rows} rows, "
            f"which are {which} likely under the reward {by}."
        )


def score(
    test: np.ndarray,
    reward: Reward,
    policy: Density,
    kde: Density,
    em: Policy,
    seed: int,
    groups: Int64[Array, " N"] | None = None,
) -> Score:
    """Of held-out demonstrations test [N, D], or rows [c, x]; `kde` and `em` have seen the others
    alone.

    `groups`: whose rows these are (`virl_tf.demonstrations.Data`).
    """
    size = reward.num_contexts
    if size and len(test) > MOST_IN_CONTEXTS:
        rows = np.linspace(0, len(test), MOST_IN_CONTEXTS, endpoint=False).astype(int)
        test, groups = test[rows], None if groups is None else groups[rows]
    points = tf.constant(test, DENSITY)
    where: Where = Places(points[:, :size], DRAWS_IN_CONTEXT) if size else NORMALISER_DRAWS
    proposal = Fusion(policy, _beside_policy(reward, em, kde))
    log_z, share = log_normaliser(reward, proposal, where, seed)
    values = {REWARD: evaluate(reward, points).numpy() - log_z}
    for name, density in {"policy": policy, "KDE": kde, "EM": em}.items():
        inside = log_inside(density, reward, where, seed)
        values[name] = density.log_prob(points).numpy() - inside
    over_em = {name: values[name] - values["EM"] for name in values if name != "EM"}
    least = np.log(CHANCE / len(test))  # by all rows together
    return Score(
        rows=len(test),
        log_likelihood={name: mean_and_error(value, groups) for name, value in values.items()},
        over_em={name: mean_and_error(difference, groups) for name, difference in over_em.items()},
        log_volume=float(np.log(reward.features.scale[size:]).sum()),
        log_normaliser=mean_and_error(log_z)["mean"],
        effective_share=share,
        num_contexts=size,
        missed={name: int(np.sum(difference < least)) for name, difference in over_em.items()},
        em_components=em.num_components,
    )


def _beside_policy(reward: Reward, em: Policy, kde: Density) -> Density:
    """What reaches all of exp(R) where the policy does not: the EM mixture that the reward carries
    or starts from, for in many dimensions kernels reach nothing, and no weight tells.
    """
    if reward.mixture.num_components:
        return reward.mixture
    if float(reward.base_exponent) != 0.0 and reward.base.num_components > 1:
        return reward.base
    return em if reward.num_contexts else kde


def log_normaliser(
    reward: Reward, proposal: Fusion, where: Where, seed: int
) -> tuple[np.ndarray, float]:
    """Log of the integral of exp(R), by importance sampling, and the effective share of its draws.

    Returns:
        [1], or of each context [M], nan where no draw has a weight; the share is the mean of
        theirs.
    """
    x = drawn(proposal, where, split_seed(seed, 0, "normaliser"))
    of_each = _of_each(evaluate(reward, x) - proposal.log_prob(x), where)
    number = of_each.shape[1]
    log_mean = tf.reduce_logsumexp(of_each, axis=1).numpy() - np.log(number)
    effective = np.array([effective_sample_size(row) for row in of_each])
    known = np.isfinite(log_mean)
    # The log of a mean is too small on average, by half the mean's relative variance.
    log_mean[known] += 0.5 * (1.0 / effective[known] - 1.0 / number)
    log_mean[~known] = np.nan
    return log_mean, float(effective.mean()) / number


def normaliser_error(effective_share: float) -> float:
    """Standard error of a log normaliser by `NORMALISER_DRAWS`, of which such a share counts."""
    share = max(effective_share, 1.0 / NORMALISER_DRAWS)
    return float(np.sqrt((1.0 / share - 1.0) / NORMALISER_DRAWS))


def log_inside(density: Density, reward: Reward, where: Where, seed: int) -> Any:
    """Log of the share of the density that is inside of the reward's bounds, [1] or [M]."""
    if reward.domain.everywhere:
        return 0.0
    x = drawn(density, where, split_seed(seed, 0, "inside"))
    inside = _of_each(reward.domain.contains(x), where).numpy()
    return np.log(np.maximum(inside.sum(axis=1), 1) / inside.shape[1])


def _of_each(values: tf.Tensor, where: Where) -> tf.Tensor:
    """[1, n], or by contexts [M, S]."""
    number = where if isinstance(where, int) else where.num_draws
    return tf.transpose(tf.reshape(values, [number, -1]))


def mean_and_error(
    values: np.ndarray, groups: Int64[Array, " N"] | None = None
) -> dict[str, float]:
    """Of values [N] of rows: those whose normaliser is known, which are not nan."""
    known = ~np.isnan(values)
    mean = float(values[known].mean()) if known.any() else float("nan")
    error = standard_error(values[known], None if groups is None else groups[known])
    return {"mean": mean, "standard_error": error}


def standard_error(values: np.ndarray, groups: Int64[Array, " N"] | None) -> float:
    """Of the mean of values [N]; nan of a single one. Rows of one group are like each other: with
    groups [N] their sums count (cluster-robust), and a single group tells nothing.
    """
    if groups is None:
        return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan
    of_each = np.unique(groups, return_inverse=True)[1].ravel()
    number = int(of_each.max(initial=-1)) + 1
    if number < 2:
        return np.nan
    sums = np.bincount(of_each, values - values.mean())
    return float(np.sqrt(number / (number - 1) * np.sum(sums**2)) / len(values))


def in_words(summary: Mapping[str, Any]) -> str:
    """What the summary of a fit says of its score; "" for one of a run of the paper's tasks."""
    found, rows = from_plain(summary.get("score")), summary.get("rows")
    if found is None and rows:
        asked = summary.get("demonstrations", {}).get("held_out") != 0.0
        few = f" ({rows['train']} in all, or their groups, are too few)" if asked else ""
        return f"no rows were held out{few}, so there is no score"
    return repr(found) if found else ""


def from_plain(value: Mapping[str, Any] | None) -> Score | None:
    """The inverse of `_asdict`, from a summary; None: nothing was scored.

    Raises InputError if it is something else.
    """
    if value is None:
        return None
    try:
        found = Score(**value)
        repr(found)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise InputError(f"summary.json holds no score of this version: {error}.") from error
    return found
