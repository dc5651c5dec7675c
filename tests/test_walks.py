"""What is measured of policies and rewards on the grid walker and path planning, on policies whose
modes are known.
"""

import itertools

from virl_tf import InputError
from virl_tf.fit import Result
from virl_tf.fit_policy import PolicyResult
from virl_tf.irl import State
from virl_tf.mixture import Mixture
from virl_tf.numerics import DENSITY
from virl_tf.persistence.files import load_arrays, write_json
from virl_tf.persistence.policy_file import save_policy
from virl_tf.tasks import GridWalker, PathPlanning

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from experiments import inference as inference_module
from experiments.evaluation import base, walks
from experiments.evaluation.walks import (
    DRAWN,
    LABELS,
    RANDOM_POINTS,
    SAMPLES,
    WalkInference,
    collision_share,
    measure_policy,
    normalised_rewards,
    random_points,
    reward_contrasts,
    write_walks,
)
from experiments.result_files import check_same_task
from experiments.specification import RunRequest
from experiments.tasks import experiment_of
from tests.shared import make_network, make_reward

SEED = 3
MEASURES = [name for name in LABELS if name != "reward_correlation"]  # of a policy
# Estimates are compared with expectations at 4.4 standard errors: 99.999 % for one normal
# statistic, and the seeds are fixed.
SIGMAS = 4.4
TIGHT = 3e-3  # of the components around mode centres: every draw is a good walk
UP_AND_DOWN = [
    [1.6, 0.0],
    0.25,
]  # a disc on the waypoint that four of the six paths of four steps come back to


@pytest.fixture(scope="module")
def walker():
    return GridWalker(5)


@pytest.fixture(scope="module")
def paths():
    return PathPlanning(4)


@pytest.fixture(scope="module")
def blocked(paths):
    center, radius = UP_AND_DOWN
    return paths.with_obstacles([center], radius)


def policy_at(means, scale=TIGHT):
    """Equally weighted components at these means; `scale`: a number, or scale_trils."""
    means = np.asarray(means, np.float64)
    k, d = means.shape
    scale_trils = np.broadcast_to(scale * np.eye(d) if np.isscalar(scale) else scale, (k, d, d))
    return Mixture(*(tf.constant(a, DENSITY) for a in (np.full(k, -np.log(k)), means, scale_trils)))


def policy_of(task, modes, scale=TIGHT):
    """A component at each of these mode centres."""
    return policy_at(task.mode_centers[list(modes)], scale)


def rewards_of(task, count=1):
    """Small recovered rewards of the task's dimension."""
    return [make_reward([make_network(task.dim, seed=i)], dim=task.dim) for i in range(count)]


def indices(mask):
    return set(np.flatnonzero(mask).tolist())


# --- measures of a policy -------------------------------------------------------------------------


@pytest.mark.parametrize("modes", [{0}, {3, 17, 30}, set(range(32))], ids=len)
def test_a_policy_covers_the_modes_its_components_are_at(walker, modes):
    measures, covered = measure_policy(walker, policy_of(walker, modes), SEED)
    assert list(measures) == list(MEASURES)
    assert indices(covered) == modes
    assert measures["modes_covered"] == len(modes)
    assert measures["good_fraction"] == 1.0
    assert measures["outside_share"] == 0.0


@pytest.mark.parametrize(("steps", "modes"), [(1, 1), (3, 8), (5, 4), (7, 10)])
def test_the_distance_of_a_tight_policy_is_the_closed_form(steps, modes):
    # E[log q] is minus the entropy. With angles off by s z, z ~ N(0, I), waypoint i misses its line
    # by -sin(x_j) s z_j summed over j <= i: E[R] = R(centre) - 0.36 s^2 d (d + 1) / (4 variance),
    # up to s^4.
    task, s = GridWalker(steps), 0.01
    entropy = np.log(modes) + 0.5 * steps * (np.log(2.0 * np.pi * s**2) + 1.0)
    height = -0.5 * steps * np.log(2.0 * np.pi * task.variance)
    missed = (1.0 - task.spacing**2) * s**2 * steps * (steps + 1) / (4.0 * task.variance)
    expected = -entropy - (height - missed - task.log_normaliser)
    # Of log q - log p: a chi-square over two from q, one that is at most correlated with it from p.
    error = (np.sqrt(0.5 * steps) + missed * np.sqrt(2.0)) / np.sqrt(SAMPLES)
    measures, _ = measure_policy(task, policy_of(task, range(modes), s), SEED)
    assert abs(measures["kl"] - expected) < SIGMAS * error + 1e-3
    assert measures["negative_elbo"] == pytest.approx(measures["kl"] - task.log_normaliser)


