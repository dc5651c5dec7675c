"""Published against found, and the pictures of a study, from studies whose trials are made up."""

import contextlib
import dataclasses
import io
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

from virl_tf.validation import InputError
from virl_tf.version import VERSION
from virl_tf.yaml_files import read_yaml, to_yaml

import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.trial import TrialState, create_trial

from experiments.figures import RESULTS, study_pictures, style
from experiments.figures.comparison import draw_comparison
from experiments.specification import RunRequest, tuned_file
from experiments.sweeps.sweep import Workers
from experiments.tuning import compare as comparing
from experiments.tuning import importances, specification
from experiments.tuning.compare import UNBEATEN, compare, find_columns, preview, same_parameters
from experiments.tuning.importances import importances_of
from experiments.tuning.space import searched
from experiments.tuning.specification import Studies
from experiments.tuning.storage import open_storage
from experiments.tuning.study import open_study, published_parameters
from experiments.tuning.study_plots import study_plots

COLUMN = ("virl", 10)
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")


@pytest.fixture(scope="module", autouse=True)
def few_forests():
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importances, "SEEDS", range(2))
        yield


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def add_trials(study, values, published, **changes):
    """Complete trials with these values; the first has the published parameters."""
    distributions = {
        name: optuna.distributions.CategoricalDistribution([False, True])
        if isinstance(value, bool)
        else optuna.distributions.IntDistribution(-40, 500)
        if isinstance(value, int)
        else optuna.distributions.FloatDistribution(1e-9, 1.0, log=name.endswith("rate"))
        for name, value in published.items()
    }
    for i, value in enumerate(values):
        layers = published["network.num_layers"] - i % 2
        params = {**published, **({"network.num_layers": layers, **changes} if i else {})}
        about = {"user_attrs": {"published": True}} if i == 0 else {}
        parts = {"params": params, "distributions": distributions, "value": value, **about}
        study.add_trial(create_trial(**parts))


FOUND = Studies("gaussians", "smoke", 3, None, None)


def make(*values, **changes):
    """A study of these values, in the working directory."""
    file = FOUND.file(COLUMN)
    file.parent.mkdir(parents=True)
    spec = FOUND.specification(COLUMN, [0])
    study = open_study(spec, open_storage(f"sqlite:///{file.absolute()}"))
    add_trials(study, values, published_parameters(spec), **changes)
    return study


@pytest.fixture
def studies():
    """The studies of gaussians at smoke, and a function that makes one of these values."""
    return FOUND, make


def test_powers_of_two_are_the_same_by_their_exponent():
    spec = Studies("gaussians", "smoke", None, None, None).specification(COLUMN)
    published = published_parameters(spec)
    assert published["log2 network.l2"] == -24  # 5.96e-08 in Table 2
    assert same_parameters(published, {**published, "training.learning_rate": 0.000381 + 1e-12})
    assert not same_parameters(published, {**published, "log2 network.l2": -23})
    assert not same_parameters(published, {**published, "training.learning_rate": 0.0004})
    assert not same_parameters(published, {**published, "network.batch_norm": True})
    assert not same_parameters(published, {})


def test_a_dry_comparison_counts_and_writes_nothing(studies, tmp_path, capsys):
    found, make = studies
    make(3.0, 1.0)
    preview(found, "100,101", Workers(None, 1), tmp_path / "out")
    shown = capsys.readouterr().out
    assert "4 runs of the published column virl_10c" in shown
    assert "0 done already, 4 to do\nat most" in shown
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="saw these seeds"):
        preview(found, "0", Workers(None, 1), tmp_path / "out")
    preview(found, "100", Workers(None, 1), None, "quick")
    assert "comparisons/gaussians-m3-quick" in capsys.readouterr().out
    (tmp_path / "config.yaml").write_text("config: {sweep: gaussians}\n")
    with pytest.raises(InputError, match="holds a run or a sweep"):
        preview(found, "100", Workers(None, 1), tmp_path)


