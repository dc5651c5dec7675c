"""Angles along a path: where one wraps, a path seems to go the other way round."""

import numpy as np

from virl_tf.trajectories.episodes import Episodes

TURNS = {2.0 * np.pi: "2 * np.pi", 360.0: "360"}
NEARLY_ALL = 0.9  # of a turn, which all values span, and which a wrapped step seems to go
OTHER_STEPS = 0.25  # of a turn, which nine in ten of a column's steps stay below


def wrapped_angles(episodes: Episodes) -> list[str]:
    """A line for each column that jumps by a whole turn within an episode, with what to do."""
    lines = []
    values = [np.asarray(one, np.float64) for one in episodes.values]
    for i, name in enumerate(episodes.columns):
        columns = [one[:, i] for one in values]
        span = max(x.max() for x in columns) - min(x.min() for x in columns)
        largest = [np.abs(np.diff(x)) for x in columns]
        usual = np.quantile(np.concatenate(largest), 0.9)
        for turn, written in TURNS.items():
            jumps = sum(bool((steps > NEARLY_ALL * turn).any()) for steps in largest)
            is_angle = NEARLY_ALL * turn < span <= turn * (1.0 + 1e-6)
            if jumps and is_angle and usual < OTHER_STEPS * turn:
                lines.append(
                    f"column {name!r} jumps by a whole turn within {jumps} of {len(values)} "
                    "trajectories: between samples they seem to go the other way round. If it is "
                    f"an angle, unwrap it in each of them: np.unwrap(x, period={written})."
                )
    return lines
