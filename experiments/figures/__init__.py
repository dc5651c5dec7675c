"""The paper's figures, redrawn from result files alone."""

import contextlib
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.persistence.run_folder import RunFolder
from virl_tf.validation import InputError, check_choice

from experiments import RESULTS
from experiments.records import FOLDER, SUFFIX, unpacked

PACKAGE = Path(__file__).parent.parent
ALL = "all"


class Kind(NamedTuple):
    """What a figure is drawn from.

    Attributes:
        folders: how many of results it takes; 0: one or more.
        files: that each of them has.
        command: that makes such a folder, behind `python -m experiments`.
        committed: below the folder of committed results, what it is drawn from by default.
        of_runs: whether the folders are runs', of which records stand for some.
        published: whether it takes points read off the paper's figure.
    """

    folders: int
    files: tuple[str, ...]
    command: str
    committed: tuple[str, ...]
    of_runs: bool = True
    published: bool = False


WALKS = ("config.yaml", "demonstrations.npz", "walks.npz")
OF_WALKERS = tuple(
    f"figures/walker/grid_walker-{method}-10c-d5-s0-quick{SUFFIX}" for method in ("geim", "virl")
)
OF_M30 = tuple(f"figures/m30/{seed}{SUFFIX}" for seed in range(5))
OF_ABLATIONS = tuple(
    f"best/ablations/{name}" for name in ("gaussians_m50", "grid_walker", "path_planning")
)
FIGURES = {
    "1": Kind(
        1,
        WALKS,
        "run path_planning",
        (f"figures/paths/path_planning-virl-10c-d6-s0-quick{SUFFIX}",),
    ),
    "2a": Kind(1, ("demonstrations.npz", "grid.npz", "task.npz"), "run gaussians", OF_M30[:1]),
    "2b": Kind(0, (), "sweep gaussians", ("gaussians",), False, published=True),
    "3": Kind(2, WALKS, "run grid_walker", OF_WALKERS),
    "4": Kind(0, (), "sweep gaussians", ("gaussians",), False, published=True),
    "5": Kind(0, ("config.yaml", "grid.npz"), "run gaussians", OF_M30),
    "6": Kind(1, ("config.yaml", "demonstrations.npz"), "run grid_walker", OF_WALKERS[1:]),
    "7": Kind(1, (), "sweep grid_walker", ("figures/walker",)),
    "robot": Kind(1, ("robot.npz",), "benchmark vips", ("benchmark/vips",), of_runs=False),
    "ablations": Kind(0, ("results.csv",), "ablate TASK", OF_ABLATIONS, of_runs=False),
}


def draw(
    number: str,
    runs: Sequence[Path],
    inference: Path | None,
    out: Path,
    pool: bool = False,
    published: Path | None = None,
) -> None:
    """Draw one figure, or "all", into the folder `out` as PNG and PDF.

    Args:
        runs: folders of results, or records of runs; none: the committed ones.
        inference: where Figure 5 finds the inference policy, if not in the first run's folder.
        pool: draw results of different presets, settings, versions and task sizes together.
        published: a file of points read off the paper's figure.

    Raises:
        InputError: unknown figure, too many or too few folders of results, `inference` or
            `published` for another figure, result files it needs are missing (the message names
            the command that makes them), or without `pool` results that differ.
    """
    if inference is not None and number != "5":
        raise InputError("--inference is for figure 5.")
    check_choice("figure", number, [*FIGURES, ALL])
    takers = [name for name, kind in FIGURES.items() if kind.published]
    if published is not None and number not in takers:
        raise InputError(f"--published is for figures {' and '.join(takers)}.")
    if number == ALL and runs:
        raise InputError(f"figure {ALL} is drawn from the committed results; give no others.")
    with contextlib.ExitStack() as stack:
        chosen = {
            name: stack.enter_context(_results(name, runs))
            for name in (FIGURES if number == ALL else [number])
        }
        with _output_folder(out):
            for name, folders in chosen.items():
                _draw(name, folders, out, inference=inference, pool=pool, published=published)


@contextlib.contextmanager
def _output_folder(out: Path) -> Iterator[None]:
    """Made where it is not there; gone again if an error leaves it empty. Raises InputError."""
    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot use {out} as the output folder: {reason}.") from error
    try:
        yield
    except InputError:
        if made and not any(out.iterdir()):
            out.rmdir()
        raise


def _draw(number: str, runs: list[Path], out: Path, **options: Any) -> None:
    """One figure, whose folders are there, with those of the options that it has."""
    if number in ("3", "5") and not options["pool"]:
        from experiments.pooled_results import check_same_preset

        check_same_preset(runs)
    # Imported here: matplotlib takes a second, and TensorFlow several.
    module = importlib.import_module(f"experiments.figures.figure_{number}")
    draw_figure = getattr(module, f"draw_figure_{number}")
    taken = inspect.signature(draw_figure).parameters
    own = {name: value for name, value in options.items() if name in taken}
    draw_figure(runs[0] if FIGURES[number].folders == 1 else runs, out=out, **own)


