"""The paper's figures, redrawn from result files alone."""

import importlib
from pathlib import Path

from virl_tf.validation import InputError, check_choice

# Number -> how many folders of results it takes; 0: one or more.
FIGURES = {"1": 1, "2a": 1, "2b": 0, "3": 2, "4": 0, "5": 0, "6": 1, "7": 1}
FIGURES |= {"robot": 1, "ablations": 0}


def draw(number: str, runs: list[Path], inference: Path | None, out: Path) -> None:
    """Draw one figure into the folder `out` as PNG and PDF.

    Args:
        inference: where Figure 5 finds the inference policy, if not in the first run's folder.

    Raises:
        InputError: unknown figure, too many or too few folders of results, `inference` for another
            figure, or result files it needs are missing (the message names the command that makes
            them).
    """
    taken = FIGURES[check_choice("figure", number, FIGURES)]
    if taken and len(runs) != taken:
        folders = "folders" if taken > 1 else "folder"
        raise InputError(f"figure {number} takes {taken} {folders} of results, got {len(runs)}.")
    if inference is not None and number != "5":
        raise InputError("--inference is for figure 5.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot use {out} as the output folder: {reason}.") from error
    # Imported here: matplotlib takes a second.
    module = importlib.import_module(f"experiments.figures.figure_{number}")
    draw_figure = getattr(module, f"draw_figure_{number}")
    if number == "5":
        draw_figure(runs, inference, out)
    else:
        draw_figure(*(runs if taken == 1 else [runs]), out)
