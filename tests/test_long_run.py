"""200 iterations of V-IRL, a million demonstrations, 50 fits in one process: memory, time, no drift
to NaN.

Minutes: run with -m slow -s.
"""

import subprocess
import sys
from pathlib import Path

import virl_tf

import numpy as np
import pytest
import tensorflow as tf

from tests import tiny

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
ITERATIONS = 200


def resident() -> int:
    """Bytes of this process in memory now."""
    fields = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    )
    return int(fields["VmRSS"].split()[0]) * 1024


def of_iterations(result):
    """The history but for the row of the pooling, which trains no network."""
    return result.history[result.history["epochs"] > 0]


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read from /proc")
def test_200_iterations():
    memory = []
    overrides = {
        "network": {"num_layers": 3, "layer_size": 64},
        "training": {"num_epochs": 5, "warm_up_epochs": 1},
        "policy": {"update_steps": 10},
        "loop": {
            "num_iterations": ITERATIONS,
            "num_negatives": 2000,
            "min_gain": None,
        },  # no phi_t ends the run
    }
    x = virl_tf.tasks.RandomGaussians(num_modes=5, seed=0).demonstrations(1000, seed=0)

    def evaluate(state):
        memory.append(resident())
        return {}

    result = virl_tf.fit(x, "virl", num_components=5, hparams=overrides, evaluate=evaluate)
    history, networks = of_iterations(result), result.reward.networks
    assert int(networks.count) == ITERATIONS
    assert np.isfinite(history.to_numpy(float)).all()
    assert np.isfinite(result.reward(x)).all()

    # The stack has its full size from the start; a copy of it more or less is what may come and go.
    stack = sum(tf.size(a).numpy() * a.dtype.size for a in tf.nest.flatten(networks))
    growth = memory[-1] - memory[20]
    early, late = (f"{used / 2**20:.0f}" for used in (memory[20], memory[-1]))
    print(f"\nmemory after 20 and {ITERATIONS} iterations: {early} and {late} MiB;", end=" ")
    print(f"the stack of networks has {stack / 2**20:.1f} MiB")
    assert growth < 2 * stack + 10 * 2**20

    # Training does not depend on t; drawing and the policy's steps evaluate t networks, so their
    # cost is linear in t.
    seconds = {
        part: history[f"{part}_seconds"].to_numpy() for part in ("sample", "training", "policy")
    }
    quarters = {
        part: [float(np.median(q)) for q in np.split(s[20:], 4)] for part, s in seconds.items()
    }
    print("median CPU seconds of iterations 20 - 65, 65 - 110, 110 - 155, 155 - 200:", quarters)
    assert quarters["training"][3] < 1.5 * quarters["training"][0]
    for part in ("sample", "policy"):
        first, _, _, last = quarters[part]
        assert last < 1.5 * first * (177.5 / 42.5)


def test_a_million_demonstrations():
    x = tiny.demonstrations(1_000_000)
    result = virl_tf.fit(
        x,
        "virl",
        num_components=2,
        hparams=tiny.overrides(training={"batch_size": 10_000, "num_epochs": 1}),
    )
    assert np.isfinite(result.reward(x[:1000])).all()
    assert np.isfinite(of_iterations(result).to_numpy(float)).all()


FITS = 50
MANY = f"""
import warnings
import virl_tf
import numpy as np
from tests import tiny
from tests.test_long_run import resident
warnings.simplefilter("ignore")
few = tiny.overrides(loop={{"num_iterations": 2}})
rows = [tiny.demonstrations(60), np.random.default_rng(0).normal(size=(50, 3))]
for i in range({FITS}):
    virl_tf.fit(rows[i % 2], num_components=2, seed=i % 2, hparams=few)
    print(resident())
"""


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory is read from /proc")
def test_many_fits_in_one_process():
    """What is traced and compiled for one fit serves all of its kind; each had 4.5 MiB more of its
    own, which TensorFlow never freed.
    """
    command = [sys.executable, "-c", MANY]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    memory = [int(line) / 2**20 for line in done.stdout.split()]
    early, late = max(memory[9:12]), max(memory[-3:])
    print(f"\nmemory after 10 and {FITS} fits: {early:.0f} and {late:.0f} MiB")
    assert len(memory) == FITS
    assert late - early < 40.0
