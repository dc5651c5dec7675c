"""Trajectories in, trajectories out: codes of a few numbers for `fit`, and paths of these again."""