@pytest.mark.parametrize("modes", [1, 4, 16, 32])
def test_the_distance_of_well_shaped_components_is_the_modes_they_leave_out(modes):
    # Laplace's approximation of a mode: precision A^T A / variance, A the derivative of the
    # waypoints' first coordinates. Its error is of the order of the variance (0.24 at 1e-3).
    walker = GridWalker(5, variance=1e-5)
    centers = walker.mode_centers[:modes]
    derivatives = -np.tril(np.ones((5, 5))) * np.sin(centers)[:, None, :]
    covariances = np.linalg.inv(derivatives.transpose(0, 2, 1) @ derivatives) * walker.variance
    measures, _ = measure_policy(walker, policy_at(centers, np.linalg.cholesky(covariances)), SEED)
    assert measures["kl"] == pytest.approx(np.log(32 / modes), abs=0.01)


def test_a_policy_outside_of_the_support_covers_nothing_and_is_infinitely_far(walker):
    measures, covered = measure_policy(
        walker, policy_at(walker.mode_centers[:2] + 2.0 * np.pi), SEED
    )
    assert not covered.any()
    assert measures["outside_share"] == 1.0
    assert (measures["kl"], measures["negative_elbo"]) == (np.inf, np.inf)
    assert (measures["modes_covered"], measures["good_fraction"]) == (0, 0.0)


def test_walks_between_modes_are_inside_and_not_good(walker):
    measures, covered = measure_policy(walker, policy_at(np.zeros((1, 5))), SEED)
    assert not covered.any()
    assert measures["outside_share"] == measures["good_fraction"] == 0.0
    assert measures["kl"] > 100.0


def test_a_rare_component_is_no_covered_mode(walker):
    weights = np.array([0.999, 0.001])
    policy = policy_of(walker, [4, 9])._replace(log_weights=tf.constant(np.log(weights), DENSITY))
    measures, covered = measure_policy(walker, policy, SEED)
    assert indices(covered) == {4}
    assert measures["good_fraction"] == 1.0


def test_measures_are_a_function_of_the_seed(walker):
    policy = policy_of(walker, range(7), 0.05)
    first, again, other = (measure_policy(walker, policy, seed)[0] for seed in (1, 1, 2))
    assert first == again
    assert first["kl"] != other["kl"]


# --- obstacles ------------------------------------------------------------------------------------


def test_walks_that_collide_are_outside_and_never_good(paths, blocked):
    policy = policy_of(paths, range(6))
    measures, covered = measure_policy(blocked, policy, SEED)
    np.testing.assert_array_equal(covered, blocked.open_modes)
    assert measures["modes_covered"] == 2
    expected, error = 4 / 6, np.sqrt(4 / 6 * 2 / 6 / SAMPLES)
    assert abs(measures["outside_share"] - expected) < SIGMAS * error
    assert measures["good_fraction"] == pytest.approx(1.0 - measures["outside_share"])
    assert collision_share(blocked, policy, SEED) == pytest.approx(measures["outside_share"])


def test_the_distance_counts_what_does_not_collide_only(paths, blocked):
    whole, _ = measure_policy(blocked, policy_of(paths, range(6)), SEED)
    open_only, _ = measure_policy(
        blocked, policy_of(paths, np.flatnonzero(blocked.open_modes)), SEED
    )
    # log(share inside) and two means over 20,000 and 6,700 draws of a chi-square over two with four
    # degrees of freedom.
    error = np.sqrt((4 / 6) / (2 / 6) / SAMPLES + 2.0 / SAMPLES + 2.0 / (SAMPLES / 3))
    assert abs(whole["kl"] - open_only["kl"]) < SIGMAS * error
    assert open_only["outside_share"] == 0.0


