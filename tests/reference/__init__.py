"""Slow, obvious versions of what virl_tf computes, for the tests to compare with: NumPy, SciPy and
Python loops.
"""
