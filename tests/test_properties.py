"""Bad input, in bulk: whatever is handed in, a function works and keeps its promises, or raises
`InputError`.

Some thousand cases, always the same ones, in half a minute; with -m slow all of them of what takes
longer, too. 20 times as many, and other ones each time, in some 10 minutes:

    VIRL_TF_EXAMPLES=20 pytest -s tests/test_properties.py
"""

import contextlib
import dataclasses
import io
import math
import os
import shutil
import sys
import warnings
from collections import Counter

from virl_tf import InputError, fit, fit_policy, metrics, tasks
from virl_tf.hparams import DIRECTORY, SECTIONS, default_hparams
from virl_tf.importance import effective_sample_size, normalise
from virl_tf.kde import fit_kde
from virl_tf.methods import METHODS
from virl_tf.mixture import Mixture, kmeans_start, moments, samples_start
from virl_tf.numerics import DENSITY, compiled
from virl_tf.validation import check_demonstrations, check_integer, check_positive, check_seed
from virl_tf.vips.vips import StepOptions, vips_steps
from virl_tf.yaml_files import parse_yaml, to_yaml

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from experiments import cli
from tests import tiny
from tests.shared import make_mixture, make_network, make_reward

pytestmark = pytest.mark.usefixtures("quick")
MANY = int(os.environ.get("VIRL_TF_EXAMPLES", "1"))


@pytest.fixture(params=[0.3, pytest.param(1.0, marks=[pytest.mark.slow] * (MANY == 1))])
def share(request, monkeypatch):
    """Of the cases of what takes seconds; all of them where more are asked for."""
    monkeypatch.setattr(sys.modules[__name__], "SHARE", request.param if MANY == 1 else 1.0)


SHARE = 1.0


