"""VIPS for policies that answer to a context: the steps of `virl_tf.vips.vips` in expectation.

The policy q(x|c) = sum_o pi(o|c) q(x|o, c) is to minimise E_c[KL(q(.|c) || p*(.|c))] over contexts
c, of which there are M equally likely ones. For each context (1) of `virl_tf.vips.vips` is a lower
bound that is tight at q~. With p(c, o) = pi~(o|c) / M, its mean is

    E_c sum_o pi(o|c) (E_{q(x|o,c)}[R_o(c, x)] + H(q(x|o,c))) + E_c H(pi(.|c)),
    R_o(c, x) = log p*(x|c) + log q~(o|x, c).

**Experts.** Component o sees the contexts p(c|o), in which it acts, and solves

    max E_{p(c|o)}[E_q[R_o(c, x)] + H(q)]   s.t.   E_{p(c|o)}[KL(q(.|o,c) || q~(.|o,c))] <= bound.

In its own coordinates x = A~ c + b~ + L~ z and c = m + V s, where m and V V^T are mean and
covariance of p(c|o), q~ is z ~ N(0, I) for every s, and s~ = [1, s] has E[s~ s~^T] = I. One
quadratic regression on the draws of [z, s] gives

    R_o = z^T G s~ - 1/2 z^T A z + (what depends on c alone, which no q minimises).

For z ~ N(W s~, Sigma) the expected divergence is 1/2 (tr Sigma - D - log det Sigma + |W|^2), with
the norm of all entries of W, because E[s~^T W^T W s~] = tr(W E[s~ s~^T] W^T). So, with the
multiplier eta of the bound,

    Sigma^-1 = (A + eta I) / (1 + eta),    W = (A + eta I)^-1 G,

in the coordinates of x: new precision (eta Lambda~ + R) / (eta + 1), and precision x [A b] =
(eta Lambda~ [A~ b~] + R_c) / (eta + 1). In the basis where A is diagonal eta depends on G through
the norms of its rows alone: `update_components` finds it, given a slope of these lengths. With
C = 0 s~ is [1], G is b, and what is left is the update without contexts.

**Gate.** R(o, c) = log pi~(o|c) + d_o(c), d_o(c) = E_{q~(x|o,c)}[log p*(x|c) - log q~(x|c)], and

    max E_c[sum_o pi(o|c) R(o, c) + H(pi(.|c))]   s.t.   E_c[KL(pi(.|c) || pi~(.|c))] <= bound

is solved by pi(o|c) proportional to pi~(o|c) exp(d_o(c) / (1 + eta)). A regression on the same
draws makes d_o a quadratic in c, so that log pi~ + d_o / (1 + eta) is one again: the update stays
within the family, whatever the signs of the curvatures. With C = 0 it is that of the weights.
"""

from typing import Any, NamedTuple

import tensorflow as tf

from virl_tf.conditional import ConditionalMixture
from virl_tf.mixture import log_normalisers, quadratics
from virl_tf.numerics import DENSITY, at_share, cholesky, repeat
from virl_tf.shapes import Array, Bool, Float64, Int32
from virl_tf.vips import vips
from virl_tf.vips.surrogate import fit_quadratic
from virl_tf.vips.trust_region import gate_eta, update_components
from virl_tf.vips.vips import StepOptions, Target, VipsHistory

MOST_CONTEXTS = 1000
"""That a step looks at, drawn anew for each: enough for a mean over them."""

FEWEST_DRAWS = 200
"""Of each component: one that acts alone in a hundredth of its contexts has to see them, else its
line leaves them unseen (docs/decisions-contexts.md, contexts-policy)."""

# Of the covariance of p(c|o), in units of all contexts' variances: a component that acts in one
# context alone still has a width there.
_NARROWEST = 1e-4

# Of the gate's regression. A component sees few contexts of those in which others act, and what its
# quadratic says there is extrapolated: curvatures that the draws hardly tell are left out
# (docs/decisions-contexts.md, contexts-policy).
_GATE_RIDGE = 1e-2


class _Acting(NamedTuple):
    """The contexts p(c|o) in which each component acts."""

    log_gate: Float64[Array, "M K"]
    means: Float64[Array, "K C"]
    trils: Float64[Array, "K C C"]  # V
    inverses: Float64[Array, "K C C"]


class _Draws(NamedTuple):
    """Of each component, whitened and not."""

    z: Float64[Array, "K S D"]
    s: Float64[Array, "K S C"]
    log_gate: Float64[Array, "K S"]  # log pi~(o|c) of the component itself
    rows: Float64[Array, "K S C+D"]


