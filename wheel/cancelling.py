"""What dequeue knows of cancels: whom they keep from leaving, for how long, and what they are told.

1. A cancel becomes *known* at a closing, or at a start, with all others that lie below C. From then
   on what it meets is left out when its slot is delivered, and so is not rolled or parked either.
   The progress that says C is written later: whoever reads that can rely on it.
2. A round of lookups (lookups.py) tells whether something that it meets is still in the wheel. Then
   the answer is `cancelled`.
3. Copies that were made before may still be on their way. They lie below the end that the partition
   had when that was asked, after 1. Once ingest has come there, the cancel is *settled*: another
   round finds all that it can ever meet. It lives until that has left.
4. A settled cancel that has met nothing in the wheel is told `already_delivered` if something that
   it meets has left since this process started, and no cancel before it had left that out; else
   `unknown`: there was nothing, or nobody can tell any more.

The progress keeps two numbers for a partition. K is the lowest offset of a cancel that may still
meet a timer, or has no answer: what is lost is read again from there. Below `a` cancels are
answered: answers leave in the order of offsets, each in a transaction whose C lies behind the
cancel. So there is one answer to each, whatever happens.

Nothing of this is stored but the cancels themselves and these two: after a start lookups are made
again. In memory are the cancels that K and `a` do not cover; those whose rows were left out are
remembered for as long as the log of these rows is on disk. Not thread-safe: the loop owns it.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
import structlog

from duewheel.checkpoints.progress import PartitionProgress
from duewheel.checkpoints.state import Commit, Marks
from duewheel.clock import Clock
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.schemas.header_names import Answer
from duewheel.schemas.timers import Bool, Deliveries, Int32, Int64, TopicPartition, is_retired
from duewheel.wheel.answers import WORDS, answer_rows
from duewheel.wheel.cancel_log import CancelRows
from duewheel.wheel.data_directory import DataDirectory
from duewheel.wheel.dequeue_statistics import CancelCounts
from duewheel.wheel.layout import hour_of
from duewheel.wheel.lookups import Found, Lookups
from duewheel.wheel.publisher import Publisher
from duewheel.wheel.tombstones import (
    NO_WORD,
    NOT_ASKED,
    NOT_SETTLED,
    NOTHING,
    Filter,
    Rows,
    Tombstones,
    indexes,
    meetings,
)

log = structlog.get_logger(__name__)

ANSWERS_MAX = 1_000  # of one transaction
_ASK_AGAIN_MS = 10_000  # for the ends of partitions, after there was no answer
_NEVER = np.iinfo(np.int64).max
_CANCELLED, _ALREADY_DELIVERED, _UNKNOWN = (
    WORDS.index(word) for word in (Answer.CANCELLED, Answer.ALREADY_DELIVERED, Answer.UNKNOWN)
)


@dataclass(frozen=True, slots=True)
class Start:
    """Where the loop has begun: what had left before, nobody here has seen leaving.

    Attributes:
        r: last slot that was delivered in full.
        below: D of slot r + 1, if that was half delivered.
        partitions: the progress that was found.
    """

    r: int
    below: Marks
    partitions: Mapping[TopicPartition, PartitionProgress]


@dataclass(frozen=True, slots=True)
class Said:
    """Answers that may leave.

    Attributes:
        rows: the answers; None where nobody wants them.
        answered: `a` once they are committed.
        words: how many of them there are, by word.
    """

    rows: Deliveries | None
    answered: Marks
    words: Mapping[str, int]


class Cancelling:
    """The cancels of one shard; see the module's head."""

    def __init__(
        self,
        directory: DataDirectory,
        publisher: Publisher,
        clock: Clock,
        lookups: Lookups,
        start: Start,
        reply_topic: str | None,
        answers_max: tuple[int, int],
    ) -> None:
        """Nothing is known yet.

        Args:
            directory: whose cancel log is read.
            publisher: asked for the ends of partitions.
            clock: spaces the rounds.
            lookups: of the same directory.
            start: where the loop has begun.
            reply_topic: where answers go; None: they are not given.
            answers_max: in one transaction, and bytes of their requests.
        """
        self._directory = directory
        self._publisher = publisher
        self._clock = clock
        self._lookups = lookups
        self._start = start
        self._reply_topic = reply_topic
        self._answers_max = answers_max
        self._answered = {p: part.a for p, part in start.partitions.items()}
        self._from = {p: part.cancels_from for p, part in start.partitions.items()}
        self._partitions: list[TopicPartition] = []
        self._places: dict[TopicPartition, int] = {}
        self._read: dict[int, int] = {}  # bytes of each segment
        self._later: list[CancelRows] = []  # at or above C
        self._live = Tombstones.none()  # in the order in which they became known
        self._past = Tombstones.none()
        self._filter = Filter(self._live, {})
        self._marks: Marks = {}
        self._log_bytes: Mapping[int, int] = {}
        self._asked: tuple[Future[Found], Tombstones, Bool] | None = None
        self._next_round_ms = 0
        self._next_ends_ms: dict[int, int] = {}  # of partitions whose end nobody told
        self._next_number = 0
        # How many have no answer, and how many are not settled: mostly none, and little is to do.
        self._unsaid = self._unsettled = 0
        self.counts = CancelCounts()

    @property
    def filter(self) -> Filter:
        """What is to be left out, as known now; it does not change any more."""
        return self._filter

    def first_segment(self, commit: Commit) -> int:
        """The first hour of the cancel log that holds what is not over, or not known yet."""
        unread = [h for h, (size, _) in commit.cancels.items() if self._read.get(h, 0) < size]
        hours = [*(rows.hour for rows in self._later), self._live.hour, np.array(unread, np.int64)]
        return int(np.concatenate(hours).min(initial=_NEVER))

    # ---- becoming known ----------------------------------------------------------------------

    def learn(self, commit: Commit, c: Marks, r: int) -> None:
        """1. of the module's head.

        Args:
            commit: the newest when the slots up to the floor were closed.
            c: C of the closing.
            r: last slot delivered in full.

        Raises:
            CorruptFile: the cancel log is damaged.
        """
        self._marks = commit.marks
        self._log_bytes = {hour: lengths.log_bytes for hour, lengths in commit.hours.items()}
        rows, self._later = [*self._later, *self._unread(commit)], []
        known = [new for each in rows if len(new := self._below(each, c, r))]
        for new in known:
            number = np.arange(self._next_number, self._next_number + len(new))
            self._live = self._live.beside(replace(new, number=number))
            self._next_number += len(new)
        if known:
            self._refilter()

    def _unread(self, commit: Commit) -> list[CancelRows]:
        segments, gone = self._directory.cancels, self._directory.state.gc_cancels
        rows: list[CancelRows] = []
        for hour, (length, _) in sorted(commit.cancels.items()):
            if hour >= gone and self._read.get(hour, 0) < length:
                rows += segments.read(hour, self._read.get(hour, 0), length)
                self._read[hour] = length
        return rows

    def _below(self, rows: CancelRows, c: Marks, r: int) -> Tombstones:
        """Those that become known; what lies at or above C waits, what is over is dropped."""
        codes = rows.topic.astype(np.int64) << 32 | rows.partition
        found, of_row = np.unique(codes, return_inverse=True)
        names = self._directory.topics.names(int(found.max(initial=-1)) >> 32)
        partitions = [(names[code >> 32], code & 0xFFFFFFFF) for code in found.tolist()]
        for partition in partitions:
            if partition not in self._places:
                self._places[partition] = len(self._partitions)
                self._partitions.append(partition)
        # Of a topic that was given up nothing comes any more, and no progress tells.
        ends = [_NEVER if is_retired(p[0]) else c.get(p, 0) for p in partitions]
        below = rows.offset < np.array(ends, np.int64)[of_row]
        begins = np.array([self._from.get(p, 0) for p in partitions], np.int64)[of_row]
        waits = np.flatnonzero(~below)
        if len(waits):
            self._later.append(rows.take(waits))
        index = indexes(self._places, partitions)[of_row]
        taken = np.flatnonzero(below & (rows.offset >= begins))
        return Tombstones.known(rows.take(taken), index[taken], r)

    def _recount(self) -> None:
        self._unsaid = int(self._unanswered(self._live, {}).sum())
        self._unsettled = int((self._live.last == NOT_SETTLED).sum())

    def _refilter(self) -> None:
        self._recount()
        self._filter = Filter(self._live.by_hash(), dict(self._places))
        self.counts = replace(self.counts, live=len(self._live), remembered=len(self._past))

    # ---- finding out -------------------------------------------------------------------------

    def look(self) -> None:
        """2. to 4. of the module's head, as far as they have come; waits for nothing but Kafka.

        Raises:
            CorruptFile: a message that cancels meet is damaged.
        """
        if not self._unsettled:
            return
        self._ask_for_ends()
        # Twice: a round that the loop itself makes is over at once, and another may be needed.
        for _ in range(2):
            self._end_round()
            if self._asked is None and self._clock.boottime_ms() >= self._next_round_ms:
                self._begin_round()
        self._end_round()

    def _ask_for_ends(self) -> None:
        """Of what was not told before others are not kept waiting: it has a request of its own."""
        rows = np.flatnonzero(self._live.log_end == NOT_ASKED)
        if not len(rows):
            return
        now_ms, again = self._clock.boottime_ms(), self._next_ends_ms
        wanted = np.unique(self._live.partition[rows]).tolist()
        due = [index for index in wanted if again.get(index, 0) <= now_ms]
        ends = self._ends([i for i in due if i not in again])
        ends |= self._ends([i for i in due if i in again])
        for index in due:
            if index in ends:
                again.pop(index, None)
            else:
                again[index] = self._clock.boottime_ms() + _ASK_AGAIN_MS
        known = np.full(len(self._partitions), NOT_ASKED)
        known[list(ends.keys())] = list(ends.values())
        log_end = self._live.log_end.copy()
        log_end[rows] = known[self._live.partition[rows]]
        self._live = replace(self._live, log_end=log_end)

    def _ends(self, wanted: list[int]) -> dict[int, int]:
        """The ends of partitions, as far as somebody tells; by index."""
        # What was given up sends its copies to another topic, where they begin anew.
        ends = {index: 0 for index in wanted if is_retired(self._partitions[index][0])}
        there = {self._partitions[index]: index for index in wanted if index not in ends}
        try:
            told = self._publisher.log_ends(list(there)) if there else {}
        except (KafkaUnavailable, ConfigError) as error:
            log.warning("the ends of timer partitions are not known", reason=str(error))
            return ends
        return ends | {there[partition]: end for partition, end in told.items()}

    def _begin_round(self) -> None:
        live = self._live
        marks = np.array([self._mark(p) for p in self._partitions], np.int64)[live.partition]
        settled = (live.log_end != NOT_ASKED) & (marks >= live.log_end)
        unanswered = (live.word == NO_WORD) & ~live.looked
        wanted = (settled & (live.last == NOT_SETTLED)) | (
            unanswered if self._reply_topic else np.zeros(len(live), np.bool_)
        )
        if wanted.any():
            rows = np.flatnonzero(wanted)
            asked = live.take(rows)
            order = np.argsort(asked.id_hash, kind="stable")
            future = self._lookups.begin(asked.id_hash, self._log_bytes)
            self._asked = future, asked.take(order), settled[rows][order]

    def _end_round(self) -> None:
        if self._asked is not None and self._asked[0].done():
            future, asked, settled = self._asked
            self._asked = None
            self._found(future.result(), asked, settled)

    def _mark(self, partition: TopicPartition) -> int:
        return 0 if is_retired(partition[0]) else self._marks.get(partition, 0)

    def _found(self, found: Found, asked: Tombstones, settled: Bool) -> None:
        """What a round tells of the cancels that it was made for."""
        # Half of a core at most.
        self._next_round_ms = self._clock.boottime_ms() + found.took_ms
        rows = Rows(
            indexes(self._places, found.partitions)[found.partition],
            found.origin,
            found.id_hash,
            found.timer_id,
        )
        cancel, row = meetings(asked, rows)
        was_out = self._was_out(found)
        waits = (found.slot[row] > asked.after[cancel]) & ~was_out[row]
        word, last = asked.word.copy(), asked.last.copy()
        word[cancel[waits]] = _CANCELLED
        last[settled] = NOTHING
        of_settled = settled[cancel]
        np.maximum.at(last, cancel[of_settled], found.slot[row[of_settled]])
        open_ = settled & (word == NO_WORD)
        if open_.any():
            word[open_] = _UNKNOWN
            undecided = open_[cancel]
            left = self._left(found, rows, was_out, cancel[undecided], row[undecided])
            word[left] = _ALREADY_DELIVERED
        self._update(asked, word, last)
        counts = self.counts
        self.counts = replace(
            counts,
            lookups=counts.lookups + 1,
            lookup_ms=counts.lookup_ms + found.took_ms,
            scanned=counts.scanned + found.scanned,
        )

    def _was_out(self, found: Found) -> Bool:
        """Rows of the slot that was half delivered at the start, that had left before it."""
        below = np.array([self._start.below.get(p, 0) for p in found.partitions], np.int64)
        half: Bool = found.slot == self._start.r + 1
        if len(below):
            half &= found.offset < below[found.partition]
        return half

    def _left(self, found: Found, rows: Rows, was_out: Bool, cancel: Int64, row: Int64) -> Int64:
        """Those of the given pairs' cancels whose timer is known to have left."""
        others = self._live.beside(self._past).by_hash()
        other, met = meetings(others, rows)
        left_out = np.zeros(len(rows), np.bool_)
        left_out[met[found.slot[met] > others.after[other]]] = True
        seen = (found.slot > self._start.r) & ~was_out & ~found.rolled
        # All copies of a timer are one: if one of them was left out, none was delivered.
        _, origin = np.unique(found.origin, return_inverse=True)
        timer = cancel * max(len(rows), 1) + origin[row]
        not_delivered = np.isin(timer, timer[left_out[row]])
        return np.unique(cancel[seen[row] & ~not_delivered])

    def _update(self, asked: Tombstones, word: Int32, last: Int64) -> None:
        live = self._live
        at = np.searchsorted(live.number, asked.number)
        words, lasts, looked = live.word.copy(), live.last.copy(), live.looked.copy()
        words[at], lasts[at], looked[at] = word, last, True
        self._live = replace(live, word=words, last=lasts, looked=looked)
        self._recount()

    # ---- telling -----------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether any cancel is still to be told something."""
        return self._unsaid > 0

    def answers(self, partitions: Mapping[TopicPartition, PartitionProgress]) -> Said | None:
        """What may be said in a transaction whose progress says so of C; None if nothing.

        Raises:
            CorruptFile: the cancel log is damaged.
        """
        live = self._live
        open_ = self._unanswered(live, {})
        ends = [partitions[p].closed_c if p in partitions else 0 for p in self._partitions]
        silent = live.offset >= np.array(ends, np.int64)[live.partition]
        if self._reply_topic is not None:
            silent |= live.word == NO_WORD
        # In the order of offsets: nothing beyond the first that has to wait.
        first = np.full(len(self._partitions), _NEVER)
        rows = np.flatnonzero(open_ & silent)
        np.minimum.at(first, live.partition[rows], live.offset[rows])
        said = np.flatnonzero(open_ & (live.offset < first[live.partition]))
        if not len(said):
            return None
        said = said[np.lexsort((live.offset[said], live.partition[said]))]
        if self._reply_topic is None:
            return Said(None, self._behind(live.take(said)), {})
        records_max, bytes_max = self._answers_max
        fits = np.searchsorted(np.cumsum(live.size[said]), bytes_max, "right")
        count = max(1, min(int(fits), records_max, ANSWERS_MAX))
        return self._answers(live.take(said[:count]), self._reply_topic)

    def _answers(self, said: Tombstones, topic: str) -> Said:
        parts, answered = [], self._behind(said)
        for hour in np.unique(said.hour).tolist():
            of_hour = said.take(np.flatnonzero(said.hour == hour))
            requests = self._directory.cancels.requests_at(hour, of_hour.position)
            homes = [self._partitions[index] for index in of_hour.partition.tolist()]
            words = [WORDS[index] for index in of_hour.word.tolist()]
            parts.append(answer_rows(requests, homes, words, topic))
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.followed_by(part)
        counted = np.bincount(said.word, minlength=len(WORDS)).tolist()
        counts = {word.value: n for word, n in zip(WORDS, counted, strict=True) if n}
        return Said(rows, answered, counts)

    def _behind(self, said: Tombstones) -> Marks:
        ends = np.zeros(len(self._partitions), np.int64)
        np.maximum.at(ends, said.partition, said.offset + 1)
        return {p: end for p, end in zip(self._partitions, ends.tolist(), strict=True) if end}

    def _unanswered(self, live: Tombstones, said: Marks) -> Bool:
        """Cancels without an answer. Those of a topic that was given up get none."""
        ends = [
            _NEVER if is_retired(p[0]) else max(self._answered.get(p, 0), said.get(p, 0))
            for p in self._partitions
        ]
        unanswered: Bool = live.offset >= np.array(ends, np.int64)[live.partition]
        return unanswered

    def marks(self, r: int, said: Marks) -> dict[TopicPartition, tuple[int | None, int]]:
        """K and `a` of every partition, for a progress that says R.

        Args:
            r: last slot delivered in full then.
            said: `a` of the answers in the same transaction.
        """
        live = self._live
        k = np.full(len(self._partitions), _NEVER)
        if len(live):
            going = np.flatnonzero(~self._are_over(live, r, said))
            np.minimum.at(k, live.partition[going], live.offset[going])
        lowest = dict(zip(self._partitions, k.tolist(), strict=True))
        return {
            p: (
                None if (o := lowest.get(p, _NEVER)) == _NEVER else o,
                max(self._answered.get(p, 0), said.get(p, 0)),
            )
            for p in {**lowest, **self._answered}
        }

    def _are_over(self, live: Tombstones, r: int, said: Marks) -> Bool:
        settled = live.last != NOT_SETTLED
        over: Bool = settled & (live.last <= r) & ~self._unanswered(live, said)
        return over

    def committed(self, r: int, said: Marks) -> None:
        """What the progress now says: R, and which answers have left."""
        self._answered |= said
        if said:
            self._recount()
        if not len(self._live):
            return
        over = self._are_over(self._live, r, {})
        if not over.any() or self._asked is not None:
            return
        gone, precision_ms = self._directory.state.gc_hour, self._directory.config.precision_ms
        past = self._past.beside(self._live.take(np.flatnonzero(over & (self._live.last > 0))))
        kept = hour_of(past.last, precision_ms) >= gone
        self._past = past.take(np.flatnonzero(kept))
        self._live = self._live.take(np.flatnonzero(~over))
        self._refilter()

    def close(self) -> None:
        """Wait for the round that is going on, and let go of its files."""
        self._lookups.close()
