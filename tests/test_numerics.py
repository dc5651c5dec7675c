import itertools

from virl_tf import numerics
from virl_tf.numerics import (
    at_share,
    bisect_decreasing,
    from_network,
    numpy_seed,
    repeat,
    split_seed,
    to_network,
)
from virl_tf.validation import InputError

import numpy as np
import pytest
import tensorflow as tf

SEEDS = [0, 1, 2, 2**31 - 1, 2**32, 2**32 + 1, 2**63 - 1]
PURPOSES = ["policy", "negatives", "initial policy", "kernel", "check"]


@pytest.mark.parametrize("function", [split_seed, numpy_seed])
def test_seeds_differ_for_every_seed_iteration_and_purpose(function):
    arguments = list(itertools.product(SEEDS, range(30), PURPOSES))
    seeds = {tuple(np.atleast_1d(function(*a)).tolist()) for a in arguments}
    assert len(seeds) == len(arguments)


@pytest.mark.parametrize("seed", SEEDS)
def test_split_seed_is_reproducible_and_fits_tensorflow(seed):
    first, again = split_seed(seed, 3, "policy"), split_seed(seed, 3, "policy")
    np.testing.assert_array_equal(first, again)
    assert first.dtype == np.int32
    assert first.shape == (2,)


def test_split_seed_takes_numpy_integers():
    np.testing.assert_array_equal(
        split_seed(np.int64(5), np.int32(2), "policy"), split_seed(5, 2, "policy")
    )


def test_split_seed_keeps_its_value():
    # Written down once: other numbers here mean other results for every published seed.
    assert split_seed(7, 3, "policy").tolist() == [-871195908, 118482625]


def test_numpy_seed_is_a_non_negative_31_bit_integer():
    seeds = [numpy_seed(seed, t, "kernel") for seed in SEEDS for t in range(50)]
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)


def test_casts_between_densities_and_networks():
    assert to_network(tf.constant(1.0, tf.float64)).dtype == tf.float32
    assert from_network(tf.constant(1.0, tf.float32)).dtype == tf.float64


ROOTS = [
    (lambda a: lambda x: a - x**3, np.cbrt),
    (lambda a: lambda x: tf.exp(-x) - a, lambda a: -np.log(a)),
    (lambda a: lambda x: 1.0 / x - a, lambda a: 1.0 / a),
]


@pytest.mark.parametrize(("make_f", "root"), ROOTS)
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
@pytest.mark.parametrize("compiled", [False, True])
def test_bisection_finds_the_closed_form_root_elementwise(make_f, root, shape, compiled):
    a = np.random.default_rng(0).uniform(0.2, 0.9, shape)

    def find():
        low, high = (
            tf.fill(shape, tf.constant(1e-9, tf.float64)),
            tf.fill(shape, tf.constant(10.0, tf.float64)),
        )
        return bisect_decreasing(make_f(tf.constant(a)), low, high)

    found = tf.function(find)() if compiled else find()
    assert found.shape == shape
    np.testing.assert_allclose(found, root(a), rtol=1e-14)


def test_bisection_returns_the_end_where_f_is_not_positive():
    a = np.random.default_rng(1).uniform(0.1, 5.0, 100)
    f = ROOTS[0][0](tf.constant(a))
    for steps in (1, 5, 60):
        root = bisect_decreasing(
            f, tf.zeros(100, tf.float64), tf.fill([100], tf.constant(2.0, tf.float64)), steps
        )
        assert (f(root).numpy() <= 0.0).all()


def test_bisection_halves_the_bracket_once_per_step():
    f = ROOTS[0][0](tf.constant(0.5, tf.float64))
    ends = [
        bisect_decreasing(f, tf.constant(0.0, tf.float64), tf.constant(1.0, tf.float64), n).numpy()
        for n in range(4)
    ]
    assert ends == [1.0, 1.0, 1.0, 0.875]  # the root is 0.794: above 1/2 and 3/4, below 7/8


def test_a_process_that_compiled_too_much_gets_an_error_instead_of_a_crash(monkeypatch):
    before = numerics.free_memory_maps()
    assert before > numerics.MAPS_OF_A_PROGRAM
    spec = tf.TensorSpec([], tf.float64)
    program = numerics.compiled(
        lambda x: tf.reduce_logsumexp(x * tf.range(100.0, dtype=tf.float64)), spec
    )
    program(tf.constant(1.0, tf.float64))
    assert numerics.free_memory_maps() <= before
    monkeypatch.setattr(numerics, "free_memory_maps", lambda: numerics.MAPS_OF_A_PROGRAM - 1)
    with pytest.raises(InputError, match=r"new process.*max_map_count"):
        numerics.compiled(lambda x: x, spec)
    assert (
        numerics.compiled(lambda x: x + 1.0, spec, jit_compile=False)(tf.constant(1.0, tf.float64))
        == 2.0
    )


def test_memory_maps_are_not_counted_where_the_system_does_not(monkeypatch):
    def missing(self):
        raise FileNotFoundError(self)

    monkeypatch.setattr(numerics.Path, "read_text", missing)
    assert numerics.free_memory_maps() == float("inf")