def test_no_column_is_compared_on_seeds_that_its_own_study_saw(studies, monkeypatch):
    found, make = studies
    make(3.0, 1.0)
    (column,) = find_columns(found)
    other = dataclasses.replace(
        column, name="other", spec=dataclasses.replace(column.spec, seeds=(7,))
    )
    monkeypatch.setattr(comparing, "find_columns", lambda _: [column, other])
    with pytest.raises(InputError, match=r"--seeds \[7\]: tuning of other saw these seeds"):
        preview(found, "7", Workers(), None)


def test_published_values_are_not_compared_at_a_preset_that_has_not_all_of_them(studies):
    found, make = studies
    make(3.0, 1.0)
    with pytest.raises(InputError, match="unknown --budget 'best'"):
        preview(found, "5", Workers(), None, "best")


def test_what_a_study_of_another_space_found_is_not_compared(studies, monkeypatch):
    """What Table 1 has no longer would be left out of what was found."""
    found, make = studies
    make(3.0, 1.0)
    rows = {name: row for name, row in searched("gaussians", *COLUMN).items() if "num" not in name}
    for module in (comparing, specification):
        monkeypatch.setattr(module, "searched", lambda *_: rows)
    with pytest.raises(InputError, match=r"exists with another space .*space\.network\.num_layers"):
        find_columns(found)


def test_a_study_of_another_program_is_none(studies, tmp_path):
    found, _ = studies
    file = found.file(COLUMN)
    file.parent.mkdir(parents=True)
    storage = open_storage(f"sqlite:///{file.absolute()}")
    foreign = optuna.create_study(study_name=found.specification(COLUMN).name, storage=storage)
    foreign.add_trial(create_trial(value=1.0))
    with pytest.raises(InputError, match="no study of gaussians with a complete trial"):
        find_columns(found)
    with pytest.raises(InputError, match="no such study"):
        study_plots(found, *COLUMN, tmp_path / "plots")


def test_a_mistyped_storage_is_no_study_and_is_not_made(tmp_path):
    found = FOUND._replace(storage=f"sqlite:///file:{tmp_path}/typo.db?uri=true")
    with pytest.raises(InputError, match="no study of gaussians with a complete trial"):
        preview(found, None, Workers(None, 1), None)
    with pytest.raises(InputError, match="no such study; make it with: "):
        study_plots(found, *COLUMN, tmp_path / "plots")
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_all_of_whose_runs_diverged_is_drawn_without_a_warning(tmp_path, recwarn):
    rows = [("virl_10c", candidate, 100, np.nan) for candidate in comparing.CANDIDATES]
    values = pd.DataFrame(rows, columns=["column", "candidate", "seed", "value"])
    draw_comparison(values, pd.DataFrame(), tmp_path)
    assert (tmp_path / "compare.png").is_file()
    assert not list(recwarn)


def test_a_hint_to_make_a_study_has_no_password(monkeypatch, tmp_path):
    found = FOUND._replace(storage="postgresql+psycopg://user:secret@host/studies")
    monkeypatch.setattr(comparing, "find_study", lambda *_: None)
    monkeypatch.setattr("experiments.tuning.study_plots.find_study", lambda *_: None)
    for act in (find_columns, lambda studies: study_plots(studies, *COLUMN, tmp_path / "plots")):
        with pytest.raises(InputError, match="//user@host/studies") as told:
            act(found)
        assert "secret" not in str(told.value)


def test_a_comparison_all_of_whose_runs_fail_says_why(studies, monkeypatch, tmp_path):
    found, make = studies
    make(0.9, 0.1)
    error = "Traceback:\n  somewhere\nOSError: no space left"
    monkeypatch.setattr(
        comparing, "execute_sweep", lambda units, *_: {unit.name: error for unit in units}
    )
    with pytest.raises(
        InputError,
        match=r"2 of 2 failed, the first, .*, with OSError: no space left; see .*errors.txt",
    ):
        compare(found, "7", Workers(None, 1), False, tmp_path / "out")
    assert not list(tmp_path.rglob("compare.md"))


