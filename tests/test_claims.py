"""The claims on the grid walker and path planning, on made-up results in which they hold, fail, or
cannot be decided.
"""

import itertools

from virl_tf.validation import InputError
from virl_tf.yaml_files import to_yaml

import numpy as np
import pandas as pd
import pytest

from experiments.claims import (
    ENOUGH,
    FAILS,
    FEWEST,
    GAUSSIANS,
    GRID_WALKER,
    HOLDS,
    MOSTLY,
    PATH_PLANNING,
    TOO_FEW,
    print_claims,
)
from experiments.cli import claims_command
from experiments.figures import RESULTS
from experiments.pooled_results import read_results
from experiments.result_files import columns_of
from experiments.result_statistics import table
from experiments.tasks import describe, names

VERSATILE, LIMITED, UNEXPLORED, BOTH, PREFERS, ALIKE = GRID_WALKER
(OBSTRUCTED,) = PATH_PLANNING
# What the paper describes: (stage, method) -> columns.
PAPERS_WORLD = {
    ("training", "virl"): {
        **{
            "modes_covered": 9,
            "good_fraction": 0.98,
            "unexplored_above_random": 0.9,
            "unexplored_random_auc": 0.95,
        },
        "explored_unexplored_auc": 0.6,
    },
    ("training", "geim"): {
        **{
            "modes_covered": 8,
            "good_fraction": 0.95,
            "unexplored_above_random": 0.1,
            "unexplored_random_auc": 0.5,
        },
        "explored_unexplored_auc": 0.97,
    },
    ("inference", "virl"): {"modes_covered": 20, "new_modes": 12, "good_fraction": 0.9},
    ("inference", "geim"): {"modes_covered": 8, "new_modes": 1, "good_fraction": 0.9},
    ("obstacles", "virl"): {"modes_covered": 10, "new_modes": 5, "open_modes": 13},
    ("obstacles", "geim"): {"modes_covered": 6, "new_modes": 1, "open_modes": 13},
}


def results(changes=None, seeds=6, task="grid_walker"):
    """A synthetic results.csv: PAPERS_WORLD with changed columns; a value is a number, or one per
    seed.
    """
    rows = []
    for (stage, method), columns in PAPERS_WORLD.items():
        values = {**columns, **(changes or {}).get((stage, method), {})}
        for seed in range(seeds):
            key = {
                "task": task,
                "method": method,
                "components": 10,
                "modes": 32,
                "seed": seed,
                "preset": "paper",
                "stage": stage,
            }
            common = {
                "open_modes": 32,
                "status": "finished",
                "best": 1.0,
                "final": 1.0,
                "reported": 1.0,
                "cpu_seconds": 1.0,
            }
            rows.append(
                {
                    **common,
                    **{name: np.broadcast_to(v, seeds)[seed] for name, v in values.items()},
                    **key,
                }
            )
    return pd.DataFrame(rows, columns=columns_of(task))


def verdict(claim, changes=None, **options):
    return claim.check(results(changes, **options)).verdict


@pytest.mark.parametrize(
    "claim", [*GRID_WALKER, *PATH_PLANNING], ids=lambda claim: claim.sentence[:30]
)
def test_every_claim_holds_in_the_papers_world_and_one_run_decides_none(claim):
    assert verdict(claim) == HOLDS
    assert verdict(claim, seeds=1) == TOO_FEW
    assert verdict(claim, seeds=0) == TOO_FEW


# --- claims on every run --------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["virl", "geim"])
@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            {"modes_covered": 5, "good_fraction": 0.9},
            HOLDS,
        ),  # just half of 10 components, just precise
        ({"modes_covered": [10, 10, 10, 10, 10, 4]}, FAILS),  # one run is enough
        ({"good_fraction": [1, 1, 1, 1, 1, 0.899]}, FAILS),
        ({"modes_covered": 2, "open_modes": 4}, HOLDS),  # no more can be covered than there are
        ({"modes_covered": 1, "open_modes": 4}, FAILS),
    ],
)
def test_versatile_and_precise_is_a_claim_on_every_run_of_both_methods(method, columns, expected):
    assert verdict(VERSATILE, {("training", method): columns}) == expected


