"""A run's folder: its configuration, metrics, checkpoints and results, each written atomically.

config.yaml     what identifies the run, and the versions it ran with
metrics.csv     a row per iteration
timings.csv     the CPU seconds of each iteration: apart, because they differ between identical runs
checkpoints/    the last two states
reward.keras, policy.npz    the result; their presence marks a finished run
"""

import contextlib
import csv
import io
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from virl_tf.persistence.configuration import differences, numerics, versions
from virl_tf.persistence.files import (
    DamagedFileError,
    plain,
    read_csv,
    read_json,
    remove_partial,
    save_arrays,
    write_json,
    write_text,
    writing,
)
from virl_tf.validation import InputError, check_path, reason, told
from virl_tf.yaml_files import read_yaml, to_yaml

if TYPE_CHECKING:  # whether a folder is the right one is known without TensorFlow and pandas
    import pandas as pd

    from virl_tf.conditional import Policy
    from virl_tf.irl import State
    from virl_tf.reward import Reward

try:
    import fcntl
except ImportError:  # not a POSIX system: runs work, without the lock
    fcntl = None  # type: ignore[assignment]


_STARTED = time.time()


def _first_rows(path: Path, number: int, columns: Sequence[str]) -> list[dict[str, str]]:
    """Of a table with these columns. Raises InputError for another one, or a damaged one."""
    anew = "give another folder to start anew"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)[:number]
        if any(None in row for row in rows):
            raise ValueError("a row has more cells than there are columns")
    except (FileNotFoundError, ValueError, csv.Error) as error:
        raise InputError(f"{path} is missing or damaged ({reason(error)}); {anew}.") from error
    others = sorted(set(reader.fieldnames or ()) ^ set(columns))
    if others:
        raise InputError(
            f"{path} has other columns than the run that goes on: {told(', '.join(others))}. "
            f"Measure the same as before (evaluate=), or {anew}."
        )
    if len(rows) < number:
        raise InputError(f"{path} has {len(rows)} of {number} rows; {anew}.")
    return rows


