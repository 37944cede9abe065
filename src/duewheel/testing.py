"""Stand-ins that ship with the package: a clock to turn by hand, a publisher that remembers."""

from __future__ import annotations

from collections.abc import Callable

from duewheel.checkpoints.progress import Progress
from duewheel.errors import PublishDoubt
from duewheel.schemas.timers import Deliveries


class ManualClock:
    """A clock that moves only when told to. Not thread-safe."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def sleep(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1000)

    def set(self, now_ms: int) -> None:
        """Jump to `now_ms`, forward or back."""
        self._now_ms = now_ms


class RecordingPublisher:
    """Keeps committed transactions in memory, as a state topic and real topics would.

    Attributes:
        committed: every committed transaction: its deliveries and its progress.
        fate: asked before each transaction: "commit", "lose" (PublishDoubt, nothing committed) or
            "doubt" (PublishDoubt, committed).
    """

    def __init__(self, fate: Callable[[], str] = lambda: "commit") -> None:
        self.committed: list[tuple[Deliveries | None, Progress]] = []
        self.fate = fate

    def start(self) -> Progress | None:
        return self.committed[-1][1] if self.committed else None

    def publish(self, deliveries: Deliveries | None, progress: Progress) -> None:
        fate = self.fate()
        if fate != "lose":
            # Encoded and decoded: what is read back must be what was written.
            self.committed.append((deliveries, Progress.decode(progress.encode())))
        if fate != "commit":
            raise PublishDoubt(fate)

    def close(self) -> None:
        pass

    def sources(self) -> list[bytes]:
        """Sources "topic-partition@offset" of all deliveries, in publishing order."""
        return [
            source
            for deliveries, _ in self.committed
            if deliveries is not None
            for source in deliveries.source.to_pylist()
        ]
