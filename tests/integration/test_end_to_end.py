"""`duewheel run` end to end: real Kafka and Spark, killed processes, an independent consumer."""

from __future__ import annotations

import os
import resource
import signal
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource
from tests.harness.launcher import DEADLINE_S
from tests.harness.random_timers import PARTITIONS, Headers
from tests.harness.shared_broker import SharedBroker
from tests.harness.timelines import KIND
from tests.harness.topics import alter, make_timer_topic
from tests.harness.whole_shard import (
    CLOCK,
    WholeShard,
    judge,
    judge_levels,
    judge_receipts,
    schedule,
)

from duewheel.checkpoints.file_lock import ENGINE_LOCK, lock_is_held
from duewheel.checkpoints.state_file import State
from duewheel.client import Answer, Cancel, DelayProducer, Rescheduled, Timer
from duewheel.errors import Locked
from duewheel.wheel.append.far_hours import FAR_HOURS_MAX
from duewheel.wheel.slots import HOUR_MS
from duewheel.wheel.storage.full_check import check

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("java"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, broker: SharedBroker) -> Iterator[WholeShard]:
    """One that runs for all tests here, in their order."""
    path = tmp_path_factory.mktemp("served")
    shard = WholeShard(path, broker.bootstrap_servers, f"served-{uuid.uuid4().hex[:8]}")
    try:
        shard.start()
        yield shard
    finally:
        shard.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [3_000, pytest.param(10_000, marks=pytest.mark.crash_matrix)])
def test_thousands_of_timers_with_both_processes_killed(served: WholeShard, count: int) -> None:
    """Delays of 0 to 10 s; ingest and dequeue are killed while timers come in and go out. Those of
    a delay level arrive in the order in which they were written.
    """
    shard = served
    shard.forget()
    shard.wait(lambda: bool(shard.status()["pending"] == 0))  # the first one is counted, too
    before = shard.status()["delivered"]
    known = schedule(shard, count, seed=1)
    shard.kill("ingest")
    known |= schedule(shard, count, seed=2, prefix=b"later")
    shard.kill("dequeue")
    shard.wait(lambda: len(shard.arrivals.first) >= len(known))
    time.sleep(2)  # a double would come with the next chunk
    judge(shard, known)
    judge_receipts(shard, known)
    assert judge_levels(shard, known) > count // 6
    status = shard.status()
    assert (status["pending"], status["delivered"]) == (0, before + len(known))
    report = check(shard.settings.storage.data_dir, shard.settings.wheel)
    assert report.ok, report.findings
    assert report.records == before + len(known)


@pytest.mark.timeout(600)
def test_what_is_enqueued_fires_on_time_while_ingest_is_away(served: WholeShard) -> None:
    """Ingest stands still (SIGSTOP) from before the due time until after it."""
    shard = served
    shard.forget()
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    due_ms = CLOCK.now_ms() + 8_000
    instant: Headers = [("TIMER_DELIVER_MS", b"%d" % due_ms)]
    for number in range(100):
        producer.send(shard.timers, b"enqueued %d" % number, headers=instant)
    producer.flush(timeout=30)
    shard.wait(lambda: bool(shard.status()["pending"] == 100))
    ingest = shard.status()["ingest"]["pid"]
    stop_outside_its_lock(shard, ingest)
    try:
        producer.send(shard.timers, b"not enqueued", headers=instant).get(timeout=30)
        producer.close()
        shard.wait(lambda: len(shard.arrivals.first) >= 100)
        assert b"not enqueued" not in shard.arrivals.first
    finally:
        os.kill(ingest, signal.SIGCONT)
    shard.wait(lambda: b"not enqueued" in shard.arrivals.first)
    assert set(shard.arrivals.count.values()) == {1}
    assert all(seen_ms >= due_ms for *_, seen_ms in shard.arrivals.first.values())


def stop_outside_its_lock(shard: WholeShard, pid: int) -> None:
    """A process that stands still with engine.lock is killed after five seconds."""
    os.kill(pid, signal.SIGSTOP)
    while lock_is_held(shard.settings.storage.data_dir / ENGINE_LOCK):
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)
        os.kill(pid, signal.SIGSTOP)


