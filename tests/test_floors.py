"""The house rules that can be read off the source: who imports whom, and what is never used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from experiments.cli import app
from experiments.tasks import descriptions

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "virl_tf"

# A module imports only from lower floors or, in its own folder, from modules to its left on the
# same floor.
FLOORS = [
    [
        *("version", "_quiet_import", "validation", "yaml_files", "data_checks", "hparams"),
        *("numerics", "shapes"),
        *("density", "splitting", "domain", "contexts"),
    ],
    [
        *("mixture", "conditional", "network_stack"),
        *("trajectories.options", "trajectories.episodes", "trajectories.angles"),
        "trajectories.encoding",
        *("trajectories.bases", "trajectories.moves"),
        *("trajectories.choice", "trajectories"),
    ],
    [
        *("em", "em.em", "em.by_bic", "em.merging", "em.shrunk", "em.stacking", "em.growth"),
        *("em.few_rows", "em.density", "em.choice"),
        "demonstrations",
    ],
    [
        *("kde", "conditional_kde", "context_smoothing", "description", "fusion", "importance"),
        *("features", "reward"),
        *("metrics", "among_best"),
        *("tasks.base", "tasks.slice_sampling"),
    ],
    [
        "problem",
        *(
            "tasks.gaussians",
            "tasks.grid_walker",
            "tasks.path_planning",
            "tasks.planar_robot",
            "tasks.experts",
            "tasks.obstacles",
            "tasks.obstacle_field",
            "tasks.hall",
            "tasks",
        ),
        *("discriminator", "discriminator.network", "discriminator.fit"),
        *(
            "vips",
            "vips.surrogate",
            "vips.reuse",
            "vips.slopes",
            "vips.trust_region",
            "vips.vips",
            "vips.elbo",
            "vips.conditional",
            "vips.improve",
            "vips.adaptive",
        ),
    ],
    ["methods"],
    ["negatives", "irl", "pooling", "score", "summary"],
    ["observers", "event_files", "picture"],
    [
        *("policy_fit", "policy_fit.targets", "policy_fit.start"),
        *("policy_fit.watch", "policy_fit.schedule", "policy_fit.steps"),
    ],
    [
        *("persistence", "persistence.files", "persistence.hdf5", "persistence.configuration"),
        *("persistence.policy_file", "persistence.reward_file", "persistence.checkpoint"),
        "persistence.encoding_file",
        "persistence.run_folder",
    ],
    ["fit_policy", "fit", "export"],
    [""],  # virl_tf/__init__.py
]
EXPERIMENT_FLOORS = [
    ["", "tasks.description", "tasks", "screen"],
    [
        *("specification", "records", "early_checks", "result_files", "pooled_results"),
        *("result_statistics", "user_functions"),
    ],
    [
        *("own_data", "own_data.demonstration_files", "own_data.hdf5_episodes"),
        *("own_data.trajectory_files", "own_data.fit_request", "own_data.judge_request"),
        *("own_data.play_request", "own_data.tracking", "own_data.originals"),
        *("documentation", "documentation.doc_tables", "documentation.docs_notation"),
        *("documentation.docs_pages", "documentation.docs_command"),
        *("sweeps", "sweeps.ablation_tables"),
    ],
    [
        *("references", "claims", "flow"),
        *("evaluation", "evaluation.base", "evaluation.distances"),
        "evaluation.situations",
        *("benchmark", "benchmark.timing", "benchmark.vips", "benchmark.parts"),
        *("benchmark.few_evaluations", "benchmark.settings"),
    ],
    [
        *(
            "figures",
            "figures.style",
            "figures.published",
            "figures.overview",
            "figures.comparison",
        ),
        "figures.study_pictures",
        *("figures.demonstrations", "figures.walks", "figures.figure_1", "figures.figure_2a"),
        *("figures.figure_2b", "figures.figure_3", "figures.figure_4", "figures.figure_5"),
        *("figures.figure_6", "figures.figure_7", "figures.figure_robot"),
        *("figures.figure_ablations", "figures.trajectories", "figures.situations"),
        *("figures.judged", "figures.paths"),
    ],
    [
        "evaluation.densities",
        "evaluation.walks",
        "evaluation.trajectories",
        "evaluation.judged",
        "evaluation.closed_loop",
        "evaluation.own_demonstrations",
        "evaluation.known_truth",
        "evaluation.contextual",
        "evaluation.ablated",
    ],
    [
        *("tasks.gaussians", "tasks.grid_walker", "tasks.path_planning"),
        *("tasks.obstacle_field", "tasks.hall"),
        *("tasks.experts", "tasks.waving_experts", "tasks.obstacles"),
    ],
    ["runs", "inference"],
    [
        *("own_data.fit_command", "own_data.judge_command", "own_data.play_command"),
        *("sweeps.units", "sweeps.expected_time", "sweeps.ablations", "sweeps.sweep"),
        *("sweeps.sweep_command", "sweeps.ablation_command"),
    ],
    [
        *("tuning", "tuning.space", "tuning.specification"),
        *("tuning.storage", "tuning.trials", "tuning.study"),
        *("tuning.importances", "tuning.study_folder", "tuning.compare"),
        *("tuning.tune_command", "tuning.study_plots", "tuning.budgets"),
        *("benchmark.whole_run", "benchmark.command"),
        *("report", "report.markup", "report.sources", "report.results"),
        *("report.items", "report.report"),
    ],
    ["interrupts", "options", "cli"],
    ["__main__"],
]


def module_name(path, package=PACKAGE):
    """'vips.vips' for virl_tf/vips/vips.py, 'tasks' for virl_tf/tasks/__init__.py, '' for the
    package itself.
    """
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def places_on(floors):
    return {module: (i, j) for i, floor in enumerate(floors) for j, module in enumerate(floor)}


def sources_in(package):
    return {module_name(path, package): path for path in sorted(package.rglob("*.py"))}


PLACES, SOURCES = places_on(FLOORS), sources_in(PACKAGE)
EXPERIMENTS = sources_in(ROOT / "experiments")
EXPERIMENT_PLACES = places_on(EXPERIMENT_FLOORS)


def imports(tree):
    """Full names of everything a file imports, at the top or inside functions: 'a.b.c' for `from
    a.b import c`.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_modules(tree, package="virl_tf", sources=SOURCES):
    """The package's modules among the imports: the longest part of each name that is a module."""
    for name in imports(tree):
        parts = name.split(".")
        if parts[0] == package:
            candidates = [".".join(parts[1:end]) for end in range(len(parts), 0, -1)]
            yield next(candidate for candidate in candidates if candidate in sources)


