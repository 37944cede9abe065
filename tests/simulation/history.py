"""What has happened, and whether it may have: the judge of a simulation.

Timers are counted by their origin; each copy leaves the wheel once, as a delivery or as a roll.

    1 early      delivered before its due time, by the host's clock or, with the bound, the brokers'
    2 lost       not delivered in the end
    3 doubled    a copy leaves twice
    4 order      of two copies of a partition the later one leaves first, though its slot is not the
                 earlier one
    5 memory     a transaction larger than a chunk may be
    7 floor      the floor, or the progress, moves back; a closed slot takes something
    bytes        a delivery is not what was asked for

From others than this module: `refused` (an error that nothing explains), `check` (of the files),
`ownership` (an owner that may be alive was followed), `fenced` (who was followed does not know it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from tests.simulation.timers import TARGETS, TOPIC, Copy, Timer

from duewheel.checkpoints.progress import Progress
from duewheel.clock import Clock
from duewheel.schemas.columns import lengths
from duewheel.schemas.timers import Deliveries
from duewheel.wheel.layout import WheelConfig


@dataclass(frozen=True)
class Violation:
    """An invariant that was broken."""

    invariant: str
    detail: str


class History:
    """Hears of everything that is written and committed.

    Attributes:
        violations: what has been found so far.
        pending: timers that were written and are not delivered, by source.
        counts: what has happened, by kind.
        copies: the rolled ones, and their headers as they were written.
        lines: the schedule, for who wants to read it.
    """

    def __init__(self, wheel: WheelConfig, clock: Clock, chunk: tuple[int, int]) -> None:
        self.violations: list[Violation] = []
        self.pending: dict[bytes, Timer] = {}
        self.lines: list[str] = []
        self.counts: Counter[str] = Counter()
        self.copies: list[tuple[Copy, bytes]] = []
        self._wheel = wheel
        self._clock = clock
        self._chunk = chunk
        self._newest: dict[bytes, Copy] = {}
        # Per partition, in the order in which they left: offset and slot of each copy.
        self._left: dict[int, list[tuple[int, int]]] = {}
        self._progress: Progress | None = None

    def say(self, text: str) -> None:
        slot = self._clock.now_ms() / self._wheel.precision_ms
        self.lines.append(f"{slot:.2f} {text}")

    def violated(self, invariant: str, detail: str) -> None:
        self.violations.append(Violation(invariant, detail))
        self.say(f"VIOLATION {invariant}: {detail}")

    # ---- what is written and leaves --------------------------------------------------------

    def written(self, copy: Copy) -> None:
        self.pending[copy.timer.source] = copy.timer
        self._newest[copy.timer.source] = copy
        slot = copy.slot(self._wheel)
        self.say(f"  written {copy.timer.source.decode()} for slot {slot}")

    def newest(self, timer: Timer) -> Copy:
        return self._newest[timer.source]

    def rolled_in(self, deliveries: Deliveries | None) -> list[Timer]:
        """The timers that these deliveries write to the timer topic again."""
        if deliveries is None:
            return []
        sources = deliveries.source.to_pylist()
        rows = np.flatnonzero(deliveries.rolled).tolist()
        return [self._newest[source].timer for row in rows if (source := sources[row])]

    def attempted(self, deliveries: Deliveries | None, fate: str) -> None:
        rows = 0 if deliveries is None else len(deliveries)
        self.say(f"  transaction of {rows}: {fate}")
        self.counts[f"transaction: {fate}"] += 1
        if deliveries is None:
            return
        records_max, bytes_max = self._chunk
        size = int(lengths(deliveries.key_value).sum())
        if rows > records_max or (rows > 1 and size > bytes_max):
            self.violated("5 memory", f"{rows} rows, {size} bytes in one transaction")

    def committed(
        self, deliveries: Deliveries | None, progress: bytes, copies: list[Copy], closable_ms: int
    ) -> None:
        """A transaction of the shard has happened; nothing in it was due after `closable_ms`."""
        self._advance(Progress.decode(progress))
        if deliveries is None:
            return
        columns = Columns(deliveries)
        for row in range(len(deliveries)):
            self._leave(row, columns, closable_ms)
        requests = columns.requests()
        self.copies += [(copy, requests[copy.timer.source]) for copy in copies]
        for copy in copies:
            self._newest[copy.timer.source] = copy
            slot = copy.slot(self._wheel)
            self.say(f"  rolled {copy.timer.source.decode()} to @{copy.offset} for slot {slot}")

    def _leave(self, row: int, found: Columns, closable_ms: int) -> None:
        source = found.source[row]
        timer = self.pending.get(source)
        rolled = found.rolled[row]
        self.say(f"  {'rolls' if rolled else 'delivered'} {source.decode()}")
        if timer is None:
            known = source in self._newest
            self.violated("3 doubled" if known else "bytes", f"{source.decode()} is not pending")
            return
        copy = self._newest[source]
        left = self._left.setdefault(timer.partition, [])
        if any(offset == copy.offset for offset, _ in left):
            self.violated("3 doubled", f"copy {copy.offset} of {source.decode()} has left before")
        left.append((copy.offset, copy.slot(self._wheel)))
        if rolled:
            self.counts["rolled"] += 1
        else:
            del self.pending[source]
            self.counts["rejected" if timer.rejected else "delivered"] += 1
            if not timer.rejected and closable_ms < timer.due_ms:
                self.violated("1 early", f"{source.decode()}: {timer.due_ms - closable_ms} ms")
        difference = found.difference(row, copy, rolls=copy.rolled(self._wheel))
        if difference:
            self.violated("bytes", f"{source.decode()}: {difference}")

    def _advance(self, progress: Progress) -> None:
        before, self._progress = self._progress, progress
        if before is None:
            return
        for partition, known in before.partitions.items():
            now = progress.partitions.get(partition)
            if now is None:
                self.violated("7 floor", f"{partition} has vanished from the progress")
            elif (now.r, now.c) < (known.r, known.c) or (
                now.r == known.r and (now.d or 0) < (known.d or 0)
            ):
                self.violated("7 floor", f"progress of {partition} falls from {known} to {now}")

    # ---- in the end ------------------------------------------------------------------------

    def judge_end(self) -> None:
        """Everything that will ever happen has happened."""
        for timer in list(self.pending.values())[:3]:
            copy = self._newest[timer.source]
            text = f"{timer.source.decode()}, copy {copy.offset}, slot {copy.slot(self._wheel)}"
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

    def __init__(self, deliveries: Deliveries) -> None:
        self._names = deliveries.targets
        self.source = _texts(deliveries.source.to_pylist())
        self.rolled: list[bool] = deliveries.rolled.tolist()
        self._columns: dict[str, list[object]] = {
            name: getattr(deliveries, name).tolist()
            for name in (
                *("target", "target_partition", "key_hash", "due_ms", "header_count"),
                *("roll_times", "dead_letter"),
            )
        }
        for name in ("timer_id", "key_value", "headers"):
            self._columns[name] = getattr(deliveries, name).to_pylist()
        self._headers = deliveries.headers.to_pylist()

    def requests(self) -> dict[bytes, bytes]:
        """Headers of the rolled rows, by source."""
        headers = _texts(self._headers)
        return {self.source[row]: headers[row] for row, rolled in enumerate(self.rolled) if rolled}

    def difference(self, row: int, copy: Copy, *, rolls: bool) -> str:
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
            "dead_letter": timer.rejected,
            "timer_id": timer.timer_id,
            "key_value": key_value,
            "headers": headers,
        }
        found["target"] = self._names[target]
        if self.rolled[row] != rolls:
            return f"rolled is {self.rolled[row]}"
        if rolls:
            # Its request is in its headers again: copies are judged when they are read.
            own = found["headers"]
            assert isinstance(own, bytes)
            found["headers"] = own[: len(headers)]
            wanted["target"], wanted["target_partition"] = TOPIC, timer.partition
            del found["header_count"], wanted["header_count"]
        return "; ".join(
            f"{name} is {found[name]!r} instead of {wanted[name]!r}"
            for name in wanted
            if found[name] != wanted[name]
        )


def _texts(values: Iterable[bytes | None]) -> list[bytes]:
    return [value for value in values if value is not None]
