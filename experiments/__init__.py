"""The paper's experiments: runs, inference and figures behind one command line, `python -m
experiments`.
"""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"  # the committed ones