def folder(module, sources):
    """Where a module lies: '' or 'vips'. A subpackage lies in itself."""
    return module if sources[module].name == "__init__.py" else module.rpartition(".")[0]


def allowed(importer, imported, places=PLACES, sources=SOURCES):
    (floor, position), (other_floor, other_position) = places[importer], places[imported]
    if other_floor != floor:
        return other_floor < floor
    return folder(importer, sources) == folder(imported, sources) and other_position < position


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def found(wrong):
    """The modules in which something is wrong, with what it is."""
    return {module: what for module, what in wrong.items() if what}


def test_every_module_has_a_floor():
    assert set(SOURCES) <= set(PLACES), "put the new module into FLOORS"
    assert len(SOURCES) > 20


def test_modules_import_only_from_below():
    wrong = {}
    for module, path in SOURCES.items():
        wrong[module] = [name for name in own_modules(parse(path)) if not allowed(module, name)]
    assert found(wrong) == {}, "these must not import those"


def test_every_module_of_the_experiments_has_a_floor():
    assert set(EXPERIMENTS) == set(EXPERIMENT_PLACES), "put the new module into EXPERIMENT_FLOORS"


def test_experiments_import_only_from_below():
    wrong = {}
    for module, path in EXPERIMENTS.items():
        imported = own_modules(parse(path), "experiments", EXPERIMENTS)
        others = [name for name in imported if name != module]
        wrong[module] = [
            n for n in others if not allowed(module, n, EXPERIMENT_PLACES, EXPERIMENTS)
        ]
    assert found(wrong) == {}, "these must not import those"


def test_tensorflow_is_imported_after_virl_tf_which_keeps_it_quiet():
    wrong = {}
    for module, path in EXPERIMENTS.items():
        body = [n for n in parse(path).body if isinstance(n, (ast.Import, ast.ImportFrom))]
        packages = [name.split(".")[0] for name in imports(ast.Module(body, []))]
        before = packages[: packages.index("virl_tf")] if "virl_tf" in packages else packages
        wrong[module] = [name for name in before if name in LOUD]
    assert found(wrong) == {}


LOUD = ("tensorflow", "tensorflow_probability", "keras")


