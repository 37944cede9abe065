"""`send --file` without a broker: what is told if Kafka fails in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.served import settings_of

from duewheel.cli.files import send_file
from duewheel.errors import KafkaUnavailable, Unacknowledged
from duewheel.ops import send_lines


def test_the_last_line_that_is_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Iterator[dict[str, Any]]:
        yield {"line": 1, "id": "a"}
        yield {"line": 3, "error": "no JSON"}
        yield {"line": 4, "id": "b"}
        raise KafkaUnavailable("no broker answers")

    monkeypatch.setattr(send_lines, "send_lines", fails)
    file = tmp_path / "timers.jsonl"
    file.write_text("")
    with pytest.raises(Unacknowledged, match="2 written, 1 refused, up to line 4; lines behind it"):
        send_file(settings_of(tmp_path), str(file), {}, "text")
