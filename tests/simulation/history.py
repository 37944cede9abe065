"""The judge of a simulation: records all events, and checks the invariants on them.

Timers are counted by their origin; each copy leaves the wheel once: delivered, rolled or parked.

    1 early      delivered before its due time, by the host's clock or, with the bound, the brokers'
                 (a parked copy also: before it may leave again)
    2 lost       not delivered in the end
    3 doubled    a copy leaves twice
    4 order      of two copies of a partition the later one leaves first, though its slot is not the
                 earlier one; of two timers of a key the later one overtakes one that was in excess
                 of the same slot
    5 memory     a transaction larger than a chunk may be
    6 delayed    parked though its target takes writes; written to one that takes none; spread
                 or dead-lettered for a slot that cannot be hot (policies/)
    7 floor      the floor, or the progress, moves back; a closed slot takes a row
    8 cancelled  leaves, though a request that it matches is settled
    9 answers    not one to each request, in order, and true (cancel_judge.py)
    10 keep      a timer is dropped for nothing, or is not (keep_judge.py)
    moved        a partition is not reassigned unchanged, or to the wrong shard
    bytes        a delivery differs from its request

From others than this module: `refused` (an error that nothing explains), `check` (of the files),
`ownership` (an owner that may be alive was followed, or a shard is served that is none), `fenced`
(who was followed does not know it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from tests.simulation.cancel_judge import CancelJudge
from tests.simulation.chains import Chains
from tests.simulation.policies.judge import Leaving, Taken
from tests.simulation.policies.parking import waits_of
from tests.simulation.policies.table import Judges
from tests.simulation.settings import Settings
from tests.simulation.timers import DEAD, TARGETS, TOPIC, Copy, Timer

from duewheel.checkpoints.pauses import PausedTimers
from duewheel.checkpoints.progress import NOBODY, PartitionProgress, Progress, shard_of
from duewheel.clock import Clock
from duewheel.schemas.batches import ANY_TIME, NEVER, NO_PARTITION, Deliveries
from duewheel.schemas.columns import lengths
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import WheelConfig


@dataclass(frozen=True)
class Violation:
    """An invariant that was broken."""

    invariant: str
    detail: str


class Committed(Protocol):
    """A transaction.

    Attributes:
        deliveries: as they were written, parked ones as copies.
        progress: its record.
        closable_ms: nothing in it was due later.
        parked_ms: from which its parked timers wait.
        down: target partitions that took no writes then.
        absent: topics that did not exist then.
        paused: what was paused then.
        sent: what it has written to the timer topic.
    """

    deliveries: Deliveries | None
    progress: bytes
    closable_ms: int
    parked_ms: int
    down: frozenset[tuple[str, int]]
    absent: frozenset[str]
    paused: PausedTimers

    @property
    def sent(self) -> Sequence[Sent]: ...


class Sent(Protocol):
    """What goes to the end of a partition of the timer topic."""

    @property
    def timer(self) -> Timer: ...
    @property
    def headers(self) -> bytes: ...
    @property
    def is_chase(self) -> bool: ...


class History:
    """Hears of everything that is written and committed.

    Attributes:
        violations: what has been found so far.
        pending: timers that were written and are not delivered, by source.
        counts: what has happened, by kind.
        copies: the rolled and parked ones, and their headers as they were written.
        lines: the schedule, for who wants to read it.
        settings: those that have held, and since when.
        waits_ms: of parked timers.
        listeners: called with each timer that leaves for good, and its headers as they left.
    """

    def __init__(self, wheel: WheelConfig, clock: Clock, config: DequeueConfig) -> None:
        self.violations: list[Violation] = []
        self.pending: dict[bytes, Timer] = {}
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()
        self.copies: list[tuple[Copy, bytes]] = []
        self.listeners: list[Callable[[Timer, bytes], None]] = []
        self.settings = Settings(wheel)
        self.waits_ms = waits_of(wheel)
        self._clock = clock
        self._config = config
        self._newest: dict[bytes, Copy] = {}
        # Per partition, in the order in which they left: offset and slot of each copy.
        self._left: dict[int, list[tuple[int, int]]] = {}
        self._progress: dict[int, Progress] = {}  # by shard
        self.shards = 1
        self._policies = Judges(config.policies, wheel, self.violated, self.counts)
        replies = config.reply_topic is not None
        self.chains = Chains(self.violated)
        self.cancels = CancelJudge(self.violated, self.counts, self.newest, replies=replies)

    def say(self, text: str) -> None:
        slot = self._clock.now_ms() / self.settings.precision_ms
        self.lines.append(f"{slot:.2f} {text}")

    def violated(self, invariant: str, detail: str) -> None:
        self.violations.append(Violation(invariant, detail))
        self.say(f"VIOLATION {invariant}: {detail}")

    # ---- what is written and leaves --------------------------------------------------------

    def written(self, copy: Copy) -> None:
        self.cancels.written(copy.timer)
        if not copy.timer.is_timer:
            name, timer_id = copy.timer.source.decode(), copy.timer.timer_id
            self.say(f"  written {name} cancels {timer_id!r} {copy.timer.named_offset}")
            return
        self.pending[copy.timer.source] = copy.timer
        self._newest[copy.timer.source] = copy
        self.chains.written(copy)
        slot, timer = copy.slot(self.settings.wheel(copy)), copy.timer
        text = f"{timer.request} {timer.timer_id!r} {timer.named_offset}" if timer.request else ""
        self.say(f"  written {timer.source.decode()} for slot {slot} {text}")

    def newest(self, timer: Timer) -> Copy:
        return self._newest[timer.source]

    def sent_back(self, deliveries: Deliveries | None) -> list[tuple[Timer, bytes]]:
        """The timers that these deliveries write to the timer topic again, and their headers."""
        if deliveries is None:
            return []
        sources = self.chains.names(deliveries)
        headers = _texts(deliveries.headers.to_pylist())
        rows, answer = np.flatnonzero(deliveries.is_copy).tolist(), deliveries.answer.tolist()
        for row in rows:
            self._know_firing(sources[row])
        known = [row for row in rows if sources[row] in self._newest and not answer[row]]
        return [(self._newest[sources[row]].timer, headers[row]) for row in known]

    def _know_firing(self, name: bytes) -> None:
        """It is about to leave the place of a copy, for the first time unless it is known."""
        chain, mark, _ = name.rpartition(b"!")
        if mark and name not in self._newest:
            copy = self._newest[chain]
            firing = self.chains.firing(name)
            self._newest[name] = Copy(firing, copy.offset, copy.timestamp_ms, copy.rolls)

    def chases(self, deliveries: Deliveries | None) -> list[tuple[Timer, bytes]]:
        """The requests that these deliveries write again, and their headers."""
        if deliveries is None:
            return []
        sources = _texts(deliveries.source.to_pylist())
        headers = _texts(deliveries.headers.to_pylist())
        rows = np.flatnonzero(deliveries.is_copy & deliveries.answer).tolist()
        requests = [(self.cancels.chased(sources[row]), headers[row]) for row in rows]
        return [(timer, own) for timer, own in requests if timer is not None]

    def attempted(self, deliveries: Deliveries | None, fate: str) -> None:
        rows = 0 if deliveries is None else len(deliveries)
        self.say(f"  transaction of {rows}: {fate}")
        self.counts[f"transaction: {fate}"] += 1
        if deliveries is None:
            return
        rows -= len(self.chains.with_firings(self.chains.names(deliveries)))
        config, bytes_max = self._config, self._config.chunk_bytes
        records_max = config.chunk_replies if deliveries.answer.any() else config.chunk_records
        # Of replies it is the requests that are counted.
        size = int(lengths(deliveries.key_value)[~deliveries.answer].sum())
        if rows > records_max or (rows > 1 and size > bytes_max):
            self.violated("5 memory", f"{rows} rows, {size} bytes in one transaction")

    def committed(self, done: Committed, copies: list[Copy]) -> None:
        """A transaction of the shard has happened; `copies`: in the timer topic."""
        after = Progress.decode(done.progress)
        before = self._progress.get(after.shard)
        self._advance(before, after)
        headers = {(each.timer.source, each.is_chase): each.headers for each in done.sent}
        self.copies += [(copy, headers[copy.timer.source, copy.is_chase]) for copy in copies]
        found = done.deliveries
        answers = found is not None and found.answer.any()
        named = [] if found is None else self.chains.names(found)
        new = set(_texts(found.source.to_pylist()) if found is not None and answers else named)
        chased = found is not None and found.answer.any()
        moved = [c for c in copies if c.timer.source not in new or c.is_chase != chased]
        for copy in moved:
            self._moved(copy)
        copies = [copy for copy in copies if copy not in moved]
        if found is not None and chased:
            for copy in copies:
                self._say_chase(copy)
            self.cancels.replied(found, copies, after, done.down, done.absent)
        elif found is not None:
            self._left_with(found, done, copies, before, after)
        self.cancels.advanced(
            after, dealt=before is None or before.assignment_epoch != after.assignment_epoch
        )

    def _moved(self, copy: Copy) -> None:
        """It has waited for its partition, and is there now."""
        self.counts["moved"] += 1
        if copy.is_chase:
            self._say_chase(copy)
            self.cancels.moved(copy)
        else:
            self._take(copy)

    def _say_chase(self, copy: Copy) -> None:
        self.say(f"  chase of {copy.timer.source.decode()} @{copy.offset}: {copy.chase_flags}")

    def _take(self, copy: Copy) -> None:
        self._newest[copy.timer.source] = copy
        self.chains.written(copy)
        is_changed = copy.timer.source in self.chains or copy.timer.rejected
        if is_changed and copy.timer.source in self.pending:
            # Its due time is that of the instant; or a policy has made a dead letter of it.
            self.pending[copy.timer.source] = copy.timer
        slot, what = copy.slot(self.settings.wheel(copy)), "parked" if copy.retries else "rolled"
        self.say(f"  {what} {copy.timer.source.decode()} to @{copy.offset} for slot {slot}")

    def _left_with(
        self,
        found: Deliveries,
        done: Committed,
        copies: list[Copy],
        before: Progress | None,
        after: Progress,
    ) -> None:
        columns = Columns(found, self.chains.names(found))
        beside = self.chains.with_firings(columns.source)
        taken = Taken(
            before,
            after,
            rows=sum(name not in beside for name in columns.source),
            whole=not self.cancels.asked and not self.chains.any,
            in_order=not any(name in self.chains for name in columns.source),
            closable_ms=done.closable_ms,
            parked_ms=done.parked_ms,
            down=done.down,
            absent=done.absent,
            paused=done.paused,
        )
        self._policies.begins(taken)
        left: dict[bytes, Leaving | None] = {}
        self.chains.begin()
        for row, name in enumerate(columns.source):
            if name in self.chains:
                if not self._newest[name].rolled(self.settings.wheel(self._newest[name])):
                    self._succeed(name, columns.headers[row])
                    continue
            elif b"!" in name and name not in self.pending:
                self._fire(name)
            left[name] = self._leave(row, columns, done)
        for name in self.chains.ended():
            self.cancels.leaves(self.pending.pop(name), sent_back=False)
            self.counts["recurring ended"] += 1
        for copy in copies:
            row_left = left.get(copy.timer.source)
            if copy.retries and row_left is not None:
                self._policies.copied(row_left, copy)
            self._take(copy)

    def _fire(self, name: bytes) -> None:
        """A firing leaves the place of a copy, for the first time."""
        self._know_firing(name)
        firing = self._newest[name]
        self.pending[name] = firing.timer
        copy = self._newest[name.rpartition(b"!")[0]]
        self.cancels.leaves(copy.timer, sent_back=True)
        self.chains.fires(firing.timer, copy)
        self.counts["recurring fired"] += 1

    def _succeed(self, name: bytes, headers: bytes) -> None:
        """The copy of a recurring timer's next instant is written."""
        copy = self._newest[name]
        self.say(f"  goes on: {name.decode()}")
        self.cancels.leaves(copy.timer, sent_back=True)
        self.chains.succeeds(copy, headers)
        own = copy.timer.columns[3]
        if not headers.startswith(own):
            self.violated("bytes", f"a copy of {name.decode()} begins with {headers[: len(own)]!r}")

    def _leave(self, row: int, found: Columns, done: Committed) -> Leaving | None:
        source = found.source[row]
        timer = self.pending.get(source)
        sent_back, policy = found.rolled[row], found.policy[row]
        self.say(f"  {'leaves again' if sent_back else 'delivered'} {source.decode()}")
        if timer is None:
            known = source in self._newest
            self.violated("3 doubled" if known else "bytes", f"{source.decode()} is not pending")
            return None
        timer = self.settings.judged(timer)
        is_letter = timer.rejected or found.until_ms[row] == NEVER
        if not timer.rejected:
            # A cancel has come too late for a letter, also for one that waits for its topic.
            self.cancels.leaves(timer, sent_back=sent_back and not is_letter)
        copy = replace(self._newest[source], timer=timer)
        left = self._left.setdefault(timer.partition, [])
        if any(offset == copy.offset for offset, _ in left):
            self.violated("3 doubled", f"copy {copy.offset} of {source.decode()} has left before")
        left.append((copy.offset, copy.slot(self.settings.wheel(copy))))
        rolls = copy.rolled(self.settings.wheel(copy))
        leaving = Leaving(
            row,
            copy,
            copy.slot(self.settings.wheel(copy)),
            policy,
            found.until_ms[row],
            self.settings.window_ms(timer.partition),
            rolls=rolls,
            sent_back=sent_back,
        )
        self._policies.leaves(leaving)
        if sent_back:
            postponed = f"postponed: {policy}" if policy else "parked"
            why = "letters kept" if is_letter else postponed
            self.counts["rolled" if rolls else why] += 1
        else:
            del self.pending[source]
            how = "rejected" if timer.rejected else "delivered"
            self.counts[policy.replace("_", " ") or how] += 1
            for listener in self.listeners:
                listener(timer, found.headers[row])
        instant = copy.held_ms if rolls or timer.rejected else copy.leaves_ms
        due_ms = instant(self.settings.wheel(copy))
        if done.closable_ms < due_ms:
            self.violated("1 early", f"{source.decode()}: {due_ms - done.closable_ms} ms")
        difference = found.difference(row, copy)
        if difference:
            self.violated("bytes", f"{source.decode()}: {difference}")
        return leaving

    def _advance(self, before: Progress | None, progress: Progress) -> None:
        self._progress[progress.shard] = progress
        is_one = progress.sealed_for is None and progress.shards == self.shards
        if progress.owner != NOBODY and not is_one:
            self.violated("ownership", f"shard {progress.shard} of {progress.shards} is owned")
        if progress.partitions and self.settings.learn(progress):
            self.say(f"  settings change: {progress.epochs.newest}")
            self.counts["settings changed"] += 1
        if before is None or before.assignment_epoch != progress.assignment_epoch:
            return
        for partition, known in before.partitions.items():
            now = progress.partitions.get(partition)
            if now is None:
                self.violated("7 floor", f"{partition} has vanished from the progress")
            elif (now.delivered_slot, now.delivered_mark) < (
                known.delivered_slot,
                known.delivered_mark,
            ) or (
                now.delivered_slot == known.delivered_slot
                and (now.half_below or 0) < (known.half_below or 0)
            ):
                self.violated("7 floor", f"progress of {partition} falls from {known} to {now}")

    def reassigned(self, records: list[Progress]) -> None:
        """The partitions are reassigned."""
        before, after = _parts(self._progress.values()), _parts(records)
        self.say(f"  dealt: {[sorted(record.partitions) for record in records]}")
        if before != after:
            self.violated("moved", f"{after} stood at {before}")
        self.shards = sum(1 for record in records if record.partitions)
        for record in records:
            if any(shard_of(p, self.shards) != record.shard for p in record.partitions):
                self.violated("moved", f"{sorted(record.partitions)} are in shard {record.shard}")
            parts = record.partitions.values()
            self.counts["dealt: stand apart"] += len({part.delivered_slot for part in parts}) > 1
            self.counts["dealt: within a slot"] += any(part.half_below for part in parts)
        self._progress = {record.shard: record for record in records}
        self.cancels.lost_files()  # other files read them
        if not self.settings.reassigned([record for record in records if record.partitions]):
            self.violated("moved", "a partition has other settings than it had")

    def waiting(self) -> list[Timer]:
        """Timers that are still to be delivered."""
        stays = self.cancels.cancelled | self.cancels.free | self.cancels.keeps.kept
        return [timer for source, timer in self.pending.items() if source not in stays]

    def cut(self, number: int, end: int, taken: int) -> None:
        """What lay behind `end` of a partition is lost, and will be other timers; the files have
        read it up to `taken`.
        """
        gone = [t.source for t in self._known(number) if t.origin >= end]
        lost = {t.source for t in self._known(number) if self._newest[t.source].offset >= end}
        for source in gone:
            del self._newest[source]
        for source in lost:
            self.pending.pop(source, None)
        self.counts["timers lost"] += len(lost)
        self._left[number] = [each for each in self._left.get(number, []) if each[0] < end]
        self._policies.forget(lost)
        self.cancels.cut(number, end, taken, lost)

    def _known(self, number: int) -> list[Timer]:
        timers = (copy.timer for copy in self._newest.values())
        return [timer for timer in timers if timer.partition == number]

    # ---- in the end ------------------------------------------------------------------------

    def judge_end(self) -> None:
        """Everything that will ever happen has happened."""
        self.cancels.judge_end()
        for timer in self.waiting()[:3]:
            copy = self._newest[timer.source]
            slot = copy.slot(self.settings.wheel(copy))
            text = f"{timer.source.decode()}, copy {copy.offset}, slot {slot}"
            self.violated("2 lost", text)
        for partition, left in self._left.items():
            self._judge_order(partition, left)

    def _judge_order(self, partition: int, left: list[tuple[int, int]]) -> None:
        for index, (offset, slot) in enumerate(left):
            for earlier, its_slot in left[:index]:
                if offset < earlier and slot <= its_slot:
                    self.violated(
                        "4 order",
                        f"{TOPIC}-{partition}: copy {earlier} (slot {its_slot}) leaves before "
                        f"{offset} (slot {slot})",
                    )
                    return


