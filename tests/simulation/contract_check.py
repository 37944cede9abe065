"""Copies of timers, and chases, as Kafka would give them to ingest, through the real contract."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import pyarrow as pa
from tests.harness.source_table import read_records
from tests.harness.timer_rows import suite_parameters
from tests.simulation.timers import DEAD, TARGETS, TOPIC, Copy, batch_of, split_headers

from duewheel.schemas.request.acceptance_rules import compile_suite, load_suite
from duewheel.schemas.request.parser import Contract, parse
from duewheel.schemas.request.topic_settings import TopicContract

# They mean nothing there; here they are the timer's.
_NOT_OF_LETTERS = {"due_ms", "timer_id", "id_hash", "target_partition"}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@functools.cache
def contract() -> Contract:
    parameters = suite_parameters(forbidden_targets=[TOPIC, TARGETS[DEAD]])
    rules = compile_suite(load_suite(), parameters)
    return Contract((1_000,), {}, TARGETS[DEAD], rules, TopicContract(recurring=True))


# What these say of a cancel means nothing.
_OF_TIMERS = {"due_ms", "target_partition", "roll_times", "level"}


def differences(copies: Sequence[tuple[Copy, bytes]]) -> list[str]:
    """Fields that the contract reads otherwise than they were meant."""
    parts = [[each for each in copies if each[0].is_chase is chase] for chase in (False, True)]
    return [text for part in parts if part for text in _differences(part)]


def _differences(copies: Sequence[tuple[Copy, bytes]]) -> list[str]:
    """Of timers, or of chases."""
    timers, chases = [copy.timer for copy, _ in copies], copies[0][0].is_chase
    table = pa.table(
        {
            "topic": [TOPIC] * len(copies),
            "partition": pa.array([timer.partition for timer in timers], pa.int32()),
            "offset": pa.array([copy.offset for copy, _ in copies], pa.int64()),
            "timestamp": pa.array(
                [copy.timestamp_ms * 1000 for copy, _ in copies], pa.timestamp("us", "UTC")
            ),
            "key": pa.array([timer.key for timer in timers], pa.binary()),
            "value": pa.array([None if chases else t.value for t in timers], pa.binary()),
            "headers": pa.array([decoded(headers) for _, headers in copies], HEADERS),
        }
    )
    found, wanted = (
        parse(read_records(table), contract()),
        batch_of([copy for copy, _ in copies], DEAD),
    )
    timers_only = np.flatnonzero([not timer.rejected for timer in timers])
    different = []
    for field in fields(wanted):
        both = [wanted, found]
        if chases and field.name in _OF_TIMERS:
            continue
        if field.name in _NOT_OF_LETTERS:
            both = [batch.take(timers_only) for batch in both]
        mine, its = (getattr(batch, field.name) for batch in both)
        if field.name in {"partitions", "partition", "targets", "target", "codes", "code"}:
            continue  # two columns that mean something together
        same = np.array_equal(its, mine) if isinstance(mine, np.ndarray) else its.equals(mine)
        if not same:
            different.append(f"{field.name}: {its} instead of {mine}")
    if not np.array_equal(found.rejected, wanted.rejected):
        different.append(f"rejected: {found.rejected} instead of {wanted.rejected}")
    for names, index in (("targets", "target"), ("partitions", "partition")):
        mine, its = (
            [getattr(batch, names)[at] for at in getattr(batch, index).tolist()]
            for batch in (wanted, found)
        )
        if mine != its and not (chases and index == "target"):
            different.append(f"{index}: {its} instead of {mine}")
    return different


def decoded(headers: bytes, count: int | None = None) -> list[tuple[str, bytes]]:
    """Names and values of headers."""
    parts = split_headers(headers)
    assert count in {None, len(parts)}
    return [(name.decode(), value) for name, value in parts]
