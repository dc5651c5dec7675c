"""Gaussian mixtures, a point and a component at a time."""

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal


def joint_log_prob(x, log_weights, means, scale_trils):
    """log q(o) + log q(x|o): [N, D] -> [N, K]."""
    joint = np.zeros((len(x), len(means)))
    for n, point in enumerate(x):
        for o, mean in enumerate(means):
            covariance = scale_trils[o] @ scale_trils[o].T
            joint[n, o] = log_weights[o] + multivariate_normal(mean, covariance).logpdf(point)
    return joint


def log_prob(x, log_weights, means, scale_trils):
    """log q(x): [N, D] -> [N]."""
    return np.array([logsumexp(row) for row in joint_log_prob(x, log_weights, means, scale_trils)])


def log_responsibilities(x, log_weights, means, scale_trils):
    """log q(o|x): [N, D] -> [N, K]."""
    return np.array(
        [row - logsumexp(row) for row in joint_log_prob(x, log_weights, means, scale_trils)]
    )


def moments(log_weights, means, scale_trils):
    """Mean [D] and covariance [D, D] of the mixture."""
    mean = sum(np.exp(w) * m for w, m in zip(log_weights, means, strict=True))
    covariance = np.zeros((len(mean), len(mean)))
    for w, m, scale_tril in zip(log_weights, means, scale_trils, strict=True):
        covariance += np.exp(w) * (scale_tril @ scale_tril.T + np.outer(m - mean, m - mean))
    return mean, covariance