@pytest.fixture
def runs(monkeypatch):
    """The units that `compare` asks for; each is given a value by its seed."""
    asked = []

    def execute_sweep(units, out, *_):
        asked.extend(units)
        return {}

    def records_of(units, out):
        return {unit.name: SimpleNamespace(summaries={".": {}}) for unit in units}

    def outcome(unit, summary):
        names = ("column", "candidate", "seed", "value", "status", "cpu_seconds")
        value = 0.1 * unit.spec.seed - 9.0 + (unit.label == "found")
        row = ("virl_10c", unit.label, unit.spec.seed, value, "finished", 1.0)
        return dict(zip(names, row, strict=True))

    monkeypatch.setattr(comparing, "execute_sweep", execute_sweep)
    monkeypatch.setattr(comparing, "records_of", records_of)
    monkeypatch.setattr(comparing, "_outcome", outcome)
    return asked


def test_published_that_was_not_beaten_is_not_run_again_as_found(
    studies, runs, tmp_path, capsys, monkeypatch
):
    found, make = studies
    make(1.0, 2.0, 3.0)
    monkeypatch.setattr(comparing, "tuned_file", lambda task: tmp_path / "tuned.yaml")
    compare(found, "100,101,102", Workers(None, 1), True, tmp_path / "out")
    assert [unit.label for unit in runs] == ["published"] * 3
    assert UNBEATEN in capsys.readouterr().out
    text = (tmp_path / "out" / "compare.md").read_text()
    assert f"| {UNBEATEN} |" in text
    assert "1.1000 |" in text
    assert "[" not in text.splitlines()[4], "three seeds have no interval"
    assert (tmp_path / "out" / "compare.png").stat().st_size > 5_000
    assert not (tmp_path / "tuned.yaml").exists()


@pytest.mark.parametrize("gain", [-1.0, 1.0, np.nan])
def test_what_is_better_on_fresh_seeds_is_stored_beside_other_columns(
    studies, runs, tmp_path, capsys, monkeypatch, gain
):
    found, make = studies
    make(3.0, 1.0).set_user_attr("versions", {"virl_tf": "0.1"})
    path, scores = tmp_path / "tuned.yaml", {"published": 5.0, "found": 5.0 - gain}
    other = {"columns": {"virl_1c": {"network": {"num_layers": 2}}}, "provenance": {"virl_1c": {}}}
    path.write_text(to_yaml(other))

    def outcome(unit, summary):
        value, seed = scores[unit.label], unit.spec.seed
        names = ("column", "candidate", "seed", "value", "status", "cpu_seconds")
        row = ("virl_10c", unit.label, seed, value, "finished", 1.0)
        return dict(zip(names, row, strict=True))

    monkeypatch.setattr(comparing, "_outcome", outcome)
    monkeypatch.setattr(comparing, "tuned_file", lambda task: path)
    compare(found, "100,101,102", Workers(None, 1), True, tmp_path / "out")
    assert ("nothing is stored" in capsys.readouterr().out) == (not gain > 0.0)
    columns, provenance = (read_yaml(path)[part] for part in ("columns", "provenance"))
    assert columns["virl_1c"] == other["columns"]["virl_1c"]
    assert ("virl_10c" in columns) == (gain > 0.0)
    if gain > 0.0:
        assert provenance["virl_10c"]["versions"] == {"virl_tf": "0.1"}
        assert provenance["virl_10c"]["compared_with"]["virl_tf"] == VERSION
        # The first trial is in the queue.
        told = {"trials": 2, "trial": 2, "value": 1.0, "seeds": [0], "preset": "smoke"}
        assert {name: provenance["virl_10c"][name] for name in told} == told


def test_what_a_study_had_set_is_stored_with_what_it_found():
    spec = SimpleNamespace(assignments=("loop.num_iterations=20", "network.num_layers=2"))
    overrides = {"found": {"network": {"num_layers": 3}}}
    column = SimpleNamespace(spec=spec, overrides=overrides, candidates=("published", "found"))
    stored = comparing._with_assignments(column)
    assert stored == {"loop": {"num_iterations": 20}, "network": {"num_layers": 3}}


