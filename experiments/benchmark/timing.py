"""Paired measurements: all candidates in turn, several times, in CPU and wall seconds."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from virl_tf.numerics import NETWORK

import numpy as np
import tensorflow as tf

Row = dict[str, Any]


def compare(
    candidates: Mapping[str, Callable[[], Any]], repeats: int = 5
) -> dict[str, dict[str, float]]:
    """Median, lowest and highest CPU seconds, median wall seconds; without the first call.

    Interleaved, so that what else the machine does meets all of them.
    """
    cpu: dict[str, list[float]] = {name: [] for name in candidates}
    wall: dict[str, list[float]] = {name: [] for name in candidates}
    for i in range(repeats + 1):
        for name, run in candidates.items():
            start_cpu, start_wall = time.process_time(), time.perf_counter()
            run()
            if i:
                cpu[name].append(time.process_time() - start_cpu)
                wall[name].append(time.perf_counter() - start_wall)
    return {
        name: {
            "cpu_seconds": float(np.median(cpu[name])),
            "cpu_lowest": min(cpu[name]),
            "cpu_highest": max(cpu[name]),
            "wall_seconds": float(np.median(wall[name])),
        }
        for name in candidates
    }


def rows_of(
    part: str,
    case: str,
    measured: Mapping[str, Mapping[str, float]],
    units: int = 1,
    gflop: float | None = None,
) -> list[Row]:
    """A row per candidate, per unit of work (a step, a call).

    `gflop`: counted operations of one unit.
    """
    rows = []
    for name, values in measured.items():
        row: Row = {"part": part, "case": case, "who": name}
        row |= {key: value / units for key, value in values.items()}
        if gflop is not None:
            row["gflop"] = gflop
            row["gflop_per_cpu_second"] = gflop / row["cpu_seconds"]
        rows.append(row)
    return rows


def ceiling() -> float:
    """GFLOP per CPU second that this machine can give.

    Of float32 matrix products of a training batch with a layer.
    """
    rows, size = 500, 256
    steps, weights = 400, tf.random.normal([size, size], dtype=NETWORK) * 0.05

    @tf.function
    def products(x: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(steps):
            x = tf.matmul(x, weights)
        return x

    x = tf.random.normal([rows, size], dtype=NETWORK)
    measured = compare({"matmul": lambda: products(x).numpy()})["matmul"]
    return steps * 2 * rows * size**2 / measured["cpu_seconds"] / 1e9


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of log seconds against log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def forward_gflop(layers: int, size: int, dim: int, rows: int) -> float:
    """Of the matrix products of a network with `layers` hidden layers at `rows` points."""
    return 2 * rows * (dim * size + (layers - 1) * size**2 + size) / 1e9


def training_gflop(layers: int, size: int, dim: int, rows: int) -> float:
    """Of one training step: forward, and twice that backward; the input needs no gradient."""
    return 3 * forward_gflop(layers, size, dim, rows) - 2 * rows * dim * size / 1e9


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of a module returns in a new Python process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
