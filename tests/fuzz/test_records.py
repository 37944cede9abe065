"""Records of other writers, read one by one: in columns and in plain Python they are the same; what
is no reply, receipt or dead letter is left out, or refused with a reason.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.record_batches import RECORDS, batch, sealed

from duewheel.api.receipts import ReceiptFilter
from duewheel.checkpoints import held_copies, pauses
from duewheel.checkpoints.dlq_replay_position import ReplayPosition
from duewheel.checkpoints.import_position import ImportPosition
from duewheel.checkpoints.relay_position import RelayPosition
from duewheel.checkpoints.reshard_records import is_unfinished_notice, notice
from duewheel.client.replies import replies_in
from duewheel.client.retry_headers import Attempts, Failure, error_text, own_headers
from duewheel.errors import RecoveryRefused
from duewheel.kafka.log.columns import committed_records, records_one_by_one
from duewheel.kafka.log.leader_requests import Fetched
from duewheel.kafka.log.records import Record, records_of
from duewheel.ops.dead_letters.listing import letter_of, summary_of
from duewheel.ops.dead_letters.wanted_letters import WantedLetters
from duewheel.ops.receipts import matches
from duewheel.ops.recovery.evidence import EvidenceReader, timer_keys
from duewheel.schemas.dead_letters import DeadLetter
from duewheel.schemas.header_names import (
    ANSWER,
    ERROR_CODE,
    RETRY_ATTEMPT,
    RETRY_DEADLINE_MS,
    RETRY_FIRST,
    RETRY_HISTORY,
    SOURCE,
    Answer,
)
from duewheel.schemas.receipts import Receipt
from duewheel.schemas.topic_scope import TopicScope
from duewheel.schemas.wire.batch_header import HEADER_BYTES
from duewheel.schemas.wire.record_batch import Batch
from duewheel.schemas.wire.single_record import encode

Change = Callable[[st.DataObject, bytes], bytes]


class Consumed(NamedTuple):
    """The part of a consumer's record that retries read."""

    topic: str
    partition: int
    offset: int
    headers: Sequence[tuple[str, bytes | None]]


PLACE = ("timers", 0)


def fetched_of(octets: bytes) -> Fetched:
    return Fetched(PLACE, memoryview(octets), [], 0, 1 << 40)


def sealed_body(body: bytes, count: int) -> bytes:
    """A batch as a broker takes it, with these bytes for its records."""
    octets = bytearray(batch([(0, None, None, [])])[:HEADER_BYTES]) + body
    struct.pack_into(">i", octets, 8, len(octets) - 12)
    struct.pack_into(">i", octets, 23, count - 1)
    struct.pack_into(">i", octets, HEADER_BYTES - 4, count)
    return bytes(sealed(octets))


@given(data=st.data(), records=RECORDS)
def test_rows_are_the_same_in_python_and_in_columns(
    damage: Change, data: st.DataObject, records: object
) -> None:
    whole = bytes(batch(records))  # type: ignore[arg-type]
    (count,) = struct.unpack_from(">i", whole, HEADER_BYTES - 4)
    fetched = fetched_of(sealed_body(damage(data, whole[HEADER_BYTES:]), count))
    found = list(committed_records([fetched], {PLACE: (0, 1 << 40)}))
    if any(group.unread is not None for group in found):
        list(records_of(fetched))  # may have read some before it finds out
        return
    rows = [
        Record(*PLACE, offset, timestamp_ms, key, value, list(headers))
        for group in found
        for offset, timestamp_ms, key, value, headers in records_one_by_one(group)
    ]
    assert list(records_of(fetched)) == rows


@given(
    data=st.data(),
    headers=st.lists(st.sampled_from([SOURCE, ANSWER, "trace"]), max_size=4),
)
def test_any_reply(damage: Change, data: st.DataObject, headers: list[str]) -> None:
    samples = {SOURCE: b"timers-0@17", ANSWER: b"cancelled", "trace": b"7"}
    record = encode(0, b"key", None, [(name, samples[name]) for name in headers])
    fetched = fetched_of(sealed_body(damage(data, record), 1))
    for source, word in replies_in(records_of(fetched)):
        assert source and word in Answer