def explore(check, examples, outcomes=("worked", "refused"), **strategies):
    """Run `check` on many cases: it passes or raises InputError.

    All `outcomes`, and no other ones, must have happened.
    """
    seen = Counter()

    @settings(
        max_examples=math.ceil(examples * SHARE * MANY),
        derandomize=MANY == 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(**strategies)
    def run(**case):
        try:
            check(**case)
        except InputError:
            seen["refused"] += 1
        else:
            seen["worked"] += 1

    with warnings.catch_warnings():
        warnings.simplefilter(
            "error", RuntimeWarning
        )  # an overflow that NumPy mentions is one that nobody handled
        run()
    print(f"\n{sum(seen.values())} cases: {dict(seen)}")
    assert set(seen) == set(outcomes)


# --- what is tried --------------------------------------------------------------------------------

SCALES = st.floats(-12.0, 12.0).map(lambda exponent: 10.0**exponent)
KINDS = {
    "normal": lambda x, rng: x,
    "duplicates": lambda x, rng: x[rng.integers(0, max(1, len(x) // 4), len(x))],
    "two points": lambda x, rng: x[rng.integers(0, 2, len(x))] if len(x) > 1 else x,
    "collinear": lambda x, rng: x[:, :1] * (1.0 + np.arange(x.shape[1])),
    "nearly collinear": lambda x, rng: x[:, :1] + 1e-9 * x,
    "constant column": lambda x, rng: x * (np.arange(x.shape[1]) > 0),
    "nearly constant": lambda x, rng: 1.0 + 1e-11 * x,
    "heavy tails": lambda x, rng: x / np.maximum(np.abs(rng.standard_normal(x.shape)), 1e-3) ** 2,
    "outlier": lambda x, rng: np.concatenate([x[:-1], 1e9 * x[-1:]]),
    "integers": lambda x, rng: np.round(x),
    "nan": lambda x, rng: np.where(np.arange(len(x))[:, None] == 0, np.nan, x),
    "infinite": lambda x, rng: np.where(np.arange(len(x))[:, None] == len(x) - 1, np.inf, x),
}


@st.composite
def data(draw, shapes, kinds=tuple(KINDS)):
    """[N, D] of many kinds, each column with its own scale and offset."""
    n, d = draw(st.sampled_from(shapes))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = KINDS[draw(st.sampled_from(kinds))](rng.standard_normal((n, d)), rng)
    one, other = draw(SCALES), draw(SCALES)  # two scales are as bad as fifty
    scale = np.where(np.arange(d) % 2, one, other)
    return scale * (x + draw(st.sampled_from([0.0, 1.0, -1e3, 1e6])))


def mostly(usual, other):
    """Values of `usual` in half of the cases."""
    return st.booleans().flatmap(lambda choice: usual if choice else other)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.binary(max_size=3),
)


def assert_valid(mixture: Mixture):
    """Normalised weights, finite means, triangular factors of positive definite covariances."""
    log_weights, means, trils = (np.asarray(a) for a in mixture)
    np.testing.assert_allclose(np.exp(log_weights).sum(), 1.0, rtol=1e-9)
    assert not np.isnan(log_weights).any()
    assert np.isfinite(means).all()
    assert np.isfinite(trils).all()
    assert (np.diagonal(trils, axis1=1, axis2=2) > 0.0).all()
    assert (np.triu(trils, 1) == 0.0).all()


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("share")
def test_any_array_is_checked():
    def check(x):
        checked = check_demonstrations(x)
        assert checked.dtype == np.float64
        assert checked.ndim == 2
        assert len(checked) >= checked.shape[1] + 2
        assert np.isfinite(checked).all()
        assert np.isfinite(checked.std(axis=0)).all()
        assert (checked.std(axis=0) > 0.0).all()

    shapes = st.one_of(
        npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7),
        st.sampled_from([(8, 2), (5, 1), (20, 9), (3, 2)]),
    )
    arrays = npst.arrays(st.one_of(npst.scalar_dtypes(), st.just(np.dtype("f8"))), shapes)
    explore(
        check,
        250,
        x=st.one_of(
            arrays, arrays.map(lambda a: a.tolist()), data([(8, 2), (3, 1), (1, 2)]), ANYTHING
        ),
    )


def test_any_number_is_checked():
    def check(value):
        assert isinstance(check_seed(value), int)
        assert 0 <= check_integer("n", value, 0) < 2**63
        if value > 0:
            assert 0.0 < check_positive("x", value) < np.inf

    numbers = (
        npst.from_dtype(np.dtype("i8"))
        | npst.from_dtype(np.dtype("u1"))
        | npst.from_dtype(np.dtype("f4"))
    )
    explore(check, 300, value=ANYTHING | numbers)


# --- hyperparameters ------------------------------------------------------------------------------

YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=10,
)
NAMES = [
    f"{section}.{f.name}" for section, kind in SECTIONS.items() for f in dataclasses.fields(kind)
]
# Pieces that YAML reads in special ways.
PIECES = [
    "1:30",
    "0x1",
    "0o7",
    "1e5",
    "1e400",
    ".inf",
    ".nan",
    "~",
    "y",
    "2001-1-1",
    "0001-01-01T00:00:00+23:00",
    "!!binary x",
]
PIECES += [
    "!!float ",
    "!!set {a}",
    "!!omap [a: 1]",
    "!!pairs x",
    "<<: ",
    "&a ",
    "*a",
    "? ",
    ": ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    "|\n",
    ">",
]
PIECES += [
    "!!timestamp 1",
    "'",
    '"',
    "#",
    "%",
    "\n",
    "\t",
    "\x85",
    "\u2028",
    "\ufeff",
    "!",
    "!!python/name:os.system",
    "network: ",
    "5",
]
TEXTS = st.text(max_size=20) | st.lists(st.sampled_from(PIECES), max_size=6).map("".join)


def test_yaml_comes_back_as_it_was():
    def check(value):
        assert parse_yaml(to_yaml(value), "test") == value

    explore(check, 200, outcomes=["worked"], value=YAML_VALUES)


def test_any_text_is_yaml_or_refused():
    explore(lambda text: parse_yaml(text, "test"), 500, text=TEXTS)


def test_any_override_gives_valid_hyperparameters():
    names = st.sampled_from(NAMES + ["network.layers", "nothing.here"])
    good = st.sampled_from(
        [
            0,
            1,
            2,
            8,
            0.5,
            1e-3,
            True,
            False,
            None,
            "warm",
            "kmeans",
            "held_out",
            "absolute",
            "moments",
            10**400,
            1e-320,
        ]
    )

    def check(method, name, value):
        section, key = name.split(".")
        hparams = default_hparams(method).override({section: {key: value}})
        assert hparams.override(hparams.to_dict()) == hparams
        assert (
            default_hparams(method).override(parse_yaml(to_yaml(hparams.to_dict()), "test"))
            == hparams
        )

    explore(
        check,
        400,
        method=st.sampled_from(sorted(METHODS)),
        name=names,
        value=mostly(good, ANYTHING | YAML_VALUES),
    )


def test_any_structure_is_an_override_or_refused():
    sections = st.dictionaries(
        st.sampled_from([*SECTIONS, "networks"]), YAML_VALUES | st.just({}), max_size=3
    )
    explore(lambda value: default_hparams().override(value), 200, value=sections | YAML_VALUES)


# --- densities ------------------------------------------------------------------------------------

# Few shapes: TensorFlow traces its functions anew for each.
SHAPES = [(4, 1), (30, 2), (60, 5), (60, 50)]


def checked(x):
    x = check_demonstrations(x)
    return x, x.mean(axis=0), x.std(axis=0)


@pytest.mark.usefixtures("share")
def test_kde():
    def check(x, bandwidth, scale):
        x, _, _ = checked(x)
        kde = fit_kde(x, bandwidth, scale)
        assert np.isfinite(kde.bandwidth).all()
        assert (np.asarray(kde.bandwidth) > 0.0).all()
        assert np.isfinite(kde.log_prob(x)).all()
        assert np.isfinite(kde.sample(3, [0, 1])).all()
        far = kde.log_prob(x[:1] + 1e3 * x.std(axis=0))
        assert not np.isnan(far).any()

    bandwidths = st.sampled_from(["silverman", "held_out"]) | st.floats(0.0, 1.0, exclude_min=True)
    explore(
        check,
        60,
        x=data(SHAPES),
        bandwidth=bandwidths,
        scale=st.sampled_from(["absolute", "relative"]),
    )


def test_starts_of_the_policy():
    def check(x, start, seed):
        x, centre, spread = checked(x)
        policy = {
            "moments": lambda: moments(x),
            "samples": lambda: samples_start(x, 3, seed),
            "kmeans": lambda: kmeans_start(x, 3, seed),
        }[start]()
        assert_valid(policy)
        assert (np.abs(policy.means - centre) <= 2.0 * np.sqrt(len(x)) * spread).all()
        assert np.isfinite(policy.log_prob(x)).all()

    starts = st.sampled_from(["moments", "samples", "kmeans"])
    explore(check, 60, x=data(SHAPES), start=starts, seed=st.integers(0, 2**31 - 1))


def test_importance_weights():
    def check(log_weights):
        log_w = normalise(tf.constant(log_weights, DENSITY))
        assert not np.isnan(log_w).any()
        np.testing.assert_allclose(np.exp(log_w).mean(), 1.0, rtol=1e-6)
        size = float(effective_sample_size(log_w))
        assert 1.0 - 1e-6 <= size <= 20.0 * (1.0 + 1e-6)

    values = st.floats(-1e6, 1e6) | st.floats(-30.0, 30.0) | st.just(-np.inf)
    weights = st.lists(values, min_size=19, max_size=19).flatmap(
        lambda rest: st.floats(-1e6, 1e6).map(lambda one: [one, *rest])
    )
    explore(check, 100, outcomes=["worked"], log_weights=weights)


def test_rewards_of_any_points():
    reward = make_reward([make_network()])

    def check(x):
        values = np.asarray(reward(x))
        assert values.dtype == np.float64
        assert values.shape == np.shape(x)[:-1]
        points = np.asarray(x, np.float64)
        finite = (np.abs(points) <= 1e12).all(axis=-1)
        assert np.isfinite(values[finite]).all()

    shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3) | st.sampled_from(
        [(2,), (3, 2), (2, 2, 2)]
    )
    numbers = npst.floating_dtypes(endianness="=", sizes=(16, 32, 64)) | npst.integer_dtypes(
        endianness="="
    )
    arrays = npst.arrays(numbers | npst.scalar_dtypes(), shapes)
    explore(check, 200, x=arrays | st.just([[1.0, 2.0]]) | ANYTHING | st.just([[1.0], [1.0, 2.0]]))


