"""Lists pending timers in the order in which they leave, a page at a time.

A cancelled timer is pending until its slot leaves: it is listed with a mark.

Order: by slot, inside a slot as delivered. One pass over the logs of the hours that a page touches
finds its rows, 52 bytes a timer; only the page's own messages are read. The next page begins behind
"slot-position" of the last timer. So no state is kept between pages, and timers that come or go
move no other timer to another page.

Memory: two blocks of the log's columns, the rows of a page, and 8 MiB of messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from duewheel.errors import ConfigError
from duewheel.schemas.arrays import Int64
from duewheel.schemas.hashing import java_hash, source_names
from duewheel.schemas.wire.varint import read_varint
from duewheel.wheel.inspect.snapshot import Snapshot, consistently, positions_out
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.layout import (
    FLAG_DEAD_LETTER,
    MAGIC_ROLL,
    RECORD_BYTES,
    is_cancelled,
    level_of,
)
from duewheel.wheel.storage.log_scan import blocks
from duewheel.wheel.storage.message_store import StoredMessages
from duewheel.wheel.storage.timer_log import Records
from duewheel.wheel.storage.topic_numbers import public_name

_MESSAGE_BYTES = 8 << 20  # read in one go; one message may be larger
_PLACE = re.compile(r"(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """One pending timer of the list.

    Attributes:
        id: the given id, or the default, which is `source`.
        source: "topic-partition@offset" of its first copy.
        due_ms: requested due time; None for a dead letter.
        leaves_ms: end of its slot, when it is delivered or rolls.
        target: its target topic.
        key: None for null.
        value_bytes: length of the value, None for null.
        level: the requested delay level, 0 for none.
        rolled: whether it rolls when it leaves.
        cancelled: whether it is dropped when it leaves.
        place: "slot-position": `Filter.after` of the next page.
    """

    id: bytes
    source: str
    due_ms: int | None
    leaves_ms: int
    target: str
    key: bytes | None
    value_bytes: int | None
    level: int
    rolled: bool
    cancelled: bool
    place: str


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects pending timers to list.

    Attributes:
        topic: only timers with this target.
        first_slot, last_slot: only timers that leave in these slots or between.
        after: place of the last timer of the page before.
        level: only timers that requested this delay level.
    """

    topic: str | None = None
    first_slot: int | None = None
    last_slot: int | None = None
    after: str | None = None
    level: int | None = None


