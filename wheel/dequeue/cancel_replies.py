"""Reads the outcomes of cancels from the cancel log, and returns replies and chases to write.

Ingest resolves each cancel as it takes it (wheel/append/cancel_matches.py); this module only
decides when a reply may leave. cancel_reply_rows.py makes its record.

- A reply leaves in a transaction whose progress has C above the cancel: after any loss the cancel
  applies again, so no cancelled timer is delivered.
- A *chase* is the same cancel, written again to the end of its partition, one for each undecided
  cancel: a copy of the timer may be above the cancel, but is below the chase. The chase carries R
  of its transaction: a timer in a slot up to R has no copy above the chase.
- `a`, in the same progress, is the offset below which each cancel of a partition has its reply or
  chase. So each cancel has one reply, after any kill; after a loss cancels are read again from
  there. A partition without open cancels has a = C. Segments below it are unlinked.
- A transaction has equally many of each timer topic that has some (open_cancels.py).

Without a reply topic there are chases only. A retired partition gets no replies: the progress has
no `a` for it, so a start would reply again.

Not thread-safe: the loop owns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Commit, Marks
from duewheel.checkpoints.progress import PartitionProgress
from duewheel.schemas.arrays import Bool, Int32, Int64
from duewheel.schemas.batches import Deliveries, TopicPartition, is_retired
from duewheel.wheel.dequeue.cancel_reply_rows import reply_rows
from duewheel.wheel.dequeue.open_cancels import CancelRun, OpenCancels
from duewheel.wheel.dequeue_config import REPLIES_MAX
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES
from duewheel.wheel.storage.cancel_log import (
    CHASE,
    CHASE_FOUND,
    OUTCOMES,
    CancelRows,
    is_chase,
)
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.message_store import StoredMessages, joined


@dataclass(frozen=True, slots=True)
class Replies:
    """Replies and chases that may leave in one transaction.

    Attributes:
        rows: replies and chases.
        replied_below: `a` once they are committed.
        outcomes: the number of replies, by outcome.
        chases: the number of chases.
    """

    rows: Deliveries
    replied_below: Marks
    outcomes: Mapping[str, int]
    chases: int


@dataclass(frozen=True, slots=True)
class _Leaving:
    """Cancels of one topic that need a reply or chase."""

    requests: StoredMessages
    outcome: Int32

    @classmethod
    def of(cls, rows: CancelRows, leaves: Int64) -> _Leaving:
        """Selects these of the rows."""
        return cls(rows.requests.take(leaves), rows.outcome[leaves])


class CancelReplies:
    """Reads one shard's resolved cancels, and returns replies and chases; see the module's head."""

    def __init__(
        self,
        directory: DataDirectory,
        replied_below: Marks,
        assignment_epoch: int,
        reply_topic: str | None,
        bytes_max: int,
        rows_max: int = REPLIES_MAX,
    ) -> None:
        """Replies and chases continue from `replied_below`, `a` of each partition in the progress
        of the start; those that its `assignment_epoch` cuts off are left out. Without a
        `reply_topic` no reply is written. A transaction has `rows_max` rows and requests of
        `bytes_max` bytes, or one larger request.
        """
        self._directory = directory
        self._reply_topic = reply_topic
        self._bytes_max = bytes_max
        self._rows_max = rows_max
        self._replied_below, self._epoch = dict(replied_below), assignment_epoch
        self._open = OpenCancels(directory)
        # Cancels of each topic, and new values of `a`, in the last result of `next`.
        self._selected: dict[str, int] = {}
        self._without_room = set[str]()  # topics whose next request did not fit into it
        self._given: dict[TopicPartition, int] = {}
        # Commit page of the newest closing; None once all cancels in it are replied to: idle turns
        # then read no cancel log.
        self._closed_with: Commit | None = None

    @property
    def replied_below(self) -> Marks:
        """`a` of each partition: committed, or without need of a transaction."""
        return self._replied_below

    def first_segment(self, commit: Commit) -> int:
        """Returns the first hour of the cancel log with a cancel without reply or chase; a number
        above all hours if there is none.
        """
        return self._open.first_segment(commit)

    def note_closing(self, commit: Commit) -> None:
        """Sets the commit page of a new closing: its cancels may get replies, later ones wait."""
        self._closed_with = commit

    @property
    def is_done(self) -> bool:
        """Whether no reply or chase can leave before the next closing."""
        return self._closed_with is None

    def next(self, partitions: Mapping[TopicPartition, PartitionProgress]) -> Replies | None:
        """Returns the next replies and chases, the same ones until `committed` is called; None if
        there are none before the next closing (`is_done`), or the next cancels need none: a start
        passes all of an hour, and the loop delivers between two looks.

        Raises:
            CorruptFile: the cancel log is damaged.
        """
        assert self._closed_with is not None, "called only while not is_done"
        is_whole = self._open.add(self._closed_with)
        leaving = self._select(partitions)
        if leaving:
            return self._made(leaving, partitions)
        is_end = not any(self._selected.values())
        self.committed()  # none of them needs a reply or chase
        if not (is_end and is_whole):
            return None
        if not self._open.topics:
            # Every cancel is done: without this a start would read them again.
            self._replied_below |= {p: part.closed_mark for p, part in partitions.items()}
        self._closed_with = None
        return None

    def _select(self, partitions: Mapping[TopicPartition, PartitionProgress]) -> list[_Leaving]:
        """Selects the next cancels, equally many of each topic that has them, and of equally many
        bytes; returns those that need a reply or chase.

        Topics that had no room before come first, then those with few cancels: the others have the
        room that these leave. A request larger than its topic's part is selected if there is room
        left. One larger than a transaction comes first, and takes no other topic's part.
        """
        self._given = {}
        leaving, left, left_bytes = list[_Leaving](), self._rows_max, self._bytes_max
        waited, topics = self._without_room, self._open.topics[: self._rows_max]
        # Those that had no room keep their order: the first of them has waited longest.
        topics.sort(key=lambda topic: -1 if topic in waited else self._open.count(topic))
        self._selected, self._without_room = dict.fromkeys(topics, 0), set()
        for number, topic in enumerate(topics):
            others = len(topics) - number
            share, share_bytes = left // others, left_bytes // others
            for run in self._open.runs(topic):
                if share <= 0 or (share_bytes <= 0 and self._selected[topic]):
                    break
                rows, size = self._rows_of(run, share, share_bytes)
                if size > share_bytes and (self._selected[topic] or size > left_bytes):
                    if any(self._selected.values()):
                        self._without_room.add(topic)
                        break
                    size = share_bytes  # the others keep theirs
                ready, leaves = self._take_ready(rows, partitions)
                self._selected[topic] += ready
                if not ready:
                    break
                share, left = share - ready, left - ready
                share_bytes, left_bytes = share_bytes - size, left_bytes - size
                if len(leaves):
                    leaving.append(_Leaving.of(rows, leaves))
                if ready < len(run):
                    break  # the rest of the run comes before the next one
        return leaving

    def committed(self) -> None:
        """Records that the last rows of `next` are committed."""
        for topic, count in self._selected.items():
            self._open.pop(topic, count)
            if count or topic not in self._without_room:
                self._open.put_last(topic)
        self._replied_below |= self._given
        self._selected, self._given = {}, {}

    def _rows_of(self, run: CancelRun, rows_max: int, bytes_max: int) -> tuple[CancelRows, int]:
        """Returns the first rows of a run, at least one, and the bytes of their requests."""
        log, position = self._directory.cancels, run.position[:rows_max]
        first = int(position[0])
        records = log.records(run.hour, first, int(position[-1]) + RECORD_BYTES)
        records = records[(position - first) // RECORD_BYTES]
        sizes = np.cumsum(records["size_py"].astype(np.int64))
        count = max(1, int(np.searchsorted(sizes, bytes_max, "right")))
        rows = log.read(run.hour, records[:count], position[:count])
        return rows, int(sizes[count - 1])

    def skip(self, commit: Commit, replied_below: Marks) -> None:
        """Skips, in a standby, the cancels that the owner has replied to or chased.

        `replied_below` is `a` of each partition in the owner's progress.
        """
        self._replied_below |= replied_below
        while not self._open.add(commit):
            pass
        for topic in self._open.topics:
            while topic in self._open.topics:
                run = next(self._open.runs(topic))
                rows, _ = self._rows_of(run, self._rows_max, self._bytes_max)
                left = np.flatnonzero(~self._is_over(rows, *self._sources(rows)))
                self._open.pop(topic, int(left[0]) if len(left) else len(rows))
                if len(left):
                    break

    def _sources(self, rows: CancelRows) -> tuple[list[TopicPartition], Int32]:
        """Returns the partitions of some rows, and each row's index among them."""
        return self._directory.topics.sources(rows.requests.prefix)

    def _is_over(self, rows: CancelRows, sources: list[TopicPartition], source: Int32) -> Bool:
        """Returns the rows that need neither reply nor chase."""
        retired = np.array([is_retired(topic) for topic, _ in sources], np.bool_)[source]
        a = np.array([self._replied_below.get(p, 0) for p in sources], np.int64)[source]
        cut_off = (rows.cut_at > 0) & (rows.cut_at <= self._epoch)
        over: Bool = (_offsets(rows) < a) | retired | cut_off
        return over

    def _take_ready(
        self, rows: CancelRows, partitions: Mapping[TopicPartition, PartitionProgress]
    ) -> tuple[int, Int64]:
        """Returns how many of the first rows need not wait for C, and which of them need a reply or
        chase. `a` rises above them when `committed` is called: an earlier rise would lose their
        replies in a kill.
        """
        sources, source = self._sources(rows)
        c = [partitions[p].closed_mark if p in partitions else 0 for p in sources]
        offset, over = _offsets(rows), self._is_over(rows, sources, source)
        early = np.flatnonzero((offset >= np.array(c, np.int64)[source]) & ~over)
        ready = int(early[0]) if len(early) else len(rows)
        leaves = ~over[:ready]
        if self._reply_topic is None:
            leaves &= is_chase(rows.outcome[:ready])
        done = np.flatnonzero(~over[:ready])
        ends = np.zeros(len(sources), np.int64)
        np.maximum.at(ends, source[done], offset[done] + 1)
        self._given |= {p: end for p, end in zip(sources, ends.tolist(), strict=True) if end}
        return ready, np.flatnonzero(leaves)

    def _made(
        self,
        parts: Sequence[_Leaving],
        partitions: Mapping[TopicPartition, PartitionProgress],
    ) -> Replies:
        requests = joined([part.requests for part in parts])
        outcome = np.concatenate([part.outcome for part in parts])
        sources, source = self._directory.topics.sources(requests.prefix)
        r = np.array(
            [partitions[p].delivered_slot if p in partitions else 0 for p in sources],
            np.int64,
        )
        made = reply_rows(requests, source, sources, outcome, r[source], self._reply_topic)
        counts = np.bincount(outcome, minlength=len(OUTCOMES)).tolist()
        chases = counts[CHASE] + counts[CHASE_FOUND]
        counts[CHASE] = counts[CHASE_FOUND] = 0
        outcomes = {str(OUTCOMES[index]): count for index, count in enumerate(counts) if count}
        return Replies(made, self._given, outcomes, chases)


def _offsets(rows: CancelRows) -> Int64:
    offset: Int64 = rows.requests.prefix["source_offset"].astype(np.int64)
    return offset
