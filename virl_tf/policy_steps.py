"""The steps of a policy's fit: a search, and those of the K components that it ends with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from virl_tf.conditional import Policy
from virl_tf.mixture import Mixture
from virl_tf.numerics import compiled, specs_of, split_seed
from virl_tf.policy_watch import Watch
from virl_tf.shapes import Array, Float64
from virl_tf.vips.adaptive import Budget, Search
from virl_tf.vips.conditional import conditional_steps
from virl_tf.vips.vips import StepOptions, Target, VipsHistory, vips_steps


@dataclass(frozen=True)
class Steps:
    """The search, and the K components' own steps.

    Each step is a call of its own: Python looks for Ctrl-C between calls only.
    """

    target: Target
    seed: int
    options: StepOptions
    num_samples: int  # of the own steps
    gradients: bool
    jit_compile: bool
    contexts: Float64[Array, "M C"] | None = None

    def search(self, start: Any, budget: Budget, watch: Watch) -> Mixture:
        """The K components that the search finds."""
        seed = tf.constant(split_seed(self.seed, 0, "search"))
        search = Search(self.target, seed, self.options, budget, self.gradients)
        state, scale = self._compiled(search.begin, start)(start)
        number = tf.constant(0)
        step = self._compiled(search.step, number, state)
        exchange = self._compiled(search.exchange, number, state, scale)
        for r in range(budget.rounds):
            for i in range(r * budget.steps_per_round, (r + 1) * budget.steps_per_round):
                state = step(tf.constant(i), state)
                watch.step(state.policy, state.history.elbo)
                if watch.stopped:
                    break
            state = exchange(tf.constant(r), state, scale)
            if watch.stopped:
                break
        watch.histories.append(VipsHistory(*(column[: i + 1] for column in state.history)))
        policy = search.result(state)
        watch.call(policy)
        return policy

    def improve(self, policy: Policy, num_steps: int, watch: Watch) -> Policy:
        """After `num_steps` steps, or those until a component grows without end."""
        if watch.stopped:
            return policy
        step = self._compiled(self._improve, policy, tf.constant(0))
        for i in range(num_steps):
            policy, history = step(policy, tf.constant(i))
            watch.histories.append(history)
            watch.step(policy, history.elbo)
            if watch.is_due(i + 1, num_steps):
                watch.call(policy)
            if watch.stopped:
                break
        return policy

    def _improve(self, policy: Any, i: tf.Tensor) -> tuple[Policy, VipsHistory]:
        given = tf.constant(split_seed(self.seed, 0, "policy")), self.options
        sizes: dict[str, Any] = {"num_steps": 1, "num_samples": self.num_samples, "first_step": i}
        if self.contexts is not None:
            return conditional_steps(policy, self.target, self.contexts, *given, **sizes)
        return vips_steps(policy, self.target, *given, **sizes, gradients=self.gradients)

    def _compiled(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return compiled(function, *specs_of(arguments), jit_compile=self.jit_compile)
