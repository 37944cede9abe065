"""Reads Spark's checkpoint of a streaming query: its state, and the offsets of its next batch.

    offsets/<n>     planned before batch n runs:  "v1", a line of metadata, a line per source
    commits/<n>     written after it:             "v1", a line of metadata

A line of offsets is {"topic": {"partition": next offset, …}, …}, and where batches end early also
where it begins (early_ends.py). There is one source, the timer topics.

The query continues after the newest planned batch if that is committed. Otherwise it repeats that
batch from the end of the batch before; batch 0 from where the new query begins, because Spark 4.2
calls the source's `initialOffset` again. A partition that is missing there is new, and is read from
its beginning.

Spark writes these files without fsync: after a power failure they may be empty. A file of another
form raises CorruptFile. `settle_checkpoint` then sets the checkpoint aside, and the query starts
from the engine's own marks; no file is ever repaired.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from duewheel.checkpoints.commit_and_close_pages import Marks
from duewheel.checkpoints.fs import HOST_FS, FileSystem
from duewheel.checkpoints.json_fields import MISSHAPEN
from duewheel.errors import CorruptFile
from duewheel.schemas.batches import TopicPartition
from duewheel.schemas.partition_names import partition_name
from duewheel.streaming.early_ends import offsets_from

VERSION = b"v1"
_ASIDE = ".aside-"
ASIDE_COUNT_MAX = 3  # old checkpoints kept for a post-mortem

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Resume:
    """The next batch of a query on this checkpoint."""

    batch_id: int  # Spark's count; on another checkpoint the same number means other rows
    # Next offset to read, per partition; missing partitions are read in full. Empty for batch 0,
    # which begins where its query begins.
    offsets: Mapping[TopicPartition, int]
    # Where that batch ends, if it was planned before
    until: Mapping[TopicPartition, int] = field(default_factory=dict)


def end_offsets(checkpoint: Path, batch_id: int) -> Marks:
    """The offsets after the last ones of a batch, for every partition of the query.

    Raises:
        CorruptFile: the batch was not planned in this checkpoint, or its file cannot be read.
    """
    path = checkpoint / "offsets" / str(batch_id)
    lines = _lines(path)
    if len(lines) != 3:
        raise CorruptFile(
            path, 0, f"{len(lines)} lines instead of version, metadata and one source"
        )
    _object(path, lines[0], lines[1])
    return _offsets(path, len(lines[0]) + len(lines[1]) + 2, lines[2])


def resume_point(checkpoint: Path) -> Resume | None:
    """The next batch; None if the checkpoint is empty: the query then starts as configured.

    Raises:
        CorruptFile: a needed file is missing or cannot be read.
    """
    planned = _newest(checkpoint / "offsets")
    committed = _newest(checkpoint / "commits")
    if planned is None:
        if committed is not None:
            raise CorruptFile(checkpoint / "commits" / str(committed), 0, "was never planned")
        return None
    if committed is not None and committed > planned:
        raise CorruptFile(checkpoint / "commits" / str(committed), 0, "was never planned")
    end = end_offsets(checkpoint, planned)
    if committed == planned:
        _check_commit(checkpoint / "commits" / str(committed))
        return Resume(planned + 1, end)
    if planned > 0:
        return Resume(planned, end_offsets(checkpoint, planned - 1), end)
    return Resume(0, {}, end)


def is_ahead(checkpoint: Path, marks: Marks) -> bool:
    """Whether Spark has planned offsets that the engine has not got; False if unreadable."""
    planned = _newest(checkpoint / "offsets")
    try:
        ends = {} if planned is None else end_offsets(checkpoint, planned)
    except CorruptFile:
        return False
    return any(end > marks.get(partition, 0) for partition, end in ends.items())


def set_aside(checkpoint: Path, fs: FileSystem = HOST_FS) -> Path | None:
    """Renames a checkpoint, if it exists, and drops all but the newest few set aside before;
    returns its new place.
    """
    numbers = sorted(
        int(match[1])
        for path in checkpoint.parent.glob(f"{checkpoint.name}{_ASIDE}*")
        if (match := re.fullmatch(re.escape(checkpoint.name + _ASIDE) + r"(\d+)", path.name))
    )
    if not checkpoint.exists():
        return None
    number = numbers[-1] + 1 if numbers else 1
    aside = checkpoint.with_name(f"{checkpoint.name}{_ASIDE}{number}")
    fs.replace(checkpoint, aside)
    for old in numbers[: max(0, len(numbers) + 1 - ASIDE_COUNT_MAX)]:
        fs.remove_tree(checkpoint.with_name(f"{checkpoint.name}{_ASIDE}{old}"))
    return aside


def settle_checkpoint(
    checkpoint: Path,
    marks: Marks,
    partitions: Collection[TopicPartition],
    ends: Marks,
    fs: FileSystem = HOST_FS,
) -> None:
    """Sets Spark's checkpoint, if it exists, aside if a query on it could skip messages. `marks`
    are the engine's, `partitions` the existing ones of the timer topics, `ends` their last stable
    offsets.
    """
    try:
        resume = resume_point(checkpoint)
        reason = _misfit(resume, marks, partitions, ends) if resume else None
    except CorruptFile as error:
        reason = str(error)
    if reason is None:
        return
    aside = set_aside(checkpoint, fs)
    _log.warning(
        "Spark's checkpoint does not fit, starting from the marks", reason=reason, aside=str(aside)
    )


def _misfit(
    resume: Resume, marks: Marks, partitions: Collection[TopicPartition], ends: Marks
) -> str | None:
    """Returns why the query must not continue at its checkpoint; None if it may."""
    topics = {topic for topic, _ in partitions}
    for partition in {**resume.offsets, **resume.until}:
        if partition not in partitions:
            name = partition_name(partition)
            return f"it reads {name}, which is no partition of the timer topics"
    for partition, offset in resume.offsets.items():
        name, mark = partition_name(partition), marks.get(partition)
        if mark is None and resume.batch_id > 0:
            return f"it has read {name}, for which the engine has no mark"
        if mark is not None and offset > mark:
            return f"it continues at offset {offset} of {name}, the engine at {mark}"
    for partition, until in resume.until.items():
        name, end = partition_name(partition), ends.get(partition, until)
        if until > end:  # records committed there later would count as read
            return f"its next batch ends at offset {until} of {name}, its log at {end}"
    missing = topics - {topic for topic, _ in resume.offsets or resume.until}
    if missing:
        return f"it does not read {', '.join(sorted(missing))}"
    return None


def _newest(directory: Path) -> int | None:
    """The highest batch number; Spark's temporary files have other names."""
    if not directory.is_dir():
        return None
    return max((int(p.name) for p in directory.iterdir() if p.name.isdecimal()), default=None)


def _check_commit(path: Path) -> None:
    lines = _lines(path)
    if len(lines) != 2:
        raise CorruptFile(path, 0, f"{len(lines)} lines instead of version and metadata")
    _object(path, lines[0], lines[1])


def _lines(path: Path) -> list[bytes]:
    """The lines of a file of version VERSION."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CorruptFile(path, 0, "missing") from None
    lines = data.rstrip(b"\n").split(b"\n")
    if lines[0] != VERSION:
        raise CorruptFile(path, 0, f"begins with {data[:16]!r} instead of {VERSION!r}")
    return lines


def _object(path: Path, before: bytes, line: bytes) -> dict[str, object]:
    """The JSON object of `line`, which comes after the line `before`."""
    position = len(before) + 1
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(path, position, f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptFile(path, position, "no JSON object")
    return value


def _offsets(path: Path, position: int, line: bytes) -> Marks:
    try:
        offsets, _ = offsets_from(json.loads(line))
    except MISSHAPEN as error:
        raise CorruptFile(path, position, f"no offsets of timer topics: {error}") from None
    for partition, offset in offsets.items():
        if offset < 0:
            raise CorruptFile(path, position, f"{partition_name(partition)} has offset {offset}")
    return offsets
