"""Lists of a shard as Arrow tables, for programs in Python; the columns of
`duewheel list --output arrow`.

Example:
    from duewheel.tables import pending_table
    tonight = pending_table("duewheel.toml", topic="orders", until="2027-01-15T23:00Z").to_pandas()

The conditions are those of the commands, by the names of their options; `since` and `until` stand
for `from` and `to`, and may also be datetimes with a zone, or ints: epoch milliseconds (`since` of
dead letters: an offset). A table is in memory as a whole: some 300 bytes a row. All functions raise
ConfigError for a condition that is wrong, and as the command does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from duewheel.api.arrow_columns import batches_of, schema_of
from duewheel.api.dead_letters import DeadLetterFilter, DeadLetterSummary
from duewheel.api.model import RequestFields, Result
from duewheel.api.receipts import DeliveryReceipt, ReceiptFilter
from duewheel.api.requests import TimerFilter
from duewheel.api.schedules import ScheduleFilter, ScheduleSummary
from duewheel.api.timers import TimerSummary
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError
from duewheel.ops.dead_letters.listing import list_letters
from duewheel.ops.receipts import list_receipts
from duewheel.ops.schedules.listing import all_schedules
from duewheel.ops.timers.pending import list_timers

Condition = str | int | datetime | None

_IN_JSON = {"since": "from", "until": "to"}


@dataclass(frozen=True, slots=True)
class TableList:
    """A list of a shard as a table, read as far as it is iterated.

    Attributes:
        row: has the columns.
        conditions: has the conditions.
    """

    row: type[Result]
    conditions: type[RequestFields]
    _rows: Callable[[Settings, Any, int], Iterator[Result]]

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return schema_of(self.row)

    def wanted(self, conditions: Mapping[str, Condition]) -> RequestFields:
        """The conditions, checked.

        Raises:
            ConfigError: there is no such condition, or its value is wrong.
        """
        given = {name: each for name, each in conditions.items() if each is not None}
        fields = {_IN_JSON.get(name, name): each for name, each in given.items()}
        for name in fields.keys() & _IN_JSON.values():
            each = fields[name]
            fields[name] = each.isoformat() if isinstance(each, datetime) else str(each)
        return self.conditions.of(fields, {each: name for name, each in _IN_JSON.items()})

    def batches(
        self, config: str | Path | None, limit: int | None, conditions: Mapping[str, Condition]
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows that match, some thousand at a time; arguments as of `pending_table`."""
        most = sys.maxsize if limit is None else limit
        if most < 1:
            raise ConfigError("limit: at least 1")
        rows = self._rows(load(config), self.wanted(conditions), most)
        yield from batches_of(self.row, islice(rows, most))

    def table(
        self, config: str | Path | None, limit: int | None, conditions: Mapping[str, Condition]
    ) -> pa.Table:
        """All of `batches`."""
        return pa.Table.from_batches(self.batches(config, limit, conditions), self.schema)


def _schedules(settings: Settings, wanted: ScheduleFilter, limit: int) -> Iterator[ScheduleSummary]:
    return all_schedules(settings, SystemClock(), limit, wanted.timer_topic)


LISTS = {
    "pending": TableList(TimerSummary, TimerFilter, list_timers),
    "receipts": TableList(
        DeliveryReceipt, ReceiptFilter, lambda settings, wanted, _: list_receipts(settings, wanted)
    ),
    "dead-letters": TableList(
        DeadLetterSummary,
        DeadLetterFilter,
        lambda settings, wanted, _: list_letters(settings, wanted),
    ),
    "schedules": TableList(ScheduleSummary, ScheduleFilter, _schedules),
}
"""The lists by name."""


def pending_table(
    config: str | Path | None = None, *, limit: int | None = None, **conditions: Condition
) -> pa.Table:
    """Pending timers in the order in which they leave, from the shard's data directory.

    Args:
        config: the TOML file of the settings; by default as a command finds it.
        limit: how many rows at most.
        conditions: topic, id, key, key_base64, tag, level, timer_topic, since, until.
    """
    return LISTS["pending"].table(config, limit, conditions)


def receipts_table(
    config: str | Path | None = None, *, limit: int | None = None, **conditions: Condition
) -> pa.Table:
    """Receipts of deliveries, oldest first within each partition of their topic, from Kafka.

    Args:
        config, limit: as of `pending_table`.
        conditions: id, target, since, until.
    """
    return LISTS["receipts"].table(config, limit, conditions)


def dead_letters_table(
    config: str | Path | None = None, *, limit: int | None = None, **conditions: Condition
) -> pa.Table:
    """Dead letters, oldest first within each partition of their topic, from Kafka.

    Args:
        config, limit: as of `pending_table`.
        conditions: code, timer_topic, since.
    """
    return LISTS["dead-letters"].table(config, limit, conditions)


def schedules_table(
    config: str | Path | None = None, *, limit: int | None = None, **conditions: Condition
) -> pa.Table:
    """Recurring schedules, from the shard's data directory, as in `duewheel schedule list`; one
    that fires at this moment is missing.

    Args:
        config: as of `pending_table`.
        limit: how many rows at most: those that fire first.
        conditions: timer_topic.
    """
    return LISTS["schedules"].table(config, limit, conditions)
