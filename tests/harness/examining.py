"""Runs `duewheel doctor` in the test, and picks findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duewheel.api.examination import DoctorFinding
from duewheel.clock import SystemClock
from duewheel.config.settings import Settings, load
from duewheel.doctor import examination

CLOCK = SystemClock()


def settings_for(path: Path, servers: str, name: str, **sections: Any) -> Settings:
    sections = {
        "app": {"id": name},
        "kafka": {"bootstrap_servers": servers},
        "timer": {
            "topics": f"{name}.timers",
            "mapping": {f"{name}.timers": f"{name}.orders"},
            "slots": 100_000,
            "roll_window": "1h",
            "margin": "5m",
        },
        "storage": {"data_dir": str(path / "data")},
        **sections,
    }
    return load(overrides=sections)


def examined(settings: Settings) -> list[DoctorFinding]:
    return list(examination.examine(settings, CLOCK, lambda _part, _parts: None))


def errors(found: list[DoctorFinding]) -> set[tuple[str, str]]:
    return {(f.code, f.subject) for f in found if f.severity == "error"}


def only(found: list[DoctorFinding], code: str, subject: str = "") -> DoctorFinding:
    (finding,) = [f for f in found if f.code == code and subject in f.subject]
    return finding
