"""Table 1 as Optuna's parameters: what each of the paper's eight studies searches, and values to
parameters and back.
"""

import math

from virl_tf.hparams import default_hparams
from virl_tf.methods import METHODS

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from experiments.specification import published_column
from experiments.tasks import describe
from experiments.tuning.space import searched, suggest, to_parameters
from experiments.tuning.study import StudySpecification, published_parameters
from tests.test_hparams import ROWS, TABLES

NETWORK = [
    "network.num_layers",
    "network.layer_size",
    "network.batch_norm",
    "network.dropout",
    "network.l2",
]
ALWAYS = {*NETWORK, "training.learning_rate"}

# The eight studies of the paper: a column of Table 2 or 3 each. What has no star in its column is
# searched (Table 1).
STUDIES = {
    ("gaussians", "virl", 1): ("gaussians", "virl_1c", ALWAYS | {"policy.update_steps"}),
    ("gaussians", "virl", 10): ("gaussians", "virl_10c", ALWAYS | {"policy.update_steps"}),
    ("gaussians", "geim", 1): ("gaussians", "geim_1c", ALWAYS),
    ("gaussians", "geim", 10): ("gaussians", "geim_10c", ALWAYS),
    ("gaussians", "eim", 1): ("gaussians", "eim_1c", ALWAYS),
    ("gaussians", "eim", 10): ("gaussians", "eim_10c", ALWAYS),
    ("grid_walker", "virl", 10): (
        "grid_walker",
        "virl",
        ALWAYS | {"kde.bandwidth", "policy.update_steps"},
    ),
    ("grid_walker", "geim", 10): ("grid_walker", "geim", ALWAYS | {"kde.bandwidth"}),
}
# Not in the paper: EIM on the walker (hparams/grid_walker.yaml holds our column), path planning,
# ablations.
OTHERS = {
    ("grid_walker", "eim", 10): ALWAYS,
    ("path_planning", "virl", 10): ALWAYS | {"kde.bandwidth", "policy.update_steps"},
    ("path_planning", "geim", 10): ALWAYS | {"kde.bandwidth"},
    ("gaussians", "virl_no_kde", 10): ALWAYS | {"policy.update_steps"},
    ("gaussians", "eim_fusion", 1): ALWAYS,
    ("grid_walker", "virl", 1): ALWAYS | {"kde.bandwidth", "policy.update_steps"},
}
ALL = {**{study: names for study, (_, _, names) in STUDIES.items()}, **OTHERS}

# Table 1 as distributions. Powers of two by their exponent; -31 stands for an L2 of 0.
DISTRIBUTIONS = {
    "network.num_layers": ("network.num_layers", IntDistribution(2, 4)),
    "network.layer_size": ("log2 network.layer_size", IntDistribution(3, 8)),
    "network.batch_norm": ("network.batch_norm", CategoricalDistribution([False, True])),
    "training.learning_rate": ("training.learning_rate", FloatDistribution(5e-5, 1e-3, log=True)),
    "network.dropout": ("network.dropout", FloatDistribution(0.0, 0.5, step=0.01)),
    "network.l2": ("log2 network.l2", IntDistribution(-31, 0)),
    "kde.bandwidth": ("kde.bandwidth", FloatDistribution(1e-9, 1.0)),
    "policy.update_steps": ("policy.update_steps", IntDistribution(1, 200)),
}


def name_of(study: tuple) -> str:
    return "-".join(map(str, study))


def specification(
    study: tuple, preset: str = "paper", assignments: tuple = ()
) -> StudySpecification:
    return StudySpecification(*study, describe(study[0]).default_size, preset, (0,), assignments)


