"""The durable checkpoint: how much of a data directory survives a loss of power.

Every few seconds ingest syncs the files that have grown, and then records their lengths:

    1. under engine.lock, reads commit page, close page and mirror together
    2. syncs the files of hours and segments that have grown, `topics`, and folders with new entries
    3. replaces the file `durable`, durably: JSON after its CRC-32

Invariant: every byte that the file names was on disk before the file. A kill before 3 leaves the
earlier checkpoint, which stays true. The wheel is not synced: a start rebuilds it from the logs.
Hours are unlinked only below the delivered slot of the checkpoint, or a start from it would miss
files that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duewheel.checkpoints.commit_and_close_pages import (
    Close,
    Marks,
    lengths_from,
    marks_from,
    marks_to,
    names_from,
)
from duewheel.checkpoints.fs import FileSystem
from duewheel.checkpoints.json_fields import MISSHAPEN, integer, read_json, write_json
from duewheel.checkpoints.state_file import State
from duewheel.errors import CorruptFile

FILE_NAME = "durable"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Durable:
    """The content of the file."""

    batch: int  # the newest batch whose bytes are all on disk
    marks: Marks  # next offset to take, after that batch
    hours: Mapping[int, tuple[int, ...]]  # log, message and cancelled bytes of every hour
    placed: int  # timers placed so far
    close: Close | None  # None before the first closing
    delivered_slot: int  # R, by the mirror
    topic_ids: Mapping[str, str]  # as in Commit, like `topics` and `cancels`
    topics: int
    cancels: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def write(self, directory: Path, fs: FileSystem) -> None:
        """Replaces the file, durably."""
        content = {
            "format": FORMAT,
            "batch": self.batch,
            "marks": marks_to(self.marks),
            "hours": self.hours,
            "placed": self.placed,
            "close": self.close.to_json() if self.close else None,
            "r": self.delivered_slot,
            "topic_ids": dict(self.topic_ids),
            "topics": self.topics,
            "cancels": dict(self.cancels),
        }
        write_json(directory / FILE_NAME, content, fs)

    @classmethod
    def read(cls, directory: Path) -> Durable | None:
        """Reads the file; None if it is missing.

        Raises:
            CorruptFile: the file is damaged, or has another format.
        """
        path = directory / FILE_NAME
        try:
            return cls._from_json(read_json(path))
        except FileNotFoundError:
            return None
        except MISSHAPEN as error:
            raise CorruptFile(path, 0, f"this is no durable checkpoint: {error!r}") from error

    @classmethod
    def _from_json(cls, raw: Mapping[str, Any]) -> Durable:
        if raw["format"] != FORMAT:
            raise ValueError(f"format {raw['format']}; this version reads {FORMAT}")
        return cls(
            integer(raw["batch"]),
            marks_from(raw["marks"]),
            lengths_from(raw["hours"], 3),
            integer(raw["placed"]),
            Close.from_json(raw["close"]) if raw["close"] else None,
            integer(raw["r"]),
            names_from(raw["topic_ids"]),
            integer(raw["topics"]),
            lengths_from(raw["cancels"], 2),
        )


def age_s(directory: Path, now_ms: int) -> float | None:
    """How long ago the file was replaced; None without the file."""
    path = directory / FILE_NAME
    return now_ms / 1000 - path.stat().st_mtime if path.exists() else None


def take_durable(state: State) -> Durable:
    """Makes the checkpoint of the present pages. Called under engine.lock."""
    commit, close, mirror = state.commit(), state.close(), state.mirror()
    r = mirror.delivered_slot if mirror else (close.lower if close else 0)
    hours = {hour: h.lengths for hour, h in commit.hours.items()}
    return Durable(
        commit.batch,
        commit.marks,
        hours,
        commit.placed,
        close,
        r,
        commit.topic_ids,
        commit.topics,
        commit.cancels,
    )
