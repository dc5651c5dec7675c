"""Conditional mixtures and kernel estimates: q(x | c) of rows [c, x]."""

import os
import subprocess
import sys
from pathlib import Path

from virl_tf.conditional import (
    ConditionalMixture,
    check_conditional,
    conditioned,
    empty_conditional,
    log_context_density,
)
from virl_tf.conditional_kde import conditional_kernels
from virl_tf.contexts import DRAWS, Places, drawn, halves, places
from virl_tf.fusion import Fusion
from virl_tf.kde import Kde
from virl_tf.mixture import quadratics
from virl_tf.validation import InputError

import numpy as np
import pytest
import tensorflow as tf

from tests.shared import make_mixture

SEED = [3, 4]
SIZES = [(1, 1), (2, 1), (3, 2), (1, 4)]  # C, D
rng = np.random.default_rng(0)


def joint_and_conditional(c, d, k=3):
    joint = make_mixture(k, c + d, seed=c + 7 * d)
    return joint, conditioned(joint, c)


def marginal(joint, c):
    trils = joint.scale_trils[:, :c, :c]
    return joint._replace(means=joint.means[:, :c], scale_trils=trils)


def kernels(c, d, n=40):
    points = np.random.default_rng(5).standard_normal((n, c + d))
    return Kde(tf.constant(points), tf.constant(np.linspace(0.3, 0.6, c + d)))


# --- of a joint mixture ---------------------------------------------------------------------------


@pytest.mark.parametrize(("c", "d"), SIZES)
def test_it_is_the_quotient_of_joint_and_marginal(c, d):
    joint, conditional = joint_and_conditional(c, d)
    rows = 2.0 * rng.standard_normal((50, c + d))
    expected = joint.log_prob(rows) - marginal(joint, c).log_prob(rows[:, :c])
    np.testing.assert_allclose(conditional.log_prob(rows), expected, rtol=1e-9, atol=1e-9)
    of_parts = conditional.log_prob(rows[:, c:], rows[:, :c])
    np.testing.assert_allclose(of_parts, expected, rtol=1e-9, atol=1e-9)


def test_its_gate_are_the_marginals_responsibilities():
    joint, conditional = joint_and_conditional(2, 1)
    c = 2.0 * rng.standard_normal((50, 2))
    expected = marginal(joint, 2).log_responsibilities(c)
    np.testing.assert_allclose(conditional.log_gate(tf.constant(c)), expected, atol=1e-9)


@pytest.mark.parametrize(("c", "d"), SIZES)
def test_it_knows_the_density_of_contexts_but_for_a_constant(c, d):
    joint, conditional = joint_and_conditional(c, d)
    contexts = 2.0 * rng.standard_normal((50, c))
    expected = marginal(joint, c).log_prob(contexts) + 0.5 * c * np.log(2.0 * np.pi)
    np.testing.assert_allclose(log_context_density(conditional, contexts), expected, atol=1e-9)


def test_what_is_added_to_all_gates_cancels():
    _, conditional = joint_and_conditional(2, 1)
    shifted = conditional._replace(
        gate_offsets=conditional.gate_offsets + 3.0,
        gate_slopes=conditional.gate_slopes - [1.0, 2.0],
        gate_curvatures=conditional.gate_curvatures + 5.0 * np.eye(2),
    )
    rows = rng.standard_normal((20, 3))
    np.testing.assert_allclose(shifted.log_prob(rows), conditional.log_prob(rows), atol=1e-9)


