"""The progress record: how far a shard has delivered, written in the delivering transaction.

A record per shard in the compacted topic `<app>.state`, in the partition <index>, with the key
`shard-<index>`; its value: packed_columns.py; a header names the transactional ids, if there are
several (kafka/progress/shard_progress.py). For a timer partition p there is a row of columns:

    r   R, delivered_slot: last slot delivered in full
    c   C, delivered_mark: high-water mark of p when slot r was closed
    c1  C₁, half_mark: the same of slot r + 1, when that is half delivered, else null
    d   D, half_below: everything of p below this offset in slot r + 1 is out, else null
    n   half_rows: how many rows of slot r + 1 are out, those of all of its topic, else null
    a   replied_below: cancels below this offset are replied to, or chased; a recovery reads from
        there

A message of p at offset o whose slot is s is *done* if it is out (delivered.py): placed in a slot
up to r, that is o < c and s <= r; or placed in the half-delivered slot and out of it, that is
(s = r + 1, or s <= r and o >= c), and o < d and o < c1. Every other message is pending. A message
below the oldest settings epoch (config_epochs.py) is done, although its slot is unknown.

Rows with held copies are out: `held` has the position of the copies (held_copies.py).

The partitions of a shard are at the same slot, unless they came from different shards: then each
keeps its own r, c, … until the shard has come to that r.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Close, names_from
from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.deflated import deflated
from duewheel.checkpoints.delivered import is_out, placed_slots
from duewheel.checkpoints.held_copies import Held
from duewheel.checkpoints.json_fields import MISSHAPEN, integer, name, partition_number
from duewheel.checkpoints.packed_columns import NULL, packed, unpacked
from duewheel.errors import RecoveryRefused
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import TopicPartition, is_retired

FORMAT = 2
# Deflated, in Kafka. The smallest limit of hosted brokers is 8 MiB for a batch.
RECORD_BYTES_MAX = 8 * 1024 * 1024 - 4096
# The largest copy, as a batch of its own: beside it a record has a key, and the head of its value.
COPY_BYTES_MAX = RECORD_BYTES_MAX - 1024
NOBODY = "nobody"  # as an owner: any data directory may be the next one


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """One timer partition's part of the record; see the module's head.

    Invariant: half_mark, half_below and half_rows are all None, or none is.
    """

    delivered_slot: int
    delivered_mark: int
    half_mark: int | None = None
    half_below: int | None = None
    half_rows: int | None = None
    replied_below: int = 0

    @property
    def closed_slot(self) -> int:
        """The last slot that may have messages that are out."""
        return self.delivered_slot if self.half_mark is None else self.delivered_slot + 1

    @property
    def closed_mark(self) -> int:
        """C of slot `closed_slot`."""
        return self.delivered_mark if self.half_mark is None else self.half_mark


# Columns of the record, and the fields that they hold, in order.
_COLUMNS = {
    "r": "delivered_slot",
    "c": "delivered_mark",
    "c1": "half_mark",
    "d": "half_below",
    "n": "half_rows",
    "a": "replied_below",
}
_NULLABLE = frozenset({"c1", "d", "n"})


@dataclass(frozen=True)
class Progress:
    """One shard's progress."""

    shard: int  # its index
    shards: int  # the number of shards
    owner: str  # UUID of the data directory that delivers; or NOBODY
    # Drawn by every start of dequeue. A copy of the directory without it is no earlier state of the
    # same files: the two have taken different rows since.
    incarnation: int
    epoch: int  # raised by every start of dequeue
    epochs: Epochs
    # every timer partition known when the record was written
    partitions: Mapping[TopicPartition, PartitionProgress]
    # How often partitions changed their shards (reshard_records.py), or were given up
    # (wheel/admin/accept_loss.py): a standby keeps no files of an earlier one.
    assignment_epoch: int = 0
    # While partitions are reassigned, the new number of shards: no directory may own the shard
    # then.
    sealed_for: int | None = None
    # Kafka's ids of the timer topics with these offsets; a topic may be missing.
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[TopicPartition, Held] = field(default_factory=dict)
    # The last turn in the queue of each target with a rate (wheel/policies/rate.py): a hint.
    charged_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def topics(self) -> set[str]:
        return {topic for topic, _ in self.partitions if not is_retired(topic)}

    @property
    def delivered_slot(self) -> int:
        """R of the shard: the last slot that all of its partitions have delivered in full."""
        return min(p.delivered_slot for p in self.partitions.values())

    @property
    def closed_slot(self) -> int:
        """The last slot that may have messages that are out, in any partition."""
        return max(p.closed_slot for p in self.partitions.values())

    def done(
        self,
        partitions: Sequence[TopicPartition],
        partition: Int32,
        offset: Int64,
        slot: Int64,
    ) -> Bool:
        """Returns which messages are done, by the rule of the module's head. `slot` is that of the
        due time, whether the message was placed there or later; `partition` indexes `partitions`.
        """
        nothing = PartitionProgress(np.iinfo(np.int64).min, 0)
        known = [self.partitions.get(p, nothing) for p in partitions]
        r, c, c1, d = (
            np.array([getattr(p, _COLUMNS[name]) or 0 for p in known], np.int64)[partition]
            for name in ("r", "c", "c1", "d")
        )
        begins = np.array([self.epochs.begins_at(p) for p in partitions], np.int64)
        dropped = offset < begins[partition]
        placed = placed_slots(slot, offset, r, c)
        return dropped | is_out(placed, offset, r, np.minimum(d, c1))

    def has_topic(self, topic: str, topic_id: str | None) -> bool:
        """Returns whether the record's offsets are of the topic with this id; true if either id is
        missing.
        """
        return self.topic_ids.get(topic, topic_id) == topic_id

    def encode(self) -> bytes:
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        """Cached, because it is published, compared and mirrored."""
        return deflated(self._packed())

    def _packed(self) -> bytes:
        numbers: dict[str, list[int]] = {}
        parts: list[PartitionProgress] = []
        for (topic, number), part in sorted(self.partitions.items()):
            numbers.setdefault(topic, []).append(number)
            parts.append(part)
        text = json.dumps(
            {
                "format": FORMAT,
                "shard": self.shard,
                "shards": self.shards,
                "owner": self.owner,
                "lineage": self.incarnation,
                "epoch": self.epoch,
                "partitions": numbers,
                "deal": self.assignment_epoch,
                "sealed_for": self.sealed_for,
                "topic_ids": dict(self.topic_ids),
                "held": [[*p, of.start_offset, of.copies] for p, of in sorted(self.held.items())],
                "charged_ms": dict(self.charged_ms),
            },
            separators=(",", ":"),
            sort_keys=True,
        )
        return packed(f'{text[:-1]},"slot_epochs":{self.epochs.text}}}', _columns_of(parts))

    def require_publishable(self, bytes_max: int = RECORD_BYTES_MAX) -> None:
        """Refuses a record that the state topic would not take, or that no start could read.

        Raises:
            RecoveryRefused: with the numbers.
        """
        size = len(self.encode())
        if size > bytes_max:
            raise RecoveryRefused(
                f"the progress of {len(self.partitions)} partitions in {len(self.topics)} topics "
                f"would have {size} bytes, the state topic takes {bytes_max}: more shards "
                "have more room, `duewheel reshard`"
            )

    def require_room(self, bytes_max: int = RECORD_BYTES_MAX) -> None:
        """Refuses a record that could become too large: once Kafka has it, no process could start.
        Counts inflated bytes, because columns keep their length whatever their values. Does not
        count `held`: some 40 bytes and the topic's name per partition with held copies.

        Raises:
            RecoveryRefused: with the numbers.
        """
        size = len(self._packed())
        if size > bytes_max:
            raise RecoveryRefused(
                f"the progress would have up to {size} bytes, of which {len(self.epochs.text)} are "
                f"{len(self.epochs)} slot configurations, and a record has room for "
                f"{bytes_max}: try again when messages that belong to the oldest ones are "
                "delivered, or with more shards"
            )

    @classmethod
    def decode(cls, value: bytes) -> Progress:
        """Decodes a record's value.

        Raises:
            RecoveryRefused: the bytes are no progress record of this format.
        """
        try:
            raw, columns = unpacked(value)
            if raw["format"] != FORMAT:
                raise ValueError(
                    f"format {raw['format']}, this version reads {FORMAT}: let the version that "
                    "wrote it deliver what is pending, then start over with another app.id"
                )
            sealed_for = raw["sealed_for"]
            return cls(
                integer(raw["shard"]),
                integer(raw["shards"]),
                name(raw["owner"]),
                integer(raw["lineage"]),
                integer(raw["epoch"]),
                Epochs.from_json(raw["slot_epochs"]),
                _partitions_of(raw["partitions"], columns),
                integer(raw["deal"]),
                None if sealed_for is None else integer(sealed_for),
                names_from(raw["topic_ids"]),
                _held_from(raw.get("held", [])),
                {name(t): integer(ms) for t, ms in raw.get("charged_ms", {}).items()},
            )
        except MISSHAPEN as error:
            raise RecoveryRefused(f"the progress record cannot be read: {error}") from error


