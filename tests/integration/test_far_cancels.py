"""More cancels than there may be in memory, on a real Kafka and Spark: those of timers that are due
later are put away and hold nobody up; those of timers that are due soon make ingest wait.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from kafka import KafkaProducer
from tests.integration.random_timers import Headers
from tests.integration.reading import read_topic
from tests.integration.whole_shard import CLOCK, Shard

from duewheel.dev_broker import DevBroker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("spark_jars"),
]

CANCELS_MAX = 400
FAR = 5 * CANCELS_MAX
CROWDED, ELSEWHERE = 0, 1  # partitions: where the cancels are, and another one
FULL = "dequeue.cancels_max reached: waiting for deliveries"

Record = tuple[bytes, Headers]


@pytest.fixture
def shard(tmp_path: Path, broker: DevBroker, unique_name: Callable[[str], str]) -> Iterator[Shard]:
    name = unique_name("far")[-40:].lstrip("-")
    shard = Shard(tmp_path, broker.bootstrap_servers, name, dequeue=f"cancels_max = {CANCELS_MAX}")
    try:
        shard.start()
        yield shard
    finally:
        shard.close()


def write(shard: Shard, records: Sequence[Record], partition: int = CROWDED) -> None:
    producer = KafkaProducer(bootstrap_servers=shard.servers, linger_ms=20)
    sent = [
        producer.send(shard.timers, value, headers=headers, partition=partition)
        for value, headers in records
    ]
    producer.flush(timeout=120)
    for record in sent:
        record.get(timeout=1)
    producer.close()


def timers(name: str, count: int, due_ms: int) -> list[Record]:
    """Their ids are their values, and each is due a millisecond after the one before."""
    values = [b"%s %d" % (name.encode(), number) for number in range(count)]
    return [
        (value, [("UNIQ_KEY", value), ("TIMER_DELIVER_MS", b"%d" % (due_ms + number))])
        for number, value in enumerate(values)
    ]


def cancels(some: Sequence[Record]) -> list[Record]:
    return [(b"", [("TIMER_DEL_UNIQKEY", value)]) for value, _ in some]


def due_in_ms(delay_ms: int) -> int:
    return CLOCK.now_ms() + delay_ms


def each_once(*some: Sequence[Record]) -> dict[bytes, int]:
    return {value: 1 for records in some for value, _ in records}


def answers(shard: Shard) -> Counter[tuple[str, str]]:
    """Ids, and what was told of them."""
    assert shard.settings.timer.reply_topic is not None
    told = [
        json.loads(r.value) for r in read_topic(shard.servers, shard.settings.timer.reply_topic)
    ]
    return Counter((each["id"], each["answer"]) for each in told)


def cancelled(*some: Sequence[Record]) -> dict[tuple[str, str], int]:
    return {(value.decode(), "cancelled"): 1 for records in some for value, _ in records}


def require_put_away(shard: Shard) -> None:
    """Wait until no more are in memory than there may be."""
    shard.wait(lambda: shard.scrape("dequeue")["cancels_far"] > FAR - CANCELS_MAX)
    known = shard.scrape("dequeue")
    assert known["cancels_far"] + known["cancels_live"] == FAR
    assert known["answers_given_up_total"] == 0


def kill_dequeue(shard: Shard) -> None:
    """kill -9, until it runs again."""
    killed = shard.status()["dequeue"]["pid"]
    shard.kill("dequeue")
    shard.wait(lambda: shard.status()["dequeue"]["pid"] not in {None, killed})
    shard.wait(lambda: bool(shard.status()["dequeue"]["state"] == "running"))


def test_what_lies_behind_many_cancels_is_delivered(shard: Shard) -> None:
    """Room for these comes in half an hour, long after this test has given up."""
    far = timers("far", FAR, due_in_ms(1_800_000))
    write(shard, [*far, *cancels(far)])
    behind = timers("behind", 20, due_in_ms(5_000))
    write(shard, behind)
    shard.wait(lambda: len(shard.arrivals.first) >= len(behind))
    shard.wait(lambda: answers(shard).total() >= FAR)
    require_put_away(shard)

    kill_dequeue(shard)
    again = timers("again", 20, due_in_ms(2_000))
    write(shard, again)
    shard.wait(lambda: len(shard.arrivals.first) >= len(behind) + len(again))
    require_put_away(shard)
    assert shard.arrivals.count == each_once(behind, again)
    assert answers(shard) == cancelled(far), "each once, over the kill"
    assert shard.stop() == 0
    shard.command("check")


@pytest.mark.crash_matrix
def test_what_was_put_away_still_acts_when_its_timers_are_due(shard: Shard) -> None:
    """A hundred seconds, for nothing goes to the disk that is due within a minute."""
    far = timers("far", FAR, due_in_ms(100_000))
    write(shard, [*far, *cancels(far)])
    shard.wait(lambda: answers(shard).total() >= FAR)
    require_put_away(shard)
    kill_dequeue(shard)
    among = timers("among", FAR, due_in_ms(101_000))
    write(shard, among)
    shard.wait(lambda: len(shard.arrivals.first) >= len(among))
    shard.wait(lambda: bool(shard.status()["pending"] == 0))
    assert shard.arrivals.count == each_once(among)
    known = shard.scrape("dequeue")
    assert (known["cancelled_total"], known["cancels_far"]) == (FAR, 0)
    assert answers(shard) == cancelled(far)


@pytest.mark.crash_matrix
def test_ingest_waits_while_there_is_no_room_for_the_next_cancel(shard: Shard) -> None:
    """Half a minute, for all of them must be there before the first of their timers is due."""
    room_ms = due_in_ms(30_000)
    fill, beyond = timers("fill", CANCELS_MAX, room_ms), timers("beyond", 100, room_ms + 15_000)
    beside, behind, later = (
        timers(name, 20, due_in_ms(0)) for name in ("beside", "behind", "later")
    )
    write(shard, [*fill, *beyond, *cancels(fill)])
    write(shard, beside, ELSEWHERE)
    write(shard, [*cancels(beyond), *behind])
    shard.wait(lambda: shard.scrape("ingest")["cancels_full_waiting"] > 0)
    assert shard.events(FULL)
    shard.wait(lambda: len(shard.arrivals.first) >= len(beside))
    assert shard.arrivals.count == each_once(beside), "the other partition goes on"
    write(shard, later, ELSEWHERE)
    shard.wait(lambda: bool(shard.status()["pending"] == 0))
    shard.wait(lambda: len(shard.arrivals.first) >= 60)
    assert shard.arrivals.count == each_once(beside, behind, later)
    # Also in the other partition what was written later: Spark had to do with the batch before.
    assert all(shard.arrivals.first[value][3] >= room_ms for value, _ in [*behind, *later])
    assert answers(shard) == cancelled(fill, beyond)
    known = shard.scrape("dequeue")
    assert (known["cancels_far"], known["answers_given_up_total"]) == (0, 0)
    assert shard.scrape("ingest")["cancels_full_waiting"] == 0
