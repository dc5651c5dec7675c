from virl_tf.discriminator.fit import FitInfo
from virl_tf.irl import found_nothing

import numpy as np
import pytest

CHANCE = 2.0 * np.log(2.0)


def fit_info(loss, chance=CHANCE):
    return FitInfo(1.0, loss, chance, 0.5, 0, 1)


@pytest.mark.parametrize("loss", [CHANCE, CHANCE - 0.9e-3, CHANCE - 1e-3, 1.5, np.nan, np.inf])
def test_a_loss_that_does_not_beat_chance_says_that_nothing_is_left(loss):
    assert found_nothing(fit_info(loss), 1e-3)


@pytest.mark.parametrize("loss", [CHANCE - 1.1e-3, 1.0, 0.0])
def test_a_loss_below_chance_does_not(loss):
    assert not found_nothing(fit_info(loss), 1e-3)


def test_chance_is_that_of_the_held_out_points():
    assert not found_nothing(fit_info(1.5, chance=1.6), 1e-3)
    assert found_nothing(fit_info(1.0, chance=1.0), 1e-3)
    assert found_nothing(fit_info(1.0, chance=np.nan), 1e-3)
