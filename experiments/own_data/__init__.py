"""A user's own demonstrations: their files, what is asked of them, and the commands that answer."""
