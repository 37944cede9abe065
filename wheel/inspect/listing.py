"""Lists pending timers in the order of their delivery, a page at a time.

A cancelled timer is pending until its slot is delivered: it is listed with a mark.

Order: by slot, inside a slot as delivered. One pass over the logs of the hours that a page touches
finds its rows, 52 bytes a timer; only the page's own messages are read. The next page begins after
"slot-position" of the last timer. So no state is kept between pages, and timers that come or go
move no other timer to another page.

A log record has the target's and the id's hash, but no key: a search by key or tag reads the
messages of all timers that its other filters select, until the caller stops it. A search for one
offset, or in some timer topics, reads the prefixes of these, and then those messages alone.

Memory: two blocks of the log's columns, 16 bytes for each of CANDIDATES_MAX rows, and 8 MiB of
messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc

from duewheel.errors import ConfigError, CorruptFile
from duewheel.schemas import header_names as names
from duewheel.schemas.arrays import Bool, Int64
from duewheel.schemas.batches import NO_PARTITION, RETIRED
from duewheel.schemas.columns import binary
from duewheel.schemas.hashing import id_hashes, java_hash, source_names, topic_hash
from duewheel.schemas.topic_scope import ALL_TOPICS, TopicScope
from duewheel.schemas.wire.record_codec import with_header
from duewheel.schemas.wire.varint import read_varint, varint
from duewheel.wheel.inspect.snapshot import Snapshot, consistently, positions_out
from duewheel.wheel.recurrence import PAUSED_MS
from duewheel.wheel.slots import hour_of
from duewheel.wheel.storage.byte_layouts import (
    FLAG_DEAD_LETTER,
    FLAG_SEED,
    MAGIC_RECURRING,
    MAGIC_ROLL,
    RECORD_BYTES,
    is_cancelled,
    level_of,
    lookup_hash_of,
)
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.message_store import Prefixes, StoredMessages
from duewheel.wheel.storage.timer_log import Records
from duewheel.wheel.storage.topic_numbers import public_name

CANDIDATES_MAX = 1 << 18  # rows of one pass over the logs
_MESSAGE_BYTES = 8 << 20  # read in one go; one message may be larger
_MESSAGES_MAX = 20_000  # likewise
_PLACE = re.compile(r"(\d{1,18})-(\d{1,18})")

_Place = tuple[int, int]  # slot, and position in the log of its hour


@dataclass(frozen=True, slots=True)
class PendingTimer:
    """One pending timer of the list: flat, because it is a row of text, JSON and the page."""

    id: bytes  # the given id, or the default, which is `source`
    source: str  # "topic-partition@offset" of its first copy
    due_ms: int | None  # requested due time; None for a dead letter
    leaves_ms: int  # end of its slot, when it is delivered or rolls
    target: str
    target_partition: int | None  # the requested one; None: chosen at delivery
    key: bytes | None  # None for null
    value_bytes: int | None  # length of the value, None for null
    level: int  # the requested delay level, 0 for none
    rolled: bool  # whether it rolls at the end of its slot
    cancelled: bool  # whether it is dropped then
    recurring: bool
    seed: bool  # the user's record of a recurring one, due at its timestamp: it fires nothing
    place: str  # "slot-position": `Filter.after` of the next page
    key_value: bytes = field(repr=False)  # as in schemas/batches.py, like `encoded_headers`
    encoded_headers: bytes = field(repr=False)
    header_count: int

    @property
    def paused(self) -> bool:
        """Whether its `due_ms` is no instant, because its schedule is paused."""
        return self.recurring and self.due_ms == PAUSED_MS

    @property
    def value(self) -> bytes | None:
        return _framed(self.key_value, _framed(self.key_value, 0)[1])[0]

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The user's headers."""
        return list(self.each_header())

    def each_header(self) -> Iterator[tuple[str, bytes | None]]:
        """Yields the user's headers: there may be a million."""
        at = 0
        while at < len(self.encoded_headers):
            name, at = _framed(self.encoded_headers, at)
            value, at = _framed(self.encoded_headers, at)
            yield (name or b"").decode(errors="replace"), value


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects pending timers to list; None selects all."""

    topic: str | None = None  # the target
    first_slot: int | None = None  # the first slot, and `last_slot` the last one
    last_slot: int | None = None
    after: str | None = None  # place of the last timer of the page before
    level: int | None = None  # the requested delay level
    timer_id: bytes | None = None  # given or default
    key: bytes | None = None
    tag: bytes | None = None
    first_offset: int | None = None  # of the first copy, in its partition
    recurring: bool = False  # recurring timers alone
    live: bool = False  # those alone that are not cancelled
    timer_topics: TopicScope = ALL_TOPICS

    @property
    def needs_messages(self) -> bool:
        """Whether the log alone does not show which timers it selects."""
        return self.key is not None or self.tag is not None or self.needs_prefixes

    @property
    def needs_prefixes(self) -> bool:
        """Whether the prefixes of messages show that it does not select a timer."""
        return self.first_offset is not None or self.timer_topics != ALL_TOPICS


@dataclass(frozen=True, slots=True)
class ListedChunk:
    """Some timers of a list."""

    timers: list[PendingTimer]  # in order; maybe none
    reached: str  # `Filter.after` of a list that continues after this chunk


def list_pending(directory: DataDirectory, wanted: Filter, limit: int) -> Iterator[PendingTimer]:
    """Lists the first `limit` pending timers that `wanted` selects.

    Raises:
        ConfigError: `wanted.after` does not parse.
        CorruptFile: log or messages are damaged.
    """
    for chunk in list_chunks(directory, wanted, limit):
        yield from chunk.timers


def list_chunks(directory: DataDirectory, wanted: Filter, limit: int) -> Iterator[ListedChunk]:
    """Lists as `list_pending`, and reports its position between two reads of messages: a search by
    key may read many for few timers.
    """
    after = _parsed(wanted.after)
    while limit > 0:
        candidates = CANDIDATES_MAX if wanted.needs_messages else min(limit, CANDIDATES_MAX)
        page = _rows(directory, wanted, after, candidates)
        for hour, slot, position in page:
            for rows in _readable(directory, hour, position):
                timers = _read(directory, hour, slot[rows], position[rows], wanted)[:limit]
                limit -= len(timers)
                after = int(slot[rows][-1]), int(position[rows][-1])
                is_full = limit == 0
                yield ListedChunk(timers, timers[-1].place if is_full else f"{after[0]}-{after[1]}")
                if is_full:
                    return
        if sum(len(slot) for _, slot, _ in page) < candidates:
            return


def _parsed(after: str | None) -> _Place | None:
    if after is None:
        return None
    match = _PLACE.fullmatch(after)
    if match is None:
        raise ConfigError(f"{after!r} is no page: take it from the timer listed last")
    return int(match[1]), int(match[2])


def _rows(
    directory: DataDirectory, wanted: Filter, after: _Place | None, limit: int
) -> list[tuple[int, Int64, Int64]]:
    """Returns slots and log positions of the first rows, in order, by hour."""
    return consistently(directory, lambda now: _page_rows(directory, now, wanted, after, limit))


def _readable(directory: DataDirectory, hour: int, position: Int64) -> Iterator[slice]:
    """Splits rows of an hour so that the messages of a part are read in one go."""
    records = directory.log.view(hour, int(position.max()) + RECORD_BYTES)
    ends = np.cumsum(records["size_py"][position // RECORD_BYTES].astype(np.int64))
    first = 0
    while first < len(position):
        before = int(ends[first - 1]) if first else 0
        end = int(np.searchsorted(ends, before + _MESSAGE_BYTES, "right"))
        end = min(max(end, first + 1), first + _MESSAGES_MAX)
        yield slice(first, end)
        first = end


def _page_rows(
    directory: DataDirectory,
    snapshot: Snapshot,
    wanted: Filter,
    after: _Place | None,
    limit: int,
) -> list[tuple[int, Int64, Int64]]:
    """Returns slots and log positions of a page's rows, in order, by hour."""
    out = positions_out(directory, snapshot)
    half_slot = snapshot.delivered_slot + 1
    begin = (half_slot, -1)
    begin = max(begin, after or begin, (wanted.first_slot or 0, -1))
    last = wanted.last_slot
    precision_ms = directory.config.precision_ms
    by_record = _RecordFilter(directory, wanted)
    page: list[tuple[int, Int64, Int64]] = []
    for hour, log_bytes in snapshot.log_bytes.items():
        if limit == 0 or (last is not None and hour > hour_of(last, precision_ms)):
            break
        if hour < hour_of(begin[0], precision_ms):
            continue
        slots, positions = np.empty(0, np.int64), np.empty(0, np.int64)
        for position, slot, records in directory.blocks(hour, 0, log_bytes):
            fits = (slot > begin[0]) | ((slot == begin[0]) & (position > begin[1]))
            if len(out):
                fits &= (slot != half_slot) | ~np.isin(position, out, assume_unique=True)
            if last is not None:
                fits &= slot <= last
            by_record.narrow(fits, records)
            slots = np.concatenate([slots, slot[fits]])
            positions = np.concatenate([positions, position[fits]])
            # Positions rise: a stable sort by slot is delivery order.
            kept = _first(slots, limit)
            slots, positions = slots[kept], positions[kept]
        if len(slots):
            page.append((hour, slots, positions))
            limit -= len(slots)
    return page


