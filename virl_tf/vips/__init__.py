"""Variational Inference by Policy Search: a Gaussian mixture moves towards exp(log p*)."""
