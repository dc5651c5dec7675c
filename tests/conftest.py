import os
import tempfile

# One thread per worker of pytest-xdist, of which there are as many as cores. Before NumPy and
# TensorFlow are imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS",
    ):
        os.environ.setdefault(name, "1")

# What XLA compiled for one test, worker or subprocess serves the others. Before TensorFlow is
# imported.
if "TF_XLA_FLAGS" not in os.environ:
    XLA_CACHE = tempfile.TemporaryDirectory(
        prefix="virl_tf-xla-", ignore_cleanup_errors=True
    )  # gone with this process
    directory = f"--tf_xla_persistent_cache_directory={XLA_CACHE.name}"
    os.environ["TF_XLA_FLAGS"] = f"{directory} --tf_xla_persistent_cache_device_types=CPU"

# isort: split
import contextlib
import gc
import importlib
import io
import shutil
import sqlite3
import sys
from pathlib import Path

from virl_tf import problem
from virl_tf.discriminator import fit as discriminator_fit
from virl_tf.em import choice, density, few_rows
from virl_tf.em.shrunk import SHARED
from virl_tf.features import Features
from virl_tf.irl import State
from virl_tf.mixture import Mixture, empty_mixture
from virl_tf.network_stack import FrozenNetwork, empty_stack
from virl_tf.numerics import DENSITY, NETWORK, compiled
from virl_tf.reward import Reward
from virl_tf.tasks import slice_sampling
from virl_tf.vips import conditional, vips

import numpy as np
import pytest
import sqlalchemy
import tensorflow as tf

from experiments import specification
from experiments.evaluation import (
    contextual,
    distances,
    known_truth,
    own_demonstrations,
    situations,
)

from . import postgres as postgresql

# Tracing makes many objects, for which Python would look through TensorFlow's own again and again.
gc.freeze()
gc.set_threshold(50_000)

# The files of whole runs and commands, the longest first. Workers take whole files: a long one
# that comes last would leave all but one of them idle.
LONGEST = ["test_cli", "test_tuning_study", "test_properties", "test_fit_policy", "test_fit"]
LONGEST += ["test_registered_task", "test_recipes", "test_pooling", "test_ablation_command"]
LONGEST += ["test_cli_walks", "test_irl", "test_fit_command", "test_path_planning", "test_adaptive"]
LONGEST += ["test_vips", "test_problem", "test_discriminator_fit"]
LONGEST += ["test_judge_command", "test_tasks", "test_event_files", "test_sweep", "test_disk"]
LONGEST += ["test_grid_walker"]


def pytest_configure(config):
    """The order below, not pytest-xdist's, in which the files with most tests come first."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """Begin with the longest files where several workers share the tests."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: ranks.get(item.path.stem, len(LONGEST)))


@pytest.fixture(scope="session", autouse=True)
def quick_disk():
    """Nothing waits until it is on the disk, for no test cuts the power."""

    def unsynced(connection, record):
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", unsynced)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield
    sqlalchemy.event.remove(sqlalchemy.Engine, "connect", unsynced)


def make_mixture(num_components=3, dim=2, seed=0):
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 1.5, num_components)
    scale_trils = np.tril(0.4 * rng.standard_normal((num_components, dim, dim)))
    scale_trils[:, range(dim), range(dim)] = rng.uniform(0.5, 1.5, (num_components, dim))
    arrays = (
        np.log(weights / weights.sum()),
        2.0 * rng.standard_normal((num_components, dim)),
        scale_trils,
    )
    return Mixture(*(tf.constant(array, DENSITY) for array in arrays))


def make_network(dim=2, num_layers=3, layer_size=8, seed=0):
    """A FrozenNetwork of float32 NumPy arrays with outputs of about unit size."""
    rng, h = np.random.default_rng(seed), layer_size
    shapes = [(dim, h), (h,), (num_layers - 1, h, h), (num_layers - 1, h), (h, 1), (1,)]
    fan_ins = [dim, 4, h, 4, h, 4]
    return FrozenNetwork(
        *(
            (rng.standard_normal(s) * np.sqrt(2.0 / n)).astype(np.float32)
            for s, n in zip(shapes, fan_ins, strict=True)
        )
    )