def _held_from(raw: Sequence[Sequence[object]]) -> dict[TopicPartition, Held]:
    return {
        (name(topic), integer(number)): Held(integer(start), integer(copies))
        for topic, number, start, copies in raw
    }


def _columns_of(parts: Sequence[PartitionProgress]) -> dict[str, Int64]:
    for part in parts:
        half = (part.half_mark is None, part.half_below is None, part.half_rows is None)
        assert half[0] == half[1] == half[2], "decode refuses c1, d and n apart from each other"
    columns = {}
    for each, field_name in _COLUMNS.items():
        values = (getattr(part, field_name) for part in parts)
        if each in _NULLABLE:
            values = (NULL if value is None else value for value in values)
        columns[each] = np.fromiter(values, np.int64, len(parts))
    assert not _below_zero(columns), "decode refuses a negative number"
    return columns


def _below_zero(columns: Mapping[str, Int64]) -> list[str]:
    """Names the columns of offsets and counts with a negative number: asserted at each write,
    required at each read. Slots may be negative.
    """
    return [
        each
        for each, column in columns.items()
        if each != "r" and ((column < 0) & ((column != NULL) | (each not in _NULLABLE))).any()
    ]


def _partitions_of(
    numbers: Mapping[str, Sequence[int]], columns: Mapping[str, Int64]
) -> dict[TopicPartition, PartitionProgress]:
    """Combines the JSON and the columns of a record; raises MISSHAPEN if they do not fit."""
    places = [(name(t), partition_number(str(integer(n)))) for t, of in numbers.items() for n in of]
    half = [columns[each] == NULL for each in ("c1", "d", "n")]
    if columns.keys() != set(_COLUMNS) or not (len(half[0]) == len(places) == len(set(places))):
        raise ValueError(f"{len(places)} partitions, columns {[*columns]} of {len(half[0])} rows")
    if not (np.array_equal(half[0], half[1]) and np.array_equal(half[0], half[2])):
        raise ValueError("a partition has only some of c1, d and n")
    if wrong := _below_zero(columns):
        raise ValueError(f"a negative number in column {wrong[0]}")
    rows = [columns[each].tolist() for each in _COLUMNS]
    for index, each in enumerate(_COLUMNS):
        if each in _NULLABLE:
            rows[index] = [None if value == NULL else value for value in rows[index]]
    return dict(zip(places, map(PartitionProgress, *rows), strict=True)) if places else {}


