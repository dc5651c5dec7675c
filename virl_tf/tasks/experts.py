"""Random mixtures of Gaussian experts: a truth p(x | c) that is known for every context."""

from typing import Any

import numpy as np
import tensorflow as tf

from virl_tf.conditional import ConditionalMixture
from virl_tf.contexts import checked
from virl_tf.numerics import DENSITY, generator, split_seed
from virl_tf.validation import check_integer, check_positive, check_seed

MAX_EXPERTS = 10_000


class RandomExperts:
    """p(x | c) = sum_o pi(o | c) N(x; A_o c + b_o, Sigma_o), with contexts c uniform in [-1, 1]^C.

    pi(o | c) is proportional to exp(u_o + v_o^T c), u_o ~ N(0, 1), v_oi ~ N(0, sharpness^2 / C).
    b_o ~ U[-extent, extent]^D, A_oij ~ N(0, slope^2 / C), and the Sigma_o are those of
    `RandomGaussians`. A policy of m experts can be it exactly; a joint Gaussian mixture, whose
    contexts are not uniform, cannot.

    With waves > 0 experts and gate are linear not in c but in [c, sin(waves c)], whose 2 C entries
    take the place of C above: then no policy of linear experts is the truth.

    Attributes:
        policy: the truth as a `ConditionalMixture`, of c or of [c, sin(waves c)].
    """

    def __init__(
        self,
        num_experts: int,
        num_contexts: int,
        seed: int = 0,
        *,
        dim: int = 2,
        extent: float = 5.0,
        slope: float = 2.0,
        sharpness: float = 2.0,
        waves: float = 0.0,
        spread: float = 0.3,
        min_variance: float = 0.02,
    ):
        """Draw the truth.

        Args:
            num_experts: m.
            num_contexts: C.
            seed: of the truth; demonstrations have their own.
            dim: D.
            extent, slope, sharpness, waves, spread, min_variance: see above.

        Raises:
            InputError: an argument out of its range.
        """
        self.num_experts = m = check_integer("num_experts", num_experts, 1, MAX_EXPERTS)
        self.num_contexts = check_integer("num_contexts", num_contexts, 1)
        self.dim = d = check_integer("dim", dim, 1)
        self.seed = check_seed(seed)
        self.waves = 0.0 if waves == 0.0 else check_positive("waves", waves)
        size = self.num_contexts * (2 if self.waves else 1)
        for name, value in {"extent": extent, "slope": slope, "sharpness": sharpness}.items():
            check_positive(name, value)
        check_positive("spread", spread)
        check_positive("min_variance", min_variance)
        rng = generator(self.seed, "random experts")
        roots = rng.normal(0.0, spread / np.sqrt(2.0), (m, d, d))
        covariances = np.einsum("kji,kjl->kil", roots, roots) + min_variance * np.eye(d)
        self.policy = ConditionalMixture(
            gate_offsets=tf.constant(rng.normal(size=m), DENSITY),
            gate_slopes=tf.constant(rng.normal(0.0, sharpness / np.sqrt(size), (m, size)), DENSITY),
            gate_curvatures=tf.zeros([m, size, size], DENSITY),
            gains=tf.constant(rng.normal(0.0, slope / np.sqrt(size), (m, d, size)), DENSITY),
            offsets=tf.constant(rng.uniform(-extent, extent, (m, d)), DENSITY),
            scale_trils=tf.constant(np.linalg.cholesky(covariances), DENSITY),
        )

    def log_prob(self, x: Any, c: Any) -> tf.Tensor:
        """Log p(x | c), normalised for each c: [..., D], [..., C] -> [...], float64."""
        return self.policy.log_prob(x, self._seen(c))

    def contexts(self, n: int, seed: int) -> np.ndarray:
        """N contexts [n, C]."""
        shape = (check_integer("n", n, 1), self.num_contexts)
        return generator(check_seed(seed), "contexts").uniform(-1.0, 1.0, shape)

    def demonstrations(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """N contexts [n, C] and a demonstration in each [n, D], exact draws."""
        c = self.contexts(n, seed)
        return c, self.sample(c, split_seed(seed, 0, "exact samples")).numpy()

    def sample(self, c: Any, seed: Any = None) -> tf.Tensor:
        """An exact draw for each context: c [N, C] -> [N, D]; `seed` as of `Mixture.sample`."""
        return self.policy.sample(self._seen(c), seed)

    def _seen(self, c: Any) -> tf.Tensor:
        """What experts and gate are linear in."""
        c = checked("c", c, self.num_contexts)
        return tf.concat([c, tf.sin(self.waves * c)], axis=-1) if self.waves else c
