"""How EM describes rows: shares of several fits, by held-out rows."""

from virl_tf.conditional import conditioned
from virl_tf.description import describe_rows
from virl_tf.em.density import density_fits
from virl_tf.mixture import moments
from virl_tf.tasks.experts import RandomExperts

import numpy as np
import pytest
import tensorflow as tf


@pytest.mark.slow
@pytest.mark.parametrize(("c", "waves"), [(4, 0.0), (2, 3.0)])
def test_a_mean_is_as_near_the_truth_as_the_best_of_its_parts(c, waves):
    """Few linear experts are Gaussians for BIC to find; waving ones need many, which grow."""
    seed = 301
    task = RandomExperts(10, c, seed, waves=waves)
    rows, fresh = (np.hstack(task.demonstrations(4000, s)) for s in (seed, seed + 100))
    train, held_out = rows[:3600], rows[3600:]
    fits = density_fits(train, seed)

    def of_fresh(fits):
        found = conditioned(describe_rows(fits, train, held_out, c)(train), c)
        return float(tf.reduce_mean(found.log_prob(fresh)))

    assert of_fresh(fits) > max(of_fresh([fit]) for fit in fits) - 0.01


def fits_of(*joints):
    return [lambda rows, joint=joint: joint for joint in joints]


def test_shares_are_those_of_the_rows_that_each_fit_explains():
    """Two modes, of which each fit knows one; a third, which explains nothing, goes."""
    rng = np.random.default_rng(0)
    at, elsewhere = rng.standard_normal((300, 2)), 50.0 + rng.standard_normal((100, 2))
    rows = rng.permutation(np.concatenate([at, elsewhere]))
    fits = fits_of(moments(at), moments(elsewhere), moments(at - 90.0))
    found = describe_rows(fits, rows, rows, 0)
    assert [one.fit for one in found.parts] == fits[:2]
    total = 301.0 + 101.0  # each with a pseudo-row; the third's goes
    np.testing.assert_allclose([one.share for one in found.parts], [301.0 / total, 101.0 / total])
    expected = np.logaddexp(*(np.log(one.share) + one.joint.log_prob(rows) for one in found.parts))
    for mixture in (found.unsmoothed, found.smoothed, found(rows)):
        np.testing.assert_allclose(mixture.log_prob(rows), expected)
        assert tf.reduce_logsumexp(mixture.log_weights).numpy() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("first", [0, 1])
def test_where_a_mean_gains_nothing_the_best_fit_is_taken(first):
    rows = np.random.default_rng(0).standard_normal((400, 3))
    joint = moments(rows)
    wider = joint._replace(scale_trils=1.01 * joint.scale_trils)
    fits = fits_of(*(joint, wider)[:: 1 - 2 * first])
    found = describe_rows(fits, rows[:300], rows[300:], 0)
    held_out = [fit(None).log_prob(rows[300:]).numpy().mean() for fit in fits]
    (one,) = found.parts
    assert (one.fit, one.share) == (fits[int(np.argmax(held_out))], 1.0)


def test_given_contexts_a_fit_counts_for_what_it_says_of_x():
    """Of two that are as wide over contexts the one that knows x from c; it alone is kept."""
    rng = np.random.default_rng(0)
    c = rng.standard_normal((600, 1))
    rows = np.hstack([c, 3.0 * c + 0.1 * rng.standard_normal((600, 1))])
    related, apart = moments(rows), moments(np.column_stack([c, rng.permutation(rows[:, 1])]))
    fits = fits_of(apart, related)
    found = describe_rows(fits, rows[:300], rows[300:], 1)
    assert [one.fit for one in found.parts] == fits[1:]
    assert found.parts[0].share == 1.0


def test_one_fit_is_taken_as_it_is():
    rows = np.random.default_rng(0).standard_normal((100, 3))
    joint = moments(rows)
    found = describe_rows([lambda rows: joint], rows, rows[:0], 0)
    assert found(rows) is found.smoothed is found.unsmoothed is joint


def test_the_same_is_made_of_further_rows():
    rng = np.random.default_rng(0)
    rows = rng.permutation(np.repeat([[0.0, 0.0], [9.0, 9.0]], 150, axis=0))
    rows += rng.standard_normal((300, 2))
    fits = [lambda x: moments(x[x[:, 0] < 4.5]), lambda x: moments(x[x[:, 0] >= 4.5])]
    found = describe_rows(fits, rows[:200], rows[200:], 0)
    assert [one.fit for one in found.parts] == fits
    further = 1.1 * rows
    expected = np.logaddexp(
        *(np.log(one.share) + one.fit(further).log_prob(further) for one in found.parts)
    )
    np.testing.assert_allclose(found(further).log_prob(further), expected)
