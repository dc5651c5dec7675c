"""Encodings of trajectories: identities, a slow reference, and episodes that cannot be used."""

import tracemalloc

import virl_tf
from virl_tf import InputError, fit_encoding, load_encoding, save_encoding
from virl_tf.trajectories import bases, choice
from virl_tf.trajectories.episodes import Episodes, check_episodes, resample

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

KINDS = [
    ("promp", {"size": 5}),
    ("promp", {"size": 4, "via": "start"}),
    ("promp", {"size": 4, "via": "goal"}),
    ("promp", {"size": 4, "via": ("start", "goal")}),
    ("waypoints", {"size": 5, "phase": "time"}),
    ("components", {"size": 4}),
]
IDS = [f"{kind}-{'-'.join(map(str, options.values()))}" for kind, options in KINDS]


def waves(n=40, steps=21, seed=0, noise=0.0):
    """Two bundles of smooth curves [n, steps, 2] of unequal units."""
    rng, s = np.random.default_rng(seed), np.linspace(0.0, 1.0, steps)[:, None]
    side = np.where(rng.uniform(size=(n, 1, 1)) < 0.5, -1.0, 1.0)
    bulge, shift = rng.normal(1.0, 0.1, (n, 1, 2)), rng.normal(0.0, 0.1, (n, 1, 2))
    curves = s * [1.0, 2.0] + side * bulge * np.sin(np.pi * s) + shift * np.cos(3.0 * s)
    return 50.0 + 10.0 * (curves + noise * rng.normal(size=curves.shape)) * [1.0, 0.01]


@pytest.fixture(scope="module", params=KINDS, ids=IDS)
def encoding(request):
    kind, options = request.param
    return fit_encoding(waves(), kind, **options)


def codes_for(encoding, n=7):
    """Random codes of the size that those of the waves have."""
    found = encoding.encode(waves())
    return found.mean(axis=0) + found.std(axis=0) * np.random.default_rng(1).normal(
        size=(n, encoding.dim)
    )


# --- identities -----------------------------------------------------------------------------------


