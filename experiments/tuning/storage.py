"""The database of a study: Optuna's on SQLite or PostgreSQL."""

import contextlib
import re
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from virl_tf.validation import InputError

import optuna
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from experiments.tuning.specification import without_password

HEARTBEAT_SECONDS = 10
GRACE_SECONDS = 40  # without a heartbeat, after which a trial counts as lost
RETRIES = 5  # of one lost trial
CONNECT_SECONDS = 10  # until a PostgreSQL server counts as one that does not answer
OPENING_SECONDS = 3.0  # that another command may take to make the tables, or the study
ALLOWED = "Allowed: sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE."
VANISHED = "its worker vanished or was stopped"
# Heartbeat and retry have been experimental since 2.9.
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)

CLAIM = """
    UPDATE trials SET state = 'RUNNING', datetime_start = :now
    WHERE trial_id = :trial_id AND state = 'WAITING'
"""


class _Storage(optuna.storages.RDBStorage):
    """Optuna's, but heartbeats outlive an outage, after which Optuna sends no more; a trial that is
    given up says why; and SQLite, too, hands a waiting trial to one worker alone.
    """

    def record_heartbeat(self, trial_id: int) -> None:
        """Say that a trial's worker is alive, if the database answers."""
        with contextlib.suppress(optuna.exceptions.StorageInternalError):
            super().record_heartbeat(trial_id)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """A trial that fails without a reason had nobody left to store one."""
        if state == TrialState.RUNNING and self.engine.name == "sqlite":
            return self._claim(trial_id)
        if state == TrialState.FAIL and "reason" not in self.get_trial(trial_id).user_attrs:
            with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
                self.set_trial_user_attr(trial_id, "reason", VANISHED)
        return super().set_trial_state_values(trial_id, state, values)

    def _claim(self, trial_id: int) -> bool:
        """Whether a trial waited, and is this worker's now.

        In one statement: between Optuna's reading and its writing SQLite locks no row, so that all
        workers of a study that goes on would have the same trial.
        """
        from sqlalchemy import DateTime, bindparam, text
        from sqlalchemy.exc import SQLAlchemyError

        now = datetime.now(timezone.utc).replace(tzinfo=None)  # as Optuna stores times
        claim = text(CLAIM).bindparams(bindparam("now", now, DateTime), trial_id=trial_id)
        try:
            with self.engine.begin() as connection:
                return connection.execute(claim).rowcount == 1
        except SQLAlchemyError as error:
            raise optuna.exceptions.StorageInternalError("a trial was not taken") from error


def stored_study(name: str, url: str) -> optuna.Study | None:
    """The study of this name, or None. Nothing is made, neither file nor tables.

    Raises:
        InputError: as `open_storage`.
    """
    _check_kept(url)
    if _is_empty(url):
        return None
    storage = open_storage(url)
    if name not in optuna.get_all_study_names(storage):
        return None
    return optuna.load_study(study_name=name, storage=storage)


def _is_empty(url: str) -> bool:
    """Whether a database lacks Optuna's tables, which opening would make, as far as is known."""
    from sqlalchemy import create_engine, inspect, make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        parts = make_url(url)
        if parts.get_backend_name() == "sqlite" and not _sqlite_path(parts.database or "").exists():
            return True  # to ask would make it
        engine = create_engine(url, **_engine_options(url))
        try:
            return not inspect(engine).has_table("studies")
        finally:
            engine.dispose()
    except (SQLAlchemyError, ImportError, ValueError, OSError):
        return False  # opening says what is wrong


def _sqlite_path(database: str) -> Path:
    """Of a file's name or its URI."""
    is_uri = database.startswith("file:")
    return Path(unquote(urlsplit(database).path) if is_uri else database)


def absolute(url: str) -> str:
    """That of a SQLite file with its whole path: workers have other working directories."""
    found = re.fullmatch(r"(sqlite:///(?:file:)?)(?!file:)([^/:].*)", url)
    return url if found is None else f"{found[1]}{Path(found[2]).absolute()}"


def open_storage(url: str) -> optuna.storages.RDBStorage:
    """The database at `url`, created if it is a SQLite file that does not exist.

    Raises:
        InputError: nothing answers there, it is no database of Optuna's, or its driver is not
            installed.
    """
    from sqlalchemy.exc import IntegrityError, ProgrammingError, SQLAlchemyError

    _check_kept(url)
    _make_folder(url)
    shown = without_password(url)
    retry = retry_callback(RETRIES)
    # From the first refusal on: the attempt before it may take long, as it loads what it needs.
    deadline: float | None = None
    while True:
        try:
            return _Storage(
                url,
                heartbeat_interval=HEARTBEAT_SECONDS,
                grace_period=GRACE_SECONDS,
                heartbeat_stale_trial_callback=retry,
                engine_kwargs=_engine_options(url),
            )
        except ImportError as error:
            install = f"for PostgreSQL: pip install 'virl_tf[postgres]'. {ALLOWED}"
            raise InputError(
                f"--storage {shown}: its driver is not installed ({error}); {install}"
            ) from error
        except (
            SQLAlchemyError,
            RuntimeError,
            ValueError,
            AssertionError,
            optuna.exceptions.StorageInternalError,
        ) as error:
            # Commands that begin at once on a new database get in each other's way.
            refused = isinstance(error, (SQLAlchemyError, ValueError))
            contended = not refused or isinstance(error, (IntegrityError, ProgrammingError))
            deadline = deadline or time.monotonic() + OPENING_SECONDS
            if time.monotonic() > deadline or not (contended or "already exists" in str(error)):
                reason = f"{reason_of(error).rstrip('.')}. {ALLOWED}"
                raise InputError(f"--storage {shown} cannot be used: {reason}") from error
            time.sleep(0.2)


def retry_callback(most: int | None) -> Callable[[optuna.Study, FrozenTrial], None]:
    """Enqueues a lost trial again, at most so often."""
    enqueue = RetryHeartbeatStaleTrialCallback(most, inherit_intermediate_values=True)

    def retry(study: optuna.Study, trial: FrozenTrial) -> None:
        trial.user_attrs.pop("reason", None)  # it is the lost trial's, not the next one's
        enqueue(study, trial)

    return retry


def _check_kept(url: str) -> None:
    """Raises InputError for a database in memory."""
    if url in ("sqlite://", "sqlite:///", "sqlite:///:memory:"):
        raise InputError(f"--storage {url} is in memory, where no worker sees it. {ALLOWED}")


def _make_folder(url: str) -> None:
    """Of a SQLite file; InputError if there can be none."""
    # A URI with options names an existing file.
    if not url.startswith("sqlite:///") or url.startswith("sqlite:///file:"):
        return
    try:
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--storage {url}: {error.strerror or error}.") from error


def _engine_options(url: str) -> dict[str, Any]:
    """Of SQLAlchemy."""
    from sqlalchemy.pool import NullPool

    if url.startswith("sqlite"):
        return {"connect_args": {"timeout": 60}}  # two workers on one file wait for each other
    # A connection each time: a server has few of them (PostgreSQL 100) and a study many workers,
    # idle for seconds on end; and none is left over that a server's restart broke.
    options: dict[str, Any] = {"poolclass": NullPool}
    if url.startswith("postgresql"):
        options["connect_args"] = {"connect_timeout": CONNECT_SECONDS}
    return options


def reason_of(error: BaseException) -> str:
    """The first line of what went wrong; Optuna's own error has the database's as its cause."""
    while error.__cause__ is not None and isinstance(error, optuna.exceptions.StorageInternalError):
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]