LOST = np.nan


@pytest.mark.parametrize("diverged", ["found", "published"])
def test_a_run_that_diverged_is_lost_whatever_its_value(diverged):
    """It ends a nat above its best, and may still be below the other candidate's."""
    rows = [
        ("virl_10c", candidate, seed, value, "finished" if seed else status)
        for candidate, value in (("published", 3.0), ("found", 1.0))
        for status in ["diverged" if candidate == diverged else "finished"]
        for seed in range(3)
    ]
    values = pd.DataFrame(rows, columns=["column", "candidate", "seed", "value", "status"])
    column = SimpleNamespace(name="virl_10c", unbeaten=False, candidates=comparing.CANDIDATES)
    assert comparing._found_is_better(column, values) == (diverged == "published")
    d = comparing._found_less_published(comparing._by_seed(column, values))
    assert list(d) == [np.inf if diverged == "found" else -np.inf, -2.0, -2.0]


@pytest.mark.parametrize("failed", ["found", "published"])
def test_a_run_that_failed_is_lost_and_not_left_out(studies, runs, tmp_path, monkeypatch, failed):
    found, make = studies
    make(3.0, 1.0)
    path, out = tmp_path / "tuned.yaml", tmp_path / "out"
    every = comparing.records_of

    def lost(unit):
        return unit.label == failed and unit.spec.seed > 100

    def outcome(unit, summary):
        value = 1.0 if unit.label == "found" else 2.0
        return {**comparing._row(unit, value, "finished"), "cpu_seconds": 1.0}

    monkeypatch.setattr(comparing, "_outcome", outcome)
    monkeypatch.setattr(comparing, "tuned_file", lambda task: path)
    monkeypatch.setattr(
        comparing, "execute_sweep", lambda units, *_: {u.name: "x" for u in units if lost(u)}
    )
    monkeypatch.setattr(
        comparing, "records_of", lambda units, out: every([u for u in units if not lost(u)], out)
    )
    with pytest.raises(InputError, match="2 of 6 failed"):
        compare(found, "100,101,102", Workers(None, 1), True, out)
    assert not path.exists()  # those that failed are done again first
    values = pd.read_csv(out / "values.csv")
    chosen = values[(values["candidate"] == failed) & (values["seed"] > 100)]
    assert list(chosen["status"]) == ["failed"] * 2
    assert chosen["value"].isna().all()
    header, _, row = (out / "compare.md").read_text().splitlines()[2:5]
    cells = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    assert (cells["published diverged"], cells["found diverged"]) == (
        ("0", "2") if failed == "found" else ("2", "0")
    )


@pytest.mark.parametrize(
    ("published", "found", "better"),
    [
        ([1.0, 1.0, 1.0], [0.5, LOST, LOST], False),
        ([1.0, LOST, 1.0], [0.1, 0.1, LOST], False),
        ([1.0, LOST, 1.0], [0.5, 0.5, 0.5], True),
        ([1.0, LOST, 1.0], [1.5, 0.5, 1.5], False),
        ([1.0, LOST, 1.0], [0.5, LOST, 0.5], True),
        ([LOST, LOST, LOST], [LOST, LOST, LOST], False),
        ([1.0, 1.0, 1.0], [0.5, np.inf, 0.5], False),
        ([1.0, 1.0, 1.0], [], False),
        ([1.0, 1.0, 1.0], [0.9, 0.9, 2.0], False),  # the mean decides, not the median
        ([1.0, 1.0, 1.0], [1.1, 1.1, 0.1], True),
    ],
)
def test_values_that_lose_runs_are_not_better(published, found, better):
    given = {"published": published, "found": found}
    rows = [("virl_10c", c, s, v, "finished") for c in given for s, v in enumerate(given[c])]
    values = pd.DataFrame(rows, columns=["column", "candidate", "seed", "value", "status"])
    column = SimpleNamespace(name="virl_10c", unbeaten=False, candidates=comparing.CANDIDATES)
    assert comparing._found_is_better(column, values) == better


