"""Kernel density estimate by a double loop."""

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm


def log_prob(x, points, bandwidth):
    """log p~(x) with a Gaussian kernel of standard deviation `bandwidth` [D]: [M, D] -> [M]."""
    result = np.zeros(len(x))
    for m, query in enumerate(x):
        kernels = [norm.logpdf(query, point, bandwidth).sum() for point in points]
        result[m] = logsumexp(kernels) - np.log(len(points))
    return result
