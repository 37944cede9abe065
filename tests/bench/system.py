"""What the bench needs of a system: the interface against which workloads.py is written.

A load is a schedule: when each timer is to be sent, and when it is due. A system sends it on time
whether or not earlier sends were answered (an open loop), so that a slow system cannot slow its
load down and thereby hide how late it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from duewheel.schemas.arrays import Int64

BODY_BYTES = 100
POLL_S = 0.02  # between two looks at a system: more often would be a load of its own
AT_ONCE = 0
RECEIPT = np.dtype([("number", "<i8"), ("stored_ms", "<i8"), ("received_ms", "<i8")])


class Kind(Enum):
    """What the messages of a load are."""

    TIMERS = auto()
    TIMERS_WITH_IDS = auto()
    CANCELS = auto()  # of the timers with these numbers


@dataclass(frozen=True)
class TimerLoad:
    """Timers, numbered from `first` on.

    Attributes:
        due_ms: of each; of a cancel without effect.
        send_ms: when each is sent, rising; None: all of them as fast as the system takes them.
    """

    first: int
    due_ms: Int64
    send_ms: Int64 | None = None
    kind: Kind = Kind.TIMERS

    def __len__(self) -> int:
        return len(self.due_ms)


@dataclass(frozen=True)
class SendResult:
    """What became of a load.

    Attributes:
        begun_ms, acked_ms: first send and last acknowledgement.
        failed: refused by the system.
    """

    begun_ms: int
    acked_ms: int
    failed: int


class Receipts:
    """The file to which a consumer adds a RECEIPT for each delivery."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return self.path.stat().st_size // RECEIPT.itemsize if self.path.exists() else 0

    def read(self) -> npt.NDArray[np.void]:
        return np.fromfile(self.path, RECEIPT, len(self)) if len(self) else np.zeros(0, RECEIPT)


class System(Protocol):
    """A system under test, on a fresh store in a folder of its own."""

    name: str
    config: Mapping[str, Any]
    receipts: Receipts

    def start(self) -> None:
        """Start all of it, with a consumer of all deliveries, and wait until it takes timers."""

    def prepare(self, load: TimerLoad) -> TimerLoad:
        """Make ready what a load needs that is not to be measured."""

    def send(self, load: TimerLoad) -> Future[SendResult]:
        """Send a prepared load in threads of its own."""

    def enqueued(self) -> int:
        """How many messages the wheel has taken: a number that only rises."""

    def pids(self) -> Mapping[str, Sequence[int]]:
        """The processes at work, by their part; "load" and "consumer" are the bench's own."""

    def disk_bytes(self) -> Mapping[str, int]:
        """Allocated bytes, by what they are for."""

    def halt(self) -> None:
        """Stop delivering timers, as an operator does."""

    def resume(self) -> None:
        """Start again after `halt`; returns at once."""

    def stop(self) -> None:
        """End all processes. The folder belongs to the caller."""


def times_file(folder: Path, load: TimerLoad) -> Path:
    """The file with int64 of (send_ms, due_ms) of each timer, for a load in another process."""
    return folder / f"load-{load.first}"


def write_times(folder: Path, load: TimerLoad) -> None:
    """Makes the `times_file` of a load."""
    times = np.zeros((len(load), 2), "<i8")
    times[:, 0] = AT_ONCE if load.send_ms is None else load.send_ms
    times[:, 1] = load.due_ms
    times_file(folder, load).write_bytes(times.tobytes())


def allocated_bytes(folder: Path) -> int:
    return sum(f.stat().st_blocks * 512 for f in folder.rglob("*") if f.is_file())