def make_reward(
    networks,
    capacity=4,
    dim=2,
    num_layers=3,
    layer_size=8,
    base_exponent=1.0,
    base=None,
    frequencies=None,
    mixture=None,
    mixture_exponent=0.0,
):
    frequencies = np.zeros((dim, 0)) if frequencies is None else frequencies
    stack = empty_stack(capacity, dim + 2 * frequencies.shape[1], num_layers, layer_size)
    for network in networks:
        stack = stack.append(network)
    shift = tf.constant(np.arange(dim) + 0.5, DENSITY)
    scale = tf.constant(np.arange(dim) + 2.0, DENSITY)
    return Reward(
        base=make_mixture(dim=dim) if base is None else base,
        base_exponent=tf.constant(base_exponent, DENSITY),
        networks=stack,
        features=Features(shift, scale, tf.constant(frequencies, NETWORK)),
        mixture=empty_mixture(dim) if mixture is None else mixture,
        mixture_exponent=tf.constant(mixture_exponent, DENSITY),
    )


def make_state(t=1, num_components=3, num_weights=2):
    """A small State; its numbers depend on t."""
    reward = make_reward([make_network(seed=i) for i in range(min(t, 3))])
    weights = tuple(np.full((2, 3), float(t + i), np.float32) for i in range(num_weights))
    return State(t, make_mixture(num_components, seed=t), reward, weights)


def remembered(function):
    """`function`, which is called once for the same arguments; arrays are told by their bytes."""
    known = {}

    def key_of(argument):
        if isinstance(argument, np.ndarray):
            return argument.shape, str(argument.dtype), argument.tobytes()
        return argument

    def call(*arguments):
        key = tuple(map(key_of, arguments))
        if key not in known:
            known[key] = function(*arguments)
        return known[key]

    return call


fit_module = importlib.import_module("virl_tf.fit")  # `virl_tf.fit` is the function
choose_mixture = remembered(fit_module.choose_mixture)
density_fit = remembered(problem.density_fit)
conditional_fits = remembered(problem.conditional_fits)


def plain_graph(function, *specs, jit_compile=False):
    """`compiled` without XLA, whatever its caller asks for."""
    return compiled(function, *specs, jit_compile=False)


def few_choices(patch):
    """Of few rows EM tries a sixth of its shrinkages."""
    patch.setattr(few_rows, "PSEUDO_ROWS", (1.0, SHARED))
    patch.setattr(few_rows, "RIDGES", few_rows.RIDGES[1:2])


