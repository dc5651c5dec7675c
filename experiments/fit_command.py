"""`python -m experiments fit`: the reward of a user's own demonstrations, and how to use it."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import virl_tf
from virl_tf import metrics
from virl_tf.fit import Result, resolve_hparams
from virl_tf.fusion import Fusion
from virl_tf.hparams import Hparams
from virl_tf.kde import Kde
from virl_tf.methods import METHODS
from virl_tf.mixture import em_mixture
from virl_tf.numerics import DENSITY, numpy_seed, split_seed
from virl_tf.persistence.files import save_arrays, write_json
from virl_tf.problem import density_estimate
from virl_tf.reward import Reward
from virl_tf.validation import (
    check_choice,
    check_demonstrations,
    check_integer,
    check_seed,
)

import numpy as np
import pandas as pd
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from experiments.demonstration_files import Demonstrations, load_demonstrations
from experiments.early_checks import check_held_out
from experiments.specification import parse_assignment

# Numbers of components that are tried when none is given.
CANDIDATES = (1, 2, 3, 5, 8, 10, 15, 20, 30, 50)
MOST_ROWS = 5000  # that the choice of components looks at
FEWEST_HELD_OUT = 10  # rows, for a score to be worth printing
NORMALISER_DRAWS = 20_000
RESOLUTION = 150  # of the grid in 1-D and 2-D


class FitRequest(NamedTuple):
    """What is fitted to which data.

    Attributes:
        path, array, columns: see `load_demonstrations`.
        components: of the policy; None: chosen by `choose_components`.
        held_out: share of the rows that only the score sees.
        hparams_file, assignments: over the library's defaults, as for `run`.
    """

    path: Path
    array: str | None
    columns: Sequence[str] | None
    method: str
    components: int | None
    seed: int
    held_out: float
    hparams_file: Path | None
    assignments: Sequence[str]


class Choice(NamedTuple):
    """A number of components and why."""

    components: int
    reason: str
    scores: dict[int, float]  # mean log-likelihood of held-out rows under EM, by components


class Split(NamedTuple):
    """The demonstrations, and those that were trained on and held out."""

    data: Demonstrations
    train: np.ndarray
    test: np.ndarray


def fit_file(request: FitRequest, out: Path, tensorboard: bool, progress: bool = True) -> None:
    """Recover the reward of the demonstrations in a file into `out`, or what is left of it.

    Raises:
        InputError: a file or an argument that cannot be used, or an `out` of something else.
    """
    console = Console()
    path, method, seed, held_out = request.path, request.method, request.seed, request.held_out
    check_choice("method", method, METHODS)
    check_seed(seed)
    check_held_out(held_out)
    data = load_demonstrations(path, request.array, request.columns)
    rows = Split(data, *split(data.x, held_out, seed))
    hparams = user_hparams(method, request.hparams_file, request.assignments)
    size = f"{len(data.x)} demonstrations of dimension {len(data.columns)}"
    console.print(f"{size} from {path}", highlight=False)
    chosen = _choice(request.components, rows.train, seed)
    reason = f"{chosen.components} components ({chosen.reason})"
    console.print(f"{reason}; run folder {out}", highlight=False, soft_wrap=True)

    start = time.process_time()
    options: dict[str, Any] = {"seed": seed, "hparams": hparams, "directory": out}
    result = virl_tf.fit(
        rows.train, method, chosen.components, **options, progress=progress, tensorboard=tensorboard
    )
    if not (out / "summary.json").is_file():
        save_arrays(out / "demonstrations.npz", {"train": rows.train, "test": rows.test})
        save_arrays(out / "grid.npz", grid_arrays(result, rows.train))
        summary = {"file": path.name, "method": method, "seed": seed}
        summary |= summarise(rows, result, hparams, chosen, seed)
        summary["cpu_seconds"] = time.process_time() - start
        _draw(out, summary)
        # Last: its presence says that all the rest is there.
        write_json(out / "summary.json", summary)
    print_summary(json.loads((out / "summary.json").read_text(encoding="utf-8")), console)
    _print_files(out, console)


def _choice(components: int | None, train: np.ndarray, seed: int) -> Choice:
    if components is None:
        return choose_components(train, seed)
    return Choice(check_integer("--components", components, 1, len(train)), "given", {})


def _print_files(out: Path, console: Console) -> None:
    shown = ", ".join(str(out / name) for name in pictures(out))
    numbers = out / "summary.json"
    console.print(f"\npictures: {shown}; numbers: {numbers}", highlight=False, soft_wrap=True)
    console.print("use it from Python:\n")
    console.print(snippet(out), highlight=False, markup=False, soft_wrap=True)


def split(x: np.ndarray, held_out: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(train, test): a random share is held out, and none if that would be too few for a score."""
    count = int(held_out * len(x))
    if count < FEWEST_HELD_OUT:
        return x, x[:0]
    rng = np.random.default_rng(numpy_seed(seed, 0, "held-out demonstrations"))
    order = rng.permutation(len(x))
    return check_demonstrations(x[np.sort(order[count:])]), x[np.sort(order[:count])]


