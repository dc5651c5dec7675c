"""Gaussian mixtures of demonstrations by expectation-maximisation."""
