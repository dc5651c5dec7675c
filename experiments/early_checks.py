"""What commands can say of files and options before TensorFlow or pandas are loaded."""

from collections.abc import Sequence
from pathlib import Path

from virl_tf.validation import InputError, check_integer, check_seed

from experiments.records import find_records

KINDS = (".npy", ".npz", ".csv", ".parquet")  # of files with demonstrations
HDF5_KINDS = (".hdf5", ".h5")  # of files with trajectories alone


def check_demonstration_file(path: Path, kinds: Sequence[str] = KINDS) -> None:
    """Raises InputError unless `path` is a file, not empty, of one of `kinds`."""
    kind = path.suffix.lower()
    if path.is_dir():
        raise InputError(
            f"{path} is a folder: give a file of demonstrations, or --trajectories if it holds a "
            "file for each episode."
        )
    if kind not in kinds and kind in HDF5_KINDS:
        raise InputError(f"{path}: of {kind} files episodes are read; give --trajectories.")
    if kind not in kinds:
        raise InputError(f"{path}: unknown kind of file {kind!r}; allowed are {', '.join(kinds)}.")
    if not path.is_file():
        raise InputError(f"no file {path}." if not path.exists() else f"{path} is not a file.")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty.")


def check_trajectory_path(path: Path) -> None:
    """Raises InputError unless `path` is such a file, or a folder of .csv or .parquet files."""
    if not path.exists():
        raise InputError(f"no file or folder {path}.")
    if path.is_file():
        check_demonstration_file(path, (*KINDS, *HDF5_KINDS))
    elif not any(path.glob("*.csv")) and not any(path.rglob("*.parquet")):
        text = f"{path} holds no .csv files, one for each episode, and no .parquet files"
        files = sorted(file for kind in HDF5_KINDS for file in path.rglob(f"*{kind}"))
        raise InputError(f"{text}; give its {files[0]} itself." if files else f"{text}.")


def check_infer(
    runs: Sequence[Path], components: int, steps: int | None, samples: int | None, seed: int
) -> None:
    """Raises InputError for a run that is not there, or an option out of range."""
    check_integer("--components", components, 1)
    if samples is not None:
        check_integer("--samples", samples, 4)
    if steps is not None:
        check_integer("--steps", steps, 1)
    check_seed(seed, "--seed")
    for run in runs:
        if not run.is_dir():
            raise InputError(f"no folder {run}; give the folder of a finished run.")
        if not (run / "config.yaml").is_file():
            raise InputError(f"{run} is not a run folder: it has no config.yaml.")


def has_results(folder: Path) -> bool:
    """Whether a folder has a results.csv, or records to make one of."""
    return (folder / "results.csv").is_file() or bool(find_records(folder))


def results_file(path: Path, task: str) -> Path:
    """The results.csv that `path` is or holds; `path` itself where it holds records.

    Those of a sweep that was stopped are newer than its table.

    Raises InputError, which tells to sweep `task`, if there is none.
    """
    if path.is_dir() and find_records(path):
        return path
    file = path / "results.csv" if path.is_dir() else path
    if not file.is_file():
        command = f"python -m experiments sweep {task} --out DIR"
        raise InputError(f"no results in {path}; make them with: {command}")
    return file
