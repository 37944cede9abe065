"""The resolved cancels that need a reply or chase yet, in a queue for each timer topic.

The cancel log has those of all topics in the order of their appends. In one queue a topic with
300,000 cancels would delay the replies of all others by seconds, and one that cancels faster than
replies leave, for ever. So every topic has a queue of its own, and each gets its turn.

A queue has runs of neighbouring log records: few, as the rows of a topic are appended together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Commit
from duewheel.schemas.batches import topic_numbers
from duewheel.wheel.storage.byte_layouts import RECORD_BYTES
from duewheel.wheel.storage.data_directory import DataDirectory

Run = tuple[int, int, int]  # hour, and bytes of its segment: from, to

_RECORDS_AT_ONCE = 20_000
_NEVER = np.iinfo(np.int64).max


class OpenCancels:
    """The queues of one data directory. Not thread-safe."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._queues: dict[str, deque[Run]] = {}  # none is empty; the next topic is the first
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
            for first, end, topic in self._runs(hour, begin, self._queued[hour]):
                runs = self._queues.setdefault(topic, deque())
                if runs and runs[-1][0] == hour and runs[-1][2] == first:
                    first = runs.pop()[1]
                runs.append((hour, first, end))
            return False
        return True

    def count(self, topic: str) -> int:
        """Returns the number of open cancels of a topic."""
        return sum(end - first for _, first, end in self._queues[topic]) // RECORD_BYTES

    def runs(self, topic: str) -> Iterator[Run]:
        """Yields the open cancels of a topic, in their order."""
        yield from self._queues[topic]

    def pop(self, topic: str, count: int) -> None:
        """Takes out the first `count` cancels of a topic."""
        runs, left = self._queues[topic], count * RECORD_BYTES
        while left:
            hour, first, end = runs.popleft()
            if end - first > left:
                runs.appendleft((hour, first + left, end))
            left -= min(end - first, left)
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
        hours = [runs[0][0] for runs in self._queues.values()]
        lengths = commit.cancels.items()
        hours += [hour for hour, (size, _) in lengths if self._queued.get(hour, 0) < size]
        return min(hours, default=_NEVER)

    def _runs(self, hour: int, start: int, end: int) -> Iterator[tuple[int, int, str]]:
        """Yields neighbouring records with the same topic: first and last byte, and the topic.

        It verifies no checksum. A damaged request may be in the wrong queue; it is found there.
        """
        log = self._directory.cancels
        records = log.records(hour, start, end)
        sources, source = self._directory.topics.sources(log.requests.prefixes(hour, records))
        topics, of_source = topic_numbers(sources)
        topic = of_source[source]
        begins = np.append(0, np.flatnonzero(np.diff(topic)) + 1)
        ends = np.append(begins[1:], len(records))
        for begin, until in zip(begins.tolist(), ends.tolist(), strict=True):
            name = topics[topic[begin]]
            yield start + begin * RECORD_BYTES, start + until * RECORD_BYTES, name
