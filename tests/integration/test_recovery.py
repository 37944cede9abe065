"""Losses of all kinds, on the real processes, under load, with an independent consumer.

One shard serves all tests of this module, one after the other; each leaves it running.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.structs import TopicPartition as KafkaPartition
from tests.harness.loaded_shard import LoadedShard, remove
from tests.harness.shared_broker import SharedBroker
from tests.harness.timelines import copy_timeline, spoil_timeline
from tests.harness.topics import make_timer_topic
from tests.harness.whole_shard import CLOCK

from duewheel import factory
from duewheel.checkpoints.durable_checkpoint import Durable
from duewheel.checkpoints.progress import Progress
from duewheel.checkpoints.state_file import State
from duewheel.config.settings import Settings, load
from duewheel.errors import Fenced, Locked
from duewheel.runtime.ingest_process import CHECKPOINT
from duewheel.schemas.batches import TopicPartition
from duewheel.streaming.batch_attempt import SPARK_DIR
from duewheel.streaming.spark_checkpoint import resume_point
from duewheel.wheel.storage.byte_layouts import hour_name
from duewheel.wheel.storage.full_check import check

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.usefixtures("java"),
    pytest.mark.timeout(600),
]

BOOT_WORDS = 4096 + 8 * 4  # in `state`: see checkpoints/live_fields.py
HOURS, SEGMENTS = ("timerlog", "messages", "cancelled"), ("cancels", "requests")


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory, broker: SharedBroker) -> Iterator[LoadedShard]:
    name = f"recovery-{uuid.uuid4().hex[:8]}"
    shard = LoadedShard(tmp_path_factory.mktemp("shard"), broker.bootstrap_servers, name)
    try:
        shard.start()
        shard.load.start()
        yield shard
        shard.await_arrivals()
        time.sleep(2)  # a double would come with the next chunk
        shard.load.stop()
        shard.await_arrivals()
        shard.judge()
        assert shard.stop() == 0
        report = check(shard.data, shard.settings.wheel)
        assert report.ok, report.findings
    finally:
        shard.close()


@pytest.mark.crash_matrix
def test_a_deleted_checkpoint_of_spark(shard: LoadedShard) -> None:
    checkpoint = shard.data / SPARK_DIR / CHECKPOINT
    before = resume_point(checkpoint)
    assert before is not None and before.batch_id > 0
    count = len(shard.events("recovered"))
    shard.kill("ingest")
    remove(checkpoint)
    # Meanwhile: only one process of a kind works in a directory, and looking on is allowed.
    holder = shard.status()["dequeue"]["pid"]
    code, said = shard.alone("dequeue")
    assert code == Locked.exit_code
    assert f"dequeue runs already, as process {holder}" in said
    found = shard.command("recover", "--dry-run", "--output", "json")
    assert (found["case"], found["keep"], found["rows_to_read"]) == ("intact", "all", 0)
    assert shard.status()["recovering"] is None
    shard.command("recover", code=2)
    shard.await_arrivals()
    assert len(shard.events("recovered")) == count


def half_deliver(shard: LoadedShard) -> None:
    """Many timers of one slot are on their way out when everything is killed; again if they were
    faster than that.
    """
    for _ in range(5):
        dequeue = shard.status()["dequeue"]["pid"]
        shard.burst()
        os.kill(dequeue, signal.SIGKILL)
        shard.kill_all()
        if is_half_delivered(shard):
            return
        shard.run()
        shard.await_arrivals()


def progress_of(settings: Settings) -> Progress:
    publisher = factory.publisher(settings, factory.StoppableClock(threading.Event()))
    progress = publisher.peek()
    assert progress is not None
    return progress


def is_half_delivered(shard: LoadedShard) -> bool:
    return any(
        known.half_below is not None for known in progress_of(shard.settings).partitions.values()
    )


def test_a_directory_lost_with_a_slot_half_delivered(shard: LoadedShard) -> None:
    count = len(shard.events("recovered"))
    half_deliver(shard)
    remove(shard.data)
    assert is_half_delivered(shard)
    found = shard.command("recover", "--dry-run", "--output", "json")
    assert not shard.data.exists()
    assert (found["case"], found["keep"]) == ("taken over", "nothing")
    assert found["rows_to_read"] == found["done_rows"] + found["pending_rows"]
    time.sleep(1)  # what is committed arrives
    assert found["done_rows"] == sum(shard.arrivals.count.values()) + shard.probes
    assert found["pending_rows"] >= 1
    shard.run()
    recovered = shard.wait_for("recovered", count)
    assert (recovered["case"], recovered["keep"]) == ("taken over", "nothing")
    assert recovered["reads_from"] == found["start_offsets"]
    shard.await_arrivals()


@pytest.mark.crash_matrix
def test_a_quota_slows_no_recovery(shard: LoadedShard) -> None:
    """Ten seconds of the quota were in the wheel: they are read again in one batch."""
    _, (topic, quota) = shard.settings.by_topic("quota_per_second").items()
    make_timer_topic(shard.servers, topic)
    due = dict.fromkeys((b"quota %d" % n for n in range(10 * quota)), CLOCK.now_ms() + 60_000)
    producer = KafkaProducer(bootstrap_servers=shard.servers)
    for value, due_ms in due.items():
        headers = [("TIMER_DELIVER_MS", b"%d" % due_ms), ("REAL_TOPIC", shard.target.encode())]
        producer.send(topic, value, headers=headers)
    producer.flush(timeout=60)
    producer.close()
    shard.load.due_ms.update(due)
    partition, count = (topic, 0), len(due)
    shard.wait(lambda: is_closed_with(shard, partition, count))
    shard.kill_all()
    remove(shard.data)
    shard.run()
    shard.wait(lambda: mark_of(shard, partition) > 0)
    assert mark_of(shard, partition) == count  # in one batch
    shard.await_arrivals()


def is_closed_with(shard: LoadedShard, partition: TopicPartition, mark: int) -> bool:
    """Whether the progress in Kafka says that the partition was taken up to there."""
    with State.open(shard.data) as state:
        mirror = state.mirror()
    known = mirror.progress.partitions.get(partition) if mirror else None
    return known is not None and known.delivered_mark == mark


def mark_of(shard: LoadedShard, partition: TopicPartition) -> int:
    """How far ingest has come in the partition; 0 while there are no files."""
    try:
        with State.open(shard.data) as state:
            return state.commit().marks.get(partition, 0)
    except FileNotFoundError:
        return 0


def copy_disk(shard: LoadedShard, target: Path) -> Durable:
    """What has come to the disk at this moment: all that the durable checkpoint names, at least."""
    target.mkdir()
    shutil.copy(shard.data / "durable", target)
    durable = Durable.read(target)
    assert durable is not None
    for name in ("state", "topics", "recovery", "cancel_bounds"):
        shutil.copy(shard.data / name, target)
    copy_timeline(shard.data, target)
    for name in (*HOURS, *SEGMENTS, f"{SPARK_DIR}/{CHECKPOINT}"):
        with suppress(shutil.Error):  # Spark's temporary files come and go
            shutil.copytree(shard.data / name, target / name)
    return durable


def lose_power(disk: Path, durable: Durable) -> None:
    """What was not synced is gone, or garbage; the boot is another one."""
    chance = random.Random(2)
    for folders, segments in ((HOURS, durable.hours), (SEGMENTS, durable.cancels)):
        for hour, lengths in segments.items():
            for folder, length in zip(folders, lengths, strict=True):
                path = disk / folder / hour_name(hour)
                kept = path.read_bytes()[:length] if length else b""
                path.write_bytes(kept + chance.randbytes(5_000))
    spoil_timeline(disk)
    with (disk / "state").open("r+b") as file:
        file.seek(BOOT_WORDS)
        file.write(uuid.uuid4().bytes)
    # Spark does not sync what it writes.
    offsets = disk / SPARK_DIR / CHECKPOINT / "offsets"
    newest = max((path for path in offsets.iterdir() if path.name.isdecimal()), key=_number)
    newest.write_bytes(b"")


def _number(path: Path) -> int:
    return int(path.name)


@pytest.mark.crash_matrix
def test_a_loss_of_power(shard: LoadedShard) -> None:
    count = len(shard.events("recovered"))
    disk = shard.path / "disk"
    durable = copy_disk(shard, disk)
    sent = len(shard.load.due_ms)
    shard.wait(lambda: len(shard.load.due_ms) > sent + 300)
    shard.await_arrivals()  # else the files may hold no more than the copy does
    shard.kill_all()
    lose_power(disk, durable)
    remove(shard.data)
    disk.rename(shard.data)
    found = shard.command("recover", "--dry-run", "--output", "json")
    assert (found["case"], found["keep"]) == ("power lost", "durable")
    assert found["rows_to_read"] > 0
    shard.run()
    recovered = shard.wait_for("recovered", count)
    assert (recovered["case"], recovered["keep"]) == ("power lost", "durable")
    assert recovered["took_s"] >= 0
    shard.await_arrivals()
    assert shard.events("Spark's checkpoint does not fit, starting from the marks")


@pytest.mark.crash_matrix
def test_a_damaged_message_is_read_again(shard: LoadedShard) -> None:
    """Dequeue meets it when it is due; nobody is needed."""
    count = len(shard.events("recovered"))
    due_ms = CLOCK.now_ms() + 5_000
    value = b"to be damaged"
    shard.load.write({value: due_ms})
    shard.wait(lambda: any(value in path.read_bytes() for path in messages(shard)))
    (path,) = [path for path in messages(shard) if value in path.read_bytes()]
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(value))
        file.write(b"T")
    recovered = shard.wait_for("recovered", count)
    assert (recovered["case"], recovered["keep"]) == ("files lost", "nothing")
    assert b"To be damaged" not in shard.arrivals.first
    shard.await_arrivals()
    assert shard.events("a file is damaged: pending timers will be read again")


def messages(shard: LoadedShard) -> list[Path]:
    return sorted((shard.data / "messages").iterdir())


def restart_dequeue(shard: LoadedShard) -> None:
    """kill -9, and `run` starts it again."""
    started = len(shard.events("dequeue started"))
    shard.kill("dequeue")
    shard.wait_for("dequeue started", started)


@pytest.mark.crash_matrix
@pytest.mark.parametrize(
    "module", ["python_streaming_source_runner", "plan_data_source_read", "pyspark.daemon"]
)
def test_python_processes_of_spark_are_killed(shard: LoadedShard, module: str) -> None:
    """The one that plans batches, the one that divides them, those of the tasks."""
    killed = list[int]()

    def kill() -> bool:
        children = list[psutil.Process]()
        with suppress(psutil.NoSuchProcess):  # ingest itself, between two starts
            children = psutil.Process(shard.status()["ingest"]["pid"]).children(recursive=True)
        for each in children:
            with suppress(psutil.NoSuchProcess):  # a zombie stays, and has no command line
                if module in " ".join(each.cmdline()):
                    each.kill()
                    killed.append(each.pid)
        return bool(killed)

    shard.wait(kill)
    killed_ms = CLOCK.now_ms()
    value = b"behind the kill of %s" % module.encode()
    shard.load.write({value: killed_ms})
    shard.wait(lambda: value in shard.arrivals.first)
    shard.await_arrivals()


@pytest.mark.crash_matrix
def test_messages_that_a_recovery_finds_gone_are_a_metric(shard: LoadedShard) -> None:
    topic, target = f"{shard.timers[: -len('timers')]}later.cut", shard.target.encode()
    make_timer_topic(shard.servers, topic)
    due_ms = CLOCK.now_ms() + 3_000_000
    with closing(KafkaProducer(bootstrap_servers=shard.servers)) as producer:
        for number in range(5):
            headers = [("TIMER_DELIVER_MS", b"%d" % due_ms), ("REAL_TOPIC", target)]
            producer.send(topic, b"%d" % number, headers=headers)
        producer.flush(timeout=30)
    shard.wait(lambda: is_closed_with(shard, (topic, 0), 5))
    assert f"recovery_cut_partitions:{topic}" not in shard.scrape("ingest")
    count = len(shard.events("recovered"))
    shard.kill_all()
    with closing(KafkaAdminClient(bootstrap_servers=shard.servers)) as admin:
        admin.delete_records({KafkaPartition(topic, 0): 3})
    remove(shard.data)
    shard.run()
    shard.wait_for("recovered", count)
    shard.await_arrivals()
    assert shard.scrape("ingest")[f"recovery_cut_partitions:{topic}"] == 1


@pytest.mark.crash_matrix
def test_the_older_of_two_instances_stops(shard: LoadedShard) -> None:
    """A copy of the directory takes the shard over; the first instance ends for good."""
    first = shard.supervisor
    assert first is not None
    copy = shard.path / "copy"
    copy_disk(shard, copy)
    restart_dequeue(shard)  # of which the copy knows nothing
    ended = "process ended for good"
    assert shard.events(ended) == []
    shard.config.write_text(shard.config.read_text().replace(str(shard.data), str(copy)))
    shard.settings = load(shard.config)
    recovered = len(shard.events("recovered"))
    second = shard.run("--take-over")
    shard.wait(lambda: first.exit_code is not None)
    assert first.exit_code == Fenced.exit_code
    assert "now belongs to the data directory" in (shard.path / "run.log").read_text()
    assert [event["process"] for event in shard.events(ended)] == ["dequeue"]
    assert shard.wait_for("recovered", recovered)["keep"] == "nothing"
    # What took it over once is not told to take it back.
    restart_dequeue(shard)
    line = Path(f"/proc/{shard.status()['dequeue']['pid']}/cmdline").read_bytes()
    assert b"dequeue" in line and b"--take-over" not in line
    shard.await_arrivals()
    assert second.exit_code is None
