"""Everything that is written to disk and read back: atomically, and never executed."""
