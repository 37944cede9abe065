"""The folder of a shard's audits.

    result.json              the result of the newest audit
    duewheel_audit.prom      its metrics, for a textfile collector
    gx/                      the project of Great Expectations with the results of the newest
                             `audit.keep` audits and Data Docs, unless `audit.context` names another
    audit.lock               held while an audit runs

Invariant: an audit has taken place once result.json is replaced. A kill before that leaves results
in the project only, and the next audit repeats the range.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from duewheel.api.audit import AuditResult
from duewheel.checkpoints.file_lock import FileLock
from duewheel.checkpoints.fs import HOST_FS
from duewheel.config.settings import Settings
from duewheel.errors import ConfigError, Locked

RESULT = "result.json"
_TEXT_FILE = "duewheel_audit.prom"
_LOCK = "audit.lock"


def project_folder(settings: Settings) -> Path:
    """Returns the folder with the project of Great Expectations, which makes the one of
    `storage.audit_dir` itself.

    Raises:
        ConfigError: `audit.context` has none: the library would make one there, too, after a typo.
    """
    folder = settings.audit.context
    if folder is None:
        return settings.audit_dir
    file = folder / "gx" / "great_expectations.yml"
    if file.is_file():
        return folder
    # A program in a file: where pyspark is, the import ends a Python that runs none.
    program = "import great_expectations as gx; "
    program += f'gx.get_context(mode="file", project_root_dir={str(folder)!r})'
    raise ConfigError(f"audit.context: there is no {file}; this program makes it: {program}")


class AuditHistory:
    """The audits of one shard; `directory` may be missing before the first audit."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Excludes other audits in this folder for the length of a with block.

        Raises:
            Locked: another audit runs.
            ConfigError: the directory cannot be written to.
        """
        try:
            HOST_FS.make_directory(self.directory)
            lock = FileLock(self.directory / _LOCK)
        except OSError as error:
            where = f"audits cannot be kept in {self.directory}"
            raise ConfigError(f"{where}: {error.strerror}") from error
        try:
            if not lock.try_acquire():
                raise Locked(f"another audit runs here: process {lock.holder()}")
            yield
        finally:
            lock.close()

    def newest(self) -> AuditResult | None:
        """Returns the result of the last complete audit; None if there is none that can be read: a
        damaged file, or one of another release, must not stop every later audit.
        """
        try:
            return AuditResult.model_validate_json((self.directory / RESULT).read_bytes())
        except (OSError, ValueError):
            return None

    def add(self, result: AuditResult, metrics: str) -> None:
        """Replaces the newest result; a reader sees the old or the new one."""
        HOST_FS.replace_file(
            self.directory / RESULT, json.dumps(result.as_json(), indent=1).encode()
        )
        HOST_FS.replace_file(self.directory / _TEXT_FILE, metrics.encode())
