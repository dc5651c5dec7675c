"""Records: of a finished run, what tables and figures are made from, in one small file.

NAME.zip is compressed, and has the same bytes wherever the numbers are the same:

record.json     of every stage configuration, versions and summary; a stage is "." (the run) or the
                folder of an inference in it
metrics.csv, task.npz, inference/grid.npz, ...    as in the run's folder, thinned
sha256          of all of these
seconds.json    of every stage the CPU seconds, which differ between identical runs
"""

import contextlib
import hashlib
import io
import json
import math
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from virl_tf.persistence.files import (
    DAMAGED,
    load_arrays,
    pack_arrays,
    plain,
    read_json,
    read_members,
    write_atomically,
    write_json,
    write_text,
    writing,
)
from virl_tf.validation import InputError, reason
from virl_tf.yaml_files import read_yaml, to_yaml

import numpy as np

from experiments.screen import screen

FORMAT = 1  # a record of another format is refused
SUFFIX = ".zip"
FOLDER = "records"  # of a sweep's output
THINNED = ("task.npz", "walks.npz", "demonstrations.npz", "grid.npz")
ABLATION = "ablation.json"  # what `ablate` alone measures
COPIED = ("metrics.csv", ABLATION)
SECONDS = "cpu_seconds"  # of a summary

KEPT_ROWS = 500  # of the training demonstrations: as many as a figure shows
KEPT_RESOLUTION = 50  # of a grid's 100 points along an axis
# Of a number's 53: four digits, more than a picture shows. The records of a whole sweep of the
# Gaussians take a third of the space that whole float32 numbers take.
KEPT_BITS = 12
# Times a column's range: where its numbers are larger, such as UTM's, few bits leave few values.
FAR = 8.0
PLACES = ("train", "axes")  # arrays of points [N, D], and of grids' coordinates [D, R]


class Stage(NamedTuple):
    """A run, or an inference in it: what identifies it, with what it was made, what came out."""

    config: dict[str, Any]
    versions: dict[str, str]
    summary: dict[str, Any]


class Record(NamedTuple):
    """The content of a record.

    Attributes:
        path: of its file.
        stages: by their folders; "." is the run itself.
        files: {name within the run's folder: content} of metrics and thinned arrays.
    """

    path: Path
    stages: dict[str, Stage]
    files: dict[str, bytes]

    @property
    def summaries(self) -> dict[str, dict[str, Any]]:
        """Of every stage."""
        return {name: stage.summary for name, stage in self.stages.items()}


# --- from a folder to a record --------------------------------------------------------------------


def write_record(folder: Path, path: Path) -> None:
    """Write the record of the finished run in `folder`, with the inferences in it, to `path`.

    Raises InputError if `folder` is none, or the record cannot be written.
    """
    _write(path, _content(folder))


def _content(folder: Path) -> dict[str, bytes]:
    """The members of a run's record. Raises InputError if there is none."""
    _check_finished(folder)
    folders = [folder, *sorted(file.parent for file in folder.glob("*/summary.json"))]
    stages: dict[str, Any] = {}
    seconds: dict[str, Any] = {}
    content: dict[str, bytes] = {}
    for inner in folders:
        stage = inner.relative_to(folder).as_posix()
        stages[stage] = _stage(inner)._asdict()
        seconds[stage] = stages[stage]["summary"].pop(SECONDS, None)
        content |= {Path(stage, name).as_posix(): of for name, of in _files(inner).items()}
    content["record.json"] = _to_json({"format": FORMAT, "stages": stages})
    content["sha256"] = _digest(content)
    content["seconds.json"] = _to_json(seconds)
    return content


def _write(path: Path, content: Mapping[str, bytes]) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: _write_zip(file, content))


def _check_finished(folder: Path) -> None:
    if not (folder / "summary.json").is_file():
        raise InputError(f"{folder} is not the folder of a finished run: it has no summary.json.")