@pytest.mark.timeout(600)
def test_stop_and_start_again(served: WholeShard) -> None:
    """A clean stop within its time, and what fell due meanwhile goes out at the next start."""
    shard = served
    shard.forget()
    known = schedule(shard, 500, seed=3)
    shard.wait(lambda: bool(shard.arrivals.first))
    shard.await_taken()
    assert shard.stop() == 0
    assert shard.status()["ingest"]["state"] == shard.status()["dequeue"]["state"] == "stopped"
    known |= schedule(shard, 500, seed=4, prefix=b"while stopped")
    time.sleep(5)
    shard.start()
    shard.wait(lambda: len(shard.arrivals.first) >= len(known))
    judge(shard, known)
    shard.command("check")


@pytest.mark.timeout(600)
def test_a_host_without_room_for_another_process(served: WholeShard) -> None:
    """Of `run`, which can start none until it has."""
    shard = served
    before = resource.prlimit(shard.supervisor_pid, resource.RLIMIT_NOFILE)
    resource.prlimit(shard.supervisor_pid, resource.RLIMIT_NOFILE, (3, before[1]))
    shard.kill("dequeue")
    shard.wait(lambda: len(shard.events("process cannot be started")) > 1)
    assert "Too many open files" in shard.status()["run"]["dequeue"]["last_reason"]
    resource.prlimit(shard.supervisor_pid, resource.RLIMIT_NOFILE, before)
    shard.forget()
    shard.deliver_one(b"after the shortage")


@pytest.mark.timeout(600)
def test_one_run_works_in_a_directory(served: WholeShard) -> None:
    """A second one is refused, and one that was killed is followed by another one."""
    shard = served
    before = shard.status()["run"]["dequeue"]["restarts"]
    shard.command("run", code=Locked.exit_code)
    assert shard.status()["run"]["dequeue"]["restarts"] == before
    os.kill(shard.supervisor_pid, signal.SIGKILL)
    shard.start()


@pytest.mark.timeout(600)
def test_pause_and_resume(served: WholeShard) -> None:
    """A pause outlives a kill; what comes meanwhile waits in the wheel, or in Kafka."""
    shard = served
    shard.forget()
    shard.command("pause", "dequeue")
    shard.wait(lambda: bool(shard.status()["dequeue"]["state"] == "paused"))
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    at_once: Headers = [("TIMER_DELAY_MS", b"0")]
    producer.send(shard.timers, b"in the wheel", headers=at_once).get(timeout=30)
    shard.wait(lambda: bool(shard.status()["pending"] == 1))
    shard.command("pause", "ingest")
    producer.send(shard.timers, b"in Kafka", headers=at_once).get(timeout=30)
    producer.close()
    shard.wait(lambda: shard.scrape("ingest")["paused_waiting"] == 1)
    shard.kill("dequeue")
    killed = shard.status()["dequeue"]["pid"]
    shard.wait(lambda: shard.status()["dequeue"]["pid"] not in {None, killed})
    shard.wait(lambda: bool(shard.status()["dequeue"]["state"] == "paused"))
    assert shard.status()["ingest"]["state"] == "paused"
    shard.wait(lambda: bool(shard.status()["ingest"]["lag"] == 1))
    assert shard.scrape("dequeue")["pending"] == 1
    shard.command("resume", "dequeue")
    shard.wait(lambda: b"in the wheel" in shard.arrivals.first)
    assert b"in Kafka" not in shard.arrivals.first
    shard.command("resume", "ingest")
    shard.wait(lambda: b"in Kafka" in shard.arrivals.first)
    assert set(shard.arrivals.count.values()) == {1}


