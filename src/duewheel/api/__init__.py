"""What commands and HTTP requests return and take: one frozen model for each, with units and help
on its fields. `ops` makes the results; `cli` and `serve` show them.
"""
