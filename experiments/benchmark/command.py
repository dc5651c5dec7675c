"""`python -m experiments benchmark`: measure, and write benchmark.json and a table."""

import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from virl_tf.persistence.files import write_json, write_text

import numpy as np
import pandas as pd
from rich.console import Console

from experiments.benchmark import PARTS, whole_run
from experiments.benchmark import parts as part_functions
from experiments.benchmark.few_evaluations import few_evaluations
from experiments.benchmark.settings import FILE, Settings
from experiments.benchmark.timing import Row, ceiling
from experiments.benchmark.vips import steps_beside_gmmvi, vips
from experiments.result_files import to_markdown
from experiments.screen import screen

TIMED: dict[str, Callable[[int], list[Row]]] = {
    "training": part_functions.training,
    "reward": part_functions.reward,
    "steps": part_functions.policy_steps,
    "kde": part_functions.kde,
    "sampling": part_functions.slice_sampling,
    "growth": part_functions.growth,
}
COLUMNS = {
    "part": "part",
    "case": "case",
    "who": "who",
    "cpu_seconds": "CPU s",
    "cpu_after_tracing": "CPU s after tracing",
    "wall_seconds": "wall s",
    "gflop_per_cpu_second": "GFLOP per CPU s",
    "share_of_ceiling": "of the ceiling",
    "times_ours": "times ours",
    "exponent": "exponent",
    "evaluations": "evaluations",
    "kl": "KL",
    "modes": "modes",
    "stopped": "stopped by the clock",
    "i_projection": "I-projection",
    "least_seconds": "counted products at the ceiling, s",
    "peak_gib": "peak GiB",
}


def benchmark(names: Sequence[str], settings: Settings, out: Path) -> None:
    """Measure the named parts, one after the other; without names all, `peers` if asked for.

    Parts that the same command has finished in `out` stay as they are.

    Raises:
        InputError: an unknown part or preset, numbers out of range, peers that are not installed,
            or measurements of another command in `out`.
    """
    console = screen()
    settings.check(names, out)
    every = [name for name in PARTS if name != "peers" or settings.peers]
    before = settings.measured(names, out)
    finished: dict[str, int] = before.get("finished", {})  # {part: rows, up to its last one}
    rows: list[Row] = before.get("rows", [])[: max(finished.values(), default=0)]
    left = [name for name in dict.fromkeys(names or every) if name not in finished]
    if finished:
        console.out(f"{out}: measured before: {', '.join(finished)}")
    if left:
        best = before.get("ceiling") or ceiling()
        products = "float32 products of 500 x 256 with 256 x 256"
        console.out(f"ceiling: {best:.0f} GFLOP per CPU second ({products})")
        about = {**settings.identity(names), **settings.to_dict(best)}
        about["peak_memory_gib"] = before.get("peak_memory_gib", 0.0)
        _measure_all(left, settings, out, about, rows, finished)
    console.out(f"{out / FILE}, {out / 'benchmark.md'}")


def _measure_all(
    left: Sequence[str],
    settings: Settings,
    out: Path,
    about: dict[str, Any],
    rows: list[Row],
    finished: Mapping[str, int],
) -> None:
    """Measure what is `left`, and write after each row: a later one may fail, and policies with
    peers take hours.
    """
    console = screen()
    for name in left:
        with console.status(f"measuring {name}"):
            for row in measure(name, settings, out):
                if "gflop_per_cpu_second" in row:
                    row["share_of_ceiling"] = row["gflop_per_cpu_second"] / about["ceiling"]
                _report(console, row)
                rows.append(row)
                write(rows, out, {**about, "finished": finished})
        finished = {**finished, name: len(rows)}
        write(rows, out, {**about, "finished": finished})


def measure(name: str, settings: Settings, out: Path) -> Iterator[Row]:
    """The rows of one part."""
    repeats, seeds, preset, peers, peer_seconds, only = settings
    if name == "run":
        yield from whole_run.run(preset)
    elif name == "memory":
        yield whole_run.memory(preset)
    elif name == "vips":
        yield from vips(range(seeds), peers, peer_seconds, out, only)
    elif name == "few":
        yield from few_evaluations(range(seeds), peers, peer_seconds)
    else:
        yield from steps_beside_gmmvi() if name == "peers" else TIMED[name](repeats)


def write(rows: list[Row], out: Path, about: Mapping[str, Any]) -> None:
    """benchmark.json and benchmark.md in `out`."""
    _compare_with_ours(rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    most = max(peak, about.get("peak_memory_gib", 0.0))  # of a command that was stopped, too
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / FILE, {**about, "peak_memory_gib": most, "rows": rows})
    write_text(out / "benchmark.md", markdown(rows))


def _compare_with_ours(rows: list[Row]) -> None:
    """Put into every row how many times our CPU seconds it takes."""
    keys = [(row["part"], row["case"], row.get("seed")) for row in rows]
    pairs = list(zip(keys, rows, strict=True))
    timed = [(key, row) for key, row in pairs if "cpu_seconds" in row]
    own = {key: row["cpu_seconds"] for key, row in timed if row["who"] == "virl_tf"}
    for key, row in timed:
        if key in own and row["who"] != "virl_tf":
            row["times_ours"] = row["cpu_seconds"] / own[key]


def _report(console: Console, row: Row) -> None:
    def text(label: str, value: Any) -> str:
        return f"{label} {value:.4g}" if isinstance(value, float) else str(value)

    texts = ", ".join(text(label, row[key]) for key, label in COLUMNS.items() if key in row)
    console.out(f"  {texts}")


def markdown(rows: list[Row]) -> str:
    """The table; policy fits as medians over their seeds."""
    table = pd.DataFrame(rows)
    keys = ["part", "case", "who"]
    numbers = [column for column in COLUMNS if column in table and column not in keys]
    medians = table.groupby(keys, sort=False)[numbers].median().reset_index()

    def shown(value: Any) -> Any:
        if not isinstance(value, float):
            return value
        return "" if np.isnan(value) else f"{value:.4g}"

    return to_markdown(medians.rename(columns=COLUMNS).map(shown))
