"""The command line: commands, their flags, how results are shown."""
