"""Tasks: a density to learn from, and demonstrations drawn from it.

The paper's, the planar robot of VIPS, and stand-ins of human demonstrations.
"""

from virl_tf.tasks.base import Task
from virl_tf.tasks.gaussians import RandomGaussians
from virl_tf.tasks.grid_walker import GridWalker
from virl_tf.tasks.hall import Hall
from virl_tf.tasks.obstacle_field import ObstacleField
from virl_tf.tasks.path_planning import PathPlanning
from virl_tf.tasks.planar_robot import PlanarRobot

__all__ = [
    "GridWalker",
    "Hall",
    "ObstacleField",
    "PathPlanning",
    "PlanarRobot",
    "RandomGaussians",
    "Task",
]
