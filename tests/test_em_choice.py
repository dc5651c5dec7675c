"""How many Gaussians, and of which covariances."""

from types import SimpleNamespace

from virl_tf.description import describe_rows
from virl_tf.em import choice, density
from virl_tf.em.by_bic import bic_mixture
from virl_tf.em.choice import choose_mixture
from virl_tf.em.density import FEWEST_TO_GROW, bic_fits, density_fits
from virl_tf.em.em import (
    FULL,
    Covariances,
    are_few,
    em_mixture,
    em_start,
    left_by_two_means,
    standardised,
)
from virl_tf.em.growth import go_on, grow
from virl_tf.mixture import moments

import numpy as np
import pytest
import tensorflow as tf


def clusters(n, dim, modes=3, seed=0, width=0.3):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).uniform(-4.0, 4.0, (modes, dim))
    return centres[rng.integers(0, modes, n)] + width * rng.standard_normal((n, dim))


def first(x):
    """Of few rows the only one."""
    return density_fits(x, 0)[0](x)


@pytest.mark.parametrize("components", [None, 2])
def test_many_rows_in_many_dimensions_are_cross_validated_by_some(monkeypatch, components):
    seen = []

    def by_some(x, seed, groups, components=None):
        seen.append(len(x))
        return choice.MixtureChoice(2, FULL, "", {})

    monkeypatch.setattr(choice, "_by_cross_validation", by_some)
    monkeypatch.setattr(choice, "MOST_ROWS", 50)
    x = clusters(70, 3)
    assert are_few(*x.shape)
    choose_mixture(x, seed=0, components=components)
    assert seen == [50]


@pytest.mark.parametrize("modes", [1, 3])
@pytest.mark.parametrize("rows", [60, 900])
def test_as_many_components_as_clusters_are_chosen(modes, rows):
    rng = np.random.default_rng(0)
    units = [1.0, 100.0]
    x = 8.0 * rng.integers(0, modes, (rows, 1)) * units + rng.normal(size=(rows, 2)) * units
    choice = choose_mixture(x, seed=0)
    assert choice.components == modes
    best = max(choice.scores, key=choice.scores.get)
    assert best >= modes
    if rows == 900:
        why = f"the fewest as good as the best ({best}) within one standard error"
        assert (why in choice.reason) == (best != modes)


@pytest.mark.parametrize("rows", [60, 900])
def test_the_largest_number_that_is_tried_is_said_to_be(monkeypatch, rows):
    x = clusters(rows, 2, modes=4, width=0.05)
    text = "the most that are tried: more may do better"
    assert text not in choose_mixture(x, seed=0).reason
    monkeypatch.setattr(choice, "CANDIDATES", (1, 2))
    found = choose_mixture(x, seed=0)
    assert found.components == 2
    assert text in found.reason


@pytest.mark.parametrize("rows", [3, 4, 10])
def test_a_handful_of_rows_gets_few_components(rows):
    x = np.random.default_rng(0).normal(size=(rows, 1))
    assert choose_mixture(x, seed=0).components <= 2


def test_few_rows_of_many_modes_share_their_covariances():
    # 24 modes of 3 rows each in D = 6: nothing that full covariances could be told from.
    x = np.concatenate([clusters(72, 6, modes=24, width=0.05)])
    choice = choose_mixture(x, seed=0)
    assert choice.components >= 10
    assert choice.covariances != FULL


@pytest.mark.parametrize(
    ("rows", "dim", "modes"),
    [
        *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((60, 4, 3), (100, 14, 4))),
        (30, 5, 10),
    ],
)
def test_few_rows_are_described_better_than_by_bic(rows, dim, modes):
    x = clusters(rows, dim, modes)
    test = tf.constant(clusters(2000, dim, modes, seed=1))
    ours, by_bic = (
        float(tf.reduce_mean(mixture.log_prob(test))) for mixture in (first(x), bic_mixture(x, 0))
    )
    assert ours > by_bic - 0.05


@pytest.mark.parametrize(
    ("rows", "names"),
    [(FEWEST_TO_GROW - 1, ["few"]), (FEWEST_TO_GROW, ["grown", "shrunk", "free"])],
)
def test_how_rows_are_described_follows_from_their_number(monkeypatch, rows, names):
    few = SimpleNamespace(mixture="few")
    monkeypatch.setattr(density, "mean_of_starts", lambda *_: few)
    monkeypatch.setattr(density, "bic_fits", lambda *_: ["shrunk", "free"])
    monkeypatch.setattr(density, "grown_fit", lambda *_: "grown")
    assert density_fits(np.zeros((rows, 3)), 0) == names


