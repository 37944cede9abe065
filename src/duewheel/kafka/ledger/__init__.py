"""Transactions: `transactional_producer` runs one, `record_ledger` writes a command's records.

`producer_internals` has all use of what kafka-python does not publish. A doubtful transaction is
resolved in wheel/ledger.py.
"""