def test_curves_of_the_span_come_back_exactly(encoding):
    x = codes_for(encoding)
    paths = encoding.decode(x).numpy()
    assert paths.shape == (7, 21, 2)
    np.testing.assert_allclose(encoding.encode(paths), x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(encoding.decode(encoding.encode(paths)), paths, rtol=1e-7)
    assert encoding.reconstruction(paths).rms.max() < 1e-5


def test_one_is_as_in_a_batch_and_any_axes_may_come_before(encoding):
    x = codes_for(encoding, 6)
    paths = encoding.decode(x)
    for row, path in zip(x, paths, strict=True):
        np.testing.assert_allclose(encoding.decode(row), path, rtol=1e-12)
    np.testing.assert_allclose(
        encoding.decode(x.reshape(2, 3, -1)), tf.reshape(paths, [2, 3, 21, 2]), rtol=1e-12
    )
    both = encoding.encode(paths)
    np.testing.assert_allclose(encoding.encode(paths[:2]), both[:2], rtol=1e-12, atol=1e-12)


def test_the_gradient_is_that_of_finite_differences_and_compiles(encoding):
    def roughness(x):
        return tf.reduce_sum(tf.square(encoding.decode(x)), axis=[1, 2])

    x, step = tf.constant(codes_for(encoding, 2)), 1e-4
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(roughness(x))
    found = tape.gradient(total, x).numpy()
    moves = step * np.eye(encoding.dim)
    for i, move in enumerate(moves):
        expected = (roughness(x + move) - roughness(x - move)) / (2.0 * step)
        np.testing.assert_allclose(found[:, i], expected, rtol=1e-4, atol=1e-3)
    compiled = tf.function(roughness, autograph=False, jit_compile=True)
    np.testing.assert_allclose(compiled(x), roughness(x), rtol=1e-10)


@pytest.mark.parametrize("x", [None, [[1.0], [2.0, 3.0]], np.array([None, 1.0]), "ab", [1j]])
def test_what_are_no_codes_is_refused_in_one_line(encoding, x):
    with pytest.raises(InputError, match=r"^codes must be an array of real numbers \[") as error:
        encoding.decode(x)
    assert "\n" not in str(error.value)


def test_float32_and_lists_are_codes_too(encoding):
    x = codes_for(encoding, 2)
    assert encoding.decode(x.astype(np.float32)).dtype == tf.float64
    np.testing.assert_allclose(encoding.decode(x.tolist()), encoding.decode(x))
    with pytest.raises(InputError, match=rf"codes must have shape \[\.\.\., {encoding.dim}\]"):
        encoding.decode(np.zeros((3, encoding.dim + 1)))
    with pytest.raises(InputError, match=r"got \(\)"):
        encoding.decode(1.0)


def test_what_is_no_encoding_is_not_saved(tmp_path):
    with pytest.raises(InputError, match=r"got 'paths.npz'; the path comes first"):
        save_encoding(fit_encoding(waves(), "promp", 4), "paths.npz")
    with pytest.raises(InputError, match=r"an Encoding is saved, got an array of shape \(3, 2\)"):
        save_encoding(tmp_path / "encoding.npz", np.zeros((3, 2)))
    assert not list(tmp_path.iterdir())


def test_it_is_saved_and_loaded(encoding, tmp_path):
    save_encoding(tmp_path / "encoding.npz", encoding)
    again = load_encoding(tmp_path / "encoding.npz")
    assert repr(again) == repr(encoding)
    assert again.code_columns == encoding.code_columns
    x = codes_for(encoding)
    np.testing.assert_array_equal(again.decode(x), encoding.decode(x))
    np.testing.assert_array_equal(again.encode(waves()), encoding.encode(waves()))
    first = (tmp_path / "encoding.npz").read_bytes()
    save_encoding(tmp_path / "encoding.npz", again)
    assert (tmp_path / "encoding.npz").read_bytes() == first


def test_sizes_and_repr(encoding):
    assert encoding.dim == len(encoding.code_columns) == len(encoding.basis)
    assert len(repr(encoding)) < 200
    assert f"[21, 2] <-> {encoding.dim} numbers" in repr(encoding)


# --- movement primitives --------------------------------------------------------------------------


def test_weights_are_those_of_a_regression_one_by_one():
    y = waves(5)
    encoding = fit_encoding(y, "promp", 5)
    phase, centres = np.linspace(0, 1, 21), np.linspace(0, 1, 5)
    functions = np.array(
        [[np.exp(-0.5 * ((s - c) / (bases.WIDTH / 4)) ** 2) for c in centres] for s in phase]
    )
    functions /= functions.sum(axis=1, keepdims=True)
    for episode, code in zip(y, encoding.encode(y), strict=True):
        weights = np.linalg.lstsq(functions, episode, rcond=None)[0]  # [5, 2]
        np.testing.assert_allclose(code.reshape(5, 2), weights, rtol=1e-5)
    assert encoding.code_columns[:3] == ("x0_w0", "x1_w0", "x0_w1")


@pytest.mark.parametrize(("kind", "options"), KINDS, ids=IDS)
def test_paths_do_not_depend_on_the_origin(kind, options):
    """As of a column of times since 1970."""
    near, far = waves(noise=0.05), waves(noise=0.05) + 1e9
    coded, expected = fit_encoding(far, kind, **options), fit_encoding(near, kind, **options)
    paths = coded.decode(coded.encode(far)).numpy() - 1e9
    np.testing.assert_allclose(paths, expected.decode(expected.encode(near)), atol=1e-4)
    np.testing.assert_allclose(coded.error, expected.error, rtol=1e-3)


def test_paths_go_through_start_and_goal():
    y = waves(noise=0.05)
    encoding = fit_encoding(y, "promp", 4, via=("start", "goal"))
    paths = encoding.decode(encoding.encode(y)).numpy()
    np.testing.assert_allclose(paths[:, [0, -1]], y[:, [0, -1]], rtol=1e-10)
    assert {"x0_start", "x1_goal"} < set(encoding.code_columns)


def test_no_via_points_may_be_none():
    assert fit_encoding(waves(), "promp", 4, via=None).dim == 8
    for via in (5, [["start"]], ["middle"]):
        with pytest.raises(InputError, match="via"):
            fit_encoding(waves(), "promp", 4, via=via)


def test_an_end_named_twice_is_one_end():
    once, twice = (fit_encoding(waves(), "promp", 4, via=["start"] * n) for n in (1, 2))
    np.testing.assert_array_equal(once.basis, twice.basis)
    assert once.code_columns == twice.code_columns


@pytest.mark.parametrize("kind", ["promp", "waypoints", "components"])
def test_what_all_episodes_share_is_no_number_of_the_code(kind):
    y = waves()
    y[:, :, 1] += np.linspace(0.0, 1.0, 21) * (3.0 - y[:, -1:, 1])
    y = np.concatenate([y - y[:, :1], np.ones((40, 21, 1))], axis=2)  # a start, a whole column
    options = {"via": ("start", "goal")} if kind == "promp" else {}
    encoding = fit_encoding(y, kind, **options)
    codes = encoding.encode(y)
    assert (codes.std(axis=0) > 0.0).all()
    draws = np.random.default_rng(0).normal(size=(3, encoding.dim))
    paths = encoding.decode(draws).numpy()
    np.testing.assert_allclose(paths[:, 0, :2], 0.0, atol=1e-9)
    np.testing.assert_allclose(paths[:, :, 2], 1.0)


@pytest.mark.parametrize("kind", ["promp", "waypoints"])
@pytest.mark.parametrize("value", [0.1, 1.7e6, 1e12])
@pytest.mark.parametrize("num_steps", [None, 16])
def test_a_constant_column_is_no_number_of_the_code_whatever_its_value(kind, value, num_steps):
    """Such as a height: its mean and its curves' weights are rounded, and its values between
    samples.
    """
    plain = fit_encoding(waves(), kind, phase="time", num_steps=num_steps)
    y = np.concatenate([waves(), np.full((40, 21, 1), value)], axis=2)
    found = fit_encoding(y, kind, phase="time", num_steps=num_steps)
    assert found.code_columns == plain.code_columns
    np.testing.assert_allclose(found.encode(y), plain.encode(y[:, :, :2]), atol=1e-9)
    np.testing.assert_allclose(found.decode(found.encode(y)).numpy()[:, :, 2], value, rtol=1e-9)


@pytest.mark.parametrize(("kind", "via"), [("waypoints", ()), ("promp", ("start", "goal"))])
def test_paths_of_three_steps_whose_ends_are_given_are_encoded(kind, via):
    """Nothing is left of a curve between the ends while the inner step is held out."""
    y = waves()[:, ::10]
    assert y.shape[1] == 3
    encoding = fit_encoding(y, kind, via=via, phase="time")
    np.testing.assert_allclose(encoding.decode(encoding.encode(y)), y, atol=1e-6)
    assert np.isfinite(encoding.error).all()


@pytest.mark.parametrize("steps", [3, 4, 5])
@pytest.mark.parametrize("via", ["start", ("start", "goal")])
def test_numbers_of_short_paths_with_via_points_do_not_follow_from_each_other(steps, via):
    y = np.random.default_rng(0).standard_normal((60, steps, 2))
    codes = fit_encoding(y, "promp", via=via, tolerance=9.0).encode(y)
    assert np.linalg.matrix_rank(codes - codes.mean(axis=0)) == codes.shape[1] <= 2 * steps


def test_the_size_is_the_fewest_that_lose_little_of_held_out_samples():
    y = waves(steps=41)
    errors = [
        bases.held_out_error(y, bases.movement_primitive(41, size, ())) / y.std(axis=(0, 1))
        for size in range(3, 20)
    ]
    relative = np.sqrt(np.mean(np.square(errors), axis=1))
    encoding = fit_encoding(y, "promp", tolerance=0.01)
    assert encoding.dim == 2 * (3 + int(np.argmax(relative <= 0.01)))
    np.testing.assert_allclose(encoding.error, errors[encoding.dim // 2 - 3] * y.std(axis=(0, 1)))


def test_noise_is_not_encoded():
    """Where no size is within the tolerance, held-out samples stop getting better early."""
    noisy = fit_encoding(waves(200, 41, noise=0.3), "promp")
    assert noisy.dim <= 16
    assert noisy.error[0] == pytest.approx(3.0, rel=0.2)


@pytest.mark.parametrize(
    "curves",
    [
        bases.movement_primitive(4000, 5, ()),
        bases.movement_primitive(4000, 5, ("start", "goal")),
        bases.spline(4000, 5),
    ],
    ids=["promp", "via", "waypoints"],
)
def test_long_paths_need_no_matrix_of_all_pairs_of_steps(curves):
    """Of 20,000 it would have 3 GiB."""
    y = np.random.default_rng(0).standard_normal((2, 4000, 1))
    tracemalloc.start()
    bases.held_out_error(y, curves)
    bases.projection(curves, np.arange(4000))
    largest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert largest < 4000 * 4000  # bytes; each pair has eight


@pytest.mark.parametrize("fold", range(2))
def test_held_out_samples_have_no_say_in_their_prediction(fold):
    y, curves = waves(4), bases.movement_primitive(21, 5, ())
    used = np.arange(21)[np.arange(21) % 5 != fold]
    changed = y.copy()
    changed[:, fold::5] += 100.0
    weights = bases.projection(curves, used)
    np.testing.assert_allclose(weights @ changed, weights @ y)


@pytest.mark.parametrize("steps", [11, 13])
def test_each_sample_is_held_out_once_but_for_the_ends(monkeypatch, steps):
    used, project = [], bases.projection
    monkeypatch.setattr(
        bases, "projection", lambda curves, rows: used.append(rows) or project(curves, rows)
    )
    bases.held_out_error(waves(4, steps), bases.movement_primitive(steps, 3, ()))
    assert len(used) == bases.FOLDS
    times_left_out = bases.FOLDS - np.bincount(np.concatenate(used))
    np.testing.assert_array_equal(times_left_out, [0, *[1] * (steps - 2), 0])


# --- waypoints and components ---------------------------------------------------------------------


def test_over_its_length_a_path_does_not_know_how_fast_it_was():
    s, angles = np.linspace(0.0, 1.0, 400), np.linspace(0.5, 3.0, 12)
    slow = [np.stack([np.cos(a * s), np.sin(a * s)], axis=1) for a in angles]
    hasty = [np.stack([np.cos(a * s**2), np.sin(a * s**2)], axis=1) for a in angles]
    encoding = fit_encoding(slow, "waypoints", 6)
    np.testing.assert_allclose(encoding.encode(hasty), encoding.encode(slow), atol=1e-4)
    over_time = fit_encoding(slow, "promp", 6)
    assert np.abs(over_time.encode(hasty) - over_time.encode(slow)).max() > 0.1


def test_waypoints_begin_and_end_where_the_path_does():
    y = waves()
    encoding = fit_encoding(y, "waypoints", 5)
    codes = encoding.encode(y).reshape(40, 5, 2)
    np.testing.assert_allclose(codes[:, [0, -1]], y[:, [0, -1]], rtol=1e-10)


def test_components_are_the_eigenvectors_of_the_covariance():
    y = waves()
    encoding = fit_encoding(y, "components", 3)
    z = ((y - y.mean(axis=0)) / y.std(axis=(0, 1))).reshape(40, -1)
    values = np.linalg.eigvalsh(z.T @ z / 40)[::-1]
    codes = encoding.encode(y)
    np.testing.assert_allclose(codes.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(codes.T @ codes / 40, np.diag(values[:3]) / 42, atol=1e-9)


def test_components_of_held_out_episodes_one_by_one():
    y, scale = waves(11), np.array([3.0, 0.2])
    found = bases.held_out_errors(y, 2, scale)
    squares = np.zeros((11, 2))
    for i in range(11):
        rest = np.delete(y, np.arange(i % 5, 11, 5), axis=0)
        mean, parts = bases.components(rest, 2, scale)
        left = (y[i] - mean) / scale
        fitted = np.einsum("ctd,td->c", parts, left)
        squares[i] = (((left - np.tensordot(fitted, parts, 1)) * scale) ** 2).mean(axis=0)
    np.testing.assert_allclose(found[1], np.sqrt(squares.mean(axis=0)))


def test_the_kind_that_needs_fewer_numbers_is_chosen():
    y = waves(60)
    chosen, promp, components = (fit_encoding(y, kind) for kind in ("auto", "promp", "components"))
    assert components.dim < promp.dim
    assert chosen.kind == "components"
    assert fit_encoding(y, via="start").kind == "promp"


def test_a_code_leaves_two_episodes_to_each_number():
    rng = np.random.default_rng(0)
    rough = np.cumsum(rng.normal(size=(24, 60, 2)), axis=1)
    for kind in ("promp", "waypoints", "components"):
        assert fit_encoding(rough, kind, tolerance=1e-9).dim <= 12


# --- lengths and times ----------------------------------------------------------------------------


def test_episodes_of_unequal_lengths_are_as_if_resampled(encoding):
    s = np.linspace(0.0, 1.0, 21)
    bent = [
        np.stack([np.interp(np.linspace(0, 1, n), s, x) for x in path.T], axis=1)
        for path, n in zip(waves(6), (41, 81, 61, 21, 101, 41), strict=True)
    ]
    np.testing.assert_allclose(encoding.encode(bent), encoding.encode(waves(6)), rtol=1e-9)


def test_times_say_where_a_sample_is():
    rng, y = np.random.default_rng(0), waves(6, 2001)
    rows = [np.sort(np.r_[0, 2000, rng.choice(np.arange(1, 2000), 400)]) for _ in y]
    rows = [np.unique(r) for r in rows]
    clocks = [5.0 + 0.1 * r for r in rows]
    some = [path[r] for path, r in zip(y, rows, strict=True)]
    encoding = fit_encoding(some, "promp", 6, times=clocks)
    np.testing.assert_allclose(encoding.encode(some, clocks), encoding.encode(y), atol=0.02)
    assert encoding.duration == 200.0
    assert encoding.times[-1] == 200.0
    assert encoding.num_steps == int(np.median([len(r) for r in rows]))


def test_the_same_places_at_other_times_are_no_copy():
    y, clock = waves(8), np.linspace(0.0, 1.0, 21)
    y[5] = y[2]
    found = check_episodes(y, [*[clock] * 5, clock**2, *[clock] * 2])
    first, other = resample(found, 15, "time")[[2, 5]]
    assert np.abs(first - other).max() > 1.0
    with pytest.raises(InputError, match=r"episode 5 is a copy \(first: of 2\)"):
        check_episodes(y, [*[clock] * 5, 100.0 + clock, *[clock] * 2])


def test_one_clock_for_all():
    y, clock = waves(), np.linspace(0.0, 1.0, 21) ** 2
    np.testing.assert_array_equal(
        resample(check_episodes(y, clock), 15, "time"),
        resample(check_episodes(list(y), [clock] * 40), 15, "time"),
    )


@pytest.mark.parametrize("labels", [range(5, 26), [f"sample {i}" for i in range(21)]])
def test_a_clock_counts_whatever_its_samples_are_called(labels):
    """As of a part of a frame, or one whose index is text."""
    clock = pd.Series(np.linspace(0.0, 1.0, 21) ** 2, index=labels)
    expected = check_episodes(waves(), clock.to_numpy()).times
    for times in (clock, [clock] * 40, dict.fromkeys(range(40), clock).values()):
        np.testing.assert_array_equal(check_episodes(waves(), times).times, expected)


def test_even_arrays_are_resampled_as_lists():
    y = waves(5)
    for phase in ("time", "length"):
        whole, one = (resample(check_episodes(given), 33, phase) for given in (y, list(y)))
        np.testing.assert_allclose(whole, one, rtol=1e-12)


def test_the_error_is_that_of_recorded_samples():
    y = [*waves(9, 21), 3.0 + waves(1, 35, noise=0.3)[0]]
    encoding = fit_encoding(y, "promp", 5)
    assert encoding.num_steps == 21
    found = encoding.reconstruction(y)
    assert found.worst == "9"
    paths = encoding.decode(encoding.encode(y)).numpy()
    last = np.stack(
        [np.interp(np.linspace(0, 1, 35), np.linspace(0, 1, 21), x) for x in paths[9].T]
    )
    errors = [*(paths[:9] - np.stack(y[:9])), last.T - y[9]]
    np.testing.assert_allclose(found.rms, np.sqrt((np.concatenate(errors) ** 2).mean(axis=0)))
    np.testing.assert_allclose(found.episodes[9], np.sqrt((errors[9] ** 2).sum(axis=1).mean()))
    assert "worst episode: 9" in repr(found)


def test_many_columns_are_not_all_shown():
    y = np.random.default_rng(0).normal(size=(30, 10, 9)).cumsum(axis=1)
    assert "and 3 more up to" in repr(fit_encoding(y, "components", 3).reconstruction(y))


# --- what misleads --------------------------------------------------------------------------------


def turning(period=360.0, start=170.0, n=6):
    """Headings that cross +-180 degrees, and a place."""
    phase = np.linspace(0.0, 1.0, 30)
    heading = start + np.arange(n)[:, None] + 40.0 * phase
    wrapped = (heading + 180.0) % 360.0 - 180.0
    place = np.arange(n)[:, None] * phase + phase**2
    return np.stack([place, wrapped * period / 360.0], axis=2)


@pytest.mark.parametrize(("period", "written"), [(360.0, "360"), (2.0 * np.pi, r"2 \* np\.pi")])
def test_an_angle_that_wraps_along_a_path_is_warned_of(period, written):
    said = rf"column 'x1' jumps by a whole turn within 6 of 6 .* np\.unwrap\(x, period={written}\)"
    with pytest.warns(UserWarning, match=said):
        fit_encoding(turning(period), "promp", 4)


@pytest.mark.parametrize(
    "y",
    [
        np.unwrap(turning(), axis=1, period=360.0),
        turning(start=20.0),
        np.stack([turning()[..., 0], np.round(turning()[..., 0] % 1.0) * 360.0], axis=2)[:, ::3],
    ],
    ids=["unwrapped", "no wrap", "a switch"],
)
def test_what_is_no_wrapped_angle_is_not_warned_of(y, recwarn):
    fit_encoding(y, "promp", 4)
    assert not any("turn" in str(warning.message) for warning in recwarn.list)


def test_an_encoding_that_loses_most_of_its_trajectories_says_so():
    noise = np.random.default_rng(0).normal(size=(40, 50, 2))
    with pytest.warns(UserWarning, match=r"^1\d numbers lose 0\.9\d? of a column"):
        fit_encoding(noise)


@pytest.mark.filterwarnings("error")
def test_what_is_lost_to_rounding_is_not_warned_of():
    t, weights = np.linspace(0.0, np.pi, 30), np.random.default_rng(0).normal(size=(60, 2, 1, 2))
    paths = weights[:, 0] * np.sin(t)[:, None] + weights[:, 1] * np.sin(2.0 * t)[:, None]
    encoding = fit_encoding(paths)
    assert encoding.error.max() < 1e-12
    encoding.encode(paths.round(6))


@pytest.mark.parametrize("away", [0.0, 5e6])
def test_a_path_that_codes_do_not_stand_for_is_warned_of(away):
    """Also where it is far from 0, as on a map."""
    encoding = fit_encoding(waves(noise=0.01) + away, "promp", 6)
    wobble = 0.5 * np.sin(np.linspace(0.0, 60.0, 21))[:, None] + away
    with pytest.warns(
        UserWarning, match=r"1 of 3 trajectories \(first: 2\) lost more than 7 times"
    ):
        encoding.encode([*(waves(2, seed=1) + away), waves(1, seed=2)[0] + wobble])
    with pytest.warns(UserWarning, match="^this trajectory lost"):
        encoding.encode([waves(1, seed=2)[0] + wobble])


def test_paths_like_the_demonstrated_ones_are_not_warned_of(encoding, recwarn):
    encoding.encode(waves(20, seed=5))
    assert not recwarn.list


def test_columns_of_frames_count_by_their_names():
    y = [pd.DataFrame(one, columns=["x", "y"]) for one in waves(8)]
    encoding = fit_encoding(y, "promp", 4)
    assert encoding.columns == ("x", "y")
    np.testing.assert_allclose(encoding.encode(y), encoding.encode(waves(8)), rtol=1e-9)
    with pytest.raises(InputError, match="columns y, x; expected are x, y, in this order"):
        encoding.encode([one[["y", "x"]] for one in y])
    with pytest.raises(InputError, match="columns y, x; expected are x, y"):
        encoding.encode(check_episodes([one[["y", "x"]] for one in y]))
    with pytest.raises(
        InputError, match="episode 3 has the columns y, x, where episode 0 has x, y"
    ):
        fit_encoding([*y[:3], y[3][["y", "x"]]], "promp", 4)
    by_number = fit_encoding(waves(8), "promp", 4)
    np.testing.assert_allclose(by_number.encode(y), by_number.encode(waves(8)), rtol=1e-9)


@pytest.mark.parametrize(
    "kind", [lambda y: y.convert_dtypes(), lambda y: y.astype({"y": "Float32"}), pd.DataFrame]
)
def test_frames_may_have_columns_of_several_kinds_of_numbers(kind):
    """As `fit` takes them: whether a hand is closed, and numbers that may be missing."""
    plain = [pd.DataFrame(one, columns=["x", "y"]) for one in waves(8).astype(np.float32)]
    plain = [one.assign(closed=one["x"] > one["x"].mean()) for one in plain]
    frames = [kind(one) for one in plain]
    expected = check_episodes([one.to_numpy(np.float64) for one in plain]).values
    np.testing.assert_array_equal(check_episodes(frames).values, expected)
    assert check_episodes(frames).columns == ("x", "y", "closed")
    frames[3] = frames[3].astype("Float64")
    frames[3].loc[4, "y"] = pd.NA
    with pytest.raises(InputError, match=r"3 is not finite: .* \(first: sample 4, column 'y'\)"):
        check_episodes(frames)
    with pytest.raises(InputError, match="episode 0 must be real numbers"):
        check_episodes([one.assign(name="1.5") for one in frames])


def test_columns_that_are_called_as_unnamed_ones_have_an_order():
    y = [pd.DataFrame(one, columns=["x0", "x1"]) for one in waves(8)]
    for encoding in (fit_encoding(y, "promp", 4), fit_encoding(waves(8), "promp", 4)):
        with pytest.raises(InputError, match="columns x1, x0; expected are x0, x1, in this order"):
            encoding.encode([one[["x1", "x0"]] for one in y])
    others = [one[["x1", "x0"]] for one in y]
    swapped = fit_encoding(others, "promp", 4)
    np.testing.assert_allclose(swapped.encode(waves(8)[..., ::-1]), swapped.encode(others))


@pytest.mark.parametrize("given", [iter, lambda y: dict(enumerate(y)).values()])
def test_frames_one_after_the_other_have_their_names(given):
    """As of a generator, or a dictionary by person: another order is another column."""
    y = [pd.DataFrame(one, columns=["x", "y"]) for one in waves(8)]
    encoding = fit_encoding(given(y), "promp", 4)
    assert encoding.columns == ("x", "y")
    with pytest.raises(InputError, match="columns y, x; expected are x, y, in this order"):
        encoding.encode(given([one[["y", "x"]] for one in y]))


# --- what is refused ------------------------------------------------------------------------------


def spoilt(change):
    """A list of waves, changed."""
    y = list(waves(8))
    change(y)
    return y


def put(i, value):
    return lambda y: y.__setitem__(i, value)


@pytest.mark.parametrize(
    ("trajectories", "message"),
    [
        (
            np.zeros((5, 3)),
            r"\[N, T, D\] or a list .* got float64 \[5, 3\]; one trajectory \[T, D\] is",
        ),
        (3.0, r"trajectories must be real numbers"),
        (np.zeros((4, 5, 2), complex), "got complex128"),
        ([], "0 trajectories; at least two"),
        (waves(1), "1 trajectories; at least two"),
        (spoilt(put(3, [[1.0, 2.0], [3.0]])), "episode 3 must be .* rows of different lengths"),
        (
            spoilt(put(3, np.zeros(5))),
            r"episode 3 must be real numbers \[T, D\], got float64 \[5\]",
        ),
        (spoilt(put(3, np.array([["a", "b"]] * 4))), "episode 3 must be real numbers"),
        (spoilt(put(3, np.zeros((21, 3)))), "episode 3 is of another width: 3 .* where 0 has 2"),
        (spoilt(put(5, np.zeros((2, 2)))), "episode 5 is too short: 2 samples; at least 3"),
        (np.zeros((4, 2, 3)), "too short"),
        (np.zeros((4, 5, 0)), "no columns"),
        (
            spoilt(lambda y: [y[2].__setitem__((4, 1), np.nan), y[6].__setitem__(0, np.inf)]),
            r"episodes 2, 6 are not finite: .* \(first: sample 4, column 'x1'\)",
        ),
        (spoilt(put(7, np.ones((9, 2)))), "episode 7 is constant: nothing moves"),
        (spoilt(lambda y: put(6, y[1])(y)), r"episode 6 is a copy \(first: of 1\)"),
        (spoilt(lambda y: put(slice(1, 8), y[:1] * 7)(y)), r"episodes 1, 2, 3, 4, 5 and 2 more"),
    ],
)
def test_episodes_that_cannot_be_used_are_named(trajectories, message):
    with pytest.raises(InputError, match=message) as error:
        fit_encoding(trajectories, "promp", 4)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [np.ma.array, list])
def test_what_a_mask_hides_is_missing(kind):
    y = np.ma.masked_greater(waves(8), np.sort(waves(8).ravel())[-2])
    with pytest.raises(InputError, match="not finite"):
        fit_encoding(kind(y), "promp", 4)


@pytest.mark.parametrize("number", [1, 8])
def test_what_a_mask_hides_of_times_is_missing(number):
    clock = np.ma.masked_equal(np.arange(21.0), 4.0)
    times = clock if number == 1 else np.ma.stack([clock] * 8)
    with pytest.raises(InputError, match=r"0: its times are not finite \(nan in sample 4\)"):
        check_episodes(waves(8), times)


def test_errors_have_the_names_of_episodes_and_columns():
    y = spoilt(lambda y: y[2].__setitem__((4, 1), np.nan))
    names, columns = [f"walk_{i}.csv" for i in range(8)], ["speed", "heading"]
    with pytest.raises(InputError, match=r"walk_2.csv is not finite.*sample 4, column 'heading'"):
        check_episodes(y, names=names, columns=columns)
    with pytest.raises(InputError, match="3 for 8"):
        check_episodes(waves(8), names=["a", "b", "c"])
    with pytest.raises(InputError, match="1 names for trajectories of 2"):
        check_episodes(waves(8), columns=["a"])


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([np.arange(21.0)] * 7, "times: 7 for 8"),
        (
            [*[np.arange(21.0)] * 7, np.arange(20.0)],
            r"episode 7 has 21 samples, but times .*\[20\]",
        ),
        (np.zeros(21), r"episode 0: its times do not increase \(first: sample 1\)"),
        ([*[np.arange(21.0)] * 7, np.r_[0:20.0, np.nan]], r"7: .* not finite \(nan in sample 20\)"),
        ("abc", "times must be numbers"),
        (5.0, "times must be numbers"),
        ([], "times must be numbers"),
    ],
)
def test_times_that_cannot_be_used(times, message):
    with pytest.raises(InputError, match=message):
        check_episodes(waves(8), times)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("prompt", {}, "did you mean 'promp'"),
        ("auto", {"size": 3}, "give one of promp, waypoints, components"),
        ("components", {"via": "start"}, "via is for movement primitives"),
        ("promp", {"via": "finish"}, "unknown via-point 'finish'"),
        ("promp", {"size": 22}, "size is 22, more than the 21 steps"),
        ("promp", {"size": 20, "via": ("start", "goal")}, "21 .* but for 2 via-points"),
        ("promp", {"size": 1}, "size must be an integer >= 2"),
        ("components", {"size": 40}, "size is 40; .* at most 39 components"),
        ("components", {"size": 39, "num_steps": 12}, "of 24 numbers have at most 24 components"),
        ("promp", {"phase": "space"}, "unknown phase 'space'"),
        ("promp", {"num_steps": 2}, "num_steps must be"),
        ("promp", {"tolerance": 0.0}, "tolerance must be"),
    ],
)
def test_arguments_that_cannot_be_used(kind, options, message):
    with pytest.raises(InputError, match=message):
        fit_encoding(waves(), kind, **options)


