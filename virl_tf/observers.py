"""What watches a run.

An observer is called with the state after each iteration and that iteration's row of numbers.
"""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from virl_tf.irl import State


class Observer(Protocol):
    """Called after each iteration; must not change the state."""

    def __call__(self, state: State, row: Mapping[str, Any]) -> None:
        """Look at the state after iteration row['t'] and at its numbers."""


# Column of the row -> what the screen calls it.
_SHOWN = {
    "train_loss": "loss",
    "validation_loss": "held out",
    "effective_sample_size": "ESS",
    "i_projection_reward": "KL(reward)",
    "i_projection_policy": "KL(policy)",
    "elbo": "ELBO",
}


Bar = TypeVar("Bar", bound="_Bar")


class _Bar:
    """A bar with the time that has passed and is left, on the screen while it is entered."""

    def __init__(self, unit: str, console: Console | None, *further: TextColumn):
        self._console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn(unit),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            *further,
            console=self._console,
            disable=not self._console.is_terminal,
        )

    def __enter__(self: Bar) -> Bar:
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        """Take it down."""
        self._progress.stop()


class ProgressBar(_Bar):
    """A bar over the iterations with the last one's numbers, and a line for each (the only output
    where there is no terminal).
    """

    def __init__(self, num_iterations: int, console: Console | None = None):
        """For a run of `num_iterations` in all."""
        super().__init__("iteration", console)
        self._task = self._progress.add_task("", total=num_iterations)

    def resume(self, t: int) -> None:
        """Say that the first t iterations were done before."""
        self._progress.update(self._task, completed=t)
        if t:
            self._console.print(f"continuing after iteration {t - 1}")

    def __call__(self, state: State, row: Mapping[str, Any]) -> None:
        """Move on by one."""
        numbers = "  ".join(
            f"{label} {row[key]:.4g}"
            for key, label in _SHOWN.items()
            if key in row and np.isfinite(row[key])
        )
        stage = "pooled" if state.pooled else f"t {row['t']:>3}"
        self._console.out(f"{stage}  {numbers}", highlight=False)
        if row["dropped"]:
            end = ", and the iterations end here" if state.converged else ""
            nothing = f"phi_{row['t']} tells held-out points apart no better than chance: dropped"
            self._console.out(f"{nothing}{end}", highlight=False)
        self._progress.update(self._task, completed=state.t - bool(state.pooled))


class StepBar(_Bar):
    """A bar over the steps of a policy's fit; where there is no terminal, a line for each tenth."""

    def __init__(self, num_steps: int, console: Console | None = None):
        """For `num_steps` in all."""
        super().__init__("step", console, TextColumn("ELBO {task.fields[elbo]:.4g}"))
        self._num_steps = num_steps
        self._done = 0
        self._task = self._progress.add_task("", total=num_steps, elbo=float("nan"))

    def extend(self, num_steps: int) -> None:
        """So many steps more than it was made for."""
        self._num_steps += num_steps
        self._progress.update(self._task, total=self._num_steps)

    def step(self, elbo: float) -> None:
        """Move on by one, whose ELBO was this."""
        self._done += 1
        self._progress.update(self._task, advance=1, elbo=elbo)
        every = max(1, self._num_steps // 10)
        if not self._console.is_terminal and self._done % every == 0:
            line = f"step {self._done} of {self._num_steps}  ELBO {elbo:.4g}"
            self._console.out(line, highlight=False)
