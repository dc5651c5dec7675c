"""Figures 3 and 4 with inference by a fixed set of components, by search, and by both; Figure 5."""

from virl_tf import InputError
from virl_tf.mixture import standard_normal_start
from virl_tf.persistence.files import write_json
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.tasks import GridWalker

import numpy as np
import pandas as pd
import pytest

from experiments.evaluation.walks import write_walks
from experiments.figures import figure_1, figure_2b, figure_3, figure_4, figure_5
from experiments.figures.overview import apart
from experiments.result_files import COLUMNS, rewards_of, rows_of, value_at

TASK = GridWalker(3)


def put_walks(folder, config, components):
    RunFolder.open(folder, config)
    write_walks(folder, TASK, standard_normal_start(components, 3, 0), TASK.log_prob, 0)


@pytest.fixture
def runs(tmp_path):
    """A run of geim and one of virl without inference."""
    folders = [tmp_path / method for method in ("geim", "virl")]
    for folder in folders:
        put_walks(folder, {"task": "grid_walker", "steps": 3, "method": folder.name}, 2)
        (folder / "reward.keras").touch()
    return folders


def titles_of(module, monkeypatch, draw, *arguments):
    """What stands above the panels of the figure that `draw` saves, and its legend."""
    shown = []
    monkeypatch.setattr(module, "save", lambda figure, path: shown.append(figure))
    draw(*arguments)
    axes = shown[0].axes
    legend = axes[0].get_legend()
    return [a.get_title() for a in axes], [
        text.get_text() for text in legend.texts
    ] if legend else []


def test_figure_3_has_a_panel_for_every_inference(runs, tmp_path, monkeypatch):
    for run in runs:
        put_walks(run / "inference", {"components": 4}, 4)
    titles, _ = titles_of(figure_3, monkeypatch, figure_3.draw_figure_3, runs, tmp_path)
    names = [title.split("\n")[0] for title in titles]
    assert names == [
        "a) G-EIM training policy",
        "b) G-EIM new policy, fixed set",
        "c) V-IRL training policy",
        "d) V-IRL new policy, fixed set",
    ]
    for run in runs:
        put_walks(run / "inference_search", {"components": 5, "search": True}, 5)
    titles, _ = titles_of(figure_3, monkeypatch, figure_3.draw_figure_3, runs, tmp_path)
    assert [title.split(" components")[0] for title in titles[3:]] == [
        "c) V-IRL training policy\n2",
        "d) V-IRL new policy, fixed set\n4",
        "d') V-IRL new policy, search\n5",
    ]


def test_figure_3_without_inference_names_the_command(runs, tmp_path):
    with pytest.raises(InputError, match=r"experiments infer .*geim --components 25"):
        figure_3.draw_figure_3(runs, tmp_path)
    (runs[0] / "reward.keras").unlink()  # as of a record, which `infer` does not take
    with pytest.raises(
        InputError, match=r"infer RUN\.\.\. --components 25, in the runs' own folders"
    ):
        figure_3.draw_figure_3(runs, tmp_path)
    put_walks(runs[0] / "inference", {"components": 4}, 4)
    put_walks(runs[1] / "inference", {"components": 4, "search": True}, 4)
    with pytest.raises(InputError, match="same inference"):
        figure_3.draw_figure_3(runs, tmp_path)


def test_inference_on_an_average_is_in_no_figure_of_one_run(runs, tmp_path):
    for run in runs:
        put_walks(run / "inference", {"components": 4, "runs": [run.name, "other"]}, 4)
    with pytest.raises(InputError, match=r"average of geim, other; .* infer .*geim --components"):
        figure_3.draw_figure_3(runs, tmp_path)
    folder = runs[1] / "obstacles"
    put_walks(folder, {"components": 4, "runs": ["virl", "other"]}, 4)
    write_json(folder / "summary.json", {"obstacles": {"centers": [], "radii": []}})
    with pytest.raises(InputError, match=r"average of virl, other; .* --obstacles 0.33"):
        figure_1.obstructed(runs[1], 4)


