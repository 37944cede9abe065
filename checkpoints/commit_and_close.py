"""What the commit and close pages of the `state` file say, and how they say it in JSON.

    commit   {"batch", "marks", "hours": {hour: [log bytes, message bytes, batch from, cancelled
             bytes, cancelled from]}, "placed", "topic_ids": {topic: id}, "topics",
             "cancels": {hour: [bytes, bytes]}}
    close    {"lower", "c_before", "floor", "c"}

Marks, and c, are {topic: {partition: offset}}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from duewheel.checkpoints.json_fields import integer, name, partition_number
from duewheel.schemas.batches import TopicPartition

Marks = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class HourLengths:
    """How much of one hour's three files exists, in bytes, and where the last batch began in them.

    Attributes:
        log_bytes: committed length of timerlog/<hour>.
        message_bytes: committed length of messages/<hour>.
        batch_from: log position of the last batch's first record; equal to `log_bytes` if it
            put nothing there. What redo reads.
        cancelled_bytes: committed length of cancelled/<hour>.
        cancelled_from: where the last batch began there, likewise.
    """

    log_bytes: int
    message_bytes: int
    batch_from: int
    cancelled_bytes: int = 0
    cancelled_from: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether the last batch began within the files: asserted of what is written, required of
        what is read.
        """
        in_log = 0 <= self.batch_from <= self.log_bytes
        return in_log and 0 <= self.cancelled_from <= self.cancelled_bytes

    @property
    def lengths(self) -> tuple[int, int, int]:
        """Of the hour's files: log, messages, cancelled."""
        return self.log_bytes, self.message_bytes, self.cancelled_bytes

    def followed_by(self, lengths: tuple[int, ...]) -> HourLengths:
        """These lengths, after a batch that began where the files have ended until now."""
        log_bytes, message_bytes, cancelled_bytes = lengths
        assert message_bytes >= self.message_bytes, "a batch only appends"
        return HourLengths(
            log_bytes, message_bytes, self.log_bytes, cancelled_bytes, self.cancelled_bytes
        )

    @classmethod
    def applied(cls, lengths: tuple[int, ...]) -> HourLengths:
        """These lengths, and nothing of the last batch."""
        log_bytes, message_bytes, cancelled_bytes = lengths
        return cls(log_bytes, message_bytes, log_bytes, cancelled_bytes, cancelled_bytes)


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit page says.

    Attributes:
        batch: sequence of the batch, rising by one.
        marks: next offset to take, per source partition.
        hours: every hour with files, and their lengths after this batch.
        placed: timers placed in the wheel since the directory was made.
        topic_ids: what Kafka calls each timer topic; another id under the same name is another
            topic, whose offsets the marks know nothing of.
        topics: how many names the file `topics` holds at least.
        cancels: bytes of the two files of every segment of the cancel log, by its hour.
        applied: whether the wheel has the batch; not so → redo.
    """

    batch: int
    marks: Marks
    hours: Mapping[int, HourLengths]
    placed: int
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    topics: int = 0
    cancels: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    applied: bool = False

    def to_json(self) -> dict[str, Any]:
        """As its page holds it; whether it is applied is a mark beside that."""
        assert all(files.is_sound for files in self.hours.values()), "a batch only appends"
        return {
            "batch": self.batch,
            "marks": marks_to(self.marks),
            "hours": {
                hour: (
                    *(x.log_bytes, x.message_bytes, x.batch_from),
                    *(x.cancelled_bytes, x.cancelled_from),
                )
                for hour, x in self.hours.items()
            },
            "placed": self.placed,
            "topic_ids": dict(self.topic_ids),
            "topics": self.topics,
            "cancels": dict(self.cancels),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], *, applied: bool) -> Commit:
        """From what `to_json` gave.

        Raises:
            MISSHAPEN: it has another shape.
        """
        hours = {int(h): HourLengths(*map(integer, lengths)) for h, lengths in raw["hours"].items()}
        if not all(files.is_sound for files in hours.values()):
            raise ValueError("the last batch begins behind the end of a file")
        return cls(
            integer(raw["batch"]),
            marks_from(raw["marks"]),
            hours,
            integer(raw["placed"]),
            names_from(raw["topic_ids"]),
            integer(raw["topics"]),
            lengths_from(raw["cancels"], 2),
            applied,
        )


NO_COMMIT = Commit(0, {}, {}, 0, applied=True)  # before the first


@dataclass(frozen=True, slots=True)
class Close:
    """What one close page says: the range of slots (lower, floor] was closed at marks C.

    Attributes:
        lower: floor before this closing.
        marks_before: C of the range before, valid for slot `lower`.
        floor: last closed slot.
        marks: C, when the range was closed, valid for every slot in it.
    """

    lower: int
    marks_before: Marks
    floor: int
    marks: Marks

    @property
    def is_sound(self) -> bool:
        """Whether it names a range: asserted of what is written, required of what is read."""
        return self.lower <= self.floor

    def missing(self, marks: Marks) -> dict[TopicPartition, int]:
        """How many offsets below C are still to be taken; partitions without any are left out."""
        return {p: c - marks.get(p, 0) for p, c in self.marks.items() if marks.get(p, 0) < c}

    def to_json(self) -> dict[str, Any]:
        """As pages and checkpoints hold it."""
        assert self.is_sound, "the floor never falls"
        return {
            "lower": self.lower,
            "c_before": marks_to(self.marks_before),
            "floor": self.floor,
            "c": marks_to(self.marks),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Close:
        """From what `to_json` gave.

        Raises:
            MISSHAPEN: it has another shape, or names no range.
        """
        before, marks = marks_from(raw["c_before"]), marks_from(raw["c"])
        close = cls(integer(raw["lower"]), before, integer(raw["floor"]), marks)
        if not close.is_sound:
            raise ValueError(f"closed from slot {close.lower} down to {close.floor}")
        return close


def marks_to(marks: Marks) -> dict[str, dict[int, int]]:
    """Marks as JSON has them: topic, partition, offset."""
    topics: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in marks.items():
        topics.setdefault(topic, {})[partition] = offset
    return topics


def marks_from(topics: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """Marks from their JSON form.

    Raises:
        MISSHAPEN: they have another one.
    """
    return {
        (name(topic), partition_number(number)): integer(offset)
        for topic, partitions in topics.items()
        for number, offset in partitions.items()
    }


def lengths_from(raw: Mapping[str, Any], files: int) -> dict[int, tuple[int, ...]]:
    """Lengths of so many files by hour, from their JSON form.

    Raises:
        MISSHAPEN: they have another one.
    """
    found = {int(hour): tuple(map(integer, lengths)) for hour, lengths in raw.items()}
    if any(len(lengths) != files or min(lengths) < 0 for lengths in found.values()):
        raise ValueError(f"not the lengths of {files} files")
    return found


def names_from(raw: Mapping[str, str]) -> dict[str, str]:
    """Names by name from their JSON form.

    Raises:
        MISSHAPEN: they have another one.
    """
    return {name(key): name(value) for key, value in raw.items()}