def schedule_as_etf1_does(shard: WholeShard, topic: str) -> int:
    """Three schedules, of which one replaces another and one is cancelled; when all are due."""
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    now_s = CLOCK.now_ms() // 1_000

    def schedule(key: bytes, value: bytes | None, after_s: int) -> None:
        headers: Headers = [
            ("scheduler-epoch", b"%d" % (now_s + after_s)),
            ("scheduler-target-topic", shard.target.encode()),
            ("scheduler-target-key", b"vid1"),
            ("customer-header", b"dummy"),
        ]
        producer.send(topic, value, key, headers)

    schedule(b"vid1-online", b"replaced", 6)
    schedule(b"vid2-online", b"cancelled", 6)
    schedule(b"vid1-online", b"video 1", 1)
    schedule(b"vid2-online", None, 0)
    producer.close()
    shard.wait(lambda: b"video 1" in shard.arrivals.first)
    key, headers, *_ = shard.arrivals.first[b"video 1"]
    assert (key, headers[0]) == (b"vid1", ("customer-header", b"dummy"))
    added = dict(headers[1:4])
    assert added.keys() == {"scheduler-timestamp", "scheduler-key", "scheduler-topic"}
    assert now_s - 5 <= int(added["scheduler-timestamp"]) <= CLOCK.now_ms() // 1_000 + 5
    assert (added["scheduler-key"], added["scheduler-topic"]) == (b"vid1-online", topic.encode())
    return (now_s + 6) * 1_000


@pytest.mark.timeout(600)
def test_topics_that_come_later_and_go(served: WholeShard) -> None:
    """One is right, and taken from its beginning, as its own table says; one is not, until it is
    mended; one goes.
    """
    shard = served
    shard.forget()
    right, wrong = (f"{shard.settings.app.id}.later.{end}" for end in ("right", "wrong"))
    ingest = shard.status()["ingest"]["pid"]
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    at_once: Headers = [("TIMER_DELAY_MS", b"0"), ("REAL_TOPIC", shard.target.encode())]
    make_timer_topic(shard.servers, wrong, retention_ms="3600000")
    make_timer_topic(shard.servers, right)
    for topic in (wrong, right):
        producer.send(topic, topic.encode(), headers=at_once).get(timeout=30)
    shard.wait(lambda: right.encode() in shard.arrivals.first)
    known = shard.status()["timer_topics"]
    assert known["read"] == sorted([shard.timers, right])
    assert known["left_out"].keys() == {wrong}
    assert "retention.ms is 3600000, wanted is >= " in known["left_out"][wrong]
    assert wrong.encode() not in shard.arrivals.first
    shard.wait(lambda: shard.scrape("ingest")["timer_topics_left_out"] == 1)
    told = shard.events("a timer topic is not read")[0]
    assert (told["level"], told["topic"]) == ("error", wrong)
    # As all names that match, it is no target.
    loops: Headers = [("TIMER_DELAY_MS", b"0"), ("REAL_TOPIC", wrong.encode())]
    producer.send(shard.timers, b"loops", headers=loops).get(timeout=30)
    shard.wait(lambda: b"loops" in shard.arrivals.first)
    assert ("TIMER_ERROR_CODE", b"forbidden_target") in shard.arrivals.first[b"loops"][1]
    due_ms = schedule_as_etf1_does(shard, right)

    admin = KafkaAdminClient(bootstrap_servers=shard.servers)
    admin.alter_configs([ConfigResource("TOPIC", wrong, {"retention.ms": "-1"})])
    shard.wait(lambda: wrong.encode() in shard.arrivals.first)
    assert shard.status()["timer_topics"]["left_out"] == {}
    shard.wait(lambda: CLOCK.now_ms() > due_ms + 1_000 and shard.status()["pending"] == 0)

    admin.delete_topics([right])
    admin.close()
    shard.wait(lambda: "was deleted" in shard.status()["timer_topics"]["left_out"].get(right, ""))
    for topic in (wrong, shard.timers):
        producer.send(topic, b"after %s" % topic.encode(), headers=at_once).get(timeout=30)
    producer.close()
    shard.wait(lambda: len(shard.arrivals.first) == 6)
    assert set(shard.arrivals.count.values()) == {1}
    assert shard.arrivals.first.keys().isdisjoint({b"replaced", b"cancelled"})
    assert shard.status()["ingest"]["pid"] == ingest
    state = State.open(shard.settings.storage.data_dir)
    assert state.commit().topic_ids.keys() == {shard.timers, right, wrong}
    state.release()


