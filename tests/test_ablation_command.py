"""`python -m experiments ablate`: its units, its table, its look away from the demonstrations, and
one real smoke run.
"""

import shutil

from virl_tf.hparams import own_data_hparams
from virl_tf.kde import fit_kde
from virl_tf.mixture import Mixture
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.tasks import GridWalker
from virl_tf.validation import InputError

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from experiments.evaluation import ablated
from experiments.evaluation.ablated import correlations, far_share, off_grid_share
from experiments.figures import draw, figure_ablations
from experiments.records import FOLDER
from experiments.references import Demonstrated
from experiments.result_files import columns_of
from experiments.sweeps import ablation_command as commanding
from experiments.sweeps import ablation_tables
from experiments.sweeps.ablation_command import ablate, table
from experiments.sweeps.ablation_tables import TABLES, read_rows, table_holding
from experiments.sweeps.ablations import AblationRequest
from experiments.sweeps.sweep import RUNS, Workers
from tests.shared import make_reward

WORKER = Workers(None, 1)
TINY = ["network.layer_size=8", "network.num_layers=2", "network.num_frequencies=4"]
TINY += ["training.num_epochs=2", "policy.update_steps=2"]
TINY += ["loop.num_iterations=2", "loop.num_negatives=500"]


def request(**changes):
    arguments = {"task": "gaussians", "only": None, "seeds": [3], "modes": 5}
    return AblationRequest(**{**arguments, **changes})


def units(**changes):
    return request(**changes).units()


def test_every_ablation_is_best_with_its_change_alone():
    found = {unit.label: unit.spec for unit in units()}
    best = own_data_hparams("virl")
    assert found["best"].hparams == best
    assert found["no_stop"].hparams == best.override({"loop": {"min_gain": None}})
    assert found["paper"].preset == "paper"
    assert found["paper"].hparams.network.layer_size == 256  # Table 2
    assert {spec.method for spec in found.values()} == {"virl"}
    assert len({spec.hparams for spec in found.values()}) == len(found)


def test_method_ablations_are_the_paper_with_another_method():
    found = {unit.label: unit for unit in units(table="method_ablations")}
    assert next(iter(found)) == "virl"
    for name, unit in found.items():
        assert (unit.spec.preset, unit.spec.method) == ("paper", name.removesuffix("_more_steps"))
        assert unit.is_base == (name == "virl")
    for name in ("geim", "eim"):
        more = {"policy": {"update_steps": 162}}
        assert found[f"{name}_more_steps"].spec.hparams == found[name].spec.hparams.override(more)
    assert {"virl_no_kde", "virl_no_weights", "eim_fusion", "geim_fusion_logit"} < set(found)
    # Of one family, of which the method alone differs.
    assert found["virl_no_kde"].spec.hparams == found["virl"].spec.hparams
    assert found["eim_fusion"].spec.hparams == found["eim"].spec.hparams


@pytest.mark.parametrize(
    ("names", "base"),
    [({"paper", "no_stop"}, "best"), ({"geim"}, "virl"), ({"T_1", "paper"}, "paper")],
)
def test_a_figure_finds_the_table_of_its_rows(names, base):
    assert next(iter(read_rows(table_holding(names)))) == base


def test_rows_of_two_tables_are_refused():
    with pytest.raises(InputError, match=r"no table of hparams .* has all of"):
        table_holding(["no_stop", "geim"])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("odd: {hparam: {}}", "key of odd.*hparams"),
        ("odd: {hparams: {loop: {speed: 1}}}", "ablations.yaml: unknown key 'loop.speed'"),
        ("odd: {method: virl_kde}", "method.*virl_no_kde"),
        ("odd: {preset: bst}", "preset.*best"),
    ],
)
def test_rows_that_cannot_be_are_refused(row, message, tmp_path, monkeypatch):
    monkeypatch.setattr(ablation_tables, "DIRECTORY", tmp_path)
    (tmp_path / "ablations.yaml").write_text(row)
    with pytest.raises(InputError, match=message):
        units()


