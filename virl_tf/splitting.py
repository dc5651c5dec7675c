"""Which rows are held out from the training of every phi_t."""

from typing import Any

import numpy as np
import tensorflow as tf


def held_out_rows(n: int, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Which of n rows are held out, evenly spaced and at least one, and the others."""
    rows = np.linspace(0, n, max(1, int(fraction * n)), endpoint=False).astype(int)
    return rows, np.delete(np.arange(n), rows)


def split(records: Any, fraction: float) -> tuple[Any, Any]:
    """(held out, rest) of a nested structure of tensors [N, ...]."""
    n = int(tf.nest.flatten(records)[0].shape[0])
    held_out, rest = held_out_rows(n, fraction)
    return tuple(
        tf.nest.map_structure(lambda a, rows=rows: tf.gather(a, rows), records)
        for rows in (held_out, rest)
    )
