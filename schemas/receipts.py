"""Receipts: a record for each delivered timer, written in the transaction that delivers it.

    key         the timer's id, as in UNIQ_KEY
    value       a JSON object:
                    source              topic-partition@offset of the record that requested it
                    target              the topic that has the message,
                    target_partition    and the partition
                    due_ms              the requested due time, epoch ms
    timestamp   of the record: when it was written, in one transaction with the message. The
                lateness is this minus due_ms; a receipt has no other instant, so none can differ
    headers     none

- The id is the key only: it may be any bytes, which JSON cannot have. Names of topics need no
  escapes, so that values are joined from columns.
- A receipt follows from the row of its delivery; there is no other state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.columns import Column, constant, constants, decimals, join, take
from duewheel.schemas.wire.record_codec import framed
from duewheel.schemas.wire.varint import varint

_OPEN, _CLOSE = constant(b'{"source":"'), constant(b"}")
_NO_HEADERS = constant(varint(0))
_DIGITS = "(?:0|[1-9][0-9]{0,17})"  # as in JSON
RECEIPT_PATTERN = (  # of a value, for columns of them
    r'^\{"source":"(?P<partition>.+)@(?P<offset>[0-9]{1,18})","target":"[\w.-]+",'
    rf'"target_partition":{_DIGITS},"due_ms":(?P<due>-?{_DIGITS})\}}$'
)


def receipt_bodies(
    timer_id: Column,
    source: Column,
    due_ms: Int64,
    destinations: Sequence[TopicPartition],
    destination: Int64,
) -> Column:
    """The receipts of delivered rows, encoded as in records, from the key to the headers.
    `destinations` are the topics and partitions of the messages, indexed by `destination`.
    """
    targets = constants(
        [
            b'","target":"%s","target_partition":%d,"due_ms":' % (topic.encode(), number)
            for topic, number in destinations
        ]
    )
    to = take(targets, destination)
    value = join(_OPEN, source, to, decimals(due_ms), _CLOSE)
    return join(*framed(timer_id), *framed(value), _NO_HEADERS)


@dataclass(frozen=True, slots=True)
class Receipt:
    """A receipt that was read; fields as in the module's head."""

    timer_id: str  # bytes that are no UTF-8 are escaped
    source: str
    target: str
    target_partition: int
    due_ms: int
    delivered_ms: int  # by the clock that stamps the topic's records

    @property
    def lateness_ms(self) -> int:
        return self.delivered_ms - self.due_ms

    @classmethod
    def parse(cls, key: bytes | None, value: bytes | None, timestamp_ms: int) -> Receipt | None:
        """Parses a record of the receipts topic; None: duewheel has not written it."""
        try:
            fields = json.loads(value or b"")
            source, target = fields["source"], fields["target"]
            partition, due_ms = fields["target_partition"], fields["due_ms"]
            for text in (source, target):
                text.encode()  # lone surrogates could not be printed
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None
        if any(
            type(each) is not int or not -(2**63) <= each < 2**63 for each in (partition, due_ms)
        ):
            return None
        timer_id = (key or b"").decode(errors="backslashreplace")
        return cls(timer_id, source, target, partition, due_ms, timestamp_ms)


def target_pattern(target: str) -> str:
    """The part of a value that only receipts of this target have."""
    return f'"target":"{target}","target_partition":'