def advanced(
    before: Mapping[TopicPartition, PartitionProgress],
    closed: Close,
    slot: int,
    half_below: Mapping[TopicPartition, int] | None,
    replied_below: Mapping[TopicPartition, int],
    half_rows: Mapping[str, int],
) -> dict[TopicPartition, PartitionProgress]:
    """Computes the progress of the partitions once a shard has come to `slot`, in the range
    `closed`. A partition that is ahead of it in `before` changes only `replied_below`: it has no
    pending row up to `slot`. `half_below` is D of the next slot if that is half delivered.
    """
    marks = closed.marks_before if slot == closed.lower else closed.marks
    reached = {}
    # Topics with an accepted loss may have rows left: they only count in D of a slot.
    for partition in {**before, **closed.marks, **(half_below or {})}:
        part = before.get(partition)
        replied = max(replied_below.get(partition, 0), part.replied_below if part else 0)
        if part is None or part.delivered_slot < slot:
            part = PartitionProgress(slot, marks.get(partition, 0), replied_below=replied)
        else:
            part = replace(part, replied_below=replied)
        if part.delivered_slot == slot and half_below is not None:
            part = replace(
                part,
                half_mark=closed.marks.get(partition, 0),
                half_below=max(half_below.get(partition, 0), part.half_below or 0),
                half_rows=max(half_rows.get(partition[0], 0), part.half_rows or 0),
            )
        if part.half_below or not is_retired(partition[0]):
            reached[partition] = part
    return reached


def half_rows_by_slot(
    partitions: Mapping[TopicPartition, PartitionProgress],
) -> dict[tuple[str, int], int]:
    """Counts the rows that are out, by timer topic and half-delivered slot."""
    rows: dict[tuple[str, int], int] = {}
    for (topic, _), part in partitions.items():
        if part.half_rows is not None:
            place = topic, part.closed_slot
            rows[place] = max(rows.get(place, 0), part.half_rows)
    return rows


def shard_of(partition: TopicPartition, shards: int) -> int:
    """Returns the shard of a timer partition."""
    return partition[1] % shards


def record_key(shard: int) -> bytes:
    """Returns the key of a shard's progress record in the state topic."""
    return b"shard-%d" % shard