@pytest.mark.parametrize("first", [2, tf.constant(2)])
def test_repeat_counts_on_from_its_first_number_and_is_traced_once(first):
    traces = []

    def body(i, state):
        traces.append(i)
        total, product = state
        return total + i, product * i

    found = tf.function(lambda: repeat(3, body, (tf.constant(10), tf.constant(1)), first))()
    assert [int(v) for v in found] == [10 + 2 + 3 + 4, 2 * 3 * 4]
    assert len(traces) == 1


def test_repeating_nothing_changes_nothing():
    assert int(repeat(0, lambda i, state: state + 1, tf.constant(7))) == 7


# --- blocks, conjugate gradients, seeds of samplers -----------------------------------------------


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 50])
def test_blocks_give_what_all_rows_give_and_are_small(rows):
    seen = []

    def squares(x):
        seen.append(int(x.shape[0]))
        return tf.reduce_sum(x**2, axis=1)

    x = tf.constant(np.random.default_rng(rows).normal(size=(rows, 3)))
    found = numerics.in_blocks(squares, x, 8)
    np.testing.assert_allclose(found, tf.reduce_sum(x**2, axis=1), rtol=1e-14)
    assert max(seen) <= 8
    assert rows <= sum(seen) < rows + 8


def test_blocks_take_float32_values_of_unknown_shape():
    def halves(x):
        return tf.numpy_function(lambda x: np.float32(0.5 * x[:, 0]), [x], tf.float32)

    x = tf.constant(np.arange(10.0)[:, None])
    found = tf.function(lambda x: numerics.in_blocks(halves, x, 4))(x)
    assert found.dtype == tf.float64
    np.testing.assert_array_equal(found, 0.5 * np.arange(10.0))


def test_conjugate_gradients_solve_positive_definite_systems():
    rng = np.random.default_rng(0)
    root, b = rng.normal(size=(4, 5, 5)), rng.normal(size=(4, 5, 1))
    a = root @ root.transpose(0, 2, 1) + np.eye(5)
    found = numerics.conjugate_gradients(
        lambda x: tf.matmul(a, x), tf.constant(b), lambda r: 0.5 * r, 1e-12, 50
    )
    np.testing.assert_allclose(found, np.linalg.solve(a, b), rtol=1e-8)
    start = numerics.conjugate_gradients(
        lambda x: tf.matmul(a, x), tf.constant(b), lambda r: r, 1e-12, 0
    )
    np.testing.assert_array_equal(start, np.zeros_like(b))


def test_a_sampler_takes_a_pair_an_integer_or_no_seed():
    np.testing.assert_array_equal(numerics.sampling_seed([3, 4]), [3, 4])
    np.testing.assert_array_equal(numerics.sampling_seed(7), numerics.sampling_seed(np.int64(7)))
    assert not np.array_equal(numerics.sampling_seed(7), numerics.sampling_seed(8))
    assert not np.array_equal(numerics.sampling_seed(None), numerics.sampling_seed(None))


@pytest.mark.parametrize("seed", [-1, 0.5, "three", [1], [1, 2, 3], [0.5, 1.0], tf.constant(3)])
def test_other_seeds_of_samplers_are_refused(seed):
    with pytest.raises(InputError, match="seed"):
        numerics.sampling_seed(seed)


@pytest.mark.parametrize("kind", [np.uint32, np.uint64, np.int16])
def test_pairs_that_tensorflow_takes_for_no_seed_are_refused(kind):
    """Such as NumPy's SeedSequence makes."""
    with pytest.raises(InputError, match=f"int32 tensor \\[2\\]; got {kind.__name__}"):
        numerics.sampling_seed(np.array([1, 2], kind))


def test_a_graph_wants_a_seed():
    with pytest.raises(InputError, match="seed="):
        tf.function(lambda: numerics.sampling_seed(None), autograph=False)()


def test_the_entry_at_a_share_is_where_weights_add_up_to_it():
    rng = np.random.default_rng(0)
    weights, shares = rng.exponential(size=(50, 7)), rng.uniform(size=(50, 3))
    weights[rng.uniform(size=weights.shape) < 0.3] = 0.0
    weights[:, 3] += 0.01
    chosen = at_share(weights, shares).numpy()
    for (n, s), found in np.ndenumerate(chosen):
        row, share, total, entry = weights[n], shares[n, s], weights[n, 0], 0
        while total <= share * row.sum():
            entry += 1
            total += row[entry]
        assert int(found) == entry
        assert row[entry] > 0.0


def test_uniform_shares_choose_entries_as_often_as_they_weigh():
    """Frequencies of 100,000 draws within 4.5 standard errors: 4 of them fail once in 36,000."""
    weights = np.tile([0.1, 2.0, 0.0, 1.9], (100_000, 1))
    shares = tf.random.stateless_uniform([100_000, 1], [1, 2], dtype=tf.float64)
    chosen = at_share(weights, shares).numpy()[:, 0]
    found, expected = np.bincount(chosen, minlength=4) / 100_000, weights[0] / weights[0].sum()
    errors = np.sqrt(expected * (1.0 - expected) / 100_000)
    assert (np.abs(found - expected) <= 4.5 * errors).all()


def test_a_share_of_all_is_the_last_entry():
    assert at_share(np.ones((1, 3)), np.ones((1, 1))).numpy().tolist() == [[2]]