@pytest.fixture(scope="module", autouse=True)
def light_runs(request):
    """What the runs of a module have in common is made once.

    EM mixtures of the same rows, which but for EM's own tests are of few choices, folds and starts.
    The policies' steps are plain graphs, because XLA takes 3 to 7 s for each shape of a reward, and
    no graph is rewritten before its first run; modules marked `xla` and processes of their own have
    them as users do.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discriminator_fit, "_IDLE", {})  # another module's may be fused
        patch.setattr(fit_module, "choose_mixture", choose_mixture)
        patch.setattr(problem, "density_fit", density_fit)
        patch.setattr(problem, "conditional_fits", conditional_fits)
        if not request.node.name.startswith("test_em_"):
            few_choices(patch)
            patch.setattr(few_rows, "FOLDS", 5)
            patch.setattr(few_rows, "STARTS_FOR_WIDTHS", 2)
        xla = request.node.get_closest_marker("xla")
        if xla:
            vips._compiled_improve.cache_clear()
        else:
            patch.setattr(vips, "compiled", plain_graph)
            patch.setattr(conditional, "compiled", plain_graph)
            patch.setattr(discriminator_fit, "pays_to_fuse", lambda network: False)
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        patch.setattr(situations, "FRAMES", 4)
        yield
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
        if xla:
            vips._compiled_improve.cache_clear()


draw_block = slice_sampling._draw_block


def short_chains(log_prob, prior, seed, burn_in):
    return draw_block(log_prob, prior, seed, min(burn_in, 50))


@contextlib.contextmanager
def quick_runs():
    """Runs take a fraction of their seconds: plain graphs instead of XLA's programs, little data
    of short chains.

    For runs so small that compilation and the slice sampling of thousands of demonstrations are
    most of their time, and of which files, messages and names are checked, not the last digits.
    """
    few = {"demonstrations": {"train": 400, "test": 100}}
    whole = specification.read_preset
    vips._compiled_improve.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(specification, "read_preset", lambda preset: {**whole(preset), **few})
        patch.setattr(slice_sampling, "_draw_block", short_chains)
        patch.setitem(compiled.__kwdefaults__, "jit_compile", False)
        patch.setattr(vips, "compiled", plain_graph)
        patch.setattr(discriminator_fit, "pays_to_fuse", lambda network: False)
        yield
    vips._compiled_improve.cache_clear()


# EM of hardly any choice, whose mixtures other modules must not remember, coarse pictures, and few
# draws to measure by.
COARSE = [(few_rows, "COMPONENTS", (1, 3)), (few_rows, "COLUMNS_COMPONENTS", (2,))]
COARSE += [(few_rows, "PSEUDO_ROWS", (1.0,)), (few_rows, "FOLDS", 3), (few_rows, "MERGED", 1)]
COARSE += [(few_rows, "STARTS", 1), (few_rows, "STARTS_FOR_WIDTHS", 1), (choice, "FOLDS", 2)]
COARSE += [(choice, "COVARIANCES", choice.COVARIANCES[:2]), (choice, "CANDIDATES", (1, 2, 3, 5))]
COARSE += [(fit_module, "choose_mixture", remembered(choice.choose_mixture))]
COARSE += [(problem, "density_fit", remembered(density.density_fit))]
COARSE += [(problem, "conditional_fits", remembered(density.conditional_fits))]
COARSE += [(module, "DRAWS", 4000) for module in (distances, known_truth)]
COARSE += [(contextual, "CONTEXTS", 20), (own_demonstrations, "RESOLUTION", 40)]
COARSE += [(situations, name, 30) for name in ("RESOLUTION", "COARSE")]


@pytest.fixture(scope="module")
def quick():
    """`quick_runs` for a module, `COARSE`: pytestmark = pytest.mark.usefixtures("quick")."""
    with quick_runs(), pytest.MonkeyPatch.context() as patch:
        for module, name, value in COARSE:
            patch.setattr(module, name, value)
        yield


@pytest.fixture
def threads(monkeypatch):
    """Workers of sweeps and studies are threads of this process, which has TensorFlow loaded."""
    import distributed

    whole = distributed.LocalCluster
    monkeypatch.setattr(
        distributed, "LocalCluster", lambda **sizes: whole(**{**sizes, "processes": False})
    )


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium; skips where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="extra `browser`")
    programs = ("chromium", "chromium-browser", "google-chrome", "chrome")
    program = next(filter(None, map(shutil.which, programs)), None)
    with playwright.sync_playwright() as running:
        try:
            started = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium to be had here: {error.message.splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture
def points():
    """[50, 2] around the origin."""
    return 2.0 * np.random.default_rng(1).standard_normal((50, 2))


@pytest.fixture
def networks():
    return [make_network(seed=i) for i in range(3)]


@pytest.fixture
def reward(networks):
    """Three networks on a mixture."""
    return make_reward(networks)


@pytest.fixture(scope="session")
def call():
    """The experiments' command line inside this process, which has TensorFlow loaded: (exit status,
    stdout, stderr).
    """
    from experiments.cli import main

    def run(*arguments, cwd=Path(__file__).parent.parent):
        out, error = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(error),
        ):
            patch.chdir(cwd)
            patch.setattr(sys, "argv", ["experiments", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                main()
        return ended.value.code or 0, out.getvalue(), error.getvalue()

    return run


@pytest.fixture(scope="session")
def postgres():
    """A running PostgreSQL server."""
    reason = postgresql.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    server = postgresql.Server()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request, tmp_path):
    """A new, empty database for a study.

    The suite asks a server where several ask it at once; all else of it is slow.
    """
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/study.db"
    return request.getfixturevalue("postgres").new_database()