def test_open_choices_change_the_paper_in_one_respect():
    found = {unit.label: unit for unit in units(table="open_choices", modes=50)}
    paper = found["paper"].spec
    assert (paper.preset, paper.components, paper.num_train) == ("paper", 10, 8000)
    assert [unit.label for unit in found.values() if unit.is_base] == ["paper"]
    assert found["K_25"].spec.components == 25
    assert found["rows_500"].spec.num_train == 500
    assert found["T_40"].spec.hparams == paper.hparams.override({"loop": {"num_iterations": 40}})
    same = {name for name, unit in found.items() if unit.spec.hparams == paper.hparams}
    # One component has a column of its own in Table 2.
    assert same == {"paper", "K_5", "K_25", "K_50", "rows_500", "rows_2000", "rows_32000"}
    assert found["K_1"].spec.hparams.policy.update_steps == 1
    configurations = [str(unit.spec.to_config()) for unit in found.values()]
    assert len(set(configurations)) == len(found)


def test_tables_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(commanding, "execute_sweep", lambda *_: {})
    ablate(request(only=["best"]), WORKER, tmp_path)
    chosen = request(table="open_choices", only=["paper"])
    with pytest.raises(InputError, match="table: 'ablations' there, 'open_choices' now"):
        ablate(chosen, WORKER, tmp_path)


@pytest.mark.parametrize("size", [{"dim": 5}, {"rows": 300}, {"dim": 5, "rows": 300}])
def test_dimensions_and_numbers_of_rows_do_not_share_a_folder(size, tmp_path, monkeypatch):
    """One would write its tables over the other's, which do not say what they are of."""
    monkeypatch.setattr(commanding, "execute_sweep", lambda *_: {})
    usual, other = request(only=["best"]), request(only=["best"], **size)
    letters = {"dim": "D", "rows": "n"}
    ending = "".join(f"-{letters[name]}{number}" for name, number in size.items())
    assert str(usual.folder) == "ablations/gaussians"
    assert str(other.folder) == f"ablations/gaussians{ending}"
    ablate(usual, WORKER, tmp_path)  # as of folders of versions that knew no other
    assert not size.keys() & RunFolder(tmp_path).config.keys()
    with pytest.raises(InputError, match=f"{next(iter(size))}: "):
        ablate(other, WORKER, tmp_path)


def test_units_have_folders_of_their_own_and_search_in_inference():
    found = units(seeds=[1, 2], only=["best", "silverman", "best"])  # each once
    assert len({unit.name for unit in found}) == len(found) == 4
    assert all(unit.searches == (True,) and unit.inference_components == 5 for unit in found)
    assert [unit.spec.num_train for unit in units(only=["best"], rows=300)] == [300]
    (walk,) = units(task="grid_walker", only=["best"], modes=None)
    assert walk.inference_components == 25


