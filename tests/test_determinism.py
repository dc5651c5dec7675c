"""The same seed gives the same bytes in another process; what another number of threads changes.

Minutes: run with -m slow -s.

(The fast suite compares bytes of two processes in test_cli.py and of fits in one process in
test_fit.py.)
"""

import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
# Sizes at which TensorFlow and Eigen do split work between threads.
CODE = """
import sys, virl_tf
x = virl_tf.tasks.RandomGaussians(num_modes=10, seed=0).demonstrations(2000, seed=0)
training = {"num_epochs": 10, "warm_up_epochs": 2}
hparams = {"training": training, "loop": {"num_iterations": 3, "num_negatives": 8000}}
method, seed, directory = sys.argv[1:]
fixed = {"num_components": 5, "hparams": hparams}
virl_tf.fit(x, method=method, seed=int(seed), directory=directory, **fixed)
"""
FILES = ["metrics.csv", "policy.npz", "checkpoints/state-00003.npz"]
METHODS = ["virl", "geim", "eim"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The folder of a fit in a process of its own; `again` tells apart two that are the same."""

    @cache
    def run(method: str, seed: int, threads: int, again: int = 0) -> Path:
        out = tmp_path_factory.mktemp("fits") / f"{method}-{seed}-{threads}-{again}"
        limits = {
            "TF_NUM_INTRAOP_THREADS": str(threads),
            "TF_NUM_INTEROP_THREADS": "1",
            "OMP_NUM_THREADS": str(threads),
        }
        command = [sys.executable, "-c", CODE, method, str(seed), str(out)]
        subprocess.run(
            command,
            check=True,
            cwd=ROOT,
            env={**os.environ, **limits},
            capture_output=True,
            timeout=300,
        )
        return out

    return run


def digests(folder: Path) -> dict[str, str]:
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bytes_in_another_process(fitted, method):
    assert digests(fitted(method, 0, 1)) == digests(fitted(method, 0, 1, again=1))


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bytes_with_two_threads(fitted, method):
    assert digests(fitted(method, 0, 2)) == digests(fitted(method, 0, 2, again=1))


@pytest.mark.parametrize("method", METHODS)
def test_another_seed_gives_other_results(fitted, method):
    one, other = digests(fitted(method, 0, 1)), digests(fitted(method, 1, 1))
    assert [name for name in FILES if one[name] == other[name]] == []


@pytest.mark.parametrize("method", METHODS)
def test_another_number_of_threads_gives_the_same_result_up_to_rounding(fitted, method):
    one, two = fitted(method, 0, 1), fitted(method, 0, 2)
    with np.load(one / "policy.npz") as a, np.load(two / "policy.npz") as b:
        difference = max(float(np.abs(a[name] - b[name]).max()) for name in a.files)
    same = [name for name in FILES if digests(one)[name] == digests(two)[name]]
    print(
        "\n"
        + json.dumps(
            {"method": method, "same bytes": same, "largest difference of the policy": difference}
        )
    )
    assert difference < 0.05
