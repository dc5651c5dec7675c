"""A user's demonstrations, checked and split, before anything is fitted to them."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from virl_tf.data_checks import dither, examine, examine_angles
from virl_tf.domain import EVERYWHERE, Domain, make_domain
from virl_tf.numerics import numpy_seed
from virl_tf.shapes import Array, Float64, Int64
from virl_tf.splitting import FEWEST_HELD_OUT, random_rows, row_groups
from virl_tf.validation import (
    InputError,
    check_contexts,
    check_demonstrations,
    check_share,
    reason,
)

LARGEST_SHARE = 0.1  # of the rows that so few may be: of less than a hundred all count
FEWEST_GROUPS = 3  # for one to be scored, one held out in training, and one trained on


class DataOptions(NamedTuple):
    """What `fit` is told about the data; see there."""

    held_out: float = 0.1
    groups: Any = None
    periodic: Sequence[Any] | Mapping[Any, float] | None = None
    support: tuple[Any, Any] | None = None
    dither: bool = False
    contexts: Any = None


class Data(NamedTuple):
    """What a run is fitted to.

    Attributes:
        rows: demonstrations; with contexts [c, x] (`virl_tf.contexts`).
        groups: whose rows are held out together (`virl_tf.splitting.row_groups`); None: each is
            its own.
        domain: where demonstrations can lie; these are inside of it.
        num_contexts: C, how many columns are context, the first ones.
    """

    rows: Float64[Array, "N D"]
    groups: Int64[Array, " N"] | None = None
    domain: Domain = EVERYWHERE
    num_contexts: int = 0

    def take(self, index: Any) -> "Data":
        """Those of an index [M], or of a mask [N]."""
        groups = None if self.groups is None else self.groups[index]
        return self._replace(rows=self.rows[index], groups=groups)


class Prepared(NamedTuple):
    """Demonstrations that can be fitted.

    Attributes:
        names: of the columns.
        train: for the fit.
        test: those that only the score sees.
        test_groups: whose rows these are, as of `Data`.
        warnings: what is suspicious about them (`virl_tf.data_checks`).
        repeated: how many rows are equal to one before.
        identity: what tells these data and options from others, for config.yaml.
    """

    names: list[str]
    train: Data
    test: Float64[Array, "M D"]
    test_groups: Int64[Array, " M"] | None
    warnings: list[str]
    repeated: int
    identity: dict[str, Any]


def prepare(demonstrations: Any, options: DataOptions, seed: int) -> Prepared:
    """Check demonstrations [N, D] and split them.

    Raises:
        InputError: demonstrations or options that cannot be used.
    """
    x = check_demonstrations(demonstrations)
    for name in ("contexts", "groups"):
        _check_index(name, getattr(options, name), demonstrations)
    names = column_names(demonstrations, x.shape[1])
    x, names, num_contexts = _with_contexts(x, names, options.contexts)
    share = check_share("held_out", options.held_out)
    labels = _check_labels(options.groups, len(x))
    known, own = names[:num_contexts], names[num_contexts:]
    domain = make_domain(x[:, num_contexts:], own, options.periodic, options.support, known)
    period = np.zeros(len(own)) if domain.everywhere else np.asarray(domain.period)
    period = np.append(np.zeros(num_contexts), period)
    angles = examine_angles(x, names, period, num_contexts)  # noise would go beyond a turn
    recorded = x
    if options.dither:
        x = dithered(x, num_contexts, domain, seed)
    suspicious = examine(x, names, num_contexts) + angles
    domain = domain.behind(num_contexts)
    identity = _identity(x, num_contexts, labels, domain, share)

    x, recorded = (np.asarray(domain.wrap(rows)) for rows in (x, recorded))
    told_apart = _told_apart(x, recorded, num_contexts)
    groups, linked = _groups(told_apart, labels)
    _check_groups(groups)
    held_out = _held_out(len(x), share, seed, groups)
    train = Data(x, groups, domain, num_contexts).take(~held_out)
    _check_left(train.rows, len(x), names)
    return Prepared(
        names=names,
        train=train,
        test=x[held_out],
        test_groups=None if groups is None else groups[held_out],
        warnings=suspicious + linked,
        repeated=len(x) - len(np.unique(told_apart, axis=0)),
        identity=identity,
    )


def _check_left(rows: Float64[Array, "M D"], number: int, names: Sequence[str]) -> None:
    """Raises InputError if those that are left of a number of rows are no demonstrations."""
    try:
        check_demonstrations(rows, names)
    except InputError as error:
        if len(rows) == number:
            raise
        raise InputError(
            f"{number - len(rows)} of {number} rows are held out, and of the others: {error}"
        ) from error


def _identity(
    x: np.ndarray, num_contexts: int, labels: np.ndarray | None, domain: Domain, held_out: float
) -> dict[str, Any]:
    """What tells these demonstrations from others."""
    identity: dict[str, Any] = {"shape": list(x.shape), "sha256": _digest(x), "held_out": held_out}
    if num_contexts:
        identity["contexts"] = num_contexts
    if labels is not None:
        identity["groups"] = _digest(labels)
    if not domain.everywhere:
        bounds = {name: np.asarray(side).tolist() for name, side in domain._asdict().items()}
        identity["domain"] = {name: [str(v) for v in side] for name, side in bounds.items()}
    return identity


def _with_contexts(
    x: np.ndarray, names: list[str], contexts: Any
) -> tuple[np.ndarray, list[str], int]:
    """Rows [c, x], what their columns are called, and C; x itself without contexts."""
    if contexts is None:
        return x, names, 0
    c = check_contexts(contexts, len(x))
    given = getattr(contexts, "columns", ())  # a number is how pandas counts columns, and no name
    if both := [name for name in given if isinstance(name, str) and name in names]:
        raise InputError(
            f"contexts and demonstrations both have a column {both[0]!r}: what is given is not "
            "learnt. Drop it from one of them, or call it something else."
        )
    return np.hstack([c, x]), [*column_names(contexts, c.shape[1], "c"), *names], c.shape[1]


def _check_index(name: str, value: Any, demonstrations: Any) -> None:
    """Raises InputError for frames whose rows have other labels: they are matched by position."""
    own, other = (getattr(frame, "index", None) for frame in (demonstrations, value))
    if not (isinstance(own, pd.Index) and isinstance(other, pd.Index)):
        return
    if len(own) == len(other) and not own.equals(other):
        raise InputError(
            f"{name} and demonstrations are matched row by row, but their rows have other labels: "
            f"give {name}.loc[demonstrations.index], or both with reset_index(drop=True)."
        )


def column_names(demonstrations: Any, dim: int, letter: str = "x") -> list[str]:
    """Those of a data frame, else x0, x1, ..."""
    columns = getattr(demonstrations, "columns", None)
    if columns is None:
        return [f"{letter}{i}" for i in range(dim)]
    return [str(name) for name in columns]


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _check_labels(labels: Any, n: int) -> np.ndarray | None:
    """The groups' labels [N] as text, which any labels can be."""
    if labels is None:
        return None
    wanted = f"groups must hold a label per demonstration, [{n}]"
    try:
        found = np.asarray(labels)
    except ValueError as error:  # lists of several lengths
        raise InputError(f"{wanted}; {reason(error)}.") from error
    if found.shape != (n,):
        raise InputError(f"{wanted}; got {found.shape}.")
    # As objects: of a missing label in a list of texts NumPy makes a text.
    missing = np.flatnonzero(pd.isna(np.asarray(labels, dtype=object)) | np.ma.getmask(labels))
    if len(missing):
        raise InputError(f"groups: demonstration {missing[0]} has no label ({found[missing[0]]}).")
    try:
        return found.astype(str)
    except UnicodeDecodeError:  # bytes, as HDF5 and TensorFlow keep text: NumPy takes ASCII alone
        return np.array([_as_text(label) for label in found.tolist()])


