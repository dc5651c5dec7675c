"""`python -m experiments judge`: the reward beside EM, kernels and a flow on a user's own rows."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import virl_tf
from virl_tf import Encoding, fit_policy, load_policy
from virl_tf.demonstrations import (
    FEWEST_HELD_OUT,
    Data,
    DataOptions,
    Prepared,
    dithered,
    prepare,
)
from virl_tf.density import Density
from virl_tf.domain import make_domain
from virl_tf.numerics import numpy_seed
from virl_tf.persistence.files import save_arrays
from virl_tf.persistence.policy_file import save_policy
from virl_tf.persistence.run_folder import RunFolder
from virl_tf.splitting import random_rows
from virl_tf.summary import FEW_EFFECTIVE
from virl_tf.validation import InputError, check_integer, check_seed

import numpy as np
import pandas as pd
from rich.console import Console

from experiments.evaluation.judged import (
    COLUMNS,
    EM_BIC,
    KEPT_BACK,
    POLICY,
    REWARD,
    Measure,
    normalised,
    over_splits,
    reference_fits,
    verdict,
)
from experiments.figures.judged import draw_judged
from experiments.flow import MISSING, flow_is_installed
from experiments.own_data.demonstration_files import Demonstrations
from experiments.own_data.fit_command import (
    encoded,
    fit_rows,
    keep_encoding,
    print_encoding,
    warn_of_fit,
)
from experiments.own_data.fit_request import FitRequest, Trajectories
from experiments.own_data.judge_request import JudgeRequest
from experiments.result_files import append_rows, table_so_far
from experiments.screen import numbers_table, screen, warn
from experiments.user_functions import take_corrected

LARGE = 1e4  # numbers whose powers of ten are shown
SHARPER = 0.5  # temperature of a policy whose draws are measured beside the first one's
SHOWN = {2: 1000, 3: 150}  # points [N, D], paths [N, T, D] of each picture


class Split(NamedTuple):
    """Rows to fit to, and those kept back.

    Attributes:
        number: of the split.
        seed: of all that is random in it.
        rows: to fit to.
        data: the same as `virl_tf.fit` sees them: angles in one turn.
        test: kept-back rows [M, D], likewise.
        groups: whose rows these are [M], as of `Data`.
        wrap: rows [S, D] into that turn.
    """

    number: int
    seed: int
    rows: Demonstrations
    data: Data
    test: np.ndarray
    groups: np.ndarray | None
    wrap: Callable[[Any], Any]


class Judge(NamedTuple):
    """What a command is to do.

    Attributes:
        fitted, request: its options.
        rows: what is fitted to; of trajectories the codes.
        encoding: of trajectories.
        out: the folder.
        progress: whether fits show bars.
        console: for all else.
    """

    fitted: FitRequest
    request: JudgeRequest
    rows: Demonstrations
    encoding: Encoding | None
    out: Path
    progress: bool
    console: Console

    def prepared(self, rows: Demonstrations, seed: int) -> Prepared:
        """As a fit takes them; none is held out: the reference densities see them, too.

        Raises InputError for rows or options that it would refuse.
        """
        x, contexts = rows.parts()
        bounds = (self.fitted.periodic, self.fitted.support)
        return prepare(x, DataOptions(0.0, rows.groups, *bounds, contexts=contexts), seed)


def judge(
    fitted: FitRequest,
    request: JudgeRequest,
    read: Demonstrations | Trajectories,
    out: Path,
    progress: bool,
) -> None:
    """Fit and measure what is not in `out`/judge.csv yet; then table, picture and verdict.

    Raises:
        InputError: data or options that cannot be used, or an `out` of something else; before any
            fit.
    """
    console, encoding = screen(), None
    check_seed(fitted.seed + request.splits - 1, "--seed of the last split")
    if isinstance(read, Demonstrations):
        rows = read
    else:
        rows, (episodes, encoding) = encoded(read)
        print_encoding(episodes, encoding, console)
    rows = _dithered(_contexts_first(rows), fitted)
    task = Judge(fitted, request, rows, encoding, out, progress, console)
    splits = [_split(task, number) for number in range(request.splits)]
    _measure(task, splits[0]).kept_back()  # whether the user's function can be used
    take_corrected(out, _identity(task), "outcome", "judge.csv")
    folder = RunFolder.open(out, _identity(task))
    console.out(_size_line(task, splits[0]))
    _warn_of_the_same_rows(splits)
    if not flow_is_installed():
        console.out(MISSING)
    with folder.locked():
        if encoding is not None:
            keep_encoding(out, encoding)
        for split in splits:
            if split.number not in set(_finished(out)["split"]):
                _judge_split(task, split)
        if not (out / "judge.png").is_file():
            draw_judged(out)
    _print_table(_finished(out), task)


def _dithered(rows: Demonstrations, fitted: FitRequest) -> Demonstrations:
    """With noise, if it is asked for: the same in all splits, in rows to fit to and kept back.

    Copies, which noise makes different, are a group, as `virl_tf.fit` has them.

    Raises InputError for bounds, angles or groups that cannot be used.
    """
    if not fitted.dither:
        return rows
    size, x = len(rows.contexts), rows.x
    names = list(rows.columns)
    given = fitted.periodic, fitted.support
    domain = make_domain(x[:, size:], names[size:], *given, names[:size])
    noisy = rows._replace(x=dithered(x, size, domain, fitted.seed))
    own, contexts = rows.parts()
    options = DataOptions(0.0, rows.groups, *given, dither=True, contexts=contexts)
    found = prepare(own, options, fitted.seed)
    return noisy._replace(groups=found.train.groups) if found.repeated else noisy


def _contexts_first(rows: Demonstrations) -> Demonstrations:
    """As rows [c, x]."""
    names = [*rows.contexts, *(name for name in rows.columns if name not in rows.contexts)]
    order = [rows.columns.index(name) for name in names]
    return rows._replace(x=rows.x[:, order], columns=names)


# --- splits ---------------------------------------------------------------------------------------


def _split(task: Judge, number: int) -> Split:
    """Raises InputError for rows or options that a fit to this split would refuse."""
    rows, seed = task.rows, task.fitted.seed + number
    n = len(rows.x)
    groups = task.prepared(rows, seed).train.groups  # kept-back ones are inside of bounds, too
    count = int(task.request.keep_back * n)
    own_seed = numpy_seed(seed, 0, "kept back")
    kept = random_rows(n, count, own_seed, groups)
    if kept.sum() < FEWEST_HELD_OUT or kept.all():
        raise InputError(
            f"--keep-back {task.request.keep_back:g} keeps {kept.sum()} of {n} rows in "
            f"split {number}; at least {FEWEST_HELD_OUT} are needed, and others to fit to. Give a "
            "larger share, or more rows."
        )
    fitted = rows.take(~kept)
    data = task.prepared(fitted, seed).train
    for size in task.request.components:
        what = f"--components (at most one per row to fit to, {len(data.rows)})"
        check_integer(what, size, 1, len(data.rows))

    def wrap(x: Any) -> np.ndarray:
        return np.asarray(data.domain.wrap(np.asarray(x)))

    kept_groups = None if groups is None else groups[kept]
    return Split(number, seed, fitted, data, wrap(rows.x[kept]), kept_groups, wrap)


def _warn_of_the_same_rows(splits: list[Split]) -> None:
    """Fits to the same rows differ by their seeds alone, and so little that they seem sure."""
    different = len({split.test.tobytes() for split in splits})
    if different < len(splits):
        warn(
            f"of {len(splits)} splits only {different} keep back different rows, as groups are few "
            "or larger than --keep-back: that they agree tells little of other groups. Give a "
            "larger share, or fewer --splits."
        )


def _measure(task: Judge, split: Split) -> Measure:
    def as_seen(x: np.ndarray) -> np.ndarray:
        if task.encoding is None:
            return split.wrap(x)
        return np.asarray(task.encoding.decode(x[:, len(task.rows.contexts) :]))

    named = task.request.outcome
    function = None if named is None else named.function
    size = len(task.rows.contexts)
    return Measure(split.test, as_seen, function, split.seed, size, split.groups)


def _identity(task: Judge) -> dict[str, Any]:
    """What tells this command from others, but for the number of splits: more can be added."""
    fitted, request = task.fitted, task.request
    return {
        "judged": task.prepared(task.rows, 0).identity,
        "columns": list(task.rows.columns),
        "method": fitted.method,
        "components": list(request.components),
        "seed": fitted.seed,
        "keep_back": request.keep_back,
        "outcome": None if request.outcome is None else request.outcome.identity,
        "flow": flow_is_installed(),
        "hparams": fitted.hparams.to_dict(),
    }


def _size_line(task: Judge, split: Split) -> str:
    (n, d), names = task.rows.x.shape, ", ".join(task.rows.contexts)
    dimension = f"dimension {d - len(task.rows.contexts)}" + (f" given {names}" if names else "")
    parts = f"{len(split.data.rows)} rows to fit to, {len(split.test)} kept back"
    splits = f"{task.request.splits} split(s), in the first {parts}"
    return f"{n} demonstrations of {dimension} from {task.fitted.file.path}: {splits}; {task.out}"


# --- one split ------------------------------------------------------------------------------------


def _judge_split(task: Judge, split: Split) -> None:
    """Fit, measure, and add the rows to judge.csv; the first one's draws are those of the picture.

    What was stored is read back, so that a stopped command goes on to the same bytes.
    """
    measure, found = _measure(task, split), _fitted(task, split)
    reward: Any = found[REWARD]
    if reward.effective_share < FEW_EFFECTIVE:
        share = f"split {split.number}: {100.0 * reward.effective_share:.2g} % of the draws behind"
        what = "the reward's likelihood and outcome are effective: neither is worth much."
        warn(f"{share} {what}")
    table = [measure.kept_back()]
    table += [measure.row(name, density, reward) for name, density in found.items()]
    if not (task.out / "judge.npz").is_file():
        _save_draws(task, measure, found)
    rows = [{"split": split.number, **row} for row in table]
    append_rows(task.out / "judge.csv", rows, COLUMNS, "--outcome")


def _fitted(task: Judge, split: Split) -> dict[str, Density]:
    """Reward, policies and references by their names."""
    folder = task.out / f"split-{split.number}"
    task.console.out(f"split {split.number}: the fit, in {folder}")
    result = _fit(task, split, folder)
    found: dict[str, Density] = {
        REWARD: normalised(
            result.reward, result.policy, split.data, split.seed, _measure(task, split).contexts
        )
    }
    # A size that was chosen may be another one in each split, and is not in the name.
    sizes = {f", {size}": size for size in task.request.components}
    sizes = sizes or {"": result.policy.num_components}
    for i, (suffix, size) in enumerate(sizes.items()):
        further = _further_policy(task, split, result, size) if i else result.policy
        found[f"{POLICY}{suffix}"] = further
    if task.request.outcome is not None and not task.rows.contexts:
        suffix, size = next(iter(sizes.items()))
        name = f"{POLICY}{suffix}, temperature {SHARPER:g}"
        found[name] = _further_policy(task, split, result, size, SHARPER)
    for name, fit in reference_fits(split.data, sizes, split.seed).items():
        with task.console.status(f"split {split.number}: {name}"):
            found[name] = fit()
    return found


def _fit(task: Judge, split: Split, folder: Path) -> virl_tf.Result:
    """To the rows of a split, in their folder."""
    # Noise is in the rows already.
    request = task.fitted._replace(seed=split.seed, dither=False)
    fit_rows(request, *split.rows.parts(), split.rows.groups, folder, task.progress)
    result = virl_tf.load(folder)
    warn_of_fit(result.warnings, of_codes=task.encoding is not None)
    return result


def _further_policy(
    task: Judge, split: Split, result: virl_tf.Result, size: int, temperature: float = 1.0
) -> Density:
    """Fitted to the reward, and kept beside it."""
    name = f"policy-{size}" if temperature == 1.0 else f"policy-{size}-at-{temperature:g}"
    path = task.out / f"split-{split.number}" / f"{name}.npz"
    if not path.is_file():
        task.console.out(f"split {split.number}: {name}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the result has them, too
            options: dict[str, Any] = {"seed": split.seed, "progress": task.progress}
            options["temperature"] = temperature
            if (contexts := split.rows.parts()[1]) is not None:
                options["contexts"] = contexts.to_numpy()
            fitted = fit_policy(result.reward, result.reward.dim, size, **options)
        for text in fitted.warnings:
            warn(text)
        save_policy(path, fitted.policy)
    return load_policy(path)


# --- files ----------------------------------------------------------------------------------------


def _save_draws(task: Judge, measure: Measure, found: Mapping[str, Density]) -> None:
    """judge.npz: all demonstrations, and as many draws of reward, first policy and EM."""
    shown = measure.as_seen(task.rows.x)
    policy = next(name for name in found if name.startswith(POLICY))
    most = SHOWN[shown.ndim]
    chosen = np.random.default_rng(0).permutation(len(shown))[:most]
    arrays: dict[str, Any] = {"demonstrations": shown[chosen]}
    for title, name in (("reward's draws", REWARD), (POLICY, policy), (EM_BIC, EM_BIC)):
        arrays[title] = measure.draws(name, found[name])[: len(chosen)]
    columns = task.rows.columns
    if task.encoding is not None:
        columns, arrays["times"] = list(task.encoding.columns), task.encoding.times
    if task.rows.contexts:
        arrays["contexts"] = np.array(list(task.rows.contexts))
    save_arrays(task.out / "judge.npz", {**arrays, "columns": np.array(columns)})


def _finished(out: Path) -> pd.DataFrame:
    return table_so_far(out / "judge.csv", COLUMNS, "density")


# --- the screen -----------------------------------------------------------------------------------


def _print_table(table: pd.DataFrame, task: Judge) -> None:
    """Means over splits with standard errors, and the verdict."""
    keep_back = task.request.keep_back
    means, errors = over_splits(table, keep_back)
    splits, names = table["split"].nunique(), table["density"].unique()
    title = f"kept-back rows, nats each: mean of {splits} split(s) ± standard error"
    columns = ("log_likelihood", "reward_ahead")
    fitted = [name for name in names if name != KEPT_BACK]
    cells = [[_written(means.loc[n, c], errors.loc[n, c]) for c in columns] for n in fitted]
    task.console.print(numbers_table(title, ("log likelihood", "reward ahead"), fitted, cells))
    outcomes = list(table.columns[len(COLUMNS) :])
    if outcomes:
        cells = [[f"{means.loc[n, c]:.3g}" for c in outcomes] for n in names]
        title = "what they and draws do: means"
        task.console.print(numbers_table(title, outcomes, names, cells))
    share = 100.0 * means["effective_share"].max()
    task.console.out(f"effective share of the reward's draws: {share:.1f} %")
    said = verdict(table, keep_back, bool(task.rows.contexts))
    task.console.out(said)
    files = f"{task.out / 'judge.csv'}; picture: {task.out / 'judge.png'}"
    task.console.out(f"numbers: {files}")


def _written(mean: float, error: float) -> str:
    """'1.23±0.05', which fits; nothing for what is not measured."""
    if np.isnan(mean):
        return ""
    shown = [f"{x:.3g}" if abs(x) >= LARGE else f"{x:.2f}" for x in (mean, error)]
    return shown[0] if np.isnan(error) else "±".join(shown)
