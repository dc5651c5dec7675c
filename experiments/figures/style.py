"""What all figures share: heat maps of log densities, ellipses, demonstrations, files."""

import io
import textwrap
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from virl_tf.mixture import Mixture
from virl_tf.persistence.files import load_arrays, write_atomically
from virl_tf.validation import InputError

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from PIL import Image

from experiments.screen import counted, screen

Look = dict[str, Any]  # keyword arguments of a drawing
LABELS = {"virl": "V-IRL", "geim": "G-EIM", "eim": "EIM"}  # of the paper's methods
COLOURS = {"virl": "C0", "geim": "C1", "eim": "C2"}
# Nats below the maximum that a heat map shows; everything lower has the darkest colour.
DEPTH = 12.0
CROSSES = 500  # demonstrations, as in the paper's figures
MOVING_DPI, FRAME_MS = 80, 200  # of a moving picture
# sqrt of the 95 % quantile of chi-square with 2 degrees of freedom: -2 log 0.05.
RADIUS_95 = float(np.sqrt(-2.0 * np.log(0.05)))
SMALL = 0.055  # inches of a letter of what stands below a figure
LETTER = 0.075  # ... above it, or at an axis

plt.rcParams.update({"font.size": 9, "axes.titlesize": 9, "image.cmap": "viridis"})
plt.rcParams.update({"figure.dpi": 100, "savefig.dpi": 150})


def read(run: Path, name: str) -> dict[str, np.ndarray]:
    """Arrays of one result file of a run. Raises InputError if the run or the file is not there."""
    path = run / name
    if not path.is_file():
        finished = "the folder of a finished run (python -m experiments run ...)"
        raise InputError(f"{run} has no {name}; give {finished}.")
    return load_arrays(path)


def highest(log_density: np.ndarray) -> float:
    """Finite, also where none is, as of a support that is true nowhere."""
    return log_density.max(initial=np.finfo(log_density.dtype).min)


def heat_map(
    axes: Axes, grid_axes: np.ndarray, log_density: np.ndarray, *, contours: bool = False
) -> Any:
    """A log density [R * R] on the grid [2, R], as nats below its maximum.

    `contours`: with a line every 2 nats.
    """
    resolution = grid_axes.shape[1]
    values = np.maximum(log_density - highest(log_density), -DEPTH)
    values = values.reshape(resolution, resolution).T
    span: Look = {"vmin": -DEPTH, "vmax": 0.0}
    image = axes.pcolormesh(*grid_axes, values, shading="gouraud", rasterized=True, **span)
    if contours:
        look: Look = {"colors": "white", "linewidths": 0.5, "linestyles": "solid", "alpha": 0.6}
        axes.contour(*grid_axes, values, levels=np.arange(2.0 - DEPTH, 0.0, 2.0), **look)
    axes.set_xlim(grid_axes[0, 0], grid_axes[0, -1])
    axes.set_ylim(grid_axes[1, 0], grid_axes[1, -1])
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    return image


def ellipses(axes: Axes, mixture: Mixture | None, colour: str = "black") -> None:
    """The 95 % ellipse of every component; of no mixture none."""
    if mixture is None:
        return
    scale_trils = np.asarray(mixture.scale_trils)
    variances, vectors = np.linalg.eigh(scale_trils @ scale_trils.swapaxes(1, 2))
    diameters = 2.0 * RADIUS_95 * np.sqrt(variances)
    angles = np.degrees(np.arctan2(vectors[:, 1, 0], vectors[:, 0, 0]))
    places: Look = {"offsets": np.asarray(mixture.means), "offset_transform": axes.transData}
    look: Look = {"facecolors": "none", "edgecolors": colour, "linewidths": 0.8}
    widths, heights = diameters.T
    found = EllipseCollection(widths, heights, angles, units="xy", **places, **look)
    axes.add_collection(found)


def crosses(axes: Axes, x: np.ndarray) -> None:
    """Some randomly chosen demonstrations as grey crosses."""
    chosen = np.random.default_rng(0).choice(len(x), min(CROSSES, len(x)), replace=False)
    look: Look = {"linewidths": 0.6, "color": "0.75", "alpha": 0.8}
    axes.scatter(x[chosen, 0], x[chosen, 1], marker="x", s=9, **look)


def open_frame(axes: Axes) -> None:
    """Without the lines above and on the right."""
    axes.spines[["top", "right"]].set_visible(False)


def shown(text: str, inches: float) -> str:
    """Text with a user's own names, as it is and in lines so long: no dollar begins a formula."""
    lines = (textwrap.fill(line, int(inches / LETTER)) for line in text.split("\n"))
    return "\n".join(lines).replace("$", r"\$")


def not_drawn(number: int) -> str:
    """'2 more columns are not shown'; "" of none."""
    is_one = "is" if number == 1 else "are"
    return f"{counted(number, 'more column')} {is_one} not shown" if number > 0 else ""


def explain(figure: Figure, title: str, key: str = "") -> None:
    """What a figure shows, above it; below, in small letters, how to read it."""
    figure.suptitle(title, fontsize=10)
    lines = textwrap.fill(key, int(figure.get_figwidth() / SMALL))
    figure.supxlabel(lines, fontsize=7, color="0.3")


def log_ticks(axis: Axis, values: Any, subs: Sequence[float], numticks: int | None = None) -> None:
    """Plain numbers: of values over a decade or so at `subs` of its multiples, else at its powers.

    The default labels every multiple of a power of ten: too many for about one decade, and right
    for less than half of one, unless `numticks` says that there is little room.
    """
    span = max(values) / min(values)
    if span < 3.0 and numticks is None:
        subs = tuple(np.arange(1.0, 10.0))
    axis.set_major_locator(LogLocator(subs=subs if span < 30.0 else (1.0,), numticks=numticks))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def task_mixture(run: Path) -> Mixture | None:
    """The target of a run; None: it is no mixture."""
    if not (run / "task.npz").is_file():
        return None
    arrays = read(run, "task.npz")
    return Mixture(*(arrays[name] for name in Mixture._fields))


def save(figure: Figure, path: Path) -> None:
    """Write `path`.pdf and .png, atomically and without dates: same results, same files.

    The picture that is looked for, whether all is there, comes last.
    """
    undated: dict[str, dict[str, Any]] = {
        "pdf": {"CreationDate": None, "Producer": None},
        "png": {"Software": None},
    }
    for kind, metadata in undated.items():
        write = partial(figure.savefig, format=kind, metadata=metadata)
        write_atomically(path.with_suffix(f".{kind}"), write)
    plt.close(figure)
    screen().out(f"wrote {path}.png and .pdf")


def save_moving(frames: Iterable[Figure], path: Path) -> None:
    """Write `path`.gif, likewise: the figures there and back, and close them."""
    images = []
    for figure in frames:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=MOVING_DPI)
        plt.close(figure)
        images.append(Image.open(buffer).convert("P", palette=Image.Palette.ADAPTIVE, colors=64))
    first, *others = [*images, *images[-2:0:-1]]
    look: Look = {"save_all": True, "append_images": others, "duration": FRAME_MS, "loop": 0}
    write_atomically(path.with_suffix(".gif"), partial(first.save, format="GIF", **look))
    screen().out(f"wrote {path}.gif")
