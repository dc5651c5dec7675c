"""The figures and tables of the paper: what each shows, what its caption names, and ours."""

import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from virl_tf.hparams import DIRECTORY
from virl_tf.yaml_files import read_yaml

import numpy as np
import pandas as pd

from experiments.figures.style import LABELS
from experiments.references import LABELS as REFERENCES
from experiments.report.markup import Markup, element, table
from experiments.report.results import Results, Table, mean_with_interval
from experiments.result_statistics import lost, with_lost, without_value


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        shows: what the paper's caption says.
        elements: what the caption names, and how ours shows it.
        ours: in a line, what our runs say to it; "" for a figure of the task alone.
        remark: what is different in ours; "" for nothing.
        own_runs: it is drawn from runs made for it, or from one, not from the task's sweep.
    """

    number: str
    title: str
    shows: str
    elements: tuple[tuple[str, str], ...]
    task: str
    commands: tuple[str, ...]
    numbers: Callable[[Table], Markup] = lambda _: Markup("")
    ours: Callable[[Table], str] = lambda _: ""
    remark: str = ""
    own_runs: bool = False


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Lines 'what the caption names | how ours shows it'; indented ones go on with the last."""
    lines = re.sub(r"\n +", " ", textwrap.dedent(text).strip()).splitlines()
    parts = (line.partition(" | ") for line in lines)
    return tuple((named, shown) for named, _, shown in parts)


# --- numbers --------------------------------------------------------------------------------------


OF_GAUSSIANS = {
    "training": "recovered reward",
    "training_policy": "training policy",
    "inference": "inference policy",
    "inference_search": "inference policy with search",
}


def _rows(frame: pd.DataFrame, stages: tuple[str, ...]) -> Iterator[tuple[str, pd.DataFrame]]:
    """(label, its rows) for every stage, method and number of components there is."""
    chosen = frame[frame["stage"].isin(stages)]
    order = {method: i for i, method in enumerate([*LABELS, *REFERENCES])}
    groups = chosen.groupby(["stage", "method", "components"])
    by_method = sorted(groups, key=lambda item: (order.get(item[0][1], 99), item[0]))
    for (stage, method, components), rows in by_method:
        if stage == "reference":
            yield REFERENCES.get(method, method), rows
        else:
            yield f"{LABELS.get(method, method)} {components}c, {OF_GAUSSIANS[stage]}", rows


def _cell(rows: pd.DataFrame, column: str, digits: int = 3) -> str:
    return mean_with_interval(rows[column], digits, without_value(rows, column))


def _mean(rows: pd.DataFrame, column: str, digits: int = 3) -> str:
    """Of the finite values, `with_lost`; '' if it was not measured."""
    values = rows[column].to_numpy(float)
    finite, without = values[np.isfinite(values)], without_value(rows, column)
    if not len(finite):
        return with_lost("", without) if without == len(rows) else ""
    return with_lost(f"{finite.mean():.{digits}f}", without)


def distances(results: Table, *stages: str) -> Markup:
    """I-projections of the Gaussians by number of modes."""
    modes = sorted(results.frame["modes"].unique())
    rows = []
    for label, chosen in _rows(results.frame, stages):
        diverged = int(lost(chosen).sum())
        shown = f"{label} ({diverged} diverged)" if diverged else label
        cells = [_cell(chosen[chosen["modes"] == m], "reported") for m in modes]
        rows.append([shown, *cells])
    return table(["I-projection, (best + final) / 2", *(f"m = {m}" for m in modes)], rows)


def most_modes(results: Table, *stages: str) -> str:
    """Mean I-projections of each method at the largest number of modes there is."""
    modes = int(results.frame["modes"].max())
    most = results.frame[results.frame["modes"] == modes]
    parts = []
    for stage in stages:
        of_stage = _rows(most, (stage,))
        means = {label.partition(",")[0]: _mean(rows, "reported") for label, rows in of_stage}
        shown = ", ".join(f"{label} {mean}" for label, mean in means.items() if mean)
        parts += [f"{OF_GAUSSIANS[stage]}: {shown}"] if shown else []
    return f"I-projection at m = {modes}, means over seeds. {'; '.join(parts)}."


MEASURES = {
    "modes_covered": ("modes covered", 1),
    "good_fraction": ("share of good walks", 3),
    "kl": ("KL(q || p)", 2),
    "reported": ("negative ELBO, (best + final) / 2", 2),
    "new_modes": ("modes new to the training policy", 1),
    "collision_share": ("share of walks that collide", 3),
    "true_reward_modes": ("modes covered with the true reward", 1),
    "reward_correlation": ("correlation of the reward with log p", 3),
    "unexplored_above_random": ("unexplored centres above the best random point", 3),
    "unexplored_random_auc": ("AUC of unexplored centres against random points", 3),
    "explored_unexplored_auc": ("AUC of explored against unexplored centres", 3),
}


