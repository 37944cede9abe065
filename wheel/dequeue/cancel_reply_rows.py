"""Makes the replies to cancels, and chases, as rows of a transaction.

reply   to the reply topic: the key of the request, if short; a JSON object with the request and
        its outcome as value; the sender's own headers (below), then TIMER_ANSWER (the outcome),
        UNIQ_KEY (the id) and TIMER_SOURCE (topic-partition@offset of the request)
chase   to the end of the request's own partition: the same key and own headers, no value; then
        the offset of the only timer, if it names one, the id, the offset of the request, and the
        headers of a chase (schemas/header_names.py)

Every client that awaits a reply reads the whole reply topic, and both are written uncompressed. So
they repeat no key above REPEATED_BYTES_MAX, no header beyond that or beyond the first REPEATED_MAX,
and no header name that another reader could not take: only names in UTF-8. A chase with all headers
would let 60 kB of compressed cancels fill 140 MB of their topic.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import (
    ANY_OFFSET,
    ANY_TIME,
    NO_KEY,
    NO_LEVEL,
    NO_PARTITION,
    NO_POLICY,
    Deliveries,
    TopicPartition,
)
from duewheel.schemas.columns import (
    EMPTY,
    Column,
    binary,
    choose,
    constant,
    decimals,
    join,
    lengths,
    take,
)
from duewheel.schemas.hashing import source_names
from duewheel.schemas.header_names import (
    CHASE_FLAG_FOUND,
    CHASE_FLAG_RESCHEDULE,
    NAME_OF,
    Request,
)
from duewheel.schemas.wire.record_codec import framed, header_name, origin_header
from duewheel.schemas.wire.varint import read_varint, varint
from duewheel.wheel.storage.byte_layouts import FLAG_KEEP, FLAG_RESCHEDULE
from duewheel.wheel.storage.cancel_log import CHASE_FOUND, OUTCOMES, is_chase
from duewheel.wheel.storage.message_store import StoredMessages

_KINDS = (b"cancel", b"reschedule", b"keep")  # of requests
REPEATED_BYTES_MAX = 2 << 10  # of a request's key, and of its headers
REPEATED_MAX = 100  # headers: each takes a microsecond, of two bytes, while nothing is delivered
_NULL = varint(-1)  # a record without value


def reply_rows(
    requests: StoredMessages,
    source_partition: Int32,
    source_partitions: Sequence[TopicPartition],
    outcome: Int32,
    delivered_slot: Int64,
    reply_topic: str | None,
) -> Deliveries:
    """Makes replies to requests, and chases; a loop over rows, for a few thousand at most.

    Args:
        requests: from the cancel log.
        source_partition: the timer partition of each, as index in `source_partitions`.
        source_partitions: timer partitions.
        outcome: of each request, index in OUTCOMES.
        delivered_slot: R of each request's partition, by the progress of the same transaction.
        reply_topic: of the replies; None: only chases leave.
    """
    prefix, count = requests.prefix, len(requests.prefix)
    chased = is_chase(outcome)
    targets = list(dict.fromkeys([reply_topic or "", *(topic for topic, _ in source_partitions)]))
    source_topic = np.array([targets.index(topic) for topic, _ in source_partitions], np.int32)
    source_number = np.array([number for _, number in source_partitions], np.int32)
    offset = prefix["origin_offset"].astype(np.int64)
    source = source_names(source_partitions, source_partition, offset)
    replaces = (prefix["flags"] & FLAG_RESCHEDULE) != 0
    kind = np.where(prefix["flags"] & FLAG_KEEP, 2, replaces.astype(np.int64))
    chase_headers, chase_count = _chase_headers(requests, offset, outcome, delivered_slot, replaces)
    reply_headers, reply_count = _reply_headers(requests, outcome)
    own, own_count = _own_headers(requests)
    nothing = np.zeros(count, np.int32)
    without_key = _has_large_key(requests)
    return Deliveries(
        targets=targets,
        target=np.where(chased, source_topic[source_partition], 0).astype(np.int32),
        target_partition=np.where(chased, source_number[source_partition], NO_PARTITION).astype(
            np.int32
        ),
        key_hash=np.where(without_key, NO_KEY, prefix["key_hash"]).astype(np.int32),
        due_ms=np.zeros(count, np.int64),
        source_partitions=list(source_partitions),
        source_partition=source_partition,
        origin_offset=offset,
        source=source,
        timer_id=requests.timer_id,
        key_value=_key_values(requests, source, outcome, kind, without_key),
        headers=join(own, choose(chased, chase_headers, reply_headers)),
        header_count=own_count + np.where(chased, chase_count, reply_count).astype(np.int32),
        roll_times=nothing,
        retries=nothing,
        level=np.full(count, NO_LEVEL, np.int32),
        dead_letter=np.zeros(count, np.bool_),
        is_copy=chased,  # its headers are complete
        not_before_ms=np.full(count, ANY_TIME),
        policies=[],
        policy=np.full(count, NO_POLICY, np.int32),
        answer=np.ones(count, np.bool_),  # never parked: a parked chase would come too late
    )


def _own_headers(requests: StoredMessages) -> tuple[Column, Int32]:
    """The headers of each request that its chase or reply has, and their number."""
    count = requests.prefix["header_count"].astype(np.int32)
    cuts = np.flatnonzero(count > 0).tolist()
    if not cuts:
        return requests.headers, count
    kept = requests.headers.to_pylist()
    for row in cuts:
        kept[row], count[row] = repeated(kept[row] or b"", int(count[row]))
    return binary(kept), count


def repeated(headers: bytes, count: int) -> tuple[bytes, int]:
    """Those of a request's headers that its chase or reply repeats, and their number."""
    kept, at = list[bytes](), 0
    for _ in range(min(count, REPEATED_MAX)):
        size, name_at = read_varint(headers, at)
        value_bytes, end = read_varint(headers, name_at + size)
        end += max(value_bytes, 0)
        if end > REPEATED_BYTES_MAX:
            break
        try:
            headers[name_at : name_at + size].decode()
            kept.append(headers[at:end])
        except UnicodeDecodeError:
            pass  # kafka-python and confluent-kafka could not read the reply
        at = end
    return b"".join(kept), len(kept)