# --- the policy's steps ---------------------------------------------------------------------------

K, D, SAMPLES = 2, 2, 12


@pytest.fixture(scope="module")
def steps():
    """3 steps towards  slope^T x - 1/2 x^T curvature x  where x_0 < edge, -inf or NaN beyond."""

    def run(policy, curvature, slope, edge, outside, kl_bound, ridge):
        def target(x):
            values = tf.linalg.matvec(x, slope) - 0.5 * tf.reduce_sum(
                x * tf.matmul(x, curvature), axis=1
            )
            return tf.where(x[:, 0] < edge, values, outside)

        return vips_steps(
            policy,
            target,
            [3, 4],
            StepOptions(kl_bound, kl_bound, ridge),
            num_steps=3,
            num_samples=SAMPLES,
        )

    policy = Mixture(*(tf.TensorSpec(shape, DENSITY) for shape in ([K], [K, D], [K, D, D])))
    scalar = tf.TensorSpec([], DENSITY)
    specs = [tf.TensorSpec([D, D], DENSITY), tf.TensorSpec([D], DENSITY), *[scalar] * 4]
    return compiled(run, policy, *specs, jit_compile=True)  # as runs have it


@pytest.mark.usefixtures("share")
def test_vips_steps(steps):
    def check(size, correlation, mean, weight, curvature, slope, edge, outside, kl_bound, ridge):
        tril = size * np.array([[1.0, 0.0], [correlation, np.sqrt(1.0 - correlation**2)]])
        policy = Mixture(
            np.log([weight, 1.0 - weight]),
            size * np.array([[0.0, 0.0], [mean, 1.0]]),
            np.stack([tril, tril]),
        )
        matrix = np.array([[curvature[0], curvature[1]], [curvature[1], curvature[2]]]) / size**2
        arguments = (matrix, np.array(slope) / size, edge * size, outside, kl_bound, ridge)
        new, history = steps(
            Mixture(*map(tf.constant, policy)), *(tf.constant(a, DENSITY) for a in arguments)
        )
        assert_valid(new)
        for values in history:
            assert np.isfinite(values).all()
        assert (history.component_kl <= kl_bound * (1.0 + 1e-6) + 1e-9).numpy().all()
        assert (history.weight_kl <= kl_bound * (1.0 + 1e-6) + 1e-9).numpy().all()

    signed = SCALES.flatmap(lambda s: st.sampled_from([s, -s, 0.0]))
    explore(
        check,
        120,
        outcomes=["worked"],
        size=SCALES,
        correlation=st.sampled_from([0.0, 0.5, -0.99, 1.0 - 1e-9]),
        mean=st.sampled_from([0.0, 1.0, 30.0, 1e4]),
        weight=st.sampled_from([0.5, 0.1, 1e-6, 1e-300]),
        curvature=st.tuples(signed, signed, signed),
        slope=st.tuples(signed, signed),
        edge=st.sampled_from([np.inf, 0.0, -1.0, -np.inf]),
        outside=st.sampled_from([-np.inf, np.nan, np.inf]),
        kl_bound=SCALES,
        ridge=st.sampled_from([1e-14, 1e-6, 1.0]),
    )


