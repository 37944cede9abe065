"""Shared by the fuzz tests: valid bytes, changed as disks, tools and people change them.

The parsers of foreign bytes, by the file that tests them (test_fuzzed.py compares):

test_record_batches.py    schemas/wire/batch_reader schemas/wire/record_reader kafka/log/compression
                          kafka/log/columns schemas/request/parser
test_costs.py             schemas/wire/record_reader schemas/wire/record_rows
test_records.py           schemas/wire/record_rows kafka/log/records client/replies
                          client/retry_headers ops/receipts schemas/receipts
                          ops/dead_letters/listing ops/recovery/evidence
                          checkpoints/json_fields
                          checkpoints/import_position checkpoints/relay_position
                          checkpoints/reshard_records
                          checkpoints/held_copies checkpoints/pauses
test_requests.py          schemas/request/parser schemas/dead_letters schemas/wire/copy_mac
                          ops/recovery/mirrored_rows
test_lines_and_bodies.py  ops/file_import/line_records ops/schedules/schedule_record serve/app
                          client/handle ops/relay/outbox_rows
test_config.py            config/settings config/durations
test_values_and_tokens.py registry/values registry/decoder registry/formats serve/access
test_checkpoints.py       checkpoints/state_file checkpoints/progress checkpoints/progress_mirror
                          checkpoints/durable_checkpoint checkpoints/cancel_bounds
                          checkpoints/local_state checkpoints/dlq_replay_position
                          checkpoints/config_epochs checkpoints/quota_waiting
                          checkpoints/timer_topics_file streaming/batch_attempt
                          streaming/spark_checkpoint
test_trace_contexts.py    schemas/wire/trace_context schemas/wire/record_reader
                          schemas/request/header_values
test_wheel_files.py       wheel/storage/full_check wheel/storage/cancel_log
                          wheel/storage/message_store wheel/storage/timer_log
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

# A block is what a file system loses at a time.
_BLOCK = 512
_CHANGES = st.sampled_from(["flip", "set", "cut", "insert", "splice", "zeros", "ones"])
_LENGTHS = st.sampled_from([1, 2, 4, 8, 52, _BLOCK]) | st.integers(1, 64)

# What a field may be instead of what it should be.
_VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**40]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["0", "-1", " 1", "1_0", "\u0663", "\ud800", "[" * 3]),
    st.lists(st.integers(-1, 1), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(-1, 1), max_size=2),
)


def _changed(data: st.DataObject, sample: bytes) -> bytes:
    """One change at one place; bytes come in, bytes go out."""
    change = data.draw(_CHANGES)
    at = data.draw(st.integers(0, max(len(sample) - 1, 0)))
    length = data.draw(_LENGTHS)
    piece = sample[at : at + length]
    before, after = sample[:at], sample[at + length :]
    if change == "flip":
        bit = 1 << data.draw(st.integers(0, 7))
        return before + bytes([octet ^ bit for octet in piece[:1]]) + sample[at + 1 :]
    if change == "set":
        return before + data.draw(st.binary(min_size=1, max_size=8)) + sample[at + 1 :]
    if change == "cut":
        return before + (b"" if data.draw(st.booleans()) else after)
    if change == "insert":
        return before + data.draw(st.binary(min_size=1, max_size=16)) + sample[at:]
    if change == "splice":
        source = data.draw(st.integers(0, max(len(sample) - 1, 0)))
        return before + sample[source : source + length] + after
    return before + (b"\0" if change == "zeros" else b"\xff") * len(piece) + after


@pytest.fixture(scope="session")
def damage() -> Callable[[st.DataObject, bytes], bytes]:
    """Valid bytes → other bytes: bits flipped, pieces cut, inserted, moved, zeroed, set."""

    def damaged(data: st.DataObject, sample: bytes) -> bytes:
        for _ in range(data.draw(st.integers(1, 3))):
            sample = _changed(data, sample)
        return sample

    return damaged


def _altered(data: st.DataObject, value: Any) -> Any:
    """The same JSON value with one thing in it exchanged, taken away or added."""
    if not isinstance(value, dict | list) or not value or data.draw(st.integers(0, 4)) == 0:
        return data.draw(_VALUES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = data.draw(st.sampled_from(keys))
    other: Any = value.copy()
    change = data.draw(st.sampled_from(["inside", "inside", "inside", "remove", "rename"]))
    if change == "inside":
        other[key] = _altered(data, value[key])
    elif change == "remove" or isinstance(value, list):
        del other[key]
    else:
        other[data.draw(st.text(max_size=3) | st.sampled_from(["-1", " 0", "1e3", "1_0"]))] = (
            other.pop(key)
        )
    return other


@pytest.fixture(scope="session")
def alter() -> Callable[[st.DataObject, bytes], bytes]:
    """Valid JSON → JSON with other values, names and shapes; sometimes nested beyond measure."""

    def altered(data: st.DataObject, sample: bytes) -> bytes:
        if data.draw(st.integers(0, 19)) == 0:
            return b'{"a":' * 100_000
        value = json.loads(sample)
        for _ in range(data.draw(st.integers(1, 3))):
            value = _altered(data, value)
        return json.dumps(value).encode()

    return altered