def test_without_obstacles_nothing_collides(paths):
    assert collision_share(paths, policy_of(paths, range(6)), SEED) == 0.0
    assert measure_policy(paths, policy_of(paths, range(6)), SEED)[0]["good_fraction"] == 1.0


def test_a_policy_on_blocked_paths_only_is_infinitely_far(paths, blocked):
    measures, covered = measure_policy(
        blocked, policy_of(paths, np.flatnonzero(~blocked.open_modes)), SEED
    )
    assert not covered.any()
    assert measures["kl"] == np.inf
    assert (measures["outside_share"], measures["good_fraction"]) == (1.0, 0.0)


# --- modes found and lost by inference ------------------------------------------------------------


def inference_on(task, trained, folder, seed=SEED):
    """Inference on runs whose training policies covered these sets of modes."""
    runs = [folder / f"run-{i}" for i in range(len(trained))]
    for run, modes in zip(runs, trained, strict=True):
        run.mkdir()
        save_policy(run / "policy.npz", policy_of(task, sorted(modes)))
    return WalkInference(task, runs, rewards_of(task, len(trained)), seed)


FITTING = {"search": False, "num_steps": 100, "samples_per_component": 30}


def finish(inference, task, found, true, out, monkeypatch):
    """(summary, sentence) for a policy that found these modes, where one fitted to the true reward
    finds `true`.
    """
    fits = []

    def fit_policy(log_prob, dim, num_components, **options):
        fits.append({"log_prob": log_prob, "dim": dim, "num_components": num_components, **options})
        return PolicyResult(policy_of(task, sorted(true)), pd.DataFrame())

    monkeypatch.setattr(walks, "fit_policy", fit_policy)
    policy = policy_of(task, sorted(found))
    measures = [{"negative_elbo": 4.0, "kl": 8.0}, {"negative_elbo": 5.0, "kl": 9.0}]
    rows = [{"step": step, **found} for step, found in zip((50, 100), measures, strict=True)]
    out.mkdir(exist_ok=True)
    return *inference.finish(out, policy, rows, FITTING), fits[0]


COUNTS = ("modes_covered", "new_modes", "lost_modes", "training_modes", "open_modes", "num_modes")


@pytest.mark.parametrize(
    ("trained", "found", "covered", "new", "lost"),
    [
        ([{0, 1, 2}], {1, 2, 3, 4}, 4, 2, 1),
        ([{0, 1, 2}], {0, 1, 2}, 3, 0, 0),
        ([{0, 1, 2}], {9}, 1, 1, 3),
        (
            [{0, 1}, {1, 2}, {7}],
            {2, 7, 8},
            3,
            1,
            2,
        ),  # several runs: what any of them knew is not new
    ],
)
def test_new_and_lost_modes_are_those_of_the_sets(
    walker, trained, found, covered, new, lost, tmp_path, monkeypatch
):
    inference = inference_on(walker, trained, tmp_path)
    summary, sentence, _ = finish(inference, walker, found, {0, 5}, tmp_path / "out", monkeypatch)
    known = set.union(*trained)
    assert [summary[name] for name in COUNTS] == [covered, new, lost, len(known), 32, 32]
    assert (new, lost) == (len(found - known), len(known - found))
    assert summary["true_reward"]["modes_covered"] == 2
    assert summary["true_reward"]["new_modes"] == len({0, 5} - known)
    assert summary["good_fraction"] == 1.0
    modes = f"{covered} of 32 modes covered, {new} of them new to the training policy"
    assert f"{modes}, {lost} of its own lost" in sentence
    assert "obstacles" not in summary


