"""Times and counts: what each part costs, and how far it is from the machine's ceiling."""
