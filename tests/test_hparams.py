"""Tables 1 to 3 against the paper (written out here, not read from YAML), and strict loading."""

import math

from virl_tf import hparams as module
from virl_tf import methods
from virl_tf.fit import resolve_hparams
from virl_tf.hparams import (
    Hparams,
    check_value,
    default_hparams,
    load_hparams,
    own_data_hparams,
    published,
    read_preset,
    search_space,
)
from virl_tf.validation import InputError
from virl_tf.yaml_files import read_yaml

import numpy as np
import pytest

from experiments.specification import RunRequest

METHODS = ["virl", "geim", "eim"]

# Table 2 (random Gaussians) and Table 3 (grid walker) of the appendix: column -> the rows in the
# order of the paper, "*" where a value has one. X: no KDE.
X = None
ROWS = [
    "network.num_layers",
    "network.layer_size",
    "network.batch_norm",
    "training.learning_rate",
    "network.dropout",
    "network.l2",
    "kde.bandwidth",
    "policy.update_steps",
]
TABLES = {
    "gaussians": {
        "virl_1c": [4, 256, True, 2.68e-4, 0.01, 0, "0.215*", 1],
        "virl_10c": [4, 256, False, 3.81e-4, 0.01, 5.96e-8, "0.215*", 162],
        "geim_1c": [4, 256, True, 1.09e-4, 0, 0, "0.215*", "5*"],
        "geim_10c": [3, 256, False, 6.22e-4, 0, 4.77e-7, "0.215*", "5*"],
        "eim_1c": [4, 256, False, 8.43e-4, 0.02, 2.98e-8, X, "1*"],
        "eim_10c": [4, 256, True, 3.28e-4, 0.02, 9.54e-7, X, "1*"],
    },
    "grid_walker": {
        "virl": [3, 256, True, 4.25e-4, 0.07, 4.77e-7, 0.136, 63],
        "geim": [3, 64, False, 4.38e-4, 0, 2.44e-4, 0.864, "5*"],
    },
}
COLUMNS = [(task, column) for task, columns in TABLES.items() for column in columns]
CELLS = [
    (t, c, row, value) for t, c in COLUMNS for row, value in zip(ROWS, TABLES[t][c], strict=True)
]

# Table 1: name -> description, usage, values at and inside the ends of the range, values just
# outside.
TABLE_1 = {
    "network.num_layers": ("Network layers", "Neural Network", [2, 3, 4], [1, 5]),
    "network.layer_size": (
        "Layer size",
        "Neural Network",
        [8, 16, 32, 64, 128, 256],
        [4, 7, 24, 255, 512],
    ),
    "network.batch_norm": ("Batch normalization", "Neural Network", [False, True], [0, 1]),
    "training.learning_rate": (
        "Learning rate",
        "Neural Network",
        [5e-5, 3e-4, 1e-3],
        [4.99e-5, 1.01e-3, 0.0, -1e-4],
    ),
    "network.dropout": ("Dropout", "Neural Network", [0.0, 0.25, 0.5], [-0.01, 0.51]),
    "network.l2": ("L2-Norm", "Neural Network", [0.0, 2.0**-24, 1.0], [-1e-9, 1.01]),
    "kde.bandwidth": ("Bandwidth", "KDE", [1e-9, 0.215, 1.0], [0.0, 1.01, -0.1]),
    "policy.update_steps": ("Policy update steps", "Learner Policy", [1, 162, 200], [0, 201]),
}


def get(values, name):
    section, key = name.split(".")
    return values[section][key]


def write(folder, text):
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# --- Tables 2 and 3 -------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TABLES)
def test_the_file_has_the_columns_of_the_paper(task):
    assert list(read_yaml(module.DIRECTORY / f"{task}.yaml")["columns"]) == list(TABLES[task])


