"""The paper's experiments: runs, inference and figures behind one command line, `python -m
experiments`.
"""