class _RecordFilter:
    """The part of a filter that log records decide; messages decide between equal hashes."""

    def __init__(self, directory: DataDirectory, wanted: Filter) -> None:
        self._topic: list[int] | None = None
        if wanted.topic is not None:
            # The second one has the records of earlier versions.
            name = wanted.topic
            self._topic = [topic_hash(name, directory.state.uuid), java_hash(name)]
        self._level, self._recurring, self._live = wanted.level, wanted.recurring, wanted.live
        self._ids: Int64 | None = None
        if wanted.timer_id is not None:
            self._ids = _lookup_hashes(directory, wanted.timer_id, wanted.timer_topics)

    def narrow(self, fits: Bool, records: Records) -> None:
        """Clears `fits` of the records that it does not select."""
        if self._topic is not None:
            fits &= np.isin(records["topic_hash"], self._topic)
        if self._level is not None:
            fits &= level_of(records["magic"]) == self._level
        if self._recurring:
            fits &= (records["magic"] & MAGIC_RECURRING) != 0
        if self._live:
            fits &= ~is_cancelled(records)
        if self._ids is not None:
            fits &= np.isin(lookup_hash_of(records["reserved"]), self._ids)


def _lookup_hashes(directory: DataDirectory, timer_id: bytes, scope: TopicScope) -> Int64 | None:
    """Returns the hashes of an id in each partition of these timer topics; None if records may have
    others, because the commit page no longer lists the partitions of a retired topic.
    """
    directory.topics.refresh()
    if any(RETIRED in name for name in directory.topics.names()):
        return None
    partitions = [each for each in directory.state.commit().marks if each[0] in scope]
    partition = np.arange(len(partitions), dtype=np.int32)
    id_hash = np.repeat(id_hashes(binary([timer_id])), len(partitions))
    return directory.lookup_hashes(id_hash, partitions, partition)


