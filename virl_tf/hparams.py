"""Hyperparameters: frozen dataclasses, read strictly from the YAML files in `hparams/`.

`defaults.yaml` holds every value with its source; the other files override parts of it. An unknown
key, a wrong type or a value outside its range is an `InputError` that names file, key and what is
allowed.
"""

import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from virl_tf.validation import InputError, check_choice, closest
from virl_tf.yaml_files import read_yaml

# In an installed package the YAML files lie inside it; in a checkout they stand at the top level.
_INSTALLED, _CHECKOUT = (
    Path(__file__).parent / "hparams_files",
    Path(__file__).parent.parent / "hparams",
)
DIRECTORY = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT


@dataclass(frozen=True)
class Range:
    """What a value may be: a predicate and its description for the error message."""

    contains: Callable[[Any], bool]
    description: str


def interval(low: float, high: float = math.inf, *, open_low: bool = False) -> Range:
    """Numbers in [low, high], or (low, high] if `open_low`."""
    text = (
        f"{'(' if open_low else '['}{low:g}, {high:g}]"
        if high < math.inf
        else f"{'>' if open_low else '>='} {low:g}"
    )
    return Range(lambda v: (v > low or (v == low and not open_low)) and v <= high, text)


def choice(*values: Any) -> Range:
    """One of `values`."""
    return Range(lambda v: v in values, "one of " + ", ".join(str(v) for v in values))


def _ranged(allowed: Range, **extra: Any) -> Any:
    return field(metadata={"range": allowed, **extra})


def _table_1(**extra: Any) -> Any:
    """A hyperparameter of Table 1: its range stands in search_space.yaml."""
    return field(metadata={"table_1": True, **extra})


@dataclass(frozen=True)
class NetworkHparams:
    """Architecture of phi_t: features, then Dense -> batch norm -> ReLU -> dropout `num_layers`
    times, then one linear output.
    """

    num_layers: int = _table_1()
    layer_size: int = _table_1()
    batch_norm: bool = _table_1()
    batch_norm_momentum: float = _ranged(interval(0.0, 0.9999))
    dropout: float = _table_1()
    l2: float = _table_1()
    num_frequencies: int = _ranged(interval(0, 4096))
    frequency_scale: float = _ranged(interval(0.0, open_low=True))


@dataclass(frozen=True)
class TrainingHparams:
    """Fit of one phi_t by weighted binary cross-entropy (Eq. 3)."""

    learning_rate: float = _table_1()
    batch_size: int | None = _ranged(interval(1))
    num_epochs: int = _ranged(interval(1))
    patience: int | None = _ranged(interval(1))
    warm_up_epochs: int = _ranged(interval(0))
    validation_fraction: float = _ranged(interval(0.0, 0.5, open_low=True))
    weight_average: float = _ranged(interval(0.0, 0.99999))
    start: str = _ranged(choice("warm", "zero_head", "fresh"))


@dataclass(frozen=True)
class KdeHparams:
    """Density estimate p~ of the demonstrations."""

    estimator: str = _ranged(choice("kernel", "mixture", "auto"))
    bandwidth: float | str = _table_1(words=("silverman", "held_out"))
    bandwidth_scale: str = _ranged(choice("absolute", "relative"))


@dataclass(frozen=True)
class PolicyHparams:
    """Start and trust-region updates of the policy q~_t."""

    start: str = _ranged(choice("standard_normal", "kmeans", "samples", "mixture"))
    update_steps: int = _table_1()
    samples_per_component: int | None = _ranged(interval(4))
    kl_bound: float = _ranged(interval(0.0, open_low=True))
    weight_kl_bound: float | None = _ranged(interval(0.0, open_low=True))
    ridge: float = _ranged(interval(0.0, 1.0, open_low=True))
    surrogate: str = _ranged(choice("values", "gradients", "auto"))


@dataclass(frozen=True)
class LoopHparams:
    """The outer iterations t = 0 ... T - 1."""

    num_iterations: int = _ranged(interval(1, 10_000))
    num_negatives: int | None = _ranged(interval(16))
    min_gain: float | None = _ranged(interval(0.0))
    mixture_average: bool = _ranged(choice(False, True))
    prior: str = _ranged(choice("moments", "mixture", "auto", "initial_policy", "flat"))


@dataclass(frozen=True)
class SearchHparams:
    """How much `fit_policy`'s search for modes does (`virl_tf.vips.adaptive`)."""

    spare_components: int | None = _ranged(interval(1))
    num_rounds: int | None = _ranged(interval(1))
    steps_per_round: int = _ranged(interval(1))
    samples_per_component: int | None = _ranged(interval(1))
    reused_steps: int = _ranged(interval(0))
    split_rounds: int | None = _ranged(interval(0))


