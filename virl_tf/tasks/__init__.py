"""Tasks: a density to learn from, and demonstrations drawn from it.

The paper's, and the planar robot of VIPS.
"""

from virl_tf.tasks.base import Task
from virl_tf.tasks.gaussians import RandomGaussians
from virl_tf.tasks.grid_walker import GridWalker
from virl_tf.tasks.path_planning import PathPlanning
from virl_tf.tasks.planar_robot import PlanarRobot

__all__ = ["GridWalker", "PathPlanning", "PlanarRobot", "RandomGaussians", "Task"]
