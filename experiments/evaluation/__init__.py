"""How the runs of a kind of task are measured: densities by their I-projection, walks by their
modes.
"""
