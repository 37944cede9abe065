"""Checks recurring schedules: that a process writes their firings, and that each is in effect.

Settings and rights of their topic are checked with those of the others (topics.py, rights.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Diagnosis, diagnose
from duewheel.kafka.connect.clients import ClientSettings
from duewheel.kafka.progress.state_topic import place_of
from duewheel.kafka.topic_follower import KeyedRecord, TopicFollower
from duewheel.recurring.records import SchedulerBeat, read_heartbeat, read_table
from duewheel.recurring.scheduler import Table

_SUBJECT = "recurring schedules"


def examine(cluster: Cluster) -> Iterator[Diagnosis]:
    """Reads the schedules topic, where there is one."""
    settings = cluster.settings
    topic = settings.timer.schedules_topic
    if topic is None or not cluster.admin.topics([topic])[topic].exists:
        return
    records = {record.key: record for record in _records(cluster, topic)}
    table = read_table(records.values())
    heartbeat = read_heartbeat(settings, records.values())
    yield scheduler(table, heartbeat, cluster.clock.now_ms())
    yield in_effect(table)


def scheduler(table: Table, heartbeat: SchedulerBeat, now_ms: int) -> Diagnosis:
    """Checks that an instance of `duewheel recur` is alive."""
    active = sum(each is not None and not each.paused for each in table.schedules.values())
    state, text = heartbeat.state(now_ms), f"{active} active schedules"
    if heartbeat.at_ms is None:
        found = f"no scheduler runs; {text}"
    else:
        found = f"the newest heartbeat is {(now_ms - heartbeat.at_ms) / 1000:.1f} s old; {text}"
    return diagnose(
        "scheduler",
        _SUBJECT,
        found,
        error=state != "running" and active > 0,
        warning=state == "silent",
        remedy="start `duewheel recur`; if it runs, its log says what it waits for",
    )


def in_effect(table: Table) -> Diagnosis:
    """Checks that each record can be read, and that the scheduler has applied each change."""
    code, positions = "schedules_in_effect", table.positions
    unreadable = sorted(name for name, each in table.schedules.items() if each is None)
    if unreadable:
        text = f"another version has written {', '.join(unreadable)}: these do not fire"
        return Diagnosis(code, "error", _SUBJECT, text, "`duewheel schedule set` them again")
    waiting = sorted(
        name
        for name, each in table.schedules.items()
        if each and (name not in positions or positions[name].revision != each.revision)
    )
    waiting += sorted(positions.keys() - table.schedules.keys())
    return diagnose(
        code,
        _SUBJECT,
        f"changes of {', '.join(waiting)} are not in effect" if waiting else "all are in effect",
        warning=bool(waiting),
        remedy="a change awaits `duewheel recur`, and replies to cancels by ingest and dequeue",
    )


def _records(cluster: Cluster, topic: str) -> list[KeyedRecord]:
    client = ClientSettings(cluster.settings.kafka.client_options("consumer"))
    with closing(TopicFollower(client, place_of(topic, 0))) as follower:
        return follower.read_to_end(cluster.admin.deadline())
