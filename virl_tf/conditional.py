"""Policies q(x | c) that answer to a context: a gate over linear-Gaussian experts.

q(x | c) = sum_o pi(o | c) N(x; A_o c + b_o, Sigma_o), with the gate

    pi(o | c) = exp(g_o(c)) / sum_j exp(g_j(c)),    g_o(c) = u_o + v_o^T c - 1/2 c^T P_o c.

It is what a joint Gaussian mixture over [c, x] says of x once c is known (Gaussian mixture
regression): pi(o) N(c; m_o, S_o) has the logarithm u_o + v_o^T c - 1/2 c^T P_o c with P_o = S_o^-1
and v_o = P_o m_o. Conversely each such gate is one of Gaussians: a quadratic that is added to all
g_o, to make their P_o positive, cancels. So the two families are the same, and in this form an
update of the gate is an addition (`virl_tf.vips.conditional`).
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from virl_tf.contexts import checked, checked_context, rows_of
from virl_tf.mixture import (
    MANY_COMPONENTS,
    Mixture,
    log_gaussians,
    log_normalisers,
    of_chosen,
    of_rows,
    quadratics,
    rows_at_once,
)
from virl_tf.numerics import (
    DENSITY,
    at_share,
    by_blocks,
    sampling_seed,
    solve_positive_definite,
)
from virl_tf.shapes import Array, Float64, Int32
from virl_tf.validation import InputError


class ConditionalMixture(NamedTuple):
    """K linear-Gaussian experts in D dimensions and their gate over contexts [C], float64.

    Attributes:
        gate_offsets, gate_slopes, gate_curvatures: u_o, v_o and P_o, symmetric.
        gains, offsets: A_o and b_o, of the experts' means.
        scale_trils: lower Cholesky factors of the Sigma_o.
    """

    gate_offsets: Float64[Array, " K"]
    gate_slopes: Float64[Array, "K C"]
    gate_curvatures: Float64[Array, "K C C"]
    gains: Float64[Array, "K D C"]
    offsets: Float64[Array, "K D"]
    scale_trils: Float64[Array, "K D D"]

    def __repr__(self) -> str:
        """Its sizes, in a line."""
        sizes = f"C = {self.num_contexts}, D = {self.dim}"
        return f"<ConditionalMixture of {self.num_components} experts, {sizes}>"

    @property
    def num_components(self) -> int:
        """K."""
        return int(self.offsets.shape[0])

    @property
    def dim(self) -> int:
        """D."""
        return int(self.offsets.shape[1])

    @property
    def num_contexts(self) -> int:
        """C."""
        return int(self.gate_slopes.shape[1])

    @property
    def rows_at_once(self) -> int:
        """As of a `Mixture`."""
        return rows_at_once(self.offsets.shape[0], self.dim)

    def condition(self, c: Any) -> Mixture:
        """q(. | c) of one context c [C]; its `distribution` is a tfd.MixtureSameFamily. Far outside
        of the demonstrated contexts it is a guess, of which a fit's `Result.doubts(c)` tells.

        Raises:
            InputError: c is something else.
        """
        c = checked_context(c, self.num_contexts)
        means = tf.linalg.matvec(self.gains, c) + self.offsets
        return Mixture(self.log_gate(c[None])[0], means, self.scale_trils)

    def log_gate(self, c: Float64[Array, "N C"]) -> Float64[Array, "N K"]:
        """Log pi(o | c)."""
        return tf.nn.log_softmax(quadratics(self.gate, c), axis=-1)

    @property
    def gate(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The gate's u [K], v [K, C] and P [K, C, C]."""
        return self.gate_offsets, self.gate_slopes, self.gate_curvatures

    def component_log_prob(self, rows: Float64[Array, "N C+D"]) -> Float64[Array, "N K"]:
        """Log q(x | o, c) of rows [c, x]."""
        rows = tf.convert_to_tensor(rows, DENSITY)
        if (self.offsets.shape[0] or 0) >= MANY_COMPONENTS:  # None: unknown in a graph
            return self._many_log_prob(rows)
        c, x = rows[:, : self.num_contexts], rows[:, self.num_contexts :]
        means = tf.matmul(self.gains, tf.transpose(c)[None]) + self.offsets[:, :, None]
        return log_gaussians(tf.transpose(x)[None] - means, self.scale_trils)

    def _many_log_prob(self, rows: Float64[Array, "N C+D"]) -> Float64[Array, "N K"]:
        """The same as quadratics of the rows."""
        inverses = tf.linalg.triangular_solve(self.scale_trils, tf.eye(self.dim, dtype=DENSITY))
        centre = self._centre()  # squares of what is far from 0 would cancel
        c, x = centre[: self.num_contexts], centre[self.num_contexts :]
        shifts = tf.linalg.matvec(inverses, tf.linalg.matvec(self.gains, c) + self.offsets - x)
        # L^-1 (x - A c - b) = maps (row - centre) - shifts
        maps = tf.concat([-tf.matmul(inverses, self.gains), inverses], axis=-1)
        precisions = tf.matmul(maps, maps, transpose_a=True)
        linear = tf.linalg.matvec(maps, shifts, transpose_a=True)
        of_shifts = -0.5 * tf.reduce_sum(shifts * shifts, axis=-1)
        constant = of_shifts - log_normalisers(self.scale_trils)
        return quadratics((constant, linear, precisions), rows - centre)

    def _centre(self) -> Float64[Array, " C+D"]:
        """A row amid the experts: the median of the contexts where each has its largest share, and
        their mean there.
        """
        places = solve_positive_definite(self.gate_curvatures, self.gate_slopes)
        places = tf.where(tf.math.is_finite(places), places, tf.zeros_like(places))  # none is
        c = tf.sort(places, axis=0)[self.num_components // 2]
        means = tf.linalg.matvec(self.gains, c) + self.offsets
        return tf.concat([c, tf.reduce_mean(means, axis=0)], axis=0)

    def log_prob(self, x: Any, c: Any = None) -> tf.Tensor:
        """Log q(x | c): x [..., D] and c [..., C] -> [...]; or rows [c, x] [..., C + D] alone.

        Raises InputError for other last axes.
        """
        if c is None:
            what = "; without c it takes rows [c, x], of x alone it is log_prob(x, c)"
            size = self.num_contexts + self.dim
            return of_rows(self._log_prob, x, size, self.rows_at_once, what)
        rows = rows_of(x, c, self.num_contexts, self.dim)
        flat = self.log_prob(tf.reshape(rows, [-1, rows.shape[-1]]))
        return tf.reshape(flat, tf.shape(rows)[:-1])

    def _log_prob(self, rows: Float64[Array, "N C+D"]) -> Float64[Array, " N"]:
        log_gate = self.log_gate(rows[:, : self.num_contexts])
        return tf.reduce_logsumexp(log_gate + self.component_log_prob(rows), axis=-1)

    def sample(self, c: Any, seed: Any = None) -> tf.Tensor:
        """A draw for each context: c [N, C] -> [N, D]. `seed` as of `Mixture.sample`.

        Raises InputError for contexts of another shape.
        """
        c = checked("c", c, self.num_contexts)
        if c.shape.rank != 2:
            raise InputError(
                f"sample takes a context for each draw, [N, {self.num_contexts}], got shape "
                f"{c.shape}; of one context condition(c).sample(n) makes n draws."
            )
        seeds = tf.random.split(sampling_seed(seed), 2)
        number = tf.shape(c)[0]
        shares = tf.random.stateless_uniform([number, 1], seeds[0], dtype=DENSITY)
        ids = by_blocks(self._acting, tf.concat([c, shares], axis=1), self.rows_at_once)
        z = tf.random.stateless_normal([number, self.dim], seeds[1], dtype=DENSITY)
        means = of_chosen(self.gains, ids, c) + tf.gather(self.offsets, ids)
        return means + of_chosen(self.scale_trils, ids, z)

    def _acting(self, rows: Float64[Array, "N C+1"]) -> Int32[Array, " N"]:
        """The expert at a share of the gate, of rows [c, share]."""
        return at_share(tf.exp(self.log_gate(rows[:, :-1])), rows[:, -1:])[:, 0]


Policy = Mixture | ConditionalMixture


def conditioned(joint: Mixture, num_contexts: int) -> Policy:
    """What a mixture over rows [c, x] says of x given c; the mixture itself if C = 0."""
    if num_contexts == 0:
        return joint
    means, trils = joint.means, joint.scale_trils
    mean_c, tril_c = means[:, :num_contexts], trils[:, :num_contexts, :num_contexts]
    unit = tf.eye(num_contexts, dtype=DENSITY)
    inverse = tf.linalg.triangular_solve(tril_c, unit)
    gains = tf.matmul(trils[:, num_contexts:, :num_contexts], inverse)
    curvatures = tf.matmul(inverse, inverse, transpose_a=True)
    slopes = tf.linalg.matvec(curvatures, mean_c)
    log_det = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(tril_c)), axis=-1)
    return ConditionalMixture(
        joint.log_weights - log_det - 0.5 * tf.reduce_sum(slopes * mean_c, axis=-1),
        slopes,
        curvatures,
        gains,
        means[:, num_contexts:] - tf.linalg.matvec(gains, mean_c),
        trils[:, num_contexts:, num_contexts:],
    )


