"""The file `quota-waiting`: the messages that wait in Kafka because of their topic's quota.

JSON after its CRC-32: {"at_ms", "waiting": {topic: {partition: [first offset, end]}}}. The process
that plans ingest's batches (streaming/topic_quotas.py) replaces it about once a second while
messages wait, and once when none does any more. `status`, the metrics and the lag watch read it. It
is a hint, never synced.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.fs import HOST_FS, checked_line
from duewheel.checkpoints.json_fields import MISSHAPEN, integer, name, partition_number, read_json

if TYPE_CHECKING:  # it imports numpy and pyarrow
    from duewheel.schemas.batches import TopicPartition

FILE_NAME = "quota-waiting"
# Older entries are ignored: ingest has stopped planning, so the quota may not be the cause.
VALID_MS = 30_000


class QuotaWaiting(NamedTuple):
    """The messages that wait at one moment."""

    at_ms: int = 0  # by this host's clock
    # first offset that waits, and the log's end, of each partition with some
    ranges: Mapping[TopicPartition, tuple[int, int]] = MappingProxyType({})

    @property
    def by_topic(self) -> Counter[str]:
        counts = Counter[str]()
        for (topic, _), (first, end) in self.ranges.items():
            counts[topic] += end - first
        return counts

    def below(self, ends: Marks) -> dict[TopicPartition, int]:
        """The ends without the messages that wait."""
        return {p: min(end, self.ranges.get(p, (end, end))[0]) for p, end in ends.items()}

    def write(self, directory: Path) -> None:
        """Replaces the file.

        Raises:
            OSError: the disk is full, or fails; the old file stays.
        """
        waiting: dict[str, dict[int, tuple[int, int]]] = {}
        for (topic, number), offsets in self.ranges.items():
            waiting.setdefault(topic, {})[number] = offsets
        text = json.dumps({"at_ms": self.at_ms, "waiting": waiting}, separators=(",", ":"))
        HOST_FS.swap_file(directory / FILE_NAME, checked_line(text.encode()))

    @classmethod
    def read(cls, directory: Path, now_ms: int) -> QuotaWaiting:
        """Reads the file; nothing waits if it is missing, damaged or older than VALID_MS."""
        try:
            raw = read_json(directory / FILE_NAME)
            found = cls(
                integer(raw["at_ms"]),
                {
                    (name(topic), partition_number(number)): (integer(first), integer(end))
                    for topic, partitions in raw["waiting"].items()
                    for number, (first, end) in partitions.items()
                },
            )
            if not all(0 <= first <= end for first, end in found.ranges.values()):
                raise ValueError("these are no offsets of a partition")
        except (FileNotFoundError, *MISSHAPEN):
            return cls()
        return found if abs(now_ms - found.at_ms) <= VALID_MS else cls()