def test_fits_are_those_of_their_names():
    x = clusters(800, 2)
    by_bic = bic_mixture(x, 5)
    all_expected = grow(x, 5).on(x).mixture(x), go_on(by_bic, x, 1.0), go_on(by_bic, x, 0.0)
    for fit, expected in zip(density_fits(x, 5), all_expected, strict=True):
        for found, array in zip(fit(x), expected, strict=True):
            np.testing.assert_array_equal(found, array)


def test_modes_of_different_sizes_are_not_shrunk():
    """A thousandth as wide as what all have in common, for which one pseudo-row is too much."""
    rng = np.random.default_rng(0)
    centres, widths = rng.uniform(-4.0, 4.0, (12, 2)), np.geomspace(1e-3, 1.0, 12)

    def rows(n):
        own = rng.integers(0, 12, n)
        return centres[own] + widths[own, None] * rng.standard_normal((n, 2))

    train, held_out, test = rows(1500), rows(300), tf.constant(rows(3000))
    shrunk, free = bic_fits(train, 0)
    found = describe_rows([shrunk, free], train, held_out, 0)
    assert [one.fit for one in found.parts] == [free]
    assert tf.reduce_mean(found.smoothed.log_prob(test) - shrunk(train).log_prob(test)) > 0.1


def test_what_bic_found_is_shrunk_and_describes_further_rows_better():
    """Free covariances are too narrow for rows that EM has not seen."""
    x, test = clusters(2200, 4, modes=20), tf.constant(clusters(4000, 4, modes=20, seed=1))
    by_bic, shrunk = bic_mixture(x, 0), bic_fits(x, 0)[0](x)
    assert shrunk.num_components == by_bic.num_components
    gain = shrunk.log_prob(test) - by_bic.log_prob(test)
    error = tf.math.reduce_std(gain) / len(gain) ** 0.5
    assert tf.reduce_mean(gain) > 3.0 * error


def test_a_given_number_is_kept():
    x = clusters(60, 2)
    choice = choose_mixture(x, seed=0, components=7)
    assert (choice.components, choice.reason, choice.scores) == (7, "given", {})
    assert choose_mixture(clusters(900, 2), 0, components=7).covariances == FULL
    assert choose_mixture(x[:6], seed=0, components=6).components == 6


@pytest.mark.parametrize("rows", [40, 600])
def test_a_group_of_most_rows_leaves_enough_to_train_on(rows):
    groups = np.arange(rows) < rows // 10
    assert choose_mixture(clusters(rows, 2, modes=1), 0, groups).components <= 2


