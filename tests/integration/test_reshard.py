"""`duewheel reshard` on a real Kafka, without Spark: its records, fenced and refused processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from tests.harness.application import Application
from tests.harness.killed import Killed, die
from tests.harness.launcher import objects, wait_until
from tests.harness.shared_broker import SharedBroker
from tests.harness.timer_shard import TimerShard

from duewheel import factory
from duewheel.checkpoints.process_role import Role
from duewheel.checkpoints.progress import NOBODY, PartitionProgress, Progress
from duewheel.checkpoints.reshard_records import sealed
from duewheel.config.settings import Settings, load
from duewheel.errors import ConfigError, Fenced, PublishDoubt, Reassigned, RecoveryRefused
from duewheel.kafka.publish.publisher import KafkaPublisher
from duewheel.kafka.topics.admin import KafkaAdmin
from duewheel.ops import reconfigure, reshard
from duewheel.ops.shard.present_files import require_present_files
from duewheel.runtime import dequeue_process
from duewheel.runtime.topic_watch import TopicWatch
from duewheel.testing import ManualClock
from duewheel.wheel.publisher_protocol import PublishAttempt, publish_progress
from duewheel.wheel.storage.data_directory import DataDirectory

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def application(tmp_path: Path, broker: SharedBroker) -> Iterator[Application]:
    application = Application(tmp_path, broker)
    yield application
    topics = [f"{application.name}.{kind}" for kind in ("timers", "dead", "state")]
    with KafkaAdmin(application.settings.kafka.client_options("admin")) as admin:
        admin.delete_topics(topics)


def test_partitions_move_unchanged_and_there_is_an_end_of_each_shard(
    application: Application,
) -> None:
    (first,) = application.begin().values()
    code, (told,) = objects(application.config, "reshard", "--to", "2", "--dry-run")
    assert code == 0
    assert (told["from_shards"], told["to_shards"], told["moved"]) == (1, 2, 2)
    assert told["shards"][1]["partitions"] == [f"{application.topic}-{n}" for n in (1, 3)]
    assert application.records() == {0: first}
    for to in (2, 4, 2):
        done = application.reshard(to)
        assert [len(shard.partitions) for shard in done.shards] == [4 // to] * to
        assert application.parts() == first.partitions
        records = application.records()
        assert {r.shards for r in records.values()} == {to}
        assert [r.sealed_for for r in records.values()] == [None] * to + [to] * (len(records) - to)
        assert {r.owner for r in records.values()} == {NOBODY}
    assert application.reshard(2).moved == 0
    assert application.records() == records  # nothing was written

    # A directory that served a shard that is no more does not go on from its copy.
    with pytest.raises(RecoveryRefused, match=r"there is no shard 3: .*made 2 of them"):
        application.local(3, 4).start_dequeue()
    with pytest.raises(RecoveryRefused, match=r"shard 0 of 2, the configuration says 0 of 4"):
        application.local(0, 4).start_dequeue()
    with pytest.raises(RecoveryRefused, match="there is no shard 2"):
        dequeue_process.init_progress(application.of(2, 3))
    shard = application.local(1, 2)
    shard.start_dequeue()  # by any directory, at once
    assert application.records()[1].owner == shard.directory(Role.DEQUEUE).state.uuid
    shard.kill(Role.DEQUEUE)


def test_a_running_shard_finds_out(application: Application) -> None:
    application.begin()
    shard = application.local(0, 1)
    dequeue = shard.start_dequeue(take_over=True)
    application.reshard(2)
    application.clock.sleep(0.01)
    with pytest.raises(Fenced, match="reassigned"):
        dequeue.tick()
    shard.kill(Role.DEQUEUE)
    assert application.parts().keys() == {(application.topic, n) for n in range(4)}


def test_outdated_files_are_not_to_be_changed_from(application: Application) -> None:
    application.begin()
    settings, shard = application.of(0, 1), application.local(0, 1)
    shard.start_dequeue(take_over=True)
    wait_until(lambda: is_present(settings), "the progress is not visible")
    shard.kill(Role.DEQUEUE)
    elsewhere = load(application.config, {"storage": {"data_dir": str(application.path / "new")}})
    other = application.local(0, 1, elsewhere)
    other.start_dequeue(take_over=True)
    owner = other.directory(Role.DEQUEUE).state.uuid
    wait_until(lambda: is_present(elsewhere), "the progress is not visible")
    with pytest.raises(Fenced, match=f"the data directory {owner} has taken shard 0 over"):
        require_present_files(settings)
    other.kill(Role.DEQUEUE)
    application.reshard(2)
    for each in (settings, elsewhere):
        with pytest.raises(Reassigned, match="the next start of shard 0 of 2 replaces them"):
            require_present_files(each)


def is_present(settings: Settings) -> bool:
    """Readers see a transaction once its end is in the log of the partition, not at once."""
    with suppress(Fenced):
        require_present_files(settings)
        return True
    return False


def killed_at(
    application: Application, monkeypatch: pytest.MonkeyPatch, name: str, to: int
) -> None:
    """A run that ends when it first calls that."""

    with monkeypatch.context() as patch:
        patch.setattr(reshard, name, die)
        with pytest.raises(Killed):
            application.reshard(to)


def test_killed_in_between_it_is_finished_or_undone(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = application.begin().values()
    killed_at(application, monkeypatch, "nothing", 2)  # when one is sealed, and a new one to be
    assert [r.sealed_for for r in application.records().values()] == [2]
    with pytest.raises(RecoveryRefused, match=r"sealed.*--to 2` finishes that, `--to 1` undoes"):
        application.local(0, 1).start_dequeue()
    application.reshard(2)
    killed_at(application, monkeypatch, "record_key", 1)  # all are sealed, and the records are made
    records = application.records()
    assert [r.sealed_for for r in records.values()] == [1, 1]
    assert application.reshard(2).moved == 0
    records = application.records()
    assert [(r.shards, r.sealed_for) for r in records.values()] == [(2, None)] * 2
    assert application.parts() == first.partitions


def test_settings_changed_half_way_through_a_reshard_are_kept_by_its_undo(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = application.begin(2)
    shard = application.local(1, 2)
    dequeue = shard.start_dequeue(take_over=True)
    shard.start_ingest()
    shard.append([], {(application.topic, n): 100 for n in (1, 3)})
    while dequeue.tick():
        pass
    for role in Role:
        shard.stop(role)
    owned = application.records()[1]
    text = application.config.read_text()
    application.config.write_text(text.replace('roll_window = "60s"', 'roll_window = "15s"'))
    shorter = application.of(1, 2)
    application.config.write_text(text)

    def one(found: Progress, shards: int, incarnation: int) -> Progress:
        if found.shard == 1:
            raise Killed
        return sealed(found, shards, incarnation)

    with monkeypatch.context() as patch:
        patch.setattr(reshard, "sealed", one)
        with pytest.raises(Killed):
            application.reshard(4)
    assert [record.sealed_for for record in application.records().values()] == [4, None]

    for dry_run in (True, False):
        with pytest.raises(RecoveryRefused, match=r"shard 0 is sealed.*--to 4` .*, `--to 2` undo"):
            reconfigure.apply_settings(shorter, dry_run=dry_run)
    with monkeypatch.context() as patch:
        patch.setattr(reconfigure, "all_shards", lambda _: {})  # it had looked before the seal
        assert reconfigure.apply_settings(shorter, dry_run=False).changes
    for _ in range(2):
        with pytest.raises(RecoveryRefused, match=r"differ in roll_window.*--to 2` gives each"):
            application.reshard(4)
    assert application.reshard(2).moved == 0
    after = application.records()
    assert [after[n].sealed_for for n in (0, 1)] == [None, None]
    assert after[0].epochs == before[0].epochs
    assert after[1].epochs.newest.values["roll_window_ms"] == 15_000
    assert after[1].partitions == owned.partitions
    again = TimerShard(
        shorter.storage.data_dir,
        shorter.wheel,
        factory.publisher(shorter, application.clock),
        application.clock,
        factory.dequeue_config(shorter),
    )
    again.start_dequeue()
    again.kill(Role.DEQUEUE)
    application.local(0, 2).start_dequeue()


def test_a_shard_that_is_quicker_is_sealed_in_the_end(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = application.begin().values()
    other = factory.publisher(application.settings, application.clock)
    publish = KafkaPublisher.publish
    beaten: list[Progress] = []
    newer = {
        p: PartitionProgress(part.delivered_slot + 1, part.half_mark or 0)
        for p, part in first.partitions.items()
    }

    def slow(publisher: KafkaPublisher, attempt: PublishAttempt) -> int | None:
        beaten.append(attempt.progress)
        if len(beaten) == 1:
            other.start()  # the old process, on its doubt
            publish(other, other.compose(None, replace(first, partitions=newer)))
        elif len(beaten) == 2:
            with pytest.raises(Fenced, match="reshard"):
                other.start()  # it has read the notice
        return publish(publisher, attempt)

    monkeypatch.setattr(KafkaPublisher, "publish", slow)
    application.reshard(2)
    assert application.parts() == newer
    with pytest.raises(PublishDoubt):
        publish_progress(other, first)
    other.close()


def test_another_reshard_ends_the_first(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = application.begin().values()
    start = KafkaPublisher.start
    begun: list[bool] = []

    def overtaken(publisher: KafkaPublisher) -> Progress | None:
        if not begun:
            begun.append(True)
            killed_at(application, monkeypatch, "record_key", 4)
        return start(publisher)

    monkeypatch.setattr(KafkaPublisher, "start", overtaken)
    with pytest.raises(Fenced, match="another `duewheel reshard` has begun"):
        application.reshard(2)
    # What the later one has sealed is as it was: it might be about to deal.
    assert [record.sealed_for for record in application.records().values()] == [4] * 4
    application.reshard(4)
    assert application.parts() == first.partitions


def test_what_cannot_be_dealt_is_left_alone(application: Application) -> None:
    before = application.begin(2, behind=application.settings.wheel.ring)
    with pytest.raises(RecoveryRefused, match="shard 4 of 5 would have no partition"):
        application.reshard(5)
    assert application.records() == before
    # What stands further apart than a ring comes together, too.
    assert application.reshard(1).moved == 2


def test_what_has_not_begun_or_needs_no_change_is_left_alone(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chart runs the command before each upgrade, also to mend what has never started."""

    def reshard_quietly(to: int) -> tuple[int, list[int]]:
        with monkeypatch.context() as patch:
            patch.setattr(reshard.Reassignment, "_seal", die)
            done = application.reshard(to)
        assert (done.to_shards, done.moved) == (to, 0)
        return done.from_shards, [shard.shard for shard in done.shards]

    with KafkaAdmin(application.settings.kafka.client_options("admin")) as admin:
        admin.delete_topics([application.settings.state_topic])
        assert reshard_quietly(2) == (0, [])
        admin.init_topics(application.settings, partitions=4)
    assert reshard_quietly(2) == (0, [])
    assert application.records() == {}
    application.have_room(2)
    assert dequeue_process.init_progress(application.of(1, 2))
    begun = application.records()
    assert reshard_quietly(2) == (2, [1])
    with pytest.raises(RecoveryRefused, match=r"shard 0 of 2 has no progress: `duewheel init`"):
        application.reshard(4)
    assert application.records() == begun


