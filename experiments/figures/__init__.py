"""The paper's figures, redrawn from result files alone."""

from pathlib import Path

from virl_tf.validation import InputError, check_choice

FIGURES = ("2a", "2b", "4", "5")


def draw(number: str, runs: list[Path], inference: Path | None, out: Path) -> None:
    """Draw one figure into the folder `out` as PNG and PDF.

    Raises:
        InputError: unknown figure, or result files it needs are missing (the message names the command that makes them).
    """
    check_choice("figure", number, FIGURES)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot use {out} as the output folder: {error.strerror or error}.") from error
    if number == "2a":
        from experiments.figures.figure_2a import draw_figure_2a

        draw_figure_2a(runs[0], out)
    elif number == "2b":
        from experiments.figures.figure_2b import draw_figure_2b

        draw_figure_2b(runs[0], out)
    elif number == "4":
        from experiments.figures.figure_4 import draw_figure_4

        draw_figure_4(runs[0], out)
    else:
        from experiments.figures.figure_5 import draw_figure_5

        draw_figure_5(runs, inference, out)
