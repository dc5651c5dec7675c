"""Number formats, seeds and root finding.

Mixtures, regressions and duals are float64; networks are float32. The casts between the two happen
in `to_network` and `from_network` only.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.validation import InputError, check_seed, reason, with_nan

DENSITY = tf.float64
NETWORK = tf.float32
LOG_2PI = float(np.log(2.0 * np.pi))


def to_network(x: tf.Tensor) -> tf.Tensor:
    """float64 (densities) -> float32 (networks)."""
    return tf.cast(x, NETWORK)


def from_network(logits: tf.Tensor) -> tf.Tensor:
    """float32 (networks) -> float64 (densities)."""
    return tf.cast(logits, DENSITY)


def specs_of(values: Any) -> Any:
    """The TensorSpec of every tensor in a nested structure: a key for compiled functions."""
    return tf.nest.map_structure(lambda v: tf.TensorSpec(np.shape(v), v.dtype), values)


# XLA keeps what it compiled as long as the process lives, in three of the system's memory maps per
# kernel: one policy fit takes about 1,200 of the 65,530 that Linux allows, and without a free one
# the process dies of a segmentation fault.
MAPS_OF_A_PROGRAM = 2000


def free_memory_maps() -> float:
    """How many memory maps this process may still make; infinite where nobody counts them."""
    try:
        limit = int(Path("/proc/sys/vm/max_map_count").read_text())
        used = Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return float("inf")
    return limit - used


def check_room_to_compile() -> None:
    """InputError if the system could end this process at the next program that XLA compiles."""
    if free_memory_maps() < MAPS_OF_A_PROGRAM:
        raise InputError(
            "this process has compiled so many programs that the system would end it at the next "
            "one; go on in a new process, or allow more memory maps: "
            "sysctl -w vm.max_map_count=262144."
        )


def compiled(function: Callable[..., Any], *specs: Any, jit_compile: bool = True) -> Any:
    """`function` traced once, for arguments of these specs; calls raise for other shapes.

    Raises:
        InputError: the process has compiled too much already.
    """
    if jit_compile:
        check_room_to_compile()
    traceable = tf.function(function, autograph=False, jit_compile=jit_compile)
    return traceable.get_concrete_function(*specs)


def split_seed(seed: int, iteration: int, purpose: str) -> np.ndarray:
    """A stateless TF seed, int32 [2], of one purpose in one iteration of one run.

    Distinct (seed, iteration, purpose) give independent streams (NumPy's SeedSequence hashes them).
    """
    words = [int(seed), int(iteration), zlib.crc32(purpose.encode())]
    return np.random.SeedSequence(words).generate_state(2).astype(np.int32)


def generator(seed: int, purpose: str) -> np.random.Generator:
    """NumPy's generator of one purpose, outside of iterations."""
    return generator_of(split_seed(seed, 0, purpose))


def generator_of(seed: Any) -> np.random.Generator:
    """NumPy's generator of a stateless TF seed, int32 [2]."""
    return np.random.default_rng(np.asarray(seed).astype(np.uint32))


def numpy_seed(seed: int, iteration: int, purpose: str) -> int:
    """`split_seed` as one non-negative 31-bit integer, for scikit-learn and Keras initialisers."""
    return int(split_seed(seed, iteration, purpose)[0]) & 0x7FFFFFFF


def as_tensor(value: Any) -> tf.Tensor:
    """`value` as a tensor: NaN for what a frame or a masked array is missing, and of lists of
    numbers float64, where TensorFlow makes float32.
    """
    value = with_nan(value)
    of_numbers = isinstance(value, (list, tuple, float, int))
    return tf.convert_to_tensor(value, dtype_hint=DENSITY if of_numbers else None)


def real_tensor(name: str, value: Any, width: int) -> tf.Tensor:
    """`as_tensor` of real numbers [..., width], or an InputError that names it. Float64; the last
    axis is the caller's to check.
    """
    wanted = f"{name} must be an array of real numbers [..., {width}]"
    try:
        value = as_tensor(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{wanted}: {reason(error)}") from error
    if not (value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_bool):
        raise InputError(f"{wanted}, got dtype {value.dtype.name}.")
    return tf.cast(value, DENSITY)


def if_paths(x: tf.Tensor) -> str:
    """What to do about points of another width that may be trajectories [N, T, D]."""
    return "; of trajectories give the codes, encoding.encode(x)" if x.shape.rank == 3 else ""


def sampling_seed(seed: Any) -> tf.Tensor:
    """The stateless seed, int32 [2], that a sampler's argument stands for.

    Args:
        seed: int32 [2]; or one integer; or None: fresh entropy from the system, so that no two
            calls draw the same.

    Raises:
        InputError: anything else, or None inside of a tf.function, which would keep one draw.
    """
    if seed is None:
        if not tf.executing_eagerly():
            raise InputError(
                "a tf.function would keep one seed for all of its calls; pass sample(n, seed=...) "
                "an int32 [2] that changes with them."
            )
        return tf.constant(np.random.SeedSequence().generate_state(2).astype(np.int32))
    if np.ndim(seed) == 0 and not tf.is_tensor(seed):
        return tf.constant(split_seed(check_seed(seed), 0, "sample"))
    seed = tf.convert_to_tensor(seed)
    # TensorFlow's stateless draws take no others.
    if not (seed.dtype in (tf.int32, tf.int64) and seed.shape.is_compatible_with([2])):
        found = f"{seed.dtype.name} {seed.shape}"
        raise InputError(f"seed must be one integer, or an int32 tensor [2]; got {found}.")
    return seed


def at_share(weights: tf.Tensor, shares: tf.Tensor) -> tf.Tensor:
    """Of each row the entries where its weights [N, K] add up to shares [N, S] in [0, 1): int32
    [N, S].

    Of uniform shares they are categorical draws; TensorFlow's own, of many rows, depend on the
    number of threads.
    """
    totals = tf.cumsum(weights, axis=1)
    found = tf.searchsorted(totals, shares * totals[:, -1:], side="right")
    return tf.minimum(found, tf.shape(totals)[1] - 1)  # a product may be rounded up


def repeat(
    times: int, body: Callable[[tf.Tensor, Any], Any], state: Any, first: tf.Tensor | int = 0
) -> Any:
    """The state, of any structure, after `state = body(i, state)` for `times` i from `first` on.

    A loop in the graph: `body` is traced once.
    """
    _, state = tf.while_loop(
        lambda i, _: i < first + times,
        lambda i, state: (i + 1, body(i, state)),
        (tf.convert_to_tensor(first), state),
        maximum_iterations=times,
    )
    return state


def in_blocks(
    function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, most: int, columns: int | None = None
) -> tf.Tensor:
    """`function` of the rows of x, at most so many at once: [N, D] -> [N] float64, or [N, columns].

    Blocks are equal: the last row is repeated until they are.
    """
    rows = int(x.shape[0])
    if rows <= most:
        return tf.cast(function(x), DENSITY)
    blocks = -(-rows // most)
    size = -(-rows // blocks)
    padding = tf.repeat(x[-1:], blocks * size - rows, axis=0)
    padded = tf.reshape(tf.concat([x, padding], axis=0), [blocks, size, x.shape[1]])
    trailing = [] if columns is None else [columns]
    values = tf.map_fn(
        lambda block: tf.reshape(tf.cast(function(block), DENSITY), [size, *trailing]),
        padded,
        parallel_iterations=1,
    )
    return tf.reshape(values, [-1, *trailing])[:rows]


def by_blocks(function: Callable[[tf.Tensor], tf.Tensor], rows: tf.Tensor, most: int) -> tf.Tensor:
    """`function` of rows [N, D] -> [N], at most so many at once; inside of a tf.function, where N
    may be unknown, all at once (or `in_blocks`).
    """
    if not tf.executing_eagerly() or len(rows) <= most:
        return function(rows)
    return tf.concat([function(rows[i : i + most]) for i in range(0, len(rows), most)], axis=0)


def bisect_decreasing(
    f: Callable[[tf.Tensor], tf.Tensor], low: tf.Tensor, high: tf.Tensor, steps: int = 60
) -> tf.Tensor:
    """Elementwise root of a decreasing f by bisection.

    Returns the upper end of the last bracket, where f <= 0 if f(high) <= 0.

    Args:
        f: [...] -> [...], elementwise and decreasing.
        low, high: [...] float64, the brackets.
    """

    def halve(_: tf.Tensor, bracket: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        low, high = bracket
        middle = 0.5 * (low + high)
        above = f(middle) > 0.0
        return tf.where(above, middle, low), tf.where(above, high, middle)

    return repeat(steps, halve, (low, high))[1]


# XLA expands Cholesky factors and triangular solves into code that takes seconds to compile and is
# slow for many small matrices. The two loops below are the textbook's, one rank-one update of all
# matrices per step. Measured: 25 systems of 21 unknowns: 0.16 ms against 1.06 ms, compiled in 0.3 s
# against 3.3 s; 30 of 231: 173 ms against 701 ms.


def solve_positive_definite(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Solve A x = b: [K, M, M], [K, M] -> [K, M].

    Gauss-Jordan elimination without pivoting: A is positive definite.
    """
    size = int(a.shape[-1])
    unit = tf.eye(size, dtype=a.dtype)

    def eliminate(i: tf.Tensor, system: tf.Tensor) -> tf.Tensor:
        pivot = system[:, i] / system[:, i, i][:, None]
        return system - (system[:, :, i] - unit[i])[:, :, None] * pivot[:, None, :]

    return repeat(size, eliminate, tf.concat([a, b[..., None]], axis=-1))[..., -1]


def conjugate_gradients(
    apply: Callable[[tf.Tensor], tf.Tensor],
    b: tf.Tensor,
    precondition: Callable[[tf.Tensor], tf.Tensor],
    tolerance: float,
    most: int,
) -> tf.Tensor:
    """Solve apply(x) = b for K systems at once: [K, M, M] -> [K, M, M].

    Args:
        apply: a positive definite linear map of each system, in the inner product of all entries.
        precondition: about the inverse of `apply`, positive definite as well.
        tolerance: of the preconditioned residuals' norm, in units of the first ones.
        most: iterations.
    """

    def inner(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(x * y, axis=[1, 2], keepdims=True)

    def unfinished(i: tf.Tensor, *state: tf.Tensor) -> tf.Tensor:
        return (i < most) & tf.reduce_any(state[-1] > tolerance**2 * first_size)

    def iterate(
        i: tf.Tensor, x: tf.Tensor, residual: tf.Tensor, direction: tf.Tensor, size: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        image = apply(direction)
        step = tf.math.divide_no_nan(size, inner(direction, image))
        x, residual = x + step * direction, residual - step * image
        better = precondition(residual)
        new_size = inner(residual, better)
        direction = better + tf.math.divide_no_nan(new_size, size) * direction
        return i + 1, x, residual, direction, new_size

    direction = precondition(b)
    first_size = inner(b, direction)
    start = (tf.constant(0), tf.zeros_like(b), b, direction, first_size)
    return tf.while_loop(unfinished, iterate, start)[1]


def cholesky(a: tf.Tensor) -> tf.Tensor:
    """The lower factor L of positive definite A = L L^T: [K, D, D] -> [K, D, D]."""
    size = int(a.shape[-1])
    unit = tf.eye(size, dtype=a.dtype)

    def next_column(
        i: tf.Tensor, state: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        rest, factor = state
        column = rest[:, :, i] * tf.math.rsqrt(rest[:, i, i])[:, None]
        rest = rest - column[:, :, None] * column[:, None, :]
        return rest, factor + column[:, :, None] * unit[i]

    factor = repeat(size, next_column, (a, tf.zeros_like(a)))[1]
    return tf.linalg.band_part(factor, -1, 0)  # what rounding left above the diagonal