@pytest.mark.parametrize(("task", "column", "row", "value"), CELLS)
def test_published_value_is_the_papers(task, column, row, value):
    found = published(task, column)
    if value is X:
        assert "bandwidth" not in found["kde"]
        return
    value = float(value.rstrip("*")) if isinstance(value, str) else value
    assert get(found, row) == value
    loaded = get(default_hparams(column.split("_")[0]).override(found).to_dict(), row)
    assert loaded == value
    assert isinstance(loaded, bool) == isinstance(value, bool)


@pytest.mark.parametrize(("task", "column"), COLUMNS)
def test_starred_values_are_the_papers(task, column):
    starred = [
        row for row, value in zip(ROWS, TABLES[task][column], strict=True) if isinstance(value, str)
    ]
    assert read_yaml(module.DIRECTORY / f"{task}.yaml")["columns"][column]["starred"] == starred


@pytest.mark.parametrize(("task", "column"), COLUMNS)
def test_published_holds_the_tables_rows_and_the_common_part_only(task, column):
    found = {
        f"{section}.{key}" for section, values in published(task, column).items() for key in values
    }
    rows = {row for row, value in zip(ROWS, TABLES[task][column], strict=True) if value is not X}
    assert found == rows | {"kde.bandwidth_scale"}
    assert published(task, column)["kde"]["bandwidth_scale"] == "absolute"


@pytest.mark.parametrize(("task", "column"), COLUMNS)
def test_published_l2_is_a_power_of_two_to_three_digits(task, column):
    l2 = get(published(task, column), "network.l2")
    assert l2 == 0.0 or float(f"{2.0 ** round(math.log2(l2)):.2e}") == l2


def test_published_does_not_share_what_it_returns():
    published("gaussians", "virl_10c")["kde"]["bandwidth"] = 0.9
    assert published("gaussians", "virl_10c")["kde"]["bandwidth"] == 0.215


def test_only_tables_of_the_paper_are_published():
    with pytest.raises(InputError, match="gaussians, grid_walker"):
        published("presets", "paper")


@pytest.mark.parametrize(
    ("task", "column", "hint"),
    [
        ("gausians", "virl_1c", "gaussians"),
        ("gaussians", "virl_1", "virl_1c"),
        ("grid_walker", "gein", "geim"),
    ],
)
def test_published_names_the_nearest(task, column, hint):
    with pytest.raises(InputError, match=f"did you mean '{hint}'"):
        published(task, column)


def test_our_column_of_the_grid_walker_is_virls_network_with_eims_policy_steps():
    ours, virl = published("grid_walker", "eim"), published("grid_walker", "virl")
    assert ours["network"] == virl["network"]
    assert ours["training"] == virl["training"]
    assert ours["policy"] == published("gaussians", "eim_10c")["policy"] == {"update_steps": 1}
    assert ours["kde"] == {"bandwidth_scale": "absolute"}  # EIM has no KDE


# --- Table 1 --------------------------------------------------------------------------------------


def test_the_search_space_is_table_1():
    found = {
        name: (row.spec["description"], row.spec["usage"]) for name, row in search_space().items()
    }
    assert found == {name: row[:2] for name, row in TABLE_1.items()}


def test_only_virl_searches_its_update_steps():
    searched_by = {name: row.methods for name, row in search_space().items()}
    assert searched_by.pop("policy.update_steps") == ("virl",)
    assert set(searched_by.values()) == {None}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, row in TABLE_1.items() for value in row[2]]
)
def test_values_of_table_1_are_accepted(name, value):
    assert check_value(name, value) == value
    of_numpy = check_value(name, np.asarray(value)[()])
    assert (of_numpy, type(of_numpy)) == (value, type(check_value(name, value)))
    assert search_space()[name].range.contains(value)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, row in TABLE_1.items() for value in row[3]]
)
def test_values_outside_table_1_are_refused(name, value):
    with pytest.raises(InputError, match=f"{name} = {value!r} is not allowed; allowed: "):
        check_value(name, value)


def test_every_hyperparameter_of_table_1_is_one_of_a_run():
    names = {
        f"{section}.{key}"
        for section, values in default_hparams().to_dict().items()
        for key in values
    }
    assert set(TABLE_1) <= names