def user_hparams(method: str, hparams_file: Path | None, assignments: Sequence[str]) -> Hparams:
    """What `virl_tf.fit` takes by default, the user's file over it, then the single assignments."""
    values = resolve_hparams(hparams_file, METHODS[method])
    for assignment in assignments:
        values = values.override(parse_assignment(assignment), f"--set {assignment}")
    return values


def choose_components(x: np.ndarray, seed: int) -> Choice:
    """The smallest number of components that explains held-out rows as well as the best does.

    "As well": within one standard error of the paired differences of the rows' log-likelihoods. EM
    is quick, and what it needs is a fair size for a policy that is to cover the same modes.
    """
    rng = np.random.default_rng(numpy_seed(seed, 0, "number of components"))
    rows = rng.permutation(len(x))[:MOST_ROWS]
    x = (x[rows] - x.mean(axis=0)) / x.std(axis=0)
    test, train = x[: len(x) // 5], x[len(x) // 5 :]
    # Each component has five rows for each of its means' coordinates and one.
    most = max(1, len(train) // (5 * (x.shape[1] + 1)))
    likelihoods: dict[int, np.ndarray] = {}
    for count in (k for k in CANDIDATES if k <= most and len(test) > 1):
        mixture = em_mixture(train, count, numpy_seed(seed, 0, "EM"))
        likelihoods[count] = mixture.log_prob(tf.constant(test, DENSITY)).numpy()
        means = {k: float(values.mean()) for k, values in likelihoods.items()}
        best = max(means, key=lambda k: means[k])
        if sum(k > best for k in means) >= 2:  # two larger ones were no better
            break
    if not likelihoods:
        return Choice(1, "too few rows to choose more", {})
    differences = {k: likelihoods[best] - values for k, values in likelihoods.items()}
    # At the latest the best itself.
    enough = next(k for k, d in differences.items() if d.mean() <= d.std() / np.sqrt(len(d)))
    tried = ", ".join(map(str, means))
    return Choice(enough, f"chosen by the likelihood of held-out rows under EM, of {tried}", means)


def grid_arrays(result: Result, x: np.ndarray) -> dict[str, Any]:
    """In 1-D and 2-D reward and policy on a grid; else draws of the policy with their rewards."""
    if result.policy.dim > 2:
        draws = result.policy.sample(min(2000, max(500, len(x))), split_seed(0, 0, "picture"))
        return {"policy_samples": draws, "policy_rewards": result.reward(draws)}
    if result.policy.dim == 2:
        grid = metrics.grid_around(x, RESOLUTION)
        axes, points = grid.axes, tf.constant(grid.points, DENSITY)
    else:
        extra = 0.1 * np.ptp(x)
        axes = np.linspace(x.min() - extra, x.max() + extra, 4 * RESOLUTION)[None]
        points = tf.constant(axes.T, DENSITY)
    reward, log_policy = result.reward(points), result.policy.log_prob(points)
    return {"axes": axes, "reward": reward, "log_policy": log_policy}


def summarise(
    rows: Split, result: Result, hparams: Hparams, choice: Choice, seed: int
) -> dict[str, Any]:
    """What was found in the data and how good the result is."""
    data, train, test = rows
    history = result.history
    trained = history[history["epochs"] > 0]  # the pooling's row comes after training's
    last = trained.iloc[-1]
    kde = density_estimate(train, hparams, seed)
    log_z, effective = log_normaliser(result.reward, Fusion(result.policy, kde), seed)
    scores: dict[str, Any] = {}
    if len(test):
        points = tf.constant(test, DENSITY)
        em = em_mixture(train, choice.components, numpy_seed(seed, 0, "EM"))
        scores = {
            "recovered reward": _score(result.reward(points) - log_z),
            "policy": _score(result.policy.log_prob(points)),
            "KDE": _score(kde.log_prob(points)),
            "EM": _score(em.log_prob(points)),
        }
    uses_estimate = METHODS[result.config["method"]].fusion
    widths = kde.bandwidth.numpy().tolist() if isinstance(kde, Kde) else None
    repeated = len(data.x) - len(np.unique(data.x, axis=0))
    size = {"final": float(last["effective_sample_size"]), "of": int(last["num_negatives"])}
    return {
        "rows": {"train": len(train), "held_out": len(test), "repeated": repeated},
        "columns": _columns(data.columns, train),
        "components": choice.components,
        "components_reason": choice.reason,
        "components_scores": choice.scores,
        "bandwidth": widths if uses_estimate else None,
        "held_out_log_likelihood": scores,
        "log_normaliser": {"value": log_z, "effective_draws": effective, "draws": NORMALISER_DRAWS},
        "num_iterations": len(trained),
        "validation_loss": float(last["validation_loss"]),
        "chance_loss": float(last["chance_loss"]),
        "mixture_exponent": float(history["mixture_exponent"].iloc[-1]),
        "effective_sample_size": size,
    }


def _columns(names: Sequence[str], x: np.ndarray) -> list[dict[str, Any]]:
    measures: dict[str, Any] = {"mean": np.mean, "standard_deviation": np.std}
    measures |= {"min": np.min, "max": np.max}
    return [
        {"name": name, **{key: measure(column) for key, measure in measures.items()}}
        for name, column in zip(names, x.T, strict=True)
    ]


def log_normaliser(reward: Reward, proposal: Fusion, seed: int) -> tuple[float, float]:
    """Log of the integral of exp(R) by importance sampling, and its effective number of draws."""
    x = proposal.sample(NORMALISER_DRAWS, split_seed(seed, 0, "normaliser"))
    log_w = (reward(x) - proposal.log_prob(x)).numpy()
    total = np.logaddexp.reduce(log_w)
    effective = np.exp(2.0 * total - np.logaddexp.reduce(2.0 * log_w))
    return float(total - np.log(len(log_w))), float(effective)


def _score(log_likelihood: tf.Tensor) -> dict[str, float]:
    values = np.asarray(log_likelihood)
    error = values.std() / np.sqrt(len(values))
    return {"mean": float(values.mean()), "standard_error": float(error)}


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """The data, the defaults found from it, and the scores."""
    console.print(_data_table(summary))
    rows = summary["rows"]
    if rows["repeated"]:
        text = "a density of repeated points has spikes on them."
        console.print(f"[yellow]{rows['repeated']} rows repeat another[/yellow]: {text}")
    if summary["components_scores"]:
        scores = ", ".join(f"{k}: {score:.3f}" for k, score in summary["components_scores"].items())
        chosen = f"components {summary['components']}, {summary['components_reason']}"
        console.print(f"{chosen} (mean log-likelihood {scores})", soft_wrap=True)
    console.print(_last_iteration(summary), soft_wrap=True)
    if exponent := summary["mixture_exponent"]:
        discriminators = f"{1.0 - exponent:.2f} x the sum of discriminators"
        mixture = f"{exponent:.2f} x the log density of an EM mixture"
        console.print(f"the reward: {discriminators} + {mixture}", soft_wrap=True)
    if not summary["held_out_log_likelihood"]:
        console.print(f"no rows were held out ({rows['train']} in all), so there is no score")
        return
    title = f"of {rows['held_out']} held-out demonstrations"
    table = Table("density", "mean log-likelihood", "standard error", title=title)
    for name, score in summary["held_out_log_likelihood"].items():
        table.add_row(name, f"{score['mean']:.4f}", f"{score['standard_error']:.4f}")
    console.print(table)
    normaliser = summary["log_normaliser"]
    if normaliser["effective_draws"] < 0.01 * normaliser["draws"]:
        few = "[yellow]the reward's normaliser rests on few draws[/yellow]"
        console.print(f"{few}: its score is a rough one")


def _data_table(summary: dict[str, Any]) -> Table:
    table = Table("column", "mean", "standard deviation", "KDE bandwidth", title="demonstrations")
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
    """Three lines of Python that load the result and use it."""
    return (
        "import virl_tf\n"
        f"result = virl_tf.load({str(out)!r})  # reward.keras, policy.npz and the history\n"
        "print(result.reward(result.policy.distribution.sample(3)))  # log density, up to a "
        "constant, of 3 draws of the policy"
    )


def pictures(out: Path) -> list[str]:
    """The pictures in a folder."""
    return sorted(path.name for path in out.glob("*.png"))


def _draw(out: Path, summary: dict[str, Any]) -> None:
    from experiments.figures.demonstrations import draw_demonstrations

    columns = [column["name"] for column in summary["columns"]]
    draw_demonstrations(out, columns, pd.read_csv(out / "metrics.csv"))
