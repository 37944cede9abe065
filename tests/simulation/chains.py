"""Judges recurring timers: the chain of copies of each, and the firings that leave them.

A recurring timer is pending from its seed on, as one timer whose copies come and go, until its last
firing, or a cancel. Each firing is a timer of its own: it leaves from the place of a copy, or is
parked there. What a copy leaves is one transaction's:

    seed      its first copy, and nothing else
    copy      a firing, and the copy of the next instant; or that alone, if the instant was missed
    the last  a firing alone

No instant of a timer fires twice; with `missed = all`, and from one instant to the next, none is
left out. That no firing is early, and each as it was written, is judged as of any timer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tests.simulation.contract_check import decoded
from tests.simulation.timers import Copy, Timer, record_name

from duewheel.schemas import header_names as names
from duewheel.schemas.batches import Deliveries
from duewheel.wheel.recurrence import Recurrence, recurrence_of


@dataclass
class Chain:
    """A recurring timer.

    Attributes:
        seed: as its user wrote it.
        fired: the due times of its firings.
    """

    seed: Timer
    recurrence: Recurrence
    fired: list[int] = field(default_factory=list)

    def is_last(self, due_ms: int) -> bool:
        """Whether no instant follows this one."""
        ends_ms = self.recurrence.ends_ms
        return ends_ms is not None and due_ms + self.recurrence.interval_ms > ends_ms


class Chains:
    """Those of a run."""

    def __init__(self, violated: Callable[[str, str], None]) -> None:
        self._violated = violated
        self._all: dict[bytes, Chain] = {}
        self._of_record: dict[bytes, bytes] = {}  # names of a chain's records → that of the chain
        self._fired: dict[bytes, int] = {}  # of one transaction: chain → due time
        self._succeeded = set[bytes]()

    @property
    def any(self) -> bool:
        return bool(self._all)

    def __contains__(self, name: bytes) -> bool:
        return name in self._all

    def written(self, copy: Copy) -> None:
        """A record of it has come to be."""
        timer = copy.timer
        if not timer.recurs or not copy.is_timer:
            return
        assert timer.content is not None
        recurrence = recurrence_of(dict(timer.content.recurrence))
        self._all.setdefault(timer.source, Chain(timer, recurrence))
        self._of_record[record_name(timer.partition, copy.offset)] = timer.source

    def names(self, deliveries: Deliveries) -> list[bytes]:
        """The name of each row's timer: a chain's, a firing's, or the source."""
        pairs = zip(deliveries.source.to_pylist(), deliveries.timer_id.to_pylist(), strict=True)
        return [self._name(source or b"", timer_id or b"") for source, timer_id in pairs]

    def _name(self, source: bytes, timer_id: bytes) -> bytes:
        name = self._of_record.get(source)
        if name is None or timer_id == self._all[name].seed.timer_id:
            return name or source
        return name + b"!" + timer_id.rpartition(b"@")[2]

    def firing(self, name: bytes) -> Timer:
        """The timer of this name."""
        chain, _, due_ms = name.rpartition(b"!")
        seed = self._all[chain].seed
        assert seed.content is not None
        return replace(
            seed,
            due_ms=int(due_ms),
            named=b"%b@%b" % (seed.timer_id, due_ms),
            request="",
            content=replace(seed.content, recurrence=()),
            fired=True,
        )

    def with_firings(self, found: Sequence[bytes]) -> set[bytes]:
        """Those of these rows that are copies beside a firing."""
        fired = {chain for chain, mark, _ in (name.rpartition(b"!") for name in found) if mark}
        return fired.intersection(found)

    def begin(self) -> None:
        """A transaction."""
        self._fired, self._succeeded = {}, set()

    def fires(self, firing: Timer, copy: Copy) -> None:
        """A firing leaves the place of this copy, for the first time."""
        name = firing.source.rpartition(b"!")[0]
        chain = self._all[name]
        if copy.is_first or copy.timer.due_ms != firing.due_ms or name in self._fired:
            self._violated("recurring", f"{firing.source!r} does not fire from @{copy.offset}")
        if firing.due_ms in chain.fired:
            self._violated("recurring", f"{firing.source!r} fires twice")
        chain.fired.append(firing.due_ms)
        self._fired[name] = firing.due_ms

    def succeeds(self, copy: Copy, headers: bytes) -> None:
        """A copy is written behind this one."""
        name, chain = copy.timer.source, self._all[copy.timer.source]
        said = dict(decoded(headers))
        due_ms = int(said[names.NAME_OF[names.Request.DELIVER_AT]])
        after_ms, interval_ms = copy.timer.due_ms, chain.recurrence.interval_ms
        if name in self._succeeded:
            self._violated("recurring", f"{name!r} has two successors")
        self._succeeded.add(name)
        is_instant = due_ms > after_ms and (due_ms - chain.seed.due_ms) % interval_ms == 0
        if not is_instant or said[names.ROLL_TIMES] != b"0":
            self._violated("recurring", f"{name!r}: {said} after {after_ms}")
        is_skipped = name not in self._fired and not copy.is_first
        if is_skipped and chain.recurrence.missed == "all":
            self._violated("recurring", f"{name!r} does not fire at {after_ms}")

    def ended(self) -> list[bytes]:
        """The transaction ends; those that have fired for the last time."""
        alone = self._fired.keys() - self._succeeded
        for name in alone:
            if not self._all[name].is_last(self._fired[name]):
                self._violated("recurring", f"{name!r} fires without a successor")
        return sorted(alone)

    def judge(self) -> list[str]:
        """What is wrong in the end."""
        found = []
        for name, chain in self._all.items():
            gaps = {b - a for a, b in zip(chain.fired, chain.fired[1:], strict=False)}
            wanted = {chain.recurrence.interval_ms}
            if min(gaps, default=1) <= 0 or (
                chain.recurrence.missed == "all" and not gaps <= wanted
            ):
                found.append(f"{name!r} fires at {chain.fired}")
        return found
