"""Tells before a request is written what ingest will make of it, by the same rules."""

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
    """Why ingest would make a dead letter of a request.

    Attributes:
        code: its TIMER_ERROR_CODE.
        reason: its TIMER_ERROR.
    """

    code: str
    reason: str


def rejection_of(
    contract: Contract,
    timer_topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
    now_ms: int,
) -> Rejection | None:
    """Parses one record as ingest will; None if it is accepted.

    Args:
        contract: of the shard.
        timer_topic: in which it will be written.
        key, value, headers: the record.
        now_ms: stands for its timestamp.
    """
    octets = encode(0, key, value, headers)
    body = BatchBody(
        octets=memoryview(octets),
        first=0,
        end=len(octets),
        count=1,
        base_offset=0,
        base_ms=now_ms,
        append_ms=-1,
        partition=0,
    )
    batch, columns = parse_with_columns(read_batches([body], [(timer_topic, 0)]), contract)
    code = int(batch.code[0])
    if code == ACCEPTED:
        return None
    rule = contract.rules.rules[code]
    checked = columns.column(rule.column)[0].as_py()
    return Rejection(rule.code, rule.reason.replace(VALUE.decode(), str(checked)))
