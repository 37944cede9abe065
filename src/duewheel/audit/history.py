"""Where audits are kept: a folder of static files, the newest `audit.keep` of them.

    index.html               all of them, the newest first
    duewheel_audit.prom      the newest one's metrics, for a collector of text files
    <time>/result.json       what was found, for programs
    <time>/rules-0.html      Data Docs: the suite over the rows of each settings epoch, oldest 0
    <time>/rows.html         Data Docs: the suite that looks across rows
    audit.lock               one audit at a time
    spark/                   Spark's scratch files

An audit appears whole or not at all: its folder is renamed when it is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from duewheel.checkpoints.fs import FileLock, make_directory, replace_file
from duewheel.errors import ConfigError, Locked

RESULT = "result.json"
INDEX = "index.html"
TEXT_FILE = "duewheel_audit.prom"
_LOCK = "audit.lock"
_SPARK = "spark"
_UNFINISHED = "unfinished"


class AuditHistory:
    """The audits of one shard; `directory` need not exist yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def spark_dir(self) -> Path:
        """For Spark's files."""
        return self.directory / _SPARK

    @contextmanager
    def locked(self) -> Iterator[None]:
        """For the length of a with block nobody else runs an audit here.

        Raises:
            Locked: somebody does.
            ConfigError: the directory cannot be written to.
        """
        try:
            make_directory(self.directory)
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
        """All that are kept, the newest first."""
        return list(self._readable())

    def newest(self) -> dict[str, Any] | None:
        """The result of the last audit that came to its end."""
        return next(self._readable(), None)

    def _readable(self) -> Iterator[dict[str, Any]]:
        """Whatever is wrong with one that was kept, it must not keep others from anything; and the
        oldest may be removed meanwhile.
        """
        for path in self._folders():
            with suppress(OSError, ValueError):
                yield json.loads((path / RESULT).read_bytes())

    def add(self, result: Mapping[str, Any], pages: Mapping[str, str], keep: int) -> Path:
        """Keep an audit, and no more than `keep` of them.

        Args:
            result: its `id` is the name of the folder, which sorts by time.
            pages: texts by the name of their file.
            keep: how many audits are kept, this one included.

        Returns:
            The folder of this one.
        """
        unfinished = self.directory / _UNFINISHED
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for name, text in pages.items():
            (unfinished / name).write_text(text, encoding="utf-8")
        replace_file(unfinished / RESULT, json.dumps(result, indent=1).encode())
        folder = self.directory / str(result["id"])
        unfinished.replace(folder)
        for old in self._folders()[keep:]:
            shutil.rmtree(old)
        return folder

    def write(self, name: str, text: str) -> None:
        """Replace a file beside the audits; a reader sees the old or the new one."""
        replace_file(self.directory / name, text.encode())

    def _folders(self) -> list[Path]:
        if not self.directory.exists():
            return []
        found = [path.parent for path in self.directory.glob(f"*/{RESULT}")]
        return sorted((p for p in found if p.name != _UNFINISHED), reverse=True)