# --- defaults -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_defaults_are_the_file_with_the_methods_part_over_it(method):
    expected = read_yaml(module.DIRECTORY / "defaults.yaml")
    expected.pop("search")  # of fit_policy, not of a run
    for section, values in expected.pop("methods").get(method, {}).items():
        expected[section].update(values)
    assert default_hparams(method).to_dict() == expected


def test_the_baselines_take_more_iterations():
    iterations = {method: default_hparams(method).loop.num_iterations for method in METHODS}
    assert iterations["virl"] < iterations["geim"] < iterations["eim"]


def test_a_default_that_is_missing_is_named(tmp_path, monkeypatch):
    values = read_yaml(module.DIRECTORY / "defaults.yaml")
    del values["policy"]["kl_bound"]
    monkeypatch.setattr(module, "_own_file", lambda _: values)
    with pytest.raises(InputError, match=r"defaults.yaml: no value for policy.kl_bound"):
        default_hparams()


# --- overrides ------------------------------------------------------------------------------------


def test_override_changes_a_copy():
    old = default_hparams()
    before = old.to_dict()
    new = old.override({"network": {"num_layers": 2}, "loop": {"num_iterations": 5}})
    assert (new.network.num_layers, new.loop.num_iterations) == (2, 5)
    assert old.to_dict() == before
    assert new.network.layer_size == old.network.layer_size
    assert new.training == old.training


def test_override_does_not_change_its_argument():
    sections = {"training": {"learning_rate": 1e-4}}
    default_hparams().override(sections)
    assert sections == {"training": {"learning_rate": 1e-4}}


@pytest.mark.parametrize("method", METHODS)
def test_to_dict_gives_the_same_hparams_back(method):
    old = default_hparams(method)
    assert default_hparams("virl").override(old.to_dict()) == old
    assert isinstance(old, Hparams)


def test_changing_the_dictionary_leaves_the_hparams_alone():
    hparams = default_hparams()
    hparams.to_dict()["network"]["num_layers"] = 99
    assert hparams == default_hparams()


@pytest.mark.parametrize(
    "sections",
    [None, 3, [1], "network", {"network": None}, {"network": 3}, {"network": ["num_layers"]}],
)
def test_override_wants_mappings(sections):
    with pytest.raises(InputError, match=r"^here: "):
        default_hparams().override(sections, "here")


# --- strict loading -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "# only a comment\n", "network: {}\n"])
def test_a_file_without_values_gives_the_defaults(tmp_path, text):
    assert load_hparams(write(tmp_path, text), "geim") == default_hparams("geim")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e-3", 1e-3),
        ("1E-4", 1e-4),
        ("2.5e-4", 2.5e-4),
        ("+.1e-3", 1e-4),
        ("5.e-4", 5e-4),
        ("0.0005", 5e-4),
    ],
)
def test_numbers_with_an_exponent_are_numbers(tmp_path, text, number):
    path = write(tmp_path, f"training: {{learning_rate: {text}}}")
    assert load_hparams(path).training.learning_rate == number


def test_an_integer_is_accepted_for_a_float_and_becomes_one(tmp_path):
    l2 = load_hparams(write(tmp_path, "network: {l2: 1}")).network.l2
    assert l2 == 1.0
    assert isinstance(l2, float)


@pytest.mark.parametrize("word", ["silverman", "held_out"])
def test_bandwidth_may_be_a_word(tmp_path, word):
    assert load_hparams(write(tmp_path, f"kde: {{bandwidth: {word}}}")).kde.bandwidth == word


