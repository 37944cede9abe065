"""Judges cancels and reschedules: the timers that they stop, and their replies.

A *request* is a cancel or a reschedule; a timer with `keep` has a reply, too, and matches none
(keep_judge.py). It matches the timers of its partition and id with a lower
first offset; a request that names a timer matches only that one. Dequeue may write a request again
to the end of its partition, a *chase*; the newest of these records is decided. A request is
*settled* once it has a reply or, without a reply topic, once `a` lies behind its newest record.

- No timer that a settled request matches leaves any more: it is not delivered, rolled or parked. No
  other timer is lost: a timer that never leaves was matched by a settled request.
- Each request gets one reply, in the order of the newest records, with a progress whose C and `a`
  lie behind it. `a` never falls, and skips no request that is not settled.
- `cancelled`: the newest matching timer never leaves; or another one never does that no earlier
  request had certainly cancelled.
- `already_delivered`: the newest matching timer, or the newest that the files of dequeue show, was
  delivered, and this request cancelled none.
- `unknown`: no timer matches, or the files of dequeue do not prove the newest one (witness.py): its
  presence, and, if another request had stopped it, that no newer one existed. A request that names
  a timer, or was chased, may get it where the id has more records than `settled_max`.

The rules end behind a cut: requests from there, and those whose newest record was there, get no
reply, and the timers that they match may leave or not. After a reply they still do not leave, if
the files had the request's newest record when the loss was accepted.
"""

from __future__ import annotations

import bisect
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulation.contract_check import decoded
from tests.simulation.keep_judge import KeepJudge
from tests.simulation.timers import DEAD, TARGETS, TOPIC, Copy, Timer
from tests.simulation.witness import Witness

from duewheel.checkpoints.progress import Progress
from duewheel.schemas import header_names as names
from duewheel.schemas.batches import ANY_OFFSET, Deliveries
from duewheel.schemas.header_names import NAME_OF
from duewheel.schemas.wire.record_codec import framed_bytes
from duewheel.schemas.wire.varint import read_varint

REPLIES = "replies"
_NOWHERE = 2**62  # where a chase lies that waits for its partition


@dataclass
class Request:
    """A cancel or a reschedule.

    Attributes:
        timer: as the user wrote it.
        newest: offset of its newest record, _NOWHERE while that waits for its partition.
        chases: how many of its records are chases.
        settled: see the module's head.
        word: its reply, None without any.
        replied: whether that is in the reply topic.
    """

    timer: Timer
    newest: int
    chases: int = 0
    settled: bool = False
    word: names.Answer | None = None

    @property
    def name(self) -> str:
        return self.timer.source.decode()

    def matches(self, timer: Timer) -> bool:
        """Whether it is for a timer of its partition and id."""
        named = self.timer.named_offset
        is_named = named in {ANY_OFFSET, timer.origin}
        return not self.timer.keeps and timer.origin < self.timer.origin and is_named


