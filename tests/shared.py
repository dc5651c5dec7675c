"""Fixtures and helpers that tests share, but for pytest-xdist's controller, which runs none: it
needs no TensorFlow (`conftest`).
"""

import contextlib
import gc
import importlib
import inspect
import io
import os
import shutil
import sqlite3
import sys
from pathlib import Path

from virl_tf import problem
from virl_tf.discriminator import fit as discriminator_fit
from virl_tf.em import choice, density, few_rows
from virl_tf.em.shrunk import SHARED
from virl_tf.features import Features
from virl_tf.hparams import search_hparams
from virl_tf.irl import State
from virl_tf.mixture import Mixture, empty_mixture
from virl_tf.network_stack import FrozenNetwork, empty_stack
from virl_tf.numerics import DENSITY, NETWORK, compiled
from virl_tf.policy_fit import schedule as policy_schedule
from virl_tf.reward import Reward
from virl_tf.tasks import slice_sampling
from virl_tf.vips import improve

import matplotlib
import numpy as np
import pytest
import sqlalchemy
import tensorflow as tf
from matplotlib import font_manager

from experiments import inference, specification
from experiments.evaluation import (
    contextual,
    distances,
    known_truth,
    own_demonstrations,
    situations,
)
from experiments.figures import style

from . import postgres as postgresql

# Tracing makes many objects, for which Python would look through TensorFlow's own again and again.
gc.freeze()
gc.set_threshold(50_000)


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


class Executes:
    """Makes a folder, the canary, when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


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


def gradient(reward, x):
    x = tf.constant(x, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        values = reward(x)
    return tape.gradient(values, x).numpy()


def make_state(t=1, num_components=3, num_weights=2):
    """A small State; its numbers depend on t."""
    reward = make_reward([make_network(seed=i) for i in range(min(t, 3))])
    weights = tuple(np.full((2, 3), float(t + i), np.float32) for i in range(num_weights))
    return State(t, make_mixture(num_components, seed=t), reward, weights)


def contents(folder):
    """All files below a folder: {their paths in it: bytes}."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


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
density_fits = remembered(problem.density_fits)


def plain_graph(function, *specs, jit_compile=False):
    """`compiled` without XLA, whatever its caller asks for."""
    return compiled(function, *specs, jit_compile=False)


def few_choices(patch):
    """Of few rows EM tries a sixth of its shrinkages."""
    patch.setattr(few_rows, "PSEUDO_ROWS", (1.0, SHARED))
    patch.setattr(few_rows, "RIDGES", few_rows.RIDGES[1:2])


PLAIN_FITTERS = {}


