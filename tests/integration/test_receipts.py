"""Receipts on a real broker: written with their deliveries, searched by command and HTTP."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource
from tests.harness.config_file import write_config
from tests.harness.launcher import launch, objects, tail, wait_until
from tests.harness.reader import read_topic
from tests.harness.served import served
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import SparklessShard
from tests.harness.topics import alter

from duewheel.api.receipts import ReceiptFilter, ReceiptList, ReceiptQuery
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.errors import ConfigError
from duewheel.ops.receipts import list_receipts, page_of_receipts
from duewheel.ops.shard.status import read_status
from duewheel.schemas.wire.single_record import Header

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

COUNT, TO_KILL = 40, 2_000


def written(broker: SharedBroker, path: Path, name: str, **sections: Any) -> Path:
    """The configuration of a shard with receipts."""
    timers, receipts = f"{name}.timers", f"{name}.receipts"
    topic = {timers: {"lateness_header": True, "lateness_p99": "1m"}}
    timer = {"receipts_topic": receipts, "targets": [f"{name}*"], "topic": topic}
    return write_config(path, broker.bootstrap_servers, name, timer=timer, **sections)


@pytest.fixture(scope="module")
def config(broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(broker, tmp_path_factory.mktemp("receipts"), "receipted")


@pytest.fixture(scope="module")
def shard(config: Path) -> Iterator[SparklessShard]:
    """One that has delivered timers to two topics, a half of them with an id."""
    shard = SparklessShard(load(config), 1)
    other = f"{shard.target}.other"
    with closing(shard), shard.admin() as admin:
        admin.create_topic(other, 1)
        for number in range(COUNT):
            named = [("UNIQ_KEY", b"id %d" % number)] if number % 2 else []
            target = [shard.target, other][number % 4 == 0].encode()
            headers: list[Header] = [("REAL_TOPIC", target), ("TIMER_DELAY_MS", b"0"), *named]
            shard.send(shard.timers, number % 2, (b"%d" % number, b"value", headers))
        shard.send(shard.timers, 0, (None, b"rejected", [("REAL_TOPIC", shard.target.encode())]))
        shard.pump()
        assert shard.left == COUNT + 1
        yield shard


def receipts_topic(shard: SparklessShard) -> str:
    return f"{shard.settings.app.id}.receipts"


def search(
    shard: SparklessShard, *, limit: int = 1_000, page: str | None = None, **wanted: Any
) -> ReceiptList:
    names = {"since": "from", "until": "to"}
    fields = {names.get(name, name): each for name, each in wanted.items()}
    query = ReceiptQuery.of({**fields, "limit": limit, "page": page})
    return page_of_receipts(shard.settings, query, within_s=60)


def test_each_delivered_message_has_its_receipt(shard: SparklessShard) -> None:
    found = {row.source: row for row in search(shard).receipts}
    messages = [
        message
        for topic in (shard.target, f"{shard.target}.other")
        for message in read_topic(shard.servers, topic)
    ]
    assert len(messages) == len(found) == COUNT
    for message in messages:
        headers = dict(message.headers)
        row = found[headers["TIMER_SOURCE"].decode()]
        assert row.id == headers["UNIQ_KEY"].decode()
        assert (row.target, row.target_partition) == (message.topic, message.partition)
        assert row.due_ms == int(headers["TIMER_DUE_MS"])
        assert row.lateness_ms == row.delivered_ms - row.due_ms
        # Encoded before the transaction that the broker stamps.
        assert 0 <= int(headers["TIMER_LATENESS_MS"]) <= row.lateness_ms + 1


def test_receipts_are_found_by_id_target_and_time(shard: SparklessShard) -> None:
    every = search(shard).receipts
    (one,) = search(shard, id="id 7").receipts
    assert one.source.startswith(f"{shard.timers}-1@")
    (unnamed,) = search(shard, id=f"{shard.timers}-0@0").receipts
    assert unnamed.id == unnamed.source
    assert search(shard, id="id").receipts == []
    assert len(search(shard, target=f"{shard.target}.other").receipts) == COUNT // 4
    assert len(search(shard, target=shard.target).receipts) == COUNT * 3 // 4
    instants = sorted(row.delivered_ms for row in every)
    first, last = instants[0], instants[-1]
    assert len(search(shard, since=str(first), until=str(last + 1)).receipts) == COUNT
    assert search(shard, since=str(last + 1)).receipts == []
    assert search(shard, until=str(first)).receipts == []
    before_last = [row for row in every if row.delivered_ms < last]
    assert search(shard, until=str(last)).receipts == before_last


def test_pages_have_all_receipts_once(shard: SparklessShard) -> None:
    every, rows = search(shard).receipts, list[Any]()
    page: str | None = None
    while (part := search(shard, limit=7, page=page)).next is not None:
        assert len(part.receipts) <= 7
        rows += part.receipts
        page = part.next
    assert [*rows, *part.receipts] == every
    within = page_of_receipts(shard.settings, ReceiptQuery(), within_s=-1)
    assert within.next is not None, "its time is over after the first part"
    with pytest.raises(ConfigError, match="is no page"):
        next(list_receipts(shard.settings, ReceiptFilter(), "1"))


def test_what_others_wrote_there_is_left_out(shard: SparklessShard) -> None:
    topic = receipts_topic(shard)
    before = len(search(shard).receipts)
    with closing(KafkaProducer(bootstrap_servers=shard.servers)) as producer:
        for value in (b"no json", b"[]", b'{"source": 1}', b"\xff", None):
            producer.send(topic, value, key=b"id 7").get(timeout=30)
    assert len(search(shard).receipts) == before
    assert len(search(shard, id="id 7").receipts) == 1


def test_the_command_and_the_api_show_them(config: Path, shard: SparklessShard) -> None:
    code, (row,) = objects(config, "receipts", "--id", "id 9")
    assert (code, row["id"], row["target"]) == (0, "id 9", shard.target)
    with served(shard.settings) as client:
        answer = client.get("/v1/receipts", params={"id": "id 9"}).json()
        assert answer == {"receipts": [row], "next": None}
        future = {"from": str(SystemClock().now_ms() + 1_000)}
        assert client.get("/v1/receipts", params=future).json()["receipts"] == []
        page = client.get("/v1/receipts", params={"limit": 3}).json()
        rest = client.get("/v1/receipts", params={"page": page["next"], "limit": 1_000}).json()
        assert (len(page["receipts"]), len(rest["receipts"])) == (3, COUNT - 3)
        assert client.get("/v1/receipts", params={"from": "soon"}).status_code == 422


def test_the_objective_counts_each_delivery(shard: SparklessShard) -> None:
    (objective,) = shard.statistics.lateness.objectives.values()
    assert (objective.limit_ms, objective.delivered, objective.late) == (60_000, COUNT, 0)


def test_init_makes_the_topic_for_a_week_and_accepts_a_compacted_one(shard: SparklessShard) -> None:
    topic = receipts_topic(shard)
    with closing(KafkaAdminClient(bootstrap_servers=shard.servers)) as client:
        resource = ConfigResource("TOPIC", topic)
        found = client.describe_configs([resource], config_filter="all")["topic"][topic]
    made = {name: found[name]["value"] for name in ("cleanup.policy", "retention.ms")}
    assert made == {"cleanup.policy": "delete", "retention.ms": str(7 * 86_400_000)}
    alter(shard.servers, topic, {"cleanup.policy": "compact", "retention.ms": "-1"})
    with shard.admin() as admin:
        assert [
            f.state.value for f in admin.topic_findings(shard.settings) if f.topic == topic
        ] == ["found"]


def test_while_the_topic_is_missing_only_timers_with_receipts_wait(shard: SparklessShard) -> None:
    """They are parked, and no transaction fails; made again, the topic has their receipts."""
    topic, before = receipts_topic(shard), shard.statistics
    with closing(KafkaAdminClient(bootstrap_servers=shard.servers)) as client:
        client.delete_topics([topic])
        wait_until(lambda: topic not in client.list_topics(), "the topic is still there")
    shard.forget_targets()
    headers: list[Header] = [
        ("REAL_TOPIC", shard.target.encode()),
        ("TIMER_DELAY_MS", b"0"),
    ]
    shard.send(shard.timers, 0, (b"held", b"up", headers))
    shard.send(shard.timers, 0, (None, b"bad", headers[:1]))
    shard.pump()
    now = shard.statistics
    assert sum(now.dead_letters.values()) == sum(before.dead_letters.values()) + 1, "no receipt"
    assert (now.parked, now.doubts) == ({shard.target: 1}, before.doubts)
    assert b"up" not in [record.value for record in read_topic(shard.servers, shard.target)]
    with shard.admin() as admin:
        admin.init_topics(shard.settings)

    def has_left() -> bool:
        shard.pump()
        return shard.statistics.delivered > before.delivered

    wait_until(has_left, "it never comes")
    values = [record.value for record in read_topic(shard.servers, shard.target)]
    assert (values.count(b"up"), len(search(shard).receipts)) == (1, 1)


def test_without_the_setting_there_are_none_to_search(shard: SparklessShard) -> None:
    timer = shard.settings.timer.model_copy(update={"receipts_topic": None})
    settings = shard.settings.model_copy(update={"timer": timer})
    with pytest.raises(ConfigError, match=r"timer\.receipts_topic names no topic"):
        next(list_receipts(settings, ReceiptFilter()))


def test_over_kills_of_dequeue_each_message_has_one_receipt(
    broker: SharedBroker, tmp_path: Path
) -> None:
    """Its process is killed among some hundred transactions, again and again."""
    config = written(broker, tmp_path, "killed", dequeue={"chunk_records": 10})
    settings = load(config)
    log, target = config.with_name("dequeue.log"), f"{settings.app.id}.orders"
    with closing(SparklessShard(settings, 1)) as shard:
        headers: list[Header] = [("REAL_TOPIC", target.encode()), ("TIMER_DELAY_MS", b"0")]
        shard.send(shard.timers, 0, *((b"%d" % n, b"value", headers) for n in range(TO_KILL)))

        def are_taken() -> bool:
            """On a busy host the marker of a committed transaction comes some time later."""
            shard.take()
            return sum(shard.engine.marks.values()) >= TO_KILL

        wait_until(are_taken, "the messages cannot be read")
    room = {"max.message.bytes": "2000000"}  # as `init` would make it; the shard has made it plain
    alter(broker.bootstrap_servers, settings.dead_letter_topic, room)

    for goal in (200, 700, 1_100, TO_KILL):
        process = launch(config, "dequeue")
        wait_until(
            lambda: read_status(settings, SystemClock()).delivered >= goal,  # noqa: B023 - called at once
            lambda: tail(log),
            every_s=0.005,
        )
        assert process.end(signal.SIGKILL, 30)

    messages = read_topic(broker.bootstrap_servers, target)
    delivered = sorted(dict(message.headers)["TIMER_SOURCE"].decode() for message in messages)
    receipts = sorted(row.source for row in list_receipts(settings, ReceiptFilter()))
    assert receipts == delivered
    assert len(set(receipts)) == len(receipts) == TO_KILL
