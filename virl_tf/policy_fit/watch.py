"""What looks at a policy's fit after each step."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from virl_tf.conditional import ConditionalMixture, Policy
from virl_tf.mixture import Mixture
from virl_tf.observers import StepBar
from virl_tf.shapes import Array, Float64
from virl_tf.vips.vips import VipsHistory

Callback = Callable[[int, Any], None]

# Of a component's standard deviation, in units of the start's.
MAX_GROWTH = 1e6

# So far from the start, in the same units, a component is called lost if the ELBO still rises, and
# the last steps all went as far as they were allowed.
FAR = 100.0

LATEST = 10  # steps whose mean ELBO is compared with that of as many before
LEAST_RISE = 0.01  # nats between these, below which more steps are not worth their while


class Watch:
    """What looks at a fit after each step, and ends it where a component grows without end."""

    def __init__(
        self,
        start: Policy,
        callback: Callback | None,
        callback_every: int,
        context: Float64[Array, " C"] | None = None,
    ):
        """Watch a fit from `start`; `context`: in which to watch where the components are."""
        self._context = context
        self.histories: list[VipsHistory] = []
        self.bar: StepBar | None = None
        self.warnings: tuple[str, ...] = ()
        self._steps = 0
        self._callback = callback
        self._callback_every = callback_every
        self._centre, self._widths = _centre_and_widths(self._seen(start))

    def expect(self, num_steps: int) -> None:
        """So many steps more than the bar was made for."""
        if self.bar is not None:
            self.bar.extend(num_steps)

    def step(self, policy: Policy, elbo: Float64[Array, "*steps"]) -> None:
        """After a step to `policy`; the ELBO of what it started from is the last or only one."""
        if self.bar is not None:
            self.bar.step(float(elbo[min(self._steps, len(elbo) - 1)]))
        self._steps += 1
        trils = policy.scale_trils.numpy()
        # What is not finite has broken down otherwise; `_result` says so.
        if (np.sqrt((trils**2).sum(axis=-1)) > MAX_GROWTH * self._widths).any():
            self.warnings = (_grows(self._steps),)

    def end(self, policy: Policy, kl_bound: float) -> None:
        """After the last step: whether a component is on its way to infinity."""
        history = self.history
        at_the_bound = (history.component_kl.tail(LATEST) > 0.99 * kl_bound).all()
        moved = np.abs(self._seen(policy).means.numpy() - self._centre) / self._widths
        rising = rises(history.elbo.to_numpy())
        if not self.stopped and rising and at_the_bound and moved.max() > FAR:
            self.warnings = (_LOST,)

    def _seen(self, policy: Policy) -> Mixture:
        if isinstance(policy, ConditionalMixture):
            return policy.condition(self._context)
        return policy

    @property
    def history(self) -> pd.DataFrame:
        """Of all steps so far."""
        columns = {
            name: np.concatenate([getattr(history, name) for history in self.histories])
            for name in VipsHistory._fields
        }
        return pd.DataFrame(columns)

    @property
    def stopped(self) -> bool:
        """Whether the fit is to end here."""
        return bool(self.warnings)

    def call(self, policy: Policy) -> None:
        """Tell the user."""
        if self._callback is not None:
            self._callback(self._steps, policy)

    def is_due(self, steps_done: int, num_steps: int) -> bool:
        """Whether the user is to be told after so many of the K components' steps."""
        due = steps_done % self._callback_every == 0 or steps_done == num_steps
        return self._callback is not None and due


def rises(elbo: np.ndarray) -> bool:
    """Whether the last steps are above those before them by more than they scatter."""
    last, before = elbo[-LATEST:], elbo[-2 * LATEST : -LATEST]
    if len(before) < LATEST:
        return False
    error = np.hypot(last.std(ddof=1), before.std(ddof=1)) / np.sqrt(LATEST)
    return bool(last.mean() - before.mean() > max(3.0 * error, LEAST_RISE))


def _centre_and_widths(policy: Mixture) -> tuple[np.ndarray, np.ndarray]:
    """The mean [D] and the standard deviation [D] of the whole mixture."""
    weights = np.exp(policy.log_weights.numpy())
    means = policy.means.numpy()
    centre = weights @ means
    variances = np.diagonal(policy.covariances.numpy(), axis1=1, axis2=2)
    return centre, np.sqrt(weights @ (variances + (means - centre) ** 2))


_LOST = (
    "log_prob may be improper: a component is far from the start and still moves as fast as it "
    "may, with a rising ELBO. Bound it with support= (infer: --support), or add a log density that "
    "falls off; if the mode is that far away, give an initial_policy near to it, or more num_steps "
    "(infer: --steps)."
)


def _grows(steps: int) -> str:
    return (
        f"log_prob seems flat or improper: after {steps} steps a component is {MAX_GROWTH:g} "
        "times as wide as the start, and the fit ends there. Bound it with support= (infer: "
        "--support), or add a log density that falls off; if it is that wide, give an "
        "initial_policy of its width."
    )
