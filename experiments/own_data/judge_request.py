"""What `judge` is asked for beside a fit: all that needs no TensorFlow."""

from collections.abc import Sequence
from typing import NamedTuple

from virl_tf.validation import InputError, check_integer, check_share

from experiments.specification import parse_integers
from experiments.user_functions import NamedFunction, load_outcome


class JudgeRequest(NamedTuple):
    """How often what is measured.

    Attributes:
        components: K of the policy, then those of policies fitted to the reward further on; none:
            one policy, whose K is chosen.
        splits: how many.
        keep_back: share of the rows that only the measures see, in each.
        outcome: what draws do: (draws, kept-back rows) -> {name: number}.
    """

    components: Sequence[int] = ()
    splits: int = 3
    keep_back: float = 0.2
    outcome: NamedFunction | None = None

    @classmethod
    def of(
        cls, components: Sequence[int], splits: int, keep_back: float, outcome: str | None
    ) -> "JudgeRequest":
        """Of the command's options. Raises InputError for one that cannot be used."""
        check_integer("--splits", splits, 1)
        if not check_share("--keep-back", keep_back):
            raise InputError("--keep-back is 0: there would be no rows to measure on.")
        function = None if outcome is None else load_outcome(outcome)
        return cls(components, splits, keep_back, function)


def parse_components(texts: Sequence[str] | None) -> list[int]:
    """['24,50', '100'] -> [24, 50, 100]. Raises InputError."""
    sizes = parse_integers("--components", ",".join(texts) if texts else None) or []
    return [check_integer("--components", size, 1) for size in sizes]