class CancelJudge:
    """Of all partitions.

    Attributes:
        cancelled: timers that must not leave any more, by source.
        free: timers that need not leave: what they were cancelled by is lost.
        witness: tells what the dequeue that replies has on disk.
    """

    def __init__(
        self,
        violated: Callable[[str, str], None],
        counts: Counter[str],
        newest: Callable[[Timer], Copy],
        *,
        replies: bool,
    ) -> None:
        """
        Args:
            violated: called with what is wrong.
            counts: of what has happened.
            newest: tells the newest copy of a timer.
            replies: whether there is a reply topic.
        """
        self.cancelled: set[bytes] = set()
        self.free: set[bytes] = set()
        self.witness: Callable[[], Witness | None]
        self._replies = replies
        self._violated = violated
        self._counts = counts
        self._copy_of = newest
        # By partition and id, in the order of their offsets.
        self._timers: dict[tuple[int, bytes], list[Timer]] = defaultdict(list)
        # Of those that may match a timer: hundreds that keep would make a run last for minutes.
        self._of_id: dict[tuple[int, bytes], list[Request]] = defaultdict(list)
        self._requests: dict[bytes, Request] = {}
        self._ended: set[bytes] = set()
        self._lost: set[bytes] = set()  # timers with a copy from behind a cut
        self._a: dict[int, int] = defaultdict(int)
        self._decided: dict[int, int] = defaultdict(lambda: -1)  # newest record replied to
        self._incarnation: dict[int, int] = {}  # by shard
        self._has_lost = False
        self.keeps = KeepJudge(
            violated, newest, self._timers_of, self._is_stopped, self._is_stopped_at_once
        )

    @property
    def asked(self) -> bool:
        """Whether there is any request."""
        return bool(self._requests)

    @property
    def unsettled(self) -> list[Request]:
        """Requests that are still to be settled."""
        return [request for request in self._requests.values() if not request.settled]

    def written(self, timer: Timer) -> None:
        """A user's record has come to be."""
        key = timer.partition, timer.timer_id
        if timer.is_timer and not timer.rejected:
            # A transaction's records come to be behind records of higher offsets.
            bisect.insort(self._timers[key], timer, key=lambda each: each.origin)
        if timer.keeps:
            self.keeps.written(timer, self._ended | self.cancelled)
        if timer.request:
            request = Request(timer, timer.origin)
            self._requests[timer.source] = request
            if not timer.keeps:
                self._of_id[key].append(request)
            self._counts[timer.request] += 1
            self._counts["named"] += timer.named_offset != ANY_OFFSET

    def leaves(self, timer: Timer, *, sent_back: bool) -> None:
        """A timer is delivered or becomes a dead letter; or goes back to its timer topic."""
        if timer.source in self.cancelled:
            how = "sent back" if sent_back else "delivered"
            self._violated("8 cancelled", f"{timer.source.decode()} is {how} all the same")
        self.keeps.leaves(timer, self._ended, self.free | self._lost)
        if sent_back:
            self.keeps.sent_back.add(timer.source)
        else:
            self._ended.add(timer.source)

    def chased(self, source: bytes) -> Timer | None:
        """The request of a chase; None if there is no such request."""
        request = self._requests.get(source)
        return None if request is None else request.timer

    def advanced(self, progress: Progress, *, dealt: bool) -> None:
        """A progress was committed, and what has left with it is known; `dealt`: its partitions are
        others, or one of them is cut.
        """
        if self._has_lost and self._incarnation.get(progress.shard) != progress.incarnation:
            # A start after the loss has decided on timers that were read again.
            self.keeps.lost_files(self.free, self._ended)
        self._incarnation[progress.shard] = progress.incarnation
        for (_, partition), part in progress.partitions.items():
            if part.replied_below < self._a[partition] and not dealt:
                was, now = self._a[partition], part.replied_below
                detail = f"a of partition {partition} falls from {was} to {now}"
                self._violated("9 answers", detail)
            if part.replied_below == self._a[partition]:
                continue
            self._a[partition] = part.replied_below
            for request in self.unsettled:
                if request.timer.partition == partition and request.newest < part.replied_below:
                    if self._replies:
                        self._violated("9 answers", f"{request.name} is passed over")
                    self._settle(request)

    def lost_files(self) -> None:
        """Files are lost, or older ones are taken: timers may be read again."""
        self._has_lost = True
        self.keeps.lost_files(self.free, self._ended)

    def _timers_of(self, timer: Timer) -> list[Timer]:
        return self._timers[timer.partition, timer.timer_id]

    def _is_stopped(self, timer: Timer, below: int) -> bool:
        return any(each.matches(timer) for each in self._between(timer, below))

    def _is_stopped_at_once(self, timer: Timer, below: int) -> bool:
        requests = self._between(timer, below)
        return any(not each.chases and each.matches(timer) for each in requests)

    def _between(self, timer: Timer, below: int) -> Iterator[Request]:
        """Requests of its partition and id, after it."""
        requests = self._of_id[timer.partition, timer.timer_id]
        return (each for each in requests if timer.origin < each.timer.origin < below)

    def _settle(self, request: Request) -> None:
        request.settled = True
        if request.timer.keeps:
            self.keeps.decided(request.timer, request.word, self.free)
            return
        self._counts[f"chases of a request: {min(request.chases, 4)}"] += 1
        alive = {t.source for t in self._matched(request)} - self._ended
        self._counts["timers cancelled"] += len(alive - self.cancelled)
        self.cancelled |= alive

    def _matched(self, request: Request) -> list[Timer]:
        timers = self._timers[request.timer.partition, request.timer.timer_id]
        return [timer for timer in timers if request.matches(timer)]

    # ---- a cut -----------------------------------------------------------------------------

    def cut(self, number: int, end: int, taken: int, lost: set[bytes]) -> None:
        """What lay behind this offset of a partition is lost.

        Args:
            number, end: as above.
            taken: the mark of the files. What lay behind it had to be read again, and cannot be.
            lost: timers of which a copy lay there.
        """
        forgotten = self._stopped_only_from(number, taken)
        self.cancelled -= forgotten
        self.free |= forgotten
        for source, request in list(self._requests.items()):
            is_gone = request.timer.origin >= end
            if request.timer.partition != number or not (is_gone or request.newest >= end):
                continue
            if is_gone or not request.settled:
                self.free |= {t.source for t in self._matched(request)} - self._ended
                self._counts["requests lost"] += not request.settled
                request.settled = True
            if is_gone:
                del self._requests[source]
        for (partition, _), timers in self._timers.items():
            if partition == number:
                timers[:] = [timer for timer in timers if timer.origin < end]
        for (partition, _), requests in self._of_id.items():
            if partition == number:
                requests[:] = [each for each in requests if each.timer.origin < end]
        self.keeps.forget({s for s in self.keeps.known if _behind(s, number, end)})
        for sources in (self.cancelled, self.free, self._ended, lost):
            sources -= {each for each in sources if _behind(each, number, end)}
        self._lost |= lost
        self._a[number] = min(self._a[number], end)
        self._decided[number] = min(self._decided[number], end - 1)

    def _stopped_only_from(self, number: int, offset: int) -> set[bytes]:
        """Timers of a partition that requests from this offset on have cancelled, and no others."""
        stopped: dict[bool, set[bytes]] = {False: set(), True: set()}
        for request in self._requests.values():
            if request.timer.partition == number and request.settled:
                matched = (timer.source for timer in self._matched(request))
                stopped[request.newest >= offset].update(matched)
        return self.cancelled & stopped[True] - stopped[False]

    # ---- replies and chases ----------------------------------------------------------------

    def replied(
        self,
        answers: Deliveries,
        chases: Sequence[Copy],
        progress: Progress,
        down: frozenset[tuple[str, int]],
        absent: frozenset[str],
    ) -> None:
        """Replies and chases that were committed with this progress.

        Args:
            answers: as they were written.
            chases: as they lie in the timer topic.
            progress: that of their transaction.
            down: partitions that took no writes then.
            absent: topics that did not exist.
        """
        if not answers.answer.all():
            self._violated("9 answers", "replies and timers in one transaction")
            return
        written = {copy.timer.source: copy for copy in chases}
        for row in range(len(answers)):
            source: Any = answers.source[row].as_py()
            request = self._requests.get(source)
            if request is None or request.settled:
                self._violated("9 answers", f"{source!r} is settled, or was never asked")
                continue
            self._judge_order(request, progress)
            if answers.is_copy[row]:
                self._judge_chase(request, answers, row, written.get(source), progress)
                continue
            error = ""
            if REPLIES in absent:
                error = "unknown_target_topic"
            elif {(REPLIES, number) for number in request.timer.numbers} <= down:
                error = "target_unavailable"
            if error:
                self._counts["answer as a dead letter"] += 1
            request.word = _word(row, answers, request.timer, error)
            if request.word is None or not self._replies:
                self._violated("bytes", f"the reply to {request.name}")
            else:
                self._judge_word(request, request.word)
            self._settle(request)

    def _judge_order(self, request: Request, progress: Progress) -> None:
        number = request.timer.partition
        part = progress.partitions[TOPIC, number]
        if request.newest >= min(part.closed_mark, part.replied_below):
            self._violated("9 answers", f"{request.name} is decided on too early")
        if request.newest < self._decided[number]:
            self._violated("9 answers", f"{request.name} is overtaken")
        self._decided[number] = request.newest

    def _judge_chase(
        self,
        request: Request,
        answers: Deliveries,
        row: int,
        copy: Copy | None,
        progress: Progress,
    ) -> None:
        """`copy`: where it lies; None while it waits for its partition."""
        self._counts["chases"] += 1
        headers: Any = answers.headers[row].as_py()
        said = decoded(headers)
        own = [(name.decode(), value) for name, value in request.timer.plain_headers]
        number, timer = request.timer.partition, request.timer
        wanted = {
            NAME_OF[names.Request.CANCEL]: timer.timer_id,
            names.ORIGIN: b"%d" % timer.origin,
            names.CHASE_SLOT: b"%d" % progress.partitions[TOPIC, number].delivered_slot,
        }
        if timer.named_offset != ANY_OFFSET:
            wanted[NAME_OF[names.Request.CANCEL_OFFSET]] = b"%d" % timer.named_offset
        added = dict(said[len(own) :])
        flags = int(added.pop(names.CHASE_FLAGS, b"-1"))
        added.pop(names.COPY_MAC, None)  # judged by what comes of the chase
        is_reschedule = flags & names.CHASE_FLAG_RESCHEDULE != 0
        where = answers.targets[int(answers.target[row])], int(answers.target_partition[row])
        right = said[: len(own)] == own and added == wanted and where == (TOPIC, number)
        if not right or is_reschedule != (timer.request == "reschedule"):
            self._violated("bytes", f"the chase of {request.name}: {said}")
        if flags & names.CHASE_FLAG_FOUND and not self._alive(request):
            self._violated("9 answers", f"{request.name} has cancelled nothing, its chase says so")
        request.newest = _NOWHERE if copy is None else copy.offset
        request.chases += 1

    def moved(self, copy: Copy) -> None:
        """A chase that has waited is in its partition."""
        request = self._requests.get(copy.timer.source)
        if request is None or request.newest != _NOWHERE:
            self._violated("9 answers", f"a chase of {copy.timer.source!r} that did not wait")
        else:
            request.newest = copy.offset

    def _alive(self, request: Request) -> list[Timer]:
        return [each for each in self._matched(request) if each.source not in self._ended]

    def _judge_word(self, request: Request, word: names.Answer) -> None:
        self._counts[f"answer: {word}"] += 1
        matched, alive = self._matched(request), self._alive(request)
        if request.timer.keeps:
            if word not in {names.Answer.KEPT, names.Answer.TAKEN, names.Answer.UNKNOWN}:
                self._violated("9 answers", f"{request.name} keeps, and is told {word}")
            return
        # Of a copy that is lost behind a cut nobody can tell, nor whether a timer was dropped.
        if any(timer.source in self._lost for timer in matched):
            return
        if any(self.keeps.is_uncertain(timer, self._ended) for timer in matched):
            return
        alive = [timer for timer in alive if timer.source not in self.keeps.kept]
        matched = [timer for timer in matched if timer.source not in self.keeps.kept]
        is_out = bool(matched) and matched[-1].source in self._ended
        if word is names.Answer.CANCELLED:
            true = bool(alive) and (
                not is_out or any(self._may_have_cancelled(request, each) for each in alive)
            )
        elif word is names.Answer.ALREADY_DELIVERED:
            is_out |= self._newest_on_disk(matched) in self._ended
            true = is_out and not any(self._alone_cancels(request, each) for each in alive)
        else:
            true = not self._is_proven(request, matched)
            self._counts["answer: unknown, though there was one"] += bool(matched)
        if not true:
            origins = [t.origin for t in matched], [t.origin for t in alive]
            detail = f"{request.name} is told {word}, of {origins[0]}, not out: {origins[1]}"
            self._violated("9 answers", detail)

    def _newest_on_disk(self, matched: list[Timer]) -> bytes | None:
        """The newest timer that the files show: a newer one that was cancelled may be gone."""
        witness = self.witness() if matched else None
        if witness is None:
            return None
        shown = [t for t in matched if (t.partition, self._copy_of(t).offset) in witness.slots]
        return shown[-1].source if shown else None

    def _may_have_cancelled(self, request: Request, timer: Timer) -> bool:
        """Whether no other request had cancelled the timer for certain before this one came."""
        return not any(
            other.settled and other.newest < request.timer.origin and other.matches(timer)
            for other in self._of_id[timer.partition, timer.timer_id]
            if other is not request
        )

    def _alone_cancels(self, request: Request, timer: Timer) -> bool:
        """Whether nothing else can have kept the timer from leaving."""
        others = self._of_id[timer.partition, timer.timer_id]
        return timer.source not in self.free and not any(
            other.matches(timer) for other in others if other is not request
        )

    def _is_proven(self, request: Request, matched: list[Timer]) -> bool:
        """Whether the files show the newest timer that the request matches."""
        witness = self.witness() if matched else None
        if witness is None:
            return False
        newest = matched[-1]
        was_stopped = newest.source not in self._ended and not self._alone_cancels(request, newest)
        is_named = request.timer.named_offset != ANY_OFFSET
        if was_stopped and not is_named and not witness.shows_all_behind(newest):
            return False  # one that was written later may be gone from disk
        if (is_named or request.chases) and not witness.shows_all_of(newest):
            return False
        copy = self._copy_of(newest)
        return copy.offset < request.newest and witness.proves(copy, request.timer.origin)

    def judge_end(self) -> None:
        """Everything that will ever happen has happened."""
        for request in self.unsettled[:3]:
            self._violated("9 answers", f"{request.name} was never settled")
        words = {names.Answer.CANCELLED, names.Answer.UNKNOWN, None}
        for (partition, timer_id), timers in self._timers.items():
            requests = [r for r in self._of_id[partition, timer_id] if r.word in words]
            gone = self._ended | self.free | self._lost | self.keeps.kept
            for timer in timers:
                if timer.source not in gone and not any(r.matches(timer) for r in requests):
                    self._violated("2 lost", f"{timer.source.decode()}: nobody was told so")


