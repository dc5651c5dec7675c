"""Variational Inference by Policy Search: trust-region updates of a Gaussian mixture towards an
unnormalised log density.
"""
