"""Shapes as checked text: `Float64[Array, "K D"]` is a float64 array of K rows and D columns."""

import numpy as np
import tensorflow as tf
from jaxtyping import Bool, Float32, Float64, Int32, Int64

Array = tf.Tensor | np.ndarray
"""What a record's field holds: a tensor, or the NumPy array it was made from."""

__all__ = ["Array", "Bool", "Float32", "Float64", "Int32", "Int64"]
