"""A neural spline flow of demonstrations, by flowjax (extra `bench`), where it is installed."""

import importlib.util
from typing import Any, NamedTuple

from virl_tf.em import standardised
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
    """A flow of standardised rows, a `Density` of the rows themselves."""

    model: Any
    shift: np.ndarray  # [D]
    scale: np.ndarray  # [D]

    def log_prob(self, x: Any) -> tf.Tensor:
        """[N, D] -> [N]."""
        values = self.model.log_prob((np.asarray(x) - self.shift) / self.scale)
        return tf.constant(np.asarray(values, np.float64) - np.log(self.scale).sum(), DENSITY)

    def sample(self, n: int, seed: Any = None) -> tf.Tensor:
        """Draws [n, D]. `seed`: int32 [2]."""
        import jax

        first, second = (int(part) & 0xFFFFFFFF for part in np.asarray(seed))
        draws = self.model.sample(jax.random.fold_in(jax.random.key(first), second), (n,))
        return tf.constant(self.shift + self.scale * np.asarray(draws, np.float64), DENSITY)


def fit_flow(x: np.ndarray, seed: int) -> Flow:
    """A masked autoregressive flow of rational quadratic splines (Durkan et al., 2019) of x [N, D],
    with flowjax's layers, epochs and learning rate.
    """
    import jax
    from flowjax.bijections import RationalQuadraticSpline
    from flowjax.distributions import Normal
    from flowjax.flows import masked_autoregressive_flow
    from flowjax.train import fit_to_data

    z, shift, scale = standardised(x)
    first, second = jax.random.split(jax.random.key(numpy_seed(seed, 0, "flow")))
    base = Normal(np.zeros(x.shape[1]))
    splines = RationalQuadraticSpline(knots=KNOTS, interval=INTERVAL)
    start = masked_autoregressive_flow(first, base_dist=base, transformer=splines)
    model, _ = fit_to_data(second, start, z, max_patience=PATIENCE, show_progress=False)
    return Flow(model, shift, scale)