def test_blocked_modes_are_neither_new_nor_lost(paths, blocked, tmp_path, monkeypatch):
    (first, second), closed = (
        np.flatnonzero(blocked.open_modes),
        np.flatnonzero(~blocked.open_modes),
    )
    inference = inference_on(blocked, [{first, *closed[:2]}], tmp_path)
    found = {
        second,
        closed[0],
        closed[3],
    }  # of the training policy's modes one that is open is lost, and one that is blocked
    summary, sentence, _ = finish(inference, blocked, found, {first}, tmp_path / "out", monkeypatch)
    assert [summary[name] for name in COUNTS] == [1, 1, 1, 1, 2, 6]
    assert [summary["true_reward"][name] for name in COUNTS] == [1, 0, 0, 1, 2, 6]
    assert "1 of 2 open modes covered" in sentence
    assert summary["collision_share"] == pytest.approx(2 / 3, abs=0.02)
    center, radius = UP_AND_DOWN
    assert summary["obstacles"] == {"centers": [center], "radii": [radius]}
    np.testing.assert_array_equal(
        load_arrays(tmp_path / "out" / "walks.npz")["open"], blocked.open_modes
    )


def test_a_blocked_mode_does_not_count_where_walks_slip_past_the_obstacle(
    paths, tmp_path, monkeypatch
):
    peak = int(
        np.argmax(paths.mode_centers[:, 0] + paths.mode_centers[:, 1])
    )  # up, up, down, down: over (1.6, 1.2)
    grazed = paths.with_obstacles([[1.6, 1.45]], 0.2505)
    assert indices(~grazed.open_modes) == {peak}
    assert measure_policy(grazed, policy_of(paths, [peak]), SEED)[1][
        peak
    ]  # almost half of the draws miss the disc
    inference = inference_on(grazed, [{(peak + 1) % 6}], tmp_path)
    summary, _, _ = finish(inference, grazed, {peak}, {peak}, tmp_path / "out", monkeypatch)
    assert [summary[name] for name in COUNTS] == [0, 0, 1, 1, 5, 6]


def test_what_the_training_policy_knew_is_not_new_where_its_walks_would_collide(
    paths, tmp_path, monkeypatch
):
    peak = int(np.argmax(paths.mode_centers[:, 0] + paths.mode_centers[:, 1]))
    grazed = paths.with_obstacles([[1.6, 1.45]], 0.2495)
    higher = paths.mode_centers[[peak]] + [[0.02, 0.0, 0.0, -0.02]]
    assert grazed.open_modes.all()
    assert grazed.collides(higher).numpy().all()
    (tmp_path / "run").mkdir()
    save_policy(tmp_path / "run" / "policy.npz", policy_at(higher))
    inference = WalkInference(grazed, [tmp_path / "run"], rewards_of(grazed), SEED)
    summary, _, _ = finish(inference, grazed, {peak}, {peak}, tmp_path / "out", monkeypatch)
    assert [summary[name] for name in COUNTS] == [1, 0, 0, 1, 6, 6]


def test_the_same_policy_is_fitted_to_the_true_reward_and_must_avoid_the_obstacles_too(
    blocked, tmp_path, monkeypatch
):
    inference = inference_on(blocked, [{0}], tmp_path)
    _, _, fit = finish(inference, blocked, {0, 1}, {0}, tmp_path / "out", monkeypatch)
    assert (fit["dim"], fit["num_components"]) == (4, 2)
    assert {name: fit[name] for name in FITTING} == FITTING
    on_open, on_closed = (
        fit["log_prob"](blocked.mode_centers[mask]).numpy()
        for mask in (blocked.open_modes, ~blocked.open_modes)
    )
    np.testing.assert_allclose(on_open, blocked.reward(blocked.mode_centers[blocked.open_modes]))
    assert (on_closed == -np.inf).all()


def test_the_objective_of_inference_is_the_negative_elbo_over_the_evaluations(
    walker, tmp_path, monkeypatch
):
    inference = inference_on(walker, [{0}], tmp_path)
    summary, _, _ = finish(inference, walker, {0}, {0}, tmp_path / "out", monkeypatch)
    assert summary["objective"] == {"best": 4.0, "final": 5.0, "reported": 4.5}