def of_methods(results: Table, stage: str, *names: str) -> str:
    """Means of measures of a walk's task by method."""
    frame = results.frame[results.frame["stage"] == stage]
    parts = []
    for name in names:
        label, digits = MEASURES[name]
        measured = frame[name].notna().any()
        means = {method: _mean(rows, name, digits) for method, rows in frame.groupby("method")}
        found = [method for method in LABELS if means.get(method)] if measured else []
        shown = ", ".join(f"{LABELS[method]} {means[method]}" for method in found)
        parts += [f"{label}: {shown}"] if found else []
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]} ({STAGES[stage]}, means over seeds)." if text else ""


POLICY = ("modes_covered", "good_fraction", "kl", "reported")
INFERRED = (*POLICY, "new_modes", "collision_share", "true_reward_modes")
AUCS = ("unexplored_random_auc", "explored_unexplored_auc")
REWARD = ("reward_correlation", "unexplored_above_random", *AUCS)
STAGES = {
    "training": "training",
    "inference": "inference",
    "inference_search": "inference with search",
    "obstacles": "inference with obstacles",
    "obstacles_search": "inference with obstacles and search",
}


def walks(results: Table, **measures: tuple[str, ...]) -> Markup:
    """Measures of a walk's task by method; the keyword is the stage they are of."""
    methods = [method for method in LABELS if method in set(results.frame["method"])]
    rows = []
    for stage, names in measures.items():
        for name in names:
            label, digits = MEASURES[name]
            of_stage = results.frame[results.frame["stage"] == stage]
            if of_stage[name].notna().any():
                found = [of_stage[of_stage["method"] == method] for method in methods]
                cells = [_cell(chosen, name, digits) for chosen in found]
                rows.append([f"{STAGES[stage]}: {label}", *cells])
    return table(["", *(LABELS[method] for method in methods)], rows)


# --- figures --------------------------------------------------------------------------------------

GAUSSIAN_SWEEP = (
    "python -m experiments sweep gaussians --preset paper --search --out sweeps/gaussians"
)
WALKER_SWEEP = (
    "python -m experiments sweep grid_walker --preset paper --search --steps 5 --out sweeps/walker"
)
WALKER_RUN = "sweeps/walker/records/grid_walker-{}-10c-d5-s0-paper.zip"