def conditional_step(
    policy: ConditionalMixture,
    target: Target,
    contexts: Float64[Array, "M C"],
    seed: Int32[Array, "2"],
    options: StepOptions,
    num_samples: int,
    variances: Float64[Array, " C"] | None = None,
) -> tuple[ConditionalMixture, VipsHistory]:
    """One update of all experts and of the gate, and its row of the history.

    Args:
        target: log p*(x|c) + f(c), of rows [c, x]: [N, C + D] -> [N]. What of f is no quadratic is
            noise to the regressions: it should be a few nats.
        contexts: equally likely.
        seed: stateless.
        num_samples: draws per component.
        variances: of all contexts, if `contexts` are some of them: these may be equal in a column.
    """
    k = policy.num_components
    variances = tf.math.reduce_variance(contexts, axis=0) if variances is None else variances
    acting = _acting(policy, contexts, variances)
    draws = _draw(policy, contexts, acting, num_samples, seed)
    flat = tf.reshape(draws.rows, [-1, draws.rows.shape[-1]])
    values = tf.reshape(vips.values_at(target, flat), [k, num_samples])
    log_target, alive = vips.floored(values)
    log_policy = tf.reshape(vips.density_at(policy, flat), [k, num_samples])

    of_experts = log_normalisers(policy.scale_trils)
    log_component = -0.5 * tf.reduce_sum(draws.z**2, -1) - of_experts[:, None]
    rewards = log_target + draws.log_gate + log_component - log_policy
    a, b = fit_quadratic(tf.concat([draws.z, draws.s], axis=-1), rewards, options.ridge)
    new, component_kl = _moved(policy, acting, a, b, alive, options.kl_bound)

    ratios = log_target - log_policy
    change = _raw(_gains(draws.s, ratios, alive), acting)
    eta, gate_kl = gate_eta(acting.log_gate, quadratics(change, contexts), options.weight_kl_bound)
    gate = [old + part / (1.0 + eta) for old, part in zip(policy.gate, change, strict=True)]
    new = new._replace(gate_offsets=gate[0], gate_slopes=gate[1], gate_curvatures=gate[2])

    shares = tf.reduce_mean(tf.exp(acting.log_gate), axis=0)
    entropy = -tf.reduce_sum(tf.math.multiply_no_nan(tf.math.log(shares), shares))
    row = VipsHistory(
        elbo=tf.reduce_sum(shares * tf.reduce_mean(ratios, axis=1)),
        component_kl=tf.reduce_max(component_kl),
        weight_kl=gate_kl,
        effective_components=tf.exp(entropy),
        rejected=vips.rejected_share(values),
    )
    return new, row


def _acting(
    policy: ConditionalMixture,
    contexts: Float64[Array, "M C"],
    variances: Float64[Array, " C"],
) -> _Acting:
    log_gate = policy.log_gate(contexts)
    shares = tf.nn.softmax(log_gate, axis=0)  # p(c|o)
    means = tf.matmul(shares, contexts, transpose_a=True)
    centred = contexts - means[:, None]  # [K, M, C]
    covariances = tf.einsum("mk,kmi,kmj->kij", shares, centred, centred)
    trils = cholesky(covariances + _NARROWEST * tf.linalg.diag(variances))
    unit = tf.eye(contexts.shape[1], dtype=DENSITY)
    return _Acting(log_gate, means, trils, tf.linalg.triangular_solve(trils, unit))


def _draw(
    policy: ConditionalMixture,
    contexts: Float64[Array, "M C"],
    acting: _Acting,
    num_samples: int,
    seed: Int32[Array, "2"],
) -> _Draws:
    """S contexts of p(c|o) for each component, stratified, and a draw of the expert in each."""
    seeds = tf.random.split(seed, 2)
    k, d = policy.offsets.shape
    gates = tf.transpose(tf.nn.softmax(acting.log_gate, axis=0))  # [K, M]
    jitter = tf.random.stateless_uniform([k, num_samples], seeds[0], dtype=DENSITY)
    shares = (tf.range(num_samples, dtype=DENSITY) + jitter) / num_samples
    ids = at_share(gates, shares)
    c = tf.gather(contexts, ids)
    s = tf.einsum("kij,ksj->ksi", acting.inverses, c - acting.means[:, None])
    z = tf.random.stateless_normal([k, num_samples, d], seeds[1], dtype=DENSITY)
    x = policy.offsets[:, None] + tf.einsum("kij,ksj->ksi", policy.gains, c)
    x += tf.einsum("kij,ksj->ksi", policy.scale_trils, z)
    log_gate = tf.gather(tf.transpose(acting.log_gate), ids, batch_dims=1)
    return _Draws(z, s, log_gate, tf.concat([c, x], axis=-1))


