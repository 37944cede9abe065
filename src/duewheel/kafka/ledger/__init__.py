"""Transactions: `transactional_producer` runs one, `command_ledger` writes a command's records.

`producer_internals` has all use of private parts of kafka-python. A doubtful transaction is
resolved in wheel/ledger.py.
"""
