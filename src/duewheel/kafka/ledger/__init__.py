"""Transactions: `transactional_producer` runs one, `command_ledger` writes a command's
`new_records`, and `ledger_run` repeats it over the parts of a source.

`producer_internals` has all use of private parts of kafka-python's producer. A doubtful transaction
is resolved in wheel/doubt_resolution.py.
"""