RECEIPT = b'{"source":"timers-0@17","target":"orders","target_partition":3,"due_ms":1800000000000}'


NARROW = ReceiptFilter.of({"id": "order", "target": "orders", "from": "0", "to": f"{1 << 49}"})


def check_receipt(value: bytes) -> None:
    fetched = fetched_of(sealed_body(encode(0, b"order", value, []), 1))
    for records in committed_records([fetched], {PLACE: (0, 1)}):
        for wanted in (ReceiptFilter(), NARROW):
            for _, found in matches(records, wanted):
                assert -(2**63) <= found.due_ms < 2**63
                assert json.dumps([found.source, found.target], ensure_ascii=False).encode()


@given(data=st.data())
def test_any_receipt(damage: Change, alter: Change, data: st.DataObject) -> None:
    check_receipt(data.draw(st.sampled_from([damage, alter]))(data, RECEIPT))
    found = Receipt.parse(None, RECEIPT, 0)
    assert found is not None and found.target == "orders"


@pytest.mark.parametrize("number", [b'due_ms":0', b'target_partition":0'])
def test_a_mirrored_receipt_has_numbers_as_in_json(number: bytes) -> None:
    name = number[:-1]
    value = RECEIPT.replace(name, number)
    assert Receipt.parse(b"order", value, 0) is None
    fetched = fetched_of(sealed_body(encode(0, b"order", value, []), 1))
    for read in committed_records([fetched], {PLACE: (0, 1)}):
        assert not len(EvidenceReader([PLACE])._add_receipts(read))  # noqa: SLF001 - as below


@given(data=st.data())
def test_any_mirrored_receipt(damage: Change, alter: Change, data: st.DataObject) -> None:
    """Evidence is only what `receipts` lists as a receipt of this partition."""
    value = data.draw(st.sampled_from([damage, alter]))(data, RECEIPT)
    key = damage(data, b"order")
    reader, listed = EvidenceReader([PLACE]), Receipt.parse(key, value, 0)
    fetched = fetched_of(sealed_body(encode(0, key, value, []), 1))
    for read in committed_records([fetched], {PLACE: (0, 1)}):
        taken = reader._add_receipts(read)  # noqa: SLF001 - with a reader it needs Kafka
        evidence = reader.by_partition()
        assert len(taken) == len(evidence) <= 1
        if evidence:
            assert listed is not None and listed.source.startswith("timers-0@")
            assert evidence[0].left(timer_keys([key], [listed.due_ms])).tolist() == [1]


@given(data=st.data())
def test_any_listed_dead_letter(damage: Change, data: st.DataObject) -> None:
    headers = [("trace", b"1"), (ERROR_CODE, b"bad_due_time"), (SOURCE, b"timers-0@17")]
    body = damage(data, encode(0, b"key", b"value", headers))
    position, fetched = ReplayPosition("an-id"), fetched_of(sealed_body(body, 1))
    wanted = WantedLetters("bad_due_time", TopicScope(("timers",)))
    for read in committed_records([fetched], {PLACE: (0, 1)}):
        for row in records_one_by_one(read.take(wanted.rows(read))):
            letter = DeadLetter(0, *row)
            assert (letter.code, letter.timer_topic) == ("bad_due_time", "timers")
    for record in records_of(fetched):
        letter = letter_of(record)
        assert json.dumps(summary_of(letter, position).as_json(), ensure_ascii=False).encode()


def retried(headers: list[tuple[str, bytes | None]]) -> Attempts:
    """What a consumer reads, and what it writes with its next failure."""
    found = Attempts.of(Consumed("orders", 0, 17, headers))
    assert found.attempt >= 1
    failure = Failure.of(found.attempt, 1_800_000_000_000, OSError("no"), error_text)
    after = found.after(failure, found.deadline_ms)
    written = after.headers(after.attempt)
    assert all(type(name) is str and type(value) is bytes for name, value in written)
    assert sum(len(value) for _, value in written) < 20_000
    if after.attempt < 10**6:
        assert Attempts.of(Consumed("elsewhere", 0, 0, written)) == after
    return found


