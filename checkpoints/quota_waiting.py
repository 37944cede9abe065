"""The file `quota-waiting`: the messages that wait in Kafka because of their topic's quota.

The process that plans ingest's batches (streaming/topic_quotas.py) replaces it about once a second
while messages wait, and once when none does any more. `status`, the metrics and the lag watch read
it. It is a hint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.json_fields import StateFile

FILE_NAME = "quota-waiting"
# Older entries are ignored: ingest has stopped planning, so the quota may not be the cause.
VALID_MS = 30_000


@dataclass(frozen=True, slots=True)
class QuotaWaiting(StateFile):
    """The messages that wait at one moment."""

    file_name: ClassVar[str] = FILE_NAME
    durable: ClassVar[bool] = False

    at_ms: int = 0  # by this host's clock
    # first offset that waits, and the log's end, of each partition with some
    waiting: Mapping[tuple[str, int], tuple[int, int]] = field(default_factory=dict)

    @property
    def by_topic(self) -> Counter[str]:
        counts = Counter[str]()
        for (topic, _), (first, end) in self.waiting.items():
            counts[topic] += end - first
        return counts

    def below(self, ends: Marks) -> Marks:
        """The ends without the messages that wait."""
        return {p: min(end, self.waiting.get(p, (end, end))[0]) for p, end in ends.items()}

    @classmethod
    def read_valid(cls, directory: Path, now_ms: int) -> QuotaWaiting:
        """Reads the file; nothing waits if it is missing, damaged or older than VALID_MS."""
        found = cls.read(directory) or cls()
        valid = all(0 <= first <= end for first, end in found.waiting.values())
        return found if valid and abs(now_ms - found.at_ms) <= VALID_MS else cls()
