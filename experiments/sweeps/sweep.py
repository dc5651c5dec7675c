"""A sweep: units, each done once in a folder of its own, on one machine or many through Dask.

Nothing here keeps a queue. Dask's scheduler hands out the units, and gives those of a worker that
died to another; a unit's folder knows how far it came, so it goes on from its last checkpoint
wherever it runs next. At its end it leaves a record, and a unit with a record is finished: the
sweep goes on wherever its records are.
"""

import asyncio
import contextlib
import importlib
import logging
import os
import re
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from virl_tf.persistence.configuration import differences, numerics, versions
from virl_tf.persistence.files import plain, write_text
from virl_tf.validation import InputError, check_integer, shortened

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from experiments.pooled_results import numerics_in, other_than_now
from experiments.records import FOLDER, SUFFIX, Record, find_records, read_record, write_record
from experiments.sweeps.units import Unit
from experiments.tasks import modules_elsewhere

# One TensorFlow thread per worker process, so that as many workers as cores do not get in each
# other's way.
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
ERRORS = "errors.txt"  # of a sweep's output: tracebacks of what failed last
RUNS = "runs"  # of a sweep's output: the folders of its runs, which nothing needs after the records
POLL_SECONDS = 1.0
ANSWER_SECONDS = 10.0  # until a scheduler counts as one that does not answer
ALLOWED_WORKER_DEATHS = 5  # of one unit, before it counts as failed
NO_WORKER = "the scheduler has no worker yet: waiting for the first"
LOST = (
    "the Dask scheduler does not answer any more. Nothing that was finished is lost: the same "
    "command continues."
)
DASK = {
    "distributed.scheduler.allowed-failures": ALLOWED_WORKER_DEATHS,
    "distributed.worker.daemon": False,
    # A local worker that died and is not back by then is given up; without the last all would hang.
    "distributed.deploy.lost-worker-timeout": "1 h",
    "logging.distributed": "error",
    # Dask looks at itself up to a hundred times a second; all cores are the units'.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.worker.memory.monitor-interval": "1s",
}


