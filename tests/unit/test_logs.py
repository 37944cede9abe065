"""Log lines: one per event, JSON or text, short, without secrets, libraries included."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from duewheel import logs


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
