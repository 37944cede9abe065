"""A timer partition that has lost its end, with cancels around the cut, on a real Kafka."""

from __future__ import annotations

import json
import re
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from tests.harness.launcher import launch, objects, run, wait_until
from tests.harness.reader import read_topic
from tests.harness.sparkless_shard import running, timer, until
from tests.harness.whole_shard import CLOCK, WholeShard

from duewheel.config.settings import load
from duewheel.dev.broker import DevBroker
from duewheel.errors import KafkaUnavailable
from duewheel.java.find import Java
from duewheel.kafka.topics.admin import KafkaAdmin

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.crash_matrix]

_BATCH = struct.Struct(">qi")  # of a batch in Kafka's log: first offset, bytes that follow
UNTIL = re.compile(
    r"1 pending timers are cancelled from behind the cut.*last one at ([\dT:.-]+Z)\)"
)


@pytest.fixture
def broker(java: Java, kafka_jars: list[Path], tmp_path: Path) -> Iterator[DevBroker]:
    """One of its own, whose files outlive a stop."""
    with DevBroker(tmp_path / "kafka", java=java) as running:
        yield running


def cut(broker: DevBroker, topic: str, end: int) -> None:
    """Take from partition 0 of a topic what lies at `end` and behind it, as when a host that had
    not written it loses its power.
    """
    broker.stop()
    data = broker.data_dir / "data"
    folder = data / f"{topic}-0"
    (log,) = folder.glob("*.log")
    found, at = log.read_bytes(), 0
    while True:
        first, size = _BATCH.unpack_from(found, at)
        if first >= end:
            break
        at += _BATCH.size + size
    log.write_bytes(found[:at])
    for derived in folder.iterdir():
        if derived.suffix in {".index", ".timeindex", ".snapshot"}:
            derived.unlink()
    (data / ".kafka_cleanshutdown").unlink()  # so that the broker looks at what is there
    broker.start()


