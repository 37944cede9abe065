"""A shard on a host whose clock is wrong."""

from __future__ import annotations

from tests.crash.fault_shard import FaultShard

from duewheel.clock import SystemClock
from duewheel.ops.shard.status import read_status


class WrongShard(FaultShard):
    """Everything but ingest sees the clock that is wrong."""

    def step_to(self, error_ms: int) -> None:
        """The host's clock is so far ahead from here on."""
        new = self.path / "clock.new"
        new.write_text(str(error_ms))
        new.replace(self.path / "clock")

    def always(self, name: str) -> list[str]:
        return [] if name == "ingest" else ["--clock-error", str(self.path / "clock")]

    def dequeue_says(self, key: str) -> int:
        found = read_status(self.settings, SystemClock()).dequeue.as_json()[key]
        return 0 if found is None else int(found)

    def wait_until_blocked(self, blocked: bool) -> None:
        self.wait(lambda: self.dequeue_says("closing_blocked") == blocked)
