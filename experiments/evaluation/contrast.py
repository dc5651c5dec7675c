"""Rewards at modes and at random points on one scale, for Figure 7 and its numbers."""

import numpy as np


def normalised_rewards(
    at_modes: np.ndarray, at_random: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Both scaled together to [0, 1]; a constant to 0."""
    together = np.concatenate([at_modes, at_random])
    low, width = together.min(), np.ptp(together) or 1.0
    return (at_modes - low) / width, (at_random - low) / width
