"""The content of the commit and close pages of the `state` file, and its JSON form.

    commit   {"batch", "marks", "hours": {hour: [log bytes, message bytes, batch from, cancelled
             bytes, cancelled from]}, "placed", "topic_ids": {topic: id}, "topics",
             "cancels": {hour: [bytes, bytes]}, "floor"}
    close    {"lower", "c_before", "floor", "c"}

Marks, and c, are {topic: {partition: offset}}. A mark is the next offset to take.

State.write_commit and write_close (state_file.py) write them, as pages of checksummed_pages.py: in
step 5 of wheel/append/engine.py, in step 1 of wheel/dequeue/loop.py; else only in a recovery, in a
standby, and after an accepted loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from duewheel.checkpoints.json_fields import integer, name, partition_number

if TYPE_CHECKING:  # it imports numpy and pyarrow, which the supervisor does not need
    from duewheel.schemas.batches import TopicPartition

Marks = Mapping[tuple[str, int], int]  # by TopicPartition


class HourLengths(NamedTuple):
    """The lengths of one hour's three files, and the start of the last batch in them."""

    log_bytes: int  # committed length of timerlog/<hour>
    message_bytes: int  # committed length of messages/<hour>
    # Log position of the last batch's first record, where redo begins; equal to `log_bytes` if the
    # batch has none there.
    batch_from: int
    cancelled_bytes: int = 0  # committed length of cancelled/<hour>
    cancelled_from: int = 0  # the start of the last batch in cancelled/<hour>, likewise

    @property
    def is_sound(self) -> bool:
        """Whether the last batch begins within the files: asserted at each write, required at each
        read.
        """
        in_log = 0 <= self.batch_from <= self.log_bytes
        return (
            in_log and self.message_bytes >= 0 and 0 <= self.cancelled_from <= self.cancelled_bytes
        )

    @property
    def lengths(self) -> tuple[int, int, int]:
        """As the log, messages, cancelled."""
        return self.log_bytes, self.message_bytes, self.cancelled_bytes

    def extended_by(self, lengths: tuple[int, ...]) -> HourLengths:
        """Returns these lengths after a batch that begins at the present ends."""
        log_bytes, message_bytes, cancelled_bytes = lengths
        assert message_bytes >= self.message_bytes, "a batch only appends"
        return HourLengths(
            log_bytes, message_bytes, self.log_bytes, cancelled_bytes, self.cancelled_bytes
        )

    @classmethod
    def applied(cls, lengths: tuple[int, ...]) -> HourLengths:
        """Makes these lengths without a batch to redo: the last one begins at the ends."""
        log_bytes, message_bytes, cancelled_bytes = lengths
        return cls(log_bytes, message_bytes, log_bytes, cancelled_bytes, cancelled_bytes)


class Commit(NamedTuple):
    """The content of a commit page."""

    batch: int  # sequence of the batch, rising by one
    marks: Marks  # next offset to take, per source partition
    hours: Mapping[int, HourLengths]  # every hour with files, and their lengths after this batch
    placed: int  # timers placed in the wheel since the directory was made
    # Kafka's id of each timer topic. Another id under the same name is another topic: the marks are
    # no offsets of it.
    topic_ids: Mapping[str, str] = MappingProxyType({})
    topics: int = 0  # the least number of names in the file `topics`
    # bytes of the two files of every segment of the cancel log, by its hour
    cancels: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    applied: bool = False  # whether the wheel has the batch; if not, a redo links it again
    # The last slot that was closed when the rows of the batch were placed; 0 if it is unknown. A
    # close page with a lower floor is older than that, so the newest one is lost.
    floor: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether no count or offset is negative: asserted at each write, required at each read."""
        least = min(self.batch, self.placed, self.topics, *self.marks.values())
        return least >= 0 and all(files.is_sound for files in self.hours.values())

    def high_water(self, close: Close | None) -> Marks:
        """Returns the marks; for a partition without one, C of the close page."""
        return {**(close.marks if close else {}), **self.marks}

    def to_json(self) -> dict[str, Any]:
        """Returns the page's content; `applied` is a field of the page, not of the content."""
        assert self.is_sound, "a batch only appends"
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
            "floor": self.floor,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], *, applied: bool) -> Commit:
        """Parses the result of `to_json`; raises MISSHAPEN for another shape."""
        hours = {int(h): HourLengths(*map(integer, lengths)) for h, lengths in raw["hours"].items()}
        commit = cls(
            integer(raw["batch"]),
            marks_from(raw["marks"]),
            hours,
            integer(raw["placed"]),
            names_from(raw["topic_ids"]),
            integer(raw["topics"]),
            lengths_from(raw["cancels"], 2),
            applied,
            integer(raw.get("floor", 0)),
        )
        if not commit.is_sound:
            raise ValueError(
                "a count is negative, or the last batch begins after the end of a file"
            )
        return commit


NO_COMMIT = Commit(0, {}, {}, 0, applied=True)  # before the first


class Close(NamedTuple):
    """The content of a close page: the slots of (lower, floor] were closed at marks C."""

    lower: int  # floor before this closing
    marks_before: Marks  # C of the range before it, so of slot `lower`
    floor: int  # last closed slot
    marks: Marks  # C: the marks when the range was closed, valid for every slot in it

    @property
    def is_sound(self) -> bool:
        """Whether it is a range at offsets: asserted at each write, required at each read."""
        least = min((0, *self.marks_before.values(), *self.marks.values()))
        return self.lower <= self.floor and least == 0

    def missing(self, marks: Marks) -> dict[TopicPartition, int]:
        """Counts the offsets below C that are not taken yet, by partition that has some."""
        return {p: c - marks.get(p, 0) for p, c in self.marks.items() if marks.get(p, 0) < c}

    def to_json(self) -> dict[str, Any]:
        assert self.is_sound, "the floor never falls"
        return {
            "lower": self.lower,
            "c_before": marks_to(self.marks_before),
            "floor": self.floor,
            "c": marks_to(self.marks),
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Close:
        """Parses the result of `to_json`; raises MISSHAPEN for another shape, or no range."""
        before, marks = marks_from(raw["c_before"]), marks_from(raw["c"])
        close = cls(integer(raw["lower"]), before, integer(raw["floor"]), marks)
        if not close.is_sound:
            raise ValueError(
                f"closed from slot {close.lower} to {close.floor}, or a mark is negative"
            )
        return close


def marks_to(marks: Marks) -> dict[str, dict[str, int]]:
    """Converts marks to JSON: topic, partition, offset. Sorted: Spark compares offsets as texts."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(marks.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return topics


def marks_from(topics: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """Parses marks; raises MISSHAPEN for another shape."""
    return {
        (name(topic), partition_number(number)): integer(offset)
        for topic, partitions in topics.items()
        for number, offset in partitions.items()
    }


def lengths_from(raw: Mapping[str, Any], files: int) -> dict[int, tuple[int, ...]]:
    """Parses the lengths of `files` files by hour; raises MISSHAPEN for another shape."""
    found = {int(hour): tuple(map(integer, lengths)) for hour, lengths in raw.items()}
    if any(len(lengths) != files or min(lengths) < 0 for lengths in found.values()):
        raise ValueError(f"not the lengths of {files} files")
    return found


def names_from(raw: Mapping[str, str]) -> dict[str, str]:
    """Parses a table of names by name; raises MISSHAPEN for another shape."""
    return {name(key): name(value) for key, value in raw.items()}
