"""Trajectories in, trajectories out: codes of a few numbers for `fit`, and paths of these again."""

from virl_tf.trajectories.choice import fit_encoding
from virl_tf.trajectories.encoding import Encoding, Reconstruction, TrajectoryEncoding
from virl_tf.trajectories.episodes import Episodes, check_episodes

__all__ = [
    "Encoding",
    "Episodes",
    "Reconstruction",
    "TrajectoryEncoding",
    "check_episodes",
    "fit_encoding",
]
