"""Checks the shard: its timer partitions, the room for them in its records, its progress."""

from __future__ import annotations

from collections.abc import Sequence

from duewheel import factory
from duewheel.api.examination import DoctorFinding, Severity
from duewheel.checkpoints.ownership import require_as_many
from duewheel.checkpoints.partition_limit import PARTITIONS_MAX, ROOM_BYTES, beyond_room
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Check, Findings
from duewheel.errors import DuewheelError, RecoveryRefused
from duewheel.kafka import shard_settings
from duewheel.kafka.progress.all_shards import all_shards
from duewheel.kafka.topics.description import Topic


def examine(cluster: Cluster) -> Findings:
    """Checks the shard in the timer topics that exist; its progress if the state topic does."""
    topics = cluster.topics
    timers = [topics[name] for name in cluster.timer_topics if topics[name].exists]
    if timers:
        yield _check_partitions(cluster, timers)
        yield from check_room(cluster, timers)
    if topics[cluster.settings.state_topic].exists:
        yield from _check_progress(cluster)


def _subject(cluster: Cluster) -> str:
    shard = cluster.settings.shard
    return f"shard {shard.index} of {shard.count}"


def _check_partitions(cluster: Cluster, timers: Sequence[Topic]) -> DoctorFinding:
    """Checks that this shard has timer partitions."""
    check = Check("shard_partitions", _subject(cluster))
    known = {(topic.name, number): 0 for topic in timers for number in range(len(topic.partitions))}
    try:
        mine = shard_settings.own(cluster.settings, known)
    except DuewheelError as error:
        more = cluster.commands.partitions(timers[0].name, cluster.settings.shard.count)
        return check.error(str(error), more)
    return check.ok(f"it has {len(mine)} of {len(known)} timer partitions")


def check_room(cluster: Cluster, timers: Sequence[Topic], room_bytes: int = ROOM_BYTES) -> Findings:
    """Checks that the shard's record of progress has room for the timer topics."""
    listed = cluster.settings.timer.topics
    mine = shard_settings.own_counts(cluster.settings, {t.name: len(t.partitions) for t in timers})
    remedy = f"duewheel reshard --to {cluster.settings.shard.count + 1}, or more"
    beyond = beyond_room(mine, room_bytes=room_bytes, listed=listed)
    for topic, why in beyond.items():
        severity: Severity = "error" if topic in listed else "warning"
        yield Check("shard_room", f"topic {topic}").of(severity, why, remedy)
    if not beyond:
        text = f"{sum(mine.values())} partitions, and there is room for some {PARTITIONS_MAX}"
        yield Check("shard_room", _subject(cluster)).ok(text)


def _check_progress(cluster: Cluster) -> Findings:
    """Reports the age of the shard's newest committed progress, and whether it has a key."""
    check = Check("progress", _subject(cluster))
    try:
        shards = all_shards(cluster.settings)
        count = cluster.settings.shard.count
        require_as_many((each.progress for each in shards.values()), count)
        if newest := shards.get(cluster.settings.shard.index):
            config = factory.dequeue_config(cluster.settings)
            config.require_fits(newest.progress, cluster.settings.wheel)
    except RecoveryRefused as refusal:
        yield check.error(str(refusal), "run the command that it names, or restore the settings")
        return
    if newest is None:
        text = "the shard has not begun: Kafka has no progress of it"
        yield check.warning(text, "duewheel init")
        return
    # The brokers' own clock takes a write: the findings `clock` have the difference.
    age_s = (cluster.clock.now_ms() - newest.written_ms) / 1000
    text = f"its newest record has a broker's stamp, {age_s:.1f} s old by this host's clock"
    yield check.ok(text)
    yield check_copy_key(check.subject, newest.progress.epochs.newest.copy_keys)


def check_copy_key(subject: str, keys: Sequence[str]) -> DoctorFinding:
    """Checks that copies carry a MAC: a version without them may have begun the shard."""
    check = Check("copy_key", subject)
    if keys:
        return check.ok("copies carry a MAC")
    return check.warning(
        "copies have no MAC, so producers can forge them",
        "stop the shard, then `duewheel reconfigure --rotate-key`",
    )
