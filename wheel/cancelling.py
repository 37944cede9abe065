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
whose answer waits for ingest. Of these the ones that are answered, and meet nothing before long,
are put away on disk once there are many, and brought back before slots are delivered in which they
meet something (far_cancels.py). Only such go that have left nothing out yet: so nobody need ask
meanwhile what they may have left out.

Where many become known at once, at a start or after a pause, they are looked up in portions, and of
each what is over goes before the next is read. Where answers are given, those whose rows were left
out are remembered for as long as the log of these rows is on disk, if they are not too many
(remembered.py). So long their segments stay, too (data_directory.py), or those of the later ones
that do their work: so a start finds, of every row that was left out, a cancel that it may have been
left out by.

Between two portions the loop does what else it has to: it beats, stops when told to, and says to
Kafka that the shard is its own.

Not thread-safe: the loop owns it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import structlog

from duewheel.checkpoints.page_contents import Commit, Marks
from duewheel.checkpoints.progress import PartitionProgress
from duewheel.clock import Clock
from duewheel.schemas.header_names import Answer
from duewheel.schemas.timers import Bool, Int64, TopicPartition, is_retired
from duewheel.wheel.answers import WORDS
from duewheel.wheel.cancel_reader import CancelReader
from duewheel.wheel.data_directory import DataDirectory
from duewheel.wheel.dequeue_statistics import CancelCounts
from duewheel.wheel.far_cancels import FarCancels
from duewheel.wheel.live_cancels import LiveCancels
from duewheel.wheel.log_ends import LogEnds
from duewheel.wheel.lookups import Lookups
from duewheel.wheel.publisher import Publisher
from duewheel.wheel.remembered import Remembered
from duewheel.wheel.rounds import Rounds, Start
from duewheel.wheel.telling import Said, answers_to, ends_of
from duewheel.wheel.tombstones import (
    BEFORE_START,
    NO_WORD,
    NOT_ASKED,
    NOT_LOOKED,
    Filter,
    Tombstones,
    superseded,
)
from duewheel.wheel.unsettled import Unsettled

log = structlog.get_logger(__name__)