@pytest.mark.parametrize(("steps", "rows"), [(20, [10, 20]), (30, [10, 20, 30])])
def test_the_last_row_of_the_evaluations_is_of_the_policy_that_is_kept(
    walker, tmp_path, monkeypatch, steps, rows
):
    """Its start, if the fit ended below that; or what a fit that ended early has."""
    task, kept = inference_on(walker, [{0}], tmp_path), policy_of(walker, [1, 2])

    def fit(*_, callback, **__):
        for done in (10, 20):
            callback(done, policy_of(walker, [3]))
        return PolicyResult(kept, pd.DataFrame(index=range(steps)))

    monkeypatch.setattr(inference_module, "fit_policy", fit)
    config = {"components": 2, "steps": steps, "seed": SEED, "samples": None}
    plan = inference_module.Plan(task, rewards_of(walker, 1)[0], None, None, False, 1.0, config)
    fitted, found = inference_module._fit(plan)
    assert fitted.policy is kept
    assert [row["step"] for row in found] == rows
    assert found[-1] == {"step": steps, **task.measure(kept)}
    assert found[0] != {"step": 10, **task.measure(kept)}


def test_a_new_policy_is_fitted_to_the_average_reward_off_the_obstacles(blocked, tmp_path):
    inference = inference_on(blocked, [{0}, {1}], tmp_path)
    rewards = rewards_of(blocked, 2)
    expected = np.mean([reward(blocked.mode_centers) for reward in rewards], axis=0)
    found = inference.log_prob(tf.constant(blocked.mode_centers)).numpy()
    np.testing.assert_allclose(found[blocked.open_modes], expected[blocked.open_modes])
    assert (found[~blocked.open_modes] == -np.inf).all()


def test_a_row_of_the_evaluations_holds_the_measures(walker, tmp_path):
    policy = policy_of(walker, [1, 2])
    assert (
        inference_on(walker, [{0}], tmp_path).measure(policy)
        == measure_policy(walker, policy, SEED)[0]
    )


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_average_reward_is_the_mean(walker, count):
    rewards, x = rewards_of(walker, count), tf.constant(walker.mode_centers)
    np.testing.assert_allclose(
        base.average_reward(rewards, x), np.mean([reward(x) for reward in rewards], axis=0)
    )


# --- rewards at modes and random points -----------------------------------------------------------


def test_rewards_are_normalised_together():
    at_modes, at_random = normalised_rewards(np.array([1.0, 3.0]), np.array([2.0, 5.0]))
    np.testing.assert_allclose(at_modes, [0.0, 0.5])
    np.testing.assert_allclose(at_random, [0.25, 1.0])


@pytest.mark.parametrize("steps", [2, 5])
def test_the_true_reward_ranks_unexplored_modes_above_all_random_points_and_prefers_none(steps):
    task = GridWalker(steps)
    covered = np.arange(2**steps) % 3 == 0
    found = reward_contrasts(task, task.reward, covered, SEED)
    assert list(found) == ["unexplored_random", "explored_unexplored"]
    assert (found["unexplored_random"]["auc"], found["unexplored_random"]["above_best"]) == (
        1.0,
        1.0,
    )
    assert 0.0 < found["unexplored_random"]["gap"] <= 1.0
    assert found["explored_unexplored"] == {"auc": 0.5, "gap": 0.0, "above_best": 0.0}


def test_contrasts_do_not_depend_on_the_rewards_scale(walker):
    covered = np.arange(32) < 10
    found, scaled = (
        reward_contrasts(walker, reward, covered, SEED)
        for reward in (walker.reward, lambda x: 7.0 * walker.reward(x) - 300.0)
    )
    for name in found:
        assert scaled[name] == pytest.approx(found[name])


def test_a_reward_that_knows_only_the_explored_modes(walker):
    covered = np.arange(32) < 8

    def reward(x):
        known = tf.constant(walker.mode_centers[covered])
        return -tf.reduce_min(
            tf.reduce_sum((tf.convert_to_tensor(x, DENSITY)[:, None] - known) ** 2, axis=-1), axis=1
        )

    found = reward_contrasts(walker, reward, covered, SEED)
    assert found["explored_unexplored"]["auc"] == 1.0
    assert found["explored_unexplored"]["above_best"] == 1.0
    assert found["unexplored_random"]["above_best"] == 0.0


