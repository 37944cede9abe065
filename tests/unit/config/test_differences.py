"""The settings that `config check` shows first."""

from __future__ import annotations

from pathlib import Path

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