ANSWERS_MAX = 1_000  # of one transaction
# As many that have just become known are looked up at once before more are read: with what a round
# takes meanwhile 80 MB at most.
LEARNT_AT_ONCE = 100_000
_WAIT_S = 0.5  # for a round, before the loop has its turn
_NEVER = np.iinfo(np.int64).max
# All cancels are looked at once this many have been for each time that something has left; what is
# over is dropped once it is this part of them.
_SWEPT_AT_ONCE = 16_384
_DROPPED_PART = 4
# Once so many are live, or half of `cancels_max`, the farthest are put away, half of them at most:
# those that meet nothing for so long, if they are a quarter.
MANY_LIVE = 1 << 17
FAR_MS = 60_000
AWAY_EVERY_MS, AWAY_AGAIN_MS = 1_000, 10_000  # at the most; after the disk has refused them


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
        self._clock = clock
        self._start = start
        self._reply_topic = reply_topic
        self._answers_max = answers_max
        self._cancels_max = cancels_max
        self._log_ends = LogEnds(publisher, clock)
        self._answered = {p: part.a for p, part in start.partitions.items()}
        self._told = {p: part.closed_c for p, part in start.partitions.items()}
        self._reader = CancelReader(directory, start.partitions)
        self._partitions, self._places = self._reader.partitions, self._reader.places
        self._unsettled = Unsettled()
        self._live = LiveCancels(self._partitions, self._places)
        self._far = FarCancels(directory.path)
        # What meets nothing in slots up to this one may be far.
        self._brought_to: int = start.r + 1
        self._next_away_ms = 0
        self._many = max(1, min(cancels_max // 2, MANY_LIVE))
        self._taken = 0  # ever written, of those that have been read
        self._past = Remembered(cancels_max, directory.config.precision_ms)
        self._rounds = Rounds(lookups, clock, start, self._reader, self._live, self._past)
        self._is_begun = False
        self._marks: Marks = {}
        self._r = self._left_to = start.r  # at the newest closing; and now
        self._log_bytes: Mapping[int, int] = {}
        self._left_since_swept = 0
        self._sweeps = False
        self.counts = CancelCounts()

    @property
    def filter(self) -> Filter:
        """What is to be left out, as known now; it does not change any more."""
        return self._live.filter

    def first_segment(self, commit: Commit) -> int:
        """The first hour of the cancel log that holds what is not over, or not known yet."""
        hours = (self._live.swept.hour, self._unsettled.hour, self._far.hour)
        return min(self._reader.first_unread(commit), *hours)

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
            if len(self._live.unlooked) >= LEARNT_AT_ONCE:
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
        if self._reply_topic is None:  # that they are known is all they want
            for partition, end in ends_of(new, self._partitions).items():
                self._answered[partition] = max(end, self._answered.get(partition, 0))
        self._live.add(new, self._unanswered(new, slice(None), {}))

    def _look_at_once(self, r: int) -> Iterator[None]:
        """Many have become known: those of them that are over go before more come."""
        yield from self._await_round()
        self._begin_round()
        yield from self._await_round()
        self._sweep(r)
        if self._live.needed >= self._many:
            self._put_away(r)

    def _count(self) -> None:
        live, past = self._live.needed, self._past
        self._directory.state.note_cancels_over(self._taken - live - self._reader.waiting)
        self.counts = replace(
            self.counts,
            live=live,
            far=len(self._far),
            remembered=len(past),
            forgotten=past.forgotten,
        )

    # ---- finding out -------------------------------------------------------------------------

    def look(self) -> None:
        """2. to 5. of the module's head, as far as they have come; waits for nothing but Kafka.

        Raises:
            CorruptFile: a message that cancels meet is damaged.
        """
        live = self._live
        if len(live.unlooked) or len(live.unsaid) or self._wait_for_ends():
            self._look_further()
        self._make_room()

    def _look_further(self) -> None:
        self._ask_for_ends()
        # Twice: a round that the loop itself makes is over at once, and another may be needed.
        for _ in range(2):
            self._end_round()
            if self._rounds.may_begin:
                self._begin_round()
        self._end_round()
        if self._live.needed >= self._cancels_max:
            self._give_up()

    def _give_up(self) -> None:
        """There is no room: what waits for ingest to come further is told that nobody knows."""
        live, unsaid = self._live.rows, self._live.unsaid
        looked = (live.word[unsaid] == NO_WORD) & (live.last[unsaid] != NOT_LOOKED)
        waiting = unsaid[looked]
        waiting = waiting[~self._settled(waiting)]
        live.word[waiting] = WORDS.index(Answer.UNKNOWN)
        given_up = self.counts.given_up + len(waiting)
        self.counts = replace(self.counts, given_up=given_up)

    def _ask_for_ends(self) -> None:
        wanted = self._wait_for_ends()
        if not wanted:
            return
        ends = self._log_ends.of([self._partitions[index] for index in wanted])
        known = np.full(len(self._partitions), NOT_ASKED)
        for partition, end in ends.items():
            known[self._places[partition]] = end
            self._unsettled.tell(self._places[partition], end)
        live, unasked = self._live.rows, self._live.unasked
        live.log_end[unasked] = known[live.partition[unasked]]
        self._live.unasked = unasked[live.log_end[unasked] == NOT_ASKED]
        self._unsettled.settle(self._settled_below())

    def _wait_for_ends(self) -> list[int]:
        """Partitions whose end is to be asked for."""
        of_live: list[int] = np.unique(self._live.rows.partition[self._live.unasked]).tolist()
        return sorted({*of_live, *self._unsettled.unasked})

    def _begin_round(self) -> None:
        live, unsaid = self._live.rows, self._live.unsaid
        waits = (live.word[unsaid] == NO_WORD) & (live.last[unsaid] != NOT_LOOKED)
        waiting = unsaid[waits]
        wanted = np.append(self._live.unlooked, waiting[self._settled(waiting)])
        if len(wanted) and not self._rounds.is_going:
            self._rounds.begin(wanted, self._settled(wanted), self._log_bytes, self._r)

    def _await_round(self) -> Iterator[None]:
        while not self._rounds.wait(_WAIT_S):
            yield
        self._end_round()

    def _end_round(self) -> None:
        found, counts = self._rounds.end(), self.counts
        if found is not None:
            self.counts = replace(
                counts,
                lookups=counts.lookups + 1,
                lookup_ms=counts.lookup_ms + found.took_ms,
                scanned=counts.scanned + found.scanned,
            )

    def _settled_below(self) -> Int64:
        """Up to which end of each partition all is there that was on its way."""
        marks = [_NEVER if is_retired(p[0]) else self._marks.get(p, 0) for p in self._partitions]
        return np.array(marks, np.int64)

    def _settled(self, rows: Int64) -> Bool:
        """Whether all that these live cancels can ever meet is there."""
        live = self._live.rows
        log_end, marks = live.log_end[rows], self._settled_below()
        settled: Bool = (log_end != NOT_ASKED) & (marks[live.partition[rows]] >= log_end)
        return settled

    # ---- telling -----------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether any cancel is still to be told something."""
        return len(self._live.unsaid) > 0

    def answers(self, partitions: Mapping[TopicPartition, PartitionProgress]) -> Said | None:
        """What may be said in a transaction whose progress says so of C; None if nothing.

        Raises:
            CorruptFile: the cancel log is damaged.
        """
        live, rows = self._live.rows, self._live.unsaid
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
        log, topic = self._directory.cancels, self._reply_topic
        return answers_to(live.take(said), log, self._partitions, topic)

    def _unanswered(self, cancels: Tombstones, rows: Int64 | slice, said: Marks) -> Bool:
        """Which of these have no answer, and get one: not those of a topic that was given up, nor
        those that a copy has brought again.
        """
        ends = [
            _NEVER if is_retired(p[0]) else max(self._answered.get(p, 0), said.get(p, 0))
            for p in self._partitions
        ]
        end = np.array(ends, np.int64)[cancels.partition[rows]]
        unanswered: Bool = (cancels.offset[rows] >= end) & ~cancels.again[rows]
        return unanswered

    def marks(self, r: int, said: Marks) -> dict[TopicPartition, tuple[int | None, int]]:
        """K and `a` of every partition, for a progress that says R.

        Args:
            r: last slot delivered in full then.
            said: `a` of the answers in the same transaction.
        """
        k: Mapping[TopicPartition, int] = self._live.swept.k
        if self._must_sweep() and k:
            k = self._live.k(self._needed(self._are_over(r, said)))
        others = np.minimum(self._unsettled.k, self._far.k(len(self._unsettled.k)))
        for partition, offset in zip(self._partitions, others.tolist(), strict=False):
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
        return done & ~self._unanswered(live, slice(None), said)

    def _needed(self, over: Bool) -> Int64:
        """Live cancels that K must not pass, nor their segment be unlinked."""
        return np.flatnonzero(~over | ~self._settled(np.arange(len(over))))

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
        self._left_to = r
        self._told = {p: part.closed_c for p, part in partitions.items()}
        if said:
            unsaid = self._live.unsaid
            self._live.unsaid = unsaid[self._unanswered(self._live.rows, unsaid, {})]
        if not self._must_sweep():
            self._left_since_swept += 1
        elif (len(self._live) or len(self._past)) and not self._rounds.is_going:
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
        self._live.note_swept(self._needed(over), count)
        self._count()

    def _drop(self, over: Bool) -> None:
        live = self._live.rows
        gone = live.take(np.flatnonzero(over & ~self._settled(np.arange(len(over)))))
        self._unsettled.add(gone.partition, gone.offset, gone.hour, gone.log_end)
        if self._reply_topic is not None:
            self._past.add(live.take(np.flatnonzero(over & (live.last > 0))))
        self._live.drop(over)

    # ---- those that are far ------------------------------------------------------------------

    def bring_back(self, r: int, floor: int) -> int:
        """Have in memory what the next slots may meet; returns the last of these.

        Args:
            r: last slot delivered in full.
            floor: last slot that may be delivered; it is returned unless too many would come.

        Raises:
            RecoveryPending: they cannot be read any more: the next start learns of all anew.
        """
        most = min(LEARNT_AT_ONCE, max(1, self._cancels_max // 2))
        back, self._brought_to = self._far.bring_back(r, floor, most)
        if len(back):
            self._add(back)
            # As many are over soon: look at all before long, however few transactions that takes.
            self._left_since_swept += len(back) * _DROPPED_PART // _SWEPT_AT_ONCE
            self._count()
        return self._brought_to

    def _make_room(self) -> None:
        """If there are many, put away some now and then."""
        is_many = self._live.needed >= self._many
        now_ms = self._clock.boottime_ms()
        if is_many and not self._rounds.is_going and now_ms >= self._next_away_ms:
            self._next_away_ms = now_ms + AWAY_EVERY_MS
            self._put_away(self._left_to)

    def _put_away(self, r: int) -> None:
        """Those whose timers are due last go to the disk; none if they are few, for each time costs
        a look at all.
        """
        live, least = self._live.rows, max(1, self._many // 4)
        far = self._are_far(live) & self._far.may_go(live.first, self._cancels_max // 2)
        if self._far.is_full or np.count_nonzero(far) < least:
            return
        rows = np.flatnonzero(far & ~self._are_over(r, {}))
        count = min(len(rows), self._live.needed - self._many // 2)
        if count < least:
            return
        nearer = len(rows) - count
        going = np.zeros(len(live), np.bool_)
        going[rows[np.argpartition(live.first[rows], nearer)[nearer:]]] = True
        try:
            self._far.put_away(live, np.flatnonzero(going))
        except OSError as error:
            log.warning("cancels cannot be put away", reason=str(error))
            self._next_away_ms = self._clock.boottime_ms() + AWAY_AGAIN_MS
            return
        self._live.drop(going)
        self._sweep(r)

    def _are_far(self, live: Tombstones) -> Bool:
        """Which of them are answered, and have met nothing yet, nor will before long."""
        far_slots = FAR_MS // self._directory.config.precision_ms
        is_far: Bool = (live.last != NOT_LOOKED) & (live.first > self._brought_to + far_slots)
        return is_far & ~self._unanswered(live, slice(None), {})

    def close(self) -> None:
        """Wait for the round that is going on, and let go of all files."""
        self._rounds.close()
        self._far.close()
