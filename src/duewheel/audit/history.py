"""The folder of a shard's audits: static files, of the newest `audit.keep` audits.

    index.html               a list of all audits, the newest first
    duewheel_audit.prom      the metrics of the newest audit, for a textfile collector
    <time>/result.json       the result, for programs
    <time>/rules-0.html      Data Docs: the suite over the rows of each settings epoch, oldest 0
    <time>/rows.html         Data Docs: the suite that compares rows with each other
    audit.lock               held while an audit runs

Invariant: an audit appears whole or not at all. Its folder is written under a temporary name and
renamed when it is complete; a kill before that leaves only the temporary folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from duewheel.checkpoints.file_lock import FileLock
from duewheel.checkpoints.fs import HOST_FS
from duewheel.errors import ConfigError, Locked

RESULT = "result.json"
INDEX = "index.html"
TEXT_FILE = "duewheel_audit.prom"
_LOCK = "audit.lock"
_UNFINISHED = "unfinished"


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

    def results(self) -> list[dict[str, Any]]:
        """Returns the results of all audits in the folder, the newest first."""
        return list(self._readable())

    def newest(self) -> dict[str, Any] | None:
        """Returns the result of the last complete audit."""
        return next(self._readable(), None)

    def _readable(self) -> Iterator[dict[str, Any]]:
        """Skips a result that does not parse, so that one damaged file cannot stop every later
        audit, and one that a concurrent audit removes.
        """
        for path in self._folders():
            with suppress(OSError, ValueError):
                yield json.loads((path / RESULT).read_bytes())

    def add(self, result: Mapping[str, Any], pages: Mapping[str, str], keep: int) -> Path:
        """Adds an audit, and removes the oldest above `keep`.

        Args:
            result: its `id` is the name of the folder, which sorts by time.
            pages: texts by the name of their file.
            keep: how many audits remain, this one included.

        Returns:
            The folder of this audit.
        """
        unfinished = self.directory / _UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for name, text in pages.items():
            (unfinished / name).write_text(text, encoding="utf-8")
        HOST_FS.replace_file(unfinished / RESULT, json.dumps(result, indent=1).encode())
        folder = self.directory / str(result["id"])
        unfinished.replace(folder)
        for old in self._folders()[keep:]:
            shutil.rmtree(old)
        return folder

    def write(self, name: str, text: str) -> None:
        """Replaces a file beside the audits; a reader sees the old or the new content."""
        HOST_FS.replace_file(self.directory / name, text.encode())

    def _folders(self) -> list[Path]:
        if not self.directory.exists():
            return []
        found = [path.parent for path in self.directory.glob(f"*/{RESULT}")]
        return sorted((p for p in found if p.name != _UNFINISHED), reverse=True)
