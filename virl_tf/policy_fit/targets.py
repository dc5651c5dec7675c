"""Log densities as users write them, looked at before a policy is fitted to them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.numerics import DENSITY
from virl_tf.reward import Reward, log_prob_of
from virl_tf.shapes import Array, Bool, Float64
from virl_tf.validation import InputError, reason
from virl_tf.vips.vips import Target

Support = Callable[[tf.Tensor], Bool[Array, " N"]]


class NowhereInsideError(InputError):
    """A support that is true at none of the draws of the start, of which there are `draws`."""

    def __init__(self, draws: int):
        """After so many draws."""
        self.draws = draws
        super().__init__(
            f"support is true at none of {draws} points drawn from the initial policy; check its "
            "units, or give an initial_policy that meets it."
        )


def checked_target(log_prob: Any, support: Support | None, x: Float64[Array, "N D"]) -> Target:
    """The log density to fit, -inf outside of `support`; both are tried at x first.

    Raises:
        InputError: no number for each x, none finite, or what TensorFlow cannot compile.
    """
    function = log_prob_of(log_prob) if isinstance(log_prob, Reward) else log_prob
    if support is None:
        _check_values(_tried("log_prob", function, x), x)
        return function
    inside = np.asarray(_tried("support", support, x))
    if inside.shape != (len(x),) or inside.dtype != bool:
        raise InputError(
            f"support must map [N, D] to [N] of booleans; for x of shape {list(x.shape)} it "
            f"returned {inside.dtype} {list(inside.shape)}. Return a comparison, such as "
            "tf.reduce_all(x > 0.0, axis=1)."
        )
    if not inside.any():
        raise NowhereInsideError(len(x))
    values = _tried("log_prob", function, x)
    bounded = within(function, support)
    _check_shape(values, x)
    _check_values(bounded(x), x)
    return bounded


def within(target: Target, support: Support) -> Target:
    """The target where the support is true, -inf elsewhere."""

    def bounded(x: tf.Tensor) -> tf.Tensor:
        values = tf.cast(target(x), DENSITY)
        return tf.where(support(x), values, tf.constant(-np.inf, DENSITY))

    return bounded


def tempered(target: Target, temperature: float) -> Target:
    """target(x) / temperature: exp of it has the same modes, sharper ones below 1."""
    return target if temperature == 1.0 else lambda x: target(x) / temperature


def _tried(name: str, function: Callable[..., Any], x: Float64[Array, "N D"]) -> Any:
    """function(x), once it is known that TensorFlow can compile it.

    Raises:
        InputError: it takes float32 only, or is not made of TensorFlow operations.
    """
    with _Named(name):
        try:
            values = function(x)
        except _OF_TENSORFLOW:
            if not _takes_float32(function, x):
                raise
            raise InputError(
                f"{name} takes float32, but gets float64 [N, D]; cast what it gets: "
                f"lambda x: {name}(tf.cast(x, tf.float32))."
            ) from None
    rows = tf.TensorSpec(x.shape, x.dtype)
    try:
        tf.function(function, autograph=False).get_concrete_function(rows)
    except (*_OF_TENSORFLOW, NotImplementedError, AttributeError) as error:
        dtype = "bool" if name == "support" else "float64"
        raise InputError(
            f"{name} must be made of TensorFlow operations ({type(error).__name__}: "
            f"{reason(error)}); wrap NumPy or plain Python: "
            f"f = lambda x: np.asarray({name}(x), '{dtype}'), and then "
            f"lambda x: tf.ensure_shape(tf.numpy_function(f, [x], tf.{dtype}), [None])."
        ) from error
    return values


_OF_TENSORFLOW = (tf.errors.OpError, TypeError, ValueError)


def _takes_float32(function: Callable[..., Any], x: Float64[Array, "N D"]) -> bool:
    try:
        function(tf.cast(x, tf.float32))
    except _OF_TENSORFLOW:
        return False
    return True


class _Named:
    """Gives what the user's function raises the function's name, from Python 3.11 on."""

    def __init__(self, name: str):
        self._name = name

    def __enter__(self) -> None:
        """Nothing yet."""

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        """Passes on the error as it is."""
        if error is None or isinstance(error, InputError):
            return
        if hasattr(error, "add_note"):
            note = f"This is {self._name}'s own error; fit_policy passed it float64 [N, D]."
            error.add_note(note)


def _check_shape(values: Any, x: Float64[Array, "N D"]) -> np.ndarray:
    """The values as an array, or InputError unless they are a real number for each x."""
    values = np.asarray(values)
    if values.shape != (len(x),):
        raise InputError(
            f"log_prob must map [N, D] to [N]; for x of shape {list(x.shape)} "
            f"it returned {list(values.shape)}."
        )
    if not np.issubdtype(values.dtype, np.floating):
        raise InputError(f"log_prob must return real numbers, got dtype {values.dtype}.")
    return values


def _check_values(values: Any, x: Float64[Array, "N D"]) -> None:
    """InputError unless these are numbers for each draw of the start, and some are finite."""
    values = _check_shape(values, x)
    if np.isnan(values).any():
        raise InputError(
            f"log_prob returned NaN at {int(np.isnan(values).sum())} of {len(x)} points "
            "drawn from the initial policy."
        )
    if not np.isfinite(values).any():
        raise InputError(
            f"log_prob is finite at none of {len(x)} points drawn from the initial policy: "
            "it is of another place. Give an initial_policy where it is finite."
        )