def test_null_where_it_is_allowed(tmp_path):
    loaded = load_hparams(
        write(tmp_path, "training: {patience: null}\npolicy: {samples_per_component: ~}")
    )
    assert loaded.training.patience is None
    assert loaded.policy.samples_per_component is None


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        (
            "netwrk: {num_layers: 2}",
            ["unknown section 'netwrk'", "did you mean 'network'?", "training"],
        ),
        (
            "num_layers: 2",
            ["unknown section 'num_layers'", "Allowed: kde, loop, network, policy, training"],
        ),
        ("1: {num_layers: 2}", ["unknown section 1"]),
        ("methods: {virl: {}}", ["unknown section 'methods'"]),
        (
            "network: {num_layer: 2}",
            ["unknown key 'network.num_layer'", "did you mean 'num_layers'?", "layer_size"],
        ),
        ("training: {lr: 1e-3}", ["unknown key 'training.lr'", "Allowed: ", "learning_rate"]),
        ("network: {2: 2}", ["unknown key 'network.2'"]),
        ("network: 3", ["section 'network' must hold keys and values", "3"]),
        ("network:", ["section 'network' must hold keys and values", "None"]),
        ("[network]", ["expected sections", "['network']"]),
        ("network", ["expected sections", "'network'"]),
        ("network: {num_layers: true}", ["network.num_layers = True", "int, [2, 4]"]),
        (
            "network: {layer_size: 100}",
            ["network.layer_size = 100", "one of 8, 16, 32, 64, 128, 256"],
        ),
        ("network: {batch_norm: 1}", ["network.batch_norm = 1", "bool", "one of False, True"]),
        (
            "training: {learning_rate: fast}",
            ["training.learning_rate = 'fast'", "float, [5e-05, 0.001]"],
        ),
        ("training: {learning_rate: .nan}", ["training.learning_rate = nan"]),
        ("policy: {kl_bound: .nan}", ["policy.kl_bound = nan", "> 0"]),
        ("policy: {kl_bound: 0}", ["policy.kl_bound = 0", "> 0"]),
        ("policy: {ridge: 0.0}", ["policy.ridge = 0.0", "(0, 1]"]),
        (
            "policy: {samples_per_component: 3}",
            ["policy.samples_per_component = 3", "int/null, >= 4 or null"],
        ),
        ("policy: {start: kmean}", ["policy.start = 'kmean'", "standard_normal, kmeans, samples"]),
        ("training: {patience: 0}", ["training.patience = 0", "int/null, >= 1 or null"]),
        (
            "training: {validation_fraction: 0.0}",
            ["training.validation_fraction = 0.0", "(0, 0.5]"],
        ),
        ("training: {start: 1}", ["training.start = 1", "str", "warm, zero_head, fresh"]),
        ("kde: {bandwidth: 0}", ["kde.bandwidth = 0", "(0, 1]"]),
        (
            "kde: {bandwidth: heldout}",
            ["kde.bandwidth = 'heldout'", "float/str", "silverman or held_out"],
        ),
        ("loop: {num_iterations: 10001}", ["loop.num_iterations = 10001", "[1, 10000]"]),
        (
            "loop: {prior: none}",
            ["loop.prior = 'none'", "moments, mixture, auto, initial_policy, flat"],
        ),
        ("loop: {num_negatives: 1e4}", ["loop.num_negatives = 10000.0", "int/null, >= 16 or null"]),
    ],
)
def test_wrong_content_names_file_key_and_what_is_allowed(tmp_path, text, fragments):
    with pytest.raises(InputError) as error:
        load_hparams(write(tmp_path, text))
    for fragment in ["mine.yaml", *fragments]:
        assert fragment in str(error.value)


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("network: {num_layers: 2, num_layers: 3}", ["key 'num_layers' is given twice", "line 1"]),
        (
            "network: {num_layers: 2}\nloop: {}\nnetwork: {num_layers: 3}",
            ["key 'network' is given twice"],
        ),
        ("kde: {? {a: [1, {b: 1, b: 2}]} : 1}", []),
        ("network: {num_layers: 2", ["expected ',' or '}'", "line 1"]),
        ("\tnetwork: 1", ["line 1"]),
        ("network: *unknown", ["undefined alias 'unknown'"]),
        ("network: {}\n---\nloop: {}", ["single document"]),
        ("? [1]\n: 2", ["unhashable key"]),
        ("network: {num_layers: !layers 2}", ["!layers"]),
    ],
)
def test_invalid_yaml_names_the_file_and_the_place(tmp_path, text, fragments):
    with pytest.raises(InputError, match=r"mine\.yaml is not valid YAML") as error:
        load_hparams(write(tmp_path, text))
    for fragment in fragments:
        assert fragment in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "network: {num_layers: 2024-13-45}",  # a date that does not exist
        "network: {num_layers: !!int two}",
        "network: {batch_norm: !!bool maybe}",
        "training: {learning_rate: !!float fast}",
        "network: {num_layers: !!timestamp soon}",
        "policy: {kl_bound: 1" + 400 * "0" + "}",
        "policy: {kl_bound: 1" + 5000 * "0" + "}",
        "network: " + 5000 * "[",
    ],
    ids=["date", "int", "bool", "float", "timestamp", "400 digits", "5000 digits", "deep"],
)
def test_values_that_yaml_cannot_build_are_input_errors_too(tmp_path, text):
    with pytest.raises(InputError, match=r"mine\.yaml"):
        load_hparams(write(tmp_path, text))


