"""The paper's tasks: a density to learn from, and demonstrations drawn from it."""

from virl_tf.tasks.base import Task
from virl_tf.tasks.gaussians import RandomGaussians
from virl_tf.tasks.grid_walker import GridWalker
from virl_tf.tasks.path_planning import PathPlanning

__all__ = ["GridWalker", "PathPlanning", "RandomGaussians", "Task"]
