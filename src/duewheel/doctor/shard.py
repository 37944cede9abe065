"""Checks the shard: its timer partitions, the room for them in its records, its progress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from duewheel import factory
from duewheel.api.examination import Severity
from duewheel.checkpoints.partition_limit import PARTITIONS_MAX, ROOM_BYTES, beyond_room
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Diagnosis, diagnose
from duewheel.errors import DuewheelError
from duewheel.kafka import shard_settings
from duewheel.kafka.progress.all_shards import ShardRecord, all_shards, require_as_many
from duewheel.kafka.topics.description import Topic


def examine(cluster: Cluster, timers: Sequence[Topic], *, is_whole: bool) -> Iterator[Diagnosis]:
    """Checks the shard in the timer topics that exist; `is_whole`: no topic of duewheel's is
    missing.
    """
    if timers:
        yield _partitions(cluster, timers)
        yield from room(cluster, timers)
    if is_whole:
        yield from _progress(cluster)


def _subject(cluster: Cluster) -> str:
    shard = cluster.settings.shard
    return f"shard {shard.index} of {shard.count}"


def _partitions(cluster: Cluster, timers: Sequence[Topic]) -> Diagnosis:
    """Checks that this shard has timer partitions."""
    code, subject = "shard_partitions", _subject(cluster)
    known = {(topic.name, number): 0 for topic in timers for number in range(len(topic.partitions))}
    try:
        mine = shard_settings.own(cluster.settings, known)
    except DuewheelError as error:
        remedy = "kafka-topics.sh --bootstrap-server {} --alter --topic {} --partitions {}"
        remedy = remedy.format(cluster.address, timers[0].name, cluster.settings.shard.count)
        return Diagnosis(code, "error", subject, str(error), remedy)
    text = f"it has {len(mine)} of {len(known)} timer partitions"
    return Diagnosis(code, "ok", subject, text)


def room(
    cluster: Cluster, timers: Sequence[Topic], room_bytes: int = ROOM_BYTES
) -> Iterator[Diagnosis]:
    """Checks that the shard's record of progress has room for the timer topics."""
    listed = cluster.settings.timer.topics
    mine = shard_settings.own_counts(cluster.settings, {t.name: len(t.partitions) for t in timers})
    order = sorted(mine, key=lambda name: (name not in listed, name))
    beyond = beyond_room(mine, order, room_bytes)
    for topic, why in beyond.items():
        severity: Severity = "error" if topic in listed else "warning"
        yield Diagnosis("shard_room", severity, f"topic {topic}", why, "duewheel reshard")
    if not beyond:
        text = f"{sum(mine.values())} partitions, and there is room for some {PARTITIONS_MAX}"
        yield Diagnosis("shard_room", "ok", _subject(cluster), text)


def _progress(cluster: Cluster) -> Iterator[Diagnosis]:
    """Reports the age of the shard's newest committed progress, and whether it has a key."""
    code, subject = "progress", _subject(cluster)
    try:
        shards: Mapping[int, ShardRecord] = all_shards(cluster.settings)
        require_as_many(cluster.settings, shards)
        if newest := shards.get(cluster.settings.shard.index):
            config = factory.dequeue_config(cluster.settings)
            config.require_fits(newest.progress, cluster.settings.wheel)
    except DuewheelError as error:
        yield Diagnosis(code, "error", subject, str(error), "duewheel recover --dry-run")
        return
    if newest is None:
        text = "the shard has not begun: Kafka has no progress of it"
        yield Diagnosis(code, "warning", subject, text, "duewheel init")
        return
    age_s = (cluster.clock.now_ms() - newest.at_ms) / 1000
    yield Diagnosis(code, "ok", subject, f"its newest record is {age_s:.1f} s old")
    yield copy_key(subject, newest.progress.epochs.newest.copy_keys)


def copy_key(subject: str, keys: Sequence[str]) -> Diagnosis:
    """Checks that copies carry a MAC: a version without them may have begun the shard."""
    return diagnose(
        "copy_key",
        subject,
        "copies carry a MAC" if keys else "copies have no MAC, so producers can forge them",
        warning=not keys,
        remedy="stop the shard, then `duewheel reconfigure --rotate-key`",
    )
