"""`duewheel import`, on a real broker, ingested and delivered; and the recipes of
docs/import.md, with real stores.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.harness import foreign_stores
from tests.harness.config_file import write_config
from tests.harness.launcher import line, objects, run
from tests.harness.reader import read_topic
from tests.harness.shared_broker import SharedBroker
from tests.harness.sparkless_shard import (
    Message,
    SparklessShard,
    failing_third,
    opening,
    too_slow_above,
    until,
)

from duewheel.api.dead_letters import ReplayFilter
from duewheel.api.requests import TimerFields
from duewheel.clock import SystemClock
from duewheel.config.settings import load
from duewheel.errors import ConfigError, PublishDoubt
from duewheel.kafka.ledger import transactional_producer
from duewheel.ops.dead_letters.replay import replay
from duewheel.ops.file_import.exactly_once import Choice, import_lines
from duewheel.ops.file_import.line_records import LINE_BYTES_MAX
from duewheel.schemas.wire.single_record import Header

pytestmark = pytest.mark.kafka

Require = Callable[[object, str], None]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "import.md"
HOUR_MS = 3_600_000


def now_ms() -> int:
    return SystemClock().now_ms()


@pytest.fixture
def config(
    broker: SharedBroker,
    tmp_path: Path,
    unique_name: Callable[[str], str],
    request: pytest.FixtureRequest,
) -> Path:
    """Of a shard whose timer topic has the headers of the service that the test asks for."""
    name = unique_name("app")[-40:]
    table = {f'timer.topic."{name}.timers"': {"headers": getattr(request, "param", "native")}}
    return write_config(tmp_path, broker.bootstrap_servers, name, **table)


@pytest.fixture
def shard(config: Path) -> Iterator[SparklessShard]:
    with closing(SparklessShard(load(config), 1)) as shard:
        yield shard


def timer(shard: SparklessShard, key: str, due_ms: int, **more: Any) -> dict[str, Any]:
    return {"topic": shard.target, "key": key, "value": key, "deliver_at": due_ms, **more}


def lines_of(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def imported(
    shard: SparklessShard, content: bytes, name: str = "mine", *, skip_refused: bool = False
) -> dict[str, Any]:
    """The verdict of a run in this process."""
    file, chosen = io.BytesIO(content), Choice(name, skip_refused=skip_refused, chunk_lines=2)
    return import_lines(shard.settings, SystemClock(), file, TimerFields(), chosen).as_json()


def counts(verdict: dict[str, Any]) -> dict[str, int]:
    names = ("already_done", "read", "written", "cancelled", "past_due")
    return {name: verdict[name] for name in names if verdict[name]}


def delivered(shard: SparklessShard) -> dict[bytes, bytes]:
    records = read_topic(shard.servers, shard.target)
    found = {record.key: record.value for record in records}
    assert len(found) == len(records), "none is delivered twice"
    return found


def keys_taken(shard: SparklessShard) -> list[bytes]:
    return [record.key for record in read_topic(shard.servers, shard.timers)]


def test_lines_are_judged_first_then_sent_once_and_delivered(
    config: Path, shard: SparklessShard, tmp_path: Path
) -> None:
    past, later = now_ms() - 60_000, now_ms() + HOUR_MS
    rows = [
        timer(shard, "a", past, id="id-a", headers=[{"name": "own", "value": "kept"}]),
        timer(shard, "b", later, window="1m"),
        timer(shard, "bad", later) | {"topic": "no topic!"},
        timer(shard, "c", past, partition=1),
        {"value": "by options"},
    ]
    file = tmp_path / "timers.jsonl"
    file.write_bytes(lines_of(*rows[:3]) + b"\n" + lines_of(*rows[3:]))
    words = ("import", str(file), "--name", "jobs")
    defaults = ("--target", shard.target, "--delay", "50m", "--key", "d")

    exit_code, (verdict,) = objects(config, *words, *defaults, "--dry-run", "--skip-refused")
    assert (exit_code, verdict["complete"]) == (1, True)
    assert counts(verdict) == {"read": 6, "written": 4, "past_due": 2}
    assert verdict["refused"] == {"unusable": 1}
    assert verdict["targets"] == {shard.target: 4}
    assert verdict["earliest_due_ms"] == past
    assert later <= verdict["latest_due_ms"] <= later + 60_000  # within its window
    assert keys_taken(shard) == []

    stopped = run(config, *words, *defaults)
    assert (stopped.returncode, keys_taken(shard)) == (1, [b"a", b"b"])
    assert "refused: line 3  unusable" in stopped.stdout
    assert "stopped before the first refused line" in stopped.stderr

    file.write_bytes(lines_of(*rows[:2], timer(shard, "good", past)) + lines_of(*rows[3:]))
    exit_code, (verdict,) = objects(config, *words, *defaults)
    assert (exit_code, verdict["complete"]) == (0, True)
    assert counts(verdict) == {"already_done": 2, "read": 3, "written": 3, "past_due": 2}
    exit_code, (verdict,) = objects(config, *words, *defaults)
    assert (exit_code, counts(verdict)) == (0, {"already_done": 5})

    until(shard, lambda: delivered(shard) == {b"a": b"a", b"good": b"good", b"c": b"c"})
    records = {record.key: record for record in read_topic(shard.servers, shard.target)}
    assert records[b"a"].headers[0] == ("own", b"kept")
    assert dict(records[b"a"].headers)["UNIQ_KEY"] == b"id-a"
    assert records[b"c"].partition == 1


def test_settings_that_ingest_does_not_follow_send_no_line(
    shard: SparklessShard, tmp_path: Path
) -> None:
    """A target that `reconfigure` has not opened: each line would become a dead letter."""
    opened = [*shard.settings.timer.targets, "bills"]
    timers = shard.settings.timer.model_copy(update={"targets": tuple(opened)})
    settings = shard.settings.model_copy(update={"timer": timers})
    file = io.BytesIO(lines_of(timer(shard, "a", now_ms())))
    with pytest.raises(ConfigError, match=r"other settings .*, by .*targets.* reconfigure"):
        import_lines(settings, SystemClock(), file, TimerFields(), Choice("mine"))
    with pytest.raises(ConfigError, match="run `duewheel reconfigure`"):
        replay(settings, SystemClock(), ReplayFilter(), dry_run=True)
    assert keys_taken(shard) == []


def test_the_lines_that_are_read_are_reported_after_each_chunk(shard: SparklessShard) -> None:
    file = io.BytesIO(lines_of(*(timer(shard, key, now_ms() + HOUR_MS) for key in "abcde")))
    seen = list[tuple[int, int | None]]()
    choice = Choice("mine", chunk_lines=2, advanced=lambda done, total: seen.append((done, total)))
    import_lines(shard.settings, SystemClock(), file, TimerFields(), choice)
    assert seen == [(2, None), (4, None), (5, None)]


def test_another_file_under_the_name_is_refused(shard: SparklessShard) -> None:
    later = now_ms() + HOUR_MS
    rows = [timer(shard, key, later) for key in "abc"]
    assert imported(shard, lines_of(*rows))["written"] == 3
    for other in (lines_of(*rows[:2]), lines_of(rows[0], *rows), b""):
        with pytest.raises(ConfigError, match=r"read 3 lines of a file .*, and sent 3 of them"):
            imported(shard, other)
    added = timer(shard, "d", later)
    assert counts(imported(shard, lines_of(*rows, added))) == {
        "already_done": 3,
        "read": 1,
        "written": 1,
    }
    assert imported(shard, lines_of(rows[0]), name="other")["written"] == 1


def test_a_last_line_without_a_newline_is_the_same_once_others_follow(
    shard: SparklessShard,
) -> None:
    later = now_ms() + HOUR_MS
    first, added = lines_of(timer(shard, "a", later)), lines_of(timer(shard, "b", later))
    assert counts(imported(shard, first.rstrip(b"\n"))) == {"read": 1, "written": 1}
    assert counts(imported(shard, first + added)) == {"already_done": 1, "read": 1, "written": 1}


def test_the_reason_of_a_refused_line_is_short(shard: SparklessShard) -> None:
    unknown = {"record": dict.fromkeys(f"unknown-{n}" for n in range(10_000))}
    (refused,) = imported(shard, lines_of(unknown))["refused_first"]
    assert "record.unknown-0: " in refused["reason"]
    assert len(refused["reason"]) < 1_000


def test_a_rest_of_a_line_too_long_is_no_timer(shard: SparklessShard) -> None:
    rows = [timer(shard, key, now_ms() + HOUR_MS) for key in "ab"]
    content = b"x" * (LINE_BYTES_MAX + 1) + lines_of(*rows)
    verdict = imported(shard, content, skip_refused=True)
    assert (verdict["refused"], keys_taken(shard)) == ({"unusable": 2}, [b"b"])
    bad = imported(shard, content + b"bad", skip_refused=True)["refused_first"]
    named = [each["line"] for each in (*verdict["refused_first"], *bad)]
    assert named == [1, 1, 3], "by their numbers in the file, whose first line has two parts"


def test_a_header_name_that_no_record_can_have_is_refused(shard: SparklessShard) -> None:
    copies = [
        {"record": {"key_base64": "Yg==", "headers": [{"name": name}]}}
        for name in ("a\ud800", b"\xff".decode(errors="surrogateescape"))
    ]
    content = lines_of(*copies, timer(shard, "a", now_ms() + HOUR_MS))
    verdict = imported(shard, content, skip_refused=True)
    (unusable, other) = verdict["refused_first"]
    assert (unusable["line"], unusable["code"]) == (1, "unusable")
    assert "record.headers.0.name: " in unusable["reason"]
    assert (other["line"], other["code"]) == (2, "bad_header_name"), "by ingest"
    assert keys_taken(shard) == [b"a"]


@pytest.mark.parametrize("committed", [True, False])
def test_an_import_that_ends_in_the_middle_loses_and_doubles_nothing(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    later = now_ms() + HOUR_MS
    content = lines_of(*(timer(shard, str(n), later, partition=0) for n in range(9)))
    monkeypatch.setattr(transactional_producer, "commit_all", failing_third(committed=committed))
    monkeypatch.setattr(transactional_producer, "open_producer", opening(1))
    with pytest.raises(PublishDoubt, match=r"4 timers were written before.*nothing is doubled"):
        imported(shard, content)
    monkeypatch.undo()
    before = 6 if committed else 4
    rest = {"already_done": before, "read": 9 - before, "written": 9 - before}
    assert counts(imported(shard, content)) == rest
    assert keys_taken(shard) == [b"%d" % n for n in range(9)]


@pytest.mark.parametrize("committed", [True, False])
def test_an_import_finds_out_what_became_of_a_transaction(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    later = now_ms() + HOUR_MS
    content = lines_of(*(timer(shard, str(n), later, partition=0) for n in range(9)))
    monkeypatch.setattr(transactional_producer, "commit_all", failing_third(committed=committed))
    before = 0
    if not committed:
        with pytest.raises(PublishDoubt, match=r"4 timers were written before.*nothing is doubled"):
            imported(shard, content)
        before = 4
    verdict = imported(shard, content)
    assert (verdict["already_done"], verdict["written"]) == (before, 9 - before)
    assert keys_taken(shard) == [b"%d" % n for n in range(9)]


def test_chunks_that_are_too_slow_are_halved(
    shard: SparklessShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = now_ms() + HOUR_MS
    rows = [timer(shard, str(n), later, partition=0) for n in range(9)]
    file, choice = io.BytesIO(lines_of(*rows, {"record": {}})), Choice("mine", chunk_lines=7)
    monkeypatch.setattr(transactional_producer, "commit_all", too_slow_above(2))
    verdict = import_lines(shard.settings, SystemClock(), file, TimerFields(), choice).as_json()
    assert (counts(verdict), verdict["complete"]) == ({"read": 9, "written": 9}, False)
    assert keys_taken(shard) == [b"%d" % n for n in range(9)]


@pytest.mark.crash_matrix
def test_killed_again_and_again_it_sends_each_line_once(
    config: Path, shard: SparklessShard, tmp_path: Path
) -> None:
    later, count = now_ms() + HOUR_MS, 40_000
    file = tmp_path / "timers.jsonl"
    file.write_bytes(lines_of(*(timer(shard, str(n), later) for n in range(count))))
    words = ("import", str(file), "--name", "jobs")
    with shard.admin() as admin:
        for more in (1, 1_500, 3_000, 4_500, 6_000):
            end = sum(admin.ends([shard.timers], committed=False).values()) + more
            with subprocess.Popen(line(config, *words), stdout=subprocess.DEVNULL) as child:
                while sum(admin.ends([shard.timers], committed=False).values()) < end:
                    assert child.poll() is None, "it ends before it is killed"
                child.kill()
    (verdict,) = objects(config, *words)[1]
    assert verdict["complete"]
    assert 0 < verdict["already_done"] < count
    assert verdict["already_done"] + verdict["read"] == count
    assert sorted(map(int, keys_taken(shard))) == list(range(count))


def test_a_record_that_the_timer_topic_does_not_take_is_refused(shard: SparklessShard) -> None:
    later = now_ms() + HOUR_MS
    large = timer(shard, "large", later) | {"value": "x" * 3_000_000}
    content = lines_of(timer(shard, "small", later), large)
    assert imported(shard, content)["refused"] == {"record_too_large": 1}
    assert keys_taken(shard) == [b"small"]
    verdict = imported(shard, content, skip_refused=True)
    assert (verdict["already_done"], verdict["read"], verdict["written"]) == (1, 1, 0)
    assert imported(shard, content)["already_done"] == 2


def test_a_file_and_a_name_are_needed(config: Path) -> None:
    for words in (
        ("--name", "x"),
        ("--dry-run", "-"),
        ("nowhere.jsonl", "--name", "x"),
    ):
        refused = run(config, "import", *words)
        assert refused.returncode == 2, words


# ---- the recipes of docs/import.md --------------------------------------------------------------


def recipe(config: Path, heading: str, replaced: dict[str, str], stores: str = "") -> None:
    """Runs the commands below a heading of the page.

    Args:
        config: of the commands.
        heading: of the page.
        replaced: names of the page, by those of the test.
        stores: shell functions, before the commands.
    """
    section = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (commands,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    for name, text in replaced.items():
        commands = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w.-])", text, commands)
    own = f'duewheel() {{ {shlex.join(line(config)[:4])} "$@" --config {config}; }}'
    script = f"{own}\n{stores}\n{commands}"
    done = subprocess.run(
        ["bash", "-ec", script], cwd=config.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_rows_of_postgresql(
    config: Path, shard: SparklessShard, require: Require, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(foreign_stores.program("initdb"), "PostgreSQL is not installed")
    with foreign_stores.postgres() as dsn:
        for pair in dsn.split():
            key, _, value = pair.partition("=")
            name = {"host": "PGHOST", "user": "PGUSER", "dbname": "PGDATABASE"}[key]
            monkeypatch.setenv(name, value)
        table = (
            "CREATE TABLE jobs (id bigint PRIMARY KEY, due_at timestamptz, queue text, "
            "payload jsonb, order_id text, sent_at timestamptz);"
            "INSERT INTO jobs SELECT n, now() + (n - 10) * interval '30 minutes', "
            f"'{shard.target}', jsonb_build_object('n', n), 'k' || n, "
            "CASE WHEN n > 1000 THEN now() END FROM generate_series(0, 1100) n"
        )
        subprocess.run(["psql", "-Xqc", table], check=True)
        recipe(config, "A table in PostgreSQL", {})
    assert len(set(keys_taken(shard))) == len(keys_taken(shard)) == 1_001
    until(shard, lambda: len(delivered(shard)) == 11)
    (one,) = (r for r in read_topic(shard.servers, shard.target) if r.key == b"k7")
    assert (json.loads(one.value), dict(one.headers)["UNIQ_KEY"]) == ({"n": 7}, b"job-7")


def test_members_of_a_sorted_set(config: Path, shard: SparklessShard, require: Require) -> None:
    require(foreign_stores.program("redis-server"), "Redis is not installed")
    with foreign_stores.redis() as url:
        client = ["redis-cli", "-s", url.removeprefix("unix://")]
        past_s, later_s = now_ms() / 1000 - 60, now_ms() / 1000 + 3_600
        scored = [f"{past_s + n} early-{n}" for n in range(9)]
        scored += [f"{later_s:.0f} late-{n}" for n in range(1_000)]
        commands = "".join(f"ZADD delayed {each}\n" for each in scored)
        subprocess.run(client, input=commands, text=True, stdout=subprocess.DEVNULL, check=True)
        own = f'redis-cli() {{ command {shlex.join(client)} "$@"; }}'
        recipe(config, "A sorted set in Redis", {"orders": shard.target}, own)
    assert len(read_topic(shard.servers, shard.timers)) == 1_009

    def values() -> set[bytes]:
        return {record.value for record in read_topic(shard.servers, shard.target)}

    until(shard, lambda: values() == {b"early-%d" % n for n in range(9)})


def etf1(shard: SparklessShard, key: bytes, value: bytes, due_s: int) -> Message:
    headers: list[Header] = [
        ("scheduler-epoch", b"%d" % due_s),
        ("scheduler-target-topic", shard.target.encode()),
        ("scheduler-target-key", b"to-" + key),
        ("own", b"kept"),
    ]
    return key, value, headers


def karafka(shard: SparklessShard, key: bytes, value: bytes, due_s: int) -> Message:
    headers: list[Header] = [
        ("schedule_schema_version", b"1.0.0"),
        ("schedule_source_type", b"schedule"),
        ("schedule_target_epoch", b"%d" % due_s),
        ("schedule_target_topic", shard.target.encode()),
        ("schedule_target_key", b"to-" + key),
        ("own", b"kept"),
    ]
    return key, value, headers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "made"),
    [("etf1", etf1), pytest.param("karafka", karafka, marks=pytest.mark.crash_matrix)],
    indirect=["config"],
)
def test_the_newest_schedule_of_each_key(
    config: Path, shard: SparklessShard, made: Callable[..., Message]
) -> None:
    source = f"{shard.settings.app.id}.schedules"
    with shard.admin() as admin:
        admin.create_topic(source, 2)
    past, later = now_ms() // 1000 - 60, now_ms() // 1000 + 3_600
    shard.send(source, 0, made(shard, b"a", b"old", later), made(shard, b"b", b"\xff\0", past))
    shard.send(source, 0, made(shard, b"gone", b"x", past), made(shard, b"a", b"new", past))
    shard.send(source, 1, made(shard, b"c", b"c", past), made(shard, b"d", b"d", later))
    shard.send(source, 0, (b"gone", None, []))
    names = {"scheduled_messages": source, "orders.delayed": shard.timers}
    for _ in "twice":
        recipe(config, "etf1's scheduler and Karafka", names)
    taken = read_topic(shard.servers, shard.timers)
    assert sorted((r.partition, r.key) for r in taken) == [
        *((0, b"a"), (0, b"b")),
        *((1, b"c"), (1, b"d")),
    ]
    until(shard, lambda: delivered(shard) == {b"to-a": b"new", b"to-b": b"\xff\0", b"to-c": b"c"})
    (record, *_) = (r for r in read_topic(shard.servers, shard.target) if r.key == b"to-a")
    assert record.headers[0] == ("own", b"kept")
    assert dict(record.headers)["UNIQ_KEY"] == b"a"
