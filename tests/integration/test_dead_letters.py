"""Dead letters on a real broker: made by both processes' code, listed, and replayed once."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import MessageSizeTooLargeError
from tests.harness.launcher import objects, run, wait_until
from tests.harness.reader import read_topic
from tests.harness.sparkless_shard import (
    Message,
    SparklessShard,
    failing_third,
    opening,
    too_slow_above,
    until,
)
from tests.harness.topics import alter

from duewheel import factory
from duewheel.api.dead_letters import DeadLetterFilter, ReplayFilter
from duewheel.clock import SystemClock
from duewheel.config.instants import utc_text
from duewheel.config.settings import load
from duewheel.deadline import Deadline
from duewheel.errors import ConfigError, Displaced, PublishDoubt
from duewheel.kafka.ledger import transactional_producer
from duewheel.kafka.ledger.transactional_producer import commit_all
from duewheel.ops.dead_letters import listing
from duewheel.ops.dead_letters import replay as replay_module
from duewheel.ops.dead_letters.listing import list_letters, one_letter
from duewheel.ops.dead_letters.replay import replay
from duewheel.schemas.wire.single_record import Header

pytestmark = pytest.mark.kafka

DENIED = "orders.denied"

ODD: list[Header] = [("a", None), ("a", b""), ("b", bytes(range(256))), ("a", None)]


@pytest.fixture
def shard(config: Path, request: pytest.FixtureRequest) -> Iterator[SparklessShard]:
    """With one partition of dead letters, if the test asks for no other number."""
    shard = SparklessShard(load(config), getattr(request, "param", 1))
    yield shard
    shard.close()


def test_a_header_whose_name_is_no_text_stops_no_list_and_no_replay(shard: SparklessShard) -> None:
    ends = [
        ("TIMER_ERROR_CODE", b"mine"),
        ("TIMER_ERROR", b"x"),
        ("REAL_TOPIC", shard.target.encode()),
    ]
    ends.append(("TIMER_SOURCE", f"{shard.timers}-0@0".encode()))
    letters: list[Message] = [
        (b"a", b"1", [("\udcff", b"1"), *ends]),  # the byte 0xff
        (b"b", None, [("n", None), *ends]),
    ]
    shard.send(shard.settings.dead_letter_topic, 0, *letters)
    rows = list_letters(shard.settings, DeadLetterFilter())
    assert [row.key for row in rows] == ["a", "b"]
    one = one_letter(shard.settings, 0, 0, body=False)
    assert one is not None
    assert one.header_names and one.header_names[0] == r"\xff"
    assert shard.outcomes() == (2, {})


def test_a_rejected_message_keeps_every_byte_and_goes_back_to_its_timer_topic(
    config: Path, shard: SparklessShard
) -> None:
    sent: list[Message] = [
        (None, None, [*ODD, ("DELAY", b"1")]),
        (b"", b"", [("DELAY", b"1"), ("TIMER_ERROR_CODE", b"mine"), ("REAL_TOPIC", None)]),
        (b"\xff\0", bytes(range(256)) * 9, [("TIMER_DELAY_MS", b"soon"), *ODD]),
        (b"k", b"v", []),
    ]
    shard.send(shard.timers, 1, *sent)
    shard.pump()

    letters = shard.letters()
    codes = ["no_target_topic", "bad_target_topic", "bad_header", "no_due_time"]
    for (key, value, headers), code, letter in zip(sent, codes, letters, strict=True):
        assert (letter.key, letter.value) == (key, value)
        assert letter.headers[: len(headers)] == headers
        names = ["TIMER_ERROR_CODE", "TIMER_ERROR", "TIMER_SOURCE"]
        assert [name for name, _ in letter.headers[len(headers) :]] == names
        assert letter.headers[len(headers)][1] == code.encode()

    exit_code, rows = objects(config, "dlq", "list")
    assert exit_code == 0
    assert [row["code"] for row in rows] == codes
    assert rows[2]["source"] == f"{shard.timers}-1@2"
    assert [row.get("key") for row in rows] == [None, "", None, "k"]
    assert [row["value_bytes"] for row in rows] == [None, 0, 2304, 1]
    assert not any(row["replayed"] for row in rows)
    assert rows[2]["key_base64"] == "/wA="
    assert [row["written_ms"] for row in rows] == [letter.timestamp for letter in letters]
    assert objects(config, "dlq", "list", "--code", "no_due_time", "--limit", "5")[1] == rows[3:]
    page = [f"0@{row['offset']}" for row in rows]
    second = run(config, "dlq", "list", "--page", page[1], "--limit", "1")
    assert second.stdout.startswith(page[2]) and len(second.stdout.splitlines()) == 1
    assert f"more dead letters follow: --page {page[2]}" in second.stderr
    assert run(config, "dlq", "list", "--page", page[3]).stderr == "duewheel: no dead letters\n"

    # The cause is gone: there is a mapping now.
    assert shard.outcomes(code="no_target_topic", dry_run=True) == (1, {})
    assert objects(config, "dlq", "replay", "--code", "no_target_topic") == (
        0,
        [{"dry_run": False, "replayed": 1, "topics": {shard.timers: 1}, "refused": {}}],
    )
    again = read_topic(shard.servers, shard.timers)[-1]
    assert (again.partition, again.key, again.value, again.headers) == (1, *sent[0])
    mapped = shard.settings.timer.model_copy(update={"mapping": {shard.timers: shard.target}})
    shard.pump(factory.contract(shard.settings.model_copy(update={"timer": mapped})))
    time.sleep(1.2)
    shard.pump()
    (delivered,) = read_topic(shard.servers, shard.target)
    assert (delivered.key, delivered.value, delivered.headers[: len(ODD)]) == (None, None, ODD)

    assert [row["replayed"] for row in objects(config, "dlq", "list")[1]] == [True] + [False] * 3
    assert shard.outcomes(code="no_target_topic") == (0, {})
    assert shard.outcomes() == (3, {}), "the other codes have not been passed over"
    assert shard.outcomes() == (0, {})


def test_a_failed_delivery_goes_to_its_real_topic_once_that_is_there(
    config: Path, shard: SparklessShard
) -> None:
    missing = f"{shard.target}.missing"
    asked: list[Header] = [("TIMER_DELAY_MS", b"0"), ("REAL_TOPIC", missing.encode())]
    own_id: list[Header] = [("REAL_QID", b"1"), ("UNIQ_KEY", b"id 1")]
    shard.send(shard.timers, 0, (None, None, [*asked, *own_id, *ODD]), (b"k", b"v", [*ODD, *asked]))
    until(shard, lambda: len(shard.letters()) == 2)  # parked until the lookup of the topic ends
    letters = shard.letters()
    assert [(r.key, r.value, r.headers[: len(ODD)]) for r in letters] == [
        (None, None, ODD),
        (b"k", b"v", ODD),
    ]
    rest = [name for name, _ in letters[0].headers[len(ODD) :]]
    kept = ["REAL_TOPIC", "REAL_QID", "TIMER_DUE_MS", "UNIQ_KEY"]
    assert rest == ["TIMER_ERROR_CODE", "TIMER_ERROR", *kept, "TIMER_SOURCE"]

    assert shard.outcomes(dry_run=True) == (0, {"unknown_target_topic": 2})
    exit_code, _ = objects(config, "dlq", "replay")
    assert exit_code == 1, "they are dead letters again"
    again = shard.letters()[2:]
    assert [r.headers for r in again] == [r.headers for r in letters], "with today's reason"

    with shard.admin() as admin:
        admin.create_topic(missing, 2)
    assert shard.outcomes() == (2, {})
    assert shard.outcomes() == (0, {})
    delivered = {record.key: record for record in read_topic(shard.servers, missing)}
    due_ms = dict(letters[0].headers)["TIMER_DUE_MS"]
    assert delivered[None].partition == 1
    assert delivered[None].headers == [
        *ODD,
        ("TIMER_SOURCE", f"{shard.timers}-0@0".encode()),
        ("TIMER_DUE_MS", due_ms),
        ("UNIQ_KEY", b"id 1"),
    ]
    assert delivered[b"k"].headers[-1] == ("UNIQ_KEY", f"{shard.timers}-0@1".encode())
    assert len(delivered) == 2


def test_answers_that_found_no_topic_go_there_once_it_is_there(
    config: Path, request: pytest.FixtureRequest
) -> None:
    reply = f"{load(config).app.id}.replies"
    text = config.read_text()
    config.write_text(text.replace("[timer]\n", f'[timer]\nreply_topic = "{reply}"\n'))
    shard: SparklessShard = request.getfixturevalue("shard")
    with shard.admin() as admin:
        admin.delete_topics([reply])
    timer: list[Header] = [
        ("REAL_TOPIC", shard.target.encode()),
        ("TIMER_DELAY_SEC", b"900"),
        ("UNIQ_KEY", b"id 0"),
    ]
    cancels: list[Message] = [
        (b"k", b"mine", [*ODD, ("TIMER_DEL_UNIQKEY", b"id %d" % number)]) for number in (0, 1)
    ]
    shard.send(shard.timers, 0, (b"k", b"v", timer), *cancels)
    until(shard, lambda: len(shard.letters()) == 2)
    reasons = [dict(letter.headers) for letter in shard.letters()]
    assert [reason["TIMER_ERROR_CODE"] for reason in reasons] == [b"unknown_target_topic"] * 2
    assert all(reply.encode() in reason["TIMER_ERROR"] for reason in reasons)
    assert shard.outcomes() == (0, {"unknown_target_topic": 2})

    with shard.admin() as admin:
        admin.init_topics(shard.settings)
    to_reply: list[Header] = [("TIMER_ERROR_CODE", b"x"), ("REAL_TOPIC", reply.encode())]
    forged = [*to_reply, ("TIMER_SOURCE", b"t-0@1")]
    shard.send(shard.settings.dead_letter_topic, 0, (b"k", b"v", forged))
    assert shard.replay(code="unknown_target_topic")["topics"] == {reply: 2}
    assert shard.outcomes() == (0, {"forbidden_target": 1}), "it is for answers only"
    answers = read_topic(shard.servers, reply)
    for number, (answer, word) in enumerate(zip(answers, ["cancelled", "unknown"], strict=True)):
        source, timer_id = f"{shard.timers}-0@{1 + number}", f"id {number}"
        assert answer.key == b"k"
        assert json.loads(answer.value) == {
            "answer": word,
            "id": timer_id,
            "source": source,
            "request": "cancel",
        }
        assert answer.headers == [
            *ODD,
            ("TIMER_ANSWER", word.encode()),
            ("UNIQ_KEY", timer_id.encode()),
            ("TIMER_SOURCE", source.encode()),
        ]


def test_a_closed_target_means_a_dead_letter_until_it_is_opened(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = f"o-{shard.target}"
    with shard.admin() as admin:
        admin.create_topic(closed, 1)
    request: list[Header] = [("TIMER_DELAY_MS", b"0"), ("REAL_TOPIC", closed.encode())]
    shard.send(shard.timers, 0, (b"k", b"v", request))
    shard.pump()
    (letter,) = shard.letters()
    assert dict(letter.headers)["TIMER_ERROR_CODE"] == b"target_not_allowed"
    assert (letter.key, letter.value, letter.headers[:2]) == (b"k", b"v", request)

    # Ingest would reject it again: the dry run counts that, and the real one does not try.
    for dry_run in (True, False):
        assert shard.outcomes(dry_run=dry_run) == (0, {"target_not_allowed": 1})
    again = shard.letters()[1:]
    assert [r.headers for r in again] == [letter.headers], "once, with the present reason"

    opened = shard.settings.timer.model_copy(update={"targets": (closed,)})
    shard.settings = shard.settings.model_copy(update={"timer": opened})
    with pytest.raises(ConfigError, match=r"by .*targets.*: run `duewheel reconfigure`"):
        shard.replay()
    # As `reconfigure` would: ingest below gets them directly.
    monkeypatch.setattr(replay_module, "require_in_force", lambda *_: None)
    for dry_run in (True, False):
        assert shard.outcomes(dry_run=dry_run) == (1, {})
    shard.pump(factory.contract(shard.settings))
    shard.pump()
    (delivered,) = read_topic(shard.servers, closed)
    assert (delivered.key, delivered.value) == (b"k", b"v")


def test_own_topics_are_no_targets_and_a_replay_ends(shard: SparklessShard) -> None:
    own = [
        shard.timers,
        shard.settings.dead_letter_topic,
        shard.settings.state_topic,
        "__consumer_offsets",
    ]
    delay: Header = ("TIMER_DELAY_MS", b"0")
    rows: list[Message] = [(b"k", b"v", [delay, ("REAL_TOPIC", name.encode())]) for name in own]
    shard.send(shard.timers, 0, *rows)
    shard.pump()
    assert [dict(r.headers)["TIMER_ERROR_CODE"] for r in shard.letters()] == [
        b"forbidden_target"
    ] * 4

    # Back at ingest they are judged as before: dead letters again, and no more than that.
    assert shard.outcomes() == (4, {})
    shard.pump()
    assert len(shard.letters()) == 8
    for topic in own:
        with pytest.raises(ConfigError, match="nothing can be replayed to"):
            shard.replay(to_topic=topic)

    # Dead letters that somebody has forged.
    forged: list[list[Header]] = [
        [("TIMER_ERROR_CODE", b"x"), ("REAL_TOPIC", name.encode()), ("TIMER_SOURCE", b"t-0@1")]
        for name in [*own, DENIED]
    ]
    forged += [
        [("TIMER_ERROR_CODE", b"x"), ("TIMER_SOURCE", f"{name}-0@1".encode())] for name in own[1:]
    ]
    forged += [[], [("TIMER_ERROR_CODE", b"x")]]
    dead = shard.settings.dead_letter_topic
    before = len(read_topic(shard.servers, shard.timers))
    shard.send(dead, 0, *[(b"k", b"v", headers) for headers in forged])
    refused = {
        "forbidden_target": 4,
        "target_not_allowed": 1,
        "not_a_timer_topic": 3,
        "not_a_dead_letter": 2,
    }
    assert shard.outcomes() == (4, refused)
    assert len(read_topic(shard.servers, shard.timers)) == before + 4
    assert shard.outcomes() == (0, refused), "each is in a run once"


def numbered(shard: SparklessShard, count: int) -> None:
    """So many dead letters, whose keys and values are numbers."""
    rows: list[Message] = [(b"%d" % number, b"%d" % number, []) for number in range(count)]
    shard.send(shard.timers, 0, *rows)
    shard.pump()


def values(shard: SparklessShard, topic: str) -> list[int]:
    return sorted(int(record.value) for record in read_topic(shard.servers, topic))


@pytest.mark.parametrize("shard", [3], indirect=True)
@pytest.mark.parametrize("committed", [True, False])
def test_a_replay_that_ends_in_the_middle_loses_and_doubles_nothing(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    numbered(shard, 45)
    monkeypatch.setattr(transactional_producer, "commit_all", failing_third(committed=committed))
    monkeypatch.setattr(transactional_producer, "open_producer", opening(1))
    with pytest.raises(PublishDoubt, match="nothing is doubled"):
        shard.replay(to_topic=shard.target, chunk_records=10)
    monkeypatch.undo()
    before = values(shard, shard.target)
    assert len(before) in range(3 if committed else 2, 31)
    assert shard.outcomes(to_topic=shard.target) == (45 - len(before), {})
    assert values(shard, shard.target) == list(range(45))
    assert shard.outcomes(to_topic=shard.target) == (0, {})


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("shard", [3], indirect=True)
def test_a_replay_draws_nothing_and_tells_its_caller_how_far_it_is(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server replays, too: a bar in its terminal would be drawn over its log."""
    numbered(shard, 45)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    told: list[tuple[int, int | None]] = []
    wanted, clock = ReplayFilter(), SystemClock()
    replay(
        *(shard.settings, clock, wanted),
        dry_run=True,
        chunk_records=10,
        advanced=lambda done, total: told.append((done, total)),
    )
    assert terminal.getvalue() == ""
    assert told == sorted(told)
    assert told[0][0] < told[-1][0] == told[-1][1]


