"""Situations beside demonstrations: rows [c, x] of a context c and what was done there, x.

Contextual V-IRL is V-IRL on rows [N, C + D] whose densities all have the same contexts, those of
the demonstrations. `log_prob` of rows is log q(x | c): the density of c, which is nobody's to
learn, would cancel in every ratio and is left out. `sample` takes the contexts to draw for in the
place of the number of draws. With C = 0 rows are points and draws are counted as ever.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.numerics import generator_of, if_paths, real_tensor
from virl_tf.shapes import Array, Bool, Float64
from virl_tf.validation import InputError

DRAWS = 16
"""Of each context, even: half of them are the policy's, half the estimate's.

Weights are normalised within them, which needs several; more draws are fewer contexts. 4, 16 and
64 are compared in docs/decisions-contexts.md (contexts).
"""
GATE_KL_BOUND = 0.002
"""Of the gate's steps. A component's share is extrapolated to contexts in which it hardly acts:
with the bound of other weights a gate wanders, and now and then breaks
(docs/decisions-contexts.md, contexts-policy)."""
FAR = 0.1  # of what demonstrated contexts span


class Places(NamedTuple):
    """Where to draw: M contexts, each S times; draw s of context m is row s M + m."""

    contexts: Float64[Array, "M C"]
    num_draws: int  # S
    num_held_out: int = 0  # of the contexts, which come first: those of held-out demonstrations

    @property
    def rows(self) -> Float64[Array, "S*M C"]:
        """A context for each draw."""
        return tf.tile(self.contexts, [self.num_draws, 1])

    @property
    def held_out(self) -> Bool[Array, " S*M"]:
        """Which draws are in contexts of held-out demonstrations."""
        return np.tile(np.arange(len(self.contexts)) < self.num_held_out, self.num_draws)


Where = int | Places
"""How many draws, or for which contexts."""


def places(contexts: Float64[Array, "N C"] | None, n: int, seed: Any) -> Where:
    """For about n draws: n without contexts, else n / S of the contexts, S draws each."""
    if contexts is None:
        return n
    return Places(_some(contexts, max(2, n // DRAWS), generator_of(seed)), DRAWS)


def split_places(
    held_out: Float64[Array, "N C"], train: Float64[Array, "M C"], n: int, share: float, seed: Any
) -> Places:
    """For about n draws, of which a share is in contexts of held-out demonstrations, all others in
    those of training ones: a network that met held-out contexts without what was done there would
    seem worse than it is.
    """
    number, rng = max(2, n // DRAWS), generator_of(seed)
    of_held_out = max(1, int(share * number))
    parts = [_some(held_out, of_held_out, rng), _some(train, number - of_held_out, rng)]
    return Places(tf.concat(parts, axis=0), DRAWS, of_held_out)


def _some(contexts: tf.Tensor, number: int, rng: np.random.Generator) -> tf.Tensor:
    """So many, drawn without replacement, again and again where they are more than there are."""
    rounds = [rng.permutation(len(contexts)) for _ in range(-(-number // len(contexts)))]
    return tf.gather(contexts, np.concatenate(rounds)[:number])


def drawn(density: Any, where: Where, seed: Any) -> tf.Tensor:
    """Draws of a density [n, D], or rows [S M, C + D] of a conditional one."""
    if isinstance(where, int):
        return density.sample(where, seed)
    c = where.rows
    return tf.concat([c, density.sample(c, seed)], axis=1)


def halves(n: Any) -> tuple[Any, Any]:
    """Half of the draws, and the others: of a number of them, or of the contexts [n, C] of each."""
    if isinstance(n, int):
        return n // 2, n - n // 2
    half = tf.shape(n)[0] // 2
    return n[:half], n[half:]


def rows_of(x: Any, c: Any, num_contexts: int, dim: int) -> tf.Tensor:
    """Rows [..., C + D] of x [..., D] and c [..., C], which are broadcast to each other.

    Raises:
        InputError: other last axes, axes that do not match, or no real numbers.
    """
    c, x = checked("c", c, num_contexts), checked("x", x, dim)
    try:
        tf.broadcast_static_shape(c.shape[:-1], x.shape[:-1])
    except ValueError as error:
        raise InputError(
            f"x {tuple(x.shape)} and c {tuple(c.shape)} do not belong together: but for their last "
            "axes they must have one shape, or one of them none."
        ) from error
    shape = tf.broadcast_dynamic_shape(tf.shape(c)[:-1], tf.shape(x)[:-1])
    parts = [tf.broadcast_to(part, tf.concat([shape, part.shape[-1:]], 0)) for part in (c, x)]
    return tf.concat(parts, axis=-1)


def far_away(c: Any, columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each column of a context [C] further outside of the demonstrated ones than a tenth
    of what they span.

    `columns`: of a fit's summary, the contexts first.
    """
    lines = []
    for value, column in zip(np.asarray(c), columns, strict=False):
        low, high = column["min"], column["max"]
        if not low - FAR * (high - low) <= value <= high + FAR * (high - low):
            text = f"context {column['name']} = {value:g} is outside of the demonstrated"
            lines.append(f"{text} {low:.4g} to {high:.4g}: the policy there is a guess.")
    return lines


def checked_context(c: Any, size: int) -> Float64[Array, " C"]:
    """One context as float64 [size], or an InputError."""
    c = checked("c", c, size)
    if c.shape.rank != 1:
        raise InputError(
            f"c must be one context [{size}], got shape {c.shape}; for several there are "
            "reward(x, c) and policy.sample(c)."
        )
    if tf.executing_eagerly() and not np.isfinite(c).all():
        raise InputError(f"c must be finite numbers, got {c.numpy().tolist()}.")
    return c


def checked(name: str, value: Any, size: int) -> tf.Tensor:
    """`value` as float64 [..., size], or an InputError that names it."""
    value = real_tensor(name, value, size)
    if value.shape.rank in (0, None) or value.shape[-1] != size:
        wanted = f"{name} must be an array of real numbers [..., {size}]"
        one = f"; one number for each is {name}[:, None]" if size == value.shape.rank == 1 else ""
        one = one if name == "c" else one or if_paths(value)
        raise InputError(f"{wanted}, got shape {value.shape}{one}.")
    return value
