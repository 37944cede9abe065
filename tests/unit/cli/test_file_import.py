"""`send-lines` without a broker: lines that are refused, and an error of Kafka in the middle."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import MessageSizeTooLargeError
from tests.harness.local_world import NOW_MS
from tests.harness.served import RecordingProducer, recording_writer, settings_of

from duewheel.api.file_import import FailedLine, SentLine
from duewheel.api.requests import TimerFields
from duewheel.cli.file_import import show_lines
from duewheel.cli.main import cli
from duewheel.cli.output import Printer
from duewheel.client import Timer
from duewheel.errors import ConfigError, KafkaUnavailable, Unacknowledged
from duewheel.ops import connection
from duewheel.ops.file_import.acknowledged import send_lines
from duewheel.testing import ManualClock


def sent(line: int) -> SentLine:
    return SentLine(
        line=line, id="a", timer_topic="timers", partition=0, offset=line, due_ms=7, handle="h"
    )


def test_the_last_line_that_is_written_is_named() -> None:
    def fails() -> Iterator[SentLine | FailedLine]:
        yield sent(1)
        yield FailedLine(line=3, error="no JSON")
        yield sent(4)
        raise KafkaUnavailable("no broker answers")

    with pytest.raises(Unacknowledged, match="2 written, 1 refused, up to line 4; lines after it"):
        show_lines(fails(), Printer(is_json=False))


def test_a_line_for_a_missing_timer_topic_ends_with_the_counts() -> None:
    def fails() -> Iterator[SentLine | FailedLine]:
        yield sent(1)
        raise ConfigError("there is no timer topic b")

    with pytest.raises(ConfigError, match="1 written, 0 refused, up to line 1; "):
        show_lines(fails(), Printer(is_json=False))


def test_an_interrupt_ends_with_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> Iterator[SentLine | FailedLine]:
        yield sent(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        show_lines(interrupted(), Printer(is_json=False))
    assert "1 written, 0 refused, up to line 1; lines after it may be" in capsys.readouterr().err


def test_a_line_of_a_slow_pipe_is_reported_at_the_next_one(tmp_path: Path) -> None:
    line = b'{"topic": "orders", "delay": "1m", "value": "v"}\n'
    file = io.BytesIO(line * 3 + b"{}\n" + line)
    writer = recording_writer(settings_of(tmp_path), RecordingProducer(), ManualClock(NOW_MS))
    read = [file.tell() for _ in send_lines(writer, file, TimerFields())]
    sizes = [len(line)] * 3 + [len(b"{}\n"), len(line)]
    assert read == list(accumulate(sizes))


def test_a_line_that_is_no_text_is_refused_and_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = io.BytesIO(
        b'{"topic": "orders", "delay": "1m", "value": "\xff"}\n{"topic": 7}\n'
        b'{"topic": "orders", "delay": "1m"}\n\n{"topic": "orders", "delay": "1m", "value": "v"}\n'
    )
    writer = recording_writer(settings_of(tmp_path), RecordingProducer(), ManualClock(NOW_MS))
    assert show_lines(send_lines(writer, file, TimerFields()), Printer(is_json=False)) == 1
    shown = capsys.readouterr()
    assert shown.out == "1 written, 3 refused\n"
    assert "line 1: " in shown.err and "line 2: " in shown.err
    assert "line 3: give a value, or a key" in shown.err


class _SmallProducer(RecordingProducer):
    """Takes no value of more than 9 bytes; its broker none of more than 5."""

    def schedule(self, *args: Any, **named: Any) -> Future[Timer]:
        written, size = super().schedule(*args, **named), len(args[1])
        error = MessageSizeTooLargeError(f"{size} bytes")
        if size > 9:
            raise error
        if size > 5:
            written = Future()
            written.set_exception(error)
        return written


def of_sizes(path: Path, *sizes: int) -> Iterator[SentLine | FailedLine]:
    file = io.BytesIO(b"".join(b'{"value": "%s"}\n' % (b"v" * size) for size in sizes))
    writer = recording_writer(settings_of(path), _SmallProducer(), ManualClock(NOW_MS))
    return send_lines(writer, file, TimerFields(topic="orders", delay="1m"))


def test_a_line_too_large_for_the_client_is_refused_and_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_lines(of_sizes(tmp_path, 1, 10, 2), Printer(is_json=False)) == 1
    shown = capsys.readouterr()
    assert shown.out == "2 written, 1 refused\n"
    assert re.search(r"line 2: the message is too large for Kafka: .*: 10 bytes", shown.err)


def test_a_line_too_large_for_the_broker_ends_after_what_was_written(tmp_path: Path) -> None:
    """A caller that tries again after exit code 3 would not end."""
    with pytest.raises(
        ConfigError, match=r"1 written, 1 refused, up to line 2; .* too large"
    ) as error:
        show_lines(of_sizes(tmp_path, 1, 10, 6, 3), Printer(is_json=False))
    assert error.value.exit_code == ConfigError.exit_code


def test_no_line_of_the_file_writes_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = "\x1b]0;title\x07\nline 9: false", "\u202e\x9b31m"
    rows = {texts[0]: 1}, {"timer_topic": texts[1]}
    file = io.BytesIO("\n".join(map(json.dumps, rows)).encode())
    writer = recording_writer(settings_of(tmp_path), RecordingProducer(), ManualClock(NOW_MS))
    defaults = TimerFields(topic="orders", delay="1m", value="v")
    assert show_lines(send_lines(writer, file, defaults), Printer(is_json=False)) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(r"duewheel: line 1: \x1b]0;title\x07\nline 9: false: ")
    assert r"\u202e\x9b31m" in second
    assert (first + second).isprintable()


def test_the_reason_of_a_line_is_short(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown = dict.fromkeys(f"unknown-{n}" for n in range(10_000))
    rows = unknown, {"delay": "1m", "timer_topic": "t", "x" * 100_000: 1}
    file = io.BytesIO("\n".join(map(json.dumps, rows)).encode())
    writer = recording_writer(settings_of(tmp_path), RecordingProducer(), ManualClock(NOW_MS))
    assert show_lines(send_lines(writer, file, TimerFields()), Printer(is_json=False)) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert "unknown-0: " in first
    assert max(len(first), len(second)) < 1_000


def test_no_import_has_the_name_of_a_recovery(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would keep their positions under it."""
    monkeypatch.setattr(connection, "require_kafka", lambda _: nullcontext())
    file = tmp_path / "lines.jsonl"
    file.write_bytes(b"")
    words = ["import", str(file), "--name", "from-mirror.A.", "--config", str(config)]
    with pytest.raises(ConfigError, match="those of `recover`"):
        cli(words, standalone_mode=False)
