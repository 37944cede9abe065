"""The ingest process on a real broker and a real Spark, killed and restarted.

Nothing is delivered: this process holds dequeue's place, with a close page that says where the
floor is and where marks begin, so that all that was taken stays in the files and can be counted.
"""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from kafka import KafkaProducer
from kafka import TopicPartition as KafkaPartition
from tests.harness.ingest_shard import DEADLINE_S, LATER, WHEEL, Headers, IngestShard, shard
from tests.harness.shared_broker import SharedBroker

from duewheel.checkpoints.process_role import Role
from duewheel.client import transaction
from duewheel.clock import SystemClock
from duewheel.runtime.ingest_process import CHECKPOINT
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.full_check import check

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("java"),
]


__all__ = ["shard"]


def transactional(broker: SharedBroker, transactional_id: str) -> KafkaProducer:
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        transactional_id=transactional_id,
        retry_backoff_ms=5,
    )
    producer.init_transactions()
    return producer


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, broker: SharedBroker) -> Iterator[IngestShard]:
    """One for the first three tests, in their order: a start of Spark takes longer than they do."""
    path, topic = tmp_path_factory.mktemp("kept"), f"kept-{uuid.uuid4().hex[:8]}"
    with closing(IngestShard(path, broker.bootstrap_servers, topic)) as shard:
        yield shard


def test_a_checkpoint_that_is_too_new_is_set_aside_and_lost_messages_are_reported(
    kept: IngestShard,
) -> None:
    shard = kept
    shard.send(0, LATER, 200)
    shard.send(1, LATER, 100)
    shard.begin({(shard.topic, 0): 50, (shard.topic, 1): 0})
    # As Spark writes it: a batch that ends behind what the engine has taken.
    for name, lines in {
        "offsets/0": ["v1", "{}", json.dumps({shard.topic: {"0": 180, "1": 100}})],
        "commits/0": ["v1", "{}"],
    }.items():
        path = shard.checkpoint / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))
    # Retention deletes what was not read yet.
    shard.admin.delete_records({KafkaPartition(shard.topic, 0): 70})

    shard.start()
    shard.wait_for_marks({0: 200, 1: 100})
    shard.require_taken_once({0: range(70, 200), 1: range(100)})
    (aside,) = shard.events("Spark's checkpoint does not fit, starting from the marks")
    assert "180" in str(aside["reason"])
    assert (shard.checkpoint.parent / f"{CHECKPOINT}.aside-1" / "commits" / "0").exists()
    # The log's start is asked for behind the batch.
    lost = "retention deleted messages that were never read"
    shard.wait_for("the report of the loss", lambda: bool(shard.events(lost)))
    (loss,) = shard.events(lost)
    assert (loss["partition"], loss["first_offset"], loss["rows_max"]) == (0, 50, 20)
    shard.wait_for("the end of the start", lambda: bool(shard.events("ingest is ready")))
    (ready,) = shard.events("ingest is ready")
    assert ready["rows"] > 0 and ready["took_s"] > 0, "behind its first batch"


def test_killed_in_the_middle_nothing_is_lost_or_taken_twice(kept: IngestShard) -> None:
    shard = kept
    shard.send(0, LATER, 3_000)
    # More than one batch: a kill before counts as a batch that was too large, and the next start
    # then begins without the checkpoint.
    shard.wait_for("two batches", lambda: shard.marks.get(0, 0) == 3_200)
    for _ in range(5):
        shard.send(1, LATER, 500)
    assert shard.end(signal.SIGKILL) == -signal.SIGKILL
    shard.send(0, LATER, 1_000)
    # Make the checkpoint older than the engine: batch 0 comes again, with rows that it has.
    for path in [*shard.checkpoint.glob("offsets/*"), *shard.checkpoint.glob("commits/*")]:
        if path != shard.checkpoint / "offsets" / "0":
            path.unlink()

    shard.start()
    shard.wait_for_marks({0: 4_200, 1: 2_600})
    beat = DataDirectory(shard.data_dir, WHEEL)
    assert shard.pid == beat.state.live.heartbeat(Role.INGEST).pid
    beat.close()
    shard.require_taken_once({0: range(70, 4_200), 1: range(2_600)})
    assert len(shard.events("Spark's checkpoint does not fit, starting from the marks")) == 1