def _stage(folder: Path) -> Stage:
    content = read_yaml(folder / "config.yaml")
    if not isinstance(content, Mapping) or not isinstance(content.get("config"), Mapping):
        raise InputError(f"{folder / 'config.yaml'} is not a run's configuration.")
    made_by = {name: str(version) for name, version in (content.get("versions") or {}).items()}
    return Stage(dict(content["config"]), made_by, read_json(folder / "summary.json"))


def _files(folder: Path) -> dict[str, bytes]:
    """What is kept of one folder."""
    copied = [folder / name for name in COPIED]
    found = {path.name: path.read_bytes() for path in copied if path.is_file()}
    for path in [folder / name for name in THINNED]:
        if path.is_file():
            found[path.name] = _packed(_thinned(path.name, load_arrays(path)))
    return found


def _thinned(name: str, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As many demonstrations, and points of a grid in 2-D, as a picture needs."""
    if name == "demonstrations.npz":
        arrays = {"train": arrays["train"][:KEPT_ROWS]}
    if name == "grid.npz" and "axes" in arrays and len(arrays["axes"]) == 2:
        arrays = _coarser(arrays)
    return arrays


def _coarser(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A grid's axes [2, R] and values [R * R] at every second point (or third, ...)."""
    axes = arrays["axes"]
    resolution = axes.shape[1]
    every = math.ceil(resolution / KEPT_RESOLUTION)
    kept: dict[str, np.ndarray] = {"axes": axes[:, ::every]}
    for name, values in arrays.items():
        if values.shape == (resolution**2,):
            square = values.reshape(resolution, resolution)
            kept[name] = square[::every, ::every].ravel()
    return kept


def _packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """An .npz file of the arrays; those of numbers as float32 of `KEPT_BITS`, but for points far
    from 0.
    """
    short: dict[str, Any] = {}
    for name, array in arrays.items():
        whole = name in PLACES and _is_far(array if name == "train" else array.T)
        short[name] = array if whole or array.dtype.kind != "f" else _rounded(array)
    file = io.BytesIO()
    pack_arrays(file, short)
    return file.getvalue()


def _is_far(x: np.ndarray) -> bool:
    """Whether a column of x [N, D] is `FAR` from 0."""
    return len(x) > 0 and bool((np.abs(x).max(axis=0) > FAR * np.ptp(x, axis=0)).any())


def _rounded(array: np.ndarray) -> np.ndarray:
    """To `KEPT_BITS` binary digits, which compress well."""
    fraction, exponent = np.frexp(array.astype(np.float64))
    kept = np.round(np.ldexp(fraction, KEPT_BITS))
    return np.ldexp(kept, exponent - KEPT_BITS).astype(np.float32)


def _to_json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(plain(value), indent=1).encode()


def _digest(content: Mapping[str, bytes]) -> bytes:
    """SHA-256 of names and contents."""
    digest = hashlib.sha256()
    for name in sorted(content):
        digest.update(f"{name} {len(content[name])} ".encode() + content[name])
    return digest.hexdigest().encode()


def _write_zip(file: BinaryIO, content: Mapping[str, bytes]) -> None:
    """Members of one date: the same content gives the same bytes."""
    with zipfile.ZipFile(file, "w") as archive:
        for name in sorted(content):
            member = zipfile.ZipInfo(name)
            archive.writestr(member, content[name], zipfile.ZIP_DEFLATED, compresslevel=9)


def record(runs: Iterable[Path], out: Path) -> None:
    """Write the records of runs into the folder `out`; none where one of them cannot be.

    Raises InputError as `write_record`, if two have one name, or if there is such a record.
    """
    found: dict[Path, Path] = {}
    for run in runs:
        path = out / f"{run.resolve().name}{SUFFIX}"
        if path.exists():
            raise InputError(f"{path} is there already; give another folder.")
        if path in found:
            text = f"{found[path]} and {run} would both be {path}; give each its own --out."
            raise InputError(text)
        found[path] = run
    contents = {path: _content(run) for path, run in found.items()}
    for path, content in contents.items():
        _write(path, content)
        size = path.stat().st_size / 1e3
        screen().out(f"wrote {path} ({size:.0f} KB)")


# --- from a record to what it holds ---------------------------------------------------------------


def read_record(path: Path) -> Record:
    """Read a record. Raises InputError if it is damaged, changed or of another format."""
    try:
        members = read_members(path)
        seconds = json.loads(members.pop("seconds.json"))
        if members.pop("sha256") != _digest(members):
            raise ValueError("its content has been changed")
        content = json.loads(members.pop("record.json"))
        if content["format"] != FORMAT:
            raise ValueError(f"it has the format {content['format']!r:.20}, not {FORMAT}")
        stages = {name: _with_seconds(name, seconds, of) for name, of in content["stages"].items()}
        _check_names(stages, members)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        cure = "give a run's folder or its record"
        if FOLDER in path.absolute().parts[:-1] or "record.json" in _names_in(path):
            cure = "delete it, and the command that made it makes it again"
        raise InputError(f"{path} is not a record ({reason(error)}); {cure}.") from error
    return Record(path, stages, members)


def _names_in(path: Path) -> list[str]:
    """Of an archive's members; [] of another file."""
    with contextlib.suppress(*DAMAGED), zipfile.ZipFile(path) as archive:
        return archive.namelist()
    return []


def _with_seconds(name: str, seconds: Mapping[str, Any], content: Mapping[str, Any]) -> Stage:
    stage = Stage(**{field: dict(content[field]) for field in Stage._fields})
    if seconds[name] is not None:
        stage.summary[SECONDS] = seconds[name]
    return stage


def _check_names(stages: Iterable[str], files: Iterable[str]) -> None:
    """Raises ValueError for names that lead out of a folder, or that no record has."""
    allowed = {Path(stage, name).as_posix() for stage in stages for name in (*THINNED, *COPIED)}
    odd = [name for name in files if name not in allowed]
    odd += [name for name in stages if name in ("", "..") or Path(name).name != name != "."]
    if "." not in stages or odd:
        raise ValueError(f"it holds {odd[0]!r:.40}" if odd else "it holds no run")


def find_records(folder: Path) -> list[Path]:
    """The records of a sweep, by its folder or the folder `records` in it, or those in a folder."""
    inner = folder if folder.name == FOLDER else folder / FOLDER
    within = inner.rglob if inner.is_dir() else folder.glob
    return sorted(within(f"[!.]*{SUFFIX}"))


def unpack(record: Record, folder: Path) -> None:
    """Write a record's content as the files of a run's folder."""
    for name, stage in record.stages.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        identity = {"config": stage.config, "versions": stage.versions}
        write_text(folder / name / "config.yaml", to_yaml(identity))
        write_json(folder / name / "summary.json", stage.summary)
    for name, content in record.files.items():
        (folder / name).write_bytes(content)


@contextlib.contextmanager
def unpacked(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Folders of runs for records and folders of records; other folders stay what they are.

    An InputError inside names the records, not the temporary folders.
    """
    with tempfile.TemporaryDirectory(prefix="virl_tf-records-") as scratch:
        # By their own names, as inferences name the runs they were made on.
        names = [path.stem if path.is_file() else "" for path in paths]
        places = [Path(scratch, str(i), name) for i, name in enumerate(names)]
        folders = [_unpacked(path, place) for path, place in zip(paths, places, strict=True)]
        try:
            yield folders
        except InputError as error:
            text = str(error)
            for folder, path in zip(folders, paths, strict=True):
                text = text.replace(str(folder), str(path))
            raise InputError(text) from error


def _unpacked(path: Path, folder: Path) -> Path:
    """The folder that stands for `path`: itself, or `folder`."""
    if path.is_file():
        unpack(read_record(path), folder)
        return folder
    found = find_records(path)
    for i, file in enumerate(found):  # those of several subfolders may have one name
        unpack(read_record(file), folder / f"{i}-{file.stem}")
    return folder if found else path