@dataclass(frozen=True)
class Hparams:
    """All hyperparameters of one run.

    Attributes:
        network, training: of the discriminators.
        kde: of the demonstrations' density estimate.
        policy, loop: of the policy's updates and the iterations.
    """

    network: NetworkHparams
    training: TrainingHparams
    kde: KdeHparams
    policy: PolicyHparams
    loop: LoopHparams

    def override(self, sections: Mapping[str, Any], source: str = "hparams") -> "Hparams":
        """A copy with some values replaced.

        Args:
            sections: {section: {key: value}}.
            source: what to call it in an error, e.g. the file's name.

        Raises:
            InputError: unknown section or key, wrong type, or out of range.
        """
        if not isinstance(sections, Mapping):
            raise InputError(
                f"{source}: expected sections {{{', '.join(SECTIONS)}}}, got {sections!r}."
            )
        changed: dict[str, Any] = {}
        for section, values in sections.items():
            if section not in SECTIONS:
                raise InputError(
                    f"{source}: unknown section {section!r}: {closest(str(section), SECTIONS)}."
                )
            if not isinstance(values, Mapping):
                raise InputError(
                    f"{source}: section {section!r} must hold keys and values, got {values!r}."
                )
            new = _checked(SECTIONS[section], section, values, source)
            changed[section] = dataclasses.replace(getattr(self, section), **new)
        return dataclasses.replace(self, **changed)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain {section: {key: value}}, as stored in config.yaml."""
        return dataclasses.asdict(self)


def rows_per_batch(hparams: TrainingHparams, n: int, most: int = 500) -> int:
    """Of each class, for n demonstrations to train on; null: a fourteenth of them, at most `most`.

    With few demonstrations a fixed size leaves too few steps: weights that are averaged over 500
    steps stay at their start.
    """
    size = hparams.batch_size or min(most, max(1, n // 14))
    return min(size, n)


Number = TypeVar("Number", int, float)


def known(value: Number | None) -> Number:
    """A number that hyperparameters leave to the data, once `Problem.resolved` has put it in."""
    assert value is not None
    return value


SECTIONS: dict[str, type] = {f.name: f.type for f in dataclasses.fields(Hparams)}  # type: ignore[misc]
_CHECKED_SECTIONS = {**SECTIONS, "search": SearchHparams}


def _checked(
    section_type: type, section: str, values: Mapping[str, Any], source: str
) -> dict[str, Any]:
    fields = {f.name: f for f in dataclasses.fields(section_type)}
    checked = {}
    for key, value in values.items():
        if key not in fields:
            raise InputError(
                f"{source}: unknown key '{section}.{key}': {closest(str(key), fields)}."
            )
        checked[key] = check_value(f"{section}.{key}", value, source)
    return checked


def check_value(name: str, value: Any, source: str = "hparams") -> Any:
    """Return one hyperparameter, converted to its type, or raise `InputError`.

    `name`: 'section.key'.
    """
    section, key = name.split(".")
    spec = next(f for f in dataclasses.fields(_CHECKED_SECTIONS[section]) if f.name == key)
    # The members of a union, or the type itself.
    kinds: tuple[Any, ...] = getattr(spec.type, "__args__", (spec.type,))
    words = spec.metadata.get("words", ())
    allowed = search_space()[name].range if spec.metadata.get("table_1") else spec.metadata["range"]
    description = " or ".join(
        [allowed.description, *words] + (["null"] if type(None) in kinds else [])
    )
    names = "/".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
    refusal = InputError(
        f"{source}: {name} = {value!r} is not allowed; allowed: {names}, {description}."
    )
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of NumPy
        value = value.item()
    if value is None and type(None) in kinds:
        return None
    if isinstance(value, str) and words:
        if value in words:
            return value
        raise refusal
    if (
        float in kinds
        and isinstance(value, int)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    ):
        value = float(value)
    if not any(type(value) is kind for kind in kinds):
        raise refusal
    if isinstance(value, float) and not math.isfinite(value):
        raise refusal
    if not allowed.contains(value):
        raise refusal
    return value


@dataclass(frozen=True)
class SearchParameter:
    """A row of Table 1."""

    type: str
    low: float | None
    high: float | None
    methods: tuple[str, ...] | None
    spec: Mapping[str, Any]

    @property
    def range(self) -> Range:
        """The values Table 1 allows."""
        if self.type == "bool":
            return choice(False, True)
        assert self.low is not None
        assert self.high is not None
        if self.type == "power_of_two":
            return choice(*(2**k for k in range(int(self.low), int(self.high) + 1)))
        return interval(self.low, self.high, open_low=bool(self.spec.get("open_low")))


@functools.cache
def search_space() -> dict[str, SearchParameter]:
    """Table 1, keyed by 'section.key'."""
    rows = read_yaml(DIRECTORY / "search_space.yaml")
    return {
        name: SearchParameter(
            row["type"],
            row.get("low"),
            row.get("high"),
            tuple(row["methods"]) if "methods" in row else None,
            row,
        )
        for name, row in rows.items()
    }


@functools.cache
def _own_file(name: str) -> dict[str, Any]:
    """What a YAML file of `DIRECTORY` holds."""
    return read_yaml(DIRECTORY / f"{name}.yaml")


def read_preset(name: str) -> dict[str, Any]:
    """One preset of presets.yaml. Raises InputError if there is none of this name."""
    presets = _own_file("presets")
    return presets[check_choice("preset", name, presets)]


def runs_published(preset: object) -> bool:
    """Whether a preset of this name puts its values over a published column."""
    return preset in _own_file("presets") and bool(read_preset(str(preset)).get("published", True))


def apply_preset(values: Hparams, overrides: Mapping[str, Any], family: str) -> Hparams:
    """`values` with a preset's `hparams` put over them: those of all methods, then those of this
    one.

    Args:
        family: "virl", "geim" or "eim" (`Method.family`).
    """
    common = {section: keys for section, keys in overrides.items() if section != "methods"}
    source = "hparams/presets.yaml"
    return values.override(common, source).override(
        overrides.get("methods", {}).get(family, {}), source
    )


def own_data_hparams(family: str = "virl") -> Hparams:
    """What `virl_tf.fit` and `experiments fit` start from: the defaults, over them `best`."""
    return apply_preset(default_hparams(family), read_preset("best")["hparams"], family)


def default_hparams(family: str = "virl") -> Hparams:
    """`defaults.yaml` for a method: the common values, then those of its `methods` section.

    Args:
        family: "virl", "geim" or "eim" (`Method.family`).

    Raises:
        InputError: another family.
    """
    values = dict(_own_file("defaults"))
    per_method = values.pop("methods")
    check_choice("method family", family, ("virl", *per_method))
    values.pop("search")
    source = "hparams/defaults.yaml"
    missing = [
        f"{s}.{f.name}"
        for s, t in SECTIONS.items()
        for f in dataclasses.fields(t)
        if f.name not in values.get(s, {})
    ]
    if missing:
        raise InputError(f"{source}: no value for {', '.join(missing)}.")
    hparams = Hparams(
        **{s: t(**_checked(t, s, values.pop(s), source)) for s, t in SECTIONS.items()}
    )
    return hparams.override(values, source).override(per_method.get(family, {}), source)


def search_hparams(overrides: Mapping[str, Any] | None = None) -> SearchHparams:
    """The `search` section of `defaults.yaml` with some values replaced.

    Raises InputError for a key or value it cannot have.
    """
    if not isinstance(overrides, (Mapping, type(None))):
        raise InputError(
            f"search must be True, False or a mapping of its hyperparameters, got {overrides!r}."
        )
    source = "hparams/defaults.yaml"
    values = _checked(SearchHparams, "search", _own_file("defaults")["search"], source)
    given = _checked(SearchHparams, "search", overrides or {}, "search")
    return SearchHparams(**{**values, **given})


def load_hparams(path: Path | str, family: str = "virl") -> Hparams:
    """`own_data_hparams` of a method's `family`, over them the values of the YAML file `path`.

    The file holds {section: {key: value}}.
    """
    content = read_yaml(path)
    return own_data_hparams(family).override({} if content is None else content, str(path))


def published(table: str, column: str) -> dict[str, dict[str, Any]]:
    """One column of Table 2 (`gaussians`) or Table 3 (`grid_walker`) as overrides, e.g.
    ('gaussians', 'virl_10c').

    Values the file gives for all columns are put in too. ('grid_walker', 'eim') is ours: the paper
    has no such column.

    Raises:
        InputError: unknown table or column.
    """
    common, row = _published_row(table, column)
    sections = [section for section in {**common, **row} if section != "starred"]
    return {section: {**common.get(section, {}), **row.get(section, {})} for section in sections}


def starred(table: str, column: str) -> list[str]:
    """What the paper did not optimise in a column. Raises InputError as `published` does."""
    return _published_row(table, column)[1]["starred"]


def _published_tables() -> list[str]:
    names = [path.stem for path in sorted(DIRECTORY.glob("*.yaml"))]
    return [name for name in names if "columns" in _own_file(name)]


def _published_row(table: str, column: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the values for all columns, those of one)."""
    check_choice("table", table, _published_tables())
    content = _own_file(table)
    columns = {**content["columns"], **content.get("ours", {})}
    return content["common"], columns[
        check_choice(f"column of hparams/{table}.yaml", column, columns)
    ]