def _as_text(label: Any) -> str:
    """Other bytes than UTF-8's stay apart."""
    return label.decode(errors="backslashreplace") if isinstance(label, bytes) else str(label)


def dithered(
    x: Float64[Array, "N C+D"], num_contexts: int, domain: Domain, seed: int
) -> Float64[Array, "N C+D"]:
    """Rows [c, x] with noise in columns of x (`dither`), inside of their bounds; of contexts nobody
    learns a density.
    """
    own = dither(x[:, num_contexts:], numpy_seed(seed, 0, "dither"))
    return np.hstack([x[:, :num_contexts], _mirrored(own, domain)])


def _told_apart(
    x: Float64[Array, "N C+D"], recorded: Float64[Array, "N C+D"], num_contexts: int
) -> Float64[Array, "N C+D"]:
    """Rows [c, x] of which equal ones are copies: as they were recorded, unless noise has spread
    all columns of x, which had few values: rows were equal by chance.
    """
    kept = (x == recorded).all(axis=0)[num_contexts:]
    return recorded if kept.any() else x


def _mirrored(x: Float64[Array, "N D"], domain: Domain) -> Float64[Array, "N D"]:
    """What noise has moved out of the bounds, as far inside of them; angles are wrapped later."""
    if domain.everywhere:
        return x
    lower, upper, period = (np.asarray(part) for part in domain)
    inside = np.where(x < lower, 2.0 * lower - x, np.where(x > upper, 2.0 * upper - x, x))
    return np.where(period > 0.0, x, inside)


