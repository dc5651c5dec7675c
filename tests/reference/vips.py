"""VIPS, one component and one scalar dual at a time."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from scipy.stats import multivariate_normal


def quadratic_surrogate(z, rewards):
    """A and b of the least-squares fit rewards ~ c + b^T z - 1/2 z^T A z; z [S, D], rewards [S]."""
    num_samples, dim = z.shape
    pairs = [(i, j) for i in range(dim) for j in range(i + 1)]
    features = np.array(
        [[1.0, *z[s], *(z[s, i] * z[s, j] for i, j in pairs)] for s in range(num_samples)]
    )
    theta = np.linalg.lstsq(features, rewards, rcond=None)[0]
    a = np.zeros((dim, dim))
    for (i, j), coefficient in zip(pairs, theta[1 + dim :], strict=True):
        a[i, j] -= coefficient
        a[j, i] -= coefficient
    return a, theta[1 : 1 + dim]


def gaussian_kl(mean, covariance):
    """KL(N(mean, covariance) || N(0, I))."""
    return 0.5 * (np.trace(covariance) + mean @ mean - len(mean) - np.linalg.slogdet(covariance)[1])


def component_step(a, b, kl_bound):
    """Mean, covariance and eta of the trust-region step of one component: the minimum of its
    Lagrangian dual.

    g(eta) = eta bound + (1 + eta) log int exp((R(z) + eta log N(z; 0, I)) / (1 + eta)) dz over eta
    >= 0.
    """
    dim = len(b)

    def solution(eta):
        precision = (a + eta * np.eye(dim)) / (1.0 + eta)
        return np.linalg.solve(precision, b / (1.0 + eta)), np.linalg.inv(precision), precision

    def dual(eta):
        mean, _, precision = solution(eta)
        log_z = (
            0.5 * mean @ precision @ mean
            - 0.5 * np.linalg.slogdet(precision)[1]
            + 0.5 * dim * np.log(2.0 * np.pi)
        )
        log_z -= 0.5 * eta / (1.0 + eta) * dim * np.log(2.0 * np.pi)
        return eta * kl_bound + (1.0 + eta) * log_z

    lowest = np.linalg.eigvalsh(a)[0]
    if lowest > 0.0:
        mean, covariance, _ = solution(0.0)
        if gaussian_kl(mean, covariance) <= kl_bound:
            return mean, covariance, 0.0
    least = max(0.0, -lowest)
    found = minimize_scalar(
        lambda s: dual(least + np.exp(s)),
        bounds=(-20.0, 25.0),
        method="bounded",
        options={"xatol": 1e-10, "maxiter": 500},
    )
    eta = least + np.exp(found.x)
    mean, covariance, _ = solution(eta)
    return mean, covariance, eta


def weight_step(log_weights, gains, kl_bound):
    """Log w of max_w sum_o w_o (log w_old(o) + gains(o)) + H(w) s.t.

    KL(w || w_old) <= bound, from the minimum of its dual.
    """

    def solution(eta):
        new = log_weights + gains / (1.0 + eta)
        return new - logsumexp(new)

    def dual(eta):
        return eta * kl_bound + (1.0 + eta) * logsumexp(log_weights + gains / (1.0 + eta))

    free = solution(0.0)
    if np.sum(np.exp(free) * (free - log_weights)) <= kl_bound:
        return free
    found = minimize_scalar(
        lambda s: dual(np.exp(s)),
        bounds=(-20.0, 25.0),
        method="bounded",
        options={"xatol": 1e-10, "maxiter": 500},
    )
    return solution(np.exp(found.x))


def log_densities(x, means, covariances):
    """log N(x; mean_o, covariance_o), [N, K]."""
    columns = [
        multivariate_normal(mean, covariance).logpdf(x).reshape(-1)
        for mean, covariance in zip(means, covariances, strict=True)
    ]
    return np.stack(columns, axis=1)


def vips_step(log_weights, means, scale_trils, z, target, kl_bound, weight_kl_bound):
    """One VIPS step with the whitened draws z [K, S, D]; `target` maps [S, D] -> [S].

    Returns the new mixture and its ELBO.
    """
    covariances = [tril @ tril.T for tril in scale_trils]
    new_means, new_covariances, gains = [], [], []
    for o in range(len(means)):
        x = np.array([means[o] + scale_trils[o] @ draw for draw in z[o]])
        joint = log_weights + log_densities(x, means, covariances)
        log_policy = logsumexp(joint, axis=1)
        a, b = quadratic_surrogate(z[o], target(x) + joint[:, o] - log_policy)
        mean, covariance, _ = component_step(a, b, kl_bound)
        new_means.append(means[o] + scale_trils[o] @ mean)
        new_covariances.append(scale_trils[o] @ covariance @ scale_trils[o].T)
        gains.append(np.mean(target(x) - log_policy))
    gains = np.array(gains)
    new_log_weights = weight_step(log_weights, gains, weight_kl_bound)
    return (
        new_log_weights,
        np.array(new_means),
        np.array(new_covariances),
        np.sum(np.exp(log_weights) * gains),
    )
