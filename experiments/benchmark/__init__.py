"""Times and counts: what each part costs, and how far it is from the machine's ceiling."""

# In this order; here, where --help finds them without NumPy.
PARTS = (
    *("training", "reward", "steps", "kde", "sampling", "growth"),
    *("run", "memory", "vips", "few", "peers"),
)