@pytest.mark.crash_matrix
@pytest.mark.timeout(600)
def test_a_topic_over_its_quota_waits_and_delays_no_other(served: WholeShard) -> None:
    shard, count = served, 600
    shard.forget()
    _, (topic, quota) = shard.settings.by_topic("quota_per_second").items()
    make_timer_topic(shard.servers, topic)
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    at_once: Headers = [("TIMER_DELAY_MS", b"0"), ("REAL_TOPIC", shard.target.encode())]
    for number in range(count):
        producer.send(topic, b"over %d" % number, headers=at_once)
    producer.flush(timeout=30)
    shard.wait(lambda: shard.status()["quotas"][topic]["waiting"] > quota)
    shard.deliver_one(b"of another topic")
    assert shard.status()["not_ready"] == {}
    waiting = [shard.scrape(name) for name in ("ingest", "dequeue")]
    assert all(each[f"quota_waiting:{topic}"] > 0 for each in waiting), waiting
    shard.wait(lambda: len(shard.arrivals.first) == count + 1)
    seen_ms = {value: at_ms for value, (*_, at_ms) in shard.arrivals.first.items()}
    other_ms = seen_ms.pop(b"of another topic")
    assert other_ms < max(seen_ms.values())
    # A batch has what the rate gives since the batch before: half of them come at the rate alone.
    assert max(seen_ms.values()) - min(seen_ms.values()) > count / quota / 2 * 1_000
    shard.wait(lambda: shard.status()["quotas"][topic]["waiting"] == 0)
    assert set(shard.arrivals.count.values()) == {1}
    # 15 large messages come at once, as they are fewer than the quota. Their bytes count, too, and
    # for 40 s no other is taken: long enough to see the next one wait, also on a slow host.
    with closing(KafkaProducer(bootstrap_servers=shard.servers, compression_type="gzip")) as large:
        for number in range(15):
            large.send(topic, b"%d" % number + bytes(900_000), headers=at_once)
        large.flush(timeout=30)
    shard.await_taken()
    producer.send(topic, b"one more", headers=at_once)
    producer.close()
    shard.wait(lambda: shard.status()["quotas"][topic]["waiting"] == 1)
    shard.wait(lambda: len(shard.arrivals.first) == count + 17)
    assert set(shard.arrivals.count.values()) == {1}


def grown(before: Counter[str], after: dict[str, float]) -> dict[str, float]:
    """By how much each metric has risen; one that was not there counts from 0."""
    return {name: value - before[name] for name, value in after.items()}


