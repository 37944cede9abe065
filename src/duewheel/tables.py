"""Lists of a shard as Arrow tables, for programs in Python; the columns of
`duewheel list --output arrow`.

Example:
    from duewheel.tables import pending_table
    tonight = pending_table("duewheel.toml", topic="orders", until="2027-01-15T23:00Z").to_pandas()

The conditions are those of the commands, by the names of their options; `since` and `until` stand
for `from` and `to`. A table is in memory as a whole: some 300 bytes a row. All functions raise
ConfigError for a condition that is wrong, and as the command does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pyarrow as pa

from duewheel.api.columns import batches_of, schema_of
from duewheel.api.dead_letters import DeadLetterFilter, DeadLetterSummary
from duewheel.api.model import Result
from duewheel.api.receipts import DeliveryReceipt, ReceiptFilter
from duewheel.api.requests import TimerFilter
from duewheel.api.timers import TimerSummary
from duewheel.config.settings import load
from duewheel.ops.dead_letters.listing import list_letters
from duewheel.ops.receipts import list_receipts
from duewheel.ops.timers.pending import list_timers

Condition = str | int | None


def pending_table(
    config: str | Path | None = None, *, limit: int | None = None, **conditions: Condition
) -> pa.Table:
    """Pending timers in the order in which they leave, from the shard's data directory.

    Args:
        config: the TOML file of the settings; by default as a command finds it.
        limit: how many rows at most.
        conditions: topic, id, key, key_base64, tag, level, since, until.
    """
    wanted = TimerFilter.of(_fields(conditions))
    rows = list_timers(load(config), wanted, limit or sys.maxsize)
    return _table(TimerSummary, rows, limit)


def receipts_table(
    config: str | Path | None = None, *, limit: int | None = None, **conditions: Condition
) -> pa.Table:
    """Receipts of deliveries, oldest first within each partition of their topic, from Kafka.

    Args:
        config, limit: as of `pending_table`.
        conditions: id, target, since, until.
    """
    wanted = ReceiptFilter.of(_fields(conditions))
    return _table(DeliveryReceipt, list_receipts(load(config), wanted), limit)


def dead_letters_table(
    config: str | Path | None = None, *, limit: int | None = None, **conditions: Condition
) -> pa.Table:
    """Dead letters, oldest first within each partition of their topic, from Kafka.

    Args:
        config, limit: as of `pending_table`.
        conditions: code, since.
    """
    wanted = DeadLetterFilter.of(_fields(conditions))
    return _table(DeadLetterSummary, list_letters(load(config), wanted), limit)


def _fields(conditions: dict[str, Condition]) -> dict[str, Condition]:
    names = {"since": "from", "until": "to"}
    given = {name: each for name, each in conditions.items() if each is not None}
    return {names.get(name, name): each for name, each in given.items()}


def _table(row: type[Result], rows: Iterable[Result], limit: int | None) -> pa.Table:
    return pa.Table.from_batches(batches_of(row, islice(rows, limit)), schema_of(row))