class RunFolder:
    """One run's folder. `open` creates it, or checks that it belongs to the same configuration."""

    def __init__(self, path: Path | str):
        """The folder at `path`, not yet opened."""
        self.path = check_path(path)

    @classmethod
    def open(
        cls,
        path: Path | str,
        config: Mapping[str, Any],
        *,
        preset: object = None,
        of_runs: bool = False,
    ) -> "RunFolder":
        """Create the folder for `config`, or open the one that has it.

        Args:
            preset: that the numbers depend on, where `config` names none (configuration.numerics).
            of_runs: it holds runs of their own, which are checked one by one: the version that made
                the folder does not matter.

        Raises:
            InputError: the path is a file, holds another configuration or something that is not a
                run, or cannot be written. Nothing in it is changed then. Also if another version of
                virl_tf, or of a package that an unfinished run depends on, made it: numbers of
                both would be mixed.
        """
        folder = cls(path)
        text = to_yaml({"config": plain(config), "versions": versions()})
        try:
            folder.check_no_file()
            if folder._is_used:
                folder._check_same(yaml.safe_load(text)["config"])
                if not of_runs:
                    folder._check_numerics(preset)
                folder.tidy_if_unlocked(of_runs)
            else:
                folder.path.mkdir(parents=True, exist_ok=True)
                write_text(folder.path / "config.yaml", text)
        except OSError as error:
            raise InputError(
                f"cannot use {folder.path} as the output folder: {error.strerror or error}."
            ) from error
        return folder

    def check_no_file(self) -> None:
        """Raises InputError where the folder cannot be: it, or one above it, is a file, or a link
        to nothing, as of a disk that is not there.
        """
        cannot = f"cannot use {self.path} as the output folder"
        for path in (self.path, *self.path.parents):
            if path.is_file():
                raise InputError(f"{cannot}: {path} is a file.")
            if path.is_symlink() and not path.exists():
                gone = f"{path} is a link to {path.readlink()}, which is not there"
                raise InputError(f"{cannot}: {gone}.")

    @classmethod
    def check(cls, path: Path | str, config: Mapping[str, Any]) -> None:
        """Refuse at once what `open` would refuse after compute; nothing is made.

        Args:
            config: as for `open`; None in it is not known yet.

        Raises:
            InputError: as `open`, but that the folder cannot be written.
        """
        folder = cls(path)
        folder.check_no_file()
        with contextlib.suppress(OSError):  # `open` says what is wrong with the folder
            if not folder._is_used:
                return
            known = yaml.safe_load(to_yaml(plain(config)))
            there = folder.config if (folder.path / "config.yaml").is_file() else {}
            folder._check_same({k: there.get(k) if v is None else v for k, v in known.items()})
            folder._check_numerics()
            folder._check_free()

    @property
    def _is_used(self) -> bool:
        """Whether it holds more than the hidden files that a kill in an atomic write leaves."""
        found = self.path.iterdir() if self.path.is_dir() else ()
        return any(not entry.name.startswith(".") for entry in found)

    def _check_same(self, config: Mapping[str, Any]) -> None:
        if not (self.path / "config.yaml").is_file():
            raise InputError(
                f"{self.path} holds files but no run (no config.yaml); give a new or empty folder."
            )
        different = differences(self.config, config)
        if different:
            more = f"; and {len(different) - 4} more" if len(different) > 4 else ""
            shown = "; ".join(different[:4]) + more
            raise InputError(
                f"{self.path} holds a run with another configuration ({shown}). "
                "Give another folder."
            )

    def _check_numerics(self, preset: object = None) -> None:
        made_by = {name: str(version) for name, version in self._versions.items()}
        preset = self.config.get("preset", preset)
        there, now = (numerics(of, preset) for of in (made_by, versions()))
        # A result is read with any TensorFlow, but iterations of two would be mixed.
        unfinished = bool(self._checkpoints()) and not self.finished
        for name in there if unfinished else {"virl_tf"} & there.keys():
            if there[name] != now.get(name):
                raise InputError(
                    f"{self.path} was made by {name} {made_by[name]}; "
                    "use that version, or give another folder."
                )

    @property
    def config(self) -> dict[str, Any]:
        """What identifies the run. Raises InputError if there is no run here."""
        return self._content["config"]

    @property
    def _versions(self) -> Mapping[str, Any]:
        found = self._content.get("versions") or {}
        if not isinstance(found, Mapping):
            raise InputError(f"{self.path / 'config.yaml'}: versions must be a mapping.")
        return found

    @property
    def _content(self) -> dict[str, Any]:
        path = self.path / "config.yaml"
        if not path.is_file():
            raise InputError(f"{self.path} is not a run folder: it has no config.yaml.")
        content = read_yaml(path)
        if not isinstance(content, dict) or not isinstance(content.get("config"), dict):
            raise InputError(f"{path} is not a run's configuration.")
        return content

    @property
    def finished(self) -> bool:
        """Whether the result is there."""
        return (self.path / "reward.keras").is_file() and (self.path / "policy.npz").is_file()

    # --- iterations -------------------------------------------------------------------------------

    def record(self, state: "State", row: Mapping[str, Any]) -> None:
        """Store one iteration: its row, then the state after it.

        A kill in between costs one iteration, never more.

        Raises:
            InputError: it cannot be written (a full disk, say), or the rows before it are gone.
        """
        with self._writing():
            self._record(state, row)

    def _record(self, state: "State", row: Mapping[str, Any]) -> None:
        from virl_tf.persistence.checkpoint import save_state

        timed = {key for key in row if key.endswith("_seconds")}
        timings = {key: value for key, value in row.items() if key == "t" or key in timed}
        metrics = {key: value for key, value in row.items() if key not in timed}
        self._append("metrics.csv", metrics, state.t - 1)
        self._append("timings.csv", timings, state.t - 1)
        (self.path / "checkpoints").mkdir(exist_ok=True)
        save_state(self.path / "checkpoints" / f"state-{state.t:05d}.npz", state)
        for old in self._checkpoints()[:-2]:
            old.unlink()

    def _append(self, name: str, row: Mapping[str, Any], before: int) -> None:
        """Put `row` behind the first `before` rows; later ones are of iterations done again."""
        path, text = self.path / name, io.StringIO()
        rows = _first_rows(path, before, list(row)) if before else []
        writer = csv.DictWriter(text, list(row), lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, row])
        write_text(path, text.getvalue())

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("state-*.npz"))

    def drop_checkpoints(self) -> None:
        """Of a run that will not go on."""
        for path in self._checkpoints():
            path.unlink()

    def latest_state(self, template: "State") -> "State | None":
        """The newest whole checkpoint, None if there is none yet; warns of a damaged one.

        Raises:
            InputError: all checkpoints are damaged, or they belong to a run with other shapes.
        """
        from virl_tf.persistence.checkpoint import load_state

        checkpoints = self._checkpoints()
        while checkpoints:
            try:
                return load_state(checkpoints.pop(), template)
            except DamagedFileError as error:
                if not checkpoints:
                    raise InputError(
                        f"{error} No checkpoint before it is whole; "
                        "give another folder to start anew."
                    ) from error
                warnings.warn(f"{error} Going back to the checkpoint before it.", stacklevel=2)
        return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from this run; the lock ends with the process, however it ends.

        What kills have left behind before this process began is removed.

        Raises:
            InputError: another process works on it.
        """
        with self._writing():
            file = (self.path / ".lock").open("a")
        with file:
            if fcntl is not None:
                self._lock(file, fcntl.LOCK_EX)
                self._remove_partial()
            yield

    def _check_free(self) -> None:
        """InputError if another process works on what is not finished: now, not after compute."""
        lock = self.path / ".lock"
        if fcntl is not None and lock.is_file() and not self.finished:
            with lock.open() as file:
                self._lock(file, fcntl.LOCK_SH)

    def _lock(self, file: Any, kind: int) -> None:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"another process is working on the run in {self.path}; wait for it or stop it."
            ) from error

    def _remove_partial(self) -> None:
        # Commands write here without the lock too, but none for a minute.
        remove_partial(self.path, max(_STARTED, time.time() - 60.0))

    def tidy_if_unlocked(self, of_runs: bool = False) -> None:
        """Remove what kills have left where nothing is locked later: in a finished run, whose
        pictures and summaries are made after that; in a folder of runs (`of_runs`), whose workers
        may be writing elsewhere.
        """
        if self.finished:
            with contextlib.suppress(InputError), self.locked():  # it may be read-only
                pass
        elif of_runs:
            remove_partial(self.path, time.time() - 60.0)
        elif not (self.path / ".lock").exists():
            self._remove_partial()

    def history(self) -> "pd.DataFrame":
        """metrics.csv and timings.csv side by side, a row per iteration.

        Raises InputError if one is missing or damaged.
        """
        import pandas as pd

        metrics, timings = self.table("metrics.csv"), self.table("timings.csv")
        if list(metrics["t"]) != list(timings["t"]):
            raise InputError(
                f"metrics.csv and timings.csv in {self.path} hold different iterations: "
                "one of them is damaged."
            )
        return pd.concat([metrics, timings.drop(columns="t")], axis=1)

    def seconds(self) -> float:
        """CPU seconds of the iterations done so far."""
        if not self._checkpoints():
            return 0.0
        return float(self.table("timings.csv").drop(columns="t").to_numpy().sum())

    def table(self, name: str) -> "pd.DataFrame":
        """metrics.csv or timings.csv. Raises InputError if it is missing or damaged."""
        import pandas as pd

        try:
            frame = read_csv(self.path / name)
        except (OSError, ValueError) as error:
            raise InputError(f"{self.path / name} cannot be read: {reason(error)}.") from error
        text = [key for key in frame if not pd.api.types.is_numeric_dtype(frame[key])]
        if "t" not in frame or text:
            why = f"column {text[0]!r:.40} holds text" if text else "it has no column 't'"
            raise InputError(f"{self.path / name} is not a table of iterations: {why}.")
        return frame

    # --- result -----------------------------------------------------------------------------------

    def write_result(self, reward: "Reward", policy: "Policy") -> None:
        """Write reward.keras and policy.npz; the run is finished then.

        Raises InputError if they cannot be written.
        """
        from virl_tf.persistence.policy_file import save_policy
        from virl_tf.persistence.reward_file import save_reward

        with self._writing():
            save_reward(self.path / "reward.keras", reward)
            save_policy(self.path / "policy.npz", policy)

    def _writing(self) -> AbstractContextManager[None]:
        kept = "What was finished before is kept: the same call continues once that is solved."
        return writing(self.path, f" {kept}")

    def write_summary(self, summary: Mapping[str, Any], demonstrations: Mapping[str, Any]) -> None:
        """Write demonstrations.npz, then summary.json. Raises InputError if they cannot be."""
        with self._writing():
            save_arrays(self.path / "demonstrations.npz", dict(demonstrations))
            write_json(self.path / "summary.json", summary)

    def summary(self) -> dict[str, Any]:
        """What summary.json holds; nothing if there is none. Raises InputError if it is damaged."""
        path = self.path / "summary.json"
        return read_json(path) if path.is_file() else {}

    def reward(self) -> "Reward":
        """The recovered reward."""
        from virl_tf.persistence.reward_file import load_reward

        return load_reward(self.path / "reward.keras")

    def policy(self) -> Any:
        """The policy: a `Mixture`, or with contexts a `ConditionalMixture`."""
        from virl_tf.persistence.policy_file import load_policy

        return load_policy(self.path / "policy.npz")
