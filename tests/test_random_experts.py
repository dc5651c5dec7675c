"""The task whose conditional truth is known."""

from virl_tf.tasks.experts import RandomExperts
from virl_tf.validation import InputError

import numpy as np
import pytest
import tensorflow as tf

SIZES = [(1, 2, 0.0), (4, 2, 0.0), (2, 1, 3.0)]


@pytest.mark.parametrize(("c", "d", "waves"), SIZES)
def test_its_density_by_loops(c, d, waves):
    task = RandomExperts(3, c, seed=1, dim=d, waves=waves)
    contexts, x = task.demonstrations(5, 0)
    assert (contexts.shape, x.shape) == ((5, c), (5, d))
    q = task.policy
    for context, point, found in zip(contexts, x, task.log_prob(x, contexts), strict=True):
        seen = np.append(context, np.sin(waves * context)) if waves else context
        gate = np.exp(q.gate_offsets.numpy() + q.gate_slopes.numpy() @ seen)
        total = 0.0
        for o in range(3):
            covariance = q.scale_trils[o].numpy() @ q.scale_trils[o].numpy().T
            z = point - q.gains[o].numpy() @ seen - q.offsets[o].numpy()
            size = np.sqrt(np.linalg.det(2.0 * np.pi * covariance))
            total += gate[o] / gate.sum() * np.exp(-0.5 * z @ np.linalg.solve(covariance, z)) / size
        assert float(found) == pytest.approx(np.log(total), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("c", "d", "waves"), SIZES)
def test_draws_are_of_the_density(c, d, waves):
    """E[q / p] = 1 for another normalised q of the same context."""
    task = RandomExperts(3, c, seed=1, dim=d, waves=waves, spread=1.0, min_variance=1.0)
    context = np.tile(task.contexts(1, 5), (20_000, 1))
    x = task.sample(context, [1, 2])
    mean, spread = np.mean(x, axis=0), np.std(x, axis=0) * 0.4
    z = (x - mean) / spread
    log_q = -0.5 * np.sum(z**2, axis=1) - np.log(spread).sum() - 0.5 * d * np.log(2.0 * np.pi)
    ratio = np.exp(log_q - task.log_prob(x, context))
    assert ratio.mean() == pytest.approx(1.0, abs=5.0 * ratio.std() / np.sqrt(len(ratio)))


def test_seeds_of_truth_and_demonstrations_differ():
    task = RandomExperts(3, 2, seed=1)
    first, again, other = (task.demonstrations(10, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(np.hstack(first), np.hstack(again))
    assert (np.hstack(first) != np.hstack(other)).all()
    assert np.abs(first[0]).max() <= 1.0
    unlike = RandomExperts(3, 2, seed=2).policy.offsets != task.policy.offsets
    assert bool(tf.reduce_all(unlike))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"num_experts": 0, "num_contexts": 1}, "num_experts must be"),
        ({"num_experts": 2, "num_contexts": 0}, "num_contexts must be"),
        ({"num_experts": 2, "num_contexts": 1, "waves": -1.0}, "waves must be a finite number > 0"),
        ({"num_experts": 2, "num_contexts": 1, "slope": 0.0}, "slope must be"),
    ],
)
def test_wrong_sizes(arguments, text):
    with pytest.raises(InputError, match=text):
        RandomExperts(**arguments)
