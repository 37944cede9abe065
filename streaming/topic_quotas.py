"""The quotas of timer topics: how far a batch may read a topic, if only so many of its messages may
be taken per second.

Further messages stay in Kafka: the end of a batch does not move on in their partitions. Nothing is
refused, so the outcome of a message follows from its record and the settings alone, whenever it is
read.

Bytes count, too: each started 16 KiB of a topic in a task as a message, if these are more than its
messages (byte_budget.py). Only the tasks learn them, so the bucket pays after the batch, and may be
negative: then the topic is read on once it is filled again.

A quota is a bucket of messages. It fills with the rate from one read of the logs' ends to the next,
and keeps at most the messages of one second. It begins empty, so that restarts permit no more.

Partitions with fewer messages than an equal part of their topic's bucket are read to their ends,
the others in turn, for a second each. If each of them got a part, each batch would end within a
record batch of each partition, and tasks would decode all of these again for each batch: seconds of
processor time for some kilobytes that were sent once.

Offsets below the close page's marks are free. They were taken before: in a recovery, delivery waits
for them; in a standby, its owner has taken them. So are those that retention has deleted. A standby
reads no others: its buckets stay empty. A batch with later messages would wait until the owner has
taken them, and with it the messages of all other topics.

Invariant: only the planning process of ingest's query counts, so a batch that is run again costs
nothing, and a quota that is changed changes no batch that is planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.fs import READING_FS
from duewheel.checkpoints.quota_waiting import QuotaWaiting
from duewheel.checkpoints.state_file import State
from duewheel.clock import Clock, Interval
from duewheel.streaming.batch_plan import Offsets, rows_of_each

if TYPE_CHECKING:  # it imports numpy and pyarrow
    from duewheel.schemas.batches import TopicPartition

_UPKEEP_MS = 1_000  # between two reads of the free offsets, and two writes of the file
_TURN_MS = 1_000  # of a partition with more messages than its part


class TopicQuotas:
    """The buckets of one planning process. `per_second` has the messages of each topic with a
    quota; `data_dir` the close page, and the file for `status`. Not thread-safe.
    """

    def __init__(self, per_second: Mapping[str, int], data_dir: Path, clock: Clock) -> None:
        self._per_second = per_second
        self._data_dir = data_dir
        self._clock = clock
        self._filled_ms = clock.boottime_ms()
        self._bucket = dict.fromkeys(per_second, 0.0)
        self._counted_from: Offsets = {}  # of the partitions with a quota, since `permitted`
        self._taken: Marks = {}  # the close page's marks
        self._is_standby = False
        self._log_starts: Offsets = {}
        self._free = frozenset[str]()  # topics with free offsets, since `permitted`
        self._unsettled = frozenset[str]()  # topics of the last batch whose bytes are not paid yet
        self._turns: dict[str, tuple[TopicPartition, int]] = {}  # by topic: whose, until
        self._standby_is_due = Interval(clock, _UPKEEP_MS)
        self._free_is_due = Interval(clock, _UPKEEP_MS)
        self._note_is_due = Interval(clock, _UPKEEP_MS)
        self._has_noted = True  # the process before may have

    def permitted(
        self,
        firsts: Offsets,
        log_ends: Offsets,
        log_starts: Callable[[list[TopicPartition]], Offsets],
    ) -> Offsets:
        """How far the next batch may read each partition from `firsts` on: to its log's end (the
        last stable offset), or as far as the quota of its topic permits. `log_starts` returns the
        first offsets of the logs of some partitions.
        """
        limited = [p for p, end in log_ends.items() if p[0] in self._bucket and firsts[p] < end]
        if limited:
            self._read_standby()
        self._fill()
        self._counted_from = {p: firsts[p] for p in limited}
        self._free = frozenset[str]()
        over = self._topics_over(log_ends)
        if over:
            self._read_free(limited, log_starts)
            self._counted_from = {p: min(self._free_below(p, firsts), log_ends[p]) for p in limited}
            self._free = frozenset(p[0] for p in limited if firsts[p] < self._counted_from[p])
        ends = dict(log_ends)
        for topic in over:
            ends |= self._ends_of(topic, log_ends)
        self._note({p: (ends[p], log_ends[p]) for p in limited if ends[p] < log_ends[p]})
        return ends

    def planned(self, ends: Offsets) -> None:
        """Takes the messages of a batch from the buckets. It ends as `permitted`, or before."""
        paid = set[str]()
        for partition, first in self._counted_from.items():
            rows = max(ends[partition] - first, 0)
            self._bucket[partition[0]] -= rows
            paid |= {partition[0]} if rows else set()
        self._unsettled = frozenset(paid - self._free)

    def settle(
        self, unread: Mapping[TopicPartition, int], added_messages: Mapping[str, int]
    ) -> None:
        """Corrects the cost of the last batch once it was read: puts messages back that were
        planned, and are planned again; takes those that its bytes count as. A batch of another
        process, and one with offsets that are free, costs no bytes.
        """
        for (topic, _), count in unread.items():
            if topic in self._bucket:
                self._bucket[topic] += count
        for topic in self._unsettled:
            self._bucket[topic] -= added_messages.get(topic, 0)
        self._unsettled = frozenset()

    def _fill(self) -> None:
        now_ms = self._clock.boottime_ms()
        passed_s, self._filled_ms = (now_ms - self._filled_ms) / 1000, now_ms
        for topic, rate in self._per_second.items():
            filled = min(self._bucket[topic], rate) + rate * passed_s
            self._bucket[topic] = 0.0 if self._is_standby else filled

    def _topics_over(self, log_ends: Offsets) -> list[str]:
        """Lists the topics with more messages, free ones included, than their buckets have."""
        rows = Counter[str]()
        for partition, first in self._counted_from.items():
            rows[partition[0]] += log_ends[partition] - first
        return [topic for topic, count in rows.items() if count > self._bucket[topic]]

    def _ends_of(self, topic: str, log_ends: Offsets) -> Offsets:
        """Shares the bucket of a topic among its partitions. At least one gets a message, for which
        the next ones wait the longer; so does each with a single one.
        """
        ends = {p: first for p, first in self._counted_from.items() if p[0] == topic}
        bucket = int(self._bucket[topic])
        if bucket <= 0:
            return ends
        waiting = {p: log_ends[p] - first for p, first in ends.items()}
        each = rows_of_each(waiting.values(), bucket)
        whole = {p: rows for p, rows in waiting.items() if rows <= each}
        ends |= {p: log_ends[p] for p in whole}
        left = max(bucket - sum(whole.values()), 1)
        for partition in self._in_turn(topic, waiting.keys() - whole.keys()):
            taken = min(waiting[partition], left)
            ends[partition] += taken
            left -= taken
        return ends

    def _in_turn(self, topic: str, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Some partitions of a topic, from the one on whose turn it is."""
        current, until_ms = self._turns.get(topic, ((topic, -1), 0))
        if partitions and (current not in partitions or self._filled_ms >= until_ms):
            current = min((p for p in partitions if p > current), default=min(partitions))
            self._turns[topic] = current, self._filled_ms + _TURN_MS
        return sorted(partitions, key=lambda p: (p < current, p))

    def _read_standby(self) -> None:
        if self._standby_is_due.is_over() or self._is_standby:
            with State.open(self._data_dir, READING_FS) as state:
                self._is_standby = state.standby

    def _read_free(
        self,
        partitions: list[TopicPartition],
        log_starts: Callable[[list[TopicPartition]], Offsets],
    ) -> None:
        """Reads the offsets below which messages do not count. A standby reads the marks at each
        look, because it plans up to them. Not more often than needed: those of 20,000 partitions
        take 70 ms.
        """
        is_due = self._free_is_due.is_over()
        if is_due or self._is_standby:
            with State.open(self._data_dir, READING_FS) as state:
                close = state.close()
            self._taken = close.marks if close else {}
        if is_due:
            self._log_starts = log_starts(partitions)

    def _free_below(self, partition: TopicPartition, firsts: Offsets) -> int:
        """The first offset of a partition that counts. Marks and logs' starts only rise, and a new
        partition has no messages that were taken.
        """
        taken, start = (each.get(partition, 0) for each in (self._taken, self._log_starts))
        return max(firsts[partition], taken, start)

    def _note(self, waiting: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Writes the file for `status` and the lag watch. It is a hint: a full disk must not end
        the query.
        """
        if (waiting or self._has_noted) and self._note_is_due.is_over():
            with suppress(OSError):
                QuotaWaiting(self._clock.now_ms(), waiting).write(self._data_dir)
            self._has_noted = bool(waiting)
