"""Optuna studies over the paper's ranges (Table 1), and published against found values."""
