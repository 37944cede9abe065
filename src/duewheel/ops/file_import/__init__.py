"""A timer for each line of a file: acknowledged one by one (`send-lines`), or exactly once."""
