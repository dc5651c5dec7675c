"""What `play` is asked for beside a fit: all that needs no TensorFlow."""

from typing import NamedTuple

from virl_tf.validation import check_integer

from experiments.user_functions import NamedFunction, load_world


class PlayRequest(NamedTuple):
    """What is played where.

    Attributes:
        world: the user's `World`: (n, seed) -> n that stand at their starts.
        steps: samples until a new move is chosen; None: a ninth of an episode.
        runs: how many are played.
        candidates: that are proposed to the reward.
    """

    world: NamedFunction
    steps: int | None = None
    runs: int = 500
    candidates: int = 8

    @classmethod
    def of(cls, world: str, steps: int | None, runs: int, candidates: int) -> "PlayRequest":
        """Of the command's options. Raises InputError for one that cannot be used."""
        if steps is not None:
            check_integer("--move-steps", steps, 1)
        check_integer("--runs", runs, 1)
        check_integer("--candidates", candidates, 1)
        return cls(load_world(world), steps, runs, candidates)
