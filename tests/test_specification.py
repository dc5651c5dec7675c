"""What identifies a run: sizes, defaults and published columns of each task, and options that are
another task's.
"""

import itertools
from pathlib import Path

from virl_tf.hparams import default_hparams, published
from virl_tf.methods import METHODS
from virl_tf.validation import InputError

import numpy as np
import pytest

from experiments import specification
from experiments.references import Demonstrated
from experiments.specification import RunRequest
from experiments.tasks import names
from tests.shared import quick_runs

TASKS = names()
WALKS = ["grid_walker", "path_planning"]


# --- size of the target ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "size", "modes", "steps"),
    [
        ("gaussians", {}, 50, 0),
        ("gaussians", {"modes": 5}, 5, 0),
        ("grid_walker", {}, 32, 5),
        ("grid_walker", {"steps": 1}, 2, 1),
        ("grid_walker", {"steps": 8}, 256, 8),
        ("path_planning", {}, 20, 6),
        ("path_planning", {"steps": 2}, 2, 2),
        ("path_planning", {"steps": 10}, 252, 10),
    ],
)
def test_modes_and_steps_are_those_of_the_target(task, size, modes, steps):
    spec = RunRequest(task=task, **size).specification()
    assert (spec.modes, spec.steps) == (modes, steps)


@pytest.mark.parametrize(
    ("task", "option", "message"),
    [
        (
            "grid_walker",
            {"modes": 5},
            "--modes is for .* and waving_experts; the size of a grid_walker target is --steps",
        ),
        (
            "gaussians",
            {"steps": 5},
            "--steps is for grid_walker, .* and path_planning; .* target is --modes",
        ),
        (
            "grid_walker",
            {"task_seed": 0},
            "--task-seed is for .* and waving_experts; grid_walker has one target only",
        ),
    ],
)
def test_options_of_another_task_are_refused(task, option, message):
    with pytest.raises(InputError, match=message):
        RunRequest(task=task, **option).specification()


@pytest.mark.parametrize(("task", "most"), [("grid_walker", 8), ("path_planning", 10)])
@pytest.mark.parametrize("steps", [0, -2, 11, 12, 4.0])
def test_steps_are_one_to_as_many_as_have_modes_that_can_be_counted(task, most, steps):
    message = f"--steps must be an integer from 1 to {most}, got {steps}"
    with pytest.raises(InputError, match=message):
        RunRequest(task=task, steps=steps).specification()


@pytest.mark.parametrize("steps", [1, 3, 9])
def test_paths_of_an_odd_number_of_steps_are_refused(steps):
    with pytest.raises(InputError, match=f"must be even, for the paths to meet again; got {steps}"):
        RunRequest(task="path_planning", steps=steps).specification()


@pytest.mark.parametrize("task", TASKS)
def test_as_many_components_as_demonstrations_are_allowed_and_no_more(task):
    assert RunRequest(task=task, preset="smoke", components=4000).specification().components == 4000
    for components in (0, 4001):
        with pytest.raises(InputError, match=f"--components .* from 1 to 4000, got {components}"):
            RunRequest(task=task, preset="smoke", components=components).specification()


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'grid_walker'"):
        RunRequest(task="gridwalker").specification()


# --- hyperparameters ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["virl", "geim", "eim"])
@pytest.mark.parametrize("task", WALKS)
def test_a_paper_run_has_the_column_of_table_3_and_nothing_else_over_the_defaults(task, method):
    column = published("grid_walker", method)
    for components in (1, 10):  # Table 3, unlike Table 2, has one column for both
        spec = RunRequest(
            task=task, method=method, components=components, preset="paper"
        ).specification()
        assert spec.hparams == default_hparams(method).override(column)


@pytest.mark.parametrize(
    ("method", "components", "column"),
    [("virl", 1, "virl_1c"), ("virl", 2, "virl_10c"), ("eim", 10, "eim_10c")],
)
def test_a_paper_run_of_the_gaussians_has_the_column_of_table_2(method, components, column):
    spec = RunRequest(
        task="gaussians", method=method, components=components, preset="paper"
    ).specification()
    assert spec.hparams == default_hparams(method).override(published("gaussians", column))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_with_its_familys_column(method):
    found, expected = (
        RunRequest("gaussians", method=one, preset="smoke").specification().hparams
        for one in (method, METHODS[method].family)
    )
    assert found == expected


