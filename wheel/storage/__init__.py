"""The files of one data directory: formats, reads, writes, checks. No clock."""
