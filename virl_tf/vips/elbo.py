"""How good a policy is on its target: its ELBO, from draws."""

from typing import NamedTuple

import numpy as np

from virl_tf.conditional import Policy
from virl_tf.contexts import Where, drawn
from virl_tf.numerics import split_seed
from virl_tf.vips.vips import Target, density_at, values_at

DRAWS = 2000  # that two policies are compared by


class Measured(NamedTuple):
    """A policy that is restricted to the target's support."""

    elbo: float
    error: float  # its standard error, in the contexts that it was measured in
    inside: float  # share of the unrestricted policy's draws
    undefined: float = 0.0  # share of these where the target is NaN or +inf, no log density
    between: float = 0.0  # standard deviation of the target's log normalisers over the contexts

    def exceeds(self, other: "Measured") -> bool:
        """Whether the ELBO is clearly higher."""
        return bool(self.elbo - other.elbo > 2.0 * np.hypot(self.error, other.error))

    def beats(self, other: "Measured") -> bool:
        """Whether the ELBO is clearly higher, and no more is outside."""
        return self.exceeds(other) and self.inside >= other.inside


def measured(policy: Policy, target: Target, where: Where, seed: int) -> Measured:
    """By so many draws, or those in the contexts, of `where`."""
    x = drawn(policy, where, split_seed(seed, 0, "ELBO"))
    values = np.asarray(values_at(target, x))
    undefined = float(np.mean(np.isnan(values) | (values == np.inf)))
    log_ratio = values - density_at(policy, x).numpy()
    finite = np.isfinite(log_ratio)
    number = int(finite.sum())
    inside = number / len(x)
    if number < 2:
        return Measured(-np.inf, 0.0, inside, undefined)
    elbo = log_ratio[finite].mean() + np.log(inside)
    contexts = 1 if isinstance(where, int) else len(where.contexts)
    of_ratios = _standard_error(log_ratio, finite, contexts)
    # Of log(inside): which draws are inside tells nothing of their ratios' mean.
    of_inside = _standard_error(finite.astype(float), np.ones_like(finite), contexts) / inside
    error, between = float(np.hypot(of_ratios, of_inside)), _between(log_ratio, finite, contexts)
    return Measured(float(elbo), error, inside, undefined, between)


def _standard_error(values: np.ndarray, counts: np.ndarray, contexts: int) -> float:
    """Of the mean of those values that count, by their spread within each of so many contexts:
    between them a target may differ by any function of the context.
    """
    of_each, counted = values.reshape(-1, contexts), counts.reshape(-1, contexts)
    sums = np.sum(of_each, axis=0, where=counted)
    left = (of_each - sums / np.maximum(counted.sum(axis=0), 1))[counted]
    return float(left.std(ddof=min(contexts, len(left) - 1)) / np.sqrt(len(left)))


def _between(values: np.ndarray, counts: np.ndarray, contexts: int) -> float:
    """Standard deviation over contexts of log mean exp(values), where any of them counts."""
    of_each = np.where(counts, values, -np.inf).reshape(-1, contexts)
    log_means = np.logaddexp.reduce(of_each, axis=0)
    return float(log_means[np.isfinite(log_means)].std())
