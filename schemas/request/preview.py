"""Previews before a request is written how ingest will read it, by the same rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duewheel.schemas.batches import ACCEPTED
from duewheel.schemas.request.acceptance_rules import VALUE
from duewheel.schemas.request.parser import Contract, parse_with_columns
from duewheel.schemas.wire.batch_reader import BatchBody
from duewheel.schemas.wire.record_reader import read_batches
from duewheel.schemas.wire.single_record import Header, encode


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why ingest would make a dead letter of a request: its TIMER_ERROR_CODE and TIMER_ERROR."""

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
    contract: Contract,
    timer_topic: str,
    records: Sequence[tuple[bytes | None, bytes | None, Sequence[Header]]],
    now_ms: int,
) -> list[Preview]:
    """Parses records (key, value, headers) of a timer topic as ingest will. `now_ms` stands for
    their timestamp.
    """
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
    previews = []
    for row, (code, is_timer, due_ms, target) in enumerate(rows):
        if code != ACCEPTED:
            rule = contract.rules.rules[code]
            checked = columns.column(rule.column)[row].as_py()
            reason = rule.reason.replace(VALUE.decode(), str(checked))
            previews.append(Preview(Rejection(rule.code, reason), None, None))
        elif is_timer:
            previews.append(Preview(None, due_ms, batch.targets[target]))
        else:
            previews.append(Preview(None, None, None))
    return previews
