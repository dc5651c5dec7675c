"""Many runs, on one machine or many: their units, how long they take, and ablations."""
