"""The parts of `fit_policy`: target, start, schedule, steps, what watches them, and the ELBO."""
