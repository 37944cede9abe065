"""`duewheel receipts`: searches the receipts topic, a bounded part at a time.

Keys and instants are compared in columns; only receipts that match become objects. A search reads
all partitions in their order, each from the offset of its first instant: the topic may have had
fewer partitions when a receipt was written, so the id alone names none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.compute

from duewheel.api.receipts import DeliveryReceipt, ReceiptFilter, ReceiptList
from duewheel.config.bounds import Bound
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.log.columns import committed_records, rows_of
from duewheel.kafka.log.connection import INIT_MAKES_IT, Waits
from duewheel.kafka.log.reader import LogReader
from duewheel.ops.pages import place_before, ranges_after
from duewheel.schemas.arrays import Bool
from duewheel.schemas.columns import constant, filled
from duewheel.schemas.receipts import Receipt, target_pattern
from duewheel.schemas.wire.kafka_records import KafkaRecords

_pc: Any = pyarrow.compute

_FETCH_BYTES = 1 << 20
_WAITS = Waits(stalled_s=30.0)


def page_of_receipts(
    settings: Settings, wanted: ReceiptFilter, *, limit: int, page: str | None, within_s: float
) -> ReceiptList:
    """Returns a page of receipts, oldest first within each partition of their topic; after
    `within_s` it ends, with those so far.

    Raises:
        ConfigError: `page` does not parse, there are no receipts, or no such topic.
        KafkaUnavailable: no answer in time.
    """
    topic = _topic(settings)
    after = place_before(page)
    end_s, rows = time.monotonic() + within_s, list[DeliveryReceipt]()
    client = ClientSettings(settings.kafka.client_options("consumer"))
    with LogReader(client, [topic], waits=_WAITS) as reader:
        reader.existing(hint=INIT_MAKES_IT)
        found = reader.bounds(_time(wanted.since_ms), _time(wanted.until_ms))
        bounds = {number: each for (_, number), each in found.items()}
        for number, start, end in ranges_after(after, bounds):
            ranges = {(topic, number): (start, end)}
            for part in reader.read(ranges, _FETCH_BYTES):
                for records in committed_records(part, ranges):
                    for offset, receipt in matching(records, wanted):
                        rows.append(_row(receipt, number, offset))
                        if len(rows) == limit:
                            return ReceiptList(receipts=rows, next=rows[-1].receipt)
                if time.monotonic() > end_s:
                    next_page = f"{number}@{min(part[0].end, end) - 1}"
                    return ReceiptList(receipts=rows, next=next_page)
    return ReceiptList(receipts=rows, next=None)


def _topic(settings: Settings) -> str:
    topic = settings.timer.receipts_topic
    if topic is None:
        raise ConfigError("there are no receipts: timer.receipts_topic names no topic")
    return topic


def _time(time_ms: int | None) -> Bound | None:
    return None if time_ms is None else Bound(time_ms=time_ms)


def matching(records: KafkaRecords, wanted: ReceiptFilter) -> Iterator[tuple[int, Receipt]]:
    """Yields offset and receipt of each record that matches."""
    rows = np.flatnonzero(_selected(records, wanted))
    for offset, timestamp_ms, key, value, _ in rows_of(records.take(rows)):
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
        receipt=f"{number}@{offset}",
    )