def test_presets_go_over_the_column_then_the_file_then_single_assignments(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("network: {layer_size: 16, dropout: 0.25}\n")
    spec = RunRequest(
        task="grid_walker", preset="smoke", hparams_file=file, assignments=["network.dropout=0.5"]
    ).specification()
    network = spec.hparams.network
    assert network.batch_norm is True  # Table 3
    assert spec.hparams.loop.num_negatives == 8000  # smoke
    assert (network.layer_size, network.dropout) == (
        16,
        0.5,
    )  # the file, and the assignment over it


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("hall", "--hparams tuned: nothing is tuned for hall; give a file of hyperparameters"),
        ("gaussians", r"no .*gaussians\.yaml; make it with: .* compare gaussians --write"),
    ],
)
def test_what_was_not_tuned_is_made_by_compare_only_where_it_can_be(
    task, message, tmp_path, monkeypatch
):
    monkeypatch.setattr(specification, "DIRECTORY", tmp_path)
    with pytest.raises(InputError, match=message):
        RunRequest(task, hparams_file=Path("tuned")).specification()


# --- names ----------------------------------------------------------------------------------------


def test_names_tell_runs_apart():
    options = [
        *(
            {"task": "gaussians", "modes": modes, "task_seed": t}
            for modes in (5, 6)
            for t in (None, 1, 7)
        ),
        *({"task": "grid_walker", "steps": steps} for steps in (2, 5, 6)),
        *({"task": "grid_walker", "rows": rows} for rows in (100, 1000)),
        *({"task": "path_planning", "steps": steps} for steps in (2, 6)),
    ]
    common = [
        {"method": method, "components": components, "seed": seed, "preset": preset}
        for method, components, seed, preset in itertools.product(
            ["virl", "eim"], [1, 10], [0, 1], ["smoke", "paper"]
        )
    ]
    specs = {RunRequest(**one, **other).specification() for one in options for other in common}
    assert len({spec.name for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"task": "gaussians"}, "gaussians-virl-10c-m50-s0-quick"),
        (
            {"task": "gaussians", "task_seed": 3, "method": "eim"},
            "gaussians-eim-10c-m50-s0-t3-quick",
        ),
        ({"task": "grid_walker", "seed": 4}, "grid_walker-virl-10c-d5-s4-quick"),
        (
            {"task": "gaussians", "preset": "best", "rows": 300},
            "gaussians-virl-10c-m50-s0-n300-best",
        ),
        (
            {"task": "path_planning", "steps": 4, "components": 1, "preset": "smoke"},
            "path_planning-virl-1c-d4-s0-smoke",
        ),
    ],
)
def test_names_are_the_documented_ones(options, name):
    assert RunRequest(**options).specification().name == name


# --- demonstrations -------------------------------------------------------------------------------


@pytest.fixture
def few():
    """Tasks draw hundreds of rows, not thousands."""
    with quick_runs():
        yield


def gaussians(**given):
    return RunRequest("gaussians", modes=3, preset="smoke", rows=50, **given).specification()


@pytest.mark.usefixtures("few")
def test_runs_of_one_target_and_seed_share_demonstrations_whatever_their_method():
    first = gaussians(seed=1)
    others = (
        gaussians(seed=1, method="eim", components=1),
        gaussians(seed=1, assignments=["training.num_epochs=3"]),
    )
    assert all(other.demonstrations() is first.demonstrations() for other in others)
    target = first.description.target(first.to_config())
    drawn = target.demonstrations(first.num_train + first.num_test, first.seed)
    np.testing.assert_array_equal(first.demonstrations(), drawn)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_rows_to_train_and_to_test_on(task):
    spec = RunRequest(task, preset="smoke", rows=60).specification()
    assert spec.demonstrations().shape == (60 + spec.num_test, spec.dim)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("given", [{"seed": 2}, {"task_seed": 2}, {"dim": 3}])
def test_another_target_or_seed_has_other_demonstrations(given):
    first, other = gaussians(seed=1), gaussians(**{"seed": 1, **given})
    assert not np.array_equal(first.demonstrations(), other.demonstrations())


def test_references_are_fitted_once_for_the_same_rows_and_seed():
    x = np.random.default_rng(0).standard_normal((40, 2))
    fitted = []

    def fit(x, *how):
        fitted.append(how)
        return x.copy()

    for rows, seed in ((x, 0), (x.copy(), 0), (x + 1.0, 0), (x, 1)):
        of = Demonstrated(rows, seed, task=None)
        np.testing.assert_array_equal(of.once(fit, 5), rows)
    assert len(fitted) == 3
    assert {components for components, _ in fitted} == {5}
