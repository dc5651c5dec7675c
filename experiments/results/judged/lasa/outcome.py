"""For `judge lasa.npy --outcome`: do draws look like demonstrations, and like all of them?"""

import numpy as np

PATHS = np.load("lasa.npy")[:, ::8]  # [210, 25, 2]
KINDS = np.repeat(np.arange(30), 7)


def distances(x, y):
    """[N, T, 2], [M, T, 2] -> [N, M], root mean square over time."""
    return np.sqrt(((x[:, None] - y) ** 2).sum(axis=-1).mean(axis=-1))


# Nineteen of twenty demonstrations have another one as near as this.
LIMIT = np.quantile(np.sort(distances(PATHS, PATHS), axis=1)[:, 1], 0.95)


def outcome(x, kept_back):
    """[S, T, 2] -> share of draws near to a demonstration, entropy and number of their shapes."""
    away = distances(x[:, ::8], PATHS)
    shares = np.bincount(KINDS[away.argmin(axis=1)], minlength=30) / len(x)
    used = shares[shares > 0]
    return {
        "like_one": np.mean(away.min(axis=1) <= LIMIT),
        "entropy": -np.sum(used * np.log(used)) / np.log(30),
        "kinds": len(used),
    }
