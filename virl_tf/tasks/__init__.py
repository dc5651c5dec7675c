"""The paper's tasks: a density to learn from, and demonstrations drawn from it."""

from virl_tf.tasks.base import Task
from virl_tf.tasks.gaussians import RandomGaussians

__all__ = ["RandomGaussians", "Task"]
