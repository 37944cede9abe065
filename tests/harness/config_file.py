"""The configuration of a small shard: its ring takes megabytes, and holds more than an hour; its
JVM starts quickly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from duewheel.config.settings import Settings, load

_SMALL = {"slots": 100_000, "roll_window": "1h", "margin": "5m"}
# A start of Spark takes two thirds of the processor time without the optimizing compiler.
QUICK_JVM = "-XX:TieredStopAtLevel=1"


def write_config(folder: Path, servers: str, name: str, **sections: dict[str, Any]) -> Path:
    """Write `duewheel.toml`; its data directory is `data` beside it.

    Args:
        folder: where both lie.
        servers: of Kafka.
        name: of the application; its timer topic is `<name>.timers`, and open for all targets.
        sections: settings added to those of a small shard, or replacing them; by section, a nested
            table as a dictionary.
    """
    given: dict[str, dict[str, Any]] = {
        "app": {"id": name},
        "kafka": {"bootstrap_servers": servers},
        "timer": {"topics": [f"{name}.timers"], "targets": ["*"], **_SMALL},
        "storage": {"data_dir": str(folder / "data")},
        "spark": {"spark.driver.extraJavaOptions": QUICK_JVM},
    }
    for section, settings in sections.items():
        given[section] = {**given.get(section, {}), **settings}
    path = folder / "duewheel.toml"
    path.write_text("".join(_table(section, keys) for section, keys in given.items()))
    return path


def small_settings(data_dir: Path) -> Settings:
    """The settings of a small shard that needs no Kafka; its timer topic is `timers`."""
    return load(None, {"timer": {"topics": "timers", **_SMALL}, "storage": {"data_dir": data_dir}})


def _table(section: str, keys: dict[str, Any]) -> str:
    lines = [
        f"{json.dumps(key) if '.' in key else key} = {_value(value)}" for key, value in keys.items()
    ]
    return "\n".join([f"[{section}]", *lines, ""])


def _value(value: Any) -> str:
    """As TOML has it; what JSON writes of a text, a number or a list is TOML, too."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{json.dumps(key)} = {_value(of)}" for key, of in value.items())
        return f"{{ {pairs} }}"
    return json.dumps(value)