@pytest.mark.parametrize("task", ["gaussians", "grid_walker"])
def test_what_is_committed_as_tuned_won_on_fresh_seeds_and_is_loaded(task):
    columns = read_yaml(tuned_file(task))["columns"]
    assert columns
    for column, sections in columns.items():
        folder = f"study_{column}" if task == "gaussians" else f"study_walker_{column}"
        values = pd.read_csv(RESULTS / folder / "values.csv")
        made = SimpleNamespace(name=column, unbeaten=False, candidates=comparing.CANDIDATES)
        assert comparing._found_is_better(made, values)
        method, _, components = column.removesuffix("c").partition("_")
        request = RunRequest(task, method, int(components or 10), hparams_file=Path("tuned"))
        loaded = request.specification().hparams
        for section, keys in sections.items():
            assert {key: getattr(getattr(loaded, section), key) for key in keys} == keys


def test_values_of_which_many_are_the_lowest_are_all_shown():
    assert study_pictures._most_shown([-4.0, -4.0, -4.0, 1.0]) == 1.0


def test_of_a_run_all_is_kept_that_its_task_measures():
    spec = RunRequest("grid_walker", "virl", 10).specification()
    unit = comparing.RunUnit(spec, 0, label="found")
    summary = {"task": "grid_walker", "status": "finished", "cpu_seconds": {"process": 90.0}}
    summary |= {"negative_elbo": -4.5, "reward_correlation": 0.93, "num_modes": 32}
    assert comparing._outcome(unit, summary) == {
        "column": "virl",
        "candidate": "found",
        "seed": spec.seed,
        "value": -4.5,
        "status": "finished",
        "cpu_seconds": 90.0,
        "open_modes": 32,
        "reward_correlation": 0.93,
    }


def test_what_beats_published_is_run_beside_it(studies, runs, tmp_path):
    found, make = studies
    make(3.0, 1.0)
    (column,) = find_columns(found)
    assert not column.unbeaten
    out, seeds = tmp_path / "out", "100,101,102,103,104"
    compare(found, seeds, Workers(None, 1), False, out, budget="quick")
    assert [unit.label for unit in runs] == ["published"] * 5 + ["found"] * 5
    assert {unit.spec.preset for unit in runs} == {"quick"}
    layers = published_parameters(column.spec)["network.num_layers"]
    asked = {(unit.label, unit.spec.hparams.network.num_layers) for unit in runs}
    assert asked == {("published", layers), ("found", layers - 1)}
    written = pd.read_csv(out / "hyperparameters.csv").set_index("hyperparameter")
    row = written.loc["network.num_layers", ["published", "found"]]
    assert [float(value) for value in row] == [layers, layers - 1]
    row = (tmp_path / "out" / "compare.md").read_text().splitlines()[4]
    assert UNBEATEN not in row
    assert row.count("[") == 2, "five seeds have intervals"


@pytest.mark.parametrize(
    ("values", "known"), [(range(7), False), (range(8), True), ([1.0] * 9, False)]
)
def test_few_trials_or_equal_ones_say_nothing_of_importances(studies, values, known):
    _, make = studies
    make(*map(float, values))
    (column,) = find_columns(FOUND)
    rows = comparing._importances(column)
    assert bool(rows) == known
    assert {row["column"] for row in rows} <= {"virl_10c"}