ENTRY = {"attempt": 1, "at_ms": 1_800_000_000_000, "error": "OSError", "text": "no"}
HISTORY = json.dumps([ENTRY, {**ENTRY, "attempt": 2}]).encode()


@given(data=st.data())
def test_any_headers_of_a_retry(damage: Change, alter: Change, data: st.DataObject) -> None:
    """They are a producer's as well: what does not parse counts as absent, and ends no consumer."""
    sample = {
        RETRY_ATTEMPT: b"3",
        RETRY_FIRST: b"orders-1@7",
        RETRY_DEADLINE_MS: b"1800000000000",
        RETRY_HISTORY: HISTORY,
    }
    assert retried(list(sample.items())).attempt == 3
    name = data.draw(st.sampled_from(sorted(sample)))
    change = data.draw(st.sampled_from([damage, alter] if name == RETRY_HISTORY else [damage]))
    headers: list[tuple[str, bytes | None]] = list(
        {**sample, name: change(data, sample[name])}.items()
    )
    if data.draw(st.booleans()):
        headers.append((data.draw(st.sampled_from(sorted(sample))), None))
    retried(headers)
    assert own_headers(Consumed("orders", 0, 17, [*headers, ("own", None)])) == [("own", b"")]


# ---- state records ------------------------------------------------------------------------------


@given(data=st.data())
def test_any_import_position(damage: Change, alter: Change, data: st.DataObject) -> None:
    written = ImportPosition(5, "00", 4, {("orders", 1): 2}).encode()
    value = data.draw(st.sampled_from([damage, alter]))(data, written)
    with suppress(RecoveryRefused):
        found = ImportPosition.decode(value, "an import")
        assert ImportPosition.decode(found.encode(), "an import") == found


@given(data=st.data())
def test_any_relay_position(damage: Change, alter: Change, data: st.DataObject) -> None:
    written = RelayPosition(5).after([(7, UUID(int=1)), (9, UUID(int=2))]).encode()
    value = data.draw(st.sampled_from([damage, alter]))(data, written)
    with suppress(RecoveryRefused):
        found = RelayPosition.decode(value, "a relay")
        assert RelayPosition.decode(found.encode(), "a relay") == found
        assert all(isinstance(each, UUID) for _, each in found.named_rows)


@given(data=st.data())
def test_any_notice_of_a_reshard(damage: Change, alter: Change, data: st.DataObject) -> None:
    value = data.draw(st.sampled_from([damage, alter]))(data, notice(1, 2, done=False))
    assert is_unfinished_notice(value) in {True, False}


@given(data=st.data())
def test_any_pause(damage: Change, alter: Change, data: st.DataObject) -> None:
    """What is no pause ends it, and changes no other one."""
    key, value = pauses.key_of("target", "a"), pauses.encoded(pauses.PauseRecord(5_000, "why"))
    change = data.draw(st.sampled_from([damage, alter]))
    other = {"target/b": pauses.PauseRecord(None)}
    found = pauses.changed(other, {damage(data, key): value, key: change(data, value)})
    paused = pauses.paused_at(found, 4_000)
    assert all(type(topic) is str for topic in paused.targets | paused.timer_topics)


@given(data=st.data())
def test_any_held_copies(damage: Change, data: st.DataObject) -> None:
    """Damaged ones are refused with a reason: delivery must not go on without them."""
    held = held_copies.Held(3, 2)
    body = encode(0, b"key", b"value", [])
    key = held_copies.key_of(PLACE, held)
    value = held_copies.value_of(Batch(memoryview(body), 1), "0a" * 16)
    place = held_copies.partition_of(damage(data, key))
    assert place is None or (type(place[0]) is str and type(place[1]) is int)
    with suppress(RecoveryRefused):
        found, _ = held_copies.batch_of(damage(data, value))
        assert found.count > 0
