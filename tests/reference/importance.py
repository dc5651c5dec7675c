"""Self-normalised importance weights, as plain numbers."""


def weights(unnormalised):
    """Weights with mean one, from unnormalised ones (not logarithms)."""
    mean = sum(unnormalised) / len(unnormalised)
    return [w / mean for w in unnormalised]


def effective_sample_size(unnormalised):
    """(sum w)^2 / sum w^2."""
    return sum(unnormalised) ** 2 / sum(w**2 for w in unnormalised)