TARGETS = {
    "normal": lambda x: -0.5 * tf.reduce_sum(x**2, axis=1),
    "constant": lambda x: tf.zeros_like(x[:, 0]),
    "linear": lambda x: 1e6 * x[:, 0],
    "convex": lambda x: tf.reduce_sum(x**2, axis=1),
    "far": lambda x: -0.5 * tf.reduce_sum((x - 1e6) ** 2, axis=1),
    "narrow": lambda x: -1e12 * tf.reduce_sum(x**2, axis=1),
    "half": lambda x: tf.where(x[:, 0] > 0.0, -x[:, 0], -np.inf),
    "huge": lambda x: 1e300 * x[:, 0],
    "float32": lambda x: tf.cast(-tf.reduce_sum(x**2, axis=1), tf.float32),
    "nowhere": lambda x: tf.fill(tf.shape(x)[:1], tf.constant(-np.inf, DENSITY)),
    "nan": lambda x: x[:, 0] * np.nan,
    "a column": lambda x: x,
    "integers": lambda x: tf.cast(x[:, 0], tf.int32),
}


SHORT_SEARCH = {"num_rounds": 2, "steps_per_round": 2, "split_rounds": 1}


@pytest.mark.usefixtures("share")
def test_fit_policy():
    def check(target, dim, components, options):
        fitted = fit_policy(
            TARGETS[target],
            dim,
            components,
            search=SHORT_SEARCH if MANY == 1 else True,
            num_steps=2,
            samples_per_component=SAMPLES,
            jit_compile=False,
            **options,
        )
        assert_valid(fitted.policy)
        assert np.isfinite(fitted.history.to_numpy()).all()

    numbers = {"kl_bound": SCALES, "ridge": st.floats(0.0, 1.0), "seed": st.integers(-1, 2**63)}
    numbers = {name: mostly(usual, mostly(usual, ANYTHING)) for name, usual in numbers.items()}

    def spoiled(policy, field, value):
        arrays = [np.array(a) for a in policy]
        arrays[field].flat[0] = value
        return Mixture(*arrays)

    starts = {k: make_mixture(k, 2) for k in (1, 3)}
    spoils = st.builds(
        spoiled,
        st.sampled_from([*starts.values()]),
        st.integers(0, 2),
        st.sampled_from([np.nan, 0.0, -1.0, 1e300]),
    )
    numbers["initial_policy"] = st.none() | st.sampled_from([*starts.values()]) | spoils | ANYTHING
    explore(
        check,
        8,
        target=st.sampled_from(sorted(TARGETS)),
        dim=st.sampled_from([1, 2] if MANY == 1 else [0, 1, 2, 5, 20, 50]),
        components=st.sampled_from([1, 3]),
        options=st.fixed_dictionaries({}, optional=numbers),
    )