def test_versatile_and_precise_takes_three_runs_of_each_method():
    assert verdict(VERSATILE, seeds=3) == HOLDS
    assert verdict(VERSATILE, {("training", "virl"): {"good_fraction": 0.1}}, seeds=2) == TOO_FEW
    frame = results()
    finding = VERSATILE.check(frame[frame["method"] == "virl"])
    assert finding.verdict == TOO_FEW
    assert finding.numbers.endswith("both in 6 of 6 runs; G-EIM: 0 runs")


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (0, HOLDS),
        (4, HOLDS),  # half of the 8
        (7, FAILS),
        ([0, 8, 0, 8, 0, 8], TOO_FEW),  # the interval holds one half
        ([8, 8, 0, 8, 0, 8], TOO_FEW),  # and here, though the mean is above it
        ([0, 8, 0, 8, 0, 0], TOO_FEW),  # ... or below
    ],
)
def test_mostly_limited_is_a_small_share_of_new_modes(new, expected):
    assert verdict(LIMITED, {("inference", "geim"): {"new_modes": new}}) == expected


@pytest.mark.parametrize(
    ("auc", "expected"),
    [(0.5, HOLDS), ([0.4, 0.6, 0.4, 0.7, 0.5, 0.6], HOLDS), (0.2, FAILS), (0.9, FAILS)],
)
def test_alike_is_an_interval_that_reaches_one_half(auc, expected):
    assert verdict(ALIKE, {("training", "geim"): {"unexplored_random_auc": auc}}) == expected


def test_mostly_limited_takes_five_runs_of_geim_and_none_of_virl():
    assert verdict(LIMITED, seeds=5) == HOLDS
    assert verdict(LIMITED, seeds=4) == TOO_FEW
    frame = results()
    assert LIMITED.check(frame[frame["method"] == "geim"]).verdict == HOLDS
    assert LIMITED.check(frame[frame["method"] == "virl"]).verdict == TOO_FEW


def test_a_policy_that_covers_no_mode_has_no_share_of_new_ones():
    changes = {("inference", "geim"): {"modes_covered": [8] * 5 + [0], "new_modes": [7] * 5 + [0]}}
    finding = LIMITED.check(results(changes))
    assert finding.numbers == (
        "8.0 modes covered, 7.0 of them new; share of new ones 0.88 [0.88, 0.88]; 1 more cover none"
    )
    changes["inference", "geim"]["modes_covered"] = 0
    nothing = LIMITED.check(results(changes))
    assert (nothing.verdict, nothing.numbers) == (TOO_FEW, "0 runs that cover a mode")


# --- comparisons of the methods -------------------------------------------------------------------

# Claim, stage, column, and the two values for which V-IRL has it the paper's way.
COMPARISONS = [
    (UNEXPLORED, "inference", "new_modes", 12.0, 1.0),
    (BOTH, "training", "unexplored_above_random", 0.9, 0.1),
    (BOTH, "training", "unexplored_random_auc", 0.95, 0.6),
    (PREFERS, "training", "explored_unexplored_auc", 0.6, 0.97),
    (OBSTRUCTED, "obstacles", "modes_covered", 10.0, 6.0),
    (OBSTRUCTED, "obstacles", "new_modes", 5.0, 1.0),
]
comparisons = pytest.mark.parametrize(
    ("claim", "stage", "column", "virl", "geim"), COMPARISONS, ids=lambda value: str(value)[:25]
)


def both(stage, column, virl, geim):
    return {(stage, "virl"): {column: virl}, (stage, "geim"): {column: geim}}


@comparisons
def test_a_comparison_the_other_way_round_fails(claim, stage, column, virl, geim):
    assert verdict(claim, both(stage, column, virl, geim)) == HOLDS
    assert verdict(claim, both(stage, column, geim, virl)) == FAILS


