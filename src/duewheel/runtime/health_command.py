"""`duewheel health`: whether the shard is ready, at a cost that allows a check every few seconds.

The answer is that of `status` and `/readyz`. It comes from the file `state` of the data directory,
so it needs no Kafka. Without flags the command reads four settings by itself (config/sources.py),
and imports neither pydantic nor numpy: `__main__` calls it before the command line is loaded.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from duewheel.clock import SystemClock
from duewheel.config.sources import SingleSettings
from duewheel.errors import ConfigError, DuewheelError, NoDataDirectory
from duewheel.runtime.readiness import ReadyBounds, not_ready_in

if TYPE_CHECKING:
    from duewheel.config.settings import Settings


def main() -> int:
    """Reports the health of the shard that file and environment name; returns the exit code."""
    try:
        settings = SingleSettings()
        data_dir = Path(settings.get("storage", "data_dir") or "duewheel-data")
        return report(data_dir, _bounds(settings))
    except DuewheelError as error:
        print(f"duewheel: {error}", file=sys.stderr)
        return error.exit_code


def report_of(settings: Settings) -> int:
    """Reports the health of the shard with these settings, as `report`."""
    return report(settings.storage.data_dir, ReadyBounds.of(settings))


def report(data_dir: Path, bounds: ReadyBounds) -> int:
    """Prints `ready`, or a line for each reason why not; returns the exit code.

    Raises:
        NoDataDirectory: there is none.
    """
    try:
        reasons = not_ready_in(data_dir, bounds, SystemClock().now_ms())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoDataDirectory(data_dir) from error
    for reason, text in reasons.items():
        print(f"{reason}: {text}")
    if not reasons:
        print("ready")
    return 1 if reasons else 0


def _bounds(settings: SingleSettings) -> ReadyBounds:
    return ReadyBounds.for_trigger(
        _number(settings, "ingest", "trigger_ms", 0),  # only a long one matters
        _number(settings, "timer", "precision_ms", 50),
        _number(settings, "timer", "slots", 2_097_152),
    )


def _number(settings: SingleSettings, section: str, key: str, default: int) -> int:
    """A setting that is a number, or of one in `_ms` a duration."""
    text = str(settings.get(section, key) or default)
    try:
        number = float(text)  # as pydantic, which takes 100.0
        if number.is_integer():
            return int(number)
    except ValueError:
        pass
    try:
        if not key.endswith("_ms"):
            return int(text)
        from duewheel.config.durations import parse_duration_ms

        return parse_duration_ms(text)
    except ValueError as error:
        raise ConfigError(f"{section}.{key}: {error}") from error