def list_pending(directory: DataDirectory, wanted: Filter, limit: int) -> Iterator[PendingTimer]:
    """Lists the first `limit` pending timers that `wanted` selects.

    Raises:
        ConfigError: `wanted.after` does not parse.
        CorruptFile: log or messages are damaged.
    """
    after = None
    if wanted.after is not None:
        match = _PLACE.fullmatch(wanted.after)
        if match is None:
            raise ConfigError(f"{wanted.after!r} is no page: take it from the timer listed last")
        after = (int(match[1]), int(match[2]))
    page = consistently(directory, lambda now: _page_rows(directory, now, wanted, after, limit))
    for hour, slot, position in page:
        records = directory.log.view(hour, int(position.max()) + RECORD_BYTES)
        records = records[position // RECORD_BYTES]
        ends = np.cumsum(records["size_py"].astype(np.int64))
        first = 0
        while first < len(records):
            before = int(ends[first - 1]) if first else 0
            end = max(first + 1, int(np.searchsorted(ends, before + _MESSAGE_BYTES, "right")))
            rows = slice(first, end)
            yield from _timers(directory, hour, slot[rows], position[rows], records[rows], wanted)
            first = end


def _page_rows(
    directory: DataDirectory,
    snapshot: Snapshot,
    wanted: Filter,
    after: tuple[int, int] | None,
    limit: int,
) -> list[tuple[int, Int64, Int64]]:
    """Returns slots and log positions of a page's rows, in order, by hour."""
    out = positions_out(directory, snapshot)
    half_slot = snapshot.delivered_slot + 1
    begin = (half_slot, -1)
    begin = max(begin, after or begin, (wanted.first_slot or 0, -1))
    last = wanted.last_slot
    precision_ms = directory.config.precision_ms
    topic = None if wanted.topic is None else java_hash(wanted.topic)
    page: list[tuple[int, Int64, Int64]] = []
    for hour, log_bytes in snapshot.log_bytes.items():
        if limit == 0 or (last is not None and hour > hour_of(last, precision_ms)):
            break
        if hour < hour_of(begin[0], precision_ms):
            continue
        slots, positions = np.empty(0, np.int64), np.empty(0, np.int64)
        for position, slot, records in blocks(directory, hour, 0, log_bytes):
            fits = (slot > begin[0]) | ((slot == begin[0]) & (position > begin[1]))
            if len(out):
                fits &= (slot != half_slot) | ~np.isin(position, out, assume_unique=True)
            if last is not None:
                fits &= slot <= last
            if topic is not None:
                fits &= records["topic_hash"] == topic
            if wanted.level is not None:
                fits &= level_of(records["magic"]) == wanted.level
            slots = np.concatenate([slots, slot[fits]])
            positions = np.concatenate([positions, position[fits]])
            # Positions rise: a stable sort by slot is delivery order.
            kept = _first(slots, limit)
            slots, positions = slots[kept], positions[kept]
        if len(slots):
            page.append((hour, slots, positions))
            limit -= len(slots)
    return page


def _first(slots: Int64, limit: int) -> Int64:
    """Selects the first `limit` rows by slot, then by order."""
    rows: Int64 = np.arange(len(slots))
    if len(slots) > limit:
        bound = np.partition(slots, limit - 1)[limit - 1]
        rows = np.flatnonzero(slots <= bound)
    return rows[np.argsort(slots[rows], kind="stable")][:limit]


def _timers(
    directory: DataDirectory,
    hour: int,
    slot: Int64,
    position: Int64,
    records: Records,
    wanted: Filter,
) -> Iterator[PendingTimer]:
    messages = directory.messages.read(hour, records)
    sources, targets = _sources(directory, messages), messages.target.to_pylist()
    rolled, level = (records["magic"] & MAGIC_ROLL) != 0, level_of(records["magic"])
    cancelled = is_cancelled(records)
    for row, prefix in enumerate(messages.prefix):
        target = (targets[row] or b"").decode()
        if wanted.topic is not None and target != wanted.topic:
            continue  # another topic with the same hash
        key, value_bytes = _key_and_value_bytes(messages.key_value[row].as_py())
        dead = bool(prefix["flags"] & FLAG_DEAD_LETTER)
        yield PendingTimer(
            id=messages.timer_id[row].as_py() or sources[row],
            source=sources[row].decode(),
            due_ms=None if dead else int(prefix["due_ms"]),
            leaves_ms=int(slot[row]) * directory.config.precision_ms,
            target=target,
            key=key,
            value_bytes=value_bytes,
            level=int(level[row]),
            rolled=bool(rolled[row]),
            cancelled=bool(cancelled[row]),
            place=f"{slot[row]}-{position[row]}",
        )


def _key_and_value_bytes(key_value: bytes) -> tuple[bytes | None, int | None]:
    size, at = read_varint(key_value, 0)
    end = at + max(size, 0)
    value_size, _ = read_varint(key_value, end)
    return key_value[at:end] if size >= 0 else None, value_size if value_size >= 0 else None


def _sources(directory: DataDirectory, messages: StoredMessages) -> Sequence[bytes]:
    """Returns the source of each message."""
    prefix = messages.prefix
    partitions, index = directory.topics.sources(prefix)
    named = [(public_name(topic), number) for topic, number in partitions]
    sources = source_names(named, index, prefix["origin_offset"].astype(np.int64))
    return [name for name in sources.to_pylist() if name is not None]