@pytest.fixture(scope="module", autouse=True)
def light_runs(request):
    """What the runs of a module have in common is made once.

    EM mixtures of the same rows, which but for EM's own tests are of few choices, folds and starts.
    The policies' steps are plain graphs, because XLA takes 3 to 7 s for each shape of a reward, and
    no graph is rewritten before its first run; they and the fitters of networks, which fits share
    anyway, stay for further modules with the same shapes. Modules marked `xla` and processes of
    their own have them as users do. Figures have a third of their dots in each direction, and PDFs
    of them no fonts of their own, whose letters take half of their time to choose.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_module, "choose_mixture", choose_mixture)
        patch.setattr(problem, "density_fits", density_fits)
        if not request.node.name.startswith("test_em_"):
            few_choices(patch)
            patch.setattr(few_rows, "FOLDS", 5)
            patch.setattr(few_rows, "STARTS_FOR_WIDTHS", 2)
        xla = request.node.get_closest_marker("xla")
        patch.setattr(discriminator_fit, "_IDLE", {} if xla else PLAIN_FITTERS)
        if xla:
            improve._compiled_steps.cache_clear()
        else:
            patch.setattr(improve, "compiled", plain_graph)
            patch.setattr(discriminator_fit, "pays_to_fuse", lambda network: False)
            tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
        patch.setattr(situations, "FRAMES", 4)
        patch.setitem(matplotlib.rcParams, "savefig.dpi", 50)
        patch.setitem(matplotlib.rcParams, "pdf.use14corefonts", True)
        patch.setattr(font_manager._log, "disabled", True)  # it tells of each weight there is not
        patch.setattr(style, "MOVING_DPI", 40)
        yield
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
        if xla:
            improve._compiled_steps.cache_clear()


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(specification, "read_preset", lambda preset: {**whole(preset), **few})
        patch.setattr(slice_sampling, "_draw_block", short_chains)
        patch.setitem(compiled.__kwdefaults__, "jit_compile", False)
        patch.setattr(improve, "compiled", plain_graph)
        patch.setattr(discriminator_fit, "pays_to_fuse", lambda network: False)
        yield


# EM of hardly any choice, whose mixtures other modules must not remember, coarse pictures, few
# draws to measure by, and short fits of policies.
COARSE = [(few_rows, "COMPONENTS", (1, 3)), (few_rows, "COLUMNS_COMPONENTS", (2,))]
COARSE += [(few_rows, "PSEUDO_ROWS", (1.0,)), (few_rows, "FOLDS", 3), (few_rows, "MERGED", 1)]
COARSE += [(few_rows, "STARTS", 1), (few_rows, "STARTS_FOR_WIDTHS", 1), (choice, "FOLDS", 2)]
COARSE += [(choice, "COVARIANCES", choice.COVARIANCES[:2]), (choice, "CANDIDATES", (1, 2, 3, 5))]
COARSE += [(fit_module, "choose_mixture", remembered(choice.choose_mixture))]
COARSE += [(problem, "density_fits", remembered(density.density_fits))]
COARSE += [(module, "DRAWS", 4000) for module in (distances, known_truth)]
COARSE += [(contextual, "CONTEXTS", 20), (own_demonstrations, "RESOLUTION", 40)]
COARSE += [(situations, name, 30) for name in ("RESOLUTION", "COARSE")]
# A search of three rounds of two steps, and few steps where nothing is said of their number.
SHORTEST = {"num_rounds": 3, "steps_per_round": 2, "split_rounds": 0}
COARSE += [(policy_schedule, "search_hparams", lambda own: search_hparams(SHORTEST | (own or {})))]
IN_CONFIGS = [(inference, "FIXED_STEPS", 100), (inference, "FIXED_SAMPLES", 20)]
for schedule in ("AFTER_SEARCH", "KEPT_SHARES"):
    few_steps = getattr(policy_schedule, schedule)._replace(num_steps=8)
    named_in = [policy_schedule, inference, importlib.import_module("virl_tf.fit_policy")]
    IN_CONFIGS += [(of, schedule, few_steps) for of in named_in if hasattr(of, schedule)]
COARSE += IN_CONFIGS
WHOLE = [(module, name, getattr(module, name)) for module, name, _ in IN_CONFIGS]
WHOLE += [(specification, "read_preset", specification.read_preset)]


@pytest.fixture(scope="module")
def quick():
    """`quick_runs` for a module, `COARSE`: pytestmark = pytest.mark.usefixtures("quick")."""
    with quick_runs(), pytest.MonkeyPatch.context() as patch:
        for module, name, value in COARSE:
            patch.setattr(module, name, value)
        yield


@pytest.fixture
def processes(monkeypatch):
    """Workers are processes, which do not know of `quick`: what stands in names and configurations
    is whole, or no record would be the one that was asked for.
    """
    for module, name, value in WHOLE:
        monkeypatch.setattr(module, name, value)


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
def seeds_drawn(monkeypatch):
    """The seeds of TensorFlow's draws, in their order, but for draws within a graph."""
    seeds = []

    def recorded(draw):
        signature = inspect.signature(draw)

        def call(*arguments, **named):
            seed = signature.bind(*arguments, **named).arguments["seed"]
            seeds.append(tuple(np.asarray(seed).tolist()))
            return draw(*arguments, **named)

        return call

    for name in ("stateless_uniform", "stateless_normal", "stateless_categorical"):
        monkeypatch.setattr(tf.random, name, recorded(getattr(tf.random, name)))
    return seeds


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