@pytest.mark.parametrize("shard", [3], indirect=True)
@pytest.mark.parametrize("committed", [True, False])
def test_a_replay_finds_out_what_became_of_a_transaction(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    numbered(shard, 45)
    monkeypatch.setattr(transactional_producer, "commit_all", failing_third(committed=committed))
    if committed:
        assert shard.replay(to_topic=shard.target, chunk_records=10)["replayed"] == 45
    else:
        with pytest.raises(PublishDoubt, match="nothing is doubled"):
            shard.replay(to_topic=shard.target, chunk_records=10)
        left = 45 - len(values(shard, shard.target))
        assert shard.outcomes(to_topic=shard.target) == (left, {})
    assert values(shard, shard.target) == list(range(45))
    assert shard.outcomes(to_topic=shard.target) == (0, {})


def test_a_replay_whose_transactions_are_too_slow_halves_them(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered(shard, 45)
    monkeypatch.setattr(transactional_producer, "commit_all", too_slow_above(3))
    assert shard.outcomes(to_topic=shard.target, limit=17) == (17, {})
    assert values(shard, shard.target) == list(range(17))
    assert shard.outcomes(to_topic=shard.target) == (28, {})
    assert values(shard, shard.target) == list(range(45))


def test_a_replay_of_one_code_counts_what_was_committed_in_a_doubt(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The position as it is read has all partitions; that of the plan only those of the code."""
    numbered(shard, 45)
    rows = list(list_letters(shard.settings, DeadLetterFilter()))
    monkeypatch.setattr(transactional_producer, "commit_all", failing_third(committed=True))
    outcome = shard.replay(to_topic=shard.target, chunk_records=10, code=rows[0].code)
    assert outcome["replayed"] == 45
    assert values(shard, shard.target) == list(range(45))


def test_a_replay_of_one_timer_topic_leaves_the_others(shard: SparklessShard) -> None:
    letters: list[Message] = []
    for number in range(20):
        source = f"{shard.timers if number % 4 == 0 else 'others'}-0@{number}".encode()
        code = b"b" if number % 2 else b"a"
        ends = [("TIMER_ERROR_CODE", code), ("TIMER_SOURCE", source)]
        letters.append((b"k", b"%d" % number, [*ends]))
    shard.send(shard.settings.dead_letter_topic, 0, *letters)
    own: dict[str, Any] = {"timer_topic": shard.timers, "to_topic": shard.target}
    assert shard.outcomes(**own, code="b") == (0, {})
    assert shard.outcomes(**own, limit=2) == (2, {})
    assert shard.outcomes(**own, code="a", chunk_records=10) == (3, {})
    assert shard.outcomes(**own) == (0, {})
    assert values(shard, shard.target) == [0, 4, 8, 12, 16]
    with pytest.raises(ConfigError, match="is no timer topic"):
        shard.replay(timer_topic="others")
    assert shard.outcomes(to_topic=shard.target) == (15, {})
    assert values(shard, shard.target) == list(range(20))


@pytest.mark.parametrize("selection", [{"timer_topic": True}, {"code": "a"}])
def test_a_replay_that_ends_early_is_continued_by_the_next_one(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch, selection: dict[str, Any]
) -> None:
    """Somebody else's letters may take longer than a request may."""
    monkeypatch.setattr(listing, "_GROUP_BYTES", 1)
    topic = shard.settings.dead_letter_topic
    for number, (name, code) in enumerate([("others", b"b")] * 2 + [(shard.timers, b"a")] * 3):
        source = ("TIMER_SOURCE", f"{name}-0@{number}".encode())
        letter: Message = (b"k", b"%d" % number, [("TIMER_ERROR_CODE", code), source])
        shard.send(topic, 0, letter)
    own: dict[str, Any] = {**selection}
    if "timer_topic" in own:
        own["timer_topic"] = shard.timers
    wanted = ReplayFilter(**own, to_topic=shard.target)

    def once(*, dry_run: bool = False) -> int:
        """Of the one chunk that a replay without any time takes."""
        result = replay(shard.settings, SystemClock(), wanted, dry_run=dry_run, within_s=-1)
        return result.replayed

    for _ in range(2):
        with pytest.raises(
            ConfigError, match="a dry run of `duewheel dlq replay` reads the others"
        ):
            once(dry_run=True)
    for _ in range(2):
        with pytest.raises(ConfigError, match="a new request reads the others"):
            once()
    assert once(dry_run=True) == 1
    assert [once() for _ in range(4)] == [1, 1, 1, 0]
    assert values(shard, shard.target) == [2, 3, 4]


def test_a_replay_that_is_fenced_ends_and_disturbs_the_other_no_more(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fence that one, if it took the transactional id back."""
    numbered(shard, 30)
    opened: list[Any] = []

    def fenced(producer: Any, batches: Any, now_ms: int, deadline: Deadline, **_: Any) -> Any:
        monkeypatch.setattr(transactional_producer, "commit_all", commit_all)
        assert shard.outcomes(to_topic=shard.target, limit=7) == (7, {})
        monkeypatch.setattr(transactional_producer, "open_producer", opened.append)
        return commit_all(producer, batches, now_ms, deadline)

    monkeypatch.setattr(transactional_producer, "commit_all", fenced)
    with pytest.raises(Displaced, match="0 dead letters were replayed before"):
        shard.replay(to_topic=shard.target)
    assert opened == []
    assert values(shard, shard.target) == list(range(7))


def test_a_limit_and_what_the_target_does_not_take(shard: SparklessShard) -> None:
    numbered(shard, 30)
    assert shard.outcomes(to_topic=shard.target, limit=7) == (7, {})
    assert shard.outcomes(to_topic=shard.target, limit=7, dry_run=True) == (7, {})
    assert shard.outcomes(to_topic=shard.target, limit=8) == (8, {})
    assert values(shard, shard.target) == list(range(15))
    rows = list(list_letters(shard.settings, DeadLetterFilter.of({"from": "10"})))
    assert [row.replayed for row in rows] == [True] * 5 + [False] * 15

    with shard.admin() as admin:
        admin.create_topic(f"{shard.target}.small", 1)
        alter(shard.servers, f"{shard.target}.small", {"max.message.bytes": "2000"})
    shard.send(shard.timers, 0, (b"k", bytes(5_000), []))
    shard.pump()
    assert shard.outcomes(to_topic=f"{shard.target}.small") == (15, {"record_too_large": 1})
    assert values(shard, f"{shard.target}.small") == list(range(15, 30))
    assert len(shard.letters()[-1].value) == 5_000


def refuses(servers: str, topic: str) -> bool:
    """Whether the broker follows a lower max.message.bytes by now; what it takes is aborted."""
    producer = KafkaProducer(bootstrap_servers=servers, transactional_id=f"probe {topic}")
    with closing(producer):
        producer.init_transactions()
        producer.begin_transaction()
        try:
            producer.send(topic, bytes(200)).get(30)
        except MessageSizeTooLargeError:
            return True
        finally:
            producer.abort_transaction()
    return False


@pytest.mark.parametrize("selection", [{}, {"code": "no_due_time"}])
def test_a_replay_that_another_one_has_overtaken_doubles_nothing(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch, selection: dict[str, Any]
) -> None:
    numbered(shard, 30)
    small = f"{shard.target}.small"
    with shard.admin() as admin:
        admin.create_topic(small, 1)
    taken: list[dict[str, Any]] = []

    def overtaken(producer: Any, batches: Any, now_ms: int, deadline: Deadline, **_: Any) -> Any:
        """The target shrinks, so the second chunk is refused; until its producer is opened again,
        another run replays all that is left.
        """
        if read_topic(shard.servers, small):
            alter(shard.servers, small, {"max.message.bytes": "90"})
            wait_until(lambda: refuses(shard.servers, small), "the setting has no effect")
            outcomes = commit_all(producer, batches, now_ms, deadline)
            assert any(outcome.error is not None for outcome in outcomes)
            monkeypatch.setattr(transactional_producer, "commit_all", commit_all)
            taken.append(shard.replay(to_topic=shard.target, **selection))
            return outcomes
        return commit_all(producer, batches, now_ms, deadline)

    monkeypatch.setattr(transactional_producer, "commit_all", overtaken)
    own = shard.replay(to_topic=small, chunk_records=10, **selection)
    assert [each["replayed"] for each in taken] == [30 - own["replayed"]]
    assert 0 < own["replayed"] < 30
    assert sorted(values(shard, small) + values(shard, shard.target)) == list(range(30))
    assert shard.outcomes(to_topic=shard.target) == (0, {})


def test_where_a_listing_begins(shard: SparklessShard) -> None:
    numbered(shard, 3)
    time.sleep(0.05)
    between = SystemClock().now_ms()
    time.sleep(0.05)
    shard.send(shard.timers, 0, (b"k", b"3", []))
    shard.pump()

    def offsets(since: int | str) -> list[int]:
        wanted = DeadLetterFilter.of({"from": str(since)})
        return [row.offset for row in list_letters(shard.settings, wanted)]

    every = offsets(0)
    assert len(every) == 4
    assert offsets(every[2]) == every[2:]
    assert offsets(utc_text(between)) == every[3:]
    assert offsets(utc_text(between + 10**9)) == []


def test_a_replay_and_a_page_tell_of_dead_letters_that_were_removed_before(
    config: Path, shard: SparklessShard
) -> None:
    topic = shard.settings.dead_letter_topic
    headers: list[Header] = [
        ("TIMER_ERROR_CODE", b"no_due_time"),
        ("TIMER_SOURCE", f"{shard.timers}-0@0".encode()),
    ]
    shard.send(topic, 0, *((b"%d" % number, b"", headers) for number in range(6)))
    assert shard.outcomes(limit=2) == (2, {})
    with closing(KafkaAdminClient(bootstrap_servers=shard.servers)) as client:
        client.delete_records({TopicPartition(topic, 0): 2})
        told = "dead letters may have been removed before a replay read them"
        assert told not in run(config, "dlq", "replay", "--dry-run").stderr, "only replayed ones"
        client.delete_records({TopicPartition(topic, 0): 5})
    for words in (["--dry-run"], []):
        (line,) = map(json.loads, run(config, "dlq", "replay", *words).stderr.splitlines())
        assert line["event"].startswith(told)
        assert (line["partition"], line["from_offset"], line["first_left"]) == (0, 2, 5)
    (line,) = map(json.loads, run(config, "dlq", "list", "--page", "0@1").stderr.splitlines())
    assert (line["page"], line["first"]) == ("0@1", "0@5")
    with closing(KafkaAdminClient(bootstrap_servers=shard.servers)) as client:
        client.delete_records({TopicPartition(topic, 0): -1})
    assert not run(config, "dlq", "replay").stderr, "all of them were replayed"
