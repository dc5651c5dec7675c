"""`python -m experiments thin`: of a run, what the figures are drawn from and no more."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from virl_tf.persistence.files import load_arrays, save_arrays
from virl_tf.validation import InputError

import numpy as np
from rich.console import Console

COPIED = ("config.yaml", "summary.json", "task.npz", "walks.npz")
KEPT_ROWS = 1000  # of the training demonstrations


def thin(run: Path, out: Path) -> None:
    """Copy a finished run, and the inference in it, without rewards, policies and checkpoints.

    Log densities on grids become float32; of the demonstrations the first 1,000 are kept.

    Raises:
        InputError: `run` is not finished, or `out` cannot be written or is there already.
    """
    if not (run / "summary.json").is_file():
        raise InputError(f"{run} is not the folder of a finished run: it has no summary.json.")
    if out.exists():
        raise InputError(f"{out} is there already; give another folder.")
    folders = [run, *sorted(file.parent for file in run.glob("*/summary.json"))]
    try:
        for folder in folders:
            _thin_folder(folder, out / folder.relative_to(run))
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror or error}.") from error
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    Console().print(f"wrote {out} ({size / 1e3:.0f} KB)", highlight=False, soft_wrap=True)


def _thin_folder(folder: Path, out: Path) -> None:
    out.mkdir(parents=True)
    for name in COPIED:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)
    if (folder / "demonstrations.npz").is_file():
        train = load_arrays(folder / "demonstrations.npz")["train"]
        save_arrays(out / "demonstrations.npz", {"train": train[:KEPT_ROWS]})
    if (folder / "grid.npz").is_file():
        save_arrays(out / "grid.npz", _single(load_arrays(folder / "grid.npz")))


def _single(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As float32."""
    return {name: array.astype(np.float32) for name, array in arrays.items()}
