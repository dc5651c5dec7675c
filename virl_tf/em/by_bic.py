"""EM mixtures of many rows: components are split while the Bayesian information criterion falls."""

from typing import Any

import numpy as np

from virl_tf.em.em import FULL, fit_em, one_thread, standardised, to_mixture
from virl_tf.mixture import Mixture

_MOST_ROWS = 20_000
_KMEANS_START = 10  # components
_SPLIT_STARTS = 3  # of EM with two components; from a single start splits are missed


def bic_mixture(x: np.ndarray, seed: int) -> Mixture:
    """The EM mixture of x [N, D] whose components are split while its Bayesian information
    criterion falls.

    One Gaussian at first; a component whose own rows (those it is likeliest to have drawn) two
    Gaussians describe with the lower criterion is replaced by these two, and EM goes on with all
    (X-means of Pelleg and Moore, 2000, with Gaussians). EM from a k-means start lays a component
    over two modes where there are many dimensions; this one is then split. Where two Gaussians are
    no better than one, though many are, a start from `_KMEANS_START` components gets there; of both
    models the one with the lower criterion counts. Of x at most 20,000 rows are used.
    """
    z, shift, scale = standardised(x[np.random.default_rng(seed).permutation(len(x))[:_MOST_ROWS]])
    starts = [1]
    if len(z) >= _KMEANS_START * 5 * (z.shape[1] + 1):
        starts.append(_KMEANS_START)
    with one_thread():
        best = min((_grown(z, count, seed) for count in starts), key=lambda model: model.bic(z))
    return to_mixture(best, shift, scale)


def _grown(z: np.ndarray, num_components: int, seed: int) -> Any:
    """EM's model from so many components, split while BIC falls."""
    best = fit_em(z, num_components, seed)
    while (start := _split(z, best, seed)) is not None:
        model = fit_em(z, len(start["means_init"]), seed, FULL, **start)
        if model.bic(z) >= best.bic(z):
            break
        best = model
    return best


def _split(z: np.ndarray, model: Any, seed: int) -> dict[str, np.ndarray] | None:
    """Where EM starts once components are split; None: there is none to split."""
    labels = model.predict(z)
    parts = []
    for o in range(model.n_components):
        own, part = (
            z[labels == o],
            (model.weights_[o : o + 1], model.means_[o : o + 1], model.precisions_[o : o + 1]),
        )
        if len(own) >= 4 * (z.shape[1] + 1):  # two covariances of full rank need half of that
            two = fit_em(own, 2, seed, n_init=_SPLIT_STARTS)
            one = fit_em(own, 1, seed)
            if two.bic(own) < one.bic(own):
                part = (part[0] * two.weights_, two.means_, two.precisions_)
        parts.append(part)
    weights, means, precisions = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    if len(means) == model.n_components:
        return None
    return {
        "weights_init": weights / weights.sum(),
        "means_init": means,
        "precisions_init": precisions,
    }