def test_cancels_before_a_cut_hold_and_those_behind_it_are_waited_for(
    config: Path,
    broker: DevBroker,
) -> None:
    reply = f"{load(config).app.id}.replies"
    text = config.read_text()
    config.write_text(text.replace("[timer]\n", f'[timer]\nreply_topic = "{reply}"\n'))

    settings = load(config)
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        admin.init_topics(settings, partitions=2)  # as the processes want them

    def cancel(timer_id: bytes) -> Any:
        return None, None, [("TIMER_DEL_UNIQKEY", timer_id)]

    with running(config) as shard:
        timers, target, servers = shard.timers, shard.target, shard.servers

        def due(value: bytes, timer_id: bytes, after_s: int) -> Any:
            delay = ("TIMER_DELAY_SEC", b"%d" % after_s)
            return timer(shard, value, ("UNIQ_KEY", timer_id), delay)

        before = [due(b"held", b"a", 30), cancel(b"a"), due(b"cut off", b"b", 6)]
        shard.send(timers, 0, *before, due(b"as ever", b"c", 7))
        shard.send(timers, 0, cancel(b"b"))
        until(shard, lambda: len(read_topic(servers, reply)) == 2)
        assert shard.delivered() == []
        with shard.admin() as admin:  # behind both cancels, their chases, and what marks commits
            was = admin.ends([timers], committed=False)[timers, 0]
    first, _, second, *_ = read_topic(servers, timers)
    cut(broker, timers, 5)  # four records and their transaction's marker are left

    def end_offset() -> int | None:
        with shard.admin() as admin, suppress(KafkaUnavailable):  # it elects leaders
            return admin.ends([timers], committed=False)[timers, 0]
        return None

    wait_until(lambda: end_offset() == 5, "the partition ends at the cut")
    accept = ("reconfigure", "--accept-loss", f"{timers}-0")
    refused = run(config, *accept)
    assert refused.returncode == 5, refused.stderr
    said = UNTIL.search(refused.stderr)
    assert said is not None, refused.stderr
    last_ms = int(datetime.fromisoformat(said[1]).timestamp() * 1_000)
    assert 0 <= last_ms - (second.timestamp + 6_000) < shard.settings.timer.precision_ms
    dequeue = launch(config, "dequeue")
    wait_until(
        lambda: [r.value for r in read_topic(servers, target)] == [b"as ever"], "not delivered"
    )
    dequeue.stop(30)
    _, (done,) = objects(config, *accept)
    told = {"kind": "cut short", "was": was, "start": 5, "unread": 0}
    assert done["accepted"] == {f"{timers}-0": told}

    with running(config) as shard:
        # Where the lost cancel was; it is asked for again, and so it is answered again.
        shard.send(timers, 0, due(b"of the id again", b"b", 1), cancel(b"c"))
        until(shard, lambda: len(read_topic(servers, reply)) == 3)
        until(shard, lambda: CLOCK.now_ms() > first.timestamp + 31_000)
        time.sleep(0.5)
        shard.pump()
        assert shard.delivered() == [b"as ever", b"of the id again"]
        assert shard.letters() == []
        answers = [json.loads(answer.value) for answer in read_topic(servers, reply)]
    said_of = sorted((answer["id"], answer["answer"]) for answer in answers)
    assert said_of == [("a", "cancelled"), ("b", "cancelled"), ("c", "unknown")], (
        "of what left before the loss nothing counts"
    )


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("java")
def test_a_shard_goes_on_behind_a_cut(broker: DevBroker, tmp_path: Path) -> None:
    """With Spark, whose checkpoint speaks of what is lost; a timer stays cancelled."""
    (tmp_path / "shard").mkdir()
    shard = WholeShard(tmp_path / "shard", broker.bootstrap_servers, "cut")
    try:
        shard.start()
        delay, at_once = ("TIMER_DELAY_SEC", b"90"), ("TIMER_DELAY_MS", b"0")
        held = send(shard, b"held", ("UNIQ_KEY", b"a"), delay)
        cancelled = send(shard, None, ("TIMER_DEL_UNIQKEY", b"a"))
        lost = [send(shard, b"lost %d" % number, at_once) for number in range(5)]
        shard.wait(lambda: len(shard.arrivals.first) == 5)
        shard.await_taken()
        assert shard.stop() == 0
        cut(broker, shard.timers, lost[1].offset)

        shard.launch()
        refusal = f"ends at offset {lost[1].offset}, but messages up to "
        shard.wait(lambda: any(refusal in each["reason"] for each in shard.events("process died")))
        assert shard.stop() == 5
        told = shard.command(
            "reconfigure", "--accept-loss", f"{shard.timers}-0", "--output", "json"
        )
        start = {"start": lost[1].offset, "kind": "cut short"}
        assert told["accepted"][f"{shard.timers}-0"].items() >= start.items()
        shard.forget()
        shard.start()
        new = [send(shard, b"new %d" % number, at_once) for number in range(5)]
        assert new[0].offset <= lost[-1].offset, "they lie where lost ones lay"
        shard.wait(lambda: len(shard.arrivals.first) == 5)
        shard.wait(lambda: CLOCK.now_ms() > held.timestamp + 92_000)
        shard.wait(lambda: bool(shard.status()["pending"] == 0))
        assert shard.arrivals.count == {b"new %d" % number: 1 for number in range(5)}
        answers = read_topic(shard.servers, "cut.replies")
        sources = [dict(answer.headers)["TIMER_SOURCE"] for answer in answers]
        assert sources == [f"{shard.timers}-0@{cancelled.offset}".encode()]
        assert shard.stop() == 0
        shard.command("check")
    finally:
        shard.close()


def send(shard: WholeShard, value: bytes | None, *headers: tuple[str, bytes]) -> Any:
    """Into partition 0; where it lies."""
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    try:
        return producer.send(shard.timers, value, b"k", headers=[*headers], partition=0).get(30)
    finally:
        producer.close()
