"""What options of the command line are called, take and say, where several commands have them."""

import contextlib
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from experiments.tasks import descriptions, names
from experiments.tasks.description import DEFAULT_PRESET


def size_help(option: str, text: str = "{what}; default {default}") -> str:
    """What sizes of targets are, of the tasks whose size is this option, and their defaults."""
    tasks = [task for task in descriptions() if task.size_option == option]
    what = {task.size_text: None for task in tasks}
    default = ", ".join(f"{task.default_size} ({task.name})" for task in tasks)
    return text.format(what=", ".join(what), default=default) + "."


def _home(value: Any) -> Any:
    """A path with ~ as the home: shells leave it as it is in --out=~/x."""
    if not isinstance(value, Path) or not str(value).startswith("~"):
        return value
    from virl_tf.validation import check_path  # imports NumPy

    return check_path(value)


def given(metavar: str, text: str) -> Any:
    """An option whose help shows its value as `metavar`; of a path ~ is the home."""
    return Option(metavar=metavar, help=text, callback=_home)


def folder(text: str) -> Any:
    """An option that is a folder."""
    return given("DIR", text)


def seeds(text: str) -> Any:
    """An option of several seeds."""
    return given("S,S,...", text)


def completion(values: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What a shell proposes behind the first letters of a value."""
    return lambda incomplete: [name for name in values() if name.startswith(incomplete)]


def _methods() -> Iterable[str]:
    from virl_tf.methods import METHODS

    return METHODS


def _paper_methods() -> Iterable[str]:
    from virl_tf.methods import PAPER_METHODS

    return [method.name for method in PAPER_METHODS]


def forms() -> Iterable[str]:
    """What `convert` reads, by name."""
    from experiments.own_data.originals import FORMS

    return FORMS


def preset(text: str, metavar: str | None = None, best: bool = True) -> Any:
    """An option that is a preset; `best` is none of a study's."""
    values = PRESETS if best else PRESETS[:-1]
    return Option(metavar=metavar, help=text, autocompletion=completion(lambda: values))


def _hide_output(context: typer.Context, quiet: bool) -> bool:
    """Until the command ends; errors are printed after it."""
    if quiet:
        context.with_resource(contextlib.redirect_stdout(io.StringIO()))
    return quiet


INSTEAD = "{what}, instead of the preset's"
PRESETS = ("smoke", "quick", "paper", "best")
DEFAULT = f"Default: {DEFAULT_PRESET}."

Task = Annotated[str, Argument(help=", ".join(names()) + ".", autocompletion=completion(names))]
METHOD_HELP = "virl, geim, eim, or an ablation, e.g. virl_no_kde."
Method = Annotated[str, Option(help=METHOD_HELP, autocompletion=completion(_methods))]
Tuned = Annotated[str, Option(help="virl, geim or eim.", autocompletion=completion(_paper_methods))]
QUIET_HELP = "Print nothing but warnings and errors."
Quiet = Annotated[bool, Option("--quiet", help=QUIET_HELP, callback=_hide_output)]
DRY_HELP = "Do nothing; print how much there is, how much is done, and how long the rest takes."
DryRun = Annotated[bool, Option("--dry-run", help=DRY_HELP)]
POOL_HELP = (
    "Put results of different presets, settings, targets, versions or task sizes together all the "
    "same."
)
Pool = Annotated[bool, Option("--pool", help=POOL_HELP)]
Components = Annotated[int, Option(help="Components of the policy.")]
Modes = Annotated[int | None, Option(help=size_help("modes"))]
Steps = Annotated[int | None, Option(help=size_help("steps"))]
DIM_HELP = (
    "gaussians: dimension D; default 2, the paper's. experts, waving_experts: C + 2, of contexts "
    "in C dimensions; default 3."
)
Dim = Annotated[int | None, Option(help=DIM_HELP)]
Rows = Annotated[int | None, Option(help="Demonstrations to train on; default: the preset's.")]
SET_HELP = "Override one hyperparameter; repeatable."
Set = Annotated[list[str] | None, Option("--set", metavar="SECTION.KEY=VALUE", help=SET_HELP)]
EVENTS_HELP = "Write event files for TensorBoard into the run's folder, a few KB per iteration."
Tensorboard = Annotated[bool, Option(help=EVENTS_HELP)]
ADDRESS_HELP = "Of a running Dask cluster, tcp://HOST:PORT."
Scheduler = Annotated[str | None, given("ADDRESS", ADDRESS_HELP)]
WORKERS_HELP = "Local worker processes without --scheduler; default: one per core."
LocalWorkers = Annotated[int | None, Option(help=WORKERS_HELP)]
StudyPreset = Annotated[str | None, preset(f"The study's. {DEFAULT}", best=False)]
STORAGE_HELP = "The study's; default: study.db in studies/ and its name."
StudyStorage = Annotated[str | None, given("URL", STORAGE_HELP)]

# Of demonstrations in a file, and how they are fitted to.
FILE_HELP = (
    "A row per demonstration: .npy, .npz, .csv or .parquet (extra `parquet`); of trajectories "
    "also .hdf5 or a folder."
)
DataFile = Annotated[Path, Argument(metavar="FILE", help=FILE_HELP)]
PATHS_FILE_HELP = (
    "Trajectories: .npy, .npz, .hdf5, .csv or .parquet (extra `parquet`), or a folder of the "
    "latter two."
)
PATHS_HELP = (
    "Each demonstration is a trajectory: [N, T, D], a table with a column of episodes, .hdf5 of "
    "robomimic, Minari or D4RL, or a folder of .csv or .parquet files."
)
AreTrajectories = Annotated[bool, Option("--trajectories", help=PATHS_HELP)]
KIND_HELP = "Of trajectories: promp, waypoints or components; auto: chosen."
EncodingKind = Annotated[str, given("KIND", KIND_HELP)]
SIZE_HELP = "Its basis functions, waypoints or components; default: chosen."
EncodingSize = Annotated[int | None, Option(help=SIZE_HELP)]
VIA_HELP = "Where paths go through exactly; auto is promp then."
Via = Annotated[str | None, given("start,goal", VIA_HELP)]
PHASE_HELP = "What an encoding is over; default: time, or length for waypoints."
Phase = Annotated[str | None, given("time|length", PHASE_HELP)]
TOLERANCE_HELP = "Standard deviations of a column that an encoding may lose; default 0.05."
Tolerance = Annotated[float | None, Option(help=TOLERANCE_HELP)]
EPISODE_HELP = "Tells a table's episodes apart; default: episode_index, episode or episode_id."
Episode = Annotated[str | None, given("COLUMN", EPISODE_HELP)]
TIME_HELP = "When samples were taken; default: timestamp or time, or equal steps."
Time = Annotated[str | None, given("COLUMN", TIME_HELP)]
ARRAY_HELP = "Which array of an .npz; of .hdf5 A,B,... side by side (default: observations)."
ArrayName = Annotated[str | None, given("NAME", ARRAY_HELP)]
COLUMNS_HELP = "Columns to use (of arrays x0, x1, ...; of .hdf5 an array, or NAME.0 of it)."
Columns = Annotated[str | None, given("A,B,...", COLUMNS_HELP)]
Exclude = Annotated[str | None, given("A,B,...", "Columns to leave out; default: none.")]
CONTEXTS_HELP = "Columns that are the situation: the reward is of the others."
Contexts = Annotated[str | None, given("A,B,...", CONTEXTS_HELP)]
GROUP_HELP = "Rows of one label here are held out together; it may be a context."
Group = Annotated[str | None, given("COLUMN", GROUP_HELP)]
PERIODIC_HELP = "Columns that are angles; a whole turn is 2 pi or = it."
Periodic = Annotated[str | None, given("A,B=360,...", PERIODIC_HELP)]
Lower = Annotated[str | None, given("A=0,...", "Lower bounds of columns.")]
Upper = Annotated[str | None, given("A=1,...", "Upper bounds of columns.")]
DITHER_HELP = "Spread columns whose values repeat by their resolution."
Dither = Annotated[bool, Option("--dither", help=DITHER_HELP)]
HparamsFile = Annotated[Path | None, given("FILE", "YAML file of hyperparameters.")]