def _reply_headers(requests: StoredMessages, outcome: Int32) -> tuple[Column, int]:
    """Makes the headers that a reply adds to those it repeats; returns them and their number."""
    words = _words(outcome)
    headers = join(
        *(header_name(names.ANSWER), *framed(words)),
        *(header_name(names.TIMER_ID), *framed(requests.timer_id)),
    )
    return headers, 2


def _chase_headers(
    requests: StoredMessages, offset: Int64, outcome: Int32, delivered_slot: Int64, replaces: Bool
) -> tuple[Column, Int64]:
    """Makes the headers that a chase adds to the request's own; returns them and their number."""
    flags: Int64 = np.where(outcome == CHASE_FOUND, CHASE_FLAG_FOUND, 0)
    flags[replaces] |= CHASE_FLAG_RESCHEDULE
    named = requests.prefix["due_ms"].astype(np.int64)
    one = join(header_name(NAME_OF[Request.CANCEL_OFFSET]), *framed(decimals(np.maximum(named, 0))))
    headers = join(
        choose(named != ANY_OFFSET, one, EMPTY),
        *(header_name(NAME_OF[Request.CANCEL]), *framed(requests.timer_id)),
        origin_header(offset),
        *(header_name(names.CHASE_SLOT), *framed(decimals(delivered_slot))),
        *(header_name(names.CHASE_FLAGS), *framed(decimals(flags))),
    )
    return headers, 4 + (named != ANY_OFFSET)


def _key_values(
    requests: StoredMessages, source: Column, outcome: Int32, kind: Int64, without_key: Bool
) -> Column:
    keys = binary(
        _NULL if keyless else _key(key_value or b"")
        for key_value, keyless in zip(
            requests.key_value.to_pylist(), without_key.tolist(), strict=True
        )
    )
    values = _values(requests.timer_id, source, outcome, kind)
    return join(keys, choose(is_chase(outcome), constant(_NULL), join(*framed(values))))


def _key(key_value: bytes) -> bytes:
    size, at = read_varint(key_value, 0)
    return key_value[: at + max(size, 0)]


def _has_large_key(requests: StoredMessages) -> Bool:
    large = lengths(requests.key_value) > REPEATED_BYTES_MAX
    for row in np.flatnonzero(large).tolist():
        large[row] = read_varint(requests.key_value[row].as_py(), 0)[0] > REPEATED_BYTES_MAX
    return large


def _values(timer_id: Column, source: Column, outcome: Int32, kind: Int64) -> Column:
    """The JSON object in each reply. Only an id may have characters that JSON escapes."""
    ids = ((each or b"").decode("utf-8", "replace") for each in timer_id.to_pylist())
    return join(
        constant(f'{{"{names.ANSWER_NAME}": "'.encode()),
        _words(outcome),
        constant(f'", "{names.ANSWER_ID}": '.encode()),
        binary(json.dumps(each).encode() for each in ids),
        constant(f', "{names.ANSWER_SOURCE}": "'.encode()),
        source,
        constant(f'", "{names.ANSWER_REQUEST}": "'.encode()),
        take(binary(_KINDS), kind),
        constant(b'"}'),
    )


def _words(outcome: Int32) -> Column:
    return take(binary(word.encode() for word in OUTCOMES), outcome)
