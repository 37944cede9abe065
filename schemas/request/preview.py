"""Previews before a request is written how ingest will read it, by the same rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from duewheel.schemas.batches import ACCEPTED
from duewheel.schemas.request.acceptance_rules import VALUE
from duewheel.schemas.request.parser import WAITED, Contract, parse_with_columns
from duewheel.schemas.request.unread_batches import UNREADABLE_CODE
from duewheel.schemas.wire.batch_reader import HEADERS_MAX, BatchBody
from duewheel.schemas.wire.record_reader import read_batches
from duewheel.schemas.wire.single_record import Header, encode

Record = tuple[bytes | None, bytes | None, Sequence[Header]]
"""Key, value and headers."""

# Of records that no rule of the suite has judged.
_REASONS: Mapping[str, str] = {
    WAITED: "it ends with the headers of a dead letter that waits for its topic",
    UNREADABLE_CODE: f"it has more headers than {HEADERS_MAX}, those of a record batch",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a record would become, or stay, a dead letter: its TIMER_ERROR_CODE and TIMER_ERROR."""

    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Preview:
    """How ingest will read a record."""

    rejection: Rejection | None  # why it becomes a dead letter; None: it is accepted
    due_ms: int | None  # None for a cancel, and for a rejected record
    target: str | None  # likewise


def rejection_of(
    contract: Contract,
    timer_topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
    now_ms: int,
) -> Rejection | None:
    """Parses one record of a timer topic as ingest will; None if it is accepted. `now_ms` stands
    for its timestamp.
    """
    (preview,) = previews_of(contract, timer_topic, [(key, value, headers)], now_ms)
    return preview.rejection


def previews_of(
    contract: Contract, timer_topic: str, records: Sequence[Record], now_ms: int
) -> list[Preview]:
    """Parses records of a timer topic as ingest will, one preview for each. `now_ms` stands for
    their timestamp.
    """
    return [
        preview
        for batch in _batches(records)
        for preview in _of_batch(contract, timer_topic, batch, now_ms)
    ]


def _batches(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Divides the records: together they may have more headers than a batch, and ingest will not
    read them as one. A record that has more by itself is alone.
    """
    first, left = 0, HEADERS_MAX
    for place, (_, _, headers) in enumerate(records):
        if len(headers) > left and first < place:
            yield records[first:place]
            first, left = place, HEADERS_MAX
        left -= len(headers)
    if records:
        yield records[first:]


def _of_batch(
    contract: Contract, timer_topic: str, records: Sequence[Record], now_ms: int
) -> Iterator[Preview]:
    octets = b"".join(encode(place, *record) for place, record in enumerate(records))
    body = BatchBody(
        octets=memoryview(octets),
        first=0,
        end=len(octets),
        count=len(records),
        base_offset=0,
        base_ms=now_ms,
        append_ms=-1,
        partition=0,
        last_offset=len(records) - 1,
    )
    batch, columns = parse_with_columns(read_batches([body], [(timer_topic, 0)]), contract)
    rows = zip(
        batch.code.tolist(),
        batch.timer.tolist(),
        batch.due_ms.tolist(),
        batch.target.tolist(),
        strict=True,
    )
    rules = contract.rules.rules
    for row, (code, is_timer, due_ms, target) in enumerate(rows):
        if code >= len(rules):
            name = batch.codes[code]
            yield Preview(Rejection(name, _REASONS[name]), None, None)
        elif code != ACCEPTED:
            rule = rules[code]
            checked = columns.column(rule.column)[row].as_py()
            reason = rule.reason.replace(VALUE.decode(), str(checked))
            yield Preview(Rejection(rule.code, reason), None, None)
        elif is_timer:
            yield Preview(None, due_ms, batch.targets[target])
        else:
            yield Preview(None, None, None)
