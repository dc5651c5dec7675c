import contextlib
import os
import shutil
from dataclasses import replace
from fractions import Fraction
from importlib import import_module

import virl_tf
from virl_tf import FitWarning, InputError, fit, irl, load
from virl_tf.demonstrations import DataOptions, prepare
from virl_tf.domain import Domain
from virl_tf.irl import Info
from virl_tf.kde import fit_kde
from virl_tf.mixture import Mixture, gaussian
from virl_tf.reward import CumulativeValues
from virl_tf.score import NORMALISER_DRAWS, log_inside, mean_and_error, normaliser_error, score
from virl_tf.summary import _of_rows, reward_in_words, score_warnings, training_warnings
from virl_tf.tasks import RandomGaussians

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import yaml

from experiments.evaluation.distances import distances_of
from tests import tiny
from tests.shared import contents, make_mixture, make_reward

X = tiny.demonstrations()
pytestmark = pytest.mark.usefixtures("quick")
METHODS = ["virl", "geim", "eim"]
ITERATIONS = 4
ONE_ITERATION = tiny.overrides(loop={"num_iterations": 1})
LOSSES = ["train_loss", "validation_loss", "chance_loss", "accuracy"]


def num_rows(method):
    """Of a run with the tiny settings over `best`: V-IRL's is pooled after the iterations."""
    return ITERATIONS + (method == "virl")


def tiny_fit(method="virl", x=X, **arguments):
    return fit(
        x,
        **{
            "method": method,
            "num_components": 2,
            "seed": 0,
            "held_out": 0.2,
            "hparams": tiny.overrides(),
            **arguments,
        },
    )


def result_bytes(result):
    return [
        np.asarray(a).tobytes()
        for a in tf.nest.flatten((tuple(result.policy), tuple(result.reward)))
    ]


def metrics(result):
    return result.history[[c for c in result.history.columns if not c.endswith("_seconds")]]