def _first(slots: Int64, limit: int) -> Int64:
    """Selects the first `limit` rows by slot, then by order."""
    rows: Int64 = np.arange(len(slots))
    if len(slots) > limit:
        bound = np.partition(slots, limit - 1)[limit - 1]
        rows = np.flatnonzero(slots <= bound)
    return rows[np.argsort(slots[rows], kind="stable")][:limit]


def _read(
    directory: DataDirectory, hour: int, slot: Int64, position: Int64, wanted: Filter
) -> list[PendingTimer]:
    """Reads rows as `_timers`; none if their hour was delivered and unlinked meanwhile."""
    try:
        return list(_timers(directory, hour, slot, position, wanted))
    except CorruptFile:
        if Snapshot.take(directory).current <= hour:
            raise
        return []


def _timers(
    directory: DataDirectory, hour: int, slot: Int64, position: Int64, wanted: Filter
) -> Iterator[PendingTimer]:
    """Reads the timers at these positions, and drops those that `wanted` does not select."""
    records = directory.log.view(hour, int(position.max()) + RECORD_BYTES)
    records = records[position // RECORD_BYTES]
    if wanted.needs_prefixes:
        prefixes = directory.messages.prefixes(hour, records)
        named = _rows_by_prefix(directory, prefixes, wanted)
        if not len(named):
            return
        records, slot, position = records[named], slot[named], position[named]
    messages = directory.messages.read(hour, records)
    rows = _rows_with_key(messages, wanted.key)
    if wanted.tag is not None:
        rows = rows[with_header(messages.headers, names.TAG, wanted.tag)[rows]]
    if not len(rows):
        return
    sources, targets = _sources(directory, messages), messages.target.to_pylist()
    rolled, level = (records["magic"] & MAGIC_ROLL) != 0, level_of(records["magic"])
    cancelled, recurring = is_cancelled(records), (records["magic"] & MAGIC_RECURRING) != 0
    for row in rows.tolist():
        prefix, target = messages.prefix[row], (targets[row] or b"").decode()
        timer_id = messages.timer_id[row].as_py() or sources[row]
        if wanted.topic not in {None, target} or wanted.timer_id not in {None, timer_id}:
            continue  # another one with the same hash
        if wanted.live and cancelled[row]:
            continue  # since the pass over the logs
        key_value: bytes = messages.key_value[row].as_py()
        key, at = _framed(key_value, 0)
        value_size, _ = read_varint(key_value, at)
        dead, partition = bool(prefix["flags"] & FLAG_DEAD_LETTER), int(prefix["target_partition"])
        yield PendingTimer(
            id=timer_id,
            source=sources[row].decode(),
            due_ms=None if dead else int(prefix["due_ms"]),
            leaves_ms=int(slot[row]) * directory.config.precision_ms,
            target=target,
            target_partition=None if partition == NO_PARTITION else partition,
            key=key,
            value_bytes=value_size if value_size >= 0 else None,
            level=int(level[row]),
            rolled=bool(rolled[row]),
            cancelled=bool(cancelled[row]),
            recurring=bool(recurring[row]),
            seed=bool(prefix["flags"] & FLAG_SEED),
            place=f"{slot[row]}-{position[row]}",
            key_value=key_value,
            encoded_headers=messages.headers[row].as_py(),
            header_count=int(prefix["header_count"]),
        )


def _rows_by_prefix(directory: DataDirectory, prefixes: Prefixes, wanted: Filter) -> Int64:
    fits = np.ones(len(prefixes), np.bool_)
    if wanted.first_offset is not None:
        fits &= prefixes["origin_offset"] == wanted.first_offset
    if wanted.timer_topics != ALL_TOPICS:
        partitions, index = directory.topics.sources(prefixes)
        in_scope = [public_name(topic) in wanted.timer_topics for topic, _ in partitions]
        fits &= np.array(in_scope, np.bool_)[index]
    return np.flatnonzero(fits)


def _rows_with_key(messages: StoredMessages, key: bytes | None) -> Int64:
    """Selects the messages with this key, all without one. The key's length comes before it, so no
    other key begins with the same bytes.
    """
    if key is None:
        return np.arange(len(messages.prefix))
    starts_with: Any = pc.starts_with  # its stubs know patterns of text alone
    return np.flatnonzero(np.asarray(starts_with(messages.key_value, varint(len(key)) + key)))


def _framed(encoded: bytes, at: int) -> tuple[bytes | None, int]:
    """Reads the bytes after the length at `at`, None for a null, and where they end."""
    size, at = read_varint(encoded, at)
    end = at + max(size, 0)
    return encoded[at:end] if size >= 0 else None, end


def _sources(directory: DataDirectory, messages: StoredMessages) -> Sequence[bytes]:
    prefix = messages.prefix
    partitions, index = directory.topics.sources(prefix)
    named = [(public_name(topic), number) for topic, number in partitions]
    sources = source_names(named, index, prefix["origin_offset"].astype(np.int64))
    return [name for name in sources.to_pylist() if name is not None]
