"""The M-step of Expected Information Maximization for a given log density ratio phi (Eq. 1 of the
paper).
"""

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp

from .vips import gaussian_kl, quadratic_surrogate


def component_step(a, b, kl_bound):
    """argmax_q E_q[b^T z - 1/2 z^T A z] - KL(q || N(0, I)) s.t. KL(q || N(0, I)) <= bound.

    With the multiplier lam the objective is E_q[phi] - (1 + lam) KL: precision I + A / (1 + lam),
    mean (A + (1 + lam) I)^{-1} b.
    """
    identity = np.eye(len(b))

    def solution(lam):
        return np.linalg.solve(a + (1.0 + lam) * identity, b), np.linalg.inv(
            identity + a / (1.0 + lam)
        )

    least = max(0.0, -1.0 - np.linalg.eigvalsh(a)[0])
    if least == 0.0 and gaussian_kl(*solution(0.0)) <= kl_bound:
        return solution(0.0)
    lam = brentq(
        lambda lam: gaussian_kl(*solution(lam)) - kl_bound, least + 1e-9, least + 1e7, xtol=1e-13
    )
    return solution(lam)


def weight_step(log_weights, expected_phi, kl_bound):
    """argmax_w sum_o w_o E_o[phi] - KL(w || w_old) s.t. KL(w || w_old) <= bound."""

    def solution(lam):
        new = log_weights + expected_phi / (1.0 + lam)
        return new - logsumexp(new)

    def kl(lam):
        return np.sum(np.exp(solution(lam)) * (solution(lam) - log_weights))

    if kl(0.0) <= kl_bound:
        return solution(0.0)
    return solution(brentq(lambda lam: kl(lam) - kl_bound, 0.0, 1e7, xtol=1e-13))


def m_step(log_weights, means, scale_trils, z, phi, kl_bound, weight_kl_bound):
    """New log weights, means and covariances from the whitened draws z [K, S, D]; phi maps [S, D]
    -> [S].
    """
    new_means, new_covariances, expected = [], [], []
    for o in range(len(means)):
        values = phi(np.array([means[o] + scale_trils[o] @ draw for draw in z[o]]))
        mean, covariance = component_step(*quadratic_surrogate(z[o], values), kl_bound)
        new_means.append(means[o] + scale_trils[o] @ mean)
        new_covariances.append(scale_trils[o] @ covariance @ scale_trils[o].T)
        expected.append(values.mean())
    return (
        weight_step(log_weights, np.array(expected), weight_kl_bound),
        np.array(new_means),
        np.array(new_covariances),
    )