def _moved(
    policy: ConditionalMixture,
    acting: _Acting,
    a: Float64[Array, "K D+C D+C"],
    b: Float64[Array, "K D+C"],
    alive: Bool[Array, " K"],
    kl_bound: Float64[Array, "..."],
) -> tuple[ConditionalMixture, Float64[Array, " K"]]:
    """The experts after their steps, and how far these went.

    `a`, `b`: b^T y - 1/2 y^T A y of y = [z, s]. As of unconditional components, one that saw no
    finite value or whose surrogate is not finite stays where it is.
    """
    d = policy.dim
    finite = tf.reduce_all(tf.math.is_finite(a), [1, 2]) & tf.reduce_all(tf.math.is_finite(b), 1)
    valid = (alive & finite)[:, None, None]
    curvature = tf.where(valid, a[:, :d, :d], tf.eye(d, dtype=DENSITY))
    slopes = tf.concat([b[:, :d, None], -a[:, :d, d:]], axis=2)  # G
    slopes = tf.where(valid, slopes, tf.zeros_like(slopes))

    sizes, basis = tf.linalg.eigh(curvature)
    rotated = tf.matmul(basis, slopes, transpose_a=True)
    lengths = tf.sqrt(tf.reduce_sum(rotated**2, axis=2))
    step = update_components(curvature, tf.linalg.matvec(basis, lengths), kl_bound)
    damped = (sizes + step.eta[:, None])[:, :, None]
    means = tf.matmul(basis, tf.math.divide_no_nan(rotated, damped))  # W

    shift = tf.matmul(policy.scale_trils, means)  # x = A~ c + b~ + shift s~ + ...
    gains = tf.matmul(shift[:, :, 1:], acting.inverses)
    offsets = shift[:, :, 0] - tf.linalg.matvec(gains, acting.means)
    new = policy._replace(
        gains=policy.gains + gains,
        offsets=policy.offsets + offsets,
        scale_trils=tf.matmul(policy.scale_trils, step.tril),
    )
    return new, step.kl


def _gains(
    s: Float64[Array, "K S C"], ratios: Float64[Array, "K S"], alive: Bool[Array, " K"]
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The gains d_o(c) as a quadratic of s: its constant [K], slope [K, C] and curvature [K, C, C].

    That of a component that saw no finite value is the lowest constant of the others.
    """
    a, b = fit_quadratic(s, ratios, tf.constant(_GATE_RIDGE, DENSITY))
    sees = (
        alive & tf.reduce_all(tf.math.is_finite(b), 1) & tf.reduce_all(tf.math.is_finite(a), [1, 2])
    )
    a = tf.where(sees[:, None, None], a, tf.zeros_like(a))
    b = tf.where(sees[:, None], b, tf.zeros_like(b))
    curved = tf.einsum("ksi,kij,ksj->ks", s, a, s)
    rest = tf.linalg.matvec(s, b) - 0.5 * curved
    constants = vips.expected_gains(ratios - rest, sees)
    return constants, b, a


def _raw(
    whitened: tuple[tf.Tensor, tf.Tensor, tf.Tensor], acting: _Acting
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The same quadratics of c, where c = m + V s."""
    constants, slopes, curvatures = whitened
    slopes = tf.linalg.matvec(acting.inverses, slopes, transpose_a=True)
    curvatures = tf.matmul(
        tf.matmul(acting.inverses, curvatures, transpose_a=True), acting.inverses
    )
    turned = tf.linalg.matvec(curvatures, acting.means)
    constants -= tf.reduce_sum((slopes + 0.5 * turned) * acting.means, axis=1)
    return constants, slopes + turned, curvatures


def conditional_steps(
    policy: ConditionalMixture,
    target: Target,
    contexts: Float64[Array, "N C"],
    seed: Int32[Array, "2"],
    options: StepOptions,
    *,
    num_steps: int,
    num_samples: int,
    first_step: Int32[Array, ""] | int = 0,
) -> tuple[ConditionalMixture, VipsHistory]:
    """`num_steps` updates of `policy` towards exp(target), each for some of the contexts.

    Not compiled. Arguments are those of `conditional_step`; `first_step` as of `vips_steps`.
    """
    number, variances = contexts.shape[0], tf.math.reduce_variance(contexts, axis=0)

    def step(i: tf.Tensor, state: tuple[ConditionalMixture, VipsHistory]) -> Any:
        policy, history = state
        seeds = tf.random.split(tf.random.fold_in(seed, first_step + i), 2)
        chosen = contexts
        if number > MOST_CONTEXTS:
            rows = tf.random.stateless_uniform([MOST_CONTEXTS], seeds[0], 0, number, tf.int32)
            chosen = tf.gather(contexts, rows)
        sizes = num_samples, variances
        policy, row = conditional_step(policy, target, chosen, seeds[1], options, *sizes)
        return policy, vips.record(history, i, row)

    policy = ConditionalMixture(*(tf.convert_to_tensor(array, DENSITY) for array in policy))
    return repeat(num_steps, step, (policy, vips.empty_history(num_steps)))
