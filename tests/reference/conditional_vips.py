"""An expert's step in expectation over contexts: raw coordinates, loops, and SciPy's root."""

import numpy as np
from scipy.optimize import brentq


def gaussian_kl(mean, covariance, old_mean, old_covariance):
    precision = np.linalg.inv(old_covariance)
    shift = mean - old_mean
    terms = np.trace(precision @ covariance) - len(mean) + shift @ precision @ shift
    log_dets = np.linalg.slogdet(old_covariance)[1] - np.linalg.slogdet(covariance)[1]
    return 0.5 * (terms + log_dets)


def expected_kl(new, old, contexts, shares):
    """Of experts (K, covariance) with means K [c, 1], over contexts of these shares."""
    total = 0.0
    for c, share in zip(contexts, shares, strict=True):
        row = np.append(c, 1.0)
        total += share * gaussian_kl(new[0] @ row, new[1], old[0] @ row, old[1])
    return total


def solution(eta, r, r_c, old):
    """Precision (eta Lambda + R) / (eta + 1); precision x K = (eta Lambda K + R_c) / (eta + 1)."""
    k, covariance = old
    precision = np.linalg.inv(covariance)
    new = (eta * precision + r) / (eta + 1.0)
    slope = (eta * precision @ k + r_c) / (eta + 1.0)
    return np.linalg.solve(new, slope), np.linalg.inv(new)


def expert_step(r, r_c, old, contexts, shares, bound):
    """argmax E[x^T R_c [c, 1] - 1/2 x^T R x] + H under the expected KL; R positive definite."""

    def excess(eta):
        return expected_kl(solution(eta, r, r_c, old), old, contexts, shares) - bound

    eta = 0.0 if excess(0.0) <= 0.0 else brentq(excess, 0.0, 1e9, xtol=1e-12, rtol=1e-14)
    return solution(eta, r, r_c, old), eta