@comparisons
def test_a_comparison_takes_five_pairs(claim, stage, column, virl, geim):
    for values in ((virl, geim), (geim, virl)):
        assert verdict(claim, both(stage, column, *values), seeds=FEWEST - 1) == TOO_FEW
        assert verdict(claim, both(stage, column, *values), seeds=FEWEST) != TOO_FEW


@comparisons
def test_no_difference_is_undecided_until_there_are_enough_runs(claim, stage, column, virl, geim):
    equal = both(stage, column, virl, virl)
    assert verdict(claim, equal, seeds=ENOUGH - 1) == TOO_FEW
    assert verdict(claim, equal, seeds=ENOUGH) == FAILS


@comparisons
def test_pairs_without_a_number_do_not_count(claim, stage, column, virl, geim):
    """A policy that covers every mode has no unexplored ones, so there is nothing to compare."""
    missing = np.full(7, virl)
    missing[:3] = np.nan
    assert verdict(claim, both(stage, column, missing, geim), seeds=7) == TOO_FEW
    missing[:1] = virl
    assert verdict(claim, both(stage, column, missing, geim), seeds=7) == HOLDS


def lose(frame, method, seeds):
    """Runs whose numbers are lost."""
    lost = frame.copy()
    rows = (lost["method"] == method) & lost["seed"].isin(seeds)
    lost.loc[rows, ["reported", *columns_of("grid_walker")[12:]]] = np.nan
    lost.loc[rows, "status"] = "diverged"
    return lost


@comparisons
def test_lost_runs_count_against_their_method(claim, stage, column, virl, geim):
    frame = results(both(stage, column, virl, geim), seeds=14)
    assert claim.check(lose(frame, "virl", range(14))).verdict == FAILS
    assert claim.check(lose(frame, "virl", range(7))).verdict not in (HOLDS, MOSTLY)
    one = claim.check(lose(frame, "virl", [3]))
    assert one.verdict == MOSTLY
    assert "(1 lost)" in one.numbers
    assert claim.check(lose(frame, "geim", range(8))).verdict == HOLDS
    assert claim.check(lose(lose(frame, "geim", [1]), "virl", [1])).verdict == HOLDS


def test_lost_runs_have_no_spread_and_no_slope():
    small = np.full(10, 0.1)
    frame = spreads(small, 3.0 * small, 10, 5)
    frame.loc[(frame["method"] == "virl") & (frame["seed"] > 1), "reported"] = np.nan
    finding = GAUSSIANS[2].check(frame)
    assert finding.verdict == FAILS
    assert "none (10 lost) against 0.4" in finding.numbers
    graceful = GAUSSIANS[1].check(frame)
    assert graceful.verdict == FAILS
    assert "V-IRL +inf" in graceful.numbers


@comparisons
def test_runs_of_one_method_are_no_pairs(claim, stage, column, virl, geim):
    frame = results()
    for method in ("virl", "geim"):
        finding = claim.check(frame[frame["method"] == method])
        assert finding.verdict == TOO_FEW
        assert "0 pairs" in finding.numbers


@pytest.mark.parametrize("claim", GRID_WALKER)
def test_other_numbers_of_components_do_not_count(claim):
    frame = results()
    assert claim.check(frame.assign(components=5)).verdict == TOO_FEW
    more = pd.concat([frame, frame.assign(components=5, **PAPERS_WORLD["inference", "geim"])])
    assert claim.check(more) == claim.check(frame)


def test_one_run_that_diverged_is_an_outlier_and_said_to_be_one():
    values = np.full(12, 12.0)
    values[0] = -1e3
    frame = results(both("inference", "new_modes", values, 1.0), seeds=12)
    finding = UNEXPLORED.check(frame)
    assert finding.verdict == MOSTLY
    assert "(of ranks " in finding.numbers
    assert verdict(UNEXPLORED, both("inference", "new_modes", -values, 1.0), seeds=12) != MOSTLY


def spreads(of_virl, of_others, modes, seeds):
    """Recovered rewards of the Gaussians whose standard deviations over seeds are these."""
    methods = itertools.product(("virl", "geim", "eim"), range(modes), range(seeds))
    rows = [
        {"stage": "training", "method": method, "components": 10, "modes": m, "seed": seed}
        | {"preset": "paper", "status": "finished"}
        | {"reported": seed * (of_virl if method == "virl" else of_others)[m]}
        for method, m, seed in methods
    ]
    return pd.DataFrame(rows)


