"""Compares this host's clock with the clock of each broker; host.py checks that NTP keeps it.

A broker stamps a record of a LogAppendTime topic at a moment between the send and the answer, which
bounds the difference. While this host is ahead of the brokers by more than
`dequeue.clock_skew_max`, no slot is closed; while it lags, timers are late.
"""

from __future__ import annotations

from kafka import KafkaProducer
from kafka.structs import TopicPartition as KafkaPartition

from duewheel.api.examination import DoctorFinding
from duewheel.config.values import as_millis
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Check, Findings
from duewheel.doctor.remedies import BROKERS_LOG, KafkaCommands
from duewheel.doctor.scratch import STAMPED, ScratchTopic
from duewheel.errors import DuewheelError
from duewheel.kafka.progress.broker_clock import NotStamped, stamp_ms

_UNKNOWN = "its clock is not compared"
_REMEDY = "run NTP on every host: chronyc tracking; timedatectl"


def examine(cluster: Cluster, scratch: ScratchTopic) -> Findings:
    """Measures each broker that leads a partition of the scratch topic; names the others."""
    with cluster.clients.opened(
        KafkaProducer, cluster.reader.deadline(), metrics_enabled=False
    ) as producer:
        leaders = {each.leader: each.number for each in scratch.partitions if each.leader >= 0}
        for broker, partition in sorted(leaders.items()):
            place = KafkaPartition(scratch.topic, partition)
            try:
                yield _measure(cluster, producer, f"broker {broker}", place)
            except DuewheelError as error:
                stamp = cluster.commands.setting(scratch.topic, STAMPED)
                otherwise = stamp if isinstance(error, NotStamped) else BROKERS_LOG
                check, found = Check("clock", f"broker {broker}"), f"{error}: {_UNKNOWN}"
                yield check.warning(found, scratch.grant(error, otherwise))
    yield from check_led(scratch, cluster.commands)


def _measure(
    cluster: Cluster, producer: KafkaProducer, broker: str, place: KafkaPartition
) -> DoctorFinding:
    clients, reader, clock = cluster.clients, cluster.reader, cluster.clock
    for _ in range(2):  # the first send also connects, which widens the bounds
        before_ms = clock.now_ms()
        at_ms = stamp_ms(clients, producer, place, reader.deadline())
        after_ms = clock.now_ms()
    bound_ms = as_millis(cluster.settings.dequeue.clock_skew_max)
    return check_skew(broker, before_ms - at_ms, after_ms - at_ms, bound_ms)


def check_led(scratch: ScratchTopic, commands: KafkaCommands) -> Findings:
    """Names the brokers that lead no partition of the scratch topic."""
    idle = sorted(set(scratch.brokers) - {each.leader for each in scratch.partitions})
    more = commands.partitions(scratch.topic, len(scratch.partitions) + len(idle))
    for broker in idle:
        found = f"it leads no partition of {scratch.topic}: {_UNKNOWN}"
        yield Check("clock", f"broker {broker}").warning(found, more)


def check_skew(broker: str, least_ms: int, most_ms: int, bound_ms: int) -> DoctorFinding:
    """Checks the bounds between which this host is ahead of a broker, in ms."""
    if least_ms > 0:
        found = f"this host is ahead by {least_ms} to {most_ms} ms"
    elif most_ms < 0:
        found = f"this host is behind by {-most_ms} to {-least_ms} ms: timers are that late"
    else:
        found = f"no difference measured, to within {max(most_ms, -least_ms)} ms"
    check = Check("clock", broker)
    if least_ms > bound_ms:
        text = f"{found}; no slot is closed beyond {bound_ms} (clock_skew_max)"
        return check.error(text, _REMEDY)
    return check.warning(found, _REMEDY) if most_ms < -bound_ms else check.ok(found)