def sampled(study: tuple, trials: int) -> list[tuple[dict, dict]]:
    """(overrides, parameters) of that many trials of a study in memory."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found, rows = [], searched(*study)
    memory = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(trials):
        trial = memory.ask()
        found.append((suggest(trial, rows), trial.params))
        memory.tell(trial, float(len(found) % 7))
    return found


def flat(sections: dict) -> dict:
    return {
        f"{section}.{key}": value
        for section, keys in sections.items()
        for key, value in keys.items()
    }


# --- what is searched -----------------------------------------------------------------------------


@pytest.mark.parametrize("study", ALL, ids=name_of)
def test_a_study_searches_what_its_column_does_not_star(study):
    assert set(searched(*study)) == ALL[study]
    assert set(flat(sampled(study, 1)[0][0])) == ALL[study]


@pytest.mark.parametrize("study", ALL, ids=name_of)
def test_ranges_are_table_1_to_the_letter(study):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    trial = optuna.create_study().ask()
    suggest(trial, searched(*study))
    assert trial.distributions == dict(DISTRIBUTIONS[name] for name in ALL[study])


@pytest.mark.parametrize("study", STUDIES, ids=name_of)
def test_starred_values_stay_as_published_in_every_run(study):
    table, column, _ = STUDIES[study]
    starred = {
        name: v for name, v in zip(ROWS, TABLES[table][column], strict=True) if isinstance(v, str)
    }
    for overrides, _ in sampled(study, 5):
        values = flat(specification(study).run(0, overrides).hparams.to_dict())
        for name, value in starred.items():
            assert values[name] == float(value.rstrip("*")), name


# --- values ---------------------------------------------------------------------------------------


def assert_in_table_1(values: dict) -> None:
    """Every value, each by the paper's words."""
    checks = {
        "network.num_layers": lambda v: type(v) is int and v in (2, 3, 4),
        "network.layer_size": lambda v: type(v) is int and v in (8, 16, 32, 64, 128, 256),
        "network.batch_norm": lambda v: type(v) is bool,
        "training.learning_rate": lambda v: 5e-5 <= v <= 1e-3,
        "network.dropout": lambda v: 0.0 <= v <= 0.5 and abs(100 * v - round(100 * v)) < 1e-9,
        "network.l2": lambda v: v == 0.0 or (v <= 1.0 and math.frexp(v)[0] == 0.5),
        "kde.bandwidth": lambda v: 0.0 < v <= 1.0,
        "policy.update_steps": lambda v: type(v) is int and 1 <= v <= 200,
    }
    for name, value in values.items():
        assert checks[name](value), f"{name} = {value!r}"


@pytest.mark.parametrize("study", STUDIES, ids=name_of)
def test_every_sampled_value_passes_the_packages_own_checks(study):
    start = default_hparams(METHODS[study[1]].family)
    for overrides, _ in sampled(study, 150):
        assert_in_table_1(flat(overrides))
        assert flat(start.override(overrides).to_dict()).items() >= flat(overrides).items()


@pytest.mark.parametrize("end", ["low", "high"])
@pytest.mark.parametrize("study", ALL, ids=name_of)
def test_the_ends_of_every_range_pass_the_packages_own_checks(study, end):
    choices = {"low": False, "high": True}
    ends = dict(DISTRIBUTIONS[name] for name in ALL[study])
    parameters = {
        n: choices[end] if isinstance(d, CategoricalDistribution) else getattr(d, end)
        for n, d in ends.items()
    }
    values = suggest(optuna.trial.FixedTrial(parameters), searched(*study))
    assert_in_table_1(flat(values))
    default_hparams(METHODS[study[1]].family).override(values)
    assert values["network"]["l2"] == {"low": 0.0, "high": 1.0}[end]
    assert values["network"]["layer_size"] == {"low": 8, "high": 256}[end]


@pytest.mark.parametrize("study", ALL, ids=name_of)
def test_parameters_give_back_the_values_they_came_from(study):
    for overrides, parameters in sampled(study, 30):
        assert to_parameters(overrides, searched(*study)) == parameters
        assert suggest(optuna.trial.FixedTrial(parameters), searched(*study)) == overrides


# --- the published column -------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")  # Optuna only warns of an enqueued value that is out of range
@pytest.mark.parametrize("study", STUDIES, ids=name_of)
def test_published_parameters_give_back_the_papers_values(study):
    table, column, names = STUDIES[study]
    memory = optuna.create_study()
    memory.enqueue_trial(published_parameters(specification(study)))
    values = flat(suggest(memory.ask(), searched(*study)))
    assert set(values) == names
    for name, value in zip(ROWS, TABLES[table][column], strict=True):
        if name == "network.l2":
            assert (
                f"{values[name]:.2e}" == f"{value:.2e}"
            )  # the paper prints three digits of a power of two
        elif name in names:
            assert values[name] == value, name


@pytest.mark.parametrize("study", STUDIES, ids=name_of)
def test_the_published_trials_run_is_the_published_run_whatever_the_preset(study):
    values = suggest(
        optuna.trial.FixedTrial(published_parameters(specification(study))), searched(*study)
    )
    column = flat(published_column(*study))
    for preset in ("smoke", "quick", "paper"):
        run = flat(specification(study, preset).run(0, values).hparams.to_dict())
        for name in STUDIES[study][2]:
            assert run[name] == pytest.approx(column[name], rel=2e-3), (preset, name)


def test_the_preset_and_set_give_what_is_not_searched():
    run = specification(("gaussians", "virl", 10), "smoke", ("loop.num_iterations=2",)).run(
        3, {"network": {"layer_size": 8}}
    )
    assert (run.seed, run.num_train, run.modes) == (3, 4000, 50)
    assert run.hparams.loop.num_iterations == 2
    assert run.hparams.loop.num_negatives == 8000
    assert run.hparams.network.layer_size == 8
