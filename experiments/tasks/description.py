"""All that the commands must know of a task, in one record."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

# Long runs first: the last minutes of a sweep keep all cores busy.
METHODS = ("eim", "virl", "geim")
DEFAULT_PRESET = "quick"  # of every command and task


class Grid(NamedTuple):
    """What a sweep goes through."""

    sizes: tuple[int, ...]
    seeds: tuple[int, ...]


class Panel(NamedTuple):
    """A measure in the figure of the ablations: stage and column in results.csv, and its label."""

    stage: str
    column: str
    label: str


@dataclass(frozen=True, kw_only=True)
class TaskDescription:
    """A task as runs, sweeps, studies, figures and the report take it.

    Modules in `experiments.tasks` import neither TensorFlow nor matplotlib at their top: `--help`
    lists the tasks. What needs them is behind a function.

    Attributes:
        name: on the command line, in folder names and in the column `task` of results.csv.
        title: of its part of the report.
        target: a run's configuration -> the density, a `virl_tf.tasks.Task`.
        experiment: a run's configuration -> its `experiments.evaluation.base.Experiment`. Worker
            processes import the module that this function stands in, if it is none of
            `experiments.tasks`.

        size_option: "modes" (--modes) or "steps" (--steps), whichever tells the target's size.
        size_text: what a size is, for --help.
        size_letter: before the size in folder names.
        default_size, largest_size: what the paper has, and what is allowed, from 1.
        size_refusal: size -> why it cannot be, or "".
        num_modes: size -> modes of the target.
        default_dim: size -> D; with contexts of rows [c, x], C + D.
        smallest_dim, largest_dim: that --dim may ask for; largest 0: D follows from the size alone.
        has_task_seed: whether targets are drawn, by --task-seed.
        same_target: keys of summary.json that are equal for runs on one target: only their rewards
            may be averaged.

        default_preset: of runs, sweeps and studies; another one only where a sweep has no `quick`.
        table: the file of published hyperparameters in hparams/, without .yaml; None: there is
            none.
        table_column: a method's family and a number of components -> the table's column.
        compared: (method, components) of the columns that `compare` looks for studies of.

        grids: preset -> sizes and seeds of a sweep.
        sweep_methods, sweep_components: of a sweep, in this order.
        inferred_methods: whose rewards a sweep infers policies on (of 10 components' runs).
        inference_components: size -> components of these policies.
        inference_stages: folder in a run's, and stage in results.csv -> the share of the target's
            modes that obstacles block; None: no obstacles.
        has_references: whether a sweep also fits `experiments.references` to each target.
        wanted_packages: of references that a sweep leaves out without them -> what it says then.
        has_search: whether policies can be inferred with components that come and go; with contexts
            they cannot.

        objective: the column of metrics.csv that a study minimises.
        objective_place: of its value for a run, in summary.json, with dots.
        objective_label: its name among what identifies a study.

        training_places: stages that every run has -> where in its summary.json their best, final
            and reported values stand.
        inference_place: the same in an inference's summary.json.
        columns: further columns of results.csv -> where in either summary.json the value stands:
            the first place that there is. {stage} in one is the row's; of a reference its name.

        claims: the paper's claims on the task (`experiments.claims.Claim`).
        over_sizes: whether they are on results over several sizes; else results of more than one
            are mixed only where that is asked for.
        figures: numbers of the paper's figures that are drawn from its results.
        ablation_panels: what shows in the figure of the ablations whether the reward is good, and
            the policy inferred on it.
        correlated_references: references that `ablate` correlates with log p on test
            demonstrations, where runs themselves measure none.
    """

    name: str
    title: str
    target: Callable[[Mapping[str, Any]], Any]
    experiment: Callable[[Mapping[str, Any]], Any]

    size_option: Literal["modes", "steps"]
    size_text: str
    size_letter: str
    default_size: int
    largest_size: int
    size_refusal: Callable[[int], str] = lambda size: ""
    num_modes: Callable[[int], int] = lambda size: size
    default_dim: Callable[[int], int]
    smallest_dim: int = 1
    largest_dim: int = 0
    has_task_seed: bool = False
    same_target: tuple[str, ...]

    default_preset: str = DEFAULT_PRESET
    table: str | None = None
    table_column: Callable[[str, int], str] = lambda family, components: family
    compared: tuple[tuple[str, int], ...] = ()

    grids: Mapping[str, Grid]
    sweep_methods: tuple[str, ...] = METHODS
    sweep_components: tuple[int, ...] = (10,)
    inferred_methods: tuple[str, ...] = METHODS
    inference_components: Callable[[int], int] = lambda size: size
    inference_stages: Mapping[str, float | None] = field(
        default_factory=lambda: {"inference": None}
    )
    has_references: bool = False
    wanted_packages: Mapping[str, str] = field(default_factory=dict)
    has_search: bool = True

    objective: str
    objective_place: str
    objective_label: str

    training_places: Mapping[str, str]
    inference_place: str
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    claims: Callable[[], Sequence[Any]] = lambda: ()
    over_sizes: bool = False
    figures: tuple[str, ...] = ()
    ablation_panels: tuple[Panel, Panel]
    correlated_references: tuple[str, ...] = ()

    def sized(self, size: int | None) -> dict[str, Any]:
        """A size as the argument of `RunRequest` that it is."""
        return {self.size_option: size}
