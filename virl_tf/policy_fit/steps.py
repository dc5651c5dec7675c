"""The steps of a policy's fit: a search, and those of the K components that it ends with."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from virl_tf.conditional import Policy, is_broken
from virl_tf.mixture import Mixture, without_light
from virl_tf.numerics import DENSITY, compiled, specs_of, split_seed
from virl_tf.policy_fit.watch import Watch
from virl_tf.shapes import Array, Float64
from virl_tf.vips.adaptive import KL_BOUND, Budget, Search
from virl_tf.vips.conditional import conditional_steps
from virl_tf.vips.elbo import DRAWS, Measured, measured
from virl_tf.vips.vips import StepOptions, Target, VipsHistory, default_samples, vips_steps

# Of a component, times 1 / K: half of a heavy one may be worth more than a lighter one; and the
# steps after a split (docs/decisions-policies.md, split-rounds).
LEAST_WEIGHT, STEPS_AFTER_SPLIT = 0.3, 40


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

    def run(
        self, start: Any, budget: Budget | None, num_steps: int, watch: Watch
    ) -> tuple[Policy, int]:
        """The policy after the search, if there is one, and K components' steps; and how many
        evaluations that takes.
        """
        policy, evaluations = start, num_steps * self.num_samples * start.num_components
        if budget is not None:
            policy, of_search = self.search(start, budget, num_steps, watch)
            evaluations += of_search
        return self.improve(policy, num_steps, watch), evaluations

    def search(
        self, start: Any, budget: Budget, num_steps: int, watch: Watch
    ) -> tuple[Mixture, int]:
        """The K components that the search finds, and how many evaluations it takes.

        `num_steps`: how many steps they make later, with draws of their own.
        """
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
        policy, of_splits = self._split(search.result(state), budget.split_rounds, num_steps, watch)
        watch.call(policy)
        return policy, budget.evaluations + of_splits

    def _split(
        self, policy: Mixture, rounds: int, num_steps: int, watch: Watch
    ) -> tuple[Mixture, int]:
        """What a search has found after rounds in which light components give way to halves of the
        heaviest ones and all make some steps; and how many evaluations that took.

        A search adds components where nothing is, so a mode that needs several may be left with one
        beside others that hold hardly any weight. But these may be modes: nothing is changed unless
        the ELBO is higher in the end, and one round is enough to see that it is lower.
        """
        if rounds == 0 or watch.stopped or is_broken(policy):
            return policy, 0
        if without_light(policy, LEAST_WEIGHT) is policy:
            return policy, 0
        steps, kept, before = self._larger(policy.dim), len(watch.histories), self._elbo(policy)
        found: Any = policy
        evaluations, after = 0, before
        step = steps._step(policy)  # for all rounds, which keep the number of components
        first = max(num_steps, STEPS_AFTER_SPLIT)
        for i in range(first, first + rounds * STEPS_AFTER_SPLIT, STEPS_AFTER_SPLIT):
            watch.expect(STEPS_AFTER_SPLIT)
            numbers, found = range(i, i + STEPS_AFTER_SPLIT), without_light(found, LEAST_WEIGHT)
            *_, found = steps._each(step, found, numbers, watch)
            evaluations += STEPS_AFTER_SPLIT * steps.num_samples * policy.num_components
            after = self._elbo(found)
            if watch.stopped or before.beats(after):
                break
        if not watch.stopped and after.beats(before):
            return found, evaluations
        del watch.histories[kept:]
        return policy, evaluations

    def _elbo(self, policy: Mixture) -> Measured:
        return measured(policy, self.target, DRAWS, self.seed)

    def _larger(self, dim: int) -> "Steps":
        """Steps that go further, of fewer samples."""
        options = self.options._replace(kl_bound=tf.constant(KL_BOUND, DENSITY))
        num_samples = default_samples(dim, gradients=self.gradients)
        return replace(self, options=options, num_samples=num_samples)

    def improve(self, policy: Policy, num_steps: int, watch: Watch) -> Policy:
        """After `num_steps` steps, or those until a component grows without end."""
        if watch.stopped:
            return policy
        steps = self._each(self._step(policy), policy, range(num_steps), watch)
        for done, found in enumerate(steps, start=1):
            if watch.stopped or watch.is_due(done, num_steps):
                watch.call(found)
        return found

    def _step(self, policy: Policy) -> Any:
        """A compiled step of policies of this shape."""
        return self._compiled(self._improve, policy, tf.constant(0))

    def _each(self, step: Any, policy: Policy, numbers: range, watch: Watch) -> Iterator[Policy]:
        """The policy after each of these steps, whose draws depend on their numbers."""
        for i in numbers:
            policy, history = step(policy, tf.constant(i))
            watch.histories.append(history)
            watch.step(policy, history.elbo)
            yield policy
            if watch.stopped:
                break

    def _improve(self, policy: Any, i: tf.Tensor) -> tuple[Policy, VipsHistory]:
        given = tf.constant(split_seed(self.seed, 0, "policy")), self.options
        sizes: dict[str, Any] = {"num_steps": 1, "num_samples": self.num_samples, "first_step": i}
        if self.contexts is not None:
            return conditional_steps(policy, self.target, self.contexts, *given, **sizes)
        return vips_steps(policy, self.target, *given, **sizes, gradients=self.gradients)

    def _compiled(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return compiled(function, *specs_of(arguments), jit_compile=self.jit_compile)
