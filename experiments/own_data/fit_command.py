"""`python -m experiments fit`: the reward of a user's own demonstrations, and how to use it."""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import virl_tf
from virl_tf import Encoding, fit_encoding, save_encoding
from virl_tf.score import in_words
from virl_tf.summary import reward_in_words
from virl_tf.trajectories.episodes import Episodes
from virl_tf.validation import InputError

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from experiments.evaluation.own_demonstrations import draw_missing
from experiments.evaluation.trajectories import (
    reward_draws,
    some_demonstrations,
    write_trajectories,
)
from experiments.own_data.demonstration_files import Demonstrations
from experiments.own_data.fit_request import FitRequest, Trajectories
from experiments.result_files import read_summary, reading
from experiments.screen import screen, warn


def fit_file(
    request: FitRequest,
    read: Demonstrations | Trajectories,
    out: Path,
    tensorboard: bool,
    progress: bool,
) -> None:
    """Recover the reward of demonstrations into `out`, or what is left of it.

    Args:
        read: what `fit_request.read` found.

    Raises:
        InputError: a file or an argument that cannot be used, or an `out` of something else.
    """
    console = screen()
    if isinstance(read, Demonstrations):
        data, paths = read, None
    else:
        data, paths = encoded(read)
    dimension = f"dimension {len(data.columns) - len(data.contexts)}"
    if data.contexts:
        dimension += f", each in a context of dimension {len(data.contexts)},"
    size = f"{len(data.x)} demonstrations of {dimension} from {request.file.path}"
    console.out(f"{size}; run folder {out}")
    finished = (out / "summary.json").is_file()
    if not finished:
        console.out("half a minute for hundreds of rows, minutes for many thousands")
    if paths is not None:
        print_encoding(*paths, console)
    result = fit_rows(request, *data.parts(), data.groups, out, progress, tensorboard)
    if finished:
        console.out("finished before; nothing is fitted again")
    if paths is not None:
        _write_trajectories(out, result, *paths)
    draw_missing(out, result)
    with reading(out / "summary.json"):
        print_summary(result.summary, console, of_codes=paths is not None)
    _print_files(out, console)


def fit_rows(
    request: FitRequest,
    x: Any,
    contexts: Any,
    groups: np.ndarray | None,
    folder: Path,
    progress: bool,
    tensorboard: bool = False,
) -> virl_tf.Result:
    """`virl_tf.fit` as it was asked for, whose warnings are for the caller to print: the result has
    them, also that of a finished run.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", virl_tf.FitWarning)
        return virl_tf.fit(
            x,
            request.method,
            request.components,
            contexts=contexts,
            held_out=request.held_out,
            groups=groups,
            periodic=request.periodic,
            support=request.support,
            dither=request.dither,
            seed=request.seed,
            hparams=request.hparams,
            directory=folder,
            progress=progress,
            tensorboard=tensorboard,
        )


def encoded(paths: Trajectories) -> tuple[Demonstrations, tuple[Episodes, Encoding]]:
    """Contexts and codes of trajectories as rows, and what they are codes of."""
    episodes, contexts, how = paths
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always")
        encoding = fit_encoding(episodes, how.encoding, how.encoding_size, **how.options)
        codes = encoding.encode(episodes)
    for doubt in doubts:
        warn(str(doubt.message))
    names = [str(name) for name in contexts]
    taken = sorted(set(names) & set(encoding.code_columns))
    if taken:
        raise InputError(f"--contexts: {taken[0]!r} is what a column of the codes is called.")
    rows = np.hstack([contexts.to_numpy(), codes])
    data = Demonstrations(rows, [*names, *encoding.code_columns], contexts=names)
    return data, (episodes, encoding)


def print_encoding(episodes: Episodes, encoding: Encoding, console: Console) -> None:
    """What the codes are, and what they lose."""
    low, high = episodes.lengths.min(), episodes.lengths.max()
    samples = f"{low} to {high}" if high > low else low
    console.out(f"trajectories of {samples} samples; {encoding!r}")
    console.out(repr(encoding.reconstruction(episodes)))


def _write_trajectories(
    out: Path, result: virl_tf.Result, episodes: Episodes, encoding: Encoding
) -> None:
    """encoding.npz, trajectories.npz and the pictures of paths, unless they are there.

    With contexts the paths of some of them are in situations.npz.
    """
    from experiments.figures.trajectories import draw_trajectories

    keep_encoding(out, encoding)
    if result.reward.num_contexts:
        return
    if not (out / "trajectories.npz").is_file():
        drawn = reward_draws(result.reward, result.policy)
        shown = some_demonstrations(episodes, encoding)
        write_trajectories(out, encoding, result.reward, result.policy, drawn, shown)
    if not (out / "along.png").is_file():
        draw_trajectories(out)


def keep_encoding(out: Path, encoding: Encoding) -> None:
    """encoding.npz, unless it is there: the folder is one of these codes, and may be read-only."""
    if not (out / "encoding.npz").is_file():
        save_encoding(out / "encoding.npz", encoding)


def _print_files(out: Path, console: Console) -> None:
    shown = ", ".join(map(str, sorted(out.glob("*.png"))))
    numbers = [out / name for name in ("summary.json", "trajectories.npz", "situations.npz")]
    listed = ", ".join(str(path) for path in numbers if path.is_file())
    console.out(f"\npictures: {shown}; numbers: {listed}")
    console.out("use it from Python:\n")
    console.out(snippet(out))


def print_summary(summary: dict[str, Any], console: Console, of_codes: bool = False) -> None:
    """The data, the defaults found from it, the score and the warnings.

    Args:
        of_codes: demonstrations are codes of trajectories.
    """
    console.print(_data_table(summary))
    for column in summary["columns"]:
        if "turn" in column:
            low, high = (f"{side:g}" for side in column["turn"])
            where = f"{column['name']} is cut at {low}: its values are in [{low}, {high})"
            console.out(where)
    if summary["components_scores"]:
        scores = ", ".join(f"{k}: {score:.3f}" for k, score in summary["components_scores"].items())
        chosen = f"components {summary['components']}, {summary['components_reason']}"
        console.out(f"{chosen} (mean log-likelihood {scores})")
    console.out(_last_iteration(summary))
    if said := reward_in_words(summary):
        console.out(said)
        if found := summary.get("mixture"):  # fits before 1.0.8 do not say
            console.out(_mixture(**found))
    console.out(in_words(summary))
    warn_of_fit(summary["warnings"], of_codes)


def warn_of_fit(texts: Sequence[str], of_codes: bool) -> None:
    """A fit's warnings; of codes without the option that leaves out columns of the file."""
    for text in texts:
        warn(without_option(text) if of_codes else text)
    if of_codes and any("--exclude" in text for text in texts):
        warn("these columns are codes: --encoding and --encoding-size make others.")


