"""Verifies all files of a data directory, for `duewheel check`: links, checksums, counts.

The check runs beside running processes. It takes a snapshot of commit page and wheel under
engine.lock, and compares the files with that; files only grow after it. It checks, per hour:

    log       every record is well formed, each run whole; in slots that are not delivered, each run
              links to the slot's previous run
    wheel     the entry of every slot that the ring reaches and that is not delivered: first, last,
              num; each at its index
    messages  every record's message is inside the file, and matches its checksum
    cancelled every record matches its check, and the log record that it names is marked
    cancels   every record is well formed, and its request matches its checksum
    counts    the log has as many timers as were placed, unless hours were unlinked
    state     it has every batch that entries refer to, and every timer topic that messages refer to
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from duewheel.checkpoints.commit_and_close_pages import Commit, HourLengths
from duewheel.errors import CorruptFile, RecoveryPending
from duewheel.wheel.slots import WheelConfig, hour_of
from duewheel.wheel.storage import cancel_log, cancelled_records, message_store, timer_log
from duewheel.wheel.storage.byte_layouts import (
    LEVEL_MASK,
    MAGIC_ABANDONED,
    MAGIC_RECURRING,
    MAGIC_ROLL,
    MAGIC_TIMER,
    RECORD_BYTES,
    as_appended,
    distance_of,
    is_cancelled,
)
from duewheel.wheel.storage.data_directory import DataDirectory
from duewheel.wheel.storage.findings import FINDINGS_MAX, Finding, findings_at
from duewheel.wheel.storage.runs import Runs
from duewheel.wheel.storage.timelines.timeline import Verifier
from duewheel.wheel.storage.timer_log import BLOCK_RECORDS, Records, runs_in


@dataclass(slots=True)
class Report:
    """The number of checked records, and the findings."""

    records: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings


def check(path: Path, config: WheelConfig, block_records: int = BLOCK_RECORDS) -> Report:
    """Checks the data directory at `path`.

    Raises:
        FileNotFoundError: the data directory is missing.
        ConfigError: it was made with another geometry.
    """
    report = Report()
    try:
        directory = DataDirectory(path, config)
    except CorruptFile as error:
        return Report(0, [_finding(path, error)])
    try:
        with directory.locked() as commit:
            close = directory.state.close()
            lower, linked = close.lower if close else 0, directory.state.linked
            timeline = directory.timeline.verifier(lower, linked)
        _check_whole(directory, commit, timeline, report)
        report.findings += timeline.misplaced()
        for hour in commit.hours:
            _check_kept_hour(directory, hour, commit.hours[hour], timeline, report, block_records)
        for hour, lengths in commit.cancels.items():
            _check_kept_segment(directory, hour, lengths, report)
        _check_placed(directory, commit, report)
    except CorruptFile as error:
        report.findings.append(_finding(path, error))
    except RecoveryPending as error:
        report.findings.append(Finding("state", 0, "recovery", str(error)))
    finally:
        directory.close()
    del report.findings[FINDINGS_MAX:]
    return report


def _finding(root: Path, error: CorruptFile) -> Finding:
    return Finding(str(error.path.relative_to(root)), error.offset, "unreadable", error.detail)


def _check_whole(
    directory: DataDirectory, commit: Commit, timeline: Verifier, report: Report
) -> None:
    """Checks that every topic of messages, and every batch of the timeline, exists."""
    try:
        directory.require_whole_state(commit, timeline.newest_batch(commit.batch))
        directory.topics.require(commit.topics)
    except CorruptFile as error:
        report.findings.append(_finding(directory.path, error))


def _check_kept_hour(
    directory: DataDirectory,
    hour: int,
    lengths: HourLengths,
    timeline: Verifier,
    report: Report,
    block_records: int,
) -> None:
    """Checks an hour, unless dequeue has unlinked it, perhaps at this moment."""
    try:
        if hour >= directory.state.live.gc_hour:
            found = check_hour(directory, hour, lengths, timeline, block_records)
            report.records += found.records
            report.findings += found.findings
    except CorruptFile:
        if hour >= directory.state.live.gc_hour:
            raise


def _check_kept_segment(
    directory: DataDirectory, hour: int, lengths: tuple[int, ...], report: Report
) -> None:
    """Checks a segment of the cancel log, unless dequeue has unlinked it."""
    try:
        if hour >= directory.state.live.gc_cancels:
            report.findings += check_segment(directory, hour, lengths)
    except CorruptFile:
        if hour >= directory.state.live.gc_cancels:
            raise


def check_segment(directory: DataDirectory, hour: int, lengths: tuple[int, ...]) -> list[Finding]:
    """Checks one segment of the cancel log: every record, and its request.

    Raises:
        CorruptFile: a file is missing, damaged, or shorter than `lengths` says.
    """
    name = f"{cancel_log.FOLDER}/{directory.cancels.files.path(hour).name}"
    if lengths[0] % RECORD_BYTES:
        return [Finding(name, lengths[0], "log_length", "not a whole number of records")]
    for rows in directory.cancels.blocks(hour, lengths[0]):
        directory.topics.names(int(rows.requests.prefix["source_topic"].max(initial=-1)))
    size = directory.cancels.requests.files.size(hour)
    if size < lengths[1]:
        return [Finding(name, size, "request_outside", f"requests end before {lengths[1]}")]
    return []


def check_hour(
    directory: DataDirectory,
    hour: int,
    lengths: HourLengths,
    timeline: Verifier,
    block_records: int = BLOCK_RECORDS,
) -> Report:
    """Checks one hour's files, and the entries of its slots.

    Raises:
        CorruptFile: a file is missing or shorter than `lengths` says.
    """
    report = Report()
    log_name = f"{timer_log.FOLDER}/{directory.log.files.path(hour).name}"
    if lengths.log_bytes % RECORD_BYTES:
        report.findings.append(
            Finding(log_name, lengths.log_bytes, "log_length", "not a whole number of records")
        )
        return report
    of_hour, well_formed = timeline.of_hour(hour), True
    report.findings += _wrong_marks(directory, hour, lengths)
    for start, records in directory.log.blocks(hour, lengths.log_bytes, block_records):
        alive = records["magic"] != MAGIC_ABANDONED
        report.records += int(alive.sum())
        findings = list(_malformed(directory, hour, records, start, log_name))
        well_formed &= not findings
        if not findings:
            runs = runs_in(records, start, directory.config.precision_ms)
            findings += _mixed_runs(runs, records, start, log_name)
            findings += of_hour.follow(runs, log_name)
            findings += _bad_messages(directory, hour, records[alive], lengths.message_bytes)
        report.findings += findings
    if well_formed:
        report.findings += of_hour.end()
    return report


def _wrong_marks(directory: DataDirectory, hour: int, lengths: HourLengths) -> Iterator[Finding]:
    """Finds records that cancelled/<hour> names, and that are not marked as cancelled."""
    name = f"{cancelled_records.FOLDER}/{directory.cancelled.files.path(hour).name}"
    for rows in directory.cancelled.blocks(hour, 0, lengths.cancelled_bytes):
        position = rows["position"].astype(np.int64)
        view = directory.log.view(hour, lengths.log_bytes)
        inside = (position >= 0) & (position % RECORD_BYTES == 0) & (position < lengths.log_bytes)
        marked = np.zeros(len(rows), np.bool_)
        marked[inside] = is_cancelled(view.take(position[inside] // RECORD_BYTES))
        yield from findings_at(
            name, position, ~marked, "not_marked", "the record is not marked as cancelled"
        )


def _malformed(
    directory: DataDirectory, hour: int, records: Records, start: int, log_name: str
) -> Iterator[Finding]:
    """Finds records with impossible fields. The first record is at position `start`."""
    precision_ms = directory.config.precision_ms
    slot_ms = records["write_time"].astype(np.int64) + records["delay"]
    abandoned = records["magic"] == MAGIC_ABANDONED
    known = (
        as_appended(records)["magic"] & ~(MAGIC_ROLL | MAGIC_RECURRING | LEVEL_MASK)
    ) == MAGIC_TIMER
    distance = distance_of(records["reserved"])
    index = np.arange(len(records))
    position = start + index * RECORD_BYTES
    inside_run = distance > 0
    follows = np.where(inside_run, records["prev_pos"] == position - RECORD_BYTES, True)
    rises = np.where(inside_run & (index > 0), distance == distance[index - 1] + 1, ~inside_run)
    for code, bad, detail in (
        ("record_size", records["size"] != RECORD_BYTES, "size is not 52"),
        ("record_magic", ~abandoned & ~known, "unknown magic"),
        ("record_slot", slot_ms % precision_ms != 0, "write_time + delay is no slot"),
        ("record_hour", hour_of(slot_ms // precision_ms, precision_ms) != hour, "another hour's"),
        ("run_link", ~abandoned & ~follows, "prev_pos is not the record before in the run"),
        ("run_distance", ~abandoned & ~rises, "distance does not rise by one in the run"),
    ):
        yield from findings_at(log_name, position, bad, code, detail)


def _mixed_runs(runs: Runs, records: Records, start: int, log_name: str) -> Iterator[Finding]:
    """Finds runs with records of another slot, or abandoned ones. `start` as in _malformed."""
    counted = (runs.last_pos - runs.first_pos) // RECORD_BYTES + 1
    yield from findings_at(
        log_name, runs.first_pos, counted != runs.count, "run_hole", "abandoned records in a run"
    )
    slot_ms = records["write_time"].astype(np.int64) + records["delay"]
    first, last = ((p - start) // RECORD_BYTES for p in (runs.first_pos, runs.last_pos))
    mixed = slot_ms[first] != slot_ms[last]
    yield from findings_at(log_name, runs.first_pos, mixed, "run_slot", "a run has several slots")


def _bad_messages(
    directory: DataDirectory, hour: int, records: Records, message_bytes: int
) -> Iterator[Finding]:
    """Finds messages outside the committed file, and those that fail their checksum."""
    name = f"{message_store.FOLDER}/{directory.messages.files.path(hour).name}"
    end = records["offset_py"].astype(np.int64) + records["size_py"]
    beyond = end > message_bytes
    yield from findings_at(name, end, beyond, "message_outside", "behind the committed length")
    inside = records[~beyond]
    for block in message_store.split_by_limits(inside):
        try:
            directory.messages.read_ids(hour, block)  # the check that a cancel trusts
            directory.messages.read(hour, block)
        except CorruptFile as error:
            yield Finding(name, error.offset, "message_checksum", error.detail)


def _check_placed(directory: DataDirectory, commit: Commit, report: Report) -> None:
    """Checks that the log has every placed timer, as long as no hour was unlinked."""
    if (
        directory.state.live.gc_hour == 0
        and not report.findings
        and report.records != commit.placed
    ):
        detail = f"{commit.placed} timers were placed, the log has {report.records}"
        report.findings.append(Finding("state", 0, "placed", detail))
