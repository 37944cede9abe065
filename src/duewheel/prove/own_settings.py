"""The settings of a proof's shard: the user's, except names, topics, folder and roll window.

Its processes read them from a configuration file. [kafka.client] and [spark] may have secrets, so
they are handed over in the environment instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duewheel.config.settings import Settings
from duewheel.config.sources import ENV_PREFIX
from duewheel.config.values import reveal

# Settings that concern the user's own topics or other processes are left out.
_KEPT: dict[str, set[str] | None] = {
    "kafka": {"bootstrap_servers"},
    "ingest": None,
    "dequeue": {
        *("chunk_records", "chunk_bytes", "transaction_timeout_ms", "call_deadline"),
        *("clock_skew_max", "read_ahead", "read_ahead_bytes", "compression"),
    },
    "timer": {"precision_ms", "timeline"},
    "storage": {"durable_interval", "min_free"},
    "shard": {"take_over_after"},
}
_SLOTS = 200_000  # has room for the longest roll window and the margin at 1 ms
_MARGIN = "1m"

Tables = dict[str, dict[str, Any]]


def own_settings(user: Settings, name: str, folder: Path, window_ms: int) -> Settings:
    """Makes the settings; `name` is app.id, with which every name in Kafka begins."""
    shown = user.model_dump(mode="json", exclude_none=True)
    tables: Tables = {
        section: {k: v for k, v in shown[section].items() if keys is None or k in keys}
        for section, keys in _KEPT.items()
    }
    timers, target = f"{name}.timers", f"{name}.orders"
    tables["app"] = {"id": name}
    tables["timer"] |= {
        "topics": [timers],
        "mapping": {timers: target},
        "reply_topic": f"{name}.replies",
        "slots": _SLOTS,
        "roll_window": f"{window_ms}ms",
        "margin": _MARGIN,
        "longest_outage": "1h",  # the retention of topics that a `kill -9` of the proof leaves
    }
    tables["storage"]["data_dir"] = str(folder / "data")
    tables["log"] = {"format": "json", "level": "info"}
    tables["kafka"]["client"] = _in_clear(user.kafka.client)
    return Settings.model_validate({**tables, "spark": _in_clear(user.spark)})


def write_settings(settings: Settings, path: Path) -> None:
    """Writes the configuration file, without secrets."""
    tables = settings.model_dump(mode="json", exclude_none=True, exclude={"spark"})
    del tables["kafka"]["client"]
    path.write_text("".join(_section(name, table) for name, table in tables.items()), "utf-8")


def environment(settings: Settings) -> dict[str, str]:
    """This process's environment, with these settings in place of the user's."""
    kept = {name: value for name, value in os.environ.items() if not _is_setting(name)}
    kept[f"{ENV_PREFIX}KAFKA__CLIENT"] = json.dumps(_in_clear(settings.kafka.client))
    kept[f"{ENV_PREFIX}SPARK"] = json.dumps(settings.spark_conf())
    return kept


def _in_clear(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: reveal(value) for name, value in table.items()}


def _is_setting(variable: str) -> bool:
    section = variable.upper().removeprefix(ENV_PREFIX).partition("__")[0].lower()
    return variable.upper().startswith(ENV_PREFIX) and section in Settings.model_fields


def _section(name: str, table: Mapping[str, Any]) -> str:
    """A TOML table; JSON's texts, numbers and lists are TOML, too."""
    lines = [f"{key} = {_value(value)}" for key, value in table.items()]
    return "\n".join([f"[{name}]", *lines, ""])


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{json.dumps(key)} = {_value(of)}" for key, of in value.items())
        return f"{{ {pairs} }}"
    return json.dumps(value, ensure_ascii=False)
