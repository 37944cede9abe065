"""Progress of the most partitions that its record has room for."""

from __future__ import annotations

import numpy as np

from duewheel.checkpoints.config_epochs import Epochs
from duewheel.checkpoints.progress import PartitionProgress, Progress
from duewheel.schemas.batches import TopicPartition

NOW = 35_904_768_731
IDS = "0b1c2d3e-0000-4000-8000-{:012d}"


def partitions_of(topics: int, each: int) -> list[TopicPartition]:
    return [(f"orders.delayed.{topic:06d}", n) for topic in range(topics) for n in range(each)]


def progress_of(places: list[TopicPartition]) -> Progress:
    """Offsets that deflate as badly as any."""
    chance = np.random.default_rng(1)
    c = chance.integers(0, 2**62, (len(places), 3)).tolist()
    parts = {
        place: PartitionProgress(NOW, a, b, d, 7, a)
        for place, (a, b, d) in zip(places, c, strict=True)
    }
    epochs = Epochs.first({"precision_ms": 50, "roll_window_ms": 86_400_000})
    ids = {topic: IDS.format(n) for n, topic in enumerate(dict.fromkeys(t for t, _ in places))}
    return Progress(0, 1, "owner", 1, 1, epochs, parts, topic_ids=ids)
