"""Checks timers with `TIMER_IF_PENDING: keep`: each is delivered, or not, as its reply says.

A timer T *may block* a later one B of its partition and id if it was not out, nor certainly
cancelled, when B was written: by a settled request, or by one between T and B that was decided at
once, without a chase, while T had no copy.
T *blocks* B for certain if it has not left before B, has no copy, and no request between them stops
it: its slot was open when B came, or it would have left before.

- `kept`: a timer may block it. It never leaves then, until a loss of files. Unless `whole`, an
  owner may have overlooked that timer, and written a copy of this one before the next owner said
  so: the copy may leave.
- `taken`, and no reply: it leaves, unless a request stops it.
- It does not leave before a timer that blocks it for certain.

After a loss of files timers that are read again are decided again, by what is pending then: those
that were dropped may leave, and those that were taken need not, if one may block them. Without a
reply topic, or with the reply `unknown`, it is not known what was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.simulation.timers import Copy, Timer

from duewheel.schemas.batches import NEVER
from duewheel.schemas.header_names import Answer


@dataclass
class _Keep:
    """A timer with `keep`: the timers that may block it, and what it was told."""

    timer: Timer
    gone: frozenset[bytes]  # timers that were out or cancelled when it was written
    word: Answer | None = None
    is_decided: bool = False


@dataclass
class KeepJudge:
    """Of all partitions.

    Attributes:
        kept: timers that must not leave.
        whole: whether a batch looks at all timers of an id.
        sent_back: timers that have left as copies, also as copies that are held.
    """

    violated: Callable[[str, str], None]
    newest: Callable[[Timer], Copy]
    # Of a timer: all of its partition and id, in the order of their offsets; and whether a request
    # below an offset matches it, timers with `keep` aside: any, or one without a chase.
    of_id: Callable[[Timer], Iterable[Timer]]
    is_stopped: Callable[[Timer, int], bool]
    is_stopped_at_once: Callable[[Timer, int], bool]
    kept: set[bytes] = field(default_factory=set)
    whole: bool = True
    sent_back: set[bytes] = field(default_factory=set)
    _keeps: dict[bytes, _Keep] = field(default_factory=dict)
    _has_lost: bool = False

    def written(self, timer: Timer, gone: Iterable[bytes]) -> None:
        """It has come to be; `gone`: timers that are out or cancelled."""
        self._keeps[timer.source] = _Keep(timer, frozenset(gone))

    def decided(self, timer: Timer, word: Answer | None, free: set[bytes]) -> None:
        """It has a reply, or is passed without one. Adds to `free` what may leave or not."""
        keep = self._keeps[timer.source]
        keep.word, keep.is_decided = word, True
        is_blocked = self._may_be_blocked(keep)
        if word is Answer.KEPT:
            is_out_again = not self.whole and timer.source in self.sent_back
            (free if is_out_again else self.kept).add(timer.source)
            if not is_blocked:
                self.violated("10 keep", f"{timer.source.decode()} is dropped for nothing")
        elif word is not Answer.TAKEN and is_blocked:
            free.add(timer.source)

    def lost_files(self, free: set[bytes], ended: set[bytes]) -> None:
        """What is not out may be decided again from here on."""
        self._has_lost = True
        self.kept.clear()
        for source, keep in self._keeps.items():
            if source not in ended and self._may_be_blocked(keep):
                free.add(source)

    @property
    def known(self) -> set[bytes]:
        return set(self._keeps)

    def forget(self, sources: set[bytes]) -> None:
        """These records are lost."""
        self.kept -= sources
        for source in sources:
            del self._keeps[source]

    def is_uncertain(self, timer: Timer, ended: set[bytes]) -> bool:
        """Whether it may be pending, or was dropped."""
        keep = self._keeps.get(timer.source)
        if keep is None or timer.source in ended:
            return False
        known = keep.word is Answer.KEPT or keep.word is Answer.TAKEN
        return not known or self._has_lost

    def leaves(self, timer: Timer, ended: set[bytes], stopped: set[bytes]) -> None:
        """`stopped`: timers that need not leave, for another reason than a request."""
        name = timer.source
        if name in self.kept:
            self.violated("10 keep", f"{name.decode()} leaves, though it was dropped")
        if name not in self._keeps or not self.whole:
            return
        for other in self.of_id(timer):
            if other.origin >= timer.origin:
                break
            is_out = other.source in ended or other.source in stopped or other.source in self.kept
            if is_out or self.is_uncertain(other, ended) or self._has_copy(other):
                continue
            # What is read again may find it stopped by a request that came after this timer.
            below = NEVER if self._has_lost else timer.origin
            if not self.is_stopped(other, below):
                detail = f"{name.decode()} leaves before {other.source.decode()}, which is pending"
                self.violated("10 keep", detail)

    def _may_be_blocked(self, keep: _Keep) -> bool:
        for other in self.of_id(keep.timer):
            if other.origin >= keep.timer.origin:
                break
            if other.source in keep.gone or other.source in self.kept:
                continue
            if self._has_copy(other) or not self.is_stopped_at_once(other, keep.timer.origin):
                return True
        return False

    def _has_copy(self, timer: Timer) -> bool:
        is_back = timer.source in self.sent_back or self.newest(timer).offset != timer.origin
        return timer.recurs or timer.fired or is_back
