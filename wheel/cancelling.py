"""What dequeue knows of cancels: whom they keep from leaving, for how long, and what they are told.

1. A cancel becomes *known* at a closing, or at a start, with all others that lie below C. From then
   on what it meets is left out when its slot is delivered, and so is not rolled or parked either.
   The progress that says C is written later: whoever reads that can rely on it.
2. A round of lookups (lookups.py), as of that closing or later, tells what it meets in the wheel,
   and `last`, the greatest slot of that. If something is pending, the answer is `cancelled`.
3. Once R has come to `last`, and the answer is told, it is *over*, and leaves memory.
4. Copies that were made before 1 may still be on their way. They lie below the end that the
   partition had when that was asked, after 1. Once ingest has come there, the cancel is *settled*:
   all that it can ever meet has come. A copy that comes later than 2 brings it again, in its own
   commit (bringing_again.py): so it is known at the closing that lets the copy's slot be delivered,
   and meets it like any other. Such a one has no answer.
5. A settled cancel that has met nothing in the wheel is told `already_delivered` if something that
   it meets has left, is on disk, and was left out by no cancel; else `unknown`: there was nothing,
   or nobody can tell any more. Of cancels known at the start, those that are over included, it is
   not known from which slot on they acted: whatever they meet they may have left out.

Why none that meets something is missed: a row of its timers is committed either before the closing
of 1, then 2 finds it; or with it or later. First copies lie below it, so that is a copy, and was
made before 1: no row that a known cancel meets leaves any more but by being left out, and it was
known from 1 until all of 2 had left. So the copy is of 4, and ingest finds the cancel in the log.

Of several cancels of one id the one with the greatest offset meets all that the others do. So one
that is answered is over, whatever it meets, once there is a later one that lies below C of a
committed progress: whoever starts from there knows it before anything leaves.

The progress keeps two numbers for a partition. K is the lowest offset of a cancel that may still
meet a timer, or has no answer: what is lost is read again from there. So K waits for what is over
and not settled (unsettled.py), and so do the segments of the cancel log, where ingest must find it.
What is settled is told by the marks of the commit of a closing: all that copies have brought with
these is known then, and holds K itself. Below `a` cancels are answered: answers leave in the order
of offsets, each in a transaction whose C lies behind the cancel. So there is one answer to each,
whatever happens. Without a topic for answers all that is known counts as answered.

Nothing of this is stored but the cancels themselves and these two: after a start lookups are made
again. In memory are the cancels that are not over: those whose timers have not left, and those
whose answer waits for ingest. Where many become known at once, at a start or after a pause, they
are looked up in portions, and of each what is over goes before the next is read. Where answers are
given, those whose rows were left out are remembered for as long as the log of these rows is on
disk, if they are not too many (remembered.py). So long their segments stay, too
(data_directory.py), or those of the later ones that do their work: so a start finds, of every row
that was left out, a cancel that it may have been left out by.

Between two portions the loop does what else it has to: it beats, stops when told to, and says to
Kafka that the shard is its own.

Few of them change: those that have just come, or are not answered. These are listed apart, and all
are looked at only now and then. Until then a cancel that is over stays, which does no harm: it
meets nothing, and K may always be lower. Not thread-safe: the loop owns it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace

import numpy as np
import structlog

from duewheel.checkpoints.page_contents import Commit, Marks
from duewheel.checkpoints.progress import PartitionProgress
from duewheel.clock import Clock
from duewheel.errors import ConfigError, KafkaUnavailable
from duewheel.schemas.header_names import Answer
from duewheel.schemas.timers import Bool, Deliveries, Int64, TopicPartition, is_retired
from duewheel.wheel.answers import WORDS, answer_rows
from duewheel.wheel.cancel_reader import CancelReader
from duewheel.wheel.data_directory import DataDirectory
from duewheel.wheel.dequeue_statistics import CancelCounts
from duewheel.wheel.growing import GrowingTombstones
from duewheel.wheel.lookups import Found, Lookups, lower_bits
from duewheel.wheel.publisher import Publisher
from duewheel.wheel.remembered import Remembered
from duewheel.wheel.tombstones import (
    BEFORE_START,
    NO_WORD,
    NOT_ASKED,
    NOT_LOOKED,
    Filter,
    Tombstones,
    indexes,
    superseded,
)
from duewheel.wheel.unsettled import Unsettled
from duewheel.wheel.verdicts import Rows, verdicts

log = structlog.get_logger(__name__)

ANSWERS_MAX = 1_000  # of one transaction
# As many that have just become known are looked up at once before more are read: with what a round
# takes meanwhile 80 MB at most.
LEARNT_AT_ONCE = 100_000
_WAIT_S = 0.5  # for a round, before the loop has its turn
_ASK_AGAIN_MS = 10_000  # for the ends of partitions, after there was no answer
_NEVER = np.iinfo(np.int64).max
# All cancels are looked at once this many have been for each time that something has left; what is
# over is dropped once it is this part of them.
_SWEPT_AT_ONCE = 16_384
_DROPPED_PART = 4


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
        rows: the answers.
        answered: `a` once they are committed.
        words: how many of them there are, by word.
    """

    rows: Deliveries
    answered: Marks
    words: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Swept:
    """What is known of the live cancels since all of them were looked at.

    Attributes:
        k: at most the lowest offset of each partition's, but for those of which Unsettled tells.
        hour: at most the lowest segment.
        over: how many were over, and are still kept.
    """

    k: Mapping[TopicPartition, int]
    hour: int
    over: int


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
        cancels_max: int,
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
            cancels_max: how many live ones there may be, and how many are remembered.
        """
        self._directory = directory
        self._publisher = publisher
        self._clock = clock
        self._lookups = lookups
        self._start = start
        self._reply_topic = reply_topic
        self._answers_max = answers_max
        self._cancels_max = cancels_max
        self._answered = {p: part.a for p, part in start.partitions.items()}
        self._told = {p: part.closed_c for p, part in start.partitions.items()}
        self._reader = CancelReader(directory, start.partitions)
        self._partitions, self._places = self._reader.partitions, self._reader.places
        self._unsettled = Unsettled()
        self._live = GrowingTombstones()  # in the order in which they became known
        self._taken = 0  # ever written, of those that have been read
        self._past = Remembered(cancels_max, directory.config.precision_ms)
        self._is_begun = False
        self._filter = Filter((), {})
        self._marks: Marks = {}
        self._r = start.r
        self._log_bytes: Mapping[int, int] = {}
        self._asked: tuple[Future[Found], Int64, Bool] | None = None
        self._next_round_ms = 0
        self._next_ends_ms: dict[int, int] = {}  # of partitions whose end nobody told
        # Of the live ones those without an answer, those that were not looked up, and those of
        # whose partition's end nobody was told: mostly few.
        self._unsaid = self._unlooked = self._unasked = np.empty(0, np.int64)
        self._left_since_swept = 0
        self._sweeps = False
        self._swept = _Swept({}, _NEVER, 0)
        self.counts = CancelCounts()

    @property
    def filter(self) -> Filter:
        """What is to be left out, as known now; it does not change any more."""
        return self._filter

    def first_segment(self, commit: Commit) -> int:
        """The first hour of the cancel log that holds what is not over, or not known yet."""
        return min(self._reader.first_unread(commit), self._swept.hour, self._unsettled.hour)

    # ---- becoming known ----------------------------------------------------------------------

    def learn(self, commit: Commit, c: Marks, r: int) -> Iterator[None]:
        """1. of the module's head, a portion each time; known are all of them at the end only.

        Args:
            commit: the newest when the slots up to the floor were closed.
            c: C of the closing.
            r: last slot delivered in full.

        Raises:
            CorruptFile: the cancel log is damaged.
        """
        self._marks, self._r = commit.marks, r
        self._log_bytes = {hour: lengths.log_bytes for hour, lengths in commit.hours.items()}
        for number, piece in enumerate(self._reader.read(commit, c)):
            if number:
                yield
            going = np.flatnonzero(~piece.is_over)
            over, after = np.flatnonzero(piece.is_over), r if self._is_begun else BEFORE_START
            self._unsettled.make_room(len(self._partitions))
            self._remember(Tombstones.known(piece.rows, piece.partition, BEFORE_START).take(over))
            self._add(Tombstones.known(piece.rows, piece.partition, after).take(going))
            if len(self._unlooked) >= LEARNT_AT_ONCE:
                yield from self._look_at_once(r)
        # What copies have brought that came with these marks is known now.
        self._unsettled.make_room(len(self._partitions))
        self._unsettled.settle(self._settled_below())
        self._is_begun, self._taken = True, commit.cancels_taken
        self._count()

    def _remember(self, over: Tombstones) -> None:
        """Cancels that were over at the start."""
        if len(over) and self._reply_topic is not None:
            # What they have left out lies in no later slot than that which was half delivered, or
            # one that is live has left it out as well.
            self._past.add(replace(over, last=np.full(len(over), self._start.r + 1)))

    def _add(self, new: Tombstones) -> None:
        if not len(new):
            return
        rows = len(self._live) + np.arange(len(new))
        self._live.append(new)
        if self._reply_topic is None:  # that they are known is all they want
            for partition, end in self._behind(self._live.rows, rows).items():
                self._answered[partition] = max(end, self._answered.get(partition, 0))
        self._unlooked = np.append(self._unlooked, rows)
        self._unasked = np.append(self._unasked, rows)
        self._unsaid = np.append(self._unsaid, rows[self._unanswered(rows, {})])
        if len(self._filter.places) != len(self._places):
            self._filter = replace(self._filter, places=dict(self._places))
        self._filter = self._filter.beside(new)
        k, swept = {**self._swept.k}, self._swept
        for partition, offset in self._k(rows).items():
            k[partition] = min(offset, k.get(partition, _NEVER))
        self._swept = _Swept(k, min(int(new.hour.min()), swept.hour), swept.over)

    def _look_at_once(self, r: int) -> Iterator[None]:
        """Many have become known: those of them that are over go before more come."""
        yield from self._await_round()
        self._begin_round()
        yield from self._await_round()
        self._sweep(r)

    def _k(self, rows: Int64) -> dict[TopicPartition, int]:
        """The lowest offset of these live cancels in each partition that has any."""
        live, k = self._live.rows, np.full(len(self._partitions), _NEVER)
        np.minimum.at(k, live.partition[rows], live.offset[rows])
        return {p: o for p, o in zip(self._partitions, k.tolist(), strict=True) if o != _NEVER}

    def _count(self) -> None:
        over = self._swept.over
        live, past = len(self._live) - over, self._past
        self._directory.state.note_cancels_over(self._taken - live - self._reader.waiting)
        self.counts = replace(
            self.counts, live=live, remembered=len(past), forgotten=past.forgotten
        )

    # ---- finding out -------------------------------------------------------------------------

    def look(self) -> None:
        """2. to 5. of the module's head, as far as they have come; waits for nothing but Kafka.

        Raises:
            CorruptFile: a message that cancels meet is damaged.
        """
        if not (len(self._unlooked) or len(self._unsaid) or self._wait_for_ends()):
            return
        self._ask_for_ends()
        # Twice: a round that the loop itself makes is over at once, and another may be needed.
        for _ in range(2):
            self._end_round()
            if self._asked is None and self._clock.boottime_ms() >= self._next_round_ms:
                self._begin_round()
        self._end_round()
        if len(self._live) - self._swept.over >= self._cancels_max:
            self._give_up()

    def _give_up(self) -> None:
        """There is no room: what waits for ingest to come further is told that nobody knows."""
        live, unsaid = self._live.rows, self._unsaid
        looked = (live.word[unsaid] == NO_WORD) & (live.last[unsaid] != NOT_LOOKED)
        waiting = unsaid[looked]
        waiting = waiting[~self._are_settled(waiting)]
        live.word[waiting] = WORDS.index(Answer.UNKNOWN)
        self.counts = replace(self.counts, given_up=self.counts.given_up + len(waiting))

    def _ask_for_ends(self) -> None:
        """Of what was not told before others are not kept waiting: it has a request of its own."""
        wanted, live = self._wait_for_ends(), self._live.rows
        if not wanted:
            return
        now_ms, again = self._clock.boottime_ms(), self._next_ends_ms
        due = [index for index in wanted if again.get(index, 0) <= now_ms]
        ends = self._ends([i for i in due if i not in again])
        ends |= self._ends([i for i in due if i in again])
        for index in due:
            if index in ends:
                again.pop(index, None)
                self._unsettled.tell(index, ends[index])
            else:
                again[index] = self._clock.boottime_ms() + _ASK_AGAIN_MS
        known = np.full(len(self._partitions), NOT_ASKED)
        known[list(ends.keys())] = list(ends.values())
        live.log_end[self._unasked] = known[live.partition[self._unasked]]
        self._unasked = self._unasked[live.log_end[self._unasked] == NOT_ASKED]
        self._unsettled.settle(self._settled_below())

    def _wait_for_ends(self) -> list[int]:
        """Partitions whose end is to be asked for."""
        of_live: list[int] = np.unique(self._live.rows.partition[self._unasked]).tolist()
        return sorted({*of_live, *self._unsettled.unasked})

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
        if self._asked is not None:
            return
        live, unsaid = self._live.rows, self._unsaid
        waits = (live.word[unsaid] == NO_WORD) & (live.last[unsaid] != NOT_LOOKED)
        waiting = unsaid[waits]
        wanted = np.append(self._unlooked, waiting[self._are_settled(waiting)])
        if len(wanted):
            future = self._lookups.begin(live.id_hash[wanted], self._log_bytes, self._r)
            self._asked = future, wanted, self._are_settled(wanted)

    def _await_round(self) -> Iterator[None]:
        while self._asked is not None and not wait([self._asked[0]], _WAIT_S).done:
            yield
        self._end_round()

    def _end_round(self) -> None:
        if self._asked is not None and self._asked[0].done():
            future, asked, settled = self._asked
            self._asked = None
            self._found(future.result(), asked, settled)

    def _settled_below(self) -> Int64:
        """Up to which end of each partition all is there that was on its way."""
        marks = [_NEVER if is_retired(p[0]) else self._marks.get(p, 0) for p in self._partitions]
        return np.array(marks, np.int64)

    def _are_settled(self, rows: Int64) -> Bool:
        """Whether all that these live cancels can ever meet is there."""
        live = self._live.rows
        log_end, marks = live.log_end[rows], self._settled_below()
        settled: Bool = (log_end != NOT_ASKED) & (marks[live.partition[rows]] >= log_end)
        return settled

    def _found(self, found: Found, asked: Int64, settled: Bool) -> None:
        """What a round tells of the cancels that it was made for."""
        # Half of a core at most.
        self._next_round_ms = self._clock.boottime_ms() + max(1, found.took_ms)
        live = self._live.rows
        rows, others = self._rows(found), self._others(found)
        in_doubt = np.append(found.damaged, self._reader.cut_off)
        word, last = verdicts(live.take(asked), settled, rows, others, in_doubt)
        live.word[asked], live.last[asked] = word, last
        self._unlooked = self._unlooked[live.last[self._unlooked] == NOT_LOOKED]
        counts = self.counts
        self.counts = replace(
            counts,
            lookups=counts.lookups + 1,
            lookup_ms=counts.lookup_ms + found.took_ms,
            scanned=counts.scanned + found.scanned,
        )

    def _rows(self, found: Found) -> Rows:
        partition = indexes(self._places, found.partitions)[found.partition]
        was_out = self._was_out(found)
        rows = np.flatnonzero(partition >= 0)
        return Rows(
            partition[rows],
            found.origin[rows],
            found.id_hash[rows],
            found.timer_id.take(rows),
            found.slot[rows],
            was_out[rows],
            ~found.rolled[rows] & (found.slot[rows] > self._past.unknown_to),
        )

    def _others(self, found: Found) -> Tombstones:
        """All that may have left out what was found; a few more do no harm."""
        near, table, live = GrowingTombstones(), lower_bits(found.id_hash), self._live.rows
        near.append(live.take(np.flatnonzero(table[live.id_hash & (len(table) - 1)])))
        near.append(self._past.near(table))
        return near.rows

    def _was_out(self, found: Found) -> Bool:
        """Rows that had left before the start."""
        below = np.array([self._start.below.get(p, 0) for p in found.partitions], np.int64)
        half: Bool = found.slot == self._start.r + 1
        if len(below):
            half &= found.offset < below[found.partition]
        was_out: Bool = half | (found.slot <= self._start.r)
        return was_out

    # ---- telling -----------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether any cancel is still to be told something."""
        return len(self._unsaid) > 0

    def answers(self, partitions: Mapping[TopicPartition, PartitionProgress]) -> Said | None:
        """What may be said in a transaction whose progress says so of C; None if nothing.

        Raises:
            CorruptFile: the cancel log is damaged.
        """
        live, rows = self._live.rows, self._unsaid
        ends = [partitions[p].closed_c if p in partitions else 0 for p in self._partitions]
        partition, offset = live.partition[rows], live.offset[rows]
        silent = (offset >= np.array(ends, np.int64)[partition]) | (live.word[rows] == NO_WORD)
        # In the order of offsets: nothing beyond the first that has to wait.
        first = np.full(len(self._partitions), _NEVER)
        np.minimum.at(first, partition[silent], offset[silent])
        may = np.flatnonzero(offset < first[partition])
        if not len(may) or self._reply_topic is None:
            return None
        said = rows[may[np.lexsort((offset[may], partition[may]))]]
        records_max, bytes_max = self._answers_max
        fits = np.searchsorted(np.cumsum(live.size[said]), bytes_max, "right")
        said = said[: max(1, min(int(fits), records_max, ANSWERS_MAX))]
        return self._answers(live.take(said), self._behind(live, said), self._reply_topic)

    def _answers(self, said: Tombstones, answered: Marks, topic: str) -> Said:
        parts = []
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

    def _behind(self, live: Tombstones, said: Int64) -> Marks:
        ends = np.zeros(len(self._partitions), np.int64)
        np.maximum.at(ends, live.partition[said], live.offset[said] + 1)
        return {p: end for p, end in zip(self._partitions, ends.tolist(), strict=True) if end}

    def _unanswered(self, rows: Int64, said: Marks) -> Bool:
        """Which live cancels have no answer, and get one: not those of a topic that was given up,
        nor those that a copy has brought again.
        """
        live = self._live.rows
        ends = [
            _NEVER if is_retired(p[0]) else max(self._answered.get(p, 0), said.get(p, 0))
            for p in self._partitions
        ]
        unanswered: Bool = live.offset[rows] >= np.array(ends, np.int64)[live.partition[rows]]
        return unanswered & ~live.again[rows]

    def marks(self, r: int, said: Marks) -> dict[TopicPartition, tuple[int | None, int]]:
        """K and `a` of every partition, for a progress that says R.

        Args:
            r: last slot delivered in full then.
            said: `a` of the answers in the same transaction.
        """
        k: Mapping[TopicPartition, int] = self._swept.k
        if self._must_sweep() and k:
            k = self._k(self._needed(self._are_over(r, said)))
        for partition, offset in zip(self._partitions, self._unsettled.k.tolist(), strict=False):
            if offset != _NEVER:
                k = {**k, partition: min(offset, k.get(partition, _NEVER))}
        a = {p: max(self._answered.get(p, 0), said.get(p, 0)) for p in self._answered.keys() | said}
        return {p: (k.get(p), a.get(p, 0)) for p in [*self._partitions, *self._answered]}

    def _must_sweep(self) -> bool:
        # Once it must it must until it is done: K as told does not fall back.
        self._sweeps |= (self._left_since_swept + 1) * _SWEPT_AT_ONCE >= len(self._live)
        return self._sweeps

    def _are_over(self, r: int, said: Marks) -> Bool:
        """Which live cancels need not be in memory any more."""
        live = self._live.rows
        ends = np.array([self._told.get(p, 0) for p in self._partitions], np.int64)
        taken_over = superseded(live, live.offset < ends[live.partition])
        done: Bool = (live.last != NOT_LOOKED) & ((live.last <= r) | taken_over)
        return done & ~self._unanswered(np.arange(len(live)), said)

    def _needed(self, over: Bool) -> Int64:
        """Live cancels that K must not pass, nor their segment be unlinked."""
        return np.flatnonzero(~over | ~self._are_settled(np.arange(len(over))))

    def passed(
        self, r: int, said: Marks, partitions: Mapping[TopicPartition, PartitionProgress]
    ) -> None:
        """What has left.

        Args:
            r: all up to this slot.
            said: `a` of the answers.
            partitions: of the newest committed progress.
        """
        self._answered |= said
        self._told = {p: part.closed_c for p, part in partitions.items()}
        if said:
            self._unsaid = self._unsaid[self._unanswered(self._unsaid, {})]
        if not self._must_sweep():
            self._left_since_swept += 1
        elif (len(self._live) or len(self._past)) and self._asked is None:
            self._sweep(r)

    def _sweep(self, r: int) -> None:
        """Look at all of them, and drop what is over if that is many."""
        self._left_since_swept, self._sweeps = 0, False
        self._past.forget_below(self._directory.state.gc_hour)
        over = self._are_over(r, {})
        count = int(over.sum())
        if count and count * _DROPPED_PART >= len(over):
            self._drop(over)
            over, count = np.zeros(len(self._live), np.bool_), 0
        needed = self._needed(over)
        hour = int(self._live.rows.hour[needed].min(initial=_NEVER))
        self._swept = _Swept(self._k(needed), hour, count)
        self._count()

    def _drop(self, over: Bool) -> None:
        live = self._live.rows
        gone = live.take(np.flatnonzero(over & ~self._are_settled(np.arange(len(over)))))
        self._unsettled.add(gone.partition, gone.offset, gone.hour, gone.log_end)
        if self._reply_topic is not None:
            self._past.add(live.take(np.flatnonzero(over & (live.last > 0))))
        self._live = self._live.kept(~over)
        place = np.cumsum(~over) - 1
        self._unasked = place[self._unasked[~over[self._unasked]]]
        # None of these is over.
        self._unsaid, self._unlooked = place[self._unsaid], place[self._unlooked]
        self._filter = replace(self._filter, runs=()).beside(self._live.rows)

    def close(self) -> None:
        """Wait for the round that is going on, and let go of its files."""
        self._lookups.close()
