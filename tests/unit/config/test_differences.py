"""The settings that `config check` shows first."""

from __future__ import annotations

from pathlib import Path

import pytest

from duewheel.config.differences import differing
from duewheel.config.settings import load


def test_only_what_differs_from_the_defaults_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text(
        '[timer]\ntopics = ["a"]\nmapping = { a = "b" }\nprecision_ms = 50\n'
        '[kafka.client]\nsasl_plain_password = "hunter2"\n'
        '[spark]\n"spark.ui.enabled" = true\n'
    )
    found = differing(load(file, {"log": {"level": "warning"}, "dequeue": {"hot_slot": "none"}}))
    assert found == {
        "kafka.client": {"value": {"sasl_plain_password": "**********"}, "from": f"({file})"},
        "timer.topics": {"value": ["a"], "from": f"({file})"},
        "timer.mapping": {"value": {"a": "b"}, "from": f"({file})"},
        "log.level": {"value": "warning", "from": "(flags)"},
        "spark.spark.ui.enabled": {"value": True, "from": "[spark]"},
    }


@pytest.mark.usefixtures("clean_surroundings")
def test_a_table_of_a_topic_shows_what_it_sets_and_each_value_s_own_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "some.toml"
    file.write_text(
        '[timer]\ntopics = ["orders.delayed", "b"]\n'
        '[timer.topic."orders.delayed"]\nquota_per_second = 500\nreceipts = true\n'
        "[timer.topic.b]\nheaders = 'etf1'\n"
        '[target.mails]\nrate = "20/s"\n'
    )
    flags = {"timer": {"topic": {"orders": {"delayed": {"delay": "15m"}}}}}
    found = differing(load(file, flags))
    assert found.pop("timer.topics")["value"] == ["orders.delayed", "b"]
    assert found == {
        "timer.topic.orders.delayed.quota_per_second": {"value": 500, "from": f"({file})"},
        "timer.topic.orders.delayed.delay": {"value": "15m", "from": "(flags)"},
        "timer.topic.b.headers": {"value": "etf1", "from": f"({file})"},
        "timer.topic.b.id": {"value": "key", "from": f"({file})"},  # implied by its headers
        "timer.topic.b.null_value": {"value": "cancel", "from": f"({file})"},
        "target.mails.rate": {"value": "20/s", "from": f"({file})"},
    }
    text = '{"orders.delayed": {"quota_per_second": 7}}'  # wins over the whole table of the file
    monkeypatch.setenv("DUEWHEEL_TIMER__TOPIC", text)
    found = differing(load(file))
    row = found["timer.topic.orders.delayed.quota_per_second"]
    assert row == {"value": 7, "from": "(environment)"}
    assert "timer.topic.b.headers" not in found
