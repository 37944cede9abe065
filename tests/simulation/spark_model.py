"""Spark's side of ingest: a query that plans batches, keeps a checkpoint, and repeats itself.

A batch is planned (offsets/<n> says where it ends), given to the sink, and committed (commits/<n>).
A query that died in between runs its planned batch again when it starts, over the same offsets; a
query without a checkpoint starts where it is told. The files are written as Spark writes them:
without fsync.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from random import Random

from tests.simulation.shard_model import Shard, offsets_of
from tests.simulation.timers import TOPIC, Copy

from duewheel.checkpoints.commit_and_close import Marks, marks_to
from duewheel.checkpoints.fs import FileSystem
from duewheel.schemas.batches import TopicPartition
from duewheel.streaming.spark_checkpoint import end_offsets, resume_point

CHECKPOINT = Path("spark") / "checkpoint"
KEPT = 4


class Query:
    """A running query over the timer topic.

    Attributes:
        batch: number of the next one.
    """

    def __init__(
        self, shard: Shard, checkpoint: Path, starts: Marks, rng: Random, fs: FileSystem
    ) -> None:
        """
        Args:
            starts: where to begin without a checkpoint.
            rng: plans the batches.
            fs: its process's.
        """
        self._shard = shard
        self._checkpoint = checkpoint
        self._rng = rng
        self._fs = fs
        resume = resume_point(checkpoint)
        self.batch = resume.batch_id if resume else 0
        self._at: dict[TopicPartition, int] = dict(resume.offsets if resume else starts)
        for folder in ("offsets", "commits", "sources/0"):
            self._make_folder(checkpoint / folder)
        if resume is None:
            self._write("sources/0/0", "\0v1\n" + json.dumps(marks_to(self._at)))

    def plan(self, rows_max: int) -> tuple[list[Copy], dict[TopicPartition, int]]:
        """The next batch: its records, and where it ends. May hold nothing."""
        path = self._checkpoint / "offsets" / str(self.batch)
        if path.exists():
            ends = end_offsets(self._checkpoint, self.batch)
        else:
            ends = {
                name: self._end(name, stable, rows_max)
                for name, stable in offsets_of(self._shard, "stable_end").items()
            }
            line = json.dumps(marks_to(ends))
            self._write(f"offsets/{self.batch}", 'v1\n{"batchWatermarkMs":0}\n' + line)
        copies = [
            copy
            for (_, number), end in ends.items()
            for copy in self._shard.kafka.partitions[number].read(
                self._at.get((TOPIC, number), 0), end
            )
        ]
        return copies, ends

    def commit(self, ends: Marks) -> None:
        """The planned batch has been taken."""
        self._write(f"commits/{self.batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        self._at = dict(ends)
        self.batch += 1
        for folder in ("offsets", "commits"):
            self._fs.discard(self._checkpoint / folder / str(self.batch - KEPT))

    @property
    def behind(self) -> bool:
        """Whether there are offsets that no batch has covered."""
        ends = offsets_of(self._shard, "stable_end")
        return any(self._at.get(name, 0) < end for name, end in ends.items())

    def _end(self, name: TopicPartition, stable: int, rows_max: int) -> int:
        at = self._at.get(name, 0)
        return max(at, min(stable, at + self._rng.randint(0, rows_max)))

    def _write(self, name: str, text: str) -> None:
        fd = self._fs.open(self._checkpoint / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._fs.pwrite(fd, text.encode(), 0)
        self._fs.close(fd)

    def _make_folder(self, path: Path) -> None:
        try:
            self._fs.make_folder(path)
        except FileNotFoundError:
            self._make_folder(path.parent)
            self._fs.make_folder(path)


def damage(checkpoint: Path, rng: Random, older: dict[str, bytes]) -> str:
    """Spoil a checkpoint that nobody uses; says how."""
    how = rng.choice(("deleted", "older", "newer", "cut"))
    newest = max((checkpoint / "offsets").glob("*"), key=lambda p: int(p.name), default=None)
    if how == "deleted" or newest is None:
        shutil.rmtree(checkpoint, ignore_errors=True)
        return "deleted"
    if how == "older" and older:
        shutil.rmtree(checkpoint)
        for name, content in older.items():
            path = checkpoint / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    elif how == "newer":
        try:
            topics = json.loads(newest.read_text().splitlines()[2])
        except (IndexError, ValueError):  # a kill has cut it short
            return "cut already"
        ahead = {t: {p: o + rng.randint(0, 3) for p, o in ps.items()} for t, ps in topics.items()}
        newest.write_text("v1\n{}\n" + json.dumps(ahead))
        (checkpoint / "commits").mkdir(exist_ok=True)  # a loss of power may have taken it
        (checkpoint / "commits" / newest.name).write_text("v1\n{}")
    else:
        newest.write_bytes(newest.read_bytes()[: rng.randint(0, 20)])
    return how


def saved(checkpoint: Path) -> dict[str, bytes]:
    """The checkpoint's files."""
    return {
        str(path.relative_to(checkpoint)): path.read_bytes()
        for path in sorted(checkpoint.rglob("*"))
        if path.is_file()
    }
