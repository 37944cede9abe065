"""Results and requests of commands and of the HTTP API: one frozen model for each, with units and
help on its fields. `ops` makes the results; `cli` and `serve` show them.
"""
