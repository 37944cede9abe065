"""Reads the progress of all shards from the state topic, for commands and starts."""

from __future__ import annotations

import re
import threading

from duewheel.checkpoints.progress import Progress, record_key
from duewheel.config.settings import Settings
from duewheel.kafka import shard_settings
from duewheel.kafka.connect.clients import KafkaClients
from duewheel.kafka.progress.newest import newest_records
from duewheel.wheel.publisher_protocol import Seen

_KEY = re.compile(rb"shard-([0-9]+)")


def all_shards(
    settings: Settings, stopping: threading.Event | None = None, *, past_open: bool = False
) -> dict[int, Seen]:
    """The newest record of every shard, former ones included, by index. With `past_open` it waits
    for open transactions, which may hold newer records.

    Raises:
        RecoveryRefused: a record cannot be read.
    """
    clients = KafkaClients(settings.kafka.client_options("consumer"))
    deadline = shard_settings.publisher_limits(settings).starting(stopping)
    found = newest_records(clients, settings.state_topic, deadline, past_open=past_open)
    shards = {}
    for key, record in found.items():
        named = _KEY.fullmatch(key)
        if named and record_key(int(named[1])) == key:
            shards[int(named[1])] = Seen(Progress.decode(record.value), record.timestamp_ms)
    return dict(sorted(shards.items()))