@pytest.mark.timeout(600)
def test_metrics_are_those_of_what_was_sent(served: WholeShard) -> None:
    """Both endpoints: accepted, rejected by reason, delivered, dead letters, lateness, pending."""
    shard = served
    shard.forget()
    before = {name: Counter(shard.scrape(name)) for name in ("ingest", "dequeue")}
    known = schedule(shard, 1_000, seed=6)
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    nowhere: Headers = [("DELAY", b"1"), ("REAL_TOPIC", shard.target.encode() + b".none")]
    later: list[Headers] = [[("TIMER_DELAY_SEC", b"1800")]] * 2 + [[("DELAY", b"16")]]
    for number in range(3):
        producer.send(shard.timers, b"nowhere %d" % number, headers=nowhere)
        producer.send(shard.timers, b"later %d" % number, headers=later[number])
    producer.close()
    shard.wait(lambda: len(shard.arrivals.first) >= len(known) + 3)
    shard.await_taken()
    rejected = Counter(timer.code.decode() for timer, *_ in known.values() if not timer.due_ms)
    accepted = len(known) - rejected.total() + 6
    taken = shard.scrape("ingest")
    counted = grown(before["ingest"], taken)
    assert {code: counted[f"rejected_total:{code}:{shard.timers}"] for code in rejected} == rejected
    assert (counted["timers_accepted_total"], counted["replayed_total"]) == (accepted, 0)
    assert taken["ingest_lag_messages"] == taken["ingest_lag_seconds"] == 0
    assert not any(name.startswith("rows_lost_total:") for name in taken)
    assert taken["spark_batches_total"] > 0
    assert taken["spark_batch_duration_seconds:triggerExecution"] > 0
    assert taken["checkpoint_age_seconds"] >= 0
    out = shard.scrape("dequeue")
    counted = grown(before["dequeue"], out)
    arrived = accepted - 3 - 3  # less those without a topic and those due later
    of_topic = counted[f"delivery_lateness_seconds_count:{shard.timers}"]
    assert counted["delivered_total"] == of_topic == arrived
    levels = [dict(timer.request).get("DELAY") for timer, *_ in known.values() if timer.due_ms]
    of_levels = {level: levels.count(b"%d" % level) for level in (1, 2, 3)}
    assert {n: counted[f"delivered_by_level_total:{n}"] for n in of_levels} == of_levels
    assert counted[f"dead_letters_total:rejected:{shard.timers}"] == rejected.total()
    assert counted[f"dead_letters_total:unknown_target_topic:{shard.timers}"] == 3
    assert counted[f"delivery_lateness_seconds_sum:{shard.timers}"] > 0
    assert out["transactions_total"] == out["commit_duration_seconds_count"] > 0
    assert (out["pending"], out["pending_due_within:900"], out["doubts_total"]) == (3, 0, 0)
    shard.kill("dequeue")
    killed = shard.status()["dequeue"]["pid"]
    shard.wait(lambda: shard.status()["dequeue"]["pid"] not in {None, killed})
    shard.wait(lambda: bool(shard.status()["dequeue"]["state"] == "running"))
    again = shard.scrape("dequeue")
    assert (again["delivered_total"], again["pending"]) == (0, 3)
    assert again[f"pending_by_topic:{shard.target}"] == again["pending_due_within:3600"] == 3
    assert (again["pending_by_level:16"], again["pending_rolls"]) == (1, 0)
    stats = shard.command("stats", "--output", "json")
    assert (stats["pending"], stats["by_topic"]) == (3, {shard.target: 3})
    assert (stats["by_level"], stats["rolls"]["pending"]) == ({"16": 1}, 0)
    of_level = shard.command("list", "--level", "16", "--output", "json")
    assert (of_level["level"], of_level["value_bytes"]) == (16, len(b"later 2"))
    listed = shard.command("list", "--target", shard.target, "--limit", "1", "--output", "json")
    assert listed["due_ms"] > CLOCK.now_ms()
    assert (listed["topic"], listed["value_bytes"]) == (shard.target, len(b"later 0"))


@pytest.mark.timeout(600)
def test_what_is_cancelled_from_outside(served: WholeShard) -> None:
    """By command and client; by handle, key and partition; answered truly; rescheduled. It
    leaves cancelled timers that are due in an hour.
    """
    shard = served
    shard.forget()
    replies = shard.settings.timer.reply_topic
    with DelayProducer(
        shard.timers, bootstrap_servers=shard.servers, reply_topic=replies
    ) as client:

        def timer(value: bytes, **asked: Any) -> Timer:
            return client.schedule(shard.target, value, **asked).result(30)

        def told(asked: Future[Cancel] | Future[Rescheduled]) -> Answer:
            return asked.result(30).answer(DEADLINE_S)

        gone = timer(b"gone", key=b"k", delay="0s", id="gone")
        moved = timer(b"moved", key=b"k", delay="1h", id="moved")
        timer(b"by key", key=b"k", delay="1h", id="7")
        timer(b"by partition", delay="1h", id="7", partition=1)
        by_handle, by_command = (timer(b"by handle", delay="1h") for _ in range(2))
        near = timer(b"near", delay="3s")
        elsewhere = (moved.partition + 1) % PARTITIONS
        later = client.reschedule(moved.handle, delay="1s")
        asked = [
            client.cancel(near.handle),
            client.cancel("7", key=b"k"),
            client.cancel("7", partition=1),
            client.cancel(by_handle.handle),
            client.cancel("moved", partition=elsewhere),
        ]
        timer(b"of an id again", key=b"k", delay="0s", id="7")
        words = ("cancel", "--output", "json", "--handle", by_command.handle)
        assert shard.command(*words)["answer"] == "cancelled"
        near_is, *others = [told(each) for each in asked]
        assert others == ["cancelled", "cancelled", "cancelled", "unknown"]
        assert told(later) == "cancelled"
        shard.wait(lambda: {b"gone", b"moved", b"of an id again"} <= shard.arrivals.first.keys())
        assert told(client.cancel("gone", key=b"k")) == "already_delivered"
        assert told(client.cancel(gone.handle)) == "already_delivered"
    shard.wait(lambda: CLOCK.now_ms() > near.due_ms + 1_000)
    assert near_is in {"cancelled", "already_delivered"}
    assert (b"near" in shard.arrivals.first) == (near_is == "already_delivered")
    del shard.arrivals.count[b"near"]
    assert shard.arrivals.count == {b"gone": 1, b"moved": 1, b"of an id again": 1}
    _, headers, _, seen_ms = shard.arrivals.first[b"moved"]
    due_ms = later.result(0).due_ms
    assert due_ms <= seen_ms < moved.due_ms
    assert [v for k, v in headers if k in {"UNIQ_KEY", "TIMER_DUE_MS"}] == [
        b"%d" % due_ms,
        b"moved",
    ]


