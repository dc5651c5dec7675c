"""What a recovered reward has to beat: the KDE it is given, and EM fits of the same demonstrations."""

import warnings

import numpy as np
import tensorflow as tf

from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY, numpy_seed


def expectation_maximisation(x: np.ndarray, num_components: int, seed: int) -> Mixture:
    """Maximum-likelihood Gaussian mixture of x [N, D] by EM from a k-means start (scikit-learn)."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    model = GaussianMixture(num_components, reg_covar=1e-6, max_iter=500, random_state=numpy_seed(seed, 0, "EM"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x)
    arrays = np.log(model.weights_), model.means_, np.linalg.cholesky(model.covariances_)
    return Mixture(*(tf.constant(a, DENSITY) for a in arrays))
