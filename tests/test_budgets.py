"""`python -m experiments rank-budgets`: its points, its rank correlations, its refusals."""

import math
from types import SimpleNamespace

from virl_tf.validation import InputError

import numpy as np
import pandas as pd
import pytest
from scipy.stats import rankdata

from experiments.sweeps.sweep import Workers
from experiments.sweeps.units import RunUnit
from experiments.tuning import budgets
from experiments.tuning.budgets import agreement, preview, random_points, rank_budgets
from experiments.tuning.space import searched
from experiments.tuning.specification import StudySpecification

STUDY = StudySpecification("gaussians", "virl", 10, 5, "paper", (3, 4), ())
WORKERS = Workers(None, 1)


@pytest.fixture(autouse=True)
def few_permutations(monkeypatch):
    monkeypatch.setattr(budgets, "PERMUTATIONS", 2000)


def test_points_are_of_the_searched_space_and_always_the_same():
    points = random_points(STUDY, 4)
    names = {f"{section}.{key}" for section, keys in points[0].items() for key in keys}
    assert names == set(searched("gaussians", "virl", 10))
    assert points == random_points(STUDY, 4)
    assert len({str(point) for point in points}) == 4
    assert random_points(STUDY, 6)[:4] == points


def values(**of_presets):
    return pd.DataFrame(
        [
            {"preset": preset, "point": i, "seed": 0, "value": value, "cpu_seconds": 2.0}
            for preset, column in of_presets.items()
            for i, value in enumerate(column)
        ]
    ).eval("half_way = value")


def test_the_rank_correlation_is_spearmans():
    rng = np.random.default_rng(0)
    cheap, dear = rng.normal(size=(2, 9))
    frame = values(quick=cheap, paper=dear)
    frame["cpu_seconds"] = np.where(frame["preset"] == "quick", 1.0, 10.0) * frame["point"] ** 2
    table = agreement(frame, ["quick", "paper"]).set_index("budget")
    assert list(table["CPU seconds of a run"]) == ["23", "227"]  # 204 / 9
    expected = np.corrcoef(rankdata(cheap), rankdata(dear))[0, 1]
    found = table["rank correlation with paper"]
    assert (found["quick"], found["paper"]) == (f"{expected:.2f}", "1.00")
    best = int(np.argmin(cheap))
    assert table["best point"]["quick"] == str(best)
    assert table["its rank at paper"]["quick"] == f"{rankdata(dear)[best]:.0f} of 9"


def test_what_diverged_comes_last():
    frame = values(quick=[1.0, 2.0, math.inf, 0.5], paper=[1.0, 2.0, 9.0, 0.5])
    table = agreement(frame, ["quick", "paper"]).set_index("budget")
    assert table["rank correlation with paper"]["quick"] == "1.00"
    assert table["diverged points"]["quick"] == "1"


def test_of_points_that_all_diverged_none_is_the_best():
    frame = values(quick=[math.inf] * 3, paper=[1.0, 2.0, 3.0])
    table = agreement(frame, ["quick", "paper"]).set_index("budget")
    columns = ["rank correlation with paper", "p", "best point", "its rank at paper"]
    assert list(table.loc["quick", columns]) == ["nan", "nan", "none", "none"]
    assert list(table.loc["paper", columns]) == ["1.00", "-", "0", "1 of 3"]


def test_points_that_share_a_rank_because_they_diverged_prove_little():
    """One point is left of ten at one budget, two at the other: by chance it is the best in ten."""
    cheap = [1.0, *[math.inf] * 9]
    frame = values(quick=cheap, paper=[1.0, 2.0, *[math.inf] * 8])
    row = agreement(frame, ["quick", "paper"]).set_index("budget").loc["quick"]
    assert float(row["rank correlation with paper"]) > 0.7
    assert float(row["p"]) == pytest.approx(0.1, abs=0.02)
    five = agreement(values(quick=range(5), paper=range(5)), ["quick", "paper"])
    assert float(five["p"][0]) == pytest.approx(2 / math.factorial(5), rel=0.3)
    # Of 12! orders none of those that were tried is as good, but the one that was found is one.
    twelve = agreement(values(quick=range(12), paper=range(12)), ["quick", "paper"])
    assert twelve["p"][0] == f"{1 / 2001:.2g}"


def test_a_point_that_diverged_at_any_seed_comes_last():
    one, other = values(quick=[0.1, 1.0, 2.0]), values(quick=[math.inf, 1.0, 2.0])
    frame = pd.concat([one, other.assign(seed=1), values(paper=[9.0, 1.0, 2.0])])
    table = agreement(frame, ["quick", "paper"]).set_index("budget")
    assert table["rank correlation with paper"]["quick"] == "1.00"
    assert table["best point"]["quick"] == "1"
    assert table["diverged points"]["quick"] == "1"


def test_how_well_the_seeds_of_a_budget_agree_is_told():
    orders = {("quick", 0): [1, 2, 3, 4], ("quick", 1): [1, 2, 4, 3], ("quick", 2): [4, 3, 2, 1]}
    orders |= {("paper", seed): [1, 2, 3, math.inf] for seed in range(3)}
    columns = [
        values(**{preset: order}).assign(seed=seed) for (preset, seed), order in orders.items()
    ]
    table = agreement(pd.concat(columns), ["quick", "paper"]).set_index("budget")
    expected = np.mean([0.8, -1.0, -0.8])
    assert list(table["between seeds"]) == [f"{expected:.2f}", "1.00"]
    alone = agreement(values(quick=[1, 2, 3], paper=[1, 2, 3]), ["quick", "paper"])
    assert "between seeds" not in alone