@pytest.mark.parametrize("text", ["[]", "false", "0", "''"])
def test_an_empty_value_is_not_an_empty_file(tmp_path, text):
    with pytest.raises(InputError, match=r"mine\.yaml: expected sections"):
        load_hparams(write(tmp_path, text))


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*nowhere\.yaml"):
        load_hparams(tmp_path / "nowhere.yaml")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        load_hparams(tmp_path)


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00network")
    with pytest.raises(InputError, match=r"cannot read .*mine\.yaml"):
        load_hparams(path)


def test_the_file_goes_over_what_own_data_starts_from(tmp_path):
    path = write(tmp_path, "network: {num_layers: 2}")
    for method in METHODS:
        assert load_hparams(str(path), method) == own_data_hparams(method).override(
            {"network": {"num_layers": 2}}
        )


# --- presets --------------------------------------------------------------------------------------

BEYOND_THE_PAPER = {
    "network": {"num_frequencies": 0},
    "training": {"weight_average": 0.0},
    "kde": {"estimator": "kernel"},
    "loop": {"min_gain": None, "mixture_average": False, "prior": "moments"},
}


@pytest.mark.parametrize("preset", ["paper", "quick", "smoke"])
def test_the_papers_presets_leave_what_goes_beyond_it_off(preset):
    for task, method in (
        ("gaussians", "virl"),
        ("gaussians", "geim"),
        ("grid_walker", "virl"),
        ("grid_walker", "eim"),
    ):
        values = (
            RunRequest(task=task, method=method, preset=preset).specification().hparams.to_dict()
        )
        for section, keys in BEYOND_THE_PAPER.items():
            assert {key: values[section][key] for key in keys} == keys


def test_best_is_the_same_for_all_tasks_and_the_default_for_own_data():
    best = own_data_hparams("virl")
    for task in ("gaussians", "grid_walker", "path_planning"):
        assert RunRequest(task=task, preset="best").specification().hparams == best
    assert best != default_hparams("virl")


@pytest.mark.parametrize("method", methods.METHODS.values(), ids=methods.METHODS)
def test_own_data_of_other_methods_start_from_their_defaults(method):
    expected = {
        "virl": own_data_hparams("virl"),
        "geim": default_hparams("geim"),
        "eim": default_hparams("eim"),
    }
    assert resolve_hparams(None, method) == expected[method.family]


def test_hyperparameters_are_those_of_a_family():
    with pytest.raises(InputError, match=r"method family.*virl_no_kde"):
        default_hparams("virl_no_kde")


def test_an_unknown_preset():
    with pytest.raises(InputError, match=r"preset.*bets"):
        read_preset("bets")


def test_every_ablation_changes_best_in_one_section():
    best = own_data_hparams("virl")
    for name, change in read_yaml(module.DIRECTORY / "ablations.yaml").items():
        values = change.get("hparams", {})
        assert (best.override(values, name) != best) == bool(values)
        assert len(values) <= 1
        assert change or name == "best"