def test_paths_that_differ_in_nothing_but_speed_are_refused_over_their_length():
    s = np.linspace(0.0, 1.0, 50)[:, None]
    with pytest.raises(InputError, match="all trajectories are the same path"):
        fit_encoding([s * [1.0, 2.0], s**2 * [1.0, 2.0]], "waypoints", 4)


def test_another_width_is_refused():
    encoding = fit_encoding(waves(), "promp", 4)
    with pytest.raises(InputError, match="the columns x0; expected are x0, x1, in this order"):
        encoding.encode(waves()[..., :1])


@pytest.mark.parametrize(
    "changed",
    [
        {"basis": np.zeros((2, 3))},
        {"offset": np.full((21, 2), np.nan)},
        {"kind": np.array("lambda")},
        {"duration": np.zeros(2)},
        {"columns": np.zeros(2)},
        {"code_columns": np.array("x")},
        {"error": np.zeros(3)},
        {"extra": np.zeros(3)},
    ],
    ids=str,
)
def test_damaged_files_are_refused(tmp_path, changed):
    path = tmp_path / "encoding.npz"
    save_encoding(path, fit_encoding(waves(), "promp", 4))
    with np.load(path) as arrays:
        held = dict(arrays)
    np.savez(path, **{**held, **changed})
    with pytest.raises(InputError, match="is not an encoding"):
        load_encoding(path)


