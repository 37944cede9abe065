"""`duewheel health`: whether the shard is ready, at a cost that allows a check every few seconds.

The answer is that of `status` and `/readyz`. It comes from the file `state` of the data directory,
so it needs no Kafka. Without flags the command reads two settings by itself (config/sources.py),
and imports neither pydantic nor numpy: `__main__` calls it before the command line is loaded.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from duewheel.checkpoints.fs import READING_FS
from duewheel.checkpoints.state_file import State
from duewheel.clock import SystemClock
from duewheel.config.sources import SingleSettings
from duewheel.errors import ConfigError, DuewheelError
from duewheel.runtime.readiness import ReadyBounds, not_ready
from duewheel.runtime.shard_facts import ShardFacts

if TYPE_CHECKING:
    from duewheel.config.settings import Settings


def main() -> int:
    """Reports the health of the shard that file and environment name; returns the exit code."""
    try:
        settings = SingleSettings()
        data_dir = Path(settings.get("storage", "data_dir") or "duewheel-data")
        return report(data_dir, ReadyBounds.for_trigger(_trigger_ms(settings)))
    except DuewheelError as error:
        print(f"duewheel: {error}", file=sys.stderr)
        return error.exit_code


def report_of(settings: Settings) -> int:
    """Reports the health of the shard with these settings, as `report`."""
    return report(settings.storage.data_dir, ReadyBounds.of(settings))


def report(data_dir: Path, bounds: ReadyBounds) -> int:
    """Prints `ready`, or a line for each reason why not; returns the exit code.

    Raises:
        ConfigError: there is no data directory, or another version made it.
        CorruptFile: its file `state` is damaged.
    """
    try:
        with State.open(data_dir, READING_FS) as state:
            reasons = not_ready(ShardFacts(state, SystemClock().now_ms()), bounds)
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no data directory {data_dir}: `duewheel init` or `duewheel run` creates it"
        ) from error
    for reason, text in reasons.items():
        print(f"{reason}: {text}")
    if not reasons:
        print("ready")
    return 1 if reasons else 0


def _trigger_ms(settings: SingleSettings) -> int:
    """Only a long interval matters: it moves the bounds."""
    value = settings.get("ingest", "trigger_ms")
    if value is None:
        return 0
    from duewheel.config.durations import parse_duration_ms

    text = str(value)
    try:
        return int(text) if text.isdecimal() else parse_duration_ms(text)
    except ValueError as error:
        raise ConfigError(f"ingest.trigger_ms: {error}") from error
