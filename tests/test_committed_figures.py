"""Figures from the committed results, the small folders they are drawn from, and what hints say."""

import json
import shlex
from pathlib import Path

from virl_tf.persistence.files import save_arrays, write_json
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError

import numpy as np
import pytest

from experiments import figures, inference
from experiments.evaluation import densities
from experiments.figures import FIGURES, RESULTS, _results, draw, infer_command, own
from experiments.inference import InferenceRequest
from experiments.records import write_record

PRETRAINED = RESULTS / "pretrained" / "gaussians_m50"


@pytest.mark.parametrize("number", FIGURES)
def test_what_a_figure_is_drawn_from_is_committed(number):
    kind = FIGURES[number]
    for name in kind.committed:
        assert (RESULTS / name).exists()
    with _results(number, []) as folders:
        missing = [file for file in kind.files for f in folders if not (f / file).is_file()]
        assert missing == []


def test_the_committed_records_are_small():
    files = [path for path in (RESULTS / "figures").rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) < 3e5


@pytest.mark.slow
def test_all_figures_are_drawn_and_nothing_else_is_written(call, tmp_path):
    before = {path for path in RESULTS.rglob("*") if path.is_file()}
    status, _, error = call("figure", "all", "--out", tmp_path / "figures")
    assert status == 0, error
    for number in FIGURES:
        assert (tmp_path / "figures" / f"figure_{number}.png").stat().st_size > 10_000
    assert {path for path in RESULTS.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("number", ["2a", "7"])
def test_a_figure_without_folders_is_that_of_the_committed_ones(call, number, tmp_path):
    status, _, error = call("figure", number, "--out", tmp_path)
    assert status == 0, error
    assert (tmp_path / f"figure_{number}.png").stat().st_size > 10_000


def test_all_takes_no_folders(tmp_path):
    with pytest.raises(InputError, match="drawn from the committed results; give no others"):
        draw("all", [tmp_path], None, tmp_path / "out")
    with pytest.raises(InputError, match="--inference is for figure 5"):
        draw("all", [], tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_a_checkout_folders_are_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    with pytest.raises(InputError, match="only a checkout of the repository holds results"):
        draw("1", [], None, tmp_path / "out")


def test_a_folder_that_lacks_a_file_is_told_its_own_cure_and_nothing_is_left(tmp_path):
    walker = RESULTS / "figures" / "walker"
    unfinished = put_run(tmp_path / "run", task="gaussians")
    deep = put_run(tmp_path / "deep", task="gaussians", dim=5)
    for folder in (unfinished, deep):
        (folder / "grid.npz").unlink()
    write_record(deep, tmp_path / "deep.zip")
    for run, cure in (
        (RESULTS / "sweeps" / "gaussians", r"a sweep's; give the record of a run, such as .*zip"),
        (unfinished, "not finished; the command that began it"),
        (next(walker.glob("*.zip")), "make them with: python -m experiments run gaussians"),
        (deep, "figure 5 is of runs in two dimensions, not in 5"),
        (tmp_path / "deep.zip", "figure 5 is of runs in two dimensions, not in 5"),
    ):
        with pytest.raises(InputError, match=cure):
            draw("5", [run], None, tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_figure_that_cannot_be_drawn_leaves_no_empty_folder(tmp_path):
    runs = [put_run(tmp_path / name) for name in "ab"]
    with pytest.raises(InputError, match="neither a run's nor a fit's"):
        draw("5", runs, None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- runs that may not be drawn together ----------------------------------------------------------


def put_run(folder: Path, versions=None, **config):
    """A run of the walker as figures 3, 5 and 7 read it."""
    defaults = {"task": "grid_walker", "method": "virl", "components": 10, "steps": 3, "seed": 0}
    RunFolder.open(folder, {**defaults, "preset": "quick", **config})
    if versions is not None:
        text = (folder / "config.yaml").read_text().partition("versions:")[0]
        (folder / "config.yaml").write_text(f"{text}versions: {json.dumps(versions)}\n")
    for name in ("walks", "demonstrations", "grid"):
        save_arrays(folder / f"{name}.npz", {"train": np.zeros((3, 3))})
    write_json(folder / "summary.json", {})
    return folder


@pytest.mark.parametrize("number", ["3", "5"])
def test_runs_of_different_presets_or_versions_are_refused(number, tmp_path):
    first = put_run(tmp_path / "a", method="geim", versions={"tensorflow": "2.21.0"})
    other = put_run(tmp_path / "b", preset="paper")
    with pytest.raises(InputError, match=r"different presets .*a: quick; .*b: paper"):
        draw(number, [first, other], None, tmp_path / "out")
    later = put_run(tmp_path / "c", versions={"tensorflow": "2.22.0"})
    with pytest.raises(InputError, match=r"different versions of tensorflow .*--pool"):
        draw(number, [first, later], None, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"), [({"preset": "paper"}, "presets"), ({"steps": 5}, "task sizes")]
)
def test_figure_7_does_not_mix_trials(change, message, tmp_path):
    put_run(tmp_path / "a", method="geim", **change)
    put_run(tmp_path / "b")
    with pytest.raises(InputError, match=f"different {message}"):
        draw("7", [tmp_path], None, tmp_path / "out")


@pytest.mark.parametrize("number", ["5", "7"])
def test_runs_of_other_hyperparameters_are_no_further_trials(number, tmp_path):
    """As in a folder of `compare`, which has published ones and found ones of a method."""
    put_run(tmp_path / "other", method="geim")
    runs = [
        put_run(tmp_path / f"{size}", hparams={"network": {"layer_size": size}}) for size in (16, 8)
    ]
    with pytest.raises(InputError, match=r"settings .*layer_size: 16 there, 8 now.*--pool"):
        draw(number, runs if number == "5" else [tmp_path], None, tmp_path / "out")


# --- hints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["2a", "2b", "7", "ablations"])
def test_hints_can_be_pasted_into_a_shell(number, tmp_path):
    folder = tmp_path / "my runs; all"
    if number == "7":
        folder.mkdir()
    with pytest.raises(InputError) as error:
        draw(number, [folder], None, tmp_path / "out")
    command = str(error.value).partition(" with: ")[2]
    assert shlex.split(command)[-2:] == ["--out", str(folder)]


def test_a_hint_for_runs_with_spaces_names_them_whole(tmp_path):
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "reward.keras").touch()
    words = shlex.split(infer_command([tmp_path / "a b"], "--components 3", "inference"))
    assert words[4:] == [str(tmp_path / "a b"), "--components", "3"]


def test_no_hint_writes_into_the_package(tmp_path):
    assert own(tmp_path) == tmp_path
    assert own(RESULTS / "gaussians") == Path("runs/gaussians")
    (tmp_path / "reward.keras").touch()
    assert infer_command([tmp_path], "--components 3", "inference").endswith("--components 3")
    inside = infer_command([PRETRAINED], "--components 3", "inference")
    assert inside.endswith("--out runs/gaussians_m50/inference")


def test_inference_on_a_committed_run_is_not_written_beside_it(call, monkeypatch):
    folders = []
    monkeypatch.setattr("experiments.inference.infer", lambda *given: folders.append(given[2]))
    for options in ([], ["--obstacles", "0.3"], ["--out", "mine"]):
        assert call("infer", PRETRAINED, "--components", "3", *options)[0] == 0
    runs = Path("runs/gaussians_m50")
    assert folders == [runs / "inference", runs / "obstacles", Path("mine")]


@pytest.mark.parametrize("ended", [KeyboardInterrupt, InputError])
def test_an_inference_that_ended_early_is_begun_again_with_other_options(
    tmp_path, monkeypatch, ended
):
    def fit(plan):
        raise ended

    monkeypatch.setattr(inference, "_fit", fit)
    monkeypatch.setattr(densities, "_demonstrations", lambda task, run: np.ones((50, 2)))
    for components in (5, 6):
        with pytest.raises(ended):
            inference.infer(
                [PRETRAINED], InferenceRequest(components), tmp_path / "new", quiet=True
            )
        assert [path.name for path in (tmp_path / "new").iterdir()] == [".lock"]


def test_a_committed_run_without_inference_is_sent_elsewhere(tmp_path):
    with pytest.raises(InputError, match="--out runs/gaussians_m50/inference"):
        draw("5", [PRETRAINED], None, tmp_path / "out")
    with pytest.raises(InputError, match=r"--out runs/nothing$"):
        draw("7", [RESULTS / "nothing"], None, tmp_path / "out")
    with pytest.raises(InputError, match=r"grid_walker --out sweeps/walker$"):
        draw("7", [put_run(tmp_path / "run")], None, tmp_path / "out")  # a sweep refuses its folder
