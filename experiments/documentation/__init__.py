"""The documentation as a site, and the tables in it."""
