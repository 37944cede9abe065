"""`duewheel recover --from-mirror`: a cluster is lost, and a shard on another one delivers what was
left, from the copies of its topics there. Two real brokers; a plain copier is the mirror.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from tests.harness.config_file import write_config
from tests.harness.launcher import line
from tests.harness.lost_cluster import PARTITIONS, PREFIX, Asked, PlainCopier, Timers, losses
from tests.harness.mirror_maker import MirrorMaker, mirror_jars
from tests.harness.reader import read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard, failing_third, opening, until
from tests.harness.whole_shard import WholeShard

from duewheel.clock import SystemClock
from duewheel.config.settings import Settings, load
from duewheel.dev.broker import DevBroker
from duewheel.errors import ConfigError, DuewheelError, PublishDoubt
from duewheel.java.find import Java
from duewheel.kafka.ledger import transactional_producer
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops.recovery.from_mirror import recover
from duewheel.schemas.wire.single_record import Header

pytestmark = [pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def lost(java: Java) -> Iterator[DevBroker]:
    with DevBroker(java=java) as broker:
        yield broker


@pytest.fixture
def name(unique_name: Callable[[str], str]) -> str:
    return unique_name("app")[-40:].lstrip("-")


def settings_on(servers: str, folder: Path, name: str, **timer: Any) -> Settings:
    folder.mkdir()
    given = {"receipts_topic": f"{name}.receipts"} | timer
    given["mapping"] = {f"{name}.timers": f"{name}.orders"}
    return load(write_config(folder, servers, name, timer=given))


def mirror_topics(settings: Settings, **sizes: int) -> None:
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        for topic, partitions in sizes.items():
            admin.create_topic(f"{PREFIX}{settings.app.id}.{topic}", partitions)


def recovered(settings: Settings, **options: Any) -> dict[str, Any]:
    before_ms = options.pop("before_ms", None)
    topics = settings.timer.topics if before_ms is not None else ()
    before = dict.fromkeys(topics, before_ms)
    return recover(settings, SystemClock(), PREFIX, before, **options).as_json()


@pytest.mark.parametrize("committed", [True, False])
def test_a_shard_on_the_mirror_delivers_what_the_lost_one_had_not(
    lost: DevBroker,
    broker: SharedBroker,
    tmp_path: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    committed: bool,
) -> None:
    there = settings_on(lost.bootstrap_servers, tmp_path / "there", name)
    here = settings_on(broker.bootstrap_servers, tmp_path / "here", name)
    names = there.timer.topics[0], f"{name}.receipts"
    mirror_topics(here, timers=PARTITIONS)
    timers = Timers()
    with closing(SparklessShard(there, 1)) as shard:
        with shard.admin() as admin:
            mirror_topics(here, receipts=admin.partition_counts([names[1]])[names[1]])
        copier = PlainCopier(lost.bootstrap_servers, broker.bootstrap_servers, names)
        ids = ("", "id-%d", "twin")
        soon = [Asked(ids[n % 3].replace("%d", str(n)), 10 + n % 7) for n in range(600)]
        timers.send(shard.servers, shard.timers, soon)
        shard.send(shard.timers, 0, (None, b"rejected", []))  # markers take offsets
        until(shard, lambda: shard.left == len(soon) + 1)
        late = [
            Asked(f"late-{n}" if n % 3 else "", 9_000 + n % 50, cancelled=n % 30 == 1)
            for n in range(4_000)
        ]
        timers.send(shard.servers, shard.timers, late)
        records = len(soon) + 1 + len(late) + sum(each.cancelled for each in late)
        until(shard, lambda: copier.copied == {names[0]: records, names[1]: len(soon)})
        copier.stop()
        # These leave after the mirror has ended: nobody on the other side can know.
        timers.send(shard.servers, shard.timers, [Asked("unknown", 0)])
        until(shard, lambda: shard.left == len(soon) + 2)
        delivered = read_topic(shard.servers, shard.target)
    lost.kill()

    with closing(SparklessShard(here, 1)) as shard:
        dry = recovered(here, dry_run=True)
        monkeypatch.setattr(
            transactional_producer, "commit_all", failing_third(committed=committed)
        )
        monkeypatch.setattr(transactional_producer, "open_producer", opening(2))
        with pytest.raises(PublishDoubt, match="2000 timers were written before"):
            recovered(here)
        monkeypatch.undo()
        verdict = recovered(here)
        cancelled = sum(each.cancelled for each in late)
        waiting = len(late) - cancelled
        assert dry["written"] == waiting
        before = 3_000 if committed else 2_000
        assert (verdict["already_done"], verdict["written"]) == (before, waiting - before)
        assert (verdict["delivered"], verdict["stopped"]) == (len(soon), cancelled)
        assert (verdict["left_out"], verdict["unclear_cancels"]) == ({"no_due_time": 1}, 0)
        assert recovered(here)["written"] == 0, "a run after the end writes nothing"
        until(shard, lambda: shard.left == waiting)
        arrived = read_topic(shard.servers, shard.target)
        found = losses(timers, delivered, arrived, shard.servers, names)
    assert not (found.lost or found.doubled or found.early or found.cancelled)
    assert len(found.here) == waiting


def test_what_no_receipt_decides_needs_a_word_of_the_operator(
    broker: SharedBroker, tmp_path: Path, name: str
) -> None:
    without = {"topic": {f"{name}.timers": {"receipts": False}}}
    here = settings_on(broker.bootstrap_servers, tmp_path / "here", name, **without)
    with closing(SparklessShard(here, 1)) as shard:
        with pytest.raises(ConfigError, match="has no mirror here"):
            recovered(here)
        mirror_topics(here, timers=PARTITIONS)
        assert recovered(here)["written"] == 0
        timers = Timers()
        mirror = f"{PREFIX}{shard.timers}"
        timers.send(shard.servers, mirror, [Asked("a", 0), Asked("b", 0), Asked("c", 3_600_000)])
        for receipts_are_copied in (False, True):
            if receipts_are_copied:
                mirror_topics(here, receipts=1)
            with pytest.raises(ConfigError, match="--delivered-before") as refused:
                recovered(here)
            assert shard.timers in str(refused.value)
            assert f"{shard.timers}=" not in str(refused.value), "pasted, it would drop timers"
            verdict = recovered(here, before_ms=SystemClock().now_ms() + 60_000, dry_run=True)
            assert (verdict["assumed_delivered"], verdict["written"]) == (2, 1)
        assert recovered(here, before_ms=SystemClock().now_ms() + 60_000)["written"] == 1
        with pytest.raises(ConfigError, match="repeat the options of the first call"):
            recovered(here, before_ms=1)


def test_what_is_copied_after_the_first_transaction_is_left_out_and_named(
    broker: SharedBroker, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = settings_on(broker.bootstrap_servers, tmp_path / "here", name)
    with closing(SparklessShard(here, 1)) as shard:
        mirror_topics(here, timers=PARTITIONS, receipts=1)
        mirror, receipts = f"{PREFIX}{shard.timers}", f"{PREFIX}{name}.receipts"
        timers = Timers()
        asked = [Asked(f"id-{n}" if n % 3 else "", 3_600_000) for n in range(3_600)]
        timers.send(shard.servers, mirror, asked)
        monkeypatch.setattr(transactional_producer, "commit_all", failing_third(committed=False))
        monkeypatch.setattr(transactional_producer, "open_producer", opening(2))
        with pytest.raises(PublishDoubt, match="2000 timers were written before"):
            recovered(here)
        monkeypatch.undo()
        wanted = sorted(timers.asked, key=lambda value: (int(value) % PARTITIONS, int(value)))
        late = Timers(dict(timers.asked), dict(timers.due_ms))
        late.send(shard.servers, mirror, [Asked("late", 3_600_000)])
        source = f"{shard.timers}-0@0"
        due_ms = timers.due_ms[b"0"]
        receipt = f'{{"source":"{source}","target":"a","target_partition":0,"due_ms":{due_ms}}}'
        shard.send(receipts, 0, (source.encode(), receipt.encode(), []))
        rows = (2_000, 1_600), (3_600, 0)
        for already_done, written in rows:
            verdict = recovered(here)
            assert verdict["records"] == len(asked)
            assert (verdict["already_done"], verdict["written"]) == (already_done, written)
            assert verdict["not_taken"] == {f"{mirror}-0": 1_800, f"{receipts}-0": 0}
        records = read_topic(shard.servers, shard.timers)
        records.sort(key=lambda each: (each.partition, each.offset))
        assert [each.value for each in records] == wanted


def test_copies_with_another_number_of_partitions_and_other_settings_are_refused(
    broker: SharedBroker, tmp_path: Path, name: str
) -> None:
    here = settings_on(broker.bootstrap_servers, tmp_path / "here", name)
    with closing(SparklessShard(here, 1)):
        other = settings_on(broker.bootstrap_servers, tmp_path / "other", name, max_delay="3d")
        with pytest.raises(ConfigError, match=r"other settings than these, by timer\.max_delay"):
            recovered(other)  # before it reads a mirror, which is not there yet
        mirror_topics(here, timers=PARTITIONS + 1, receipts=1)
        with pytest.raises(ConfigError, match=f"has 2 partitions, {PREFIX}{name}.timers 3"):
            recovered(here, dry_run=True)


def test_a_failed_delivery_is_not_written_and_lost_receipts_decide_nothing(
    broker: SharedBroker, tmp_path: Path, name: str
) -> None:
    here = settings_on(broker.bootstrap_servers, tmp_path / "here", name)
    with closing(SparklessShard(here, 1)) as shard:
        mirror_topics(here, **{"timers": PARTITIONS, "receipts": 1, "dead-letter": 1})
        timers = Timers()
        mirror = f"{PREFIX}{shard.timers}"
        timers.send(shard.servers, mirror, [Asked("failed", 0), Asked("due", 0)])
        failed: list[Header] = [
            ("TIMER_ERROR_CODE", b"unknown_target_topic"),
            ("TIMER_ERROR", b"none"),
            ("REAL_TOPIC", shard.target.encode()),
            ("TIMER_DUE_MS", b"%d" % timers.due_ms[b"0"]),
            ("UNIQ_KEY", b"failed"),
            ("TIMER_SOURCE", f"{shard.timers}-0@17".encode()),
        ]
        shard.send(f"{PREFIX}{name}.dead-letter", 0, (b"k", b"0", failed))
        verdict = recovered(here, dry_run=True)
        assert (verdict["delivered"], verdict["written"]) == (1, 1)
        foreign = b'{"source":"\xff@1","target":"a","target_partition":0,"due_ms":1}'
        shard.send(f"{PREFIX}{name}.receipts", 0, (b"k", foreign, []), (b"k", b"a receipt", []))
        assert recovered(here, dry_run=True)["written"] == 1
        admin = KafkaAdminClient(bootstrap_servers=shard.servers)
        admin.delete_records({TopicPartition(f"{PREFIX}{name}.receipts", 0): 2})
        admin.close()
        with pytest.raises(ConfigError, match="--delivered-before"):
            recovered(here)


def test_receipts_that_were_deleted_before_the_mirror_began_decide_nothing(
    broker: SharedBroker, tmp_path: Path, name: str
) -> None:
    """The copy begins at offset 0 all the same."""
    here = settings_on(broker.bootstrap_servers, tmp_path / "here", name)
    with closing(SparklessShard(here, 1)) as shard:
        mirror_topics(here, timers=PARTITIONS, receipts=1)
        timers = Timers()
        mirror = f"{PREFIX}{shard.timers}"
        timers.send(
            shard.servers, mirror, [Asked("delivered", 0), Asked("", 1), Asked("a", 90_000)]
        )
        until(shard, lambda: SystemClock().now_ms() > max(timers.due_ms[b"0"], timers.due_ms[b"1"]))
        assert recovered(here, dry_run=True)["written"] == 3
        receipt = f'{{"source":"{shard.timers}-0@7","target":"a","target_partition":0,"due_ms":1}}'
        shard.send(f"{PREFIX}{name}.receipts", 0, (b"later", receipt.encode(), []))
        with pytest.raises(ConfigError, match="--delivered-before"):
            recovered(here)
        verdict = recovered(here, before_ms=SystemClock().now_ms())
        assert (verdict["assumed_delivered"], verdict["written"]) == (2, 1)


@pytest.mark.crash_matrix
@pytest.mark.timeout(900)
def test_drill_a_cluster_is_killed_while_it_delivers_and_mirror_maker_copies(
    lost: DevBroker,
    broker: SharedBroker,
    java: Java,
    tmp_path: Path,
    name: str,
    require: Callable[[object, str], None],
) -> None:
    jars = jars_or_none(java, tmp_path)
    require(jars, "MirrorMaker cannot be fetched")
    names = f"{name}.timers", f"{name}.receipts"
    for side in ("there", "here"):
        (tmp_path / side).mkdir()
    timers = Timers()
    to = broker.bootstrap_servers
    with (
        closing(WholeShard(tmp_path / "there", lost.bootstrap_servers, name)) as shard,
        MirrorMaker(java, jars, tmp_path / "mirror", lost.bootstrap_servers, to, names) as mirror,
    ):
        shard.start()
        # Of timers due before the first receipt of a partition nothing is certain: each has one
        # before the load is due, however late that leaves here.
        earlier = [Asked(f"earlier-{n}", 1_000) for n in range(64)]
        timers.send(shard.servers, shard.timers, earlier)
        shard.wait(lambda: count(to, f"{PREFIX}{names[1]}") >= len(earlier))
        soon = [Asked(f"id-{n}" if n % 3 else "", 45_000 + 4 * n) for n in range(10_000)]
        late = [
            Asked(f"late-{n}" if n % 3 else "", 150_000 + n % 100, cancelled=n % 30 == 1)
            for n in range(10_000)
        ]
        timers.send(shard.servers, shard.timers, soon + late)
        shard.wait(lambda: len(read_topic(to, f"{PREFIX}{shard.timers}")) > len(timers.asked))
        mirror.kill()
        shard.wait(lambda: len(shard.arrivals.count) > 1_500)
        mirror.start()
        # Receipts are on their way, and new timers, when all is killed at once.
        shard.wait(lambda: count(to, f"{PREFIX}{names[1]}") > 1_000)
        timers.send(shard.servers, shard.timers, [Asked(f"new-{n}", 90_000) for n in range(500)])
        assert len(shard.arrivals.count) < len(soon)
        lost.kill()
        os.kill(shard.supervisor_pid, signal.SIGKILL)
        mirror.kill()

    with closing(WholeShard(tmp_path / "here", to, name)) as shard:
        words = ("recover", "--from-mirror", PREFIX)
        with subprocess.Popen(line(shard.config, *words), stdout=subprocess.DEVNULL) as child:
            shard.wait(lambda: count(to, shard.timers) > 2_000)
            child.kill()
        assert child.returncode == -signal.SIGKILL, "it has ended before it was killed"
        verdict = shard.command(*words, "--output", "json")
        assert verdict["already_done"] > 0
        assert not verdict["unclear_cancels"]
        written = verdict["already_done"] + verdict["written"]
        shard.launch()
        shard.wait(lambda: len(shard.arrivals.count) == written)
        arrived = read_topic(to, shard.target)
        lost.restart()
        delivered = [
            each
            for each in read_topic(lost.bootstrap_servers, shard.target)
            if each.value in timers.asked
        ]
        found = losses(timers, delivered, arrived, to, names)
    numbers = {each: len(values) for each, values in vars(found).items()}
    print({"delivered there": len(delivered), **numbers}, verdict)
    assert not (found.lost or found.without_reason or found.early or found.cancelled), numbers
    assert len(found.here) == written


def jars_or_none(java: Java, scratch: Path) -> list[Path]:
    try:
        return mirror_jars(java, scratch)
    except DuewheelError:
        return []


def count(servers: str, topic: str) -> int:
    """The end offsets of a topic, together; 0 without one."""
    with KafkaAdmin({"bootstrap_servers": servers}) as admin:
        return sum(admin.ends([topic], committed=False).values())


def test_records_of_one_writer_stop_the_recovery_of_no_other(
    broker: SharedBroker, tmp_path: Path, name: str
) -> None:
    """What ingest would reject here, a copy that anyone may forge, a spread by a lost offset."""
    here = settings_on(broker.bootstrap_servers, tmp_path / "here", name)
    with closing(SparklessShard(here, 1)) as shard:
        mirror_topics(here, timers=PARTITIONS, receipts=1)
        mirror = f"{PREFIX}{shard.timers}"
        due = ("TIMER_DELIVER_MS", b"%d" % (SystemClock().now_ms() + 400 * 86_400_000))
        forged: list[Header] = [due, ("REAL_TOPIC", shard.target.encode()), ("TIMER_ORIGIN", b"1")]
        window: list[Header] = [
            ("TIMER_DELAY_MS", b"3000000"),
            ("REAL_TOPIC", shard.target.encode()),
            ("TIMER_WINDOW_MS", b"60000"),
        ]
        shard.send(mirror, 0, (None, b"copy", forged), (None, b"window", window))
        shard.send(mirror, 0, (None, b"past", [("TIMER_DELIVER_MS", b"1"), *window[1:2]]))
        Timers().send(shard.servers, mirror, [Asked("good", 3_600_000)])
        # A line of JSON of more bytes than a file may have, of a record that a shard takes.
        shard.send(mirror, 1, (None, b"long", [*window[:2], *[("", b"")] * 520_000]))
        verdict = recovered(here)
    assert verdict["written"] == 4
    assert verdict["unclear_windows"] == 1
    assert sum(verdict["refused"].values()) + sum(verdict["left_out"].values()) == 1
