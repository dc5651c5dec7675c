"""The pre-trained rewards in the repository: small, loaded in one line, and as good as their README
says.
"""

import json
import re
import shlex
from pathlib import Path

import virl_tf
from virl_tf.hparams import read_yaml
from virl_tf.metrics import grid_around, i_projection

import numpy as np
import pytest

from experiments.specification import RunRequest

FOLDER = Path(__file__).parent.parent / "experiments" / "results" / "pretrained"
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def summary(name):
    return json.loads((FOLDER / name / "summary.json").read_text(encoding="utf-8"))


def i_projection_on_fresh_draws():
    """Of the Gaussians' reward, on a grid around other draws than those it was trained on."""
    task = virl_tf.tasks.RandomGaussians(50, seed=summary("gaussians_m50")["task_seed"])
    points = grid_around(task.exact_samples(8000, seed=123)[0]).points
    reward = virl_tf.load_reward(FOLDER / "gaussians_m50" / "reward.keras")
    return i_projection(reward(points), task.log_prob(points))


def correlation_on_fresh_draws():
    """Of the walker's reward with log p, on walks it was not trained on."""
    task = virl_tf.tasks.GridWalker(5)
    x = task.exact_samples(2000, seed=123)[0]
    reward = virl_tf.load_reward(FOLDER / "grid_walker_d5" / "reward.keras")
    return float(np.corrcoef(reward(x), task.log_prob(x))[0, 1])


# name -> (what is measured, how the summary calls it, how far fresh draws may be from it)
STATED = {
    "gaussians_m50": (
        i_projection_on_fresh_draws,
        lambda found: found["i_projection"]["reward"]["final"],
        {"rel": 0.1},
    ),
    "grid_walker_d5": (
        correlation_on_fresh_draws,
        lambda found: found["reward_correlation"],
        {"abs": 0.02},
    ),
}


@pytest.mark.parametrize("name", STATED)
def test_it_is_as_good_as_stated(name):
    measure, stated, tolerance = STATED[name]
    value = stated(summary(name))
    assert measure() == pytest.approx(value, **tolerance)
    (row,) = [line for line in README.splitlines() if line.startswith(f"| [`{name}`]")]
    assert f" {value:.3f} " in row


def test_the_gaussians_reward_is_far_better_than_the_density_estimate_it_was_given():
    found = summary("gaussians_m50")["i_projection"]
    assert found["reward"]["final"] < 0.5 * found["kde"]["final"]


@pytest.mark.parametrize("name", STATED)
def test_the_command_in_the_readme_makes_this_run(name):
    command = next(
        line
        for line in README.splitlines()
        if line.startswith("python -m experiments run") and line.endswith(name)
    )
    words = shlex.split(command)[4:]
    options = dict(zip(words[1::2], words[2::2], strict=True))
    options.pop("--out")
    keys = {
        "--method": "method",
        "--preset": "preset",
        "--seed": "seed",
        "--modes": "modes",
        "--components": "components",
    }
    assignments = [options.pop("--set")]
    arguments = {
        keys[key]: int(value) if value.isdigit() else value for key, value in options.items()
    }
    made = (
        RunRequest(task=words[0], assignments=assignments, **arguments).specification().to_config()
    )
    stored = read_yaml(FOLDER / name / "config.yaml")["config"]
    # An option that came later is not in the file; it was made with what is that option's default.
    for section, values in stored.pop("hparams").items():
        assert {key: made["hparams"][section][key] for key in values} == values
    assert {key: made[key] for key in stored} == stored


@pytest.mark.parametrize("name", STATED)
def test_the_whole_result_loads_and_is_small(name):
    result = virl_tf.load(FOLDER / name)
    x = result.policy.distribution.sample(100, seed=0)
    assert np.isfinite(result.reward(x)).all()
    assert (
        len(result.history) == int(result.reward.networks.count) == summary(name)["num_iterations"]
    )
    assert (FOLDER / name / "reward.keras").stat().st_size < 5e6
    assert {path.name for path in FOLDER.iterdir()} == {*STATED, "README.md"}
    assert re.search(rf"\]\({name}\)", README)