class Columns:
    """Deliveries as lists."""

    def __init__(self, deliveries: Deliveries, source: list[bytes]) -> None:
        """`source`: the name of each row's timer."""
        self._names = deliveries.targets
        self.source = source
        self.rolled: list[bool] = deliveries.is_copy.tolist()
        self.excess: list[bool] = (deliveries.not_before_ms != ANY_TIME).tolist()
        self.until_ms: list[int] = deliveries.not_before_ms.tolist()
        names = [*(each.name for each in deliveries.policies), ""]  # NO_POLICY is the last one
        self.policy = [names[number] for number in deliveries.policy.tolist()]
        self._columns: dict[str, list[object]] = {
            name: getattr(deliveries, name).tolist()
            for name in (
                *("target", "target_partition", "key_hash", "due_ms", "header_count"),
                *("roll_times", "retries", "level", "dead_letter"),
            )
        }
        for name in ("timer_id", "key_value", "headers"):
            self._columns[name] = getattr(deliveries, name).to_pylist()
        self.headers = _texts(deliveries.headers.to_pylist())

    def difference(self, row: int, copy: Copy) -> str:
        """How a row differs from what it must be; "" if it does not."""
        timer = copy.timer
        found = {name: column[row] for name, column in self._columns.items()}
        target = found.pop("target")
        assert isinstance(target, int)
        key_hash, _, key_value, headers = timer.columns
        wanted: dict[str, object] = {
            "target": TARGETS[timer.target],
            "target_partition": timer.target_partition,
            "key_hash": key_hash,
            "due_ms": timer.due_ms,
            "header_count": len(timer.headers),
            "roll_times": copy.rolls,
            "retries": copy.retries,
            "level": timer.level,
            "dead_letter": timer.rejected,
            "timer_id": timer.timer_id,
            "key_value": key_value,
            "headers": headers,
        }
        found["target"] = self._names[target]
        if self.rolled[row]:
            # Its request is in its headers again: copies are judged when they are read.
            own = found["headers"]
            assert isinstance(own, bytes)
            found["headers"] = own[: len(headers)]
            wanted["target"], wanted["target_partition"] = TOPIC, timer.partition
            wanted["dead_letter"] = timer.rejected or self.until_ms[row] == NEVER
            del found["header_count"], wanted["header_count"]
        elif self.excess[row]:
            # The reason, and what a replay needs, follow the user's own headers.
            own = found["headers"]
            assert isinstance(own, bytes)
            found["headers"] = own[: len(headers)]
            wanted["target"], wanted["target_partition"] = TARGETS[DEAD], NO_PARTITION
            wanted["dead_letter"] = True
            del found["header_count"], wanted["header_count"]
        return "; ".join(
            f"{name} is {found[name]!r} instead of {wanted[name]!r}"
            for name in wanted
            if found[name] != wanted[name]
        )


def _texts(values: Iterable[bytes | None]) -> list[bytes]:
    return [value for value in values if value is not None]


def _parts(records: Iterable[Progress]) -> list[tuple[str, PartitionProgress]]:
    """All that these say of partitions, in the order of their names."""
    parts = [each for record in records for each in record.partitions.items()]
    return [(f"{name[0]}-{name[1]}", part) for name, part in sorted(parts, key=lambda at: at[0])]
