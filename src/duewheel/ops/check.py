"""Verifies all files of a data directory: `duewheel check`."""

from __future__ import annotations

from dataclasses import asdict

from duewheel.api.operations import CheckedFiles, FileFinding
from duewheel.config.settings import Settings
from duewheel.wheel.storage import full_check


def check(settings: Settings) -> CheckedFiles:
    """Verifies the files of the shard; its processes may run meanwhile.

    Raises:
        ConfigError: there is no data directory, or it was made with another geometry.
    """
    try:
        report = full_check.check(settings.storage.data_dir, settings.wheel)
    except FileNotFoundError as error:
        raise settings.no_data_dir() from error
    findings = [FileFinding(**asdict(finding)) for finding in report.findings]
    return CheckedFiles(ok=report.ok, records=report.records, findings=findings)