@pytest.mark.parametrize(("n", "components"), [(60, None), (60, 3), (600, None)])
def test_rows_of_one_group_are_all_held_out_or_none(monkeypatch, n, components):
    groups = np.random.default_rng(1).permutation(np.repeat(np.arange(n // 6), 6))
    x = np.column_stack([groups, np.random.default_rng(2).standard_normal(n)])
    found = []

    def of_few(x, parts, *_):
        found.extend([(x, part) for part in parts])
        return {1: 0.0}

    def of_many(x, held_out, seed):
        found.append((x, held_out))

    monkeypatch.setattr(choice, "_cross_validated", of_few)
    monkeypatch.setattr(choice, "_by_held_out_rows", of_many)
    choose_mixture(x, 0, groups, components)
    assert len(found) == (len(choice.COVARIANCES) * choice.FOLDS if n == 60 else 1)
    for rows, held_out in found:
        out, others = (set(part[:, 0]) for part in (rows[held_out], np.delete(rows, held_out, 0)))
        assert not out & others
        assert len(out) == n // 30


@pytest.mark.parametrize("rows", [60, 300])
def test_whatever_holds_out_rows_is_told_their_groups(monkeypatch, rows):
    told = []

    def found(x, seed, groups=None):
        told.append(groups)
        growth = SimpleNamespace(mixture=moments)
        return SimpleNamespace(mixture=moments, on=lambda x: growth)

    monkeypatch.setattr(density, "mean_of_starts", found)
    monkeypatch.setattr(density, "grow", found)
    groups = np.repeat(np.arange(rows // 6), 6)
    density_fits(clusters(rows, 2), 0, groups)
    assert len(told) == 1
    assert told[0] is groups


@pytest.mark.slow
def test_copies_do_not_choose_spikes():
    x = clusters(60, 2, modes=1)
    copies = np.repeat(x, 5, axis=0)
    alone = choose_mixture(copies, 0)
    grouped = choose_mixture(copies, 0, groups=np.repeat(np.arange(60), 5))
    assert grouped.components <= 3 < alone.components


@pytest.mark.parametrize(("rows", "ridge"), [(10, 1e-3), (9, 1e-2)])
def test_a_start_on_fewer_than_five_rows_for_each_number_of_a_mean_has_a_larger_ridge(rows, ridge):
    x = 3.0 * np.random.default_rng(0).standard_normal((rows, 1))
    found = em_start(x, 1, 0).covariances
    np.testing.assert_allclose(found, [[[(1.0 + ridge) * x.var()]]], rtol=1e-6)


def test_tied_covariances_are_one_for_all():
    mixture = em_mixture(clusters(200, 3), 4, 0, Covariances("tied", 1e-3))
    assert mixture.scale_trils.shape == (4, 3, 3)
    for o in range(4):
        np.testing.assert_allclose(mixture.scale_trils[o], mixture.scale_trils[0])


def two_ways(rows, columns, seed, apart=4.0):
    """Rows [N, D] that are Gaussian but for one column, in which there are two groups."""
    rng = np.random.default_rng(seed)
    side = rng.choice([-0.5, 0.5], rows)
    x = rng.normal(size=(rows, columns))
    x[:, rng.integers(columns)] += apart * side
    return x * rng.uniform(0.1, 10.0, columns), side > 0.0


@pytest.mark.parametrize(
    ("rows", "seed"),
    [
        (400, 2),
        *(
            pytest.param(*given, marks=pytest.mark.slow)
            for given in ((100, 0), (100, 1), (1500, 3))
        ),
    ],
)
def test_two_ways_that_one_column_of_many_tells_apart_are_found(rows, seed):
    x, side = two_ways(rows, 16, seed, apart=8.0)
    mixture = first(x)
    # Each component lies in one of them.
    own = mixture.log_responsibilities(x).numpy()
    on_one_side = np.logaddexp.reduce(own[side], axis=0) - np.logaddexp.reduce(own, axis=0)
    assert (np.abs(np.exp(on_one_side) - 0.5) > 0.48).all()
    assert choose_mixture(x, 0).components == 2


@pytest.mark.parametrize(
    ("n", "d", "few"), [(499, 2, True), (500, 2, False), (1559, 12, True), (1560, 12, False)]
)
def test_rows_are_few_by_the_numbers_of_a_covariance(n, d, few):
    assert are_few(n, d) == few


@pytest.mark.parametrize(
    ("covariances", "most"),
    [(FULL, 4), (Covariances("full", 1e-3), 20), (Covariances("tied", 1e-3), 30)],
)
def test_rows_can_tell_so_many_components_apart(covariances, most):
    """Sixty in two dimensions: 5 (D + 1) for each, or D + 1, or two."""
    assert choice.most_components(60, 2, covariances) == most
    assert choice.most_components(1, 2, covariances) == 1


def test_a_column_counts_by_what_two_means_leave_of_it():
    rng = np.random.default_rng(0)
    gaussian = rng.normal(size=100_000)
    standardised = (gaussian - gaussian.mean()) / gaussian.std()
    assert left_by_two_means(standardised) == pytest.approx(1.0 - 2.0 / np.pi, abs=0.01)
    assert left_by_two_means(np.repeat([-1.0, 1.0], 50)) == pytest.approx(0.0, abs=1e-12)
    assert left_by_two_means(np.zeros(10)) == 1.0


def test_fewer_different_rows_than_components_are_no_error(recwarn):
    x = np.repeat(np.random.default_rng(0).normal(size=(3, 2)), 20, axis=0)
    mixture = em_mixture(x, 5, 0, Covariances("tied", 1e-2))
    assert np.isfinite(mixture.log_prob(x)).all()
    assert not recwarn.list


@pytest.mark.parametrize("value", [0.1, 1234.567])
def test_a_constant_column_has_the_scale_one_however_it_is_rounded(value):
    """As where all rows that differ in it are held out: these are unlikely, but not for ever."""
    x = np.column_stack([np.full(60, value), np.random.default_rng(0).normal(size=60)])
    assert x.std(axis=0)[0] > 0.0
    assert standardised(x)[2][0] == 1.0
    held_out = x[:5] + [0.1, 0.0]
    assert em_mixture(x, 1, 0).log_prob(held_out).numpy().min() > -1e4
