"""Both halves of a shard on a real file system that takes no more stores for a while.

    full        every free byte of the folder's file system is taken by another file
    forbidden   no file may be made, as another user who has lost the right

    1. timers are placed; from here on the file system refuses
    2. others cannot be placed: an error, and nothing has changed; what is in the wheel is
       delivered; dequeue cannot be restarted; ingest stops without an error
    3. the file system takes stores again: the same engine places them, dequeue starts, all is
       delivered

Prints a line of JSON: the errors met in 2. by what was tried, how many timers were delivered while
nothing could be placed, what was delivered in the end, what `check` finds.

    python -P disk_child.py full|forbidden FOLDER
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import structlog

# The last place to look for modules: a folder called `wheel` is there.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.harness.publishers import JournalPublisher
from tests.harness.timer_rows import TIMER_TOPIC, TimerRow
from tests.harness.timer_rows import timer_batch as small_batch
from tests.harness.timer_shard import TimerShard

from duewheel.checkpoints.process_role import Role
from duewheel.runtime.checkpointer import DurableCheckpoints
from duewheel.schemas.columns import binary
from duewheel.streaming.batch_attempt import End
from duewheel.streaming.batch_size import RowLimit
from duewheel.testing import ManualClock
from duewheel.wheel.dequeue_config import DequeueConfig
from duewheel.wheel.slots import HOUR_MS, WheelConfig
from duewheel.wheel.storage.full_check import check

NOBODY = 65534
WHEEL = WheelConfig(1_000, 8_192, window_ms=2 * HOUR_MS, margin_ms=0)
CONFIG = DequeueConfig(0, 1, {"precision_ms": 1_000, "roll_window_ms": 2 * HOUR_MS})
SOURCE = (TIMER_TOPIC, 0)
COUNT = 100  # of timers, before and while the file system refuses
VALUE_BYTES = 10_000


class Obstacle:
    """What keeps a folder's file system from taking stores."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder = kind, folder

    def begin(self) -> None:
        if self._kind == "forbidden":
            self._allow(0o555)
            return
        with (self._folder / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            for piece in (1 << 20, 1 << 12, 1):
                with suppress(OSError):
                    while ballast.write(bytes(piece)):
                        pass

    def end(self) -> None:
        if self._kind == "forbidden":
            self._allow(0o755)
        else:
            (self._folder / "ballast").unlink()

    def _allow(self, mode: int) -> None:
        for folder in [self._folder, *(p for p in self._folder.rglob("*") if p.is_dir())]:
            folder.chmod(mode)


def tried(what: Callable[[], object]) -> str:
    """The name of the error that it meets; "" if it succeeds."""
    try:
        what()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def scenario(folder: Path, journal: Path, obstacle: Obstacle | None) -> dict[str, object]:
    """See the module's head."""
    clock = ManualClock()
    publisher = JournalPublisher(journal, clock)
    shard = TimerShard(folder / "data", WHEEL, publisher, clock, CONFIG)
    hours_ms = [clock.now_ms() + hours * HOUR_MS for hours in (0, 1)]

    def place(first: int) -> None:
        due_ms = hours_ms[first // COUNT] + 5_000
        timers = [TimerRow(0, offset, due_ms) for offset in range(first, first + COUNT)]
        values = binary([os.urandom(VALUE_BYTES) for _ in timers])
        batch = replace(small_batch(timers), key_value=values)
        assert shard.ingest is not None
        shard.ingest.append(batch, {SOURCE: first + COUNT})

    def deliver() -> None:
        assert shard.dequeue is not None
        clock.sleep(HOUR_MS / 1000)
        for _ in range(5):  # the first one may only end the range before
            shard.dequeue.tick()

    def note_rows() -> None:
        limit = RowLimit(shard.path, 1_000)
        limit.begun({}, 0)
        limit.ended(End.ORDERLY)

    def start_again() -> None:
        shard.kill(Role.DEQUEUE)
        shard.start_dequeue()

    shard.start_dequeue({SOURCE: 0})
    shard.start_ingest()
    place(0)
    marks = dict(shard.ingest.marks) if shard.ingest else {}
    errors: dict[str, str] = {}
    stopped: list[str] = []
    if obstacle is not None:
        obstacle.begin()
        errors["place"] = tried(lambda: place(COUNT))
        assert shard.ingest is not None and shard.ingest.marks == marks
    deliver()
    meanwhile = len(publisher.delivered())
    if obstacle is not None:
        errors["checkpoint"] = tried(DurableCheckpoints(shard.path).write)
        errors["start"] = tried(start_again)
        errors["place again"] = tried(lambda: place(COUNT))
        stopped = [tried(note_rows), tried(shard.directory(Role.INGEST).stop)]
        obstacle.end()
        shard.start_ingest()
    place(COUNT)
    start_again()
    deliver()
    delivered = sorted(int(row.source.split("@")[1]) for row in publisher.delivered())
    findings = [str(finding) for finding in check(shard.path, WHEEL).findings]
    return {
        "errors": errors,
        "stopped": stopped,
        "meanwhile": meanwhile,
        "delivered": delivered,
        "early": sum(row.published_ms < row.due_ms for row in publisher.delivered()),
        "findings": findings,
    }


def main(kind: str, folder: Path) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    # Everything is imported then: another user may not be allowed to.
    warm = folder / "warm"
    warm.mkdir()
    scenario(warm, folder / "warm.journal", None)
    small = folder / "small"
    if kind == "forbidden":
        small.mkdir()
        if os.geteuid() == 0:
            os.chown(small, NOBODY, NOBODY)
            os.chown(folder, NOBODY, NOBODY)
            os.seteuid(NOBODY)
    print(json.dumps(scenario(small, folder / "journal", Obstacle(kind, small))))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
