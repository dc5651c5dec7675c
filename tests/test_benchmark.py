"""The benchmark measures what it says, and its commands run."""

import json
import os
import resource
import sys
import time

from virl_tf import InputError, fit_policy
from virl_tf.mixture import Mixture, gaussian

import numpy as np
import pandas as pd
import pytest

from experiments.benchmark import (
    PARTS,
    command,
    few_evaluations,
    parts,
    settings,
    timing,
    vips,
    whole_run,
)
from experiments.benchmark.timing import compare, exponent, rows_of, training_gflop
from experiments.figures import draw
from experiments.specification import RunRequest


def test_candidates_take_turns_and_the_first_round_is_not_counted():
    calls = []
    measured = compare(
        {"a": lambda: calls.append("a"), "b": lambda: (calls.append("b"), time.sleep(0.01))},
        repeats=3,
    )
    assert calls == ["a", "b"] * 4
    assert measured["b"]["wall_seconds"] >= 0.01 > measured["a"]["wall_seconds"]
    assert (
        measured["b"]["cpu_lowest"] <= measured["b"]["cpu_seconds"] <= measured["b"]["cpu_highest"]
    )


def test_rows_are_per_unit():
    measured = {
        "a": {"cpu_seconds": 2.0, "cpu_lowest": 1.0, "cpu_highest": 3.0, "wall_seconds": 4.0}
    }
    (row,) = rows_of("part", "case", measured, units=4, gflop=10.0)
    assert (row["cpu_seconds"], row["wall_seconds"], row["gflop_per_cpu_second"]) == (
        0.5,
        1.0,
        20.0,
    )


def test_exponents_are_slopes():
    assert exponent([10, 100, 1000], [0.3, 30.0, 3000.0]) == pytest.approx(2.0)


def test_operations_of_a_training_step_by_hand():
    # One hidden layer of 4 units, two inputs, one row: forward 2 (2 * 4 + 4) = 24; backward 24 for
    # kernels, 8 for the units.
    assert training_gflop(1, 4, 2, 1) == pytest.approx(56e-9)


def smoke(method, *assignments, modes=50):
    return RunRequest(
        task="gaussians", method=method, modes=modes, preset="smoke", assignments=assignments
    ).specification()


@pytest.mark.parametrize(
    ("method", "sample", "policy", "evaluation"),
    [
        ("virl", 8000, 3 * 162 * 500, 20_000),
        ("geim", 0, 2 * 5 * 500, 20_000),
        ("eim", 0, 2 * 500, 0),
    ],
)
def test_operations_of_a_run_by_hand(method, sample, policy, evaluation):
    # Two iterations of 60 epochs; 3 x 64: 2 (2 * 64 + 2 * 64^2 + 64) per point; 36 steps of 200
    # points and 1,200 held out.
    point = 16_768e-9
    epoch = 36 * (3 * 200 * point - 200 * 256e-9) + 1200 * point
    counted = whole_run.counted_gflop(smoke(method), pd.DataFrame({"epochs": [60, 60]}))
    expected = {
        "training": 120 * epoch,
        "sample": sample * point,
        "policy": policy * point,
        "evaluation": evaluation * point,
    }
    assert counted == pytest.approx(expected)


@pytest.mark.slow
def test_the_parts_of_a_run_are_all_of_it():
    spec = smoke(
        "virl", "loop.num_iterations=2", "network.layer_size=8", "training.num_epochs=1", modes=2
    )
    start = time.process_time()
    seconds, history, summary = whole_run._timed_run(spec)
    total = time.process_time() - start
    assert set(seconds) == set(whole_run.NAMES)
    assert all(value > 0.0 for part in seconds.values() for value in part)
    assert 0.9 * total < sum(map(sum, seconds.values())) <= total
    assert len(history) == len(seconds["policy"]) == 2
    assert np.isfinite(summary["i_projection"]["reward"]["reported"])


def test_compilation_is_what_the_first_iteration_costs_beyond_the_line_of_the_others():
    assert whole_run.first_excess([9.0, 3.0, 4.0, 5.0]) == pytest.approx(7.0)
    assert whole_run.first_excess([1.0, 3.0, 4.0, 5.0]) == 0.0


def test_memory_is_that_of_the_process():
    assert timing.in_a_process(os.getpid) != os.getpid()
    np.ones(2**27)  # 1 GiB, and gone
    assert (
        1.0
        < whole_run.peak_gib()
        <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20 + 0.01
    )


@pytest.mark.slow
def test_keras_own_loop_trains_the_same_network():
    from virl_tf.hparams import default_hparams

    hparams = default_hparams().override(
        {"network": {"num_layers": 2, "layer_size": 8}, "training": {"batch_size": 50}}
    )
    x = np.concatenate([np.full((400, 2), -1.0), np.full((400, 2), 1.0)]).astype("float32")
    epoch = parts.keras_fit(hparams, x, 50, 8)
    losses = [epoch().history["loss"][0] for _ in range(40)]
    assert 0.0 < losses[-1] < 0.5 * losses[0]  # 320 steps of Adam on two points, from any start