@contextlib.contextmanager
def _results(number: str, runs: Sequence[Path]) -> Iterator[list[Path]]:
    """The folders that a figure is drawn from. Raises InputError if a file it needs is missing."""
    kind, paths = FIGURES[number], _paths(number, runs)
    with unpacked(paths) if kind.of_runs else contextlib.nullcontext(paths) as folders:
        for folder, path in zip(folders, paths, strict=True):
            missing = [name for name in kind.files if not (folder / name).is_file()]
            if missing:
                raise InputError(f"{path} has no {missing[0]}; {_cure(number, path, folder)}")
        yield folders


def _cure(number: str, path: Path, folder: Path) -> str:
    """What to do about a folder, or a record, without a file that the figure needs.

    `folder`: itself, or where the record was unpacked.
    """
    kind, run = FIGURES[number], RunFolder(folder)
    if kind.of_runs and (records := sorted(path.glob(f"{FOLDER}/*{SUFFIX}"))):
        return f"it is a sweep's; give the record of a run, such as {quoted(records[0])}"
    config: dict[str, Any] = {}
    with contextlib.suppress(InputError):
        config = run.config
    if "demonstrations" in config:
        if number == "5":
            return "figure 5 draws fits to points without contexts; with them see situations.png"
        return f"figure {number} is of the paper's tasks, not of your own demonstrations"
    of_its_task = config.get("task") == kind.command.split()[-1]
    if of_its_task and "grid.npz" in kind.files and config.get("dim", 2) != 2:
        return f"figure {number} is of runs in two dimensions, not in {config['dim']}"
    if kind.of_runs and config and path == folder and not run.finished:
        return "the run is not finished; the command that began it goes on with it"
    return f"make them with: python -m experiments {kind.command}"


def _paths(number: str, runs: Sequence[Path]) -> list[Path]:
    """The results that were given, or the committed ones. Raises InputError if there are none."""
    kind = FIGURES[number]
    if not runs:
        committed = [RESULTS / name for name in kind.committed]
        if not all(path.exists() for path in committed):
            text = "only a checkout of the repository holds results."
            raise InputError(f"figure {number} needs folders of results; {text}")
        return committed
    if kind.folders and len(runs) != kind.folders:
        folders = "folders" if kind.folders > 1 else "folder"
        raise InputError(
            f"figure {number} takes {kind.folders} {folders} of results, got {len(runs)}."
        )
    for run in runs:
        if not run.exists():
            told = _told_by(run, kind.command.split()[-1])
            command = f"{kind.command}{told} --out {quoted(own(run))}"
            raise InputError(
                f"no results in {run}; make them with: python -m experiments {command}"
            )
    return list(runs)


def _told_by(path: Path, task: str) -> str:
    """The options that a folder's name tells, if it is one that runs or sweeps have by default."""
    size = r"(?:m(?P<modes>\d+)|d(?P<steps>\d+))"
    run = rf"-(?P<method>\w+)-(?P<components>\d+)c-{size}-s(?P<seed>\d+)"
    found = re.fullmatch(rf"{task}(?:{run})?-(?P<preset>smoke|quick|paper|best)", path.name)
    told = {} if found is None else found.groupdict()
    return "".join(f" --{name} {value}" for name, value in told.items() if value is not None)


def own(path: Path) -> Path:
    """Where a hint may send a user to write: not into the package's own folders."""
    inside = path.resolve().is_relative_to(PACKAGE.resolve())
    return Path("runs") / path.name if inside else path


def quoted(path: Path) -> str:
    """As a shell takes it."""
    return shlex.quote(str(path))


def check_of_one_run(inference: Path, command: str) -> None:
    """Raises InputError for inference on the average of several runs, which is no single run's.

    `command`: that makes one on the run's own reward.
    """
    names = RunFolder(inference).config.get("runs", [])
    if len(names) > 1:
        raise InputError(
            f"{inference} was inferred on the average of {', '.join(map(str, names))}; move it "
            f"away, and make one of this run alone with: {command}"
        )


def infer_command(runs: Sequence[Path], options: str, folder: str) -> str:
    """What makes the inference that a figure needs, in `folder` of the first run."""
    if not all((run / "reward.keras").is_file() for run in runs):
        again = "in the runs' own folders (a record holds no reward), then record them again"
        return f"python -m experiments infer RUN... {options}, {again}"
    command = f"python -m experiments infer {' '.join(map(quoted, runs))} {options}"
    place = own(runs[0])
    return command if place == runs[0] else f"{command} --out {quoted(place / folder)}"
