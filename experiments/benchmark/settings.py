"""What `python -m experiments benchmark` may be asked for."""

import importlib.util
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from virl_tf.persistence.configuration import differences, versions
from virl_tf.persistence.files import plain, read_json
from virl_tf.validation import InputError, check_choice, check_integer, check_positive

from experiments.benchmark import PARTS

TARGETS = (  # of `vips`, which makes them: names are checked without TensorFlow
    *("walker d = 5, K = 10", "walker d = 5, K = 25", "walker d = 5, K = 40"),
    *("walker d = 7, K = 64", "mixture of 30, K = 10", "mixture of 30, K = 30"),
    "planar robot, K = 40",
)
FILE = "benchmark.json"
PRESETS = ("paper", "smoke")  # of `run` and `memory`


class Settings(NamedTuple):
    """How much is measured.

    Attributes:
        repeats: of each candidate.
        seeds: of `vips` and `few`.
        only: of `vips`, the targets with this in their names.
        preset: of `run` and `memory`.
        peers, peer_seconds: see `vips.fits` and `few_evaluations`.
    """

    repeats: int = 5
    seeds: int = 5
    preset: str = "paper"
    peers: bool = False
    peer_seconds: float | None = None
    only: str = ""

    def check(self, names: Sequence[str], out: Path) -> None:
        """Raises InputError for an unknown part, preset or target, a number out of range, no peers,
        or a folder `out` with measurements of another command.
        """
        for name in names:
            check_choice("part", name, PARTS)
        check_integer("--repeats", self.repeats, 1)
        check_integer("--seeds", self.seeds, 1)
        check_choice("--preset", self.preset, PRESETS)
        if not any(self.only in target for target in TARGETS):
            raise InputError(f"--only {self.only!r} is in no target of: {'; '.join(TARGETS)}.")
        if self.peer_seconds is not None:
            check_positive("--peer-seconds", self.peer_seconds)
        if self.only and names and "vips" not in names:
            raise InputError("--only is for the targets of vips.")
        compares = not names or {"vips", "few", "peers"} & set(names)
        if not compares and (self.peers or self.peer_seconds is not None):
            raise InputError("--peers and --peer-seconds are for vips and few.")
        if self.peers or "peers" in names:
            check_gmmvi()
        self.measured(names, out)

    def measured(self, names: Sequence[str], out: Path) -> dict[str, Any]:
        """What the same command has measured in `out`; {} where nothing is there.

        Raises:
            InputError: measurements of another one. One machine, ceiling and settings stand above
                all rows: others cannot stay beside them, and some take hours.
        """
        if not (out / FILE).exists():
            return {}
        found, now = read_json(out / FILE), self.identity(names)
        if unlike := differences({key: found.get(key) for key in now}, now):
            text = f"{out / FILE} has measurements of another command ({unlike[0]:.160})"
            raise InputError(f"{text}; move it away or give another --out.")
        return found

    def identity(self, names: Sequence[str]) -> dict[str, Any]:
        """What tells a command from others, and its machine."""
        threads = os.environ.get("TF_NUM_INTRAOP_THREADS", "as many as cores")
        about = {"machine": machine(), "threads": threads, "versions": versions()}
        found: dict[str, Any] = plain({**about, "asked": {"parts": names, **self._asdict()}})
        return found

    def to_dict(self, best: float) -> dict[str, Any]:
        """As written beside the rows; `best`: the ceiling."""
        from experiments.benchmark.few_evaluations import SECONDS
        from experiments.benchmark.vips import TIMES_OURS

        stored: dict[str, Any] = {"ceiling": best, "repeats": self.repeats, "seeds": self.seeds}
        stored["preset"] = self.preset
        if self.peers:
            stored["peer_seconds"] = (
                self.peer_seconds or f"{TIMES_OURS:.0f} times ours; few: {SECONDS:.0f}"
            )
        return stored


def machine() -> str:
    """Processor and cores."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor()}, {len(names)} cores"


def check_gmmvi() -> None:
    """Raise InputError unless gmmvi is installed."""
    if importlib.util.find_spec("gmmvi") is None:
        install = "pip install 'virl_tf[bench]'"
        raise InputError(f"the peers need gmmvi, which is not installed: {install}.")
