"""Records that are made of lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.harness.local_world import NOW_MS
from tests.harness.served import settings_of

from duewheel.api.requests import TimerFields
from duewheel.errors import ConfigError
from duewheel.ops.file_import.line_records import fields_of, record_of


def test_a_named_file_refuses_the_same_timer(tmp_path: Path) -> None:
    fields = fields_of(b'{"topic": "orders", "delay": "1m"}', TimerFields())
    with pytest.raises(ConfigError, match="give a value, or a key"):
        record_of(settings_of(tmp_path), fields, "line 1", NOW_MS)


def test_a_whole_record_takes_no_option_but_the_timer_topic() -> None:
    line = b'{"record": {}}'
    assert fields_of(line, TimerFields(timer_topic="t", headers=[])) == {
        "timer_topic": "t",
        "record": {},
    }
    with pytest.raises(ConfigError, match="takes no delay and no topic of the options"):
        fields_of(line, TimerFields(topic="orders", delay="1m"))
