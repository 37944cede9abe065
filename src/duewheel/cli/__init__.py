"""The command line: commands, flags, and the output of results."""
