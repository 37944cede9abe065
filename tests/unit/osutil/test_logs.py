"""Log lines: one per event, JSON or text, short, without secrets, libraries included."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import structlog
from kafka.net.selector import NetworkSelector

from duewheel.osutil import logs


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_time_role_and_process() -> None:
    stream = io.StringIO()
    logs.configure("ingest", "info", "json", stream)
    structlog.get_logger("duewheel.x").info("ring full", rows=3)
    structlog.get_logger("duewheel.x").debug("not shown")
    (line,) = lines(stream)
    assert list(line)[:5] == ["ts", "level", "role", "pid", "event"]
    assert line["ts"].endswith("Z")
    assert (line["level"], line["role"], line["event"]) == ("info", "ingest", "ring full")
    assert line["rows"] == 3


def test_libraries_are_routed_from_warning_on() -> None:
    stream = io.StringIO()
    logs.configure("dequeue", "debug", "json", stream)
    logging.getLogger("kafka.conn").info("chatter")
    logging.getLogger("py4j.clientserver").debug("chatter")
    logging.getLogger("kafka.conn").warning("lost %s", "a broker")
    (line,) = lines(stream)
    assert line["logger"] == "kafka.conn"
    assert line["event"] == "lost a broker"


def test_an_exception_is_one_short_line() -> None:
    stream = io.StringIO()
    logs.configure("ingest", "info", "json", stream)
    try:
        raise ValueError("first line\nsecond line " + "x" * 10_000)
    except ValueError:
        structlog.get_logger("duewheel.x").exception("failed")
    structlog.get_logger("duewheel.x").info("long", text="x" * 10_000)
    failed, long = lines(stream)
    assert failed["error"] == "ValueError: first line"
    assert failed["at"].startswith("test_logs.py:")
    assert len(long["text"]) < 2 * logs.VALUE_CHARACTERS_MAX


def test_secrets_are_hidden_by_name_and_in_text() -> None:
    stream = io.StringIO()
    logs.configure("ingest", "info", "json", stream)
    log = structlog.get_logger("duewheel.x")
    log.info("connecting", sasl_plain_password="hunter2", options="user=a password=hunter2;")
    logging.getLogger("kafka").error("config: sasl_token='hunter2', retries=3")
    assert "hunter2" not in stream.getvalue()
    assert "retries=3" in stream.getvalue()


@pytest.mark.parametrize("format", ["json", "text"])
def test_no_text_of_a_user_changes_the_direction_of_a_line(format: logs.Format) -> None:
    stream, name = io.StringIO(), "bills\u202e\x1b\x9b\n"
    logs.configure("relay", "info", format, stream)
    structlog.get_logger("duewheel.x").warning("refused", reason=name, topics=[name])
    assert stream.getvalue().rstrip("\n").isprintable()
    if format == "json":
        (line,) = lines(stream)
        assert (line["reason"], line["topics"]) == (name, [name])


def test_lists_and_tables_are_cut() -> None:
    """A user who makes 5,000 topics does not write a line of a megabyte with each."""
    stream = io.StringIO()
    logs.configure("ingest", "info", "json", stream)
    names = [f"t{number}" for number in range(5_000)]
    structlog.get_logger("duewheel.x").info("read", topics=names, since=dict.fromkeys(names, 1))
    (line,) = lines(stream)
    assert line["topics"] == [*names[:20], "and 4980 more"]
    assert len(line["since"]) == 21


def test_text_is_key_value() -> None:
    stream = io.StringIO()
    logs.configure("run", "info", "text", stream)
    structlog.get_logger("duewheel.x").warning("restarting", process="ingest")
    text = stream.getvalue()
    assert "level='warning' role='run'" in text
    assert "event='restarting' process='ingest'" in text


def test_auto_is_json_where_there_is_no_terminal() -> None:
    assert logs.resolve("auto", io.StringIO()) == "json"
    assert logs.resolve("text", io.StringIO()) == "text"


def test_what_a_kafka_client_repeats_is_one_line_with_a_count() -> None:
    stream = io.StringIO()
    logs.configure("dequeue", "info", "json", stream)
    (handler,) = logging.getLogger().handlers

    def say(name: str, second: float, message: str, *values: object) -> None:
        record = logging.LogRecord(name, logging.ERROR, "", 0, message, values, None)
        record.created = second
        handler.handle(record)

    start = 1_800_000_000.0
    for step in range(30):
        say("kafka.net.manager", start + step / 3, "not ready; waiting %.2f secs", step)
        say("duewheel.x", start + step / 3, "kafka is away")
    say("kafka.net.manager", start, "another kind")
    say("kafka.net.other", start, "not ready; waiting %.2f secs", 1)
    say("kafka.net.manager", start + logs.REPEAT_S, "not ready; waiting %.2f secs", 7)
    shown = [line for line in lines(stream) if line["event"] != "kafka is away"]
    assert [(line["event"], line.get("repeated")) for line in shown] == [
        ("not ready; waiting 0.00 secs", None),
        ("another kind", None),
        ("not ready; waiting 1.00 secs", None),
        ("not ready; waiting 7.00 secs", 29),
    ]
    assert len(lines(stream)) == len(shown) + 30


@pytest.mark.parametrize("library", ["kafka.x", "opentelemetry.x"])
def test_a_client_that_repeats_itself_for_an_hour_logs_few_lines(library: str) -> None:
    few = logs.FewRepeats()

    def shown(times_s: Iterable[int]) -> list[int]:
        return [at_s for at_s in times_s if few.filter(record_at(at_s))]

    def record_at(at_s: int) -> logging.LogRecord:
        record = logging.LogRecord(library, logging.ERROR, "", 0, "away", (), None)
        record.created = at_s
        return record

    assert shown(range(3_600)) == [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030]
    assert shown(range(4_300, 4_340)) == [4_300, 4_310, 4_330], "it has come back meanwhile"


def test_a_client_that_was_slow_on_a_busy_machine_says_nothing() -> None:
    stream = io.StringIO()
    logs.configure("cli", "info", "json", stream)
    selector = NetworkSelector(slow_task_threshold_secs=1e-9)

    async def step() -> int:
        logging.getLogger("kafka.net.selector").warning("something else")
        return 7

    try:
        assert selector.run(step) == 7
    finally:
        selector.close()
    assert [line["event"] for line in lines(stream)] == ["something else"]


def test_kinds_of_messages_are_bounded() -> None:
    few = logs.FewRepeats(kinds_max=10)
    records = [
        logging.LogRecord("kafka.x", logging.ERROR, "", 0, f"kind {number}", (), None)
        for number in range(11)
    ]
    assert all(few.filter(record) for record in records[:10])
    assert not few.filter(records[0])
    assert few.filter(records[10])
    assert few.filter(records[0]), "forgotten, to make room for the eleventh"
