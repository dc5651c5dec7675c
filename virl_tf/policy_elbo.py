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
    error: float  # its standard error
    inside: float  # share of the unrestricted policy's draws
    undefined: float = 0.0  # share of these where the target is NaN or +inf, no log density

    def beats(self, other: "Measured") -> bool:
        """Whether the ELBO is higher, and no more is outside."""
        clearly = self.elbo - other.elbo > 2.0 * np.hypot(self.error, other.error)
        return bool(clearly and self.inside >= other.inside)


def measured(policy: Policy, target: Target, where: Where, seed: int) -> Measured:
    """By so many draws, or those in the contexts, of `where`."""
    x = drawn(policy, where, split_seed(seed, 0, "ELBO"))
    values = np.asarray(values_at(target, x))
    undefined = float(np.mean(np.isnan(values) | (values == np.inf)))
    log_ratio = values - density_at(policy, x).numpy()
    log_ratio = log_ratio[np.isfinite(log_ratio)]
    number = len(log_ratio)
    inside = number / len(x)
    if number < 2:
        return Measured(-np.inf, 0.0, inside, undefined)
    error = log_ratio.std(ddof=1) / np.sqrt(number)
    elbo = log_ratio.mean() + np.log(inside)
    return Measured(float(elbo), float(error), inside, undefined)
