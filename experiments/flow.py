"""A neural spline flow of demonstrations, by flowjax (extra `bench`), where it is installed."""

import importlib.util
from typing import Any, NamedTuple

from virl_tf.em.em import standardised
from virl_tf.numerics import DENSITY, numpy_seed

import numpy as np
import tensorflow as tf

MISSING = "no neural spline flow: flowjax is not installed (pip install 'virl_tf[bench]')."
KNOTS, INTERVAL = 8, 5.0  # of the splines, in standard deviations; beyond they are the identity
PATIENCE = 10  # epochs without a lower loss on the tenth of the rows that flowjax holds out


def flow_is_installed() -> bool:
    """Whether there can be one."""
    return importlib.util.find_spec("flowjax") is not None


class Flow(NamedTuple):
    """A flow of standardised rows, a `Density` of the rows themselves; with contexts of rows
    [c, x], of x given c.
    """

    model: Any
    shift: np.ndarray  # [C + D]
    scale: np.ndarray  # [C + D]
    num_contexts: int = 0

    def log_prob(self, x: Any) -> tf.Tensor:
        """[N, C + D] -> [N]."""
        size = self.num_contexts
        z = (np.asarray(x) - self.shift) / self.scale
        values = self.model.log_prob(z[:, size:], *([z[:, :size]] if size else []))
        log_volume = np.log(self.scale[size:]).sum()
        return tf.constant(np.asarray(values, np.float64) - log_volume, DENSITY)

    def sample(self, n: Any, seed: Any = None) -> tf.Tensor:
        """Draws [n, D]; with contexts `n` are those to draw in, [n, C]. `seed`: int32 [2]."""
        import jax

        first, second = (int(part) & 0xFFFFFFFF for part in np.asarray(seed))
        key, size = jax.random.fold_in(jax.random.key(first), second), self.num_contexts
        if size:
            z = (np.asarray(n) - self.shift[:size]) / self.scale[:size]
            draws = self.model.sample(key, (), z)
        else:
            draws = self.model.sample(key, (n,))
        of_x = np.asarray(draws, np.float64)
        return tf.constant(self.shift[size:] + self.scale[size:] * of_x, DENSITY)


def fit_flow(x: np.ndarray, seed: int, num_contexts: int = 0) -> Flow:
    """A masked autoregressive flow of rational quadratic splines (Durkan et al., 2019) of x [N, D],
    with flowjax's layers, epochs and learning rate; with contexts of rows [c, x] [N, C + D].
    """
    import jax
    from flowjax.bijections import RationalQuadraticSpline
    from flowjax.distributions import Normal
    from flowjax.flows import masked_autoregressive_flow
    from flowjax.train import fit_to_data

    z, shift, scale = standardised(x)
    first, second = jax.random.split(jax.random.key(numpy_seed(seed, 0, "flow")))
    base = Normal(np.zeros(x.shape[1] - num_contexts))
    splines = RationalQuadraticSpline(knots=KNOTS, interval=INTERVAL)
    given: dict[str, Any] = {"cond_dim": num_contexts} if num_contexts else {}
    start = masked_autoregressive_flow(first, base_dist=base, transformer=splines, **given)
    data = (z[:, num_contexts:], z[:, :num_contexts]) if num_contexts else z
    model, _ = fit_to_data(second, start, data, max_patience=PATIENCE, show_progress=False)
    return Flow(model, shift, scale, num_contexts)