# --- in the middle of everything ------------------------------------------------------------------


def test_a_constraint_on_paths_enters_fit_policy():
    y = waves(60)
    encoding = fit_encoding(y, "promp", 4)
    codes = encoding.encode(y)
    middle = y[:, 10, 0].mean()

    def log_prob(x):
        z = (x - codes.mean(axis=0)) / codes.std(axis=0)
        return -0.5 * tf.reduce_sum(z**2, axis=1)

    def above(x):
        return encoding.decode(x)[:, 10, 0] > middle

    start = virl_tf.mixture.gaussian(codes.mean(axis=0), np.diag(codes.var(axis=0)))
    options = {"search": False, "num_steps": 15, "initial_policy": start, "seed": 0}
    fitted = virl_tf.fit_policy(log_prob, encoding.dim, 1, support=above, **options)
    paths = encoding.decode(fitted.policy.sample(300, seed=0)).numpy()
    assert (paths[:, 10, 0] > middle).mean() > 0.9


def test_one_path_is_encoded_and_the_same_one_twice():
    paths = np.random.default_rng(0).standard_normal((8, 12, 2)).cumsum(axis=1)
    encoding = fit_encoding(paths)
    codes = encoding.encode(paths)
    np.testing.assert_allclose(encoding.encode([paths[3]]), codes[3:4])
    np.testing.assert_allclose(encoding.encode(paths[[3, 3]]), codes[[3, 3]])
    with pytest.raises(InputError, match="0 trajectories; at least one is needed"):
        encoding.encode([])
    with pytest.raises(InputError, match="not finite"):
        encoding.encode([np.full((12, 2), np.nan)])


def test_an_encoding_that_cannot_be_written_is_one_clear_error(tmp_path):
    path = tmp_path / "no such folder" / "encoding.npz"
    with pytest.raises(InputError, match=r"cannot write .*encoding\.npz: No such file"):
        save_encoding(path, fit_encoding(waves(), "promp", 4))


def test_of_many_episodes_those_are_fitted_that_are_spread_over_all(monkeypatch):
    monkeypatch.setattr(choice, "MOST_FITTED", 4)
    values = np.arange(10.0)[:, None, None] + np.zeros((10, 3, 1))
    some = choice._some(Episodes(values, None, [str(i) for i in range(10)], ("x",)))
    np.testing.assert_array_equal(some.values[:, 0, 0], [0.0, 3.0, 6.0, 9.0])