def test_help_is_quick_and_quiet():
    """One process for all: what it has not imported at the end, no command did."""
    commands = [[], *([name] for name in typer.main.get_command(app).commands)]
    unwanted = {*LOUD, "matplotlib", "virl_tf"}
    code = (
        "import sys; from experiments.cli import app\n"
        f"for command in {commands}:\n"
        "    app([*command, '--help'], standalone_mode=False)\n"
        f"print(sorted({unwanted} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.stdout.count("Usage: ") == len(commands)
    assert ended.stdout.splitlines()[-1] == "[]"
    assert ended.stderr == ""


def test_no_module_asks_for_a_tasks_name():
    """What is special to a task stands in its description."""
    names = {description.name for description in descriptions()}
    for module, path in EXPERIMENTS.items():
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                compared = {n.value for n in sides if isinstance(n, ast.Constant)}
                assert not compared & names, f"experiments.{module}, line {node.lineno}"


@pytest.mark.parametrize(
    ("importer", "imported", "expected"),
    [
        ("mixture", "numerics", True),
        ("numerics", "mixture", False),
        ("discriminator.fit", "discriminator.network", True),
        ("negatives", "problem", True),
        ("problem", "irl", False),
        ("irl", "negatives", True),
        ("irl", "pooling", False),
        ("irl", "irl", False),
        ("mixture", "", False),
        ("", "fit", True),
    ],
)
def test_the_rule_itself(importer, imported, expected):
    assert allowed(importer, imported) == expected


def test_imports_are_found_wherever_they_stand():
    code = (
        "import virl_tf.kde\nfrom virl_tf import irl, vips\n"
        "def f():\n    from virl_tf.vips.vips import improve\n"
    )
    assert list(own_modules(ast.parse(code))) == ["kde", "irl", "vips", "vips.vips"]


FORBIDDEN_IMPORTS = {
    "experiments",
    "matplotlib",
    "optuna",
    "pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "shelve",
    "tf_keras",
    "random",
}


def dotted(node):
    """'tf.random.normal' for the expression of that name, '' for others."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


# Loaded by `Result._repr_html_` alone, when a notebook shows a result.
ALLOWED_IMPORTS = {"picture": {"matplotlib"}}


def test_nothing_imports_what_is_above_or_unsafe():
    wrong = {}
    for module, path in SOURCES.items():
        roots = {name.split(".")[0] for name in imports(parse(path))}
        wrong[module] = roots & FORBIDDEN_IMPORTS - ALLOWED_IMPORTS.get(module, set())
        if "tensorflow.keras" in path.read_text(encoding="utf-8"):
            wrong[module].add("tensorflow.keras")
    assert found(wrong) == {}


# TensorFlow's stateful random numbers (Ruff knows NumPy's), tf.keras (Keras is imported as itself),
# and whatever prints.
STATELESS = {
    "fold_in",
    "split",
    "experimental",
    "stateless_normal",
    "stateless_uniform",
    "stateless_categorical",
}


def forbidden_names(tree):
    for node in ast.walk(tree):
        name = dotted(node)
        if name.startswith(("tf.keras", "keras.utils.set_random_seed")):
            yield name
        if name.startswith("tf.random.") and name.split(".")[2] not in STATELESS | {
            part for part in name.split(".") if part.startswith("stateless_")
        }:
            yield name
        if (
            isinstance(node, ast.Call)
            and name == ""
            and dotted(node.func) in ("print", "exec", "eval")
        ):
            yield dotted(node.func)
        if (
            isinstance(node, ast.keyword)
            and node.arg == "allow_pickle"
            and getattr(node.value, "value", None) is not False
        ):
            yield "allow_pickle"


def test_no_hidden_state_no_printing_no_pickle():
    wrong = {module: list(forbidden_names(parse(path))) for module, path in SOURCES.items()}
    assert found(wrong) == {}


@pytest.mark.parametrize(
    "code",
    [
        "tf.random.normal([3])",
        "tf.random.set_seed(1)",
        "tf.keras.Model()",
        "print(1)",
        "np.load(f, allow_pickle=True)",
    ],
)
def test_the_forbidden_is_recognised(code):
    assert list(forbidden_names(ast.parse(code)))


@pytest.mark.parametrize(
    "code",
    [
        "tf.random.stateless_normal([3], s)",
        "np.load(f, allow_pickle=False)",
    ],
)
def test_the_permitted_passes(code):
    assert list(forbidden_names(ast.parse(code))) == []


def test_no_catch_all():
    wrong = {}
    for module, path in SOURCES.items():
        handlers = [n for n in ast.walk(parse(path)) if isinstance(n, ast.ExceptHandler)]
        wrong[module] = [n.lineno for n in handlers if dotted(n.type) == "Exception"]
    assert found(wrong) == {}, "modules, and in which lines"
