"""What an encoding of trajectories may be asked for: known before TensorFlow is loaded."""

from collections.abc import Iterable, Sequence

from virl_tf.validation import InputError, check_choice, check_integer, check_positive, told

KINDS = ("promp", "waypoints", "components")
PHASES = ("time", "length")
ENDS = {"start": 0, "goal": -1}
# RMS error in standard deviations of a column (docs/decisions-contexts.md, encoding).
TOLERANCE = 0.05


def check_options(
    kind: str,
    size: int | None,
    via: str | Sequence[str] | None,
    phase: str | None,
    tolerance: float,
) -> list[str]:
    """The via-points; the others as `fit_encoding` takes them.

    Raises:
        InputError: an option that cannot be used, whatever the trajectories are.
    """
    check_choice("kind of encoding", kind, ("auto", *KINDS))
    given = [via] if isinstance(via, str) else via or []
    if not isinstance(given, Iterable):
        raise InputError(f"via must be of {', '.join(ENDS)}, got {told(via)}.")
    ends = list(dict.fromkeys(check_choice("via-point", end, ENDS) for end in given))
    if ends and kind not in ("auto", "promp"):
        raise InputError(f"via is for movement primitives (promp), not for {kind}.")
    if phase is not None:
        check_choice("phase", phase, PHASES)
    check_positive("tolerance", tolerance)
    if size is not None:
        check_integer("size", size, 1 if kind == "components" else 2)
        if kind == "auto":
            raise InputError(f"size is that of a kind; give one of {', '.join(KINDS)}, too.")
    return ends