def test_the_scores_of_a_column_are_of_pairs_and_of_trials_that_ended(studies):
    _, make = studies
    study = make(3.0, 1.0)
    parts = {"params": study.trials[-1].params, "distributions": study.trials[-1].distributions}
    for state in (TrialState.PRUNED, TrialState.FAIL, TrialState.RUNNING):
        study.add_trial(create_trial(state=state, **parts))
    given = {"published": [2.0] * 6, "found": [1.5, 1.5, 1.5, 1.5, 1.5, 2.0]}
    rows = [("virl_10c", c, s, v, "finished") for c in given for s, v in enumerate(given[c])]
    values = pd.DataFrame(rows, columns=["column", "candidate", "seed", "value", "status"])
    (column,) = find_columns(FOUND)
    score = comparing._score(column, values)
    assert score["published"] == "2.0000 [2.0000, 2.0000]"
    assert score["found"].startswith("1.5833 [1.5000, ")
    # The seed at which both are alike is no win, and tells nothing.
    assert (score["found lower in"], score["p"]) == ("5 of 6", f"{2.0**-5:.2g}")
    assert (score["trials"], score["found in tuning"]) == ("3", "1.0000")


def test_importances_find_what_matters_and_say_how_sure_they_are(studies):
    _, make = studies
    rng = np.random.default_rng(0)
    study = make(3.0)
    first = study.trials[-1]
    for _ in range(30):  # the objective is the dropout's, and noise
        dropout = float(rng.uniform(1e-9, 1.0))
        params = {**first.params, "network.dropout": dropout}
        params["policy.update_steps"] = int(rng.integers(500))
        parts = {"params": params, "distributions": first.distributions}
        study.add_trial(create_trial(value=dropout + 0.01 * rng.normal(), **parts))
    found = importances_of(study)
    assert found.index[0] == "network.dropout"
    assert found["importance"].sum() == pytest.approx(1.0)
    assert found["importance"].iloc[0] > 0.8
    assert (found["deviation"] >= 0.0).all()
    assert found.equals(importances_of(study)), "the same each time"


def test_an_importance_is_the_mean_over_forests_beside_their_standard_deviation(monkeypatch):
    shares = [0.1, 0.1, 0.7]

    def of_one_forest(study, evaluator):
        return {"first": shares[evaluator], "second": 1.0 - shares[evaluator]}

    fanova = {"FanovaImportanceEvaluator": lambda seed: seed}
    made_up = SimpleNamespace(get_param_importances=of_one_forest, **fanova)
    monkeypatch.setattr(importances, "SEEDS", range(3))
    monkeypatch.setattr(importances, "optuna", SimpleNamespace(importance=made_up))
    found = importances_of(None)
    assert list(found.index) == ["second", "first"]
    np.testing.assert_allclose(found["importance"], [0.7, 0.3])
    np.testing.assert_allclose(found["deviation"], np.std(shares, ddof=1))


# --- pictures -------------------------------------------------------------------------------------


def test_a_study_of_few_complete_trials_has_no_plots_and_no_command(studies, tmp_path):
    found, make = studies
    make(*range(1, 8))
    with pytest.raises(InputError, match="has 7 complete trials; plots need at least 8") as error:
        study_plots(found, *COLUMN, tmp_path / "plots")
    assert "python -m" not in str(error.value)
    assert not (tmp_path / "plots").exists()


def test_a_study_whose_trials_are_all_alike_has_no_plots(studies, tmp_path):
    found, make = studies
    make(*[1.0] * 9)
    with pytest.raises(InputError, match=r"all 9 complete trials .* have the same value"):
        study_plots(found, *COLUMN, tmp_path / "plots")
    assert not (tmp_path / "plots").exists()


def drawn(monkeypatch, study):
    """The figures of a study, by name."""
    shown = {}
    monkeypatch.setattr(
        study_pictures, "save", lambda figure, path: shown.setdefault(path.name, figure)
    )
    return shown


