"""`send --file` without a broker: what is told if Kafka fails in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.served import settings_of

from duewheel.api.file_import import FailedLine, SentLine
from duewheel.api.requests import TimerFields
from duewheel.cli.file_import import opened, send_file
from duewheel.errors import ConfigError, KafkaUnavailable, Unacknowledged
from duewheel.ops.file_import import acknowledged as send_lines
from duewheel.ops.file_import.records import fields_of, record_of


def sent(line: int) -> SentLine:
    return SentLine(
        line=line, id="a", timer_topic="timers", partition=0, offset=line, due_ms=7, handle="h"
    )


def test_the_last_line_that_is_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Iterator[SentLine | FailedLine]:
        yield sent(1)
        yield FailedLine(line=3, error="no JSON")
        yield sent(4)
        raise KafkaUnavailable("no broker answers")

    monkeypatch.setattr(send_lines, "send_lines", fails)
    file = tmp_path / "timers.jsonl"
    file.write_text("")
    with pytest.raises(Unacknowledged, match="2 written, 1 refused, up to line 4; lines after it"):
        send_file(settings_of(tmp_path), str(file), TimerFields(), "text")


def test_a_line_that_is_no_text_is_refused_and_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "timers.jsonl"
    file.write_bytes(
        b'{"topic": "orders", "delay": "1m", "value": "\xff"}\n{"topic": 7}\n'
        b'{"topic": "orders", "delay": "1m"}\n'
    )
    assert send_file(settings_of(tmp_path), str(file), TimerFields(), "text") == 1
    shown = capsys.readouterr()
    assert shown.out == "0 written, 3 refused\n"
    assert "line 1: " in shown.err and "line 2: " in shown.err
    assert "line 3: give a value, or a key" in shown.err


def test_a_named_file_refuses_the_same_timer(tmp_path: Path) -> None:
    fields = fields_of(b'{"topic": "orders", "delay": "1m"}', TimerFields())
    with pytest.raises(ConfigError, match="give a value, or a key"):
        record_of(settings_of(tmp_path), fields, "line 1")


def test_an_error_beside_the_file_is_not_the_file_s(tmp_path: Path) -> None:
    file = tmp_path / "timers.jsonl"
    with (
        pytest.raises(ConfigError, match=r"--file .*timers.jsonl: No such file"),
        opened(str(file)),
    ):
        pass
    file.write_bytes(b"")
    with pytest.raises(BrokenPipeError), opened(str(file)):
        raise BrokenPipeError  # whoever reads the output has gone