def test_stable_is_decided_by_all_numbers_of_modes_and_seeds_of_the_paper():
    stable, small, alike = GAUSSIANS[2], np.full(10, 0.1), np.tile([0.1, 0.3], 5)
    assert stable.check(spreads(small, 3.0 * small, 10, 5)).verdict == HOLDS
    assert stable.check(spreads(3.0 * small, small, 10, 5)).verdict == FAILS
    assert stable.check(spreads(alike, alike[::-1], 10, 5)).verdict == FAILS
    for modes, seeds in ((9, 5), (10, 4)):
        undecided = stable.check(spreads(alike, alike[::-1], modes, seeds))
        assert undecided.verdict == TOO_FEW
        assert f"{modes} numbers of modes, {seeds} seeds; 10 and 5 decide" in undecided.need
    # One run of one method is not done: its fewest seeds count.
    undecided = stable.check(spreads(alike, alike[::-1], 10, 5).iloc[:-1])
    assert undecided.verdict == TOO_FEW
    assert "10 numbers of modes, 4 seeds; 10 and 5 decide" in undecided.need
    # A number of modes with one seed has no spread, and takes no verdict from the others.
    frame = spreads(alike, alike[::-1], 10, 5)
    single = frame.drop_duplicates(["stage", "method", "components"]).assign(modes=99, seed=0)
    assert stable.check(pd.concat([frame, single])).verdict == FAILS