@pytest.mark.filterwarnings("error")
def test_a_constant_reward_prefers_nothing(walker):
    found = reward_contrasts(
        walker, lambda x: tf.zeros(len(x), DENSITY) - 7.0, np.arange(32) < 8, SEED
    )
    assert (
        found["unexplored_random"]
        == found["explored_unexplored"]
        == {"auc": 0.5, "gap": 0.0, "above_best": 0.0}
    )


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_reward_that_is_not_a_number_has_no_contrast(walker):
    found = reward_contrasts(
        walker, lambda x: np.nan * tf.zeros(len(x), DENSITY), np.arange(32) < 8, SEED
    )
    assert np.isnan([value for contrast in found.values() for value in contrast.values()]).all()


@pytest.mark.parametrize("covered", [np.ones(32, bool), np.zeros(32, bool)], ids=["all", "none"])
def test_a_group_without_modes_has_no_contrast(walker, covered):
    found = reward_contrasts(walker, walker.reward, covered, SEED)
    assert np.isnan(list(found["explored_unexplored"].values())).all()
    assert np.isnan(found["unexplored_random"]["auc"]) == covered.all()


def test_random_points_fill_the_appendix_box(walker):
    x = random_points(walker, SEED)
    half = 1.2 * np.arccos(walker.spacing)
    assert x.shape == (RANDOM_POINTS, 5)
    assert (np.abs(x) <= half).all()
    assert np.abs(x).max() > 0.9 * half  # of 500 uniform numbers; missed with probability 0.9^500
    np.testing.assert_array_equal(x, random_points(walker, SEED))
    assert not np.isin(x, random_points(walker, SEED + 1)).any()


# --- arrays for the figures -----------------------------------------------------------------------


def test_walks_are_written_with_their_rewards(walker, tmp_path):
    policy, modes = policy_of(walker, [3, 8, 21]), [3, 8, 21]
    write_walks(tmp_path, walker, policy, walker.reward, SEED, extra=np.arange(3))
    found = load_arrays(tmp_path / "walks.npz")
    shapes = {
        "means": (3, 5),
        "draws": (3 * DRAWN, 5),
        "modes": (32, 5),
        "random": (RANDOM_POINTS, 5),
    }
    for name, shape in shapes.items():
        assert found[name].shape == shape
        np.testing.assert_allclose(found[f"{name}_reward"], walker.reward(found[name]))
    np.testing.assert_array_equal(found["means"], walker.mode_centers[modes])
    np.testing.assert_array_equal(found["modes"], walker.mode_centers)
    np.testing.assert_array_equal(found["random"], random_points(walker, SEED))
    np.testing.assert_allclose(found["weights"], np.full(3, 1 / 3))
    assert indices(found["covered"]) == set(modes)
    assert found["open"].all()
    np.testing.assert_array_equal(found["extra"], np.arange(3))
    assert set(found) == {
        *shapes,
        *(f"{name}_reward" for name in shapes),
        "weights",
        "covered",
        "open",
        "extra",
    }


def test_drawn_walks_belong_to_their_components(walker, tmp_path):
    rng = np.random.default_rng(0)
    scale_trils = np.tril(0.1 * rng.standard_normal((4, 5, 5))) + 0.1 * np.eye(5)
    policy = policy_at(walker.mode_centers[:4], np.abs(scale_trils))
    write_walks(tmp_path, walker, policy, walker.reward, SEED)
    draws = load_arrays(tmp_path / "walks.npz")["draws"].reshape(4, DRAWN, 5)
    factors, means = policy.scale_trils.numpy(), policy.means.numpy()
    z = np.linalg.solve(factors[:, None], (draws - means[:, None])[..., None])
    # 100 standard normal numbers: the largest is below 4.9, and their mean square within 4.4
    # standard errors of 1.
    assert np.abs(z).max() < 4.9
    assert abs(np.mean(z**2) - 1.0) < SIGMAS * np.sqrt(2.0 / z.size)