def _groups(x: np.ndarray, labels: np.ndarray | None) -> tuple[np.ndarray | None, list[str]]:
    """`row_groups`, and what to say of them: labels alone, where rows that are equal, such as where
    all episodes start, would make one group of most labels.
    """
    groups = row_groups(x, labels)
    if labels is None or groups is None:
        return groups, []
    of_labels = np.unique(labels, return_inverse=True)[1]
    if not _largest_share(of_labels) <= 0.5 < _largest_share(groups):
        return groups, []
    text = "rows that are equal link most groups, so labels alone say what is held out together"
    return of_labels, [f"{text}: what is held out has copies in training, and seems likelier."]


def _largest_share(groups: np.ndarray) -> float:
    return float(np.bincount(groups).max() / len(groups))


def _check_groups(groups: np.ndarray | None) -> None:
    """Raises InputError unless enough rows are outside of the largest group, which cannot be held
    out.
    """
    if groups is None:
        return
    n, sizes = len(groups), np.unique(groups, return_counts=True)[1]
    others, wanted = n - sizes.max(), int(np.ceil(min(FEWEST_HELD_OUT, LARGEST_SHARE * n)))
    if others < wanted:
        raise InputError(
            f"{n - others} of {n} demonstrations are of one group (of one label, or equal), and "
            f"{others} of others, which alone can be held out; at least {wanted} are needed. Give "
            "groups of fewer rows, or none."
        )


def _held_out(n: int, share: float, seed: int, groups: np.ndarray | None) -> np.ndarray:
    """Which rows [N] bool are held out: a random share, none of it if that tells nothing.

    At least `FEWEST_HELD_OUT`, half of them in whole groups, but not where they were more than
    `LARGEST_SHARE` of the rows.
    """
    count = max(int(share * n), FEWEST_HELD_OUT)
    few_groups = groups is not None and len(np.unique(groups)) < FEWEST_GROUPS
    if share == 0.0 or count > max(share, LARGEST_SHARE) * n or few_groups:
        return np.zeros(n, bool)
    held_out = random_rows(n, count, numpy_seed(seed, 0, "held-out demonstrations"), groups)
    return held_out & (held_out.sum() >= FEWEST_HELD_OUT / 2)
