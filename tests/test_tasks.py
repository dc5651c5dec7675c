"""The contract of `tasks.Task`, for every public task."""

from virl_tf import InputError, tasks
from virl_tf.tasks import planar_robot, slice_sampling

import numpy as np
import pytest
import tensorflow as tf

from tests.shared import plain_graph

# A small, quick example of each public task. A new task must be put in here.
EXAMPLES = {
    "RandomGaussians": lambda: tasks.RandomGaussians(3, seed=1, burn_in=5),
    "RandomGaussians, D = 5": lambda: tasks.RandomGaussians(
        3, seed=1, dim=5
    ),  # drawn in another way than D = 2
    "GridWalker": lambda: tasks.GridWalker(2, burn_in=5),
    "PathPlanning": lambda: tasks.PathPlanning(2),
    "ObstacleField": lambda: tasks.ObstacleField(3, seed=1),
    "Hall": lambda: tasks.Hall(4, seed=1),
    "PlanarRobot": lambda: tasks.PlanarRobot(3, goals=[[2.0, 0.0]], likelihood_std=0.1),
}


@pytest.fixture(scope="module", autouse=True)
def quick_draws():
    """Without XLA, which compiles for seconds, and with few proposals."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slice_sampling, "compiled", plain_graph)
        patch.setattr(planar_robot, "_PROPOSED", 10_000)
        yield


@pytest.fixture(scope="module", params=EXAMPLES)
def task(request):
    return EXAMPLES[request.param]()


@pytest.fixture(scope="module")
def demonstrations(task):
    return task.demonstrations(30, seed=0)


def test_every_public_task_has_an_example():
    assert {name.split(",")[0] for name in EXAMPLES} == set(tasks.__all__) - {"Task"}


def test_dimension(task):
    assert isinstance(task.dim, int)
    assert task.dim >= 1


def test_mode_centres(task):
    centres = task.mode_centers
    assert isinstance(centres, np.ndarray)
    assert centres.dtype == np.float64
    assert centres.ndim == 2
    assert centres.shape[1] == task.dim
    assert len(centres) >= 1
    assert len(np.unique(centres, axis=0)) == len(centres)


@pytest.mark.parametrize(
    "make",
    [np.float64, np.float32, tf.constant, lambda x: x.tolist()],
    ids=["float64", "float32", "tf", "list"],
)
def test_log_prob_is_float64_of_any_kind_of_points(task, make):
    x = task.mode_centers[:2]
    found = task.log_prob(make(x))
    assert found.dtype == tf.float64
    assert found.shape == (len(x),)
    np.testing.assert_allclose(found, task.log_prob(x), rtol=1e-3)


def test_log_prob_is_evaluated_point_by_point(task, demonstrations):
    whole = task.log_prob(demonstrations[:5]).numpy()
    np.testing.assert_allclose(
        [task.log_prob(x[None]).numpy()[0] for x in demonstrations[:5]], whole, rtol=1e-9
    )


def test_log_prob_is_higher_at_mode_centres_than_far_away(task):
    centres = task.mode_centers
    far = centres.mean(axis=0) + 100.0 * np.ones(task.dim)
    assert (task.log_prob(centres).numpy() > task.log_prob(far[None]).numpy()).all()


def test_demonstrations_are_points_of_the_density(task, demonstrations):
    assert isinstance(demonstrations, np.ndarray)
    assert demonstrations.shape == (30, task.dim)
    assert demonstrations.dtype == np.float64
    assert np.isfinite(demonstrations).all()
    assert len(np.unique(demonstrations, axis=0)) == 30
    assert np.isfinite(task.log_prob(demonstrations)).all()


@pytest.mark.slow
def test_demonstrations_are_a_function_of_their_seed(task, demonstrations):
    np.testing.assert_array_equal(task.demonstrations(10, seed=0), demonstrations[:10])
    assert not np.isin(task.demonstrations(10, seed=1), demonstrations).any()


FUNCTIONS = ("log_prob", "reward", "modes_of", "waypoints", "contains", "collides")


@pytest.mark.parametrize("shape", ["number", "one less", "rows of one more"])
def test_points_of_another_dimension_are_refused_with_their_shape(task, shape):
    dim = task.dim
    wrong = {"number": (), "one less": (dim - 1,), "rows of one more": (3, dim + 1)}[shape]
    refusal = rf"x must .*\[\.\.\., {dim}\]"
    for function in (getattr(task, name) for name in FUNCTIONS if hasattr(task, name)):
        with pytest.raises(InputError, match=refusal) as error:
            function(np.zeros(wrong))
        assert str(wrong) in str(error.value)


@pytest.mark.parametrize(
    ("n", "seed", "name"),
    [(0, 0, "n"), (-1, 0, "n"), (2.5, 0, "n"), ("2", 0, "n"), (10, -1, "seed"), (10, "0", "seed")],
)
def test_bad_numbers_of_draws_and_bad_seeds_are_refused_by_name(task, n, seed, name):
    draws = (task.demonstrations, getattr(task, "exact_samples", task.demonstrations))
    for draw in draws:
        with pytest.raises(InputError, match=f"^{name} must be"):
            draw(n, seed)