def test_walks_are_the_same_bytes_when_written_again(walker, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_walks(tmp_path / name, walker, policy_of(walker, [0]), walker.reward, SEED)
    assert (tmp_path / "one" / "walks.npz").read_bytes() == (
        tmp_path / "two" / "walks.npz"
    ).read_bytes()


# --- the experiment -------------------------------------------------------------------------------


def config_of(task, **options):
    return RunRequest(task=task, preset="smoke", **options).specification().to_config()


def test_every_iteration_is_measured_on_the_test_demonstrations():
    experiment = experiment_of(config_of("grid_walker", steps=3, seed=2))
    train, test = experiment.task.exact_samples(40, 0)[0], experiment.task.exact_samples(50, 1)[0]
    policy, reward = policy_of(experiment.task, [0, 6]), rewards_of(experiment.task)[0]
    found = experiment.evaluator(train, test)(State(1, policy, reward, ()))
    correlation = found.pop("reward_correlation")
    assert found == measure_policy(experiment.task, policy, 2)[0]
    assert correlation == pytest.approx(
        np.corrcoef(reward(test), experiment.task.log_prob(test))[0, 1]
    )


def result_with(experiment, negative_elbos, modes=(0, 1)):
    """A made-up result whose iterations had these values."""
    rows = [
        {
            **dict.fromkeys(MEASURES, 1.0),
            "negative_elbo": v,
            "modes_covered": 2,
            "reward_correlation": 0.5,
        }
        for v in negative_elbos
    ]
    return Result(
        rewards_of(experiment.task)[0], policy_of(experiment.task, modes), pd.DataFrame(rows), {}
    )


def test_a_summary_holds_the_last_iteration_and_the_objective():
    experiment = experiment_of(config_of("path_planning", steps=4, seed=3))
    found = experiment.summarise(None, result_with(experiment, [3.0, 1.0, 1.5]))
    assert found["status"] == "finished"
    assert found["num_modes"] == 6
    assert (found["negative_elbo"], found["modes_covered"], found["reward_correlation"]) == (
        1.5,
        2,
        0.5,
    )
    assert isinstance(found["modes_covered"], int)
    assert found["objective"] == {"best": 1.0, "final": 1.5, "reported": 1.25}
    covered = np.arange(6) < 2
    assert found["contrast"] == reward_contrasts(
        experiment.task, rewards_of(experiment.task)[0], covered, 3
    )


def test_the_single_behaviour_is_that_of_the_recovered_reward(tmp_path, monkeypatch):
    experiment = experiment_of(config_of("path_planning", steps=4, seed=3))
    result, asked = result_with(experiment, [1.0]), []

    def fit_policy(reward, dim, num_components, **options):
        asked.append((reward, dim, num_components, options["seed"]))
        return PolicyResult(policy_of(experiment.task, [5]), pd.DataFrame())

    monkeypatch.setattr(walks, "fit_policy", fit_policy)
    experiment.write_arrays(tmp_path, None, result)
    assert asked == [(result.reward, 4, 1, 3)]
    found = load_arrays(tmp_path / "walks.npz")
    np.testing.assert_array_equal(found["projection_mean"], experiment.task.mode_centers[5])
    assert found["projection_draws"].shape == (walks.DRAWN_SINGLE, 4)
    assert len(found["means"]) == 2


def test_a_run_that_ends_far_above_its_best_has_diverged():
    experiment = experiment_of(config_of("grid_walker", steps=2))
    assert (
        experiment.summarise(None, result_with(experiment, [3.0, 1.0, 2.5]))["status"] == "diverged"
    )


@pytest.mark.parametrize(
    ("series", "diverged"),
    [
        ([1.0], False),
        ([5.0, 3.0, 1.0], False),
        ([5.0, 1.0, 1.9], False),
        ([-5.0, -4.1], False),
        ([5.0, 1.0, 2.1], True),
        ([-5.0, -3.9], True),
        ([1.0, 9.0, 1.0], False),  # it came back
        ([1.0, np.nan, 1.0], True),
        ([1.0, np.inf], True),
        ([np.nan], True),
    ],
)
def test_diverged_is_a_nat_above_the_best_at_the_end_or_not_a_number(series, diverged):
    for kind in (list, np.array, pd.Series):
        assert base.status_of(kind(series)) == ("diverged" if diverged else "finished")


def test_inference_with_obstacles_knows_all_modes_of_the_training_policy(tmp_path, monkeypatch):
    experiment = experiment_of(config_of("path_planning", steps=4, seed=SEED))
    task = experiment.task.with_blocked_share(0.5, SEED)
    save_policy(tmp_path / "policy.npz", policy_of(task, range(6)))
    inference = experiment.inference([tmp_path], rewards_of(task), 0.5)
    first = int(np.flatnonzero(task.open_modes)[0])
    summary, _, _ = finish(inference, task, {first}, {first}, tmp_path / "out", monkeypatch)
    assert summary["open_modes"] == summary["training_modes"] == 3
    assert (summary["new_modes"], summary["lost_modes"]) == (0, 2)
    assert summary["obstacles"]["centers"] == task.obstacles.centers.tolist()


# --- runs that may be averaged --------------------------------------------------------------------


def summaries(folder, *options):
    """Folders with the summaries of finished runs, as far as they say what the task was."""
    runs = [folder / str(i) for i in range(len(options))]
    for run, option in zip(runs, options, strict=True):
        run.mkdir()
        write_json(
            run / "summary.json",
            {
                k: v
                for k, v in RunRequest(**option).specification().to_config().items()
                if k != "hparams"
            },
        )
    return runs


@pytest.mark.parametrize("task", ["grid_walker", "path_planning"])
def test_all_runs_of_walks_of_one_length_have_one_target(task, tmp_path):
    check_same_task(
        summaries(tmp_path, *({"task": task, "steps": 4, "seed": seed} for seed in range(3)))
    )


def test_gaussians_have_one_target_only_with_one_task_seed(tmp_path):
    options = [{"task": "gaussians", "seed": seed, "task_seed": 5} for seed in range(2)]
    check_same_task(summaries(tmp_path, *options))
    (tmp_path / "other").mkdir()
    different = summaries(
        tmp_path / "other", *({"task": "gaussians", "seed": seed} for seed in range(2))
    )
    with pytest.raises(InputError, match="give runs on one task"):
        check_same_task(different)


OTHERS = [
    {"task": "grid_walker", "steps": 4},
    {"task": "grid_walker", "steps": 2},
    {"task": "path_planning", "steps": 4},
    {"task": "gaussians", "dim": 5},
]


@pytest.mark.parametrize(
    ("one", "other"), itertools.pairwise([*OTHERS, {"task": "gaussians"}]), ids=str
)
def test_runs_on_different_targets_are_refused(one, other, tmp_path):
    with pytest.raises(InputError, match="give runs on one task") as error:
        check_same_task(summaries(tmp_path, one, one, other))
    assert str(tmp_path / "2") in str(error.value)


BOUNDED = {"lower": ["0.0", "-inf"], "upper": ["inf", "inf"], "period": ["0.0", "0.0"]}
TURNED = {"lower": ["-3.0", "-inf"], "upper": ["3.3", "inf"], "period": ["6.3", "0.0"]}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({}, True),
        ({"domain": BOUNDED}, True),
        ({"domain": TURNED}, False),
        ({"contexts": 1}, False),
    ],
    ids=["plain", "bounds", "angles", "contexts"],
)
def test_fits_to_the_same_numbers_as_something_else_have_no_average(other, same, tmp_path):
    for name, more in (("one", {}), ("other", other)):
        (tmp_path / name).mkdir()
        told = {"demonstrations": {"sha256": "0f", **more}}
        write_json(tmp_path / name / "summary.json", told)
    for order in (["one", "other"], ["other", "one"]):
        runs = [tmp_path / name for name in order]
        if same:
            check_same_task(runs)
        else:
            with pytest.raises(InputError, match="give runs on one task"):
                check_same_task(runs)