# --- the whole ------------------------------------------------------------------------------------

OPTIONS = {
    "training": {
        "learning_rate": st.floats(5e-5, 1e-3),
        "batch_size": st.sampled_from([1, 7, 10**9]),
        "patience": st.sampled_from([None, 1, 10**9]),
        "warm_up_epochs": st.sampled_from([0, 1, 10**9]),
        "validation_fraction": st.floats(1e-12, 0.5),
        "start": st.sampled_from(["warm", "zero_head", "fresh"]),
    },
    "network": {
        "dropout": st.sampled_from([0.0, 0.5]),
        "l2": st.sampled_from([0.0, 1e-9, 1.0]),
        "batch_norm": st.booleans(),
    },
    "kde": {
        "bandwidth": st.sampled_from(["silverman", "held_out", 1.0, 1e-3, 1e-12, 1e-300]),
        "bandwidth_scale": st.sampled_from(["absolute", "relative"]),
    },
    "policy": {
        "start": st.sampled_from(["standard_normal", "kmeans", "samples"]),
        "kl_bound": SCALES,
        "weight_kl_bound": SCALES,
        "ridge": st.sampled_from([1e-300, 1e-14, 1.0]),
    },
    "loop": {"prior": st.sampled_from(["moments", "initial_policy", "flat"])},
}
HPARAMS = st.fixed_dictionaries(
    {section: st.fixed_dictionaries({}, optional=keys) for section, keys in OPTIONS.items()}
)