FIGURES = (
    Figure(
        "1",
        "A versatile path-planning task",
        "Ways from a diamond to a circle: maximum likelihood averages over the modes, the "
        "information projection chooses a single behaviour, V-IRL's reward allows for good "
        "solutions even when some paths are obstructed.",
        _pairs("""
        a) the task, from the diamond to the circle | the grid of the 20 best paths, demonstrations
            in green
        b) maximum likelihood averages: poor solutions | a Gaussian of maximum likelihood: mean
            solid, samples dotted
        c) a single behaviour by the information projection | a Gaussian fitted by VIPS to V-IRL's
            recovered reward
        d) V-IRL with obstructed paths | a policy inferred on V-IRL's reward, discs on waypoints,
            blocked paths dashed
        """),
        "path_planning",
        (
            "python -m experiments sweep path_planning --preset paper --search --seeds 0,1,2 "
            "--out sweeps/paths",
            "python -m experiments figure 1 "
            "sweeps/paths/records/path_planning-virl-10c-d6-s0-paper.zip",
        ),
        lambda found: walks(found, training=POLICY, obstacles=INFERRED, obstacles_search=INFERRED),
        lambda found: of_methods(found, "obstacles_search", "modes_covered", "new_modes"),
        "The paper only draws this task; numbers for it are ours.",
    ),
    Figure(
        "2a",
        "The random Gaussian task",
        "A Gaussian mixture with 30 components: heat map of its log density, ellipsoids of 95 % "
        "covariance, expert demonstrations as grey crosses.",
        _pairs("""
        30-component mixture | --modes 30
        heat map of the log density | the same, down to 12 nats below the maximum, with its scale
        95 % ellipsoids of the components | black ellipses
        demonstrations as grey crosses | 500 of them
        """),
        "gaussians",
        (
            "python -m experiments run gaussians --modes 30 --preset smoke --out runs/m30",
            "python -m experiments figure 2a runs/m30",
        ),
        remark="The ranges of means, covariances and weights are ours: the paper does not give "
        "them.",
        own_runs=True,
    ),
    Figure(
        "2b",
        "Results for different numbers of target components",
        "I-projection of V-IRL, G-EIM and EIM with 1 and 10 policy components against the number "
        "of modes m in {5, 10, ..., 50}, five seeds: V-IRL is stable and represents more modes "
        "than the baselines with as many components.",
        _pairs("""
        numbers of target components | x axis
        V-IRL, G-EIM and EIM, 1c and 10c | six curves: colour by method, dashed for 1c
        a stable solution; more modes with as many components | tested below, under Claims
        spread over the seeds | band of one standard deviation; diverged runs as crosses on the
            upper edge
        (not in the paper) | grey: KDE alone, EM, and policies fitted to the truth, of 1 and 10
            components
        """),
        "gaussians",
        (GAUSSIAN_SWEEP, "python -m experiments figure 2b sweeps/gaussians"),
        lambda found: distances(found, "training", "reference"),
        lambda found: most_modes(found, "training"),
    ),
    Figure(
        "3",
        "Grid walker: training and inference",
        "Walks of five segments of the 10-component training policy and of a 25-component policy "
        "inferred on its reward, for G-EIM (a, b) and V-IRL (c, d). Only V-IRL's reward extends to "
        "modes that were not seen during training.",
        _pairs("""
        d = 5 line segments | five segments from the diamond on
        a) - d) 10-component sampling, 25-component inference policies | the same panels, for each
            method a third (b', d') with components that come and go; above each: modes covered
        component means solid, samples dotted | the same
        higher opacity for a higher recovered reward | one scale for each reward
        intermediate targets as vertical dotted lines | the same
        """),
        "grid_walker",
        (
            WALKER_SWEEP,
            f"python -m experiments figure 3 {WALKER_RUN.format('geim')} "
            f"{WALKER_RUN.format('virl')}",
        ),
        lambda found: walks(found, training=POLICY, inference=INFERRED, inference_search=INFERRED),
        lambda found: of_methods(found, "inference", "modes_covered", "new_modes"),
    ),
    Figure(
        "4",
        "Inference on the recovered rewards of the Gaussians",
        "I-projection of policies with as many components as the target has modes, inferred on the "
        "recovered rewards, against that of the 10-component learner policies, for V-IRL and "
        "G-EIM.",
        _pairs("""
        'Inference': VIPS with m components on the final recovered reward | solid curves
        'Training': the 10-component learner policy | dashed curves
        (not in the paper) | dash-dotted: inference with components that come and go
        numerical I-projection | y axis, logarithmic
        V-IRL | blue; the paper's text compares it with G-EIM (orange)
        """),
        "gaussians",
        (GAUSSIAN_SWEEP, "python -m experiments figure 4 sweeps/gaussians"),
        lambda found: distances(found, "training_policy", "inference", "inference_search"),
        lambda found: most_modes(found, "training_policy", "inference"),
        "Each value is (best + final) / 2, as in Figure 2b; the paper's text takes each policy at "
        "its best iteration. The caption speaks of the best and of the final reward; ours is the "
        "final one.",
    ),
    Figure(
        "5",
        "Sampling policy, recovered reward and inference policy",
        "Contours of a) the log density of V-IRL's sampling policy, b) the reward averaged over "
        "five runs, c) a 30-component policy fitted to b); black ellipsoids of the expert's "
        "components (95 %), 500 expert samples as grey crosses.",
        _pairs("""
        contour plots a) - c) | the same three panels: a line every 2 nats, over a heat map
        average over 5 runs on one task | --task-seed 0; each reward is aligned by its maximum first
        95 % ellipsoids of the expert | black ellipses
        500 expert samples | grey crosses
        """),
        "gaussians",
        (
            "for s in 0 1 2 3 4; do python -m experiments run gaussians --modes 30 --task-seed 0 "
            "--seed $s --preset paper --out runs/m30-$s; done",
            "python -m experiments infer runs/m30-0 runs/m30-1 runs/m30-2 runs/m30-3 runs/m30-4 "
            "--components 30 --fixed",
            "python -m experiments figure 5 runs/m30-0 runs/m30-1 runs/m30-2 runs/m30-3 runs/m30-4",
        ),
        lambda found: distances(found, "training", "training_policy", "inference"),
        lambda found: most_modes(found, "training", "training_policy", "inference"),
        "One target for all five runs; the inference policy, of one set of components, is fitted "
        "to the average of their rewards.",
        own_runs=True,
    ),
    Figure(
        "6",
        "Construction of the grid walker",
        "Left: turned by 45 degrees, all efficient waypoints of the first half lie on equidistant "
        "vertical lines; identical steps share waypoints. Right: 200 expert samples for d = 5, "
        "one-dimensional Gaussians as red dotted lines.",
        _pairs("""
        the first half of Figure 1, turned | dark grid; the second half dashed
        equidistant vertical lines | red, dotted, 0.8 apart
        identical steps share the same waypoints | two walks (blue, orange) with the same steps in
            another order
        200 expert samples, d = 5 | right (the paper's text says 100)
        one of 2^5 possible paths each; 1-dimensional Gaussians | the samples follow the grid; red,
            dotted
        """),
        "grid_walker",
        (WALKER_SWEEP, f"python -m experiments figure 6 {WALKER_RUN.format('virl')}"),
        remark="A spacing of 0.8 gives a cone of 73.7 degrees, not of the 90 in the text: the "
        "numbers rule.",
        own_runs=True,
    ),
    Figure(
        "7",
        "The recovered rewards at mode centres and at random points",
        "Normalised rewards of V-IRL and G-EIM, five trials each: V-IRL represents all modes, "
        "G-EIM those that its sampling distribution explored.",
        _pairs("""
        '+' and 'x': mode centres | the same; explored ones dark and to the left of unexplored ones
        '-' and 'o': random samples | the same, 100 for each trial
        i-th column of a colour: i-th trial | the same, V-IRL (blue) left, G-EIM (orange) right
        normalised evaluation | y axis
        """),
        "grid_walker",
        (WALKER_SWEEP, "python -m experiments figure 7 sweeps/walker"),
        lambda found: walks(found, training=REWARD),
        lambda found: of_methods(
            found, "training", "unexplored_above_random", "explored_unexplored_auc"
        ),
    ),
)