def without_option(text: str) -> str:
    """A warning of columns that are not the file's, which --exclude does not know."""
    return re.sub(r" \(--exclude .*\)", "", text)


def _mixture(components: int, means: int, background: float) -> str:
    """What EM found, in words."""
    said = f"{components} Gaussians"
    if means < components:
        said += f" at {means} means"
    if background:
        said += f", {background:.0%} of them wider than all: some demonstrations are like no other"
    return f"EM mixture: {said}"


def _data_table(summary: dict[str, Any]) -> Table:
    titles = ("column", "mean", "standard deviation", "KDE bandwidth")
    table = Table(*(Column(title, overflow="fold") for title in titles), title="demonstrations")
    widths = summary["bandwidth"] or ["-"] * len(summary["columns"])
    for column, width in zip(summary["columns"], widths, strict=True):
        numbers = (column["mean"], column["standard_deviation"], width)
        shown = (f"{value:.4g}" if isinstance(value, float) else value for value in numbers)
        table.add_row(column["name"], *shown)
    return table


def _last_iteration(summary: dict[str, Any]) -> str:
    """How the last discriminator did, and the importance weights."""
    loss, best = summary["validation_loss"], summary["chance_loss"]
    useless = " (the last discriminator found nothing more)" if loss >= best else ""
    losses = f"held-out loss {loss:.4f}, of the best constant {best:.4f}{useless}"
    size = summary["effective_sample_size"]
    weights = f"effective sample size {size['final']:.0f} of {size['of']}"
    return f"last iteration: {losses}, {weights}"


def snippet(out: Path) -> str:
    """A few lines of Python that load the result and use it."""
    lines = [
        "import virl_tf",
        f"result = virl_tf.load({str(out)!r})  # reward.keras, policy.npz and the history",
    ]
    policy, reward = "result.policy", "result.reward"
    summary = read_summary(out)
    if number := summary["demonstrations"].get("contexts"):
        usual = ", ".join(f"{column['mean']:.4g}" for column in summary["columns"][:number])
        lines.append(f"c = [{usual}]  # a context")
        policy, reward = f"{policy}.condition(c)", f"{reward}.condition(c)"
    if (out / "encoding.npz").is_file():
        lines.append(f"encoding = virl_tf.load_encoding({str(out / 'encoding.npz')!r})")
        lines.append(f"print(encoding.decode({policy}.sample(3)).shape)  # paths [3, T, D]")
    else:
        lines.append(f"x = {policy}.distribution.sample(3)")
        lines.append(f"print({reward}(x))  # log density, up to a constant")
    return "\n".join(lines)
