"""Makes dead letters of rows that can never be published.

- Such a row becomes a dead letter in its place, which keeps the order. Its headers: the user's,
  TIMER_ERROR_CODE, TIMER_ERROR, and those that a replay needs (schemas/dead_letters.py), which a
  rolled copy has already.
- A dead letter too large for the dead-letter topic loses key, value and user headers; TIMER_SOURCE
  still points at the original.

Pure functions over columns: no client, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Bool, Int32
from duewheel.schemas.batches import NO_PARTITION, Deliveries, PolicyLabel
from duewheel.schemas.columns import constant, join, scatter
from duewheel.schemas.dead_letters import kept_headers
from duewheel.schemas.wire.varint import varint
from duewheel.wheel.target_rules import NO_TARGET, Reason, Target, reason_text


def dead_lettered(
    deliveries: Deliveries, reason: Int32, targets: Mapping[str, Target], dead_letter_topic: str
) -> Deliveries:
    """The deliveries with every row that has a reason turned into a dead letter."""
    topics = list(deliveries.targets)
    if dead_letter_topic not in topics:
        topics.append(dead_letter_topic)
    bad = reason != Reason.NONE
    # One text per topic and reason, the policies among them: there are few of them.
    verdict: Int32 = np.where(reason == Reason.FORBIDDEN, len(Reason) + deliveries.policy, reason)
    verdicts = len(Reason) + len(deliveries.policies)
    pairs, pair_of = np.unique(deliveries.target * verdicts + verdict, return_inverse=True)
    texts = [
        _error_headers(pair % verdicts, topics[pair // verdicts], targets, deliveries.policies)
        for pair in pairs.tolist()
    ]
    errors = pa.array(texts, pa.large_binary()).take(pa.array(pair_of.astype(np.int64)))
    delivered = np.flatnonzero(bad & ~deliveries.is_copy)
    kept, kept_count = kept_headers(deliveries.take(delivered))
    count = deliveries.header_count + np.where(bad, 2, 0)
    count[delivered] += kept_count
    return replace(
        deliveries,
        targets=topics,
        target=np.where(bad, topics.index(dead_letter_topic), deliveries.target).astype(np.int32),
        target_partition=_where(bad, NO_PARTITION, deliveries.target_partition),
        headers=join(deliveries.headers, errors, scatter(kept, delivered, len(deliveries))),
        header_count=count.astype(np.int32),
        dead_letter=deliveries.dead_letter | bad,
        is_copy=deliveries.is_copy & ~bad,
    )


def to_dead_letters(deliveries: Deliveries, dead_letter_topic: str) -> Deliveries:
    """The deliveries with all dead letters addressed to the configured topic: ingest stored its
    rejections with the topic configured then.
    """
    topics = list(dict.fromkeys([*deliveries.targets, dead_letter_topic]))
    place = topics.index(dead_letter_topic)
    if (deliveries.target[deliveries.dead_letter] == place).all():
        return deliveries
    target = _where(deliveries.dead_letter, place, deliveries.target)
    return replace(deliveries, targets=topics, target=target)


def stripped(deliveries: Deliveries, rows: Bool) -> Deliveries:
    """The given dead letters without key, value and user headers: pointers to originals that are
    too large for the dead-letter topic.
    """
    error = _header(names.ERROR_CODE, Reason.RECORD_TOO_LARGE.code) + _header(
        names.ERROR, "larger than the dead-letter topic takes: see the source for its content"
    )
    nothing = constant(varint(-1) * 2)
    mask = pa.array(rows)
    return replace(
        deliveries,
        target_partition=_where(rows, NO_PARTITION, deliveries.target_partition),
        key_value=pc.if_else(mask, nothing, deliveries.key_value),
        headers=pc.if_else(mask, constant(error), deliveries.headers),
        header_count=_where(rows, 2, deliveries.header_count),
    )


def _where(rows: Bool, value: int, otherwise: Int32) -> Int32:
    return np.where(rows, value, otherwise).astype(np.int32)


def _header(name: str, value: str) -> bytes:
    octets = value.encode()
    return varint(len(name)) + name.encode() + varint(len(octets)) + octets


def _error_headers(
    verdict: int, topic: str, targets: Mapping[str, Target], policies: Sequence[PolicyLabel]
) -> bytes:
    """TIMER_ERROR_CODE and TIMER_ERROR as they are written; nothing for NONE. Verdicts beyond the
    reasons are policies.
    """
    if verdict == Reason.NONE:
        return b""
    if verdict >= len(Reason):
        code, text = policies[verdict - len(Reason)]
    else:
        code = Reason(verdict).code
        text = reason_text(Reason(verdict), topic, targets.get(topic, NO_TARGET))
    return _header(names.ERROR_CODE, code) + _header(names.ERROR, text)