def of_policies(virl, eim):
    """V-IRL's training policies and EIM, of which policy and reward are one."""
    curves = {("training_policy", "virl"): virl, ("training", "eim"): eim}
    rows = [
        {"stage": stage, "method": method, "components": 10, "modes": 50, "seed": seed}
        | {"preset": "paper", "status": "finished" if np.isfinite(value) else "diverged"}
        | {"reported": value}
        for (stage, method), values in curves.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_the_same_quality_is_not_to_be_worse():
    same, alike = GAUSSIANS[7], np.tile([0.1, 0.3], 8)
    equal = same.check(of_policies(alike, alike))
    assert equal.verdict == HOLDS
    assert "lower in 0 of 16" in equal.numbers
    assert same.check(of_policies(alike, alike[::-1])).verdict == HOLDS
    assert same.check(of_policies(alike, 2.0 * alike)).verdict == HOLDS
    assert same.check(of_policies(2.0 * alike, alike)).verdict == FAILS
    assert same.check(of_policies(alike[:6], alike[:6])).verdict == TOO_FEW
    assert same.check(of_policies(alike[:4], alike[:4])).verdict == TOO_FEW
    outlier = np.where(np.arange(16) == 3, -1e3, 2.0) * alike  # decides the mean, not the ranks
    assert same.check(of_policies(outlier, alike)).verdict == FAILS
    assert same.check(of_policies(np.full(16, np.nan), alike)).verdict == FAILS


def test_findings_tell_the_means():
    assert "V-IRL 12, G-EIM 1, p = 0.016" in UNEXPLORED.check(results()).numbers
    assert "share of new ones 0.12 [0.12, 0.12]" in LIMITED.check(results()).numbers
    assert "3 pairs, means 12 against 1" in UNEXPLORED.check(results(seeds=3)).numbers


def test_too_few_runs_tell_how_many_would_do():
    two = results(seeds=2)
    assert UNEXPLORED.check(two).shown == "not enough runs (2 pairs; at least 5)"
    assert VERSATILE.check(two).shown == "not enough runs (2 runs of a method; at least 3)"
    assert LIMITED.check(two).shown == "not enough runs (2 runs that cover a mode; at least 5)"
    equal = results(both("inference", "new_modes", 1.0, 1.0))
    assert UNEXPLORED.check(equal).shown == "not enough runs (6 pairs undecided; 15 decide)"
    frame = results(task="gaussians")
    needs = [claim.check(frame).need for claim in GAUSSIANS]
    assert needs[1] == "6 runs of V-IRL; at least 5 at 3 numbers of modes"
    assert needs[2] == "1 numbers of modes with 2 seeds; at least 5"
    assert VERSATILE.check(results()).shown == HOLDS


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["grid_walker", "path_planning"])
def test_claims_are_printed_with_their_verdicts(task, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    results(task=task).to_csv(tmp_path / "results.csv", index=False)
    print_claims(task, tmp_path)
    shown = capsys.readouterr().out
    assert shown.count("│ holds") == len(describe(task).claims())
    for claim in describe(task).claims():
        assert claim.sentence[:40] in shown


def test_results_of_two_tasks_or_none_are_refused(tmp_path):
    frames = [results(task=task) for task in ("grid_walker", "path_planning")]
    pd.concat(frames).to_csv(tmp_path / "results.csv", index=False)
    with pytest.raises(
        InputError, match="holds results of grid_walker, path_planning, not of grid_walker"
    ):
        print_claims("grid_walker", tmp_path)
    frames[0].iloc[:0].to_csv(tmp_path / "results.csv", index=False)
    with pytest.raises(InputError, match="holds results of no task"):
        print_claims("grid_walker", tmp_path)


def put(folder, frame, versions=None):
    folder.mkdir()
    frame.to_csv(folder / "results.csv", index=False)
    if versions is not None:
        (folder / "config.yaml").write_text(to_yaml({"config": {}, "versions": versions}))
    return folder


def test_presets_are_pooled_only_when_told_to(tmp_path, capsys):
    paper = put(tmp_path / "paper", results())
    smoke = put(tmp_path / "smoke", results().assign(preset="smoke"))
    message = r"different presets \(.*paper: paper; .*smoke: smoke\)\. Give those of one, or --pool"
    for given in ([paper, smoke], [smoke / "results.csv", paper]):
        with pytest.raises(InputError, match="different presets"):
            print_claims("grid_walker", given)
    with pytest.raises(InputError, match=message):
        read_results([paper, smoke])
    both = pd.concat([results(), results().assign(preset="quick")])
    with pytest.raises(InputError, match="both: paper, quick"):
        print_claims("grid_walker", put(tmp_path / "both", both))
    print_claims("grid_walker", [paper, smoke], pool=True)
    assert "holds" in capsys.readouterr().out


@pytest.mark.parametrize("package", ["virl_tf", "tensorflow", "numpy"])
def test_versions_are_pooled_only_when_told_to(tmp_path, package):
    old = {"python": "3.11.7", "virl_tf": "0.1.0", "tensorflow": "2.21.0", "numpy": "2.0"}
    later = results().assign(seed=lambda frame: frame["seed"] + 10)
    folders = [
        put(tmp_path / "a", results(), old),
        put(tmp_path / "b", later, {**old, package: "9"}),
    ]
    with pytest.raises(InputError, match=f"different versions of {package}"):
        read_results(folders)
    assert len(read_results(folders, pool=True)) == 2 * len(results())
    same_numbers = put(tmp_path / "c", later, {**old, "python": "3.12.0"})
    unknown = put(tmp_path / "d", later.assign(seed=99 + later["seed"]))
    assert len(read_results([folders[0], same_numbers, unknown])) == 3 * len(results())


@pytest.mark.parametrize("task", ["grid_walker", "path_planning"])
def test_sizes_are_pooled_only_when_told_to_or_claimed_over_sizes(task, tmp_path, capsys):
    short = put(tmp_path / "short", results(task=task).assign(modes=8))
    whole = put(tmp_path / "whole", results(task=task))
    with pytest.raises(InputError, match=r"different task sizes .* 32, 8"):
        print_claims(task, [whole, short])
    print_claims(task, [whole, short], pool=True)
    assert capsys.readouterr().out
    assert [name for name in names() if describe(name).over_sizes] == ["gaussians"]


@pytest.mark.parametrize("task", names())
def test_results_are_read_back(task, tmp_path):
    frame = results(task=task)
    frame.to_csv(tmp_path / "results.csv", index=False)
    for path in (tmp_path, tmp_path / "results.csv"):
        pd.testing.assert_frame_equal(read_results(path), frame, check_dtype=False)


def test_results_that_were_cut_off_are_refused(tmp_path):
    frame = results()
    text = frame.to_csv(index=False)
    (tmp_path / "results.csv").write_text(text[: text.rindex("grid_walker") + 20])
    with pytest.raises(InputError, match=f"damaged: row {len(frame)} of {len(frame)} is not whole"):
        read_results(tmp_path)


def test_the_table_of_walks_has_the_means_of_all_measures():
    found = table(results({("inference", "virl"): {"new_modes": [0, 0, 0, 6, 6, 6]}}))
    row = found[(found["stage"] == "inference") & (found["method"] == "virl")].iloc[0]
    assert (row["seeds"], row["modes_covered"], row["new_modes"]) == (6, 20.0, 3.0)
    assert np.isnan(row["explored_unexplored_auc"])
    assert len(found) == len(PAPERS_WORLD)


def test_a_run_that_is_lost_has_no_further_means_and_one_without_such_a_value_does():
    """Of a policy that covers all modes there are none unexplored: the mean is of the others."""
    columns = {"unexplored_random_auc": [0.5, 0.7, 0.9, 0.7, 0.7, np.nan]}
    frame = results({("training", "virl"): columns})

    def mean(frame):
        found = table(frame).set_index(["stage", "method"])
        return found.loc[("training", "virl"), "unexplored_random_auc"]

    assert mean(frame) == pytest.approx(0.7)
    rows = (frame["stage"] == "training") & (frame["method"] == "virl")
    frame.loc[rows & (frame["seed"] == 5), "status"] = "diverged"
    assert np.isnan(mean(frame))
    assert mean(frame[frame["seed"] < 5]) == pytest.approx(0.7)


def test_a_mean_that_is_lost_has_no_interval():
    frame = results({("training", "virl"): {"reported": [1.0, 2.0, 3.0, 4.0, 5.0, np.nan]}})
    found = table(frame).set_index(["stage", "method"]).loc[("training", "virl")]
    assert np.isnan([found["mean"], found["low"], found["high"]]).all()
    assert found["seeds"] == 6


def test_without_a_sweep_the_committed_results_are_tested(capsys):
    claims_command("path_planning")
    assert "holds" in capsys.readouterr().out


COMMITTED = sorted(RESULTS.glob("*/claims.txt"))


@pytest.mark.parametrize("file", COMMITTED, ids=[file.parent.name for file in COMMITTED])
def test_committed_verdicts_are_those_of_the_table_beside_them(file, capsys, monkeypatch):
    text = file.read_text(encoding="utf-8")
    monkeypatch.setenv("COLUMNS", str(text.index("\n")))
    print_claims(read_results(file.parent)["task"].iloc[0], file.parent)
    assert capsys.readouterr().out == text


def test_where_the_paper_says_nothing_that_is_said_before_a_sweep_is_asked_for(tmp_path):
    with pytest.raises(InputError, match="the paper says nothing of hall"):
        print_claims("hall", tmp_path)


def test_a_run_that_diverged_at_few_modes_tilts_no_line():
    frame = spreads(np.full(10, 0.01), np.full(10, 0.01), 10, 5)
    frame["reported"] += np.where(frame["method"] == "virl", 3.0, 1.0) * frame["modes"] / 50.0
    assert GAUSSIANS[1].check(frame).verdict == FAILS
    few = (frame["method"] == "virl") & (frame["seed"] == 1) & (frame["modes"] == 0)
    frame.loc[few, "reported"] = 100.0
    assert GAUSSIANS[1].check(frame).verdict == FAILS


def test_where_every_method_loses_runs_none_scales_gracefully():
    small = np.full(10, 0.1)
    frame = spreads(small, 3.0 * small, 10, 5)
    frame.loc[frame["seed"] > 1, "reported"] = np.nan
    graceful = GAUSSIANS[1].check(frame)
    assert graceful.numbers.count("+inf") == 3
    assert graceful.verdict == FAILS
