"""Optuna studies over the paper's ranges (Table 1), and the published hyperparameters beside the
best found.
"""
