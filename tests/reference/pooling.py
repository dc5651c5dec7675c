"""The exponent of the pool with an EM mixture, one candidate and one point at a time."""

import math

import numpy as np


def log_likelihoods(exponent, held_out, draws):
    """Of each held-out point under the normalised pool of this exponent.

    Args:
        held_out: [(R(x), log mixture(x))] of the held-out points.
        draws: [(R(x), log mixture(x), log proposal(x))].
    """

    def pool(of_reward, of_mixture):
        return (1.0 - exponent) * of_reward + exponent * of_mixture

    ratios = [pool(of_reward, of_mixture) - log_mu for of_reward, of_mixture, log_mu in draws]
    most = max(ratios)
    integral = math.fsum(math.exp(ratio - most) for ratio in ratios) / len(ratios)
    return [pool(*point) - most - math.log(integral) for point in held_out]


def exponent(held_out, draws):
    """The likeliest of 0, 0.05, ..., 1; if it is below 1/2, the largest up to 1/2 that loses no
    more than one standard error of the difference.
    """
    candidates = [i / 20 for i in range(21)]
    values = {a: np.array(log_likelihoods(a, held_out, draws)) for a in candidates}
    likeliest = max(candidates, key=lambda a: values[a].mean())
    chosen = likeliest
    for a in candidates:
        if likeliest < a <= 0.5:
            lack = values[likeliest] - values[a]
            if lack.mean() <= math.sqrt(np.mean((lack - lack.mean()) ** 2) / len(lack)):
                chosen = a
    return chosen