def test_a_shard_of_several_reads_a_partition_that_is_added(application: Application) -> None:
    settings, clock = application.of(1, 2), ManualClock()
    directory = DataDirectory.start(settings.storage.data_dir, settings.wheel, Role.INGEST)
    watch = TopicWatch(settings, directory.state, clock, lambda: {(application.topic, 1): 0})
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        assert list(watch.find(admin)) == [application.topic]
        begins = watch.starts(admin)
    assert begins == {(application.topic, 1): 0, (application.topic, 3): -2}
    assert begins.keys() == {(application.topic, 1), (application.topic, 3)}

    client = KafkaAdminClient(bootstrap_servers=settings.kafka.servers)
    for count in (5, 6):
        client.create_partitions({application.topic: count})
        clock.sleep(60)
        if count == 5:
            assert not watch.poll()  # the other shard's
    client.close()
    assert watch.poll(), "another query follows"
    with KafkaAdmin(settings.kafka.client_options("admin")) as admin:
        watch.find(admin)
        assert (application.topic, 5) in watch.starts(admin)
    clock.sleep(60)
    assert not watch.poll()
    directory.stop()


def test_a_shard_begins_with_its_own_partitions(application: Application) -> None:
    producer = KafkaProducer(bootstrap_servers=application.settings.kafka.servers)
    producer.send(application.topic, b"never scheduled", partition=1).get(30)
    producer.close()
    application.have_room(5)
    assert dequeue_process.init_progress(application.of(1, 3))
    assert application.parts().keys() == {(application.topic, 1)}
    with pytest.raises(RecoveryRefused, match="shard 1 is one of 3"):
        dequeue_process.init_progress(application.of(0, 2))
    with pytest.raises(ConfigError, match=r"shard 4 of 5 has no timer partition: .* has 4"):
        dequeue_process.init_progress(application.of(4, 5))