@pytest.mark.parametrize("search", [False, True])
def test_figure_4_has_a_curve_for_search_where_there_is_one(search, tmp_path, monkeypatch):
    stages = ["training_policy", "inference", *(["inference_search"] if search else [])]
    row = {
        "task": "gaussians",
        "components": 10,
        "seed": 0,
        "preset": "paper",
        "status": "finished",
    }
    row |= dict.fromkeys(("best", "final", "reported", "cpu_seconds"), 0.1)
    rows = [
        {**row, "method": m, "modes": n, "stage": s}
        for s in stages
        for m in ("virl", "geim")
        for n in (5, 10)
    ]
    pd.DataFrame(rows, columns=COLUMNS).to_csv(tmp_path / "results.csv", index=False)
    _, labels = titles_of(figure_4, monkeypatch, figure_4.draw_figure_4, tmp_path, tmp_path)
    assert ("V-IRL new policy, search" in labels) == search
    assert {"V-IRL training policy", "G-EIM new policy, fixed set"} <= set(labels)
    # Of an exact density, below the axis, and of methods without a run nothing is seen.
    other = {**row, "method": "virl", "stage": "training"} | {"reported": 1.0, "modes": 5}
    below = {**row, "method": "em_target", "components": 0, "stage": "reference", "modes": 5}
    below["reported"] = 1e-9
    pd.DataFrame([other, below], columns=COLUMNS).to_csv(tmp_path / "results.csv", index=False)
    _, labels = titles_of(figure_2b, monkeypatch, figure_2b.draw_figure_2b, tmp_path, tmp_path)
    assert labels == ["V-IRL 10c"]


def test_a_sweeps_table_has_the_search_beside_the_fixed_set(tmp_path):
    key = {
        "task": "gaussians",
        "method": "virl",
        "components": 10,
        "modes": 5,
        "seed": 0,
        "preset": "paper",
    }
    distances = {
        name: {"best": 0.1, "final": 0.3, "reported": 0.2} for name in ("reward", "policy")
    }
    times = {"cpu_seconds": {"process": 1.0}}
    summaries = {".": {**key, "i_projection": distances, **times, "status": "finished"}}
    for i, stage in enumerate(("inference", "inference_search")):
        inferred = {"inference_policy": dict.fromkeys(("best", "final", "reported"), 0.5 * i)}
        summaries[stage] = {"i_projection": inferred, "cpu_seconds": 2.0}
    found = {row["stage"]: row["reported"] for row in rows_of(summaries, tmp_path)}
    assert found == {
        "training": 0.2,
        "training_policy": 0.2,
        "inference": 0.0,
        "inference_search": 0.5,
    }


def test_what_infer_put_into_a_runs_folder_is_told_by_how_it_was_made(tmp_path):
    key = {"task": "gaussians", "method": "virl", "components": 10, "modes": 5, "seed": 0}
    numbers = dict.fromkeys(("best", "final", "reported"), 0.2)
    distances = dict.fromkeys(("reward", "policy", "inference_policy"), numbers)
    run = {**key, "preset": "paper", "i_projection": distances, "status": "finished"}
    run |= {"cpu_seconds": {"process": 1.0}}

    def stages(**made):
        inferred = {"i_projection": distances, "cpu_seconds": 2.0, **made}
        rows = rows_of({".": run, "inference": inferred}, tmp_path)
        return [row["stage"] for row in rows][2:]

    assert stages(runs=["a"]) == ["inference"]
    assert stages(runs=["a"], search=True) == ["inference_search"]
    assert stages(runs=["a", "b"]) == []  # the average's

    def status(best, final):
        values = {"best": best, "final": final, "reported": 0.5 * (best + final)}
        inferred = {"i_projection": {"inference_policy": values}, "cpu_seconds": 2.0}
        return rows_of({".": run, "inference": inferred}, tmp_path)[-1]["status"]

    assert status(0.1, 0.2) == "finished"
    assert status(0.1, np.inf) == status(np.inf, np.inf) == "diverged"


