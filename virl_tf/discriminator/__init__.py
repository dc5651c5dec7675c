"""The discriminators phi_t: Keras networks trained by importance-weighted cross-entropy, and their
frozen form.
"""