def submit(client: Any, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Have a worker call `function`, which finds the tasks there that this process knows."""
    return client.submit(_with_tasks, modules_elsewhere(), function, *arguments, **options)


def _with_tasks(modules: Sequence[str], function: Callable[..., Any], *arguments: Any) -> Any:
    for name in ("distributed.worker", "distributed.worker.state_machine"):
        logging.getLogger(name).addFilter(_is_news)
    for name in modules:
        importlib.import_module(name)
    return function(*arguments)


def _is_news(record: logging.LogRecord) -> bool:
    """Not of the task that a worker drops as Ctrl-C closes it, nor of the heartbeat under way while
    its scheduler ends; of one that is lost the client tells.
    """
    old = ("ended with CancelledError", "Failed to communicate with scheduler during heartbeat")
    return not any(text in record.getMessage() for text in old)


def execute_unit(unit: Unit, out: Path, asked_with: Mapping[str, str] | None = None) -> str | None:
    """Do one unit in a worker; an error is returned as text, so that it stops nothing else.

    Dask asks for it again when the worker that holds the result dies, so a finished unit is not
    done twice.

    `asked_with`: the versions of who asks; None: this process does.
    """
    try:
        if not is_finished(unit, out):
            _check_same_versions(unit, asked_with or {})
            leave_if_full()
            folder = out / RUNS / unit.name
            _check_begun(unit, folder)
            unit.execute(folder)
            write_record(folder, record_file(unit, out))
    except Exception:  # whatever a run dies of is the report's business
        return traceback.format_exc()
    return None


def _check_same_versions(unit: Unit, asked_with: Mapping[str, str]) -> None:
    """Raises InputError in a worker whose record who asks for it would refuse."""
    preset = unit.stages["."].get("preset")
    texts = other_than_now(numerics(asked_with, preset), preset)
    if texts:
        raise InputError(
            f"the worker has other versions ({shortened(texts)}: there of the command, now of the "
            "worker); give both the same."
        )


def _check_begun(unit: Unit, folder: Path) -> None:
    """Raises InputError for what was begun with other versions: the record would name them alone,
    though the rest were made with those of now.
    """
    preset = unit.stages["."].get("preset")
    for file in sorted(folder.rglob("config.yaml")):
        texts = other_than_now(numerics_in(file.parent, preset), preset)
        if texts:
            raise InputError(
                f"{folder} was begun with other versions ({shortened(texts)}); remove it, and it "
                "is made anew."
            )


def record_file(unit: Unit, out: Path) -> Path:
    """Where its record goes."""
    return out / FOLDER / f"{unit.name}{SUFFIX}"


def is_finished(unit: Unit, out: Path) -> bool:
    """Whether there is a record with all stages of the unit."""
    file = record_file(unit, out)
    return file.is_file() and set(unit.stages) <= set(read_record(file).stages)


def records_of(units: Sequence[Unit], out: Path) -> dict[str, Record]:
    """The records of the finished ones among the units, by their names.

    Raises:
        InputError: a record in `out` is damaged; or some were made with other versions or another
            configuration, which are listed.
    """
    found = {file: read_record(file) for file in find_records(out / FOLDER)}
    wanted = {record_file(unit, out): unit.stages for unit in units}
    # What units of one kind have in common: hyperparameters depend on no size and seed.
    alike = {
        _kind(file): {".": {key: stages["."][key] for key in stages["."] if key == "hparams"}}
        for file, stages in wanted.items()
    }
    listed = []
    for file, record in found.items():
        stages = wanted.get(file) or alike.get(_kind(file), {})
        texts = [*_other_versions(record), *_other_configuration(stages, record)]
        if texts:
            name = file.relative_to(out / FOLDER).as_posix()
            listed.append(f"{name} ({shortened(texts)})")
    if listed:
        raise InputError(
            f"{len(listed)} of {len(found)} records in {out / FOLDER} are of other versions or of "
            f"another configuration: {shortened(listed, 5)}. Go on with those, give another --out, "
            f"or delete these records and their folders in {out / RUNS} to make them again."
        )
    files = {unit.name: record_file(unit, out) for unit in units}
    return {
        name: found[file]
        for name, file in files.items()
        if file in found and set(wanted[file]) <= set(found[file].stages)
    }


def _kind(file: Path) -> Path:
    """Of a record, its name without size and seeds: what units of one sweep have in common."""
    return file.with_name(re.sub(r"-[A-Za-z]\d+", "", file.name))


def _other_versions(record: Record) -> list[str]:
    """Of the packages that numbers depend on."""
    preset = record.stages["."].config.get("preset")
    texts: dict[str, None] = {}
    for stage in record.stages.values():
        texts |= dict.fromkeys(other_than_now(numerics(stage.versions, preset), preset))
    return list(texts)


def _other_configuration(stages: Mapping[str, Mapping[str, Any]], record: Record) -> list[str]:
    """Of the stages that the record has."""
    texts = []
    for name in [name for name in stages if name in record.stages]:
        config = record.stages[name].config
        there = {key: config.get(key) for key in stages[name]}
        texts += differences(there, plain(stages[name]), "" if name == "." else name)
    return texts


def leave_if_full() -> None:
    """End this worker where it could not compile a run's programs; its nanny starts a new one."""
    compiler = sys.modules.get("virl_tf.numerics")  # without it nothing has been compiled
    if compiler is not None and compiler.free_memory_maps() < 8 * compiler.MAPS_OF_A_PROGRAM:
        os._exit(0)


def num_cores() -> int:
    """Those that this process may use; of the machine where the system does not tell (macOS)."""
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own else os.cpu_count() or 1


@dataclass(frozen=True)
class Workers:
    """Who does the units: a running cluster, or local processes, at least one."""

    scheduler: str | None = None
    asked: int | None = None  # local processes; None: one per core

    def __post_init__(self) -> None:
        if self.asked is not None:
            check_integer("--workers", self.asked, 1)

    @classmethod
    def of_units(cls, scheduler: str | None, asked: int | None) -> "Workers":
        """For what hands out units one by one. Raises InputError for a number beside a cluster."""
        found = cls(scheduler, asked)
        if scheduler is not None and asked is not None:
            raise InputError(
                f"--workers {asked} is of local processes, and --scheduler {scheduler} has its "
                "own; give one of them."
            )
        return found

    @property
    def local(self) -> int:
        """The number of local processes."""
        return num_cores() if self.asked is None else self.asked

    @property
    def known(self) -> int | None:
        """The number of processes; None: a cluster has as many as join it."""
        return self.local if self.scheduler is None else None


@contextlib.contextmanager
def cluster(workers: Workers) -> Iterator[Any]:
    """A Dask client: of a running cluster, or of new local processes.

    Raises:
        InputError: Dask is not installed, or nothing answers at that address.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise InputError("sweeps need Dask: pip install 'virl_tf[cluster]'.") from error
    # A worker that TensorFlow keeps from leaving in time is killed, which is no news.
    logging.getLogger("distributed.nanny").setLevel(logging.ERROR)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    with dask.config.set(DASK), contextlib.ExitStack() as stack:
        logger = logging.getLogger("distributed.scheduler")
        stack.callback(logger.setLevel, logger.level)  # last: another sweep may follow
        scheduler = workers.scheduler
        if scheduler is None:
            folder = tempfile.TemporaryDirectory(prefix="virl_tf-xla-", ignore_cleanup_errors=True)
            environment = _worker_environment(stack.enter_context(folder))
            own = dask.config.set({"distributed.nanny.pre-spawn-environ": environment})
            stack.enter_context(own)
            sizes = {"n_workers": workers.local, "threads_per_worker": 1, "processes": True}
            try:
                local = LocalCluster(**sizes, dashboard_address=":0")
            except KeyboardInterrupt:
                _end_in_silence()
                raise
            scheduler = stack.enter_context(local).scheduler_address
        try:
            client = Client(scheduler, timeout=ANSWER_SECONDS, name="virl_tf sweep")
        except (OSError, ValueError, TimeoutError) as error:
            raise InputError(
                f"no Dask scheduler answers at {scheduler!r} (expected tcp://HOST:PORT): {error}"
            ) from error
        stack.enter_context(client)
        # First of all that ends: what is lost with the workers is lost on purpose.
        stack.callback(logger.setLevel, logging.ERROR)
        stack.callback(_end_in_silence)
        yield client


def _end_in_silence() -> None:
    """What is cancelled while processes end is no news either."""
    for name in ("distributed.nanny", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def ask(question: Callable[[], Any]) -> Any:
    """What a client's scheduler answers. Raises InputError if it is lost."""
    try:
        return question()
    except (OSError, AttributeError) as error:  # the latter of a client that has given it up
        raise InputError(LOST) from error


def result_of(future: Any) -> Any:
    """Of what is done. Raises its own error, or InputError if the scheduler is lost: a client then
    cancels everything.
    """
    try:
        return future.result()
    except (Exception, asyncio.CancelledError) as error:
        if future.status == "error":
            raise
        raise InputError(LOST) from error


def _worker_environment(cache: str) -> dict[str, str]:
    """One thread each, and a folder that shares what XLA compiled: 3 s once, then half a second."""
    given = os.environ.get("TF_XLA_FLAGS", "")
    if "persistent_cache_directory" in given:
        return WORKER_ENVIRONMENT
    keep = f"--tf_xla_persistent_cache_directory={cache}"
    flags = f"{given} {keep} --tf_xla_persistent_cache_device_types=CPU"
    return {**WORKER_ENVIRONMENT, "TF_XLA_FLAGS": flags.strip()}


def execute_sweep(
    units: Sequence[Unit], out: Path, workers: Workers, console: Console
) -> dict[str, str]:
    """Do every unit without a record in out/records, each in a folder in out/runs.

    Returns {name: traceback} of those that failed, which stand in out/errors.txt, too. Raises
    InputError as `records_of`, or if the scheduler is lost.
    """
    failures = _execute_open(units, out, workers, console)
    (out / ERRORS).unlink(missing_ok=True)
    if failures:
        texts = [f"{name}\n{error}\n" for name, error in failures.items()]
        write_text(out / ERRORS, "".join(texts))
    return failures


def _execute_open(
    units: Sequence[Unit], out: Path, workers: Workers, console: Console
) -> dict[str, str]:
    failures: dict[str, str] = {}
    records = records_of(units, out)
    done = Counter(unit.group for unit in units if unit.name in records)
    open_units = [unit for unit in units if unit.name not in records]
    if not open_units:
        return failures
    with cluster(workers) as client:
        if not ask(client.nthreads):  # else nothing would tell why nothing happens
            console.out(NO_WORKER)
        futures, asked_with = {}, versions()
        for i, unit in enumerate(open_units):
            # A key of its own for every sweep: a cluster that is shared may remember an earlier
            # failure under the same name.
            key = f"{unit.name}-{uuid.uuid4().hex[:8]}"
            options = {"key": key, "pure": False, "priority": -i}
            given = unit, out.absolute(), asked_with
            futures[submit(client, execute_unit, *given, **options)] = unit
        pending = set(futures)
        with Board(units, done, console) as board:
            while pending:
                _wait(pending)
                for future in [future for future in pending if future.done()]:
                    pending.remove(future)
                    unit = futures[future]
                    # One whose worker died too often has an exception instead of a result.
                    died = future.status == "error"
                    error = str(future.exception()) if died else result_of(future)
                    if error is not None:
                        failures[unit.name] = error
                    board.count(unit, failed=error is not None)
                running = _processing(client)  # asks the scheduler
                board.show_running([futures[f] for f in pending if f.key in running])
    return failures


def _wait(pending: Collection[Any]) -> None:
    """Until one of them is done, for `POLL_SECONDS` at most.

    `distributed.wait` with a timeout leaves a task behind for each of them: of 300 units 4 GB in an
    hour.
    """
    end = time.monotonic() + POLL_SECONDS
    while time.monotonic() < end and not any(future.done() for future in pending):
        time.sleep(0.05)


def _processing(client: Any) -> set[str]:
    return {str(key) for keys in ask(client.processing).values() for key in keys}


class Board(Live):
    """The live table: done, running and failed by group, and a bar with the time that is left."""

    def __init__(self, units: Sequence[Unit], done: Counter, console: Console):
        """For these units, of which `done` were finished before."""
        self._totals = Counter(unit.group for unit in units)
        self._done, self._failed, self._running = Counter(done), Counter[str](), Counter[str]()
        self._before, self._start = sum(done.values()), time.monotonic()
        bar = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*bar, TextColumn("{task.fields[left]}"), console=console)
        self._task = self._progress.add_task("", total=len(units), completed=self._before, left="")
        super().__init__(console=console, refresh_per_second=2)

    def __exit__(self, *_: Any) -> None:
        """Leave its last state on the screen."""
        self._running.clear()
        self.stop()
        if not self.console.is_terminal:
            self.console.line()  # in a file Rich leaves the last line without its end

    def count(self, unit: Unit, failed: bool) -> None:
        """One unit ended."""
        (self._failed if failed else self._done)[unit.group] += 1
        if not self.console.is_terminal:
            self.console.out(f"{'FAILED' if failed else 'done'}  {unit.name}")

    def show_running(self, units: Sequence[Unit]) -> None:
        """These are with a worker now."""
        self._running = Counter(unit.group for unit in units)

    def get_renderable(self) -> Group:
        """What is on the screen now."""
        ended = sum(self._done.values()) + sum(self._failed.values())
        new, elapsed = ended - self._before, time.monotonic() - self._start
        seconds = elapsed / new * (sum(self._totals.values()) - ended) if new else float("nan")
        left = f"about {seconds / 60:.0f} min left" if new else ""
        self._progress.update(self._task, completed=ended, left=left)
        table = Table("group", "done", "running", "failed", "of")
        for group, total in self._totals.items():
            counts = (counter[group] for counter in (self._done, self._running, self._failed))
            table.add_row(group, *(str(count) for count in counts), str(total))
        return Group(table, self._progress)