def test_all_header_forms_markers_and_new_partitions(
    kept: IngestShard, broker: SharedBroker, unique_name: Callable[[str], str]
) -> None:
    """The last test of this shard, and its stop."""
    shard = kept
    now_ms = SystemClock().now_ms()
    instant = b"%d" % (now_ms + 1_200_000)
    to_orders: Headers = [("REAL_TOPIC", b"orders")]
    forms: list[Headers] = [
        [("TIMER_DELIVER_MS", instant), *to_orders],
        [("TIMER_DELAY_MS", b"1200000"), *to_orders, ("REAL_QID", b"3")],
        [("TIMER_DELAY_SEC", b"1200"), ("UNIQ_KEY", b"order-17")],
        [("DELAY", b"16"), *to_orders, ("trace", b"\x00\xff"), ("trace", b"")],
        [*to_orders],
        [("TIMER_DELAY_SEC", b"soon"), *to_orders],
        [("TIMER_DELAY_SEC", b"1200"), ("REAL_TOPIC", shard.topic.encode())],
    ]
    for headers in forms:
        shard.send(0, headers)
    shard.wait_for_marks({0: 4_207, 1: 2_600})

    taken = [each for each in shard.taken() if each.partition == 0 and each.offset >= 4_200]
    assert [timer.rejected for timer in taken] == [False] * 4 + [True] * 3
    assert [timer.target for timer in taken[:4]] == ["orders", "orders", "mapped", "orders"]
    assert [timer.target_partition for timer in taken[:4]] == [-1, 3, -1, -1]
    assert taken[0].due_ms == int(instant)
    # The others' times count from the record's own timestamp, which is a moment later.
    assert all(0 <= t.due_ms - now_ms - 1_200_000 < 600_000 for t in taken[1:3])
    assert 0 <= taken[3].due_ms - now_ms - 1_800_000 < 600_000
    assert [timer.timer_id for timer in taken[:4]] == [b"", b"", b"order-17", b""]
    assert {timer.target for timer in taken[4:]} == {"duewheel.dead-letter"}

    # An aborted transaction: two records and a marker that nobody may see; one committed: a record
    # and a marker. The marks pass all five.
    producer = transactional(broker, unique_name("producer"))
    producer.begin_transaction()
    for _ in range(2):
        producer.send(shard.topic, b"aborted", partition=1, headers=LATER)
    producer.flush(DEADLINE_S)
    producer.abort_transaction()
    shard.wait_for_marks({0: 4_207, 1: 2_603})
    with transaction(producer):
        producer.send(shard.topic, b"committed", partition=1, headers=LATER)
    producer.close(timeout=5)
    shard.wait_for_marks({0: 4_207, 1: 2_605})

    shard.admin.create_partitions({shard.topic: 4})
    with_new_partitions = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    for partition in (2, 3):
        for _ in range(10):
            with_new_partitions.send(shard.topic, b"v", partition=partition, headers=LATER)
    with_new_partitions.flush(DEADLINE_S)
    with_new_partitions.close(timeout=5)
    shard.wait_for_marks({0: 4_207, 1: 2_605, 2: 10, 3: 10})

    assert len(shard.events("ingest is ready")) == 2, "once for each start"
    assert shard.end(signal.SIGTERM) == 0, shard.tail()
    offsets = [(timer.partition, timer.offset) for timer in shard.taken()]
    expected = [(0, n) for n in range(70, 4_207)] + [(1, n) for n in (*range(2_600), 2_603)]
    assert offsets == expected + [(p, n) for p in (2, 3) for n in range(10)]
    (stopped,) = shard.events("ingest stopped")
    assert stopped["rows_replayed"] == 0, "a batch that Spark repeats begins at the marks"
    assert check(shard.data_dir, WHEEL).ok
    assert not any((shard.path / "cwd").iterdir()), "something was left in the current directory"


def test_a_topic_that_is_made_anew_stops_ingest(shard: IngestShard) -> None:
    """Its offsets have grown past the marks: only the topic's id tells."""
    shard.begin({(shard.topic, 0): 0, (shard.topic, 1): 0})
    shard.start()
    shard.wait_for("the end of the start", lambda: bool(shard.events("ingest is ready")))
    assert shard.events("ingest is ready")[0]["rows"] == 0, "nothing waits, and no batch comes"
    shard.send(0, LATER, 3)
    shard.wait_for_marks({0: 3, 1: 0})
    shard.admin.delete_topics([shard.topic])
    shard.await_deleted()
    shard.create_topic()
    shard.send(0, LATER, 10)
    assert shard.wait_for_the_end() == 1, shard.tail()
    assert "it was deleted and recreated" in shard.log.read_text(), "and there is no other one"
    shard.start()
    assert shard.wait_for_the_end() == 1, shard.tail()


def test_a_topic_that_ends_below_its_marks_is_refused(shard: IngestShard) -> None:
    shard.send(0, LATER, 5)
    shard.begin({(shard.topic, 0): 6, (shard.topic, 1): 0})
    shard.start()
    assert shard.wait_for_the_end() == 5
    assert "ends at offset 5, but messages up to 6 were taken" in shard.log.read_text()
