"""Records made by real code have the shapes that their annotations promise."""

from typing import NamedTuple

from virl_tf import irl, pooling
from virl_tf.discriminator.fit import DiscriminatorFitter
from virl_tf.fusion import Fusion
from virl_tf.hparams import search_hparams
from virl_tf.methods import EIM, GEIM, VIRL
from virl_tf.mixture import Mixture
from virl_tf.negatives import classes, draw_negatives
from virl_tf.numerics import DENSITY, split_seed
from virl_tf.persistence.reward_file import load_reward
from virl_tf.shapes import Array, Float64, Int32
from virl_tf.vips import adaptive
from virl_tf.vips.trust_region import update_components
from virl_tf.vips.vips import StepOptions, step_options, vips_step, vips_steps

import numpy as np
import pytest
import tensorflow as tf

from tests.shape_checks import check_record
from tests.shared import make_mixture, make_network, make_reward
from tests.tiny_runs import RecordingImprove, start

LOOP = {"mixture_average": True, "num_iterations": 1}
PLAIN: dict = {}
BEYOND = {"network": {"num_frequencies": 3}, "loop": LOOP}
ONE_LAYER = {"network": {"num_layers": 2}, "kde": {"estimator": "mixture"}}
SEED = tf.constant(split_seed(0, 0, "shapes"))
OPTIONS = step_options(0.05, 0.05, 1e-6)


class Pair(NamedTuple):
    means: Float64[Array, "K D"]
    ids: Int32[Array, " K"]
    policy: Mixture | None = None


@pytest.mark.parametrize("make", [np.asarray, tf.constant])
def test_a_record_of_the_promised_shapes_passes(make):
    check_record(Pair(make(np.zeros((3, 2))), make(np.zeros(3, np.int32))))
    check_record(Pair(make(np.zeros((1, 5))), make(np.zeros(1, np.int32)), make_mixture(4, 3)))


@pytest.mark.parametrize(
    ("means", "ids", "policy"),
    [
        (np.zeros((3, 2)), np.zeros(4, np.int32), None),
        (np.zeros((3, 2), np.float32), np.zeros(3, np.int32), None),
        (np.zeros(3), np.zeros(3, np.int32), None),
        (np.zeros((3, 2)), np.zeros(3, np.int64), None),
        (np.zeros((3, 2)), [0, 0, 0], None),
        (np.zeros((3, 2)), np.zeros(3, np.int32), "none"),
    ],
)
def test_any_other_is_refused(means, ids, policy):
    with pytest.raises(AssertionError, match=r"Pair\.(means|ids|policy)"):
        check_record(Pair(means, ids, policy))


def target(x):
    return -0.5 * tf.reduce_sum(x**2, axis=1)


@pytest.mark.parametrize(("num_components", "dim"), [(1, 1), (2, 5)])
def test_records_of_a_step(num_components, dim):
    policy = make_mixture(num_components, dim)
    for options in (
        OPTIONS,
        OPTIONS._replace(kl_bound=tf.fill([num_components], OPTIONS.kl_bound)),
    ):
        check_record(options)
        for record in vips_step(policy, target, SEED, options, 7):
            check_record(record)
    _, history = vips_steps(policy, target, SEED, OPTIONS, num_steps=4, num_samples=7)
    check_record(history)
    assert history.elbo.shape == (4,)


def test_records_of_a_trust_region_step():
    a, b = tf.eye(3, batch_shape=[2], dtype=DENSITY), tf.ones([2, 3], DENSITY)
    check_record(update_components(a, b, OPTIONS.kl_bound))


def test_records_of_a_search():
    hparams = search_hparams({"spare_components": 2, "num_rounds": 1, "steps_per_round": 1})
    budget = adaptive.budget_of(3, 2, hparams)
    check_record(budget)
    start = make_mixture(3)
    points = start.sample(10, SEED)
    state = adaptive._first_state(start, points, target(points), SEED, budget)
    check_record(state)
    assert state.store.points.shape[0] == 10 + budget.slots * adaptive.STORED_DRAWS
    gap, spread = tf.constant(5.0, DENSITY), tf.eye(2, dtype=DENSITY)
    exchanged = adaptive._exchange(state, target, SEED, gap, spread, 3)
    check_record(exchanged)
    options = StepOptions(exchanged.kl_bounds, OPTIONS.weight_kl_bound, OPTIONS.ridge)
    _, _, draws = vips_step(exchanged.policy, target, SEED, options, 6)
    check_record(draws)


@pytest.mark.parametrize(
    ("method", "options"),
    [(VIRL, PLAIN), (VIRL, BEYOND), (GEIM, ONE_LAYER), (EIM, BEYOND)],
    ids=["virl, as in the paper", "virl, pooled", "geim, one hidden layer", "eim, waves"],
)
def test_records_of_a_run(method, options, monkeypatch):
    """Problem, state (policy, reward, its networks, features), negatives and classes."""
    monkeypatch.setattr(irl, "improve", RecordingImprove())
    monkeypatch.setattr(pooling, "improve", RecordingImprove())
    problem, state, hparams = start(method, **options)
    fitter = DiscriminatorFitter(problem.features.num_inputs, hparams)
    check_record(problem)
    check_record(state)
    after, info = irl.step(state, problem, method, fitter, hparams)
    check_record(after)
    check_record(info)
    if pooling.is_due(after, problem, method):
        for record in pooling.pool(after, problem, hparams):
            check_record(record)
    proposal = Fusion(after.policy, problem.estimate)
    check_record(proposal)
    negatives = draw_negatives(proposal, after.reward, method, 32, SEED)
    check_record(negatives)
    for part in classes(problem, negatives, after.policy, 0.1):
        check_record(part)
    phi, _, fit = fitter.fit(*classes(problem, negatives, None, 0.1)[::-1], (), 0, 0)
    check_record(phi)
    check_record(fit)


def test_records_of_a_loaded_reward_and_of_named_arrays(tmp_path):
    reward = make_reward([make_network()], mixture=make_mixture(2, seed=5), mixture_exponent=0.5)
    reward.as_keras().save(tmp_path / "reward.keras")
    for record in (load_reward(tmp_path / "reward.keras"), reward.without_room()):
        check_record(record)