@pytest.mark.usefixtures("share")
def test_fit():
    def check(method, x, sections, seed):
        few = {
            "loop": {"num_iterations": 2, **sections["loop"]},
            "training": {"num_epochs": 2, **sections["training"]},
        }
        result = fit(
            x, method, num_components=2, seed=seed, hparams=tiny.overrides(**{**sections, **few})
        )
        assert np.isfinite(result.reward(x)).all()
        assert_valid(result.policy)
        assert np.isfinite(result.policy.log_prob(x)).all()
        trained = result.history[result.history["epochs"] > 0]  # a pooling has no losses
        assert np.isfinite(trained.to_numpy(float)).all()

    usual = data([(30, 2)] if MANY == 1 else [(30, 2), (30, 1), (60, 5), (60, 50)])
    explore(
        check,
        10,
        method=st.sampled_from(["virl", "geim", "eim"] if MANY == 1 else sorted(METHODS)),
        x=usual,
        sections=HPARAMS,
        seed=st.integers(0, 2**63 - 1),
    )


# --- tasks ----------------------------------------------------------------------------------------


def check_task(task, in_support=True):
    assert np.isfinite(task.mode_centers).all()
    assert not np.isnan(task.log_prob(task.mode_centers)).any()
    assert np.isfinite(task.log_prob(task.mode_centers)).all() or not in_support


def test_random_gaussians():
    def check(num_modes, seed, dim, widths):
        task = tasks.RandomGaussians(num_modes, seed, dim=dim, **widths)
        check_task(task)
        assert_valid(task.mixture)
        assert np.isfinite(task.exact_samples(3, 0)[0]).all()

    numbers = mostly(SCALES, st.sampled_from([1e150, 1e-200, 0.0, -1.0, np.inf, "1", None]))
    explore(
        check,
        60,
        num_modes=mostly(st.sampled_from([1, 3]), st.sampled_from([0, 10**12, 2.0, "3", None])),
        seed=mostly(st.integers(0, 2**63 - 1), ANYTHING),
        dim=st.sampled_from([1, 2, 5]),
        widths=st.fixed_dictionaries(
            {}, optional={"extent": numbers, "spread": numbers, "min_variance": numbers}
        ),
    )


@pytest.mark.usefixtures("share")
def test_walks():
    def check(kind, steps, numbers):
        task = getattr(tasks, kind)(steps, **numbers)
        check_task(task)
        assert np.isfinite(task.log_normaliser)

    variance = mostly(
        st.floats(-6.0, 3.0).map(lambda e: 10.0**e),
        st.sampled_from([1e-10, 1e-12, 1e-300, 1e12, 0.0, np.nan, "x"]),
    )
    explore(
        check,
        16,
        kind=st.sampled_from(["GridWalker", "PathPlanning"]),
        steps=mostly(st.sampled_from([2, 4]), st.sampled_from([0, 3, 11, 2.0, None])),
        numbers=st.fixed_dictionaries(
            {}, optional={"variance": variance, "spacing": st.floats(-0.1, 1.1)}
        ),
    )


# --- measures -------------------------------------------------------------------------------------

LOGS = st.floats(-1e12, 1e12) | st.just(-np.inf) | st.floats(-5.0, 5.0)


def test_i_projection():
    def check(pairs, finite):
        log_q, log_p = np.array(pairs).T
        value = metrics.i_projection(np.append(log_q, finite), np.append(log_p, finite))
        assert not np.isnan(value)
        assert value >= -1e-9

    explore(
        check,
        200,
        outcomes=["worked"],
        pairs=st.lists(st.tuples(LOGS, LOGS), min_size=1, max_size=8),
        finite=st.floats(-1e3, 1e3),
    )


def test_best_and_final():
    def check(series):
        found = metrics.best_final_reported(series)
        finite = [v for v in series if np.isfinite(v)]
        np.testing.assert_array_equal(found["best"], min(finite, default=np.nan))  # -0.0 is 0.0
        if len(finite) == len(series):
            assert found["best"] <= found["reported"] <= found["final"]

    values = st.floats(-1e300, 1e300) | st.sampled_from([np.nan, np.inf, -np.inf])
    explore(check, 200, outcomes=["worked"], series=st.lists(values, min_size=1, max_size=6))