def test_of_several_places_the_first_that_has_a_value_counts_also_where_it_is_zero():
    summary = {"found": {"none": None, "zero": 0.0, "one": 1.0}}
    assert value_at(summary, "found.zero", "found.one") == 0.0
    assert value_at(summary, "found.none", "missing.zero", "found.one.more", "found.one") == 1.0
    assert value_at(summary, "found.none", "missing") is None


def test_labels_of_reference_lines_are_moved_apart_and_keep_their_order():
    assert apart([0.5, 0.1, 0.9], 0.05) == [0.5, 0.1, 0.9]
    assert apart([0.52, 0.1, 0.5, 0.5], 0.05) == pytest.approx([0.6, 0.1, 0.5, 0.55])
    assert apart([], 0.05) == []


# --- figure 5 -------------------------------------------------------------------------------------


def on_grid(reward, low, high, number=9):
    """Its values on a grid, as in a run's grid.npz."""
    axes = np.linspace(low, high, number, axis=1)
    return {"axes": axes, "reward": reward(*np.meshgrid(*axes, indexing="ij")).ravel()}


def test_rewards_are_averaged_at_the_same_places():
    """Planes are interpolated exactly, and have their maxima in the upper corners."""
    first = on_grid(lambda x, y: 2.0 * x + y, [-1.0, -2.0], [1.0, 3.0])
    second = on_grid(lambda x, y: 4.0 * x - y + 7.0, [-2.0, -3.0], [3.0, 5.0], number=7)
    x, y = (values.ravel() for values in np.meshgrid(*first["axes"], indexing="ij"))
    expected = 0.5 * ((2.0 * x + y - 5.0) + (4.0 * x - y - 15.0))
    found = figure_5.average_on_first([first, second])
    np.testing.assert_allclose(found, expected, atol=1e-9)
    np.testing.assert_array_equal(figure_5.average_on_first([first]), first["reward"] - 5.0)


def test_a_reward_beyond_its_grid_is_that_of_the_nearest_point():
    first = on_grid(lambda x, y: 0.0 * x, [-1.0, -1.0], [1.0, 1.0])
    second = on_grid(lambda x, y: x + y, [-0.5, -2.0], [0.5, 1.0])
    x, y = (values.ravel() for values in np.meshgrid(*first["axes"], indexing="ij"))
    expected = 0.5 * (np.clip(x, -0.5, 0.5) + y - 1.5)
    found = figure_5.average_on_first([first, second])
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_the_average_is_minus_infinity_outside_of_any_rewards_bounds():
    first = on_grid(lambda x, y: x + y, [-1.0, -1.0], [1.0, 1.0])
    second = on_grid(lambda x, y: np.where(x < 0.0, -np.inf, y), [-1.1, -1.0], [1.0, 1.0], 22)
    x, y = (values.ravel() for values in np.meshgrid(*first["axes"], indexing="ij"))
    found = figure_5.average_on_first([first, second])
    expected = np.where(x < 0.0, -np.inf, 0.5 * (x + y - 2.0 + y - 1.0))
    np.testing.assert_allclose(found[x != 0.0], expected[x != 0.0], atol=1e-9)


def test_an_inference_on_rewards_that_were_made_anew_since_is_refused(tmp_path):
    runs = [tmp_path / name for name in ("first", "second")]
    for run in runs:
        run.mkdir()
        (run / "reward.keras").write_text(run.name)
    inference = tmp_path / "inference"
    names = [run.name for run in runs]
    RunFolder.open(inference, {"runs": names, "rewards": rewards_of(runs)})
    figure_5._check_inferred_on(runs, inference, True)
    (runs[1] / "reward.keras").write_text("of other hyperparameters")
    with pytest.raises(InputError, match="was inferred on the runs first, second, not on"):
        figure_5._check_inferred_on(runs, inference, True)
    (runs[1] / "reward.keras").unlink()  # of records the names are all that is known
    figure_5._check_inferred_on(runs, inference, True)