@pytest.mark.parametrize(
    ("status", "value", "counts_as"),
    [("finished", 0.5, 0.5), ("diverged", 0.5, math.inf), ("finished", math.nan, math.inf)],
)
def test_a_run_that_diverged_has_no_better_value_than_others(status, value, counts_as):
    unit = RunUnit(STUDY.run(0, {}), 0, label=0)
    assert budgets._row(unit, record(value, status=status))["value"] == counts_as


@pytest.mark.parametrize(
    ("history", "counts_as"),
    [
        ([9.0, 7.0, 8.0, 6.0, 5.0, 4.0, 1.0], 4.0),
        ([9.0, 7.0], 7.0),  # converged
        ([9.0, math.nan], math.inf),
        ([9.0, math.inf, 7.0, 6.0, 5.0, 4.0], math.inf),
    ],
)
def test_half_way_the_best_value_counts_as_for_the_pruner(history, counts_as):
    unit = RunUnit(STUDY.run(0, {}), 0, label=0)
    assert unit.spec.hparams.loop.num_iterations == 10
    assert budgets._row(unit, record(0.5, history))["half_way"] == counts_as


def test_how_well_half_a_run_ranks_is_told():
    frame = values(quick=[1.0, 2.0, 3.0, 4.0], paper=[1.0, 2.0, 3.0, math.inf])
    frame["half_way"] = [1.0, 2.0, 4.0, 3.0, 4.0, 3.0, 2.0, 1.0]
    table = agreement(frame, ["quick", "paper"]).set_index("budget")
    assert list(table["pairs right half way"]) == [f"{5 / 6:.2f}", "0.00"]
    frame["half_way"] = 1.0
    assert set(agreement(frame, ["quick", "paper"])["pairs right half way"]) == {"0.50"}
    frame["value"] = math.inf
    assert set(agreement(frame, ["quick", "paper"])["pairs right half way"]) == {"nan"}


def record(value, history=(1.0,), status="finished"):
    summary = {"task": "gaussians", "i_projection": {"reward": {"reported": value}}}
    summary |= {"status": status, "cpu_seconds": {"process": 1.0}}
    metrics = pd.DataFrame({"i_projection_reward": history}).to_csv().encode()
    return SimpleNamespace(summaries={".": summary}, files={"metrics.csv": metrics})


@pytest.fixture
def runs(monkeypatch):
    """The units asked for; a point's value is its number, reversed at the budget `smoke`."""
    asked = []

    def execute_sweep(units, out, *_):
        asked.extend(units)
        return {}

    def records_of(units, _):
        sign = {"smoke": -1.0}
        return {u.name: record(u.label * sign.get(u.spec.preset, 1.0)) for u in units}

    monkeypatch.setattr(budgets, "execute_sweep", execute_sweep)
    monkeypatch.setattr(budgets, "records_of", records_of)
    return asked


def test_every_point_runs_at_every_budget_and_seed(runs, tmp_path, capsys):
    rank_budgets(STUDY, ["smoke", "quick", "paper"], 6, WORKERS, tmp_path)
    assert len({unit.name for unit in runs}) == len(runs) == 3 * 2 * 6
    assert {(unit.spec.preset, unit.spec.seed) for unit in runs} == {
        (preset, seed) for preset in ("smoke", "quick", "paper") for seed in (3, 4)
    }
    first = [unit for unit in runs if unit.label == 0]
    assert len({unit.spec.hparams.training.learning_rate for unit in first}) == 1
    text = (tmp_path / "budgets.md").read_text()
    assert "| smoke | -1.00 |" in text
    assert "| quick | 1.00 |" in text
    shown, warned = capsys.readouterr()
    assert text in shown
    assert "warning: smoke: no agreement with paper beyond chance" in " ".join(warned.split())
    assert len(pd.read_csv(tmp_path / "budgets.csv")) == len(runs)


@pytest.mark.parametrize(
    ("presets", "points", "message"),
    [
        (["paper"], 4, "--presets needs two or more"),
        (["quick", "paper", "quick"], 4, "--presets needs two or more different ones"),
        (["quick", "papr"], 4, "preset.*paper"),
        (["best", "paper"], 4, "preset of a study 'best'"),
        (["quick", "paper"], 2, "--points.*3"),
    ],
)
def test_what_cannot_be_ranked_is_refused(presets, points, message, tmp_path):
    with pytest.raises(InputError, match=message):
        rank_budgets(STUDY, presets, points, WORKERS, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("act", [rank_budgets, preview])
def test_the_folder_of_a_sweep_is_refused_and_so_is_a_file(act, runs, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("config: {sweep: gaussians}\n")
    for out, message in ((tmp_path, "holds a run or a sweep"), (config, "config.yaml is a file")):
        with pytest.raises(InputError, match=message):
            act(STUDY, ["quick", "paper"], 4, WORKERS, out)
    assert not runs
    assert list(tmp_path.iterdir()) == [config]


def test_a_refusal_names_the_option_that_was_given(call):
    status, _, error = call("rank-budgets", "gaussians", "--points", 0)
    assert status == 2
    assert error == "error: --points must be an integer >= 3, got 0.\n"
