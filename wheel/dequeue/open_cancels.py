"""The resolved cancels that need a reply or chase yet, in a queue for each timer topic.

The cancel log has those of all topics in the order of their appends. In one queue a topic with
300,000 cancels would delay the replies of all others by seconds, and one that cancels faster than
replies leave, for ever. So every topic has a queue of its own, and each gets its turn.

A queue has runs of log records, with few of other topics between two of them: so a read of many
neighbours gives the next cancels of each topic, also where the topics take turns in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.schemas.arrays import Int64
from duewheel.schemas.batches import topic_numbers
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES
from duewheel.wheel.storage.data_directory import DataDirectory

_RECORDS_AT_ONCE = 20_000
_GAP_BYTES = 1_000 * RECORD_BYTES  # of other topics' records, in half a millisecond
_JOINED_MAX = 1_000
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Records of one topic in a segment of the cancel log."""

    hour: int
    position: Int64  # rising, at most _GAP_BYTES from one to the next

    def __len__(self) -> int:
        return len(self.position)

    def before(self, run: CancelRun) -> bool:
        """Whether both may be read as one; a long one is not copied for each that comes."""
        is_near = run.position[0] - self.position[-1] <= _GAP_BYTES
        return self.hour == run.hour and bool(is_near) and len(self) < _JOINED_MAX


class OpenCancels:
    """The queues of one data directory. Not thread-safe."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._queues: dict[str, deque[CancelRun]] = {}  # none is empty; the next topic is the first
        self._queued: dict[int, int] = {}  # of each segment, the bytes whose cancels were queued

    @property
    def topics(self) -> list[str]:
        """The topics with open cancels, the one whose turn is next before the others."""
        return list(self._queues)

    def add(self, commit: Commit) -> bool:
        """Queues the next cancels that are committed: some, as millions would delay deliveries.
        Returns whether all are queued.

        Raises:
            CorruptFile: the cancel log is damaged.
        """
        unlinked_below = self._directory.state.live.gc_cancels
        for hour, (length, _) in sorted(commit.cancels.items()):
            begin = self._queued.get(hour, 0)
            if hour < unlinked_below or begin >= length:
                continue
            self._queued[hour] = min(length, begin + _RECORDS_AT_ONCE * RECORD_BYTES)
            for topic, run in self._runs(hour, begin, self._queued[hour]):
                runs = self._queues.setdefault(topic, deque())
                if runs and runs[-1].before(run):
                    run = CancelRun(hour, np.append(runs.pop().position, run.position))
                runs.append(run)
            return False
        return True

    def count(self, topic: str) -> int:
        """Returns the number of open cancels of a topic."""
        return sum(map(len, self._queues[topic]))

    def runs(self, topic: str) -> Iterator[CancelRun]:
        """Yields the open cancels of a topic, in their order."""
        yield from self._queues[topic]

    def pop(self, topic: str, count: int) -> None:
        """Takes out the first `count` cancels of a topic."""
        runs, left = self._queues[topic], count
        while left:
            run = runs.popleft()
            if len(run) > left:
                runs.appendleft(CancelRun(run.hour, run.position[left:]))
            left -= min(len(run), left)
        if not runs:
            del self._queues[topic]

    def put_last(self, topic: str) -> None:
        """Lets the other topics have their turn first."""
        if topic in self._queues:
            self._queues[topic] = self._queues.pop(topic)

    def first_segment(self, commit: Commit) -> int:
        """Returns the first hour of the cancel log with an open cancel, or with one that is not
        queued; a number above all hours if there is none.
        """
        hours = [runs[0].hour for runs in self._queues.values()]
        lengths = commit.cancels.items()
        hours += [hour for hour, (size, _) in lengths if self._queued.get(hour, 0) < size]
        return min(hours, default=_NEVER)

    def _runs(self, hour: int, start: int, end: int) -> Iterator[tuple[str, CancelRun]]:
        """Yields the records between two positions, of one topic after another.

        It verifies no checksum. A damaged request may be in the wrong queue; it is found there.
        """
        log = self._directory.cancels
        records = log.records(hour, start, end)
        sources, source = self._directory.topics.sources(log.requests.prefixes(hour, records))
        topics, of_source = topic_numbers(sources)
        topic = of_source[source]
        order = np.argsort(topic, kind="stable")
        topic, position = topic[order], start + order * RECORD_BYTES
        is_next = (np.diff(topic) != 0) | (np.diff(position) > _GAP_BYTES)
        begins = np.append(0, np.flatnonzero(is_next) + 1)
        for begin, of_run in zip(begins.tolist(), np.split(position, begins[1:]), strict=True):
            yield topics[topic[begin]], CancelRun(hour, of_run)
