"""Which steps a fit of a policy takes, where `fit_policy` is not told otherwise."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from virl_tf.contexts import GATE_KL_BOUND
from virl_tf.hparams import PolicyHparams, SearchHparams, default_hparams, search_hparams
from virl_tf.vips.conditional import FEWEST_DRAWS
from virl_tf.vips.vips import default_samples


class StepDefaults(NamedTuple):
    """The K components' own steps; None: as in the `policy` section of defaults.yaml."""

    num_steps: int
    samples_per_coefficient: int = 3  # of the surrogate, for each component
    samples_per_slope: int = 3  # the same where it is fitted to gradients
    kl_bound: float | None = None
    weight_kl_bound: float | None = None
    fewest_samples: int = 0

    def samples(self, dim: int, gradients: bool = False) -> int:
        """For each component."""
        per = self.samples_per_slope if gradients else self.samples_per_coefficient
        return max(self.fewest_samples, default_samples(dim, per, gradients))


# Of a fixed set of components.
FIXED = StepDefaults(300)

# In contexts.
CONDITIONAL = StepDefaults(300, weight_kl_bound=GATE_KL_BOUND, fewest_samples=FEWEST_DRAWS)

# After a search the modes are found and what is left is the noise of the surrogate: few steps,
# small ones, of more samples. Walker, K = 25: KL 0.366; bound 0.01 and 63 samples instead of 84:
# 0.375.
AFTER_SEARCH = StepDefaults(30, 4, 8, kl_bound=0.005)

# Of components that start at a reward's modes and move inside of a constraint, or nearer to what is
# likeliest: their weights, shares of the reward's draws, stay, or a few of them take all
# (docs/decisions-policies.md: constraints, temperature).
KEPT_SHARES = StepDefaults(60, weight_kl_bound=1e-9)


class Schedule(NamedTuple):
    """The search that comes first, if there is one, and the steps."""

    steps: StepDefaults
    search: SearchHparams | None = None

    @property
    def by_gradients(self) -> bool:
        """Whether steps follow those, where the target has them: not of a fixed set."""
        return self.search is not None or self.steps is KEPT_SHARES


def schedule_of(
    search: bool | Mapping[str, Any] | None, in_contexts: bool, keep_shares: bool
) -> Schedule:
    """What `fit_policy` does by `search`; `keep_shares`: of a start at a reward's modes.

    Raises InputError for a `search` that cannot be used.
    """
    if in_contexts:
        return Schedule(CONDITIONAL)
    if search is False:
        return Schedule(FIXED)
    if keep_shares and search is None:
        return Schedule(KEPT_SHARES)
    own: Any = None if search is True else search
    return Schedule(AFTER_SEARCH, search_hparams(own))


def step_hparams(
    defaults: StepDefaults,
    samples_per_component: int | None = None,
    kl_bound: float | None = None,
    weight_kl_bound: float | None = None,
    ridge: float | None = None,
) -> PolicyHparams:
    """The given values; `defaults` for what is None, and defaults.yaml for the rest.

    Raises InputError for a value that cannot be used.
    """
    given = {
        "samples_per_component": samples_per_component,
        "kl_bound": defaults.kl_bound if kl_bound is None else kl_bound,
        "weight_kl_bound": defaults.weight_kl_bound if weight_kl_bound is None else weight_kl_bound,
        "ridge": ridge,
    }
    known = {name: value for name, value in given.items() if value is not None}
    return default_hparams().override({"policy": known}, "fit_policy").policy
