"""Runs the whole examination: this host, then the cluster, one part after the other.

Invariant: it writes only under the scratch names (scratch.py) and in a temporary folder (host.py),
and locks or writes nothing of a shard, which may run meanwhile or not exist yet. A part that fails
becomes one finding, and the next part follows; none does if no broker can be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from duewheel.api.examination import UNREACHABLE, Examined
from duewheel.clock import Clock
from duewheel.config.settings import Settings
from duewheel.doctor import (
    bootstrap,
    brokers,
    clocks,
    findings,
    host,
    rights,
    topics,
    trial,
)
from duewheel.doctor.cluster import Cluster
from duewheel.doctor.findings import Diagnosis
from duewheel.doctor.scratch import scratch_topic
from duewheel.errors import DuewheelError
from duewheel.kafka.connect.bootstrap import capture_errors
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.osutil.terminal import progress_bar

Parts = dict[str, Callable[[Cluster], Iterator[Diagnosis]]]
Begun = Callable[[str, int], None]  # called for each part: its name, and the number of parts


def run(settings: Settings, clock: Clock) -> Examined:
    """Examines, with a progress bar."""
    with progress_bar() as bar:
        task = bar.add_task("examining", total=None)

        def begun(part: str, parts: int) -> None:
            bar.update(task, description=f"examining: {part}", total=parts, advance=1)

        return findings.examined(list(examine(settings, clock, begun)))


def examine(settings: Settings, clock: Clock, begun: Begun) -> Iterator[Diagnosis]:
    """Runs all parts, and yields their findings; calls `begun` before each part."""
    parts: Parts = {
        "brokers": brokers.examine,
        # Before the topics: the first transaction makes Kafka create its own topics.
        "transactions and clocks": _on_scratch_topic,
        "topics": topics.examine,
        "rights": rights.examine,
    }
    steps = len(parts) + 1
    begun("host", steps)
    yield from host.examine(settings)
    call_s = settings.dequeue.call_deadline.total_seconds()
    with (
        capture_errors() as errors,
        KafkaAdmin(settings.kafka.client_options("admin"), call_s) as admin,
    ):
        for finding in bootstrap.examine(settings):
            yield finding
            if finding.code == UNREACHABLE:
                return
        try:
            admin.call("connect", lambda _: None)
        except DuewheelError as error:
            yield bootstrap.not_through(admin.settings, error, errors.text)
            return
        cluster = Cluster(settings, admin, clock)
        for name, part in parts.items():
            begun(name, steps)
            for finding in examined(name, cluster, part):
                yield finding
                if finding.code == UNREACHABLE:
                    return


def examined(
    name: str, cluster: Cluster, part: Callable[[Cluster], Iterator[Diagnosis]]
) -> Iterator[Diagnosis]:
    """Yields a part's findings; a request that fails or does not parse becomes the last one."""
    try:
        yield from part(cluster)
    except Exception as error:  # noqa: BLE001 - kafka-python on an answer that it did not expect
        reason = str(error) if isinstance(error, DuewheelError) else cluster.client.explain(error)
        remedy = "the answer is none that Apache Kafka 2.7 or newer gives: check version and rights"
        yield Diagnosis("not_examined", "error", name, reason, remedy)


def _on_scratch_topic(cluster: Cluster) -> Iterator[Diagnosis]:
    with scratch_topic(cluster) as scratch:
        if isinstance(scratch, Diagnosis):
            yield scratch
            return
        yield from trial.examine(cluster, scratch)
        yield from clocks.examine(cluster, scratch)