def _behind(source: bytes, number: int, end: int) -> bool:
    place, offset = source.rsplit(b"@", 1)
    return place.endswith(b"-%d" % number) and int(offset) >= end


def _word(row: int, answers: Deliveries, cancel: Timer, error: str) -> names.Answer | None:
    """What a reply says; None if it is not the one that was to be written."""
    data: Any = answers.key_value[row].as_py()
    headers: Any = answers.headers[row].as_py()
    size, at = read_varint(data, 0)
    key = data[at : at + size] if size >= 0 else None
    size, at = read_varint(data, at + max(size, 0))
    said = json.loads(data[at : at + size])
    word = names.Answer(said.pop(names.ANSWER_NAME))
    wanted = {
        names.ANSWER_ID: cancel.timer_id.decode(),
        names.ANSWER_SOURCE: cancel.source.decode(),
        names.ANSWER_REQUEST: cancel.request,
    }
    own = [*cancel.plain_headers, (names.ANSWER.encode(), word.encode())]
    own.append((names.TIMER_ID.encode(), cancel.timer_id))
    if error:
        own.append((names.ERROR_CODE.encode(), error.encode()))
    encoded = b"".join(framed_bytes(name) + framed_bytes(value) for name, value in own)
    topic = answers.targets[int(answers.target[row])]
    more = len(headers) - len(encoded) if error else 0  # the error in words, and where it was to go
    right = (said, key, headers[: len(headers) - more], topic) == (
        wanted,
        cancel.key,
        encoded,
        TARGETS[DEAD] if error else REPLIES,
    )
    return word if right and (error or int(answers.header_count[row]) == len(own)) else None
