"""Spark's side of ingest: a query that plans batches, keeps a checkpoint, and repeats itself.

A batch is planned (offsets/<n> says where it ends), given to the sink, and committed (commits/<n>).
Where it begins is kept nowhere: at the end of the batch before, and batch 0 where `initialOffset`
says when it runs. A query that died in between runs its planned batch again when it starts, over
the same offsets; but batch 0 from where the query begins now (Spark 4.2 asks again). The files are
written as Spark writes them: without fsync.

Planning and reading are the real data source's; it finds a simulated Kafka (raw_reads.py).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMaxRows
from tests.simulation.raw_reads import SimulatedLogReader, SimulatedSource
from tests.simulation.shard_model import Shard, offsets_of

from duewheel.checkpoints.commit_and_close_pages import Marks, marks_to
from duewheel.checkpoints.fs import FileSystem
from duewheel.schemas.batches import TimerBatch
from duewheel.schemas.wire.kafka_records import KafkaRecords
from duewheel.streaming.early_ends import EarlyEnds, offsets_from
from duewheel.streaming.read_task import rows_of
from duewheel.streaming.spark_checkpoint import end_offsets, resume_point
from duewheel.streaming.task_rows import SCHEMA, take_timers
from duewheel.streaming.task_share import TaskShare

CHECKPOINT = Path("spark") / "checkpoint"
KEPT = 4
_BYTES = (1, 1 << 30)  # of a task

Parse = Callable[[KafkaRecords], TimerBatch]


class Query:
    """A running query over the timer topic.

    Attributes:
        batch: number of the next one.
        has_ended: by a batch that was refused.
    """

    def __init__(
        self,
        shard: Shard,
        checkpoint: Path,
        starts: Marks,
        parse: Parse,
        rng: Random,
        fs: FileSystem,
    ) -> None:
        """
        Args:
            starts: where to begin without a checkpoint.
            parse: what tasks do.
            rng: plans the batches.
            fs: its process's.
        """
        self.has_ended = False
        self._shard = shard
        self._checkpoint = checkpoint
        self._parse = parse
        self._rng = rng
        self._fs = fs
        self._kafka = SimulatedLogReader(shard)
        self._source = SimulatedSource(self._kafka, starts, checkpoint.parent)
        resume = resume_point(checkpoint)
        self.batch = resume.batch_id if resume else 0
        # Spark's end of the batch before; None: not known.
        self._at = marks_to(resume.offsets) if self.batch and resume else None
        for folder in ("offsets", "commits"):
            self._make_folder(checkpoint / folder)
        self._early_ends = EarlyEnds(checkpoint.parent)
        self._early_ends.clear()

    def plan(self, rows_max: int) -> None:
        """Write where the next batch ends, unless that is written."""
        path = self._checkpoint / "offsets" / str(self.batch)
        if path.exists():
            return
        start = self._start()
        at = {**offsets_from(start)[0], **self._early_ends.read()}
        self._kafka.ends_now = {
            name: self._end(at.get(name, 0), stable, rows_max)
            for name, stable in offsets_of(self._shard, "stable_end").items()
        }
        line = json.dumps(self._source.latestOffset(start, ReadMaxRows(rows_max)))
        self._write(f"offsets/{self.batch}", 'v1\n{"batchWatermarkMs":0}\n' + line)

    def read(self, marks: Marks) -> tuple[TimerBatch, Marks]:
        """The timers of the planned batch, as its tasks hand them over, and its ends."""
        rows: list[Any] = []
        for share in self._source.partitions(self._start(), self._planned()):
            assert isinstance(share, TaskShare)
            share.bytes_max = self._rng.choice(_BYTES)
            rows += rows_of(share, self._kafka, self._parse, {}, folder="")
        timers, early, added = take_timers(pa.Table.from_batches(rows, SCHEMA), folder="")
        planned = end_offsets(self._checkpoint, self.batch)
        return timers, self._early_ends.note(planned, early, marks, (), added)

    def commit(self) -> None:
        """The planned batch has been taken."""
        self._at = self._planned()
        self._write(f"commits/{self.batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        self.batch += 1
        for folder in ("offsets", "commits"):
            self._fs.discard(self._checkpoint / folder / str(self.batch - KEPT))

    @property
    def behind(self) -> bool:
        """Whether there are offsets that no batch has covered."""
        at = {**offsets_from(self._start())[0], **self._early_ends.read()}
        ends = offsets_of(self._shard, "stable_end")
        return any(at.get(name, 0) < end for name, end in ends.items())

    def _start(self) -> dict[str, Any]:
        """Where the batch before has ended, as planned."""
        return self._source.initialOffset() if self._at is None else self._at

    def _planned(self) -> dict[str, Any]:
        """What Spark keeps of the batch."""
        lines = (self._checkpoint / "offsets" / str(self.batch)).read_text().splitlines()
        planned: dict[str, Any] = json.loads(lines[2])
        return planned

    def _end(self, at: int, stable: int, rows_max: int) -> int:
        """What the broker tells: it may have told that for a while."""
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
        topics.pop("/begins", None)
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
