"""`duewheel reconfigure`: changes the settings that decide a row's slot, on a shard with progress.

The steps are those of wheel/reconfiguring.py. A dry run takes no lock and no transactional id: it
says what would be done, as far as that can be seen from beside.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from duewheel import wiring
from duewheel.config import Settings
from duewheel.kafka_admin import KafkaAdmin
from duewheel.processes import stop_signals
from duewheel.wheel.data_directory import DataDirectory, Role, hold_role
from duewheel.wheel.kafka_publisher import KafkaPublisher
from duewheel.wheel.reconfiguring import Plan, plan, take
from duewheel.wheel.recovering import OffsetsAt
from duewheel.wheel.surveying import survey


def reconfigure(settings: Settings, *, dry_run: bool) -> dict[str, Any]:
    """Make the settings of `settings` those of the shard, for rows that nobody has judged yet.

    Returns:
        dry_run; changes: {setting: {"old", "new"}}, empty if they are those of the shard already;
        since: {"topic-partition": first offset of the new epoch}; epochs: how many there are then;
        dropped: how many old ones went.

    Raises:
        Locked: a process of the shard runs.
        ConfigError: a setting cannot be changed so, or the directory has another geometry.
        RecoveryRefused: the directory is not the owner's, or has to recover first.
        KafkaUnavailable: no answer in time.
    """
    with ExitStack() as stack:
        clock = wiring.StoppableClock(stack.enter_context(stop_signals()))
        publisher = wiring.publisher(settings, clock)
        stack.callback(publisher.close)
        admin = stack.enter_context(KafkaAdmin(settings.kafka.client_options("admin")))
        planned = _planned(settings, publisher, admin)
        if planned.changes and not dry_run:
            directory = DataDirectory.start(settings.storage.data_dir, settings.wheel, Role.DEQUEUE)
            stack.callback(directory.stop)
            # Let go before the directory stops: whoever stops last declares a clean stop.
            stack.callback(hold_role(settings.storage.data_dir, Role.INGEST).close)
            config = wiring.dequeue_config(settings)
            planned = take(directory, publisher, config, _offsets_at(planned, admin))
    return _told(planned, dry_run=dry_run)


def _planned(settings: Settings, publisher: KafkaPublisher, admin: KafkaAdmin) -> Plan:
    """Seen from beside: nothing is refused that would need a lock to be seen."""
    found = publisher.peek()
    local = survey(settings.storage.data_dir, settings.wheel)
    config = wiring.dequeue_config(settings)
    topics = sorted({topic for topic, _ in found.partitions}) if found else []
    return plan(found, local, settings.wheel, config, lambda ms: admin.offsets_at(topics, ms))


def _offsets_at(planned: Plan, admin: KafkaAdmin) -> OffsetsAt:
    topics = sorted({topic for topic, _ in planned.found.partitions})
    return lambda ms: admin.offsets_at(topics, ms)


def _told(planned: Plan, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "changes": {
            key: {"old": old, "new": new} for key, (old, new) in sorted(planned.changes.items())
        },
        "since": {f"{topic}-{number}": o for (topic, number), o in sorted(planned.since.items())},
        "epochs": len(planned.progress.epochs),
        "dropped": planned.dropped,
    }
