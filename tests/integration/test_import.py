"""`duewheel import` from topics of other services, on a real broker, ingested and delivered."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.harness.config_file import write_config
from tests.harness.launcher import line, objects, run
from tests.harness.reader import read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import Message, SparklessShard, failing_third, until
from tests.harness.topics import alter

from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.errors import ConfigError, PublishDoubt
from duewheel.kafka import transactional_producer
from duewheel.ops.imports.importer import Choice, import_timers
from duewheel.ops.imports.kafka_topic import Service, kafka_topic_source
from duewheel.schemas.wire.single_record import Header

pytestmark = pytest.mark.kafka


def now_s() -> float:
    return SystemClock().now_ms() / 1000


@pytest.fixture
def config(
    broker: SharedBroker,
    tmp_path: Path,
    unique_name: Callable[[str], str],
    request: pytest.FixtureRequest,
) -> Path:
    """Of a shard whose timer topic has the headers of the service that the test asks for."""
    name = unique_name("app")[-40:]
    table = {f'timer.topic."{name}.timers"': {"headers": getattr(request, "param", "etf1")}}
    return write_config(tmp_path, broker.bootstrap_servers, name, **table)


@pytest.fixture
def shard(config: Path) -> Iterator[SparklessShard]:
    with closing(SparklessShard(load(config), 1)) as shard:
        with shard.admin() as admin:
            admin.create_topic(source_of(shard), 2)
        yield shard


def source_of(shard: SparklessShard) -> str:
    return f"{shard.settings.app.id}.schedules"


def etf1(shard: SparklessShard, key: bytes, value: bytes, due_s: float) -> Message:
    headers: list[Header] = [
        ("scheduler-epoch", b"%d" % due_s),
        ("scheduler-target-topic", shard.target.encode()),
        ("scheduler-target-key", b"to-" + key),
        ("own", b"kept"),
    ]
    return key, value, headers


def imported(
    shard: SparklessShard, service: Service = "etf1", chunk_records: int = 2, **choice: Any
) -> dict[str, Any]:
    """The verdict of a run in this process."""
    with kafka_topic_source(
        shard.settings, service, source_of(shard), shard.timers, chunk_records
    ) as source:
        return import_timers(shard.settings, source, Choice(shard.timers, **choice))


def counts(verdict: dict[str, Any]) -> dict[str, int]:
    names = ("already_done", "read", "written", "cancelled", "not_waiting", "past_due")
    return {name: verdict[name] for name in names if verdict[name]}


def delivered(shard: SparklessShard) -> dict[bytes, bytes]:
    records = read_topic(shard.servers, shard.target)
    found = {record.key: record.value for record in records}
    assert len(found) == len(records), "none is delivered twice"
    return found


def test_etf1s_schedules_are_judged_first_then_imported_once_and_delivered(
    config: Path, shard: SparklessShard
) -> None:
    topic = source_of(shard)
    past, later = now_s() - 60, now_s() + 3_600
    broken: Message = (b"broken", b"x", [("scheduler-epoch", b"soon")])
    shard.send(topic, 0, etf1(shard, b"a", b"old", later), etf1(shard, b"b", b"b", past))
    shard.send(topic, 0, etf1(shard, b"gone", b"x", past), etf1(shard, b"a", b"new", past), broken)
    shard.send(topic, 1, etf1(shard, b"c", b"c", past), etf1(shard, b"d", b"d", later))
    shard.send(topic, 0, (b"gone", None, []))

    words = ("import", "etf1", "--from-topic", topic)
    verdict = imported(shard, chunk_records=9, dry_run=True)
    assert (verdict["complete"], verdict["written"]) == (False, 0)
    assert verdict["refused_first"][0]["place"] == f"{topic}-0@5"
    assert verdict["refused_first"][0]["code"] == "bad_header"

    exit_code, (verdict,) = objects(config, *words, "--dry-run", "--skip-refused")
    would_be = {"read": 8, "written": 4, "not_waiting": 3, "past_due": 3}
    assert (exit_code, counts(verdict)) == (1, would_be)
    assert verdict["refused"] == {"bad_header": 1}
    assert verdict["targets"] == {shard.target: 4}
    assert (verdict["earliest_due_ms"], verdict["latest_due_ms"]) == (
        int(past) * 1000,
        int(later) * 1000,
    )
    assert read_topic(shard.servers, shard.timers) == []

    done = run(config, *words, "--skip-refused")
    assert done.returncode == 1
    assert f"refused: {topic}-0@5  bad_header" in done.stdout
    assert counts(imported(shard)) == {"already_done": 8}
    taken = read_topic(shard.servers, shard.timers)
    assert {(r.partition, r.key) for r in taken} == {(0, b"a"), (0, b"b"), (1, b"c"), (1, b"d")}

    wanted = {b"to-a": b"new", b"to-b": b"b", b"to-c": b"c"}
    until(shard, lambda: delivered(shard) == wanted)
    (record, *_) = (r for r in read_topic(shard.servers, shard.target) if r.key == b"to-a")
    assert record.headers[0] == ("own", b"kept")
    assert dict(record.headers)["UNIQ_KEY"] == b"a"


def test_what_happens_at_the_source_later_replaces_and_cancels_timers(
    shard: SparklessShard,
) -> None:
    topic, later = source_of(shard), now_s() + 3_600
    for number, keys in ((0, (b"a", b"b")), (1, (b"c",))):
        shard.send(topic, number, *(etf1(shard, key, b"1", later) for key in keys))
    assert counts(imported(shard)) == {"read": 3, "written": 3}
    shard.send(topic, 0, (b"a", None, []), etf1(shard, b"b", b"2", now_s() - 60))
    again = {"already_done": 3, "read": 2, "written": 1, "cancelled": 1, "past_due": 1}
    assert counts(imported(shard)) == again
    until(shard, lambda: delivered(shard) == {b"to-b": b"2"})
    taken = [
        (record.partition, record.key, record.value)
        for record in read_topic(shard.servers, shard.timers)
        if "TIMER_ORIGIN" not in dict(record.headers)  # which dequeue writes for cancels
    ]
    first, then = [(0, b"a", b"1"), (0, b"b", b"1")], [(0, b"a", None), (0, b"b", b"2")]
    assert taken == [*first, *then, (1, b"c", b"1")]


@pytest.mark.parametrize("config", ["karafka"], indirect=True)
def test_karafkas_envelopes(shard: SparklessShard) -> None:
    due_s = int(now_s()) - 60

    def envelope(key: bytes, kind: bytes = b"schedule") -> Message:
        headers: list[Header] = [
            ("schedule_schema_version", b"1.0.0"),
            ("schedule_source_type", kind),
            ("schedule_target_epoch", b"%d" % due_s),
            ("schedule_target_topic", shard.target.encode()),
            ("schedule_target_key", key),
        ]
        return key, b"body", headers

    cancelled = envelope(b"cancelled", b"cancel")
    delivered_before: Message = (b"d", None, [("schedule_source_type", b"tombstone")])
    shard.send(source_of(shard), 0, envelope(b"d"), envelope(b"cancelled"), envelope(b"k"))
    shard.send(source_of(shard), 0, cancelled, delivered_before)
    verdict = counts(imported(shard, "karafka"))
    assert verdict == {"read": 5, "written": 1, "not_waiting": 4, "past_due": 1}
    until(shard, lambda: delivered(shard) == {b"k": b"body"})


@pytest.mark.parametrize("committed", [True, False])
def test_an_import_that_ends_in_the_middle_loses_and_doubles_nothing(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    later = now_s() + 3_600
    rows = [etf1(shard, b"%d" % number, b"v", later) for number in range(9)]
    shard.send(source_of(shard), 0, *rows)
    monkeypatch.setattr(transactional_producer, "transact", failing_third(committed=committed))
    with pytest.raises(PublishDoubt, match=r"4 timers were written before.*nothing is doubled"):
        imported(shard)
    before = 6 if committed else 4
    rest = {"already_done": before, "read": 9 - before, "written": 9 - before}
    assert counts(imported(shard)) == rest
    keys = [record.key for record in read_topic(shard.servers, shard.timers)]
    assert keys == [row[0] for row in rows]


@pytest.mark.crash_matrix
def test_killed_again_and_again_it_writes_each_schedule_once(
    config: Path, shard: SparklessShard
) -> None:
    later, topic = now_s() + 3_600, source_of(shard)
    rows = [etf1(shard, b"%d" % number, b"v", later) for number in range(40_000)]
    for first in range(0, len(rows), 4_000):
        shard.send(topic, first // 4_000 % 2, *rows[first : first + 4_000])
    command = line(config, "import", "etf1", "--from-topic", topic)
    with shard.admin() as admin:
        for more in (1, 1_500, 3_000, 4_500, 6_000):
            end = sum(admin.end_offsets([shard.timers]).values()) + more
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
                while sum(admin.end_offsets([shard.timers]).values()) < end:
                    assert child.poll() is None, "it ends before it is killed"
                child.kill()
    (verdict,) = objects(config, "import", "etf1", "--from-topic", topic)[1]
    assert verdict["complete"]
    assert 0 < verdict["already_done"] < len(rows)
    assert verdict["already_done"] + verdict["read"] == len(rows)
    keys = [int(record.key) for record in read_topic(shard.servers, shard.timers)]
    assert sorted(keys) == list(range(len(rows)))


def test_a_record_that_the_timer_topic_does_not_take_is_refused(shard: SparklessShard) -> None:
    later = now_s() + 3_600
    alter(shard.servers, source_of(shard), {"max.message.bytes": "4000000"})
    shard.send(source_of(shard), 0, etf1(shard, b"large", bytes(3_000_000), later))
    shard.send(source_of(shard), 0, etf1(shard, b"small", b"v", later))
    assert imported(shard)["refused"] == {"record_too_large": 1}
    assert read_topic(shard.servers, shard.timers) == []
    assert imported(shard, skip_refused=True)["written"] == 1
    assert imported(shard)["already_done"] == 2


def test_sources_that_cannot_be_imported(config: Path, shard: SparklessShard) -> None:
    words = ("import", "karafka", "--from-topic", source_of(shard))
    refused = run(config, *words)
    assert refused.returncode == 2
    assert 'needs headers = "karafka"' in refused.stderr
    with pytest.raises(ConfigError, match="a topic of duewheel"):
        imported_from(shard, shard.timers)
    with pytest.raises(ConfigError, match="has no topic"):
        imported_from(shard, "nowhere")

    shard.send(source_of(shard), 0, etf1(shard, b"a", b"1", now_s() + 3_600))
    assert imported(shard, name="mine")["written"] == 1
    other = f"{shard.target}.other"
    with shard.admin() as admin:
        admin.create_topic(other, 1)
    with pytest.raises(ConfigError, match=r"'mine' was begun with another source \(topic: "):
        imported_from(shard, other, name="mine")


def imported_from(shard: SparklessShard, topic: str, **choice: Any) -> dict[str, Any]:
    with kafka_topic_source(shard.settings, "etf1", topic, shard.timers) as source:
        return import_timers(shard.settings, source, Choice(shard.timers, **choice))
