"""The picture of a notebook against what it shows."""

import base64
import html
import io
import re

from virl_tf.picture import DRAWS, as_html, picture_of

import matplotlib.image
import numpy as np
import pytest
import tensorflow as tf

from .shared import make_mixture, make_network, make_reward


@pytest.fixture(scope="module", params=[1, 2, 4], ids=lambda dim: f"D = {dim}")
def drawn(request):
    """A reward, a policy, and the picture of both."""
    policy = make_mixture(dim=request.param)
    reward = make_reward([make_network(dim=request.param)], dim=request.param)
    return reward, policy, picture_of(reward, policy)


def test_the_picture_is_small_the_same_each_time_and_of_many_colours(drawn):
    reward, policy, picture = drawn
    assert picture == picture_of(reward, policy)
    pixels = matplotlib.image.imread(io.BytesIO(picture))
    assert pixels.shape in [(320, 460, 4), (320, 459, 4)]  # Matplotlib 3.10.0 rounds down
    assert len(np.unique(pixels.reshape(-1, 4), axis=0)) > 100


def test_another_policy_is_another_picture(drawn):
    reward, policy, picture = drawn
    moved = policy._replace(means=policy.means + 3.0)
    assert picture_of(reward, moved) != picture


def test_draws_outside_of_the_bounds_are_drawn_without_a_warning(drawn, recwarn):
    reward, policy, picture = drawn
    inside = tf.reduce_sum(policy.sample(DRAWS, 0), axis=1) > 0.0

    class Bounded:
        """A reward that is -inf where the coordinates' sum is not positive."""

        def log_prob(self, x):
            return tf.where(inside, reward.log_prob(x), tf.constant(-np.inf, tf.float64))

    assert picture_of(Bounded(), policy) != picture
    assert not recwarn.list


def test_text_is_escaped_and_the_picture_stands_in_the_page(drawn):
    *_, picture = drawn
    page = as_html("<Reward D = 2> & more", picture)
    assert html.escape("<Reward D = 2> & more") in page
    (data,) = re.findall('src="data:image/png;base64,([^"]*)"', page)
    assert base64.b64decode(data) == picture
    assert as_html("text") == "<pre>text</pre>"
