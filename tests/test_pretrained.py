"""The pre-trained rewards in the repository: small, loaded in one line, and as good as their README
says.
"""

import json
import re
import shlex
from pathlib import Path

import virl_tf
from virl_tf.metrics import grid_around, i_projection
from virl_tf.yaml_files import read_yaml

import numpy as np
import pytest
import tensorflow as tf

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
    assert f"]({name}/README.md)" in README


# name -> {row of its model card: where summary.json has the number}
CARDS = {
    "gaussians_m50": {
        "I-projection of the reward": ("i_projection", "reward", "final"),
        "of the kernel density estimate it was given": ("i_projection", "kde", "final"),
        "of the kernel density estimate with the held-out bandwidth": (
            *("i_projection", "kde_held_out", "final"),
        ),
        "of EM with the true number of components": ("i_projection", "em_target", "final"),
        "of the policy": ("i_projection", "policy", "final"),
    },
    "grid_walker_d5": {
        "correlation with log p on held-out demonstrations": ("reward_correlation",),
        "share of unexplored modes above the best of 100 random points": (
            *("contrast", "unexplored_random", "above_best"),
        ),
        "share of good walks of the policy": ("good_fraction",),
        "modes of 32 that the policy covers": ("modes_covered",),
    },
}


@pytest.mark.parametrize("name", STATED)
def test_each_has_a_model_card_with_its_numbers(name):
    card = (FOLDER / name / "README.md").read_text(encoding="utf-8")
    numbers = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+) \|$", card, re.MULTILINE))
    assert set(numbers) == set(CARDS[name])
    for row, keys in CARDS[name].items():
        found = summary(name)
        for key in keys:
            found = found[key]
        digits = len(numbers[row].partition(".")[2])
        assert f"{found:.{digits}f}" == numbers[row], row
    for heading in ("Use", "Data", "How good it is", "Where it fails"):
        assert f"\n## {heading}\n" in card
    count = summary(name)["num_iterations"]
    assert f"a Gaussian prior and {count} networks" in card


@pytest.mark.slow
@pytest.mark.parametrize("name", STATED)
def test_it_is_exported_as_its_card_says(name, tmp_path, monkeypatch):
    card = (FOLDER / name / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", card, re.DOTALL | re.MULTILINE)
    (tmp_path / "experiments").symlink_to(FOLDER.parent.parent)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    reward = virl_tf.load_reward(FOLDER / name / "reward.keras")
    x = virl_tf.load(FOLDER / name).policy.sample(500, seed=0)
    found = tf.saved_model.load(str(tmp_path / name)).log_prob(x)
    np.testing.assert_allclose(found, reward(x), rtol=1e-5, atol=1e-5)
