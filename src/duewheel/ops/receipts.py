"""`duewheel receipts`: searches the receipts topic, a bounded part at a time.

Keys and instants are compared in columns; only receipts that match become objects. A search reads
all partitions in their order, each from the offset of its first instant: the topic may have had
fewer partitions when a receipt was written, so the id alone names none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow.compute

from duewheel.api.receipts import DeliveryReceipt, ReceiptFilter, ReceiptList, ReceiptQuery
from duewheel.config.range_ends import Bound
from duewheel.config.settings import Settings
from duewheel.errors import INIT_MAKES_IT, ConfigError, NoReceipts
from duewheel.kafka.log.columns import committed_records, records_one_by_one
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.kafka.log.reader import LogReader
from duewheel.kafka.targets.ttl_cache import TtlCache
from duewheel.ops.log_reader import by_number, log_reader
from duewheel.ops.pages import (
    Parts,
    page_of_parts,
    position_in,
    position_text,
    ranges_after,
    rows_of_parts,
)
from duewheel.schemas.arrays import Bool
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.columns import constant, filled
from duewheel.schemas.partition_names import partition_name
from duewheel.schemas.receipts import Receipt, target_pattern
from duewheel.schemas.topic_scope import ALL_TOPICS, TopicScope
from duewheel.schemas.wire.kafka_records import KafkaRecords

_pc: Any = pyarrow.compute

_ENDS_KEPT_S = 0.1


def list_receipts(
    settings: Settings, wanted: ReceiptFilter, page: str | None = None
) -> Iterator[DeliveryReceipt]:
    """Yields receipts, oldest first within each partition of their topic; `page` is the position
    of the last one that the caller has.

    Raises:
        ConfigError: `page` does not parse.
        NoReceipts: the settings name no topic for them.
        Misconfigured: the topic does not exist.
        KafkaUnavailable: no answer in time.
    """
    return rows_of_parts(_parts(settings, wanted, page))


def page_of_receipts(
    settings: Settings, wanted: ReceiptQuery, within_s: float, scope: TopicScope = ALL_TOPICS
) -> ReceiptList:
    """A page of the receipts that `list_receipts` yields, of the timer topics in `scope`; after
    `within_s` it ends, with those so far. Raises as `list_receipts`.
    """
    parts = _parts(settings, wanted, wanted.page, scope)
    rows, following = page_of_parts(parts, wanted.limit, within_s, lambda row: row.receipt)
    return ReceiptList(receipts=rows, next=following)


def _parts(
    settings: Settings, wanted: ReceiptFilter, page: str | None, scope: TopicScope = ALL_TOPICS
) -> Parts[DeliveryReceipt]:
    """Yields the rows of a part of the topic, and the position of the last receipt in that part."""
    after = position_in(page)
    with _reader(settings) as reader:
        until = _time(wanted.until_ms)
        bounds = by_number(reader.bounds(_time(wanted.since_ms), until, committed=True))
        for number, start, end in ranges_after(after, bounds):
            partition = _topic(settings), number
            for fetched, rows in _rows(reader, partition, start, end, wanted, scope):
                yield rows, position_text(number, min(fetched.end, end) - 1)


def _reader(settings: Settings) -> LogReader:
    return log_reader(settings, _topic(settings))


class ReceiptOffsets:
    """Asks for offsets by partition, which rise, again and again over the same connections. Not
    thread-safe.

    Raises as `list_receipts`.
    """

    def __init__(self, settings: Settings) -> None:
        self._reader = _reader(settings)
        self._kept: TtlCache[str, dict[int, int]] = TtlCache()

    def firsts(self, wanted: ReceiptFilter) -> dict[int, int]:
        """Where the receipts that are wanted begin, at the end of the committed ones at most."""
        self._existing()
        found = by_number(self._reader.bounds(_time(wanted.since_ms), committed=True))
        return {number: first for number, (first, _) in sorted(found.items())}

    def ends(self) -> dict[int, int]:
        """Where the committed receipts end, or ended 100 ms ago.

        Spark asks every 10 ms while a stream is idle.
        """
        ends = self._kept.get("ends")
        if ends is None:
            found = by_number(self._reader.ends(self._existing(), committed=True))
            ends = dict(sorted(found.items()))
            self._kept.put("ends", ends, _ENDS_KEPT_S)
        return ends

    def _existing(self) -> Sequence[TopicPartition]:
        # A topic that the metadata lacks for a moment has no partitions: an end without them would
        # be in the checkpoint for good.
        return self._reader.existing(hint=INIT_MAKES_IT)

    def close(self) -> None:
        """Closes the connections."""
        self._reader.close()


def receipts_between(
    settings: Settings, wanted: ReceiptFilter, number: int, start: int, end: int
) -> Iterator[DeliveryReceipt]:
    """Yields the receipts of a partition from one offset to before another.

    Raises:
        ConfigError: some of the offsets were removed from the topic; or as `list_receipts`.
        KafkaUnavailable: no answer in time.
    """
    with _reader(settings) as reader:
        partition, reached = (_topic(settings), number), start
        for fetched, rows in _rows(reader, partition, start, end, wanted, ALL_TOPICS):
            _require_offsets(partition, reached, fetched.begin)
            yield from rows
            reached = fetched.end
        _require_offsets(partition, reached, end)


def _require_offsets(partition: TopicPartition, reached: int, following: int) -> None:
    if reached < following:
        raise ConfigError(
            f"{partition_name(partition)} lacks the offsets {reached} to {following - 1}: they "
            "were removed, by the topic's retention or with the topic, before they were read"
        )


def _rows(
    reader: LogReader,
    partition: TopicPartition,
    start: int,
    end: int,
    wanted: ReceiptFilter,
    scope: TopicScope,
) -> Iterator[tuple[Fetched, list[DeliveryReceipt]]]:
    """Yields the answers for a range, each with its rows."""
    ranges = {partition: (start, end)}
    for part in reader.read(ranges):
        matching = chain.from_iterable(
            matches(records, wanted) for records in committed_records(part, ranges)
        )
        rows = [
            _row(receipt, partition[1], offset)
            for offset, receipt in matching
            if scope.has_record(receipt.source)
        ]
        yield part[0], rows


def _topic(settings: Settings) -> str:
    topic = settings.timer.receipts_topic
    if topic is None:
        raise NoReceipts("there are no receipts: timer.receipts_topic names no topic")
    return topic


def _time(time_ms: int | None) -> Bound | None:
    return None if time_ms is None else Bound(time_ms=time_ms)


def matches(records: KafkaRecords, wanted: ReceiptFilter) -> Iterator[tuple[int, Receipt]]:
    """Yields offset and receipt of each record that matches."""
    rows = np.flatnonzero(_selected(records, wanted))
    for offset, timestamp_ms, key, value, _ in records_one_by_one(records.take(rows)):
        receipt = Receipt.parse(key, value, timestamp_ms)
        if receipt is not None and wanted.target in {None, receipt.target}:
            yield offset, receipt


def _selected(records: KafkaRecords, wanted: ReceiptFilter) -> Bool:
    selected = np.ones(len(records), np.bool_)
    if (since_ms := wanted.since_ms) is not None:
        selected &= records.timestamp_ms >= since_ms
    if (until_ms := wanted.until_ms) is not None:
        selected &= records.timestamp_ms < until_ms
    if wanted.id is not None:
        wanted_key = constant(wanted.id.encode())
        selected &= np.asarray(_pc.equal(filled(records.key.column()), wanted_key))
    if wanted.target is not None:
        pattern = target_pattern(wanted.target)
        values = filled(records.value.column())
        selected &= np.asarray(_pc.match_substring(values, pattern=pattern))
    return selected


def _row(receipt: Receipt, number: int, offset: int) -> DeliveryReceipt:
    return DeliveryReceipt(
        id=receipt.timer_id,
        source=receipt.source,
        target=receipt.target,
        target_partition=receipt.target_partition,
        due_ms=receipt.due_ms,
        delivered_ms=receipt.delivered_ms,
        lateness_ms=receipt.lateness_ms,
        receipt=position_text(number, offset),
    )