@pytest.mark.parametrize("rewards_only", [False, True])
def test_policies_are_inferred_unless_only_rewards_are_wanted(rewards_only):
    for task, modes, expected in (
        ("gaussians", 5, {"inference_search"}),
        ("path_planning", None, {"inference_search", "obstacles_search"}),
    ):
        best, other = units(
            task=task, modes=modes, only=["best", "silverman"], rewards_only=rewards_only
        )
        assert set(best.inferences) == (set() if rewards_only else expected)
        assert set(other.inferences) == set(best.inferences)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"only": ["bst"]}, r"ablation.*bst.*best"),
        ({"task": "walker"}, r"task.*walker"),
        ({"task": "grid_walker", "modes": 3}, r"--modes is for .*gaussians"),
        ({"task": "grid_walker", "modes": None, "dim": 3}, r"--dim is for .*gaussians"),
        ({"task": "experts"}, r"ablate is for gaussians, .*infers with search, which experts"),
        ({"dim": 0}, r"--dim"),
        ({"dim": 5, "rows": 6}, r"--rows.*7"),  # D + 2, as for data of one's own
        ({"assignments": ["loop.num_negatives=1"]}, r"num_negatives = 1 is not allowed"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(InputError, match=message):
        units(**changes)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("between", [0.0, 0.3])
def test_far_share_is_the_mass_between_the_demonstrations_modes(between, monkeypatch):
    monkeypatch.setattr(ablated, "DRAWS", 1000)

    def lumps(n):
        return rng.choice([-12.0, 12.0], (n, 1)) * [1.0, 0.0] + rng.standard_normal((n, 2))

    rng = np.random.default_rng(0)
    weights = np.array([(1.0 - between) / 2.0, (1.0 - between) / 2.0, max(between, 1e-12)])
    means = np.array([[-12.0, 0.0], [12.0, 0.0], [0.0, 0.0]])
    trils = np.array([np.eye(2), np.eye(2), 0.3 * np.eye(2)])
    mixture = Mixture(*(tf.constant(a) for a in (np.log(weights), means, trils)))
    share = far_share(make_reward([], base=mixture), lumps(4000), lumps(2000), None, 0)
    # 1,000 draws: three standard errors are 0.045 at 0.3; without a third lump about one draw in a
    # thousand lies far out.
    assert share == pytest.approx(between, abs=0.045 if between else 0.005)


@pytest.mark.parametrize("far", [0.0, 0.3])
def test_off_grid_share_is_the_mass_off_the_evaluation_grid(far):
    rng = np.random.default_rng(0)
    weights = np.array(
        [1.0 - far, max(far, 1e-12)]
    )  # the second lump lies on the enlarged grid, beyond the demonstrations
    means, trils = np.array([[0.0, 0.0], [0.0, 7.0]]), np.array([np.eye(2), 0.5 * np.eye(2)])
    mixture = Mixture(*(tf.constant(a) for a in (np.log(weights), means, trils)))
    share = off_grid_share(make_reward([], base=mixture), rng.standard_normal((4000, 2)))
    assert share == pytest.approx(far, abs=0.005)


def test_references_on_walks_are_correlations_with_log_p():
    task = GridWalker(3)
    rng = np.random.default_rng(0)
    one, other = (
        task.mode_centers[:2][rng.integers(0, 2, 300)] + 0.05 * rng.standard_normal((300, 3))
        for _ in range(2)
    )
    names = ("kde_silverman", "kde_held_out", "em_bic")
    found = correlations(names, Demonstrated(one, 0, task), other)
    assert tuple(found) == names
    log_p = task.log_prob(other).numpy()
    expected = np.corrcoef(fit_kde(one, "silverman").log_prob(other), log_p)[0, 1]
    assert found["kde_silverman"] == {"reward_correlation": pytest.approx(expected)}
    assert all(abs(values["reward_correlation"]) <= 1.0 for values in found.values())


def test_table_has_means_and_intervals_over_seeds():
    keys = {"ablation": "best", "task": "gaussians", "modes": 5, "stage": "training"}
    keys |= {"status": "finished"}
    results = pd.DataFrame(
        [
            {**keys, "seed": seed, "reported": value}
            for seed, value in enumerate([0.1, 0.1, 0.2, 0.3, 0.3])
        ]
    )
    (row,) = table(results).to_dict("records")
    assert (row["seeds"], row["diverged"]) == (5, 0)
    assert row["reported"].startswith("0.2 [0.1")


def test_table_says_what_was_lost_and_gives_no_mean_of_the_rest():
    names = ("ablation", "stage", "seed", "reported", "status", "reward_correlation")
    rows = [
        ("best", "training", 0, 0.1, "finished", 0.9),
        ("best", "training", 1, np.nan, "diverged", np.nan),
        ("no_stop", "training", 0, 0.1, "finished", 0.8),
        ("no_stop", "training", 1, 5.1, "diverged", 0.6),
        ("no_kde", "training", 0, 0.1, "finished", 0.8),
        ("no_kde", "training", 1, np.inf, "finished", 0.6),
        ("best", "reference em_bic", 0, np.nan, "finished", 0.5),  # not lost: not measured
    ]
    results = pd.DataFrame(rows, columns=names).assign(task="gaussians", modes=5)
    best, no_stop, no_kde, reference = table(results).to_dict("records")
    assert [row["diverged"] for row in (best, no_stop, no_kde, reference)] == [1, 1, 1, 0]
    assert [row["reported"] for row in (best, no_stop, no_kde, reference)] == ["", "2.6", "", ""]
    assert (best["reward_correlation"], no_kde["reward_correlation"]) == ("", "0.7")
    assert reference["reward_correlation"] == "0.5"


@pytest.mark.usefixtures("threads", "quick")
def test_a_smoke_run_gives_a_table_and_is_not_done_twice(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ablated, "DRAWS", 200)
    small = {"modes": 2, "dim": 3, "rows": 600, "assignments": TINY}
    few, out = request(only=["best"], seeds=[0], **small), tmp_path / "out"
    ablate(few, WORKER, out)
    results = pd.read_csv(tmp_path / "out" / "results.csv")
    assert set(results["ablation"]) == {"best"}
    training = results[results["stage"] == "training"].set_index("ablation")
    assert np.isfinite(
        training[["reported", "far_share", "iterations", "effective_share"]].to_numpy(float)
    ).all()
    assert training["effective_share"].between(0.0, 1.0).all()
    stages = {
        f"reference {name}" for name in ("kde_silverman", "kde_held_out", "em_bic", "em_target")
    }
    assert stages | {"inference_search"} <= set(results["stage"])
    before = (tmp_path / "out" / "results.csv").read_bytes()
    capsys.readouterr()
    ablate(few, WORKER, out)
    assert (tmp_path / "out" / "results.csv").read_bytes() == before
    alone = tmp_path / "alone"  # as they are committed, without what else was beside them
    shutil.copytree(out / FOLDER, alone / FOLDER)
    ablate(few, WORKER, alone)
    assert (alone / "results.csv").read_bytes() == before
    assert not (alone / RUNS).exists()
    with pytest.raises(InputError, match="another configuration"):
        ablate(few._replace(assignments=TINY[1:]), WORKER, out)


def ablations(folder, task, stage, column, values):
    """What `ablate` leaves, of one measure: {ablation: one value per seed}."""
    rows = [
        {
            "ablation": name,
            "task": task,
            "stage": of,
            "seed": seed,
            column: value,
            "status": "finished" if np.isfinite(value) else "diverged",
            "cpu_seconds": 10.0 + seed,
            "far_share": 0.0,
        }
        for name, seeds in values.items()
        for of in {stage, "training"}
        for seed, value in enumerate(seeds)
    ]
    if stage == "training":
        rows += [
            {
                "ablation": "best",
                "task": task,
                "stage": "reference em_bic",
                "seed": seed,
                column: 0.3,
                "status": "finished",
            }
            for seed in (0, 1)
        ]
    folder.mkdir()
    columns = dict.fromkeys(["ablation", *columns_of(task), "far_share"])
    pd.DataFrame(rows, columns=list(columns)).to_csv(folder / "results.csv", index=False)
    return folder


def test_figure_and_table_of_the_ablations_of_several_tasks(tmp_path):
    folders = [
        ablations(
            tmp_path / "gaussians_m50",
            "gaussians",
            "training",
            "reported",
            {"no_stop": [0.2, 0.4], "best": [0.1, 0.1]},
        ),
        ablations(
            tmp_path / "grid_walker", "grid_walker", "inference_search", "kl", {"best": [0.5, 0.7]}
        ),
        ablations(
            tmp_path / "paths",
            "path_planning",
            "training",
            "reward_correlation",
            {"best": [0.9, 0.9]},
        ),
    ]
    draw("ablations", folders, None, tmp_path / "figures")
    assert (tmp_path / "figures" / "figure_ablations.png").stat().st_size > 10_000
    head, _, *rows = (tmp_path / "figures" / "ablations.md").read_text().splitlines()
    assert "gaussians m50: I-projection of the reward |" in head
    assert "paths: correlation of the reward with log p |" in head
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    # Two seeds give no interval.
    away_and_cost, empty = ("0", "10.5"), ("", "", "")
    # In the order of ablations.yaml; what was not run on a task is left empty, what was measured on
    # none is left out.
    best = [
        *("0.1", *away_and_cost),
        *("0.6", *away_and_cost),
        *("0.9", *away_and_cost),
    ]
    assert cells[0] == ["best", *best]
    assert cells[1] == ["no_stop", *("0.3", *away_and_cost), *empty, *empty]
    assert cells[2] == [
        "EM, components by BIC",
        *("0.3", "", ""),
        *empty,
        *("0.3", "", ""),
    ]


def test_ablations_in_folders_of_one_name_have_columns_of_their_own(tmp_path, monkeypatch):
    folders = []
    for i, name in enumerate(("one", "other")):
        (tmp_path / name).mkdir()
        values = {"best": [0.1 + i, 0.1 + i]}
        place = tmp_path / name / "grid_walker"
        folders.append(ablations(place, "grid_walker", "inference_search", "kl", values))
    shown = []
    monkeypatch.setattr(figure_ablations, "save", lambda figure, path: shown.append(figure))
    (tmp_path / "figures").mkdir()
    draw("ablations", folders, None, tmp_path / "figures")
    plt.close(shown[0])
    titles = [axes.get_title() for axes in shown[0].axes if axes.get_title()]
    assert titles == ["one/grid walker", "other/grid walker"]
    head, _, best, *_ = (tmp_path / "figures" / "ablations.md").read_text().splitlines()
    columns = [cell.split(":")[0].strip() for cell in head.strip("|").split("|")[1:]]
    assert list(dict.fromkeys(columns)) == titles
    assert "| 0.1 |" in best
    assert "| 1.1 |" in best


@pytest.mark.parametrize("table", TABLES)
def test_the_figure_of_the_ablations_is_named_after_their_table(table, tmp_path, monkeypatch):
    """`virl` is no preset, nor is EIM a V-IRL without a part."""
    values = {name: [0.1, 0.3] for name in read_rows(table)}
    folder = ablations(tmp_path / "m50", "grid_walker", "inference_search", "kl", values)
    shown = []
    monkeypatch.setattr(figure_ablations, "save", lambda figure, path: shown.append(figure))
    (tmp_path / "figures").mkdir()
    draw("ablations", [folder], None, tmp_path / "figures")
    title = shown[0].get_suptitle()
    assert title == f"{TABLES[table]}, and references"
    assert ("preset 'best'" in title) == (table == "ablations")


def test_figure_and_table_of_the_ablations_say_what_was_lost(tmp_path, monkeypatch):
    values = {"best": [0.1, 0.3, np.nan], "no_stop": [np.nan]}
    folder = ablations(tmp_path / "m50", "gaussians", "training", "reported", values)
    shown = []
    monkeypatch.setattr(figure_ablations, "save", lambda figure, path: shown.append(figure))
    (tmp_path / "figures").mkdir()
    draw("ablations", [folder], None, tmp_path / "figures")
    rows = (tmp_path / "figures" / "ablations.md").read_text().splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")][:2] for row in rows]
    assert cells == [
        ["best", "0.2 (1 lost)"],
        ["no_stop", "none (1 lost)"],
        ["EM, components by BIC", "0.3"],
    ]
    texts = [(text.get_position(), text.get_text()) for text in shown[0].axes[0].texts]
    assert texts == [((1.0, 0), "1 lost"), ((1.0, 1), "1 lost")]


def test_the_figure_of_the_ablations_takes_their_folders_alone(tmp_path):
    with pytest.raises(InputError, match="ablate TASK"):
        draw("ablations", [tmp_path], None, tmp_path / "figures")
    (tmp_path / "results.csv").write_text("task,reported\ngaussians,1.0\n")
    with pytest.raises(InputError, match="no ablations"):
        draw("ablations", [tmp_path], None, tmp_path / "figures")