# --- tables ---------------------------------------------------------------------------------------


def table_1(file: str) -> Markup:
    """The ranges that are searched."""
    rows = []
    for name, row in read_yaml(DIRECTORY / file).items():
        if row["type"] == "bool":
            span = "[False, True]"
        elif row["type"] == "power_of_two":
            span = f"2^[{row['low']}, {row['high']}]"
        else:
            span = f"{'(' if row.get('open_low') else '['}{row['low']}, {row['high']}]"
        rows.append([row["description"], span, row["usage"], element("code", name)])
    return table(["description", "range", "usage", "here"], rows)


PUBLISHED_ROWS = {
    "network layers": ("network", "num_layers"),
    "layer size": ("network", "layer_size"),
    "batch norm": ("network", "batch_norm"),
    "learning rate": ("training", "learning_rate"),
    "dropout": ("network", "dropout"),
    "L2 norm": ("network", "l2"),
    "bandwidth": ("kde", "bandwidth"),
    "update steps": ("policy", "update_steps"),
}


def published(name: str) -> Markup:
    """Table 2 or 3 from its YAML file, with the paper's stars; X where a method has no value."""
    content = read_yaml(DIRECTORY / name)
    columns = content["columns"]
    rows = []
    for label, (section, key) in PUBLISHED_ROWS.items():
        cells = []
        for column in columns.values():
            value = column.get(section, {}).get(key, "X")
            cells.append(f"{value}{'*' if f'{section}.{key}' in column['starred'] else ''}")
        rows.append([label, *cells])
    families = [column.partition("_") for column in columns]
    header = [f"{LABELS[family]} {size}".strip() for family, _, size in families]
    return table(["", *header], rows)


PUBLISHED = "Hyperparameters of {} (* not optimised)"
# Number, title, file of hparams, the table.
TABLES: tuple[tuple[str, str, str, Callable[[str], Markup]], ...] = (
    ("1", "Ranges of the optimised hyperparameters", "search_space.yaml", table_1),
    ("2", PUBLISHED.format("the random Gaussians"), "gaussians.yaml", published),
    ("3", PUBLISHED.format("the grid walker"), "grid_walker.yaml", published),
)


def costs(results: Results) -> Markup:
    """Median CPU seconds of a run of each table."""
    rows = []
    for task, found in results.tables.items():
        chosen = found.frame[found.frame["stage"].isin(STAGES)]
        for (stage, method, components), group in chosen.groupby(["stage", "method", "components"]):
            label = f"{LABELS.get(method, method)} {components}c"
            median = f"{group['cpu_seconds'].median():.0f}"
            rows.append([task, STAGES[stage], label, median])
    return table(["task", "stage", "method", "CPU seconds, median"], rows)