def test_contrast_and_coverage():
    def check(high, low, modes):
        found = metrics.contrast(high, low)
        whole = high and low and not np.isnan([*high, *low]).any()
        assert np.isnan(list(found.values())).any() == (not whole)
        if whole:
            assert 0.0 <= found["auc"] <= 1.0
            assert found["auc"] + metrics.contrast(low, high)["auc"] == pytest.approx(1.0)
        covered = metrics.covered_modes(np.array(modes, int), 4)
        assert set(np.flatnonzero(covered)) == {m for m in modes if m >= 0}

    values = st.lists(st.floats(-1e12, 1e12) | st.just(np.nan), max_size=5)
    explore(
        check,
        200,
        outcomes=["worked"],
        high=values,
        low=values,
        modes=st.lists(st.integers(-1, 3), max_size=20),
    )


# --- the command line -----------------------------------------------------------------------------

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
SET = st.one_of(
    WORDS,
    st.tuples(
        st.sampled_from([*NAMES, "a.b", "network.", ".x", ""]),
        st.sampled_from(["", "=", "==", ":"]),
        TEXTS | WORDS,
    ).map("".join),
    st.sampled_from(["network.layer_size=8", "policy.kl_bound=1e-3", "training.patience=null"]),
).filter(lambda text: "\0" not in text)
ARGUMENTS = st.one_of(
    st.tuples(st.just("--set"), SET),
    st.tuples(st.just("--method"), st.sampled_from([*METHODS, "VIRL", ""]) | WORDS),
    st.tuples(
        st.sampled_from(["--components", "--modes", "--steps", "--seed", "--task-seed"]),
        st.sampled_from(["0", "1", "2", "10", "-1", "1e3", "0x8", "９", "10" * 30]) | WORDS,
    ),
    st.tuples(st.just("--preset"), st.sampled_from(["smoke", "quick", "paper", "none"]) | WORDS),
    st.tuples(
        st.just("--hparams"),
        st.sampled_from(["tuned", ".", "README.md", "hparams/presets.yaml"]) | WORDS,
    ),
    st.tuples(WORDS),
)


GOOD = st.sampled_from(
    [
        ("--set", "network.layer_size=8"),
        ("--method", "eim"),
        ("--components", "1"),
        ("--seed", "7"),
        ("--preset", "smoke"),
    ]
)


@pytest.mark.usefixtures("share")
def test_any_command_line_is_a_run_or_one_clear_error(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(
        "experiments.runs.execute", lambda spec, out, **options: started.append((spec, out))
    )
    monkeypatch.chdir(DIRECTORY.parent)

    def check(task, arguments):
        words = [
            "run",
            task,
            "--out",
            str(tmp_path / "out"),
            *(word for argument in arguments for word in argument),
        ]
        started.clear()
        shown, error = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "argv", ["experiments", *words])
        with (
            contextlib.redirect_stdout(shown),
            contextlib.redirect_stderr(error),
            pytest.raises(SystemExit) as ended,
        ):
            cli.main()
        if "--help" in words and not started and not ended.value.code:
            return
        assert (ended.value.code or 0) in (0, 2)
        assert bool(started) == (not ended.value.code)
        assert (tmp_path / "out").exists() == bool(started)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        if not started:
            assert "Traceback" not in error.getvalue()
            assert error.getvalue().startswith("error: ") or "Usage" in error.getvalue()
            raise InputError("refused")
        spec = started[0][0]
        assert spec.to_config()["hparams"] == spec.hparams.to_dict()

    tasks = st.sampled_from(["gaussians", "gaussians", "grid_walker", "path_planning"]) | WORDS
    explore(check, 120, task=tasks, arguments=st.lists(mostly(GOOD, ARGUMENTS), max_size=3))