@pytest.mark.parametrize(("c", "d"), SIZES)
def test_conditioned_it_is_a_mixture_and_a_distribution(c, d):
    _, conditional = joint_and_conditional(c, d)
    context, x = rng.standard_normal(c), rng.standard_normal((9, d))
    mixture = conditional.condition(context)
    assert float(tf.reduce_sum(tf.exp(mixture.log_weights))) == pytest.approx(1.0)
    expected = conditional.log_prob(x, context)
    np.testing.assert_allclose(mixture.log_prob(x), expected, rtol=1e-9)
    np.testing.assert_allclose(mixture.distribution.log_prob(x), expected, rtol=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize(("c", "d"), SIZES)
def test_many_experts_have_the_density_of_few(monkeypatch, c, d, offset):
    joint, _ = joint_and_conditional(c, d, 40)
    conditional = conditioned(joint._replace(means=joint.means + offset), c)
    rows = offset + 2.0 * rng.standard_normal((50, c + d))
    few = conditional.component_log_prob(rows)
    monkeypatch.setattr("virl_tf.conditional.MANY_COMPONENTS", 40)
    np.testing.assert_allclose(conditional.component_log_prob(rows), few, rtol=1e-7, atol=1e-7)


def test_many_experts_without_a_place_have_a_density(monkeypatch):
    """A gate that is the same everywhere, as of `standard_conditional_start`."""
    _, conditional = joint_and_conditional(2, 1, 40)
    zeros = {name: 0.0 * getattr(conditional, name) for name in ("gate_slopes", "gate_curvatures")}
    conditional = conditional._replace(**zeros)
    rows = rng.standard_normal((50, 3))
    few = conditional.log_prob(rows)
    monkeypatch.setattr("virl_tf.conditional.MANY_COMPONENTS", 40)
    np.testing.assert_allclose(conditional.log_prob(rows), few, rtol=1e-7)


def test_without_contexts_a_mixture_stays_as_it_is():
    joint = make_mixture()
    assert conditioned(joint, 0) is joint
    of_points = kernels(0, 2)
    assert conditional_kernels(of_points, 0) is of_points


def test_quadratics_by_loops():
    u, v, c = rng.standard_normal(3), rng.standard_normal((3, 2)), rng.standard_normal((5, 2))
    p = rng.standard_normal((3, 2, 2))
    p = p + p.transpose(0, 2, 1)
    found = quadratics(tuple(map(tf.constant, (u, v, p))), tf.constant(c))
    expected = [[u[o] + v[o] @ x - 0.5 * x @ p[o] @ x for o in range(3)] for x in c]
    np.testing.assert_allclose(found, expected)


# --- draws, of each kind of conditional density ---------------------------------------------------

KINDS = {
    "mixture": lambda: joint_and_conditional(2, 1)[1],
    "kernels": lambda: conditional_kernels(kernels(2, 1), 2),
    "fusion": lambda: Fusion(joint_and_conditional(2, 1)[1], conditional_kernels(kernels(2, 1), 2)),
}


@pytest.fixture(params=KINDS)
def density(request):
    return KINDS[request.param]()


def test_it_integrates_to_one_for_each_context(density):
    grid = np.linspace(-12.0, 12.0, 2001)
    for c in ([0.0, 0.0], [1.0, -2.0], [6.0, 6.0]):
        rows = np.column_stack([np.tile(c, (len(grid), 1)), grid])
        total = np.exp(density.log_prob(rows)).sum() * (grid[1] - grid[0])
        assert total == pytest.approx(1.0, abs=1e-3)


def test_draws_are_of_the_density(density):
    grid = np.linspace(-12.0, 12.0, 2001)
    for c in ([0.0, 0.0], [1.0, -2.0]):
        rows = np.column_stack([np.tile(c, (len(grid), 1)), grid])
        share = np.exp(density.log_prob(rows)) * (grid[1] - grid[0])
        n = 4000
        x = density.sample(np.tile(c, (n, 1)), SEED).numpy()[:, 0]
        mean = share @ grid
        error = np.sqrt(share @ (grid - mean) ** 2 / n)
        assert x.mean() == pytest.approx(mean, abs=4.4 * error)
        assert x.std() == pytest.approx(error * np.sqrt(n), rel=0.1)


def test_what_a_draw_is_of_and_its_noise_have_seeds_of_their_own(density, seeds_drawn):
    density.sample(np.zeros((7, 2)), SEED)
    assert len(set(seeds_drawn)) == len(seeds_drawn) >= 2


def test_draws_depend_on_the_seed_alone(density):
    c = rng.standard_normal((60, 2))
    x = density.sample(c, SEED)
    assert (x.shape, x.dtype) == ((60, 1), tf.float64)
    np.testing.assert_array_equal(x, density.sample(c, tf.constant(SEED)))
    assert (x.numpy() != density.sample(c, [4, 3]).numpy()).any()


@pytest.mark.parametrize("sizes", [(60, 2), (None, 2)])
def test_graphs_draw_the_same(density, sizes):
    c = rng.standard_normal((60, 2))
    specs = tf.TensorSpec(sizes, tf.float64), tf.TensorSpec([2], tf.int32)
    draw = tf.function(lambda c, seed: density.sample(c, seed), specs)
    np.testing.assert_array_equal(draw(c, SEED), density.sample(c, SEED))


THREADS = """
import numpy as np, sys, tensorflow as tf
from tests.shared import make_mixture
from virl_tf.conditional import conditioned
c = np.random.default_rng(0).standard_normal((40_000, 1))
x = conditioned(make_mixture(30, 3), 1).sample(c, [3, 4])
print(int(np.asarray(x).view(np.uint64).sum(dtype=np.uint64)))
"""


@pytest.mark.slow
def test_its_draws_do_not_depend_on_the_number_of_threads():
    """So many that TensorFlow splits work between threads."""
    found = [
        subprocess.run(
            [sys.executable, "-c", THREADS],
            env={**os.environ, "TF_NUM_INTRAOP_THREADS": threads},
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    ]
    assert found[0] == found[1]


def test_kernels_by_loops():
    estimate = conditional_kernels(kernels(2, 2), 2)
    points, width = np.asarray(estimate.joint.points), np.asarray(estimate.joint.bandwidth)
    rows = rng.standard_normal((6, 4))
    for row, found in zip(rows, estimate.log_prob(rows).numpy(), strict=True):
        k = np.exp(-0.5 * ((row - points) / width) ** 2) / np.sqrt(2.0 * np.pi) / width
        of_context, of_x = k[:, :2].prod(axis=1), k[:, 2:].prod(axis=1)
        assert np.exp(found) == pytest.approx((of_context * of_x).sum() / of_context.sum())


# --- where to draw --------------------------------------------------------------------------------


def test_places_repeat_contexts():
    contexts = tf.constant(np.arange(10.0)[:, None])
    where = places(contexts, 4 * DRAWS, SEED)
    assert (where.contexts.shape, where.num_draws) == ((4, 1), DRAWS)
    assert len(np.unique(where.contexts)) == 4
    rows = where.rows.numpy().reshape(DRAWS, 4)
    assert (rows == rows[0]).all()
    again = places(contexts, 25 * DRAWS, SEED)  # more than there are
    assert np.unique(again.contexts, return_counts=True)[1].min() == 2


def test_without_contexts_places_are_a_number():
    assert places(None, 7, SEED) == 7
    np.testing.assert_array_equal(drawn(make_mixture(), 7, SEED), make_mixture().sample(7, SEED))


def test_half_of_each_contexts_draws_are_the_policys():
    first, second = halves(Places(tf.constant(rng.standard_normal((5, 2))), 4).rows)
    np.testing.assert_array_equal(first, second)
    assert halves(7) == (3, 4)


def test_drawn_rows_begin_with_their_contexts():
    where = Places(tf.constant(rng.standard_normal((5, 2))), 4)
    rows = drawn(KINDS["fusion"](), where, SEED)
    assert rows.shape == (20, 3)
    np.testing.assert_array_equal(rows[:, :2], where.rows)


# --- what users get wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda q: q.condition([1.0]), "c must be an array of real numbers [..., 2]"),
        (lambda q: q.condition(np.zeros((3, 2))), "c must be one context [2]"),
        (lambda q: q.sample([0.0, 0.0]), "sample takes a context for each draw, [N, 2]"),
        (lambda q: q.log_prob(np.zeros((3, 1)), np.zeros((4, 2))), "do not belong together"),
        (lambda q: q.log_prob(np.zeros((3, 2)), np.zeros((3, 2))), "x must be an array"),
        (lambda q: q.condition(["a", "b"]), "got dtype string"),
    ],
)
def test_contexts_that_cannot_be_used(call, text):
    with pytest.raises(InputError) as error:
        call(KINDS["mixture"]())
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_one_context_goes_with_many_points():
    conditional = KINDS["mixture"]()
    found = conditional.log_prob(np.zeros((4, 5, 1)), [0.5, 0.5])
    assert found.shape == (4, 5)
    np.testing.assert_allclose(found, np.full((4, 5), found[0, 0]))