def test_a_perfect_policy_has_no_distance_and_all_modes():
    policy = gaussian(np.zeros(2), np.eye(2))
    target = vips.Target(
        "normal", 2, 1, policy.log_prob, np.ones(2), lambda x: np.zeros(len(x), int), 1
    )
    assert target.measure(policy) == {"kl": 0.0, "modes": 1}
    half = vips.Target(
        "half",
        2,
        1,
        lambda x: np.where(np.asarray(x)[:, 0] > 0.0, policy.log_prob(x) + np.log(2.0), -np.inf),
        np.ones(2),
        None,
        0,
    )
    assert half.measure(policy)["kl"] == pytest.approx(0.0, abs=0.02)


def test_the_command_writes_numbers_and_a_table(tmp_path, monkeypatch):
    row = {
        "part": "p",
        "case": "c",
        "cpu_seconds": 1.0,
        "wall_seconds": 1.0,
        "gflop_per_cpu_second": 5.0,
    }
    monkeypatch.setitem(
        command.TIMED,
        "training",
        lambda repeats: [{**row, "who": "virl_tf"}, {**row, "who": "x", "cpu_seconds": 3.0}],
    )
    monkeypatch.setattr(command, "ceiling", lambda: 10.0)
    command.benchmark(["training"], settings.Settings(1, 1), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    assert written["rows"][0]["share_of_ceiling"] == 0.5
    assert written["rows"][1]["times_ours"] == 3.0
    assert {"machine", "versions", "ceiling", "peak_memory_gib"} <= set(written)
    assert (tmp_path / "out" / "benchmark.md").read_text().count("\n") == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["trainings"], 5, 5), "part"),
        ((["training"], 0, 5), "--repeats"),
        ((["training"], 5, 0), "--seeds"),
        ((["run"], 5, 5, "quick"), "--preset"),
        ((["vips"], 5, 5, "paper", False, 0.0), "--peer-seconds"),
        ((["vips"], 5, 5, "paper", False, None, "mixtrue"), "'mixtrue' is in no target of: walker"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, arguments, message):
    names, *given = arguments
    with pytest.raises(InputError, match=message):
        command.benchmark(names, settings.Settings(*given), tmp_path)
    assert not list(tmp_path.iterdir())


def test_every_part_that_may_be_asked_for_is_measured():
    assert {*command.TIMED, "run", "memory", "vips", "few", "peers"} == set(PARTS)
    assert set(whole_run.MANY) == set(settings.PRESETS)


def test_targets_are_known_by_the_names_that_they_have():
    assert tuple(vips.targets()) == settings.TARGETS


@pytest.mark.parametrize(("names", "peers"), [(["peers"], False), (["vips"], True), ([], True)])
def test_peers_are_refused_before_anything_is_measured(tmp_path, monkeypatch, names, peers):
    monkeypatch.setitem(sys.modules, "gmmvi", None)
    monkeypatch.setattr(command, "ceiling", lambda: pytest.fail("measured"))
    with pytest.raises(InputError, match=r"virl_tf\[bench\]"):
        command.benchmark(names, settings.Settings(peers=peers), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"only": "walker"}, {"peers": True}, {"peer_seconds": 2.0}])
def test_options_of_parts_that_are_not_asked_for_are_refused(tmp_path, options):
    with pytest.raises(InputError, match=r"(is|are) for .*vips"):
        settings.Settings(**options).check(["kde"], tmp_path / "out")


@pytest.mark.parametrize("peers", [False, True])
def test_peers_are_a_part_that_is_asked_for(tmp_path, monkeypatch, peers):
    row = {"case": "c", "who": "virl_tf", "cpu_seconds": 1.0}
    monkeypatch.setattr(command, "PARTS", ("kde", "run", "memory", "vips", "few", "peers"))
    monkeypatch.setattr(command, "TIMED", {"kde": lambda repeats: [{**row, "part": "kde"}]})
    monkeypatch.setattr(command, "steps_beside_gmmvi", lambda: [{**row, "part": "peers"}])
    monkeypatch.setattr(command, "vips", lambda *_: [{**row, "part": "vips"}])
    monkeypatch.setattr(command, "few_evaluations", lambda *_: [{**row, "part": "few"}])
    monkeypatch.setattr(command.whole_run, "run", lambda _: [{**row, "part": "run"}])
    monkeypatch.setattr(command.whole_run, "memory", lambda _: {**row, "part": "memory"})
    monkeypatch.setattr(command, "ceiling", lambda: 10.0)
    monkeypatch.setattr(settings, "check_gmmvi", lambda: None)
    for names, expected in (
        ([], ["kde", "run", "memory", "vips", "few"] + ["peers"] * peers),
        (["peers"], ["peers"]),
    ):
        out = tmp_path / "-".join(["out", *names])
        command.benchmark(names, settings.Settings(1, 1, peers=peers), out)
        assert [
            row["part"] for row in json.loads((out / "benchmark.json").read_text())["rows"]
        ] == expected