@pytest.fixture(scope="module", params=METHODS)
def fitted(request, tmp_path_factory):
    """A finished fit in a folder."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    return request.param, folder, tiny_fit(request.param, directory=folder)


# --- what comes back ------------------------------------------------------------------------------


def test_result(fitted):
    method, _, result = fitted
    rewards = result.reward(X)
    assert rewards.shape == (60,)
    assert rewards.dtype == tf.float64
    assert np.isfinite(rewards).all()
    assert np.isfinite(result.reward(X[0]).numpy())
    assert (result.policy.num_components, result.policy.dim) == (2, 2)
    assert result.policy.distribution.sample(3, seed=1).shape == (3, 2)
    assert result.config["method"] == method
    assert result.config["num_components"] == 2
    assert result.config["seed"] == 0
    assert result.config["hparams"]["network"]["layer_size"] == 8


def test_history_has_a_row_per_iteration_and_one_of_the_pooling(fitted):
    method, _, result = fitted
    history = result.history
    assert list(history.columns) == list(Info._fields)
    assert list(history.t) == list(range(num_rows(method)))
    assert np.isfinite(history[:ITERATIONS].to_numpy(dtype=float)).all()
    assert np.isfinite(history.drop(columns=LOSSES).to_numpy(dtype=float)).all()
    assert history[LOSSES][ITERATIONS:].isna().to_numpy().all()
    assert (history.num_negatives == 64).all()
    assert (
        (history.effective_sample_size >= 1.0) & (history.effective_sample_size <= 64.001)
    ).all()


# By networks and steps alone: neither reward nor policy starts from EM's mixture or is averaged.
BY_NETWORKS = {
    "network": {"num_layers": 2, "layer_size": 32},
    "training": {"num_epochs": 15, "batch_size": 50, "weight_average": 0.9},
    "kde": {"estimator": "kernel", "bandwidth": 0.3, "bandwidth_scale": "absolute"},
    "policy": {"start": "standard_normal"},
    "loop": {
        "num_iterations": 5,
        "num_negatives": 4000,
        "prior": "moments",
        "mixture_average": False,
    },
}


def test_a_density_is_recovered_that_the_kernels_blur():
    """Of seeds 0 to 4 the reward's I-projection is 0.04, 0.08, 0.16, 0.04, 0.09 times the kernels',
    which is 0.6 to 1.4, and the policy's 0.02 to 0.05 times.
    """
    task = RandomGaussians(4, seed=0)
    x, _ = task.exact_samples(1500, seed=0)
    result = fit(x, "virl", 8, seed=0, hparams=BY_NETWORKS, held_out=0.0)
    distances = distances_of(task, x)
    of_kernels = distances.of_density(fit_kde(x, BY_NETWORKS["kde"]["bandwidth"]))
    assert distances.of_reward(result.reward, result.policy) < 0.15 * of_kernels
    assert distances.of_density(result.policy) < 0.15 * of_kernels


@pytest.mark.parametrize("fitted", ["virl"], indirect=True)
def test_a_fit_without_a_folder_is_the_same(fitted):
    method, _, result = fitted
    again = tiny_fit(method)
    assert result_bytes(again)[:3] == result_bytes(result)[:3]
    np.testing.assert_array_equal(again.reward(X), result.reward(X))
    np.testing.assert_array_equal(metrics(again).to_numpy(float), metrics(result).to_numpy(float))


def same_result(found, expected):
    np.testing.assert_array_equal(found.reward(X), expected.reward(X))
    for a, b in zip(found.policy, expected.policy, strict=True):
        np.testing.assert_array_equal(a, b)
    assert list(found.history.columns) == list(expected.history.columns)
    np.testing.assert_array_equal(found.history.to_numpy(float), expected.history.to_numpy(float))
    assert found.config == expected.config
    assert found.summary == expected.summary
    assert found.score == expected.score
    assert found.warnings == expected.warnings


def test_a_folder_is_loaded(fitted):
    _, folder, result = fitted
    same_result(load(folder), result)
    same_result(load(str(folder)), result)


def test_a_saved_result_is_loaded(fitted, tmp_path):
    _, _, result = fitted
    result = replace(result, config={**result.config, "num_components": np.int64(2)})
    result.save(tmp_path / "new" / "folder")
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == {
        "config.yaml",
        "metrics.csv",
        "timings.csv",
        "reward.keras",
        "policy.npz",
        "summary.json",
    }
    same_result(load(tmp_path / "new" / "folder"), result)


def test_nothing_is_overwritten_by_save(fitted, tmp_path):
    _, folder, result = fitted
    (tmp_path / "notes.txt").write_text("mine")
    for taken in (tmp_path, tmp_path / "notes.txt", folder):
        with pytest.raises(InputError, match=taken.name):
            result.save(taken)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_callers_array_is_left_alone():
    x = X.copy()
    tiny_fit("eim", x, hparams=ONE_ITERATION)
    np.testing.assert_array_equal(x, X)


def test_hparams_may_be_a_file_a_mapping_or_complete(tmp_path):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(ONE_ITERATION))
    complete = tiny.hparams("eim", loop={"num_iterations": 1})
    expected = tiny_fit("eim", hparams=ONE_ITERATION)
    for given in (tmp_path / "mine.yaml", str(tmp_path / "mine.yaml"), complete):
        assert result_bytes(tiny_fit("eim", hparams=given)) == result_bytes(expected)


# --- score, warnings, bounds ----------------------------------------------------------------------


def test_the_score_is_that_of_held_out_rows(fitted):
    method, folder, result = fitted
    with np.load(folder / "demonstrations.npz") as arrays:
        train, test = arrays["train"], arrays["test"]
    assert (len(train), len(test)) == (48, 12)
    score = result.score
    assert score.rows == 12
    assert list(score.log_likelihood) == ["recovered reward", "policy", "KDE", "EM"]
    of_policy = result.policy.log_prob(test).numpy()
    assert score.log_likelihood["policy"]["mean"] == pytest.approx(of_policy.mean())
    assert score.log_volume == pytest.approx(np.log(train.std(axis=0)).sum())
    shown = repr(result)
    assert score.verdict in shown
    assert "EM with 2 components" in shown
    assert f"Result of {method}" in shown
    assert len(shown) < 2000
    pooled = result.history.iloc[[-1]].assign(epochs=0)
    with_pooling = replace(result, history=pd.concat([result.history, pooled]))
    assert repr(with_pooling) == shown  # the pooling is no iteration
    assert "data:image/png" in result._repr_html_()
    difference = score.log_likelihood["policy"]["mean"] - score.log_likelihood["EM"]["mean"]
    assert score.over_em["policy"]["mean"] == pytest.approx(difference)


def test_em_and_kernels_have_not_seen_the_rows_that_they_are_scored_on(tmp_path, monkeypatch):
    module, seen = import_module("virl_tf.summary"), {}
    em_mixture, score_of = module.em_mixture, module.score

    def record_em(x, *rest):
        seen["EM"] = x
        return em_mixture(x, *rest)

    def record_score(test, reward, policy, kde, *rest):
        seen["KDE"], seen["test"] = kde.points.numpy(), test
        return score_of(test, reward, policy, kde, *rest)

    monkeypatch.setattr(module, "em_mixture", record_em)
    monkeypatch.setattr(module, "score", record_score)
    tiny_fit("eim", hparams=ONE_ITERATION, directory=tmp_path / "run")
    with np.load(tmp_path / "run" / "demonstrations.npz") as arrays:
        train, test = (np.sort(arrays[name], axis=0) for name in ("train", "test"))
    for name, rows in {"EM": train, "KDE": train, "test": test}.items():
        np.testing.assert_array_equal(np.sort(seen[name], axis=0), rows)


def test_bounds_count_for_all_densities():
    """A reward that is EM inside of bounds is no better than EM."""
    em = make_mixture(3)
    no_bound = tf.constant([np.inf, np.inf], tf.float64)
    domain = Domain(tf.constant([0.0, -np.inf], tf.float64), no_bound, 0.0 * em.means[0])
    reward = make_reward([], base=em)._replace(domain=domain)
    test = em.sample(4000, 1).numpy()
    test = test[test[:, 0] >= 0.0]
    assert 0.1 < len(test) / 4000 < 0.9
    found = score(test, reward, em, em, em, seed=0)
    assert abs(found.over_em["recovered reward"]["mean"]) < 0.05
    assert found.over_em["policy"] == {"mean": 0.0, "standard_error": 0.0}


def test_a_density_without_a_draw_inside_of_the_bounds_is_not_infinitely_likely():
    far = tf.fill([2], tf.constant(1e3, tf.float64))
    domain = Domain(far, far + 1.0, 0.0 * far)
    reward = make_reward([], base=make_mixture(1))._replace(domain=domain)
    found = log_inside(make_mixture(1), reward, NORMALISER_DRAWS, 0)
    np.testing.assert_array_equal(found, [-np.log(NORMALISER_DRAWS)])


def test_the_normaliser_is_sought_where_kernels_are_and_the_policy_is_not():
    one = make_mixture(1)
    other = one._replace(means=one.means + 50.0)
    both = Mixture(*(tf.concat(pair, axis=0) for pair in zip(one, other, strict=True)))
    both = both._replace(log_weights=both.log_weights - np.log(2.0))
    found = score(both.sample(40, 0).numpy(), make_reward([], base=both), one, both, one, seed=0)
    assert found.log_normaliser == pytest.approx(0.0, abs=0.05)


def test_the_normaliser_is_sought_where_a_rewards_mixture_is_and_kernels_are_not():
    """In many dimensions kernels reach nothing; no effective share tells."""
    one = gaussian(np.zeros(20), 0.01 * np.eye(20))
    other = one._replace(means=one.means + 50.0)
    both = Mixture(*(tf.concat(pair, axis=0) for pair in zip(one, other, strict=True)))
    both = both._replace(log_weights=both.log_weights - np.log(2.0))
    reward = make_reward([], dim=20, base=both, mixture=both)
    found = score(both.sample(40, 0).numpy(), reward, one, one, one, seed=0)
    assert found.log_normaliser == pytest.approx(0.0, abs=0.05)


@pytest.mark.parametrize("sizes", [pytest.param((360, 40), marks=pytest.mark.slow), (80, 5, 15)])
@pytest.mark.parametrize("method", ["virl", "eim"])
def test_few_groups_are_enough(sizes, method):
    x = tiny.demonstrations(sum(sizes))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    result = virl_tf.fit(x, method, 2, groups=labels, seed=0, hparams=tiny.overrides())
    assert (result.score is None) == (len(sizes) < 3)
    assert np.isfinite(result.reward(x)).all()


@pytest.mark.parametrize(
    ("mean", "said"),
    [
        (0.5, "explains these demonstrations better than EM, by 0.5 nats each"),
        (
            0.1,
            "not distinguishable on 60 rows, which are more likely under the reward by 0.1 nats ",
        ),
        (-0.1, "less likely under the reward by 0.1 nats each (standard error 0.2)."),
        (0.3, "not distinguishable on 60 rows"),
        (-0.3, "not distinguishable on 60 rows"),
        (0.41, "explains these demonstrations better than EM, by 0.41 nats each"),
        (-0.41, "EM explains these demonstrations better than the recovered reward, by 0.41"),
        (-0.5, "EM explains these demonstrations better than the recovered reward, by 0.5 nats"),
        (np.nan, "Nothing is known of the recovered reward's normaliser"),
    ],
)
def test_the_verdict_says_what_the_rows_can_tell(mean, said):
    over = {"recovered reward": {"mean": mean, "standard_error": 0.2}}
    assert said in virl_tf.Score(60, {}, over, 0.0, 0.0, 1.0).verdict
    told = said.replace("EM", "EM with 3 components")
    assert told in virl_tf.Score(60, {}, over, 0.0, 0.0, 1.0, em_components=3).verdict


@pytest.mark.parametrize(
    ("rows", "mean", "said"),
    [
        (20, 5.0, "better than EM, by 5 nats each (no standard error of one row or group)"),
        (20, -5.0, "EM explains these demonstrations better"),
        (20, 0.1, "not distinguishable"),
        (1, -5.0, "not distinguishable"),
    ],
)
def test_the_verdict_of_rows_without_a_standard_error(rows, mean, said):
    over = {"recovered reward": {"mean": mean, "standard_error": np.nan}}
    assert said in virl_tf.Score(rows, {}, over, 0.0, 0.0, 1.0).verdict


def test_the_error_of_the_normaliser_counts():
    """A reward that is EM differs from it by that error alone, the same on all rows."""
    em = make_mixture(3)
    elsewhere = em._replace(means=em.means + 1.0)
    found = score(em.sample(100, 1).numpy(), make_reward([], base=em), em, elsewhere, em, seed=0)
    assert found.over_em["recovered reward"]["standard_error"] < 1e-9
    assert not found.behind_em("recovered reward")
    assert "not distinguishable" in found.verdict


def test_rows_of_a_group_count_as_one():
    """As when each row is there five times: the error is that of the rows themselves."""
    em, policy, kde = make_mixture(3), make_mixture(1), make_mixture(2)
    rows, reward = em.sample(20, 1).numpy(), make_reward([], base=em)
    often, groups = np.repeat(rows, 5, axis=0), np.repeat(np.arange(20), 5)
    once, found = (
        score(x, reward, policy, kde, em, 0, labels)
        for x, labels in ((rows, None), (often, groups))
    )
    for name, of_rows in once.over_em.items():
        assert found.over_em[name] == pytest.approx(of_rows)
        assert found.log_likelihood[name] == pytest.approx(once.log_likelihood[name])
    alone = score(rows, reward, policy, kde, em, 0, np.zeros(20, int))
    assert np.isnan(alone.over_em["policy"]["standard_error"])
    assert alone.behind_em("policy")
    assert "nats each (no standard error of one row or group)" in alone.verdict
    assert "nan" not in repr(alone)
    assert any("are of one group" in text for text in score_warnings(alone))
    assert not any("are of one group" in text for text in score_warnings(found))


def test_the_score_of_a_fit_knows_its_groups():
    """One of five is held out, which says nothing of how the others differ."""
    arguments = {"groups": np.repeat(np.arange(5), 20), "hparams": ONE_ITERATION}
    found = tiny_fit("eim", tiny.demonstrations(100), **arguments).score
    assert found.rows == 20
    assert np.isnan(found.log_likelihood["EM"]["standard_error"])


def test_a_policy_without_a_rare_mode_misses_it():
    """Whose rows make the standard error of the mean as large as the mean."""
    one = make_mixture(1)
    rare = one._replace(log_weights=one.log_weights + np.log(0.02), means=one.means + 50.0)
    em = Mixture(*(tf.concat(pair, axis=0) for pair in zip(one, rare, strict=True)))
    test = np.concatenate([one.sample(99, 0), rare.means])
    found = score(test, make_reward([], base=em), one, em, em, seed=0)
    mean, error = found.over_em["policy"].values()
    assert -2.0 * error < mean < 0.0
    assert found.missed == {"recovered reward": 0, "policy": 1, "KDE": 0}
    assert found.behind_em("policy")


@pytest.mark.parametrize(
    ("lack", "error", "missed", "told"),
    [
        (0.02, 0.004, 0, True),
        (0.02, 0.02, 0, False),
        (0.009, 0.001, 0, False),
        (0.009, 0.1, 1, True),
        (0.3, np.nan, 0, True),  # rows of a single group
        (0.1, np.nan, 0, False),
    ],
)
@pytest.mark.parametrize("name", ["recovered reward", "policy"])
def test_a_lack_that_is_clear_and_next_to_nothing_is_no_reason_to_doubt(
    name, lack, error, missed, told
):
    """Policy and EM start alike: their difference scatters as little as it is large."""
    over = {key: {"mean": 0.0, "standard_error": 1.0} for key in ("recovered reward", "policy")}
    over[name] = {"mean": -lack, "standard_error": error}
    found = virl_tf.Score(1000, {}, over, 0.0, 0.0, 1.0, missed={name: missed})
    kind = name.split()[-1]
    lacks = [text for text in score_warnings(found) if "less likely" in text]
    assert [f"under the {kind} than under EM" in text for text in lacks] == [True] * told


@pytest.mark.slow
def test_the_log_volume_makes_likelihoods_comparable_between_units():
    score = tiny_fit(hparams=ONE_ITERATION).score
    units = tiny_fit(x=X * [10.0, 0.1] + [5.0, -3.0], hparams=ONE_ITERATION).score
    here, there = (s.log_likelihood["EM"]["mean"] + s.log_volume for s in (score, units))
    assert here == pytest.approx(there, abs=1e-3)


def test_the_number_of_components_is_chosen():
    result = fit(X[:40], "eim", hparams=ONE_ITERATION)
    assert result.policy.num_components == result.config["num_components"] > 1
    assert "chosen by cross-validation" in result.summary["components_reason"]


def test_what_makes_a_result_worth_less_is_said():
    x = np.column_stack([X, np.repeat([0.0, 1.0], 30)])
    with pytest.warns(FitWarning, match="'x2': 2 distinct values"):
        result = tiny_fit("eim", x, hparams=ONE_ITERATION)
    assert any("'x2': 2 distinct values" in text for text in result.warnings)
    assert all(f"warning: {text}" in repr(result) for text in result.warnings)


def test_a_difference_on_one_row_has_no_standard_error():
    one, two = (mean_and_error(np.array(values)) for values in ([1.5, np.nan], [1.0, 3.0]))
    assert (one["mean"], two["mean"], two["standard_error"]) == (1.5, 2.0, 1.0)
    assert np.isnan(one["standard_error"])


@pytest.mark.slow
def test_dithered_columns_are_not_warned_of():
    x = np.column_stack([X, np.repeat([0.0, 1.0], 30)])
    dithered = tiny_fit("eim", x, hparams=ONE_ITERATION, dither=True)
    assert not any("distinct values" in text for text in dithered.warnings)


def trained_rows(iterations=2, **columns):
    """Of a history: iterations in which nothing went wrong, but for `columns`."""
    usual = {"t": range(iterations), "num_negatives": 1000, "effective_sample_size": 900.0}
    return pd.DataFrame({**usual, "best_epoch": 9, "dropped": 0, **columns})


@pytest.mark.parametrize("worst", [0, 1])
@pytest.mark.parametrize("gaussian", [True, False])
def test_the_cure_of_few_effective_weights_fits_their_cause(worst, gaussian):
    """Of modes far apart one Gaussian is most likely where no negative is: worst in the first."""
    sizes = [500.0, 9.0]
    sizes[worst] = 9.0
    trained = trained_rows(effective_sample_size=sizes)
    (text,) = training_warnings(trained, gaussian)
    assert "only 9 of 1000 importance weights were effective in the last iteration (1)" in text
    of_prior = gaussian and worst == 0
    cure = "loop.prior" if of_prior else "kde.estimator"
    section, name = cure.split(".")
    in_python = f"hparams={{'{section}': {{'{name}': 'mixture'}}}}"
    assert f"Try --set {cure}=mixture (in Python {in_python}), or fewer columns" in text


def test_a_cure_that_is_there_already_is_not_advised():
    trained = trained_rows(effective_sample_size=[500.0, 9.0])
    (text,) = training_warnings(trained, False, kernels_drawn=False)
    assert text.endswith("Try fewer columns, or more demonstrations.")


def test_bad_weights_that_recovered_are_no_reason_to_doubt():
    assert training_warnings(trained_rows(effective_sample_size=[2.0, 900.0]), True) == []


@pytest.mark.parametrize("dropped", [[1], [1, 1], [1, 0], [0, 1]])
def test_a_reward_without_networks_says_so(dropped):
    found = " ".join(training_warnings(trained_rows(len(dropped), dropped=dropped), False))
    assert ("the reward is its prior" in found) == all(dropped)


def test_networks_that_the_average_leaves_out_are_told():
    (text,) = training_warnings(trained_rows(), False, exponent=1.0)
    assert "likeliest under the EM mixture alone: the networks have no share in the reward" in text
    assert training_warnings(trained_rows(), False, exponent=0.95) == []
    assert "its prior" in " ".join(training_warnings(trained_rows(dropped=[1, 1]), False, 1.0))


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ({"mixture_exponent": 0.0}, ""),
        ({"mixture_exponent": 0.4}, "0.60 x the sum of discriminators + 0.40 x the log density"),
        ({"networks": 3, "from_mixture": False}, "0.50 x the sum of discriminators + 0.50 x"),
        ({"networks": 3, "from_mixture": True}, "EM mixture + 0.50 x the sum of 3 networks"),
        (
            {"mixture_exponent": 0.0, "networks": 1, "from_mixture": True},
            "EM mixture + 1.00 x the sum of 1 network",
        ),
        ({"networks": 0, "from_mixture": True}, "the log density of an EM mixture alone"),
        ({"mixture_exponent": 1.0, "networks": 3}, "the log density of an EM mixture alone"),
    ],
)
def test_the_reward_in_words_is_what_it_is_the_sum_of(summary, said):
    found = reward_in_words({"mixture_exponent": 0.5, **summary})
    assert said in found
    assert bool(found) == bool(said)


def test_a_network_that_could_not_be_trained_is_named():
    (text,) = training_warnings(trained_rows(best_epoch=[9, -1]), False)
    assert "no epoch of network 1 had a finite held-out loss" in text
    assert training_warnings(trained_rows(best_epoch=[9, -1], dropped=[0, 1]), False) == []


@pytest.mark.parametrize("method", ["virl", pytest.param("eim", marks=pytest.mark.slow)])
def test_rewards_know_their_bounds_and_angles(method, tmp_path):
    turned = np.column_stack([np.mod(0.3 * X[:, 0], 2 * np.pi), X[:, 1]])
    arguments = {"periodic": [0], "support": ({1: -99.0}, {1: 99.0})}
    result = tiny_fit(method, turned, **arguments, directory=tmp_path / "run")
    points = np.array([[0.5, 0.0], [0.5 + 2 * np.pi, 0.0], [0.5, 99.5]])
    values = load(tmp_path / "run").reward(points).numpy()
    np.testing.assert_allclose(values[0], values[1], rtol=1e-9)
    assert np.isfinite(values[0])
    assert np.isneginf(values[2])
    np.testing.assert_array_equal(result.reward(points), values)
    model = result.reward.as_keras()
    np.testing.assert_allclose(model(points), values)
    with pytest.raises(InputError, match="another configuration"):
        tiny_fit(method, turned, periodic=[0], directory=tmp_path / "run")


# --- evaluation and resuming ----------------------------------------------------------------------


@pytest.mark.parametrize("rows", [400, 3500])
def test_few_rows_for_their_dimensions_are_told(rows):
    """Of 300 dimensions EM looks at 444 rows, however many there are."""
    prepared = prepare(np.random.default_rng(0).normal(size=(rows, 300)), DataOptions(), 0)
    (line,) = _of_rows(prepared, by_em=True)
    looked_at = "are few: reward" if rows == 400 else "looks at 444 of"
    assert looked_at in line
    assert "Describe a demonstration by fewer numbers" in line
    assert len(_of_rows(prepared, by_em=False)) == (rows == 400)


def test_rows_that_are_just_enough_are_no_few():
    prepared = prepare(np.random.default_rng(0).normal(size=(115, 10)), DataOptions(0.1), 0)
    assert _of_rows(prepared, by_em=True) == []


def test_what_evaluate_returns_is_in_the_history(tmp_path):
    seen = []

    def evaluate(state):
        seen.append(state.t)
        return {"twice": 2.0 * state.t, "late": state.t > 2 if state.t > 1 else np.nan}

    result = tiny_fit("eim", evaluate=evaluate, directory=tmp_path / "run")
    assert seen == [1, 2, 3, 4]
    for history in (result.history, load(tmp_path / "run").history):
        assert list(history.twice) == [2.0, 4.0, 6.0, 8.0]
        assert list(history.late[1:]) == [0.0, 1.0, 1.0]


@pytest.fixture
def kept_fitters(monkeypatch):
    """A fit that fails behind an iteration gives its fitter back: the next need not trace one."""
    module = import_module("virl_tf.fit")
    borrowed = module.borrowed_fitter

    @contextlib.contextmanager
    def kept(*given):
        failure = None
        with borrowed(*given) as fitter:
            try:
                yield fitter
            except InputError as error:
                failure = error
        if failure is not None:
            raise failure

    monkeypatch.setattr(module, "borrowed_fitter", kept)


@pytest.mark.parametrize("number", [tf.constant(2.5), np.float32(2.5), Fraction(5, 2), 10**30])
def test_what_evaluate_returns_may_be_a_number_of_any_library(tmp_path, number):
    arguments = {"evaluate": lambda state: {"found": number}, "hparams": ONE_ITERATION}
    result = tiny_fit("eim", directory=tmp_path / "run", **arguments)
    assert list(result.history.found) == [float(number)]


@pytest.mark.usefixtures("kept_fitters")
@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "must return a dictionary of numbers, got None"),
        ({"norm": tf.zeros([2])}, "a number for each name"),
        ({"norm": "large"}, "a number for each name"),
        ({"norm": 2.0 + 1.0j}, "a number for each name"),
        ({1: 2.0}, "names of text, got 1"),
        ({"epochs": 0.0}, "'epochs', a column of the history already"),
    ],
)
def test_what_evaluate_must_not_return_is_refused_at_once(tmp_path, returned, message):
    with pytest.raises(InputError, match=message):
        tiny_fit("eim", evaluate=lambda state: returned, directory=tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.csv").exists()


def test_a_bandwidth_that_is_too_narrow_leaves_no_folder(tmp_path):
    with pytest.raises(InputError, match="the KDE's bandwidth in column 0 is 1e-07"):
        tiny_fit(directory=tmp_path / "run", hparams=tiny.overrides(kde={"bandwidth": 1e-7}))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("kept_fitters")
@pytest.mark.parametrize("before", [0, 2])
def test_a_policy_that_breaks_down_is_an_error_and_not_kept(monkeypatch, tmp_path, before):
    step = irl.step

    def breaks(state, *arguments):
        new, info = step(state, *arguments)
        nan = tf.fill(new.policy.means.shape, tf.constant(np.nan, tf.float64))
        broken = new._replace(policy=new.policy._replace(means=nan))
        return (broken if state.t == before else new), info

    monkeypatch.setattr(irl, "step", breaks)
    with pytest.raises(InputError, match=f"broke down in iteration {before}: .* policy.kl_bound"):
        tiny_fit(directory=tmp_path / "run")
    kept = sorted(path.name for path in tmp_path.glob("run/checkpoints/*"))
    assert kept == [f"state-{t:05d}.npz" for t in range(1, before + 1)]


class Stop:
    """An `evaluate` that interrupts the run in iteration `at`."""

    def __init__(self, at):
        self.at = at
        self.seen = []

    def __call__(self, state):
        self.seen.append(state.t)
        if state.t == self.at:
            raise KeyboardInterrupt
        return {}


def test_an_interrupted_run_continues_to_the_same_bytes(fitted, tmp_path):
    method, folder, expected = fitted
    stop = Stop(at=3)
    with pytest.raises(KeyboardInterrupt):
        tiny_fit(method, directory=tmp_path / "run", evaluate=stop)
    with pytest.raises(InputError, match="not finished"):
        load(tmp_path / "run")
    go_on = Stop(at=None)
    found = tiny_fit(method, directory=tmp_path / "run", evaluate=go_on)
    assert stop.seen == [1, 2, 3]
    assert go_on.seen == list(range(3, num_rows(method) + 1))  # two iterations were kept
    assert result_bytes(found) == result_bytes(expected)
    assert list(found.history.t) == list(range(num_rows(method)))
    for name in ("policy.npz", "metrics.csv"):
        assert (tmp_path / "run" / name).read_bytes() == (folder / name).read_bytes()


def test_what_a_kill_left_in_a_finished_folder_is_removed(fitted, tmp_path):
    method, folder, _ = fitted
    shutil.copytree(folder, tmp_path / "run")
    left = tmp_path / "run" / ".reward.pdf-abcdefgh.partial"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))
    tiny_fit(method, directory=tmp_path / "run")
    assert not left.exists()


def test_a_continued_run_has_the_features_of_its_checkpoint(tmp_path, monkeypatch):
    """On another machine what is chosen by EM may be other features."""
    module, seen = import_module("virl_tf.fit"), []
    whole, step = module.make_problem, irl.step

    def elsewhere(*given):
        found = whole(*given)
        shift = found.features.shift + 1e-3
        return found._replace(features=found.features._replace(shift=shift))

    def record(state, problem, *rest):
        seen.append(tuple(problem.features.shift.numpy()))
        return step(state, problem, *rest)

    monkeypatch.setattr(irl, "step", record)
    with pytest.raises(KeyboardInterrupt):
        tiny_fit("virl", directory=tmp_path, evaluate=Stop(at=2))
    monkeypatch.setattr(module, "make_problem", elsewhere)
    tiny_fit("virl", directory=tmp_path, evaluate=Stop(at=None))
    assert len(seen) > ITERATIONS - 1
    assert len(set(seen)) == 1


def test_cached_values_of_a_continued_run_have_the_same_bytes(tmp_path):
    def values(stop):
        cached = CumulativeValues(X)

        def evaluate(state):
            if state.t == stop:
                raise KeyboardInterrupt
            return {f"reward_{i}": float(value) for i, value in enumerate(cached(state.reward)[:5])}

        return evaluate

    tiny_fit(directory=tmp_path / "whole", evaluate=values(None))
    with pytest.raises(KeyboardInterrupt):
        tiny_fit(directory=tmp_path / "run", evaluate=values(3))
    tiny_fit(directory=tmp_path / "run", evaluate=values(None))
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == (
        tmp_path / "whole" / "metrics.csv"
    ).read_bytes()


@pytest.mark.parametrize("fitted", ["virl"], indirect=True)
def test_a_run_stopped_in_its_first_iteration_starts_again(fitted, tmp_path):
    method, _, expected = fitted
    with pytest.raises(KeyboardInterrupt):
        tiny_fit(method, directory=tmp_path / "run", evaluate=Stop(at=1))
    assert result_bytes(tiny_fit(method, directory=tmp_path / "run")) == result_bytes(expected)


def refuse_compute(*_, **__):
    raise AssertionError("something was computed")


@pytest.fixture
def no_compute(monkeypatch):
    # By its full name: `virl_tf.fit` is the function.
    monkeypatch.setattr(import_module("virl_tf.fit"), "make_problem", refuse_compute)
    monkeypatch.setattr(import_module("virl_tf.fit"), "choose_mixture", refuse_compute)
    monkeypatch.setattr(virl_tf.irl, "step", refuse_compute)


@pytest.mark.usefixtures("no_compute")
def test_a_finished_folder_is_returned_unchanged(fitted):
    method, folder, result = fitted
    before = contents(folder)
    same_result(tiny_fit(method, directory=folder), result)
    assert contents(folder) == before


@pytest.mark.usefixtures("no_compute")
def test_a_finished_folder_says_that_evaluate_is_not_called(fitted):
    method, folder, _ = fitted
    with pytest.warns(FitWarning, match="finished without evaluate="):
        result = tiny_fit(method, directory=folder, evaluate=lambda state: {"mine": 1.0})
    assert "mine" not in result.history


@pytest.mark.usefixtures("no_compute")
def test_a_finished_folder_says_that_no_number_of_components_is_chosen(fitted, recwarn):
    """Until it is finished, the number that is chosen tells."""
    method, folder, result = fitted
    same_result(tiny_fit(method, directory=folder), result)
    assert not any("num_components" in str(line.message) for line in recwarn)
    given = f"finished with num_components={result.policy.num_components}, which was given then"
    with pytest.warns(FitWarning, match=given):
        same_result(tiny_fit(method, directory=folder, num_components=None), result)


@pytest.mark.usefixtures("no_compute")
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"num_components": 3}, "num_components"),
        ({"x": X + 1.0}, "demonstrations"),
        ({"num_components": None, "x": X + 1.0}, "demonstrations"),
        ({"hparams": tiny.overrides(network={"layer_size": 16})}, "layer_size"),
    ],
    ids=["seed", "components", "data", "data-and-no-components", "hparams"],
)
def test_a_folder_of_another_configuration_is_refused(fitted, change, named, monkeypatch):
    """Before the number of components is looked for, too, which takes half a minute."""
    monkeypatch.setattr(import_module("virl_tf.fit"), "choose_mixture", refuse_compute)
    method, folder, _ = fitted
    before = contents(folder)
    with pytest.raises(InputError, match=named):
        tiny_fit(method, directory=folder, **change)
    assert contents(folder) == before


@pytest.mark.usefixtures("no_compute")
def test_folders_that_cannot_be_used_are_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path, tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError):
            tiny_fit(directory=folder)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_policy_is_read_from_its_file_or_folder(fitted, tmp_path):
    _, folder, result = fitted
    for path in (folder, str(folder / "policy.npz")):
        found = virl_tf.load_policy(path)
        assert all(np.array_equal(a, b) for a, b in zip(found, result.policy, strict=True))
    with pytest.raises(InputError, match=r"holds no policy\.npz"):
        virl_tf.load_policy(tmp_path)


def test_loading_what_is_no_run_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match=r"config\.yaml"):
            load(path)


# --- bad input, refused before anything is computed or written ------------------------------------


BAD_DEMONSTRATIONS = {
    "one-dimensional": X[:, 0],
    "fewer than D + 2": X[:3],
    "a mapping": {"x": X},
}


@pytest.mark.usefixtures("no_compute")
@pytest.mark.parametrize("x", BAD_DEMONSTRATIONS.values(), ids=BAD_DEMONSTRATIONS)
def test_bad_demonstrations_are_refused(x, tmp_path):
    with pytest.raises(InputError, match="demonstrations"):
        tiny_fit(x=x, directory=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


BAD_ARGUMENTS = {
    "method unknown": ({"method": "vril"}, "'virl'"),
    "method none": ({"method": None}, "method"),
    "method in capitals": ({"method": "VIRL"}, "method"),
    "no components": ({"num_components": 0}, "num_components"),
    "negative components": ({"num_components": -1}, "num_components"),
    "more components than demonstrations": ({"num_components": 61}, "num_components"),
    "fractional components": ({"num_components": 2.5}, "num_components"),
    "components as text": ({"num_components": "2"}, "num_components"),
    "boolean components": ({"num_components": True}, "num_components"),
    "negative seed": ({"seed": -1}, "seed"),
    "fractional seed": ({"seed": 0.5}, "seed"),
    "no seed": ({"seed": None}, "seed"),
    "huge seed": ({"seed": 2**63}, "seed"),
    "unknown section": ({"hparams": {"netwrok": {}}}, "network"),
    "unknown key": ({"hparams": {"network": {"num_layer": 2}}}, "num_layers"),
    "out of range": ({"hparams": {"network": {"num_layers": 1}}}, "num_layers"),
    "wrong type": ({"hparams": {"loop": {"num_iterations": "4"}}}, "num_iterations"),
    "no mapping": ({"hparams": [1, 2]}, "sections"),
    "no file": ({"hparams": "no/such/file.yaml"}, "no/such/file.yaml"),
    "dither as text": ({"dither": "no"}, "dither must be True or False, got 'no'"),
    "progress as a number": ({"progress": 1}, "progress must be True or False"),
    "no tensorboard": ({"tensorboard": None}, "tensorboard must be True or False"),
    "no function": ({"evaluate": 3}, "evaluate must be a function of the State, got 3"),
}


@pytest.mark.usefixtures("no_compute")
@pytest.mark.parametrize(("arguments", "named"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_bad_arguments_are_refused(arguments, named, tmp_path):
    with pytest.raises(InputError, match=named):
        tiny_fit(**arguments, directory=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_as_many_components_as_demonstrations_work():
    x = tiny.demonstrations(6)
    result = tiny_fit("eim", x, num_components=6, hparams=ONE_ITERATION)
    assert result.policy.num_components == 6
    assert np.isfinite(result.reward(x)).all()


def test_the_fewest_demonstrations_work():
    x = tiny.demonstrations(4)
    result = tiny_fit("virl", x, num_components=1, hparams=ONE_ITERATION)
    assert np.isfinite(result.reward(x)).all()


def test_a_folder_that_lost_its_summary_says_how_to_get_it_back(tmp_path):
    def again():
        return tiny_fit("eim", hparams=ONE_ITERATION, directory=tmp_path)

    summary = again().summary
    (tmp_path / "summary.json").unlink()
    with pytest.raises(InputError, match=r"has lost its summary.json; remove its reward.keras"):
        again()
    (tmp_path / "reward.keras").unlink()
    assert again().summary == summary


def test_the_number_of_components_is_chosen_by_whole_groups(monkeypatch):
    """Else rows of one group tell on each other, and too many components seem worth it."""
    seen = []

    def choose(x, seed, groups, components):
        seen.append((len(x), groups))
        raise InputError("far enough")

    monkeypatch.setattr(import_module("virl_tf.fit"), "choose_mixture", choose)
    with pytest.raises(InputError, match="far enough"):
        tiny_fit(groups=np.repeat(np.arange(12), 5), num_components=None)
    ((number, groups),) = seen
    assert len(groups) == number
    assert (np.unique(groups, return_counts=True)[1] == 5).all()


def test_a_normaliser_of_exact_draws_has_no_error():
    assert normaliser_error(1.0) == 0.0
    assert normaliser_error(0.2) == pytest.approx(np.sqrt(4.0 / NORMALISER_DRAWS))
    assert normaliser_error(0.0) == pytest.approx(1.0, rel=1e-4)


def test_with_contexts_the_error_of_the_normalisers_is_in_that_of_the_rows():
    over = {"recovered reward": {"mean": -0.1, "standard_error": 0.01}}
    plain = virl_tf.Score(60, {}, over, 0.0, 0.0, effective_share=1e-3)
    assert not plain.behind_em("recovered reward")
    assert plain._replace(num_contexts=1).behind_em("recovered reward")


@pytest.mark.parametrize(("share", "missed"), [(1e-4, 0), (1e-6, 100)])
def test_the_more_rows_the_rarer_is_what_counts_as_missed(share, missed):
    """Of 100 rows it has to be 1e-5 times as likely: chance must not miss any one of them."""
    one = make_mixture(1)
    log_weights = tf.constant(np.log([share, 1.0 - share]))
    means = tf.concat([one.means, one.means + 50.0], axis=0)
    policy = Mixture(log_weights, means, tf.repeat(one.scale_trils, 2, axis=0))
    test = one.sample(100, 0).numpy()
    found = score(test, make_reward([], base=one), policy, one, one, seed=0)
    assert found.missed["policy"] == missed