def test_arrays_are_checked():
    _, conditional = joint_and_conditional(2, 3)
    found = check_conditional("file", [np.asarray(a) for a in conditional])
    assert isinstance(found, ConditionalMixture)
    assert (found.num_contexts, found.dim, found.num_components) == (2, 3, 3)
    broken = [
        conditional._replace(gains=np.zeros((3, 3))),
        conditional._replace(gate_offsets=np.full(3, np.nan)),
        conditional._replace(scale_trils=-np.asarray(conditional.scale_trils)),
        conditional._replace(offsets=np.zeros((3, 2))),
        empty_conditional(3, 2),
    ]
    for arrays in broken:
        with pytest.raises(InputError, match="file: expected finite float64 gate_offsets"):
            check_conditional("file", [np.asarray(a) for a in arrays])


def test_an_empty_one_has_sizes():
    empty = empty_conditional(2, 3)
    assert (empty.num_components, empty.dim, empty.num_contexts) == (0, 2, 3)


@pytest.mark.parametrize("entry", [(0, 0, 1), (-1, 0, 1)])
def test_a_factor_that_is_not_lower_triangular_is_refused(entry):
    policy = conditioned(make_mixture(3, 3), 1)
    trils = policy.scale_trils.numpy()
    trils[entry] = 0.1
    with pytest.raises(InputError, match="not one: expected finite"):
        check_conditional("not one", policy._replace(scale_trils=trils))