def test_the_history_is_logarithmic_with_the_published_and_pruned_trials(
    studies, monkeypatch, tmp_path
):
    _, make = studies
    study = make(0.07, 9.0, *np.linspace(0.1, 1.0, 7))
    first = study.trials[0]
    parts = {"params": first.params, "distributions": first.distributions}
    pruned = create_trial(state=TrialState.PRUNED, intermediate_values={0: 5.0, 3: 4.0}, **parts)
    study.add_trial(pruned)
    study.add_trial(create_trial(state=TrialState.PRUNED, **parts))  # gave up before a value
    shown = drawn(monkeypatch, study)
    study_pictures.draw_study(study, importances_of(study), tmp_path)
    assert set(shown) == {"history", "importances", "slices", "pair"}
    (axes,) = shown["history"].axes
    assert axes.get_yscale() == "log"
    lines = {line.get_label(): line.get_xydata() for line in axes.lines}
    np.testing.assert_allclose(lines["published column"], [[1, 0.07]])
    np.testing.assert_allclose(lines["pruned, at its last value"], [[10, 4.0]])
    assert len(lines["complete"]) == 9


def test_a_bad_trial_does_not_hide_good_ones_below_zero(studies, monkeypatch, tmp_path):
    _, make = studies
    study = make(-4.0, -3.9, -3.8, -3.5, -3.0, -2.8, -2.7, 60_000.0)
    shown = drawn(monkeypatch, study)
    study_pictures.draw_study(study, importances_of(study), tmp_path)
    most = -4.0 + 4.0 * 0.175
    for name in ("history", "slices"):
        axes = shown[name].axes[0]
        assert axes.get_yscale() == "linear"
        np.testing.assert_allclose(axes.get_ylim()[1], most)
        (note,) = [text.get_text() for text in axes.texts]
        assert note == "4 above"
    (points,) = shown["pair"].axes[0].collections
    np.testing.assert_allclose(points.get_clim(), (-4.0, most))


@pytest.fixture(scope="module")
def nine(tmp_path_factory):
    """What comes of a study of nine trials: figures by name, their folder, what was warned of."""
    out, shown, error = tmp_path_factory.mktemp("study"), {}, io.StringIO()

    def save(figure, path):
        shown[path.name] = figure
        style.save(figure, path)

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(error):
        patch.chdir(out)
        patch.setattr(study_pictures, "save", save)
        make(*np.linspace(0.1, 1.0, 9))
        study_plots(FOUND, *COLUMN, out / "plots")
    return shown, out / "plots", error.getvalue()


def test_whole_numbers_have_whole_ticks_and_no_field_between(nine):
    shown = nine[0]
    slices = [axes for axes in shown["slices"].axes if axes.get_xlabel() == "network.num_layers"]
    ticks = slices[0].get_xticks()
    np.testing.assert_array_equal(ticks, ticks.round())
    pair = shown["pair"].axes[0]
    kinds = {type(child).__name__ for child in pair.collections}
    assert kinds == {"PathCollection"}, "dots alone, no contours"


def test_slices_fill_their_figure_and_their_ticks_do_not_overlap(nine):
    figure = nine[0]["slices"]
    figure.canvas.draw()
    right = max(axes.get_tightbbox().x1 for axes in figure.axes if axes.get_visible())
    assert right > 0.95 * figure.bbox.x1
    for axes in figure.axes:
        low, high = axes.get_xlim()
        visible = [
            label.get_window_extent()
            for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
            if low <= place <= high and label.get_text()
        ]
        for left, following in pairwise(visible):
            assert left.x1 < following.x0, axes.get_xlabel()


def test_pictures_are_written_and_tell_what_they_rest_on(nine):
    shown, out, error = nine
    for name in ("history", "importances", "slices", "pair"):
        assert (out / f"{name}.png").stat().st_size > 5_000
        assert "9 complete trials" in shown[name].axes[0].get_title(loc="left")
    assert "warning: 9 complete trials; importances say little below 30" in error


def test_thirty_trials_are_not_warned_of(studies, monkeypatch, tmp_path, capsys):
    found, make = studies
    make(*np.linspace(0.1, 1.0, 30))
    for name in ("draw_study", "importances_of"):
        monkeypatch.setattr(f"experiments.tuning.study_plots.{name}", lambda *_: None)
    study_plots(found, *COLUMN, tmp_path / "plots")
    assert "warning" not in capsys.readouterr().err