def test_earlier_measurements_are_never_overwritten(call, tmp_path, monkeypatch):
    row = {"part": "p", "case": "c", "who": "virl_tf", "cpu_seconds": 1.0}
    monkeypatch.setitem(command.TIMED, "kde", lambda repeats: [row])
    monkeypatch.setattr(command, "ceiling", lambda: 10.0)
    command.benchmark(["kde"], settings.Settings(), tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    monkeypatch.setattr(command, "ceiling", lambda: pytest.fail("measured"))
    status, _, error = call("benchmark", "training", "--out", tmp_path)
    assert status == 2
    assert f"{tmp_path / 'benchmark.json'} has measurements of another command" in error
    assert "asked.parts: ['kde'] there, ['training'] now" in error
    assert "move it away or give another --out" in error
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_the_same_command_goes_on_with_the_part_at_which_it_was_stopped(
    call, tmp_path, monkeypatch
):
    calls = []

    def part(name, *, stopped=False):
        def rows(repeats):
            calls.append(name)
            for case in ("a", "b"):
                if stopped and case == "b":
                    raise KeyboardInterrupt
                yield {"part": name, "case": case, "who": "virl_tf", "gflop_per_cpu_second": 5.0}

        return rows

    monkeypatch.setitem(command.TIMED, "kde", part("kde"))
    monkeypatch.setitem(command.TIMED, "growth", part("growth", stopped=True))
    monkeypatch.setattr(command, "ceiling", lambda: 10.0)
    given = ("benchmark", "kde", "growth", "--out", tmp_path)
    status, _, error = call(*given)
    assert (status, error) == (130, "stopped; the same command continues with the part at work.\n")
    monkeypatch.setitem(command.TIMED, "growth", part("growth"))
    monkeypatch.setattr(command, "ceiling", lambda: pytest.fail("another ceiling"))
    assert call(*given)[0] == 0
    assert calls == ["kde", "growth", "growth"]
    written = json.loads((tmp_path / "benchmark.json").read_text())
    assert [(row["part"], row["case"], row["share_of_ceiling"]) for row in written["rows"]] == [
        (name, case, 0.5) for name in ("kde", "growth") for case in ("a", "b")
    ]
    before = (tmp_path / "benchmark.json").read_bytes()
    status, output, _ = call(*given)
    assert status == 0
    assert "measured before: kde, growth" in output
    assert len(calls) == 3
    assert (tmp_path / "benchmark.json").read_bytes() == before


class FakePeer:
    """Draws ten samples an iteration, for a hundredth of a CPU second."""

    def __init__(self):
        self.sample_db = self
        self.model = self
        self.num_samples_written, self.log_weights, self.means, self.chol_cov = (
            0,
            [0.0],
            [[0.0, 0.0]],
            [np.eye(2)],
        )

    def train_iter(self):
        end = time.process_time() + 0.01
        while time.process_time() < end:
            pass
        self.num_samples_written += 10


def test_the_fewest_evaluations_of_each_level_are_those_of_the_first_to_reach_it(monkeypatch):
    name = "mixture of 30, K = 10"
    monkeypatch.setattr(few_evaluations, "LEVELS", {name: (1.0, 0.5, 0.1)})
    ours = [(100, 0.9), (300, 0.4), (200, 0.5)]
    peers = iter([[(50, 0.8)], [(400, 0.2)], [(60, 1.1)]])
    monkeypatch.setattr(few_evaluations, "trace_of_ours", lambda *_: ours)
    monkeypatch.setattr(few_evaluations, "trace_of_gmmvi", lambda *_: next(peers))
    rows = few_evaluations.rows_by_name(name, [7], True, 1.0)
    found = {(row["who"], row["case"]): row["evaluations"] for row in rows}
    for level, own, best in (("1", 100, 50), ("0.5", 200, 400), ("0.1", np.inf, np.inf)):
        assert found["virl_tf", f"{name}, KL {level}"] == own
        assert found["gmmvi, best design", f"{name}, KL {level}"] == best


def test_a_frugal_fit_takes_as_few_evaluations_as_its_schedule_says():
    target = vips.targets()["mixture of 30, K = 10"](0)
    options = few_evaluations.frugal(target.dim, True, 3, 8)
    fitted = fit_policy(
        target.log_prob, target.dim, 10, initial_policy=target.start(0), seed=0, **options
    )
    of_steps = 3 * 8 * (10 + 8) * 1 + 1 * 10 * 6
    assert fitted.evaluations == 2000 + of_steps + 3 * 8 * 4 * 10
    assert target.measure(fitted.policy)["kl"] < 2.0


def test_a_peer_is_looked_at_while_it_goes_on(monkeypatch):
    monkeypatch.setattr(few_evaluations, "gmmvi_model", lambda *_: FakePeer())
    target = vips.Target(
        "normal", 2, 1, gaussian(np.zeros(2), np.eye(2)).log_prob, np.ones(2), None, 0
    )
    trace = few_evaluations.trace_of_gmmvi(target, 0, "SAMTRON", 0.2)
    numbers = [number for number, _ in trace]
    assert numbers[0] == 10
    assert numbers == sorted(set(numbers))
    assert all(abs(kl) < 1e-9 for _, kl in trace)


def test_a_peer_stops_at_as_many_evaluations_or_when_its_time_is_up(monkeypatch):
    monkeypatch.setattr(vips, "gmmvi_model", lambda *_: FakePeer())
    target = vips.Target(
        "normal", 2, 1, gaussian(np.zeros(2), np.eye(2)).log_prob, np.ones(2), None, 0
    )
    done = vips.gmmvi(target, 0, "SAMTRON", 95)
    assert (done["evaluations"], done["iterations"], done["stopped"]) == (100, 10, 0.0)
    stopped = vips.gmmvi(target, 0, "SAMTRON", 10_000, most_seconds=0.05)
    assert stopped["stopped"] == 1.0
    assert 0.05 <= stopped["cpu_after_tracing"] < 0.2
    assert stopped["evaluations"] < 1000


def test_the_best_design_of_the_first_seed_runs_on_the_others(tmp_path, monkeypatch):
    target = vips.Target(
        "normal", 2, 1, gaussian(np.zeros(2), np.eye(2)).log_prob, np.ones(2), None, 0
    )
    distances = {
        "SAMTRON": 0.5,
        "SEMTRON": 0.2,
        "ZAMTRUX": np.nan,
        "SAMTRON/1": 0.3,
        "ZAMTRUX/1": 0.4,
    }
    budgets = []

    def peer(target, seed, design, evaluations, options, most_seconds):
        budgets.append(most_seconds)
        return {"who": design, "seed": seed, "kl": distances[design]}

    monkeypatch.setattr(vips, "seconds_after_tracing", lambda target, seed, evaluations: 2.0)
    monkeypatch.setattr(
        vips,
        "ours",
        lambda target, seed, search: ({"who": "virl_tf", "seed": seed, "evaluations": 9}, None),
    )
    monkeypatch.setattr(vips, "gmmvi", peer)
    rows = [
        row
        for row in vips.fits(lambda seed: target, [3, 4, 5], True, None, tmp_path)
        if row["who"] != "virl_tf"
    ]
    assert [(row["seed"], row["who"]) for row in rows] == [(3, d) for d in distances] + [
        (4, "SEMTRON"),
        (5, "SEMTRON"),
    ]
    assert set(budgets) == {2.0 * vips.TIMES_OURS}
    list(vips.fits(lambda seed: target, [3], True, 7.0, tmp_path))
    assert budgets[-1] == 7.0


def test_the_figure_of_the_arms(tmp_path):
    means = np.random.default_rng(0).normal(0.0, 0.2, (3, 10))
    policy = Mixture(np.log(np.full(3, 1 / 3)), means, np.tile(0.01 * np.eye(10), (3, 1, 1)))
    vips.save_robot(tmp_path / "robot.npz", policy)
    draw("robot", [tmp_path], None, tmp_path / "figures")
    assert (tmp_path / "figures" / "figure_robot.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_targets_of_vips_in_processes_of_their_own(tmp_path):
    few = settings.Settings(1, 1, "smoke", only="walker d = 5, K = 10")
    command.benchmark(["vips"], few, tmp_path)
    rows = json.loads((tmp_path / "benchmark.json").read_text())["rows"]
    assert [row["who"] for row in rows] == ["virl_tf", "virl_tf, fixed components"]
    searched, fixed = (row["modes"] for row in rows)
    assert searched == 10
    assert 5 <= fixed <= 10  # some components of a fixed set share a mode


@pytest.mark.slow
@pytest.mark.parametrize("part", ["training", "reward", "steps", "kde", "growth", "run", "memory"])
def test_every_part_runs(part, tmp_path):
    command.benchmark([part], settings.Settings(1, 1, "smoke"), tmp_path)
    rows = json.loads((tmp_path / "benchmark.json").read_text())["rows"]
    assert rows
    # What is left of a run when all that was timed is taken off may be less than the noise.
    timed = [row for row in rows if not row["case"].endswith(whole_run.NAMES["rest"])]
    assert all(row["cpu_seconds"] > 0.0 for row in timed)