# ---- a broker that stamps days ahead ------------------------------------------------------------

FAR_MS = (72 * HOUR_MS, 73 * HOUR_MS, 10 * 365 * 24 * HOUR_MS)
FAR_HOURS = "a timer partition waits: its records lead to too many hours far ahead"
NOW: Headers = [("TIMER_DELAY_MS", b"100")]


def stamped(shard: WholeShard, kind: str) -> None:
    """Whose timestamps the timer topic takes."""
    after = {"message.timestamp.after.max.ms": str(2**62)}
    alter(shard.servers, shard.timers, {"message.timestamp.type": kind, **after})


def send(
    shard: WholeShard, name: bytes, count: int, ahead_ms: int = 0, partition: int | None = None
) -> None:
    """Timers in all partitions, or in one."""
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    stamp_ms = CLOCK.now_ms() + ahead_ms
    for number in range(count):
        value = b"%s %d" % (name, number)
        at = {"timestamp_ms": stamp_ms, "partition": partition}
        producer.send(shard.timers, value, headers=NOW, **at).get(timeout=30)
    producer.close()


@pytest.mark.crash_matrix
@pytest.mark.timeout(600)
def test_rows_stamped_days_ahead_hold_back_no_other(served: WholeShard) -> None:
    """In every partition, with both processes killed while they are there. The last test: these
    rows stay.
    """
    shard = served
    shard.forget()
    before = shard.status()["pending"]
    stamped(shard, "CreateTime")
    for ahead_ms in FAR_MS:
        send(shard, b"far %d" % (ahead_ms // HOUR_MS), 20, ahead_ms)
    send(shard, b"near", 50)
    stamped(shard, "LogAppendTime")
    shard.wait(lambda: len(shard.arrivals.first) >= 50)
    for name in ("ingest", "dequeue"):
        shard.kill(name)
        send(shard, b"after the kill of %s" % name.encode(), 50)
    shard.wait(lambda: len(shard.arrivals.first) >= 150)
    assert not [value for value in shard.arrivals.first if value.startswith(b"far")]
    far = 20 * len(FAR_MS)
    shard.wait(lambda: bool(shard.status()["pending"] == before + far))
    stats = shard.command("stats", "--output", "json")
    beyond = far if KIND == "wheel" else 0  # every slot is within RocksDB's reach
    assert (stats["pending"], stats["beyond_ring"]) == (before + far, beyond)
    listed = shard.command("list", "--limit", "100").splitlines()
    assert sum("far" in line or shard.timers in line for line in listed) >= far
    shard.wait(lambda: shard.scrape("dequeue").get("pending_beyond_ring") == beyond)
    stamped(shard, "CreateTime")
    for number in range(3 * FAR_HOURS_MAX):  # one partition, each in an hour of its own
        send(shard, b"hour %d" % number, 1, (1_000 + number) * HOUR_MS, partition=0)
    send(shard, b"another partition", 5, partition=1)
    stamped(shard, "LogAppendTime")
    shard.wait(lambda: len(shard.arrivals.first) >= 155)
    shard.wait(lambda: bool(shard.events(FAR_HOURS)))
    shard.wait(lambda: shard.scrape("dequeue").get("ingest_lag_messages") == 0)
    # Those of a batch that is being taken do not count yet.
    opened = shard.status()["pending"] - before - far
    assert FAR_HOURS_MAX - len(FAR_MS) <= opened <= 2 * FAR_HOURS_MAX
    assert shard.stop() == 0
    assert check(shard.settings.storage.data_dir, shard.settings.wheel).findings == []