def log_context_density(
    given: ConditionalMixture, c: Float64[Array, "N C"]
) -> Float64[Array, " N"]:
    """Log p(c), but for a constant, of the mixture over rows [c, x] that `given` is `conditioned`
    from: [N, C] -> [N]. A policy's gate has moved since, and says nothing of it.
    """

    def of_some(c: Float64[Array, "M C"]) -> Float64[Array, " M"]:
        return tf.reduce_logsumexp(quadratics(given.gate, c), axis=-1)

    at_once = rows_at_once(given.num_components, given.num_contexts)
    return by_blocks(of_some, tf.constant(c, DENSITY), at_once)


def is_broken(policy: Policy) -> bool:
    """Whether a policy's arrays are not finite numbers, which no file of one may hold."""
    return not all(np.isfinite(array).all() for array in policy)


def check_conditional(what: str, arrays: Any) -> ConditionalMixture:
    """Return the fields of a `ConditionalMixture` as one, of tensors.

    Raises:
        InputError: `what`, and what a conditional mixture is.
    """
    try:
        found = ConditionalMixture(*(np.asarray(array) for array in arrays))
        k, d, c = found.gains.shape
        shapes = [array.shape for array in found] == list(field_shapes(k, d, c))
        plain = all(a.dtype == np.float64 and np.isfinite(a).all() for a in found)
        if shapes and plain and 0 not in (k, d, c):
            lower = (np.triu(found.scale_trils, 1) == 0.0).all()
            if lower and (np.diagonal(found.scale_trils, 0, 1, 2) > 0.0).all():
                return ConditionalMixture(*(tf.constant(a, DENSITY) for a in found))
    except (TypeError, ValueError):  # another number of arrays, or of axes
        pass
    raise InputError(
        f"{what}: expected finite float64 gate_offsets [K], gate_slopes [K, C], gate_curvatures "
        "[K, C, C], gains [K, D, C], offsets [K, D], scale_trils [K, D, D], the last lower "
        "triangular with positive diagonals."
    )


def field_shapes(k: int, d: int, c: int) -> ConditionalMixture:
    """The shapes of the fields for K experts, D dimensions and C contexts."""
    return ConditionalMixture((k,), (k, c), (k, c, c), (k, d, c), (k, d), (k, d, d))


def empty_conditional(dim: int, num_contexts: int) -> ConditionalMixture:
    """Without experts, where none is used."""
    shapes = field_shapes(0, dim, num_contexts)
    return ConditionalMixture(*(tf.zeros(shape, DENSITY) for shape in shapes))
