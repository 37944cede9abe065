"""The timer topics that a shard has taken messages from, by its files or by its progress alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from duewheel.checkpoints.commit_and_close_pages import NO_COMMIT
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.state_file import State
from duewheel.errors import CorruptFile
from duewheel.schemas.batches import is_retired


@dataclass(frozen=True, slots=True)
class TakenTopics:
    """The timer topics that a shard has taken messages from."""

    # The number of partitions by topic, of deleted and recreated topics, too: these have other
    # names than the topics in Kafka (schemas/batches.py).
    partitions: Mapping[str, int] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)  # Kafka's ids of them at that time
    only: bool = False  # topics that match and are not among them are not read

    @property
    def topics(self) -> set[str]:
        """Their names in Kafka."""
        return {topic for topic in self.partitions if not is_retired(topic)}

    @classmethod
    def of_progress(cls, progress: Progress) -> TakenTopics:
        """Takes them from the progress alone."""
        return cls(Counter(topic for topic, _ in progress.partitions), progress.topic_ids)

    @classmethod
    def of(cls, state: State) -> TakenTopics:
        """Takes them from the data directory: its marks, and its copy of the progress."""
        mirror = state.mirror()
        progress = None if mirror is None else mirror.progress
        try:
            commit = state.commit()
        except CorruptFile:  # a recovery follows
            commit = NO_COMMIT
        partitions = {*commit.marks, *(progress.partitions if progress else ())}
        ids = {**(progress.topic_ids if progress else {}), **commit.topic_ids}
        return cls(Counter(topic for topic, _ in partitions), ids, state.standby)
