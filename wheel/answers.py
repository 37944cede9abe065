"""Answers to cancels, as rows of a transaction.

An answer goes to the reply topic: the key of the request; as value a JSON object that says what was
asked for, where, and what has become of it; and the request's own headers, then TIMER_ANSWER (the
word), UNIQ_KEY (the id) and TIMER_SOURCE (where the request lies), by which it is found again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from duewheel.schemas import header_names as names
from duewheel.schemas.columns import Column, binary, constant, join
from duewheel.schemas.header_names import Answer
from duewheel.schemas.ids import source_names
from duewheel.schemas.record_tail import framed, framed_bytes
from duewheel.schemas.timers import ANY_TIME, NO_LEVEL, NO_PARTITION, Deliveries, TopicPartition
from duewheel.schemas.varint import read_varint
from duewheel.wheel.layout import FLAG_RESCHEDULE
from duewheel.wheel.message_store import StoredMessages

WORDS = tuple(Answer)
CANCEL, RESCHEDULE = "cancel", "reschedule"


def answer_rows(
    requests: StoredMessages, homes: Sequence[TopicPartition], words: Sequence[Answer], topic: str
) -> Deliveries:
    """The answers to some requests; a loop over them, for there are no more than a few thousand.

    Args:
        requests: as the cancel log has them.
        homes: the timer partition of each.
        words: what each is told.
        topic: where to.
    """
    prefix, count = requests.prefix, len(requests.prefix)
    partitions = list(dict.fromkeys(homes))
    home = np.array([partitions.index(each) for each in homes], np.int32)
    offset = prefix["source_offset"].astype(np.int64)
    source = source_names(partitions, home, offset)
    reschedule = ((prefix["flags"] & FLAG_RESCHEDULE) != 0).tolist()
    said = binary(word.encode() for word in words)
    nothing = np.zeros(count, np.int32)
    flags = np.zeros(count, np.bool_)
    return Deliveries(
        targets=[topic],
        target=nothing,
        target_partition=np.full(count, NO_PARTITION, np.int32),
        key_hash=prefix["key_hash"].astype(np.int32),
        due_ms=np.zeros(count, np.int64),
        homes=partitions,
        home=home,
        origin_offset=offset,
        source=source,
        timer_id=requests.timer_id,
        key_value=_key_values(requests, source, words, reschedule),
        headers=join(
            requests.headers,
            *(constant(framed_bytes(names.ANSWER.encode())), *framed(said)),
            *(constant(framed_bytes(names.TIMER_ID.encode())), *framed(requests.timer_id)),
        ),
        header_count=prefix["header_count"].astype(np.int32) + 2,
        roll_times=nothing,
        retries=nothing,
        level=np.full(count, NO_LEVEL, np.int32),
        dead_letter=flags,
        rolled=flags,
        not_before_ms=np.full(count, ANY_TIME),
        answer=~flags,
    )


def _key_values(
    requests: StoredMessages, source: Column, words: Sequence[Answer], reschedule: list[bool]
) -> Column:
    rows = zip(
        *(column.to_pylist() for column in (requests.key_value, requests.timer_id, source)),
        words,
        reschedule,
        strict=True,
    )
    return binary(_key(key_value) + _value(*rest) for key_value, *rest in rows)


def _key(key_value: bytes) -> bytes:
    size, at = read_varint(key_value, 0)
    return key_value[: at + max(size, 0)]


def _value(timer_id: bytes, source: bytes, word: Answer, reschedule: bool) -> bytes:
    text = json.dumps(
        {
            names.ANSWER_WORD: word,
            names.ANSWER_ID: timer_id.decode("utf-8", "replace"),
            names.ANSWER_SOURCE: source.decode(),
            names.ANSWER_REQUEST: RESCHEDULE if reschedule else CANCEL,
        }
    )
    return framed_bytes(text.encode())
