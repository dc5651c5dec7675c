"""The random Gaussian task: m randomly drawn and weighted components, in the paper in 2-D."""

from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.mixture import from_covariances, gaussian
from virl_tf.numerics import generator, split_seed
from virl_tf.tasks.slice_sampling import slice_sample
from virl_tf.validation import check_integer, check_positive, check_seed

MAX_MODES = 1_000_000


class RandomGaussians:
    """log p(x) = log sum_i w_i N(x; mean_i, A_i^T A_i + min_variance I).

    The paper leaves the ranges open. These give about 36 separate maxima at m = 50: means ~
    U[-extent, extent]^D, A_ij ~ N(0, spread^2 / 2), w_i ~ U(0, 1), normalised.

    Attributes:
        mixture: the target as a `Mixture`.
        mode_centers: [m, D], the components' means.
    """

    def __init__(
        self,
        num_modes: int,
        seed: int = 0,
        *,
        dim: int = 2,
        extent: float = 5.0,
        spread: float = 0.3,
        min_variance: float = 0.02,
        burn_in: int = 100,
    ):
        """Draw the target.

        Args:
            num_modes: m, 1 to a million.
            seed: of the target; demonstrations have their own.
            dim: D.
            extent, spread, min_variance: of the means and covariances, see above.
            burn_in: transitions of each slice-sampling chain (D up to 2) before its draw.

        Raises:
            InputError: an argument out of its range.
        """
        self.num_modes = check_integer("num_modes", num_modes, 1, MAX_MODES)
        self.seed = check_seed(seed)
        self.dim = check_integer("dim", dim, 1)
        self.burn_in = check_integer("burn_in", burn_in, 1)
        check_positive("extent", extent)
        check_positive("spread", spread)
        check_positive("min_variance", min_variance)
        rng = generator(self.seed, "random Gaussians")
        means = rng.uniform(-extent, extent, (num_modes, dim))
        roots = rng.normal(0.0, spread / np.sqrt(2.0), (num_modes, dim, dim))
        covariances = np.einsum("kji,kjl->kil", roots, roots) + min_variance * np.eye(dim)
        weights = rng.uniform(0.0, 1.0, num_modes)
        self.mixture = from_covariances(np.log(weights / weights.sum()), means, covariances)
        self.mode_centers = means

    def log_prob(self, x: Any) -> tf.Tensor:
        """Log p(x): [N, D] -> [N], float64."""
        return self.mixture.log_prob(x)

    def demonstrations(self, n: int, seed: int) -> np.ndarray:
        """N demonstrations [n, D]: by elliptical slice sampling if D <= 2, else exact.

        The sampler's prior has the target's own first two moments. In more dimensions a chain
        hardly leaves the mode it meets first: at m = 50 and D = 5 the modes' shares have, after 100
        transitions, a KL divergence of 0.23 from the weights, after 1,000 of 0.02; in D = 2 after
        100 of 0.01, that of exact draws.
        """
        check_integer("n", n, 1)
        check_seed(seed)
        if self.dim > 2:
            return self.exact_samples(n, seed)[0]
        weights = tf.exp(self.mixture.log_weights).numpy()
        mean = weights @ self.mode_centers
        centred = self.mode_centers - mean
        around_mean = self.mixture.covariances.numpy() + np.einsum("ki,kj->kij", centred, centred)
        prior = gaussian(mean, np.einsum("k,kij->ij", weights, around_mean))
        return slice_sample(self.mixture.log_prob, prior, n, seed, self.burn_in)

    def exact_samples(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """N exact draws [n, D] and their components [n]: the slice sampler's oracle."""
        check_integer("n", n, 1)
        words = split_seed(check_seed(seed), 0, "exact samples")
        x, ids = self.mixture.sample_with_components(n, words)
        return x.numpy(), ids.numpy()
