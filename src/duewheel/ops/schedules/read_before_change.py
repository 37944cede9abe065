"""A change of a schedule waits until ingest has read the records before it.

A change is made from the pending copy, which must be the newest one: a change that was acknowledged
before, and that ingest has not read yet, would be undone without a word. So a change reads the ends
of the timer topic first (`log_ends`), and files in which ingest has not come so far are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import itemgetter

from duewheel import factory
from duewheel.checkpoints.state_file import State
from duewheel.config.settings import Settings
from duewheel.deadline import Deadline
from duewheel.errors import IngestBehind
from duewheel.kafka.log.connection import LogConnection
from duewheel.kafka.shard_settings import owns
from duewheel.ops.changes.acceptance import require_in_force
from duewheel.ops.connection import ANSWER_S
from duewheel.ops.files import open_files, open_state, require_recovered
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.partition_names import partition_name
from duewheel.wheel.storage.data_directory import DataDirectory

LogEnds = Mapping[TopicPartition, int]


def log_ends(settings: Settings, topics: Iterable[str]) -> LogEnds:
    """Reads where this shard's partitions of timer topics end now, open transactions included;
    empty partitions are left out.

    Raises:
        NoDataDirectory: it does not exist yet.
        RecoveryPending: as `files_to_change`, at once: its read may take many minutes.
        KafkaUnavailable: no answer in time.
        Misconfigured: one of the topics is missing, or no right to describe it.
    """
    with open_state(settings) as state:
        require_recovered(state)
    clients, ends = factory.kafka_clients(settings, "consumer"), dict[TopicPartition, int]()
    for topic in topics:
        with LogConnection(clients, [topic], partial(Deadline, ANSWER_S)) as log:
            own = [each for each in log.existing("timer topic") if owns(settings.shard, each)]
            bounds = log.bounds(partitions=own, committed=False)
        ends |= {each: end for each, (first, end) in bounds.items() if first < end}
    return ends


def has_read(settings: Settings, ends: LogEnds) -> bool:
    """Whether ingest has read all records below these ends. Raises as `open_state`."""
    with open_state(settings) as state:
        return not unread_below(state, ends)


def unread_below(state: State, ends: LogEnds) -> dict[TopicPartition, int]:
    """How many records below the ends ingest has not read; only those partitions."""
    marks = state.commit().marks
    return {
        each: end - marks.get(each, 0) for each, end in ends.items() if marks.get(each, 0) < end
    }


@contextmanager
def files_to_change(settings: Settings, ends: LogEnds) -> Iterator[DataDirectory]:
    """Opens the data directory for a change of its schedules.

    Args:
        ends: of their timer topics, by `log_ends`, when the change was requested or later.

    Raises:
        NoDataDirectory: it does not exist yet.
        RecoveryPending: a copy in it may be old, and its newer ones not read again yet.
        ConfigError: as `require_in_force`.
        IngestBehind: ingest has not read up to the ends.
    """
    with open_files(settings) as directory:
        require_recovered(directory.state)
        mirror = directory.state.mirror()
        require_in_force(settings, None if mirror is None else mirror.progress)
        if unread := unread_below(directory.state, ends):
            partition, count = max(unread.items(), key=itemgetter(1))
            raise IngestBehind(
                f"nothing was written; ingest has not read {count} records of "
                f"{partition_name(partition)} yet, which a pause, a quota or an open transaction "
                "may hold back; a change among them would be undone: try again later"
            )
        yield directory
